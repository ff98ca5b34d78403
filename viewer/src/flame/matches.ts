// What a search finds in a tree, and the time it makes up: a match inside a match is the same time, counted once.

import type { Tree } from "../data.ts";

export const OTHER = 0;
export const MATCH = 1;
/** Below a match: part of its time. */
export const INSIDE = 2;

export interface Matches {
  /** OTHER, MATCH or INSIDE for each node. */
  state: Uint8Array;
  /** Matches that no match stands above, heaviest first. */
  outermost: number[];
  /** Matches, outermost or not. */
  count: number;
  /** Of the outermost ones. */
  ns: number;
}

/** Nodes whose name, short or whole, contains the text, whatever the case; null where the text says nothing. */
export function search(tree: Tree, strings: readonly string[], full: Record<string, string>, text: string): Matches | null {
  const wanted = text.trim().toLowerCase();
  if (wanted === "") return null;
  const named = new Map<number, boolean>();
  const isNamed = (name: number): boolean => {
    let known = named.get(name);
    if (known === undefined) {
      known = strings[name].toLowerCase().includes(wanted) || (full[name] ?? "").toLowerCase().includes(wanted);
      named.set(name, known);
    }
    return known;
  };
  const { parent, name, total } = tree;
  const state = new Uint8Array(parent.length);
  const found: Matches = { state, outermost: [], count: 0, ns: 0 };
  for (let i = 0; i < parent.length; i++) {
    const inside = i > 0 && state[parent[i]] !== OTHER;
    if (isNamed(name[i])) {
      state[i] = MATCH;
      found.count++;
      if (!inside) {
        found.outermost.push(i);
        found.ns += total[i];
      }
    } else if (inside) state[i] = INSIDE;
  }
  found.outermost.sort((a, b) => total[b] - total[a] || a - b);
  return found;
}
