// The script of pages that have no other: light or dark.

import { startTheme } from "./theme.ts";

startTheme(document.getElementById("theme"));
document.documentElement.dataset.ready = "yes";
