"""How `gpuprof trace` reads its command line: what to run, what to store of it, and what to leave alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprof.record.base.redact import redact
from gpuprof.record.launcher.command import CannotStart, resolve

# -- what to run


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a script, and a PATH with a Python and a launcher."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    for name in ("python", "torchrun", "accelerate"):
        (tmp_path / "bin" / name).touch(0o755)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "train.v2.py").touch()
    return tmp_path


def resolved(place: Path, *words: str, module: str | None = None, torch: bool = True):
    return resolve(words, module, "/ours/bin/python", lambda: torch, str(place / "bin"))


def test_a_script_runs_under_our_python_if_that_has_torch(place: Path):
    target = resolved(place, "jobs/train.v2.py", "--lr", "1")
    assert target.argv == ("/ours/bin/python", "jobs/train.v2.py", "--lr", "1")
    assert (target.stem, target.notes, target.recordable) == ("train.v2", (), True)


def test_a_script_runs_under_the_shells_python_if_ours_has_no_torch(place: Path):
    python = str(place / "bin" / "python")
    target = resolved(place, "jobs/train.v2.py", torch=False)
    assert (target.argv[0], target.python) == (python, python)
    assert len(target.notes) == 1 and python in target.notes[0]
    assert resolved(place, module="a.b", torch=False).argv == (python, "-m", "a.b")


def test_a_program_is_left_as_it_was_typed(place: Path):
    words = ("torchrun", "--nproc-per-node", "2", "jobs/train.v2.py", "-m")
    target = resolved(place, *words, torch=False)
    assert (target.argv, target.stem, target.notes) == (words, "train.v2", ())


@pytest.mark.parametrize(
    ("words", "stem"),
    [
        (("accelerate", "launch", "-m", "axolotl.cli.train", "x.yml"), "train"),
        (("python", "-c", "import x.py"), "python"),
        (("python", "-u", "a b/ü(1).py"), "1"),
        (("torchrun",), "torchrun"),
        (("python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "jobs/train.v2.py"), "train.v2"),
        (("python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "package.train"), "train"),
        (("python", "-m", "torch.distributed.run"), "run"),
    ],
)
def test_what_a_run_is_called(words: tuple[str, ...], stem: str, place: Path):
    assert resolved(place, *words).stem == stem
    if words[:2] == ("python", "-m"):
        assert resolved(place, *words[3:], module=words[2]).stem == stem


@pytest.mark.parametrize(
    ("flags", "deaf"),
    [
        ("-I", True), ("-E", True), ("-S", True), ("-sE", True), ("-uI -X dev", True), ("-X dev -E", True),
        ("-W ignore -I", True), ("-s", False), ("-P", False), ("-u", False), ("-WI", False), ("-XE", False),
        ("-W E", False), ("-m -I", False), ("-c -E", False), ("x.py -I", False), ("- -I", False), ("-- -I", False),
        ("--check-hash-based-pycs -I", False), ("--version -I", True), ("-Ic pass", True), ("-cI", False),
    ],
)  # fmt: skip
def test_flags_that_shut_us_out(flags: str, deaf: bool, place: Path):
    target = resolved(place, "python", *flags.split())
    assert target.recordable is not deaf
    assert len(target.notes) == deaf


@pytest.mark.parametrize("words", [(), ("",), ("gone.py",), ("gone",), ("./gone",), ("jobs/",)])
def test_nothing_to_start(words: tuple[str, ...], place: Path):
    with pytest.raises(CannotStart) as error:
        resolved(place, *words)
    assert "\n" not in str(error.value)


# -- secrets


@pytest.mark.parametrize(
    "words",
    [
        "--max_tokens 512", "--max-new-tokens=512", "--tokenizer meta/llama", "--tokenizer_name=a/b",
        "--num_key_heads 8", "--image_token_id 32000", "--use_auth_token True", "--use_auth_token --lr 1",
        "--author me", "tokens_per_batch=4096", "--key_dim=64", "train.py --lr 1e-4 --out runs/hf_models",
        "--name task-abc", "https://host/path", "optimizer.lr=1 model=llama", "--max_token 5",
        "-- -x", "--rev " + "a" * 39, "-p 8080", "-t 4", "-t=0.5", "--path a --pattern b --patience 3 --spat c",
        "--signal 15", "https://host/x?se=2025&sv=1",
    ],
)  # fmt: skip
def test_what_is_no_secret_is_kept(words: str):
    assert redact(words.split()) == words.split()


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("-t=hunter2", "-t=<redacted>"),
        ("-t hunter2", "-t <redacted>"),
        ("-p hunter2", "-p <redacted>"),
        ("--pat abc", "--pat <redacted>"),
        ("--pw=abc --lr 1", "--pw=<redacted> --lr 1"),
        ("--db-pwd abc", "--db-pwd <redacted>"),
        ("--db-pass abc --pass 2 --bypass x", "--db-pass <redacted> --pass 2 --bypass x"),
        ("--key-passphrase 123", "--key-passphrase <redacted>"),
        ("https://b/x?X-Amz-Signature=ab12&se=1", "https://b/x?X-Amz-Signature=<redacted>&se=1"),
        ("https://b/x?sv=1&sig=AA%2Bb%3D", "https://b/x?sv=1&sig=<redacted>"),
    ],
)
def test_short_names_and_signatures_of_addresses(words: str, kept: str):
    assert redact(words.split()) == kept.split()


@pytest.mark.parametrize("words", ["--password 1234", "--token 123456", "--secret=5", "api_key=77", "--token -abcdef"])
def test_a_secret_may_be_a_number(words: str):
    assert redact(words.split()) != words.split()
