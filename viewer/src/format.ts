// Times and amounts as people read them; a digit more than in the words of the report, since here they are compared.

const UNITS: [number, string][] = [
  [1e9, "s"],
  [1e6, "ms"],
  [1e3, "µs"],
  [1, "ns"],
];

/** `1.24 ms`, `4.00 µs`: three digits, the unit that needs no zeros; whole nanoseconds as they are. */
export function duration(ns: number): string {
  const size = Math.abs(ns);
  const [scale, unit] = UNITS.find(([scale]) => size >= scale * 0.9995) ?? UNITS[3];
  return `${scale === 1 ? digits(ns) : rounded(ns / scale)} ${unit}`;
}

/** A moment on an axis whose ticks are `tick` ns apart: `12.35 ms`. */
export function moment(ns: number, tick: number): string {
  const size = Math.max(Math.abs(ns), tick);
  const [scale, unit] = UNITS.find(([scale]) => size >= scale) ?? UNITS[3];
  const decimals = Math.max(0, Math.min(9, Math.ceil(-Math.log10(tick / scale) - 1e-9)));
  return `${(ns / scale).toFixed(decimals)} ${unit}`;
}

export function share(part: number, whole: number): string {
  if (whole <= 0) return "–";
  const percent = (100 * part) / whole;
  if (percent > 0 && percent < 0.1) return "< 0.1 %";
  return `${percent < 9.95 ? percent.toFixed(1) : percent.toFixed(0)} %`;
}

export function count(n: number): string {
  return Number.isInteger(n) ? n.toLocaleString("en-US") : n.toLocaleString("en-US", { maximumFractionDigits: 1 });
}

/** `1.2 GB/s`, `790 TFLOP/s`: powers of ten. */
export function scaled(value: number, unit: string): string {
  const steps = ["", "k", "M", "G", "T", "P", "E"];
  let i = 0;
  while (Math.abs(value) >= 999.5 && i < steps.length - 1) {
    value /= 1000;
    i++;
  }
  return `${digits(value)} ${steps[i]}${unit}`;
}

/** `1.2 GiB`: powers of two. */
export function binary(bytes: number): string {
  const steps = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (Math.abs(bytes) >= 1023.5 && i < steps.length - 1) {
    bytes /= 1024;
    i++;
  }
  return `${digits(bytes)} ${steps[i]}`;
}

function digits(value: number): string {
  const size = Math.abs(value);
  return Number.isInteger(value) && size < 1000 ? String(value) : rounded(value);
}

/** Three digits, zeros included: `4.00`. */
function rounded(value: number): string {
  const size = Math.abs(value);
  return size >= 99.95 ? value.toFixed(0) : size >= 9.995 ? value.toFixed(1) : value.toFixed(2);
}
