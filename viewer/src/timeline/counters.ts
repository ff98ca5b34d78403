// Counter tracks: a line that holds its value until the next change.

import { after, type CounterLine } from "../data.ts";
import { binary, count } from "../format.ts";
import type { Palette } from "./palette.ts";
import type { Row } from "./rows.ts";
import type { Stage } from "./stage.ts";
import { length, type Span } from "./view.ts";

const PAD = 6;
const highest = new WeakMap<CounterLine, number>();

export function drawCounters(context: CanvasRenderingContext2D, stage: Stage, look: Palette): void {
  for (const line of stage.data.counters) {
    const row = stage.rows.rows.find((row) => row.track === line.track);
    if (row === undefined || !row.open || row.y - stage.scroll > stage.height || row.y + row.height < stage.scroll)
      continue;
    drawLine(context, stage, look, line, row);
  }
}

/** Value of a counter at a moment, or null before its first. */
export function valueAt(line: CounterLine, t: number): number | null {
  const i = after(line.time, t, 0, line.time.length) - 1;
  return i < 0 ? null : line.value[i];
}

export function amount(line: CounterLine, value: number): string {
  return line.unit === "bytes" ? binary(value) : count(value);
}

/** Of every column of pixels: lowest, highest and last value; NaN before the first. Three numbers a column. */
export function columnsOf(line: CounterLine, view: Span, width: number): Float64Array {
  const columns = new Float64Array(3 * width).fill(NaN);
  const pixel = length(view) / width;
  let i = after(line.time, view.start, 0, line.time.length) - 1;
  for (let x = 0; x < width; x++) {
    const stop = after(line.time, view.start + (x + 1) * pixel, Math.max(i, 0), line.time.length);
    let [low, high] = [Infinity, -Infinity];
    for (let k = Math.max(i, 0); k < stop; k++) {
      low = Math.min(low, line.value[k]);
      high = Math.max(high, line.value[k]);
    }
    i = stop - 1;
    if (i >= 0) columns.set([low, high, line.value[i]], 3 * x);
  }
  return columns;
}

function drawLine(context: CanvasRenderingContext2D, stage: Stage, look: Palette, line: CounterLine, row: Row): void {
  const most = highestOf(line);
  const bottom = row.y + row.height - PAD - stage.scroll;
  const yOf = (value: number) => bottom - (value / (most || 1)) * (row.height - 2 * PAD);
  const columns = columnsOf(line, stage.view, Math.ceil(stage.width));
  context.fillStyle = look.accent;
  context.globalAlpha = 0.2;
  for (let k = 0; k < columns.length; k += 3) {
    if (columns[k + 1] > 0) context.fillRect(k / 3, yOf(columns[k + 1]), 1, bottom - yOf(columns[k + 1]));
  }
  context.globalAlpha = 1;
  let before = NaN;
  for (let k = 0; k < columns.length; k += 3) {
    if (Number.isNaN(columns[k])) continue;
    // The line rises and falls upright, from where it was.
    const top = yOf(Math.max(columns[k + 1], Number.isNaN(before) ? -Infinity : before));
    const foot = yOf(Math.min(columns[k], Number.isNaN(before) ? Infinity : before));
    context.fillRect(k / 3, top, 1, Math.max(1, foot - top));
    before = columns[k + 2];
  }
  context.fillStyle = look.text;
  context.font = look.small;
  context.textAlign = "right";
  context.fillText(`${amount(line, most)} at most`, stage.width - 6, row.y + row.height - PAD - 7 - stage.scroll);
  context.textAlign = "left";
}

function highestOf(line: CounterLine): number {
  let most = highest.get(line);
  if (most === undefined) {
    most = line.value.reduce((a, b) => Math.max(a, b), 0);
    highest.set(line, most);
  }
  return most;
}
