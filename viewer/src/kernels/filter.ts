// Which lines are asked for.

import type { Line } from "./lines.ts";

export interface Filter {
  /** All its words must be in a line's name, op, module, category or phase. */
  text: string;
  /** Chosen ones; empty: all. */
  categories: ReadonlySet<string>;
  phases: ReadonlySet<string>;
}

export function filtered(lines: readonly Line[], filter: Filter): Line[] {
  const words = filter.text.toLowerCase().split(/\s+/).filter((word) => word !== "");
  return lines.filter((line) => {
    if (filter.categories.size > 0 && !filter.categories.has(line.category)) return false;
    if (filter.phases.size > 0 && !filter.phases.has(line.phase)) return false;
    if (words.length === 0) return true;
    const told = [line.name, line.full, line.op, line.module, line.category, line.phase].join("\n").toLowerCase();
    return words.every((word) => told.includes(word));
  });
}
