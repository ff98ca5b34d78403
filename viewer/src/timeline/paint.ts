// Draws the tracks: background, lanes, words in events, and what a search has found.

import { Columns } from "./columns.ts";
import { drawCounters } from "./counters.ts";
import { drawLabels, Labels, type Widths } from "./labels.ts";
import { Buckets, drawFound, drawLane } from "./lanes.ts";
import { layout } from "./layout.ts";
import type { Palette } from "./palette.ts";
import type { Stage } from "./stage.ts";
import { ticks, xOf } from "./view.ts";

/** Lower lanes bear no words. */
const LABELLED = 14;

/** Memory that every frame uses again. */
export class Brushes {
  readonly buckets = new Buckets();
  readonly columns = new Columns();
  readonly found = new Columns();
  readonly labels = new Labels();
}

export function drawTracks(
  context: CanvasRenderingContext2D,
  stage: Stage,
  look: Palette,
  widths: Widths,
  brushes: Brushes,
): void {
  const { data, view, width, found } = stage;
  const { buckets, columns, labels } = brushes;
  buckets.fit(width);
  drawGround(context, stage, look);
  const seen = stage.rows.lanes.filter(({ y, height }) => y - stage.scroll < stage.height && y + height > stage.scroll);
  columns.begin(width, seen.length);
  labels.clear();
  for (const place of seen) {
    const y = place.y - stage.scroll;
    layout(data.events, stage.sums[place.lane], view, width, buckets.rects);
    drawLane(context, look, buckets, columns.row(place), found !== null, y, place.height);
    if (place.height >= LABELLED) labels.collect(buckets.rects, width, y + place.height / 2);
  }
  columns.draw(context, stage.scroll);
  if (found !== null) {
    brushes.found.begin(width, seen.length);
    for (const place of seen) drawFound(context, stage, look, place, brushes.found.row(place));
    brushes.found.draw(context, stage.scroll);
  }
  drawLabels(context, stage, look, widths, labels);
  drawCounters(context, stage, look);
  drawSteps(context, stage, look);
}

function drawGround(context: CanvasRenderingContext2D, stage: Stage, look: Palette): void {
  const { width, height, view, data } = stage;
  context.fillStyle = look.ground;
  context.fillRect(0, 0, width, height);
  context.fillStyle = look.outside;
  const [from, to] = data.window.map((t) => xOf(view, width, t));
  if (from > 0) context.fillRect(0, 0, Math.min(from, width), height);
  if (to < width) context.fillRect(Math.max(to, 0), 0, width, height);
  context.fillStyle = look.line;
  context.globalAlpha = 0.45;
  for (const t of ticks(view, width, 110).at) context.fillRect(Math.round(xOf(view, width, t)), 0, 1, height);
  context.globalAlpha = 1;
  for (const row of stage.rows.rows) {
    const y = row.y - stage.scroll;
    if (y > height || y + row.height < 0) continue;
    if (row.track === null) {
      context.fillStyle = look.band;
      context.fillRect(0, y, width, row.height);
    }
    context.fillStyle = look.line;
    context.fillRect(0, y + row.height - 1, width, 1);
  }
}

/** Where steps begin and end, through all tracks. */
function drawSteps(context: CanvasRenderingContext2D, stage: Stage, look: Palette): void {
  const { view, width, height, data } = stage;
  context.fillStyle = look.text;
  context.globalAlpha = 0.28;
  let before = -Infinity;
  for (const edge of data.steps.flat()) {
    const x = Math.round(xOf(view, width, edge));
    if (x < 0 || x > width || x - before < 6) continue;
    before = x;
    for (let y = -(stage.scroll % 6); y < height; y += 6) context.fillRect(x, y, 1, 3);
  }
  context.globalAlpha = 1;
}
