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
    """One kind of finding with everything that belongs to it. Each file of findings/ declares one, as FINDING; so does
    each plug-in."""

    page: Page
    find: Finder | None = None
    """None: it is not found in one recording's steps, but in those of several ranks, in memory or in warnings."""
    absent: Absent | None = None
    """Where users expect the remedy: why it is not advised."""
    change: Recogniser | None = None
    """How a comparison recognises that such a fix was made."""
    ledger: LedgerItem | None = None
    """How the ledger of what lies above a step's reach shows what it takes away; None, and of a plug-in: as no item of
    its own."""
    memory: MemoryRemedy | None = None
    """What it does to the memory's footprint."""
    synonyms: tuple[str, ...] = ()
    """Names of its remedy and of its subject, as `finding_names.key` writes them."""
    titles: tuple[str, ...] = ()
    """Titles that its fixes have in a diagnosis, as `finding_names.without_numbers` leaves them, without those that are
    synonyms."""
    patch: Path | None = None
    """Of a plug-in the file of its patch, with `PATCH` and `apply` as those in gpuprof.record.patches."""

    @property
    def id(self) -> str:
        return self.page.id
