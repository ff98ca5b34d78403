"""The structure of the package: floors, words that must not appear, and a quick start."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.code_names import code_names
from helpers.paths import ROOT

PACKAGE = ROOT / "gpuprof"

FLOORS = (
    {"cli"},
    {"report", "interop", "doctor"},
    {"trial"},
    {"diagnosis"},
    {"projection"},
    {"ranks"},
    {"replay"},
    {"costs"},
    {"attach"},
    {"memory", "hang"},
    {"timeline"},
    {"tracefile"},
    {"record"},
    {"nsight"},
    {"documents"},
    {"bounds", "value_range"},
    {"runfile"},
    {"devices"},
    {"errors"},
    {"calibration"},
    {"units"},
)
"""From the roof down: code imports only from its own room and from floors below it, so no cycles either."""

ALONE = {
    "bounds": set(),
    "documents": set(),
    "record": {"devices", "runfile", "units"},
    "devices": {"units"},
    "nsight": {"errors", "units"},
    "runfile": set(),
    "errors": set(),
    "calibration": set(),
    "units": set(),
    "value_range": set(),
}
"""Rooms that may import less than all floors below them: they run inside the profiled process, or are pure data."""

STANDARD_LIBRARY_ONLY = {"bounds", "documents", "nsight", "runfile", "errors", "calibration", "units", "value_range"}
API = {"load", "diagnose", "compare", "project", "with_arguments", "Recorder"}


def python_files() -> list[Path]:
    """Every module of the package except the public API, which may import anything if it does so lazily."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def module_of(path: Path, root: Path = ROOT) -> str:
    """`gpuprof/timeline/gaps.py` is `gpuprof.timeline.gaps`, `gpuprof/timeline/__init__.py` is `gpuprof.timeline`."""
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def room_of(path: Path) -> str:
    """`gpuprof/timeline/gaps.py` is in the room `timeline`, `gpuprof/runfile.py` in `runfile`."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path, root: Path = ROOT) -> list[str]:
    """Dotted names of all imports in a file; `from a import b` gives `a.b`."""
    package = path.relative_to(root).parent.parts
    found = []
    for module, level, names in code_names(path).imports:
        above = package[: len(package) - level + 1] if level else ()
        found += [".".join([*above, *([module] if module else []), name]) for name, _ in names]
    return found


def allowed_rooms(room: str) -> set[str]:
    """Rooms that code in `room` may import from."""
    if room in ALONE:
        return {room} | ALONE[room]
    height = next(i for i, floor in enumerate(FLOORS) if room in floor)
    return {room}.union(*FLOORS[height + 1 :])


def test_each_floor_imports_only_from_floors_below():
    known = set().union(*FLOORS)
    wrong = []
    for path in python_files():
        room = room_of(path)
        if room == "__main__":
            continue  # an alias of the command
        assert room in known, f"gpuprof/{room} is on no floor: say in FLOORS where it stands"
        for name in imports_of(path):
            head, _, rest = name.partition(".")
            target = rest.split(".")[0]
            if head != "gpuprof" or target.startswith("__"):
                continue
            # Only commands call the public API; other code imports from the room itself.
            if target not in allowed_rooms(room) and not (room == "cli" and target in {*API, ""}):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def import_graph(paths: list[Path], root: Path = ROOT) -> dict[str, set[str]]:
    """For each module of `paths` the others that it imports, including imports in functions and for type checkers."""
    modules = {module_of(path, root): path for path in paths}
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        for imported in imports_of(path, root):
            # `a.b` is a module, or a name in module `a`.
            found = next((one for one in (imported, imported.rpartition(".")[0]) if one in modules), None)
            if found is not None:
                graph[name].add(found)
    return graph


def circles(graph: dict[str, set[str]]) -> list[str]:
    """One circle for each group of modules that reach each other, as text: `a -> b -> a`."""
    reachable = {start: _reachable(graph, start) for start in graph}
    seen: set[str] = set()
    found = []
    for start in sorted(graph):
        if start in reachable[start] and start not in seen:
            seen |= {other for other in reachable[start] if start in reachable[other]}
            found.append(" -> ".join(_way_back(graph, start)))
    return found


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """What can be reached from `start` by at least one import."""
    found: set[str] = set()
    ahead = [start]
    while ahead:
        new = graph[ahead.pop()] - found
        found |= new
        ahead += new
    return found


def _way_back(graph: dict[str, set[str]], start: str) -> list[str]:
    """The shortest way from a module on a circle back to itself."""
    ways = [[start]]
    while True:
        longer = [[*way, name] for way in ways for name in sorted(graph[way[-1]])]
        closed = next((way for way in longer if way[-1] == start), None)
        if closed is not None:
            return closed
        ways = list({way[-1]: way for way in reversed(longer) if len(set(way)) == len(way)}.values())


def test_no_modules_import_each_other_in_a_circle():
    """This holds inside a room too: of two modules the lower one can be read and tested without the other."""
    found = circles(import_graph(python_files()))
    assert not found, "modules import each other: " + "; ".join(found)


def test_circles_are_found_and_named(tmp_path: Path):
    room = tmp_path / "gpuprof" / "room"
    room.mkdir(parents=True)
    (room / "__init__.py").touch()
    (room / "a.py").write_text("def late():\n    from gpuprof.room.b import name\n")
    (room / "b.py").write_text("if TYPE_CHECKING:\n    from . import c\n")
    (room / "c.py").write_text("import gpuprof.room.a\nimport os.path\n")
    (room / "d.py").write_text("from gpuprof.room.a import late\n")
    graph = import_graph(sorted(room.rglob("*.py")), tmp_path)
    assert circles(graph) == ["gpuprof.room.a -> gpuprof.room.b -> gpuprof.room.c -> gpuprof.room.a"]
    (room / "c.py").write_text("import os.path\n")
    assert circles(import_graph(sorted(room.rglob("*.py")), tmp_path)) == []


def folder_graphs(graph: dict[str, set[str]]) -> dict[str, dict[str, set[str]]]:
    """For each package the modules and folders directly in it, and which of them import which: a folder imports what
    any module below it imports."""
    packages: dict[str, dict[str, set[str]]] = {}
    for module, imported in graph.items():
        for other in imported:
            ours, theirs = module.split("."), other.split(".")
            same = next(i for i, (a, b) in enumerate(zip([*ours, ""], [*theirs, ""], strict=False)) if a != b)
            if same < min(len(ours), len(theirs)):
                inside = packages.setdefault(".".join(ours[:same]), {})
                inside.setdefault(ours[same], set()).add(theirs[same])
                inside.setdefault(theirs[same], set())
    return packages


def test_no_folders_import_each_other_in_a_circle():
    """At every depth, of two modules or folders in one folder, one is the lower."""
    graphs = folder_graphs(import_graph(python_files()))
    assert {"gpuprof", "gpuprof.diagnosis", "gpuprof.diagnosis.detect", "gpuprof.tracefile"} <= set(graphs)
    found = [f"in {package}: {circle}" for package, graph in graphs.items() for circle in circles(graph)]
    assert not found, "folders import each other: " + "; ".join(found)


def test_circles_of_folders_are_found_at_every_depth():
    """Modules of two folders that reach each other, though no module reaches itself."""
    graph = {"p.a.x": {"p.b.y"}, "p.b.y": set(), "p.b.z": {"p.a.w"}, "p.a.w": set(), "p.a": set(), "p.b": set()}
    assert {package: circles(inside) for package, inside in folder_graphs(graph).items()} == {"p": ["a -> b -> a"]}
    deeper = {f"top.{name}": {f"top.{other}" for other in others} for name, others in graph.items()}
    assert circles(folder_graphs(deeper)["top.p"]) == ["a -> b -> a"]
    assert circles(folder_graphs({"p.a.x": {"p.low"}, "p.low": set(), "p.high": {"p.a.x"}})["p"]) == []


LISTS = {"calibration", "cli", "diagnosis/findings", "record/patches"}
"""Folders whose files are entries of a list: subjects, commands, findings and patches."""


def test_a_folder_has_at_most_20_modules():
    """Longer lists are hard to read; sub-folders show what belongs together."""
    folders = [path for path in PACKAGE.rglob("*") if path.is_dir() and str(path.relative_to(PACKAGE)) not in LISTS]
    sizes = {str(path.relative_to(PACKAGE)): len(set(path.glob("*.py")) - {path / "__init__.py"}) for path in folders}
    assert len(sizes) > 40
    assert {name: size for name, size in sizes.items() if size > 20} == {}


def test_no_two_classes_have_one_name():
    """Whoever reads a name, or searches for it, finds one thing."""
    places: dict[str, list[str]] = {}
    for path in python_files():
        for name in code_names(path).classes:
            if not name.startswith("_"):
                places.setdefault(name, []).append(module_of(path))
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


BY_CONVENTION = {
    *("find", "FINDING", "PATCH", "apply", "command", "schema", "scan", "merge", "arm", "join", "main"),
    "load_ipython_extension",
}
"""Names for which a module is asked because all modules of its kind have them, or that Python or IPython calls."""
FOR_USERS = {
    "gpuprof.interop.hta.trace_analysis",
    "gpuprof.diagnosis.result.tables.Tables.projections",
    "gpuprof.diagnosis.quarantine.ENTRIES",  # what has to be known before an entry may go
}
"""Documented names for users of the package and readers of its code."""


def unused_names(package: Path, others: Sequence[Path] = ()) -> list[str]:
    """Functions, classes, variables and methods of a package that neither it nor the `others` use.

    A module's name is used if it is read there, or where it is imported; a method if any attribute has its name. Both
    are if a text in the code is their name, or ends it.
    """
    root = package.parent
    modules = {module_of(path, root): code_names(path) for path in sorted(package.rglob("*.py"))}
    imported, attributes, texts = set[str](), set[str](), set[str]()
    for path in [*package.rglob("*.py"), *others]:
        names = code_names(path)
        here = [name for _, _, each in names.imports for _, name in each]
        places: dict[str, list[str]] = {}
        for full, name in zip(imports_of(path, root), here, strict=True):
            imported.add(full)
            places.setdefault(name, []).append(full)
        imported |= {f"{full}.{name}" for base, name in names.attributes for full in places.get(base, ())}
        attributes |= {name for _, name in names.attributes}
        texts |= {re.split("[:.]", text)[-1] for text in names.texts}
    endings = tuple(text for names in modules.values() for text in names.endings if re.fullmatch(r"_\w+", text))
    found = []
    for module, names in modules.items():
        for name in names.defined:
            is_asked_for = name in texts or name.endswith(endings) or name in BY_CONVENTION
            if not (f"{module}.{name}" in imported or names.loaded[name] or is_asked_for):
                found.append(f"{module}.{name}")
        methods = ((name, name.rpartition(".")[2]) for name in names.methods)
        found += [f"{module}.{name}" for name, own in methods if own not in attributes | texts]
    return [name for name in found if not name.endswith("__")]


def test_all_code_is_used():
    """By the package itself, its measurements or the generators of its pages; what only tests use is dead."""
    unused = set(unused_names(PACKAGE, sorted((ROOT / "benchmarks").glob("*.py"))))
    assert unused == FOR_USERS


def test_unused_names_are_found(tmp_path: Path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text(
        "import ast\nUSED = 1\ndef used(): return USED\ndef recursive(): pass\ndef shared(): pass\n"
        "class A:\n    def called(self): pass\n    def forgotten(self): pass\n"
        "class Visitor(ast.NodeVisitor):\n    def visit_Name(self, node): pass\n"
    )
    (package / "b.py").write_text(
        "from package import a\nfrom package.a import used as known\ndef shared(): known(), a.A().called(), shared\n"
        "def printed_text(): getattr(a, f'{shared}_text')\ndef _asked(): a.Visitor()\nASKED = {'package.b:_asked'}\n"
    )
    assert unused_names(package) == [
        "package.a.recursive",
        "package.a.shared",
        "package.a.A.forgotten",
        "package.b.ASKED",
    ]
    user = tmp_path / "user.py"
    user.write_text("from package.a import recursive\nfrom package import a\na.shared()\n")
    assert unused_names(package, [user]) == ["package.a.A.forgotten", "package.b.ASKED"]


def test_findings_stand_alone():
    """A finding imports no other finding and nothing above findings; what several need is in `detect`."""
    findings = PACKAGE / "diagnosis" / "findings"
    above = ("gpuprof.diagnosis.findings", "gpuprof.diagnosis.comparison", "gpuprof.diagnosis.projection_input")
    detect = PACKAGE / "diagnosis" / "detect"
    files = [*(path for path in findings.glob("*.py") if path.name != "__init__.py"), *detect.rglob("*.py")]
    assert len(files) > 40
    wrong = [f"{path.name} imports {name}" for path in files for name in imports_of(path) if name.startswith(above)]
    assert not wrong, "\n".join(wrong)


FINDINGS_RUN = (
    "detect",
    "sentences",
    "mean_step.budget_model",
    "quarantine",
    "result.diagnosis",
    "result.finding_model",
    "result.fix",
    "result.run_model",
    "result.value_range",
)
"""The parts of the room above that findings may run: facts, and the plain data that they read or produce."""
FINDINGS_NAME = ("analysis", "mean_step.run_budget", "recorded.frozen_passes")
"""Modules of which they only use types, so that `gpuprof explain` starts without them."""


def test_findings_take_their_facts_from_detect():
    """Everything else in diagnosis is above them, and used at most as the type of an argument."""
    prefix, wrong = "gpuprof.diagnosis.", []
    for path in (PACKAGE / "diagnosis" / "findings").glob("*.py"):
        if path.name == "__init__.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        guarded = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(prefix):
                name = (node.module or "").removeprefix(prefix)
                allowed = FINDINGS_RUN + FINDINGS_NAME if id(node) in guarded else FINDINGS_RUN
                if not f"{name}.".startswith(tuple(f"{one}." for one in allowed)):
                    wrong.append(f"{path.name} imports {node.module}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": set(), "b": {"a"}}, []),
        ({"a": {"b", "c"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a", "c"}, "c": {"b"}}, ["a -> b -> a"]),
        ({"a": {"b"}, "b": {"a"}, "c": {"d", "a"}, "d": {"e", "c"}, "e": {"c"}}, ["a -> b -> a", "c -> d -> c"]),
    ],
)  # fmt: skip
def test_each_circle_is_named_once(graph: dict[str, set[str]], expected: list[str]):
    assert circles(graph) == expected


def test_some_rooms_use_only_the_standard_library():
    """The GPU layer also uses pynvml if it is installed."""
    for path in python_files():
        room = room_of(path)
        if room in STANDARD_LIBRARY_ONLY or room == "devices":
            known = {"gpuprof", "pynvml"} if room == "devices" else {"gpuprof"}
            outside = {n.split(".")[0] for n in imports_of(path)} - sys.stdlib_module_names - known
            assert not outside, f"{path.relative_to(ROOT)} imports {outside}"


def test_no_module_bears_a_name_of_the_api():
    """`gpuprof.load` is a function; a module of that name would replace it once imported."""
    taken = {path.name.removesuffix(".py") for path in PACKAGE.iterdir()} & API
    assert not taken


def test_the_package_imports_nothing_of_its_own_until_asked():
    loaded = in_new_python("import sys, gpuprof; print(*(m for m in sys.modules if m.startswith('gpuprof.')))")
    assert loaded == ""


def test_the_command_line_imports_nothing_heavy():
    heavy = "{'numba', 'pandas', 'torch'}"
    assert in_new_python(f"import sys, gpuprof.cli; print(*({heavy} & set(sys.modules)))") == ""


def in_new_python(code: str) -> str:
    """What a fresh interpreter prints when it runs `code`."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.measures_time
def test_help_is_quick():
    """`gpuprof --help` takes no more processor time than Python with three imports like that of numpy."""
    bare, command = [sys.executable, "-c", "pass"], [sys.executable, "-m", "gpuprof", "--help"]
    processor_s(command)  # bytecode is compiled only once, so users do not wait for it
    numpy = [sys.executable, "-c", "import numpy"]
    bare_s, help_s, numpy_s = (min(processor_s(one) for _ in range(3)) for one in (bare, command, numpy))
    assert help_s - bare_s < 3 * (numpy_s - bare_s)


def processor_s(command: list[str]) -> float:
    """Seconds of processor time, user and system, that a command takes."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


def project_files() -> list[Path]:
    """Files that are, or would be, under version control; outside a clone, every file."""
    if shutil.which("git") and (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        paths = [path for path in ROOT.rglob("*") if not {".venv", ".venv-hta"} & set(path.parts)]
    return [path for path in paths if path.is_file()]


def test_no_file_names_the_machine_it_was_written_on():
    folders, library = (b"/" + b"work/", b"/" + b"farm/"), re.compile(rb"(?<!\w)\." + rb"library\b")

    def names_it(data: bytes) -> bool:
        """Whether it names a place; the slow expression is only tried where the word occurs."""
        return any(folder in data for folder in folders) or (b"library" in data and library.search(data) is not None)

    named = [str(path.relative_to(ROOT)) for path in project_files() if names_it(path.read_bytes())]
    assert not named


def test_python_files_have_no_tabs_and_no_carriage_returns():
    python = [path for path in project_files() if path.suffix == ".py"]
    assert not [str(path) for path in python if re.search(rb"[\t\r]", path.read_bytes())]
