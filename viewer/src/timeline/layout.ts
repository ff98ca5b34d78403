// What to draw of a lane: an exact rectangle for every event a pixel wide, and for the shorter ones that start in the
// same column of pixels one rectangle together. No canvas here: numbers in, numbers out.

import { after, NOTHING, type Events } from "../data.ts";
import { addEvents, firstFrom, type LaneSums } from "./sums.ts";
import { length, type Span } from "./view.ts";

/** How full a column of pixels is drawn, in steps from 0 to LEVELS - 1, which is full. */
export const LEVELS = 8;

/** Rectangles of a lane from left to right; columns of which the first `count` values count. */
export interface Rects {
  count: number;
  /** Pixels from the left of the view; exact ones may reach out of it. */
  left: Float64Array;
  right: Float64Array;
  paint: Uint8Array;
  level: Uint8Array;
  /** The event, or NOTHING for several short ones together. */
  event: Int32Array;
}

export function room(width: number): Rects {
  const most = 2 * Math.ceil(width) + 8;
  return {
    count: 0,
    left: new Float64Array(most),
    right: new Float64Array(most),
    paint: new Uint8Array(most),
    level: new Uint8Array(most),
    event: new Int32Array(most),
  };
}

const taken = new Float64Array(256);

/** Lays out the part of a lane that is in view over `width` pixels; `into` must have room for that width. */
export function layout(events: Events, lane: LaneSums, view: Span, width: number, into: Rects): Rects {
  const { start, ns } = events;
  const scale = width / length(view);
  const pixel = length(view) / width;
  into.count = 0;
  let i = Math.max(after(start, view.start, lane.first, lane.end) - 1, lane.first);
  if (i < lane.end && start[i] + Math.max(ns[i], 1) <= view.start) i++;
  while (i < lane.end && start[i] < view.end) {
    if (ns[i] >= pixel) {
      exact(into, events, i, view.start, scale);
      i++;
      continue;
    }
    const column = Math.floor((start[i] - view.start) * scale);
    let j = Math.max(i + 1, firstFrom(start, view.start + (column + 1) * pixel, i, lane.end));
    // Only the last that starts in a column can be wider than it.
    if (ns[j - 1] >= pixel) j--;
    together(into, events, lane, i, j, column, pixel);
    i = j;
  }
  return into;
}

function exact(into: Rects, { start, ns, paint }: Events, i: number, origin: number, scale: number): void {
  const k = into.count++;
  into.left[k] = (start[i] - origin) * scale;
  into.right[k] = (start[i] + ns[i] - origin) * scale;
  into.paint[k] = paint[i];
  into.level[k] = LEVELS - 1;
  into.event[k] = i;
}

/** Events i to before j in one column: the paint that takes most of it, and how full it is. */
function together(
  into: Rects,
  events: Events,
  lane: LaneSums,
  i: number,
  j: number,
  column: number,
  pixel: number,
): void {
  let most = 0;
  let sum = 0;
  if (j === i + 1) {
    most = lane.slot[events.paint[i]];
    sum = events.ns[i];
  } else {
    const slots = lane.paints.length;
    for (let s = 0; s < slots; s++) taken[s] = 0;
    addEvents(events, lane, i, j, taken);
    for (let s = 0; s < slots; s++) {
      sum += taken[s];
      if (taken[s] > taken[most]) most = s;
    }
    // None of them takes any time: the first stands for all.
    if (sum === 0) most = lane.slot[events.paint[i]];
  }
  const paint = lane.paints[most];
  const level = Math.min(LEVELS - 1, Math.floor((sum / pixel) * LEVELS));
  const last = into.count - 1;
  if (
    last >= 0 &&
    into.event[last] === NOTHING &&
    into.right[last] === column &&
    into.paint[last] === paint &&
    into.level[last] === level
  ) {
    into.right[last] = column + 1;
    return;
  }
  into.count++;
  into.left[last + 1] = column;
  into.right[last + 1] = column + 1;
  into.paint[last + 1] = paint;
  into.level[last + 1] = level;
  into.event[last + 1] = NOTHING;
}

/** The event under a moment, or else the nearest one within `reach` ns of it, or NOTHING. */
export function nearest({ start, ns }: Events, lane: { first: number; end: number }, t: number, reach: number): number {
  const next = after(start, t, lane.first, lane.end);
  const before = next - 1;
  const early = before >= lane.first ? t - (start[before] + ns[before]) : Infinity;
  if (early < 0) return before;
  const late = next < lane.end ? start[next] - t : Infinity;
  if (Math.min(early, late) > reach) return NOTHING;
  return early <= late ? before : next;
}
