"""The names that a source file defines, imports and uses; each text is parsed once for all tests that ask."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CodeNames:
    """The names in one file."""

    imports: list[tuple[str | None, int, list[tuple[str, str]]]] = field(default_factory=list)
    """Module (None for `import a`), number of dots, and names of each import, each with the name that it gets here."""
    defined: dict[str, int] = field(default_factory=dict)
    """Functions, classes and variables of the module, with their lines."""
    classes: list[str] = field(default_factory=list)
    """Classes of the module."""
    methods: dict[str, int] = field(default_factory=dict)
    """Methods of its classes that extend no class of a library, with their lines: `Class.method`."""
    loaded: Counter[str] = field(default_factory=Counter)
    """Names that are read."""
    attributes: set[tuple[str, str]] = field(default_factory=set)
    """(name, attribute) of `name.attribute`; an empty name where that is an expression."""
    texts: set[str] = field(default_factory=set)
    """Texts without spaces: a module may be asked for a name by its text."""
    endings: set[str] = field(default_factory=set)
    """What f-strings end with: `f"{kind}_text"` asks for names with that ending."""


def code_names(path: Path) -> CodeNames:
    """The names in a file."""
    return _names_in(path.read_text(encoding="utf-8"))


@cache
def _names_in(source: str) -> CodeNames:
    tree, found = ast.parse(source), CodeNames()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                found.loaded[name] += 1
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                found.attributes.add((name, attribute))
            case ast.Attribute(attr=attribute):
                found.attributes.add(("", attribute))
            case ast.Constant(value=str(text)) if " " not in text:
                found.texts.add(text)
            case ast.JoinedStr(values=[*_, ast.Constant(value=str(text))]):
                found.endings.add(text)
            case ast.Import(names=names):
                found.imports.append((None, 0, [(one.name, one.asname or one.name) for one in names]))
            case ast.ImportFrom(module=module, level=level, names=names):
                found.imports.append((module, level, [(one.name, one.asname or one.name) for one in names]))
    foreign = {
        name
        for module, level, names in found.imports
        if not level and (module or "").partition(".")[0] not in ("gpuprof", "typing")
        for _, name in names
    }
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.defined[name] = node.lineno
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found.defined[name] = node.lineno
        if isinstance(node, ast.ClassDef):
            found.classes.append(node.name)
        if isinstance(node, ast.ClassDef) and not {_root(base) for base in node.bases} & foreign:
            methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
            found.methods.update({f"{node.name}.{one.name}": one.lineno for one in methods})
    return found


def _root(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
