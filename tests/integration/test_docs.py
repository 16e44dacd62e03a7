"""Documentation is executed: every command, Python block and configuration of README.md, CONTRIBUTING.md and docs/.

Each page runs in a folder of its own, from example inputs and stores that are made once (`examples`). How blocks are
marked is described in CONTRIBUTING.md, "Documentation".
"""

import ast
import gzip
import math
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import typer

import ooc_pegasos.errors
from ooc_pegasos import ConvertConfig, OocPegasosError, Store, TrainConfig, convert, exit_codes, train
from ooc_pegasos.cli.main import app
from ooc_pegasos.config import load_toml
from ooc_pegasos.formats import FORMATS
from ooc_pegasos.readers import registry
from support.clusters import workers_that_never_pause
from support.nights import job_rows
from support.paths import ROOT
from support.rows import random_rows, svmlight_text

PAGES = {path.name: path.read_text() for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md")}
PAGES |= {f"docs/{path.name}": path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
LANGUAGES = {
    "console": "commands after `$`, run; lines after a command are its output",
    "python": "run, all blocks of a page in one namespace",
    "toml": "parsed; a block that begins with `# name.toml` is written to that file before the page runs",
    "text": "the output of the Python block before it, or not run",
    "sh": "set-up commands, not run: targets and scripts must exist",
    "ini": "not run",
    "bash": "run by a test of its own",
}
RUN_ELSEWHERE = {"docs/security.md": "integration/test_security.py"}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
MEASURED = re.compile(r" ?(?:seconds|s|ms|[kMG]B|GB/s)\b")
"""Units of numbers that are not the same in each run."""


# ---- inputs ----


def made_events(rows=400, seed=1):
    rng = np.random.default_rng(seed)
    price, city = rng.gamma(2, 20, rows).round(2), rng.choice(["Rome", "Oslo", "Lima"], rows)
    clicked = (1 - price / 40 + 2 * (city == "Oslo") + rng.logistic(size=rows) > 0).astype(int)
    title = [" ".join(rng.choice(["sale", "news", "shoes", "garden", "music"], 3)) for _ in range(rows)]
    return pa.table({"clicked": clicked, "price": price, "city": city, "title": title, "user": np.arange(rows)})


def write_inputs(folder: Path) -> None:
    """Write the inputs that the documentation names."""
    for seed, name in enumerate(["day-1", "day-2", "tomorrow"]):
        (folder / f"{name}.svm.gz").write_bytes(gzip.compress(svmlight_text(*job_rows(400, seed)).encode()))
    (folder / "clicks.svm").write_text(svmlight_text(*job_rows(400, 9)))
    (folder / "golden.svm").write_text(svmlight_text(*job_rows(400, 10)))
    (folder / "weights.txt").write_text("0.5\n2\n" * 400)
    pyarrow.parquet.write_table(made_events(), folder / "events.parquet")
    pyarrow.csv.write_csv(made_events(seed=2), folder / "tomorrow.csv")
    for name, word in ("spam", "win"), ("ham", "hello"):
        (folder / "mails" / name).mkdir(parents=True)
        for number in range(5):
            (folder / "mails" / name / f"{number}.txt").write_text(f"{word} {word} number {number}")
    titles = [f"{'spam' if at % 3 else 'ham'}\t{'free money' if at % 3 else 'dinner'} {at}\n" for at in range(60)]
    (folder / "titles.txt").write_text("".join(titles))
    (folder / "docs.txt").write_text("".join(title.partition("\t")[2] for title in titles))
    (folder / "topics.txt").write_text("".join(title.partition("\t")[0] + "\n" for title in titles))
    (folder / "rows.vw").write_text("1 'a| price:2 city_Rome\n-1 'b| price:1.5 city_Oslo\n" * 20)


@pytest.fixture(scope="session")
def examples(tmp_path_factory):
    """The inputs, and stores and a model made of them, for all pages: each works on a copy."""
    folder = tmp_path_factory.mktemp("examples")
    write_inputs(folder)
    convert([str(ROOT / "ooc_pegasos" / "data" / "a9a.svm.xz")], folder / "a9a.store")
    convert([str(folder / f"day-{day}.svm.gz") for day in (1, 2)], folder / "clicks.store")
    train(Store.open(folder / "clicks.store"), TrainConfig(lam=1e-2)).model.save(folder / "clicks.model")
    return folder


@pytest.fixture
def folder(examples, tmp_path, monkeypatch):
    """A folder with all that is in `examples`, and the folders of this repository that pages name."""
    shutil.copytree(examples, tmp_path, dirs_exist_ok=True)
    for name in ("configs", "ooc_pegasos"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---- pages ----


@pytest.fixture
def run(oocpeg, capsys):
    """Run a command of a page; returns its exit code and what it prints."""

    def run(line):
        words = shlex.split(line)
        if words[0] != "oocpeg":
            assert words[0] in ("head", "mv"), f"{line}: pages run oocpeg, head and mv"
            done = subprocess.run(words, capture_output=True, text=True)
            return done.returncode, done.stdout
        if "--scheduler" in words:  # its workers are processes: they must not be started by that of the tests
            done = oocpeg(*words[1:], code=None)
            return done.returncode, done.stdout
        capsys.readouterr()
        try:
            app(words[1:])
            code = 0
        except SystemExit as end:
            code = end.code or 0
        except OocPegasosError as error:
            print(f"error: {error}")
            code = error.exit_code
        return code, capsys.readouterr().out

    return run


def commands_of(block):
    """(command, lines shown after it) of a console block."""
    found = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def is_alike(shown, printed):
    """True if lines differ in nothing but spaces, what `...` leaves out, measured times, and last digits of numbers."""
    if not shown or shown[0] == "...":
        rest = range(len(printed) + 1) if shown else [len(printed)]
        return not printed if not shown else any(is_alike(shown[1:], printed[start:]) for start in rest)
    return bool(printed) and is_alike_line(shown[0], printed[0]) and is_alike(shown[1:], printed[1:])


def is_alike_line(shown, printed):
    texts, other_texts = NUMBER.split(" ".join(shown.split())), NUMBER.split(" ".join(printed.split()))
    numbers = zip(NUMBER.findall(shown), NUMBER.findall(printed), texts[1:], strict=False)
    return texts == other_texts and all(
        MEASURED.match(unit) or math.isclose(*(float(number.replace(",", "")) for number in pair), rel_tol=0.01)
        for *pair, unit in numbers
    )


def blocks_of(text):
    """(language, content, the language of the block before it if nothing stands between them) of each block."""
    found, end, before = [], -1, ""
    for fence in FENCE.finditer(text):
        adjacent = before if end >= 0 and not text[end : fence.start()].strip() else ""
        found.append((fence[1], fence[2], adjacent))
        end, before = fence.end(), fence[1]
    return found


def remove_outputs(text, folder):
    """Remove the examples that a page makes itself."""
    for name in re.findall(r"^\$ oocpeg .*?-o (\S+)", text, re.MULTILINE):
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
        (folder / name).unlink(missing_ok=True)


def write_configurations(text, folder):
    for language, block, _ in blocks_of(text):
        if language == "toml":
            tomllib.loads(block)
            if name := re.match(r"# (\S+\.toml)\n", block):
                (folder / name[1]).write_text(block)


@pytest.fixture
def formats():
    """Formats that a page registers are removed after the page."""
    known = set(FORMATS)
    yield
    for name in set(FORMATS) - known:
        registry.unregister(name)


@pytest.mark.usefixtures("formats")
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[] if page == "README.md" else pytest.mark.slow) for page in PAGES]
)
def test_a_page_does_what_it_shows(page, folder, run, capsys, monkeypatch):
    text = PAGES[page]
    remove_outputs(text, folder)
    write_configurations(text, folder)
    if page in RUN_ELSEWHERE:
        return
    stub = ModuleType("airflow.providers.standard.operators.bash")
    stub.BashOperator = SimpleNamespace
    monkeypatch.setitem(sys.modules, stub.__name__, stub)
    namespace, printed, code = {"__name__": "page"}, "", 0
    for language, block, before in blocks_of(text):
        if language == "console":
            for command, shown in commands_of(block):
                if command == "echo $?":
                    assert shown == [str(code)], f"{page}: {command}"
                    continue
                code, out = run(command)
                assert code == 0 or "$ echo $?" in block, f"{page}: {command}: exit code {code}\n{out}"
                assert not shown or is_alike(shown, out.splitlines()), f"{page}: {command}\n{out}"
        elif language == "python":
            capsys.readouterr()
            with workers_that_never_pause():
                exec(compile(ast.parse(block), f"<{page}>", "exec"), namespace)
            printed = capsys.readouterr().out
        elif language == "text" and before == "python":
            assert is_alike(block.splitlines(), printed.splitlines()), f"{page}: Python prints\n{printed}"


@pytest.mark.parametrize("page", PAGES)
def test_blocks_have_a_language_that_is_checked(page):
    text, blocks = PAGES[page], blocks_of(PAGES[page])
    assert {language for language, _, _ in blocks} <= set(LANGUAGES)
    assert len(re.findall("^ *```", text, re.MULTILINE)) == 2 * len(blocks), "a fence that is not recognised"
    assert not re.search(r"\n\n {4}\S", FENCE.sub("", text)), "an indented block"
    for language, block, _ in blocks:
        if language == "sh":
            assert all((ROOT / script).exists() for script in re.findall(r"\bscripts/\w+\.py", block))
        if language == "bash":
            assert page in (ROOT / "tests" / RUN_ELSEWHERE[page]).read_text()


def test_the_comparison_of_output_sees_differences():
    assert is_alike(["gap 0.869 %, 0.10 seconds", "..."], ["gap  0.8691 %, 3.5 seconds", "more", "and more"])
    for other in ("gap 0.9 %, 0.10 seconds", "Gap 0.869 %, 0.10 seconds", "gap 0.869 %, 0.10 minutes", ""):
        assert not is_alike(["gap 0.869 %, 0.10 seconds"], [other])
    assert not is_alike(["one"], ["one", "two"])
    assert not is_alike(["one", "two"], ["one"])


# ---- what pages name ----


def slug(heading):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_links_and_paths_lead_somewhere(page):
    here = (ROOT / page).parent
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", PAGES[page]):
        if target.startswith("http"):
            continue
        path = (here / target).resolve() if target else ROOT / page
        name = str(path.relative_to(ROOT))
        assert path.exists(), f"{page}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", FENCE.sub("", PAGES[name]), re.MULTILINE)
            assert anchor in map(slug, headings), f"{page}: {target}#{anchor}"
    for name in re.findall(r"`((?:ooc_pegasos|readers|tests|scripts|configs|notebooks|docs)/[\w./*-]*)`", PAGES[page]):
        assert list(ROOT.glob(name.rstrip("/"))), f"{page}: {name}"


def options():
    """Names of each option of each command."""
    root = typer.main.get_command(app)
    parameters = [parameter for command in (root, *root.commands.values()) for parameter in command.params]
    names = [{*parameter.opts, *parameter.secondary_opts} for parameter in parameters]
    return [option for option in names if any(name.startswith("-") for name in option)]


def test_options_that_pages_name_exist_and_all_are_named():
    other_programs = re.compile(r"^```(?:sh|bash|ini)\n.*?^```$|`(?:scripts/|dask )[^`]*`", re.MULTILINE | re.DOTALL)
    option = re.compile(r"(?<![\w-])--?[a-zA-Z][a-z0-9-]*")
    named = {page: set(option.findall(other_programs.sub("", text))) for page, text in PAGES.items()}
    known = {"--help"}.union(*options())
    for page, names in named.items():
        assert {name for name in names if name.startswith("--")} <= known, page
    of_all_commands = {"--help", "--version", "--install-completion", "--show-completion"}
    for names in options():
        assert names & (set.union(*named.values()) | of_all_commands), names


def test_make_targets_that_pages_name_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = {target for text in PAGES.values() for target in re.findall(r"(?:`|^)make ([\w-]+)", text, re.MULTILINE)}
    assert {"demo", "test"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_exit_code_is_described():
    page = PAGES["docs/exit-codes.md"]
    described = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    codes = {value for name, value in vars(exit_codes).items() if name.isupper()}
    kinds = [kind for kind in vars(ooc_pegasos.errors).values() if isinstance(kind, type)]
    assert {kind.exit_code for kind in kinds if issubclass(kind, OocPegasosError)} <= codes
    assert described == codes - {exit_codes.INTERNAL_ERROR} | {128 + signal.SIGALRM}


def test_equations_that_the_code_cites_are_on_the_page_of_the_certificate():
    blocks = "".join(block for language, block, _ in blocks_of(PAGES["docs/certificate.md"]) if language == "text")
    numbers = re.findall(r"\((\d+[a-z]?)\)$", blocks, re.MULTILINE)
    assert sorted(set(numbers)) == sorted(numbers)
    code = "".join(path.read_text() for path in (ROOT / "ooc_pegasos").glob("**/*.py"))
    cited = {
        number
        for pair in re.findall(r"equations? \(?(\d+[a-z]?)\)?(?: to \((\d+))?", code)
        for number in pair
        if number
    }
    assert {"2", "2p", "3", "5", "7", "9", "11"} <= cited <= set(numbers)


def test_the_front_page_fits_a_screen():
    assert len(PAGES["README.md"].splitlines()) <= 110
    assert len(PAGES["README.md"].encode()) < 6000


def test_schedulers_call_the_command_by_its_absolute_path():
    page = PAGES["docs/jobs.md"]
    for line in (r"^[\d *]+ cd \S+ && (\S+) run .*$", r"^ExecStart=(\S+) run .*$"):
        assert re.findall(line, page, re.MULTILINE) == ["/usr/local/bin/oocpeg"]


# ---- configurations ----


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("convert*.toml")), ids=lambda path: path.name)
def test_examples_of_configurations(path, tmp_path, oocpeg):
    load_toml(ConvertConfig, path)
    labels = {"convert.toml": [0, 1], "convert-regression.toml": [-1.5, 2.25]}[path.name]
    (tmp_path / "in.svm").write_text("".join(f"{label} 1:1 2:{i}\n" for i, label in enumerate(labels)))
    oocpeg("convert", "in.svm", "-o", "store", "--config", path)
    store = Store.open(tmp_path / "store")
    assert store.rows == 2
    assert store.manifest.labels.task == {"convert.toml": "binary", "convert-regression.toml": "regression"}[path.name]


def inputs_for(recipe: str, folder):
    """A few rows that suit a recipe, and how many features they have."""
    rng = np.random.default_rng(2)
    if recipe == "recipe-criteo":
        lines = ["\t".join([str(i % 2), *map(str, rng.integers(0, 9, 13)), *["", "a1b2"] * 13]) for i in range(20)]
        (folder / "day_0.tsv").write_text("\n".join(lines) + "\n")
        return folder / "day_0.tsv", 1 << 24
    if recipe == "recipe-texts":
        return folder / "mails", 1 << 22
    events = {
        "clicked": rng.integers(0, 2, 50),
        "importance": rng.random(50) + 0.5,
        "user": np.arange(50),
        "price": rng.random(50),
        "age_years": rng.integers(20, 60, 50),
        "city": ["Rome", "Oslo"] * 25,
        "device_kind": ["phone"] * 50,
        "title": ["a fine day", "rain again"] * 25,
        "unused": np.zeros(50),
    }
    pyarrow.parquet.write_table(pa.table(events), folder / "made.parquet")
    return folder / "made.parquet", 1 << 22


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("recipe*.toml")), ids=lambda path: path.stem)
def test_examples_of_recipes(path, folder, run):
    config = ConvertConfig(**load_toml(ConvertConfig, path))
    source, features = inputs_for(path.stem, folder)
    store = convert([str(source)], folder / "made.store", config)
    assert store.features == features
    assert store.nonzeros > store.rows
    assert run(f"oocpeg convert {source} -o again.store --recipe {path}")[0] == 0
    assert Store.open(folder / "again.store").manifest.chunks == store.manifest.chunks


@pytest.mark.slow
def test_the_example_of_a_job(tmp_path, oocpeg):
    shutil.copy(ROOT / "configs" / "job.toml", tmp_path)
    (tmp_path / "incoming").mkdir()
    for seed, name in enumerate(("incoming/day-1.svm.gz", "incoming/day-2.svm.gz")):
        (tmp_path / name).write_bytes(gzip.compress(svmlight_text(*random_rows(200, 60, seed)).encode()))
    (tmp_path / "golden.svm").write_text(svmlight_text(*random_rows(100, 60, 5)))
    done = oocpeg("run", "job.toml", code=None)
    assert done.returncode in (0, 7), done.stderr  # labels are random: the gate may refuse
    assert "400 rows appended" in done.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("train*.toml")), ids=lambda path: path.name)
def test_examples_of_training_configurations(path, folder, run):
    load_toml(TrainConfig, path)
    assert run(f"oocpeg train clicks.store -o configured.model --config {path} --max-epochs 2")[0] in (0, 4)


# ---- promises ----


def test_tests_named_in_the_documentation_exist():
    page = PAGES["docs/reliability.md"]
    named = re.findall(r"`(\w+\.py)::(\w+)`", page)
    assert len(named) > 20
    for file, name in named:
        (path,) = (ROOT / "tests").rglob(file)
        assert re.search(rf"^def {name}\(", path.read_text(), re.MULTILINE), f"{file}::{name}"
    assert not re.search(r"\|\n\n\|", page)  # an empty line would end the table
    for row in re.findall(r"^\|(.+)\|$", page, re.MULTILINE):
        _promise, check, figure = (cell.strip() for cell in row.split("|"))
        assert figure == "---" or figure == "figure" or re.search(r"\d", figure), row
        assert check in ("checked by", "---") or "::" in check, row
    faults = "".join(path.read_text() for path in (ROOT / "tests" / "faults").glob("test_*.py"))
    for name in re.findall(r"^def (test_\w+)\(", faults, re.MULTILINE):
        assert name in page, f"{name} is not in docs/reliability.md"


def test_no_absolute_paths_of_machines():
    for path in ROOT.rglob("*"):
        if path.suffix in (".py", ".md", ".toml", ".txt") and ".venv" not in path.parts:
            assert str(ROOT) not in path.read_text(errors="replace") or str(ROOT) == "/", path
