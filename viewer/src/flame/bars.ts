// Which bars of an icicle are seen in a range of its line, and where: a pure function of range and width.

import type { Icicle } from "./icicle.ts";

/** A part of the root's line, ns. */
export interface Range {
  start: number;
  end: number;
}

/** A bar narrower than this is not drawn, CSS pixels. */
export const LEAST = 0.5;

/** Bars by row, from the left within a row. */
export interface Bars {
  /** Bars of row r: `rows[r]` up to `rows[r + 1]`. */
  rows: number[];
  /** The node, or of the rest (the children too narrow to draw) `~parent`. */
  node: number[];
  /** CSS pixels, cut to the width. */
  left: number[];
  right: number[];
}

export function bars(icicle: Icicle, range: Range, width: number): Bars {
  const { first, children, start, tree } = icicle;
  const scale = width / Math.max(range.end - range.start, 1e-9);
  const least = LEAST / scale;
  const found: Bars = { rows: [0], node: [], left: [], right: [] };
  const add = (node: number, from: number, to: number) => {
    found.node.push(node);
    found.left.push(Math.max(0, (from - range.start) * scale));
    found.right.push(Math.min(width, (to - range.start) * scale));
  };
  if (tree.total.length === 0 || tree.total[0] <= 0) return found;
  add(0, 0, tree.total[0]);
  found.rows.push(1);
  for (let above = 0, end = 1; above < end; above = end, end = found.node.length) {
    for (let i = above; i < end; i++) {
      const parent = found.node[i];
      if (parent < 0) continue;
      const [low, high] = [first[parent], first[parent + 1]];
      if (low === high) continue;
      const narrow = firstNarrow(tree.total, children, low, high, least);
      let c = firstEndingAfter(icicle, low, narrow, range.start);
      for (; c < narrow && start[children[c]] < range.end; c++) {
        const child = children[c];
        add(child, start[child], start[child] + tree.total[child]);
      }
      if (narrow === high) continue;
      const last = children[high - 1];
      const [from, to] = [start[children[narrow]], start[last] + tree.total[last]];
      const seen = Math.min(to, range.end) - Math.max(from, range.start);
      if (seen >= least) add(~parent, from, to);
    }
    if (found.node.length > end) found.rows.push(found.node.length);
  }
  return found;
}

/** The bar at a point, or -1. `x` in CSS pixels. */
export function barAt(found: Bars, row: number, x: number): number {
  if (row < 0 || row + 1 >= found.rows.length) return -1;
  let [low, high] = [found.rows[row], found.rows[row + 1]];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (found.right[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low < found.rows[row + 1] && found.left[low] <= x ? low : -1;
}

/** Children that are not drawn for being narrow. */
export function narrowChildren(icicle: Icicle, parent: number, range: Range, width: number): Int32Array {
  const { first, children, tree } = icicle;
  const least = (LEAST * (range.end - range.start)) / width;
  const high = first[parent + 1];
  return children.subarray(firstNarrow(tree.total, children, first[parent], high, least), high);
}

/** First of the children, which descend in total, that is below `least`. */
function firstNarrow(total: Float64Array, children: Int32Array, low: number, high: number, least: number): number {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (total[children[middle]] >= least) low = middle + 1;
    else high = middle;
  }
  return low;
}

function firstEndingAfter({ start, tree, children }: Icicle, low: number, high: number, t: number): number {
  while (low < high) {
    const middle = (low + high) >> 1;
    const child = children[middle];
    if (start[child] + tree.total[child] <= t) low = middle + 1;
    else high = middle;
  }
  return low;
}
