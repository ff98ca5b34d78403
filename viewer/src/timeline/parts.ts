// The elements that the timeline is made of, and how they stand in each other.

import { h } from "../dom.ts";

export interface Parts {
  /** Around everything. */
  frame: HTMLElement;
  /** The minimap, the axis and the tracks. */
  box: HTMLElement;
  /** Scrolls the tracks; `tall` in it is as high as they all are. */
  scroller: HTMLElement;
  tall: HTMLElement;
  gutter: HTMLElement;
  axis: HTMLCanvasElement;
  /** As high as what is seen of the tracks; it has the focus while the keys work. */
  tracks: HTMLCanvasElement;
  handle: HTMLElement;
  hint: HTMLElement;
  details: HTMLElement;
  legend: HTMLElement;
  /** What a screen reader says. */
  said: HTMLElement;
}

export function parts(minimap: HTMLElement, names: HTMLElement, tip: HTMLElement): Parts {
  const axis = h("canvas", { class: "tl-axis", "aria-hidden": "true" });
  const tracks = h("canvas", {
    class: "tl-tracks",
    tabindex: "0",
    role: "application",
    "aria-label": "Tracks over time. W, A, S, D zoom and move, arrow keys select, question mark lists the keys.",
  });
  const gutter = h("div", { class: "tl-gutter" });
  const tall = h("div", { class: "tl-tall" }, gutter, tracks);
  const scroller = h("div", { class: "tl-scroll" }, tall);
  const hint = h("span", { class: "tl-hint" });
  const handle = h("div", {
    class: "tl-handle",
    role: "separator",
    tabindex: "0",
    "aria-orientation": "horizontal",
    "aria-label": "Height of the timeline",
    title: "Drag to resize",
  });
  const corners = [names, hint].map((inside) => h("div", { class: "tl-corner" }, inside));
  const head = h("div", { class: "tl-head" }, corners[0], minimap, corners[1], axis);
  const box = h("div", { class: "tl-box" }, head, scroller, handle, tip);
  const details = h("div", { class: "tl-details" });
  const legend = h("div");
  const said = h("div", { class: "tl-said", "aria-live": "polite" });
  const frame = h("div", { class: "tl" }, box, details, legend, said);
  return { frame, box, scroller, tall, gutter, axis, tracks, handle, hint, details, legend, said };
}
