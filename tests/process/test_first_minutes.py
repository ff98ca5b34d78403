"""The first fifteen minutes of a new user: what the commands of the README print is checked by rules that hold for
every screen. Commands whose process matters have one each; the others run in this process, on one diagnosis."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from helpers.agent_client import texts
from helpers.command import gpuprof_command, in_process
from helpers.diagnosed import diagnosed, each_diagnosed_once
from helpers.installed import need
from helpers.once import once
from helpers.paths import ROOT
from helpers.quick import few
from helpers.warm_torch import warm_python

from gpuprof.report.stepbar import PAINTS, WAITING_FOR_A_PEER
from gpuprof.report.terminal.memory_terminal import MARKS

TRAINING = """
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

class Prepared(Dataset):
    def __len__(self):
        return 64_000

    def __getitem__(self, i):
        sum(k * k for k in range(12_000))
        return torch.randn(64), i % 4

model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 4))
optimizer = torch.optim.AdamW(model.parameters())
left = 3000
for inputs, labels in DataLoader(Prepared(), batch_size=16):
    left -= 1
    if left > 40 and left % 10 == 0 and list(Path("gpuprof-runs").glob("*/trace*")):
        left = 40  # recorded, however fast this machine is
    if left == 0:
        break
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
DEMO = ROOT / "gpuprof" / "data" / "demo.json.gz"
MOE = ROOT / "scenarios" / "programs" / "moe_lengths" / "recording"
PAIRS = ROOT / "tests" / "data" / "pairs"
FILLS = {paint.fill for paint in (*PAINTS.values(), WAITING_FOR_A_PEER)}
DURATION = r"[\d,.]+ (?:ns|µs|ms|s)"
LONGEST_ANSWER = {DEMO: 40, MOE: 48}
"""Most lines of an answer at 80 columns, including those below its first screen; the three largest items above the
reach are always among them, and those of MOE need several lines each."""
UNSAID = re.compile(r"\b(None|nan|Traceback|undefined)\b")


# -- the rules


def screen(done: CompletedProcess[str], width: int = 80) -> str:
    """What a command printed, after checking that it fits a screen."""
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert len(line) <= width and line == line.rstrip(), line
    assert not UNSAID.search(done.stdout + done.stderr), done.stdout + done.stderr
    return done.stdout


def sections(text: str) -> dict[str, list[str]]:
    """Title of a section of an answer → its lines; the lines above all sections have no title. On a narrow screen some
    sections begin below their title."""
    found: dict[str, list[str]] = {"": []}
    title = ""
    for line in text.splitlines():
        begins = line.startswith("  ") and line[2:13].strip() and line[2] != " "
        if begins:
            title = line[2:13].strip()
        below = title and not begins and line[:13].strip()
        found.setdefault(title, []).append(line[4:] if below else line[13:] if title else line)
    return found


def says_one_step(text: str) -> None:
    """The headline's step is the one before every arrow."""
    first = re.search(rf"({DURATION}) a step", text)
    assert first, text
    assert set(re.findall(rf"({DURATION}) a step\b", text.partition("fixes")[0])) == {first[1]}
    assert set(re.findall(rf"({DURATION}) → ", text)) <= {first[1]}, text


def names_what_it_draws(bar: str, legend: str, fills: set[str]) -> None:
    """Each symbol of a bar is in its legend, and the other way round."""
    drawn = set(bar.split("  ")[-1].strip())
    assert drawn <= fills, bar
    named = {symbol for word in legend.split() if set(word) <= fills for symbol in word}
    assert drawn == named, f"{bar}\n{legend}"


def holds_code(text: str, code: str) -> None:
    """All of some code is there, whatever lines it was broken into."""
    assert "".join(code.split()) in "".join(text.split()), f"{code!r} is not whole in\n{text}"


def page_is_whole(path: Path) -> str:
    """A report loads nothing from elsewhere, and its bars' legends name exactly what the bars draw."""
    page = path.read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=.?https?:", page) and 'id="theme"' in page
    words = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    assert not UNSAID.search(re.sub(r"<[^>]+>", " ", words))
    for figure in re.findall(r'<figure class="stepbar">.*?</figure>', words, re.DOTALL):
        assert figure.count("<span class=") == figure.count("<li><i class="), figure
    return words


def page_says_one_step(words: str, step: str) -> None:
    """The step of the terminal is that of the page's first number, and stands before the arrow of every fix."""
    tiles = re.findall(r"<dt>(?:<[^>]+>)*an? (?:step|iteration)\b.*?</dt><dd>(?:≈ )?([^<]+)</dd>", words)
    assert tiles == [step]
    gains = [plain_text(gain) for gain in re.findall(r'<p class="gain">(.*?)</p>', words)]
    assert {found[1] for gain in gains if (found := re.match(rf"({DURATION}) → ", gain))} <= {step}, gains


def plain_text(words: str) -> str:
    """The visible text of a piece of a page."""
    return html.unescape(re.sub(r"<[^>]+>", "", words))


def page_holds_code(words: str, code: str) -> None:
    """All of some code is there to be copied."""
    holds_code(plain_text(words), code)


BROKEN: tuple[tuple[Callable[..., object], tuple[object, ...]], ...] = (
    (says_one_step, ("WAITING   81 ms a step\n  step  █\nusually 80 ms a step\n  fixes  1  x   81 ms → 2 ms",)),
    (says_one_step, ("WAITING   81 ms a step\n  fixes      1  compile   80 ms → 12–23 ms   3.5×",)),
    (names_what_it_draws, ("  step       ██░░", "█ compute 50 %", FILLS)),
    (names_what_it_draws, ("  step       ████", "█ compute 90 %  ░ launch 10 %", FILLS)),
    (holds_code, ('model.compile(mode="reduce-', 'model.compile(mode="reduce-overhead")')),
    (page_says_one_step, ('<dt>a step</dt><dd>81 ms</dd><p class="gain">80 ms → 12–23 ms</p>', "81 ms")),
    (page_holds_code, ("<pre>model.comp</pre>", "model.compile()")),
)


@pytest.mark.parametrize(("rule", "shown"), BROKEN)
def test_the_rules_refuse_what_is_broken(rule: Callable[..., object], shown: tuple[object, ...]):
    with pytest.raises(AssertionError):
        rule(*shown)


# -- the minutes


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training that gpuprof has recorded on the CPU."""
    need("torch")

    def record(folder: Path) -> None:
        (folder / "train.py").write_text(TRAINING, encoding="utf-8")
        done = gpuprof_command("trace", warm_python(), "train.py", cwd=folder)
        assert done.returncode == 0, done.stderr
        (folder / "said.txt").write_text(done.stderr, encoding="utf-8")

    return once(tmp_path_factory, "first-minutes", record)


@pytest.fixture
def there(project: Path) -> Callable[..., CompletedProcess[str]]:
    """Runs a command in the project's folder, in this process."""

    def command(*words: object, width: int = 80) -> CompletedProcess[str]:
        with each_diagnosed_once(project):
            return in_process(*words, cwd=project, COLUMNS=str(width))

    return command


@pytest.fixture(scope="module")
def diagnosis(project: Path) -> dict[str, Any]:
    return json.loads(gpuprof_command("diagnose", "--json", cwd=project).stdout)


def test_what_there_is_is_listed():
    text = screen(gpuprof_command("--help"))
    assert all(f"\n  {name} " in text for name in ("trace", "diagnose", "report", "try", "compare", "demo"))


def test_the_demo(tmp_path: Path):
    done = gpuprof_command("demo", cwd=tmp_path, env={"COLUMNS": "80"})
    text = screen(done)
    says_one_step(text)
    bar, *legend = sections(text)["step"]
    names_what_it_draws(bar, " ".join(legend), FILLS)
    page = page_is_whole(tmp_path / "gpuprof-demo.html")
    step = re.search(rf"({DURATION}) a step", text)
    assert step and step[1] in page, "the page and the terminal say the same step"
    page_says_one_step(page, step[1])
    for finding in diagnosed(DEMO).findings:
        for line in finding.fix_lines:
            if line.code:
                page_holds_code(page, line.text)


def test_a_recording_ends_with_the_verdict(project: Path):
    said = (project / "said.txt").read_text(encoding="utf-8")
    assert "BATCHES" in said and "next: gpuprof diagnose" in said and not UNSAID.search(said)
    assert "kernels" not in said, "a training without a GPU has none to show"


@pytest.mark.parametrize("width", few([40, 80, 132], ["40", "80"]))
def test_the_diagnosis_cuts_no_code(there: Callable[..., Any], diagnosis: dict[str, Any], width: int):
    text = screen(there("diagnose", width=width), width)
    says_one_step(text)
    shown = sections(text)
    if "step" in shown:
        bar, *legend = shown["step"]
        names_what_it_draws(bar, " ".join(legend), FILLS)
    for finding in diagnosis["findings"][:1]:
        for line in finding["fix"].splitlines():
            if re.match(r"[\w.]+\(", line):
                holds_code("\n".join(shown["fixes"]), line.partition("#")[0])


@pytest.mark.parametrize("width", few([40, 80, 132], ["40", "80"]))
@pytest.mark.parametrize("recording", [DEMO, pytest.param(MOE, marks=pytest.mark.slow)])
def test_the_diagnosis_of_a_recording_cuts_no_code(recording: Path, width: int):
    text = screen(in_process("diagnose", recording, COLUMNS=str(width)), width)
    says_one_step(text)
    assert len(text.splitlines()) <= LONGEST_ANSWER[recording] or width < 80, text
    bar, *legend = sections(text)["step"]
    names_what_it_draws(bar, " ".join(legend), FILLS)
    shown = "\n".join(sections(text)["fixes"])
    first = diagnosed(recording).findings[0]
    for line in first.fix.splitlines():
        if re.match(r"[\w.]+\(", line):
            holds_code(shown, line.partition("#")[0])


def test_what_it_says_to_do_next_works(there: Callable[..., Any]):
    text = screen(there("diagnose", width=200), 200)
    # Where the machine is so busy that no fix is certain, there is nothing to do next.
    for command in re.findall(r"next +gpuprof (.*)", text):
        name, *rest = command.split()
        assert screen(there(name, *(rest if name == "explain" else ["--help"])))


def test_words_of_the_screen_are_explained(project: Path, there: Callable[..., Any]):
    text = screen(gpuprof_command("diagnose", cwd=project))
    bound = text.splitlines()[1].split(" · ")[0]
    assert bound in screen(there("explain", bound))


def test_the_report(there: Callable[..., Any], tmp_path: Path):
    path = tmp_path / "report.html"
    assert there("report", "-o", path).returncode == 0
    words = page_is_whole(path)
    assert 'id="kernels"' not in words, "no section about kernels without a GPU"
    step = re.search(rf"({DURATION}) a step", screen(there("diagnose")))
    assert step and step[1] in words
    page_says_one_step(words, step[1])


def test_two_runs_without_a_gpu_are_compared(there: Callable[..., Any], project: Path):
    run = next((project / "gpuprof-runs").glob("*train"))
    text = screen(there("compare", run, run))
    bars = re.findall(r"^ .*[AB]  (\S+)$", text, re.MULTILINE)
    assert len(bars) == 2 and text.startswith("NO DIFFERENCE")
    names_what_it_draws("".join(bars), " ".join(sections(text)["step"][2:]), FILLS)


def test_two_recordings_are_compared(tmp_path: Path):
    page = tmp_path / "compare.html"
    done = in_process("compare", PAIRS / "tiny.json.gz", PAIRS / "tiny.compile.json.gz", "--html", page, COLUMNS="80")
    bars = re.findall(r"^ .*[AB]  (\S+)$", screen(done), re.MULTILINE)
    legend = " ".join(sections(done.stdout)["step"][2:])
    names_what_it_draws("".join(bars), legend, FILLS)
    page_is_whole(page)


def test_a_snapshot_of_memory(tmp_path: Path):
    import gzip

    snapshot = tmp_path / "memory.pickle"
    snapshot.write_bytes(gzip.decompress((ROOT / "tests/data/snapshots/llama.pickle.gz").read_bytes()))
    page = tmp_path / "memory.html"
    bar, *legend = sections(screen(in_process("memory", snapshot, "--html", page, COLUMNS="80")))["owners"]
    names_what_it_draws(bar, " ".join(legend), {letter for letter, _ in MARKS.values()})
    ticks = re.findall(r"<span style=\"top:[^>]*>([^<]*)<", page_is_whole(page))
    assert ticks == ["4 GiB", "3 GiB", "2 GiB", "1 GiB", "0"]


def test_what_could_be_tried(there: Callable[..., Any]):
    assert "input_workers" in screen(there("try", "--list"))


@pytest.mark.slow
def test_earlier_runs_and_the_machine(project: Path, there: Callable[..., Any]):
    assert "train" in screen(there("history"))
    assert gpuprof_command("doctor", cwd=project).returncode in (0, 1)


def test_a_wrong_command_is_one_line_that_helps(project: Path):
    for arguments, said in ((["train.py"], "gpuprof trace train.py"), (["diagnos"], "diagnose")):
        done = gpuprof_command(*arguments, cwd=project)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_notebook_shows_it(project: Path):
    """In a separate kernel, as Jupyter runs it, with its figures drawn."""
    for module in ("nbclient", "ipykernel"):
        need(module)
    import nbformat
    from nbclient import NotebookClient

    cells = ("import gpuprof; found = gpuprof.diagnose(); found", "gpuprof.charts.timed_steps(found)")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(project)}}).execute()
    html = "".join(notebook.cells[0].outputs[-1].data["text/html"])
    assert "BATCHES" in html and not UNSAID.search(re.sub(r"<[^>]+>", " ", html))


@pytest.mark.slow
def test_an_agent_asks(project: Path):
    (failed, text), (unknown, message) = texts(project, [("diagnose", {}), ("diagnose", {"file": "x"})])
    assert not failed and "BATCHES" in text and not UNSAID.search(text)
    assert unknown and "file" in message
