"""Proofs: every loss and algorithm proves its bound, an independent checker agrees, and nothing wrong passes."""

import dataclasses
import itertools
import json
import zlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from ooc_pegasos import ConvertConfig, Model, Store, TrainConfig, TrainResult, train
from ooc_pegasos.errors import CorruptFileError, InputError, OocPegasosError, UsageError
from ooc_pegasos.loading.window import cost_of
from ooc_pegasos.objective.losses import LOSSES
from ooc_pegasos.proof.check import prove
from ooc_pegasos.proof.proof_file import Claim, belonging, fingerprint, read_proof
from ooc_pegasos.reporting.text import proof_words
from ooc_pegasos.solvers.proof_record import DualRecord
from ooc_pegasos.training import run as running
from support.file_bytes import flipped
from support.optima import least_objective, optimum_with_bias
from support.proof_checker import check
from support.random_runs import can_be_free, case_of, config_of_case, judged, make_free, store_of_case
from support.rows import random_rows
from support.soak import in_soak
from support.stores import all_memory, count_cached_rows, interrupted_after
from support.subsets import covering

BINARY = ("hinge", "logistic", "smoothed-hinge")
REAL = ("epsilon-insensitive", "absolute", "huber")
FAST = ("hinge", "logistic", "epsilon-insensitive")
OTHERS = tuple(loss for loss in BINARY + REAL if loss not in FAST)
AT_ONCE = ("multiclass-hinge", "multiclass-logistic")
ROWS = 300


def rows() -> tuple[sp.csr_matrix, dict[str, np.ndarray], np.ndarray]:
    """Rows, labels of two classes, of four, and real ones, and weights."""
    matrix, _signs = random_rows(ROWS, 60, 3, 0.1)
    rng = np.random.default_rng(4)
    scores = matrix @ rng.standard_normal((60, 4)) + 0.3 * rng.standard_normal((ROWS, 4))
    labels = {"binary": np.where(scores[:, 0] > 0, 1, -1), "several": scores.argmax(axis=1), "real": scores[:, 0]}
    return matrix, labels, rng.choice(np.array([0.1, 1, 3.7], np.float32), ROWS)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Store]:
    """The rows in four chunks."""
    folder, (matrix, labels, weights) = tmp_path_factory.mktemp("stores"), rows()
    made = {}
    for kind, of_kind in labels.items():
        config = ConvertConfig(shuffle=False, chunk_size=4096, task="regression" if kind == "real" else "auto")
        made[kind] = Store.from_scipy(matrix, of_kind.astype(np.float64), folder / kind, weights, config)
        assert len(made[kind].manifest.chunks) == 4
    return made


def store_of_loss(stores: dict[str, Store], loss: str) -> Store:
    return stores["real" if loss in REAL else "several" if loss in AT_ONCE else "binary"]


def memory_of_two_chunks(store: Store) -> int:
    """Enough for windows of one or two chunks."""
    return int(2.6 * max(cost_of(chunk) for chunk in store.manifest.chunks))


def proved(store: Store, folder: Path, config: TrainConfig, accuracy: float = 1e-7, **options: object) -> TrainResult:
    """Train and save the model; what its proof shows is what was reported, and the independent checker agrees."""
    result = train(store, config, proof=folder / "proof", **options)
    result.model.save(folder / "model")
    primal, bound = shown(folder, store)
    told = result.model.info.certificate
    assert told.primal == pytest.approx(primal, rel=1e-11)
    assert max(told.lower_bound or 0.0, 0.0) - 1e-11 * primal <= bound <= primal
    curved = config.loss in ("logistic", "smoothed-hinge", "huber")
    if (
        result.algorithm == "sdca"
        and not curved
        and (result.model.info.config["bias"] or config.biased) in ("none", "feature")
    ):
        # elsewhere the bound reported is the mean of some d, and the proof shows d of their mean
        assert bound == pytest.approx(told.lower_bound, abs=accuracy * primal)
    assert bound > 0.01 * primal
    return result


def shown(folder: Path, store: Store) -> tuple[float, float]:
    """(objective, bound) that the proof in a folder shows of the model next to it, by both checkers."""
    primal, bound = check(folder / "model", store.path, folder / "proof")
    found = prove(folder / "model", store.path, folder / "proof")
    other_primal, other_bound = primal, bound
    primal, bound = sum(one.primal for one in found), sum(one.lower_bound for one in found)
    assert other_primal == pytest.approx(primal, rel=1e-12)
    assert other_bound == pytest.approx(bound, rel=1e-12, abs=1e-10 * primal)
    assert primal >= other_primal * (1 - 1e-15)  # rounded outward
    assert bound <= other_bound * (1 + 1e-15)
    return primal, bound


MANNERS: dict[str, dict[str, object]] = {
    "sdca": {"algorithm": "sdca"},
    "sgd-s": {"algorithm": "sgd-s"},
    "batches": {"algorithm": "sgd-s", "batch_size": 7},
    "average": {"algorithm": "sgd-s", "average": True},
    "projection": {"algorithm": "sgd-s", "project": True, "batch_size": 3, "delay": 0.0},
    "pegasos": {"algorithm": "pegasos", "sampling": "permutation"},
    "bias": {"algorithm": "sgd-s", "bias": "feature", "bias_scale": 0.3},
    "weights of classes": {"algorithm": "sdca", "bias": "feature", "class_weight": (0.3, 1.7)},
    "holdout": {"algorithm": "sdca", "holdout": 0.3},
    "path": {"algorithm": "sgd-s", "lam": "1e-2:1:4", "refit": False},
    "path of sdca": {"algorithm": "sdca", "lam": "1e-2:1:4", "folds": 3, "refit": False},
    "best of a path": {"algorithm": "sgd-s", "lam": "1e-2:1:3"},
    "search": {"lam": None, "max_epochs": 20},
    "lambda continuation": {"algorithm": "sdca", "lam": 1e-5, "tolerance": 0.3, "max_epochs": 60},
    "free": {"algorithm": "sdca", "bias": "free"},
    "free, sgd-s": {"algorithm": "sgd-s", "bias": "free", "max_epochs": 20},
    "free, weights of classes": {"algorithm": "sdca", "bias": "free", "class_weight": (0.3, 1.7)},
    "free, holdout": {"algorithm": "sgd-s", "bias": "free", "holdout": 0.3, "batch_size": 4},
    "free path": {"algorithm": "sgd-s", "bias": "free", "lam": "1e-1:1:3", "refit": False},
    "free path of sdca": {"algorithm": "sdca", "bias": "free", "lam": "1e-2:1:4", "folds": 3, "refit": False},
    "free continuation": {"algorithm": "sdca", "bias": "free", "lam": 1e-5, "tolerance": 0.3, "max_epochs": 100},
    "subgradients of the bias": {"algorithm": "pegasos", "sampling": "permutation", "bias": "unregularized"},
    "biases of batches": {"algorithm": "sgd-s", "bias": "batch", "batch_size": 30},
}


def options_of(loss: str, manner: str) -> dict[str, object]:
    return {"lam": 0.05, "loss": loss, "max_epochs": 8, "tolerance": 1e-6, "coefficient": 100.0} | MANNERS[manner]


@pytest.mark.parametrize(
    ("loss", "manner"), covering([*FAST, *(pytest.param(loss, marks=pytest.mark.slow) for loss in OTHERS)], MANNERS)
)
def test_every_loss_and_algorithm_proves_its_bound(loss, manner, stores, tmp_path):
    store, options = store_of_loss(stores, loss), options_of(loss, manner)
    if loss in REAL:
        options.pop("class_weight", None)
    result = proved(store, tmp_path, TrainConfig(**options, memory=memory_of_two_chunks(store)))
    assert result.windows > 1


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_projections_that_shrink_everything_again_and_again(loss, stores, tmp_path):
    """At a small lambda sums are scaled down by many powers of ten, in rows of windows that are not in memory too."""
    options = options_of(loss, "projection") | {"lam": 3e-3, "max_epochs": 60}
    with pytest.MonkeyPatch.context() as patched:
        records = []

        def note(*given):
            records.append(DualRecord(*given))
            return records[-1]

        patched.setattr(running, "DualRecord", note)
        proved(stores["binary"], tmp_path, TrainConfig(**options, memory=memory_of_two_chunks(stores["binary"])))
    assert records[0].log_scales[0] < -20


CACHED = ("sdca", "weights of classes", "holdout", "path of sdca", "lambda continuation", "free", "search")


@pytest.mark.parametrize(
    ("loss", "manner"), covering([*FAST, *(pytest.param(loss, marks=pytest.mark.slow) for loss in OTHERS)], CACHED)
)
def test_with_cached_rows(loss, manner, tmp_path):
    """Rows that stay in memory are visited more often, and each visit adds to the bound of the rounding errors."""
    matrix, labels, weights = rows()
    kind = "real" if loss in REAL else "binary"
    given = ConvertConfig(shuffle=False, chunk_size=1024, task="regression" if kind == "real" else "auto")
    store = Store.from_scipy(matrix, labels[kind].astype(np.float64), tmp_path / "store", weights, given)
    options = options_of(loss, manner) | {"memory": int(0.5 * all_memory(store))}
    if manner == "lambda continuation":
        options["lam"] = 1e-4
    if loss in REAL:
        options.pop("class_weight", None)
    with pytest.MonkeyPatch.context() as patched:
        cached = count_cached_rows(patched)
        proved(store, tmp_path, TrainConfig(**options), accuracy=1e-5)
    assert max(cached) > 0


@pytest.mark.parametrize("manner", MANNERS)
def test_with_all_rows_in_memory(manner, stores, tmp_path):
    result = proved(stores["binary"], tmp_path, TrainConfig(**options_of("hinge", manner)))
    assert result.windows == 1


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "sgd-m"},
        {"algorithm": "sgd-m", "lam": "1e-2:1:3", "refit": False},
        {"algorithm": "sgd-m", "bias": "free", "max_epochs": 20},
    ],
)
def test_repeated_updates(options, stores, tmp_path):
    proved(stores["binary"], tmp_path, TrainConfig(**options_of("hinge", "sgd-s") | options))


@pytest.mark.parametrize("bias", ["none", "free"])
def test_threads_that_average(bias, stores, tmp_path):
    config = TrainConfig(lam=1.0, algorithm="sgd-s", bias=bias, threads=2, max_epochs=5)
    result = proved(stores["binary"], tmp_path, config)
    assert result.presenters == 2


SEVERAL = list(itertools.product(["hinge", "logistic", *AT_ONCE], ["sdca", "sgd-s", "bias", "holdout", "path"]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "manner"), [*SEVERAL, *itertools.product(["hinge", "logistic"], ["free", "free path"])]
)
def test_several_classes(loss, manner, stores, tmp_path):
    options = options_of(loss, manner) | {"class_weight": "balanced"}
    if loss in AT_ONCE:
        options |= {"algorithm": "sgd-s"}
    if loss == "multiclass-hinge":
        options |= {"cost": ((0, 1, 2, 3), (1, 0, 1, 1), (0.5, 1, 0, 1), (1, 1, 4, 0))}
    store = stores["several"]
    result = proved(store, tmp_path, TrainConfig(**options, memory=2 * memory_of_two_chunks(store)))
    assert len(read_proof(tmp_path / "proof").header.claims) == (1 if loss in AT_ONCE else 4)
    assert result.model.weights.shape[1] == 4


@pytest.mark.parametrize("bias", ["none", "free"])
def test_a_warm_start_and_a_change_of_algorithm(bias, stores, tmp_path):
    start = train(stores["binary"], TrainConfig(lam=0.3, max_epochs=3, bias=bias)).model
    config = TrainConfig(lam=0.05, max_epochs=12, algorithm="sgd-s", bias=bias)
    proved(stores["binary"], tmp_path, config, warm_start=start)
    config = TrainConfig(lam=1.0, tolerance=0.004, max_epochs=30, bias=bias)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ooc_pegasos.solvers.registry.PEGASOS_FROM", 1e-9)
        patched.setattr("ooc_pegasos.training.run.Run.is_slow", lambda run: run.state.cursor.epoch == 1)
        result = proved(stores["binary"], tmp_path, config)
    assert any("continuing with dual coordinate ascent" in note for note in result.notes)


@pytest.mark.parametrize(
    ("windows", "manner"),
    covering(["one", "several"], ["sdca", "sgd-s", "projection", "path", "free", "free, sgd-s", "free path of sdca"]),
)
def test_a_resumed_run_writes_the_proof_of_an_undisturbed_one(manner, windows, stores, tmp_path):
    store = stores["binary"]
    memory = memory_of_two_chunks(store) if windows == "several" else None
    config = TrainConfig(**options_of("logistic", manner), memory=memory)
    (tmp_path / "undisturbed").mkdir()
    proved(store, tmp_path / "undisturbed", config)
    for stop_at in (2, 5):
        folder = tmp_path / f"stopped at {stop_at}"
        folder.mkdir()
        with interrupted_after(stop_at):
            train(store, config, proof=folder / "proof", checkpoint=folder / "checkpoint")
        assert not (folder / "proof").exists()
        proved(store, folder, config, checkpoint=folder / "checkpoint", resume=True)
        for name in ("proof", "model"):
            assert (folder / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()


@pytest.mark.parametrize("bias", ["none", "free"])
@pytest.mark.parametrize("loss", BINARY + REAL)
def test_bound_and_objective_enclose_the_optimum(loss, bias, stores, tmp_path):
    matrix, labels, weights = rows()
    x, y = matrix.toarray().astype(float), labels["real" if loss in REAL else "binary"].astype(float)
    same = {"loss": loss, "loss_parameter": LOSSES[loss].parameter, "bias": bias}
    config = TrainConfig(lam=0.05, tolerance=1e-5, algorithm="sdca", max_epochs=3000, **same)
    proved(store_of_loss(stores, loss), tmp_path, config)
    primal, bound = shown(tmp_path, store_of_loss(stores, loss))
    if bias == "free":
        best, exact = optimum_with_bias(loss, x, y, 0.05, weights.astype(float)), 1e-6
    else:
        best, exact = least_objective(loss, LOSSES[loss].parameter or 0.0, x, y, 0.05, weights), 1e-7
    assert bound <= best * (1 + exact)
    assert primal >= best * (1 - exact)
    assert primal - bound <= 1e-5 * primal


# --- a bias that is not regularised ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("binary", {"algorithm": "sdca"}),
        ("binary", {"algorithm": "sgd-s"}),
        ("real", {"algorithm": "sdca", "loss": "absolute"}),
        ("real", {"algorithm": "sgd-s", "loss": "huber"}),
    ],
    ids=str,
)
def test_both_kinds_of_bounds_for_a_free_bias_are_proved(kind, options, stores, tmp_path):
    """For any last epoch: the combination with a constant vector, or of two earlier vectors."""
    kinds = set()
    for lam, epochs in itertools.product((0.05, 0.2, 1.0), (1, 2, 3, 5, 8)):
        config = TrainConfig(lam=lam, bias="free", tolerance=1e-9, max_epochs=epochs, **options)
        kept = [""]
        with pytest.MonkeyPatch.context() as patched:

            def keep(record, model, duals, part, leaning, real=DualRecord.keep, kept=kept):
                kept[0] = {1: "positive", 0: "neither", -1: "negative"}[np.sign(leaning)]
                real(record, model, duals, part, leaning)

            def keep_combination(*given, real=DualRecord.keep_combination, kept=kept):
                kept[0] = "crossing"
                real(*given)

            patched.setattr(DualRecord, "keep", keep)
            patched.setattr(DualRecord, "keep_combination", keep_combination)
            result = proved(stores[kind], tmp_path, config)
        kinds.add(kept[0])
    assert kinds >= {"positive", "negative", "crossing"}
    assert result.model.encode() == train(stores[kind], config).model.encode()  # with a proof or without


@pytest.mark.parametrize("manner", [manner for manner in MANNERS if "free" in manner])
def test_dual_variables_of_a_free_bias_add_up_to_0(manner, stores, tmp_path, monkeypatch):
    """Though rounding errors of training are made larger."""

    def best(*given, real=DualRecord.best):
        duals = real(*given)
        return np.where(duals > 0, 1 + 1e-11, 1.0) * duals

    monkeypatch.setattr(DualRecord, "best", best)
    proved(stores["binary"], tmp_path, TrainConfig(**options_of("hinge", manner)))
    proof, (_matrix, labels, weights) = read_proof(tmp_path / "proof"), rows()
    (shares,) = proof.header.problem.class_weights
    of_rows = np.where(labels["binary"] > 0, shares[1], shares[0]) * weights.astype(float)
    kept = proof.are_trained_on(0, ROWS)
    terms = [Fraction(c) * Fraction(b) for c, b in zip(of_rows[kept], proof.duals[kept, 0].tolist(), strict=True)]
    assert abs(sum(terms)) <= 8 * 2.0**-53 * sum(map(abs, terms))
    assert sum(map(abs, terms)) > 0


@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s"])
@pytest.mark.parametrize("lam", [0.05, 0.2, 1.0])
def test_a_run_resumed_after_each_epoch_keeps_the_same_dual_variables(algorithm, lam, stores, tmp_path):
    """The best ones and those of both lines, which a crossing many epochs later may need."""
    same = {"lam": lam, "algorithm": algorithm, "bias": "free", "tolerance": 1e-9, "checkpoint_epochs": 1}
    for epochs in range(1, 9):
        config = TrainConfig(max_epochs=epochs, memory=memory_of_two_chunks(stores["binary"]), **same)
        kept = {"checkpoint": tmp_path / "checkpoint", "resume": epochs > 1}
        train(stores["binary"], config, proof=tmp_path / "resumed", **kept)
        train(stores["binary"], config, proof=tmp_path / "undisturbed")
        one, other = read_proof(tmp_path / "resumed"), read_proof(tmp_path / "undisturbed")
        assert one.duals.tobytes() == other.duals.tobytes()
        assert one.header.claims[0].lower_bound == other.header.claims[0].lower_bound


def test_rows_of_one_class_prove_a_bound_of_0(tmp_path):
    matrix, _labels, weights = rows()
    store = Store.from_scipy(matrix, np.ones(ROWS), tmp_path / "store", weights, ConvertConfig(classes=("-1", "1")))
    result = train(store, TrainConfig(lam=0.1, bias="free", max_epochs=3), proof=tmp_path / "proof")
    result.model.save(tmp_path / "model")
    assert shown(tmp_path, store) == (0.0, 0.0)


SEEDS = range(in_soak(6, 2000))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("free", [False, True], ids=["any bias", "free"])
def test_random_runs_prove_what_is_true(seed, free, tmp_path):
    """Norms, weights and lambdas over many magnitudes: what is proved is compared with exact arithmetic."""
    case = case_of(seed)
    if free and can_be_free(case.options):
        make_free(case.options)
    if case.options.get("bias") == "search":
        pytest.skip("no proof for this bias")
    store = store_of_case(case, tmp_path)
    config = config_of_case(case, store)
    result = train(store, config, proof=tmp_path / "proof")
    result.model.save(tmp_path / "model")
    found = prove(tmp_path / "model", store.path, tmp_path / "proof")
    primal, bound = sum(one.primal for one in found), sum(one.lower_bound for one in found)
    told = dataclasses.replace(result.model.info.certificate, primal=primal, lower_bound=bound, gap=None)
    info = dataclasses.replace(result.model.info, certificate=told)
    result = dataclasses.replace(result, model=dataclasses.replace(result.model, info=info))
    assert not judged(result, store, config).violations


# --- what is refused ----------------------------------------------------------------------------


def forge_proof(path: Path, change: Callable[[dict], None] = lambda _head: None, duals: Callable | None = None) -> None:
    """Change the header or the numbers of a proof and give it a new checksum."""
    raw = path.read_bytes()
    start = 16 + int.from_bytes(raw[8:16], "little")
    head = json.loads(raw[16:start])
    change(head)
    numbers = np.frombuffer(raw[start:-4]).reshape(head["rows"], -1).copy()
    if duals is not None:
        duals(numbers)
    text = json.dumps(head).encode()
    content = raw[:8] + len(text).to_bytes(8, "little") + text + numbers.tobytes()
    path.write_bytes(content + zlib.crc32(content).to_bytes(4, "little"))


@pytest.fixture
def case(stores: dict[str, Store], tmp_path: Path) -> tuple[Path, Path, Path]:
    """A model, its store and its proof."""
    proved(stores["binary"], tmp_path, TrainConfig(lam=0.05, tolerance=0.01, holdout=0.2))
    forge_proof(tmp_path / "proof")
    prove(tmp_path / "model", stores["binary"].path, tmp_path / "proof")  # an unchanged proof passes
    return tmp_path / "model", stores["binary"].path, tmp_path / "proof"


def changed_dual(value: float) -> Callable[[np.ndarray], None]:
    """Change the dual variable of a row that is trained on."""

    def change(numbers: np.ndarray) -> None:
        row = np.flatnonzero(numbers[:, 0])[7]
        numbers[row] = value * np.sign(numbers[row])

    return change


@pytest.mark.parametrize(
    ("change", "duals", "message"),
    [
        (None, changed_dual(1 + 1e-15), "a dual variable in rows 0 to 70 is outside its domain"),
        (None, changed_dual(-1e-300), "outside its domain"),
        (None, changed_dual(float("nan")), "outside its domain"),
        (None, changed_dual(float("inf")), "outside its domain"),
        (None, lambda numbers: numbers.fill(0.0), "but the objective is .* and the bound 0;"),
        (None, lambda numbers: numbers.__imul__(0.5), "claims an objective of .* and a bound of"),
        (lambda head: head["claims"][0].update(lower_bound=head["claims"][0]["lower_bound"] * 1.0001), None, "claims"),
        (lambda head: head["claims"][0].update(primal=head["claims"][0]["primal"] * 0.9999), None, "claims an obj"),
        (lambda head: head["claims"][0].update(primal=float("nan")), None, "claims an objective of nan"),
        (lambda head: head["problem"].update(lam=0.04), None, "lam is 0.04, of the model 0.05"),
        (lambda head: head["problem"].update(left_out=0), None, "left_out is 0, of the model"),
        (lambda head: head["problem"].update(loss="logistic"), None, "loss is logistic, of the model hinge"),
        (lambda head: head["problem"].update(class_weights=[[0.5, 0.5]]), None, "class_weights is"),
        (lambda head: head["problem"].update(bias="free"), None, "bias is free, of the model none"),
        (lambda head: head.update(model="0" * 64), None, "the proof of another model"),
        (lambda head: head.update(store="00000000"), None, "the proof of another store"),
        (lambda head: head.update(claims=head["claims"] * 2), None, "for a model of 1"),
        (lambda head: head.update(version=2), None, "not a proof of this version"),
        (lambda head: head.update(more=1), None, "unknown key 'more'"),
        (lambda head: head.pop("claims"), None, "missing key 'claims'"),
    ],
)
def test_a_forged_proof_is_refused(change, duals, message, case):
    model, store, proof = case
    forge_proof(proof, change or (lambda _head: None), duals)
    with pytest.raises(OocPegasosError, match=message):
        prove(model, store, proof)


def assert_refused(folder: Path, store: Store) -> None:
    """Check that both checkers refuse the proof in a folder."""
    with pytest.raises(AssertionError):
        check(folder / "model", store.path, folder / "proof")
    with pytest.raises(CorruptFileError):
        prove(folder / "model", store.path, folder / "proof")


def scale(sign: int, factor: float) -> Callable[[np.ndarray], None]:
    """Scale the dual variables of a sign."""

    def change(numbers: np.ndarray) -> None:
        numbers[sign * numbers > 0] *= factor

    return change


@pytest.mark.parametrize("loss", ["hinge", "logistic", "absolute"])
@pytest.mark.parametrize(
    ("change", "duals"),
    [
        (None, scale(1, 0.9)),
        (None, scale(-1, 0.9)),
        (None, scale(1, 0.0)),
        (None, scale(-1, 0.0)),
        (None, changed_dual(1 + 1e-15)),
        (lambda head: head["claims"][0].update(lower_bound=head["claims"][0]["lower_bound"] * 1.02), None),
        (lambda head: head["claims"][0].update(primal=head["claims"][0]["primal"] * 0.9999), None),
    ],
)
def test_a_forged_proof_of_a_free_bias_is_refused(change, duals, loss, stores, tmp_path):
    store = store_of_loss(stores, loss)
    proved(store, tmp_path, TrainConfig(lam=0.05, loss=loss, tolerance=0.01, holdout=0.2, bias="free"))
    forge_proof(tmp_path / "proof")
    shown(tmp_path, store)  # an unchanged proof passes
    forge_proof(tmp_path / "proof", change or (lambda _head: None), duals)
    assert_refused(tmp_path, store)


@pytest.mark.parametrize("bias", [("none", 0.0), ("feature", 1.0), ("free", 1.0)])
def test_a_proof_of_another_bias_is_refused(bias, stores, tmp_path):
    store = stores["binary"]
    proved(store, tmp_path, TrainConfig(lam=0.05, tolerance=0.01, bias="free"))
    forge_proof(tmp_path / "proof", lambda head: head["problem"].update(bias=bias[0], bias_value=bias[1]))
    with pytest.raises(CorruptFileError, match=r"bias(_value)? is \S+, of the model (free|0.0); train again"):
        belonging(tmp_path / "proof", tmp_path / "model", store)


def test_dual_variables_that_do_not_add_up_to_0_prove_nothing_of_a_free_bias(stores, tmp_path):
    """Without a bias the optimum is higher: what proves that would prove too much."""
    store, folders = stores["binary"], {bias: tmp_path / bias for bias in ("none", "free")}
    for bias, folder in folders.items():
        folder.mkdir()
        proved(store, folder, TrainConfig(lam=1.0, tolerance=0.001, class_weight=(0.1, 2.0), bias=bias))
    reached, too_much = shown(folders["free"], store)[0], shown(folders["none"], store)[1]
    assert too_much > 1.1 * reached
    numbers = read_proof(folders["none"] / "proof").duals
    for claimed in (too_much, reached):
        forge_proof(
            folders["free"] / "proof",
            lambda head, claimed=claimed: head["claims"][0].update(lower_bound=claimed),
            lambda duals: np.copyto(duals, numbers),
        )
        assert_refused(folders["free"], store)


def test_other_rows_or_another_order_or_model_is_refused_even_with_forged_checksums(case, tmp_path):
    model, store, proof = case
    matrix, labels, weights = rows()
    order = np.random.default_rng(1).permutation(ROWS)
    others = {"order": (matrix[order], labels["binary"][order], weights[order])}
    others["labels"] = (matrix, labels["binary"] * np.where(np.arange(ROWS) % 9, 1, -1), weights)
    for name, (of_other, its_labels, its_weights) in others.items():
        config = ConvertConfig(shuffle=False, chunk_size=4096)
        other = Store.from_scipy(of_other, its_labels.astype(float), tmp_path / name, its_weights, config)
        with pytest.raises(CorruptFileError, match="another store, or of other rows or another order of rows"):
            prove(model, other.path, proof)
        copy = tmp_path / f"proof of {name}"
        copy.write_bytes(proof.read_bytes())
        forge_proof(copy, lambda head, other=other: head.update(store=other.checksum))
        with pytest.raises(CorruptFileError, match=r"outside its domain|claims an objective"):
            prove(model, other.path, copy)
    opened = Model.load(model)
    dataclasses.replace(opened, weights=opened.weights * 1.05).save(tmp_path / "other")
    with pytest.raises(CorruptFileError, match="another model"):
        prove(tmp_path / "other", store, proof)
    forge_proof(proof, lambda head: head.update(model=fingerprint((tmp_path / "other").read_bytes())))
    with pytest.raises(CorruptFileError, match="claims an objective"):
        prove(tmp_path / "other", store, proof)


def test_a_cut_or_damaged_proof_is_refused(case):
    model, store, proof = case
    raw = proof.read_bytes()
    for length in (0, 5, 16, 100, len(raw) // 2, len(raw) - 1):
        proof.write_bytes(raw[:length])
        with pytest.raises(CorruptFileError):
            prove(model, store, proof)
    shorter = raw[: -4 - 8]
    proof.write_bytes(shorter + zlib.crc32(shorter).to_bytes(4, "little"))
    with pytest.raises(CorruptFileError, match="bytes do not hold 300 rows"):
        prove(model, store, proof)
    proof.write_bytes(raw + b" ")
    with pytest.raises(CorruptFileError, match="the checksum does not match"):
        prove(model, store, proof)
    rng = np.random.default_rng(5)
    for _ in range(60):
        proof.write_bytes(flipped(rng, raw)[0])
        with pytest.raises(CorruptFileError):
            prove(model, store, proof)
    proof.unlink()
    with pytest.raises(InputError, match="no such file"):
        prove(model, store, proof)


def test_options_that_have_no_proof_are_refused(stores, tmp_path):
    for options, message in (
        ({"sampling": "iid", "algorithm": "sgd-s"}, "proof: iid sampling"),
        ({"sampling": "iid", "algorithm": "pegasos", "bias": "unregularized"}, "proof: iid sampling"),
        ({"bias": "search"}, "bias=search has no proof for other biases; leave out proof, or choose bias=free"),
    ):
        with pytest.raises(UsageError, match=message):
            train(stores["binary"], TrainConfig(lam=0.05, **options), proof=tmp_path / "proof")
    assert not (tmp_path / "proof").exists()


def test_a_run_without_a_proof_cannot_be_resumed_with_one(stores, tmp_path):
    config = TrainConfig(lam=0.05, max_epochs=2, tolerance=1e-9, checkpoint_epochs=1)
    train(stores["binary"], config, checkpoint=tmp_path / "checkpoint")
    with pytest.raises(UsageError, match="was started without proof"):
        train(stores["binary"], config, checkpoint=tmp_path / "checkpoint", resume=True, proof=tmp_path / "proof")


def test_a_damaged_checkpoint_of_dual_variables_is_refused(stores, tmp_path):
    config = TrainConfig(lam=0.05, max_epochs=2, tolerance=1e-9, checkpoint_epochs=1, algorithm="sgd-s")
    options = {"checkpoint": tmp_path / "checkpoint", "proof": tmp_path / "proof"}
    train(stores["binary"], config, **options)
    (file,) = (tmp_path / "checkpoint").glob("rows-*.checkpoint")
    raw = bytearray(file.read_bytes())
    raw[1234] ^= 4
    file.write_bytes(raw)
    more = dataclasses.replace(config, max_epochs=4)
    with pytest.raises(CorruptFileError, match="the checksum does not match"):
        train(stores["binary"], more, resume=True, **options)
    file.unlink()
    with pytest.raises(CorruptFileError, match="No such file"):
        train(stores["binary"], more, resume=True, **options)


@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s"])
def test_without_an_epoch_nothing_but_zero_is_proved_of_a_free_bias(algorithm, stores, tmp_path):
    same = {"algorithm": algorithm, "memory": memory_of_two_chunks(stores["binary"])}
    config = TrainConfig(lam=0.05, bias="free", max_seconds=1e-9, **same)
    train(stores["binary"], config, proof=tmp_path / "proof").model.save(tmp_path / "model")
    assert shown(tmp_path, stores["binary"])[1] == 0.0


def test_without_an_epoch_nothing_but_zero_is_proved(stores, tmp_path):
    config = TrainConfig(lam=0.05, max_seconds=1e-9, algorithm="sgd-s", memory=memory_of_two_chunks(stores["binary"]))
    train(stores["binary"], config, proof=tmp_path / "proof").model.save(tmp_path / "model")
    (found,) = prove(tmp_path / "model", stores["binary"].path, tmp_path / "proof")
    assert found.lower_bound == 0.0
    assert proof_words([found]) == "proved: the objective is at most 1.67201, and the optimum not negative"


def test_printed_numbers_are_rounded_outward():
    words = proof_words([Claim(1.2345678, 1.2242424)])
    assert words == "proved: within 0.844 % of the optimum; objective at most 1.23457, optimum at least 1.22424"
    assert proof_words([Claim(0.0, 0.0)]).startswith("proved: within 0 % of the optimum")


def test_the_command(stores, oocpeg, tmp_path):
    store = stores["binary"].path
    oocpeg("train", store, "-o", "m", "--lambda", "0.05", "--proof", "p", "-q")
    done = oocpeg("prove", "m", store, "--proof", "p")
    assert done.stdout.startswith("proved: within 0.")
    told = json.loads(oocpeg("prove", "m", store, "--proof", "p", "--json").stdout)
    assert told["relative_accuracy"] == pytest.approx((told["primal"] - told["lower_bound"]) / told["lower_bound"])
    primal, bound = check(tmp_path / "m", store, tmp_path / "p")
    assert done.stdout == proof_words([Claim(primal, bound)]) + "\n"  # the independent checker agrees to all digits
    done = oocpeg("train", store, "-o", "m2", "--lambda", "0.05", "--proof", "p", code=3)
    assert "p: exists already; add --force" in done.stderr
    done = oocpeg("train", store, "-o", "m", "--lambda", "0.05", "--proof", "m", "--force", code=2)
    assert "is the output" in done.stderr
    done = oocpeg("train", store, "-o", "m2", "--lambda", "0.05", "--proof", "p2", "--scheduler", "local:1", code=2)
    assert "--proof is for one machine" in done.stderr
    oocpeg("train", store, "-o", "m2", "--lambda", "0.06", "-q")
    done = oocpeg("prove", "m2", store, "--proof", "p", code=5)
    assert "p: the proof of another model than m2; give the model it was written with" in done.stderr
