// Where an arrow key leads from a node, among the bars that are drawn.

import type { Bars } from "./bars.ts";
import type { Icicle } from "./icicle.ts";

export type Arrow = "ArrowUp" | "ArrowDown" | "ArrowLeft" | "ArrowRight";

/** Up to the parent, down to the heaviest child, sideways to the next bar of the row; stays where there is none. */
export function move({ tree, depth }: Icicle, found: Bars, node: number, arrow: Arrow): number {
  if (arrow === "ArrowUp") return node === 0 ? 0 : tree.parent[node];
  const row = depth[node];
  if (arrow === "ArrowDown") return inRow(found, row + 1).find((n) => tree.parent[n] === node) ?? node;
  const nodes = inRow(found, row);
  const at = nodes.indexOf(node);
  if (at < 0) return nodes[0] ?? node;
  return nodes[at + (arrow === "ArrowLeft" ? -1 : 1)] ?? node;
}

function inRow(found: Bars, row: number): number[] {
  if (row + 1 >= found.rows.length) return [];
  return found.node.slice(found.rows[row], found.rows[row + 1]).filter((node) => node >= 0);
}
