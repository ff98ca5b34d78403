"""Records what a cell of a notebook trains, in the running kernel; afterwards torch is as it was found."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from ...runfile import rank_file, read_json
from ..base.options import planned
from ..steps.schedule import LONGEST_SETTLE, plan
from .arm import ImportWatch
from .attach import holder
from .recorder import Recorder, _recording_around

_OPTIMIZERS, _TRAINERS = "torch.optim.optimizer", "transformers.trainer"


class CellRecorder(Recorder):
    """Like a Recorder, but the steps are found: those of a Trainer, or else of the optimizers.

    options: as a Recorder takes them. Entering it raises OSError where no folder can be made.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(trackers=False, **options)
        self._watch: ImportWatch | None = None

    @property
    def is_recorded_around(self) -> bool:
        """Whether the notebook kernel itself runs under `gpuprof trace`, which already records it."""
        return _recording_around() is not None

    def begin(self, values: Iterable[Any]) -> None:
        """Begins. values: the notebook's variables, among which Trainers are found. Raises OSError."""
        self._make_run("cell")
        if self.folder is None:
            return

        def optimizers(module: Any) -> None:
            holder.attach_optimizers(module)

        def trainers(module: Any) -> None:
            holder.attach_trainer(module, [one for one in values if isinstance(one, module.Trainer)])

        wanted = {_OPTIMIZERS: optimizers, _TRAINERS: trainers}
        for name, attach in list(wanted.items()):
            if name in sys.modules:
                attach(sys.modules[name])
                del wanted[name]
        self._watch = ImportWatch(wanted, str(self.folder))
        sys.meta_path.insert(0, self._watch)

    def end(self, failed: bool) -> None:
        """Ends the recording, keeping what there is, and leaves nothing behind in torch."""
        if self._watch in sys.meta_path:
            sys.meta_path.remove(self._watch)
        holder.release()
        self._end("failed" if failed else "finished")

    def outcome(self, failed: str | None) -> tuple[str, bool]:
        """(a sentence on what was recorded, whether it can be diagnosed). failed: what ended the cell early."""
        facts = {} if self.folder is None else read_json(self.folder / rank_file(0)) or {}
        seen = facts.get("steps_seen") or 0
        early = f"the cell ended early ({failed}) " if failed else ""
        if not seen:
            return f"{early or 'the cell '}{'and ' if early else ''}took no optimizer step: nothing is recorded", False
        steps = "1 step" if seen == 1 else f"{seen} steps"
        if facts.get("windows"):
            return f"{early}after {steps}: recorded" if early else "", True
        settle = self._options["settle"] if self._options["settle"] is not None else LONGEST_SETTLE
        needed = plan(**planned(self._options, settle=settle)).needs()
        return f"{early}{'after ' if early else 'the cell took '}{steps}; {needed} are needed for a recording", True
