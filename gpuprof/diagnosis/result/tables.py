"""The columns behind a diagnosis, as pandas DataFrames. Times are ns; `start_ns` counts from the window's start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.diagnosis.idle.gaps import CAUSES, GapColumns
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.phases import PHASES
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import ABSENT, I32, I64

if TYPE_CHECKING:
    import pandas as pd

    from gpuprof.costs.roofline import Roofline
    from gpuprof.projection.projection import Projection


_ENDS = ("low", "expected", "high")


@dataclass(frozen=True, slots=True)
class Tables:
    """DataFrames of one diagnosis, each made on demand."""

    timeline: Timeline
    columns: GapColumns
    roofline: Roofline | None = None
    """None if the device's ceilings are unknown."""
    project: Callable[..., Projection] | None = None
    """Projects a diagnosis: its arguments are the diagnosis, the names of GPUs, and options."""
    diagnosis: Any = None
    """The `gpuprof.diagnosis.result.diagnosis.Diagnosis` behind these tables."""

    def gaps(self) -> pd.DataFrame:
        """Every gap: start_ns, ns, device, main_cause, phase, op, module, frame, and its ns by cause."""
        import pandas as pd

        c, low = self.columns, self.timeline.window[0]
        ops = self.timeline.trace.ops
        table = pd.DataFrame(
            {
                "start_ns": c.start_ns - low,
                "ns": c.ns,
                "device": c.device,
                "main_cause": _decode(c.cause, CAUSES),
                "phase": _decode(c.phase, PHASES),
                "op": self._texts(np.where(c.op >= 0, ops.name[c.op] if len(ops) else -1, -1)),
                "module": self._texts(c.module),
                "frame": self._texts(c.frame),
            }
        )
        for i, cause in enumerate(CAUSES):
            table[f"{cause}_ns"] = c.by_cause[:, i]
        return table

    def kernels(self) -> pd.DataFrame:
        """Every kernel or copy of the window, with what launched it and when."""
        import pandas as pd

        timeline = self.timeline
        trace, links, rows = timeline.trace, timeline.links, timeline.members
        gpu, ops, low = trace.gpu, trace.ops, timeline.window[0]
        op = links.op[rows]
        launched = links.launched_ns[rows]
        return pd.DataFrame(
            {
                "start_ns": gpu.start_ns[rows] - low,
                "ns": gpu.end_ns[rows] - gpu.start_ns[rows],
                "device": gpu.device[rows],
                "stream": gpu.stream[rows],
                "name": self._texts(gpu.name[rows]),
                "category": _decode(timeline.category[rows], CATEGORIES),
                "phase": _decode(timeline.phase[rows], PHASES),
                "op": self._texts(np.where(op >= 0, ops.name[op] if len(ops) else -1, -1)),
                "launched_ns": _known(launched, low),
                "correlation": _known(gpu.correlation[rows]),
            }
        )

    def steps(self) -> pd.DataFrame:
        """Each analysed step: start_ns, ns."""
        import pandas as pd

        steps = self.timeline.steps
        return pd.DataFrame({"start_ns": steps.start_ns - self.timeline.window[0], "ns": steps.end_ns - steps.start_ns})

    def ops(self) -> pd.DataFrame:
        """Every op and user range of the window; `parent` is the row of the enclosing span, -1 without one."""
        import pandas as pd

        trace = self.timeline.trace
        ops, (low, high) = trace.ops, self.timeline.window
        rows = np.flatnonzero((ops.start_ns >= low) & (ops.start_ns < high))
        return pd.DataFrame(
            {
                "start_ns": ops.start_ns[rows] - low,
                "ns": ops.end_ns[rows] - ops.start_ns[rows],
                "thread": ops.thread[rows],
                "name": self._texts(ops.name[rows]),
                "phase": _decode(self.timeline.host.op[rows], PHASES),
                "dims": self._texts(ops.dims[rows]),
                "parent": self.timeline.nesting.parent[rows],
            },
            index=pd.Index(rows, name="row"),
        )

    def findings(self) -> pd.DataFrame:
        """A row per finding, in the order of the diagnosis; its evidence is a list of dicts. Steps are ns; `low` and
        `high` are the ends of an 80 % interval."""
        import pandas as pd

        rows = [
            {
                "id": f.id,
                "title": f.title,
                "severity": f.severity,
                "fix": f.fix,
                **_range("step_{}_ns", f.step_ns, round),
                **_range("speedup_{}", f.speedup, float),
                "work": f.work,
                "evidence": [asdict(e) for e in f.evidence],
            }
            for f in self.diagnosis.findings
        ]
        numbers = {
            **{f"step_{name}_ns": "int64" for name in _ENDS},
            **{f"speedup_{name}": "float64" for name in _ENDS},
            "work": "float64",
        }
        columns = ["id", "title", "severity", "fix", *numbers, "evidence"]
        return pd.DataFrame(rows, columns=columns).astype(numbers)  # type: ignore[arg-type]

    def functions(self) -> pd.DataFrame:
        """A row per Python function of unprofiled steps, in the order of the diagnosis: its place, its CPU time a step
        and the step without it in ns (NaN: not known) with 80 % intervals, and the share of its time in which the GPU
        waits. Empty if nothing was sampled."""
        import pandas as pd

        host = self.diagnosis.host
        rows = [
            {
                "function": one.function,
                "file": one.file,
                "line": one.line,
                "kind": one.kind,
                "called_from": one.called_from,
                "phase": one.phase,
                **_range("{}_ns", one.ns, round),
                "gpu_waits": one.gpu_waits,
                **(_range("step_{}_ns", one.step_ns, float) if one.step_ns is not None else {}),
                "why_unknown": one.why_unknown,
            }
            for one in (() if host is None else host.functions)
        ]
        times, steps = ([f"{of}{name}_ns" for name in _ENDS] for of in ("", "step_"))
        numbers = {"line": "int64", **dict.fromkeys(times, "int64"), **dict.fromkeys(["gpu_waits", *steps], "float64")}
        columns = [
            "function", "file", "line", "kind", "called_from", "phase", *times, "gpu_waits", *steps, "why_unknown",
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=columns).astype(numbers)  # type: ignore[arg-type]

    def projections(self, to: Sequence[str], **options: Any) -> pd.DataFrame:
        """A row per GPU of `to`, best first: the step there in ns with its 80 % interval, work per time relative to the
        recorded GPU, what limits it, whether the batch fits (None: not known), work per hour, dollars and watts.

        to, options: as for `gpuprof.project`. Raises GpuprofError if the recording cannot be projected.
        """
        import pandas as pd

        assert self.project is not None, "tables of a diagnosis can be projected"
        rows = [
            {
                "gpu": one.gpu,
                **_range("step_{}_ns", one.step_ns, round),
                **_range("speedup_{}", one.speedup, float),
                "bound": one.bound,
                "batch": one.batch,
                "fits": None if one.memory is None else one.memory.fits,
                "samples_per_hour": one.samples_per_hour,
                "tokens_per_hour": one.tokens_per_hour,
                "usd_per_hour": one.cost.price and one.cost.price.usd_per_hour,
                "usd_per_million_tokens": one.cost.usd_per_million_tokens,
                "power_w": one.cost.power_w,
            }
            for one in self.project(self.diagnosis, to, **options).gpus
        ]
        return pd.DataFrame(rows)

    def _texts(self, ids: I32 | I64) -> list[str | None]:
        strings = self.timeline.trace.strings
        return [strings[i] if i >= 0 else None for i in ids.tolist()]


def _range(name: str, interval: Any, number: Callable[[float], float]) -> dict[str, float]:
    """The ends and the middle of an interval as columns; `name` has {} in place of low, expected or high."""
    return {name.format(end): number(getattr(interval, end)) for end in _ENDS}


def _known(values: I64, origin: int = 0) -> pd.api.extensions.ExtensionArray:
    """Whole numbers relative to `origin`, <NA> if the recording has none."""
    import pandas as pd

    absent = values == ABSENT
    return pd.arrays.IntegerArray(np.where(absent, 0, values - np.where(absent, 0, origin)), absent)


def _decode(codes: np.ndarray, names: tuple[str, ...]) -> pd.Categorical:
    import pandas as pd

    return pd.Categorical.from_codes(codes.astype(np.int64), list(names))  # type: ignore[arg-type]
