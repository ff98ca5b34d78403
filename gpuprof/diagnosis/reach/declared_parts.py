"""Ledger items that findings declare, by the stage of the ledger in which they are removed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem, LedgerParts, Stage
from gpuprof.diagnosis.detect.declared.ledger_part import LedgerPart, part_of
from gpuprof.diagnosis.findings import BUILT_IN


def declared(stage: Stage) -> Callable[[Analysis, Collection[str]], Iterator[LedgerPart]]:
    """What finds the items of a stage; plug-ins have none."""
    return partial(_of_stage, stage=stage)


def _of_stage(case: Analysis, advised: Collection[str], stage: Stage) -> Iterator[LedgerPart]:
    for one in BUILT_IN:
        ledger = one.ledger
        if ledger is None or ledger.stage != stage or not (ledger.unadvised or one.id in advised):
            continue
        if isinstance(ledger, LedgerParts):
            found = ledger.parts(case)
        else:
            found = _removed(case, one, ledger, known=one.id not in advised)
        yield from (replace(part, finding=one.id) for part in found)


def useless_parts(case: Analysis) -> Iterator[LedgerPart]:
    """Parts whose FLOPs the training does not need, or only a share of them."""
    for one in BUILT_IN:
        if isinstance(one.ledger, LedgerParts) and one.ledger.useless:
            yield from (part for part in one.ledger.parts(case) if part.useful is not None)


def _removed(case: Analysis, one: Declaration, item: LedgerItem, *, known: bool) -> Iterator[LedgerPart]:
    """What the first proposal of a finding removes that leaves the training unchanged. known: only if it is certain to
    work: what is not advised must be known to be wasted."""
    for proposal in case.proposals(one.find) if one.find is not None else ():
        if proposal.work != 1.0 or (proposal.changes and not item.changes_digits) or (known and proposal.odds < 1):
            continue
        what, why = proposal.item or (item.what, item.why)
        yield part_of(case.graph, proposal.change, what, why)
        return
