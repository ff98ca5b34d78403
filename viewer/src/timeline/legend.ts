// What the colours mean.

import type { ReportData } from "../data.ts";
import { h } from "../dom.ts";
import { swatch } from "./details.ts";

/** Only colours that some event has: the others explain nothing here. */
export function legends(data: ReportData): HTMLElement {
  const used = new Uint8Array(256);
  for (const paint of data.events.paint) used[paint] = 1;
  return h(
    "div",
    { class: "tl-legends" },
    ...data.legends.flatMap(({ title, paints }) => {
      const shown = paints.filter((paint) => used[paint] === 1);
      if (shown.length === 0) return [];
      const items = shown.map((paint) => h("li", {}, swatch(data, paint), data.paints[paint].label));
      return [h("div", { class: "tl-legend" }, h("span", { class: "tl-legend-title" }, title), h("ul", {}, ...items))];
    }),
  );
}
