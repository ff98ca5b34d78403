// What a report shows, as Python packed it: a header in JSON and columns of numbers.
//
// The packed bytes: length of the header (u32, little-endian), the header, then the columns. A column of n values of
// w bytes is stored as w planes of n bytes, lowest byte first: planes compress better than whole values.

/** A colour with its name; `wait` ones are hatched, as the device does nothing then. */
export interface Paint {
  key: string;
  label: string;
  light: string;
  dark: string;
  wait: boolean;
}

/** A named set of paints that a legend explains together. */
export interface Legend {
  title: string;
  paints: number[];
}

/** Tracks that belong together: a GPU, a host thread. */
export interface Group {
  name: string;
  kind: "overview" | "gpu" | "host";
}

export type TrackKind =
  | "steps"
  | "phases"
  | "findings"
  | "waits"
  | "stream"
  | "ops"
  | "frames"
  | "counter";

export interface Track {
  group: number;
  name: string;
  kind: TrackKind;
  /** Whether it is unfolded at first. */
  open: boolean;
  /** Number of events of each lane (depth), outermost first; within a lane events are in order and do not overlap. */
  lanes: number[];
}

/** A line over time, drawn as a track: bytes in use, say. */
export interface Counter {
  track: number;
  unit: "bytes" | "count";
  /** Columns `counter<i>.time` (ns from the start of the span, ascending) and `counter<i>.value`. */
  count: number;
}

export interface TreeHeader {
  id: string;
  title: string;
  /** What its levels are: "phase → module → op → kernel". */
  levels: string;
  /** What a reader should know of it. */
  note: string;
  nodes: number;
}

export interface KernelRows {
  /** Index into strings, in the order of the columns below. */
  name: number[];
  category: number[];
  op: number[];
  module: number[];
  phase: number[];
  /** Index into paints. */
  paint: number[];
  /** Over all recorded steps shown; likewise ns. */
  count: number[];
  ns: number[];
  median_ns: number[];
  max_ns: number[];
  /** "compute" | "memory" | "latency" | null. */
  bound: (string | null)[];
  /** Time at the roof over time taken, 0 to 1. */
  efficiency: (number | null)[];
  flops: (number | null)[];
  bytes: (number | null)[];
}

interface ColumnPlace {
  /** Bytes from the end of the header. */
  offset: number;
  count: number;
  /** Bytes per value: 1 to 6. */
  width: number;
}

export interface Header {
  version: number;
  /** What the timeline covers, ns counted from the start of the analysed window. */
  span: [number, number];
  /** The analysed window itself: [0, its length]. */
  window: [number, number];
  /** Each analysed step: start and end. */
  steps: [number, number][];
  /** Steps that sums over the recording are divided by, to tell them per step. */
  step_count: number;
  strings: string[];
  /** Index of a string → its whole text, where `strings` holds a readable short form. */
  full: Record<string, string>;
  paints: Paint[];
  legends: Legend[];
  groups: Group[];
  tracks: Track[];
  counters: Counter[];
  trees: TreeHeader[];
  kernels: KernelRows | null;
  columns: Record<string, ColumnPlace>;
}

/** Events of all lanes, one lane after the other, in the order of the tracks. */
export interface Events {
  /** ns from the start of the analysed window; exact. */
  start: Float64Array;
  ns: Float64Array;
  /** Index into strings. */
  name: Uint32Array;
  /** Index into paints. */
  paint: Uint8Array;
  /** Index into strings plus one; 0: there is none. */
  detail: Uint32Array;
  /** Index of the event that launched this one, plus one; 0: unknown or none. */
  link: Uint32Array;
}

/** A range of events: one depth of one track. */
export interface Lane {
  track: number;
  depth: number;
  first: number;
  end: number;
}

/** A tree of sums: node 0 is the root, and a parent stands before its children. */
export interface Tree extends TreeHeader {
  parent: Int32Array;
  name: Uint32Array;
  paint: Uint8Array;
  /** ns of the node itself, without its children. */
  own: Float64Array;
  /** How often: kernels, calls, gaps. */
  count: Float64Array;
  /** ns with all children. */
  total: Float64Array;
}

export interface CounterLine extends Counter {
  time: Float64Array;
  value: Float64Array;
}

export interface ReportData extends Omit<Header, "trees" | "counters"> {
  events: Events;
  lanes: Lane[];
  trees: Tree[];
  counters: CounterLine[];
}

export const NOTHING = -1;

/** Unpacks what `pack` of the Python side made. Throws where the bytes are not that. */
export function unpack(bytes: Uint8Array): ReportData {
  if (bytes.length < 4) throw new Error("the report's data is cut short");
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const body = 4 + view.getUint32(0, true);
  if (body > bytes.length) throw new Error("the report's data is cut short");
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, body))) as Header;
  const planes = bytes.subarray(body);
  const column = (name: string): Float64Array => wide(planes, place(header, planes, name));
  const lanes = lanesOf(header.tracks);
  const events: Events = {
    start: column("start"),
    ns: column("ns"),
    name: Uint32Array.from(column("name")),
    paint: Uint8Array.from(column("paint")),
    detail: Uint32Array.from(column("detail")),
    link: Uint32Array.from(column("link")),
  };
  sumUp(events.start, lanes, header.span[0]);
  const counters = header.counters.map((counter, i) => ({
    ...counter,
    time: column(`counter${i}.time`).map((t) => t + header.span[0]),
    value: column(`counter${i}.value`),
  }));
  const trees = header.trees.map((tree, i) => treeOf(tree, (name) => column(`tree${i}.${name}`)));
  return { ...header, events, lanes, counters, trees };
}

/** The lane that an event is in. */
export function laneOf(lanes: readonly Lane[], event: number): Lane {
  return lanes[laneIndex(lanes, event)];
}

/** Index of the lane that an event is in. */
export function laneIndex(lanes: readonly Lane[], event: number): number {
  let low = 0;
  let high = lanes.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (lanes[middle].first <= event) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** First index in [low, high) whose value is above t; `values` ascend there. */
export function after(values: Float64Array, t: number, low: number, high: number): number {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= t) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Event of a lane that runs at t, or NOTHING. */
export function eventAt(events: Events, lane: Lane, t: number): number {
  const i = after(events.start, t, lane.first, lane.end) - 1;
  return i >= lane.first && t < events.start[i] + Math.max(events.ns[i], 1) ? i : NOTHING;
}

function lanesOf(tracks: readonly Track[]): Lane[] {
  const lanes: Lane[] = [];
  let first = 0;
  tracks.forEach((track, t) =>
    track.lanes.forEach((count, depth) => {
      lanes.push({ track: t, depth, first, end: first + count });
      first += count;
    }),
  );
  return lanes;
}

/** Starts are stored as distances from the one before in the lane. */
function sumUp(start: Float64Array, lanes: readonly Lane[], origin: number): void {
  for (const lane of lanes) {
    let t = origin;
    for (let i = lane.first; i < lane.end; i++) {
      t += start[i];
      start[i] = t;
    }
  }
}

function treeOf(header: TreeHeader, column: (name: string) => Float64Array): Tree {
  const parent = Int32Array.from(column("parent"), (p) => p - 1);
  const own = column("own");
  const total = own.slice();
  for (let i = total.length - 1; i > 0; i--) total[parent[i]] += total[i];
  return {
    ...header,
    parent,
    own,
    total,
    name: Uint32Array.from(column("name")),
    paint: Uint8Array.from(column("paint")),
    count: column("count"),
  };
}

function place(header: Header, planes: Uint8Array, name: string): ColumnPlace {
  const found = header.columns[name];
  if (found === undefined) throw new Error(`the report's data lacks ${name}`);
  if (found.offset + found.count * found.width > planes.length) throw new Error("the report's data is cut short");
  return found;
}

/** Values of up to 48 bits from their planes. */
function wide(planes: Uint8Array, { offset, count, width }: ColumnPlace): Float64Array {
  const values = new Float64Array(count);
  let factor = 1;
  for (let p = 0; p < width; p++, factor *= 256) {
    const at = offset + p * count;
    for (let i = 0; i < count; i++) {
      const byte = planes[at + i];
      if (byte !== 0) values[i] += byte * factor;
    }
  }
  return values;
}
