// The timeline: puts its parts together, and shows what the rest of the page asks for.

import { NOTHING, type ReportData } from "../data.ts";
import { onPaper } from "../paper.ts";
import { onTheme } from "../theme.ts";
import { fillGutter } from "./gutter.ts";
import { hooksOf } from "./hooks.ts";
import { press, type KeyTargets } from "./keys.ts";
import { legends } from "./legend.ts";
import { Minimap } from "./minimap.ts";
import { parts, type Parts } from "./parts.ts";
import { startPointer } from "./pointer.ts";
import { Screen } from "./screen.ts";
import { sizing } from "./sizing.ts";
import { Stage } from "./stage.ts";
import { eventNamed, tracksNamed } from "./target.ts";
import { tellDetails, tellHint } from "./telling.ts";
import "./timeline.css";
import { toolbar, type Toolbar } from "./toolbar.ts";
import { Tooltip } from "./tooltip.ts";
import { around } from "./view.ts";

/** Pixels at the top of the window that may be covered. */
const HEADING = 60;
/** An event and a range that take this much of each other are the same to a reader. */
const MOST_OF = 0.8;
const WHOLE_WINDOW = "tl-whole-window";

export interface TimelineView {
  /** Zooms to a range of time and selects the event there whose name contains `what`, on the track of that name. */
  reveal(start_ns: number, ns: number, track: string, what: string): void;
  /** Looks for events by name and goes to the first. */
  search(text: string): void;
}

export function startTimeline(container: HTMLElement, data: ReportData): TimelineView {
  const stage = new Stage(data);
  const minimap = new Minimap(stage);
  const tooltip = new Tooltip(stage);
  const all = parts(minimap.canvas, minimap.names, tooltip.element);
  const bar = toolbar(
    stage,
    () => setFull(!all.frame.classList.contains(WHOLE_WINDOW)),
    () => all.tracks.focus({ preventScroll: true }),
  );
  all.frame.prepend(bar.element);
  all.frame.append(bar.help);
  container.setAttribute("role", "region");
  if (!container.hasAttribute("aria-label")) container.setAttribute("aria-label", "Timeline");
  container.replaceChildren(all.frame);

  const screen = new Screen(all, stage, minimap);
  const size = sizing(all.frame, all.scroller, all.tall, all.handle, stage, () => screen.resized());
  const setFull = (full: boolean) => {
    all.frame.classList.toggle(WHOLE_WINDOW, full);
    size();
  };
  stage.onChange((change) => {
    if (change === "rows") {
      fillGutter(all.gutter, stage);
      size();
    } else if (change === "view") {
      // What was under the pointer has moved away from it.
      tooltip.hide();
      stage.hover(NOTHING);
    } else if (change === "selection" || change === "measure") screen.arrows = tellDetails(all, stage);
    else if (change === "mode") tellHint(all, stage);
    screen.ask();
  });
  const restyle = () => {
    screen.restyled();
    screen.arrows = tellDetails(all, stage);
    all.legend.replaceChildren(legends(data));
  };
  // The theme changes first: listeners that hear of paper later draw in the light one.
  onTheme(restyle);
  onPaper(
    () => {
      setFull(false);
      size("paper");
      screen.draw();
    },
    () => size("screen"),
  );
  startScrolling(all, stage, screen, tooltip);
  startPointing(all, stage, screen, tooltip);
  startKeys(all, stage, screen, bar, setFull);

  fillGutter(all.gutter, stage);
  tellHint(all, stage);
  size();
  restyle();
  window.gpuprofTimeline = hooksOf(stage, () => screen.draw());
  return {
    reveal: (start_ns, ns, track, what) => {
      bringIntoView(all.box);
      reveal(stage, start_ns, ns, track, what);
    },
    search: (text) => {
      bringIntoView(all.box);
      bar.look(text);
      if (stage.found !== null && stage.found.length > 0) stage.show(stage.found[0], false);
    },
  };
}

function startScrolling({ scroller }: Parts, stage: Stage, screen: Screen, tooltip: Tooltip): void {
  const moved = () => {
    stage.scroll = scroller.scrollTop;
    tooltip.hide();
    stage.hover(NOTHING);
    screen.ask();
  };
  stage.scrollTo = (y) => {
    scroller.scrollTop = y;
    moved();
  };
  scroller.addEventListener("scroll", moved);
}

function startPointing({ tracks, tall, scroller, box }: Parts, stage: Stage, screen: Screen, tooltip: Tooltip): void {
  startPointer(tracks, stage, (at) => {
    screen.pointer = at?.x ?? null;
    if (at === null || at.row === undefined) tooltip.hide();
    else {
      const [left, top] = [tracks.offsetLeft + tall.offsetLeft, scroller.offsetTop];
      tooltip.show(at, left, top, box.clientWidth, box.clientHeight);
    }
    screen.ask();
  });
}

function startKeys(all: Parts, stage: Stage, screen: Screen, bar: Toolbar, setFull: (full: boolean) => void): void {
  const { tracks, frame } = all;
  const targets: KeyTargets = {
    pointer: () => screen.pointer,
    focusSearch: () => bar.search.focus(),
    clearSearch: () => bar.look(""),
    help: () => bar.help.showModal(),
    leaveFull: () => {
      const was = frame.classList.contains(WHOLE_WINDOW);
      if (was) setFull(false);
      return was;
    },
  };
  tracks.addEventListener("keydown", (event) => {
    if (press(event, tracks, stage, targets)) event.preventDefault();
  });
  // Letters work wherever the pointer rests on the timeline, unless something else is being typed into; arrows and the
  // like stay the page's.
  document.addEventListener("keydown", (event) => {
    const free = document.activeElement === document.body || document.activeElement === null;
    if (!free || event.key.length !== 1 || !frame.matches(":hover")) return;
    if (press(event, tracks, stage, targets)) event.preventDefault();
  });
  frame.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.defaultPrevented) targets.leaveFull();
  });
  for (const change of ["focus", "blur"]) tracks.addEventListener(change, () => tellHint(all, stage));
}

function reveal(stage: Stage, start: number, ns: number, track: string, what: string): void {
  const { data } = stage;
  stage.glideTo(around(start, ns, stage.whole));
  const event = eventNamed(data, start, ns, tracksNamed(data, track), what);
  // The measure of a range of many events says what they are.
  const its = event === NOTHING ? 0 : data.events.ns[event];
  const meant = its > MOST_OF * ns && ns > MOST_OF * its;
  stage.setMeasured(meant || ns <= 0 ? null : { start, end: start + ns });
  if (event === NOTHING) return;
  stage.select(event);
  stage.uncover(event);
  stage.flash();
}

/** Scrolls the page where the tracks are not seen whole: the page's heading may cover its top. */
function bringIntoView(box: HTMLElement): void {
  const { top, bottom } = box.getBoundingClientRect();
  if (top < HEADING || bottom > window.innerHeight) box.scrollIntoView({ block: "center" });
}
