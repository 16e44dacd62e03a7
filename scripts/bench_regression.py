"""Default regression models on CSV files, relative to grids of scikit-learn.

    python scripts/bench_regression.py [--only NAME ...] [--losses huber absolute ...]

For each data set: R^2 on test rows of `convert` and `train` without options but the names of columns, of the best of
three grid searches (StandardScaler and OneHotEncoder or TfidfVectorizer, with Ridge, HuberRegressor and LinearSVR,
whose targets are scaled as well), the difference, and the seconds of both, reading the file included. The aim is a
difference of -0.005 at least. `--losses` adds models of other losses. The sets are made with fixed seeds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ooc_pegasos import ConvertConfig, Model, Store, TrainConfig, convert, train
from ooc_pegasos.scoring.evaluate import predict

_ROWS, _TEST_ROWS = 6_000, 4_000
_RIDGE = np.logspace(-4, 6, 21)
_OTHERS = np.logspace(-5, 2, 8)
Made = tuple[pd.DataFrame, np.ndarray]


def houses(rng: np.random.Generator, rows: int) -> Made:
    """Make prices: columns of all sizes, categories, missing values, a skewed target."""
    area, year = rng.lognormal(4.6, 0.4, rows), rng.integers(1900, 2021, rows).astype(float)
    town, distance = rng.integers(0, 30, rows), rng.exponential(8000, rows)
    price = 900 * area + 600 * (year - 1900) - 2 * distance + 3e4 * np.sin(town) + 1e5
    price *= np.exp(0.25 * rng.standard_normal(rows))
    year[rng.random(rows) < 0.1] = np.nan
    columns = {"area": area.round(1), "year": year, "distance": distance.round(), "garage": rng.integers(0, 2, rows)}
    price += 2e4 * columns["garage"]
    return pd.DataFrame(columns | {"town": [f"town{t}" for t in town]}), price.round()


def _linear(rng: np.random.Generator, rows: int, noise: float) -> tuple[pd.DataFrame, np.ndarray]:
    matrix = rng.standard_normal((rows, 12))
    target = matrix @ np.linspace(-1, 2, 12) / 3 + noise * rng.standard_normal(rows)
    return pd.DataFrame(matrix.round(6), columns=[f"x{i}" for i in range(12)]), target


def small_targets(rng: np.random.Generator, rows: int) -> Made:
    """Make targets of size 1e-6."""
    table, target = _linear(rng, rows, 0.5)
    return table, target * 1e-6


def large_targets(rng: np.random.Generator, rows: int) -> Made:
    """Make targets of size 1e9 around 20e9."""
    table, target = _linear(rng, rows, 0.5)
    return table, (target + 20) * 1e9


def outliers(rng: np.random.Generator, rows: int) -> Made:
    """Make targets of which 5 % are 20 times as large as they should be."""
    table, target = _linear(rng, rows, 0.3)
    if rows == _ROWS:  # test rows are clean
        wrong = rng.random(rows) < 0.05
        target[wrong] *= 20
    return table, target


def diabetes(rng: np.random.Generator, rows: int) -> Made:
    """Return the diabetes data of scikit-learn: 300 rows to train, 142 to test."""
    from sklearn.datasets import load_diabetes

    table, target = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    order = np.random.default_rng(3).permutation(len(target))
    chosen = order[:300] if rows == _ROWS else order[300:]
    return table.iloc[chosen].reset_index(drop=True), target.to_numpy()[chosen]


def texts(rng: np.random.Generator, rows: int) -> Made:
    """Make texts of words with effects, and targets that are whole numbers."""
    effects = np.random.default_rng(5).standard_normal(5000) * (np.random.default_rng(6).random(5000) < 0.2)
    lengths = rng.integers(10, 60, rows)
    words = [rng.zipf(1.3, 4 * length) % 5000 for length in lengths]
    words = [some[:length] for some, length in zip(words, lengths, strict=True)]
    target = np.array([1000 + 100 * (effects[some].sum() + rng.standard_normal()) for some in words])
    return pd.DataFrame({"text": [" ".join(f"word{w}" for w in some) for some in words]}), target.round()


def counts(rng: np.random.Generator, rows: int) -> Made:
    """Make 400 columns of counts that are mostly 0, and targets that are whole numbers."""
    rates = np.geomspace(1, 0.005, 400)
    matrix = rng.poisson(rates, (rows, 400))
    effects = np.random.default_rng(7).standard_normal(400)
    target = 1000 + 50 * (matrix @ effects + 2 * rng.standard_normal(rows))
    return pd.DataFrame(matrix, columns=[f"n{i}" for i in range(400)]), target.round()


def apart(rng: np.random.Generator, rows: int) -> Made:
    """Make columns whose sizes differ by 1e6."""
    table, target = _linear(rng, rows, 0.5)
    return table * np.geomspace(1e3, 1e-3, 12), target


def offsets(rng: np.random.Generator, rows: int) -> Made:
    """Make columns of similar size that are far from 0: kelvins, hectopascals, years."""
    table, target = _linear(rng, rows, 0.5)
    return (table * np.linspace(3, 12, 12) + np.linspace(300, 1900, 12)).round(4), target


def trends(rng: np.random.Generator, rows: int) -> Made:
    """Make one column of time in seconds since 1970, one of ids, and two of small numbers."""
    seconds = 1.6e9 + 86_400 * 365 * rng.random(rows)
    small = rng.standard_normal((rows, 2))
    target = (seconds - 1.6e9) / 1e7 + small @ [1.0, -0.5] + 0.3 * rng.standard_normal(rows)
    ids = 3 * 10**18 + np.arange(rows)
    return pd.DataFrame({"time": seconds.round(), "id": ids, "a": small[:, 0], "b": small[:, 1]}), target


def interactions(rng: np.random.Generator, rows: int) -> Made:
    """Make categories with many values, some rare, beside two numbers."""
    shop, item = rng.zipf(1.4, rows) % 800, rng.integers(0, 200, rows)
    day, price = rng.integers(0, 7, rows), rng.lognormal(3, 1, rows)
    effects = np.random.default_rng(8).standard_normal(1000)
    target = 30 + 8 * effects[shop] + 4 * effects[800 + item] + 2 * (day > 4) - 0.05 * price
    target += 3 * rng.standard_normal(rows)
    table = {"shop": [f"s{s}" for s in shop], "item": [f"i{i}" for i in item], "day": [f"d{d}" for d in day]}
    return pd.DataFrame(table | {"price": price.round(2)}), target.round(2)


SETS: dict[str, Callable[[np.random.Generator, int], Made]] = {
    "houses": houses,
    "small targets": small_targets,
    "large targets": large_targets,
    "outliers": outliers,
    "diabetes": diabetes,
    "texts": texts,
    "counts": counts,
    "sizes apart": apart,
    "offsets": offsets,
    "trends": trends,
    "categories": interactions,
}


def r2(target: np.ndarray, found: np.ndarray) -> float:
    """Return the share of the variance that is explained."""
    return 1 - float(((target - found) ** 2).sum() / ((target - target.mean()) ** 2).sum())


def ours(folder: Path, loss: str | None) -> tuple[float, float, Store]:
    """Return (R^2 on the test rows, seconds, the store)."""
    text = ("text",) if "text" in pd.read_csv(folder / "train.csv", nrows=1) else ()
    began = time.perf_counter()
    config = ConvertConfig(label="target", text=text, task="regression" if loss else "auto")
    store = convert([str(folder / "train.csv")], folder / f"{loss}.store", config)
    model: Model = train(store, TrainConfig(loss=loss)).model
    seconds = time.perf_counter() - began
    predict(model, str(folder / "test.csv"), folder / "scores.csv")
    scores = pd.read_csv(folder / "scores.csv")
    return r2(pd.read_csv(folder / "test.csv")["target"].to_numpy(), scores.iloc[:, -1].to_numpy()), seconds, store


def theirs(folder: Path, vectorizer: Any) -> tuple[dict[str, float], float]:
    """Return (R^2 on the test rows of the best model of each grid, seconds)."""
    from sklearn.compose import TransformedTargetRegressor, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import HuberRegressor, Ridge
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    from sklearn.svm import LinearSVR

    began = time.perf_counter()
    table = pd.read_csv(folder / "train.csv")
    target = table.pop("target")
    numbers = [name for name in table if table[name].dtype.kind in "iuf"]
    words = [name for name in table if name not in numbers and name != "text"]
    parts: list[Any] = [(make_pipeline(SimpleImputer(), StandardScaler()), numbers)] if numbers else []
    parts += [(OneHotEncoder(handle_unknown="ignore"), words)] if words else []
    parts += [(vectorizer(), "text")] if "text" in table else []
    grids = {
        "ridge": (Ridge(), {"alpha": _RIDGE}),
        "huber": (HuberRegressor(max_iter=300), {"alpha": _OTHERS, "epsilon": [1.1, 1.5, 2.5]}),
        "svr": (LinearSVR(max_iter=3000, dual="auto"), {"C": _OTHERS, "epsilon": [0.0, 0.1]}),
    }
    test = pd.read_csv(folder / "test.csv")
    found = {}
    for name, (model, grid) in grids.items():
        if name == "huber" and ("text" in table or words):  # it needs dense rows
            continue
        pipeline = make_pipeline(make_column_transformer(*parts), model)
        prefix = pipeline.steps[-1][0]
        scaled = TransformedTargetRegressor(pipeline, transformer=StandardScaler())
        names = {f"regressor__{prefix}__{option}": values for option, values in grid.items()}
        score = "r2" if name == "ridge" else "neg_mean_absolute_error"  # with outliers, R^2 means nothing
        search = GridSearchCV(scaled, names, scoring=score, cv=3, n_jobs=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            search.fit(table, target)
        found[name] = r2(test["target"].to_numpy(), search.predict(test.drop(columns="target")))
    return found, time.perf_counter() - began


def main() -> None:
    """Run the comparison."""
    from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--losses", nargs="*", default=[], metavar="LOSS")
    parser.add_argument("--alone", action="store_true", help="leave out scikit-learn")
    given = parser.parse_args()
    print(f"{'':15} {'default':>9} {'best':>9} {'difference':>11}   seconds   / those of the grids")
    for name, make in SETS.items():
        if given.only and name not in given.only:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            for number, (part, rows) in enumerate((("train", _ROWS), ("test", _TEST_ROWS))):
                table, target = make(np.random.default_rng([number, sum(name.encode())]), rows)
                table.assign(target=target).to_csv(folder / f"{part}.csv", index=False)
            mine, seconds, _store = ours(folder, None)
            best, their_seconds = ({"-": float("nan")}, 1.0) if given.alone else theirs(folder, TfidfVectorizer)
            if name == "texts" and not given.alone:
                more, more_seconds = theirs(folder, CountVectorizer)
                best |= {f"{kind} of counts": value for kind, value in more.items()}
                their_seconds += more_seconds
            top = max(best, key=best.__getitem__)
            line = f"{name:15} {mine:9.4f} {best[top]:9.4f} {mine - best[top]:+11.4f} {seconds:9.2f}"
            print(f"{line} {seconds / their_seconds:9.2f}   best: {top} {best}", flush=True)
            for loss in given.losses:
                print(f"{'':4}{loss:20} {ours(folder, loss)[0]:9.4f}", flush=True)


if __name__ == "__main__":
    main()
