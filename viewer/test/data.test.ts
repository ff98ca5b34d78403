import assert from "node:assert/strict";
import { test } from "node:test";
import { after, eventAt, laneOf, NOTHING, unpack } from "../src/data.ts";
import { pack, type PlainEvent, type PlainReport } from "./pack.ts";
import { below, random } from "./random.ts";
import { paint, SMALL, small } from "./small.ts";

/** Events as they went in. */
function plain(report: PlainReport): PlainEvent[] {
  return report.tracks.flatMap((track) => track.lanes.flat());
}

function assertSame(report: PlainReport): void {
  const data = unpack(pack(report));
  plain(report).forEach((event, i) => {
    const { start, ns, name, detail, link } = data.events;
    const got = {
      start: start[i],
      ns: ns[i],
      name: data.strings[name[i]],
      paint: data.events.paint[i],
      ...(detail[i] > 0 && { detail: data.strings[detail[i] - 1] }),
      ...(link[i] > 0 && { link: link[i] - 1 }),
    };
    assert.deepEqual(got, { ...event });
  });
  assert.equal(data.events.start.length, plain(report).length);
}

test("what is packed comes back", () => assertSame(SMALL));

test("random events come back exactly, up to hours in ns", () => {
  const chance = random(3);
  const lanes = Array.from({ length: 5 }, (_, lane) => {
    let t = -1000;
    return Array.from({ length: lane === 3 ? 0 : below(chance, 400) }, (): PlainEvent => {
      t += below(chance, 10 ** (1 + below(chance, 11)));
      const ns = below(chance, 2 ** below(chance, 45));
      const event = { start: t, ns, name: `kernel ${below(chance, 300)} <é…\u202e>`, paint: below(chance, 3) };
      t += ns;
      return event;
    });
  });
  assertSame({
    span: [-1000, 2 ** 47],
    paints: [paint("a"), paint("b"), paint("c")],
    groups: [{ name: "g", kind: "gpu" }],
    tracks: [
      { group: 0, name: "s", kind: "stream", lanes: lanes.slice(0, 2) },
      { group: 0, name: "t", kind: "stream", lanes: lanes.slice(2) },
    ],
  });
});

test("counters and trees come back; totals sum what is below", () => {
  const data = unpack(
    pack({
      ...SMALL,
      counters: [{ track: 2, unit: "bytes", time: [-5, 0, 70], value: [0, 5_000_000_000, 3] }],
      trees: [
        {
          id: "gpu",
          nodes: [
            { parent: -1, name: "all", paint: 0, own: 1, count: 0 },
            { parent: 0, name: "a", paint: 1, own: 10, count: 2 },
            { parent: 1, name: "b", paint: 2, own: 100, count: 7 },
            { parent: 0, name: "c", paint: 0, own: 1000, count: 1 },
          ],
        },
      ],
    }),
  );
  assert.deepEqual([...data.counters[0].time], [-5, 0, 70]);
  assert.deepEqual([...data.counters[0].value], [0, 5_000_000_000, 3]);
  assert.deepEqual([...data.trees[0].total], [1111, 110, 100, 1000]);
  assert.deepEqual([...data.trees[0].parent], [-1, 0, 1, 0]);
});

test("lanes are ranges of events, one after the other", () => {
  const { lanes, tracks } = small();
  assert.deepEqual(
    lanes.map(({ track, depth, first, end }) => [tracks[track].name, depth, first, end]),
    [
      ["steps", 0, 0, 2],
      ["waits for", 0, 2, 5],
      ["stream 7", 0, 5, 8],
      ["ops and calls", 0, 8, 10],
      ["ops and calls", 1, 10, 11],
      ["ops and calls", 2, 11, 14],
      ["Python", 0, 14, 15],
      ["Python", 1, 15, 17],
    ],
  );
  for (const lane of lanes) for (let i = lane.first; i < lane.end; i++) assert.equal(laneOf(lanes, i), lane);
});

test("the event at a moment", () => {
  const data = small();
  const stream = data.lanes[2];
  const at = (t: number) => eventAt(data.events, stream, t);
  assert.deepEqual([11, 12, 19, 20, 29, 30, 44, 45, 69, 70].map(at), [
    NOTHING,
    5,
    5,
    NOTHING,
    NOTHING,
    6,
    6,
    NOTHING,
    7,
    NOTHING,
  ]);
});

test("first value above t", () => {
  const values = Float64Array.of(1, 3, 3, 8);
  assert.deepEqual(
    [0, 1, 2, 3, 8].map((t) => after(values, t, 0, 4)),
    [0, 1, 1, 3, 4],
  );
});

test("damaged bytes are said to be damaged", () => {
  const bytes = pack(SMALL);
  for (const size of [0, 3, 40, bytes.length - 1]) assert.throws(() => unpack(bytes.slice(0, size)), /cut short/);
});
