"""The wheel and the source package: what they hold, and that each works in an environment with nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from helpers.command import one_line
from helpers.installed import need
from helpers.paths import ROOT
from helpers.started import finished

import gpuprof

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MOST_BYTES = 6_000_000
"""Size limit of either file; the demo recording and the report's scripts take most of it."""
PLAIN = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
"""No variable that leads to this checkout or its packages."""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the source package, built from the files under version control."""
    need("build")
    folder = tmp_path_factory.mktemp("package")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("no clone of the repository")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "source" / name)
    done = finished(
        [sys.executable, "-m", "build", "--outdir", folder / "dist", folder / "source"], cwd=folder, text=True,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = list((folder / "dist").iterdir())
    assert len(found) == 2
    return {"wheel" if path.suffix == ".whl" else "sdist": path for path in found}


def names_in(package: Path) -> set[str]:
    """Paths of the files, without the folder that a source package has around them."""
    if package.suffix == ".whl":
        return set(zipfile.ZipFile(package).namelist())
    with tarfile.open(package) as archive:
        return {member.name.partition("/")[2] for member in archive if member.isfile()}


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_what_a_package_holds(packages: dict[str, Path], kind: str):
    names = names_in(packages[kind])
    assert gpuprof.__version__ in packages[kind].name and packages[kind].stat().st_size < MOST_BYTES
    ours = {str(path.relative_to(ROOT)) for path in (ROOT / "gpuprof").rglob("*") if path.is_file()}
    assert {name for name in ours if "__pycache__" not in name} <= names
    recordings = {name for name in names if name.endswith((".json.gz", ".sqlite", ".sqlite.gz", ".pickle"))}
    assert recordings == {"gpuprof/data/demo.json.gz"}
    top = {name.split("/")[0] for name in names}
    if kind == "wheel":
        assert top == {"gpuprof", f"gpuprof_toolkit-{gpuprof.__version__}.dist-info"}
        assert any(name.endswith("/licenses/LICENSE") for name in names)
    else:
        assert not top & {"tests", "scenarios", "benchmarks"}
        assert {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "docs", "viewer", "PKG-INFO"} <= top


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_each_package_works_in_an_empty_environment(packages: dict[str, Path], kind: str, tmp_path: Path):
    venv.create(tmp_path / "empty", with_pip=True)
    place = tmp_path / "empty" / "bin"
    install = [place / "python", "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", packages[kind]]
    done = finished(install, cwd=tmp_path, text=True, timeout=800)
    assert done.returncode == 0, done.stderr

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        env = PLAIN | {"HOME": str(tmp_path), "PATH": f"{place}:{PLAIN['PATH']}"}
        return finished([place / "gpuprof", *words], cwd=tmp_path, env=env, text=True, timeout=200)

    version = run("--version")
    assert version.stdout == f"gpuprof {gpuprof.__version__}\n", version.stderr
    demo = run("demo", "-o", "demo.html")
    assert demo.returncode == 0, demo.stderr
    assert (
        demo.stdout.startswith("WAITING FOR THE CPU to launch kernels and run Python 68 %   81 ms a step")
        and "torch.compile" in demo.stdout
    )
    assert (tmp_path / "demo.html").stat().st_size > 500_000
    assert run("skill", "--install", "skills").returncode == 0
    assert (tmp_path / "skills" / "gpuprof" / "SKILL.md").is_file()
    server = run("mcp")
    assert server.returncode == 2 and "gpuprof-toolkit[mcp]" in one_line(server.stderr)
