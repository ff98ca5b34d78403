"""One kind of finding with everything that belongs to it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem, LedgerParts
from gpuprof.diagnosis.detect.declared.ledger_part import Cost
from gpuprof.diagnosis.detect.declared.memory_remedy import MemoryRemedy
from gpuprof.diagnosis.detect.declared.proposal import Absent, Finder, Page
from gpuprof.diagnosis.detect.pair.candidates import Recogniser

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis
    from gpuprof.diagnosis.detect.ranks.gang import Gang
    from gpuprof.diagnosis.result.diagnosis import Issue
    from gpuprof.diagnosis.result.finding_model import Finding
    from gpuprof.diagnosis.result.run_model import Run

Role = Literal["loader_workers", "batch_size", "padded_tokens", "communication", "gpu_clock"]
"""Subjects by which other modules look a finding up: to name a difference between two recordings that no change
explains, or to advise a run without a GPU."""

Note = Callable[["Run | None", "Analysis | None"], "Issue | None"]
"""Function of a run, and of its analysis if its steps can be replayed; returns an issue, or None."""


def key(text: str) -> str:
    """A name without case, blanks and punctuation: `Gradient-Checkpointing` → `gradient_checkpointing`."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


@dataclass(frozen=True, slots=True)
class Declaration:
    """One kind of finding with everything that belongs to it. Each file in findings/ declares one as FINDING, and so
    does each plug-in."""

    page: Page
    find: Finder | None = None
    """None: it is not found in the steps of one recording, but across ranks, in memory or in warnings."""
    absent: Absent | None = None
    """Explains why the remedy is not advised, if users may expect it."""
    change: Recogniser | None = None
    """Recognises in a comparison that such a fix was made."""
    ledger: LedgerItem | LedgerParts | None = None
    """How the ledger of costs above a step's reach shows what it removes; None, and for a plug-in: without an item of
    its own."""
    lowers: tuple[Cost, ...] = ()
    """Costs that the ledger finds by itself, and that its fixes remove or lower."""
    memory: MemoryRemedy | None = None
    """Its effect on the memory footprint."""
    note: Note | None = None
    """Something to say of a recording's quality where its run shows the problem, whatever is advised."""
    across_ranks: Callable[[Gang], Finding | None] | None = None
    """Finds it in several ranks' recordings together."""
    role: Role | None = None
    """The subject by which other modules look this finding up; None if none does."""
    same_ops: bool = False
    """Whether its fixes only run the recorded ops less often, in other batches, or keep their results, and replace
    none."""
    again: bool = False
    """Whether it may be advised again after it was applied: an even larger batch gains more."""
    synonyms: tuple[str, ...] = ()
    """Names of its remedy and of its subject, as `finding_names.key` returns them."""
    titles: tuple[str, ...] = ()
    """Titles of its fixes in a diagnosis, as `finding_names.without_numbers` returns them, except synonyms."""
    patch: Path | None = None
    """For a plug-in: the file of its patch, with `PATCH` and `apply` like those in gpuprof.record.patches."""

    @property
    def id(self) -> str:
        return self.page.id
