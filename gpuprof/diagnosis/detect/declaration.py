"""One kind of finding with everything that belongs to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpuprof.diagnosis.detect.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.memory_remedy import MemoryRemedy
from gpuprof.diagnosis.detect.pair.candidates import Recogniser
from gpuprof.diagnosis.detect.proposal import Absent, Finder, Page


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
    ledger: LedgerItem | None = None
    """How the ledger of costs above a step's reach shows what it removes; None, and for a plug-in: without an item of
    its own."""
    memory: MemoryRemedy | None = None
    """Its effect on the memory footprint."""
    synonyms: tuple[str, ...] = ()
    """Names of its remedy and of its subject, as `finding_names.key` returns them."""
    titles: tuple[str, ...] = ()
    """Titles of its fixes in a diagnosis, as `finding_names.without_numbers` returns them, except synonyms."""
    patch: Path | None = None
    """For a plug-in: the file of its patch, with `PATCH` and `apply` like those in gpuprof.record.patches."""

    @property
    def id(self) -> str:
        return self.page.id
