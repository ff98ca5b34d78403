"""Files next to the package agree with it: versions, conda recipe, CONTRIBUTING, site, workflows, forms."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import ROOT

import gpuprof
from gpuprof.doctor.software import OLDEST_TORCH

yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")

PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
GENERATED = {"gallery.md", "changelog.md", "contributing.md", "scenarios.md"}
"""Pages of the site that docs/hooks.py adds."""
PLACEHOLDER = re.compile(r"NAME|OTHER_CHECKOUT|\*")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def project() -> dict[str, Any]:
    """pyproject.toml."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        tomllib = pytest.importorskip("tomli")
    return tomllib.loads(read("pyproject.toml"))


# -- one version


def test_one_version_everywhere():
    assert "version" in project()["project"]["dynamic"]
    assert project()["tool"]["hatch"]["version"]["path"] == "gpuprof/__init__.py"
    assert yaml.safe_load(read("CITATION.cff"))["version"] == gpuprof.__version__
    assert f'{{% set version = "{gpuprof.__version__}" %}}' in read("conda/meta.yaml")
    released = re.findall(r"^## \[?(\d[^\]\s]*)\]? – (\d{4}-\d\d-\d\d)$", read("CHANGELOG.md"), re.MULTILINE)
    assert released[0] == (gpuprof.__version__, str(yaml.safe_load(read("CITATION.cff"))["date-released"]))


def test_the_conda_recipe_needs_what_the_package_needs():
    text = re.sub(r"\{%.*?%\}", "", read("conda/meta.yaml")).replace("{{ version }}", "0").replace("{{ PYTHON }}", "py")
    recipe, package = yaml.safe_load(text), project()["project"]
    wanted = {one.replace("isal", "python-isal").replace(" ", "") for one in package["dependencies"]}
    wanted.add(f"python{package['requires-python']}")
    assert {one.replace(" ", "") for one in recipe["requirements"]["run"]} == wanted
    assert {one.replace(" ", "") for one in recipe["requirements"]["host"]} >= set(
        project()["build-system"]["requires"]
    )
    scripts = [f"{name} = {place}" for name, place in package["scripts"].items()]
    assert (recipe["package"]["name"], recipe["build"]["entry_points"]) == (package["name"], scripts)


def test_every_supported_python_is_named_and_tested():
    named = [c.rpartition(" ")[2] for c in project()["project"]["classifiers"] if ":: 3." in c]
    assert named == PYTHONS and project()["project"]["requires-python"] == f">={PYTHONS[0]}"
    jobs = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"]
    assert all(jobs[job]["strategy"]["matrix"]["python"] == PYTHONS for job in ("test", "wheel"))


def test_the_oldest_torch_is_the_same_everywhere():
    """`gpuprof doctor` warns of older ones."""
    oldest = ".".join(map(str, OLDEST_TORCH))
    assert f"torch>={oldest}" in project()["project"]["optional-dependencies"]["trace"]
    for page in ("README.md", "docs/index.md"):
        assert re.findall(r"PyTorch (\S+) or newer", read(page)) == [oldest], page
    assert re.findall(r"torch older than ([\d.]+)", read("docs/doctor.md")) == [oldest]


def test_a_source_package_holds_no_recordings():
    included = project()["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    files = [path for pattern in included for path in ROOT.glob(pattern.lstrip("/"))]
    assert files and all((ROOT / pattern.lstrip("/")).exists() or "*" in pattern for pattern in included)
    folders = {path.name for path in files if path.is_dir()}
    assert not folders & {"tests", "scenarios", "benchmarks", "examples"}


# -- CONTRIBUTING


def named_files(text: str) -> Iterator[str]:
    """Paths, modules and targets of make that the text names in backticks."""
    for code in re.findall(r"`([^`\n]+)`", text):
        for word in code.split():
            if "/" in word or re.search(r"\.(py|md|csv|toml)$", word):
                yield word.strip(".,")
        if module := re.match(r"python -m ([\w.]+)", code):
            yield module[1].replace(".", "/")


def test_what_contributing_names_exists():
    names = list(named_files(read("CONTRIBUTING.md")))
    assert len(names) > 15
    for name in names:
        if PLACEHOLDER.search(name):
            pattern = PLACEHOLDER.sub("*", name)
            assert any(ROOT.glob(pattern)), f"nothing is like {name}"
        else:
            places = (ROOT / name, ROOT / f"{name}.py", ROOT / "tests" / "data" / name)
            assert any(place.exists() for place in places), f"CONTRIBUTING.md names {name}, which does not exist"


def test_a_missing_file_would_be_noticed():
    names = set(named_files("Change `gpuprof/data/gpus.csv`, then `python -m benchmarks.gpus_page` in `make test`."))
    assert names == {"gpuprof/data/gpus.csv", "benchmarks/gpus_page"}


@pytest.mark.parametrize("what", ["finding", "GPU", "oddity"])
def test_contributing_says_how_to_add(what: str):
    assert re.search(rf"^## Add an? {what}", read("CONTRIBUTING.md"), re.MULTILINE)


def test_commands_of_make_exist():
    makefile = read("Makefile")
    targets = {name for line in re.findall(r"^([\w ]+):", makefile, re.MULTILINE) for name in line.split()}
    named = set(re.findall(r"`make (\w+)", read("CONTRIBUTING.md") + read("README.md")))
    assert named and named <= targets


# -- the site


class _Loader(yaml.SafeLoader):
    """Reads MkDocs' additions to YAML as text."""


_Loader.add_constructor("!ENV", lambda loader, node: loader.construct_sequence(node))
_Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, suffix, node: suffix)


def pages_of(nav: Any) -> Iterator[str]:
    """The files in a navigation."""
    if isinstance(nav, str):
        yield nav
    for entry in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from pages_of(entry)


def test_every_page_is_in_the_navigation_once():
    nav = Counter(pages_of(yaml.load(read("mkdocs.yml"), _Loader)["nav"]))
    there = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").glob("*.md")}
    assert set(nav) == there | GENERATED | {"findings/README.md"} and set(nav.values()) == {1}


def test_what_the_reference_documents_is_there():
    from importlib import import_module

    named = re.findall(r"^::: ([\w.]+)$", read("docs/api.md"), re.MULTILINE)
    public = {f"gpuprof.{name}" for name in gpuprof.__all__} - {
        "gpuprof.__version__",
        "gpuprof.charts",
        "gpuprof.Trace",
    }
    assert public <= set(named)
    for name in named:
        module, _, attribute = name.rpartition(".")
        assert getattr(import_module(module), attribute).__doc__, f"{name} has no docstring"


# -- workflows and forms


def steps_of(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job["steps"]


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.stem)
def test_workflows_and_forms_are_well_formed(path: Path):
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.parent.name == "workflows":
        assert found["permissions"] and all("uses" in step or "run" in step for step in steps_of(found))
    elif path.parent.name == "ISSUE_TEMPLATE" and path.stem != "config":
        assert found["name"] and found["description"]
        fields = [part["id"] for part in found["body"] if part["type"] != "markdown"]
        assert fields and len(set(fields)) == len(fields)


def test_workflows_lint_test_and_build_the_package_and_the_site():
    ci, site, slow = (
        "\n".join(str(step.get("run", "")) for step in steps_of(yaml.safe_load(read(f".github/workflows/{name}.yml"))))
        for name in ("ci", "docs", "slow")
    )
    for command in ("make lint", "make test", "python -m build", "gpuprof demo"):
        assert command in ci
    assert "mkdocs build --strict" in site
    assert "make slow" in slow, "what the quick run leaves out runs somewhere"


@pytest.mark.parametrize("name", ["docs/hooks.py", "docs/picture.py", "examples/finetune_lora.py"])
def test_what_lies_outside_the_package_imports_what_is_there(name: str):
    """This code runs only where the site is built, or on a GPU."""
    for node in ast.walk(ast.parse(read(name))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("gpuprof", "scenarios"):
            module = import_module(node.module or "")
            for alias in node.names:
                there = hasattr(module, alias.name) or find_spec(f"{node.module}.{alias.name}") is not None
                assert there, f"{name} imports {alias.name}, which {node.module} lacks"
