// The columns of the kernel table: what each holds, how it is shown, and how lines are sorted by it.

import { count, duration, scaled, share } from "../format.ts";
import { type Line, NOT_KNOWN } from "./lines.ts";

export interface Whole {
  /** ns of all kernels, whatever is filtered. */
  ns: number;
  steps: number;
}

export interface Column {
  id: string;
  title: string;
  /** What the title does not say. */
  hint: string;
  /** Numbers are sorted from the largest at first and stand on the right. */
  numeric: boolean;
  /** "" and null: not known, always last. */
  value(line: Line, whole: Whole): string | number | null;
  text(line: Line, whole: Whole): string;
  /** Its title where values are copied as numbers, with the unit. */
  copied: string;
}

function word(id: "name" | "category" | "op" | "module" | "phase" | "bound", hint = ""): Column {
  return {
    id,
    title: id,
    hint,
    numeric: false,
    value: (line) => line[id],
    text: (line) => line[id] || NOT_KNOWN,
    copied: id,
  };
}

function number(
  id: string,
  title: string,
  hint: string,
  copied: string,
  value: (line: Line, whole: Whole) => number | null,
  told: (value: number) => string,
): Column {
  const text = (line: Line, whole: Whole) => {
    const known = value(line, whole);
    return known === null ? NOT_KNOWN : told(known);
  };
  return { id, title, hint, numeric: true, value, text, copied };
}

export const COLUMNS: readonly Column[] = [
  { ...word("name"), title: "kernel" },
  word("category"),
  word("op", "the operator that launched it"),
  word("module", "the nn.Module that called the operator"),
  word("phase"),
  number("time", "time a step", "", "ns_per_step", (line, { steps }) => line.ns / steps, duration),
  number("share", "share", "of the time of all kernels", "share", (line, { ns }) => (ns > 0 ? line.ns / ns : null), percent),
  number("count", "count", "a step", "count_per_step", (line, { steps }) => line.count / steps, count),
  number("median", "median", "of one kernel", "median_ns", (line) => line.median_ns, duration),
  number("max", "max", "the longest kernel", "max_ns", (line) => line.max_ns, duration),
  word("bound", "what keeps it from being faster"),
  number("efficiency", "efficiency", "time at the roof over time taken", "efficiency", (line) => line.efficiency, percent),
  number("flops", "FLOP/s", "achieved", "flops_per_s", (line) => line.flops_s, rated),
  number("bytes", "bytes/s", "achieved", "bytes_per_s", (line) => line.bytes_s, rated),
];

/** Share of the time of all kernels that a column has to tell something of: a few copies are not worth a column. */
const LEAST = 0.05;

/** Columns that tell something of more than a few lines. */
export function telling(lines: readonly Line[], whole: Whole): Column[] {
  const measured = (column: Column) => lines.filter((line) => known(column.value(line, whole)) !== null);
  return COLUMNS.filter((column) => measured(column).reduce((ns, line) => ns + line.ns, 0) > LEAST * whole.ns);
}

export interface Order {
  column: string;
  descending: boolean;
}

/** What a click on a column's head asks for: its natural order first, the other then. */
export function reordered(order: Order, column: Column): Order {
  if (order.column === column.id) return { column: column.id, descending: !order.descending };
  return { column: column.id, descending: column.numeric };
}

/** Lines in order; what is not known stands last either way, and equal ones by time. */
export function sorted(lines: readonly Line[], order: Order, whole: Whole): Line[] {
  const column = COLUMNS.find(({ id }) => id === order.column) ?? COLUMNS[0];
  const sign = order.descending ? -1 : 1;
  const keyed = lines.map((line) => ({ line, value: known(column.value(line, whole)) }));
  keyed.sort((a, b) => {
    if (a.value === null || b.value === null) {
      return Number(a.value === null) - Number(b.value === null) || b.line.ns - a.line.ns;
    }
    return sign * compared(a.value, b.value) || b.line.ns - a.line.ns;
  });
  return keyed.map(({ line }) => line);
}

const COLLATOR = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

function compared(a: string | number, b: string | number): number {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return COLLATOR.compare(String(a), String(b));
}

function known(value: string | number | null): string | number | null {
  return value === "" || (typeof value === "number" && Number.isNaN(value)) ? null : value;
}

/** The title says the unit. */
function rated(rate: number): string {
  return rate === 0 ? "0" : scaled(rate, "");
}

function percent(part: number): string {
  return share(part, 1);
}
