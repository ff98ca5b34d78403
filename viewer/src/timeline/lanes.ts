// Draws one lane: narrow rectangles into a row of pixels, wide ones on the canvas, found events over all others.

import { NOTHING } from "../data.ts";
import { LEVELS, room, type Rects } from "./layout.ts";
import { placeIn } from "./matches.ts";
import type { Palette } from "./palette.ts";
import type { LanePlace } from "./rows.ts";
import type { Stage } from "./stage.ts";
import { firstFrom } from "./sums.ts";
import { length, xOf } from "./view.ts";

/** Narrower waits are filled plainly: hatching needs room. */
const HATCHED = 4;
/** Events wider than this leave a hairline free to their neighbour. */
const PARTED = 3;
/** Narrower ones are drawn as pixels. */
const WIDE = 16;
const KEYS = 256;

/** Memory that every frame uses again. */
export class Buckets {
  rects: Rects = room(1);
  /** Lists of wide rectangles by paint, linked: one change of colour for all that have it. */
  readonly head = new Int32Array(KEYS).fill(-1);
  readonly used = new Int32Array(KEYS);
  next = new Int32Array(0);

  fit(width: number): void {
    if (this.next.length >= 2 * Math.ceil(width) + 8) return;
    this.rects = room(width);
    this.next = new Int32Array(this.rects.left.length);
  }
}

/** Draws what was laid out in `buckets.rects`. */
export function drawLane(
  context: CanvasRenderingContext2D,
  look: Palette,
  buckets: Buckets,
  row: Uint32Array,
  faded: boolean,
  y: number,
  height: number,
): void {
  const { rects, head, next, used } = buckets;
  const colours = faded ? look.fadedPixels : look.pixels;
  let paints = 0;
  for (let k = 0; k < rects.count; k++) {
    const paint = rects.paint[k];
    const wide = rects.right[k] - rects.left[k];
    const hatched = !faded && rects.event[k] !== NOTHING && wide >= HATCHED && look.hatch[paint] !== null;
    if (!hatched && (wide < WIDE || rects.event[k] === NOTHING)) {
      fillPixels(
        row,
        rects.left[k],
        rects.right[k],
        rects.event[k] !== NOTHING,
        colours[paint * LEVELS + rects.level[k]],
      );
      continue;
    }
    if (head[paint] < 0) used[paints++] = paint;
    next[k] = head[paint];
    head[paint] = k;
  }
  for (let p = 0; p < paints; p++) {
    const paint = used[p];
    context.fillStyle = faded ? look.faded[paint] : (look.hatch[paint] ?? look.fill[paint * LEVELS + LEVELS - 1]);
    for (let k = head[paint]; k >= 0; k = next[k]) {
      fillRect(context, rects.left[k], rects.right[k], row.length, y, height);
    }
    head[paint] = -1;
  }
}

/** Found events over the faded ones, at least two pixels wide each. */
export function drawFound(
  context: CanvasRenderingContext2D,
  stage: Stage,
  look: Palette,
  place: LanePlace,
  row: Uint32Array,
): void {
  const { events } = stage.data;
  const lane = stage.sums[place.lane];
  const found = stage.found as Uint32Array;
  const end = placeIn(found, lane.end);
  const pixel = length(stage.view) / stage.width;
  // The one that begins before the view may reach into it.
  const early = firstFrom(events.start, stage.view.start, lane.first, lane.end) - 1;
  let k = placeIn(found, Math.max(early, lane.first));
  while (k < end && events.start[found[k]] < stage.view.end) {
    const event = found[k];
    const left = xOf(stage.view, stage.width, events.start[event]);
    const right = xOf(stage.view, stage.width, events.start[event] + events.ns[event]);
    const full = events.paint[event] * LEVELS + LEVELS - 1;
    if (right - left < WIDE) fillPixels(row, left, Math.max(right, left + 2), right - left > PARTED, look.pixels[full]);
    else {
      context.fillStyle = look.fill[full];
      fillRect(context, left, right, row.length, place.y - stage.scroll, place.height);
    }
    const skip = firstFrom(events.start, events.start[event] + pixel, event + 1, lane.end);
    k = skip === event + 1 ? k + 1 : placeIn(found, skip);
  }
}

/** On whole pixels: edges are sharp, and drawing is faster. */
function fillRect(
  context: CanvasRenderingContext2D,
  from: number,
  to: number,
  width: number,
  y: number,
  height: number,
): void {
  const left = Math.max(-2, Math.round(from));
  const right = Math.min(width + 2, Math.round(to));
  context.fillRect(left, y, Math.max(1, right - left - (right - left > PARTED ? 1 : 0)), height);
}

function fillPixels(row: Uint32Array, from: number, to: number, parted: boolean, colour: number): void {
  const left = Math.round(from);
  const right = Math.round(to);
  const end = Math.min(row.length, Math.max(left + 1, right - (parted && right - left > PARTED ? 1 : 0)));
  for (let x = Math.max(left, 0); x < end; x++) row[x] = colour;
}
