// The event that a link of the report's text means.

import { after, NOTHING, type Lane, type ReportData } from "../data.ts";
import { holds } from "./matches.ts";

/**
 * Tracks that a text names, by their own name, as `group/track`, or by their group, whole or in part. No such name: those
 * of recorded things, which the overview only sums up.
 */
export function tracksNamed(data: Pick<ReportData, "groups" | "tracks">, text: string): number[] {
  const wanted = text.trim().toLowerCase();
  const all = data.tracks.map((_, t) => t);
  const groupOf = (t: number) => data.groups[data.tracks[t].group];
  const names = [
    (t: number) => `${groupOf(t).name}/${data.tracks[t].name}`,
    (t: number) => data.tracks[t].name,
    (t: number) => groupOf(t).name,
  ];
  const ways = [(name: string) => name === wanted, (name: string) => wanted !== "" && name.includes(wanted)];
  for (const way of ways) {
    for (const name of names) {
      const found = all.filter((t) => way(name(t).toLowerCase()));
      if (found.length > 0) return found;
    }
  }
  return all.filter((t) => groupOf(t).kind !== "overview");
}

/**
 * Of the events in a range of time on tracks, the one named so: that which starts the range, or else fills most of it.
 * None of that name: the one that fills most. NOTHING where none is there.
 */
export function eventNamed(
  data: ReportData,
  from: number,
  ns: number,
  tracks: readonly number[],
  what: string,
): number {
  const wanted = what.trim().toLowerCase();
  const { name, detail } = data.events;
  const named = (event: number) =>
    holds(data, name[event], wanted) || (detail[event] > 0 && holds(data, detail[event] - 1, wanted));
  const lanes = data.lanes.filter((lane) => tracks.includes(lane.track));
  const to = from + Math.max(ns, 1);
  const found = wanted === "" ? NOTHING : best(data, lanes, from, to, named);
  return found === NOTHING ? best(data, lanes, from, to, () => true) : found;
}

function best(
  data: ReportData,
  lanes: readonly Lane[],
  from: number,
  to: number,
  meant: (event: number) => boolean,
): number {
  const { start, ns } = data.events;
  let found = NOTHING;
  let most = -Infinity;
  for (const lane of lanes) {
    for (
      let i = Math.max(lane.first, after(start, from, lane.first, lane.end) - 1);
      i < lane.end && start[i] < to;
      i++
    ) {
      const inside = Math.min(to, start[i] + ns[i]) - Math.max(from, start[i]);
      // What reaches out of the range counts for less than what ends with it; what starts it counts for most.
      const fit = inside - 1e-3 * Math.max(0, ns[i] - inside) + (start[i] === from ? to - from : 0);
      if (inside >= 0 && fit > most && meant(i)) [found, most] = [i, fit];
    }
  }
  return found;
}
