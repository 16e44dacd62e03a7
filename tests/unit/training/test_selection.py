"""The search for lambda: the last fit is an ordinary run, trials are true, and any data has a result or an error."""

import dataclasses
import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.metrics import balanced_accuracy_score, mean_absolute_error, r2_score, roc_auc_score

from ooc_pegasos import ConvertConfig, Existing, Model, OocPegasosError, Store, TrainConfig, TrainResult, train
from ooc_pegasos.errors import UsageError
from ooc_pegasos.loading.loader import open_loader
from ooc_pegasos.objective.lambda_path import FINE, Range, next_lambda
from ooc_pegasos.objective.losses import LOSSES
from ooc_pegasos.objective.problem import count_models
from ooc_pegasos.proof.check import prove
from ooc_pegasos.reporting.progress import TrainingProgress
from ooc_pegasos.solvers.registry import row_bytes
from ooc_pegasos.training.result import Outcome
from ooc_pegasos.training.selection import COMPARED, with_test_rows
from support.biased_rows import holdout_masks, rows_with_a_bias, store_of_task
from support.optima import FORMULAS, least_objective, optimum_with_bias, parameter_of
from support.rows import random_rows
from support.stores import store_of
from support.subsets import covering


def noisy_rows(rows: int = 400, features: int = 60, seed: int = 1) -> tuple[sp.csr_matrix, np.ndarray]:
    """Rows whose best lambda is inside the default path."""
    matrix, _labels = random_rows(rows, features, seed, 0.2)
    rng = np.random.default_rng(seed + 1)
    score = matrix @ rng.standard_normal(features) + rng.standard_normal(rows) + 0.5
    return matrix, np.where(score > 0, 1, -1)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Store]:
    """Stores of 400 rows in several chunks: two classes, three, and real targets."""
    folder, (matrix, labels) = tmp_path_factory.mktemp("stores"), noisy_rows()
    rng = np.random.default_rng(5)
    score = matrix @ rng.standard_normal((60, 3)) + rng.standard_normal((400, 3))
    made = {
        "binary": (labels, {}),
        "several": (score.argmax(axis=1), {"task": "multiclass", "classes": ()}),
        "real": (np.round(3 * score[:, 0] + 1, 3), {"task": "regression", "classes": ()}),
    }
    found = {}
    for name, (values, options) in made.items():
        (folder / name).mkdir()
        found[name] = store_of(folder / name, matrix, values, chunk_size=4096, **options)
        assert len(found[name].manifest.chunks) > 3
    return found


def last_fit_of(config: TrainConfig, result: TrainResult) -> TrainConfig:
    """The options of an ordinary run that trains the chosen lambda on all rows."""
    return dataclasses.replace(
        config,
        lam=result.model.info.lam,
        bias=result.model.info.config["bias"],
        loss=result.model.info.loss,
        tolerance=config.enough,
        select="best",
        holdout=None,
        folds=None,
        select_by=None,
        calibrate=None,
    )


def memory_of_a_search(config: TrainConfig, store: Store) -> int:
    """So little that every chunk is a window of its own in the rounds of a search."""
    config = with_test_rows(config, store)
    models = count_models(config, store)
    what = {"holdout": config.holdout_fraction, "folds": config.folds, "row_bytes": row_bytes(config, models)}
    return open_loader(store, 1 << 62, **what).shape.min_budget


# --- the last fit -------------------------------------------------------------------------------

WINDOWS = ["one", "several"]
SEARCHES: dict[str, tuple[str, dict[str, object]]] = {
    "default": ("binary", {}),
    "holdout": ("binary", {"holdout": 0.25}),
    "folds": ("binary", {"folds": 3}),
    "auc": ("binary", {"select_by": "auc", "holdout": 0.3}),
    "largest within an error": ("binary", {"select": "1se", "holdout": 0.3}),
    "logistic": ("binary", {"loss": "logistic", "holdout": 0.3}),
    "weights of classes": ("binary", {"class_weight": "balanced", "select_by": "balanced-error", "holdout": 0.3}),
    "free bias": ("binary", {"bias": "free", "holdout": 0.3}),
    "scale of the bias": ("binary", {"bias": "feature", "bias_scale": 3.0, "holdout": 0.3}),
    "panels": ("binary", {"algorithm": "sgd-s", "holdout": 0.3}),
    "panels by auc": ("binary", {"algorithm": "sgd-s", "holdout": 0.3, "select_by": "auc"}),
    "batches": ("binary", {"algorithm": "sgd-s", "batch_size": 5, "max_epochs": 20}),
    "given lambdas": ("binary", {"lam": (1.0, 0.1, 0.01), "holdout": 0.3}),
    "given lambdas of sgd-s": ("binary", {"lam": (1.0, 0.1, 0.03), "folds": 2, "algorithm": "sgd-s"}),
    "probabilities": ("binary", {"calibrate": "platt"}),
    "one versus rest": ("several", {}),
    "one versus rest by balanced error": ("several", {"select_by": "balanced-error", "holdout": 0.3}),
    "one versus rest with folds": ("several", {"folds": 2}),
    "joint hinge": ("several", {"loss": "multiclass-hinge", "max_epochs": 30}),
    "joint logistic": ("several", {"loss": "multiclass-logistic", "max_epochs": 30, "holdout": 0.3}),
    "squared": ("real", {}),
    "squared by r2": ("real", {"select_by": "r2", "holdout": 0.3}),
    "absolute by mae": ("real", {"select_by": "mae", "loss": "absolute", "holdout": 0.3}),
}


FAST = ("default", "folds", "auc", "panels by auc", "given lambdas", "probabilities", "one versus rest", "squared")


@pytest.mark.parametrize(
    ("name", "windows"),
    covering([pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST)) for name in SEARCHES], WINDOWS),
)
def test_the_model_is_that_of_a_run_with_the_chosen_lambda(stores, tmp_path, name, windows):
    kind, options = SEARCHES[name]
    store = stores[kind]
    config = TrainConfig(**{"tolerance": 0.05, "max_epochs": 50} | options)
    if windows == "several":
        config = dataclasses.replace(config, memory=memory_of_a_search(config, store))
    result = train(store, config, log=tmp_path / "log")
    ordinary = train(store, last_fit_of(config, result))
    assert result.is_refit
    assert (result.windows > 1) == (ordinary.windows > 1) == (windows == "several")
    assert result.model.weights.tobytes() == ordinary.model.weights.tobytes()
    assert result.model.bias.tobytes() == ordinary.model.bias.tobytes()
    for field in ("certificate", "history", "epochs", "algorithm", "loss", "parameter", "sampling", "store_checksum"):
        assert getattr(result.model.info, field) == getattr(ordinary.model.info, field)
    assert (result.converged, result.stopped_by) == (ordinary.converged, ordinary.stopped_by)
    assert result.model.info.lam in [trial.lam for trial in result.trials]
    assert result.model.info.trials == result.trials
    rounds = [json.loads(line)["round"] for line in (tmp_path / "log").read_text().splitlines()]
    assert sorted(set(rounds)) == list(range(1, max(rounds) + 1))
    assert rounds == sorted(rounds)
    check_same_after_loading(result.model, tmp_path)


def check_same_after_loading(model: Model, folder: Path) -> None:
    model.save(folder / "model")
    found = Model.load(folder / "model")
    assert json.dumps(found.info.config) == json.dumps(model.info.config)
    assert dataclasses.replace(found.info, config={}) == dataclasses.replace(model.info, config={})


def test_a_search_looks_between_and_beyond_its_lambdas(stores):
    """Without given lambdas; given ones are all that is tried."""
    for algorithm in ("sdca", "sgd-s"):
        trials = train(stores["binary"], TrainConfig(algorithm=algorithm, holdout=0.3)).trials
        lambdas = sorted((trial.lam for trial in trials), reverse=True)
        assert len(set(lambdas)) == len(lambdas) > 4
    given = (3.0, 0.02, 0.5)
    trials = train(stores["binary"], TrainConfig(lam=given, holdout=0.3)).trials
    assert [trial.lam for trial in trials] == sorted(given, reverse=True)


def test_the_last_fit_has_a_proof(stores, tmp_path):
    """It refers to the model with the results of the search, and to all rows."""
    for options in ({"calibrate": "platt"}, {"folds": 2}, {"lam": (0.1, 0.01), "holdout": 0.3}):
        result = train(stores["binary"], TrainConfig(**options), proof=tmp_path / "proof")
        result.model.save(tmp_path / "model")
        (claim,) = prove(tmp_path / "model", stores["binary"].path, tmp_path / "proof")
        assert claim.primal == pytest.approx(result.primal, rel=1e-9)
        assert claim.lower_bound == pytest.approx(result.lower_bound, rel=1e-6)


# --- the trials -----------------------------------------------------------------------------------


def models_of_trials(store: Store, config: TrainConfig) -> tuple[TrainResult, dict[float, Model]]:
    """The result, and the model of each lambda that was tried."""
    found: dict[float, Model] = {}

    def models(outcome: Outcome, real=Outcome.models):
        found.update({model.info.lam: model for model in outcome.every_model("any")})
        return real(outcome)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Outcome, "models", models)
        return train(store, config), found


def numbers_of(store: Store) -> tuple[np.ndarray, np.ndarray]:
    matrix, labels = store.to_scipy()
    return matrix.toarray().astype(np.float64), labels


@pytest.mark.parametrize(("algorithm", "loss"), covering(["sdca", "sgd-s"], ["hinge", "logistic"]))
def test_certificates_and_metrics_of_all_trials_are_true(stores, algorithm, loss):
    """On the training rows, compared with other programs, and on the holdout rows in numpy."""
    store, config = stores["binary"], TrainConfig(holdout=0.3, loss=loss, algorithm=algorithm)
    result, models = models_of_trials(store, config)
    (x, y), (held, kept) = numbers_of(store), holdout_masks(400, 0.3)
    x = np.column_stack([x, np.ones(400)])  # the bias is a constant feature
    certificates = {one.lam: one for one in result.models}
    assert set(certificates) == set(models) >= {trial.lam for trial in result.trials}
    for trial in result.trials:
        lam, one = trial.lam, certificates[trial.lam]
        w = np.append(models[lam].weights, models[lam].bias)
        scores = x @ w
        each = FORMULAS[loss](scores, y, 0.0)
        exact = least_objective(loss, 0.0, x[kept], y[kept], lam, np.ones(kept.sum()))
        primal = lam / 2 * w @ w + each[kept].mean()
        assert one.certificate.primal == pytest.approx(primal, rel=1e-9)
        assert one.certificate.lower_bound <= exact * (1 + 1e-7)
        assert exact * (1 - 1e-7) <= primal
        assert one.certificate.gap <= COMPARED or one.epochs == 100
        for entry in one.history:
            assert entry.lower_bound <= exact * (1 + 1e-7)
        error = ((scores > 0) != (y > 0))[held].mean()
        assert (trial.loss, trial.error) == (pytest.approx(each[held].mean()), pytest.approx(error))
        assert trial.deviation == pytest.approx(each[held].std() / math.sqrt(held.sum()))
        assert trial.score == trial.error
        assert trial.score_deviation == pytest.approx(math.sqrt(error * (1 - error) / held.sum()))
        assert vars(one.holdout) == pytest.approx({"loss": trial.loss, "error": trial.error})


def optimum_of(loss: str, bias: str, x: np.ndarray, y: np.ndarray, lam: float) -> float:
    """The least objective, by another program."""
    if bias == "free":
        return optimum_with_bias(loss, x, y, lam)
    with_constant = np.column_stack([x, np.ones(len(y))])
    return least_objective(loss, parameter_of(loss), with_constant, y, lam, np.ones(len(y)))


@pytest.mark.parametrize(
    ("loss", "bias", "windows"),
    covering(FORMULAS, ["feature", "free"], WINDOWS),
)
def test_bounds_of_all_trials_are_below_the_optimum(tmp_path, loss, bias, windows):
    """Of each epoch, while dual variables of a larger lambda become those of a smaller one."""
    task = "regression" if LOSSES[loss].task == "regression" else "binary"
    matrix, labels = rows_with_a_bias(task, 3, rows=300)
    store = store_of_task(tmp_path, task, matrix, labels, chunk_size=2000)
    same = {"loss": loss, "loss_parameter": LOSSES[loss].parameter, "bias": bias}
    config = TrainConfig(holdout=0.2, algorithm="sdca", max_epochs=60, **same)
    if windows == "several":
        config = dataclasses.replace(config, memory=memory_of_a_search(config, store))
    result = train(store, config)
    assert (result.windows > 1) == (windows == "several")
    assert len(result.models) > 4
    (x, y), kept = numbers_of(store), holdout_masks(300, 0.2)[1]
    for one in result.models:
        best = optimum_of(loss, bias, x[kept], y[kept], one.lam)
        assert one.certificate.primal >= best * (1 - 1e-6)
        for entry in one.history:
            assert entry.lower_bound <= best * (1 + 1e-7)
    assert result.lower_bound <= optimum_of(loss, bias, x, y, result.model.info.lam) * (1 + 1e-7)


def test_folds_of_all_trials_are_true(stores):
    store = stores["binary"]
    result = train(store, TrainConfig(folds=3))
    x, y = numbers_of(store)
    x = np.column_stack([x, np.ones(400)])
    fold_of = np.array([hash_of_row(row) * 3 >> 53 for row in range(400)])
    assert {(one.lam, one.fold) for one in result.models} == {
        (trial.lam, fold) for trial in result.trials for fold in (0, 1, 2, None)
    }
    for one in result.models:
        kept = fold_of != one.fold if one.fold is not None else np.ones(400, bool)
        exact = least_objective("hinge", 0.0, x[kept], y[kept], one.lam, np.ones(kept.sum()))
        assert one.certificate.lower_bound <= exact * (1 + 1e-7)
        assert exact * (1 - 1e-7) <= one.certificate.primal
        assert one.certificate.gap <= COMPARED
    for trial in result.trials:
        of_it = [one for one in result.models if one.lam == trial.lam and one.fold is not None]
        sizes = [(fold_of == one.fold).sum() for one in of_it]
        assert trial.loss == pytest.approx(np.average([one.holdout.loss for one in of_it], weights=sizes))
        assert trial.score == pytest.approx(np.average([one.holdout.error for one in of_it], weights=sizes))


def hash_of_row(row: int) -> int:
    """The hash that assigns rows to folds, 53 bits."""
    word = (row + 1) * 0x9E3779B97F4A7C15 % 2**64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return (word ^ word >> 31) >> 11


def test_the_path_is_that_of_the_rules(stores):
    """Each lambda follows from the trials before it; the ends of the default path from rows and features."""
    store = stores["binary"]
    result = train(store, TrainConfig(holdout=0.3, algorithm="sdca"))
    square = store.manifest.statistics.mean_row_norm**2 + 1.0
    strong, weak = (square / (share * holdout_masks(400, 0.3)[1].sum()) for share in (0.01, 10.0))
    order = list(dict.fromkeys(one.lam for one in result.models))
    by_lambda = {trial.lam: trial for trial in result.trials}
    limits = Range(order[0], order[0] / 1000)
    assert (order[0], order[0] / 1000) == (pytest.approx(strong), pytest.approx(weak))
    for number, lam in enumerate(order):
        assert next_lambda([by_lambda[before] for before in order[:number]], limits) == pytest.approx(lam)
    assert next_lambda([by_lambda[lam] for lam in order], limits) is None
    ordered = sorted(order)
    place = ordered.index(result.model.info.lam)
    near = ordered[max(place - 1, 0) : place + 2]
    assert all(right / left <= FINE * (1 + 1e-9) for left, right in itertools.pairwise(near))


# --- which rows are compared --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "features", "options", "expected"),
    [
        (1_000_000, 10, {}, {"holdout": 0.1}),
        (50_000, 10, {}, {"holdout": 0.2}),
        (20_000, 10, {}, {"holdout": 1 / 3}),
        (10_000, 1000, {}, {"folds": 5}),
        (10_000, 1001, {}, {"holdout": 1 / 3}),
        (100, 10, {}, {"folds": 5}),
        (99, 9, {}, {"holdout": 1 / 3}),
        (1000, 10, {"select_by": "loss"}, {"folds": 5}),
        (1000, 10, {"select_by": "auc"}, {"holdout": 1 / 3}),
        (1000, 10, {"calibrate": "platt"}, {"holdout": 1 / 3}),
        (1000, 10, {"holdout": 0.05}, {"holdout": 0.05}),
        (1000, 10, {"folds": 2}, {"folds": 2}),
        (1000, 10, {"lam": (1.0, 0.1)}, {"folds": 5}),
        (1000, 10, {"lam": 1.0}, {}),
        (1000, 10, {"C": 1.0}, {}),
        (1000, 10, {"refit": False}, {}),
        (1000, 10, {"algorithm": "sgd-s"}, {"folds": 5}),
        (1000, 10, {"algorithm": "sgd-s", "batch_size": 4}, {"holdout": 1 / 3}),
        (1000, 10, {"project": True}, {"holdout": 1 / 3}),
        (1000, 10, {"algorithm": "pegasos"}, {"holdout": 1 / 3}),
        (1000, 10, {"bias": "unregularized"}, {"holdout": 1 / 3}),
    ],
)
def test_how_many_rows_compare_lambdas(rows, features, options, expected):
    config = TrainConfig(**options)
    assert with_test_rows(config, SimpleNamespace(rows=rows, features=features)) == dataclasses.replace(
        config, **expected
    )


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4},
        {"average": True},
        {"project": True},
        {"algorithm": "pegasos"},
        {"algorithm": "sgd-m"},
        {"algorithm": "sgd-r"},
        {"sampling": "iid"},
        {"delay": 5.0},
        {"bias": "free"},
        {"bias": "unregularized"},
        {"bias": "batch", "batch_size": 20},
        {"threads": 2},
    ],
    ids=str,
)
def test_options_for_few_rows(tmp_path, options):
    """Rows that are compared by cross-validation if the options support it."""
    matrix, labels = noisy_rows(150, 5)
    result = train(store_of(tmp_path, matrix, labels), TrainConfig(max_epochs=5, **options))
    assert result.is_refit
    how = result.model.info.config
    assert (how["folds"] or how["holdout"]) is not None


# --- metrics --------------------------------------------------------------------------------------

METRICS = {
    "auc": lambda y, z: 1 - roc_auc_score(y, z),
    "error": lambda y, z: ((z > 0) != (y > 0)).mean(),
    "balanced-error": lambda y, z: 1 - balanced_accuracy_score(y, np.where(z > 0, 1, -1)),
}


@pytest.mark.parametrize(("metric", "refit"), covering(METRICS, [False, True]))
def test_metrics_of_two_classes(stores, metric, refit):
    store = stores["binary"]
    for algorithm in ("sdca", "sgd-s"):
        config = TrainConfig(holdout=0.3, select_by=metric, refit=refit, algorithm=algorithm)
        result, models = models_of_trials(store, config)
        (x, y), held = numbers_of(store), holdout_masks(400, 0.3)[0]
        rarest = min((y[held] > 0).sum(), (y[held] < 0).sum()) if metric != "error" else held.sum()
        for trial in result.trials:
            z = x[held] @ models[trial.lam].weights + models[trial.lam].bias
            expected = METRICS[metric](y[held], z)
            assert trial.score == pytest.approx(expected, abs=1e-12)
            assert trial.score_deviation == pytest.approx(math.sqrt(expected * (1 - expected) / rarest))
            assert trial.error == pytest.approx(METRICS["error"](y[held], z))
            assert trial.loss == pytest.approx(np.maximum(0, 1 - y[held] * z).mean())
        check_choice(result)


@pytest.mark.parametrize(("metric", "loss"), covering([None, "error", "balanced-error"], ["hinge", "multiclass-hinge"]))
def test_metrics_of_several_classes(stores, metric, loss):
    store = stores["several"]
    config = TrainConfig(lam=(1.0, 0.1, 0.03), holdout=0.3, select_by=metric, refit=False, loss=loss, bias="feature")
    result, models = models_of_trials(store, config)
    (x, y), held = numbers_of(store), holdout_masks(400, 0.3)[0]
    for trial in result.trials:
        z = x[held] @ models[trial.lam].weights + models[trial.lam].bias
        wrong = z.argmax(axis=1) != y[held]
        expected = (
            1 - balanced_accuracy_score(y[held], z.argmax(axis=1)) if metric == "balanced-error" else wrong.mean()
        )
        assert trial.score == pytest.approx(expected)
        assert trial.error == pytest.approx(wrong.mean())
    check_choice(result)


@pytest.mark.parametrize(
    ("metric", "truth"), [("mae", mean_absolute_error), ("r2", lambda y, z: 1 - r2_score(y, z))], ids=["mae", "r2"]
)
@pytest.mark.parametrize("loss", ["squared", "absolute"])
def test_metrics_of_real_targets(stores, metric, truth, loss):
    store = stores["real"]
    config = TrainConfig(lam=(1.0, 0.1, 0.01), holdout=0.3, select_by=metric, refit=False, loss=loss, bias="free")
    result, models = models_of_trials(store, config)
    (x, y), held = numbers_of(store), holdout_masks(400, 0.3)[0]
    for trial in result.trials:
        z = x[held] @ models[trial.lam].weights + models[trial.lam].bias
        assert trial.score == pytest.approx(truth(y[held], z))
        if metric == "mae":
            assert trial.score_deviation == pytest.approx(np.abs(y[held] - z).std() / math.sqrt(held.sum()))
    check_choice(result)


def check_choice(result: TrainResult) -> None:
    """Fail unless the lambda has the smallest loss of those within a standard error of the best metric."""
    best = min(result.trials, key=lambda trial: (trial.score, -trial.lam))
    within = [trial for trial in result.trials if trial.score <= best.score + best.score_deviation]
    chosen = next(trial for trial in result.trials if trial.lam == result.model.info.lam)
    assert chosen in within
    assert chosen.loss == min(trial.loss for trial in within)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("real", {"select_by": "auc"}, "select_by=auc is not for regression labels; choose loss, mae, r2"),
        ("real", {"select_by": "error"}, "select_by=error is not for regression labels; choose loss, mae, r2"),
        ("several", {"select_by": "auc"}, "not for multiclass labels; choose loss, error, balanced-error"),
        ("binary", {"select_by": "mae"}, "not for binary labels; choose loss, error, balanced-error, auc"),
        ("binary", {"select_by": "r2", "refit": False}, "not for binary labels; choose loss"),
    ],
    ids=str,
)
def test_metrics_for_other_labels_are_refused(stores, kind, options, message):
    with pytest.raises(UsageError, match=message):
        train(stores[kind], TrainConfig(**options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"select_by": "auc", "folds": 3}, "compares several lambdas on holdout rows, and not with folds; leave one"),
        ({"select_by": "auc", "lam": 0.1}, "compares several lambdas on holdout rows, and not with a single lambda"),
        ({"select_by": "mae", "C": 1.0}, "not with a single lambda"),
        ({"select_by": "balanced-error", "lam": 0.1, "holdout": 0.3}, "not with a single lambda"),
    ],
    ids=str,
)
def test_metrics_without_a_comparison_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        TrainConfig(**options)


# --- probabilities --------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "task"), covering(["platt", "isotonic"], ["binary", "several"]))
def test_probabilities_are_fitted_by_a_model_that_has_not_seen_the_rows(stores, task, kind):
    store, config = stores[task], TrainConfig(calibrate=kind, holdout=0.3)
    result = train(store, config)
    same = {"tolerance": COMPARED, "holdout": 0.3, "calibrate": kind, "bias": "feature"}
    held_out = train(store, TrainConfig(lam=result.model.info.lam, **same))
    assert result.model.info.calibrations == held_out.model.info.calibrations != []
    plain = train(store, TrainConfig(holdout=0.3))
    assert plain.model.weights.tobytes() == result.model.weights.tobytes()
    assert plain.model.info.calibrations == []


# --- any data -------------------------------------------------------------------------------------


def result_or_error(store: Store, **options: object) -> TrainResult | str:
    """The result, or the message of an error that has advice; any other exception is a failure."""
    try:
        return train(store, TrainConfig(**options))
    except OocPegasosError as error:
        assert ";" in str(error), error
        return str(error)


def labelled_store(labels: list[object], path: Path, **options: object) -> Store:
    """A store of as many random rows, in place of what was there."""
    matrix, values = rows_of(labels)
    return Store.from_scipy(matrix, values, path, config=ConvertConfig(**options), existing=Existing(force=True))


def rows_of(labels: list[object], seed: int = 1) -> tuple[sp.csr_matrix, np.ndarray]:
    rng = np.random.default_rng(seed)
    return sp.csr_matrix(rng.standard_normal((len(labels), 3)).astype(np.float32)), np.array(labels)


@pytest.mark.parametrize(
    ("rows", "options"),
    covering(
        [1, 2, 3, 5, 10, 20, 99, 100],
        [{}, {"select_by": "auc"}, {"calibrate": "platt"}, {"folds": 2}, {"holdout": 0.1}, {"lam": (1.0, 0.1)}],
    ),
)
def test_tiny_stores_have_a_result_or_a_clear_error(tmp_path, rows, options):
    for labels in ([1] * rows, [1 - 2 * (row % 2) for row in range(rows)], [1] + [-1] * (rows - 1)):
        store = labelled_store(labels, tmp_path / "s", classes=("-1", "1"))
        for algorithm in ("auto", "sgd-s"):
            found = result_or_error(store, algorithm=algorithm, max_epochs=20, **options)
            if isinstance(found, str):
                named = ("holdout", "folds", "calibrate", "select_by", "labels")
                assert any(word in found for word in named), found
            else:
                assert found.is_refit
                assert np.isfinite(found.model.weights).all()


def test_classes_of_one_row(tmp_path):
    labels = ["a"] * 60 + ["b"] * 59 + ["c"]
    for seed in range(3):
        matrix, names = rows_of(labels, seed)
        store = Store.from_scipy(matrix, names, tmp_path / str(seed))
        for options in ({}, {"loss": "multiclass-hinge"}, {"select_by": "balanced-error"}, {"folds": 3}):
            found = result_or_error(store, max_epochs=20, **options)
            assert not isinstance(found, str), found
            assert found.model.weights.shape == (3, 3)


def test_constant_targets(tmp_path):
    matrix, targets = rows_of([2.5] * 120)
    store = Store.from_scipy(matrix, targets, tmp_path / "s", config=ConvertConfig(task="regression"))
    for options in ({}, {"holdout": 0.2}, {"select_by": "mae"}, {"loss": "absolute", "bias": "free"}):
        found = result_or_error(store, max_epochs=50, **options)
        assert not isinstance(found, str), found
        np.testing.assert_allclose(found.model.decision_function(matrix), 2.5, rtol=0.1)
    assert "all holdout targets are equal" in str(result_or_error(store, select_by="r2"))


def test_rows_without_features_and_zero_rows(tmp_path):
    store = Store.from_scipy(sp.csr_matrix((200, 4), dtype=np.float32), [1, -1] * 100, tmp_path / "s")
    for options in ({}, {"holdout": 0.3}, {"algorithm": "sgd-s"}):
        found = result_or_error(store, **options)
        assert isinstance(found, str) or found.is_refit


def test_the_constant_feature_and_a_free_bias_of_targets(tmp_path):
    """Real targets have the squared loss and a bias that is not regularised, unless other options are given."""
    matrix, labels = rows_with_a_bias("regression", 3, rows=300, bias=40.0)
    store = store_of_task(tmp_path, "regression", matrix, labels)
    result = train(store, TrainConfig())
    assert (result.model.info.loss, result.model.info.config["bias"]) == ("squared", "free")
    x = matrix.toarray().astype(np.float64)
    lam, (w, b) = result.model.info.lam, (result.model.weights, float(result.model.bias))
    centred, offset = x - x.mean(axis=0), labels.mean()
    exact_w = np.linalg.solve(centred.T @ centred / 300 + lam * np.eye(5), centred.T @ (labels - offset) / 300)
    exact_b = offset - x.mean(axis=0) @ exact_w

    def objective(weights: np.ndarray, bias: float) -> float:
        return lam / 2 * weights @ weights + ((x @ weights + bias - labels) ** 2).mean() / 2

    assert result.primal == pytest.approx(objective(w, b), rel=1e-9)
    assert result.lower_bound <= objective(exact_w, exact_b) * (1 + 1e-9)
    assert objective(w, b) <= objective(exact_w, exact_b) / (1 - 0.005)


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "options"),
    covering([1e-9, 0.02, 0.2], [{}, {"algorithm": "sgd-s"}, {"calibrate": "platt"}, {"lam": (1e-6, 1e-7)}]),
)
def test_too_little_time_leaves_a_model(tmp_path, seconds, options):
    matrix, labels = noisy_rows(4000, 300)
    store = store_of(tmp_path, matrix, labels)
    result = train(store, TrainConfig(max_seconds=seconds, tolerance=1e-9, max_epochs=10**6, **options))
    if seconds == 1e-9:
        assert (result.stopped_by, result.converged) == ("seconds", False)
    held = holdout_masks(4000, result.model.info.config["holdout"] or 0.0)[0] & (not result.is_refit)
    x, lam, w, b = matrix.toarray().astype(np.float64), result.model.info.lam, result.model.weights, result.model.bias
    exact = lam / 2 * (w @ w + float(b) ** 2) + np.maximum(0, 1 - labels * (x @ w + b))[~held].mean()
    assert result.primal == pytest.approx(exact, rel=1e-9)
    check_same_after_loading(result.model, tmp_path)


def test_half_of_the_time_is_for_the_last_fit(tmp_path):
    matrix, labels = noisy_rows(4000, 300)
    store, steps = store_of(tmp_path, matrix, labels), []

    class Noting(TrainingProgress):
        def begin_step(self, what: str) -> None:
            steps.append(what)

    # each lambda is trained until rounding errors prevent further progress
    config = TrainConfig(max_seconds=0.6, tolerance=1e-12, max_epochs=10**6, algorithm="sgd-s")
    result = train(store, config, progress=Noting())
    assert result.stopped_by == "seconds"
    assert result.seconds < 5
    assert "on all rows" in steps[-1]


def test_a_warm_start_of_several_lambdas_is_refused(stores):
    model = train(stores["binary"], TrainConfig(lam=0.1, bias="feature")).model
    for options in ({}, {"lam": (0.1, 0.2)}):
        with pytest.raises(UsageError, match="begins one model with another"):
            train(stores["binary"], TrainConfig(**options), warm_start=model)
