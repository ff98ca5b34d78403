// What stands above the table: the filter, what to group by, what to copy.

import { chip } from "../chip.ts";
import type { Paint } from "../data.ts";
import { h } from "../dom.ts";
import { type Grouping, GROUPINGS, type Line } from "./lines.ts";

export interface Choices {
  text(text: string): void;
  category(name: string, chosen: boolean): void;
  phase(name: string, chosen: boolean): void;
  group(by: Grouping | null): void;
  copy(): void;
}

export function toolbar(lines: readonly Line[], paints: readonly Paint[], choices: Choices): HTMLElement {
  const input = h("input", { type: "search", placeholder: "Filter: words of name, op, module …", "aria-label": "Filter kernels" });
  input.addEventListener("input", () => choices.text(input.value));
  const group = h("select", {}, h("option", { value: "" }, "nothing"));
  group.append(...GROUPINGS.map((by) => h("option", { value: by }, by)));
  group.addEventListener("change", () => choices.group(GROUPINGS.find((by) => by === group.value) ?? null));
  const copy = h("button", { type: "button" }, "Copy as TSV");
  copy.addEventListener("click", choices.copy);
  const categories = byTime(lines, (line) => line.category);
  const phases = byTime(lines, (line) => line.phase);
  const paint = new Map(lines.map((line) => [line.category, line.paint]));
  return h(
    "div",
    { class: "kernels-bar" },
    h("div", { class: "kernels-line" }, input, h("label", {}, "group by ", group), copy),
    categories.length > 1 &&
      choice("Categories", categories, choices.category, (name) => chip(paints[paint.get(name) ?? 0])),
    phases.length > 1 && choice("Phases", phases, choices.phase, () => null),
  );
}

function choice(
  label: string,
  names: readonly string[],
  chosen: (name: string, chosen: boolean) => void,
  mark: (name: string) => HTMLElement | null,
): HTMLElement {
  const buttons = names.map((name) => {
    const button = h("button", { type: "button", "aria-pressed": "false", class: "kernels-choice" }, mark(name), name);
    button.addEventListener("click", () => {
      const now = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(now));
      chosen(name, now);
    });
    return button;
  });
  return h("div", { role: "group", "aria-label": label, class: "kernels-line" }, ...buttons);
}

/** Words that are known, by the time of their lines. */
function byTime(lines: readonly Line[], word: (line: Line) => string): string[] {
  const ns = new Map<string, number>();
  for (const line of lines) if (word(line) !== "") ns.set(word(line), (ns.get(word(line)) ?? 0) + line.ns);
  return [...ns].sort((a, b) => b[1] - a[1]).map(([name]) => name);
}
