import assert from "node:assert/strict";
import { test } from "node:test";
import { grip, moved } from "../src/timeline/minimap.ts";
import { heightOf } from "../src/timeline/sizing.ts";
import {
  around,
  between,
  length,
  opening,
  panned,
  SHORTEST_NS,
  ticks,
  timeAt,
  within,
  xOf,
  zoomed,
} from "../src/timeline/view.ts";
import { random } from "./random.ts";

const WHOLE = { start: -100, end: 1_000_000 };

function near(got: number, wanted: number, off = 1e-6): void {
  assert.ok(Math.abs(got - wanted) <= off, `${got}, not ${wanted}`);
}

test("zooming keeps the moment under the pointer in its place", () => {
  const chance = random(1);
  for (let i = 0; i < 200; i++) {
    const start = 300_000 + 200_000 * chance();
    const view = { start, end: start + 1000 + 10_000 * chance() };
    const at = view.start + chance() * length(view);
    const next = zoomed(view, WHOLE, at, 0.3 + 2 * chance());
    near(xOf(next, 1000, at), xOf(view, 1000, at), 1e-4);
  }
});

test("no view leaves the whole, and none is shorter than clocks tell", () => {
  assert.deepEqual(zoomed({ start: 0, end: 500_000 }, WHOLE, 10, 100), WHOLE);
  near(length(zoomed({ start: 500, end: 600 }, WHOLE, 550, 1e-9)), SHORTEST_NS);
  assert.deepEqual(panned({ start: 0, end: 1000 }, WHOLE, -5000), { start: -100, end: 900 });
  assert.deepEqual(panned({ start: 0, end: 1000 }, WHOLE, 1e9), { start: 999_000, end: 1_000_000 });
  assert.deepEqual(within({ start: -1e9, end: 1e9 }, WHOLE), WHOLE);
});

test("what is zoomed to fills a third of the width, in the middle", () => {
  const view = around(400_000, 3000, WHOLE);
  near(xOf(view, 900, 400_000), 300);
  near(xOf(view, 900, 403_000), 600);
  near(length(around(400_000, 0, WHOLE)), 3 * SHORTEST_NS);
  assert.equal(around(-90, 30_000, WHOLE).start, -100);
});

test("pixels and moments are each other's inverse", () => {
  const view = { start: 12.5, end: 1012.5 };
  for (const x of [0, 1, 333.3, 800]) near(xOf(view, 800, timeAt(view, 800, x)), x);
});

test("a glide begins and ends where it should, and what it goes to stays in view", () => {
  const [from, to] = [
    { start: 0, end: 1e6 },
    { start: 900_000, end: 900_100 },
  ];
  near(between(from, to, 0).start, 0, 1e-3);
  assert.equal(between(from, to, 1), to);
  for (let part = 0; part < 1; part += 0.01) {
    const view = between(from, to, part);
    assert.ok(view.start <= 900_000 && view.end >= 900_100, `at ${part}`);
  }
  const half = between({ start: 0, end: 10 }, { start: 100, end: 110 }, 0.5);
  near(half.start, 50);
  near(half.end, 60);
});

test("ticks are round, as close as they may be and no closer, and all that fit are there", () => {
  const chance = random(5);
  for (let i = 0; i < 300; i++) {
    const start = (chance() - 0.2) * 10 ** (10 * chance());
    const view = { start, end: start + 10 ** (2 + 9 * chance()) };
    const width = 300 + 2000 * chance();
    const { step, at } = ticks(view, width, 110);
    assert.match(String(step), /^[125]0*$/);
    const apart = (step / length(view)) * width;
    assert.ok(apart >= 110 - 1e-6 && (apart <= 275 + 1e-6 || step === 1), `${apart} px apart`);
    for (const t of at) assert.ok(t >= view.start && t <= view.end && Math.abs(t % step) < 1e-6);
    assert.ok(Math.abs(at.length - length(view) / step) <= 1);
  }
});

test("the brush is taken at its edges, or in its middle however narrow", () => {
  assert.deepEqual(
    [90, 96, 100, 150, 200, 206, 215].map((x) => grip(x, 100, 200)),
    ["outside", "left", "left", "inside", "right", "right", "outside"],
  );
  assert.equal(grip(102, 100, 104), "inside");
});

test("dragging an edge of the brush leaves the other, and they do not cross", () => {
  const view = { start: 100, end: 200 };
  assert.deepEqual(moved(view, "left", 30), { start: 130, end: 200 });
  assert.deepEqual(moved(view, "left", 300), { start: 199, end: 200 });
  assert.deepEqual(moved(view, "right", -300), { start: 100, end: 101 });
  assert.deepEqual(moved(view, "inside", -30), { start: 70, end: 170 });
});

test("the height is a part of the window, what was dragged, and never more than the tracks", () => {
  assert.equal(heightOf(null, 5000, 900), 468);
  assert.equal(heightOf(null, 5000, 300), 300);
  assert.equal(heightOf(null, 5000, 4000), 500, "with its head 600 px at most");
  assert.equal(heightOf(null, 240, 1000), 240);
  assert.equal(heightOf(1500, 5000, 1000), 1500);
  assert.equal(heightOf(10, 5000, 1000), 120);
});

test("at first the steps are shown, whatever was recorded around them", () => {
  const wide = opening([0, 1000], [-50, 90_000]);
  near(wide.start, -10);
  near(wide.end, 1010);
  const part = opening([0, 1000], [400, 600]);
  near(part.start, 390);
  near(part.end, 610);
  const apart = opening([0, 1000], [2000, 3000]);
  near(apart.start, 1990);
});
