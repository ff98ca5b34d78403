// Packs a report as the Python side does, from plain objects: for tests, which unpack it again.

import type { Counter, Group, Header, KernelRows, Legend, Paint, Track, TrackKind } from "../src/data.ts";

export interface PlainEvent {
  start: number;
  ns: number;
  name: string;
  paint: number;
  detail?: string;
  /** Index of the launching event among all events, in the order of the tracks. */
  link?: number;
}

export interface PlainTrack {
  group: number;
  name: string;
  kind: TrackKind;
  open?: boolean;
  lanes: PlainEvent[][];
}

export interface PlainTree {
  id: string;
  /** `parent` is -1 for the root, which stands first. */
  nodes: { parent: number; name: string; paint: number; own: number; count: number }[];
}

export interface PlainReport {
  span: [number, number];
  window?: [number, number];
  steps?: [number, number][];
  paints: Paint[];
  legends?: Legend[];
  groups: Group[];
  tracks: PlainTrack[];
  counters?: (Omit<Counter, "count"> & { time: number[]; value: number[] })[];
  trees?: PlainTree[];
  kernels?: KernelRows | null;
  full?: Record<string, string>;
}

export function pack(report: PlainReport): Uint8Array {
  const strings: string[] = [];
  const known = new Map<string, number>();
  const text = (value: string) => {
    if (!known.has(value)) known.set(value, strings.push(value) - 1);
    return known.get(value) as number;
  };
  const lanes = report.tracks.flatMap((track) => track.lanes);
  const events = lanes.flat();
  const columns: Record<string, number[]> = {
    start: lanes.flatMap((lane) => lane.map(({ start }, i) => start - (i > 0 ? lane[i - 1].start : report.span[0]))),
    ns: events.map((event) => event.ns),
    name: events.map((event) => text(event.name)),
    paint: events.map((event) => event.paint),
    detail: events.map((event) => (event.detail === undefined ? 0 : text(event.detail) + 1)),
    link: events.map((event) => (event.link ?? -1) + 1),
  };
  report.counters?.forEach((counter, i) => {
    columns[`counter${i}.time`] = counter.time.map((t) => t - report.span[0]);
    columns[`counter${i}.value`] = counter.value;
  });
  report.trees?.forEach((tree, i) => {
    columns[`tree${i}.parent`] = tree.nodes.map((node) => node.parent + 1);
    columns[`tree${i}.name`] = tree.nodes.map((node) => text(node.name));
    for (const key of ["paint", "own", "count"] as const)
      columns[`tree${i}.${key}`] = tree.nodes.map((node) => node[key]);
  });
  const { places, planes } = inPlanes(columns);
  const full: Record<string, string> = {};
  for (const [short, whole] of Object.entries(report.full ?? {})) full[String(text(short))] = whole;
  const header: Header = {
    version: 1,
    span: report.span,
    window: report.window ?? report.span,
    steps: report.steps ?? [],
    step_count: Math.max(1, report.steps?.length ?? 0),
    strings,
    full,
    paints: report.paints,
    legends: report.legends ?? [],
    groups: report.groups,
    tracks: report.tracks.map(headOf),
    counters: (report.counters ?? []).map(({ track, unit, time }) => ({ track, unit, count: time.length })),
    trees: (report.trees ?? []).map(({ id, nodes }) => ({ id, title: id, levels: "", note: "", nodes: nodes.length })),
    kernels: report.kernels ?? null,
    columns: places,
  };
  const head = new TextEncoder().encode(JSON.stringify(header));
  const bytes = new Uint8Array(4 + head.length + planes.length);
  new DataView(bytes.buffer).setUint32(0, head.length, true);
  bytes.set(head, 4);
  bytes.set(planes, 4 + head.length);
  return bytes;
}

function headOf({ group, name, kind, open, lanes }: PlainTrack): Track {
  return { group, name, kind, open: open ?? true, lanes: lanes.map((lane) => lane.length) };
}

function inPlanes(columns: Record<string, number[]>): { places: Header["columns"]; planes: Uint8Array } {
  const places: Header["columns"] = {};
  const planes: number[] = [];
  for (const [name, values] of Object.entries(columns)) {
    const most = values.reduce((a, b) => Math.max(a, b), 0);
    let width = 1;
    while (most >= 256 ** width) width++;
    places[name] = { offset: planes.length, count: values.length, width };
    for (let p = 0; p < width; p++) for (const value of values) planes.push(Math.floor(value / 256 ** p) % 256);
  }
  return { places, planes: Uint8Array.from(planes) };
}
