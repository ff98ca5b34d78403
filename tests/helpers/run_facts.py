"""Facts of a run about its steps, and the reported issues."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.run.run_facts import RunFacts, run_facts
from gpuprof.diagnosis.run.run_issues import run_issues
from gpuprof.tracefile.run_folder.run import read_run
from helpers.make_run import RunBuilder


def facts(run: RunBuilder, folder: Path) -> RunFacts:
    return run_facts(read_run(run.write(folder, None)))


def issues(found: RunFacts | Diagnosis) -> dict[str, str]:
    listed = found.quality.issues if isinstance(found, Diagnosis) else run_issues(found)
    return {issue.id: issue.severity for issue in listed}


def array(*values: float) -> np.ndarray:
    return np.array(values, np.float64)
