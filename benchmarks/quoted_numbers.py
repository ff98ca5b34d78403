"""Fill in the numbers that documents quote from the calibration table; a quote is a link to the number's entry.

    python -m benchmarks.quoted_numbers     # write the documents in docs/ again

    takes [2.2](calibration.md#latency "LAUNCH_NS, µs") µs ([1.5](calibration.md#latency "LAUNCH_NS, low, µs") to …)

The link's title says which number, which end of its interval if not the value, and how it is written (`FORMS`); the
link's text is filled in. Pages of findings name the table's numbers in their own text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from gpuprof.calibration.quoted import less, more, ms, percent, plain, us
from gpuprof.calibration.table import numbers

DOCS = Path(__file__).resolve().parents[1] / "docs"
LINK = re.compile(
    r"\[(?P<text>[^\]]*)\]\(calibration\.md#(?P<subject>[a-z]+)\s+"
    r'"(?P<name>[A-Z0-9_]+)(?:, (?P<end>low|high))?(?:, (?P<form>[^"]+))?"\)'
)
FORMS: dict[str, Callable[[float], str]] = {
    "": plain,
    "%": percent,
    "% more": more,
    "% less": less,
    "µs": us,
    "ms": ms,
    "GB": lambda value: f"{value / 1e9:g}",
    "plus 1": lambda value: f"{1 + value:g}",
}


def filled(text: str) -> str:
    """A document with the table's current numbers. Raises KeyError for an unknown number or form."""
    table = numbers()

    def said(link: re.Match[str]) -> str:
        one = table[f"{link['subject']}.{link['name']}"]
        value = FORMS[link["form"] or ""](getattr(one, link["end"] or "value"))
        return f"[{value}{link[0][link.end('text') - link.start() :]}"

    return LINK.sub(said, text)


def main() -> None:
    for path in sorted(DOCS.glob("*.md")):
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
