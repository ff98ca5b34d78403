// Brings a report to life: without it the page's words and numbers stand by themselves.

import { startCharts } from "./charts.ts";
import { startCopying } from "./code.ts";
import { unpack, type ReportData } from "./data.ts";
import { h } from "./dom.ts";
import { startFlame } from "./flame/flame.ts";
import { startKernels } from "./kernels/kernels.ts";
import { inflate } from "./packed.ts";
import { startTheme } from "./theme.ts";
import { startTimeline } from "./timeline/timeline.ts";
import "./viewer.css";

startTheme(document.getElementById("theme"));
void start();

async function start(): Promise<void> {
  const packed = document.getElementById("data");
  if (packed !== null) {
    try {
      show(unpack(await inflate(packed)));
    } catch (error) {
      complain(error);
    }
  }
  startCopying(document);
  startCharts();
  document.documentElement.dataset.ready = "yes";
}

function show(data: ReportData): void {
  const at = (id: string) => document.getElementById(id);
  const timeline = at("timeline-view");
  const flame = at("flame-view");
  const kernels = at("kernels-view");
  const shown = timeline && startTimeline(timeline, data);
  if (flame) startFlame(flame, data);
  if (kernels) startKernels(kernels, data, (name) => shown?.search(name));
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest<HTMLElement>("[data-start]") : null;
    if (link === null || !shown) return;
    event.preventDefault();
    shown.reveal(Number(link.dataset.start), Number(link.dataset.ns), link.dataset.track ?? "", link.dataset.what ?? "");
  });
}

function complain(error: unknown): void {
  const text = error instanceof Error ? error.message : String(error);
  document.querySelector("main")?.prepend(h("p", { class: "issue error" }, `The views cannot be drawn: ${text}`));
}
