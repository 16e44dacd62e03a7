"""Crosses of categorical columns: each combination of values is a feature."""

import json
import subprocess
import sys
from itertools import product

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.feature_extraction import FeatureHasher

from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert, train
from ooc_pegasos.conversion.output_check import Existing
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.readers.crosses import prefix_of
from ooc_pegasos.scoring.evaluate import evaluate, predict

ROWS, BITS = 400, 14
CROSSED = ConvertConfig(
    label="y", categorical=("town", "month", "n"), numeric=("x",), cross=("town,month", "n,town,month"),
    shuffle=False, hash_bits=BITS, standardize=False,
)  # fmt: skip


def towns(seed=0):
    """Rows whose label is the exclusive or of two categories, some of them null."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "town": rng.choice(["Oslo", "R*me", "a\\b"], ROWS),
            "month": rng.choice(["Jan", "Feb"], ROWS),
            "n": rng.integers(0, 3, ROWS),
            "x": rng.integers(0, 5, ROWS).astype(float),
        }
    )
    frame["y"] = ((frame.town == "Oslo") ^ (frame.month == "Jan")).astype(int)
    frame.loc[rng.random(ROWS) < 0.05, "town"] = None
    frame.loc[rng.random(ROWS) < 0.05, "month"] = None
    return frame


def crossed_names(row):
    """The features of a row by the documentation alone."""
    found = {"x": row["x"]} if row["x"] else {}
    found |= {f"{name}={row[name]}": 1 for name in ("town", "month", "n") if row[name] is not None}
    for names in (("town", "month"), ("n", "town", "month")):
        if all(row[name] is not None for name in names):
            words = [str(row[name]).replace("\\", "\\\\").replace("*", "\\*") for name in names]
            found["*".join(names) + "=" + "*".join(words)] = 1
    return found


def with_scikit_learn(frame):
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return FeatureHasher(2**BITS, dtype=np.float32).transform(map(crossed_names, rows))


def town_file(frame, path):
    if path.suffix == ".parquet":
        frame.to_parquet(path, row_group_size=90)
    elif path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        path.write_text(frame.to_json(orient="records", lines=True))
    return path


def differ(one, other):
    return abs(one - other).max()


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_crosses_from_convert_to_predictions(tmp_path, suffix):
    frame, new = towns(), towns(1)
    store = convert(town_file(frame, tmp_path / f"in{suffix}"), tmp_path / "s", CROSSED)
    assert differ(store.to_scipy()[0], with_scikit_learn(frame)) == 0
    model = train(store, TrainConfig(lam=1e-3)).model
    scores = with_scikit_learn(new) @ model.weights + model.bias
    assert ((scores > 0) == new.y)[new.town.notna() & new.month.notna()].all()
    for other in (".parquet", ".csv", ".jsonl"):
        file = town_file(new, tmp_path / f"new{other}")
        predict(model, str(file), tmp_path / "out.csv")
        np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv")["score"], scores, rtol=1e-5, atol=1e-6)
        assert evaluate(model, file)["accuracy"] == pytest.approx(((scores > 0) == new.y).mean())
        like = convert(file, tmp_path / other, ConvertConfig(like=str(tmp_path / "s"), shuffle=False))
        assert differ(like.to_scipy()[0], with_scikit_learn(new)) == 0
    np.testing.assert_allclose(model.decision_function(new), scores, rtol=1e-5, atol=1e-6)
    names = {name for name, _weight in model.top_features(30)}
    assert {"town*month=Oslo*Jan", "town*month=Oslo*Feb", "town*month=R\\*me*Jan"} <= names
    both = convert(file, tmp_path / "s", ConvertConfig(shuffle=False), existing=Existing(append=True))
    assert differ(both.to_scipy()[0][ROWS:], with_scikit_learn(new)) == 0


def test_a_dictionary_has_crosses(tmp_path):
    frame = towns()
    config = ConvertConfig(label="y", ignore=("n", "x"), cross=("town,month",), dictionary=8, shuffle=False)
    store = convert(town_file(frame, tmp_path / "in.parquet"), tmp_path / "s", config)
    pairs = frame.dropna()
    counts = pd.concat(
        [
            ("town=" + frame.town.dropna()).value_counts(),
            ("month=" + frame.month.dropna()).value_counts(),
            (
                "town*month=" + pairs.town.str.replace("\\", "\\\\").str.replace("*", "\\*") + "*" + pairs.month
            ).value_counts(),
        ]
    )
    wanted = sorted(counts.nlargest(8).index)
    found = store.to_scipy()[0].toarray().sum(axis=0)
    assert found.tolist() == [counts[name] for name in wanted]


def test_nulls_that_are_marked_have_no_cross(tmp_path):
    frame = pd.DataFrame({"a": ["u", None, "v"], "b": ["w", "w", None], "y": [0, 1, 0]})
    config = ConvertConfig(label="y", cross=("a,b",), nulls="mark", shuffle=False, hash_bits=12)
    wanted = [{"a=u": 1, "b=w": 1, "a*b=u*w": 1}, {"a=null": 1, "b=w": 1}, {"a=v": 1, "b=null": 1}]
    assert (
        differ(Store.from_arrow(frame, tmp_path / "s", config).to_scipy()[0], FeatureHasher(4096).transform(wanted))
        == 0
    )
    empty = frame.assign(a=None)
    assert (
        differ(
            Store.from_arrow(empty, tmp_path / "t", config).to_scipy()[0],
            FeatureHasher(4096).transform(
                [{"a=null": 1, "b=w": 1}, {"a=null": 1, "b=w": 1}, {"a=null": 1, "b=null": 1}]
            ),
        )
        == 0
    )


def test_different_combinations_have_different_names(tmp_path):
    words = ["", "x", "*", "\\", "x*", "*x", "\\*", "x\\", "=", "x=*"]
    rows = list(product(words, words, words))
    frame = pd.DataFrame(rows, columns=["a", "b", "c"]).assign(y=np.arange(len(rows)) % 2)
    config = ConvertConfig(label="y", cross=("a,b", "b,a,c"), feature_names=10_000, hash_bits=24, shuffle=False)
    store = Store.from_arrow(frame, tmp_path / "s", config)
    assert len(np.unique(store.to_scipy()[0].indices)) == 3 * 10 + 100 + 1000
    columns = [*product(words[1:], words[1:]), *product(words[1:], words[1:], words[1:])]
    assert len({prefix_of(names) for names in columns}) == len(columns)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cross": ("town",)}, "two columns or more; name them like A,B"),
        ({"cross": ("",)}, "two columns or more"),
        ({"cross": ("town,town",)}, "named twice"),
        ({"cross": ("town,month", "month,town")}, "crossed already"),
        ({"cross": ("town,mont",)}, r"no column 'mont' \(is it 'month'\?\)"),
        ({"cross": ("town,x",)}, "column 'x' is one of numbers, .*name it with categorical=x"),
        ({"cross": ("town,y",)}, "column 'y' is the label"),
        ({"cross": ("town,month",), "ignore": ("month",)}, "column 'month' is not used"),
        ({"cross": ("town,month",), "text": ("month",), "categorical": ("town",)}, "column 'month' is used as text"),
        ({"cross": ("town,tags",)}, "several categories in a row"),
        ({"cross": ("town,twin",)}, r"a column has the name town\*twin"),
    ],
)
def test_crosses_that_are_refused(tmp_path, options, message):
    table = pa.table(
        {
            **pa.Table.from_pandas(towns()).to_pydict(),
            "tags": [["a"]] * ROWS,
            "twin": ["t"] * ROWS,
            "town*twin": ["t"] * ROWS,
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    with pytest.raises(UsageError, match=message):
        convert(tmp_path / "in.parquet", tmp_path / "s", ConvertConfig(label="y", **options))
    assert not (tmp_path / "s").exists()


def test_crosses_elsewhere_are_refused(tmp_path):
    pq.write_table(pa.table({"i": [[1], [2]], "y": [0, 1], "j": ["a", "b"]}), tmp_path / "in.parquet")
    with pytest.raises(UsageError, match="column 'i' has indices of its own"):
        convert(tmp_path / "in.parquet", tmp_path / "s", ConvertConfig(label="y", cross=("i,j",), ignore=("j",)))
    (tmp_path / "in.svm").write_text("1 1:1\n-1 2:1\n")
    with pytest.raises(UsageError, match="cross is for tables"):
        convert(tmp_path / "in.svm", tmp_path / "s", ConvertConfig(cross=("a,b",)))
    amounts = pd.DataFrame({"price": [f"${n}.50" for n in range(40)], "c": "x", "y": [0, 1] * 20})
    amounts.to_csv(tmp_path / "in.csv", index=False)
    with pytest.raises(UsageError, match="column 'price' is one of numbers"):
        convert(tmp_path / "in.csv", tmp_path / "s", ConvertConfig(label="y", cross=("price,c",)))


def test_other_files_and_other_crosses(tmp_path):
    file = town_file(towns(), tmp_path / "in.parquet")
    store = convert(file, tmp_path / "s", CROSSED)
    model = train(store, TrainConfig(lam=0.1)).model
    lists = towns().assign(town=[["Oslo"]] * ROWS)
    with pytest.raises(InputError, match="column 'town' has lists, and is part of a cross"):
        model.decision_function(lists)
    again = ConvertConfig(cross=("town, month", "n,town,month"), shuffle=False)
    assert convert(file, tmp_path / "s", again, existing=Existing(append=True)).rows == 2 * ROWS
    with pytest.raises(UsageError, match="cross=town,n: the store was made with town,month n,town,month"):
        convert(file, tmp_path / "s", ConvertConfig(cross=("town,n",)), existing=Existing(append=True))


def test_the_command_line(tmp_path):
    (tmp_path / "in.jsonl").write_text(
        "".join(
            json.dumps({"u": {"a": "p" if n % 2 else "q"}, "a,b": str(n % 3), "y": n % 2}) + "\n" for n in range(90)
        )
    )
    command = [sys.executable, "-m", "ooc_pegasos", "train", "in.jsonl", "-o", "m", "--label", "y", "--lambda", "0.01"]
    command += ["--cross", 'u.a,"a,b"']
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    shown = subprocess.run(
        [sys.executable, "-m", "ooc_pegasos", "inspect", "m"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert "u.a*a,b=p*0" in shown.stdout
