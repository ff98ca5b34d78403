// Text cut to a width. Widths of characters are measured once each: a frame draws thousands of labels.

const ELLIPSIS = "…";

export class Labels {
  private readonly widths = new Map<string, number>();
  private readonly measure: (character: string) => number;

  constructor(measure: (character: string) => number) {
    this.measure = measure;
  }

  width(text: string): number {
    let sum = 0;
    for (const character of text) sum += this.one(character);
    return sum;
  }

  /** The text, its beginning with an ellipsis, or nothing where fewer than two characters would be left. */
  fit(text: string, room: number): string {
    const dots = this.one(ELLIPSIS);
    let sum = 0;
    let kept = 0;
    let length = 0;
    for (const character of text) {
      sum += this.one(character);
      length += character.length;
      if (sum > room) return kept >= 2 ? text.slice(0, kept) + ELLIPSIS : "";
      if (sum + dots <= room) kept = length;
    }
    return text;
  }

  private one(character: string): number {
    let width = this.widths.get(character);
    if (width === undefined) {
      width = this.measure(character);
      this.widths.set(character, width);
    }
    return width;
  }
}
