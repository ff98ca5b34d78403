// The kernel table: what is asked of it is held here, and the rows are made anew whenever that changes.

import type { ReportData } from "../data.ts";
import { h } from "../dom.ts";
import { count } from "../format.ts";
import { type Order, reordered, sorted, telling } from "./columns.ts";
import { copy } from "./copy.ts";
import { filtered } from "./filter.ts";
import { type Grouping, type Line, linesOf } from "./lines.ts";
import { group, sum } from "./sums.ts";
import { type Asked, detailRow, foot, head, moreRow, row } from "./table.ts";
import { toolbar } from "./toolbar.ts";
import { tsv } from "./tsv.ts";

/** Rows shown until all are asked for; on paper there are never more. */
const FIRST = 50;

/** Fills the container; `find` shows a kernel's name in the timeline. */
export function startKernels(container: HTMLElement, data: ReportData, find: (name: string) => void): void {
  const lines = linesOf(data);
  container.classList.add("kernels");
  if (lines.length === 0) {
    container.replaceChildren(h("p", { class: "dim" }, "The recording holds no kernels."));
    return;
  }
  const whole = { ns: lines.reduce((ns, line) => ns + line.ns, 0), steps: data.step_count };
  const shape = { columns: telling(lines, whole), whole, paints: data.paints };
  let order: Order = { column: "time", descending: true };
  let text = "";
  let by: Grouping | null = null;
  let all = false;
  const [categories, phases, open] = [new Set<string>(), new Set<string>(), new Set<string>()];
  const table = h("table", {});
  const said = h("output", { class: "kernels-said" });

  const matching = () => filtered(lines, { text, categories, phases });
  const listed = (found: Line[]) => sorted(by === null ? found : group(found, by), order, whole);

  const asked: Asked = {
    sort(column) {
      order = reordered(order, column);
      update();
      table.querySelector<HTMLElement>(`[data-column="${column.id}"]`)?.focus();
    },
    toggle(line) {
      if (!open.delete(line.key)) open.add(line.key);
      update();
      table.querySelector<HTMLElement>(`[data-key="${CSS.escape(line.key)}"]`)?.focus();
    },
    find: (line) => find(line.name),
    showAll() {
      all = true;
      update();
    },
  };

  const rowsOf = (line: Line, depth: number): HTMLTableRowElement[] => {
    const is_open = open.has(line.key);
    const rows = [row(line, shape, is_open, depth, asked)];
    if (!is_open) return rows;
    if (line.members.length === 0) return [...rows, detailRow(line, shape, asked)];
    const members = sorted(line.members, order, whole);
    const shown = all ? members : members.slice(0, FIRST);
    for (const member of shown) rows.push(...rowsOf(member, depth + 1));
    if (shown.length < members.length) rows.push(moreRow(members.length - shown.length, members.length, shape, asked));
    return rows;
  };

  const update = () => {
    const found = matching();
    const list = listed(found);
    const shown = all ? list : list.slice(0, FIRST);
    const body = h("tbody", {});
    shown.forEach((line, i) => {
      const rows = rowsOf(line, 0);
      if (i >= FIRST) for (const one of rows) one.classList.add("beyond");
      body.append(...rows);
    });
    if (list.length === 0) {
      body.append(h("tr", {}, h("td", { colspan: String(shape.columns.length) }, "No kernel matches.")));
    }
    const noun = by === null ? "" : list.length === 1 ? " group" : " groups";
    const cut = shown.length < list.length;
    if (cut) body.append(moreRow(list.length - shown.length, list.length, shape, asked));
    const sums = cut ? [sum("", `${count(shown.length)} shown`, kernelsOf(shown))] : [];
    sums.push(sum("", `all ${count(list.length)}${noun}`, found));
    table.replaceChildren(head(shape, order, asked), body, foot(sums, shape));
  };

  const change = (what: () => void) => {
    what();
    all = false;
    said.replaceChildren();
    update();
  };
  const put = (set: Set<string>, name: string, chosen: boolean) => (chosen ? set.add(name) : set.delete(name));
  const bar = toolbar(lines, data.paints, {
    text: (now) => change(() => (text = now)),
    category: (name, chosen) => change(() => put(categories, name, chosen)),
    phase: (name, chosen) => change(() => put(phases, name, chosen)),
    group: (now) => change(() => (by = now)),
    copy() {
      const list = listed(matching());
      void copy(tsv(list, whole), `${count(list.length)} rows`, said);
    },
  });
  const box = h("div", { class: "kernels-box", tabindex: "0", role: "region", "aria-label": "Kernel table" }, table);
  container.replaceChildren(bar, said, box);
  update();
}

/** The kernels behind lines that may be sums. */
function kernelsOf(lines: readonly Line[]): Line[] {
  return lines.flatMap((line) => (line.members.length > 0 ? line.members : [line]));
}
