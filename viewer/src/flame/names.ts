// The heaviest names of a tree as a table, folded until asked for.

import { chip } from "../chip.ts";
import type { ReportData } from "../data.ts";
import { h } from "../dom.ts";
import { count, duration, share } from "../format.ts";
import { heaviest } from "./heaviest.ts";
import type { Icicle } from "./icicle.ts";

const MOST = 30;

/** Names by own time; a click on one searches it. */
export function heaviestTable(data: ReportData, icicle: Icicle, search: (name: string) => void): HTMLElement {
  const body = h("div", { class: "flame-names" });
  const details = h("details", {}, h("summary", {}, "Time by name, own and total"), body);
  details.addEventListener("toggle", () => {
    if (details.open && body.childElementCount === 0) body.append(table(data, icicle, search));
  });
  return details;
}

function table(data: ReportData, icicle: Icicle, search: (name: string) => void): HTMLElement {
  const [all, whole, steps] = [heaviest(icicle), icicle.tree.total[0], data.step_count];
  const rows = all.slice(0, MOST).map((one) => {
    const name = data.strings[one.name];
    const button = h("button", { type: "button", title: "highlight it above" }, name);
    button.addEventListener("click", () => search(name));
    const numbers = [
      duration(one.own / steps),
      share(one.own, whole),
      duration(one.total / steps),
      share(one.total, whole),
      count(one.count / steps),
    ];
    return h("tr", {}, h("th", { scope: "row" }, chip(data.paints[one.paint]), button), ...numbers.map((text) => h("td", {}, text)));
  });
  const titles = ["name", "own a step", "share", "total a step", "share", "count a step"];
  return h(
    "table",
    {},
    all.length > MOST && h("caption", {}, `The first ${MOST} of ${count(all.length)} names.`),
    h("thead", {}, h("tr", {}, ...titles.map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", {}, ...rows),
  );
}
