// For tests and benchmarks in a browser: what is shown, as numbers. Nothing of the page uses it.

import { laneOf, NOTHING } from "../data.ts";
import type { Stage } from "./stage.ts";

export interface Hooks {
  view(): { start: number; end: number; scroll: number };
  setView(start: number, end: number): void;
  selected(): { index: number; name: string; track: string; start: number; ns: number } | null;
  /** Draws now; ms that it took. */
  draw(): number;
  events: number;
}

declare global {
  interface Window {
    gpuprofTimeline?: Hooks;
  }
}

export function hooksOf(stage: Stage, draw: () => void): Hooks {
  const { events, strings, tracks, lanes } = stage.data;
  return {
    view: () => ({ start: stage.view.start, end: stage.view.end, scroll: stage.scroll }),
    setView: (start, end) => stage.setView({ start, end }),
    selected: () => {
      const index = stage.selected;
      if (index === NOTHING) return null;
      const track = tracks[laneOf(lanes, index).track].name;
      return { index, name: strings[events.name[index]], track, start: events.start[index], ns: events.ns[index] };
    },
    draw: () => {
      const began = performance.now();
      draw();
      return performance.now() - began;
    },
    events: events.start.length,
  };
}
