"""A training that is sampled in turns: `python sampled_loop.py ROUNDS`; see benchmarks/sampling.py."""

from __future__ import annotations

import json
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

STEPS = 60
"""Steps of a stretch."""

package = types.ModuleType("_gpuprof")
package.__path__ = [str(Path(__file__).resolve().parents[1] / "gpuprof")]
sys.modules["_gpuprof"] = package


def cost(rounds: int) -> dict[str, list[float]]:
    """Seconds of equal stretches of a small training, sampled and not, in turns: on the clock, and CPU time of the
    thread that trains. On a GPU where there is one, whose kernels are shorter than their launches."""
    import torch
    from _gpuprof.record.stacks.sampling import Sampling

    torch.set_num_threads(1)
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU()) for _ in range(40)]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    model = torch.nn.Sequential(*layers).to(device)
    optimizer, batch = torch.optim.AdamW(model.parameters()), torch.randn(32, 64, device=device)
    times: dict[str, list[float]] = {name: [] for name in ("sampled", "bare", "sampled_cpu", "bare_cpu")}
    for i in range(2 * rounds + 2):
        is_sampled = (i % 4) in (1, 2)
        with tempfile.TemporaryDirectory() as folder:
            sampling = Sampling(Path(folder), 0, 0.001) if is_sampled else None
            if sampling is not None:
                sampling.begin(1, extends=True)
            wait()
            begun, cpu = time.perf_counter(), time.thread_time()
            for _ in range(STEPS):
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                if sampling is not None:
                    sampling.step()
            wait()
            took, used = time.perf_counter() - begun, time.thread_time() - cpu
            if sampling is not None:
                sampling.end(1)
                _read(Path(folder))
        if i >= 2:
            name = "sampled" if is_sampled else "bare"
            times[name].append(took)
            times[f"{name}_cpu"].append(used)
    return times


def _read(folder: Path) -> dict[str, Any]:
    file, patience = folder / "samples.rank0.json", time.monotonic() + 20.0
    while not file.exists() and time.monotonic() < patience:
        time.sleep(0.02)
    return json.loads(file.read_text())


if __name__ == "__main__":
    print(json.dumps(cost(int(sys.argv[1]))))
