"""The texts of an export, each once: those of its own table, by number, and those created here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuprof.tracefile.nsys.database import Database
from gpuprof.tracefile.trace import I32, I64, NO_TEXT


class Strings:
    """Gives every distinct text a number, in order of first use."""

    def __init__(self, database: Database) -> None:
        self.texts: list[str] = []
        self._ids: dict[str, int] = {}
        self._stored = {
            key: value
            for key, value in database.pairs("StringIds", "id", "value")
            if isinstance(key, int) and isinstance(value, str)
        }

    def id(self, text: str) -> int:
        """The number of a text."""
        found = self._ids.setdefault(text, len(self.texts))
        if found == len(self.texts):
            self.texts.append(text)
        return found

    def stored(self, key: int) -> str | None:
        """The text with this number in the export."""
        return self._stored.get(key)

    def named(self, keys: I64, rename: Callable[[str], str | None] = str) -> I32:
        """Our numbers for a column of the export's numbers; each distinct text is renamed once. NO_TEXT if there is no
        text, or none that can be renamed."""
        distinct, inverse = np.unique(keys, return_inverse=True)
        stored = (self._stored.get(key) for key in distinct.tolist())
        texts = [None if text is None else rename(text) for text in stored]
        ids = np.array([NO_TEXT if text is None else self.id(text) for text in texts], np.int32)
        return ids[inverse.reshape(-1)] if len(distinct) else np.empty(0, np.int32)
