// What the timeline shows right now, and the ways to change it. What draws or describes it listens.

import { laneIndex, NOTHING, type ReportData } from "../data.ts";
import { lazyLaunches } from "./facts.ts";
import type { Launches } from "./links.ts";
import { matching } from "./matches.ts";
import { arrange, type Arrangement, type Folds } from "./rows.ts";
import { sumsOf, type LaneSums } from "./sums.ts";
import { around, between, opening, roomy, same, within, type Span } from "./view.ts";

export type Change = "view" | "rows" | "selection" | "search" | "measure" | "hover" | "size" | "mode";

const GLIDE_MS = 160;
const FLASH_MS = 1400;

export class Stage {
  readonly sums: LaneSums[];
  readonly whole: Span;
  readonly folds: Folds;
  readonly launches: () => Launches;
  view: Span;
  rows: Arrangement;
  /** Of the canvas, CSS pixels. */
  width = 1;
  height = 1;
  scroll = 0;
  selected = NOTHING;
  hovered = NOTHING;
  found: Uint32Array | null = null;
  sought = "";
  measured: Span | null = null;
  /** Whether the next drag measures. */
  measuring = false;
  /** When the flash of the selected event ends, by the page's clock. */
  flashUntil = 0;
  /** Sets the scroll of the tracks; the page's scroller answers by calling `scroll`. */
  scrollTo: (y: number) => void = () => {};
  private readonly listeners: ((change: Change) => void)[] = [];
  private glide: { from: Span; to: Span; began: number } | null = null;

  constructor(readonly data: ReportData) {
    this.sums = data.lanes.map((lane) => sumsOf(data.events, lane));
    this.whole = roomy(data.span[0], data.span[1]);
    this.view = within(opening(data.window, data.span), this.whole);
    this.folds = { tracks: data.tracks.map((track) => !track.open), groups: data.groups.map(() => false) };
    this.rows = arrange(data, this.folds);
    this.launches = lazyLaunches(data);
  }

  onChange(listener: (change: Change) => void): void {
    this.listeners.push(listener);
  }

  tell(change: Change): void {
    for (const listener of this.listeners) listener(change);
  }

  setView(view: Span): void {
    this.glide = null;
    const next = within(view, this.whole);
    if (same(next, this.view)) return;
    this.view = next;
    this.tell("view");
  }

  /** As `setView`, but one sees where it goes; readers who want no motion get there at once. */
  glideTo(view: Span): void {
    const to = within(view, this.whole);
    if (calm()) this.setView(to);
    else {
      this.glide = { from: this.view, to, began: performance.now() };
      this.tell("view");
    }
  }

  /** Where the view will be once it has come to rest. */
  get goal(): Span {
    return this.glide?.to ?? this.view;
  }

  /** Moves on what moves; true while there is more to come. */
  advance(now: number): boolean {
    if (this.glide !== null) {
      const part = Math.min(1, Math.max(0, now - this.glide.began) / GLIDE_MS);
      this.view = between(this.glide.from, this.glide.to, 1 - (1 - part) ** 3);
      if (part >= 1) this.glide = null;
      this.tell("view");
    }
    return this.glide !== null || now < this.flashUntil;
  }

  select(event: number): void {
    if (event === this.selected) return;
    this.selected = event;
    this.flashUntil = 0;
    this.tell("selection");
  }

  hover(event: number): void {
    if (event === this.hovered) return;
    this.hovered = event;
    this.tell("hover");
  }

  fold(group: number, track: number | null, folded: boolean): void {
    if (track === null) this.folds.groups[group] = folded;
    else this.folds.tracks[track] = folded;
    this.rows = arrange(this.data, this.folds);
    this.tell("rows");
  }

  search(text: string): void {
    this.sought = text;
    this.found = matching(this.data, text);
    this.tell("search");
  }

  setMeasured(span: Span | null): void {
    this.measured = span;
    this.tell("measure");
  }

  setMeasuring(on: boolean): void {
    this.measuring = on;
    this.tell("mode");
  }

  flash(): void {
    this.flashUntil = performance.now() + FLASH_MS;
    this.tell("selection");
  }

  /** Selects an event, brings its track into view, and the time around it where it is not seen. */
  show(event: number, zoom: boolean): void {
    this.select(event);
    this.uncover(event);
    const [start, ns] = [this.data.events.start[event], this.data.events.ns[event]];
    const { goal } = this;
    const length = goal.end - goal.start;
    if (zoom) this.glideTo(around(start, ns, this.whole));
    else if (start + ns < goal.start + 0.02 * length || start > goal.end - 0.02 * length) {
      this.glideTo({ start: start + ns / 2 - length / 2, end: start + ns / 2 + length / 2 });
    }
  }

  /** Unfolds the track of an event and scrolls to it. */
  uncover(event: number): void {
    const lane = laneIndex(this.data.lanes, event);
    const { track } = this.data.lanes[lane];
    const { group } = this.data.tracks[track];
    if (this.folds.groups[group]) this.fold(group, null, false);
    if (this.folds.tracks[track]) this.fold(group, track, false);
    const place = this.rows.lanes[this.rows.placeOf[lane]];
    if (place.y < this.scroll + 4 || place.y + place.height > this.scroll + this.height - 4) {
      this.scrollTo(Math.max(0, place.y - this.height * 0.4));
    }
  }
}

export function calm(): boolean {
  return window.matchMedia("(prefers-reduced-motion: reduce)").matches;
}
