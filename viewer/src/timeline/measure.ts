// What a stretch of time holds, per GPU: busy and idle, and why idle.

import type { ReportData } from "../data.ts";
import { addTime, type LaneSums } from "./sums.ts";

export interface Share {
  paint: number;
  ns: number;
}

export interface Stretch {
  group: number;
  /** Time in which work runs: the stretch less its waits, where waits were recorded, or else the fullest stream's. */
  busyNs: number;
  /** What runs, most first; streams that run at once count each. */
  work: Share[];
  /** Why nothing runs, most first. */
  waits: Share[];
}

/** Of each GPU between two moments. */
export function measure(data: ReportData, sums: readonly LaneSums[], from: number, to: number): Stretch[] {
  return data.groups.flatMap((group, g) => (group.kind === "gpu" ? [stretchOf(data, sums, g, from, to)] : []));
}

export function stretchOf(
  data: ReportData,
  sums: readonly LaneSums[],
  group: number,
  from: number,
  to: number,
): Stretch {
  const work = new Float64Array(data.paints.length);
  const waits = new Float64Array(data.paints.length);
  let fullest = 0;
  let waited: number | null = null;
  for (const lane of sums) {
    const track = data.tracks[lane.track];
    if (track.group !== group || (track.kind !== "stream" && track.kind !== "waits")) continue;
    const ns = new Float64Array(lane.paints.length);
    addTime(data.events, lane, from, to, ns);
    const total = ns.reduce((a, b) => a + b, 0);
    if (track.kind === "waits") waited = (waited ?? 0) + total;
    else fullest = Math.max(fullest, total);
    const into = track.kind === "waits" ? waits : work;
    lane.paints.forEach((paint, s) => (into[paint] += ns[s]));
  }
  const inside = Math.min(to, data.window[1]) - Math.max(from, data.window[0]);
  // Waits are known within the analysed window only.
  const busyNs = waited !== null && inside > 0 ? Math.max(0, inside - waited) : fullest;
  return { group, busyNs, work: shares(work), waits: shares(waits) };
}

function shares(ns: Float64Array): Share[] {
  const found = Array.from(ns, (value, paint) => ({ paint, ns: value })).filter((share) => share.ns >= 0.5);
  return found.sort((a, b) => b.ns - a.ns);
}
