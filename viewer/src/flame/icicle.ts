// A tree of sums laid out once: every node has a place on one line of nanoseconds as long as the root.
// To zoom is to look at a part of that line; ancestors of a node span its part, so they stay above it.

import type { Tree } from "../data.ts";

export interface Icicle {
  tree: Tree;
  /** Children of node i: `children[first[i]]` up to `children[first[i + 1]]`, heaviest first. */
  first: Int32Array;
  children: Int32Array;
  /** ns from the start of the root. */
  start: Float64Array;
  /** 0 for the root. */
  depth: Uint16Array;
  /** A node's own count, or where it has none that of all below. */
  count: Float64Array;
}

/** Children stand side by side from their parent's start; what is left at the end is the parent's own time. */
export function icicle(tree: Tree): Icicle {
  const { parent, total } = tree;
  const n = parent.length;
  const first = new Int32Array(n + 1);
  for (let i = 1; i < n; i++) first[parent[i] + 1]++;
  for (let i = 0; i < n; i++) first[i + 1] += first[i];
  const children = new Int32Array(Math.max(0, n - 1));
  const next = first.slice();
  for (let i = 1; i < n; i++) children[next[parent[i]]++] = i;
  const start = new Float64Array(n);
  const depth = new Uint16Array(n);
  for (let i = 0; i < n; i++) {
    const [low, high] = [first[i], first[i + 1]];
    if (high - low > 1) children.subarray(low, high).sort((a, b) => total[b] - total[a] || a - b);
    let at = start[i];
    for (let c = low; c < high; c++) {
      const child = children[c];
      start[child] = at;
      depth[child] = depth[i] + 1;
      at += total[child];
    }
  }
  const count = tree.count.slice();
  const below = new Float64Array(n);
  for (let i = n - 1; i >= 0; i--) {
    if (count[i] === 0) count[i] = below[i];
    if (i > 0) below[parent[i]] += count[i];
  }
  return { tree, first, children, start, depth, count };
}

/** From the root to a node, both included. */
export function path(tree: Tree, node: number): number[] {
  const nodes = [node];
  while (node !== 0) {
    node = tree.parent[node];
    nodes.push(node);
  }
  return nodes.reverse();
}

/** The nearest ancestor that shows visibly more than the node does; the root has none and is its own. */
export function wider(tree: Tree, node: number): number {
  let up = node;
  while (up !== 0) {
    up = tree.parent[up];
    if (tree.total[up] > tree.total[node] * 1.05) break;
  }
  return up;
}
