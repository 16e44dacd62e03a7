"""An algorithm, a loss and a sampler that are defined in this file alone work as the built-in ones do.

Run as a program the file is `oocpeg` with these three registered.
"""

import ast
import json
import os
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
from sklearn.svm import LinearSVC

from ooc_pegasos import TrainConfig, train
from ooc_pegasos.algorithms import ALGORITHMS, Algorithm
from ooc_pegasos.compiled.fit.losses import BUILT_IN, LossFunctions, dual_at
from ooc_pegasos.compiled.fit.pegasos import add_row, dot
from ooc_pegasos.errors import UsageError
from ooc_pegasos.formats import FORMATS
from ooc_pegasos.loading import samplers
from ooc_pegasos.loading.samplers import Plan, groups
from ooc_pegasos.objective import losses
from ooc_pegasos.registry import (
    LOSSES,
    SAMPLERS,
    BuiltInAlgorithm,
    BuiltInFormat,
    BuiltInLoss,
    BuiltInSampler,
)
from ooc_pegasos.scoring.evaluate import evaluate
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.solvers import registry
from ooc_pegasos.solvers.base import NO_REPEATS, Solver
from support.clusters import workers_of_this_process
from support.paths import ROOT
from support.rows import random_rows
from support.stores import store_of

# ---- a loss: the hinge with a margin of its own ----


def wide_at(parameter, z, y):
    """The loss, a subgradient and the term of the dual."""
    short = parameter - y * z
    return (short, -y, parameter) if short > 0.0 else (0.0, 0.0, 0.0)


def wide_dual(parameter, y, b):
    """The term of the dual for a dual variable."""
    return parameter * b * y


def wide_best_dual(parameter, z, y, b, r):
    """The dual variable that maximises the dual along one row."""
    return y * min(max(b * y + (parameter - y * z) / r, 0.0), 1.0)


def wide_kinks(parameter, y):
    """The slope grows at z = parameter y alone, by 1."""
    return 1, -1.0 if y > 0.0 else 0.0, (parameter - 1.0) * y, 0.0


WIDE = LossFunctions(wide_at, has_margin=True, dual=wide_dual, best_dual=wide_best_dual, kinks=wide_kinks)

# ---- an algorithm: subgradient descent with all rows in a step ----


class Descent(Solver):
    """Steps of 1 / (lambda t) along the subgradient over all rows, of the hinge loss. No certificate."""

    name = "toy-descent"

    def __init__(self, problem):
        super().__init__(problem)
        self.weights = {model: np.zeros(problem.length) for model in self.active}
        self.steps = 0
        self.begin_epoch()

    def begin_epoch(self, repeats=NO_REPEATS):
        """Begin to add up the loss and its subgradient."""
        self.slopes = {model: np.zeros(self.problem.length) for model in self.active}
        self.losses = dict.fromkeys(self.active, 0.0)

    def process(self, window, begin, end):
        """Add rows to the sums."""
        indptr, indices, values, levels = window.block.entries
        for row in window.order[begin:end].astype(np.int64):
            first, last, y = int(indptr[row]), int(indptr[row + 1]), float(window.block.labels[row])
            for model in self.active:
                short = 1.0 - y * dot(indices, values, levels, first, last, self.weights[model])
                if short > 0.0:
                    self.losses[model] += short
                    add_row(indices, values, levels, first, last, self.slopes[model], -y)
        return -1

    def end_epoch(self):
        """Make the step."""
        self.steps += 1
        for model in self.active:
            spec, w = self.problem.specs[model], self.weights[model]
            self.losses[model] = spec.lam / 2 * self.problem.square(w) + self.losses[model] / spec.rows
            w -= (spec.lam * w + self.slopes[model] / spec.rows) / (spec.lam * self.steps)

    def bound(self, model):
        """No bound."""

    def estimate(self, model):
        """The objective before the step."""
        return self.losses[model]

    def candidates(self, model):
        """The weights."""
        return [self.weights[model]]

    def counts(self, model):
        """The updates."""
        return {"rows": self.steps * self.problem.specs[model].rows}

    def save(self, folder):
        """The weights."""
        return {str(model): self.weights[model] for model in self.active}, {"steps": self.steps}

    def restore(self, folder, saved):
        """The weights."""
        self.steps = saved.facts["solver"]["steps"]
        for model in self.active:
            self.weights[model][:] = saved.arrays[str(model)]

    def warm_up(self, nothing):
        """Nothing to load."""


DESCENT = Algorithm("toy-descent", is_certified=False, needs_margin_errors=True)

# ---- a sampler: the last row first ----


def backwards(shape, _seed, _epoch):
    """Windows and rows from the last to the first."""
    for chunks in groups(shape, np.arange(len(shape.chunk_rows))[::-1]):
        yield Plan(chunks, lambda rows: rows[::-1].copy())


def register():
    """Add all three."""
    losses.register("toy-wide", "binary", WIDE, 2.0, "the margin", leaning=lambda _margin: 1.0)
    registry.register(DESCENT, lambda _algorithm, run: (Descent(run.problem), None))
    samplers.register("toy-backwards", backwards, is_equally_often=True, is_shuffled=False)


if __name__ == "__main__":
    register()
    from ooc_pegasos.__main__ import main

    sys.exit(main())


# ---- tests ----


@pytest.fixture(autouse=True, scope="module")
def toys():
    """All three: kernels are compiled anew for each loss that is registered."""
    register()
    yield
    LOSSES.unregister("toy-wide")
    registry.unregister("toy-descent")
    SAMPLERS.unregister("toy-backwards")


@pytest.fixture
def toy_oocpeg(tmp_path):
    """Run this file as `oocpeg`."""

    def run(*words, code=0):
        path = os.pathsep.join([str(ROOT / "tests"), str(ROOT)])
        env = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "PYTHONPATH": path}
        command = [sys.executable, __file__, *map(str, words)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=env)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done

    return run


def stored_rows(tmp_path, rows=300, features=12, **options):
    matrix, labels = random_rows(rows, features, 3, density=0.4)
    labels = np.where(matrix @ np.linspace(-1, 1, features) + 0.3 * np.sin(np.arange(rows)) > 0, 1, -1)
    return store_of(tmp_path, matrix, labels, **options), matrix, labels


def least_hinge(matrix, labels, lam):
    """The optimum of the SVM by LIBLINEAR, from above."""
    svm = LinearSVC(C=1 / (lam * len(labels)), loss="hinge", fit_intercept=False, tol=1e-10, max_iter=1_000_000)
    w = svm.fit(matrix.astype(np.float64), labels).coef_.ravel()
    return lam / 2 * w @ w + np.maximum(0, 1 - labels * (matrix.astype(np.float64) @ w)).mean()


def test_the_command_lists_them_in_help_and_errors(toy_oocpeg):
    text = " ".join(toy_oocpeg("train", "--help").stdout.replace("│", " ").split())
    for name in ("toy-wide", "toy-descent", "toy-backwards"):
        assert name in text
    error = toy_oocpeg("train", "x.store", "-o", "m", "--loss", "toy", code=2).stderr
    assert error.startswith("error: --loss toy is unknown; choose one of hinge, ")
    for option, name in ("algorithm", "toy-descent"), ("loss", "toy-wide"), ("sampling", "toy-backwards"):
        with pytest.raises(UsageError, match=f"{option}=toy is unknown; choose one of .*, {name}"):
            TrainConfig(lam=1.0, **{option: "toy"})


@pytest.mark.slow
def test_the_command_trains_with_all_of_them_but_certifies_only_what_it_may(tmp_path, toy_oocpeg):
    stored_rows(tmp_path)
    words = ["train", "store", "--lambda", "0.05", "--sampling", "toy-backwards", "--json"]
    done = toy_oocpeg(*words, "-o", "wide", "--loss", "toy-wide", "--tolerance", "1e-3")
    wide = json.loads(done.stdout.splitlines()[-1])
    assert (wide["loss"], wide["sampling"], wide["certified"]) == ("toy-wide", "toy-backwards", True)
    assert wide["gap"] <= 1e-3
    done = toy_oocpeg(*words[:-1], "-o", "descent", "--algorithm", "toy-descent")
    assert "the algorithm toy-descent has no certificate" in done.stdout
    descent = Model.load(tmp_path / "descent").info
    assert (descent.algorithm, descent.certificate.lower_bound, descent.epochs) == ("toy-descent", None, 10)


@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s", "sgd-r", "auto"])
def test_the_loss_has_the_optimum_of_a_scaled_hinge(tmp_path, algorithm):
    # with w = m v: lam/2 |w|^2 + max(0, m - y w x) = m (m lam/2 |v|^2 + max(0, 1 - y v x))
    store, matrix, labels = stored_rows(tmp_path)
    lam, margin, tolerance = 0.05, 3.0, 2e-3
    options = {"lam": lam, "loss": "toy-wide", "loss_parameter": margin, "tolerance": tolerance}
    found = train(store, TrainConfig(algorithm=algorithm, **options)).model.info.certificate
    best = margin * least_hinge(matrix, labels, margin * lam)
    assert found.primal >= best * (1 - 1e-6)
    if algorithm == "sgd-r":
        assert found.lower_bound is None
    else:
        assert found.lower_bound <= best * (1 + 1e-6)
        assert found.primal <= found.lower_bound / (1 - tolerance)


@pytest.mark.slow
def test_several_models_of_the_loss_in_one_pass_have_the_optimum_of_a_scaled_hinge(tmp_path):
    store, matrix, labels = stored_rows(tmp_path)
    lambdas = (0.2, 0.1, 0.05)
    for algorithm in ("sdca", "sgd-s"):
        config = TrainConfig(
            lam=lambdas, loss="toy-wide", algorithm=algorithm, tolerance=5e-3, folds=2, max_epochs=500, refit=False
        )
        result = train(store, config)
        whole = [model for model in result.models if model.fold is None]
        assert len(whole) == len(lambdas)
        for lam, model in zip(lambdas, whole, strict=True):
            best, found = 2.0 * least_hinge(matrix, labels, 2.0 * lam), model.certificate
            assert found.lower_bound <= best * (1 + 1e-6)
            assert best * (1 - 1e-6) <= found.primal <= found.lower_bound / (1 - 5e-3)


def test_a_model_of_the_loss_is_saved_read_and_evaluated(tmp_path):
    store, matrix, labels = stored_rows(tmp_path)
    train(store, TrainConfig(lam=0.05, loss="toy-wide")).model.save(tmp_path / "m")
    model = Model.load(tmp_path / "m")
    assert (model.info.loss, model.info.parameter) == ("toy-wide", 2.0)
    mean = np.maximum(0, 2.0 - labels * (matrix.astype(np.float64) @ model.weights)).mean()
    assert evaluate(model, str(store.path))["mean_loss"] == pytest.approx(mean, rel=1e-6)


def test_the_sampler_is_the_order_of_a_store_the_other_way_round(tmp_path):
    store, matrix, labels = stored_rows(tmp_path)
    (tmp_path / "reversed").mkdir()
    turned = store_of(tmp_path / "reversed", matrix[::-1], labels[::-1])
    options = {"lam": 0.05, "algorithm": "sgd-s", "max_epochs": 2, "tolerance": 1e-9}
    one = train(store, TrainConfig(sampling="toy-backwards", **options))
    other = train(turned, TrainConfig(sampling="sequential", **options))
    third = train(store, TrainConfig(sampling="sequential", **options))
    assert one.certified
    assert one.model.weights.tobytes() == other.model.weights.tobytes() != third.model.weights.tobytes()


def test_a_sampler_that_repeats_rows_has_no_certificate(tmp_path):
    store, *_ = stored_rows(tmp_path)
    samplers.register("toy-first", backwards, is_equally_often=False)
    try:
        result = train(store, TrainConfig(lam=0.05, sampling="toy-first", algorithm="sgd-s"))
        assert not result.certified
        assert result.why_uncertified.startswith("toy-first sampling does not process all rows equally")
    finally:
        SAMPLERS.unregister("toy-first")


def test_the_algorithm_descends_to_the_optimum(tmp_path):
    store, matrix, labels = stored_rows(tmp_path)
    result = train(store, TrainConfig(lam=0.5, algorithm="toy-descent", max_epochs=60))
    best = least_hinge(matrix, labels, 0.5)
    assert best * (1 - 1e-6) <= result.model.info.certificate.primal <= best * 1.05
    assert (result.certified, result.why_uncertified) == (False, "the algorithm toy-descent has no certificate")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"batch_size": 10}, r"algorithm=toy-descent does not support batch_size; .* choose algorithm=sgd-s"),
        ({"bias": "free"}, r"algorithm=toy-descent does not support bias=free; .* choose algorithm=sdca"),
        (
            {"loss": "logistic"},
            r"algorithm=toy-descent counts margin errors, which loss=logistic does not have; .*loss=hinge",
        ),
        ({"folds": 3}, r"folds and algorithm=toy-descent do not go together"),
        ({"bias": "search"}, r"bias=search compares biases by their certificates"),
    ],
    ids=str,
)
def test_what_the_algorithm_does_not_support_is_refused(tmp_path, options, told):
    store, *_ = stored_rows(tmp_path)
    with pytest.raises(UsageError, match=told):
        train(store, TrainConfig(lam=0.5, algorithm="toy-descent", **options))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"algorithm": "sgd-m"}, r"algorithm=sgd-m counts margin errors, which loss=toy-wide does not have"),
        ({"loss_parameter": 0.0}, r"loss_parameter=0 is out of range for the toy-wide loss"),
    ],
    ids=str,
)
def test_what_the_loss_does_not_support_is_refused(tmp_path, options, told):
    store, *_ = stored_rows(tmp_path)
    with pytest.raises(UsageError, match=told):
        train(store, TrainConfig(lam=0.05, loss="toy-wide", **options))


def test_a_proof_of_the_loss_is_refused(tmp_path):
    store, *_ = stored_rows(tmp_path)
    with pytest.raises(UsageError, match="proof is for built-in losses, not loss=toy-wide"):
        train(store, TrainConfig(lam=0.05, loss="toy-wide"), proof=tmp_path / "proof")


@pytest.mark.parametrize("bias", ["free", "unregularized", "batch"])
def test_the_loss_finds_a_bias_that_is_not_regularised(tmp_path, bias):
    store, *_ = stored_rows(tmp_path)
    lam, margin, more = 0.05, 3.0, {"bias": bias} | ({"batch_size": 100} if bias == "batch" else {})
    found = train(store, TrainConfig(lam=lam, loss="toy-wide", loss_parameter=margin, tolerance=0.02, **more))
    hinge = train(store, TrainConfig(lam=margin * lam, bias="free", tolerance=1e-3)).model.info.certificate
    assert found.certified
    certificate = found.model.info.certificate
    assert certificate.primal >= margin * hinge.lower_bound * (1 - 1e-6)
    assert certificate.lower_bound <= margin * hinge.primal * (1 + 1e-6)


def test_a_batch_finds_the_bias_of_the_loss_as_that_of_the_hinge(tmp_path):
    store, *_ = stored_rows(tmp_path)
    options = {"lam": 0.05, "bias": "batch", "batch_size": 7, "max_epochs": 3, "tolerance": 1e-9}
    hinge = train(store, TrainConfig(**options)).model
    wide = train(store, TrainConfig(loss="toy-wide", loss_parameter=1.0, **options)).model
    assert (wide.weights.tobytes(), wide.bias) == (hinge.weights.tobytes(), hinge.bias)


@pytest.mark.slow
def test_a_loss_that_is_the_hinge_may_take_its_shorter_ways(tmp_path):
    store, *_ = stored_rows(tmp_path)
    functions = LossFunctions(wide_at, has_margin=True, dual=wide_dual, best_dual=wide_best_dual, is_unit_hinge=True)
    losses.register("toy-hinge", "binary", functions, 1.0)
    try:
        for algorithm in ("sdca", "sgd-s"):
            options = {
                "lam": (0.2, 0.1, 0.05),
                "algorithm": algorithm,
                "max_epochs": 5,
                "tolerance": 1e-9,
                "refit": False,
            }
            hinge, toy = (train(store, TrainConfig(loss=loss, **options)) for loss in ("hinge", "toy-hinge"))
            assert toy.model.weights.tobytes() == hinge.model.weights.tobytes()
    finally:
        LOSSES.unregister("toy-hinge")


@pytest.mark.dask
def test_workers_that_know_the_loss_and_the_sampler_certify(tmp_path):
    from ooc_pegasos.distributed.api import train_dask

    store, matrix, labels = stored_rows(tmp_path, chunk_size=4096)
    with workers_of_this_process() as (_cluster, client):
        config = TrainConfig(lam=0.05, loss="toy-wide", sampling="toy-backwards", tolerance=5e-3)
        result = train_dask(client, store, config)
        with pytest.raises(UsageError, match=r"algorithm=toy-descent runs on one machine; choose auto, sdca, sgd-s"):
            train_dask(client, store, TrainConfig(lam=0.05, algorithm="toy-descent"))
    best = 2.0 * least_hinge(matrix, labels, 2.0 * 0.05)
    assert result.certified
    assert result.model.info.certificate.lower_bound <= best * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.dask
@pytest.mark.parametrize("words", [("--loss", "toy-wide"), ("--sampling", "toy-backwards")], ids=str)
def test_workers_that_do_not_know_a_name_are_refused(tmp_path, toy_oocpeg, words):
    stored_rows(tmp_path)
    error = toy_oocpeg("train", "store", "-o", "m", "--lambda", "0.05", "--scheduler", "local:1", *words, code=2).stderr
    assert f"error: {' '.join(words)} is not registered on the worker tcp://127.0.0.1:" in error
    assert not (tmp_path / "m").exists()


def test_a_loss_without_leaning_or_kinks_has_no_such_bias(tmp_path):
    store, *_ = stored_rows(tmp_path)
    losses.register("toy-plain", "binary", LossFunctions(wide_at, has_margin=True), 0.5)
    losses.register("toy-curve", "binary", LossFunctions(wide_at, True), 0.5, leaning=lambda _margin: 1.0)
    try:
        for loss, bias in (("toy-plain", "free"), ("toy-plain", "batch"), ("toy-curve", "batch")):
            with pytest.raises(UsageError, match=f"bias={bias} is not for loss={loss}"):
                train(store, TrainConfig(lam=0.05, loss=loss, bias=bias, batch_size=10 if bias == "batch" else 1))
    finally:
        LOSSES.unregister("toy-plain")
        LOSSES.unregister("toy-curve")


def test_a_loss_without_dual_step_is_for_pegasos_alone(tmp_path):
    store, *_ = stored_rows(tmp_path)
    losses.register("toy-narrow", "binary", LossFunctions(wide_at, has_margin=True), 0.5)
    try:
        with pytest.raises(UsageError, match="algorithm=sdca takes dual steps, which loss=toy-narrow does not have"):
            train(store, TrainConfig(lam=1e-3, loss="toy-narrow", algorithm="sdca"))
        assert train(store, TrainConfig(lam=1e-3, loss="toy-narrow", max_epochs=5)).algorithm == "sgd-s"
    finally:
        LOSSES.unregister("toy-narrow")


def test_a_loss_of_an_unknown_number_is_an_error():
    for number in (-1, len(BUILT_IN), 100):
        with pytest.raises(ValueError, match=r"compiled function fit\.losses\.dual_at"):
            dual_at(number, 1.0, 1.0, 0.5)


def test_names_are_taken_once_and_the_built_in_ones_are_those_that_are_listed():
    for registered in (LOSSES, SAMPLERS, ALGORITHMS):
        name = next(iter(registered))
        with pytest.raises(UsageError, match=f"{name} is registered already"):
            registered.register(name, None)
        assert len(registered) == len(set(registered)) == len(list(registered.values()))
    assert [loss.name for loss in LOSSES.values()] == list(LOSSES)


@pytest.mark.parametrize(
    ("named", "registered"),
    [
        (BuiltInLoss, LOSSES),
        (BuiltInSampler, SAMPLERS),
        (BuiltInFormat, FORMATS),
        (BuiltInAlgorithm, ALGORITHMS),
    ],
)
def test_type_checkers_know_the_built_in_names(named, registered):
    assert list(get_args(named)) == [name for name in registered if not name.startswith("toy-")]


ALLOWED = {
    "algorithms.py": "registry",
    "compiled/fit/losses.py": "registry",
    "compiled/fit/multiclass.py": "registry",
    "registry.py": "registry",
    "loading/samplers.py": "registry",
    "objective/losses.py": "registry",
    "solvers/registry.py": "registry",
    "proof/check.py": "has formulas of its own",
    "proof/proof_file.py": "is read by the check",
    "conversion/preview.py": "a key of recipes",
    "cli/completion.py": "a key of recipes",
}
CODE = [path for folder in ("ooc_pegasos", "readers") for path in sorted((ROOT / folder).rglob("*.py"))]


def names_in(tree):
    """(line, text) of strings that are registered names, but for fields of classes, and of numbers of losses."""
    own = {
        part
        for kind in ast.walk(tree)
        if isinstance(kind, ast.ClassDef)
        for statement in kind.body
        if isinstance(statement, ast.Assign)
        for part in ast.walk(statement.value)
    }
    names = {*LOSSES, *SAMPLERS, *ALGORITHMS, *FORMATS}
    numbers = {name.upper().replace("-", "_") for name in LOSSES}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in names and node not in own:
            yield node.lineno, node.value
        if isinstance(node, ast.Compare) and any(ast.unparse(side) in numbers for side in node.comparators):
            yield node.lineno, ast.unparse(node)


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_module_names_a_loss_sampler_algorithm_or_format(path):
    folder = path.relative_to(ROOT).as_posix().removeprefix("ooc_pegasos/")
    found = [*names_in(ast.parse(path.read_text()))]
    assert bool(found) == (folder in ALLOWED), found


def test_configurations_know_all_names_without_numba():
    code = """
import sys
from typing import get_args
from ooc_pegasos.config import TrainConfig
TrainConfig(loss="huber", sampling="iid", algorithm="sgd-r")
assert not {"numba", "pyarrow"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
