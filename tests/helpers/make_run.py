"""Run folders as `gpuprof trace` leaves them, made around a recording that is in the repository."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from helpers.make_trace import TraceBuilder
from helpers.paths import ROOT

MS = 1_000_000
WINDOW_NS = 10 * MS
BEGUN_NS = 1_790_000_000_000_000_000
RECORDING = ROOT / "gpuprof" / "data" / "demo.json.gz"
"""A small LoRA fine-tune on an H200, launch-bound: 188 ms recorded."""
UNPROFILED_MS = 81
"""The same step timed without a profiler: the middle of 70.2–91.9 ms in fresh processes."""
GPU = {"index": 0, "uuid": "GPU-1", "name": "NVIDIA H200", "memory_bytes": 150_109_880_320}

MODEL = {
    "class": "PeftModelForCausalLM",
    "type": "llama",
    "parameters": 1_112_697_856,
    "trainable": 12_615_680,
    "dtypes": {"torch.bfloat16": 1_100_082_176, "torch.float32": 12_615_680},
    "quantization": None,
    "lora": {
        "r": 16,
        "alpha": 32,
        "requested": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        "adapted": dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), 22),
        "parameters": 12_615_680,
    },
    "experts": None,
    "attention": "sdpa",
    "checkpointing": False,
    "hidden_size": 2048,
    "layers": 22,
    "vocabulary": 32_000,
    "compiled": False,
    "wrapper": None,
}
OPTIMIZER = {"class": "AdamW", "parameters": 12_615_680, "groups": 1, "fused": True, "foreach": None}
LOADER = {"batch_size": 1, "num_workers": 0, "pin_memory": False, "prefetch_factor": None, "length": 1000}


class RunBuilder:
    """A run of one rank, stage by stage; `write` makes the folder."""

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.now_ns = BEGUN_NS
        self.steps: list[dict[str, Any]] = []
        self.samples: list[dict[str, Any]] = []
        self.manifest: dict[str, Any] = {
            "schema": "gpuprof.run/1", "gpuprof": "0.1.0", "status": "finished", "started": BEGUN_NS, "ended": None,
            "command": ["python", "train.py"], "cwd": ".", "python": "3.11.7", "options": {}, "variables": {},
            "exit": {"code": 0, "signal": None}, "host": {"cpus": 16, "memory_bytes": 2**37, "platform": "Linux"},
        }  # fmt: skip
        self.rank: dict[str, Any] = {
            "schema": "gpuprof.run/1", "rank": rank, "local_rank": rank, "world_size": world_size, "pid": 1,
            "python": "3.11.7", "torch": "2.11.0+cu130", "cuda": "13.0", "packages": {"peft": "0.18.0"}, "gpu": GPU,
            "step_source": "optimizer", "steps_total": 1000, "accumulation": None, "model": MODEL,
            "optimizer": OPTIMIZER, "loader": LOADER, "stages": [], "windows": [], "notes": [],
        }  # fmt: skip

    def stage(self, name: str, times_ms: list[float], tokens: list[int] | int = 128, **fields: Any) -> RunBuilder:
        """Adds steps of one stage with these durations, and this number of tokens each."""
        amounts = [tokens] * len(times_ms) if isinstance(tokens, int) else tokens
        begun = self.now_ns
        first = len(self.steps) + 1
        for took, amount in zip(times_ms, amounts, strict=True):
            ns = round(took * MS)
            self.now_ns += ns
            step = {
                "rank": self.rank["rank"], "step": len(self.steps) + 1, "stage": name, "unix_ns": self.now_ns,
                "ns": ns, "device_ns": ns, "data_ns": MS, "micro_steps": 1, "samples": 1, "tokens": amount,
                "real_tokens": None, "allocated_bytes": 20 * 2**30, "reserved_bytes": 24 * 2**30,
                "peak_bytes": 22 * 2**30, "profiled": name in ("warmup", "trace", "stacks", "memory"),
            }  # fmt: skip
            self.steps.append(step | fields)
        stage = {"stage": name, "first_step": first, "steps": len(times_ms), "unix_ns": begun}
        self.rank["stages"].append({**stage, "ns": self.now_ns - begun})
        return self

    def sample(self, unix_ns: int, throttle: tuple[str, ...] = (), **fields: Any) -> RunBuilder:
        """A line of telemetry with one GPU."""
        gpu = {
            "index": 0, "uuid": "GPU-1", "power_w": 310.0, "limit_w": 700.0, "sm_mhz": 1980, "memory_mhz": 3201,
            "temperature_c": 41, "utilization": 55, "memory_utilization": 3, "used_bytes": 25 * 2**30,
            "throttle": list(throttle),
        }  # fmt: skip
        self.samples.append({"unix_ns": unix_ns, "load1": 1.5, "cpu": 0.1, "gpus": [gpu | fields]})
        return self

    def write(self, folder: Path, recording: Path | None = RECORDING) -> Path:
        """The folder, with the recording as its window if there is one."""
        folder.mkdir(parents=True, exist_ok=True)
        if recording:
            name = f"trace.rank{self.rank['rank']}.json{'.gz' if recording.suffix == '.gz' else ''}"
            shutil.copyfile(recording, folder / name)
            traced = [step["step"] for step in self.steps if step["stage"] == "trace"]
            window = {"window": "trace", "file": name, "first_step": min(traced, default=1), "steps": len(traced)}
            self.rank["windows"].append({**window, "shapes": True, "stacks": False, "memory": False})
        (folder / "manifest.json").write_text(json.dumps(self.manifest))
        (folder / f"rank{self.rank['rank']}.json").write_text(json.dumps(self.rank))
        (folder / "steps.jsonl").write_text("".join(f"{json.dumps(step)}\n" for step in self.steps))
        (folder / "telemetry.jsonl").write_text("".join(f"{json.dumps(sample)}\n" for sample in self.samples))
        return folder


def usual_run(unprofiled_ms: float = UNPROFILED_MS) -> RunBuilder:
    """A whole run of the recording: a baseline that spreads a little, three recorded steps, some steps after."""
    spread = [unprofiled_ms * (1 + k / 200) for k in (-4, -3, -2, -1, 0, 0, 1, 2, 3, 5)]
    run = RunBuilder().stage("settle", [900, 100, 90, 85, 82])
    begun = run.now_ns
    run.stage("baseline_free", spread).stage("baseline_sync", [took + 2 for took in spread])
    for k in range(8):
        run.sample(begun + k * 200 * MS)
    return run.stage("warmup", [400, 190]).stage("trace", [188, 188, 188]).stage("after", [unprofiled_ms * 1.01] * 10)


def three_steps(path: Path) -> Path:
    """A recording of three steps of 10 ms on one device, each ended by a synchronisation."""
    builder = TraceBuilder()
    for i in range(3):
        at = i * WINDOW_NS
        builder.step(i, at, at + WINDOW_NS)
        builder.op("aten::mm", at + MS, at + 2 * MS)
        builder.launch("gemm_kernel", (at + MS + 1000, at + MS + 9000), (at + MS + 20_000, at + 4 * MS))
        builder.call("cudaDeviceSynchronize", at + 8 * MS, at + WINDOW_NS - 10_000)
    return builder.write(path)
