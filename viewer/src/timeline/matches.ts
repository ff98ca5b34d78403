// Finding events by name.

import { NOTHING, type ReportData } from "../data.ts";

/** Events whose name contains the text, whatever its case, ascending; null where there is nothing to look for. */
export function matching(data: ReportData, text: string): Uint32Array | null {
  const wanted = text.trim().toLowerCase();
  if (wanted === "") return null;
  const hit = Uint8Array.from(data.strings, (_, s) => (holds(data, s, wanted) ? 1 : 0));
  const { name } = data.events;
  let count = 0;
  for (let i = 0; i < name.length; i++) count += hit[name[i]];
  const found = new Uint32Array(count);
  for (let i = 0, k = 0; k < count; i++) if (hit[name[i]] === 1) found[k++] = i;
  return found;
}

/** Whether a string of the report, as shown or whole, contains a text in lower case; `…` stands for anything. */
export function holds(data: Pick<ReportData, "strings" | "full">, string: number, wanted: string): boolean {
  return (
    contains(data.strings[string], wanted) || (data.full[string] !== undefined && contains(data.full[string], wanted))
  );
}

function contains(text: string, wanted: string): boolean {
  const lower = text.toLowerCase();
  if (lower.includes(wanted)) return true;
  if (!wanted.includes("…")) return false;
  let at = 0;
  for (const part of wanted.split("…")) {
    const found = lower.indexOf(part, at);
    if (found < 0) return false;
    at = found + part.length;
  }
  return true;
}

/** The match after an event in time (or before it, by = -1), around the end; `from` may be NOTHING. */
export function nextMatch(start: Float64Array, found: Uint32Array, from: number, by: 1 | -1): number {
  const order = (a: number, b: number) => by * (start[a] - start[b] || a - b);
  let [first, next] = [NOTHING, NOTHING];
  for (const event of found) {
    if (first === NOTHING || order(event, first) < 0) first = event;
    if (from !== NOTHING && order(event, from) > 0 && (next === NOTHING || order(event, next) < 0)) next = event;
  }
  return next === NOTHING ? first : next;
}

/** Which match in time an event is, from 1; 0 where it is none. */
export function rankOf(start: Float64Array, found: Uint32Array, event: number): number {
  let rank = 1;
  let there = false;
  for (const other of found) {
    if (other === event) there = true;
    else if (start[other] < start[event] || (start[other] === start[event] && other < event)) rank++;
  }
  return there ? rank : 0;
}

/** First place in `found`, which ascends, that is `event` or above. */
export function placeIn(found: Uint32Array, event: number): number {
  let [low, high] = [0, found.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (found[middle] < event) low = middle + 1;
    else high = middle;
  }
  return low;
}
