// Draws the canvases: once for whatever has changed since the frame before, and not at all while nothing does.

import { fit } from "../dom.ts";
import { AXIS_HEIGHT, drawAxis } from "./axis.ts";
import { Widths } from "./labels.ts";
import type { Minimap } from "./minimap.ts";
import { drawOverlay } from "./overlay.ts";
import { Brushes, drawTracks } from "./paint.ts";
import { palette, type Palette } from "./palette.ts";
import type { Parts } from "./parts.ts";
import type { Stage } from "./stage.ts";

export class Screen {
  /** Where the pointer is over the tracks, pixels from the left, or null. */
  pointer: number | null = null;
  /** GPU work whose launch is shown by an arrow. */
  arrows: Uint32Array = new Uint32Array(0);
  private look: Palette;
  private readonly widths: Widths;
  private readonly brushes = new Brushes();
  private asked = 0;

  constructor(
    private readonly parts: Parts,
    private readonly stage: Stage,
    private readonly minimap: Minimap,
  ) {
    this.look = palette(stage.data.paints, parts.frame);
    this.widths = new Widths(stage.data.strings);
  }

  /** Draws before the next frame is shown. */
  ask(): void {
    if (this.asked === 0) this.asked = requestAnimationFrame((now) => this.onFrame(now));
  }

  /** Draws now. */
  draw(): void {
    const { stage, look, parts } = this;
    const context = fit(parts.tracks, stage.width, stage.height);
    drawTracks(context, stage, look, this.widths, this.brushes);
    drawOverlay(context, stage, look, this.arrows, performance.now());
    drawAxis(fit(parts.axis, stage.width, AXIS_HEIGHT), stage, look, this.pointer);
    this.minimap.draw(look);
  }

  /** To be called when the size has changed. */
  resized(): void {
    this.minimap.prepare(this.stage.width, this.look);
    this.ask();
  }

  /** To be called when the theme has changed. */
  restyled(): void {
    this.look = palette(this.stage.data.paints, this.parts.frame);
    this.resized();
  }

  private onFrame(now: number): void {
    this.asked = 0;
    const more = this.stage.advance(now);
    this.draw();
    if (more || !this.widths.exact) this.ask();
  }
}
