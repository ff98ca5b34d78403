// The whole recording in columns of pixels: of every GPU what it mostly does, how busy it is, and why it is idle; and
// of the CPU what the training thread is in.

import { NOTHING, type ReportData } from "../data.ts";
import { addTime, type LaneSums } from "./sums.ts";
import { length, type Span } from "./view.ts";

/** Of one GPU or of the CPU, by column. */
export interface Strip {
  /** Share of the column in which work runs, 0 to 1. */
  busy: Float64Array;
  /** The paint that most of it has; NOTHING where there is none. */
  work: Int16Array;
  wait: Int16Array;
}

export function stripsOf(data: ReportData, sums: readonly LaneSums[], whole: Span, columns: number): Strip[] {
  return data.groups.flatMap((group, g) => (group.kind === "gpu" ? [stripOf(data, sums, g, whole, columns)] : []));
}

function stripOf(data: ReportData, sums: readonly LaneSums[], group: number, whole: Span, columns: number): Strip {
  const strip = empty(columns);
  const lanes = sums.filter((lane) => data.tracks[lane.track].group === group);
  const streams = lanes.filter((lane) => data.tracks[lane.track].kind === "stream");
  const waits = lanes.filter((lane) => data.tracks[lane.track].kind === "waits");
  const pixel = length(whole) / columns;
  const work = new Float64Array(data.paints.length);
  const idle = new Float64Array(data.paints.length);
  for (let x = 0; x < columns; x++) {
    const from = whole.start + x * pixel;
    collect(data, streams, from, from + pixel, work.fill(0));
    collect(data, waits, from, from + pixel, idle.fill(0));
    strip.work[x] = mostOf(work);
    strip.wait[x] = mostOf(idle);
    const waited = idle.reduce((a, b) => a + b, 0);
    const inside = Math.min(from + pixel, data.window[1]) - Math.max(from, data.window[0]);
    const ran = work.reduce((a, b) => a + b, 0);
    // Streams overlap; waits do not. Outside of the window waits are not known.
    const busy = waits.length > 0 && inside > 0.5 * pixel ? inside - waited : Math.min(ran, pixel);
    strip.busy[x] = Math.max(0, Math.min(1, busy / pixel));
  }
  return strip;
}

/** Phases of the training thread; outside of the steps, which have none, the ops of all CPU threads. */
export function cpuStrip(data: ReportData, sums: readonly LaneSums[], whole: Span, columns: number): Strip {
  const strip = empty(columns);
  const on = (lane: LaneSums) => data.tracks[lane.track];
  const ofGpu = (lane: LaneSums) => data.groups[on(lane).group].kind === "gpu";
  const phases = sums.filter((lane) => on(lane).kind === "phases" && !ofGpu(lane));
  // The first lane of a track holds what all others are in.
  const outermost = sums.filter((lane, i) => on(lane).kind === "ops" && sums[i - 1]?.track !== lane.track);
  const pixel = length(whole) / columns;
  const found = new Float64Array(data.paints.length);
  for (let x = 0; x < columns; x++) {
    const from = whole.start + x * pixel;
    collect(data, phases, from, from + pixel, found.fill(0));
    if (mostOf(found) === NOTHING) collect(data, outermost, from, from + pixel, found);
    strip.work[x] = mostOf(found);
    strip.wait[x] = NOTHING;
    strip.busy[x] = strip.work[x] === NOTHING ? 0 : 1;
  }
  return strip;
}

function empty(columns: number): Strip {
  return { busy: new Float64Array(columns), work: new Int16Array(columns), wait: new Int16Array(columns) };
}

const slots = new Float64Array(256);

function collect(data: ReportData, lanes: readonly LaneSums[], from: number, to: number, into: Float64Array): void {
  for (const lane of lanes) {
    slots.fill(0, 0, lane.paints.length);
    addTime(data.events, lane, from, to, slots);
    lane.paints.forEach((paint, s) => (into[paint] += slots[s]));
  }
}

function mostOf(ns: Float64Array): number {
  let most = NOTHING;
  for (let p = 0; p < ns.length; p++) if (ns[p] > 0 && (most === NOTHING || ns[p] > ns[most])) most = p;
  return most;
}
