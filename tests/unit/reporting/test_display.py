"""What a notebook shows of stores, models and runs."""

import dataclasses
import re
import subprocess
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest

from ooc_pegasos import ConvertConfig, Model, Store, TrainConfig, train
from ooc_pegasos.errors import CorruptFileError
from ooc_pegasos.reporting.history import EpochRecord
from ooc_pegasos.reporting.notebook import NotebookTraining, gap_plot
from ooc_pegasos.reporting.progress import LoggedTraining, TrainingProgress, in_notebook, training_progress_for
from support.rows import random_rows
from support.stores import store_of

HOSTILE = "<script>alert('1')</script>&\"x\""
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def store(tmp_path):
    return store_of(tmp_path, *random_rows(400, 30, 1, 0.3))


@pytest.fixture
def result(store):
    return train(store, TrainConfig(lam=0.01, tolerance=1e-3))


def entry(epoch, gap=None, estimated=None):
    return EpochRecord(epoch, {}, 0.5, None, 0.25, gap, estimated, None, None)


def svg_of(page):
    return ElementTree.fromstring(re.search(r"<svg.*</svg>", page, re.DOTALL).group())


def cells(page):
    """The first cell after each name."""
    return dict(re.findall(r"<th[^>]*>([^<]*)</th><td[^>]*>([^<]*)</td>", page))


def test_a_store(store):
    page = store._repr_html_()
    told = cells(page)
    assert told["rows"] == f"{store.rows:,}"
    assert told["features"] == f"{store.features:,}"
    assert told["non-zeros"] == f"{store.nonzeros:,}"
    for name, count in zip(store.manifest.labels.classes, store.manifest.labels.counts, strict=True):
        assert told[f"label {name}"] == f"{count:,} rows"
    ElementTree.fromstring(page)


def test_a_run_and_its_model(result):
    info = result.model.info
    for shown in (result, result.model):
        page = shown._repr_html_()
        told = cells(page)
        assert told["lambda"] == "0.01"
        assert told["loss"] == "hinge"
        assert told["epochs"] == f"{info.epochs:,}"
        assert told["objective"] == f"{info.certificate.primal:.6g}"
        assert told["lower bound"] == f"{info.certificate.lower_bound:.6g}"
        assert told["certified gap"] == f"{100 * info.certificate.gap:.3g} %"
        ElementTree.fromstring(page)
        measured = [one for one in info.history if one.gap is not None]
        titles = [circle.find(f"{SVG}title").text for circle in svg_of(page).iter(f"{SVG}circle")]
        assert titles == [f"epoch {one.epoch}: certified gap {100 * one.gap:.3g} %" for one in measured]
    assert "history" not in repr(result)
    assert f"{100 * info.certificate.gap:.3g} %" in repr(result)


def test_a_gap_above_the_tolerance_is_noted(store):
    result = train(store, TrainConfig(lam=1e-4, tolerance=1e-6, max_epochs=3))
    assert not result.converged
    assert "not within the tolerance" in result._repr_html_()


def test_lambdas_that_were_compared(store):
    result = train(store, TrainConfig(lam=(0.1, 0.01), holdout=0.2))
    page = result._repr_html_()
    assert len(result.trials) == 2
    for trial in result.trials:
        assert f">{trial.lam:.4g}</th><td" in page
        assert f"{trial.loss:.5g}" in page
    assert page.count(">kept<") == 1
    ElementTree.fromstring(page)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3])
def test_the_heaviest_features_have_their_names_and_signs(tmp_path, classes):
    rng = np.random.default_rng(3)
    words = rng.choice(["Rome", "Oslo", "Lima"], 300)
    labels = np.searchsorted(["Lima", "Oslo", "Rome"], words) % classes
    table = pa.table({"y": labels.astype(str), "city": words})
    config = ConvertConfig(label="y", feature_names=100, hash_bits=12)
    model = train(Store.from_arrow(table, tmp_path / "s", config), TrainConfig(lam=0.01)).model
    page = model._repr_html_()
    told = cells(page)
    assert {"city=Rome", "city=Oslo", "city=Lima"} <= set(told)
    if classes == 2:
        assert float(told["city=Oslo"]) > 0 > float(told["city=Rome"])
    else:
        assert (told["city=Lima"], told["city=Oslo"], told["city=Rome"]) == ("0", "1", "2")
        assert "of the class 0 against the rest" in page
    ElementTree.fromstring(page)


def test_hostile_names_are_escaped(tmp_path):
    table = pa.table({"y": [HOSTILE, "$x$"] * 20, HOSTILE: [1.0, -1.0] * 20})
    store = Store.from_arrow(table, tmp_path / "<b>&", ConvertConfig(label="y"))
    result = train(store, TrainConfig(lam=0.1))
    for shown in (store, result, result.model):
        page = shown._repr_html_()
        assert "<script" not in page
        assert "<b>" not in page
        assert 'class="tex2jax_ignore' in page
        ElementTree.fromstring(page)
    assert "&lt;script&gt;" in store._repr_html_()
    assert "&lt;script&gt;" in result.model._repr_html_()


def test_a_hostile_model_file(result, tmp_path):
    history = [dataclasses.replace(entry(1, estimated=0.1), counts={HOSTILE: 1}), entry(2, 0.01)]
    config = {**result.model.info.config, "tolerance": HOSTILE}
    info = dataclasses.replace(result.model.info, history=history, config=config, algorithm=HOSTILE)
    dataclasses.replace(result.model, info=info).save(tmp_path / "model")
    page = Model.load(tmp_path / "model")._repr_html_()
    assert "<script" not in page
    assert len(list(svg_of(page).iter(f"{SVG}circle"))) == 1
    for hostile in (entry(HOSTILE), entry(1, gap=HOSTILE)):
        dataclasses.replace(result.model, info=dataclasses.replace(info, history=[hostile])).save(tmp_path / "model")
        with pytest.raises(CorruptFileError, match="history"):
            Model.load(tmp_path / "model")


@pytest.mark.parametrize(
    "history",
    [
        [entry(1, 0.5)],
        [entry(1, 1.0)],
        [entry(1, estimated=30.0), entry(2, estimated=3.0), entry(3, 0.0)],
        [entry(number, estimated=1 / number) for number in range(1, 3000)] + [entry(3000, 1e-9)],
    ],
)
@pytest.mark.parametrize("tolerance", [None, 0.01, 0.0])
def test_plots_are_well_formed_and_inside_their_frame(history, tolerance):
    plot = gap_plot(history, tolerance)
    root = ElementTree.fromstring(plot)
    width, height = float(root.get("width")), float(root.get("height"))
    (line,) = root.iter(f"{SVG}polyline")
    places = [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
    assert 1 <= len(places) <= 1000
    assert all(0 <= x <= width and 0 <= y <= height for x, y in places)
    assert sorted(places) == places
    assert len(list(root.iter(f"{SVG}circle"))) == sum(one.gap is not None for one in history)
    assert ("tolerance 1 %" in plot) == (tolerance == 0.01)


def test_no_plot_where_nothing_is_known():
    assert gap_plot([]) == ""
    assert gap_plot([entry(1), entry(2, estimated=float("nan"))]) == ""


class Handle:
    """A display that remembers what it showed."""

    shown: list

    def __init__(self):
        self.shown = []

    def update(self, content):
        self.shown.append(content.data)


@pytest.fixture
def handle(monkeypatch):
    pytest.importorskip("IPython")
    import IPython.display

    handle = Handle()

    def display(content, display_id):
        assert display_id
        assert not handle.shown, "one display, which changes"
        handle.update(content)
        return handle

    monkeypatch.setattr(IPython.display, "display", display)
    return handle


def test_display_of_a_running_run(handle):
    shown = NotebookTraining()
    shown._looked = -1e9
    shown.presented(0, 50, 100)
    assert "epoch 1, 50 % of it" in handle.shown[0]
    shown._looked = -1e9
    shown.note(HOSTILE)
    for number in range(1, 50):
        shown.epoch_done(entry(number, estimated=1 / number), 0.01, 1)
    assert len(handle.shown) < 10, "not more often than somebody can look"
    shown._looked = -1e9
    shown.epoch_done(entry(50, 0.009), 0.01, 1)
    assert "<svg" in handle.shown[-1]
    shown.end()
    assert "<svg" not in handle.shown[-1]
    assert "gap 0.9 %" in handle.shown[-1]
    for page in handle.shown:
        assert "<script" not in page
        ElementTree.fromstring(page)


def test_a_run_that_showed_nothing_leaves_nothing(handle):
    NotebookTraining().end()
    assert not handle.shown


@pytest.fixture
def in_a_kernel(monkeypatch):
    shell = SimpleNamespace(kernel=object())
    pytest.importorskip("IPython")
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)


def test_notebooks_are_noticed(in_a_kernel):
    assert in_notebook()
    assert isinstance(training_progress_for(quiet=False), NotebookTraining)
    assert type(training_progress_for(quiet=True)) is TrainingProgress


def test_training_in_a_notebook_shows_itself(store, in_a_kernel, handle):
    result = train(store, TrainConfig(lam=0.01))
    assert f"epoch {result.model.info.epochs}," in handle.shown[-1]
    handle.shown.clear()
    train(store, TrainConfig(lam=0.01), progress=TrainingProgress())
    assert not handle.shown


@pytest.mark.parametrize("shell", [None, SimpleNamespace()])
def test_a_terminal_is_no_notebook(monkeypatch, shell):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert not in_notebook()
    assert isinstance(training_progress_for(quiet=False), LoggedTraining)


def test_nothing_of_notebooks_is_imported_elsewhere(tmp_path):
    store_of(tmp_path, *random_rows(50, 10, 1, 0.3))
    code = """
import sys
from ooc_pegasos import Store, TrainConfig, train
train(Store.open("store"), TrainConfig(lam=0.1))
assert not {"IPython", "ipykernel", "ooc_pegasos.reporting.notebook"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
