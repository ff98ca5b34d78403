// What belongs to an event: the calls around it, what it launched, what launched it, what a wait waits for.

import { eventAt, laneIndex, laneOf, NOTHING, type Events, type Lane, type ReportData } from "../data.ts";
import { firstFrom } from "./sums.ts";

/** The lane one depth further out (-1) or in (1) of the same track, or undefined. */
function neighbour(lanes: readonly Lane[], event: number, by: number): Lane | undefined {
  const own = laneIndex(lanes, event);
  const other = lanes[own + by];
  return other?.track === lanes[own].track ? other : undefined;
}

/** The event that encloses this one directly, or NOTHING. */
export function parentOf(data: ReportData, event: number): number {
  const outer = neighbour(data.lanes, event, -1);
  return outer === undefined ? NOTHING : eventAt(data.events, outer, data.events.start[event]);
}

/** The first event directly within this one, or NOTHING. */
export function childOf(data: ReportData, event: number): number {
  const { start, ns } = data.events;
  const inner = neighbour(data.lanes, event, 1);
  if (inner === undefined) return NOTHING;
  const child = firstFrom(start, start[event], inner.first, inner.end);
  return child < inner.end && start[child] < start[event] + Math.max(ns[event], 1) ? child : NOTHING;
}

/** Events around this one, outermost first. */
export function stackOf(data: ReportData, event: number): number[] {
  const stack: number[] = [];
  for (let at = parentOf(data, event); at !== NOTHING; at = parentOf(data, at)) stack.unshift(at);
  return stack;
}

/** The innermost Python frame at the start of a host event, or NOTHING where none was recorded. */
export function frameOf(data: ReportData, event: number): number {
  const { group } = data.tracks[laneOf(data.lanes, event).track];
  let innermost = NOTHING;
  for (const lane of data.lanes) {
    const track = data.tracks[lane.track];
    if (track.group !== group || track.kind !== "frames") continue;
    const at = eventAt(data.events, lane, data.events.start[event]);
    if (at !== NOTHING) innermost = at;
  }
  return innermost;
}

/** Links turned round: GPU work by the event that launched it. */
export interface Launches {
  /** Where the work of an event begins in `work`; one more than there are events. */
  first: Uint32Array;
  /** Events of streams, in order within each launching event. */
  work: Uint32Array;
}

export function launchesOf(data: ReportData): Launches {
  const { link } = data.events;
  const first = new Uint32Array(link.length + 1);
  const streams = data.lanes.filter((lane) => data.tracks[lane.track].kind === "stream");
  for (const lane of streams) for (let i = lane.first; i < lane.end; i++) if (link[i] > 0) first[link[i]]++;
  for (let i = 1; i < first.length; i++) first[i] += first[i - 1];
  const next = first.slice();
  const work = new Uint32Array(first[link.length]);
  for (const lane of streams)
    for (let i = lane.first; i < lane.end; i++) if (link[i] > 0) work[next[link[i] - 1]++] = i;
  return { first, work };
}

/** GPU work launched by a host event or from within it. */
export interface Work {
  count: number;
  /** Summed: streams that run at once count each. */
  ns: number;
  /** All of it, by launch. */
  events: Uint32Array;
}

export function workOf(data: ReportData, launches: Launches, event: number): Work {
  const { start, ns, link } = data.events;
  const own = laneOf(data.lanes, event);
  const { group } = data.tracks[own.track];
  const stretches: Uint32Array[] = [];
  for (const lane of data.lanes) {
    const track = data.tracks[lane.track];
    if (track.group !== group || track.kind === "stream" || track.kind === "waits") continue;
    if (lane.track === own.track && lane.depth < own.depth) continue;
    const low = firstFrom(start, start[event], lane.first, lane.end);
    const high = firstFrom(start, start[event] + Math.max(ns[event], 1), low, lane.end);
    stretches.push(launches.work.subarray(launches.first[low], launches.first[high]));
  }
  const events = new Uint32Array(stretches.reduce((sum, stretch) => sum + stretch.length, 0));
  stretches.reduce((at, stretch) => (events.set(stretch, at), at + stretch.length), 0);
  events.sort((a, b) => start[link[a] - 1] - start[link[b] - 1] || a - b);
  return { count: events.length, ns: events.reduce((sum, at) => sum + ns[at], 0), events };
}

/** What runs first on the same device once a wait is over, or NOTHING. */
export function awaitedBy(data: ReportData, wait: number): number {
  const { start, ns, link } = data.events;
  const isWork = (event: number) => data.tracks[laneOf(data.lanes, event).track].kind === "stream";
  if (link[wait] > 0 && isWork(link[wait] - 1)) return link[wait] - 1;
  const { group } = data.tracks[laneOf(data.lanes, wait).track];
  let first = NOTHING;
  for (const lane of data.lanes) {
    if (data.tracks[lane.track].group !== group || data.tracks[lane.track].kind !== "stream") continue;
    const next = firstFrom(start, start[wait] + ns[wait], lane.first, lane.end);
    if (next < lane.end && (first === NOTHING || start[next] < start[first])) first = next;
  }
  return first;
}

/** The time that all of the link took: from the start of the call to the start of the work. Null without a call. */
export function queuedNs({ start, link }: Events, event: number): number | null {
  return link[event] > 0 ? start[event] - start[link[event] - 1] : null;
}
