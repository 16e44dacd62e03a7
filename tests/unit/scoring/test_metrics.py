"""Streaming metrics against scikit-learn's, on the same rows at once."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference

from ooc_pegasos.scoring.metrics import (
    MOST_LISTED,
    BinaryMetrics,
    MulticlassMetrics,
    ProbabilityMetrics,
    RegressionMetrics,
)


def stream(taken, block, *columns):
    """Give all columns to `taken`, so many rows at a time; a column may be None."""
    for begin in range(0, len(columns[0]), block):
        taken.add(*(None if column is None else column[begin : begin + block] for column in columns))
    return taken


def some_weights(kind, rows):
    rng = np.random.default_rng(5)
    if kind == "none":
        return None
    if kind == "whole":
        return rng.integers(0, 4, rows).astype(np.float32)
    return rng.exponential(1.0, rows)


WEIGHTS = pytest.mark.parametrize("kind", ["none", "whole", "real"])
BLOCKS = pytest.mark.parametrize("block", [1, 7, 1000])


@WEIGHTS
@BLOCKS
@pytest.mark.parametrize("level", [0.0, 1e9])
def test_regression_like_scikit_learn(kind, block, level):
    rng = np.random.default_rng(1)
    targets = level + rng.standard_normal(1000)
    predictions = targets + 0.3 * rng.standard_normal(1000)
    losses, weights = np.abs(rng.standard_normal(1000)), some_weights(kind, 1000)
    found = stream(RegressionMetrics(), block, predictions, targets, losses, weights).result(0.25)
    assert found["rows"] == 1000
    mean_square = reference.mean_squared_error(targets, predictions, sample_weight=weights)
    assert found["mean_squared_error"] == pytest.approx(mean_square, rel=1e-12)
    assert found["root_mean_squared_error"] == pytest.approx(math.sqrt(mean_square), rel=1e-12)
    absolute = reference.mean_absolute_error(targets, predictions, sample_weight=weights)
    assert found["mean_absolute_error"] == pytest.approx(absolute, rel=1e-12)
    # scikit-learn rounds the mean near 1e9, so it is asked about the targets without that
    r2 = reference.r2_score(targets - level, predictions - level, sample_weight=weights)
    assert found["r2"] == pytest.approx(r2, rel=1e-12)
    assert found["mean_loss"] == pytest.approx(np.average(losses, weights=weights), rel=1e-12)
    assert found["objective"] == pytest.approx(0.25 + np.average(losses, weights=weights), rel=1e-12)


def test_an_outlier_without_weight_does_no_harm():
    targets, weights = np.array([1e17, 1.0, 2.0, 4.0]), np.array([0.0, 1.0, 1.0, 1.0])
    predictions = np.array([0.0, 1.5, 2.5, 3.5])
    found = stream(RegressionMetrics(), 4, predictions, targets, np.zeros(4), weights).result(0.0)
    assert found["r2"] == pytest.approx(reference.r2_score(targets[1:], predictions[1:]), rel=1e-12)


def test_single_precision_is_added_up_in_double():
    rng = np.random.default_rng(6)
    targets, predictions, losses, weights = rng.random((4, 5000), np.float32)
    found = stream(RegressionMetrics(), 5000, predictions, targets, losses, weights).result(0.0)
    exact = [column.astype(np.float64) for column in (targets, predictions, losses, weights)]
    assert found["mean_loss"] == pytest.approx(np.average(exact[2], weights=exact[3]), rel=1e-13)
    square = reference.mean_squared_error(exact[0], exact[1], sample_weight=exact[3])
    assert found["mean_squared_error"] == pytest.approx(square, rel=1e-13)


@given(st.floats(-1e6, 1e6), st.integers(1, 30), st.integers(1, 7), st.booleans())
def test_targets_that_are_all_alike_have_no_r2(target, rows, block, weighted):
    weights = np.linspace(0.1, 0.7, rows) if weighted else None
    found = stream(RegressionMetrics(), block, np.zeros(rows), np.full(rows, target), np.zeros(rows), weights)
    assert found.result(0.0)["r2"] is None


def test_many_blocks_do_not_wear_the_sums_out():
    taken = RegressionMetrics()
    taken.add(np.array([1e8]), np.zeros(1), np.array([1e16]))
    for _ in range(20_000):
        taken.add(np.zeros(1), np.zeros(1), np.ones(1))
    assert taken.result(0.0)["mean_loss"] * 20_001 == 1e16 + 20_000


@WEIGHTS
@BLOCKS
def test_classes_like_scikit_learn(kind, block):
    rng = np.random.default_rng(2)
    labels = rng.choice([0, 1, 2, 4], 1000, p=[0.7, 0.2, 0.09, 0.01])  # 3 never occurs, 5 only as a prediction
    predicted = np.where(rng.random(1000) < 0.7, labels, rng.choice([0, 1, 2, 4, 5], 1000))
    losses, weights = rng.random(1000), some_weights(kind, 1000)
    taken = stream(MulticlassMetrics(6), block, predicted, labels.astype(np.float32), losses, weights)
    found = taken.result(0.5)
    accuracy = reference.accuracy_score(labels, predicted, sample_weight=weights)
    assert found["rows"] == 1000
    assert found["accuracy"] == pytest.approx(accuracy, rel=1e-12)
    assert found["error"] == pytest.approx(1 - accuracy, rel=1e-12)
    with pytest.warns(UserWarning, match="not in y_true"):
        balanced = reference.balanced_accuracy_score(labels, predicted, sample_weight=weights)
    assert found["balanced_accuracy"] == pytest.approx(balanced, rel=1e-12)
    f1 = reference.f1_score(labels, predicted, average="macro", sample_weight=weights, zero_division=0)
    assert found["macro_f1"] == pytest.approx(f1, rel=1e-12)
    matrix = reference.confusion_matrix(labels, predicted, labels=range(6), sample_weight=weights)
    np.testing.assert_allclose(found["confusion"], matrix, rtol=1e-12)
    assert found["mean_loss"] == pytest.approx(np.average(losses, weights=weights), rel=1e-12)
    assert found["objective"] == pytest.approx(0.5 + np.average(losses, weights=weights), rel=1e-12)
    assert isinstance(found["confusion"][0][0], int if weights is None else float)
    assert np.array_equal(taken.confusion, found["confusion"])


def test_thousands_of_classes():
    rng = np.random.default_rng(3)
    labels, predicted = rng.integers(0, 4096, (2, 3000))
    predicted[::2] = labels[::2]
    taken = stream(MulticlassMetrics(4096), 300, predicted, labels, np.zeros(3000), None)
    found = taken.result(0.0)
    assert found["confusion"] is None
    assert taken.confusion.sum() == 3000
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(labels, predicted))
    f1 = reference.f1_score(labels, predicted, average="macro", zero_division=0)
    assert found["macro_f1"] == pytest.approx(f1, rel=1e-12)
    assert MulticlassMetrics(MOST_LISTED).result(0.0)["confusion"] is not None


@pytest.mark.parametrize(("predicted", "label"), [(-1, 0), (3, 0), (0, -1), (0, 3)])
def test_classes_that_are_not_there_are_refused(predicted, label):
    with pytest.raises(ValueError, match="from 0 to 2"):
        MulticlassMetrics(3).add(np.array([0, predicted]), np.array([0, label]), np.zeros(2))


@pytest.mark.parametrize("classes", [0, 4097])
def test_as_many_classes_as_can_be(classes):
    with pytest.raises(ValueError, match="4096"):
        MulticlassMetrics(classes)


@WEIGHTS
@BLOCKS
def test_probabilities_like_scikit_learn(kind, block):
    rng = np.random.default_rng(4)
    labels, weights = rng.choice([-1.0, 1.0], 1000), some_weights(kind, 1000)
    probabilities = rng.random(1000)
    probabilities[:20], probabilities[20:40], probabilities[40:60] = 0.0, 1.0, 1e-30
    found = stream(ProbabilityMetrics(), block, probabilities, labels, weights).result()
    assert found["rows"] == 1000
    expected = reference.log_loss(labels, probabilities, sample_weight=weights)
    assert found["log_loss"] == pytest.approx(expected, rel=1e-12)
    expected = reference.brier_score_loss(labels, probabilities, sample_weight=weights, pos_label=1)
    assert found["brier"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rows", [0, 3])
def test_rows_without_weight_have_no_metrics(rows):
    nothing = np.zeros(rows)
    taken = [RegressionMetrics(), MulticlassMetrics(2), ProbabilityMetrics()]
    taken[0].add(nothing, nothing, nothing, nothing)
    taken[1].add(nothing, nothing, nothing, nothing)
    taken[2].add(nothing, nothing, nothing)
    for found in (taken[0].result(1.0), taken[1].result(1.0), taken[2].result()):
        assert found.pop("rows") == rows
        found.pop("confusion", None)
        assert set(found.values()) == {None}


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.integers(0, 3)), min_size=1, max_size=30), st.integers(1, 9)
)
def test_whole_weights_are_repeated_rows(rows, block):
    chances, labels = np.array([row[0] for row in rows]), np.array([1 if row[1] else -1 for row in rows])
    weights = np.array([row[2] for row in rows])
    again = np.repeat(np.arange(len(rows)), weights)
    weighted = [
        stream(RegressionMetrics(), block, chances, labels, chances, weights).result(0.0),
        stream(MulticlassMetrics(2), block, (chances > 0.5).astype(int), (labels > 0).astype(int), chances, weights),
        stream(ProbabilityMetrics(), block, chances, labels, weights).result(),
    ]
    repeated = [
        stream(RegressionMetrics(), block, chances[again], labels[again], chances[again], None).result(0.0),
        stream(MulticlassMetrics(2), block, (chances > 0.5).astype(int)[again], (labels > 0)[again], chances[again]),
        stream(ProbabilityMetrics(), block, chances[again], labels[again], None).result(),
    ]
    weighted[1], repeated[1] = weighted[1].result(0.0), repeated[1].result(0.0)
    for one, other in zip(weighted, repeated, strict=True):
        for key in one.keys() - {"rows"}:
            exact = other[key] is None or key == "confusion"
            assert one[key] == (other[key] if exact else pytest.approx(other[key], rel=1e-9, abs=1e-12))


@pytest.mark.parametrize("exact_rows", [10_000, 150, 0])
def test_metrics_of_parts_can_be_merged(exact_rows):
    rng = np.random.default_rng(0)
    scores, labels, weights = rng.normal(size=300), rng.choice([-1.0, 1.0], 300), rng.random(300)
    targets, classes = 1e9 + scores, rng.integers(0, 3, 300)

    def made(begin, end):
        some = slice(begin, end)
        found = (BinaryMetrics(exact_rows), ProbabilityMetrics(), RegressionMetrics(), MulticlassMetrics(3))
        found[0].add(scores[some], labels[some], np.abs(scores[some]))
        found[1].add(1 / (1 + np.exp(-scores[some])), labels[some], weights[some])
        found[2].add(scores[some] + 1e9 - 0.1, targets[some], np.abs(scores[some]), weights[some])
        found[3].add(classes[some], classes[::-1][some], np.abs(scores[some]))
        return found

    whole, merged = made(0, 300), made(0, 0)
    for begin, end in ((0, 100), (100, 100), (100, 220), (220, 300)):
        for mine, more in zip(merged, made(begin, end), strict=True):
            mine.merge(more)
    for one, other in zip(whole, merged, strict=True):
        norms = () if isinstance(one, ProbabilityMetrics) else (0.5,)
        left, right = one.result(*norms), other.result(*norms)
        assert left.keys() == right.keys()
        for name, value in left.items():
            assert right[name] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), name
