"""What the README and the examples say is run."""

import re
import shlex
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from conftest import ROOT, random_rows, svmlight_text

from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert
from ooc_pegasos.config import load_toml

README = (ROOT / "README.md").read_text()


@pytest.fixture
def clicks(tmp_path):
    import gzip

    for seed, name in enumerate(["day-1", "day-2", "tomorrow"]):
        text = svmlight_text(*random_rows(200, 60, seed))
        (tmp_path / f"{name}.svm.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "weights.txt").write_text("0.5\n2\n" * 200)
    (tmp_path / "clicks.svm").write_text(svmlight_text(*random_rows(200, 60, 9)))
    rng = np.random.default_rng(1)
    events = pa.table(
        {
            "clicked": rng.integers(0, 2, 200),
            "price": rng.random(200),
            "city": rng.choice(["Rome", "Oslo", "Lima"], 200),
            "user": np.arange(200),
        }
    )
    pyarrow.parquet.write_table(events, tmp_path / "events.parquet")
    pyarrow.csv.write_csv(events, tmp_path / "tomorrow.csv")
    for folder, word in ("spam", "win"), ("ham", "hello"):
        (tmp_path / "mails" / folder).mkdir(parents=True)
        for number in range(5):
            (tmp_path / "mails" / folder / f"{number}.txt").write_text(f"{word} {word} number {number}")
    (tmp_path / "nightly.toml").write_text('store = "nightly.store"\nmodels = "models"\ninputs = ["day-*.svm.gz"]\n')
    (tmp_path / "rows.vw").write_text("1 'a| price:2 city_Rome\n-1 'b| price:1.5 city_Oslo\n" * 20)
    return tmp_path


def test_every_command_of_the_readme_runs(oocpeg, clicks):
    commands = re.findall(r"^\$ oocpeg (.+)$", README, re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        oocpeg(*shlex.split(command))


def test_the_python_of_the_readme_runs(clicks, monkeypatch, capsys):
    monkeypatch.chdir(clicks)
    for code in re.findall(r"```python\n(.+?)```", README, re.DOTALL):
        exec(code, {})
    assert "gap8" in capsys.readouterr().out


def test_the_map_of_the_house_is_complete():
    house = README[README.index("## Map of the house") : README.index("## Design notes")]
    files = [*(ROOT / "ooc_pegasos").glob("**/*.py"), *(ROOT / "readers").glob("*.py")]
    for path in files:
        assert path.name.startswith("__") or re.search(rf"\b{re.escape(path.name)}\b", house), path.name
    for name in re.findall(r"\b(\w+\.py)\b", house):
        assert any(path.name == name for path in files), name


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
    """A little of what a recipe is for."""
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


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("recipe*.toml")), ids=lambda path: path.stem)
def test_examples_of_recipes(path, clicks, oocpeg):
    config = ConvertConfig(**load_toml(ConvertConfig, path))
    source, features = inputs_for(path.stem, clicks)
    store = convert([str(source)], clicks / "made.store", config)
    assert store.features == features
    assert store.nonzeros > store.rows
    oocpeg("convert", source, "-o", "again.store", "--recipe", path)
    assert Store.open(clicks / "again.store").manifest.chunks == store.manifest.chunks


def test_the_example_of_a_job(clicks, oocpeg):
    shutil.copy(ROOT / "configs" / "job.toml", clicks)
    (clicks / "incoming").mkdir()
    for name in ("day-1", "day-2"):
        shutil.move(clicks / f"{name}.svm.gz", clicks / "incoming")
    (clicks / "golden.svm").write_text(svmlight_text(*random_rows(100, 60, 5)))
    done = oocpeg("run", "job.toml", code=None)
    assert done.returncode in (0, 7), done.stderr  # labels are random: the gate may refuse
    assert "200 rows appended" in done.stdout or "400 rows appended" in done.stdout


def test_who_calls_a_job_with_few_places_to_look_in_names_the_whole_path():
    page = (ROOT / "docs" / "jobs.md").read_text()
    for line in (r"^[\d *]+ cd \S+ && (\S+) run .*$", r"^ExecStart=(\S+) run .*$"):
        assert re.findall(line, page, re.MULTILINE) == ["/usr/local/bin/oocpeg"]


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("train*.toml")), ids=lambda path: path.name)
def test_examples_of_training_configurations(path, clicks, oocpeg):
    load_toml(TrainConfig, path)
    convert([str(clicks / "clicks.svm")], clicks / "store")
    done = oocpeg("train", "store", "-o", "model", "--config", path, "--max-epochs", 2, code=None)
    assert done.returncode in (0, 4), done.stderr


def test_every_promise_has_its_test():
    page = (ROOT / "docs" / "reliability.md").read_text()
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


def test_nothing_names_a_path_of_somebodys_machine():
    for path in ROOT.rglob("*"):
        if path.suffix in (".py", ".md", ".toml", ".txt") and ".venv" not in path.parts:
            assert str(ROOT) not in path.read_text(errors="replace") or str(ROOT) == "/", path


def test_make_targets_are_those_the_readme_names():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make (\w+)`?", README):
        if target not in ("a",):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE) or f".PHONY: {target}" in makefile, target
    assert shutil.which("make") is not None
