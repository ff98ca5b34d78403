"""Rules for single libraries are in one module, each with a proof and with what it waits for before it can go."""

from __future__ import annotations

import re

from helpers.paths import ROOT

from gpuprof.diagnosis import quarantine


def test_each_entry_says_what_proves_it_and_when_it_may_go():
    values = {name for name in vars(quarantine) if name.isupper()} - {"ENTRIES"}
    assert quarantine.ENTRIES.keys() == values
    assert all(one.proof and one.until for one in quarantine.ENTRIES.values())


def test_proofs_in_the_repository_are_there():
    named = [
        path for one in quarantine.ENTRIES.values() for path in re.findall(r"(?:scenarios|tests)/[\w/.]*\w", one.proof)
    ]
    assert len(named) >= 3
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_no_finding_asks_for_one_library():
    """No list of program kinds, and nothing for unsloth alone, except as a quarantined entry."""
    rooms = (ROOT / "gpuprof" / "diagnosis" / room for room in ("detect", "findings", "iterations"))
    sources = [path for room in rooms for path in room.rglob("*.py")]
    assert len(sources) > 100
    single = re.compile(
        r"stack\.kind (not )?in \(|stack\.kind [=!]= .unsloth|(re\.compile|startswith)\(.*(GRPO|RLOO|PPO|DPO)"
    )
    assert [path.name for path in sources if single.search(path.read_text(encoding="utf-8"))] == []
