// Draws bars on a canvas: rectangles by colour, one row after the other, then what is written on them.

import type { ReportData, Tree } from "../data.ts";
import { duration, share } from "../format.ts";
import { colour, css, textOn } from "../theme.ts";
import type { Bars } from "./bars.ts";
import { Labels } from "./labels.ts";
import { type Matches, OTHER } from "./matches.ts";

export const ROW = 20;
const PAD = 6;
/** Below this no text fits. */
const TEXTED = 28;

export interface Scene {
  bars: Bars;
  /** CSS pixels that are scrolled away above. */
  top: number;
  width: number;
  height: number;
  /** Of the node that fills the width: bars above it are calmer. */
  zoomed_row: number;
  hovered: number;
  selected: number;
  matches: Matches | null;
  /** While moving, small text is left out. */
  moving: boolean;
}

export interface Painter {
  draw(context: CanvasRenderingContext2D, scene: Scene): void;
  /** To be called when the theme has changed. */
  restyle(): void;
}

interface Ink {
  fill: string;
  text: string;
  wait: boolean;
}

export function painter(data: ReportData, tree: Tree, font: string): Painter {
  let inks: Ink[] = [];
  let page = { bg: "", fg: "", dim: "", line: "", accent: "" };
  let labels: Labels | null = null;
  // Slanted lines: over what waits, and over what is too narrow to draw.
  let hatches: { wait: CanvasPattern | string; rest: CanvasPattern | string } = { wait: "", rest: "" };

  const restyle = () => {
    page = { bg: css("--card") || "#ffffff", fg: css("--fg"), dim: css("--dim"), line: css("--line"), accent: css("--accent") };
    inks = [];
  };

  const prepare = (context: CanvasRenderingContext2D) => {
    context.font = font;
    context.textBaseline = "middle";
    labels ??= new Labels((character) => context.measureText(character).width);
    if (inks.length > 0) return;
    hatches = { wait: hatch(context, page.bg, 0.45), rest: hatch(context, page.bg, 0.8) };
    inks = data.paints.map((paint) => {
      const fill = colour(paint);
      return { fill, text: textOn(fill), wait: paint.wait };
    });
    // The root is everything, of no kind.
    inks.push({ fill: page.line, text: page.fg, wait: false });
  };

  const inkOf = (node: number) => (node === 0 ? data.paints.length : tree.paint[node]);

  const draw = (context: CanvasRenderingContext2D, scene: Scene) => {
    prepare(context);
    context.fillStyle = page.bg;
    context.fillRect(0, 0, scene.width, scene.height);
    const from = Math.max(0, Math.floor(scene.top / ROW));
    const to = Math.min(scene.bars.rows.length - 1, Math.ceil((scene.top + scene.height) / ROW));
    for (let row = from; row < to; row++) drawRow(context, scene, row);
    outline(context, scene, scene.selected, page.accent || page.fg, 2);
    outline(context, scene, scene.hovered, page.fg, 1);
  };

  const drawRow = (context: CanvasRenderingContext2D, scene: Scene, row: number) => {
    const { bars, matches } = scene;
    const y = row * ROW - scene.top;
    const ratio = window.devicePixelRatio || 1;
    const snap = (x: number) => Math.round(x * ratio) / ratio;
    // Narrow neighbours of one look become one rectangle.
    let [from, to, look] = [0, 0, -1];
    const flush = () => {
      if (look >= 0 && to > from) rectangle(context, look, from, y, to - from);
      look = -1;
    };
    const [first, end] = [bars.rows[row], bars.rows[row + 1]];
    for (let i = first; i < end; i++) {
      const node = bars.node[i];
      const [left, right] = [snap(bars.left[i]), snap(bars.right[i])];
      if (right <= left) continue;
      if (node < 0) {
        flush();
        rest(context, left, y, right - left);
        continue;
      }
      const faded = matches !== null && matches.state[node] === OTHER ? 1 : 0;
      const calm = row < scene.zoomed_row ? 1 : 0;
      const now = (inkOf(node) << 2) | (calm << 1) | faded;
      if (right - left >= 3) {
        flush();
        rectangle(context, now, left, y, right - left - 1);
      } else if (now === look && left <= to) to = right;
      else {
        flush();
        [from, to, look] = [left, right, now];
      }
    }
    flush();
    for (let i = first; i < end; i++) {
      const room = bars.right[i] - bars.left[i] - 2 * PAD;
      if (bars.node[i] >= 0 && room >= (scene.moving ? 60 : TEXTED - 2 * PAD)) {
        write(context, scene, row, i);
      }
    }
  };

  const rectangle = (context: CanvasRenderingContext2D, look: number, x: number, y: number, width: number) => {
    const ink = inks[look >> 2];
    context.globalAlpha = look & 1 ? 0.18 : look & 2 ? 0.6 : 1;
    context.fillStyle = ink.fill;
    context.fillRect(x, y, width, ROW - 1);
    if (ink.wait && width > 2) {
      context.fillStyle = hatches.wait;
      context.fillRect(x, y, width, ROW - 1);
    }
    context.globalAlpha = 1;
  };

  /** What is too narrow for a bar each: half as high, hatched. */
  const rest = (context: CanvasRenderingContext2D, x: number, y: number, width: number) => {
    context.globalAlpha = 0.35;
    context.fillStyle = page.dim || page.fg;
    context.fillRect(x, y, width, (ROW - 1) / 2);
    context.globalAlpha = 1;
    context.fillStyle = hatches.rest;
    context.fillRect(x, y, width, (ROW - 1) / 2);
  };

  const write = (context: CanvasRenderingContext2D, scene: Scene, row: number, i: number) => {
    if (labels === null) return;
    const node = scene.bars.node[i];
    const [x, room] = [scene.bars.left[i] + PAD, scene.bars.right[i] - scene.bars.left[i] - 2 * PAD];
    const y = row * ROW - scene.top;
    const name = labels.fit(data.strings[tree.name[node]], room);
    if (name === "") return;
    const ink = inks[inkOf(node)];
    const faded = scene.matches !== null && scene.matches.state[node] === OTHER;
    const plain = faded || row < scene.zoomed_row;
    const put = (text: string, at: number, width: number, alpha: number) => {
      if (ink.wait && !plain) {
        // Letters on hatching need a ground.
        context.fillStyle = ink.fill;
        context.fillRect(at - 3, y + 2, width + 6, ROW - 5);
      }
      context.globalAlpha = alpha;
      context.fillStyle = plain ? page.fg : ink.text;
      context.fillText(text, at, y + ROW / 2);
      context.globalAlpha = 1;
    };
    const used = labels.width(name);
    put(name, x, used, faded ? 0.55 : 1);
    const told = timed(data, tree, node);
    const length = labels.width(told);
    if (room - used >= length + 14) put(told, x + room - length, length, faded ? 0.45 : 0.8);
  };

  const outline = (context: CanvasRenderingContext2D, scene: Scene, node: number, stroke: string, line: number) => {
    if (node < 0) return;
    const i = scene.bars.node.indexOf(node);
    if (i < 0) return;
    const row = rowOf(scene.bars, i);
    context.strokeStyle = stroke;
    context.lineWidth = line;
    const [x, width] = [scene.bars.left[i], scene.bars.right[i] - scene.bars.left[i] - 1];
    context.strokeRect(x + line / 2, row * ROW - scene.top + line / 2, Math.max(1, width - line), ROW - 1 - line);
  };

  restyle();
  return { draw, restyle };
}

/** `12.3 ms (34 %)`: a step's time in a node, and its share of the whole. */
export function timed(data: ReportData, tree: Tree, node: number): string {
  return `${duration(tree.total[node] / data.step_count)} (${share(tree.total[node], tree.total[0])})`;
}

function rowOf(bars: Bars, index: number): number {
  let row = 0;
  while (row + 2 < bars.rows.length && bars.rows[row + 1] <= index) row++;
  return row;
}

/** Slanted lines of the page's colour, to lay over a fill. */
function hatch(context: CanvasRenderingContext2D, ground: string, alpha: number): CanvasPattern | string {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  if (pen === null) return "transparent";
  pen.globalAlpha = alpha;
  pen.strokeStyle = ground;
  pen.lineWidth = 2;
  for (const x of [-8, 0, 8]) {
    pen.moveTo(x - 2, 10);
    pen.lineTo(x + 10, -2);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat") ?? "transparent";
}
