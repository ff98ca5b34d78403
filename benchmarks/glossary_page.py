"""Writes docs/glossary.md from the data file of terms: `python -m benchmarks.glossary_page`."""

from __future__ import annotations

from pathlib import Path

from gpuprof.report.words.glossary import markdown

PAGE = Path(__file__).parent.parent / "docs" / "glossary.md"

if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
