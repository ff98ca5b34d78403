"""What the tests share: recorded traces, HTA's interpreter, and the treatment of skipped tests."""

from __future__ import annotations

import ast
import gc
import os
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from helpers import again, compiled_reader
from helpers.paths import ROOT, SHARED
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of torch in every worker would wait for each other, spinning
os.environ.setdefault("GPUPROF_SANDBOX", "hooks")  # forks of helpers.warm_torch's server are in no sandbox
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each process compiles all that it imports: half of the CPU time
sys.dont_write_bytecode = False
settings.register_profile("suite", max_examples=25, deadline=None)  # the machine decides how long an example takes
settings.load_profile("suite")

IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}

ALLOWED_SKIPS: tuple[str, ...] = (
    "(set GPUPROF_SHARED)",  # recordings that are too large, or not ours, to be in the repository
    "no interpreter with HTA",  # it wants an older pandas, in an environment of its own
    "Ray is not installed",  # 260 MB for two tests
    "this Python has no sys.remote_exec",  # Python 3.14 has; see docs/attach.md
)
"""Parts of skip reasons that CI accepts, each with a comment that says why. Empty is best."""

REMEDIES = (
    (r"no (recorded (traces?|exports?|ranks|jobs)|measured times) ",
     "recordings that are not in the repository: set GPUPROF_SHARED to their folder"),
    (r"\b(torch|transformers|peft|accelerate|trl|datasets|lightning)\b",
     "torch and its trainers: .venv/bin/pip install -c constraints.txt torch transformers peft accelerate trl datasets"
     " lightning"),
    (r"Chromium|playwright", "Chromium on the PATH (Debian: apt-get install chromium)"),
    (r"HTA|Holistic", "HolisticTraceAnalysis: make hta, then GPUPROF_HTA_PYTHON=.venv-hta/bin/python"),
    (r"viewer|node|npm", "Node.js and npm: make viewer"),
    (r"\bRay\b", "Ray (260 MB): .venv/bin/pip install 'ray[train]'"),
)  # fmt: skip
"""Pattern of a skip reason, and what to install; the first that matches."""

OF_SHARED = {"SHARED", "WHOLE", "each_shared", "shared_export", "shared_trace", "shared_truth"}
"""Names of helpers that lead to the recordings that are not in the repository; `WHOLE` holds them and the committed."""

FROM = {"helpers.paths", "helpers.traces", "helpers.nsys_exports"}
"""The helpers' modules; elsewhere a name of these may be something else."""

SLOWEST = 20
"""Tests whose durations are printed at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--only-shared", action="store_true",
        help="only tests that mention the recordings outside of the repository (with GPUPROF_SHARED set to a missing "
        "folder: do they pass or skip without them?)",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    # A shell's background job ignores SIGINT, one under nohup SIGHUP; processes that the tests start and end by them
    # would inherit this.
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("durations") is None:
        config.option.durations = SLOWEST
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        compiled_reader.begin()
    gc.set_threshold(100_000, 20, 100)  # as our commands do; garbage collection took an eighth of the time


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Each worker begins with other test files, so that in a fresh clone pytest rewrites the assertions of each file
    once, and not in all workers at a time: that takes longer than importing them."""
    number, count = (os.environ.get(f"PYTEST_XDIST_WORKER{of}", "") for of in ("", "_COUNT"))
    if not number or session.config.args != session.config.getini("testpaths"):
        return
    files = [path for folder in session.config.args for path in sorted((ROOT / folder).glob("test_*.py"))]
    first = len(files) * int(number.removeprefix("gw")) // int(count)
    for path in files[first:] + files[:first]:
        try:
            _ = pytest.Module.from_parent(session, path=path).obj
        except (Exception, pytest.skip.Exception):  # collecting it is to meet that again
            for name in [name for name, one in sys.modules.items() if getattr(one, "__file__", None) == str(path)]:
                del sys.modules[name]


def pytest_sessionfinish() -> None:
    gc.freeze()  # pytest collects garbage among all objects five times before it ends


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recorded traces; a test that asks for it is skipped where there is none."""
    if "shared" in missing():
        pytest.skip(missing()["shared"])
    return SHARED


@pytest.fixture(scope="session")
def hta_python() -> str:
    """An interpreter that has HolisticTraceAnalysis, which lives in a venv of its own (`make hta`)."""
    if "hta_python" in missing():
        pytest.skip(missing()["hta_python"])
    return os.environ["GPUPROF_HTA_PYTHON"]


@pytest.fixture(scope="session", autouse=True)
def _workers_share_what_takes_long(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each recording is diagnosed once, and torch is imported once, for all workers."""
    from helpers import diagnosed, warm_torch

    diagnosed.share_with_workers(tmp_path_factory)
    warm_torch.share_with_workers(tmp_path_factory)


@pytest.fixture
def each_diagnosed_once() -> Iterator[None]:
    """Diagnoses of the repository's recordings, also those made by commands, are shared by all tests."""
    from helpers import diagnosed

    with diagnosed.each_diagnosed_once():
        yield


@pytest.fixture(scope="session", autouse=True)
def _the_reader_is_compiled() -> None:
    """Before any test: whichever command compiles it says so on stderr, which tests compare."""
    compiled_reader.wait()


# -- which tests run


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --only-shared, import only files that mention those recordings: importing all takes most of the time."""
    is_test = collection_path.match("test_*.py")
    return True if config.getoption("--only-shared") and is_test and not mentioning_shared(collection_path) else None


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --only-shared, keep the tests whose code mentions those recordings. Of tests that cannot run here for the
    same reason keep one, which says how many they are."""
    left_out = [item for item in items if config.getoption("--only-shared") and not _uses_shared(item)]
    if not IN_CI:
        left_out += one_skip_each([item for item in items if item not in set(left_out)])
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]


def one_skip_each(items: list[pytest.Item]) -> list[pytest.Item]:
    """Marks the first test that asks for each fixture of `missing()` as skipped, and returns the others that do."""
    others = []
    for fixture, why in missing().items():
        asking = [item for item in items if fixture in getattr(item, "fixturenames", ())]
        for item in asking[:1]:
            item.add_marker(pytest.mark.skip(reason=f"{why} ({len(asking)} tests)"))
        others += asking[1:]
    return others


@cache
def missing() -> dict[str, str]:
    """Fixtures that this machine cannot provide, and why."""
    found = {}
    if not SHARED.is_dir():
        found["shared"] = f"no recorded traces at {SHARED} (set GPUPROF_SHARED)"
    if not os.environ.get("GPUPROF_HTA_PYTHON"):
        found["hta_python"] = "no interpreter with HTA (make hta, then set GPUPROF_HTA_PYTHON)"
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        found["chromium"] = "no Chromium on the PATH"
    return found


def _uses_shared(item: pytest.Item) -> bool:
    """Whether a test mentions shared recordings, and is not one of its runs on a recording of the repository."""
    parameters = getattr(item, "callspec", None)
    ours = parameters and any(isinstance(value, Path) and ROOT in value.parents for value in parameters.params.values())
    return not ours and getattr(item, "originalname", item.name) in mentioning_shared(item.path)


@cache
def mentioning_shared(path: Path) -> frozenset[str]:
    """The functions and names at the top of a file that mention shared recordings, themselves or by what they use."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    uses: dict[str, set[str]] = {}
    for node in tree.body:
        words = {word for part in ast.walk(node) for word in _words(part)}
        for name in _defined(node):
            uses.setdefault(name, set()).update(words)
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module in FROM]
    leading = {"shared"} | OF_SHARED & {name.name for node in imports for name in node.names}
    found = {name for name, words in uses.items() if words & leading}
    while True:
        more = {name for name, words in uses.items() if words & found} - found
        if not more:
            return frozenset(found)
        found |= more


def _words(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        return (node.attr,)
    return (node.arg,) if isinstance(node, ast.arg) else ()


def _defined(node: ast.stmt) -> tuple[str, ...]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return (node.name,)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return tuple(target.id for target in targets if isinstance(target, ast.Name))


# -- skips: in CI a failure, elsewhere a line that says what to install


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    return again.run_again(item, nextitem)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Fail a test that was skipped in CI: one that silently stopped running looks like one that passes."""
    report = yield
    return _refuse_skip(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    """Fail a module that was skipped in CI."""
    report = yield
    return _refuse_skip(report)


def _refuse_skip(report):
    if not (IN_CI and report.skipped) or hasattr(report, "wasxfail"):
        return report
    reason = _reason(report)
    if not any(allowed in reason for allowed in ALLOWED_SKIPS):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not accept: {reason}"
    return report


def _reason(report) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


def pytest_terminal_summary(terminalreporter) -> None:
    """What was skipped, by what would have to be installed."""
    counts: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", ()):
        reason = _reason(report).removeprefix("Skipped: ")
        number = re.search(r"\((\d+) tests\)$", reason)
        remedy = next((remedy for pattern, remedy in REMEDIES if re.search(pattern, reason)), reason)
        counts[remedy] += int(number[1]) if number else 1
    for remedy, count in counts.most_common():
        terminalreporter.write_line(f"skipped: {count} (what they need: {remedy})")
    for line in again.lines(terminalreporter.stats.get("passed", [])):
        terminalreporter.write_line(line)
