// Time by paint over any stretch of a lane, without visiting its events: sums at every sixteenth event.

import { after, type Events, type Lane } from "../data.ts";

const BLOCK = 16;

/** Of one lane: the paints in it, and for every block of events the time of each paint before it. */
export interface LaneSums extends Lane {
  /** Indices into the report's paints, in order of their first event. */
  paints: Uint8Array;
  /** Place of a paint in `paints`. */
  slot: Uint8Array;
  /** ns, (blocks + 1) × paints; row b sums the events before first + 16 b. */
  before: Float64Array;
}

export function sumsOf(events: Events, lane: Lane): LaneSums {
  const slot = new Uint8Array(256);
  const seen = new Uint8Array(256);
  const found: number[] = [];
  for (let i = lane.first; i < lane.end; i++) {
    const paint = events.paint[i];
    if (seen[paint] === 0) {
      seen[paint] = 1;
      slot[paint] = found.length;
      found.push(paint);
    }
  }
  const wide = found.length;
  const blocks = Math.ceil((lane.end - lane.first) / BLOCK);
  const before = new Float64Array((blocks + 1) * wide);
  const running = new Float64Array(wide);
  for (let b = 0, i = lane.first; b < blocks; b++) {
    before.set(running, b * wide);
    for (const stop = Math.min(i + BLOCK, lane.end); i < stop; i++) running[slot[events.paint[i]]] += events.ns[i];
  }
  before.set(running, blocks * wide);
  return { ...lane, paints: Uint8Array.from(found), slot, before };
}

/** Adds to `into` the ns by slot of the events from i to before j. */
export function addEvents(events: Events, lane: LaneSums, i: number, j: number, into: Float64Array): void {
  const { ns, paint } = events;
  const { slot, before, paints, first } = lane;
  const low = Math.ceil((i - first) / BLOCK);
  const high = Math.floor((j - first) / BLOCK);
  if (high <= low) {
    for (; i < j; i++) into[slot[paint[i]]] += ns[i];
    return;
  }
  const wide = paints.length;
  for (const stop = first + low * BLOCK; i < stop; i++) into[slot[paint[i]]] += ns[i];
  for (let s = 0; s < wide; s++) into[s] += before[high * wide + s] - before[low * wide + s];
  for (let k = first + high * BLOCK; k < j; k++) into[slot[paint[k]]] += ns[k];
}

/** Adds to `into` the ns by slot that lie within [from, to): events are cut where they reach out of it. */
export function addTime(events: Events, lane: LaneSums, from: number, to: number, into: Float64Array): void {
  const { start, ns, paint } = events;
  let i = after(start, from, lane.first, lane.end) - 1;
  if (i >= lane.first && start[i] + ns[i] > from) {
    into[lane.slot[paint[i]]] += Math.min(start[i] + ns[i], to) - from;
  }
  i++;
  const j = firstFrom(start, to, i, lane.end);
  if (j <= i) return;
  addEvents(events, lane, i, j, into);
  const late = start[j - 1] + ns[j - 1] - to;
  if (late > 0) into[lane.slot[paint[j - 1]]] -= late;
}

/** First index in [low, high) whose value is t or above; found fast when it is near `low`. */
export function firstFrom(values: Float64Array, t: number, low: number, high: number): number {
  let leap = 1;
  while (low + leap < high && values[low + leap] < t) leap *= 2;
  let end = Math.min(low + leap, high);
  low += leap >> 1;
  while (low < end) {
    const middle = (low + end) >> 1;
    if (values[middle] < t) low = middle + 1;
    else end = middle;
  }
  return low;
}
