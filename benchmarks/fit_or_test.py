"""Which recordings numbers may be fitted to, and which only test them.

`fit`: numbers in gpuprof/calibration were chosen with the recording in view, or may be. `test`: none ever is, so that
what gpuprof says about it is out of sample. A scenario's role is in its scenario.json, that of a pair in
tests/data/pairs/truth.json; those of all others are here, by path. Recordings below `shared/` do not come with
gpuprof.

    python -m benchmarks.fit_or_test    # every recording with its role
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

from scenarios import catalogue

ROOT = Path(__file__).resolve().parents[1]
Role = Literal["fit", "test"]

PLACES: dict[str, Role] = {
    "tests/data/runs": "fit",
    "tests/data/nsys": "fit",
    "tests/data/hosts": "fit",
    "tests/data/vision": "fit",
    "tests/data/rl": "test",
    "tests/data/roofline_pair.json.gz": "fit",
    "tests/data/tiny_lora_dataloader.json.gz": "fit",
    "tests/data/unsloth_llama1b.json.gz": "fit",
    "examples/moe_on_h100_and_rtx_pro_6000/recordings": "fit",
    "gpuprof/data/demo.json.gz": "fit",
    "shared/traces/h200": "fit",
    "shared/traces/nsys": "fit",
    "shared/traces/public": "test",
    "shared/traces/wild": "test",
    "shared/traces/straggler": "test",
    "shared/traces/multirank": "test",
}
"""Folder or file, from the root of a checkout → role of the recordings in it."""

PAIRS = "tests/data/pairs"
WHOLE = ("scenarios", PAIRS, "tests/data/runs", "tests/data/nsys", "tests/data/hosts", "shared/traces/h200")
"""Folders that stand for all of their recordings whose role is `fit`."""
RECORDED = (".json.gz", ".json", ".sqlite.gz", ".sqlite", ".nsys-rep")


class TestRecordingRead(Exception):
    """A command that fits numbers opened a recording that only tests them."""

    __test__ = False


@cache
def roles() -> dict[str, Role]:
    """Every place with a role, scenarios and pairs among them. KeyError for a pair without one."""
    campaign = map(catalogue.scenario, catalogue.campaign_names())
    found: dict[str, Role] = {f"scenarios/{one.name}": one.role for one in (*catalogue.scenarios(), *campaign)}
    pairs = json.loads((ROOT / PAIRS / "truth.json").read_text(encoding="utf-8"))["runs"]
    found |= {f"{PAIRS}/{pair['trace']}": pair["role"] for pair in pairs.values()}
    return {**found, **PLACES}


def role_of(place: str) -> Role:
    """The role of a recording, by its path from the root of a checkout. KeyError where it has none."""
    parts = place.rstrip("/").split("/")
    for length in range(len(parts), 0, -1):
        role = roles().get("/".join(parts[:length]))
        if role is not None:
            return role
    raise KeyError(f"{place} has no role: say in benchmarks/fit_or_test.py whether numbers may be fitted to it")


def place_of(path: str | os.PathLike[str]) -> str:
    """A path relative to the root of a checkout; `shared/…` for recordings next to it."""
    full = Path(path).resolve()
    if full.is_relative_to(ROOT):
        return full.relative_to(ROOT).as_posix()
    _, found, below = full.as_posix().rpartition("/shared/traces/")
    return f"shared/traces/{below}" if found else full.as_posix()


def recordings() -> Iterator[str]:
    """Every recording that comes with gpuprof: trace files, and run folders as a whole."""
    for top in ("scenarios", "tests/data", "examples", "gpuprof/data"):
        for folder, inside, names in os.walk(ROOT / top):
            if "manifest.json" in names:
                inside.clear()
                yield place_of(folder)
            else:
                kept = (name for name in names if name.endswith((".json.gz", ".sqlite.gz", ".nsys-rep")))
                yield from (place_of(Path(folder) / name) for name in kept)


@contextmanager
def only_fit() -> Iterator[None]:
    """Within it every attempt to open a recording that only tests raises TestRecordingRead."""
    _listen()
    _GUARDED.append(tuple(place for place, role in roles().items() if role == "test"))
    try:
        yield
    finally:
        _GUARDED.pop()


_GUARDED: list[tuple[str, ...]] = []
"""Places that may not be read, for each `only_fit` that is entered."""


@cache
def _listen() -> None:
    """Adds an audit hook, which cannot be removed again; it acts only within `only_fit`."""
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    path = arguments[0] if _GUARDED and event in ("open", "sqlite3.connect") else None
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if not isinstance(path, str | os.PathLike):
        return
    place = place_of(path)
    if place.endswith("/scenario.json"):
        return  # says what role the scenario has
    if place.endswith(RECORDED) and any(place == where or place.startswith(f"{where}/") for where in _GUARDED[-1]):
        raise TestRecordingRead(f"{place} is a test recording: no number may be fitted to it")


def main() -> None:
    for place in sorted(recordings()):
        print(f"{role_of(place):5} {place}")
    for place, role in PLACES.items():
        if place.startswith("shared/"):
            print(f"{role:5} {place}/…")


if __name__ == "__main__":
    main()
