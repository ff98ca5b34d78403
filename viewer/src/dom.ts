// Elements are made here and nowhere else. Text is only ever text: nothing parses a name from a recording as markup.

type Child = Node | string | null | false;

/** An element with attributes and children; a string becomes a text node. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string | boolean> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child): child is Node | string => child !== null && child !== false));
  return element;
}

/** The context of a canvas, sized for the screen's own pixels; what is drawn is in CSS pixels. */
export function fit(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d", { alpha: false });
  if (context === null) throw new Error("this browser draws no canvas");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
