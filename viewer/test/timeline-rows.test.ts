import assert from "node:assert/strict";
import { test } from "node:test";
import { cut } from "../src/timeline/labels.ts";
import { amount, columnsOf, valueAt } from "../src/timeline/counters.ts";
import { arrange, GROUP_HEIGHT, LANE_HEIGHT, laneAt, rowAt } from "../src/timeline/rows.ts";
import { small } from "./small.ts";

const DATA = small();
const unfolded = { tracks: DATA.tracks.map(() => false), groups: DATA.groups.map(() => false) };

test("rows stand below each other without a gap, and lanes inside of their row", () => {
  for (const folded of [0, 1, 7, 31]) {
    const folds = { tracks: DATA.tracks.map((_, t) => (folded >> t) % 2 === 1), groups: unfolded.groups };
    const { rows, lanes, height } = arrange(DATA, folds);
    let y = 0;
    for (const row of rows) {
      assert.equal(row.y, y);
      y += row.height;
    }
    assert.equal(height, y);
    lanes.reduce((before, lane) => {
      assert.ok(lane.y >= before);
      const row = rowAt(rows, lane.y);
      assert.equal(row?.track, DATA.lanes[lane.lane].track);
      assert.ok(lane.y + lane.height <= (row?.y ?? 0) + (row?.height ?? 0));
      return lane.y + lane.height;
    }, 0);
  }
});

test("a folded track is one thin lane: the outermost ops, the fullest of frames", () => {
  const { lanes, placeOf } = arrange(DATA, { tracks: [false, false, false, true, true], groups: unfolded.groups });
  const drawn = lanes.map(({ lane }) => lane);
  assert.deepEqual(drawn, [0, 1, 2, 3, 7]);
  assert.ok(lanes[3].height < LANE_HEIGHT / 2);
  // Events of lanes that are not drawn stand where their track is.
  assert.deepEqual([...placeOf], [0, 1, 2, 3, 3, 3, 4, 4]);
});

test("a folded group leaves its heading", () => {
  const { rows, placeOf } = arrange(DATA, { tracks: unfolded.tracks, groups: [false, false, true] });
  const last = rows[rows.length - 1];
  assert.deepEqual([last.group, last.track, last.height, last.open], [2, null, GROUP_HEIGHT, false]);
  assert.deepEqual([...placeOf.slice(3)], [-1, -1, -1, -1, -1]);
});

test("the lane at a height; none between", () => {
  const { lanes } = arrange(DATA, unfolded);
  for (const lane of lanes) assert.equal(laneAt(lanes, lane.y + lane.height / 2), lane);
  assert.equal(laneAt(lanes, 5), undefined);
});

test("words are cut to their room", () => {
  assert.equal(cut("aten::mul", 50, 60), "aten::mul");
  assert.equal(cut("aten::mul", 54, 40), "aten:…");
  assert.equal(cut("aten::mul", 54, 12), "");
});

test("a counter holds its value, and a column of pixels shows all that it was in it", () => {
  const line = {
    track: 0,
    unit: "bytes" as const,
    count: 4,
    time: Float64Array.of(0, 10, 11, 30),
    value: Float64Array.of(5, 9, 1, 2048),
  };
  assert.deepEqual(
    [-1, 0, 10, 29, 99].map((t) => valueAt(line, t)),
    [null, 5, 9, 1, 2048],
  );
  assert.equal(amount(line, 2048), "2 KiB");
  const columns = columnsOf(line, { start: -10, end: 40 }, 5);
  const told = [0, 1, 2, 3, 4].map((x) => [...columns.slice(3 * x, 3 * x + 3)]);
  assert.deepEqual(told, [
    [5, 5, 5],
    [5, 9, 9],
    [1, 9, 1],
    [1, 2048, 2048],
    [2048, 2048, 2048],
  ]);
});
