"""The viewer in the package is what its sources build to, and its sources pass their own checks."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.paths import ROOT

VIEWER = ROOT / "viewer"
ASSETS = ROOT / "gpuprof" / "report" / "page" / "assets"


@pytest.fixture(scope="module")
def tools() -> None:
    """node, npm and what `npm ci` installs; a test that uses this is skipped where they are missing."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program}")
    if not (VIEWER / "node_modules").is_dir():
        pytest.skip("no viewer/node_modules (make viewer)")


def sources_digest() -> str:
    """The digest of the sources as `digest` of viewer/build.mjs computes it."""
    digest = hashlib.sha256()
    names = sorted(path.relative_to(VIEWER).as_posix() for path in (VIEWER / "src").rglob("*") if path.is_file())
    for name in names:
        digest.update(f"{name}\0".encode())
        digest.update((VIEWER / name).read_bytes())
    for name in ("build.mjs", "package-lock.json", "tsconfig.json"):
        digest.update((VIEWER / name).read_bytes())
    return digest.hexdigest()


def in_viewer(*command: str) -> None:
    """Runs a command in viewer/ and shows all its output if it fails."""
    done = subprocess.run(
        command, cwd=VIEWER, env={**os.environ, "NO_COLOR": "1", "npm_config_update_notifier": "false"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_the_bundle_was_built_from_these_sources():
    """Checked without node, so that whoever changes a source and forgets `make viewer` notices."""
    assert (ASSETS / "sources.sha256").read_text() == f"{sources_digest()}\n", "make viewer, and commit what it changes"


def test_a_build_makes_the_same_files(tools, tmp_path: Path):
    in_viewer("node", "build.mjs", "--out", str(tmp_path))
    built = {path.name: content(path) for path in tmp_path.iterdir()}
    committed = {path.name: content(path) for path in ASSETS.iterdir()}
    assert built.keys() == committed.keys()
    assert [name for name in built if built[name] != committed[name]] == []


def content(path: Path) -> bytes:
    """The unpacked content of a file, as packed files may differ between versions of zlib."""
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def test_its_types_are_right(tools):
    in_viewer("npm", "run", "--silent", "check")


def test_its_own_tests_pass(tools):
    in_viewer("npm", "run", "--silent", "test")
