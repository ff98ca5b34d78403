"""The colours of the views, numbered: events contain the number, and the header the colour."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuprof.diagnosis.idle.gaps import CAUSES
from gpuprof.report.palette import (
    CATEGORY_PAINTS,
    CAUSE_PAINTS,
    GAIN_SHADES,
    HOST_PAINTS,
    MARK_PAINTS,
    MIXED,
    PHASE_PAINTS,
    WORK_PAINTS,
    Paint,
    category_group,
)
from gpuprof.report.words.iteration_words import PAINTS as ITERATION_PAINTS
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.phases import GENERATION, PHASES
from gpuprof.tracefile.trace import I64

_SETS = (
    ("GPU work", "category", CATEGORY_PAINTS),
    ("waiting for", "cause", CAUSE_PAINTS),
    ("phases", "phase", PHASE_PAINTS),
    ("CPU", "host", HOST_PAINTS),
    ("", "work", WORK_PAINTS),
    ("", "mark", MARK_PAINTS),
    ("", "ground", {MIXED.key: MIXED}),
)

ITERATION = "iteration"
_ITERATION = {
    name: PHASE_PAINTS.get(name) or Paint(name, name, paint.page, paint.page)
    for name, paint in ITERATION_PAINTS.items()
}
"""Only on pages of RL trainings, so numbered last."""
_ALL: list[tuple[str, Paint]] = [
    *((kind, paint) for _, kind, paints in _SETS for paint in paints.values()),
    *(("gain", paint) for paint in GAIN_SHADES),
    *((ITERATION, paint) for paint in _ITERATION.values()),
]
_NUMBER = {(kind, paint.key): i for i, (kind, paint) in enumerate(_ALL)}


def number(kind: str, key: str) -> int:
    """Number of a paint; `kind` is category, cause, phase, host, work, mark, ground, gain or iteration."""
    return _NUMBER[kind, key]


BY_CATEGORY: I64 = np.array([number("category", category_group(name)) for name in CATEGORIES])
"""By index into CATEGORIES; likewise the next two."""
BY_CAUSE: I64 = np.array([number("cause", name) for name in CAUSES])
BY_PHASE: I64 = np.array([number("phase", name) for name in PHASES])
BY_GAIN: I64 = np.array([number("gain", paint.key) for paint in GAIN_SHADES])
"""The scale from no gain to all of the time."""


def header(generates: bool = False) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(paints, legends) as the viewer reads them. generates: whether it is an RL training."""
    paints = [
        {"key": p.key, "label": p.label, "light": p.light, "dark": p.dark, "wait": kind == "cause"}
        for kind, p in _ALL
        if generates or kind != ITERATION
    ]
    legends = [
        {"title": title, "paints": [number(kind, key) for key in paints_ if generates or key != PHASES[GENERATION]]}
        for title, kind, paints_ in _SETS
        if title
    ]
    if generates:
        legends.insert(0, {"title": "iteration", "paints": [number(ITERATION, name) for name in _ITERATION]})
    return paints, legends
