// The small square of a colour beside a word.

import type { Paint } from "./data.ts";
import { h } from "./dom.ts";

/** Has both colours; the style of the page says which of them counts. */
export function chip(paint: Paint): HTMLElement {
  const element = h("span", { class: paint.wait ? "chip wait" : "chip", "aria-hidden": "true" });
  element.style.setProperty("--light", paint.light);
  element.style.setProperty("--dark", paint.dark);
  return element;
}
