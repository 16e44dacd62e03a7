"""One command from raw files to a model, against a scikit-learn pipeline with a grid search on the same files.

    python scripts/first_hour/compare.py [--only NAME ...] [--folder DIR]

Prints, for each data set of raw_data.py: the command, the score of its model on the test part, the score of the
pipeline that an expert would write (columns by type, scaling, tf-idf, 5-fold grid search over C or alpha), the
difference, two standard errors of it, and the ratio of the times, reading the files included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from raw_data import DATA, RawData

OOCPEG = [sys.executable, "-m", "ooc_pegasos"]
_GRID = np.logspace(-4, 2, 7)


def paths_of(data: RawData, folder: Path) -> tuple[Path, Path]:
    """Return the training and the test part, made if they are not there."""
    found = []
    for number, (part, rows) in enumerate((("train", data.rows), ("test", max(data.rows // 2, 2_000)))):
        path = folder / f"{data.name}-{part}{data.suffix}"
        if not path.exists():
            data.make(path, np.random.default_rng([number, len(data.name), sum(data.name.encode())]), rows)
        found.append(path)
    return found[0], found[1]


def ours(data: RawData, train: Path, test: Path, folder: Path) -> tuple[float, float, str]:
    """Return the test score and the seconds of one command, and the command."""
    model = folder / f"{data.name}.model"
    words = ["train", str(train), *data.options, "-o", str(model)]
    began = time.perf_counter()
    subprocess.run([*OOCPEG, *words, "--force", "--quiet"], check=True)
    seconds = time.perf_counter() - began
    done = subprocess.run([*OOCPEG, "evaluate", str(model), str(test), "--json"], check=True, capture_output=True)
    shown = " ".join(["oocpeg train", train.name, *data.options, "-o", model.name])
    return float(json.loads(done.stdout)[data.metric]), seconds, shown


def expert(data: RawData, folder: Path) -> tuple[float, float]:
    """Return the test score and the seconds of a script with a scikit-learn pipeline."""
    began = time.perf_counter()
    words = [sys.executable, __file__, "--expert", data.name, "--folder", str(folder)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    score, seconds_of_test = json.loads(done.stdout)
    return score, time.perf_counter() - began - seconds_of_test


def script_of_expert(data: RawData, train: Path, test: Path) -> tuple[float, float]:
    """Return the test score of a scikit-learn pipeline, and the seconds of the test."""
    from sklearn.model_selection import GridSearchCV

    warnings.simplefilter("ignore")
    x, y = _read(data, train)
    pipeline, parameter = _pipeline(data, x)
    scoring = {"r2": "r2", "roc_auc": "roc_auc", "accuracy": "accuracy"}[data.metric]
    search = GridSearchCV(pipeline, {parameter: _GRID}, scoring=scoring, cv=5, n_jobs=2)
    search.fit(x, y)
    began = time.perf_counter()
    rows, labels = _read(data, test)
    return float(search.score(rows, labels)), time.perf_counter() - began


def _read(data: RawData, path: Path) -> tuple[Any, Any]:
    """Read a part as an expert would."""
    import pandas as pd

    if data.name == "mails":
        files = sorted(path.glob("*/*.txt"))
        return [file.read_text() for file in files], np.array([file.parent.name == "spam" for file in files])
    if data.suffix == ".svm":
        from sklearn.datasets import load_svmlight_file

        return load_svmlight_file(str(path), n_features=5000)
    if data.suffix == ".jsonl":
        frame = pd.read_json(path, lines=True)
    elif data.suffix:
        separators = {"bank": ";", "orders": ";", "churn": "\t"}
        frame = pd.read_csv(path, sep=separators.get(data.name, ","), encoding="utf-8-sig")
    else:
        frame = pd.read_parquet(path)
    y = frame.pop(data.label)
    if data.metric == "roc_auc" and y.dtype.kind not in "biuf":
        y = y.isin(["yes", "ja"])
    if data.name == "orders":
        created = pd.to_datetime(frame.pop("created"), format="%d.%m.%Y %H:%M")
        frame["weekday"], frame["month"] = created.dt.day_name(), created.dt.month_name()
        frame["hour"], frame["years"] = (
            created.dt.strftime("%H:"),
            (created - created.dt.normalize().min()).dt.days / 365,
        )
        amounts = frame["total"].str.removesuffix(" €").str.replace(".", "").str.replace(",", ".")
        frame["total"] = amounts.astype(float)
        frame["discount"] = frame["discount"].str.removesuffix(" %").astype(float)
    return frame.drop(columns=["user_id", "day", "invoice"], errors="ignore"), np.asarray(y)


def _pipeline(data: RawData, x: Any) -> tuple[Any, str]:
    from sklearn.compose import make_column_transformer
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    last: Any = Ridge() if data.metric == "r2" else LogisticRegression(max_iter=300)
    parameter = "ridge__alpha" if data.metric == "r2" else "logisticregression__C"
    if data.suffix == ".svm":
        return make_pipeline(last), parameter
    if data.name == "mails":
        return make_pipeline(TfidfVectorizer(), last), parameter
    texts = [name for name in ("review", "subject") if name in x]
    numbers = [name for name in x if x[name].dtype.kind in "iuf" and name not in texts]
    others = [name for name in x if name not in numbers and name not in texts]
    parts: list[Any] = [(TfidfVectorizer(), name) for name in texts]
    parts.append((make_pipeline(SimpleImputer(), StandardScaler()), numbers))
    parts.append((OneHotEncoder(handle_unknown="ignore"), others))
    return make_pipeline(make_column_transformer(*parts), last), parameter


def noise(data: RawData, score: float, rows: int) -> float:
    """Return about two standard errors of the difference of two scores on the same rows."""
    return 2 * float(np.sqrt(max(score * (1 - score), 1e-4) / rows))


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--expert", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.expert:
        data = next(one for one in DATA if one.name == given.expert)
        print(json.dumps(script_of_expert(data, *paths_of(data, given.folder))))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch)
        folder.mkdir(exist_ok=True)
        for data in DATA:
            if given.only and data.name not in given.only:
                continue
            train, test = paths_of(data, folder)
            mine, seconds, command = ours(data, train, test, folder)
            theirs, their_seconds = expert(data, folder)
            about = noise(data, theirs, max(data.rows // 2, 2_000))
            print(
                f"{data.name:8} {data.metric:8} {mine:.4f}, expert {theirs:.4f}, difference {mine - theirs:+.4f} "
                f"(noise {about:.4f}), time / expert {seconds / their_seconds:.2f}   {command}",
                flush=True,
            )


if __name__ == "__main__":
    main()
