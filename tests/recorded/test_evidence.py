"""Places that findings name: something of that name begins there, and a place is named only if it is most of the
work."""

from __future__ import annotations

import pytest
from helpers.diagnosed import diagnosed
from helpers.paths import ROOT
from helpers.present import present
from helpers.quick import few

from gpuprof.diagnosis.detect.cpu.evidence import AND_ON, BEGIN_NS, NAMING_OP_SHARE

RUNS = ROOT / "tests" / "data" / "runs"


@pytest.mark.parametrize("run", few(["tiny_lora", "dense8b_lora", "unsloth_qlora"], ["tiny_lora"]))
def test_places_are_named_after_what_begins_them(run):
    diagnosis = diagnosed(RUNS / run)
    tables = {True: diagnosis.tables.kernels(), False: diagnosis.tables.ops()}
    seen = 0
    for finding in diagnosis.findings:
        for place in finding.evidence:
            if place.start_ns is None:
                continue
            name = place.text.removesuffix(AND_ON)
            table = tables[present(place.where).startswith("GPU")]
            named = table[table["name"] == name]
            if named.empty:
                continue  # a call, or Python without an op
            seen += 1
            around = named[
                (named["start_ns"] <= place.start_ns + 1) & (named["start_ns"] + named["ns"] > place.start_ns)
            ]
            near = named[(named["start_ns"] - place.start_ns).abs() <= BEGIN_NS]
            here = near if len(near) else around
            assert len(here), place
            longest = int(here["ns"].max())
            if place.text.endswith(AND_ON):
                assert int(here["ns"].min()) < present(place.ns), place
            else:
                assert longest >= NAMING_OP_SHARE * present(place.ns), place
    assert seen >= 3


@pytest.mark.parametrize("run", few(["tiny_lora", "dense8b_lora", "unsloth_qlora"], ["tiny_lora"]))
def test_links_lead_to_the_modules_that_hold_most(run):
    """Each link leads to a different module, the one with most first, and none to a whole pass."""
    diagnosis = diagnosed(RUNS / run)
    seen = 0
    for finding in diagnosis.findings:
        parts = [(one.part, present(one.part_ns), present(one.ns)) for one in finding.evidence if one.part is not None]
        assert len({name for name, _, _ in parts}) == len(parts), finding.title
        assert [ns for _, ns, _ in parts] == sorted((ns for _, ns, _ in parts), reverse=True), finding.title
        if parts and "DecoderLayer" in parts[0][0]:
            seen += 1
            assert parts[0][2] < 0.25 * present(present(diagnosis.steps).recorded_ns), "one layer, not all of a pass"
    assert seen
