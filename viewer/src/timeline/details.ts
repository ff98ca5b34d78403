// The panel under the tracks: everything known about the selected event, and what a measured range holds.

import { NOTHING, type ReportData } from "../data.ts";
import { h } from "../dom.ts";
import { count, duration, moment, share } from "../format.ts";
import { colour } from "../theme.ts";
import type { Facts } from "./facts.ts";
import { measure, type Share, type Stretch } from "./measure.ts";
import type { Stage } from "./stage.ts";

/** Entries of a stack that are listed: the outermost and the innermost say most. */
const MOST_STACK = 12;
const LISTED_WORK = 8;
const LISTED_SHARES = 5;

type Entry = [string, (Node | string)[]];

export function detailsOf(stage: Stage, facts: Facts): HTMLElement {
  const { data } = stage;
  const entries = [...timeOf(facts), ...gpuOf(stage, facts), ...workOf(stage, facts), ...aroundOf(stage, facts)];
  const rows = entries.flatMap(([term, told]) => [h("dt", {}, term), h("dd", {}, ...told)]);
  const zoom = h("button", { type: "button", class: "tl-button" }, "Zoom to it");
  zoom.addEventListener("click", () => stage.show(facts.event, true));
  return h(
    "div",
    { class: "tl-facts", role: "group", "aria-label": "Selected event" },
    h(
      "div",
      { class: "tl-title" },
      swatch(data, data.events.paint[facts.event]),
      h("strong", {}, facts.name),
      h("span", { class: "tl-dim" }, told(facts) ? "" : facts.label),
      zoom,
    ),
    facts.full !== null && facts.full !== facts.name && h("p", { class: "tl-full-name" }, facts.full),
    facts.detail !== null && h("p", { class: "tl-detail" }, facts.detail),
    h("dl", {}, ...rows),
  );
}

/** Whether what the colour means is said already. */
function told({ label, name, detail }: Facts): boolean {
  return label === name || (detail ?? "").startsWith(label);
}

function timeOf(facts: Facts): Entry[] {
  const ofStep = facts.step === null ? "" : ` · ${share(facts.ns, facts.step.ns)} of step ${facts.step.index + 1}`;
  return [
    ["took", [h("strong", {}, duration(facts.ns)), ofStep]],
    ["started", [`${moment(facts.start, Math.max(1, facts.ns / 100))} · ${facts.place}`]],
  ];
}

function gpuOf(stage: Stage, facts: Facts): Entry[] {
  const entries: Entry[] = [];
  if (facts.launch !== NOTHING) {
    const queued = facts.queuedNs === null ? "" : `, ${duration(facts.queuedNs)} before it started`;
    entries.push(["launched by", [jump(stage, facts.launch), queued]]);
  }
  if (facts.awaited !== NOTHING) entries.push(["waits for", [jump(stage, facts.awaited)]]);
  return entries;
}

function workOf(stage: Stage, facts: Facts): Entry[] {
  const { work } = facts;
  if (work === null || work.count === 0) return [];
  const some = Array.from(work.events.subarray(0, LISTED_WORK)).flatMap((event, i) => [
    i > 0 ? ", " : "",
    jump(stage, event),
  ]);
  const rest = work.count > LISTED_WORK ? ` and ${count(work.count - LISTED_WORK)} more` : "";
  return [
    [
      "GPU time",
      [
        h("strong", {}, duration(work.ns)),
        ` of work launched from here, in ${count(work.count)} ${work.count === 1 ? "piece" : "pieces"}`,
      ],
    ],
    ["launched", [...some, rest]],
  ];
}

function aroundOf(stage: Stage, facts: Facts): Entry[] {
  const entries: Entry[] = [];
  const { stack } = facts;
  if (stack.length > 0) {
    const half = MOST_STACK / 2;
    const left = stack.length > MOST_STACK ? [...stack.slice(0, half), NOTHING, ...stack.slice(-half)] : stack;
    entries.push([
      "inside of",
      left.flatMap((event, i) => [i > 0 ? " › " : "", event === NOTHING ? "…" : jump(stage, event)]),
    ]);
  }
  if (facts.frame !== NOTHING) entries.push(["Python", [jump(stage, facts.frame)]]);
  return entries;
}

/** A button that bears an event's name and shows it. */
function jump(stage: Stage, event: number): HTMLElement {
  const { strings, events } = stage.data;
  const link = h(
    "button",
    { type: "button", class: "tl-jump", title: `${duration(events.ns[event])}: show it` },
    strings[events.name[event]],
  );
  link.addEventListener("click", () => stage.show(event, false));
  return link;
}

export function swatch(data: ReportData, paint: number): HTMLElement {
  const element = h("span", {
    class: data.paints[paint]?.wait ? "tl-swatch tl-wait" : "tl-swatch",
    "aria-hidden": "true",
  });
  element.style.setProperty("--paint", data.paints[paint] === undefined ? "transparent" : colour(data.paints[paint]));
  return element;
}

export function measuredOf(stage: Stage, start: number, end: number): HTMLElement {
  const { data, sums } = stage;
  const clear = h("button", { type: "button", class: "tl-button" }, "Clear");
  clear.addEventListener("click", () => stage.setMeasured(null));
  const gpus = measure(data, sums, start, end).map((stretch) => stretchOf(data, stretch, end - start));
  return h(
    "div",
    { class: "tl-facts", role: "group", "aria-label": "Measured range" },
    h(
      "div",
      { class: "tl-title" },
      h("strong", {}, duration(end - start)),
      h("span", { class: "tl-dim" }, `measured, from ${moment(start, (end - start) / 100)}`),
      clear,
    ),
    h("dl", {}, ...gpus.flat()),
  );
}

function stretchOf(data: ReportData, stretch: Stretch, whole: number): HTMLElement[] {
  const busy = [h("strong", {}, share(stretch.busyNs, whole)), ` busy, ${duration(stretch.busyNs)}`];
  return [
    h("dt", {}, data.groups[stretch.group].name),
    h("dd", {}, ...busy),
    ...listed(data, "runs", stretch.work),
    ...listed(data, "idle for", stretch.waits),
  ];
}

function listed(data: ReportData, term: string, shares: readonly Share[]): HTMLElement[] {
  if (shares.length === 0) return [];
  const told = shares
    .slice(0, LISTED_SHARES)
    .map(({ paint, ns }) =>
      h("span", { class: "tl-share" }, swatch(data, paint), `${data.paints[paint].label} ${duration(ns)}`),
    );
  return [h("dt", {}, term), h("dd", {}, ...told)];
}
