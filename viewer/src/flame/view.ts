// One tree as an icicle: what part of it is seen, what is pointed at, and how both change.

import type { ReportData } from "../data.ts";
import { fit, h } from "../dom.ts";
import { count, duration, share } from "../format.ts";
import { onPaper, PAPER_PX } from "../paper.ts";
import { onTheme } from "../theme.ts";
import { barAt, bars, type Bars, narrowChildren, type Range } from "./bars.ts";
import { fillBreadcrumb } from "./breadcrumb.ts";
import { type Icicle, wider } from "./icicle.ts";
import { type Matches, search } from "./matches.ts";
import { type Arrow, move } from "./move.ts";
import { painter, ROW, timed } from "./paint.ts";
import { brief, restWords, tooltip, words } from "./tooltip.ts";

const MOST_ROWS = 32;
const LEAST_ROWS = 8;
const MOVE_MS = 180;

export interface IcicleView {
  search(text: string): void;
  /** To be called when the panel is shown again: its width may have changed. */
  shown(): void;
}

export function startIcicle(panel: HTMLElement, data: ReportData, icicle: Icicle): IcicleView {
  const { tree } = icicle;
  const canvas = h("canvas", {
    tabindex: "0",
    role: "application",
    "aria-label": `${tree.title}: ${tree.levels}. Arrow keys move, Enter zooms in, Escape out.`,
  });
  const space = h("div", { class: "flame-space" }, canvas);
  const scroller = h("div", { class: "flame-scroll" }, space);
  const crumbs = h("ol", {});
  const input = h("input", { type: "search", placeholder: "Search a name", "aria-label": `Search in ${tree.title}` });
  const found_line = h("output", { class: "flame-found" });
  const spoken = h("p", { class: "flame-spoken", "aria-live": "polite" });
  const tip = tooltip();
  panel.append(
    h(
      "div",
      { class: "flame-bar" },
      h("p", { class: "flame-levels" }, tree.levels, tree.note !== "" && h("span", { class: "flame-dim" }, ` — ${tree.note}`)),
      h("div", { class: "flame-search" }, found_line, input),
    ),
    h("nav", { "aria-label": `Place in ${tree.title}`, class: "flame-crumbs" }, crumbs),
    scroller,
    spoken,
    tip.element,
  );

  const paint = painter(data, tree, `12px ${getComputedStyle(panel).fontFamily}`);
  let range: Range = { start: 0, end: tree.total[0] };
  let zoomed = 0;
  let hovered = -1;
  let selected = -1;
  let matches: Matches | null = null;
  let match_at = -1;
  let width = 0;
  /** While moving, the view keeps the height that it had. */
  let height = 0;
  let shown: Bars | null = null;
  let frame = 0;
  let motion = 0;

  const draw = () => {
    frame = 0;
    if (width <= 0) return;
    shown ??= bars(icicle, range, width);
    const rows = shown.rows.length - 1;
    if (motion === 0) height = Math.min(MOST_ROWS, Math.max(LEAST_ROWS, rows)) * ROW;
    scroller.style.height = `${height}px`;
    space.style.height = `${Math.max(rows * ROW, height)}px`;
    paint.draw(fit(canvas, width, height), {
      bars: shown,
      top: scroller.scrollTop,
      width,
      height,
      zoomed_row: icicle.depth[zoomed],
      hovered,
      selected,
      matches,
      moving: motion !== 0,
    });
  };
  const redraw = () => {
    if (frame === 0) frame = requestAnimationFrame(draw);
  };
  const look = (next: Range) => {
    range = next;
    shown = null;
  };

  const zoom = (node: number) => {
    zoomed = node;
    tip.hide();
    hovered = -1;
    fillBreadcrumb(crumbs, data, tree, node, zoom);
    const from = range;
    const to = { start: icicle.start[node], end: icicle.start[node] + tree.total[node] };
    cancelAnimationFrame(motion);
    motion = 0;
    const land = () => {
      motion = 0;
      look(to);
      draw();
      const row = icicle.depth[node] * ROW;
      if (row < scroller.scrollTop || row > scroller.scrollTop + scroller.clientHeight - 3 * ROW) {
        scroller.scrollTop = Math.max(0, row - 3 * ROW);
      }
    };
    if (window.matchMedia("(prefers-reduced-motion: reduce)").matches) return land();
    const began = performance.now();
    const step = (now: number) => {
      const part = Math.min(1, (now - began) / MOVE_MS);
      if (part >= 1) return land();
      const eased = 1 - (1 - part) ** 3;
      look({ start: from.start + (to.start - from.start) * eased, end: from.end + (to.end - from.end) * eased });
      motion = requestAnimationFrame(step);
      draw();
    };
    motion = requestAnimationFrame(step);
  };

  const select = (node: number) => {
    selected = node;
    spoken.textContent = `${brief(data.strings[tree.name[node]], 120)}: ${timed(data, tree, node)} a step`;
    const row = icicle.depth[node] * ROW;
    if (row < scroller.scrollTop) scroller.scrollTop = row;
    if (row + ROW > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = row + ROW - scroller.clientHeight;
    redraw();
  };

  const find = (text: string) => {
    matches = search(tree, data.strings, data.full, text);
    match_at = -1;
    found_line.textContent =
      matches === null
        ? ""
        : matches.count === 0
          ? "nothing found"
          : `${count(matches.count)} found: ${duration(matches.ns / data.step_count)} a step (${share(matches.ns, tree.total[0])})`;
    redraw();
  };

  const at = (event: MouseEvent): number => {
    const box = canvas.getBoundingClientRect();
    if (shown === null) return -1;
    const row = Math.floor((event.clientY - box.top + scroller.scrollTop) / ROW);
    return barAt(shown, row, event.clientX - box.left);
  };

  canvas.addEventListener("pointermove", (event) => {
    const bar = at(event);
    canvas.style.cursor = bar < 0 ? "default" : "pointer";
    const node = bar < 0 || shown === null ? null : shown.node[bar];
    if (node === null) tip.hide();
    else if (node >= 0) {
      const { name, full, lines } = words(data, icicle, node);
      tip.show(event.clientX, event.clientY, name, full, lines);
    } else {
      const rest = narrowChildren(icicle, ~node, range, width);
      const lines = restWords(data, tree, ~node, rest);
      tip.show(event.clientX, event.clientY, `${count(rest.length)} more, too narrow to draw`, "", lines);
    }
    const now = node !== null && node >= 0 ? node : -1;
    if (now !== hovered) {
      hovered = now;
      redraw();
    }
  });
  canvas.addEventListener("pointerleave", () => {
    tip.hide();
    hovered = -1;
    redraw();
  });
  canvas.addEventListener("click", (event) => {
    const bar = at(event);
    if (bar < 0 || shown === null) return;
    const node = shown.node[bar] < 0 ? ~shown.node[bar] : shown.node[bar];
    selected = -1;
    zoom(node);
  });
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.startsWith("Arrow")) {
      if (selected < 0) select(zoomed);
      else if (shown !== null) select(move(icicle, shown, selected, event.key as Arrow));
    } else if (event.key === "Enter" || event.key === " ") zoom(selected < 0 ? zoomed : selected);
    else if (event.key === "Escape") zoom(wider(tree, zoomed));
    else if (event.key === "Home" || event.key === "0") zoom(0);
    else return;
    event.preventDefault();
  });
  input.addEventListener("input", () => find(input.value));
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || matches === null || matches.outermost.length === 0) return;
    const step = event.shiftKey ? matches.outermost.length - 1 : 1;
    match_at = match_at < 0 ? 0 : (match_at + step) % matches.outermost.length;
    const match = matches.outermost[match_at];
    const is_leaf = icicle.first[match] === icicle.first[match + 1];
    zoom(is_leaf && match !== 0 ? tree.parent[match] : match);
    select(match);
  });
  scroller.addEventListener("scroll", () => {
    tip.hide();
    redraw();
  });
  const resize = () => {
    const now = scroller.clientWidth;
    if (now === width || now === 0) return;
    width = now;
    shown = null;
    draw();
  };
  new ResizeObserver(resize).observe(scroller);
  onTheme(() => {
    paint.restyle();
    draw();
  });
  // Paper is narrower than a screen, and what is drawn small cannot be read.
  onPaper(
    () => {
      if (width === 0) return;
      width = PAPER_PX;
      shown = null;
      draw();
    },
    () => {
      width = 0;
      resize();
    },
  );
  fillBreadcrumb(crumbs, data, tree, 0, zoom);
  resize();
  return {
    search(text) {
      input.value = text;
      find(text);
    },
    shown: resize,
  };
}
