// Tabs as readers of screens know them: one is in the tab order, arrow keys go round.

import { h } from "../dom.ts";

export interface Tab {
  id: string;
  title: string;
  /** Fills its panel; called when the tab is first shown. */
  fill(panel: HTMLElement): void;
  /** Called whenever the tab is shown again. */
  shown?(): void;
}

/** Puts tabs and their panels into a container and shows the first. */
export function startTabs(container: HTMLElement, label: string, all: readonly Tab[]): void {
  const list = h("div", { role: "tablist", "aria-label": label, class: "flame-tabs" });
  const filled = new Set<number>();
  const buttons = all.map(({ id, title }) =>
    h("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": `panel-${id}` }, title),
  );
  const panels = all.map(({ id }) => h("div", { role: "tabpanel", id: `panel-${id}`, "aria-labelledby": `tab-${id}` }));
  const select = (chosen: number, focus: boolean) => {
    buttons.forEach((button, i) => {
      button.setAttribute("aria-selected", String(i === chosen));
      button.tabIndex = i === chosen ? 0 : -1;
      panels[i].hidden = i !== chosen;
    });
    if (focus) buttons[chosen].focus();
    if (!filled.has(chosen)) {
      filled.add(chosen);
      all[chosen].fill(panels[chosen]);
    } else all[chosen].shown?.();
  };
  buttons.forEach((button, i) => {
    button.addEventListener("click", () => select(i, false));
    button.addEventListener("keydown", (event) => {
      const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: all.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      select((to + all.length) % all.length, true);
    });
  });
  list.append(...buttons);
  container.append(list, ...panels);
  select(0, false);
}
