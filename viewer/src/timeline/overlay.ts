// Drawn over the tracks: what is selected and pointed at, arrows from launch to work, a measured range.

import { laneIndex, NOTHING } from "../data.ts";
import { duration } from "../format.ts";
import type { Palette } from "./palette.ts";
import { calm, type Stage } from "./stage.ts";
import { xOf } from "./view.ts";

/** More arrows than this are a blot. */
const MOST_ARROWS = 200;
/** From here on they are thin. */
const MANY = 12;

interface Box {
  left: number;
  right: number;
  top: number;
  height: number;
}

export function drawOverlay(
  context: CanvasRenderingContext2D,
  stage: Stage,
  look: Palette,
  arrows: Uint32Array,
  now: number,
): void {
  if (stage.hovered !== NOTHING && stage.hovered !== stage.selected)
    outline(context, boxOf(stage, stage.hovered), look.text, 1);
  const seen = inView(stage, arrows);
  for (const work of seen) arrow(context, stage, look, stage.data.events.link[work] - 1, work, seen.length);
  if (stage.selected !== NOTHING) {
    const box = boxOf(stage, stage.selected);
    if (box !== null && now < stage.flashUntil) flash(context, box, look, stage.flashUntil - now);
    outline(context, box, look.ground, 4);
    outline(context, box, look.text, 2);
  }
  if (stage.measured !== null) drawMeasured(context, stage, look, stage.measured.start, stage.measured.end);
}

/** Where an event is drawn, or null where its group is folded. */
function boxOf(stage: Stage, event: number): Box | null {
  const placed = stage.rows.placeOf[laneIndex(stage.data.lanes, event)];
  if (placed < 0) return null;
  const place = stage.rows.lanes[placed];
  const { start, ns } = stage.data.events;
  const left = xOf(stage.view, stage.width, start[event]);
  const right = Math.max(xOf(stage.view, stage.width, start[event] + ns[event]), left + 2);
  return { left, right, top: place.y - stage.scroll, height: place.height };
}

function outline(context: CanvasRenderingContext2D, box: Box | null, colour: string, line: number): void {
  if (box === null || box.right < 0 || box.left > context.canvas.width) return;
  const left = Math.max(Math.round(box.left), -8);
  const right = Math.min(Math.round(box.right), context.canvas.width + 8);
  context.strokeStyle = colour;
  context.lineWidth = line;
  // Around it, so that the colour of a narrow one is still seen.
  context.strokeRect(left - 1.5, box.top - 1, Math.max(right - left, 2) + 2, box.height + 2);
}

function flash(context: CanvasRenderingContext2D, box: Box, look: Palette, left: number): void {
  const wave = calm() ? 0.5 : 0.5 + 0.5 * Math.cos(left / 110);
  const reach = 3 + 5 * wave;
  context.globalAlpha = 0.25 + 0.35 * wave;
  context.fillStyle = look.accent;
  const from = Math.max(box.left, -20) - reach;
  const to = Math.min(box.right, context.canvas.width + 20) + reach;
  context.fillRect(from, box.top - reach, to - from, box.height + 2 * reach);
  context.globalAlpha = 1;
}

/** Work of which the arrow is at least partly in view; of too many, some evenly spread. */
export function inView(stage: Pick<Stage, "data" | "view">, work: Uint32Array): Uint32Array {
  const { start, link } = stage.data.events;
  const { view } = stage;
  const seen = work.filter((event) => start[event] >= view.start && start[link[event] - 1] <= view.end);
  const every = Math.ceil(seen.length / MOST_ARROWS);
  return every <= 1 ? seen : seen.filter((_, i) => i % every === 0);
}

function arrow(
  context: CanvasRenderingContext2D,
  stage: Stage,
  look: Palette,
  from: number,
  to: number,
  many: number,
): void {
  const [a, b] = [boxOf(stage, from), boxOf(stage, to)];
  if (a === null || b === null) return;
  const down = b.top > a.top;
  const [x0, y0] = [Math.max(Math.min((a.left + a.right) / 2, a.left + 6), a.left), down ? a.top + a.height : a.top];
  const [x1, y1] = [b.left, b.top + b.height / 2];
  if (Math.max(x0, x1) < 0 || Math.min(x0, x1) > stage.width) return;
  const reach = Math.min(60, Math.max(14, Math.abs(x1 - x0) / 2));
  context.globalAlpha = many > MANY ? 0.3 : 0.9;
  context.strokeStyle = context.fillStyle = look.text;
  context.lineWidth = many > MANY ? 1 : 1.5;
  context.beginPath();
  context.moveTo(x0, y0);
  context.bezierCurveTo(x0, y0 + (down ? reach : -reach), x1 - reach, y1, x1 - 4, y1);
  context.stroke();
  if (many <= MANY) head(context, x1, y1);
  context.globalAlpha = 1;
}

function head(context: CanvasRenderingContext2D, x: number, y: number): void {
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(x - 6, y - 3.5);
  context.lineTo(x - 6, y + 3.5);
  context.fill();
}

function drawMeasured(
  context: CanvasRenderingContext2D,
  stage: Stage,
  look: Palette,
  start: number,
  end: number,
): void {
  const [left, right] = [start, end].map((t) => Math.round(xOf(stage.view, stage.width, t)));
  context.fillStyle = look.accent;
  context.globalAlpha = 0.09;
  context.fillRect(left, 0, right - left, stage.height);
  context.globalAlpha = 1;
  context.fillRect(left, 0, 1, stage.height);
  context.fillRect(right - 1, 0, 1, stage.height);
  const text = duration(end - start);
  context.font = look.bold;
  context.textAlign = "center";
  const room = context.measureText(text).width + 12;
  const middle = Math.min(Math.max((left + right) / 2, room / 2), stage.width - room / 2);
  context.fillRect(middle - room / 2, 4, room, 20);
  context.fillStyle = look.ground;
  context.fillText(text, middle, 14.5);
  context.textAlign = "left";
}
