"""The flame views and the kernel table of a report: they agree with the diagnosis, however they are used."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import pytest
from helpers.browser import Report, shown_time, until, words, write
from helpers.quick import few

from gpuprof.report import labels

pytest_plugins = ["helpers.browser"]

ROW = 20
"""Pixels of a row of a flame view."""


@pytest.fixture(scope="module")
def opened(run, visit):
    with visit(run) as seen:
        yield seen.ready()


@pytest.fixture
def page(opened):
    yield opened.page
    assert opened.complaints == []


# -- flames


@dataclass
class Tree:
    """A tree of the page, summed up the plain way."""

    title: str
    names: list[str]
    full: list[str]
    parent: list[int]
    total: list[int]

    def children(self, node: int) -> list[int]:
        """As they stand, from the left."""
        found = [i for i, parent in enumerate(self.parent) if parent == node and i]
        return sorted(found, key=lambda i: (-self.total[i], i))

    def way(self, node: int) -> list[int]:
        return [node] if node == 0 else [*self.way(self.parent[node]), node]

    def outermost(self, text: str) -> tuple[int, int]:
        """(nodes that are named so, ns of those that are in no other)."""
        named = [text in name.lower() or text in full.lower() for name, full in zip(self.names, self.full, strict=True)]
        free = [i for i, hit in enumerate(named) if hit and not any(named[k] for k in self.way(i)[:-1])]
        return sum(named), sum(self.total[i] for i in free)


def tree(report: Report, kind: str) -> Tree:
    header, columns = report.header, report.columns
    number = [t["id"] for t in header["trees"]].index(kind)
    own, parent, name = (columns[f"tree{number}.{what}"] for what in ("own", "parent", "name"))
    total = list(own)
    for i in range(len(own) - 1, 0, -1):
        total[parent[i] - 1] += total[i]
    strings, full = header["strings"], header["full"]
    return Tree(
        header["trees"][number]["title"],
        [strings[i] for i in name],
        [full.get(str(i), "") for i in name],
        [p - 1 for p in parent],
        total,
    )


def share(part: float, whole: float) -> str:
    percent = 100 * part / whole
    return "< 0.1 %" if 0 < percent < 0.1 else f"{percent:.{1 if percent < 9.95 else 0}f} %"


def here(page, kind: str) -> str:
    return words(page.locator(f"#panel-flame-{kind} [aria-current]").locator("..").inner_text())


def show(page, kind: str) -> Any:
    page.locator(f"#tab-flame-{kind}").click()
    panel = page.locator(f"#panel-flame-{kind}")
    panel.locator("canvas").press("0")
    panel.locator("input").fill("")
    return panel


@pytest.mark.slow
def test_tabs_follow_the_mouse_and_the_arrow_keys(page):
    kinds = ["gpu", "host", "idle"]

    def chosen() -> list[str]:
        tabs = page.locator("#flame-view [role=tab]").all()
        found = [tab.get_attribute("id") for tab in tabs if tab.get_attribute("aria-selected") == "true"]
        shown = [kind for kind in kinds if page.locator(f"#panel-flame-{kind}").is_visible()]
        order = [tab.get_attribute("id") for tab in tabs if tab.get_attribute("tabindex") == "0"]
        assert found == order == [f"tab-flame-{kind}" for kind in shown], "one, and the keyboard reaches just that"
        return shown

    for kind in reversed(kinds):
        page.locator(f"#tab-flame-{kind}").click()
        assert chosen() == [kind]
    for key, kind in (
        ("ArrowRight", "host"),
        ("ArrowRight", "idle"),
        ("ArrowRight", "gpu"),
        ("ArrowLeft", "idle"),
        ("Home", "gpu"),
        ("End", "idle"),
    ):
        page.keyboard.press(key)
        assert chosen() == [kind]
        assert page.evaluate("() => document.activeElement.id") == f"tab-flame-{kind}"


def test_totals_are_those_of_the_diagnosis(page, run):
    diagnosis, steps = run.diagnosis, run.diagnosis.steps.count
    wanted = {"gpu": diagnosis.kernels.total_ns, "idle": diagnosis.gaps.total_ns}
    for kind, ns in wanted.items():
        show(page, kind)
        assert here(page, kind) == f"{tree(run, kind).names[0]} {shown_time(ns / steps)} (100 %) a step"
    causes = {c.cause: c.ns for c in diagnosis.gaps.by_cause if c.ns}
    found = tree(run, "idle")
    assert {found.total[i] for i in found.children(0)} == set(causes.values())
    found = tree(run, "gpu")
    phases = {found.names[i]: found.total[i] for i in found.children(0)}
    assert phases == {p.name: p.ns for p in diagnosis.kernels.by_phase}


@pytest.mark.parametrize("kind", ["gpu", "host", "idle"])
def test_a_click_zooms_to_what_is_under_it(page, run, kind):
    """Down by clicks on the widest child, and up again: by the row above, the way on top, and keys."""
    found, panel = tree(run, kind), show(page, kind)
    canvas = panel.locator("canvas")
    canvas.scroll_into_view_if_needed()
    node, low, whole = 0, 0, found.total[0]
    way = [0]
    for depth in (1, 2, 3):
        children = found.children(node)
        if not children:
            break
        box = canvas.bounding_box()
        child = children[0]
        # Rows begin where their parent does, the widest first.
        x = box["width"] * (found.total[child] / 2) / (found.total[node] if node else whole)
        page.mouse.click(box["x"] + low + x, box["y"] + depth * ROW + ROW / 2)
        node = child
        way.append(node)
        said = here(page, kind)
        assert shown_time(found.total[node]) in said and share(found.total[node], whole) in said
        assert said.startswith(found.names[node][:30])
    assert len(way) > 2
    crumbs = panel.locator("nav ol li")
    assert crumbs.count() == len(way)
    box = canvas.bounding_box()
    page.mouse.click(box["x"] + 20, box["y"] + ROW * (len(way) - 2) + ROW / 2)
    assert here(page, kind).startswith(found.names[way[-2]][:30]), "the row above leads out"
    crumbs.first.locator("button").click()
    assert here(page, kind).startswith(found.names[0]), "and so does the way"


def test_keys_move_and_zoom(page, run):
    found, panel = tree(run, "gpu"), show(page, "gpu")
    spoken = panel.locator("[aria-live=polite]").first
    panel.locator("canvas").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    first = found.children(0)
    assert spoken.inner_text().startswith(found.names[first[0]])
    page.keyboard.press("ArrowRight")
    assert spoken.inner_text().startswith(found.names[first[1]])
    page.keyboard.press("Enter")
    assert here(page, "gpu").startswith(found.names[first[1]])
    page.keyboard.press("Escape")
    assert here(page, "gpu").startswith(found.names[0])


def test_a_search_sums_up_what_it_finds_and_highlights_it(page, run):
    found, panel = tree(run, "gpu"), show(page, "gpu")
    said, field = panel.locator("output"), panel.locator("input")
    before = picture(panel)
    field.fill("AtEn::Mul")
    count, ns = found.outermost("aten::mul")
    assert count > 3
    assert said.inner_text() == f"{count:,} found: {shown_time(ns)} a step ({share(ns, found.total[0])})"
    until(lambda: picture(panel), lambda now: now != before)
    field.fill("no such thing")
    assert said.inner_text() == "nothing found"
    field.fill("")
    assert said.inner_text() == ""
    until(lambda: picture(panel), lambda now: now == before)
    field.fill("aten::mul")
    field.press("Enter")
    assert not here(page, "gpu").startswith(found.names[0]), "it goes to the heaviest"


def picture(panel) -> str:
    """Of the canvas, in few letters."""
    return hashlib.sha256(panel.locator("canvas").evaluate("e => e.toDataURL()").encode()).hexdigest()[:12]


def test_names_are_shown_under_the_pointer(page, run):
    found, panel = tree(run, "gpu"), show(page, "gpu")
    canvas = panel.locator("canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + ROW * 1.5)
    child = found.children(0)[0]
    tip = words(panel.locator("[role=tooltip]").inner_text())
    assert found.names[child] in tip and f"{shown_time(found.total[child])} a step" in tip
    assert share(found.total[child], found.total[0]) in tip
    page.mouse.move(2, 2)
    assert panel.locator("[role=tooltip]").is_hidden()


def test_the_heaviest_names_are_a_table(page, run):
    panel = show(page, "gpu")
    panel.locator("summary").click()
    found = tree(run, "gpu")
    sums: dict[str, int] = defaultdict(int)
    for node, name in enumerate(found.names):
        if node and not found.children(node):
            sums[name] += found.total[node]
    row = panel.locator("tbody tr").first
    name = max(sums, key=lambda name: sums[name])
    assert row.locator("button").inner_text() == name
    assert row.locator("td").first.inner_text() == shown_time(sums[name])
    row.locator("button").click()
    assert panel.locator("input").input_value() == name
    assert panel.locator("output").inner_text() != "nothing found"
    panel.locator("summary").click()


# -- kernels


@pytest.fixture
def table(page):
    """The table in its initial state: nothing filtered, chosen, grouped or unfolded, most time first."""
    found = page.locator("#kernels-view")
    found.evaluate(
        """view => {
            for (const pressed of view.querySelectorAll("[aria-pressed=true]")) pressed.click();
            const put = (element, event) => { element.value = ""; element.dispatchEvent(new Event(event)); };
            put(view.querySelector("input"), "input");
            put(view.querySelector("select"), "change");
            for (let open; (open = view.querySelector("[aria-expanded=true]")) !== null; ) open.click();
            const sorted = () => view.querySelector("[data-column=time]").closest("th").ariaSort;
            while (sorted() !== "descending") view.querySelector("[data-column=time]").click();
        }"""
    )
    return found


def kernels(report: Report) -> list[dict[str, Any]]:
    """Rows of the page's data, most time first."""
    header = report.header
    rows = header["kernels"]
    text = {"name", "category", "op", "module", "phase"}
    return [
        {key: header["strings"][column[i]] if key in text else column[i] for key, column in rows.items()}
        for i in range(len(rows["ns"]))
    ]


def column(table, name: str) -> list[str]:
    """Texts of a column, from the first row to the last that is shown."""
    heads = table.locator("thead button").evaluate_all("all => all.map(e => e.dataset.column)")
    rows = table.locator("tbody").evaluate(
        """(body, i) => [...body.rows].filter(row => row.cells.length > 1).map(row => {
            const name = row.cells[i].querySelector(".kernels-name");
            return (name ?? row.cells[i]).textContent;
        })""",
        heads.index(name),
    )
    return [words(row) for row in rows]


def show_all(table) -> None:
    while table.locator(".kernels-all").count():
        table.locator(".kernels-all").first.click()


def test_rows_are_those_of_the_diagnosis(table, run):
    """The first ten kernels of the diagnosis, by whole name, are sums of rows, and all rows sum to all kernels."""
    rows, diagnosis, steps = kernels(run), run.diagnosis, run.diagnosis.steps.count
    show_all(table)
    assert column(table, "name") == [row["name"] for row in rows]
    assert column(table, "time") == [shown_time(row["ns"] / steps) for row in rows]
    assert column(table, "op") == [row["op"] for row in rows]
    assert column(table, "bound") == [row["bound"] or "–" for row in rows]
    total = diagnosis.kernels.total_ns
    assert column(table, "share") == [share(row["ns"], total) for row in rows]
    foot = words(table.locator("tfoot").inner_text())
    assert f"all {len(rows)}" in foot and shown_time(total / steps) in foot and "100 %" in foot
    assert f"{diagnosis.kernels.count / steps:,.0f}" in foot
    whole = dict(enumerate(run.header["strings"])) | {int(i): text for i, text in run.header["full"].items()}
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row, name in zip(rows, run.header["kernels"]["name"], strict=True):
        sums[whole[name]][0] += row["ns"]
        sums[whole[name]][1] += row["count"]
    for kernel in diagnosis.kernels.top:
        assert sums[kernel.name] == [kernel.ns, kernel.count], kernel.name


@pytest.mark.parametrize(("name", "numeric"), [("time", True), ("count", True), ("name", False), ("max", True)])
def test_a_click_on_a_head_sorts_and_another_turns_it(table, run, name, numeric):
    if name == "time":
        table.locator("[data-column=name]").click()
    head = table.locator(f"[data-column={name}]")
    key = {"time": "ns", "count": "count", "max": "max_ns", "name": "name"}[name]
    values = {row[key] for row in kernels(run)}
    ends = (min(values, key=by(key)), max(values, key=by(key)))
    for descending in (numeric, not numeric):
        head.click()
        said = table.locator("thead th").evaluate_all("all => all.map(e => e.getAttribute('aria-sort'))")
        assert [s for s in said if s != "none"] == ["descending" if descending else "ascending"]
        assert head.locator("..").get_attribute("aria-sort") != "none"
        assert table.page.evaluate("() => document.activeElement.dataset.column") == name, "the focus stays"
        first = ends[1] if descending else ends[0]
        steps = run.diagnosis.steps.count
        shown_first = (
            first if key == "name" else f"{first / steps:,.0f}" if key == "count" else shown_time(first / steps)
        )
        assert column(table, name)[0] == shown_first


def by(key: str):
    return (lambda text: text.lower().replace("_", " ")) if key == "name" else (lambda value: value)


def test_sorting_is_in_order_from_the_first_to_the_last(table, run):
    table.locator("[data-column=median]").click()
    show_all(table)
    assert column(table, "median") == [
        shown_time(ns) for ns in sorted((r["median_ns"] for r in kernels(run)), reverse=True)
    ]


def test_a_filter_leaves_the_rows_that_hold_all_its_words(table, run):
    rows, steps = kernels(run), run.diagnosis.steps.count
    table.locator("input[type=search]").fill("aten::MM backward")
    wanted = [r for r in rows if "aten::mm" in " ".join(row_text(r)) and "backward" in " ".join(row_text(r))]
    show_all(table)
    assert 0 < len(wanted) < len(rows)
    assert column(table, "name") == [r["name"] for r in wanted]
    foot = words(table.locator("tfoot").inner_text())
    assert f"all {len(wanted)}" in foot and shown_time(sum(r["ns"] for r in wanted) / steps) in foot
    table.locator("input[type=search]").fill("no such thing")
    assert "No kernel matches." in table.locator("tbody").inner_text()
    table.locator("input[type=search]").fill("")
    assert len(column(table, "name")) == 50, "the first ones again"


def row_text(row: dict[str, Any]) -> list[str]:
    return [str(row[key]).lower() for key in ("name", "op", "module", "category", "phase")]


def test_categories_are_chosen_by_buttons(table, run):
    rows = kernels(run)
    name = labels.category("cast/copy")
    button = table.get_by_role("group", name="Categories").get_by_role("button", name=name, exact=True)
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    show_all(table)
    assert column(table, "name") == [r["name"] for r in rows if r["category"] == name]


@pytest.mark.parametrize("by_", ["category", "op", "module", "phase"])
def test_groups_are_sums(table, run, by_):
    kernels_, steps = run.diagnosis.kernels, run.diagnosis.steps.count
    table.locator("select").select_option(by_)
    sums: dict[str, int] = defaultdict(int)
    for row in kernels(run):
        sums["" if row[by_] == "–" else row[by_]] += row["ns"]
    wanted = sorted(sums.items(), key=lambda item: -item[1])
    show_all(table)
    assert column(table, "name") == [name or f"no {by_} known" for name, _ in wanted]
    assert column(table, "time") == [shown_time(ns / steps) for _, ns in wanted]
    found = dict(zip(column(table, "name"), column(table, "time"), strict=True))
    shown_times = {
        "category": [(labels.category(c.category), c.ns) for c in kernels_.by_category],
        "op": [(o.name, o.ns) for o in kernels_.by_op],
        "phase": [(p.name, p.ns) for p in kernels_.by_phase],
        "module": [],
    }[by_]
    assert {name: shown_time(ns / steps) for name, ns in shown_times}.items() <= found.items()
    first = table.locator(".kernels-open").first
    assert first.get_attribute("aria-expanded") == "false"
    first.click()
    assert first.get_attribute("aria-expanded") == "true"
    members = [r["name"] for r in kernels(run) if (r[by_] if r[by_] != "–" else "") == wanted[0][0]]
    show_all(table)
    assert column(table, "name")[1 : 1 + len(members)] == members


def test_a_row_shows_the_whole_name_and_leads_to_the_timeline(table, run):
    table.locator(".kernels-open").first.click()
    said = table.locator("tr.detail").inner_text()
    name = run.header["kernels"]["name"][0]
    assert run.header["full"].get(str(name), run.header["strings"][name]) in said
    table.locator(".kernels-find").click()
    selected = table.page.evaluate("() => gpuprofTimeline.selected()")
    assert selected["name"] == run.header["strings"][name]
    first = min(e.start_ns for e in run.events if e.name == selected["name"])
    assert selected["start"] == first
    box = table.page.locator(".tl-tracks").bounding_box()
    assert box["y"] >= 0 and box["y"] + 50 < 900, "and the page has gone there"


@pytest.mark.parametrize("width", few([1440, 1024, 761, 390], ["761"]))
def test_the_table_fits_any_window(run, visit, width):
    """Narrow windows have fewer columns and cut words; the details of a row say the rest."""
    with visit(run, width=width) as seen:
        box = seen.page.locator(".kernels-box")
        box.wait_for()
        assert box.evaluate("box => box.scrollWidth - box.clientWidth") <= 0
        seen.page.locator(".kernels-open").first.click()
        said = seen.page.locator(".kernels .detail").inner_text()
        assert all(name in said for name in ("count (a step)", "share (of the time of all kernels)", "category"))


@pytest.mark.slow
def test_the_table_of_ranges_fits_any_window(run, visit, tmp_path):
    """Long names wrap; the numbers next to them stay on one line."""
    long = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    ranges = tuple(replace(one, name=f"{long} {i}") for i, one in enumerate(run.diagnosis.ranges))
    wider = {}
    with visit(write(replace(run.diagnosis, ranges=ranges), tmp_path / "page.html")) as seen:
        table = seen.page.locator("#flame .tabled").first
        for width in (1440, 1024, 770, 680, 610, 390):
            seen.page.set_viewport_size({"width": width, "height": 900})
            if (over := table.evaluate("e => e.scrollWidth - e.clientWidth")) > 0:
                wider[width] = over
    assert wider == {}


def test_the_table_is_copied(table, run, opened):
    opened.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    table.get_by_role("button", name="Copy as TSV").click()
    said = until(lambda: table.locator("output.kernels-said").inner_text(), bool)
    if table.locator("textarea").count():
        text = table.locator("textarea").input_value()
    else:
        assert said == f"{len(kernels(run))} rows copied."
        text = opened.page.evaluate("() => navigator.clipboard.readText()")
    lines = [line.split("\t") for line in text.rstrip("\n").split("\n")]
    at = lines[0].index("ns_per_step")
    assert [float(line[at]) for line in lines[1:]] == pytest.approx(
        [r["ns"] / run.diagnosis.steps.count for r in kernels(run)]
    )
