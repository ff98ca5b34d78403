// A small report that tests share: one GPU, one host thread with Python frames, everything linked.

import { unpack, type Paint, type ReportData } from "../src/data.ts";
import { pack, type PlainReport } from "./pack.ts";

export function paint(key: string, wait = false): Paint {
  return { key, label: key, light: "#0072b2", dark: "#3d9bdc", wait };
}

/*
 * time   0    10   20   30   40   50   60   70   80   90   100
 * steps  |------------- step 1 ----|---------- step 2 ------|
 * waits  |-- 0 to 12 --|      |20-30|      |45 to 58|
 * s 7                  |12-20|      |30-45|         |58-70|
 * ops    |---- linear 2..28 ------|   |---- mul 32..52 ----|
 *           |mm 4..20|                     |call 34..38|
 *            |call 6..8| |call 12..14|
 */
export const SMALL: PlainReport = {
  span: [-5, 100],
  window: [0, 100],
  steps: [
    [0, 50],
    [50, 100],
  ],
  paints: [paint("gemm"), paint("elementwise"), paint("launch", true), paint("op"), paint("python")],
  groups: [
    { name: "overview", kind: "overview" },
    { name: "GPU 0 · NVIDIA H200", kind: "gpu" },
    { name: "main thread · thread 5 (python)", kind: "host" },
  ],
  tracks: [
    {
      group: 0,
      name: "steps",
      kind: "steps",
      lanes: [
        [
          { start: 0, ns: 50, name: "step 1", paint: 3 }, // 0
          { start: 50, ns: 50, name: "step 2", paint: 3 }, // 1
        ],
      ],
    },
    {
      group: 1,
      name: "waits for",
      kind: "waits",
      lanes: [
        [
          { start: 0, ns: 12, name: "waits: launch", paint: 2, link: 5 }, // 2
          { start: 20, ns: 10, name: "waits: launch", paint: 2 }, // 3
          { start: 45, ns: 13, name: "waits: launch", paint: 2 }, // 4
        ],
      ],
    },
    {
      group: 1,
      name: "stream 7",
      kind: "stream",
      lanes: [
        [
          { start: 12, ns: 8, name: "sgemm", paint: 0, detail: "gemm · forward", link: 11 }, // 5
          { start: 30, ns: 15, name: "mul_kernel", paint: 1, link: 12 }, // 6
          { start: 58, ns: 12, name: "mul_kernel", paint: 1, link: 13 }, // 7
        ],
      ],
    },
    {
      group: 2,
      name: "ops and calls",
      kind: "ops",
      lanes: [
        [
          { start: 2, ns: 26, name: "aten::linear", paint: 3 }, // 8
          { start: 32, ns: 20, name: "aten::mul", paint: 3 }, // 9
        ],
        [
          { start: 4, ns: 16, name: "aten::mm", paint: 3 }, // 10
        ],
        [
          { start: 6, ns: 2, name: "cudaLaunchKernel", paint: 3 }, // 11
          { start: 12, ns: 2, name: "cudaLaunchKernel", paint: 3 }, // 12
          { start: 34, ns: 4, name: "cuLaunchKernel", paint: 3 }, // 13
        ],
      ],
    },
    {
      group: 2,
      name: "Python",
      kind: "frames",
      open: false,
      lanes: [
        [{ start: 1, ns: 90, name: "train.py: main", paint: 4 }], // 14
        [
          { start: 2, ns: 27, name: "model.py: forward", paint: 4 }, // 15
          { start: 31, ns: 30, name: "loss.py: loss", paint: 4 }, // 16
        ],
      ],
    },
  ],
  full: { sgemm: "void cutlass::Kernel<sgemm_128x64>(Params)" },
};

export function small(): ReportData {
  return unpack(pack(SMALL));
}
