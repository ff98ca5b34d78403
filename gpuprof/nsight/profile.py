"""The command line that records a program with Nsight Systems, with the options that its version knows."""

from __future__ import annotations

import re
from pathlib import Path

from gpuprof.nsight.call import NsysError, call
from gpuprof.nsight.find import ANSWER_S, Nsys

_FLAGS = (
    # Not osrt: with it cudaProfilerStop, and so the training, has been seen to hang forever (nsys 2025.3.1).
    "--trace=cuda,nvtx",
    # Sampling writes gigabytes in seconds, and needs permissions that containers lack.
    "--sample=none",
    "--cpuctxsw=none",
    # The defaults would end the training at the end of the range.
    "--capture-range=cudaProfilerApi",
    "--capture-range-end=stop",
    "--kill=none",
    "--wait=primary",
    "--cuda-graph-trace=graph",
    "--stats=false",
    "--force-overwrite=true",
)
_METRICS = ("--gpu-metrics-devices", "--gpu-metrics-device")
"""Names of one option, the newest first."""


def known_options(help_text: str) -> frozenset[str]:
    """The long options that a help text describes."""
    return frozenset(re.findall(r"^\s*(?:\(\w+\)\s*)?(?:-\w,\s*)?(--[a-z][\w-]*)", help_text, re.M))


def profile_command(nsys: Nsys, help_text: str, out: Path, metrics: bool) -> list[str]:
    """The command before the program's own words. out: the report, without its suffix. metrics: sample GPU counters.
    Options missing from the help text are left out; without a capture range, recording makes no sense and NsysError is
    raised.
    """
    known = known_options(help_text)
    if "--capture-range" not in known:
        raise NsysError(f"{nsys.path} ({nsys.version_text}) has no --capture-range: install a newer Nsight Systems")
    flags = [flag for flag in _FLAGS if flag.partition("=")[0] in known]
    if metrics:
        option = _metrics_option(known)
        devices = "cuda-visible" if "cuda-visible" in help_text else "all"
        flags += [f"{option}={devices}"] if option else []
    # In a report's name % begins a macro.
    return [nsys.path, "profile", *flags, f"--output={str(out).replace('%', '%%')}"]


def profile_help(nsys: Nsys) -> str:
    """Output of `nsys profile --help`. Raises NsysError."""
    return call([nsys.path, "profile", "--help"], ANSWER_S).text


def why_no_metrics(nsys: Nsys, help_text: str) -> str | None:
    """Why the GPU's counters cannot be sampled here; None if they can."""
    option = _metrics_option(known_options(help_text))
    if option is None:
        return f"nsys {nsys.version_text} does not know them"
    try:
        answer = call([nsys.path, "profile", f"{option}=help"], ANSWER_S)
    except NsysError as error:
        return str(error)
    if re.search(r"^\s*\d+\s*:", answer.text, re.M):  # a GPU, by its number
        return None
    if re.search(r"permission|privilege|ERR_NVGPUCTRPERM", answer.text, re.I):
        return "the driver lets only administrators read them (NVreg_RestrictProfilingToAdminUsers=0 changes that)"
    return answer.words() or "no GPU has any"


def _metrics_option(known: frozenset[str]) -> str | None:
    return next((name for name in _METRICS if name in known), None)
