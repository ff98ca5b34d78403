// Sorting, filtering, grouping and sums of the kernel table, recomputed plainly.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { KernelRows, ReportData } from "../src/data.ts";
import { COLUMNS, reordered, sorted, telling } from "../src/kernels/columns.ts";
import { filtered } from "../src/kernels/filter.ts";
import { GROUPINGS, type Line, linesOf } from "../src/kernels/lines.ts";
import { group, sum } from "../src/kernels/sums.ts";
import { tsv } from "../src/kernels/tsv.ts";

const NONE = { categories: new Set<string>(), phases: new Set<string>() };
const STRINGS = ["", "gemm", "softmax", "copy", "aten::mm", "aten::add", "model.layers.0.q", "model.layers.1.q", "forward", "backward"];

function lines(n = 200): Line[] {
  const rows: KernelRows = {
    name: [], category: [], op: [], module: [], phase: [], paint: [], count: [], ns: [], median_ns: [], max_ns: [],
    bound: [], efficiency: [], flops: [], bytes: [],
  };
  for (let i = 0; i < n; i++) {
    rows.name.push(1 + (i % 3));
    rows.category.push(1 + (i % 3));
    rows.op.push(i % 7 === 0 ? 0 : 4 + (i % 2));
    rows.module.push(6 + (i % 2));
    rows.phase.push(8 + (Math.floor(i / 3) % 2));
    rows.paint.push(i % 3);
    rows.count.push(1 + (i % 5));
    rows.ns.push(1000 + ((i * 7919) % 5003));
    rows.median_ns.push(10 + (i % 50));
    rows.max_ns.push(100 + ((i * 31) % 77));
    rows.bound.push(i % 4 === 0 ? null : i % 2 === 0 ? "memory" : "compute");
    rows.efficiency.push(i % 4 === 0 ? null : ((i * 13) % 100) / 100);
    rows.flops.push(i % 3 === 0 ? null : 1e9 * i);
    rows.bytes.push(i % 5 === 0 ? null : 1e6 * i);
  }
  const data = { strings: STRINGS, full: { 1: "void gemm<float, 128>" }, kernels: rows } as unknown as ReportData;
  return linesOf(data);
}

const ALL = lines();
const WHOLE = { ns: ALL.reduce((ns, line) => ns + line.ns, 0), steps: 4 };

test("lines say what the columns say", () => {
  assert.equal(ALL.length, 200);
  const line = ALL[1];
  assert.equal(line.name, "softmax");
  assert.equal(line.flops_s, 1e9 / (line.ns * 1e-9));
  assert.equal(ALL[0].flops_s, null);
  assert.equal(ALL[0].full, "void gemm<float, 128>");
  assert.deepEqual(linesOf({ kernels: null } as ReportData), []);
});

test("every column sorts, both ways, what is not known last", () => {
  for (const column of COLUMNS) {
    for (const descending of [true, false]) {
      const values = sorted(ALL, { column: column.id, descending }, WHOLE).map((line) => column.value(line, WHOLE) || null);
      const known = values.filter((value) => value !== null);
      assert.ok(values.slice(known.length).every((value) => value === null), column.id);
      for (let i = 1; i < known.length; i++) {
        const rises = known[i - 1] <= known[i];
        assert.ok(known[i - 1] === known[i] || rises !== descending, `${column.id} ${known[i - 1]} ${known[i]}`);
      }
      assert.equal(values.length, 200);
    }
  }
});

test("a zero is known", () => {
  const zero = { ...ALL[1], efficiency: 0 };
  const order = sorted([ALL[0], zero, ALL[2]], { column: "efficiency", descending: false }, WHOLE);
  assert.equal(order[0], zero);
  assert.equal(order[2], ALL[0]);
});

test("a second click turns the order, a first takes the natural one", () => {
  const time = COLUMNS.find(({ id }) => id === "time");
  const name = COLUMNS.find(({ id }) => id === "name");
  assert.ok(time && name);
  assert.deepEqual(reordered({ column: "name", descending: false }, time), { column: "time", descending: true });
  assert.deepEqual(reordered({ column: "time", descending: true }, time), { column: "time", descending: false });
  assert.deepEqual(reordered({ column: "time", descending: true }, name), { column: "name", descending: false });
});

test("a column that tells nothing is left out", () => {
  const ids = (lines: Line[]) => telling(lines, WHOLE).map(({ id }) => id);
  assert.equal(ids(ALL).length, COLUMNS.length);
  const bare = ALL.map((line) => ({ ...line, module: "", bound: null, efficiency: null, flops_s: null }));
  assert.deepEqual(COLUMNS.map(({ id }) => id).filter((id) => !ids(bare).includes(id)), ["module", "bound", "efficiency", "flops"]);
  const one = bare.map((line, i) => ({ ...line, module: i === 0 ? "Linear" : "" }));
  assert.ok(!ids(one).includes("module"), "one line of 200 is not worth a column");
});

test("all words must match, somewhere", () => {
  const found = filtered(ALL, { ...NONE, text: "  GEMM aten::MM  forward" });
  const wanted = ALL.filter((line) => line.name === "gemm" && line.op === "aten::mm" && line.phase === "forward");
  assert.ok(wanted.length > 0);
  assert.deepEqual(found, wanted);
  assert.equal(filtered(ALL, { ...NONE, text: "" }).length, 200);
  assert.equal(filtered(ALL, { ...NONE, text: "float" }).length, 67, "the whole name is looked at too");
  assert.equal(filtered(ALL, { ...NONE, text: "gemmaten" }).length, 0, "no word runs over from one field to the next");
  const chosen = filtered(ALL, { text: "", categories: new Set(["copy", "softmax"]), phases: new Set(["backward"]) });
  assert.deepEqual(chosen, ALL.filter((line) => line.category !== "gemm" && line.phase === "backward"));
});

test("sums are those of the members", () => {
  for (const by of GROUPINGS) {
    const groups = group(ALL, by);
    assert.equal(groups.reduce((ns, line) => ns + line.ns, 0), WHOLE.ns);
    assert.equal(groups.flatMap(({ members }) => members).length, 200);
    assert.equal(new Set(groups.map(({ key }) => key)).size, groups.length);
    for (const one of groups) {
      let [ns, roof, rated, flops, timed, max] = [0, 0, 0, 0, 0, 0];
      for (const line of one.members) {
        ns += line.ns;
        max = Math.max(max, line.max_ns);
        if (line.efficiency !== null) [roof, rated] = [roof + line.efficiency * line.ns, rated + line.ns];
        if (line.flops !== null) [flops, timed] = [flops + line.flops, timed + line.ns];
      }
      assert.equal(one.ns, ns);
      assert.equal(one.max_ns, max);
      assert.ok(Math.abs((one.efficiency ?? -1) - roof / rated) < 1e-12);
      assert.equal(one.median_ns, null);
      if (timed === 0) assert.equal(one.flops_s, null);
      else assert.ok(Math.abs((one.flops_s ?? 0) / (flops / timed) / 1e9 - 1) < 1e-12);
    }
  }
});

test("a sum of nothing known tells nothing", () => {
  const none = sum("", "x", [{ ...ALL[0], efficiency: null, flops: null, bytes: null }]);
  assert.deepEqual([none.efficiency, none.flops_s, none.bytes_s], [null, null, null]);
  const empty = sum("", "x", []);
  assert.deepEqual([empty.ns, empty.max_ns, empty.efficiency, empty.bound, empty.category], [0, 0, null, null, ""]);
});

test("words of a sum stand where all agree", () => {
  const [a, b] = [ALL[1], ALL[4]];
  assert.equal(sum("", "x", [a, b]).category, "softmax");
  assert.equal(sum("", "x", [a, ALL[2]]).category, "");
});

test("copied text has a cell for each column, and no formula", () => {
  const hostile = { ...ALL[1], full: "=HYPERLINK(\"x\")\tb\nc", op: "@x" };
  const rows = tsv([hostile, ALL[0]], WHOLE).split("\n");
  assert.equal(rows.length, 4);
  assert.ok(rows.slice(0, 3).every((row) => row.split("\t").length === COLUMNS.length));
  const cells = rows[1].split("\t");
  assert.equal(cells[0], "'=HYPERLINK(\"x\") b c");
  assert.equal(cells[2], "'@x");
  assert.equal(Number(cells[5]), ALL[1].ns / 4);
  assert.equal(rows[2].split("\t")[11], "", "not known is an empty cell");
});
