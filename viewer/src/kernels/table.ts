// The table itself: head, lines, and what they sum up to. Every click goes back to the one who holds the state.

import { chip } from "../chip.ts";
import type { Paint } from "../data.ts";
import { h } from "../dom.ts";
import { count } from "../format.ts";
import type { Column, Order, Whole } from "./columns.ts";
import { type Line, NOT_KNOWN } from "./lines.ts";

/** What only a wide window has a column for; elsewhere a row's details say it. */
const WIDE = new Set(["module", "max", "flops"]);
/** What also a tablet has no column for. */
const MIDDLE = new Set(["median", "bytes"]);
/** What a phone has no column for either. */
const EXTRA = new Set(["category", "op", "phase", "share", "median", "count", "bytes", ...WIDE]);
/** What the narrowest phone has no column for. */
const LEAST = "bound";
/** Characters at the end of a kernel's name that are never cut. */
const KEPT = 12;
/** Words that are cut where there is no room for them. */
const ELASTIC = new Set(["category", "op", "module"]);

/** What may be asked of a table. */
export interface Asked {
  sort(column: Column): void;
  /** To show or hide the members of a sum, or the details of a kernel. */
  toggle(line: Line): void;
  find(line: Line): void;
  showAll(): void;
}

/** What rows are made of. */
export interface Shape {
  columns: readonly Column[];
  whole: Whole;
  paints: readonly Paint[];
}

export function head({ columns }: Shape, order: Order, asked: Asked): HTMLTableSectionElement {
  const cells = columns.map((column) => {
    const active = order.column === column.id;
    const arrow = active ? (order.descending ? " ▾" : " ▴") : "";
    const button = h("button", { type: "button", title: column.hint, "data-column": column.id }, column.title, arrow);
    button.addEventListener("click", () => asked.sort(column));
    const sort = active ? (order.descending ? "descending" : "ascending") : "none";
    return h("th", { scope: "col", class: classes(column), "aria-sort": sort }, button);
  });
  return h("thead", {}, h("tr", {}, ...cells));
}

/** The row of a line. `depth` 1: a member of a sum. */
export function row(line: Line, { columns, whole, paints }: Shape, open: boolean, depth: number, asked: Asked) {
  const cells = columns.map((column) => {
    if (column.id === "name") return nameCell(line, open, depth, asked);
    const own = column.text(line, whole);
    // A sum of several has no one word: that is not the same as not knowing it.
    const text = line.members.length > 0 && own === NOT_KNOWN ? "" : own;
    if (column.id === "category" && line.category !== "") return h("td", { class: classes(column) }, chip(paints[line.paint]), text);
    if (column.id === "efficiency") return efficiencyCell(line, text);
    if (column.id === "module") return h("td", { class: classes(column), title: line.module }, tail(text));
    return h("td", { class: classes(column), ...(column.numeric ? {} : { title: text }) }, text);
  });
  return h("tr", { class: line.members.length > 0 ? "sum" : depth > 0 ? "member" : "" }, ...cells);
}

/** The other facts about a kernel, in a row below its own. */
export function detailRow(line: Line, { columns, whole }: Shape, asked: Asked): HTMLTableRowElement {
  const terms: [string, string][] = [["name", line.full || line.name]];
  for (const column of columns) {
    if (!EXTRA.has(column.id) && column.id !== LEAST) continue;
    const title = column.numeric && column.hint !== "" ? `${column.title} (${column.hint})` : column.title;
    terms.push([title, column.numeric ? column.text(line, whole) : String(column.value(line, whole) ?? "")]);
  }
  const known = terms.filter(([, text]) => text !== "" && text !== NOT_KNOWN);
  const button = h("button", { type: "button", class: "kernels-find" }, "Show in timeline");
  button.addEventListener("click", () => asked.find(line));
  return h(
    "tr",
    { class: "detail" },
    h(
      "td",
      { colspan: String(columns.length) },
      h("dl", {}, ...known.flatMap(([term, text]) => [h("dt", {}, term), h("dd", {}, text)])),
      button,
    ),
  );
}

/** A row that says how many are left, and shows them. */
export function moreRow(hidden: number, all: number, { columns }: Shape, asked: Asked): HTMLTableRowElement {
  const button = h("button", { type: "button", class: "kernels-all" }, `Show all ${count(all)}`);
  button.addEventListener("click", () => asked.showAll());
  return h("tr", { class: "more" }, h("td", { colspan: String(columns.length) }, `${count(hidden)} more. `, button));
}

/** Sums of what is shown, and of all that match where that is more. */
export function foot(sums: readonly Line[], { columns, whole }: Shape): HTMLTableSectionElement {
  const summed = new Set(["time", "share", "count", "max", "efficiency", "flops", "bytes"]);
  const rows = sums.map((line) =>
    h(
      "tr",
      {},
      ...columns.map((column) => {
        if (column.id === "name") return h("th", { scope: "row" }, line.name);
        return h("td", { class: classes(column) }, summed.has(column.id) ? column.text(line, whole) : "");
      }),
    ),
  );
  return h("tfoot", {}, ...rows);
}

/** Narrow windows show those columns only that say most. */
function classes({ id, numeric }: Column): string {
  const kinds: [string, boolean][] = [
    ["number", numeric],
    ["extra", EXTRA.has(id)],
    ["middle", MIDDLE.has(id)],
    ["wide", WIDE.has(id)],
    ["least", id === LEAST],
    ["elastic", ELASTIC.has(id)],
  ];
  return kinds.flatMap(([name, is]) => (is ? [name] : [])).join(" ");
}

function nameCell(line: Line, open: boolean, depth: number, asked: Asked): HTMLElement {
  const what = line.members.length > 0 ? "kernels" : "details";
  const toggle = h(
    "button",
    { type: "button", class: "kernels-open", "data-key": line.key, "aria-expanded": String(open), "aria-label": `${open ? "Hide" : "Show"} ${what}` },
    open ? "▾" : "▸",
  );
  toggle.addEventListener("click", () => asked.toggle(line));
  const name = h("span", { class: "kernels-name" }, ...ends(line.name));
  const size = line.members.length > 0 && h("span", { class: "dim" }, ` ${count(line.members.length)}`);
  const place = line.members.length === 0 && h("span", { class: "kernels-place dim" }, placeOf(line));
  return h("th", { scope: "row", title: line.full || line.name, class: depth > 0 ? "inner" : "" }, toggle, name, size, place);
}

/** `aten::copy_ · Linear · backward`: what distinguishes kernels of one name where there are no columns for it. */
function placeOf(line: Line): string {
  return [line.op, tail(line.module), line.phase].filter((word) => word !== "" && word !== NOT_KNOWN).join(" · ");
}

/** A name as two parts, of which the first is cut where there is no room: kernels differ at their ends. */
function ends(name: string): HTMLElement[] {
  const at = Math.max(0, name.length - KEPT);
  return [h("span", { class: "kernels-begin" }, ...breakable(name.slice(0, at))), h("span", {}, ...breakable(name.slice(at)))];
}

/** A name that breaks between its words, where lines may break. */
function breakable(name: string): (string | HTMLElement)[] {
  return name.split(/(?<=[_<,:.])/).flatMap((word, i) => (i === 0 ? [word] : [h("wbr", {}), word]));
}

function efficiencyCell(line: Line, text: string): HTMLElement {
  if (line.efficiency === null) return h("td", { class: "number" }, text);
  const fill = h("span", {});
  fill.style.width = `${Math.round(100 * Math.min(1, Math.max(0, line.efficiency)))}%`;
  return h("td", { class: "number" }, h("span", { class: "kernels-gauge", "aria-hidden": "true" }, fill), h("span", {}, text));
}

/** The end of a dotted path says most. */
function tail(path: string, most = 28): string {
  if (path.length <= most) return path;
  const parts = path.split(".");
  let kept = parts.pop() ?? "";
  while (parts.length > 0 && kept.length + parts[parts.length - 1].length + 2 <= most) kept = `${parts.pop()}.${kept}`;
  return `…${kept.slice(-most)}`;
}
