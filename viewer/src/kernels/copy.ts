// Text for the clipboard; where a page from a file has none, text to be copied by hand.

import { h } from "../dom.ts";

/** Says in `place` how it went. */
export async function copy(text: string, what: string, place: HTMLElement): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    place.replaceChildren(`${what} copied.`);
  } catch {
    const area = h("textarea", { readonly: true, rows: "6", "aria-label": "The table as text", spellcheck: "false" });
    area.value = text;
    place.replaceChildren(`This page has no clipboard: copy ${what} from here.`, area);
    area.focus();
    area.select();
  }
}
