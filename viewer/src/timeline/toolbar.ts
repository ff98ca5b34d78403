// Search, zoom and help above the timeline.

import { NOTHING } from "../data.ts";
import { h } from "../dom.ts";
import { count } from "../format.ts";
import { goToMatch, KEYS, zoomAtPointer } from "./keys.ts";
import { rankOf } from "./matches.ts";
import type { Stage } from "./stage.ts";

const TYPING_MS = 120;
const ZOOM = 1.8;

export interface Toolbar {
  element: HTMLElement;
  search: HTMLInputElement;
  /** Puts a text in the search box and looks for it now. */
  look: (text: string) => void;
  help: HTMLDialogElement;
}

export function toolbar(stage: Stage, toggleFull: () => void, giveBack: () => void): Toolbar {
  const search = h("input", {
    type: "search",
    class: "tl-search",
    placeholder: "Search events  ( / )",
    "aria-label": "Search events by name",
    spellcheck: "false",
    autocomplete: "off",
  });
  const told = h("span", { class: "tl-count", "aria-live": "polite" });
  const previous = button("‹", "Previous match (shift + Enter)", () => goToMatch(stage, -1));
  const next = button("›", "Next match (Enter)", () => goToMatch(stage, 1));
  const help = helpDialog();
  const look = (text: string) => {
    search.value = text;
    stage.search(text);
  };
  const tell = () => {
    const { found, data, selected } = stage;
    const rank = found === null || selected === NOTHING ? 0 : rankOf(data.events.start, found, selected);
    const of = found === null ? "" : found.length === 1 ? "1 match" : `${count(found.length)} matches`;
    told.textContent =
      rank > 0 && found !== null ? `${count(rank)} of ${count(found.length)}` : found?.length === 0 ? "no match" : of;
    previous.disabled = next.disabled = found === null || found.length === 0;
  };
  stage.onChange((change) => (change === "search" || change === "selection") && tell());
  listen(search, stage, giveBack);
  tell();
  const element = h(
    "div",
    { class: "tl-bar", role: "toolbar", "aria-label": "Timeline" },
    h("span", { class: "tl-find", role: "search" }, search, previous, next, told),
    h(
      "span",
      { class: "tl-buttons" },
      button("−", "Zoom out (S)", () => zoomAtPointer(stage, null, ZOOM)),
      button("+", "Zoom in (W)", () => zoomAtPointer(stage, null, 1 / ZOOM)),
      button("Fit", "Show everything (0)", () => stage.glideTo(stage.whole)),
      measureButton(stage),
      button("Full window", "Fill the window with the timeline (Esc leaves)", toggleFull),
      button("?", "Keys (?)", () => help.showModal()),
    ),
  );
  return { element, search, look, help };
}

function listen(search: HTMLInputElement, stage: Stage, giveBack: () => void): void {
  let typing = 0;
  const now = () => {
    window.clearTimeout(typing);
    if (search.value !== stage.sought) stage.search(search.value);
  };
  search.addEventListener("input", () => {
    window.clearTimeout(typing);
    typing = window.setTimeout(now, TYPING_MS);
  });
  search.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Enter") {
      event.preventDefault();
      now();
      goToMatch(stage, event.shiftKey ? -1 : 1);
    } else if (event.key === "Escape") {
      event.preventDefault();
      search.value = "";
      now();
      giveBack();
    }
  });
}

function button(text: string, title: string, action: () => void): HTMLButtonElement {
  const element = h("button", { type: "button", class: "tl-button", title, "aria-label": title }, text);
  element.addEventListener("click", action);
  return element;
}

function measureButton(stage: Stage): HTMLButtonElement {
  const element = button("Measure", "Measure a range: then drag (M)", () => stage.setMeasuring(!stage.measuring));
  element.setAttribute("aria-pressed", "false");
  stage.onChange((change) => change === "mode" && element.setAttribute("aria-pressed", String(stage.measuring)));
  return element;
}

function helpDialog(): HTMLDialogElement {
  const close = button("Close", "Close", () => dialog.close());
  const rows = KEYS.map(([keys, what]) => h("tr", {}, h("th", { scope: "row" }, keys), h("td", {}, what)));
  const dialog = h(
    "dialog",
    { class: "tl-help", "aria-label": "Keys of the timeline" },
    h("h3", {}, "Keys of the timeline"),
    h("table", {}, h("tbody", {}, ...rows)),
    close,
  );
  dialog.addEventListener("keydown", (event) => event.stopPropagation());
  return dialog;
}
