// Lines as text for a spreadsheet: plain numbers, their unit in the column's title, whole names.

import { COLUMNS, type Whole } from "./columns.ts";
import type { Line } from "./lines.ts";

export function tsv(lines: readonly Line[], whole: Whole): string {
  const rows = lines.map((line) =>
    COLUMNS.map((column) => {
      const value = column.id === "name" ? line.full || line.name : column.value(line, whole);
      return typeof value === "number" ? String(Number(value.toPrecision(9))) : cell(value ?? "");
    }).join("\t"),
  );
  return [COLUMNS.map((column) => column.copied).join("\t"), ...rows, ""].join("\n");
}

/** A word that stays in its cell, and that no spreadsheet takes for a formula. */
function cell(text: string): string {
  const plain = text.replace(/[\u0000-\u001f\u007f]+/g, " ");
  return /^[=+\-@]/.test(plain) ? `'${plain}` : plain;
}
