"""The row of README's table that says how the published fixes of docs/cases.md come out.

python -m benchmarks.readme_cases        # writes it from the page
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README, PAGE = ROOT / "README.md", ROOT / "docs" / "cases.md"
TITLE = "fixes published by others, reproduced as programs ([cases](docs/cases.md))"
SAID = {
    "cause in the first lines": "the cause is in the first lines in {} of {}",
    "module, function or op right": "its place is right in {} of {}",
    "measured gain in the predicted interval": "{} of {} measured gains lie in the predicted interval",
}
"""Row of the page's first table → how README says it."""


def row(page: str) -> str:
    """README's row, from the text of the page. Raises ValueError where the page lacks one of its numbers."""
    said = []
    for title, words in SAID.items():
        found = re.search(rf"^\| {re.escape(title)} \| (\d+) of (\d+) \|", page, re.MULTILINE)
        if found is None:
            raise ValueError(f"docs/cases.md has no row {title!r}")
        said.append(words.format(*found.groups()))
    return f"| {TITLE} | {'; '.join(said)} |"


def main() -> None:
    """Writes README with the row of today's page."""
    text = README.read_text(encoding="utf-8")
    lines = [row(PAGE.read_text(encoding="utf-8")) if line.startswith(f"| {TITLE} |") else line
             for line in text.splitlines()]  # fmt: skip
    README.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
