"""How reliable a recording is: its issues, and the status that follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuprof.diagnosis.result.diagnosis import Issue, Quality, Verdict
from gpuprof.timeline.quality import check
from gpuprof.timeline.startup import StartUp
from gpuprof.timeline.timeline import Timeline
from gpuprof.timeline.unit import Unit
from gpuprof.tracefile.trace import Trace

_ON_CPU = (
    "This training ran on the CPU, and too few of its steps were timed for a verdict: let it run longer. If there is a"
    " GPU, move the model and the batches to it."
)
"""Replaces the advice on how to record a GPU, since `gpuprof trace` would have recorded one."""
_OF_KERNELS = ("no_shapes",)
"""Issues about kernels, which are pointless without kernels."""
_TIMED_ITERATIONS = "This training ran on the CPU: its iterations were timed; there are no kernels to show."
_TIMED = "This training ran on the CPU: the verdict comes from its timed steps; there are no kernels to show."


def quality_of(
    trace: Trace, timeline: Timeline | None, of_run: Sequence[Issue], on_cpu: bool, timed: bool = False
) -> Quality:
    """The issues of a trace and, `of_run`, of its run. `on_cpu`: whether that run used no GPU, which is no fault if its
    steps were `timed`."""
    found = [
        Issue(f.id, f.severity, f.message) if not (on_cpu and f.id == "no_gpu_events")  # type: ignore[arg-type]
        else Issue(f.id, "info" if timed else "error", _TIMED if timed else _ON_CPU)
        for f in check(trace, timeline)
        if not (timed and f.id in _OF_KERNELS)
    ]  # fmt: skip
    return judged((*found, *of_run))


def of_timed_iterations(quality: Quality) -> Quality:
    """The quality of a recording without a GPU whose iterations were timed: that too few steps were timed is then no
    fault."""
    said = Issue("no_gpu_events", "info", _TIMED_ITERATIONS)
    return judged(tuple(said if one.message == _ON_CPU else one for one in quality.issues))


def judged(issues: tuple[Issue, ...]) -> Quality:
    """The issues, worst first, with the status that follows from the worst."""
    severities = {issue.severity for issue in issues}
    status = "unusable" if "error" in severities else "degraded" if "warning" in severities else "ok"
    return Quality(status, _worst_first(issues))


def _worst_first(issues: Iterable[Issue]) -> tuple[Issue, ...]:
    """Errors, then warnings, then information."""
    return tuple(sorted(issues, key=lambda issue: ("error", "warning", "info").index(issue.severity)))


def with_issue(quality: Quality, issue: Issue | None) -> Quality:
    """The quality with one more issue, if there is one, at the end; it lowers the status to `degraded` at most."""
    if issue is None:
        return quality
    return Quality("degraded" if quality.status == "ok" else quality.status, (*quality.issues, issue))


def no_verdict(quality: Quality) -> Verdict:
    """An empty verdict that says why there is none."""
    errors = (issue.message for issue in quality.issues if issue.severity == "error")
    return Verdict(bound=None, family=None, cause=None, confidence=None, sentences=tuple(errors)[:1])


def of_start_up(verdict: Verdict, start_up: StartUp, unit: Unit) -> Verdict:
    """Replaces the verdict on a window that is mostly the program's start."""
    text = (
        f"{100 * start_up.share:.0f} % of this window is the program's start, {start_up.parts[0][0]} above all: it says"
        f" nothing about {unit.a}."
    )
    return Verdict(bound=None, family=None, cause=None, confidence=None, sentences=(*verdict.sentences, text))
