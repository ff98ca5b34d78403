// Every colour of one theme, worked out once: what the canvas draws with.

import type { Paint } from "../data.ts";
import { colour, css, textOn } from "../theme.ts";
import { LEVELS } from "./layout.ts";

type Rgb = [number, number, number];

/** A nearly empty column of pixels still shows this much of its colour. */
const FAINTEST = 0.4;
/** Waits are idle time: paler than work, and hatched where there is room. */
const WAIT = 0.62;
const WAIT_GROUND = 0.25;
const WAIT_STROKE = 0.7;
const FADED = 0.16;
const BAND = 0.035;
const OUTSIDE = 0.06;
/** Side of the hatching's tile in CSS pixels. */
const TILE = 6;

export interface Palette {
  ground: string;
  text: string;
  dim: string;
  line: string;
  /** Of headings, and of the minimap. */
  band: string;
  accent: string;
  outside: string;
  font: string;
  bold: string;
  small: string;
  /** By paint × LEVELS + level. */
  fill: string[];
  /** The same as pixels of an image, and those of the faded. */
  pixels: Uint32Array;
  fadedPixels: Uint32Array;
  /** By paint: for events that a search has not found. */
  faded: string[];
  /** By paint: what is written on it. */
  ink: string[];
  /** By paint: the hatching of waits, or null. */
  hatch: (CanvasPattern | null)[];
}

export function palette(paints: readonly Paint[], container: HTMLElement): Palette {
  const probe = probed();
  const of = (name: string, otherwise: string) => rgb(probe, css(name) || otherwise);
  const [ground, text, line] = [of("--card", "#ffffff"), of("--fg", "#1a1d21"), of("--line", "#dde1e6")];
  const family = getComputedStyle(container).fontFamily || "system-ui, sans-serif";
  const colours = paints.map((paint) => rgb(probe, colour(paint)));
  const fills = paints.flatMap((paint, p) =>
    Array.from({ length: LEVELS }, (_, level) => {
      const full = paint.wait ? WAIT : 1;
      return mix(ground, colours[p], full * (FAINTEST + ((1 - FAINTEST) * level) / (LEVELS - 1)));
    }),
  );
  const faded = colours.map((one) => mix(ground, one, FADED));
  return {
    ground: hex(ground),
    text: hex(text),
    dim: hex(of("--dim", "#667080")),
    line: hex(line),
    band: hex(mix(ground, text, BAND)),
    accent: hex(of("--accent", "#0072b2")),
    outside: hex(mix(ground, text, OUTSIDE)),
    font: `11px ${family}`,
    bold: `600 12px ${family}`,
    small: `10px ${family}`,
    fill: fills.map(hex),
    pixels: Uint32Array.from(fills, pixel),
    faded: faded.map(hex),
    fadedPixels: Uint32Array.from(fills, (_, key) => pixel(faded[Math.floor(key / LEVELS)])),
    ink: paints.map((paint, p) => (paint.wait ? hex(text) : textOn(hex(colours[p])))),
    hatch: paints.map((paint, p) =>
      paint.wait ? hatching(mix(ground, colours[p], WAIT_GROUND), mix(ground, colours[p], WAIT_STROKE)) : null,
    ),
  };
}

/** A tile of diagonal strokes that meets itself on all sides. */
function hatching(ground: Rgb, stroke: Rgb): CanvasPattern | null {
  const ratio = window.devicePixelRatio || 1;
  const tile = document.createElement("canvas");
  tile.width = tile.height = Math.round(TILE * ratio);
  const context = tile.getContext("2d");
  if (context === null) return null;
  const side = tile.width;
  context.fillStyle = hex(ground);
  context.fillRect(0, 0, side, side);
  context.strokeStyle = hex(stroke);
  context.lineWidth = 1.4 * ratio;
  for (const shift of [-side, 0, side]) {
    context.beginPath();
    context.moveTo(shift - 1, side + 1);
    context.lineTo(shift + side + 1, -1);
    context.stroke();
  }
  const pattern = context.createPattern(tile, "repeat");
  pattern?.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}

function probed(): CanvasRenderingContext2D | null {
  return document.createElement("canvas").getContext("2d");
}

/** Any colour that CSS knows; what it does not know is black. */
function rgb(probe: CanvasRenderingContext2D | null, text: string): Rgb {
  let known = text;
  if (probe !== null) {
    probe.fillStyle = "#000000";
    probe.fillStyle = text;
    known = String(probe.fillStyle);
  }
  if (known.startsWith("#")) return [1, 3, 5].map((i) => parseInt(known.slice(i, i + 2), 16)) as Rgb;
  const [r, g, b] = (known.match(/[\d.]+/g) ?? ["0", "0", "0"]).map(Number);
  return [r, g, b];
}

function mix(from: Rgb, to: Rgb, part: number): Rgb {
  return from.map((value, i) => value + (to[i] - value) * part) as Rgb;
}

function hex(colour: Rgb): string {
  return `#${colour.map((value) => Math.round(value).toString(16).padStart(2, "0")).join("")}`;
}

/** As it stands in the memory of an image on a little-endian machine, and there are no others with browsers. */
function pixel(colour: Rgb): number {
  const [r, g, b] = colour.map(Math.round);
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}
