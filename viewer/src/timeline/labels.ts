// Words inside events, cut to the room there is.

import { NOTHING } from "../data.ts";
import type { Rects } from "./layout.ts";
import { placeIn } from "./matches.ts";
import type { Palette } from "./palette.ts";
import type { Stage } from "./stage.ts";

const ELLIPSIS = "…";
/** Fewer characters than this say nothing. */
const FEWEST = 3;
/** From here on there is room for both ends of a name. */
const BOTH_ENDS = 12;
/** Pixels: words need as many, and are this far from the edges. */
const NARROWEST = 20;
const PAD = 4;
/** Longer names are never shown whole. */
const LONGEST = 300;
/** Texts measured in one frame; of the others the width is guessed until their turn comes. */
const MEASURED = 60;
const GUESS = 6;

/** Widths of the report's strings in one font, each measured once. */
export class Widths {
  private readonly width: Float32Array;
  private font = "";
  private left = MEASURED;

  constructor(private readonly strings: readonly string[]) {
    this.width = new Float32Array(strings.length);
  }

  /** To be called once in a frame, when the context has the font; another font forgets what was measured. */
  begin(font: string): void {
    this.left = MEASURED;
    if (font === this.font) return;
    this.font = font;
    this.width.fill(0);
  }

  /** Whether everything asked for in this frame was measured. */
  get exact(): boolean {
    return this.left > 0;
  }

  of(context: CanvasRenderingContext2D, string: number): number {
    const known = this.width[string];
    if (known > 0) return known;
    const text = this.strings[string].slice(0, LONGEST);
    if (this.left === 0) return text.length * GUESS;
    this.left--;
    return (this.width[string] = Math.max(context.measureText(text).width, 1));
  }
}

/** The text, or as much of it as fits with an ellipsis, or nothing. `width` is the whole text's. Of long names the
 * middle goes: kernels differ at their ends. */
export function cut(text: string, width: number, room: number): string {
  if (width <= room && text.length <= LONGEST) return text;
  const each = width / Math.min(text.length, LONGEST);
  // Wide letters may stand together: a little is kept free.
  const kept = Math.floor((room * 0.94) / each) - 1;
  if (kept < FEWEST) return "";
  if (kept < BOTH_ENDS) return text.slice(0, kept).trimEnd() + ELLIPSIS;
  const end = Math.floor(kept / 3);
  return text.slice(0, kept - end).trimEnd() + ELLIPSIS + text.slice(-end).trimStart();
}

/** Places for words, collected over the lanes of a frame: they are written last, over everything. */
export class Labels {
  count = 0;
  event = new Int32Array(1024);
  left = new Float32Array(1024);
  space = new Float32Array(1024);
  y = new Float32Array(1024);

  clear(): void {
    this.count = 0;
  }

  collect(rects: Rects, width: number, y: number): void {
    for (let k = 0; k < rects.count; k++) {
      if (rects.event[k] === NOTHING) continue;
      const left = Math.max(rects.left[k], 0);
      const space = Math.min(rects.right[k], width) - left - 2 * PAD;
      if (space < NARROWEST) continue;
      if (this.count === this.event.length) this.grow();
      const at = this.count++;
      this.event[at] = rects.event[k];
      this.left[at] = Math.round(left) + PAD;
      this.space[at] = space;
      this.y[at] = y;
    }
  }

  private grow(): void {
    const larger = (from: Float32Array) => {
      const to = new Float32Array(2 * from.length);
      to.set(from);
      return to;
    };
    const event = new Int32Array(2 * this.event.length);
    event.set(this.event);
    [this.event, this.left, this.space, this.y] = [event, larger(this.left), larger(this.space), larger(this.y)];
  }
}

export function drawLabels(
  context: CanvasRenderingContext2D,
  stage: Stage,
  look: Palette,
  widths: Widths,
  labels: Labels,
): void {
  const { strings, events } = stage.data;
  context.font = look.font;
  context.textBaseline = "middle";
  context.textAlign = "left";
  widths.begin(look.font);
  let ink = "";
  for (let k = 0; k < labels.count; k++) {
    const event = labels.event[k];
    const text = cut(strings[events.name[event]], widths.of(context, events.name[event]), labels.space[k]);
    if (text === "") continue;
    const lost = stage.found !== null && stage.found[placeIn(stage.found, event)] !== event;
    const wanted = lost ? look.dim : look.ink[events.paint[event]];
    if (wanted !== ink) context.fillStyle = ink = wanted;
    context.fillText(text, labels.left[k], labels.y[k] + 0.5);
  }
}
