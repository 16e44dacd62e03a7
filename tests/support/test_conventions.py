"""Conventions of the tests themselves (CONTRIBUTING.md)."""

import ast
from collections import defaultdict

import pytest

from support.paths import ROOT

FILES = sorted((ROOT / "tests").rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in FILES}
REPLACING = {"setattr", "object"}
"""Last names of functions that replace an attribute: `monkeypatch.setattr`, `patch.object`."""


def is_private(name: str) -> bool:
    return name.rpartition(".")[2].startswith("_") and not name.endswith("__version__")


def test_helpers_have_names_of_their_own():
    defined = defaultdict(list)
    for path, tree in TREES.items():
        for node in tree.body:
            is_helper = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("test_")
            if is_helper and not any("fixture" in ast.unparse(one) for one in node.decorator_list):
                defined[node.name].append(path.name)
    assert {name: files for name, files in defined.items() if len(files) > 1} == {}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_test_imports_another_and_none_replaces_private_names(path):
    tests = {one.stem for one in FILES if one.name.startswith("test_")}
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").rpartition(".")[2] not in tests, node.lineno
        if isinstance(node, ast.Import):
            assert not tests & {one.name for one in node.names}, node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in REPLACING:
            names = [one.value for one in node.args[:2] if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            assert not any(map(is_private, names)), node.lineno
