// The names of groups and tracks left of the tracks, each a button that folds.

import { h } from "../dom.ts";
import type { Row } from "./rows.ts";
import type { Stage } from "./stage.ts";

/** Puts the names where the tracks are; keeps the focus where it was. */
export function fillGutter(gutter: HTMLElement, stage: Stage): void {
  const focused = gutter.contains(document.activeElement)
    ? (document.activeElement as HTMLElement).dataset.row
    : undefined;
  gutter.replaceChildren(...stage.rows.rows.map((row) => heading(row, stage)));
  if (focused !== undefined)
    gutter.querySelector<HTMLElement>(`[data-row="${focused}"]`)?.focus({ preventScroll: true });
}

function heading(row: Row, stage: Stage): HTMLElement {
  const isGroup = row.track === null;
  const name = isGroup ? stage.data.groups[row.group].name : stage.data.tracks[row.track as number].name;
  const button = h(
    "button",
    {
      type: "button",
      class: isGroup ? "tl-name tl-group" : "tl-name",
      "data-row": `${row.group}-${row.track ?? "group"}`,
      "aria-expanded": String(row.open),
      title: name,
    },
    h("span", { class: "tl-fold", "aria-hidden": "true" }, row.open ? "▾" : "▸"),
    h("span", { class: "tl-text" }, name),
  );
  button.style.top = `${row.y}px`;
  button.style.height = `${row.height}px`;
  button.addEventListener("click", () => stage.fold(row.group, row.track, row.open));
  return button;
}
