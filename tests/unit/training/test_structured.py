"""Structured prediction: against LIBLINEAR where outputs are classes, and brute force over all outputs elsewhere."""

import importlib.util
import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.svm import LinearSVC

from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.training import structured
from ooc_pegasos.training.structured import StructuredConfig, train_structured
from support.paths import ROOT

SCRIPT = ROOT / "scripts" / "chain_tagger.py"


def load_script():
    spec = importlib.util.spec_from_file_location("chain_tagger", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for their module
    spec.loader.exec_module(module)
    return module


chain_tagger = load_script()


class Classes:
    """Classes of 0 to k - 1 with a vector each; a wrong one costs what `costs` says."""

    def __init__(self, k, d, costs=None):
        self.k, self.d = k, d
        self.n_features = k * d
        self.costs = 1.0 - np.eye(k) if costs is None else costs

    def features(self, x, y):
        return y * self.d + np.arange(self.d), x

    def most_violating(self, weights, x, y):
        worst = int(np.argmax(self.costs[y] + weights.reshape(self.k, self.d) @ x))
        return worst, self.costs[y, worst]

    def best(self, weights, x):
        return int(np.argmax(weights.reshape(self.k, self.d) @ x))


class Signs:
    """The binary SVM: phi(x, y) = y x / 2, so that the true output less the other is y x."""

    def features(self, x, y):
        return np.arange(len(x)), y * x / 2

    def most_violating(self, weights, x, y):
        return (-y, 1) if y * (weights @ x) < 1 else (y, 0)

    def best(self, weights, x):
        return 1 if weights @ x > 0 else -1


def structured_rows(m, d, k, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((m, d))
    return x, (x @ rng.standard_normal((d, k)) + rng.standard_normal((m, k))).argmax(axis=1)


def brute_force(task, outputs, weights, examples):
    """P without the task's own maximisation: the largest of all outputs, one by one."""

    def score(x, y):
        indices, values = task.features(x, y)
        return float(weights[indices] @ values)

    def hinge(x, y):
        return max(float(np.sum(np.not_equal(z, y))) + score(x, z) for z in outputs(x)) - score(x, y)

    return [hinge(x, y) for x, y in examples]


def check_certificate(result, optimum, tolerance):
    """No bound above the optimum and no objective below it, at no time, and the gap is what it says."""
    slack = 1e-7 * optimum
    for entry in result.history.to_pylist():
        assert entry["lower_bound"] <= optimum + slack
        assert entry["primal"] is None or entry["primal"] >= optimum - slack
    assert result.gap == pytest.approx((result.primal - result.lower_bound) / result.primal)
    assert result.converged == (result.gap <= tolerance)
    assert result.primal <= optimum / (1 - result.gap) + slack


# --- against LIBLINEAR ----------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [0.3, 0.03, 0.003])
def test_two_outputs_are_the_binary_svm(lam):
    x, y = structured_rows(300, 8, 2, 1)
    y = 2 * y - 1
    svm = LinearSVC(C=1 / (lam * 300), loss="hinge", fit_intercept=False, tol=1e-10, max_iter=3_000_000, dual=True)
    w = svm.fit(x, y).coef_.ravel()
    optimum = lam / 2 * w @ w + np.maximum(0, 1 - y * (x @ w)).mean()
    result = train_structured(Signs(), list(zip(x, y.tolist(), strict=True)), 8, StructuredConfig(lam, 0.02, 200))
    check_certificate(result, optimum, 0.02)
    assert result.converged
    w = result.weights
    assert result.primal == pytest.approx(lam / 2 * w @ w + np.maximum(0, 1 - y * (x @ w)).mean(), rel=1e-12)


@pytest.mark.parametrize("lam", [0.1, 0.02])
def test_classes_are_crammer_and_singers_svm(lam):
    k, d, m = 5, 10, 400
    x, y = structured_rows(m, d, k, 2)
    svm = LinearSVC(
        C=1 / (lam * m), multi_class="crammer_singer", fit_intercept=False, tol=1e-9, max_iter=1_000_000, random_state=0
    )
    w = svm.fit(x, y).coef_
    task, examples = Classes(k, d), list(zip(x, y.tolist(), strict=True))

    def objective(w):
        z = x @ w.reshape(k, d).T
        augmented = z + (np.arange(k) != y[:, None])
        return lam / 2 * np.sum(w * w) + (augmented.max(axis=1) - z[np.arange(m), y]).mean()

    result = train_structured(task, examples, task.n_features, StructuredConfig(lam, 0.02, 200))
    check_certificate(result, objective(w), 0.02)
    assert result.converged
    assert result.primal == pytest.approx(objective(result.weights), rel=1e-12)
    predicted = [task.best(result.weights, row) for row in x]
    assert np.mean(predicted == svm.predict(x)) > 0.9


def test_costs_and_lambda_of_the_same_ratio_are_the_same_problem():
    x, y = structured_rows(200, 6, 3, 5)
    examples = list(zip(x, y.tolist(), strict=True))
    task, dear = Classes(3, 6), Classes(3, 6, 8.0 * (1.0 - np.eye(3)))
    one = train_structured(task, examples, 18, StructuredConfig(0.08, 1e-9, 10))
    other = train_structured(dear, examples, 18, StructuredConfig(0.01, 1e-9, 10))
    np.testing.assert_allclose(8 * one.weights, other.weights, rtol=1e-9)
    np.testing.assert_allclose([8 * one.primal, 8 * one.lower_bound], [other.primal, other.lower_bound], rtol=1e-9)


# --- chains ---------------------------------------------------------------------------------------


def all_tags(tags):
    return lambda x: (np.array(path) for path in itertools.product(range(tags), repeat=len(x)))


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=5),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_viterbi_finds_what_brute_force_finds(tags, sentence, seed, ties):
    rng = np.random.default_rng(seed)
    task = chain_tagger.ChainTask(tags, 4)
    weights = rng.integers(-1, 2, task.n_features).astype(float) if ties else rng.standard_normal(task.n_features)
    x, y = np.array([word for word, _ in sentence]), np.array([tag % tags for _, tag in sentence])

    def score(z):
        emission, transition = weights[: 4 * tags].reshape(tags, 4), weights[4 * tags :].reshape(tags, tags)
        places = sum(emission[tag, word] for tag, word in zip(z, x, strict=True))
        return places + sum(transition[tag, after] for tag, after in itertools.pairwise(z))

    indices, values = task.features(x, y)
    assert weights[indices] @ values == pytest.approx(score(y))
    y_hat, cost = task.most_violating(weights, x, y)
    assert cost == sum(y_hat != y)
    assert cost + score(y_hat) == pytest.approx(max(sum(z != y) + score(z) for z in all_tags(tags)(x)))
    assert score(task.best(weights, x)) == pytest.approx(max(score(z) for z in all_tags(tags)(x)))


def enumerated(task, examples, outputs):
    """(costs, phi(x, y) - phi(x, y')) of every output of every example."""
    costs, changes = [], []
    for x, y in examples:
        for z in outputs(x):
            change = np.zeros(task.n_features)
            for sign, output in ((1, y), (-1, z)):
                indices, values = task.features(x, output)
                np.add.at(change, indices, sign * values)
            costs.append(float((z != y).sum()))
            changes.append(change)
    return np.array(costs).reshape(len(examples), -1), np.array(changes).reshape(len(examples), -1, task.n_features)


def tiny_chains(seed):
    """Four sentences of three words: 8 outputs each."""
    rng = np.random.default_rng(seed)
    task = chain_tagger.ChainTask(2, 3)
    return task, [(rng.integers(0, 3, 3), rng.integers(0, 2, 3)) for _ in range(4)]


def optimum_by_quadratic_programming(costs, changes, lam):
    """The dual, one variable for each example and output; its weights prove how near to the optimum it is."""
    m, n = costs.shape
    flat, c = changes.reshape(m * n, -1), costs.ravel()
    gram = flat @ flat.T
    constraint = {
        "type": "eq",
        "fun": lambda alpha: alpha.reshape(m, n).sum(axis=1) - 1.0,
        "jac": lambda _: np.kron(np.eye(m), np.ones(n)),
    }
    best = minimize(
        lambda alpha: 0.5 / (lam * m * m) * alpha @ gram @ alpha - c @ alpha / m,
        np.full(m * n, 1 / n),
        jac=lambda alpha: gram @ alpha / (lam * m * m) - c / m,
        bounds=[(0, 1)] * (m * n),
        constraints=[constraint],
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-14},
    )
    w = best.x @ flat / (lam * m)
    primal = lam / 2 * w @ w + (costs - changes @ w).max(axis=1).mean()
    assert -1e-9 <= primal + best.fun <= 1e-4 * primal, "the quadratic program is not solved"
    return -best.fun, primal


@pytest.mark.slow
@pytest.mark.parametrize("lam", [2.0, 0.3, 0.05])
@pytest.mark.parametrize("seed", range(5))
def test_the_certificate_on_chains_against_a_quadratic_program(seed, lam, monkeypatch):
    monkeypatch.setattr(structured, "COEFFICIENT", np.inf)  # measured after each epoch
    task, examples = tiny_chains(seed)
    lower, upper = optimum_by_quadratic_programming(*enumerated(task, examples, all_tags(2)), lam)
    result = train_structured(task, examples, task.n_features, StructuredConfig(lam, 0.005, 3000))
    for entry in result.history.to_pylist():
        assert entry["lower_bound"] <= upper * (1 + 1e-9)
        assert entry["primal"] >= lower * (1 - 1e-9)
    assert np.all(np.diff(result.history["primal"].to_numpy()) <= 0)
    assert result.converged
    losses = brute_force(task, all_tags(2), result.weights, examples)
    assert result.primal == pytest.approx(lam / 2 * result.weights @ result.weights + np.mean(losses), rel=1e-12)
    assert result.primal <= upper * 1.006


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_bound_holds_even_if_the_maximum_is_not_found(seed):
    """The lower bound asks of outputs only that they are outputs."""

    class Sloppy(chain_tagger.ChainTask):
        def most_violating(self, weights, x, y):
            z = rng.integers(0, 2, len(x))
            gain = (z != y).sum() + sum(sign * weights[self.features(x, o)[0]].sum() for sign, o in ((1, z), (-1, y)))
            return (z, (z != y).sum()) if gain >= 0 else (y, 0)

    rng = np.random.default_rng(seed)
    task, examples = tiny_chains(seed)
    _, upper = optimum_by_quadratic_programming(*enumerated(task, examples, all_tags(2)), 0.3)
    bounds = []
    for epochs in range(1, 6):
        try:
            result = train_structured(Sloppy(2, 3), examples, task.n_features, StructuredConfig(0.3, 1e-9, epochs))
        except InputError as error:
            assert "largest" in str(error)
        else:
            bounds += result.history["lower_bound"].to_pylist()
    assert all(bound <= upper for bound in bounds)


# --- how it runs ----------------------------------------------------------------------------------


def test_the_same_bytes_twice_and_others_with_another_seed():
    task, examples = tiny_chains(7)
    config = StructuredConfig(0.05, 1e-9, 12, seed=3)
    first, again = (train_structured(task, examples, task.n_features, config) for _ in range(2))
    assert first.weights.tobytes() == again.weights.tobytes()
    assert first.history.equals(again.history)
    other = train_structured(task, examples, task.n_features, StructuredConfig(0.05, 1e-9, 12, seed=4))
    assert first.weights.tobytes() != other.weights.tobytes()


def test_examples_may_come_from_disk_and_are_asked_for_equally_often(tmp_path):
    x, y = structured_rows(50, 4, 3, 1)
    np.savez(tmp_path / "rows.npz", x=x, y=y)

    class OnDisk:
        asked = np.zeros(50, int)

        def __len__(self):
            return 50

        def __getitem__(self, number):
            assert type(number) is int
            self.asked[number] += 1
            with np.load(tmp_path / "rows.npz") as file:
                return file["x"][number], int(file["y"][number])

    lazily = OnDisk()
    config = StructuredConfig(0.1, 1e-9, 3)
    result = train_structured(Classes(3, 4), lazily, 12, config)
    in_memory = train_structured(Classes(3, 4), list(zip(x, y.tolist(), strict=True)), 12, config)
    assert result.weights.tobytes() == in_memory.weights.tobytes()
    # once to guess the delay, three epochs, one exact pass; ten are asked for once more to check `best`
    assert lazily.asked.tolist() == [6] * 10 + [5] * 40


def test_indices_that_repeat_add_up():
    class Twice(Classes):
        def features(self, x, y):
            indices, values = super().features(x, y)
            return np.concatenate([indices, indices]), np.concatenate([values / 4, 3 * values / 4])

    x, y = structured_rows(60, 4, 3, 1)
    examples = list(zip(x, y.tolist(), strict=True))
    config = StructuredConfig(0.1, 1e-9, 5)
    results = [train_structured(task, examples, 12, config) for task in (Classes(3, 4), Twice(3, 4))]
    np.testing.assert_allclose(results[0].weights, results[1].weights, rtol=1e-10)


class Recording(Classes):
    """Keeps the weights it was shown, and what it answered."""

    def __init__(self, k, d):
        super().__init__(k, d)
        self.shown, self.answers = [], []

    def most_violating(self, weights, x, y):
        self.shown.append(weights.copy())
        self.answers.append(super().most_violating(weights, x, y))
        return self.answers[-1]


@pytest.mark.parametrize("stale", [1.0, structured.STALE])
def test_the_iterates_are_those_of_equation_2(stale, monkeypatch):
    """And the candidates the last of them and their mean (2a), and the bound (3) or (5): all counted again here."""
    monkeypatch.setattr(structured, "STALE", stale)
    m, k, d, lam = 80, 3, 5, 0.01
    x, y = structured_rows(m, d, k, 6)
    task = Recording(k, d)
    result = train_structured(task, list(zip(x, y.tolist(), strict=True)), k * d, StructuredConfig(lam, 1e-9, 2))
    delay = max(2 * (row @ row) for row in x) / lam
    order = np.concatenate([np.random.default_rng([0, epoch]).permutation(m) for epoch in (1, 2)])
    a, errors, exact, ends = np.zeros((k, d)), 0.0, [], [(0, 0.0, np.zeros((k, d)))]
    for t, i in enumerate(order.tolist()):
        exact.append(a.ravel() / (lam * (t + delay)))
        worst, cost = task.answers[m + t]
        a[y[i]] += x[i]
        a[worst] -= x[i]
        errors += cost
        if (t + 1) % m == 0:
            ends.append((t + 1, errors, a.copy()))
    np.testing.assert_allclose(task.shown[m : 3 * m], exact, rtol=1e-3 if stale > 1 else 1e-12, atol=1e-15)
    iterate, average = task.shown[3 * m : 3 * m + 2]
    np.testing.assert_allclose(iterate, a.ravel() / (lam * (2 * m + delay)), rtol=1e-12)
    np.testing.assert_allclose(average, np.mean(exact[m:], axis=0), rtol=1e-9)
    bounds = [s / (t + delay) - lam / 2 * np.sum(v * v) / (lam * (t + delay)) ** 2 for t, s, v in ends]
    for (t0, s0, v0), (t1, s1, v1) in itertools.combinations(ends, 2):
        bounds.append((s1 - s0) / (t1 - t0) - lam / 2 * np.sum((v1 - v0) ** 2) / (lam * (t1 - t0)) ** 2)
    assert result.lower_bound == pytest.approx(max(bounds), rel=1e-12)


def test_nothing_to_learn_is_optimal_at_once():
    class Free(Classes):
        def most_violating(self, weights, x, y):
            return y, 0.0

    result = train_structured(Free(2, 2), [(np.ones(2), 0), (np.ones(2), 1)], 4, StructuredConfig(0.1))
    assert result.converged
    assert (result.primal, result.lower_bound, result.gap) == (0.0, 0.0, 0.0)
    assert not result.weights.any()


def test_a_run_that_stops_at_the_limit_says_so():
    x, y = structured_rows(100, 5, 4, 3)
    result = train_structured(Classes(4, 5), list(zip(x, y.tolist(), strict=True)), 20, StructuredConfig(1e-4, 1e-3, 2))
    assert not result.converged
    assert result.history.num_rows == 2
    assert result.gap > 1e-3


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"lam": 0}, {"lam": -1}, {"lam": float("nan")}, {"tolerance": 0}, {"max_epochs": 0}, {"seed": -1}],
    ids=str,
)
def test_options_without_meaning(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        StructuredConfig(**{"lam": 0.1, **options})


def test_no_examples_and_no_features():
    with pytest.raises(UsageError, match="no examples"):
        train_structured(Classes(2, 2), [], 4, StructuredConfig(0.1))
    with pytest.raises(UsageError, match="n_features"):
        train_structured(Classes(2, 2), [(np.ones(2), 0)], 0, StructuredConfig(0.1))


def wrong(name, function):
    """A task with one function of its own."""
    return type("Wrong", (Classes,), {name: function})(3, 2)


def ignores_cost(self, weights, x, y):
    worst = int(np.argmax(weights.reshape(self.k, self.d) @ x))
    return worst, self.costs[y, worst]


def smallest(self, weights, x, y):
    least = int(np.argmin(weights.reshape(self.k, self.d) @ x))
    return least, self.costs[y, least]


def forgets_the_true_output(self, weights, x, y):
    z = weights.reshape(self.k, self.d) @ x
    z[y] = -np.inf
    return int(np.argmax(z)), 1.0


WRONG = {
    "index beyond": ("features", lambda self, x, y: (y * self.d + np.arange(self.d) + 1, x), "index 6.* 0 to 5"),
    "index below": ("features", lambda self, x, y: (y * self.d + np.arange(self.d) - 1, x), "index -1.* 0 to 5"),
    "other lengths": ("features", lambda self, x, y: (np.arange(3), x), "two arrays of one length"),
    "real indices": ("features", lambda self, x, y: (np.arange(2.0), x), "indices as integers"),
    "no pair": ("features", lambda self, x, y: None, "two arrays"),
    "a dense vector": ("features", lambda self, x, y: np.ones(6), "two arrays"),
    "words for values": ("features", lambda self, x, y: (np.arange(2), ["a", "b"]), "real numbers"),
    "value nan": ("features", lambda self, x, y: (np.arange(2), x * np.nan), "not finite"),
    "value inf": ("features", lambda self, x, y: (np.arange(2), x + np.inf), "not finite"),
    "cost below 0": ("most_violating", lambda self, weights, x, y: ((y + 1) % 3, -1), "cost of an output is -1"),
    "cost nan": ("most_violating", lambda self, weights, x, y: (y, float("nan")), "cost of an output is nan"),
    "cost inf": ("most_violating", lambda self, weights, x, y: (y, float("inf")), "cost of an output is inf"),
    "the smallest": ("most_violating", smallest, "has to choose the largest"),
    "all but the true output": ("most_violating", forgets_the_true_output, "the true output has 0"),
    "cost forgotten": ("most_violating", ignores_cost, "output chosen before has"),
    "the worst prediction": ("best", lambda self, w, x: int((w.reshape(3, 2) @ x).argmin()), r"best\(\) gave scores"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_of_a_task(name):
    function, definition, message = WRONG[name]
    x, y = structured_rows(60, 2, 3, 1)
    with pytest.raises(InputError, match=message) as raised:
        train_structured(
            wrong(function, definition), list(zip(x, y.tolist(), strict=True)), 6, StructuredConfig(0.01, 1e-6)
        )
    assert str(raised.value).startswith("example ")
    assert "\n" not in str(raised.value)


def test_an_objective_below_its_bound_is_an_error():
    """Wrong only in the exact pass, and only on examples nobody watches: 1 of 2."""
    x, y = structured_rows(200, 2, 3, 1)

    class Wrong(Classes):
        calls = 0

        def most_violating(self, weights, x, y):
            self.calls += 1
            if self.calls > 100 + 20 * 200 and self.number % 2 == 1:
                return y, 0.0
            return super().most_violating(weights, x, y)

    class Numbered:
        def __len__(self):
            return len(x)

        def __getitem__(self, number):
            task.number = number
            return x[number], int(y[number])

    task = Wrong(3, 2)
    with pytest.raises(InputError, match="below its lower bound"):
        train_structured(task, Numbered(), 6, StructuredConfig(0.1, 1e-9, 20))


def test_weights_are_read_only():
    def meddle(self, weights, x, y):
        weights[0] = 1.0
        return y, 0.0

    with pytest.raises(ValueError, match="read-only") as raised:
        train_structured(wrong("most_violating", meddle), [(np.ones(2), 0)], 6, StructuredConfig(0.1))
    assert raised.value.__notes__ == ["raised for example 0"]


def test_a_mistake_of_the_user_is_raised_as_it_is_with_the_example():
    def fail(self, weights, x, y):
        raise KeyError("tag")

    with pytest.raises(KeyError) as raised:
        train_structured(wrong("most_violating", fail), [(np.ones(2), 0)], 6, StructuredConfig(0.1))
    assert raised.value.__notes__ == ["raised for example 0"]
    with pytest.raises(TypeError) as raised:
        train_structured(Classes(3, 2), [3], 6, StructuredConfig(0.1))
    assert raised.value.__notes__ == ["raised for example 0"]


# --- the worked example ---------------------------------------------------------------------------


def test_the_likeliest_tags_of_the_true_model_against_all_sequences():
    rng = np.random.default_rng(0)
    source = chain_tagger.HiddenMarkov.make(3, 5, rng)
    for _ in range(20):
        x = source.sentence(rng)[0][:5]
        shares = np.zeros((len(x), 3))
        for z in all_tags(3)(x):
            steps = [source.following[tag, after] for tag, after in itertools.pairwise(z)]
            shares[np.arange(len(x)), z] += source.first[z[0]] * np.prod(steps) * np.prod(source.emission[z, x])
        assert source.likeliest(x).tolist() == shares.argmax(axis=1).tolist()


def test_the_most_frequent_tags():
    sentences = [(np.array([0, 0, 0, 1]), np.array([1, 1, 0, 1])), (np.array([2, 2, 2]), np.array([0, 2, 2]))]
    assert chain_tagger.most_frequent(sentences, 3, 4).tolist() == [1, 1, 2, 1]


@pytest.mark.slow
def test_the_script_runs_and_beats_the_most_frequent_tag():
    command = [sys.executable, SCRIPT, "--sentences", "300", "--tags", "4", "--words", "40", "--lambda", "0.02"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "certified gap 0." in done.stdout
    errors = {line[:34].strip(): float(line.split()[-2]) for line in done.stdout.splitlines() if line.endswith("%")}
    ours, majority, likeliest = list(errors.values())[-3:]
    assert likeliest <= ours + 1 < majority
    limited = subprocess.run([*map(str, command), "--max-epochs", "1"], capture_output=True, text=True, timeout=120)
    assert limited.returncode == 4
    assert "not within the tolerance" in limited.stdout
