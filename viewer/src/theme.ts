// Light or dark: what the system says, until the reader chooses.

import type { Paint } from "./data.ts";
import { onPaper } from "./paper.ts";

export type Theme = "light" | "dark";

const KEY = "gpuprof-theme";
const CHANGED = "gpuprof-theme";

export function theme(): Theme {
  return document.documentElement.dataset.theme === "dark" ? "dark" : "light";
}

/** Sets the theme at first, and gives the button its function. */
export function startTheme(button: HTMLElement | null): void {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  set(chosen() ?? (system.matches ? "dark" : "light"));
  system.addEventListener("change", () => chosen() ?? set(system.matches ? "dark" : "light"));
  button?.addEventListener("click", () => {
    const next = theme() === "dark" ? "light" : "dark";
    try {
      window.localStorage.setItem(KEY, next);
    } catch {
      // A page that may store nothing forgets the choice.
    }
    set(next);
  });
  // Paper is white.
  let before: Theme | null = null;
  onPaper(
    () => {
      before = theme();
      set("light");
    },
    () => before && set(before),
  );
}

/** Calls back whenever the theme has changed. */
export function onTheme(redraw: () => void): void {
  document.addEventListener(CHANGED, redraw);
}

/** The value of one of the page's custom properties, `--line` say. */
export function css(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function colour(paint: Paint): string {
  return theme() === "dark" ? paint.dark : paint.light;
}

/** Black or white, whichever is read better on a colour `#rrggbb`. */
export function textOn(background: string): string {
  const [r, g, b] = [1, 3, 5].map((i) => {
    const c = parseInt(background.slice(i, i + 2), 16) / 255;
    return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

function set(next: Theme): void {
  document.documentElement.dataset.theme = next;
  document.dispatchEvent(new CustomEvent(CHANGED));
}

function chosen(): Theme | null {
  try {
    const stored = window.localStorage.getItem(KEY);
    return stored === "light" || stored === "dark" ? stored : null;
  } catch {
    return null;
  }
}
