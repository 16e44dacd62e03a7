"""Numbers written as amounts: what is recognised, and that it is read as the number that is meant."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_pegasos import ConvertConfig, Model, Store, TrainConfig, convert, train
from ooc_pegasos.errors import InputError
from ooc_pegasos.readers.amounts import amounts_of, decimal_mark_of
from ooc_pegasos.reporting.progress import Progress
from ooc_pegasos.scoring.evaluate import predict
from support.table_files import write_frame

ROWS = 60
NUMBERS = st.floats(-1e7, 1e7).map(lambda number: round(number, 2))


def american(number: float) -> str:
    return f"${number:,.2f}" if number >= 0 else f"-${-number:,.2f}"


def german(number: float) -> str:
    return f"{number:,.2f} €".translate(str.maketrans(",.", ".,"))


def swiss(number: float) -> str:
    return f"{number:,.2f}".replace(",", "'")


def french(number: float) -> str:
    return f"{number:,.2f}\u00a0€".replace(",", "\u202f").replace(".", ",")


STYLES = {american: ".", german: ",", swiss: ".", french: ","}


@given(st.lists(NUMBERS, min_size=1, max_size=20), st.sampled_from(list(STYLES)))
def test_amounts_are_the_numbers_that_were_written(numbers, style):
    words = [style(number) for number in numbers]
    found = amounts_of(pa.array(words), STYLES[style])
    assert found.to_pylist() == numbers
    assert amounts_of(pa.array(words).dictionary_encode(), STYLES[style]).to_pylist() == numbers


@pytest.mark.parametrize("style", STYLES)
def test_the_decimal_mark_is_recognised(style):
    assert decimal_mark_of([style(number) for number in (1234.56, 0.5, 12345678.9)]) == STYLES[style]


@pytest.mark.parametrize(
    ("words", "mark"),
    [
        (["1", "2.5", "1e5", ".5"], None),  # plain numbers
        (["5%", "12.5%"], "."),
        (["1,234", "56"], "."),
        (["1,5", "2,75"], ","),
        (["1,234", "1,5"], ","),
        (["$5", "€5"], None),
        (["$5", "five"], None),
        (["12-34", "5"], None),
        (["1,2,3"], None),
        (["1,23,456"], None),
        (["A1,000"], None),
        (["+$5", "$-5", "- $ 5"], "."),
        ([], None),
    ],
)
def test_what_is_taken_for_an_amount(words, mark):
    assert decimal_mark_of(words) == mark


def test_nulls_and_other_words():
    found = amounts_of(pa.array(["$1,000", None, "", "n/a", "1.000,5"]), ".").to_pylist()
    assert found[:3] == [1000.0, None, None]
    assert np.isnan(found[3:]).all()
    assert amounts_of(pa.array([1, None]), ",").to_pylist() == [1.0, None]
    assert amounts_of(pa.array([None, None], pa.string()).dictionary_encode(), ",").to_pylist() == [None, None]


class Notes(Progress):
    def __init__(self):
        self.found = []

    def note(self, text):
        self.found.append(text)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
@pytest.mark.parametrize("options", [{}, {"numeric": ("price", "size")}])
def test_columns_of_amounts_are_columns_of_numbers(tmp_path, suffix, options):
    rng = np.random.default_rng(0)
    price = rng.lognormal(6, 2, ROWS).round(2)
    plain = pd.DataFrame({"price": price, "size": rng.random(ROWS), "y": np.arange(ROWS) % 2})
    plain.loc[5, "price"] = None
    amounts = plain.assign(price=[None if one != one else german(one) for one in plain["price"]])
    stores, notes = [], Notes()
    for name, frame in (("plain", plain), ("amounts", amounts)):
        (tmp_path / name).mkdir()
        config = ConvertConfig(label="y", shuffle=False, **options)
        stores.append(
            convert(
                [str(write_frame(frame, tmp_path / name / f"rows{suffix}"))],
                tmp_path / name / "s",
                config,
                progress=notes,
            )
        )
    (one, labels), (other, others) = (store.to_scipy() for store in stores)
    assert (one != other).nnz == 0
    assert (labels == others).all()
    assert sum("amounts like" in note and "decimal comma" in note for note in notes.found) == 1
    model = train(stores[1], TrainConfig(lam=0.1)).model
    scores = []
    for name in ("amounts", "plain"):  # numbers are read as well by a model of amounts
        if (suffix, name) == (".csv", "plain"):
            with pytest.raises(InputError, match=r"is not an amount like 1\.234,56"):
                predict(model, str(tmp_path / name / "rows.csv"), tmp_path / "none.csv")
            continue
        predict(model, str(tmp_path / name / f"rows{suffix}"), tmp_path / f"{name}.csv")
        scores.append((tmp_path / f"{name}.csv").read_bytes())
    assert scores[0] == scores[-1]
    model.save(tmp_path / "model")
    assert Model.load(tmp_path / "model").info.recipe == model.info.recipe


def test_a_cell_that_is_not_an_amount_is_a_bad_row(tmp_path):
    words = [american(number) for number in range(1000, 1000 + 120_000)]
    words[100_000] = "call us"
    path = tmp_path / "rows.csv"
    pd.DataFrame({"price": words, "y": np.arange(120_000) % 2}).to_csv(path, index=False)
    with pytest.raises(InputError, match=r"rows.csv:100002: the value 'call us' in column 'price' is not an amount"):
        convert([str(path)], tmp_path / "s", ConvertConfig(label="y"))
    store = convert([str(path)], tmp_path / "s", ConvertConfig(label="y", on_bad_row="skip"))
    assert store.rows == 119_999


def test_categories_that_were_named_stay_categories(tmp_path):
    path = tmp_path / "rows.csv"
    pd.DataFrame({"price": ["$1", "$2"] * 30, "y": np.arange(60) % 2}).to_csv(path, index=False)
    named = convert([str(path)], tmp_path / "s", ConvertConfig(label="y", categorical=("price",)))
    assert named.manifest.recipe.table.columns[0].kind == "categorical"
    assert Store.open(tmp_path / "s").manifest.recipe == named.manifest.recipe
