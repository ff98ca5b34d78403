// The words beside the pointer.

import { NOTHING } from "../data.ts";
import { h } from "../dom.ts";
import { duration } from "../format.ts";
import { amount, valueAt } from "./counters.ts";
import type { PointerState } from "./pointer.ts";
import type { Stage } from "./stage.ts";
import { timeAt } from "./view.ts";

const AWAY = 14;
const LONGEST = 160;

export class Tooltip {
  readonly element = h("div", { class: "tl-tip", role: "tooltip", hidden: true });

  constructor(private readonly stage: Stage) {}

  hide(): void {
    this.element.hidden = true;
  }

  /** `left` and `top` are the canvas' place in the tooltip's parent, `width` and `height` that one's size. */
  show(at: PointerState, left: number, top: number, width: number, height: number): void {
    const said = this.stage.hovered === NOTHING ? this.counter(at) : this.event(this.stage.hovered);
    if (said === null) return this.hide();
    this.element.replaceChildren(...said);
    this.element.hidden = false;
    const [w, t] = [this.element.offsetWidth, this.element.offsetHeight];
    const x = left + at.x + AWAY + w > width ? left + at.x - AWAY - w : left + at.x + AWAY;
    const y = top + at.y + AWAY + t > height ? top + at.y - AWAY - t : top + at.y + AWAY;
    this.element.style.transform = `translate(${Math.max(4, Math.round(x))}px, ${Math.max(4, Math.round(y))}px)`;
  }

  private event(event: number): HTMLElement[] {
    const { events, strings, paints } = this.stage.data;
    const name = strings[events.name[event]];
    const detail = events.detail[event] > 0 ? strings[events.detail[event] - 1] : "";
    return [
      h("div", { class: "tl-tip-name" }, short(name)),
      h("div", {}, h("strong", {}, duration(events.ns[event])), ` · ${paints[events.paint[event]]?.label ?? ""}`),
      ...(detail === "" ? [] : [h("div", { class: "tl-dim" }, short(detail))]),
    ];
  }

  private counter(at: PointerState): HTMLElement[] | null {
    const { counters, tracks } = this.stage.data;
    const line = at.row?.track == null ? undefined : counters.find((counter) => counter.track === at.row?.track);
    if (line === undefined) return null;
    const value = valueAt(line, timeAt(this.stage.view, this.stage.width, at.x));
    if (value === null) return null;
    return [h("div", {}, `${tracks[line.track].name}: `, h("strong", {}, amount(line, value)))];
  }
}

function short(text: string): string {
  return text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text;
}
