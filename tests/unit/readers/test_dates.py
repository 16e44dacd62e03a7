"""Dates and times as features, compared with those of pandas."""

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_pegasos import ConvertConfig, TrainConfig, convert, train
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.readers.dates import HOURS, MONTHS, WEEKDAYS, date_order_of, times_of
from ooc_pegasos.scoring.evaluate import evaluate, predict

TIMES = st.datetimes(datetime.datetime(1850, 1, 1), datetime.datetime(2200, 1, 1))
FORMATS = {
    "%Y-%m-%d": "ymd",
    "%Y-%m-%dT%H:%M:%S": "ymd",
    "%Y/%m/%d %H:%M": "ymd",
    "%Y-%m-%d %H:%M:%S.%f+02:00": "ymd",
    "%d.%m.%Y %H:%M": "dmy",
    "%d/%m/%Y": "dmy",
    "%m/%d/%Y %H:%M:%S": "mdy",
    "%d.%m.%Y, %H:%M": "dmy",
}


def check_times(found, times, has_hours):
    assert not found.wrong.any()
    assert found.present.all()
    assert [WEEKDAYS[number] for number in found.weekdays] == [f"{time:%a}" for time in times]
    assert [MONTHS[number] for number in found.months] == [f"{time:%b}" for time in times]
    hours = [HOURS[number] if number >= 0 else None for number in found.hours]
    assert hours == [str(time.hour) if has_hours else None for time in times]
    days = [(time.date() - datetime.date(2020, 1, 1)).days for time in times]
    assert found.years == pytest.approx(np.array(days) / 365.25)


@given(st.lists(TIMES, min_size=1, max_size=10), st.sampled_from(list(FORMATS)))
def test_written_times(times, form):
    words = pa.array([f"{time.year:04}".join(time.strftime(form.replace("%Y", "|")).split("|")) for time in times])
    check_times(times_of(words, FORMATS[form]), times, "%H" in form)
    check_times(times_of(words.dictionary_encode(), FORMATS[form]), times, "%H" in form)


@given(st.lists(TIMES, min_size=1, max_size=10), st.sampled_from(["s", "ms", "us"]))
def test_times_with_a_type(times, unit):
    check_times(times_of(pa.array(times, pa.timestamp("us")).cast(pa.timestamp(unit), safe=False), "ymd"), times, True)
    check_times(times_of(pa.array([time.date() for time in times], pa.date32()), "ymd"), times, False)


@given(
    st.lists(st.datetimes(datetime.datetime(1975, 1, 1), datetime.datetime(2200, 1, 1)), min_size=1, max_size=10),
    st.sampled_from([1, 1000, 10**6]),
)
def test_seconds_since_1970(times, unit):
    times = [time.replace(microsecond=0) for time in times]
    seconds = [int(time.replace(tzinfo=datetime.UTC).timestamp()) * unit for time in times]
    check_times(times_of(pa.array(seconds), "ymd"), times, True)
    check_times(times_of(pa.array([str(one) for one in seconds]), "ymd"), times, True)


@pytest.mark.parametrize(
    "word", ["2023-02-29", "2024-13-01", "2024-00-10", "2024-01-00", "24-1-1", "2024-01-01 25:00", "today", "2024-01"]
)
def test_days_that_do_not_exist(word):
    found = times_of(pa.array(["2024-02-29", word, None, ""]), "ymd")
    assert found.present.tolist() == [True, False, False, False]
    assert found.wrong.tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (["2024-01-02"], "ymd"),
        (["13/01/2024", "01/02/2024"], "dmy"),
        (["01/13/2024", "01/02/2024"], "mdy"),
        (["01/02/2024"], "mdy"),
        (["1.2.2024"], "dmy"),
        (["13/01/2024", "01/13/2024"], None),
        (["1700000000"], "ymd"),
        (["12"], None),
        ([], None),
    ],
)
def test_the_order_of_dates(words, order):
    assert date_order_of(words) == order


@pytest.fixture(scope="module")
def visits(tmp_path_factory):
    """Files of the same visits; the label is true at weekends and in the evening."""
    folder, rng = tmp_path_factory.mktemp("visits"), np.random.default_rng(1)
    seconds = rng.integers(0, 3 * 365 * 86_400, 600)
    times = pd.Timestamp("2021-01-01") + pd.to_timedelta(seconds, unit="s")
    table = pd.DataFrame({"when": times, "town": rng.choice(["Oslo", "Bergen"], 600)})
    table["y"] = ((times.day_of_week >= 5) | (times.hour >= 19)).astype(int)
    table.to_parquet(folder / "typed.parquet")
    table.assign(when=times.strftime("%d.%m.%Y %H:%M:%S")).to_csv(folder / "words.csv", index=False)
    table.assign(when=times.strftime("%Y-%m-%dT%H:%M:%SZ")).to_json(folder / "rows.jsonl", orient="records", lines=True)
    table.assign(when=times.astype("datetime64[s]").astype("int64")).to_csv(folder / "unix.csv", index=False)
    return folder


FILES = ["typed.parquet", "words.csv", "rows.jsonl", "unix.csv"]


@pytest.mark.parametrize("options", [{}, {"dictionary": 60, "hash_bits": None}, {"nulls": "mark"}], ids=str)
def test_all_files_give_the_same_rows(visits, tmp_path, options):
    made = []
    for name in FILES:
        config = ConvertConfig(
            label="y", dates=("when",), shuffle=False, feature_names=100, **{"hash_bits": 12} | options
        )
        store = convert([str(visits / name)], tmp_path / name, config)
        made.append(store)
        assert {column.kind for column in store.manifest.recipe.table.columns} == {"dates", "categorical"}
    matrix, _labels = made[0].to_scipy()
    assert matrix.getnnz(axis=1).min() >= 5
    for store in made[1:]:
        assert (store.to_scipy()[0] != matrix).nnz == 0
    model = train(made[0], TrainConfig(lam=1e-3)).model
    assert evaluate(model, str(visits / "typed.parquet"))["error"] < 0.02
    names = {name for name, _weight in model.top_features(8)}
    assert {"when:weekday=Sat", "when:weekday=Sun", "when:hour=23"} & names
    predict(model, str(visits / "typed.parquet"), tmp_path / "scores.csv")
    predict(model, str(visits / "rows.jsonl"), tmp_path / "other.csv")
    assert (tmp_path / "scores.csv").read_bytes() == (tmp_path / "other.csv").read_bytes()


def test_a_wrong_date_is_a_bad_row(tmp_path):
    words = ["2024-01-01"] * 60_000
    words[50_000] = "2024-02-30"
    pd.DataFrame({"when": words, "y": np.arange(60_000) % 2}).to_csv(tmp_path / "rows.csv", index=False)
    config = ConvertConfig(label="y", dates=("when",))
    with pytest.raises(InputError, match=r"rows.csv:50002: '2024-02-30' in column 'when' is not a date; write it like"):
        convert([str(tmp_path / "rows.csv")], tmp_path / "s", config)


def test_columns_that_hold_no_dates_are_refused(tmp_path):
    pd.DataFrame({"when": ["a", "b"], "y": [0, 1]}).to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(InputError, match="'when': 'a' and other values are not all dates like 2024-12-31"):
        convert([str(tmp_path / "rows.csv")], tmp_path / "s", ConvertConfig(label="y", dates=("when",)))
    with pytest.raises(UsageError, match=r"no column 'wen' \(is it 'when'\?\)"):
        convert([str(tmp_path / "rows.csv")], tmp_path / "s", ConvertConfig(label="y", dates=("wen",)))
    pa_table = pa.table({"when": [[1], [2]], "y": [0, 1]})
    pa.parquet.write_table(pa_table, tmp_path / "rows.parquet")
    with pytest.raises(InputError, match="not a date or time"):
        convert([str(tmp_path / "rows.parquet")], tmp_path / "s", ConvertConfig(label="y", dates=("when",)))


# --- columns that are left out ------------------------------------------------------------------


def test_ignored_columns_are_left_out(visits, tmp_path):
    config = ConvertConfig(label="y", dates=("when",), ignore=("to*",))
    store = convert([str(visits / "typed.parquet")], tmp_path / "s", config)
    assert [column.name for column in store.manifest.recipe.table.columns] == ["when"]
    for options, problem in (
        ({"ignore": ("y",)}, "this column is the label"),
        ({"ignore": ("twon",)}, r"no column 'twon' \(is it 'town'\?\)"),
        ({"ignore": ("town",), "categorical": ("town",)}, "leave one out"),
        ({"ignore": ("*",)}, "no column besides the label"),
    ):
        with pytest.raises(UsageError, match=problem):
            convert([str(visits / "typed.parquet")], tmp_path / "t", ConvertConfig(label="y", **options))


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_the_delimiter_of_csv_is_found(visits, tmp_path, delimiter):
    table = pd.read_csv(visits / "words.csv")
    for name, mark in (("usual", ","), ("other", delimiter)):
        (tmp_path / name).mkdir()
        table.to_csv(tmp_path / name / "rows.csv", index=False, sep=mark)
    stores = [
        convert([str(tmp_path / name / "rows.csv")], tmp_path / name / "s", ConvertConfig(label="y", shuffle=False))
        for name in ("usual", "other")
    ]
    assert (stores[0].to_scipy()[0] != stores[1].to_scipy()[0]).nnz == 0
    model = train(stores[0], TrainConfig(lam=0.1)).model
    for name in ("usual", "other"):
        predict(model, str(tmp_path / name / "rows.csv"), tmp_path / f"{name}.csv")
    assert (tmp_path / "usual.csv").read_bytes() == (tmp_path / "other.csv").read_bytes()
