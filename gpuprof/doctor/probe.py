"""Probes the target's torch in a process of the target's interpreter."""

from __future__ import annotations

import json
import subprocess

from gpuprof.doctor.machine_facts import Torch
from gpuprof.units import Assumed, Characters, Convention, Seconds

TIMEOUT_S: Assumed[Seconds] = 120.0
"""Importing torch from a cold network disk and starting CUDA takes up to a minute."""
_LONGEST_ERROR: Convention[Characters] = 300

_CODE = r"""
import json, sys, warnings
found = {"version": None, "cuda": None, "hip": None, "devices": [], "gpu_events": None, "error": ""}
said = []
warnings.showwarning = lambda message, *_: said.append(str(message))
try:
    import torch
    found["version"], found["cuda"], found["hip"] = torch.__version__, torch.version.cuda, torch.version.hip
    if torch.cuda.is_available():
        found["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        from torch.profiler import ProfilerActivity, profile
        a = torch.ones(256, 256, device="cuda")
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            a @ a
            torch.cuda.synchronize()
        on_gpu = torch.autograd.DeviceType.CUDA
        found["gpu_events"] = sum(event.device_type == on_gpu for event in profiler.events())
    elif said:
        found["error"] = said[0]
except BaseException as error:
    found["error"] = f"{type(error).__name__}: {error}"
print("\n" + json.dumps(found))
"""


def probe(python: str) -> Torch:
    """Imports torch under `python`, and records one matrix multiplication if it sees a GPU. Never raises."""
    try:
        done = subprocess.run(
            [python, "-c", _CODE], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Torch(None, error=f"it did not answer within {TIMEOUT_S:.0f} s")
    except OSError as error:
        return Torch(None, error=error.strerror or str(error))
    return read(done.stdout, done.stderr, done.returncode)


def read(stdout: str, stderr: str, code: int) -> Torch:
    """Parses the probe's answer, its last line; lines that it printed about CUPTI are added to the error."""
    try:
        found = json.loads(stdout.rstrip().rpartition("\n")[2])
        torch = Torch(
            version=found["version"], cuda=found["cuda"], hip=found["hip"], devices=tuple(found["devices"]),
            gpu_events=found["gpu_events"], error=found["error"],
        )  # fmt: skip
    except (ValueError, KeyError, TypeError):
        last = stderr.strip().rpartition("\n")[2]
        return Torch(None, error=_line(last or f"its Python ended with code {code}"))
    cupti = next((line for line in stderr.splitlines() if "CUPTI" in line), "") if not torch.gpu_events else ""
    return Torch(torch.version, torch.cuda, torch.hip, torch.devices, torch.gpu_events, _line(f"{torch.error} {cupti}"))


def _line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_ERROR]
