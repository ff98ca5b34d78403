"""A logger of GPU memory, like those that people add to the Trainer to see whether a larger batch would fit."""

from __future__ import annotations

import time

import torch
from transformers import TrainerCallback

MIB = 1 << 20


class MemoryTable(TrainerCallback):
    """Adds a row at every log: allocated and reserved memory, and the peak so far. Prints all at the end."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, float, float, float, float]] = []
        self._began = time.perf_counter()

    def on_log(self, args, state, control, **kwargs):
        # The last log sums up the run; its step already has a row.
        if self.rows and self.rows[-1][0] == state.global_step:
            return
        figures = (torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.max_memory_allocated())
        seconds = time.perf_counter() - self._began
        self.rows.append((state.global_step, seconds, *(figure / MIB for figure in figures)))

    def on_train_end(self, args, state, control, **kwargs):
        print(f"{'step':>6} {'seconds':>9} {'allocated MiB':>14} {'reserved MiB':>13} {'peak MiB':>9}")
        for step, seconds, allocated, reserved, peak in self.rows:
            print(f"{step:6} {seconds:9.2f} {allocated:14.0f} {reserved:13.0f} {peak:9.0f}")
