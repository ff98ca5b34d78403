"""A Hang as `gpuprof.hang/1`: the keys of the dataclasses. `schema/hang-1.json` is the JSON Schema."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuprof.hang.judge import Hang
from gpuprof.hang.rank_state import RankState

SCHEMA = "gpuprof.hang/1"
SCHEMA_FILE = Path(__file__).with_name("schema") / "hang-1.json"


def dumps(hang: Hang, states: Sequence[RankState]) -> str:
    """The JSON text, in ASCII."""
    return json.dumps(to_json(hang, states), indent=2, ensure_ascii=True, allow_nan=False)


def to_json(hang: Hang, states: Sequence[RankState]) -> dict[str, Any]:
    """Plain dicts, lists, strings and numbers that the schema accepts."""
    mismatch = hang.mismatch
    found = dataclasses.asdict(hang) | {
        "mismatch": None
        if mismatch is None
        else {
            "what": mismatch.what,
            "group": mismatch.group,
            "seq": mismatch.seq,
            "usual": mismatch.usual,
            "others": [
                {"rank": rank, "called": said, "at": _plain(mismatch.at.get(rank))}
                for rank, said in mismatch.others.items()
            ],
        }
    }
    return {"schema": SCHEMA, **found, "states": [_state(state) for state in states]}


def _state(state: RankState) -> dict[str, Any]:
    return {
        "rank": state.rank,
        "life": state.life,
        "doing": state.doing,
        "at": _plain(state.at),
        "dump": None if state.dump is None else str(state.dump.path),
        "error": state.error,
        "last_step": state.last_step,
        "last_step_unix_ns": state.last_step_unix_ns,
        "phase": state.phase,
    }


def _plain(frame: Any) -> dict[str, Any] | None:
    return None if frame is None else dataclasses.asdict(frame)


def schema() -> dict[str, Any]:
    """The JSON Schema that every output validates against."""
    return json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
