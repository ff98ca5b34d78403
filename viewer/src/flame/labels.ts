// Text cut to a width. Widths of characters are measured once each: a frame draws thousands of labels.

const ELLIPSIS = "…";
/** From more characters on there is room for both ends of a name. */
const BOTH_ENDS = 12;

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

  /** The text, its ends with an ellipsis between them, its beginning where there is room for few, or nothing where fewer
   * than two characters would be left. Kernels differ at their ends. */
  fit(text: string, room: number): string {
    const whole = this.beginning(text, room);
    if (whole === text || whole.length <= BOTH_ENDS) return whole;
    const characters = [...text];
    let [end, sum] = [characters.length, 0];
    while (sum + this.one(characters[end - 1]) <= room / 3) sum += this.one(characters[--end]);
    return this.beginning(text, room - sum) + characters.slice(end).join("");
  }

  private beginning(text: string, room: number): string {
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
