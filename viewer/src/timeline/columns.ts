// Narrow things: columns of pixels in which many short events stand together, and events a few pixels wide. There are
// as many of them as the screen has pixels across, in every lane: as one row of an image each, stretched to the lane's
// height, they cost next to nothing.

import type { LanePlace } from "./rows.ts";

/** The rows of one frame. */
export class Columns {
  private readonly canvas = document.createElement("canvas");
  private image: ImageData | null = null;
  private pixels = new Uint32Array(0);
  private places: LanePlace[] = [];

  /** Room for `lanes` rows of `width` pixels, all empty. */
  begin(width: number, lanes: number): void {
    const wide = Math.max(1, Math.ceil(width));
    const rows = Math.max(1, lanes);
    if (this.image === null || this.image.width !== wide || this.image.height < rows) {
      this.image = new ImageData(wide, rows);
      this.pixels = new Uint32Array(this.image.data.buffer);
      [this.canvas.width, this.canvas.height] = [wide, rows];
    } else this.pixels.fill(0);
    this.places = [];
  }

  /** The next row, of a lane: pixels (ABGR) to be set; those left alone show what is below. */
  row(place: LanePlace): Uint32Array {
    const wide = this.canvas.width;
    const from = this.places.push(place) - 1;
    return this.pixels.subarray(from * wide, (from + 1) * wide);
  }

  draw(context: CanvasRenderingContext2D, scroll: number): void {
    const drawn = this.places.length;
    const own = this.canvas.getContext("2d");
    if (drawn === 0 || own === null || this.image === null) return;
    own.putImageData(this.image, 0, 0, 0, 0, this.canvas.width, drawn);
    const smooth = context.imageSmoothingEnabled;
    context.imageSmoothingEnabled = false;
    const wide = this.canvas.width;
    this.places.forEach(({ y, height }, row) =>
      context.drawImage(this.canvas, 0, row, wide, 1, 0, y - scroll, wide, height),
    );
    context.imageSmoothingEnabled = smooth;
  }
}
