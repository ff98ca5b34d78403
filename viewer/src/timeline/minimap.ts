// The whole recording in a strip: busy GPUs filled from below, what they wait for above it, under them what the CPU is
// in, and a brush on the part that the tracks show.

import { NOTHING } from "../data.ts";
import { fit, h } from "../dom.ts";
import { cpuStrip, stripsOf, type Strip } from "./overview.ts";
import { LEVELS } from "./layout.ts";
import type { Palette } from "./palette.ts";
import type { Stage } from "./stage.ts";
import { length, timeAt, xOf, type Span } from "./view.ts";

const STRIP = 24;
const CPU_STRIP = 12;
const TICKS = 8;
/** Pixels on both sides of the brush's edges in which they can be taken. */
const GRIP = 6;
const NARROWEST = 4;

/** `GPU 0` of `GPU 0 · NVIDIA H200`, which stands in full below. */
const short = (name: string) => name.split(" · ")[0];

export class Minimap {
  readonly canvas = h("canvas", { class: "tl-minimap", "aria-hidden": "true" });
  private readonly picture = document.createElement("canvas");
  private strips: Strip[] = [];
  private width = 0;
  /** Whether there is anything of a CPU to show. */
  private readonly cpu: boolean;
  /** The names of the strips, to stand beside them. */
  readonly names: HTMLElement;
  readonly height: number;

  constructor(private readonly stage: Stage) {
    const gpus = stage.data.groups.filter((group) => group.kind === "gpu");
    this.cpu = stage.data.groups.some((group) => group.kind !== "gpu");
    this.height = TICKS + gpus.length * (STRIP + 2) + (this.cpu ? CPU_STRIP : 0) + 4;
    const names = gpus.map(({ name }) => h("div", { title: name }, short(name)));
    const cpu = this.cpu && h("div", { class: "tl-strip-cpu" }, "CPU");
    this.names = h("div", { class: "tl-strips" }, ...names, cpu);
    this.listen();
  }

  /** Draws the part that does not change with the view. */
  prepare(width: number, look: Palette): void {
    const columns = Math.max(1, Math.floor(width));
    if (columns !== this.width) {
      const { data, sums, whole } = this.stage;
      const cpu = this.cpu ? [cpuStrip(data, sums, whole, columns)] : [];
      this.strips = [...stripsOf(data, sums, whole, columns), ...cpu];
    }
    this.width = columns;
    const context = fit(this.picture, columns, this.height);
    context.fillStyle = look.band;
    context.fillRect(0, 0, columns, this.height);
    this.strips.forEach((strip, s) => {
      const tall = this.cpu && s === this.strips.length - 1 ? CPU_STRIP : STRIP;
      drawStrip(context, strip, TICKS + s * (STRIP + 2), tall, look);
    });
    context.fillStyle = look.dim;
    let before = -Infinity;
    for (const [start] of this.stage.data.steps) {
      const x = Math.round(xOf(this.stage.whole, columns, start));
      if (x - before < 3) continue;
      context.fillRect(x, 0, 1, TICKS - 2);
      before = x;
    }
  }

  draw(look: Palette): void {
    const context = fit(this.canvas, this.width, this.height);
    context.drawImage(this.picture, 0, 0, this.width, this.height);
    const [left, right] = this.brush();
    context.fillStyle = look.ground;
    context.globalAlpha = 0.62;
    context.fillRect(0, 0, left, this.height);
    context.fillRect(right, 0, this.width - right, this.height);
    context.globalAlpha = 1;
    context.strokeStyle = look.text;
    context.lineWidth = 1;
    context.strokeRect(left + 0.5, 0.5, Math.max(right - left - 1, 1), this.height - 1);
    context.fillStyle = look.text;
    for (const x of [left, right]) context.fillRect(x - 1.5, this.height / 2 - 7, 3, 14);
  }

  /** Left and right of what is in view. */
  private brush(): [number, number] {
    const { view, whole } = this.stage;
    const [left, right] = [view.start, view.end].map((t) => xOf(whole, this.width, t));
    const lacking = Math.max(0, NARROWEST - (right - left)) / 2;
    return [Math.max(0, Math.round(left - lacking)), Math.min(this.width, Math.round(right + lacking))];
  }

  private listen(): void {
    const { canvas, stage } = this;
    const at = (event: PointerEvent) => event.clientX - canvas.getBoundingClientRect().left;
    const part = (x: number) => grip(x, ...this.brush());
    let held: { part: string; x: number; view: Span } | null = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      const x = at(event);
      if (part(x) === "outside") {
        const [middle, half] = [timeAt(stage.whole, this.width, x), length(stage.view) / 2];
        stage.setView({ start: middle - half, end: middle + half });
      }
      const taken = part(x) === "outside" ? "inside" : part(x);
      held = { part: taken, x, view: stage.view };
    });
    canvas.addEventListener("pointermove", (event) => {
      const x = at(event);
      canvas.style.cursor = CURSORS[held?.part ?? part(x)];
      if (held === null) return;
      const ns = ((x - held.x) / this.width) * length(stage.whole);
      stage.setView(moved(held.view, held.part, ns));
    });
    const drop = () => (held = null);
    canvas.addEventListener("pointerup", drop);
    canvas.addEventListener("pointercancel", drop);
    canvas.addEventListener("dblclick", () => stage.glideTo(stage.whole));
  }
}

const CURSORS: Record<string, string> = { left: "ew-resize", right: "ew-resize", inside: "grab", outside: "pointer" };

/** What of the brush is at x. */
export function grip(x: number, left: number, right: number): "left" | "right" | "inside" | "outside" {
  // Of a narrow brush the middle stays free to be dragged.
  const inner = Math.min(GRIP, (right - left) / 4);
  if (x >= left - GRIP && x <= left + inner) return "left";
  if (x >= right - inner && x <= right + GRIP) return "right";
  return x > left && x < right ? "inside" : "outside";
}

/** A view after its brush was dragged; its edges do not cross. */
export function moved(view: Span, part: string, ns: number): Span {
  if (part === "left") return { start: Math.min(view.start + ns, view.end - 1), end: view.end };
  if (part === "right") return { start: view.start, end: Math.max(view.end + ns, view.start + 1) };
  return { start: view.start + ns, end: view.end + ns };
}

function drawStrip(context: CanvasRenderingContext2D, strip: Strip, y: number, height: number, look: Palette): void {
  for (let x = 0; x < strip.busy.length; x++) {
    const tall = Math.round(strip.busy[x] * height);
    if (strip.wait[x] !== NOTHING && tall < height) {
      context.fillStyle = look.fill[strip.wait[x] * LEVELS + LEVELS - 1];
      context.fillRect(x, y, 1, height - tall);
    }
    if (strip.work[x] !== NOTHING && tall > 0) {
      context.fillStyle = look.fill[strip.work[x] * LEVELS + LEVELS - 1];
      context.fillRect(x, y + height - tall, 1, tall);
    }
  }
}
