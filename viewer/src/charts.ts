// Draws the page's charts: figures made by Python, each beside its place. The library that draws them comes packed
// in the page and is unpacked once, when a chart comes near or the page has nothing else to do.

import { h } from "./dom.ts";
import { inflate } from "./packed.ts";
import { onPaper, PAPER_PX } from "./paper.ts";
import { onTheme, type Theme, theme } from "./theme.ts";

type Json = { [key: string]: unknown };

/** A figure with what both themes change of it: paths to values, in the meta of its layout and of each trace. */
export interface Figure {
  data: Json[];
  layout: Json;
}

/** What is used of the library. */
interface Plotly {
  newPlot(place: HTMLElement, data: Json[], layout: Json, config: Json): Promise<unknown>;
  react(place: HTMLElement, data: Json[], layout: Json, config: Json): Promise<unknown>;
  relayout(place: HTMLElement, patch: Json): Promise<unknown>;
}

declare global {
  interface Window {
    Plotly?: Plotly;
  }
}

interface Chart {
  name: string;
  place: HTMLElement;
  state: "waiting" | "drawn" | "failed";
  /** What it is drawn in; null until then. */
  stage: HTMLElement | null;
  figure: Figure | null;
}

const CONFIG: Json = { displayModeBar: false, displaylogo: false, responsive: true, showTips: false };
/** Pixels below which a chart is drawn as its figure says for narrow ones. */
const NARROW = 460;
/** How far below the screen a chart is drawn ahead. */
const NEAR = "400px";

/** Finds the charts of the page and draws each in its time. `<html data-charts="drawn">` once all are. */
export function startCharts(): void {
  const charts = [...document.querySelectorAll<HTMLElement>(".chart[data-chart]")].map(
    (place): Chart => ({ name: place.dataset.chart ?? "", place, state: "waiting", stage: null, figure: null }),
  );
  let library: Promise<Plotly> | null = null;
  const draw = async (chart: Chart): Promise<void> => {
    if (chart.state !== "waiting") return;
    try {
      library ??= load();
      const plotly = await library;
      // Another call may have drawn it meanwhile.
      if (chart.state === "waiting") await drawInto(chart, plotly);
    } catch (error) {
      fail(chart, error);
    }
    if (charts.every(({ state }) => state !== "waiting")) finish();
  };

  const near = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        near.unobserve(entry.target);
        const chart = charts.find(({ place }) => place === entry.target);
        if (chart !== undefined) void draw(chart);
      }
    },
    { rootMargin: NEAR },
  );
  for (const { place } of charts) near.observe(place);
  whenLoaded(() => drawIdly(charts, draw));
  if (charts.length === 0) finish();

  const drawn = () => charts.filter(({ state }) => state === "drawn");
  onTheme(() => {
    for (const { figure, stage } of drawn()) {
      if (figure === null || stage === null) continue;
      paint(figure, theme());
      void window.Plotly?.react(stage, figure.data, figure.layout, CONFIG);
    }
  });
  const resize = (size: Json) => {
    for (const { stage } of drawn()) if (stage) void window.Plotly?.relayout(stage, size);
  };
  onPaper(
    () => {
      for (const chart of charts) if (chart.state === "waiting" && window.Plotly) void drawInto(chart, window.Plotly);
      resize({ width: PAPER_PX, autosize: false });
    },
    () => resize({ width: null, autosize: true }),
  );
}

/** Sets the colours of a theme in a figure. */
export function paint(figure: Figure, now: Theme): void {
  for (const part of [figure.layout, ...figure.data]) {
    const themes = part.meta as Partial<Record<Theme, Json>> | undefined;
    for (const [path, value] of Object.entries(themes?.[now] ?? {})) set(part, path.split("."), value);
  }
}

/** Applies what a figure changes of its layout where there is little width. */
function adapt(figure: Figure): void {
  const meta = figure.layout.meta as { narrow?: Json } | undefined;
  for (const [path, value] of Object.entries(meta?.narrow ?? {})) set(figure.layout, path.split("."), value);
}

function set(target: Json, path: string[], value: unknown): void {
  let place = target;
  for (const key of path.slice(0, -1)) {
    const below = Object.hasOwn(place, key) ? place[key] : undefined;
    if (typeof below === "object" && below !== null) place = below as Json;
    else place = place[key] = {} as Json;
  }
  place[path[path.length - 1]] = value;
}

async function drawInto(chart: Chart, plotly: Plotly): Promise<void> {
  const source = document.getElementById(`chart-${chart.name}`);
  if (source === null) throw new Error("its figure is missing");
  const figure = JSON.parse(source.textContent ?? "") as Figure;
  // What a reader has zoomed to stays when the colours change.
  figure.layout.uirevision ??= "kept";
  if (chart.place.clientWidth < NARROW) adapt(figure);
  paint(figure, theme());
  const stage = h("div", { class: "chart-stage" });
  const before = [...chart.place.childNodes];
  chart.place.prepend(stage);
  chart.state = "drawn";
  try {
    const drawing = plotly.newPlot(stage, figure.data, figure.layout, CONFIG);
    for (const node of before) node.remove();
    chart.figure = figure;
    chart.stage = stage;
    await drawing;
  } catch (error) {
    stage.remove();
    chart.place.append(...before);
    throw error;
  }
}

/** Leaves what the page says in the chart's place and adds why it is not drawn. */
function fail(chart: Chart, error: unknown): void {
  chart.state = "failed";
  chart.stage = null;
  const text = error instanceof Error ? error.message : String(error);
  chart.place.append(h("p", { class: "issue" }, `This chart cannot be drawn: ${text}`));
}

function finish(): void {
  // What the library measures texts with stays in the page, and is nothing to read.
  document.getElementById("js-plotly-tester")?.setAttribute("aria-hidden", "true");
  document.documentElement.dataset.charts = "drawn";
}

/** The page's policy lets exactly this text run: it must be as it was packed. */
async function load(): Promise<Plotly> {
  const packed = document.getElementById("plotly");
  if (packed === null) throw new Error("the page carries no charts library");
  const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(await inflate(packed));
  document.head.append(script(text));
  if (window.Plotly === undefined) throw new Error("the charts library did not start");
  return window.Plotly;
}

function script(text: string): HTMLScriptElement {
  const element = h("script");
  element.textContent = text;
  return element;
}

function whenLoaded(then: () => void): void {
  if (document.readyState === "complete") then();
  else window.addEventListener("load", then, { once: true });
}

/** One chart at a time, each when nothing else is to be done. */
function drawIdly(charts: readonly Chart[], draw: (chart: Chart) => Promise<void>): void {
  const idle = window.requestIdleCallback ?? ((then: () => void) => window.setTimeout(then, 200));
  const next = () => {
    const chart = charts.find(({ state }) => state === "waiting");
    if (chart !== undefined) idle(() => void draw(chart).then(next), { timeout: 5000 });
  };
  next();
}
