"""Names from a trace that try to be markup or script."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from helpers.once import once
from helpers.paths import ROOT

SCRIPT = "</script><script>window.hacked=1</script>"


IMAGE = "<img src=x onerror=window.hacked=1>"


PAYLOADS = (
    SCRIPT,
    IMAGE,
    '"><svg onload=window.hacked=1>',
    "' onmouseover='window.hacked=1' x='",
    "</style><style>*{display:none}",
    "</noscript></table></main><h1>gone",
    "<!-- <script>",
    "]]>&lt;b&gt;&#60;i&#62;",
    "{{7*7}}{% raw %}{{ policy }}",
    "${7*7}`${window.hacked=1}`",
    "\\u003cimg\\ \\'\\\"",
    "javascript:window.hacked=1",
    "__proto__",
    "constructor",
    "\u202eevil\u202c\u2067back\u2069",
    "zero\u200bwidth\ufeff\u00ad",
    "nul\x00bell\x07escape\x1b[31m",
    "line\nbreak\r\ttab\u2028\u2029",
    "half\ud800a\udfffletter",
    "pile" + "\u0301\u0488" * 60,
    "long" + "W" * 100_000,
    "wide" + "\U0001f600漢" * 300,
    "",
)

MARKUP = "&lt;i&gt;<b>bold</b><a href='//evil'>x</a>$\\sqrt{2}$%{x}</script>\u202e\x1b[31m"


def with_markup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real recording, but the names of its kernels begin with that, and those of its ops end so."""

    def make(folder: Path) -> None:
        with gzip.open(ROOT / "tests" / "data" / "pairs" / "moe_small.json.gz", "rt", encoding="utf-8") as file:
            document = json.load(file)
        for event in document["traceEvents"]:
            if event.get("cat") == "cpu_op":
                event["name"] = f"{event['name']} {MARKUP}"
            elif event.get("cat") == "kernel":
                event["name"] = f"{MARKUP} {event['name'][:20]}"
        (folder / "trace.json").write_text(json.dumps(document), encoding="utf-8")

    return once(tmp_path_factory, "with_markup", make) / "trace.json"
