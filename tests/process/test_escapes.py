"""Ways in which a tried program could change the user's files: none does, and each of them would without protection."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers import escapes
from helpers.command import working_in
from helpers.escapes import HOOKS, LEVELS, Escape

from gpuprof.record.launcher.command import Target
from gpuprof.trial.sandbox.kinds import LANDLOCK, NAMESPACE, VARIABLE, Sandbox, sandbox
from gpuprof.trial.starter import Starter

WAYS = escapes.escapes()
FEW = [one for one in WAYS if one.number % 12 == 0]
UNAVAILABLE = 12
"""Ways that may do nothing here even without protection, since a program or a library is not installed."""


def box(kind: str) -> Sandbox:
    """What a trial gets that asks for this kind of sandbox; skips the test where this kernel has none."""
    found = sandbox(False, False, kind)
    if found.kind != kind:
        pytest.skip(f"this kernel gives a process no {kind}: {found.why}")
    return found


def tried(folder: Path, chosen: list[Escape], kind: str, monkeypatch: pytest.MonkeyPatch) -> list[Escape]:
    """The ways that changed something in a trial."""
    monkeypatch.setenv(VARIABLE, kind)
    program = escapes.prepare(folder, chosen)
    before = {one.number: escapes.state(folder / str(one.number)) for one in chosen}
    words = (sys.executable, str(program), str(folder / "list.json"))
    target, tree = Target(words, "try_them", sys.executable, True, ()), folder / "not there"  # it is compared below
    with working_in(folder), Starter(target, False, tree) as starter:
        outcome = starter.run((), None, None, 0.1, 300)
    assert "without an optimizer step" in (outcome.process.error or ""), outcome.process.error
    return escapes.changed(folder, chosen, before)


def of_level(kind: str, ways: list[Escape]) -> list[Escape]:
    """The ways that this kind of sandbox prevents."""
    most = {HOOKS: 1, LANDLOCK: 2, NAMESPACE: 3}[kind]
    return [one for one in ways if one.level in LEVELS[:most]]


@pytest.mark.parametrize("kind", [NAMESPACE, LANDLOCK, HOOKS])
def test_some_of_each_class_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    if kind != HOOKS:
        box(kind)
    assert tried(tmp_path, of_level(kind, FEW), kind, monkeypatch) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", [NAMESPACE, LANDLOCK, HOOKS])
def test_none_of_200_changes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    if kind != HOOKS:
        box(kind)
    ways = of_level(kind, WAYS)
    print(f"{len(ways)} ways, {kind}")
    assert tried(tmp_path, ways, kind, monkeypatch) == []


@pytest.mark.slow
def test_without_protection_they_do(tmp_path: Path):
    program = escapes.prepare(tmp_path, WAYS)
    before = {one.number: escapes.state(tmp_path / str(one.number)) for one in WAYS}
    escapes.run_freely(tmp_path, program)
    harmless = set(WAYS) - set(escapes.changed(tmp_path, WAYS, before))
    print(f"{len(WAYS)} ways, {len(harmless)} of which change nothing here")
    assert len(WAYS) >= 200 and len(harmless) <= UNAVAILABLE, sorted(one.code for one in harmless)
