// A figure's colours change with the theme, and nothing else of it.

import assert from "node:assert/strict";
import { test } from "node:test";
import { type Figure, paint } from "../src/charts.ts";

function figure(): Figure {
  return {
    data: [
      { type: "bar", x: [1, 2], marker: { color: "#light", opacity: 0.5 }, meta: { light: { "marker.color": "#light" }, dark: { "marker.color": "#dark" } } },
      { type: "scatter", y: [3] },
    ],
    layout: {
      xaxis: { title: { text: "time" } },
      meta: { title: "t", light: { "xaxis.title.font.color": "#000" }, dark: { "xaxis.title.font.color": "#fff", "font.color": "#eee" } },
    },
  };
}

test("themes are set along their paths", () => {
  const one = figure();
  paint(one, "dark");
  assert.deepEqual(one.data[0].marker, { color: "#dark", opacity: 0.5 });
  assert.deepEqual(one.layout.xaxis, { title: { text: "time", font: { color: "#fff" } } });
  assert.deepEqual(one.layout.font, { color: "#eee" });
  assert.deepEqual(one.data[1], { type: "scatter", y: [3] });
  paint(one, "light");
  assert.deepEqual(one.data[0], figure().data[0]);
});

test("a path leads nowhere outside the figure", () => {
  const one = figure();
  (one.layout.meta as { dark: object }).dark = { "__proto__.broken": 1, "constructor.prototype.broken": 1, "toString.broken": 1 };
  paint(one, "dark");
  assert.equal(({} as { broken?: number }).broken, undefined);
  assert.ok(!("broken" in Object.prototype.toString));
});
