// What is known of a bar, next to the pointer. Text only.

import { NOTHING, type ReportData, type Tree } from "../data.ts";
import { h } from "../dom.ts";
import { count, duration, share } from "../format.ts";
import type { Icicle } from "./icicle.ts";

/** Name, whole name where it differs, and amounts of a node: per step, of the whole, of its parent. */
export function words(
  data: ReportData,
  { tree, count: counts }: Icicle,
  node: number,
): { name: string; full: string; lines: [string, string][] } {
  const [total, own, parent] = [tree.total[node], tree.own[node], tree.parent[node]];
  const steps = data.step_count;
  const lines: [string, string][] = [["total", `${duration(total / steps)} a step`]];
  if (own > 0 && own < total) lines.push(["own", `${duration(own / steps)} a step`]);
  lines.push(["of the whole", share(total, tree.total[0])]);
  if (node !== 0 && parent !== NOTHING && parent !== 0) {
    lines.push([`of ${brief(data.strings[tree.name[parent]])}`, share(total, tree.total[parent])]);
  }
  if (counts[node] > 0) lines.push(["count", often(counts[node], steps)]);
  return { name: data.strings[tree.name[node]], full: data.full[tree.name[node]] ?? "", lines };
}

/** `12 a step`; of what is rarer `2 in 3 steps`. */
export function often(times: number, steps: number): string {
  return times >= steps ? `${count(times / steps)} a step` : `${count(times)} in ${count(steps)} steps`;
}

/** The same of the children of a node that are too narrow to draw. */
export function restWords(data: ReportData, tree: Tree, parent: number, nodes: Int32Array): [string, string][] {
  const ns = nodes.reduce((sum, node) => sum + tree.total[node], 0);
  return [
    ["total", `${duration(ns / data.step_count)} a step`],
    ["of the whole", share(ns, tree.total[0])],
    [`of ${brief(data.strings[tree.name[parent]])}`, share(ns, tree.total[parent])],
  ];
}

export interface Tooltip {
  element: HTMLElement;
  show(x: number, y: number, title: string, full: string, lines: [string, string][]): void;
  hide(): void;
}

export function tooltip(): Tooltip {
  const element = h("div", { class: "flame-tip", role: "tooltip", hidden: true });
  return {
    element,
    show(x, y, title, full, lines) {
      element.replaceChildren(
        h("strong", {}, title),
        full !== "" && full !== title ? h("span", { class: "flame-tip-full" }, brief(full, 400)) : "",
        h("dl", {}, ...lines.flatMap(([term, value]) => [h("dt", {}, term), h("dd", {}, value)])),
      );
      element.hidden = false;
      const box = element.getBoundingClientRect();
      const left = x + 14 + box.width > window.innerWidth - 8 ? x - 14 - box.width : x + 14;
      const top = y + 18 + box.height > window.innerHeight - 8 ? y - 12 - box.height : y + 18;
      element.style.left = `${Math.max(8, left)}px`;
      element.style.top = `${Math.max(8, top)}px`;
    },
    hide() {
      element.hidden = true;
    },
  };
}

/** A name cut in the end: whole ones can be long beyond any screen. */
export function brief(text: string, most = 40): string {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}
