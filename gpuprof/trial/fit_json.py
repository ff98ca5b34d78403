"""A FitReport as `gpuprof.fit/1`: the keys of the dataclasses."""

from __future__ import annotations

import dataclasses
import json

from gpuprof.trial.fit import SCHEMA, FitReport


def dumps(report: FitReport) -> str:
    """The JSON text, in ASCII."""
    return json.dumps({"schema": SCHEMA, **dataclasses.asdict(report)}, indent=2, ensure_ascii=True, allow_nan=False)
