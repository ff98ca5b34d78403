"""A Hang as `gpuprof.hang/1`: the keys of the dataclasses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuprof import documents
from gpuprof.documents import plain
from gpuprof.hang.judge import Hang, Mismatch
from gpuprof.hang.rank_state import RankState

SCHEMA = "gpuprof.hang/1"


def dumps(hang: Hang, states: Sequence[RankState]) -> str:
    """The JSON text, in ASCII."""
    return documents.dumps(to_json(hang, states))


def to_json(hang: Hang, states: Sequence[RankState]) -> dict[str, Any]:
    """Plain dicts, lists, strings and numbers that the schema accepts."""
    found = documents.document(SCHEMA, hang, mismatch=None if hang.mismatch is None else _mismatch(hang.mismatch))
    return {**found, "states": [_state(state) for state in states]}


def schema() -> dict[str, Any]:
    """The JSON Schema that every output validates against."""
    return documents.schema(SCHEMA)


def _mismatch(mismatch: Mismatch) -> dict[str, Any]:
    return {
        "what": mismatch.what,
        "group": mismatch.group,
        "seq": mismatch.seq,
        "usual": mismatch.usual,
        "others": [
            {"rank": rank, "called": said, "at": plain(mismatch.at.get(rank))} for rank, said in mismatch.others.items()
        ],
    }


def _state(state: RankState) -> dict[str, Any]:
    return {
        "rank": state.rank,
        "life": state.life,
        "doing": state.doing,
        "at": plain(state.at),
        "dump": None if state.dump is None else str(state.dump.path),
        "error": state.error,
        "last_step": state.last_step,
        "last_step_unix_ns": state.last_step_unix_ns,
        "phase": state.phase,
    }
