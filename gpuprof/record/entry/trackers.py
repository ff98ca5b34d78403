"""Logs what a recording found to the experiment trackers that the program uses: W&B, MLflow, TensorBoard.

None is ever started or imported on the program's behalf. A trainer's own callbacks may end their run before ours is
called, so what is active is noted when the training begins, too.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path

ARTIFACT = "gpuprof-report"

Sink = Callable[[dict[str, float], str, int, "Path | None"], None]
"""Called with the scalars, the verdict in a sentence, the number of the last step, and the report if there is one."""


class Trackers:
    """The trackers that were seen active, each with what logs to it."""

    def __init__(self) -> None:
        self._sinks: dict[tuple[str, str], Sink] = {}

    def __bool__(self) -> bool:
        return bool(self._sinks)

    def look(self) -> None:
        """Notes what is active now. Never raises."""
        for find in (_wandb, _mlflow, _tensorboard):
            try:
                self._sinks |= find()
            except Exception:  # a tracker that is not fully set up does not count
                continue

    def log(self, scalars: dict[str, float], summary: str, step: int, report: Path | None) -> tuple[list[str], list]:
        """Logs to each. Returns the names of those that succeeded, and (name, error) of those that did not."""
        done, failed = [], []
        for (name, _), sink in self._sinks.items():
            try:
                sink(scalars, summary, step, report)
                done.append(name)
            except Exception as error:
                failed.append((name, error))
        return done, failed


def _wandb() -> dict[tuple[str, str], Sink]:
    wandb = sys.modules.get("wandb")
    run = getattr(wandb, "run", None)
    if wandb is None or run is None:
        return {}

    def log(scalars: dict[str, float], summary: str, step: int, report: Path | None) -> None:
        run.log(scalars)
        run.summary["gpuprof/verdict"] = summary
        if report is not None:
            artifact = wandb.Artifact(f"{ARTIFACT}-{run.id}", type="report")
            artifact.add_file(str(report))
            run.log_artifact(artifact)

    return {("wandb", str(run.id)): log}


def _mlflow() -> dict[tuple[str, str], Sink]:
    mlflow = sys.modules.get("mlflow")
    active = mlflow.active_run() if mlflow is not None and hasattr(mlflow, "active_run") else None
    if mlflow is None or active is None:
        return {}
    run = active.info.run_id

    def log(scalars: dict[str, float], summary: str, step: int, report: Path | None) -> None:
        client = mlflow.MlflowClient()  # it can also log to a run that has ended
        for name, value in scalars.items():
            client.log_metric(run, name, value, step=step)
        client.set_tag(run, "gpuprof.verdict", summary)
        if report is not None:
            client.log_artifact(run, str(report), ARTIFACT)

    return {("mlflow", run): log}


def _tensorboard() -> dict[tuple[str, str], Sink]:
    """torch keeps no list of its SummaryWriters, so they are searched among all live objects."""
    writer_class = getattr(sys.modules.get("torch.utils.tensorboard.writer"), "SummaryWriter", None)
    if writer_class is None:
        return {}
    writers = [found for found in gc.get_objects() if issubclass(type(found), writer_class)]
    folders = {str(writer.log_dir) for writer in writers if getattr(writer, "file_writer", None) is not None}

    def sink(folder: str) -> Sink:
        def log(scalars: dict[str, float], summary: str, step: int, report: Path | None) -> None:
            # A file of its own next to the program's, whose writer may be closed by now.
            with writer_class(folder, filename_suffix=".gpuprof") as writer:
                for name, value in scalars.items():
                    writer.add_scalar(name, value, step)
                writer.add_text("gpuprof/verdict", summary if report is None else f"{summary}\n\n{report}", step)

        return log

    return {("tensorboard", folder): sink(folder) for folder in folders}
