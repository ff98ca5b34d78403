"""What `mkdocs build` adds to the pages of this folder: the gallery of the scenarios, with a report of each recording,
and the changelog and other texts that lie next to the folder.

Nothing of it is committed. GPUPROF_GALLERY names the scenarios to draw, separated by commas; all of them by default.
"""

from __future__ import annotations

import html
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]  # for scenarios, which are no part of the package

import gpuprof  # noqa: E402
from gpuprof.diagnosis.result.diagnosis import Diagnosis  # noqa: E402
from gpuprof.diagnosis.result.finding_model import Finding  # noqa: E402
from gpuprof.diagnosis.verdict.step_parts import bars  # noqa: E402
from gpuprof.report import labels  # noqa: E402
from gpuprof.report.numbers import duration_range  # noqa: E402
from gpuprof.report.stepbar import paint  # noqa: E402
from gpuprof.report.words.words import label, step_time  # noqa: E402
from scenarios.catalogue import Fix, Scenario, scenarios  # noqa: E402

PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "scenarios/README.md": "scenarios.md"}
"""Texts outside of this folder, and where the site has them."""
GALLERY, SHOWN = "gallery.md", "small_batch"
"""The page, and the scenario whose report it shows at once."""
KINDS = {
    "host": "The CPU is the limit",
    "input": "Batches are the limit",
    "transfer": "Copies are the limit",
    "communication": "Communication is the limit",
    "memory": "The GPU's memory is the limit",
    "compute": "The GPU's arithmetic is the limit",
    "latency": "Short kernels are the limit",
    "balanced": "Nothing alone is the limit",
}
"""Headings by what bounds the step, in their order."""
_LINK = re.compile(r"(?<!!)\[([^\]\n]*)\]\(([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> None:
    """Links to sources lead to the repository that builds the site, where that is known; the findings have their pages
    in the navigation."""
    if name := os.environ.get("GITHUB_REPOSITORY"):
        config.repo_url = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
        config.repo_name = name
    (pages,) = (part["Findings"] for section in config.nav or [] for part in section_of(section) if "Findings" in part)
    pages += [f"findings/{path.name}" for path in sorted((ROOT / "docs" / "findings").glob("[a-z]*.md"))]


def section_of(entry: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """The titled pages and folders of a part of the navigation."""
    return [one for pages in entry.values() for one in pages if isinstance(one, dict)]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Adds what is made."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for name, text in gallery(os.environ.get("GPUPROF_GALLERY", "")):
        files.append(File.generated(config, name, content=text))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that lead out of the folder find their page of the site, else the repository, else they are left out."""
    source = next((PurePosixPath(path) for path, uri in PAGES.items() if uri == page.file.src_uri), None)
    here = source or PurePosixPath("docs") / page.file.src_uri

    def link(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        parts = urlsplit(target)
        if parts.scheme or not parts.path or page.file.src_uri == GALLERY:
            return match[0]
        path = os.path.normpath(here.parent / parts.path)
        anchor = f"#{parts.fragment}" if parts.fragment else ""
        uri = path.removeprefix("docs/") if path.startswith("docs/") else PAGES.get(path)
        if uri is not None and files.get_file_from_path(uri) is None and files.get_file_from_path(f"{uri}/README.md"):
            uri = f"{uri}/README.md"
        if uri is not None:
            return f"[{text}]({os.path.relpath(uri, PurePosixPath(page.file.src_uri).parent)}{anchor})"
        return f"[{text}]({config.repo_url}/blob/HEAD/{path}{anchor})" if config.repo_url else text

    return _LINK.sub(link, markdown)


# -- the gallery


def gallery(only: str) -> Iterator[tuple[str, str]]:
    """The page and a report of each committed recording, as paths and their contents."""
    wanted = set(filter(None, only.split(",")))
    cards: dict[str, list[tuple[float, str]]] = {kind: [] for kind in KINDS}
    shown = None
    for one in scenarios():
        if one.recording is None or (wanted and one.name not in wanted):
            continue
        diagnosis = gpuprof.diagnose(one.recording)
        if diagnosis.verdict.bound is None:
            raise ValueError(f"{one.name}: its recording has no verdict")
        yield f"gallery/{one.name}.html", written(gpuprof.write_report, diagnosis)
        if one.fixed is not None:
            comparison = gpuprof.compare(diagnosis, one.fixed)
            yield f"gallery/{one.name}.comparison.html", written(gpuprof.write_comparison, comparison)
        cards[diagnosis.verdict.bound].append((-clearness(diagnosis), card(one, diagnosis)))
        shown = one if shown is None or one.name == SHOWN else shown
    if shown is None:
        raise ValueError(f"no scenario of {only} has a recording")
    ordered = {kind: [text for _, text in sorted(found)] for kind, found in cards.items() if found}
    yield GALLERY, "\n".join(page_of(ordered, shown))


def clearness(diagnosis: Diagnosis) -> float:
    """How much the step gains if what bounds it is twice as fast: clear cases come first."""
    return getattr(diagnosis.sensitivities, str(diagnosis.verdict.bound), None) or 0.0


def written(write: Any, subject: Any) -> str:
    """The HTML that one of gpuprof's writers makes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        write(subject, path)
        return path.read_text(encoding="utf-8")


def page_of(cards: dict[str, list[str]], shown: Scenario) -> Iterator[str]:
    """The Markdown of the gallery."""
    count = sum(map(len, cards.values()))
    yield "---\nhide: [navigation, toc]\n---\n\n# Gallery\n"
    yield (
        f"{count} small fine-tunes with a known bottleneck, recorded on H200s with `gpuprof trace` and timed without a"
        " profiler before and after the fix. Their programs are the [scenarios](scenarios.md) of the repository: each"
        " can be run again. Reports are made from the recordings when this site is built.\n"
    )
    yield " · ".join(f"[{KINDS[kind]}](#{kind}) ({len(found)})" for kind, found in cards.items()) + "\n"
    yield f"## A report: {shown.title}\n"
    yield (
        f'<iframe class="gp-report" src="{shown.name}.html" title="Report of {html.escape(shown.title)}"'
        ' loading="lazy"></iframe>\n'
    )
    yield f"[Open it on a page of its own](gallery/{shown.name}.html){{ .md-button }}\n"
    for kind, found in cards.items():
        yield f"## {KINDS[kind]} {{ #{kind} }}\n"
        yield '<div class="gp-cards" markdown>\n'
        yield from found
        yield "</div>\n"


def card(one: Scenario, diagnosis: Diagnosis) -> str:
    """A scenario: what gpuprof says, the step as a bar, and its fixes, predicted and measured."""
    lines = [
        '<div class="gp-card" markdown>\n',
        f"### {one.title} {{ #{one.name} }}\n",
        f'<p class="gp-verdict">{html.escape(label(diagnosis))}',
        f"<small>{html.escape(step_time(diagnosis))}</small></p>\n",
        bar_of(diagnosis),
        f"\n{escaped(diagnosis.verdict.summary)}\n",
    ]
    rows = [row for fix in one.fixes if (row := fix_row(one, fix, diagnosis))]
    if rows:
        lines += ["| fix | predicted step | measured |", "|---|---:|---:|", *rows, ""]
    links = [f"[report](gallery/{one.name}.html)"]
    if one.fixed is not None:
        links.append(f"[compared with its fix](gallery/{one.name}.comparison.html)")
    return "\n".join([*lines, " · ".join(links) + f" · `scenarios/{one.name}`\n", "</div>\n"])


def bar_of(diagnosis: Diagnosis) -> str:
    """The first GPU's step, with a legend of its larger parts."""
    bar = bars(diagnosis)[0]
    shares = [(paint(part).page, labels.part(part), part.ns / bar.total_ns, part.idle) for part in bar.parts]
    segments = "".join(
        f'<i style="flex-grow:{share:.4f};background-color:{colour}" class="{"gp-waits" if idle else "gp-works"}"></i>'
        for colour, _, share, idle in shares
    )
    named = "".join(
        f'<span><i style="background-color:{colour}"></i>{"waits: " if idle else ""}{name} {share:.0%}</span>'
        for colour, name, share, idle in shares
        if share >= 0.05
    )
    return (
        f'<div class="gp-bar" role="img" aria-label="The step of a GPU">{segments}</div><p class="gp-key">{named}</p>'
    )


def fix_row(one: Scenario, fix: Fix, diagnosis: Diagnosis) -> str:
    """A row of the table; empty where nothing was measured."""
    after = one.measured_ms(fix.name)
    if after is None:
        return ""
    found = next((finding for finding in diagnosis.findings if _is(finding, fix)), None)
    said = duration_range(found.step_ns.low, found.step_ns.high) if found else "not advised"
    return f"| {escaped(fix.what)} | {said} | {duration_range(*(ms * 1e6 for ms in after))} |"


def _is(finding: Finding, fix: Fix) -> bool:
    return finding.id == fix.finding and fix.title in (None, finding.title)


def escaped(text: str) -> str:
    """Text in Markdown: no character of it is markup."""
    return re.sub(r"([\\`*_{}\[\]<>#|~^])", r"\\\1", text)
