// Numbers by chance that are the same in every run.

export type Random = () => number;

export function random(seed: number): Random {
  let state = seed >>> 0;
  return () => {
    state = (state * 1664525 + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

export function below(chance: Random, n: number): number {
  return Math.floor(chance() * n);
}
