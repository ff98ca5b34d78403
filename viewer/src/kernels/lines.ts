// What a line of the kernel table holds: a kernel as it was called from one place, or the sum of several.

import type { ReportData } from "../data.ts";

export interface Line {
  /** The same for the same line however the table is sorted and filtered. */
  key: string;
  name: string;
  /** The whole name where `name` is a short form; else "". */
  full: string;
  category: string;
  op: string;
  module: string;
  phase: string;
  /** Index into paints. */
  paint: number;
  /** Over the recorded steps; likewise ns. */
  count: number;
  ns: number;
  /** Null for a sum: it does not follow from medians. */
  median_ns: number | null;
  max_ns: number;
  bound: string | null;
  /** Time at the roof over time taken, 0 to 1; of a sum, over the kernels where it is known. */
  efficiency: number | null;
  /** Achieved, per second of the kernels where the amount is known. */
  flops_s: number | null;
  bytes_s: number | null;
  /** Amounts over the recorded steps, where known. */
  flops: number | null;
  bytes: number | null;
  /** What a sum is of; empty for a kernel. */
  members: Line[];
}

/** The words that lines are grouped and filtered by. */
export const GROUPINGS = ["category", "op", "module", "phase"] as const;
export type Grouping = (typeof GROUPINGS)[number];

/** How what a recording does not tell is written. */
export const NOT_KNOWN = "–";

export function linesOf(data: ReportData): Line[] {
  const rows = data.kernels;
  if (rows === null) return [];
  const told = (i: number) => (data.strings[i] === NOT_KNOWN ? "" : (data.strings[i] ?? ""));
  return rows.ns.map((ns, i) => ({
    key: String(i),
    name: told(rows.name[i]),
    full: data.full[rows.name[i]] ?? "",
    category: told(rows.category[i]),
    op: told(rows.op[i]),
    module: told(rows.module[i]),
    phase: told(rows.phase[i]),
    paint: rows.paint[i],
    count: rows.count[i],
    ns,
    median_ns: rows.median_ns[i],
    max_ns: rows.max_ns[i],
    bound: rows.bound[i],
    efficiency: rows.efficiency[i],
    flops: rows.flops[i],
    bytes: rows.bytes[i],
    flops_s: rate(rows.flops[i], ns),
    bytes_s: rate(rows.bytes[i], ns),
    members: [],
  }));
}

export function rate(amount: number | null, ns: number): number | null {
  return amount === null || ns <= 0 ? null : amount / (ns * 1e-9);
}
