// How large the timeline is: as wide as its page, as high as its reader drags it.

import { PAPER_PX } from "../paper.ts";
import type { Stage } from "./stage.ts";

const LEAST = 300;
/** With its head a panel is 600 px high at most, unless its reader drags it: what it shows of a click stays in view. */
const MOST = 500;
const PART = 0.52;
/** On paper nobody scrolls. */
const MOST_ON_PAPER = 900;
const STEP = 40;

/** Keeps sizes right; `sized` is called after each change. Returns what to call when the rows have changed, or where
 * they are seen: on paper they all are, as far as they fit. */
export function sizing(
  frame: HTMLElement,
  scroller: HTMLElement,
  tall: HTMLElement,
  handle: HTMLElement,
  stage: Stage,
  sized: () => void,
): (where?: "screen" | "paper") => void {
  let chosen: number | null = null;
  let paper = false;
  const size = (where?: "screen" | "paper") => {
    paper = where === undefined ? paper : where === "paper";
    const full = frame.classList.contains("tl-whole-window");
    tall.style.height = `${stage.rows.height}px`;
    // In the whole window the style sheet says how high it is.
    const height = paper ? Math.min(stage.rows.height, MOST_ON_PAPER) : heightOf(chosen, stage.rows.height, window.innerHeight);
    scroller.style.height = full ? "" : `${height}px`;
    const gutter = tall.firstElementChild?.clientWidth ?? 0;
    stage.width = Math.max(50, (paper ? PAPER_PX : scroller.clientWidth) - gutter);
    stage.height = Math.max(50, paper ? height : scroller.clientHeight);
    frame.style.setProperty("--tl-width", `${stage.width}px`);
    stage.scroll = scroller.scrollTop;
    sized();
  };
  handle.addEventListener("pointerdown", (event) => {
    handle.setPointerCapture(event.pointerId);
    const from = scroller.clientHeight - event.clientY;
    const move = (moved: PointerEvent) => {
      chosen = from + moved.clientY;
      size();
    };
    handle.addEventListener("pointermove", move);
    handle.addEventListener("lostpointercapture", () => handle.removeEventListener("pointermove", move), {
      once: true,
    });
  });
  handle.addEventListener("keydown", (event) => {
    const by = event.key === "ArrowDown" ? STEP : event.key === "ArrowUp" ? -STEP : 0;
    if (by === 0) return;
    event.preventDefault();
    chosen = scroller.clientHeight + by;
    size();
  });
  new ResizeObserver(() => size()).observe(frame);
  window.addEventListener("resize", () => size());
  return size;
}

/** What was chosen, or a part of the window; never higher than the tracks are. */
export function heightOf(chosen: number | null, tracks: number, window: number): number {
  const wanted = chosen ?? Math.min(MOST, Math.max(LEAST, PART * window));
  return Math.round(Math.max(120, Math.min(wanted, tracks)));
}
