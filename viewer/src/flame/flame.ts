// Where the time goes, as trees: of the GPU, of the host, of waiting. One tab each.

import type { ReportData, Tree } from "../data.ts";
import { h } from "../dom.ts";
import { icicle } from "./icicle.ts";
import { heaviestTable } from "./names.ts";
import { startTabs } from "./tabs.ts";
import { startIcicle } from "./view.ts";

/** Fills the container. */
export function startFlame(container: HTMLElement, data: ReportData): void {
  const trees = data.trees.filter((tree) => tree.total.length > 1 && tree.total[0] > 0);
  container.classList.add("flame");
  container.replaceChildren();
  if (trees.length === 0) {
    container.append(h("p", { class: "flame-dim" }, "The recording holds nothing whose time could be told."));
    return;
  }
  const shown = new Map<Tree, () => void>();
  startTabs(
    container,
    "Trees of time",
    trees.map((tree) => ({
      id: `flame-${tree.id}`,
      title: tree.title,
      fill: (panel) => shown.set(tree, fill(panel, data, tree)),
      shown: () => shown.get(tree)?.(),
    })),
  );
}

function fill(panel: HTMLElement, data: ReportData, tree: Tree): () => void {
  const laid = icicle(tree);
  const view = startIcicle(panel, data, laid);
  panel.append(heaviestTable(data, laid, (name) => view.search(name)));
  panel.append(
    h(
      "p",
      { class: "flame-hint flame-dim" },
      "Click a bar to zoom in, a bar above to zoom out. Keys: arrows, Enter, Esc.",
    ),
  );
  return view.shown;
}
