// The level of detail against a slow reading of its rules: every event looked at, every column summed by hand.

import assert from "node:assert/strict";
import { test } from "node:test";
import { NOTHING, type Events, type Lane } from "../src/data.ts";
import { layout, LEVELS, nearest, room, type Rects } from "../src/timeline/layout.ts";
import { addEvents, addTime, firstFrom, sumsOf } from "../src/timeline/sums.ts";
import { length, type Span } from "../src/timeline/view.ts";
import { below, random, type Random } from "./random.ts";

interface RandomLane {
  events: Events;
  lane: Lane;
  end: number;
}

/** A lane in the midst of other events; lengths from 0 to `longest`, often without a gap between them. */
function randomLane(chance: Random, count: number, longest: number, paints: number): RandomLane {
  const around = 5;
  const n = count + 2 * around;
  const events: Events = {
    start: new Float64Array(n).fill(-1e9),
    ns: new Float64Array(n).fill(3e9),
    name: new Uint32Array(n),
    paint: new Uint8Array(n).fill(250),
    detail: new Uint32Array(n),
    link: new Uint32Array(n),
  };
  let t = below(chance, 50);
  for (let i = around; i < around + count; i++) {
    events.start[i] = t;
    events.ns[i] = chance() < 0.1 ? below(chance, longest * 30) : chance() < 0.1 ? 0 : below(chance, longest);
    events.paint[i] = 7 * below(chance, paints);
    t += events.ns[i] + (chance() < 0.4 ? 0 : below(chance, longest));
  }
  return { events, lane: { track: 0, depth: 0, first: around, end: around + count }, end: t };
}

interface Rect {
  left: number;
  right: number;
  paint: number;
  level: number;
  event: number;
}

function listed(rects: Rects): Rect[] {
  return Array.from({ length: rects.count }, (_, k) => ({
    left: rects.left[k],
    right: rects.right[k],
    paint: rects.paint[k],
    level: rects.level[k],
    event: rects.event[k],
  }));
}

/** By column of pixels: ns of each paint of the events shorter than a pixel that start there. */
function columnsOf({ events, lane }: RandomLane, view: Span, width: number): Map<number, Map<number, number>> {
  const pixel = length(view) / width;
  const columns = new Map<number, Map<number, number>>();
  for (let i = lane.first; i < lane.end; i++) {
    const ends = events.start[i] + Math.max(events.ns[i], 1);
    if (events.ns[i] >= pixel || ends <= view.start || events.start[i] >= view.end) continue;
    const column = Math.floor((events.start[i] - view.start) / pixel);
    const sums = columns.get(column) ?? new Map<number, number>();
    sums.set(events.paint[i], (sums.get(events.paint[i]) ?? 0) + events.ns[i]);
    columns.set(column, sums);
  }
  return columns;
}

const VIEWS: [number, number][] = [
  [0, 1],
  [-0.3, 1.4],
  [0.1, 0.4],
  [0.5, 0.51],
  [0.995, 1.2],
];

test("short events are one rectangle a column: the paint that takes most, and as full as they are", () => {
  for (let seed = 1; seed <= 40; seed++) {
    const chance = random(seed);
    const made = randomLane(chance, 1 + below(chance, 3000), 1 + below(chance, 100), 1 + below(chance, 9));
    const sums = sumsOf(made.events, made.lane);
    for (const [from, to] of VIEWS) {
      // A power of two of ns a pixel: columns begin at exact moments, whoever computes them.
      const width = 64;
      const pixel = 2 ** Math.max(0, Math.ceil(Math.log2(((to - from) * made.end) / width)));
      const start = Math.floor(from * made.end);
      const view = { start, end: start + width * pixel };
      const columns = columnsOf(made, view, width);
      const together = listed(layout(made.events, sums, view, width, room(width))).filter((r) => r.event === NOTHING);
      const seen = new Set<number>();
      for (const rect of together) {
        for (let x = rect.left; x < rect.right; x++) {
          const told = columns.get(x);
          assert.ok(told !== undefined, `seed ${seed}: nothing starts in column ${x}`);
          assert.ok(!seen.has(x), `seed ${seed}: column ${x} twice`);
          seen.add(x);
          const most = Math.max(...told.values());
          assert.equal(told.get(rect.paint), most, `seed ${seed}: paint of column ${x}`);
          const full = [...told.values()].reduce((a, b) => a + b, 0) / pixel;
          assert.equal(rect.level, Math.min(LEVELS - 1, Math.floor(full * LEVELS)), `seed ${seed}: column ${x}`);
        }
      }
      assert.equal(seen.size, columns.size, `seed ${seed}: columns left out`);
    }
  }
});

test("events a pixel wide are drawn exactly, each once", () => {
  for (let seed = 50; seed <= 80; seed++) {
    const chance = random(seed);
    const made = randomLane(chance, 1 + below(chance, 800), 1 + below(chance, 400), 3);
    const { events, lane } = made;
    const sums = sumsOf(events, lane);
    for (const [from, to] of VIEWS) {
      const view = { start: from * made.end, end: to * made.end + 1 };
      const width = 200 + below(chance, 300);
      const scale = width / length(view);
      const wanted: number[] = [];
      for (let i = lane.first; i < lane.end; i++) {
        const inView = events.start[i] + Math.max(events.ns[i], 1) > view.start && events.start[i] < view.end;
        if (inView && events.ns[i] >= length(view) / width) wanted.push(i);
      }
      const exact = listed(layout(events, sums, view, width, room(width))).filter((rect) => rect.event !== NOTHING);
      assert.deepEqual(
        exact.map((rect) => rect.event),
        wanted,
      );
      for (const rect of exact) {
        assert.ok(Math.abs(rect.left - (events.start[rect.event] - view.start) * scale) < 1e-6);
        assert.ok(Math.abs(rect.right - rect.left - events.ns[rect.event] * scale) < 1e-6);
        assert.deepEqual([rect.paint, rect.level], [events.paint[rect.event], LEVELS - 1]);
      }
    }
  }
});

test("a lonely event without length is drawn", () => {
  const events = randomLane(random(1), 1, 1, 1);
  events.events.ns[events.lane.first] = 0;
  const sums = sumsOf(events.events, events.lane);
  const start = events.events.start[events.lane.first];
  const rects = layout(events.events, sums, { start: start - 1e6, end: start + 1e6 }, 100, room(100));
  assert.deepEqual(listed(rects), [{ left: 50, right: 51, paint: 0, level: 0, event: NOTHING }]);
});

test("an empty lane is nothing", () => {
  const { events } = randomLane(random(1), 3, 10, 1);
  const sums = sumsOf(events, { track: 0, depth: 0, first: 5, end: 5 });
  assert.equal(layout(events, sums, { start: 0, end: 1 }, 100, room(100)).count, 0);
});

test("there is room for whatever is laid out", () => {
  // Alternately an event just below and one just above a pixel: the most rectangles that there can be.
  const width = 32;
  const n = 64;
  const events: Events = {
    start: Float64Array.from({ length: n }, (_, i) => Math.floor(i / 2) * 21 + (i % 2) * 9),
    ns: Float64Array.from({ length: n }, (_, i) => (i % 2 ? 12 : 9)),
    name: new Uint32Array(n),
    paint: Uint8Array.from({ length: n }, (_, i) => i % 7),
    detail: new Uint32Array(n),
    link: new Uint32Array(n),
  };
  const rects = layout(
    events,
    sumsOf(events, { track: 0, depth: 0, first: 0, end: n }),
    { start: 0, end: 320 },
    width,
    room(width),
  );
  assert.ok(rects.count > 20 && rects.count <= rects.left.length);
});

test("sums over any stretch are those of its events", () => {
  const chance = random(9);
  const { events, lane, end } = randomLane(chance, 500, 60, 5);
  const sums = sumsOf(events, lane);
  for (let round = 0; round < 500; round++) {
    const [i, j] = [below(chance, 501), below(chance, 501)].sort((a, b) => a - b).map((k) => k + lane.first);
    const got = new Float64Array(sums.paints.length);
    addEvents(events, sums, i, j, got);
    const [from, to] = [chance() * end, chance() * end].sort((a, b) => a - b);
    const within = new Float64Array(sums.paints.length);
    addTime(events, sums, from, to, within);
    sums.paints.forEach((paint, s) => {
      let [whole, cut] = [0, 0];
      for (let k = lane.first; k < lane.end; k++) {
        if (events.paint[k] !== paint) continue;
        if (k >= i && k < j) whole += events.ns[k];
        cut += Math.max(0, Math.min(to, events.start[k] + events.ns[k]) - Math.max(from, events.start[k]));
      }
      assert.equal(got[s], whole);
      assert.ok(Math.abs(within[s] - cut) < 1e-5, `${from} to ${to}: ${within[s]}, not ${cut}`);
    });
  }
});

test("the first value from t on", () => {
  const values = Float64Array.from({ length: 100 }, (_, i) => Math.floor(i / 3));
  for (let t = -1; t < 36; t++) {
    for (const low of [0, 1, 50, 100]) {
      let slow = low;
      while (slow < 100 && values[slow] < t) slow++;
      assert.equal(firstFrom(values, t, low, 100), slow, `${t} from ${low}`);
    }
  }
});

test("the event that the pointer means", () => {
  const { events, lane, end } = randomLane(random(4), 60, 40, 2);
  for (let t = -20; t < end + 60; t++) {
    const away = (i: number) => Math.max(events.start[i] - t, t - (events.start[i] + events.ns[i]), 0);
    let least = Infinity;
    for (let i = lane.first; i < lane.end; i++) least = Math.min(least, away(i));
    const got = nearest(events, lane, t, 10);
    if (least > 10) assert.equal(got, NOTHING);
    else assert.equal(away(got), least, `at ${t}`);
  }
});
