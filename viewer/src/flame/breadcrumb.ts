// The way from the root to the node that fills the width; each part leads back to itself.

import type { ReportData, Tree } from "../data.ts";
import { h } from "../dom.ts";
import { path } from "./icicle.ts";
import { timed } from "./paint.ts";
import { brief } from "./tooltip.ts";

/** Of a long way the first and the last parts are named. */
const FIRST = 1;
const LAST = 5;

export function fillBreadcrumb(
  list: HTMLElement,
  data: ReportData,
  tree: Tree,
  node: number,
  zoom: (node: number) => void,
): void {
  const nodes = path(tree, node);
  const hidden = nodes.length - FIRST - LAST;
  const items: HTMLElement[] = [];
  nodes.forEach((part, i) => {
    if (hidden > 1 && i >= FIRST && i < nodes.length - LAST) {
      if (i === FIRST) items.push(h("li", { class: "flame-gap" }, `… ${hidden} more`));
      return;
    }
    const name = data.strings[tree.name[part]];
    if (part === node) {
      const here = h("span", { "aria-current": "true", title: name }, brief(name, 60));
      items.push(h("li", {}, here, h("span", { class: "flame-dim" }, `${timed(data, tree, part)} a step`)));
      return;
    }
    const button = h("button", { type: "button", title: name }, brief(name));
    button.addEventListener("click", () => zoom(part));
    items.push(h("li", {}, button));
  });
  list.replaceChildren(...items);
}
