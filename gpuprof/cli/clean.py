"""`gpuprof clean`: removes the traces of old runs; their logs and verdicts stay."""

from __future__ import annotations

from pathlib import Path

import click

from gpuprof.cli.shared.option_types import WholeNumber
from gpuprof.cli.shared.output import say, write
from gpuprof.errors import GpuprofError
from gpuprof.runfile import MANIFEST, RUNS, log, read_json, recordings_in


@click.command(short_help="Remove the traces of old runs; their logs stay.")
@click.argument("folder", default=RUNS, type=click.Path(path_type=Path))
@click.option("--keep", type=WholeNumber(0), default=5, metavar="N", show_default=True,
              help="Leave the newest N runs as they are.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def command(folder: Path, keep: int, dry_run: bool) -> int:
    """Remove traces, memory snapshots and Nsight Systems reports of all but the newest runs in FOLDER.

    Without FOLDER: gpuprof-runs. Step times, telemetry, logs, verdicts and reports stay, and gpuprof history still
    shows these runs. Runs that have not ended are left alone.
    """
    from gpuprof.report.numbers import amount
    from gpuprof.tracefile.run_folder.run_paths import runs_in
    from gpuprof.tracefile.traces_in_folder import passes

    runs = runs_in(folder)
    if not runs:
        raise GpuprofError(f"{folder} holds no run" if passes(folder, Path.is_dir) else f"{folder}: no such folder")
    freed, cleaned = 0, 0
    for run in runs[: max(len(runs) - keep, 0)]:
        if (read_json(run / MANIFEST) or {}).get("status") == "running":
            continue
        bytes_ = _clean(run, dry_run)
        freed, cleaned = freed + bytes_, cleaned + bool(bytes_)
    verb = "would be freed" if dry_run else "freed"
    write(f"{_size(freed)} {verb} in {amount(cleaned, 'run')} of {len(runs)}; logs and step times stay\n")
    return 0


def _clean(run: Path, dry_run: bool) -> int:
    """Removes the large files of a run, which its log says; returns their bytes."""
    freed, removed = 0, []
    try:
        for path in recordings_in(run):
            size = path.lstat().st_size
            if not dry_run:
                path.unlink()
                removed.append(path.name)
            freed += size
    except OSError as error:
        say(f"{run}: {error.strerror}")
    if removed:
        log(run, f"gpuprof clean removed {', '.join(sorted(removed))}")
    return freed


def _size(count: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count} bytes"
