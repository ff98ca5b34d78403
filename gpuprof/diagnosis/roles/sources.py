"""Resolves what a user gives as recordings of a job's roles to processes: runs, a run of several processes, traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpuprof.diagnosis.iterations.logged import logged_quantities
from gpuprof.diagnosis.roles.model import RoleProcess, Roles
from gpuprof.diagnosis.roles.process_spans import of_phase_log, of_trace
from gpuprof.diagnosis.roles.timeline import roles_of
from gpuprof.errors import GpuprofError
from gpuprof.timeline.intervals import union
from gpuprof.tracefile.recording import Recording, resolve
from gpuprof.tracefile.run_folder.phase_logs import holds_phase_logs, read_phase_logs
from gpuprof.tracefile.trace import ANNOTATION


def diagnose_roles(job: Recording) -> Roles:
    """The roles of a job on one timeline. job: run folders of one or more processes each, folders of runs, or traces,
    and logs of the job for queue and staleness.

    Raises GpuprofError, one line, unless two or more processes marked phases at the same time.
    """
    found = (one for path in job.logs for one in logged_quantities(Path(path)))
    queue = tuple(one for one in found if one.kind in ("queue", "staleness"))
    roles = _on_one_timeline([path for path in job.given if path not in job.logs])
    return replace(roles, queue=queue or roles.queue)


def _on_one_timeline(given: Sequence[str]) -> Roles:
    found = [one for path in given for one in _runs(path)]
    without = [one for one in found if not _marks(one)]
    logs = [log for one in found if one not in without for path in one.files for log in read_phase_logs(path)]
    if not logs:
        return roles_of([_traced(one) for one in found])
    if without:
        raise GpuprofError(f"{without[0]} marks no phases: mark them with gpuprof.phase in each process")
    # One boot of a host has one monotonic clock, so all its processes get the same offset to the time of day.
    offsets = {log.boot: log.unix_offset_ns for log in reversed(logs)}
    return roles_of([of_phase_log(log, offsets[log.boot] if log.boot else log.unix_offset_ns) for log in logs])


def _runs(path: str) -> list[Recording]:
    """The recording itself, or for a folder of runs, each run whose processes marked phases."""
    one = resolve(path)
    return [one] if _marks(one) else [run for run in one.runs if _marks(run)] or [one]


def _marks(one: Recording) -> bool:
    """Whether processes of a run marked phases."""
    return any(map(holds_phase_logs, one.files))


def _traced(recording: Recording) -> RoleProcess:
    """The process of a recording. Raises GpuprofError if it has no trace or no marked phases."""
    trace = recording.read().trace
    if trace is None:
        raise GpuprofError(f"{recording} has no trace, and its processes marked no phases")
    ops, gpu = trace.ops, trace.gpu
    works = ops.kind != ANNOTATION
    found = of_trace(
        trace, union(gpu.start_ns, gpu.end_ns), union(ops.start_ns[works], ops.end_ns[works]), str(recording)
    )
    if not found.spans:
        raise GpuprofError(
            f"{recording} has no marked phases: mark them with gpuprof.phase, or record with the framework's own marks"
        )
    return found
