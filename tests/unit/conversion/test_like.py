"""Stores whose rows are made as another store has them (`--like`)."""

import shutil

import numpy as np
import pandas as pd
import pytest

from ooc_pegasos import ConvertConfig, Existing, Store, TrainConfig, convert, train, verify
from ooc_pegasos.conversion import pipeline
from ooc_pegasos.conversion.preview import preview
from ooc_pegasos.errors import CorruptFileError, InputError, UsageError
from ooc_pegasos.readers import survey
from ooc_pegasos.scoring.evaluate import evaluate, predict
from ooc_pegasos.store.vocabulary import of_store
from support.file_bytes import folder_bytes

WORDS = ["red", "green", "blue", "old", "new", "small", "large", "first", "last"]
TABLES = {
    "scaled": {"numeric": ("x", "z"), "categorical": ("c",), "id": "who", "weight": "w"},
    "by all rows": {"numeric": ("x", "z"), "categorical": ("c",), "standardize": True},
    "numbers": {"numeric": ("x", "z"), "nulls": "mark", "log1p": True},
    "as they are": {"numeric": ("x",), "categorical": ("c",), "standardize": False, "feature_names": 50},
    "unit rows": {"numeric": ("x",), "categorical": ("c",), "normalize": "l2", "values": "float16"},
    "words": {"text": ("t",), "ngrams": "1:2"},
    "dictionary": {"numeric": ("x",), "text": ("t",), "dictionary": 12},
    "idf": {"text": ("t",), "idf": True},
    "both": {"categorical": ("c",), "text": ("t",), "dictionary": 14, "idf": True, "normalize": "l2"},
}


def frame(rows, seed=0, center=0.0, labels=("no", "yes")):
    rng = np.random.default_rng(seed)
    x = center + 3 * rng.standard_normal(rows)
    y = np.array(labels)[((x - center + rng.standard_normal(rows)) > 0).astype(int)]
    texts = [" ".join(rng.choice(WORDS[: 5 + 4 * seed], 4)) for _ in range(rows)]
    made = {"label": y, "x": x, "z": 100 * rng.standard_normal(rows), "c": rng.choice(["a", "b", f"c{seed}"], rows)}
    made |= {"t": texts, "who": [f"p{i}" for i in range(rows)], "w": 1 + rng.integers(0, 3, rows)}
    found = pd.DataFrame(made)
    found.loc[::9, "x"] = np.nan
    return found


def files(folder):
    """A large and a small file, which would get other scales, hashes and dictionaries."""
    large, small = folder / "large.csv", folder / "small.csv"
    frame(2000).to_csv(large, index=False)
    frame(150, 1, center=40.0).to_csv(small, index=False)
    return str(large), str(small)


def scores(model, data, out):
    predict(model, data, out)
    return pd.read_csv(out)["score"].tolist()


def has_left_nothing(folder):
    return not [path.name for path in folder.iterdir() if ".unfinished" in path.name]


FAST = ("scaled", "both")


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind not in FAST)) for kind in TABLES])
def test_a_model_of_one_store_is_evaluated_on_the_other(tmp_path, kind):
    """Scores are those of the file, bit by bit; without the option the store is refused."""
    large, small = files(tmp_path)
    options = {"label": "label", "shuffle": False, **TABLES[kind]}
    made = convert([large], tmp_path / "made", ConvertConfig(**options))
    model = train(made, TrainConfig(lam=0.01, bias="feature")).model
    like = convert([small], tmp_path / "like", ConvertConfig(like=str(made.path), shuffle=False))
    assert like.manifest.recipe == made.manifest.recipe
    assert like.features == made.features
    assert like.rows == 150
    assert verify(like).problems == verify(like).strays == []
    assert scores(model, like.path, tmp_path / "a.csv") == scores(model, small, tmp_path / "b.csv")
    assert len(set(scores(model, like.path, tmp_path / "a.csv"))) > 10
    assert evaluate(model, like.path) == evaluate(model, small)
    recipe = made.manifest.recipe
    assert of_store(like.path, like.manifest).serves_as(of_store(made.path, made.manifest), recipe)
    own = convert([small], tmp_path / "own", ConvertConfig(**options))
    with pytest.raises(InputError, match=r"convert it with like and the store of the model|give the files it was made"):
        evaluate(model, own.path)


def test_a_model_of_the_other_store_as_well(tmp_path):
    large, small = files(tmp_path)
    made = convert([large], tmp_path / "made", ConvertConfig(label="label"))
    like = convert([small], tmp_path / "like", ConvertConfig(like=str(made.path)))
    model = train(like, TrainConfig(lam=0.01)).model
    assert evaluate(model, made.path)["rows"] == 2000
    third = convert([small], tmp_path / "third", ConvertConfig(like=str(like.path)))
    assert third.manifest.recipe == made.manifest.recipe


def test_the_message_names_scales(tmp_path):
    large, small = files(tmp_path)
    config = {"label": "label", "numeric": ("x", "z"), "categorical": ("c",), "hash_bits": 10}
    made = convert([large], tmp_path / "made", ConvertConfig(**config))
    model = train(made, TrainConfig(lam=0.01)).model
    for standardize, told in ((None, "its own scales"), (False, "no scales")):
        own = convert([small], tmp_path / told, ConvertConfig(**config, standardize=standardize))
        told = f"own: made with {told} of x, z, the model's data with its own scales of x, z; convert it with like"
        with pytest.raises(InputError, match=told.removeprefix("own: ")):
            evaluate(model, own.path)


@pytest.mark.parametrize("base", ["0", "1"])
def test_svmlight_text(tmp_path, base):
    """Indices count from where they do in the store, also if the smallest index is another; more features are kept."""
    (tmp_path / "made.svm").write_text(f"1 {base}:1 9:0.5\n-1 5:1 20:2\n" * 20)
    (tmp_path / "in.svm").write_text("1 4:1\n-1 30:0.25\n" * 5)
    made = convert([str(tmp_path / "made.svm")], tmp_path / "made", ConvertConfig(index_base=base))
    like = convert([str(tmp_path / "in.svm")], tmp_path / "like", ConvertConfig(like=str(made.path), shuffle=False))
    assert like.manifest.recipe == made.manifest.recipe
    assert like.features == 31 - int(base)
    assert like.to_scipy()[0][0].indices.tolist() == [4 - int(base)]
    model = train(made, TrainConfig(lam=0.1)).model
    assert evaluate(model, like.path) == evaluate(model, tmp_path / "in.svm")
    (tmp_path / "in.svm").write_text("1 4:1\n-1 5:1\n")
    few = convert([str(tmp_path / "in.svm")], tmp_path / "few", ConvertConfig(like=str(made.path)))
    assert few.features == made.features == 21 - int(base)
    (tmp_path / "in.svm").write_text("1 0:1\n-1 5:1\n")
    if base == "1":
        with pytest.raises(InputError, match=r"in\.svm:1: .*index 0"):
            convert([str(tmp_path / "in.svm")], tmp_path / "no", ConvertConfig(like=str(made.path)))


def test_vowpal_wabbit_text_and_folders(tmp_path):
    (tmp_path / "made.vw").write_text("1 | a b c\n-1 | c d\n" * 2000)
    (tmp_path / "in.vw").write_text("1 | a q\n-1 | d\n")
    made = convert([str(tmp_path / "made.vw")], tmp_path / "vw", ConvertConfig())
    like = convert([str(tmp_path / "in.vw")], tmp_path / "vw-like", ConvertConfig(like=str(made.path)))
    assert like.features == made.features > 1024
    for number, text in enumerate(["a fine day", "rain again", "a day"] * 10):
        for folder in ("ham", "spam"):
            (tmp_path / "texts" / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / "texts" / folder / f"{number}").write_text(f"{text} {folder}")
    shutil.copytree(tmp_path / "texts", tmp_path / "more")
    (tmp_path / "more" / "ham" / "new").write_text("unknown words " * 2000)
    made = convert([str(tmp_path / "texts")], tmp_path / "made", ConvertConfig(idf=True))
    like = convert([str(tmp_path / "more")], tmp_path / "like", ConvertConfig(like=str(made.path)))
    assert (like.manifest.recipe, like.rows) == (made.manifest.recipe, 61)
    model = train(made, TrainConfig(lam=0.1)).model
    assert evaluate(model, like.path) == evaluate(model, tmp_path / "more")


@pytest.mark.parametrize(
    ("labels", "options", "others", "problem"),
    [
        (("no", "yes"), {}, ("no", "maybe"), "the label 'maybe' is not one of no, yes"),
        (("1", "2"), {}, ("2", "3"), "the label '3' is not one of 1, 2"),
        (("1", "2"), {"positive_label": "1"}, ("1", "5"), "the label '5' is not one of 2, 1"),
        (("1", "2"), {"task": "multiclass"}, ("1", "7"), "the label '7' is not one of 1, 2"),
        (("0.5", "2.25"), {"task": "regression"}, ("a", "b"), "the label 'a' is not a finite number"),
    ],
)
def test_classes_are_those_of_the_store(tmp_path, labels, options, others, problem):
    for name, some in (("made", labels), ("same", labels[::-1]), ("one", labels[:1]), ("others", others)):
        lines = [f"{some[i % len(some)]},{i % 7}" for i in range(60)]
        (tmp_path / f"{name}.csv").write_text("label,x\n" + "\n".join(lines) + "\n")
    made = convert([str(tmp_path / "made.csv")], tmp_path / "made", ConvertConfig(**options))
    for name in ("same", "one"):
        like = convert([str(tmp_path / f"{name}.csv")], tmp_path / name, ConvertConfig(like=str(made.path)))
        mine, theirs = like.manifest.labels, made.manifest.labels
        assert (mine.task, mine.classes, mine.rest) == (theirs.task, theirs.classes, theirs.rest)
    with pytest.raises(InputError, match=problem):
        convert([str(tmp_path / "others.csv")], tmp_path / "others", ConvertConfig(like=str(made.path)))
    assert has_left_nothing(tmp_path)


def test_one_class_against_the_rest(tmp_path):
    (tmp_path / "made.svm").write_text("1 1:1\n2 1:2\n3 2:1\n" * 5)
    (tmp_path / "in.svm").write_text("1 1:1\n9 1:2\n" * 5)
    made = convert([str(tmp_path / "made.svm")], tmp_path / "made", ConvertConfig(positive_label="1"))
    like = convert([str(tmp_path / "in.svm")], tmp_path / "like", ConvertConfig(like=str(made.path)))
    assert (like.manifest.labels.classes, like.manifest.labels.counts) == (["not 1", "1"], [5, 5])


def test_targets_stay_targets(tmp_path):
    """Also few different whole numbers, which would be classes."""
    (tmp_path / "made.svm").write_text("".join(f"{i} 1:{i}\n" for i in range(100)))
    (tmp_path / "in.svm").write_text("3 1:1\n4 1:2\n" * 5)
    made = convert([str(tmp_path / "made.svm")], tmp_path / "made")
    like = convert([str(tmp_path / "in.svm")], tmp_path / "like", ConvertConfig(like=str(made.path)))
    assert like.manifest.labels.task == made.manifest.labels.task == "regression"


AGREEING = [
    {"label": "label"},
    {"numeric": ("x", "z"), "categorical": ("c", "w", "who"), "text": ("t",)},
    {"numeric": ("[xz]",), "hash_bits": 16},
    {"nulls": "absent", "task": "binary", "classes": ("no", "yes"), "values": "float32"},
    {"standardize": True, "header": True},
]
CONTRADICTING = [
    ({"hash_bits": 9}, "hash_bits=9: the store was made with 16; leave it out"),
    ({"hash_signed": False}, "no_hash_signed: the store was made otherwise; leave it out"),
    ({"dictionary": 5}, "dictionary=5: the store was made otherwise; leave it out"),
    ({"nulls": "mark"}, "nulls=mark: the store was made with absent; leave it out"),
    ({"label": "c"}, "label=c: the store was made with label; leave it out"),
    ({"id": "who"}, "id=who: the store was made otherwise; leave it out"),
    ({"standardize": False}, "no_standardize: the store was made otherwise; leave it out"),
    ({"log1p": True}, "log1p: the store was made otherwise; leave it out"),
    ({"clip": 3.0}, "clip=3.0: the store was made otherwise; leave it out"),
    ({"normalize": "l2"}, "normalize=l2: the store was made otherwise; leave it out"),
    ({"values": "float16"}, "values=float16: the store was made otherwise; leave it out"),
    ({"categorical": ("x",)}, "column 'x' is among these, and is numeric in the store; leave it out"),
    ({"ignore": ("x", "other")}, "the store has column 'x'; leave it out"),
    ({"numeric": ("x",)}, "column 'z' is not among these, and is numeric in the store; leave it out"),
    ({"task": "regression"}, "task=regression: the store was made with binary; leave it out"),
    ({"positive_label": "no"}, "positive_label=no: the store was made with yes; leave it out"),
    ({"format": "svmlight"}, "label is for tables|made of table, and these inputs are read as svmlight"),
]


@pytest.fixture
def made(tmp_path):
    large, small = files(tmp_path)
    columns = {"numeric": ("x", "z"), "categorical": ("c", "w", "who"), "text": ("t",)}
    convert([large], tmp_path / "made", ConvertConfig(label="label", standardize=True, **columns))
    return small, str(tmp_path / "made")


@pytest.mark.parametrize("options", AGREEING)
def test_options_that_agree_are_accepted(tmp_path, made, options):
    small, like = made
    whole = convert([small], tmp_path / "whole", ConvertConfig(like=like))
    store = convert([small], tmp_path / "store", ConvertConfig(like=like, **options))
    assert store.manifest.recipe == whole.manifest.recipe
    assert (store.to_scipy()[0] != whole.to_scipy()[0]).nnz == 0
    assert preview([small], ConvertConfig(like=like, **options)).recipe == store.manifest.recipe


@pytest.mark.parametrize(("options", "problem"), CONTRADICTING)
def test_options_that_contradict_are_refused(tmp_path, made, options, problem):
    small, like = made
    config = ConvertConfig(like=like, **options)
    for work in (lambda: convert([small], tmp_path / "store", config), lambda: preview([small], config)):
        with pytest.raises((UsageError, InputError), match=problem):
            work()
    assert not (tmp_path / "store").exists()
    assert has_left_nothing(tmp_path)


def test_append_refuses_the_option(tmp_path, made, oocpeg):
    small, like = made
    store = convert([small], tmp_path / "store", ConvertConfig(like=like))
    before = folder_bytes(store.path)
    told = "rows are appended as the store has them; leave it out"
    with pytest.raises(UsageError, match=f"like: {told}"):
        convert([small], store.path, ConvertConfig(like=like), existing=Existing(append=True))
    failed = oocpeg("convert", small, "-o", store.path, "--append", "--like", like, code=2)
    assert failed.stderr == f"error: --like: {told}\n"
    assert folder_bytes(store.path) == before
    assert has_left_nothing(tmp_path)
    grown = convert([small], store.path, ConvertConfig(), existing=Existing(append=True))
    assert (grown.rows, grown.manifest.recipe) == (300, store.manifest.recipe)


def test_jobs_make_a_store_like_another_and_append_to_it(tmp_path, made):
    """A job has the same options every night."""
    small, like = made
    config = ConvertConfig(like=like)
    store = convert([small], tmp_path / "store", config, existing=Existing(grows=True))
    again = convert([small], tmp_path / "store", config, existing=Existing(append=True, grows=True))
    assert (again.rows, again.manifest.recipe) == (300, store.manifest.recipe)
    assert store.manifest.recipe == Store.open(like).manifest.recipe


def test_a_store_that_is_no_store(tmp_path, made):
    small, like = made
    for wrong, error, problem in (
        (tmp_path / "nowhere", InputError, "nowhere: no such store"),
        (small, InputError, "small.csv"),
        (tmp_path, InputError, "not a store|no such store"),
    ):
        with pytest.raises(error, match=problem):
            convert([small], tmp_path / "store", ConvertConfig(like=str(wrong)))
    shutil.copytree(like, tmp_path / "damaged")
    text = (tmp_path / "damaged" / "manifest.json").read_text()
    (tmp_path / "damaged" / "manifest.json").write_text(text.replace('"scale": 1.0', '"scale": 2.0'))
    with pytest.raises(CorruptFileError):
        convert([small], tmp_path / "store", ConvertConfig(like=str(tmp_path / "damaged")))
    assert has_left_nothing(tmp_path)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("kind", ["scaled", "both"])
def test_resume(tmp_path, monkeypatch, kind):
    large, small = files(tmp_path)
    options = {"label": "label", "values": "float32", **TABLES[kind]}
    made = convert([large], tmp_path / "made", ConvertConfig(**options))
    other = convert([small], tmp_path / "other", ConvertConfig(**options))
    config = ConvertConfig(like=str(made.path))
    whole = convert([small], tmp_path / "whole", config)

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "plan_assembly", interrupted)
        with pytest.raises(KeyboardInterrupt):
            convert([small], tmp_path / "store", config)
    monkeypatch.setattr(survey, "with_findings", interrupted)  # nothing is looked for
    for wrong in (ConvertConfig(label="label"), ConvertConfig(like=str(other.path))):
        with pytest.raises(UsageError, match=r"resume: '(label|like)' was different when the conversion began"):
            convert([small], tmp_path / "store", wrong, existing=Existing(resume=True))
    convert([small], made.path, ConvertConfig(), existing=Existing(append=True))  # the recipe stays
    store = convert([small], tmp_path / "store", config, existing=Existing(resume=True))
    assert folder_bytes(store.path) == folder_bytes(whole.path)
    assert has_left_nothing(tmp_path)


def test_a_finished_store_is_reused(tmp_path, made):
    small, like = made
    reuse, config = Existing(reuse=True), ConvertConfig(like=like)
    store = convert([small], tmp_path / "store", config)
    before = folder_bytes(store.path)
    convert([small], store.path, config, existing=reuse)
    convert([small], store.path, config, existing=Existing(resume=True))
    told = "made from other inputs or with other options"
    other = convert([small], tmp_path / "other", ConvertConfig(label="label"))
    for wrong in (ConvertConfig(label="label"), ConvertConfig(like=str(other.path))):
        with pytest.raises(InputError, match=told):
            convert([small], store.path, wrong, existing=reuse)
    with pytest.raises(InputError, match=told):
        convert([small], other.path, config, existing=reuse)
    assert folder_bytes(store.path) == before


def test_a_store_is_made_again_like_itself(tmp_path, made):
    """With other rows in the place of its own."""
    small, like = made
    recipe = Store.open(like).manifest.recipe
    store = convert([small], like, ConvertConfig(like=like), existing=Existing(force=True))
    assert (store.rows, store.manifest.recipe) == (150, recipe)


def test_data_in_memory(tmp_path, made):
    small, like = made
    store = Store.from_arrow(pd.read_csv(small), tmp_path / "memory", ConvertConfig(like=like, shuffle=False))
    other = convert([small], tmp_path / "file", ConvertConfig(like=like, shuffle=False))
    assert store.manifest.recipe == other.manifest.recipe
    assert (store.to_scipy()[0] != other.to_scipy()[0]).nnz == 0
    matrix = Store.from_scipy(np.eye(4), np.array([1, 2, 1, 2]), tmp_path / "matrix")
    config = ConvertConfig(like=str(matrix.path), shuffle=False)
    few = Store.from_scipy(np.eye(2), np.array([2, 2]), tmp_path / "more", config=config)
    assert (few.features, few.to_scipy()[1].tolist()) == (4, [1, 1])


@pytest.mark.slow
def test_train_on_files(tmp_path, made, oocpeg):
    small, like = made
    words = ["--like", like, "--store", "kept", "--lambda", "0.1"]
    first = oocpeg("train", small, "-o", "one", *words)
    assert "kept: 150 rows" in first.stdout
    assert "scaled" not in first.stderr
    before = (tmp_path / "kept" / "manifest.json").stat()
    oocpeg("train", small, "-o", "two", *words)
    assert (tmp_path / "kept" / "manifest.json").stat() == before
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert Store.open(tmp_path / "kept").manifest.recipe == Store.open(like).manifest.recipe
    assert "2,000 rows" in oocpeg("evaluate", "one", like).stdout
    failed = oocpeg("train", "kept", "-o", "three", "--like", like, code=2)
    assert "--like is for files that are converted" in failed.stderr
