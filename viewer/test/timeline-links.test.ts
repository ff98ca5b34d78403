import assert from "node:assert/strict";
import { test } from "node:test";
import { laneOf, NOTHING, unpack, type ReportData } from "../src/data.ts";
import { arrowsOf, factsOf, lazyLaunches } from "../src/timeline/facts.ts";
import { awaitedBy, childOf, frameOf, launchesOf, parentOf, stackOf, workOf } from "../src/timeline/links.ts";
import { matching, nextMatch, placeIn, rankOf } from "../src/timeline/matches.ts";
import { measure } from "../src/timeline/measure.ts";
import { stripsOf } from "../src/timeline/overview.ts";
import { sumsOf } from "../src/timeline/sums.ts";
import { eventNamed, tracksNamed } from "../src/timeline/target.ts";
import { pack, type PlainEvent, type PlainReport } from "./pack.ts";
import { below, random } from "./random.ts";
import { paint, small } from "./small.ts";

const DATA = small();
const [STEP_1, WAIT_1, WAIT_2, SGEMM, MUL_1, MUL_2, LINEAR, MUL, MM, CALL_1, CALL_2, CALL_3, MAIN, FORWARD, LOSS] = [
  0, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
];

test("up, down and around", () => {
  assert.deepEqual(
    [CALL_1, MM, LINEAR].map((e) => parentOf(DATA, e)),
    [MM, LINEAR, NOTHING],
  );
  // A call without an op at the depth above it hangs on nothing there.
  assert.equal(parentOf(DATA, CALL_3), NOTHING);
  assert.deepEqual(
    [LINEAR, MM, CALL_1, SGEMM].map((e) => childOf(DATA, e)),
    [MM, CALL_1, NOTHING, NOTHING],
  );
  assert.deepEqual(stackOf(DATA, CALL_2), [LINEAR, MM]);
  assert.deepEqual(stackOf(DATA, SGEMM), []);
  assert.deepEqual(
    [CALL_1, CALL_3, MAIN].map((e) => frameOf(DATA, e)),
    [FORWARD, LOSS, MAIN],
  );
});

test("GPU work by its launch and by the op around it", () => {
  const launches = launchesOf(DATA);
  const work = (event: number) => {
    const { count, ns, events } = workOf(DATA, launches, event);
    return [count, ns, ...events];
  };
  assert.deepEqual(work(CALL_1), [1, 8, SGEMM]);
  assert.deepEqual(work(MM), [2, 23, SGEMM, MUL_1]);
  assert.deepEqual(work(LINEAR), [2, 23, SGEMM, MUL_1]);
  assert.deepEqual(work(MUL), [1, 12, MUL_2]);
  assert.deepEqual(work(FORWARD), [2, 23, SGEMM, MUL_1]);
  assert.deepEqual(work(MAIN), [3, 35, SGEMM, MUL_1, MUL_2]);
});

/** Calls nest at random depths, under frames; every call launches up to three pieces of work, on two streams. */
function randomReport(seed: number): ReportData {
  const chance = random(seed);
  const lanes: PlainEvent[][] = [[], [], []];
  const streams: { event: PlainEvent; call: [number, number] }[][] = [[], []];
  let busy = [0, 0];
  for (let t = 0; t < 5000; t += 20 + below(chance, 30)) {
    let [from, to] = [t, t + 20];
    for (let depth = 0; depth < 1 + below(chance, 3); depth++) {
      lanes[depth].push({ start: from, ns: to - from, name: `op ${depth}`, paint: 0 });
      if (chance() < 0.5) {
        for (let k = below(chance, 4); k > 0; k--) {
          const s = below(chance, 2);
          const start = Math.max(busy[s], from + below(chance, 200));
          const event = { start, ns: below(chance, 9), name: "k", paint: 0 };
          busy[s] = start + event.ns;
          streams[s].push({ event, call: [depth, lanes[depth].length - 1] });
        }
      }
      [from, to] = [from + below(chance, 3), to - below(chance, 3)];
    }
  }
  const frames = Array.from({ length: 25 }, (_, i) => ({ start: 200 * i, ns: 180, name: "frame", paint: 0 }));
  const first = lanes.map((_, depth) => lanes.slice(0, depth).reduce((sum, lane) => sum + lane.length, 0));
  const report: PlainReport = {
    span: [0, 1e6],
    paints: [paint("a")],
    groups: [
      { name: "host", kind: "host" },
      { name: "gpu", kind: "gpu" },
    ],
    tracks: [
      { group: 0, name: "ops", kind: "ops", lanes },
      { group: 0, name: "frames", kind: "frames", lanes: [frames] },
      ...streams.map((stream, s) => ({
        group: 1,
        name: `stream ${s}`,
        kind: "stream" as const,
        lanes: [stream.map(({ event, call }) => ({ ...event, link: first[call[0]] + call[1] }))],
      })),
    ],
  };
  return unpack(pack(report));
}

test("work launched from an op is that of all calls at its depth or deeper within its time", () => {
  for (let seed = 1; seed < 6; seed++) {
    const data = randomReport(seed);
    const { start, ns, link } = data.events;
    const launches = launchesOf(data);
    const hosts = data.lanes[3].end;
    const depthIn = (op: number) =>
      data.tracks[laneOf(data.lanes, op).track].kind === "ops" ? laneOf(data.lanes, op).depth : 0;
    for (let op = 0; op < hosts; op++) {
      const wanted: number[] = [];
      for (let work = hosts; work < start.length; work++) {
        const call = link[work] - 1;
        const deeper = laneOf(data.lanes, call).depth >= depthIn(op);
        if (deeper && start[call] >= start[op] && start[call] < start[op] + Math.max(1, ns[op])) wanted.push(work);
      }
      wanted.sort((a, b) => start[link[a] - 1] - start[link[b] - 1] || a - b);
      assert.deepEqual([...workOf(data, launches, op).events], wanted);
    }
  }
});

test("a wait's work: the one it is linked to, or the next on its device", () => {
  assert.equal(awaitedBy(DATA, WAIT_1), SGEMM);
  assert.equal(awaitedBy(DATA, WAIT_2), MUL_1);
});

test("facts of work on the GPU, of an op, of a wait", () => {
  const launches = lazyLaunches(DATA);
  const kernel = factsOf(DATA, launches, SGEMM);
  assert.deepEqual(
    [kernel.name, kernel.full, kernel.detail, kernel.place, kernel.label, kernel.launch, kernel.queuedNs, kernel.frame],
    [
      "sgemm",
      "void cutlass::Kernel<sgemm_128x64>(Params)",
      "gemm · forward",
      "GPU 0 · NVIDIA H200 · stream 7",
      "gemm",
      CALL_1,
      6,
      FORWARD,
    ],
  );
  assert.deepEqual(kernel.step, { index: 0, ns: 50 });
  assert.deepEqual(kernel.stack, [LINEAR, MM]);
  assert.deepEqual([...arrowsOf(kernel)], [SGEMM]);
  const op = factsOf(DATA, launches, MM);
  assert.deepEqual([op.work?.ns, op.launch, op.queuedNs, op.full], [23, NOTHING, null, null]);
  assert.deepEqual([...arrowsOf(op)], [SGEMM, MUL_1]);
  const wait = factsOf(DATA, launches, WAIT_2);
  assert.deepEqual([wait.awaited, wait.work, [...arrowsOf(wait)]], [MUL_1, null, []]);
  assert.equal(factsOf(DATA, launches, STEP_1).work, null);
});

test("a search finds names and whole names, whatever their case, and `…` is anything", () => {
  const found = (text: string) => [...(matching(DATA, text) ?? [])];
  assert.deepEqual(found("LAUNCHKERNEL"), [CALL_1, CALL_2, CALL_3]);
  assert.deepEqual(found("cutlass::"), [SGEMM]);
  assert.deepEqual(found("void cut…(params)"), [SGEMM]);
  assert.deepEqual(found("(params)…void"), []);
  assert.deepEqual(found("no such"), []);
  assert.equal(matching(DATA, "  "), null);
});

test("matches follow each other in time and around the end", () => {
  const { start } = DATA.events;
  const found = matching(DATA, "mul") as Uint32Array; // two kernels at 30 and 58, an op at 32
  const walk = (by: 1 | -1) => {
    const seen: number[] = [];
    let at = NOTHING;
    for (let i = 0; i < 4; i++) seen.push((at = nextMatch(start, found, at, by)));
    return seen;
  };
  assert.deepEqual(walk(1), [MUL_1, MUL, MUL_2, MUL_1]);
  assert.deepEqual(walk(-1), [MUL_2, MUL, MUL_1, MUL_2]);
  assert.equal(nextMatch(start, found, LINEAR, 1), MUL_1);
  assert.deepEqual(
    [MUL_1, MUL, MUL_2, LINEAR].map((event) => rankOf(start, found, event)),
    [1, 2, 3, 0],
  );
  assert.deepEqual(
    [0, 6, 7, 8, 9, 99].map((event) => placeIn(found, event)),
    [0, 0, 1, 2, 2, 3],
  );
  assert.equal(nextMatch(start, new Uint32Array(0), NOTHING, 1), NOTHING);
});

test("links of the page: a track by its name, its group, a part of it; none: all that was recorded", () => {
  const names = (text: string) => tracksNamed(DATA, text).map((t) => DATA.tracks[t].name);
  assert.deepEqual(names("stream 7"), ["stream 7"]);
  assert.deepEqual(names("GPU 0"), ["waits for", "stream 7"]);
  assert.deepEqual(names("thread 5 (python)"), ["ops and calls", "Python"]);
  assert.deepEqual(names("steps"), ["steps"]);
  assert.deepEqual(names(""), ["waits for", "stream 7", "ops and calls", "Python"]);
  assert.deepEqual(names("no such"), names(""));
});

test("links of the page: the event of that name that starts the range, or fills most of it", () => {
  const all = tracksNamed(DATA, "");
  const named = (from: number, ns: number, what: string) => eventNamed(DATA, from, ns, all, what);
  assert.equal(named(58, 12, "mul"), MUL_2);
  assert.equal(named(0, 100, "mul"), MUL);
  assert.equal(named(30, 70, "mul"), MUL_1);
  assert.equal(named(6, 2, "launch"), CALL_1);
  assert.equal(named(10, 5, "gemm · forward"), SGEMM);
  assert.equal(named(58, 12, "not there"), MUL_2);
  assert.equal(named(95, 5, "not there"), NOTHING);
});

test("a measured range: busy, what runs, and why nothing does", () => {
  const sums = DATA.lanes.map((lane) => sumsOf(DATA.events, lane));
  const [gpu] = measure(DATA, sums, 10, 40);
  assert.equal(gpu.busyNs, 18);
  assert.deepEqual(gpu.work, [
    { paint: 1, ns: 10 },
    { paint: 0, ns: 8 },
  ]);
  assert.deepEqual(gpu.waits, [{ paint: 2, ns: 12 }]);
});

test("the minimap: each column is what the GPU did in it", () => {
  const sums = DATA.lanes.map((lane) => sumsOf(DATA.events, lane));
  const [strip] = stripsOf(DATA, sums, { start: 0, end: 70 }, 7);
  assert.deepEqual(
    [...strip.busy].map((b) => Math.round(b * 10)),
    [0, 8, 0, 10, 5, 2, 10],
  );
  assert.deepEqual([...strip.work], [NOTHING, 0, NOTHING, 1, 1, 1, 1]);
  assert.deepEqual([...strip.wait], [2, 2, 2, NOTHING, 2, 2, NOTHING]);
  // Of the first column three tenths are outside of the window: nothing is known of them, and nothing ran.
  assert.equal(stripsOf(DATA, sums, { start: -3, end: 67 }, 7)[0].busy[0], 0);
});
