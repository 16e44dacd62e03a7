"""The import rule of docs/architecture.md: each folder imports only what is below it, also within functions.

Imports under `if TYPE_CHECKING:` do not count: they do not happen when the program runs.
"""

import ast
import re

import pytest

from support.paths import ROOT

PACKAGE = ROOT / "ooc_pegasos"
MAY_IMPORT = {
    "compiled": "",
    "util": "compiled",
    "config": "util",
    "reporting": "util",
    "store": "compiled, config, reporting, util",
    "readers": "compiled, config, store, util",
    "conversion": "compiled, config, readers, reporting, store, util",
    "loading": "compiled, store, util",
    "objective": "compiled, config, loading, store, util",
    "scoring": "compiled, config, loading, objective, readers, reporting, store, util",
    "solvers": "compiled, config, loading, objective, store, util",
    "proof": "compiled, config, scoring, store, util",
    "training": "compiled, config, loading, objective, proof, reporting, scoring, solvers, store, util",
    "distributed": "all but cli, jobs",
    "jobs": "all but cli, distributed",
    "cli": "all",
}
"""From the bottom to the top; each name stands for a folder, or for a module of the package itself."""
EXCEPTIONS = {("store/store.py", "conversion"), ("scoring/in_memory.py", "conversion")}
"""Store.from_arrow, from_scipy and from_dask are called on Store; tables in memory are read as they convert them."""
FOR_ALL = (
    "aliases",
    "errors",
    "exit_codes",
    "options",
    "option_texts",
    "declared_labels",
    "registry",
    "formats",
    "algorithms",
)
"""Modules of the package itself that all may import, and that import only each other."""
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "__main__.py"]
FILES += sorted((PACKAGE / "readers").glob("*.py"))  # rglob does not follow the link


def imported(tree: ast.AST):
    """Imports of a file from the package: names of folders, of its modules, or of what is in its `__init__`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[1] for name in node.names if name.name.startswith("ooc_pegasos."))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            package, _, rest = (node.module or "").partition(".")
            if package == "ooc_pegasos":
                yield from [rest.split(".")[0]] if rest else (name.name for name in node.names)
        yield from imported(node)


def allowed(folder: str) -> set[str]:
    if folder in FOR_ALL:
        return set(FOR_ALL)
    text = MAY_IMPORT[folder]
    named = set(re.findall(r"\w+", text.removeprefix("all but ")))
    return (set(MAY_IMPORT) - named if text.startswith("all") else named) | {folder, *FOR_ALL, "__version__"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_downward(path):
    inside = path.relative_to(PACKAGE)
    folder = inside.parts[0].removesuffix(".py")
    found = set(imported(ast.parse(path.read_text())))
    if folder != "__init__":  # the public names
        assert {name for name in found - allowed(folder) if (str(inside), name) not in EXCEPTIONS} == set()


def test_the_rule_has_no_cycles_and_says_what_every_folder_says():
    order = list(MAY_IMPORT)
    for number, folder in enumerate(order):
        assert allowed(folder) & set(order) <= set(order[: number + 1]), folder
        if folder != "config":
            text = (PACKAGE / folder / "__init__.py").read_text()
            assert f"\nMay import: {MAY_IMPORT[folder] or 'nothing'}.\n" in text, folder
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)/` \|.*\| ([^|]+) \|$", page, re.MULTILINE))
    assert rows == {name: text or "nothing" for name, text in MAY_IMPORT.items() if name != "config"}
    assert set(rows) == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
