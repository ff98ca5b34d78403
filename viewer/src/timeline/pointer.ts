// Mouse, touchpad and wheel over the tracks.

import { NOTHING } from "../data.ts";
import { nearest } from "./layout.ts";
import { laneAt, rowAt, type Row } from "./rows.ts";
import type { Stage } from "./stage.ts";
import { length, panned, timeAt, zoomed, type Span } from "./view.ts";

/** Pixels that a press may move and still be a click. */
const STILL = 3;
/** Pixels from a short event in which the pointer still means it. */
const REACH = 3;
const WHEEL = 0.008;
const MOST_WHEEL = 45;
const LINE = 16;

export interface PointerState {
  x: number;
  y: number;
  row: Row | undefined;
}

/** `told` hears where the pointer is, null once it has left. */
export function startPointer(canvas: HTMLCanvasElement, stage: Stage, told: (at: PointerState | null) => void): void {
  const place = (event: MouseEvent): [number, number] => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  let held: { x: number; y: number; view: Span; scroll: number; measures: boolean; moved: boolean } | null = null;

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.focus({ preventScroll: true });
    canvas.setPointerCapture(event.pointerId);
    const [x, y] = place(event);
    held = { x, y, view: stage.view, scroll: stage.scroll, measures: event.shiftKey || stage.measuring, moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (held !== null) {
      if (!held.moved && Math.hypot(x - held.x, y - held.y) <= STILL) return;
      held.moved = true;
      stage.hover(NOTHING);
      told({ x, y, row: undefined });
      drag(stage, held, x, y);
      return;
    }
    stage.hover(eventUnder(stage, x, y));
    told({ x, y, row: rowAt(stage.rows.rows, y + stage.scroll) });
  });
  canvas.addEventListener("pointerup", (event) => {
    const was = held;
    held = null;
    if (was === null) return;
    if (was.moved) {
      if (was.measures) stage.setMeasuring(false);
      return;
    }
    if (was.measures) stage.setMeasured(null);
    stage.select(eventUnder(stage, ...place(event)));
  });
  canvas.addEventListener("pointercancel", () => (held = null));
  canvas.addEventListener("pointerleave", () => {
    stage.hover(NOTHING);
    told(null);
  });
  canvas.addEventListener("dblclick", (event) => {
    const hit = eventUnder(stage, ...place(event));
    if (hit !== NOTHING) stage.show(hit, true);
  });
  canvas.addEventListener("wheel", (event) => wheel(event, canvas, stage, place(event)[0]), { passive: false });
}

/** The event drawn at a place on the canvas, or NOTHING. */
export function eventUnder(stage: Stage, x: number, y: number): number {
  const place = laneAt(stage.rows.lanes, y + stage.scroll);
  if (place === undefined) return NOTHING;
  const reach = (REACH * length(stage.view)) / stage.width;
  return nearest(stage.data.events, stage.data.lanes[place.lane], timeAt(stage.view, stage.width, x), reach);
}

function drag(
  stage: Stage,
  held: { x: number; y: number; view: Span; scroll: number; measures: boolean },
  x: number,
  y: number,
): void {
  if (held.measures) {
    const inside = Math.max(0, Math.min(stage.width, x));
    const [a, b] = [held.x, inside].map((at) => timeAt(stage.view, stage.width, at)).sort((a, b) => a - b);
    stage.setMeasured({ start: a, end: b });
    return;
  }
  stage.setView(panned(held.view, stage.whole, ((held.x - x) / stage.width) * length(held.view)));
  stage.scrollTo(held.scroll + held.y - y);
}

/** Zooms with ctrl or ⌘ (a pinch comes as that), and always once the timeline has the focus; else the page scrolls. */
function wheel(event: WheelEvent, canvas: HTMLCanvasElement, stage: Stage, x: number): void {
  const unit =
    event.deltaMode === WheelEvent.DOM_DELTA_LINE
      ? LINE
      : event.deltaMode === WheelEvent.DOM_DELTA_PAGE
        ? stage.height
        : 1;
  const [dx, dy] = [event.deltaX * unit, event.deltaY * unit];
  const sideways = event.shiftKey || Math.abs(dx) > Math.abs(dy);
  if (event.ctrlKey || event.metaKey || (!sideways && document.activeElement === canvas)) {
    event.preventDefault();
    const by = Math.max(-MOST_WHEEL, Math.min(MOST_WHEEL, dy));
    stage.setView(zoomed(stage.view, stage.whole, timeAt(stage.view, stage.width, x), Math.exp(by * WHEEL)));
  } else if (sideways) {
    event.preventDefault();
    const by = Math.abs(dx) > Math.abs(dy) ? dx : dy;
    stage.setView(panned(stage.view, stage.whole, (by / stage.width) * length(stage.view)));
  }
}
