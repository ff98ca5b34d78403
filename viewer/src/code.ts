// A button on each block of code that copies it.

import { h } from "./dom.ts";

const SAID_MS = 1600;

/** Gives every fix's code its button. */
export function startCopying(root: ParentNode): void {
  for (const block of root.querySelectorAll<HTMLElement>("#verdict .first pre, #fixes .card pre")) {
    const code = block.querySelector("code") ?? block;
    const button = h("button", { type: "button", class: "copy", "aria-label": "Copy the code" }, "Copy");
    let again = 0;
    button.addEventListener("click", async () => {
      button.textContent = (await copied(code)) ? "Copied" : "Ctrl+C";
      window.clearTimeout(again);
      again = window.setTimeout(() => (button.textContent = "Copy"), SAID_MS);
    });
    block.append(button);
  }
}

/** False where the page has no clipboard: the code is selected then. */
async function copied(code: HTMLElement): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(code.textContent ?? "");
    return true;
  } catch {
    window.getSelection()?.selectAllChildren(code);
    return false;
  }
}
