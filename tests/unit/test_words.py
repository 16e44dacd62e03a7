"""Plain words: docstrings begin with a verb or a noun phrase, and no text uses a phrase that has a standard term.

See "How to write" in CONTRIBUTING.md.
"""

import ast
import re
from pathlib import Path

import pytest

from support.paths import ROOT

CODE = [path for folder in ("ooc_pegasos", "readers", "scripts") for path in sorted((ROOT / folder).rglob("*.py"))]
TESTS = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path != Path(__file__)]
TEXTS = [*CODE, *TESTS, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile"))]
TEXTS += [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "configs").glob("*")), *ROOT.glob("notebooks/*.ipynb")]
BANNED = {
    r"\b(kept|keeps?|keeping) (\w+ )?apart\b": "holdout",
    r"\bloss apart\b|\brows apart\b": "holdout loss, holdout rows",
    r"\bwas killed goes on\b|\btaken? up again\b": "is resumed",
    r"\bhas seen enough\b": "broken pipe",
    r"\bhashed to (2\S+ )?places\b": "buckets",
    r"\btext falls into\b": "n-grams, tokens",
    r"\bcoming down to\b|\bknows? nothing of lambda\b": "lambda continuation",
    r"\b(rows|row) (that )?(sleeps?|asleep)\b|\bnaps?\b|\bwakes?\b": "inactive rows, re-activation",
    r"\bfar from changing\b": "inactive",
    r"\bleaves? the pass\b": "is finished",
    r"\bis no UTF-8\b": "invalid UTF-8",
    r"\bmistake in oocpeg\b": "internal error",
    r"\b(int|float|str|text|number) or nothing\b": "or None",
    r"\bplaces in a table\b": "dictionary-coded values",
    r"\b(is|are|was|were|be|been) told\b|(?<!\.)\btells?\b": "reported, prints, returns",
    r"\bmeanwhile\b": "concurrently, overlapped with",
    r"\bpresents? (a |the |all )?rows?\b": "process rows",
    r"\bcrew\b": "worker pool",
    r"\bgolden sets?\b": "reference set",
    r"\bmade anew\b|\badded? up anew\b": "recomputed",
    r"\bgo(es|ing)? on by\b": "continues with",
    r"\b(all )?classes at once\b": "joint multiclass losses",
    r"\bside by side\b": "concurrently, in a panel",
    r"\btwice the precision\b": "double-double precision",
    r"\bwhat (is|was) known of\b|\bwhat (they|it|each) knows? of\b": "state, statistics",
    r"\bwant of memory\b": "out of memory",
    r"\blet(s|ting)? go of\b": "release, close",
    r"\bas (it|they) stands?\b": "unchanged, in order",
    r"\blooked at\b": "checked, read",
    r"\bheld (fixed|at)\b": "fixed",
    r"\btold from the rest\b": "one versus rest",
    r"\bwhoever\b|\bnobody (asks|waits|wants|presents)\b": "name the subject",
}


def docstrings(tree: ast.AST):
    """The docstrings of modules, classes and functions, and the strings that describe a constant or a field."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_begin_with_a_verb_or_a_noun(path):
    questions = re.compile(r"(What|Whether|How|Where|Which|Who|Whom|Whose|When)\b")
    assert [(line, text) for line, text in docstrings(ast.parse(path.read_text())) if questions.match(text)] == []


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_standard_terms(path):
    text = re.sub(r"\n[ #]*", " ", path.read_text())
    found = {match[0]: use for banned, use in BANNED.items() for match in re.finditer(banned, text, re.IGNORECASE)}
    assert found == {}
