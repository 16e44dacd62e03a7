"""Progress of evaluations and predictions: all bytes are counted, of stores and of files."""

import gzip

import pytest

from ooc_pegasos import ConvertConfig, Model, TrainConfig, convert, train
from ooc_pegasos.reporting.progress import Progress
from ooc_pegasos.scoring.evaluate import evaluate, predict
from support.rows import random_rows, svmlight_text
from support.terminals import Terminal


class CountedBytes(Progress):
    def __init__(self):
        self.phases, self.total, self.done = [], 0, 0

    def begin(self, what, total):
        self.phases.append(what)
        self.total += total

    def advance(self, count):
        self.done += count


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A file, also compressed, its store and a model."""
    folder = tmp_path_factory.mktemp("scene")
    text = svmlight_text(*random_rows(3000, 40, 0, 0.3))
    (folder / "in.svm").write_text(text)
    (folder / "in.svm.gz").write_bytes(gzip.compress(text.encode()))
    store = convert(folder / "in.svm", folder / "store", ConvertConfig(chunk_size=4096))
    train(store, TrainConfig(lam=0.1)).model.save(folder / "model")
    return folder


@pytest.mark.parametrize("data", [["store"], ["in.svm"], ["in.svm.gz"], ["in.svm", "store"]])
def test_all_bytes_are_counted(scene, tmp_path, data):
    model, names = Model.load(scene / "model"), [str(scene / name) for name in data]
    for what, run in (
        ("evaluating", lambda progress: evaluate(model, names, progress=progress)),
        ("predicting", lambda progress: predict(model, names, tmp_path / "p.csv", progress=progress)),
    ):
        counted = CountedBytes()
        run(counted)
        assert counted.phases == [what]
        assert counted.done == counted.total > 0


def test_it_is_shown_on_a_terminal_unless_quiet(scene):
    for words, is_shown in (
        (("evaluate", "model", "in.svm"), True),
        (("evaluate", "model", "in.svm", "--quiet"), False),
        (("predict", "model", "in.svm", "-o", "p.csv", "--force"), True),
        (("predict", "model", "in.svm", "-o", "p.csv", "--force", "--quiet"), False),
        (("predict", "model", "in.svm", "-o", "-"), False),
    ):
        code, shown = Terminal(scene, *words, columns=80).end()
        assert code == 0, shown
        assert ("evaluating" in shown or "predicting" in shown) == is_shown, (words, shown[:300])
