// The keyboard, while the timeline has the focus; letters also while the pointer is over it.

import { laneOf, NOTHING } from "../data.ts";
import { nearest } from "./layout.ts";
import { childOf, parentOf } from "./links.ts";
import { nextMatch } from "./matches.ts";
import type { Stage } from "./stage.ts";
import { length, panned, timeAt, zoomed } from "./view.ts";

const ZOOM = 1.6;
const PAN = 0.2;

/** What the keys do, for readers. */
export const KEYS: [string, string][] = [
  ["W, S", "zoom in, out at the pointer (also + and −, ctrl + wheel, or the wheel once clicked)"],
  ["A, D", "move left, right (also shift + wheel, or drag)"],
  ["← →", "previous, next event in the row"],
  ["↑ ↓", "the event around the selected one, the first one in it"],
  ["F", "zoom to the selected event (also double click)"],
  ["0, Home", "show everything"],
  ["M", "measure: then drag over a range (also shift + drag)"],
  ["/", "search; Enter and shift + Enter go to the next and the previous"],
  ["Esc", "clear the measure, the selection, the search; then give the wheel back to the page"],
  ["?", "this list"],
];

export interface KeyTargets {
  /** Pixels from the left, or null: zoom around the middle. */
  pointer: () => number | null;
  focusSearch: () => void;
  clearSearch: () => void;
  help: () => void;
  /** Leaves the full window; false where it was not. */
  leaveFull: () => boolean;
}

/** True where the key meant something. */
export function press(event: KeyboardEvent, canvas: HTMLCanvasElement, stage: Stage, targets: KeyTargets): boolean {
  if (event.ctrlKey || event.metaKey || event.altKey) return false;
  const action = actionOf(event, canvas, stage, targets);
  action?.();
  return action !== undefined;
}

function actionOf(
  event: KeyboardEvent,
  canvas: HTMLCanvasElement,
  stage: Stage,
  targets: KeyTargets,
): (() => void) | undefined {
  const zoom = (factor: number) => () => zoomAtPointer(stage, targets.pointer(), factor);
  const pan = (part: number) => () => stage.glideTo(panned(stage.goal, stage.whole, part * length(stage.goal)));
  const actions: Record<string, () => void> = {
    w: zoom(1 / ZOOM),
    "+": zoom(1 / ZOOM),
    "=": zoom(1 / ZOOM),
    s: zoom(ZOOM),
    "-": zoom(ZOOM),
    a: pan(-PAN),
    d: pan(PAN),
    arrowleft: () => stepAside(stage, -1),
    arrowright: () => stepAside(stage, 1),
    arrowup: () => go(stage, stage.selected === NOTHING ? first(stage) : parentOf(stage.data, stage.selected)),
    arrowdown: () => go(stage, stage.selected === NOTHING ? first(stage) : childOf(stage.data, stage.selected)),
    f: () => stage.selected !== NOTHING && stage.show(stage.selected, true),
    "0": () => stage.glideTo(stage.whole),
    home: () => stage.glideTo(stage.whole),
    m: () => stage.setMeasuring(!stage.measuring),
    "/": targets.focusSearch,
    enter: () => goToMatch(stage, event.shiftKey ? -1 : 1),
    escape: () => escape(canvas, stage, targets),
    "?": targets.help,
  };
  return actions[event.key.toLowerCase()];
}

export function zoomAtPointer(stage: Stage, x: number | null, factor: number): void {
  const at = timeAt(stage.goal, stage.width, x ?? stage.width / 2);
  stage.glideTo(zoomed(stage.goal, stage.whole, at, factor));
}

export function goToMatch(stage: Stage, by: 1 | -1): void {
  if (stage.found === null || stage.found.length === 0) return;
  stage.show(nextMatch(stage.data.events.start, stage.found, stage.selected, by), false);
}

function stepAside(stage: Stage, by: 1 | -1): void {
  if (stage.selected === NOTHING) return go(stage, first(stage));
  const lane = laneOf(stage.data.lanes, stage.selected);
  const next = stage.selected + by;
  if (next >= lane.first && next < lane.end) go(stage, next);
}

/** Where the keyboard begins: in the middle of the uppermost row in view. */
function first(stage: Stage): number {
  const { rows, scroll, data, view } = stage;
  const place = rows.lanes.find(({ y, lane }) => y >= scroll && data.lanes[lane].end > data.lanes[lane].first);
  return place === undefined
    ? NOTHING
    : nearest(data.events, data.lanes[place.lane], (view.start + view.end) / 2, Infinity);
}

function go(stage: Stage, event: number): void {
  if (event !== NOTHING) stage.show(event, false);
}

/** One thing at a time, the last that was done first. */
function escape(canvas: HTMLCanvasElement, stage: Stage, targets: KeyTargets): void {
  if (stage.measuring) stage.setMeasuring(false);
  else if (stage.measured !== null) stage.setMeasured(null);
  else if (stage.selected !== NOTHING) stage.select(NOTHING);
  else if (stage.found !== null) targets.clearSearch();
  else if (!targets.leaveFull()) canvas.blur();
}
