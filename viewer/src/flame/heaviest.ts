// A tree summed by name alone: what each name costs by itself, and with all it holds, wherever it stands.

import type { Icicle } from "./icicle.ts";

export interface Named {
  name: number;
  paint: number;
  /** ns of the nodes of that name themselves. */
  own: number;
  /** ns with their children; a name inside itself is counted once. */
  total: number;
  count: number;
}

/** Every name but the root's, by own time, then total, the largest first. */
export function heaviest({ tree, first, children }: Icicle): Named[] {
  const found = new Map<number, Named>();
  const open = new Map<number, number>();
  // Nodes to enter; ~node leaves one.
  const stack = Array.from(children.subarray(first[0], first[1] ?? 0));
  while (stack.length > 0) {
    const node = stack.pop() as number;
    if (node < 0) {
      const name = tree.name[~node];
      open.set(name, (open.get(name) ?? 1) - 1);
      continue;
    }
    const name = tree.name[node];
    let sum = found.get(name);
    if (sum === undefined) {
      sum = { name, paint: tree.paint[node], own: 0, total: 0, count: 0 };
      found.set(name, sum);
    }
    const inside = open.get(name) ?? 0;
    sum.own += tree.own[node];
    if (inside === 0) {
      sum.total += tree.total[node];
      sum.count += tree.count[node];
    }
    open.set(name, inside + 1);
    stack.push(~node);
    for (let c = first[node]; c < first[node + 1]; c++) stack.push(children[c]);
  }
  return [...found.values()].sort((a, b) => b.own - a.own || b.total - a.total || a.name - b.name);
}
