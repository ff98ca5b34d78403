// Lines that are sums of lines.

import { type Grouping, type Line, rate } from "./lines.ts";

/** One line for several kernels. Words stand where all agree, and are empty else. */
export function sum(key: string, name: string, members: Line[]): Line {
  const agreed = (word: (line: Line) => string): string => {
    const first = members.length > 0 ? word(members[0]) : "";
    return members.every((line) => word(line) === first) ? first : "";
  };
  const add = (amount: (line: Line) => number | null, of = members) => of.reduce((s, line) => s + (amount(line) ?? 0), 0);
  const known = (amount: (line: Line) => number | null) => members.filter((line) => amount(line) !== null);
  const [rated, with_flops, with_bytes] = [known((l) => l.efficiency), known((l) => l.flops), known((l) => l.bytes)];
  const ns = add((line) => line.ns);
  const rated_ns = add((line) => line.ns, rated);
  const flops = with_flops.length > 0 ? add((line) => line.flops, with_flops) : null;
  const bytes = with_bytes.length > 0 ? add((line) => line.bytes, with_bytes) : null;
  return {
    key,
    name,
    full: "",
    category: agreed((line) => line.category),
    op: agreed((line) => line.op),
    module: agreed((line) => line.module),
    phase: agreed((line) => line.phase),
    paint: members.length > 0 ? members[0].paint : 0,
    count: add((line) => line.count),
    ns,
    median_ns: null,
    max_ns: members.reduce((most, line) => Math.max(most, line.max_ns), 0),
    bound: agreed((line) => line.bound ?? "") || null,
    efficiency: rated_ns > 0 ? add((line) => (line.efficiency ?? 0) * line.ns, rated) / rated_ns : null,
    flops,
    bytes,
    flops_s: rate(flops, add((line) => line.ns, with_flops)),
    bytes_s: rate(bytes, add((line) => line.ns, with_bytes)),
    members,
  };
}

/** One sum for each word by which the lines are grouped, in any order. */
export function group(lines: readonly Line[], by: Grouping): Line[] {
  const groups = new Map<string, Line[]>();
  for (const line of lines) {
    const found = groups.get(line[by]);
    if (found === undefined) groups.set(line[by], [line]);
    else found.push(line);
  }
  return [...groups].map(([word, members]) => sum(`${by}:${word}`, word === "" ? `no ${by} known` : word, members));
}
