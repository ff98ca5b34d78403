"""CPU time of a call of a compiled graph outside its generated code, by the number of ops in the graph.

    python -m benchmarks.graph_calls [--parts 1,2,4,8] [--steps 60] [--rounds 5]

A training step on the CPU of residual parts of 5 ops each, compiled as one graph: guards, arguments, autograd, saved
tensors and accumulated gradients, forward and backward, without the time of the generated code. Each number is the
smallest of the rounds' medians, since other processes only make it larger. A line fitted to them says what a call
without ops costs, and what each op adds; `breaks.CALL_OPS` is the first divided by the second.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

WIDTH, ROWS = 16, 4
AROUND = (
    "Torch-Compiled Region", "TorchDynamo Cache Lookup", "Pregraph bytecode", "AOTDispatcher Runtime Wrapper Prologue",
    "CompiledFunction", "autograd::engine::evaluate_function: CompiledFunctionBackward",
)  # fmt: skip
"""Beginnings of the names of ranges around generated code, whose own time counts."""


class Part(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


OPS = 5
"""Ops in a part."""


def around_us(parts: int, steps: int, rounds: int) -> float:
    """CPU time of a step outside the generated code, µs, for a model of this many parts."""
    torch._dynamo.reset()
    model = torch.nn.Sequential(*(Part() for _ in range(parts)))
    forward, x = torch.compile(model), torch.randn(ROWS, WIDTH)

    def step() -> None:
        forward(x).sum().backward()
        model.zero_grad(set_to_none=True)

    for _ in range(5):
        step()
    return min(_round_us(step, steps) for _ in range(rounds))


def _round_us(step, steps: int) -> float:
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for _ in range(steps):
            step()
    took = defaultdict(list)
    for event in recorded.events() or ():
        if event.name.startswith(AROUND):
            took[event.name].append(event.self_cpu_time_total)
    return sum(statistics.median(each) * len(each) / steps for each in took.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default="1,2,4,8")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    parts = [int(each) for each in asked.parts.split(",")]
    took = []
    for each in parts:
        took.append(around_us(each, asked.steps, asked.rounds))
        print(f"{each * OPS:4} ops {took[-1]:7.1f} µs")
    by_op, call = np.polyfit(np.array(parts) * OPS, took, 1)
    print(f"a call {call:.1f} µs, an op {by_op:.2f} µs: as much as {call / by_op:.0f} ops")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
