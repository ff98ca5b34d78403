"""Visits in reused tabs: each sees all events of its own page, and none of the page before."""

from __future__ import annotations

from pathlib import Path

from helpers.browser import until

pytest_plugins = ["helpers.browser"]

LOUD = """<!doctype html><title>loud</title><script>
localStorage.setItem("kept", "1");
console.error("an error");
console.warn("a warning");
fetch("https://evil.example/").catch(() => {});
open("about:blank");
setTimeout(() => { alert("a dialog"); throw new Error("thrown"); });
</script>"""


def test_a_visit_hears_its_own_page_only(visit, tmp_path: Path):
    loud, quiet = tmp_path / "loud.html", tmp_path / "quiet.html"
    loud.write_text(LOUD, encoding="utf-8")
    quiet.write_text("<!doctype html><title>quiet</title>", encoding="utf-8")
    with visit(loud, color_scheme="dark", width=700) as first:
        for wanted in ("an error", "a warning", "dialog: a dialog", "thrown", "popup: about:blank"):
            until(lambda: (first.page.title(), list(first.complaints))[1], lambda said, w=wanted: w in said)
        assert "https://evil.example/" in first.requests
    with visit(quiet) as second:
        assert second.page is first.page
        assert second.page.title() == "quiet"
        assert second.complaints == [] and second.requests == [quiet.as_uri()]
        now = "() => [localStorage.length, innerWidth, matchMedia('(prefers-color-scheme: dark)').matches]"
        assert second.page.evaluate(now) == [0, 1280, False]
