"""Many models in one run: results are those of separate runs, after interruptions as well."""

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from ooc_pegasos import Store, TrainConfig, TrainResult, train
from ooc_pegasos.compiled.fit import losses, panel, panel_steps, pegasos, sdca
from ooc_pegasos.compiled.fit import sums as totals
from ooc_pegasos.errors import CorruptFileError, OocPegasosError, UsageError
from ooc_pegasos.loading.loader import Loader
from ooc_pegasos.loading.window import cost_of
from ooc_pegasos.objective.lambda_path import Trial, choose
from ooc_pegasos.option_texts import parse_lambdas
from ooc_pegasos.solvers import registry
from ooc_pegasos.solvers.registry import row_bytes
from ooc_pegasos.store.csr_block import CODINGS, VALUE_CODINGS
from ooc_pegasos.training import run as running
from support.codings import coded, few_values
from support.optima import least_objective, primal
from support.rows import random_rows
from support.stores import around_present, interrupt_at_check, interrupted_after, least_memory, store_of
from support.subsets import covering

LAMBDAS = (3.0, 1.0, 0.3, 0.1, 0.05, 0.03, 0.02, 0.01, 0.005)
FOLLOWED = {"tolerance": 1e-12, "max_epochs": 4}


def train_and_record(store: Store, config: TrainConfig, **options: object) -> tuple[TrainResult, dict[int, np.ndarray]]:
    """The result, and the weights of every model of the run."""
    best: dict[int, np.ndarray] = {}
    with pytest.MonkeyPatch.context() as patched:

        def result(run, stopped, real=running.Run.result):
            best.update(run.state.best)
            return real(run, stopped)

        patched.setattr(running.Run, "result", result)
        return train(store, config, **options), best


def memory_of(store: Store, config: TrainConfig, models: int) -> int:
    """So little that every chunk is a window of its own, for so many models."""
    a_row = row_bytes(config, models)
    costs = [cost_of(chunk) + a_row * (chunk.rows + 1) for chunk in store.manifest.chunks]
    assert len(costs) > 3
    return 2 * max(costs)


def splitmix(row: int) -> int:
    """The hash that selects holdout rows, 53 bits."""
    word = (row + 1) * 0x9E3779B97F4A7C15 % 2**64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return (word ^ word >> 31) >> 11


def hinge_objective(w: np.ndarray, matrix: sp.csr_matrix, labels: np.ndarray, lam: float) -> float:
    return primal("hinge", 0.0, matrix.toarray().astype(np.float64), labels, lam, np.ones(len(labels)), w)


def svm_optimum(matrix: sp.csr_matrix, labels: np.ndarray, lam: float) -> float:
    return least_objective("hinge", 0.0, matrix.toarray().astype(np.float64), labels, lam, np.ones(len(labels)))


# --- each as if it were alone -------------------------------------------------------------------


def rows_in(coding: str, values: str) -> tuple[sp.csr_matrix, np.ndarray]:
    """Rows that a store puts in these codings by itself."""
    features = {"gap8": 60, "gap16": 5000, "uint32": 1_000_000}[coding]
    matrix, _labels = random_rows(300, features, 1, 6 / features)
    if values == "code8":
        matrix.data = np.random.default_rng(2).choice(np.array([-1.5, 0.25, 2], np.float32), len(matrix.data))
    elif values == "ones":
        matrix.data[:] = 1
    score = matrix @ np.random.default_rng(3).standard_normal(features)
    return matrix, np.where(score + np.random.default_rng(4).standard_normal(300) > 0, 1, -1)


def assert_as_if_separate(store: Store, lambdas: tuple[float, ...], windows: str, **options: object) -> None:
    options = {"holdout": 0.2, **FOLLOWED, **options}

    def config(lam: float | tuple[float, ...], models: int) -> TrainConfig:
        found = TrainConfig(lam=lam, refit=False, **options)
        return dataclasses.replace(found, memory=memory_of(store, found, models)) if windows == "several" else found

    joint, best = train_and_record(store, config(lambdas, len(lambdas)))
    assert len(joint.models) == len(best) == len(lambdas)
    assert (joint.windows > 1) == (windows == "several")
    for number, lam in enumerate(lambdas):
        separate, weights = train_and_record(store, config(lam, 1))
        assert separate.windows == joint.windows
        assert best[number].tobytes() == weights[0].tobytes()
        assert joint.models[number].history == separate.models[0].history
        assert joint.models[number].certificate == separate.models[0].certificate
        assert joint.models[number].holdout == separate.models[0].holdout


@pytest.mark.parametrize(
    ("algorithm", "number", "windows"), covering(["sdca", "sgd-s"], [2, 3, 8, 9, 17], ["one", "several"])
)
def test_models_in_a_panel_are_those_trained_alone(tmp_path, algorithm, number, windows):
    matrix, labels = rows_in("gap8", "float32")
    store = store_of(tmp_path, matrix, labels, chunk_size=1500)
    lambdas = LAMBDAS[:number] if number < 10 else tuple(np.geomspace(3.0, 0.005, number).tolist())
    assert_as_if_separate(store, lambdas, windows, algorithm=algorithm)


@pytest.mark.parametrize("options", [{"bias": "feature", "bias_scale": 3.0}, {"loss": "logistic"}], ids=str)
@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s"])
def test_panels_with_another_loss_or_a_bias(tmp_path, algorithm, options):
    matrix, labels = rows_in("gap8", "float32")
    store = store_of(tmp_path, matrix, labels, chunk_size=1500)
    assert_as_if_separate(store, LAMBDAS[2:5], "several", algorithm=algorithm, class_weight=(2.0, 0.3), **options)


@pytest.mark.slow
@pytest.mark.parametrize(("coding", "values"), [("gap8", "ones"), ("gap16", "float32"), ("uint32", "code8")])
@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s"])
def test_panels_with_other_codings(tmp_path, algorithm, coding, values):
    matrix, labels = rows_in(coding, values)
    store = store_of(tmp_path, matrix, labels)
    layout = store.manifest.layout
    assert (layout.index_coding, layout.values or "ones") == (coding, values)
    assert_as_if_separate(store, LAMBDAS[2:5], "one", algorithm=algorithm)


def test_panels_with_weights_of_rows(tmp_path):
    matrix, labels = rows_in("gap8", "float32")
    path = tmp_path / "weights.txt"
    path.write_text("".join(f"{weight}\n" for weight in np.random.default_rng(5).exponential(size=300) + 0.01))
    store = store_of(tmp_path, matrix, labels, chunk_size=2500, weights=str(path))
    for algorithm in ("sdca", "sgd-s"):
        assert_as_if_separate(store, LAMBDAS[2:5], "several", algorithm=algorithm)


@pytest.mark.parametrize("sampling", ["fixed", "sequential", "iid"])
def test_panels_in_other_orders(tmp_path, sampling):
    """Also where a row may come several times an epoch."""
    matrix, labels = rows_in("gap8", "float32")
    store = store_of(tmp_path, matrix, labels)
    assert_as_if_separate(store, LAMBDAS[2:5], "one", algorithm="sdca", sampling=sampling)


@pytest.mark.parametrize("windows", ["one", "several"])
@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s"])
def test_results_do_not_depend_on_the_run_or_threads(tmp_path, algorithm, windows):
    matrix, labels = rows_in("gap8", "float32")
    store = store_of(tmp_path, matrix, labels, chunk_size=1500)
    found = []
    for threads in (None, 1, 1, 3):
        config = TrainConfig(lam=LAMBDAS[:4], algorithm=algorithm, threads=threads, refit=False, **FOLLOWED)
        memory = memory_of(store, config, 4) if windows == "several" else None
        _result, best = train_and_record(store, dataclasses.replace(config, memory=memory))
        found.append([weights.tobytes() for weights in best.values()])
    assert all(weights == found[0] for weights in found)


@pytest.mark.slow
@pytest.mark.parametrize("windows", ["one", "several"])
@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s"])
def test_finished_models_do_not_affect_others(tmp_path, algorithm, windows):
    """Nine become fewer at every width of a panel, down to one by one."""
    matrix, labels = rows_in("gap8", "float32")
    store = store_of(tmp_path, matrix, labels, chunk_size=1500)
    tolerance = 1e-3 if algorithm == "sdca" else 0.05
    options = {"algorithm": algorithm, "tolerance": tolerance, "max_epochs": 200}
    assert_as_if_separate(store, LAMBDAS, windows, **options)
    epochs = [model.epochs for model in train(store, TrainConfig(lam=LAMBDAS, refit=False, **options)).models]
    assert len(set(epochs)) > 4, epochs


@pytest.mark.parametrize("windows", ["one", "several"])
def test_repeated_updates_for_models_with_a_large_gap(tmp_path, windows):
    """Each model of a panel has its own gap, and so its own epochs of repeated updates."""
    matrix, labels = rows_in("gap8", "float32")
    store = store_of(tmp_path, matrix, labels, chunk_size=1500)
    options = {"algorithm": "sgd-m", "tolerance": 0.02, "max_epochs": 12}
    assert_as_if_separate(store, LAMBDAS[:5], windows, **options)
    found = train(store, TrainConfig(lam=LAMBDAS[:5], refit=False, **options)).models
    repeats = [[entry.counts["repeats"] for entry in model.history] for model in found]
    assert {5} < {*repeats[0], *repeats[4]}
    assert repeats[0][:2] != repeats[4][:2]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"bias": "unregularized"}, {"bias": "batch", "batch_size": 16}], ids=str)
def test_models_finished_without_a_certificate(tmp_path, options):
    """Candidates of its last epoch, which would be measured with the next epoch, are dropped."""
    matrix, labels = rows_in("gap8", "float32")
    store = store_of(tmp_path, matrix, labels, chunk_size=1500)
    options = {"algorithm": "pegasos", "max_epochs": 30, **options}
    assert_as_if_separate(store, LAMBDAS, "several", **options)
    config = TrainConfig(lam=LAMBDAS, holdout=0.2, refit=False, **options)
    result = train(store, dataclasses.replace(config, memory=memory_of(store, config, len(LAMBDAS))))
    assert len({model.epochs for model in result.models}) > 1


def test_more_than_256_epochs(tmp_path):
    """Epochs of re-activation are stored modulo 256, in panels and for separate models."""
    matrix, labels = rows_in("gap8", "float32")
    store = store_of(tmp_path, matrix, labels)
    options = {"algorithm": "sdca", "tolerance": 1e-15, "max_epochs": 530}
    assert_as_if_separate(store, (1e-4, 3e-5, 1e-5), "one", **options)
    history = train(store, TrainConfig(lam=1e-5, **options)).model.info.history
    visited = {entry.epoch: entry.counts["visited"] for entry in history}
    assert all(visited[epoch] == 300 for epoch in visited if epoch % 16 == 1)
    assert min(visited[epoch] for epoch in visited if epoch > 256) < 250


def test_models_of_a_run_converge_together(tmp_path):
    """`converged` speaks of all; the largest lambda is done first and waits for nobody."""
    matrix, labels = rows_in("gap8", "float32")
    store = store_of(tmp_path, matrix, labels)
    both = {"lam": (1e-3, 1.0), "tolerance": 1e-3, "refit": False}
    result = train(store, TrainConfig(**both, max_epochs=1000))
    assert result.converged
    assert [model.certificate.converged for model in result.models] == [True, True]
    assert result.models[1].epochs < result.models[0].epochs
    short = train(store, TrainConfig(**both, max_epochs=result.models[1].epochs))
    assert (short.converged, short.stopped_by) == (False, "epochs")
    assert [model.certificate.converged for model in short.models] == [False, True]


OF_PEGASOS = [
    {"algorithm": "sgd-m"},
    {"algorithm": "pegasos", "sampling": "permutation"},
    {"batch_size": 4},
    {"project": True},
    {"average": True},
    {"delay": 10.0},
]


@pytest.mark.parametrize("options", OF_PEGASOS, ids=str)
def test_a_holdout_supports_all_options(tmp_path, options):
    """A run with a holdout equals a run on a store without the holdout rows."""
    matrix, labels = rows_in("gap8", "float32")
    apart = np.array([splitmix(row) / 2**53 < 0.2 for row in range(300)])
    chosen = {"lam": 0.01, "sampling": "sequential", "threads": 1, **FOLLOWED, **options}
    if "algorithm" not in options:
        chosen["algorithm"] = "sgd-s"
    with_holdout = train(store_of(tmp_path, matrix, labels), TrainConfig(**chosen, holdout=0.2))
    without = train(store_of(tmp_path, matrix[~apart], labels[~apart]), TrainConfig(**chosen))
    if "delay" in options:  # else it depends on the largest row, which may be apart
        np.testing.assert_allclose(with_holdout.model.weights, without.model.weights, rtol=1e-12)
    kept = with_holdout.model.info.certificate
    exact = hinge_objective(with_holdout.model.weights, matrix[~apart], labels[~apart], 0.01)
    assert kept.primal == pytest.approx(exact, rel=1e-9)
    assert kept.lower_bound <= svm_optimum(matrix[~apart], labels[~apart], 0.01) * (1 + 1e-7)


def test_a_holdout_keeps_averages(tmp_path):
    """The average of an epoch is a candidate if lambda is small, with a holdout as well."""
    matrix, labels = rows_in("gap8", "float32")
    largest = np.argmax(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
    apart = np.array([splitmix(row) / 2**53 < 0.2 for row in range(300)])
    assert not apart[largest]  # so the delay is the same
    chosen = {"lam": 0.02, "sampling": "sequential", "algorithm": "sgd-s", "tolerance": 1e-12, "max_epochs": 15}
    with_holdout = train(store_of(tmp_path, matrix, labels), TrainConfig(**chosen, holdout=0.2))
    without = train(store_of(tmp_path, matrix[~apart], labels[~apart]), TrainConfig(**chosen))
    np.testing.assert_allclose(with_holdout.model.weights, without.model.weights, rtol=1e-9)


# --- folds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("windows", ["one", "several"])
@pytest.mark.parametrize(("algorithm", "tolerance"), [("sdca", 1e-6), ("sgd-s", 0.02)])
def test_folds(tmp_path, algorithm, tolerance, windows):
    matrix, labels = rows_in("gap8", "float32")
    store = store_of(tmp_path, matrix, labels, chunk_size=1500)
    lambdas = (0.3, 0.05, 0.1)
    same = {"select_by": "loss", "refit": False, "max_epochs": 1000}
    config = TrainConfig(lam=lambdas, folds=4, algorithm=algorithm, tolerance=tolerance, **same)
    if windows == "several":
        config = dataclasses.replace(config, memory=memory_of(store, config, 15))
    result, best = train_and_record(store, config)
    assert result.converged
    assert (result.windows > 1) == (windows == "several")
    fold_of = np.array([splitmix(row) * 4 >> 53 for row in range(300)])
    assert set(fold_of) == {0, 1, 2, 3}
    losses_of: dict[float, list[tuple[float, float, int]]] = {lam: [] for lam in lambdas}
    for number, model in enumerate(result.models):
        kept = fold_of != model.fold if model.fold is not None else np.ones(300, bool)
        x, y, weights = matrix[kept], labels[kept], best[number]
        found, exact = model.certificate, svm_optimum(x, y, model.lam)
        assert found.lower_bound <= exact * (1 + 1e-7)
        assert found.primal == pytest.approx(hinge_objective(weights, x, y, model.lam), rel=1e-9)
        assert found.gap <= tolerance
        if model.fold is None:
            assert model.holdout is None
            continue
        scores = matrix[~kept].astype(np.float64) @ weights
        assert model.holdout.loss == pytest.approx(np.maximum(0, 1 - labels[~kept] * scores).mean())
        assert model.holdout.error == pytest.approx(((scores > 0) != (labels[~kept] > 0)).mean())
        losses_of[model.lam].append((model.holdout.loss, model.holdout.error, int((~kept).sum())))
    assert [(model.lam, model.fold) for model in result.models] == [
        (lam, fold) for lam in lambdas for fold in (0, 1, 2, 3, None)
    ]
    for trial, lam in zip(result.trials, lambdas, strict=True):
        loss, error, rows = np.array(losses_of[lam]).T
        assert trial.lam == lam
        assert trial.loss == pytest.approx(float(loss @ rows) / 300)
        assert trial.error == pytest.approx(float(error @ rows) / 300)
        assert trial.deviation == pytest.approx(loss.std(ddof=1) / 2, rel=0.05)  # folds are not all of one size
    chosen = min(result.trials, key=lambda trial: trial.loss).lam
    assert result.model.info.lam == chosen
    last = best[5 * lambdas.index(chosen) + 4]
    assert result.model.weights.tobytes() == last.tobytes()  # of all rows
    assert result.model.info.certificate.primal == pytest.approx(
        hinge_objective(last, matrix, labels, chosen), rel=1e-9
    )


def test_a_held_out_fold_is_a_store_without_it(tmp_path):
    """The rows of a fold must not move anything, whatever they hold."""
    matrix, labels = rows_in("gap8", "float32")
    fold_of = np.array([splitmix(row) * 3 >> 53 for row in range(300)])
    other = labels.copy()
    other[fold_of == 1] *= -1
    for algorithm in ("sdca", "sgd-s"):
        found = []
        for these in (labels, other):
            store = store_of(tmp_path, matrix, these)
            _result, best = train_and_record(store, TrainConfig(lam=0.05, folds=3, algorithm=algorithm, **FOLLOWED))
            found.append(best)
        assert found[0][1].tobytes() == found[1][1].tobytes()
        assert found[0][0].tobytes() != found[1][0].tobytes()


def test_more_folds_than_rows(tmp_path):
    matrix, labels = random_rows(12, 9, 21, 0.5)
    with pytest.raises(UsageError, match="fold without rows"):
        train(store_of(tmp_path, matrix, labels), TrainConfig(lam=0.1, folds=50))


# --- one class against the rest -----------------------------------------------------------------


def classes_of(number: int, seed: int, rows: int = 240) -> tuple[sp.csr_matrix, np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((number, 8)) * 1.5
    labels = rng.integers(0, number, rows)
    return sp.csr_matrix((centres[labels] + rng.standard_normal((rows, 8))).astype(np.float32)), labels + 3


@pytest.mark.slow
@pytest.mark.parametrize("windows", ["one", "several"])
@pytest.mark.parametrize("loss", ["hinge", "logistic"])
@pytest.mark.parametrize(("algorithm", "tolerance"), [("sdca", 1e-5), ("sgd-s", 0.02)])
@pytest.mark.parametrize("number", [3, 5])
def test_one_versus_rest(tmp_path, number, algorithm, tolerance, loss, windows):
    matrix, labels = classes_of(number, 1)
    store = store_of(tmp_path, matrix, labels, classes=(), task="multiclass", chunk_size=2500)
    config = TrainConfig(lam=0.02, loss=loss, algorithm=algorithm, tolerance=tolerance, max_epochs=2000)
    if windows == "several":
        config = dataclasses.replace(config, memory=memory_of(store, config, number))
    result = train(store, config)
    assert result.converged
    assert result.model.weights.shape == (8, number)
    x = matrix.toarray().astype(np.float64)
    total = [0.0, 0.0]
    for column, model in enumerate(result.models):
        assert model.one_class == str(column + 3)
        y = np.where(labels == column + 3, 1, -1)
        exact = least_objective(loss, 0.0, x, y, 0.02, np.ones(len(y)))
        found = primal(loss, 0.0, x, y, 0.02, np.ones(len(y)), result.model.weights[:, column])
        assert model.certificate.primal == pytest.approx(found, rel=1e-9)
        assert model.certificate.lower_bound <= exact * (1 + 1e-7)
        assert found <= exact * (1 + 1e-7) / (1 - tolerance)
        total = [total[0] + model.certificate.lower_bound, total[1] + found]
    kept = result.model.info.certificate
    assert [kept.lower_bound, kept.primal] == pytest.approx(total)
    assert kept.gap == pytest.approx((total[1] - total[0]) / total[1])
    predicted = result.model.predict(matrix)
    assert np.array_equal(predicted, (x @ result.model.weights).argmax(axis=1) + 3)
    assert (predicted == labels).mean() > 0.7


def test_classes_and_lambdas_and_a_bias(tmp_path):
    """Every class has the lambda that is best for all of them together, and a bias of its own."""
    matrix, labels = classes_of(4, 2)
    store = store_of(tmp_path, matrix, labels, classes=(), task="multiclass")
    lambdas = (1.0, 0.01, 0.1)
    same = {"tolerance": 1e-4, "max_epochs": 2000, "holdout": 0.3, "select_by": "loss", "refit": False}
    config = TrainConfig(lam=lambdas, bias="feature", bias_scale=2.0, **same)
    result, best = train_and_record(store, config)
    apart = np.array([splitmix(row) / 2**53 < 0.3 for row in range(len(labels))])
    x = np.column_stack([matrix.toarray().astype(np.float64), np.full(len(labels), 2.0)])
    for number, lam in enumerate(lambdas):
        found, errors = [], []
        for column in range(4):
            y = np.where(labels == column + 3, 1, -1)
            model, weights = result.models[4 * number + column], best[4 * number + column]
            assert (model.lam, model.one_class) == (lam, str(column + 3))
            exact = least_objective("hinge", 0.0, x[~apart], y[~apart], lam, np.ones((~apart).sum()))
            assert model.certificate.lower_bound <= exact * (1 + 1e-7)
            assert model.certificate.primal <= exact * (1 + 1e-3)
            found.append(np.maximum(0, 1 - y[apart] * (x[apart] @ weights)).mean())
            errors.append(((x[apart] @ weights > 0) != (y[apart] > 0)).mean())
            assert vars(model.holdout) == pytest.approx({"loss": found[-1], "error": errors[-1]})
        assert result.trials[number].loss == pytest.approx(np.mean(found))
        assert result.trials[number].error is None  # that of the class which is chosen is another
    chosen = min(range(3), key=lambda number: result.trials[number].loss)
    assert result.model.info.lam == lambdas[chosen]
    of_all = np.stack([best[4 * chosen + column] for column in range(4)], axis=1)
    assert np.array_equal(result.model.weights, of_all[:-1])
    np.testing.assert_allclose(result.model.bias, of_all[-1] * 2.0, rtol=1e-15)
    np.testing.assert_allclose(result.model.decision_function(matrix), x @ of_all, rtol=1e-9, atol=1e-9)
    wrong = (x[apart] @ of_all).argmax(axis=1) + 3 != labels[apart]
    assert vars(result.holdout) == pytest.approx({"loss": result.trials[chosen].loss, "error": wrong.mean()})


def test_folds_of_classes(tmp_path):
    """The standard error is that across folds, not across classes."""
    matrix, labels = classes_of(3, 4)
    store = store_of(tmp_path, matrix, labels, classes=(), task="multiclass")
    result = train(store, TrainConfig(lam=(0.1, 0.01), folds=4, tolerance=1e-3, max_epochs=1000, refit=False))
    rows = np.bincount([splitmix(row) * 4 >> 53 for row in range(len(labels))])
    for trial in result.trials:
        of_it = [model for model in result.models if model.lam == trial.lam and model.fold is not None]
        losses_of = [np.mean([m.holdout.loss for m in of_it if m.fold == fold]) for fold in range(4)]
        assert trial.loss == pytest.approx(np.average(losses_of, weights=rows))
        assert trial.deviation == pytest.approx(np.std(losses_of, ddof=1) / 2, rel=0.1)
    assert result.model.weights.shape == (8, 3)


def test_balanced_classes_one_by_one(tmp_path):
    matrix, labels = classes_of(3, 3)
    labels = np.where(np.arange(len(labels)) % 3 > 0, 3, labels)
    store = store_of(tmp_path, matrix, labels, classes=(), task="multiclass")
    result = train(store, TrainConfig(lam=0.05, class_weight="balanced", tolerance=1e-5, max_epochs=2000))
    x = matrix.toarray().astype(np.float64)
    for column, model in enumerate(result.models):
        y = np.where(labels == column + 3, 1, -1)
        c = len(y) / (2 * np.where(y > 0, (y > 0).sum(), (y < 0).sum()))
        exact = least_objective("hinge", 0.0, x, y, 0.05, c)
        assert model.certificate.lower_bound <= exact * (1 + 1e-7)
        assert exact * (1 - 1e-7) <= model.certificate.primal <= exact * (1 + 1e-4)


# --- lambdas ------------------------------------------------------------------------------------


def test_lambdas_as_they_are_written():
    assert parse_lambdas("1e-4") == (1e-4,)
    assert parse_lambdas("1e-4,0.5, 3") == (1e-4, 0.5, 3.0)
    for text in ("1e-7:1e-3:9", "1e-3:1e-7:9"):
        path = parse_lambdas(text)
        assert (path[0], path[-1]) == (1e-3, 1e-7)
        assert path == pytest.approx([10.0 ** (-3 - number / 2) for number in range(9)])
    assert parse_lambdas("1:2:2") == (2.0, 1.0)
    for text in ("", "x", "1:2", "1:2:3:4", "1:2:1", "1:2:x", "0:1:3", "-1:1:3", "1:1:3", "1:inf:3", "nan:1:3", "1,,2"):
        with pytest.raises(UsageError, match="not understood"):
            parse_lambdas(text)
    for text in ("0", "-1", "1,1", "inf"):
        with pytest.raises(UsageError):
            TrainConfig(lam=text)
    with pytest.raises(UsageError, match="4096"):
        TrainConfig(lam="1e-3:1:4097")


@pytest.mark.parametrize("lam", [1, np.float64(1), [1.0], (1,), "1"], ids=repr)
def test_one_lambda_of_any_kind(tmp_path, lam):
    matrix, labels = random_rows(40, 9, 21, 0.5)
    assert train(store_of(tmp_path, matrix, labels), TrainConfig(lam=lam)).model.info.lam == 1.0


def test_without_a_lambda_eight_are_tried(tmp_path):
    matrix, labels = rows_in("gap8", "float32")
    store = store_of(tmp_path, matrix, labels)
    result, best = train_and_record(store, TrainConfig(tolerance=1e-3, bias="none", refit=False, select_by="loss"))
    apart = np.array([splitmix(row) / 2**53 < 0.1 for row in range(300)])
    assert 10 < apart.sum() < 50
    lambdas = [model.lam for model in result.models]
    assert len(lambdas) == 8
    ratios = np.array(lambdas[:-1]) / np.array(lambdas[1:])
    np.testing.assert_allclose(ratios, ratios[0])
    # from a row that may move its own margin by a hundredth to one that may move it by ten
    square = store.manifest.statistics.mean_row_norm**2
    assert [square / (lam * (~apart).sum()) for lam in (lambdas[0], lambdas[-1])] == pytest.approx([0.01, 10.0])
    for number, model in enumerate(result.models):
        exact = svm_optimum(matrix[~apart], labels[~apart], model.lam)
        assert model.certificate.lower_bound <= exact * (1 + 1e-7)
        assert model.certificate.primal >= exact * (1 - 1e-7)
        assert model.certificate.gap <= 1e-3
        scores = matrix[apart].astype(np.float64) @ best[number]
        loss = np.maximum(0, 1 - labels[apart] * scores)
        assert result.trials[number].loss == pytest.approx(loss.mean())
        assert result.trials[number].deviation == pytest.approx(loss.std() / np.sqrt(apart.sum()))
        assert result.trials[number].error == pytest.approx(((scores > 0) != (labels[apart] > 0)).mean())
    least = min(trial.loss for trial in result.trials)
    assert [trial.loss for trial in result.trials if trial.lam == result.model.info.lam] == [least]
    assert result.model.weights.tobytes() == best[lambdas.index(result.model.info.lam)].tobytes()
    assert [trial.lam for trial in result.model.info.trials] == lambdas


def test_a_best_lambda_at_an_end_of_the_path_is_noted(tmp_path):
    matrix, labels = random_rows(300, 40, 3)
    store = store_of(tmp_path, matrix, labels)
    for refit in (True, False):
        notes = train(store, TrainConfig(lam=(3e3, 1e3, 300.0), holdout=0.2, refit=refit, select_by="loss")).notes
        assert notes == ["the smallest lambda was best; try smaller ones: --lambda 3:3e+02:5"]
    parse_lambdas("3:3e+02:5")


def test_the_largest_lambda_within_a_standard_error(tmp_path):
    matrix, labels = rows_in("gap8", "float32")
    store = store_of(tmp_path, matrix, labels)
    path = {"lam": "0.0003:3:9", "holdout": 0.3, "select_by": "loss", "refit": False}
    found = train(store, TrainConfig(**path, select="1se"))
    best = min(found.trials, key=lambda trial: trial.loss)
    enough = best.loss + best.deviation
    assert found.model.info.lam == max(trial.lam for trial in found.trials if trial.loss <= enough) > best.lam
    assert train(store, TrainConfig(**path)).model.info.lam == best.lam


@given(
    st.lists(
        st.tuples(st.sampled_from([0.001, 0.01, 0.1, 1.0, 10.0]), st.integers(0, 5), st.integers(0, 3)),
        min_size=1,
        max_size=8,
        unique_by=lambda trial: trial[0],
    )
)
def test_which_lambda_is_kept(told):
    trials = [Trial(lam, loss, deviation, None) for lam, loss, deviation in told]
    least = min(trial.loss for trial in trials)
    of_best = [trial for trial in trials if trial.loss == least]
    best = next(trial for trial in of_best if trial.lam == max(other.lam for other in of_best))
    assert trials[choose(trials, "best")] == best
    within = [trial.lam for trial in trials if trial.loss <= best.loss + best.deviation]
    assert trials[choose(trials, "1se")].lam == max(within)


# --- interrupted and resumed --------------------------------------------------------------------


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several slices an epoch, although there are few rows."""
    monkeypatch.setattr("ooc_pegasos.solvers.base.SLICE_ENTRIES", 500)


def run_of(store: Store, windows: str, **options: object) -> TrainConfig:
    config = TrainConfig(algorithm="sdca", refit=False, **{"max_epochs": 5, "tolerance": 1e-12, **options})
    models = 4 if config.folds is None else 2 * (config.folds + 1)
    return dataclasses.replace(config, memory=memory_of(store, config, models) if windows == "several" else None)


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def store_of_small_chunks(folder: Path) -> Store:
    matrix, labels = rows_in("gap8", "float32")
    return store_of(folder, matrix, labels, chunk_size=2000)


@pytest.mark.slow
@pytest.mark.parametrize("windows", ["one", "several"])
@pytest.mark.parametrize("options", [{"lam": LAMBDAS[1:5]}, {"lam": LAMBDAS[1:3], "folds": 3}], ids=str)
@pytest.mark.usefixtures("small_slices")
def test_interrupted_anywhere_and_resumed_to_the_same_bytes(tmp_path, options, windows):
    store = store_of_small_chunks(tmp_path)
    config = run_of(store, windows, **options)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    whole, best = train_and_record(store, config, scratch=scratch)
    whole.model.save(tmp_path / "whole.model")
    assert files_of(scratch) == []
    interrupted = 0
    for at in range(1, 200, 1 if windows == "one" else 5):
        place = tmp_path / f"checkpoint-{at}"
        with pytest.MonkeyPatch.context() as patched:
            interrupt_at_check(patched, at)
            try:
                train(store, config, checkpoint=place, scratch=scratch)
                break
            except KeyboardInterrupt:
                interrupted += 1
        assert files_of(scratch) == []
        assert len(files_of(place)) == 3, files_of(place)  # the lock, the checkpoint and its rows
        again, best_again = train_and_record(store, config, checkpoint=place, resume=True, scratch=scratch)
        assert files_of(scratch) == []
        again.model.save(tmp_path / "again.model")
        assert (tmp_path / "again.model").read_bytes() == (tmp_path / "whole.model").read_bytes()
        assert all(best[model].tobytes() == best_again[model].tobytes() for model in best)
        assert again.models == whole.models
    assert interrupted > 5


@pytest.mark.parametrize("windows", ["one", "several"])
@pytest.mark.parametrize("slices", [1, 2, 3, 5, 8])
@pytest.mark.usefixtures("small_slices")
def test_interrupted_by_a_signal(tmp_path, slices, windows):
    store = store_of_small_chunks(tmp_path)
    config = run_of(store, windows, lam=LAMBDAS[1:5])
    whole = train(store, config)
    with interrupted_after(slices):
        train(store, config, checkpoint=tmp_path / "c")
    again = train(store, dataclasses.replace(config, memory=None), checkpoint=tmp_path / "c", resume=True)
    assert again.model.weights.tobytes() == whole.model.weights.tobytes()
    assert again.model.info == whole.model.info
    assert again.models == whole.models


@pytest.mark.parametrize("windows", ["one", "several"])
def test_interrupted_before_the_first_row(tmp_path, monkeypatch, windows):
    """Nothing is known of any row yet when the first window is still on its way."""
    store = store_of_small_chunks(tmp_path)
    config = run_of(store, windows, lam=LAMBDAS[1:5])
    whole = train(store, config)

    def prepare(loader, plan, real=Loader.prepare):
        time.sleep(0.2)
        return real(loader, plan)

    with monkeypatch.context() as patched:
        patched.setattr(Loader, "prepare", prepare)
        interrupt_at_check(patched, 1)
        with pytest.raises(KeyboardInterrupt):
            train(store, config, checkpoint=tmp_path / "c")
    # memory that was used for something else, as it is in a real process
    rubbish = [np.full(1 << number, 0.7, np.float32) for number in range(6, 16) for _ in range(4)]
    del rubbish
    again = train(store, config, checkpoint=tmp_path / "c", resume=True)
    assert again.models == whole.models
    assert again.model.weights.tobytes() == whole.model.weights.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("windows", ["one", "several"])
@pytest.mark.usefixtures("small_slices")
def test_repeated_interruptions(tmp_path, windows):
    store = store_of_small_chunks(tmp_path)
    config = run_of(store, windows, lam=LAMBDAS[1:5], max_epochs=12)
    whole = train(store, config)
    place, found, interrupted = tmp_path / "c", None, 0
    while found is None:
        with pytest.MonkeyPatch.context() as patched:
            interrupt_at_check(patched, 8 if windows == "one" else 30)  # a pass that measures has to be made at once
            try:
                found = train(store, config, checkpoint=place, resume=True)
            except KeyboardInterrupt:
                interrupted += 1
                assert interrupted < 300
                assert len(files_of(place)) == 3, files_of(place)
    assert found.models == whole.models
    assert interrupted > 1


def slow_store(folder: Path) -> Store:
    """Rows of very different norms, with which Pegasos gets nowhere."""
    matrix, labels = rows_in("gap8", "float32")
    dense = matrix.toarray()
    dense[::7] *= 20
    return store_of(folder, sp.csr_matrix(dense), labels)


@pytest.mark.usefixtures("small_slices")
def test_interrupted_around_the_change_of_algorithm(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "PEGASOS_FROM", 0.0)
    store = slow_store(tmp_path)
    config = TrainConfig(lam=(3.0, 1.0, 0.7), tolerance=0.02, refit=False)
    whole, best = train_and_record(store, config)
    assert whole.algorithm == "sdca"
    assert "Pegasos" in whole.why_algorithm
    interrupted = 0
    for at in range(1, 100):
        place = tmp_path / f"c{at}"
        with pytest.MonkeyPatch.context() as patched:
            interrupt_at_check(patched, at)
            try:
                train(store, config, checkpoint=place)
                break
            except KeyboardInterrupt:
                interrupted += 1
        again, best_again = train_and_record(store, config, checkpoint=place, resume=True)
        assert again.models == whole.models
        assert (again.algorithm, again.notes) == (whole.algorithm, whole.notes)
        assert all(best[model].tobytes() == best_again[model].tobytes() for model in best)
    assert interrupted > 8


def test_the_history_after_a_change_of_the_algorithm(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "PEGASOS_FROM", 0.0)
    result = train(slow_store(tmp_path), TrainConfig(lam=0.5, tolerance=0.02))
    assert result.algorithm == "sdca"
    columns = set().union(*(record.table() for record in result.model.info.history))
    assert {"margin_errors", "visited"} <= columns
    assert set(result.history.column_names) == columns


@pytest.mark.usefixtures("small_slices")
def test_finished_models_stay_finished_after_a_resume(tmp_path):
    store = store_of_small_chunks(tmp_path)
    config = run_of(store, "one", lam=LAMBDAS, tolerance=1e-3, max_epochs=1000)
    whole = train(store, config)
    assert len({model.epochs for model in whole.models}) > 3
    for at in (12, 20, 30):
        with pytest.MonkeyPatch.context() as patched:
            interrupt_at_check(patched, at)
            with pytest.raises(KeyboardInterrupt):
                train(store, config, checkpoint=tmp_path / f"{at}")
        again = train(store, config, checkpoint=tmp_path / f"{at}", resume=True)
        assert again.models == whole.models
        assert again.model.weights.tobytes() == whole.model.weights.tobytes()


@pytest.mark.parametrize("windows", ["one", "several"])
def test_a_damaged_checkpoint_of_rows_is_refused(tmp_path, windows):
    store = store_of_small_chunks(tmp_path)
    config = run_of(store, windows, lam=LAMBDAS[1:5], checkpoint_epochs=1)
    place, scratch = tmp_path / "c", tmp_path / "scratch"
    scratch.mkdir()
    train(store, config, checkpoint=place)
    (path,) = place.glob("rows-*.checkpoint")
    content = path.read_bytes()
    rng = np.random.default_rng(1)
    flipped = []
    for place_of_byte in rng.integers(len(content), size=20):
        damaged = bytearray(content)
        damaged[place_of_byte] ^= 1 << rng.integers(8)
        flipped.append(bytes(damaged))
    before = files_of(place)
    for damaged in (*flipped, content[:-1], content + b"x", b""):
        path.write_bytes(damaged)
        with pytest.raises(CorruptFileError) as refused:
            train(store, config, checkpoint=place, resume=True)
        assert refused.value.exit_code == 5
        assert files_of(place) == before  # nothing is left beside it
        with pytest.raises(CorruptFileError):
            train(store, config, checkpoint=place, resume=True, scratch=scratch)
        assert files_of(scratch) == []
    path.unlink()
    with pytest.raises(CorruptFileError, match=r"rows-\d+\.checkpoint"):
        train(store, config, checkpoint=place, resume=True)


@pytest.mark.slow
def test_a_damaged_checkpoint_of_rows_by_command(oocpeg, tmp_path):
    store_of_small_chunks(tmp_path)
    words = [
        "train",
        "store",
        "-o",
        "m",
        "--lambda",
        "1,0.1,0.01",
        "--no-refit",
        "--tolerance",
        "1e-9",
        "--max-epochs",
        "2",
    ]
    words += ["--algorithm", "sdca", "--checkpoint", "c", "--checkpoint-epochs", "1", "--force"]
    oocpeg(*words, code=4)
    (path,) = (tmp_path / "c").glob("rows-*.checkpoint")
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    done = oocpeg(*words, "--resume", code=5)
    assert path.name in done.stderr


def test_a_failed_run_leaves_no_files(tmp_path, monkeypatch):
    store = store_of_small_chunks(tmp_path)
    config = run_of(store, "several", lam=LAMBDAS[1:5])
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    count = []

    def fail(_rows: int) -> None:
        count.append(1)
        assert files_of(scratch) == []  # nor would anything be if it were killed now
        assert str(scratch) in Path("/proc/self/maps").read_text()  # files without names
        if len(count) == 5:
            raise RuntimeError("out of luck")

    with monkeypatch.context() as patched:
        around_present(patched, fail)
        with pytest.raises(RuntimeError, match="out of luck"):
            train(store, config, scratch=scratch)
    assert files_of(scratch) == []
    with monkeypatch.context() as patched:
        interrupt_at_check(patched, 5)
        with pytest.raises(KeyboardInterrupt):
            train(store, config, scratch=scratch)
    assert files_of(scratch) == []
    train(store, config, checkpoint=tmp_path / "c")
    assert files_of(tmp_path / "c") == ["lock"]  # none was asked for before its time


def test_row_states_of_an_unfinished_checkpoint_are_removed(tmp_path):
    """A run that was killed between writing its rows and its checkpoint leaves rows that nobody speaks of."""
    store = store_of_small_chunks(tmp_path)
    config = run_of(store, "several", lam=LAMBDAS[1:5])
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "rows-7.checkpoint").write_bytes(bytes(1000))
    with pytest.MonkeyPatch.context() as patched:
        interrupt_at_check(patched, 5)
        with pytest.raises(KeyboardInterrupt):
            train(store, config, checkpoint=tmp_path / "c", resume=True)
    assert files_of(tmp_path / "c") == ["lock", "rows-8.checkpoint", "training.checkpoint"]


def test_row_states_of_older_checkpoints_are_removed(tmp_path):
    """A run killed between its last checkpoint and taking away the one before goes on with nothing to do."""
    store = store_of_small_chunks(tmp_path)
    config = run_of(store, "several", lam=LAMBDAS[1:5], max_epochs=3, checkpoint_epochs=1)
    train(store, config, checkpoint=tmp_path / "c")
    before = files_of(tmp_path / "c")
    (tmp_path / "c" / "rows-1.checkpoint").write_bytes(bytes(1000))
    train(store, config, checkpoint=tmp_path / "c", resume=True)
    assert files_of(tmp_path / "c") == before == ["lock", "rows-3.checkpoint", "training.checkpoint"]


def test_a_scratch_folder_that_is_not_there(tmp_path):
    store = store_of_small_chunks(tmp_path)
    config = run_of(store, "several", lam=LAMBDAS[1:5])
    with pytest.raises(OocPegasosError, match="nowhere"):
        train(store, config, scratch=tmp_path / "nowhere")


# --- indices that are too large -----------------------------------------------------------------


@pytest.mark.parametrize("memory", ["all", "least"])
def test_slow_pegasos_is_replaced(tmp_path, monkeypatch, memory):
    """Not for what was asked for by name; the limit is that of what goes on; and a resumed run knows of it."""
    matrix, labels = random_rows(400, 60, 31)
    store = store_of(tmp_path, matrix, labels, chunk_size=2100)
    monkeypatch.setattr(registry, "PEGASOS_FROM", 0.0)
    budget = (1 << 30) if memory == "all" else 3 * least_memory(store)
    config = TrainConfig(lam=(2e-4, 1e-2), tolerance=1e-3, memory=budget, refit=False)
    whole = train(store, config)
    assert whole.algorithm == whole.model.info.algorithm == "sdca"
    assert "3 epochs of Pegasos" in whole.why_algorithm
    assert any("continuing with dual coordinate ascent" in note for note in whole.notes)
    assert whole.converged
    assert max(model.epochs for model in whole.models) > 100  # what Pegasos is given
    for stop_at in (2, 40):
        with interrupted_after(stop_at):
            train(store, config, checkpoint=tmp_path / str(stop_at))
        again = train(store, config, checkpoint=tmp_path / str(stop_at), resume=True)
        assert again.model.weights.tobytes() == whole.model.weights.tobytes()
        assert again.model.info == whole.model.info
    asked = train(store, TrainConfig(lam=2e-4, tolerance=1e-3, memory=budget, algorithm="sgd-s", max_epochs=6))
    assert asked.algorithm == "sgd-s"


GUARD = 7.0
GUARD_PLACE = np.uint64(2**63)


def guarded(features: int, width: int, bias: float) -> tuple[np.ndarray, np.ndarray]:
    """A panel of zeros, and it with what lies behind it."""
    size = (features + (bias != 0.0)) * width
    beyond = np.full(size + 3000 * width, GUARD)
    beyond[:size] = 0
    return beyond[:size], beyond[size:]


def too_large(coding: str, values: str | None) -> tuple[object, int, set[int]]:
    """Rows in these codings, how many features to claim that there are, and which rows go beyond."""
    matrix, labels = few_values(40, 900, seed=7)
    if values is None:
        matrix.data[:] = 1
    largest = [int(matrix.indices[matrix.indptr[row + 1] - 1]) for row in range(40)]
    features = max(largest)
    return coded(matrix, labels, coding, values), features, {row for row in range(40) if largest[row] >= features}


def new_state(width: int) -> np.ndarray:
    state = np.zeros((sdca.STATE_SIZE, width))
    state[sdca.SLACK_UNIT] = 1.0
    return state


def table_of_weights(width: int, models: int) -> np.ndarray:
    table = np.zeros((panel_steps.TABLE_SIZE, width))
    table[
        [panel_steps.LAMBDA, panel_steps.CLOCK, panel_steps.INVERSE, panel_steps.NEGATIVE, panel_steps.POSITIVE],
        :models,
    ] = 1.0
    table[[panel_steps.ONE_CLASS, panel_steps.FOLD]] = -1
    return table


@pytest.mark.slow
@pytest.mark.parametrize("values", [None, *VALUE_CODINGS])
@pytest.mark.parametrize("coding", CODINGS)
def test_an_index_out_of_range_reaches_no_memory_beside_a_panel(coding, values):
    block, features, bad = too_large(coding, values)
    for width in (8, 16):
        weights, beyond = guarded(features, width, 0.0)
        for row in range(40):
            begin, end = int(block.indptr[row]), int(block.indptr[row + 1])
            places, xs = np.full(end - begin + 8, GUARD_PLACE), np.full(end - begin + 8, GUARD)
            sound = panel.decode_row(*block.entries[1:], begin, end, width, features, places, xs)
            assert sound == (row not in bad)
            assert (places[end - begin :] == GUARD_PLACE).all()
            assert (xs[end - begin :] == GUARD).all()
            if not sound:
                continue
            assert places[: end - begin].max() <= (features - 1) * width
            for place in range(0, width, 8):
                z = np.full(width + 8, GUARD)
                panel.panel_dot(places, xs, end - begin, weights, place, z)
                outside = np.delete(z, np.arange(place, place + 8))
                assert (outside == GUARD).all()
                panel.panel_add(places, xs, end - begin, weights, place, np.ones(width))
        assert (beyond == GUARD).all()
        assert weights.any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("coding", "values"),
    [("gap8", None), ("gap8", "float32"), ("gap16", "bfloat16"), ("gap16", "float16"), ("uint32", "code8")],
)
def test_an_index_out_of_range_ends_each_kernel(coding, values):
    """Each says which row it is; nothing beyond the panel or a vector, and no other row's variable, is touched."""
    block, features, bad = too_large(coding, values)
    order, no_weights, no_folds = np.arange(40, dtype=np.uint32), np.empty(0, np.float32), np.empty(0, np.uint8)
    next_epochs, columns = np.array([1, 2, 4, 8, 16], np.uint8), np.empty(0, np.int64)
    for loss in (losses.HINGE, losses.LOGISTIC):
        for bias, large, width in ((0.0, False, 8), (2.0, True, 16)):
            rows = (*block.entries, block.labels, no_weights, no_folds)
            shape = (large, features, table_of_weights(width, width - 3))
            what = (loss, 0.0, bias)

            weights, beyond = guarded(features, width, bias)
            state = np.zeros((pegasos.STATE_SIZE, width))
            assert (
                panel_steps.process_panel(order, 0, 40, *rows, *what, *shape, weights, state, None, 1, columns) in bad
            )
            assert (beyond == GUARD).all()
            assert weights.any()

            weights, beyond = guarded(features, width, bias)
            duals, until = np.full(41 * width, 0.0, np.float32), np.zeros(41 * width, np.uint8)
            duals[40 * width :] = GUARD
            inverses = np.ones(40, np.float32)
            state = new_state(width)
            ascent = (inverses, np.uint8(0), next_epochs)
            assert (
                panel_steps.ascend_panel(order, 0, 40, *rows, *what, *ascent, *shape, weights, duals, until, state)
                in bad
            )
            assert (beyond == GUARD).all()
            assert weights.any()
            assert (duals[40 * width :] == GUARD).all()
            assert not duals[[row * width + column for row in bad for column in range(width)]].any()
            of_nobody = duals[: 40 * width].reshape(40, width)[:, width - 3 :]
            assert not of_nobody.any()

            sums = np.zeros((totals.SUMS_SIZE, width))
            ones = np.ones_like(weights)
            measured = (features, table_of_weights(width, width - 3), width - 3, ones, sums)
            assert totals.sum_losses_of_panel(0, 40, *rows, *what, *measured) in bad

            vector = np.full(features + 3000, GUARD)
            vector[: features + (bias != 0.0)] = 0
            a = vector[: features + (bias != 0.0)]
            duals, until = np.zeros(40, np.float32), np.zeros(40, np.uint8)
            one = (np.ones(2), -1.0, -1, 0.0, loss, 0.0, 40.0, bias, inverses, next_epochs, large, a, duals, until)
            assert sdca.ascend_rows(order, 0, 40, *rows, *one, new_state(1)[:, 0]) in bad
            assert (vector[len(a) :] == GUARD).all()
            assert a.any()


# --- inactive rows ----------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [losses.HINGE, losses.LOGISTIC])
def test_rows_of_no_model_are_inactive(loss):
    """An unused column of a panel, and a model whose fold has the row, do not keep a row active."""
    matrix, labels = random_rows(40, 60, 1, 0.1)
    block = coded(matrix, labels, "gap8", "float32")
    order, out, no_weights = np.arange(40, dtype=np.uint32), np.empty(40, np.uint32), np.empty(0, np.float32)
    folds = (np.arange(40) % 2).astype(np.uint8)
    next_epochs, inverses = np.array([1, 2, 4, 8, 16], np.uint8), np.ones(40, np.float32)
    rows = (*block.entries, block.labels, no_weights, folds)
    left_out = set(np.flatnonzero(folds == 1))

    table = table_of_weights(8, 3)
    table[panel_steps.FOLD, :3] = 1
    duals, until = np.zeros(40 * 8, np.float32), np.zeros(40 * 8, np.uint8)
    ascent = (loss, 0.0, 0.0, inverses, np.uint8(0), next_epochs, False, 60, table)
    state = new_state(8)
    assert panel_steps.ascend_panel(order, 0, 40, *rows, *ascent, np.zeros(60 * 8), duals, until, state) == -1
    assert state[sdca.VISITED].tolist() == [20.0] * 3 + [0.0] * 5
    active = set(out[: sdca.select_active_rows(order, 0, 40, until, 8, 3, np.uint8(1), out)])
    assert active
    assert not active & left_out

    separate, inactive_until = np.zeros(40, np.float32), np.zeros(40, np.uint8)
    one = (
        np.ones(2),
        -1.0,
        1,
        0.0,
        loss,
        0.0,
        1.0,
        0.0,
        inverses,
        next_epochs,
        False,
        np.zeros(60),
        separate,
        inactive_until,
    )
    assert sdca.ascend_rows(order, 0, 40, *rows, *one, new_state(1)[:, 0]) == -1
    assert set(out[: sdca.select_active_rows(order, 0, 40, inactive_until, 1, 1, np.uint8(1), out)]) == active
    assert duals.reshape(40, 8)[:, 0].tolist() == separate.tolist()
