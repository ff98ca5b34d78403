"""Colours of the charts: each kind has one, the same in all views, visible in both themes and to colour-blind
readers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gpuprof.diagnosis.idle.gaps import CAUSES
from gpuprof.diagnosis.mean_step.budget_model import NAMES
from gpuprof.report import palette
from gpuprof.report.stepbar import PAINTS
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.phases import PHASES

PALETTES = {
    name: tuple(value.values() if hasattr(value, "values") else value)
    for name, value in vars(palette).items()
    if name.endswith("_PAINTS")
}


def test_everything_has_a_colour():
    assert set(palette.CAUSE_PAINTS) == set(CAUSES)
    assert set(palette.PHASE_PAINTS) == set(PHASES)
    assert {palette.category_group(category) for category in CATEGORIES} == set(palette.CATEGORY_PAINTS)
    assert len(palette.CATEGORY_PAINTS) <= 8
    assert palette.category_group("of tomorrow") == "other"
    for paints in PALETTES.values():
        for field in ("light", "dark"):
            colours = [getattr(paint, field) for paint in paints]
            assert len(set(colours)) == len(colours)


def test_colours_are_those_of_the_step_bar():
    for key in ("compute", "communication", "copy", "idle"):
        assert palette.WORK_PAINTS[key].light == PAINTS[key].page
    for key in ("launch", "sync", "input", "allocator", "device", "profiler"):
        assert palette.CAUSE_PAINTS[key].light == PAINTS[key].page
    for key in palette.BUDGET_PAINTS.keys() & PAINTS.keys():
        assert palette.BUDGET_PAINTS[key].light == PAINTS[key].page
    assert set(palette.BUDGET_PAINTS) == {"usual", *NAMES, "pauses", "variation"}, "each cause of the budget"
    for key in palette.BUDGET_PAINTS.keys() & palette.CAUSE_PAINTS.keys():
        one, other = palette.BUDGET_PAINTS[key], palette.CAUSE_PAINTS[key]
        assert (one.light, one.dark) == (other.light, other.dark), "one colour everywhere"


@pytest.mark.parametrize("name", PALETTES)
def test_fills_are_seen_on_their_page(name):
    least = {"light": 1.6, "dark": 2.0}
    for paint in PALETTES[name]:
        assert palette.contrast(paint.light, palette.LIGHT_PAGE) >= least["light"], paint
        assert palette.contrast(paint.dark, palette.DARK_PAGE) >= least["dark"], paint
        for fill in (paint.light, paint.dark):
            assert palette.contrast(palette.text_on(fill), fill) >= 4.5, "text on it can be read"


# Matrices of Machado, Oliveira and Fernandes (2009) for the complete absence of one kind of cone, on linear RGB.
SEEN_BY = {
    "all": np.eye(3),
    "protanope": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranope": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour: str, eye: str) -> np.ndarray:
    """CIE L*a*b* of a colour as someone sees it."""
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    x = TO_XYZ @ np.clip(SEEN_BY[eye] @ linear, 0, 1) / np.array([0.9505, 1, 1.089])
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eye", SEEN_BY)
@pytest.mark.parametrize("name", [name for name in PALETTES if name != "SERIES_PAINTS"])
def test_colours_are_distinguishable(name, eye):
    for one, other in itertools.combinations(PALETTES[name], 2):
        for field in ("light", "dark"):
            apart = np.linalg.norm(lab(getattr(one, field), eye) - lab(getattr(other, field), eye))
            assert apart >= 8, (one.key, other.key, field)


SAME_THING = {
    # What has one colour on purpose: one thing under several names, and greys for what has no kind.
    frozenset({"CAUSE_PAINTS.input", "PHASE_PAINTS.data"}),
    frozenset({"PHASE_PAINTS.data", "BUDGET_PAINTS.input"}),
    frozenset({"CAUSE_PAINTS.transfer", "WORK_PAINTS.copy"}),
    frozenset({"CATEGORY_PAINTS.other", "BUDGET_PAINTS.variation"}),
    *(frozenset({"OWNER_PAINTS.inputs", name}) for name in
      ("CAUSE_PAINTS.input", "PHASE_PAINTS.data", "BUDGET_PAINTS.input")),
}  # fmt: skip
GREYS = {"other", "variation", "range", "idle", "unknown", "profiler", "usual", "before_history"}


def test_one_colour_has_one_meaning_in_all_views():
    """Kernels, phases, waits, limits, parts of the mean step, owners of memory: 8 apart in CIE L*a*b* where they mean
    two things."""
    sets = ("CATEGORY_PAINTS", "PHASE_PAINTS", "CAUSE_PAINTS", "BOUND_PAINTS", "WORK_PAINTS", "BUDGET_PAINTS",
            "OWNER_PAINTS")  # fmt: skip
    every = [(f"{name}.{p.key}", p) for name in sets for p in getattr(palette, name).values()]
    for (one, a), (other, b) in itertools.combinations(every, 2):
        same = a.key == b.key or frozenset({one, other}) in SAME_THING or {a.key, b.key} <= GREYS
        for field in ("light", "dark"):
            apart = np.linalg.norm(lab(getattr(a, field), "all") - lab(getattr(b, field), "all"))
            assert same or apart >= 8, (one, other, field, apart)


@pytest.mark.parametrize("eye", SEEN_BY)
def test_memory_owners_differ_from_the_phases_below_them(eye):
    """Both are on the page of `gpuprof memory`."""
    phases = [paint for paint in palette.PHASE_PAINTS.values() if paint.key not in ("data", "communication", "other")]
    for owner, phase in itertools.product(palette.OWNER_PAINTS.values(), phases):
        for field in ("light", "dark"):
            apart = np.linalg.norm(lab(getattr(owner, field), eye) - lab(getattr(phase, field), eye))
            assert apart >= 6, (owner.key, phase.key, field, apart)


def test_calls_have_the_colour_of_the_wait_that_they_cause():
    for key, cause in (("launch", "launch"), ("sync", "sync"), ("copy", "transfer"), ("python", "python")):
        assert palette.HOST_PAINTS[key].light == palette.CAUSE_PAINTS[cause].light
        assert palette.HOST_PAINTS[key].dark == palette.CAUSE_PAINTS[cause].dark
