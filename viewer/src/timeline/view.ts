// The visible range of time and its arithmetic. Times are ns from the start of the analysed window.

/** A range of time: `start` < `end`. */
export interface Span {
  readonly start: number;
  readonly end: number;
}

/** Nothing shorter is ever shown: clocks tell no finer. */
export const SHORTEST_NS = 20;

/** Share of the width that a thing takes that the view zooms to. */
const SHARE = 1 / 3;
/** Free room on both sides of a range, as a share of it. */
const MARGIN = 0.004;

export function length(span: Span): number {
  return span.end - span.start;
}

export function same(a: Span, b: Span): boolean {
  return a.start === b.start && a.end === b.end;
}

/** The same length where possible, moved to lie within `whole`. */
export function within(view: Span, whole: Span): Span {
  const ns = Math.min(Math.max(length(view), SHORTEST_NS), Math.max(length(whole), SHORTEST_NS));
  const start = Math.max(whole.start, Math.min(view.start, whole.end - ns));
  return { start, end: start + ns };
}

/** A range with a little free room on both sides. */
export function roomy(start: number, end: number): Span {
  const margin = Math.max((end - start) * MARGIN, 10);
  return { start: start - margin, end: end + margin };
}

/** What is shown at first: the steps; what was recorded around them, or outlasts them, is a key away. */
export function opening(window: readonly [number, number], span: readonly [number, number]): Span {
  const [start, end] = [Math.max(window[0], span[0]), Math.min(window[1], span[1])];
  return end > start ? roomy(start, end) : roomy(span[0], span[1]);
}

/** `factor` times as long; the moment `at` stays at its place on the screen. */
export function zoomed(view: Span, whole: Span, at: number, factor: number): Span {
  const ns = Math.min(Math.max(length(view) * factor, SHORTEST_NS), Math.max(length(whole), SHORTEST_NS));
  const part = (at - view.start) / length(view);
  const start = at - part * ns;
  return within({ start, end: start + ns }, whole);
}

export function panned(view: Span, whole: Span, ns: number): Span {
  return within({ start: view.start + ns, end: view.end + ns }, whole);
}

/** A view in whose middle the given time lies, over about a third of the width. */
export function around(start: number, ns: number, whole: Span): Span {
  const half = Math.max(ns, SHORTEST_NS) / SHARE / 2;
  const middle = start + ns / 2;
  return within({ start: middle - half, end: middle + half }, whole);
}

/** Between two views, as zooming goes: `part` runs from 0 to 1. Lengths change by ratio, not by difference. */
export function between(from: Span, to: Span, part: number): Span {
  if (part >= 1) return to;
  const [a, b] = [length(from), length(to)];
  const ns = a * (b / a) ** part;
  // How far the change of length has come: the middle follows it, so that what is zoomed to never leaves the screen.
  const moved = Math.abs(b - a) < 1e-9 * a ? part : (ns - a) / (b - a);
  const middle = (from.start + from.end) / 2 + moved * ((to.start + to.end - from.start - from.end) / 2);
  return { start: middle - ns / 2, end: middle + ns / 2 };
}

export function xOf(view: Span, width: number, t: number): number {
  return ((t - view.start) / length(view)) * width;
}

export function timeAt(view: Span, width: number, x: number): number {
  return view.start + (x / width) * length(view);
}

/** Moments to mark on an axis: multiples of 1, 2 or 5 × 10ⁿ ns that stand at least `apart` pixels apart. */
export function ticks(view: Span, width: number, apart: number): { step: number; at: number[] } {
  const least = (length(view) * apart) / Math.max(width, 1);
  const power = 10 ** Math.floor(Math.log10(least));
  const step = Math.max(1, ([1, 2, 5].find((m) => m * power >= least * (1 - 1e-9)) ?? 10) * power);
  const at: number[] = [];
  for (let k = Math.ceil(view.start / step); k * step <= view.end; k++) at.push(k * step);
  return { step, at };
}
