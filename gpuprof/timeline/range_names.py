"""Names of ranges without the index at their end, by which programs number their steps and layers."""

from __future__ import annotations

import re

_TAIL = re.compile(r"[\d\W_]*")
_GLUED = re.compile(r"(?:\d+(?:\.\d+)*)?")
_NUMBER = re.compile(r"#?\d+")
_COUNTED = re.compile(r"(step|iter|iteration|batch|epoch|layer|block)\Z", re.IGNORECASE)


def unnumbered(name: str) -> str:
    """The name with the numbers that end it as #: `layers.#` of layers.12, `ProfilerStep#`, `step#`, `id=#/#`.

    A number inside a name, or at the end of a word that is not numbered, belongs to the name: Conv2d, Qwen2.5, fc1.
    """
    size = _TAIL.match(name[::-1]).end()  # type: ignore[union-attr]  # it matches nothing as well
    head, tail = name[: len(name) - size], name[len(name) - size :]
    own = "" if not head or _COUNTED.search(head) else _GLUED.match(tail)[0]  # type: ignore[index]
    return head + own + _NUMBER.sub("#", tail[len(own) :])
