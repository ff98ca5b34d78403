// What the timeline says in words of its state: a hint, and the panels of what is selected and measured.

import { NOTHING } from "../data.ts";
import { duration } from "../format.ts";
import { detailsOf, measuredOf } from "./details.ts";
import { arrowsOf, factsOf } from "./facts.ts";
import type { Parts } from "./parts.ts";
import type { Stage } from "./stage.ts";

export function tellHint({ hint, tracks }: Parts, stage: Stage): void {
  const wheel = document.activeElement === tracks ? "wheel zooms · Esc: it scrolls" : "W A S D · a click: the wheel";
  hint.textContent = stage.measuring ? "drag over a range" : wheel;
  tracks.classList.toggle("tl-measuring", stage.measuring);
}

/** Fills the panels; the GPU work whose launch arrows should show. */
export function tellDetails({ details, said }: Parts, stage: Stage): Uint32Array {
  const { data, selected, measured } = stage;
  const facts = selected === NOTHING ? null : factsOf(data, stage.launches, selected);
  details.replaceChildren(
    ...(measured === null ? [] : [measuredOf(stage, measured.start, measured.end)]),
    ...(facts === null ? [] : [detailsOf(stage, facts)]),
  );
  details.hidden = measured === null && facts === null;
  const words = facts === null ? "" : `${facts.name}, ${duration(facts.ns)}, ${facts.place}`;
  if (said.textContent !== words) said.textContent = words;
  return facts === null ? new Uint32Array(0) : arrowsOf(facts);
}
