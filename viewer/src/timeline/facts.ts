// The facts about one event.

import { laneOf, NOTHING, type ReportData } from "../data.ts";
import { awaitedBy, frameOf, launchesOf, queuedNs, stackOf, workOf, type Launches, type Work } from "./links.ts";

export interface Facts {
  event: number;
  name: string;
  /** The whole name, where `name` is a short form of it. */
  full: string | null;
  detail: string | null;
  /** `GPU 0 · stream 7`. */
  place: string;
  label: string;
  start: number;
  ns: number;
  /** The step (from 0) that it starts in, and how long that takes. */
  step: { index: number; ns: number } | null;
  /** The call that launched it, with the time from the call's start to its own, or NOTHING. */
  launch: number;
  queuedNs: number | null;
  /** Events around it (of GPU work: around its launch), outermost first. */
  stack: number[];
  frame: number;
  /** GPU work launched by it or from within it; only of host events. */
  work: Work | null;
  /** What a wait waits for, or NOTHING. */
  awaited: number;
}

export function factsOf(data: ReportData, launches: () => Launches, event: number): Facts {
  const { events, strings } = data;
  const track = data.tracks[laneOf(data.lanes, event).track];
  const group = data.groups[track.group];
  const gpu = track.kind === "stream";
  const host = track.kind === "ops" || track.kind === "frames";
  const launch = gpu && events.link[event] > 0 ? events.link[event] - 1 : NOTHING;
  const around = launch === NOTHING ? event : launch;
  return {
    event,
    name: strings[events.name[event]],
    full: data.full[events.name[event]] ?? null,
    detail:
      events.detail[event] > 0 ? (data.full[events.detail[event] - 1] ?? strings[events.detail[event] - 1]) : null,
    place: `${group.name} · ${track.name}`,
    label: data.paints[events.paint[event]]?.label ?? "",
    start: events.start[event],
    ns: events.ns[event],
    step: stepAt(data.steps, events.start[event]),
    launch,
    queuedNs: gpu ? queuedNs(events, event) : null,
    stack: track.kind === "findings" ? [] : stackOf(data, around), // findings side by side are not inside each other
    frame: host || launch !== NOTHING ? otherThan(event, frameOf(data, around)) : NOTHING,
    work: host ? workOf(data, launches(), event) : null,
    awaited: track.kind === "waits" ? awaitedBy(data, event) : NOTHING,
  };
}

/** Launches turned round when first asked for. */
export function lazyLaunches(data: ReportData): () => Launches {
  let found: Launches | null = null;
  return () => (found ??= launchesOf(data));
}

/** GPU work whose launch an arrow shows: the selected, or all that was launched from it, by launch. */
export function arrowsOf(facts: Facts): Uint32Array {
  if (facts.launch !== NOTHING) return Uint32Array.of(facts.event);
  return facts.work?.events ?? new Uint32Array(0);
}

function stepAt(steps: readonly [number, number][], t: number): { index: number; ns: number } | null {
  const index = steps.findIndex(([start, end]) => t >= start && t < end);
  return index < 0 ? null : { index, ns: steps[index][1] - steps[index][0] };
}

function otherThan(event: number, frame: number): number {
  return frame === event ? NOTHING : frame;
}
