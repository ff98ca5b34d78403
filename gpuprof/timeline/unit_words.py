"""Sentences in the words of what was recorded: a step of inference is an iteration, a request or a token."""

from __future__ import annotations

import re

from gpuprof.timeline.workload import Unit

_STEP = re.compile(r"""(?<![\w.(#"'=-])(?:(?P<article>[Aa]) )?(?P<word>[Ss]tep)(?P<many>s?)(?![\w(=#-])""")
"""The word in a sentence: not in code, an option or a name."""


def in_unit(text: str, unit: Unit) -> str:
    """The sentence with `unit` where it says step: `launches 929 kernels a step` → `… an iteration`."""
    return text if unit == "step" else _STEP.sub(lambda found: _word(found, unit), text)


def common_unit(one: Unit, other: Unit) -> Unit:
    """What to call the steps of two recordings: as both are called, or an iteration where both are of inference."""
    if one == other:
        return one
    return "step" if "step" in (one, other) else "iteration"


def _word(found: re.Match[str], unit: str) -> str:
    word = unit.capitalize() if found["word"][0].isupper() else unit
    article = found["article"]
    before = f"{article}{'n' if unit[0] in 'aeiou' else ''} " if article else ""
    return f"{before}{word}{found['many']}"
