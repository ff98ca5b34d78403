// The axis of time above the tracks, counted from the start of the analysed window.

import { moment } from "../format.ts";
import type { Palette } from "./palette.ts";
import type { Stage } from "./stage.ts";
import { ticks, timeAt, xOf } from "./view.ts";

export const AXIS_HEIGHT = 24;
const APART = 110;

/** `pointer` is where the pointer is, pixels from the left, or null. */
export function drawAxis(context: CanvasRenderingContext2D, stage: Stage, look: Palette, pointer: number | null): void {
  const { view, width } = stage;
  context.fillStyle = look.ground;
  context.fillRect(0, 0, width, AXIS_HEIGHT);
  context.fillStyle = look.line;
  context.fillRect(0, AXIS_HEIGHT - 1, width, 1);
  context.font = look.font;
  context.textBaseline = "middle";
  context.textAlign = "left";
  const { step, at } = ticks(view, width, APART);
  for (const t of at) {
    const x = Math.round(xOf(view, width, t));
    context.fillStyle = look.line;
    context.fillRect(x, 6, 1, AXIS_HEIGHT - 6);
    const text = moment(t, step);
    if (x + 4 + context.measureText(text).width > width) continue;
    context.fillStyle = look.dim;
    context.fillText(text, x + 4, 12);
  }
  if (pointer !== null) drawPointer(context, stage, look, pointer, step);
}

function drawPointer(
  context: CanvasRenderingContext2D,
  stage: Stage,
  look: Palette,
  pointer: number,
  step: number,
): void {
  const text = moment(timeAt(stage.view, stage.width, pointer), step / 100);
  const room = context.measureText(text).width + 10;
  const left = Math.min(Math.max(pointer - room / 2, 0), stage.width - room);
  context.fillStyle = look.text;
  context.fillRect(Math.round(left), 3, Math.round(room), AXIS_HEIGHT - 6);
  context.fillStyle = look.ground;
  context.fillText(text, Math.round(left) + 5, 12);
}
