"""Notes on columns that were probably meant otherwise."""

import numpy as np
import pandas as pd
import pytest

from ooc_pegasos import ConvertConfig, convert
from ooc_pegasos.reporting.progress import Progress

RNG = np.random.default_rng(0)
ROWS = 300


class NotesOnColumns(Progress):
    def __init__(self):
        self.found = []

    def note(self, text):
        self.found.append(text)


COLUMNS = {
    "user_id": (RNG.integers(3 * 10**18, 4 * 10**18, ROWS), "--id user_id"),
    "session": ([f"s{number:x}-{number * 7919 % 100_003}" for number in range(ROWS)], "--id session"),
    "title": ([f"{a} big {b} house for sale number {a}" for a, b in RNG.integers(0, 50, (ROWS, 2))], "--text title"),
    "when": ([f"2024-03-{1 + day % 28:02} 12:{day % 60:02}:00" for day in range(ROWS)], "--dates when"),
    "price": (RNG.choice(["$1,234.56", "1.234,56"], ROWS), None),
    "mixed": ([f"${number:,}.50" if number % 2 else f"{number}.99 €" for number in range(ROWS)], "amounts are taken"),
    "town": (RNG.choice(["Oslo", "Bergen"], ROWS), None),
    "size": (RNG.random(ROWS) * 1e6, None),
    "count": (np.arange(ROWS) % 50, None),
    "year": (RNG.integers(1900, 2000, ROWS), None),
}


def notes_of(frame, path, **options):
    progress = NotesOnColumns()
    convert([str(path)], path.parent / "s.store", ConvertConfig(label="y", **options), progress=progress)
    return [note for note in progress.found if note.startswith("column ")]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_is_advised_on(tmp_path, name, suffix):
    values, told = COLUMNS[name]
    frame = pd.DataFrame({name: values, "other": RNG.random(ROWS), "y": np.arange(ROWS) % 2})
    path = tmp_path / f"rows{suffix}"
    (frame.to_csv if suffix == ".csv" else frame.to_parquet)(path, index=False)
    found = notes_of(frame, path)
    if told is None:
        assert found == []
    else:
        assert len(found) == 1
        assert told in found[0]
        assert f"'{name}'" in found[0]


def test_no_advice_where_columns_were_named_or_rows_are_few(tmp_path):
    values, _told = COLUMNS["user_id"]
    frame = pd.DataFrame({"user_id": values, "y": np.arange(ROWS) % 2})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    assert notes_of(frame, tmp_path / "rows.csv", numeric=("user_id",)) == []
    (tmp_path / "few").mkdir()
    frame[:90].to_csv(tmp_path / "few" / "rows.csv", index=False)
    assert notes_of(frame, tmp_path / "few" / "rows.csv") == []


# --- columns that reveal the label --------------------------------------------------------------

LABELS = np.arange(ROWS) % 3 == 0


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("values", "reveals"),
    [
        (np.where(LABELS, 5.0, 1.0) + 0.1 * RNG.random(ROWS), True),
        (np.where(LABELS, -5.0, 1.0) + 0.1 * RNG.random(ROWS), True),
        (np.where(LABELS, 1.3, 1.0) + RNG.random(ROWS), False),
        (np.where(LABELS, "approved", "refused"), True),
        ([f"{'ab'[int(one)]}{number}" for one, number in zip(LABELS, RNG.integers(0, 5, ROWS), strict=True)], True),
        ([f"{'ab'[int(one)]}{number}" for one, number in zip(LABELS, RNG.integers(0, 90, ROWS), strict=True)], False),
        (RNG.choice(["a", "b"], ROWS), False),
        (["$7,000" if one else "$1,000.50" for one in LABELS], True),
        (np.where(LABELS, 7.0, np.nan), True),
    ],
)
def test_columns_that_reveal_the_label(tmp_path, values, reveals, suffix):
    for number, words in enumerate((np.where(LABELS, "yes", "no"), LABELS.astype(int))):
        frame = pd.DataFrame({"it": values, "other": RNG.random(ROWS), "y": words})
        (tmp_path / str(number)).mkdir()
        path = tmp_path / str(number) / f"rows{suffix}"
        (frame.to_csv if suffix == ".csv" else frame.to_parquet)(path, index=False)
        found = [note for note in notes_of(frame, path) if "separates the labels" in note]
        assert len(found) == reveals
        assert all("--ignore it" in note for note in found)


def test_no_column_reveals_targets_or_labels_of_few_rows(tmp_path):
    for number, labels in enumerate((RNG.random(ROWS), np.arange(ROWS) < 5, np.arange(ROWS) % 3)):
        frame = pd.DataFrame({"it": labels, "other": RNG.random(ROWS), "y": labels})
        path = tmp_path / f"{number}.csv"
        frame.to_csv(path, index=False)
        progress = NotesOnColumns()
        convert([str(path)], tmp_path / f"{number}.store", ConvertConfig(label="y"), progress=progress)
        assert not [note for note in progress.found if "separates" in note]
