"""Writes memory snapshots as torch does, of any size, and measures how long `gpuprof memory` takes for one.

    python -m benchmarks.memory_snapshot [--events 1000000] [--depth 85] [--keep FILE]

The history is that of a fine-tune (weights, adapters, forward, loss, backward, optimizer) on a small imitation of
torch's caching allocator. What is written depends on the options alone.
"""

from __future__ import annotations

import argparse
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIB = 2**20
ROUND, SEGMENT = 512, 20 * MIB

Frames = list[dict[str, Any]]


@dataclass
class Allocator:
    """Hands out memory from segments, reuses freed blocks of the same size, and keeps the last `most` events."""

    most: int | None = None
    copies: bool = False
    """Whether each event gets a list of frames of its own, as torch makes them; the frames in it are shared."""
    events: deque[dict[str, Any]] = field(init=False)
    segments: list[dict[str, Any]] = field(default_factory=list)
    live: dict[int, tuple[int, Frames, bool]] = field(default_factory=dict)
    """Address → (bytes asked for, where, whether it waits for another stream)."""

    def __post_init__(self) -> None:
        self.events = deque(maxlen=self.most)
        self._free: dict[int, list[int]] = {}
        self._left = self._count = 0
        self._next = 0x7F0000000000
        self._time = 1_700_000_000_000_000

    @property
    def count(self) -> int:
        """Events so far, those that were dropped included."""
        return self._count

    def alloc(self, size: int, frames: Frames) -> int:
        rounded = -(-max(size, 1) // ROUND) * ROUND
        free = self._free.get(rounded)
        address = free.pop() if free else self._cut(rounded, frames)
        self._log("alloc", address, size, frames)
        self.live[address] = (size, frames, False)
        return address

    def free(self, address: int, frames: Frames = [], *, waits: bool = False) -> None:  # noqa: B006
        size, where, _ = self.live[address]
        self._log("free_requested", address, size, frames)
        if waits:
            self.live[address] = (size, where, True)
        else:
            self.complete(address, frames)

    def complete(self, address: int, frames: Frames = []) -> None:  # noqa: B006
        size, _, _ = self.live.pop(address)
        self._log("free_completed", address, size, frames)
        self._free.setdefault(-(-max(size, 1) // ROUND) * ROUND, []).append(address)

    def fail(self, size: int, device_free: int, frames: Frames) -> None:
        """An allocation that does not succeed."""
        self._time += 2
        self._count += 1
        entry = {"action": "oom", "device_free": device_free, "size": size, "stream": 0, "time_us": self._time}
        self.events.append({**entry, "frames": frames})

    def snapshot(self) -> dict[str, Any]:
        """The data that torch would pickle."""
        segments = []
        blocks = sorted(self.live.items())
        at = 0
        for segment in sorted(self.segments, key=lambda one: one["address"]):
            end, own, last = segment["address"] + segment["total_size"], [], segment["address"]
            while at < len(blocks) and blocks[at][0] < end:
                address, (size, frames, waits) = blocks[at]
                if address > last:
                    own.append({"address": last, "size": address - last, "requested_size": 0, "state": "inactive",
                                "frames": []})  # fmt: skip
                rounded = -(-max(size, 1) // ROUND) * ROUND
                state = "active_pending_free" if waits else "active_allocated"
                own.append({"address": address, "size": rounded, "requested_size": size, "state": state,
                            "frames": frames})  # fmt: skip
                last = address + rounded
                at += 1
            if last < end:
                own.append({"address": last, "size": end - last, "requested_size": 0, "state": "inactive",
                            "frames": []})  # fmt: skip
            segments.append({**segment, "blocks": own})
        return {"segments": segments, "device_traces": [list(self.events)]}

    def _cut(self, rounded: int, frames: Frames) -> int:
        if self._left < rounded:
            size = max(SEGMENT, -(-rounded // (2 * MIB)) * 2 * MIB)
            self._next += self._left
            self.segments.append(
                {"device": 0, "address": self._next, "total_size": size, "stream": 0, "segment_type": "large"}
            )
            self._log("segment_alloc", self._next, size, frames)
            self._left = size
        address = self._next
        self._next += rounded
        self._left -= rounded
        return address

    def _log(self, action: str, address: int, size: int, frames: Frames) -> None:
        self._time += 2
        self._count += 1
        self.events.append(
            {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self._time,
             "frames": list(frames) if self.copies else frames, "compile_context": "N/A"}
        )  # fmt: skip


SITE = "/env/lib/python3.11/site-packages"
_MODULE = f"{SITE}/torch/nn/modules/module.py"
_LLAMA = f"{SITE}/transformers/models/llama/modeling_llama.py"


class Program:
    """Stacks of a fine-tune; every frame is one object, as in torch's own snapshots. Innermost first."""

    def __init__(self, depth: int = 0) -> None:
        self._frames: dict[tuple[str, int, str], dict[str, Any]] = {}
        self._native = [self.frame("??", 0, f"at::native::op_{i}") for i in range(depth)]
        self._main = [self.frame(f"{SITE}/transformers/trainer.py", 2700, "training_step"),
                      self.frame("/home/me/train.py", 88, "<module>")]  # fmt: skip

    def frame(self, filename: str, line: int, name: str) -> dict[str, Any]:
        key = (filename, line, name)
        return self._frames.setdefault(key, {"filename": filename, "line": line, "name": name})

    def stack(self, *frames: tuple[str, int, str]) -> Frames:
        """These frames, in C++ below and within the training step above."""
        return [*self._native, *(self.frame(*frame) for frame in frames), *self._main]

    def call(self) -> list[tuple[str, int, str]]:
        return [(_MODULE, 1775, "_call_impl"), (_MODULE, 1764, "_wrapped_call_impl")]

    def load(self) -> Frames:
        return self.stack((_MODULE, 1329, "convert"), (_MODULE, 903, "_apply"), (_MODULE, 1343, "to"))

    def adapter(self) -> Frames:
        return self.stack((f"{SITE}/peft/tuners/lora/layer.py", 210, "update_layer"))

    def block(self, line: int) -> Frames:
        return self.stack((_LLAMA, line, "forward"), *self.call(), (_LLAMA, 300, "forward"), *self.call(),
                          (_LLAMA, 420, "forward"), *self.call(), (_LLAMA, 520, "forward"), *self.call())  # fmt: skip

    def head(self) -> Frames:
        linear = (f"{SITE}/torch/nn/modules/linear.py", 134, "forward")
        return self.stack(linear, *self.call(), (_LLAMA, 540, "forward"), *self.call())

    def loss(self, line: int) -> Frames:
        return self.stack((f"{SITE}/torch/nn/functional.py", 3494, "cross_entropy"),
                          (f"{SITE}/transformers/loss/loss_utils.py", line, "ForCausalLMLoss"),
                          (_LLAMA, 545, "forward"), *self.call())  # fmt: skip

    def backward(self, name: str = "torch::autograd::Engine::evaluate_function") -> Frames:
        return [*self._native, self.frame("??", 0, name)]

    def optimizer(self, name: str = "_init_group") -> Frames:
        return self.stack((f"{SITE}/torch/optim/adamw.py", 120, name), (f"{SITE}/torch/optim/adamw.py", 220, "step"))

    def mine(self, line: int, name: str = "log") -> Frames:
        return self.stack(("/home/me/train.py", line, name))


def train(
    allocator: Allocator, program: Program, steps: int, layers: int = 8, ops: int = 12, leak: int = 0, unit: int = MIB
) -> None:
    """A fine-tune of this many steps; `leak` bytes a step stay behind."""
    weights = [allocator.alloc((3 + layer % 3) * unit, program.load()) for layer in range(layers)]
    adapters = [allocator.alloc(unit // 8, program.adapter()) for _ in range(layers)]
    blocks = [program.block(100 + op) for op in range(ops)]
    gradient, temporary = program.backward("torch::autograd::AccumulateGrad::apply"), program.backward()
    state: list[int] = []
    for _ in range(steps):
        saved = [allocator.alloc((1 + op % 4) * unit // 2, blocks[op]) for _ in range(layers) for op in range(ops)]
        logits = allocator.alloc(16 * unit, program.head())
        loss = [allocator.alloc(32 * unit, program.loss(30)), allocator.alloc(32 * unit, program.loss(41))]
        if leak:
            allocator.alloc(leak, program.mine(71))
        gradients = []
        for address in (*loss, logits):
            allocator.free(address)
        for number, address in enumerate(reversed(saved)):
            passing = allocator.alloc(unit, temporary)
            if number % ops == 0:
                gradients.append(allocator.alloc(unit // 8, gradient))
            allocator.free(address, temporary)
            allocator.free(passing, temporary)
        if not state:
            state = [allocator.alloc(unit // 8, program.optimizer()) for _ in (*adapters, *adapters)]
        scratch = [allocator.alloc(unit // 8, program.optimizer("_multi_tensor_adamw")) for _ in adapters]
        for address in (*scratch, *gradients):
            allocator.free(address)
    assert weights


def written(path: Path, events: int, depth: int) -> int:
    """Writes a snapshot of about this many events; its size in bytes. depth: frames of C++ under every line."""
    layers, ops = 32, 14
    allocator = Allocator(most=events, copies=True)
    # So that references to frames take five bytes, as they do among the thousands of frames of a real program.
    padding = {f"setting {number}": number for number in range(300)}
    train(allocator, Program(depth), 1 + events // (layers * ops * 6), layers, ops, leak=MIB)
    with path.open("wb") as file:
        pickle.dump({"allocator_settings": padding} | allocator.snapshot(), file)
    return path.stat().st_size


def measured(path: Path) -> tuple[float, float, float, str]:
    """(seconds, those of processor time, GiB of memory, what was printed) of `gpuprof memory` in its own process."""
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "gpuprof", "memory", str(path)], capture_output=True, text=True, check=True,
        env={**os.environ, "COLUMNS": "110"},
    )  # fmt: skip
    taken = time.perf_counter() - begun
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return taken, processor, used.ru_maxrss / 2**20, done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--depth", type=int, default=85, help="frames of C++ under every line")
    parser.add_argument("--keep", type=Path, help="write it here and keep it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "snapshot.pickle"
        # In a process of its own, so that only reading counts.
        size = int(subprocess.run(
            [sys.executable, "-c", f"from pathlib import Path; from benchmarks.memory_snapshot import written; "
             f"print(written(Path({str(path)!r}), {options.events}, {options.depth}))"],
            capture_output=True, text=True, check=True,
        ).stdout)  # fmt: skip
        print(f"{size / 1e6:,.0f} MB, {options.events:,} events")
        seconds, processor, gib, text = measured(path)
        print(f"{seconds:.1f} s ({processor:.1f} s of processor time), at most {gib:.2f} GiB\n{text}")


if __name__ == "__main__":
    main()
