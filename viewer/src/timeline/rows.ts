// Where tracks stand: from top to bottom, groups with their tracks, each unfolded or folded to a thin line.

import type { Lane, ReportData, Track } from "../data.ts";

export const GROUP_HEIGHT = 26;
export const LANE_HEIGHT = 18;
export const COUNTER_HEIGHT = 44;
const FOLDED_HEIGHT = 18;
const THIN = 6;
const PAD = 3;

/** A strip across the view: a group's heading (`track` is null) or a track. */
export interface Row {
  group: number;
  track: number | null;
  y: number;
  height: number;
  open: boolean;
}

/** The strip that a lane is drawn in. */
export interface LanePlace {
  lane: number;
  y: number;
  height: number;
}

export interface Arrangement {
  rows: Row[];
  /** Only lanes that are drawn, from top to bottom. */
  lanes: LanePlace[];
  /** By lane: its place in `lanes`, or of the one drawn in its stead, or -1 where its group is folded. */
  placeOf: Int32Array;
  height: number;
}

/** What is folded: by track and by group. */
export interface Folds {
  tracks: boolean[];
  groups: boolean[];
}

export function arrange(data: Pick<ReportData, "groups" | "tracks" | "lanes" | "counters">, folds: Folds): Arrangement {
  const rows: Row[] = [];
  const lanes: LanePlace[] = [];
  const placeOf = new Int32Array(data.lanes.length).fill(-1);
  const lanesOf = lanesByTrack(data.lanes, data.tracks.length);
  const counted = new Set(data.counters.map((counter) => counter.track));
  let y = 0;
  data.groups.forEach((_, group) => {
    const tracks = data.tracks.flatMap((track, t) =>
      track.group === group && (lanesOf[t].length || counted.has(t)) ? [t] : [],
    );
    if (tracks.length === 0) return;
    rows.push({ group, track: null, y, height: GROUP_HEIGHT, open: !folds.groups[group] });
    y += GROUP_HEIGHT;
    if (folds.groups[group]) return;
    for (const t of tracks) {
      const open = !folds.tracks[t];
      const height = heightOf(open, counted.has(t), lanesOf[t].length);
      rows.push({ group, track: t, y, height, open });
      if (open) {
        lanesOf[t].forEach((lane, depth) => {
          placeOf[lane] = lanes.length;
          lanes.push({ lane, y: y + PAD + depth * LANE_HEIGHT, height: LANE_HEIGHT - 1 });
        });
      } else if (lanesOf[t].length > 0) {
        for (const lane of lanesOf[t]) placeOf[lane] = lanes.length;
        const lane = summary(data.tracks[t], data.lanes, lanesOf[t]);
        lanes.push({ lane, y: y + (FOLDED_HEIGHT - THIN) / 2, height: THIN });
      }
      y += height;
    }
  });
  return { rows, lanes, placeOf, height: y };
}

function heightOf(open: boolean, counter: boolean, lanes: number): number {
  if (!open) return FOLDED_HEIGHT;
  return counter ? COUNTER_HEIGHT : lanes * LANE_HEIGHT + 2 * PAD;
}

export function lanesByTrack(lanes: readonly Lane[], tracks: number): number[][] {
  const found: number[][] = Array.from({ length: tracks }, () => []);
  lanes.forEach((lane, i) => found[lane.track].push(i));
  return found;
}

/** The lane that stands for a folded track. Outermost Python frames last for ever and say nothing: the fullest does. */
function summary(track: Track, lanes: readonly Lane[], own: number[]): number {
  if (track.kind !== "frames") return own[0];
  const size = (lane: number) => lanes[lane].end - lanes[lane].first;
  return own.reduce((best, lane) => (size(lane) > size(best) ? lane : best));
}

/** The row at a height, or undefined below the last. */
export function rowAt(rows: readonly Row[], y: number): Row | undefined {
  return rows.find((row) => y >= row.y && y < row.y + row.height);
}

/** The drawn lane at a height, or undefined. */
export function laneAt(lanes: readonly LanePlace[], y: number): LanePlace | undefined {
  return lanes.find((place) => y >= place.y && y <= place.y + place.height);
}
