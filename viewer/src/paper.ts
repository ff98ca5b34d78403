// Paper: narrower than most screens, and what is drawn for a screen does not fit it by itself.

/** What fits into a panel between the margins of a page, CSS pixels: the narrower of A4 and letter. */
export const PAPER_PX = 650;

/** Calls back before the page is laid out for printing, and after; what is drawn must be drawn at once. */
export function onPaper(before: () => void, after: () => void): void {
  window.addEventListener("beforeprint", before);
  window.addEventListener("afterprint", after);
}
