"""Collects libraries' warnings about speed: a kernel that is not installed, a slow fallback.
Log records are inspected as they are made, warnings as they are about to be shown. None is suppressed, changed or
repeated: no handler is added (one on the root logger would keep `logging.basicConfig` from working), and levels and
filters stay as they are.
"""

from __future__ import annotations

import functools
import logging
import re
import warnings
from collections.abc import Callable
from typing import Any

from ..base.redact import redact_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Characters, Convention, Entries


MOST_WARNINGS: Convention[Entries] = 20
"""Different texts that are kept."""
LONGEST_TEXT: Convention[Characters] = 300
_MOST_CHARACTERS: Convention[Characters] = 2_000
"""Characters of a text that are searched."""
_MOST_LOOKS: Convention[Entries] = 20_000
"""Texts that are searched in all; by then a program has given every warning it will."""

COSTS_TIME = re.compile(
    r"fall(s|ing)?[ -]?back|fallback|fast[ -]?path|\bslow(er|ly|s)?\b|reference (pytorch |torch )?implementation"
    r"|(flash|kernel|triton|apex|xformers|mamba).{0,60}(not (installed|available|found|supported)|missing)"
    r"|(not (installed|available|found|supported)|missing).{0,60}(flash|kernel|triton|apex|xformers)"
    r"|\bsdpa\b|`?use_cache`? ?=|performance|tensor ?float|\btf32\b|skipping cudagraphs",
    re.IGNORECASE | re.DOTALL,
)
"""Matches warnings about speed as torch, transformers, peft, accelerate, bitsandbytes and tokenizers word them."""


class WarningCount:
    """Distinct warnings of this process that match, with how often each was made."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], int] = {}
        self._looks = 0
        self._undo: list[Callable[[], None]] = []

    def listen(self) -> None:
        """Begins to inspect logs and warnings. Further calls have no effect."""
        if not self._undo:
            self._undo = [_watch_log(self._logged), _watch_warnings(self._shown)]

    def stop(self) -> None:
        """Removes the hooks from logging and warnings; keeps what was seen."""
        while self._undo:
            self._undo.pop()()

    def facts(self) -> list[dict[str, Any]]:
        """As rank<N>.json has them."""
        return [{"source": name, "text": text, "count": n} for (name, text), n in list(self._found.items())]

    @property
    def texts(self) -> list[str]:
        return [text for _, text in list(self._found)]

    def _logged(self, record: Any) -> None:
        # Records made by logging.captureWarnings were already seen as warnings.
        if not isinstance(record.levelno, int) or record.levelno < logging.WARNING or record.name == "py.warnings":
            return
        # Arguments are formatted only if the template matches: they may be tensors, and formatting would wait for the
        # GPU.
        if isinstance(record.msg, str) and self._matches(record.msg):
            self._add(str(record.name), record.getMessage())

    def _shown(self, message: Any) -> None:
        text = str(message.message)
        if self._matches(text):
            self._add(message.category.__name__, text)

    def _matches(self, text: str) -> bool:
        self._looks += 1
        return self._looks <= _MOST_LOOKS and COSTS_TIME.search(text[:_MOST_CHARACTERS]) is not None

    def _add(self, source: str, text: str) -> None:
        text = redact_text(" ".join(text[:_MOST_CHARACTERS].split()))[:LONGEST_TEXT]
        key = source[:100], text
        if key in self._found or len(self._found) < MOST_WARNINGS:
            self._found[key] = self._found.get(key, 0) + 1


def _watch_log(look: Callable[[Any], None]) -> Callable[[], None]:
    """Passes every new log record to a function; returns a function that ends that."""
    make = logging.getLogRecordFactory()

    @functools.wraps(make, updated=())
    def factory(*args: Any, **kwargs: Any) -> Any:
        record = make(*args, **kwargs)
        try:
            look(record)
        except Exception:  # an error of ours must not keep the program from logging
            pass
        return record

    def undo() -> None:
        if logging.getLogRecordFactory() is factory:
            logging.setLogRecordFactory(make)

    logging.setLogRecordFactory(factory)
    return undo


def _watch_warnings(look: Callable[[Any], None]) -> Callable[[], None]:
    """The same for warnings about to be shown; does not wrap `showwarning`, which a program may replace."""
    show = getattr(warnings, "_showwarnmsg", None)
    if show is None:  # this Python shows them in another way
        return lambda: None

    @functools.wraps(show)
    def shown(message: Any) -> None:
        try:
            look(message)
        except Exception:
            pass
        show(message)

    def undo() -> None:
        if getattr(warnings, "_showwarnmsg", None) is shown:
            warnings._showwarnmsg = show  # type: ignore[attr-defined]

    warnings._showwarnmsg = shown  # type: ignore[attr-defined]
    return undo


warned = WarningCount()
"""Those of this process."""
