"""Names in messages and tables: wide ones are shortened, and lists of them are cut."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_pegasos.util.short_names import WIDTH, listed, padded, short, width_of

CHINESE = "\u4e2d\u6587\u540d"


@given(st.text(st.characters(categories=("L", "M", "N", "S", "Zs")), max_size=200), st.integers(10, 60))
def test_a_short_name_fits_and_keeps_both_ends(name, width):
    found = short(name, width)
    assert width_of(found) <= width
    if found != name:
        begin, end = found.split("...")
        assert name.startswith(begin)
        assert name.endswith(end)
        assert width_of(begin) >= (width - 3) // 2 - 1


@pytest.mark.parametrize(
    ("text", "width"), [("abc", 3), (CHINESE, 6), ("e\u0301", 1), ("\uff21", 2), ("\u200b", 0), ("", 0)]
)
def test_widths_on_a_terminal(text, width):
    assert width_of(text) == width
    assert width_of(padded(text, 8)) == 8


def test_names_that_fit_stay_as_they_are():
    assert short("x" * WIDTH) == "x" * WIDTH
    assert short("ab" * 30, 13) == "ababa...babab"
    assert short(CHINESE * 20, 13) == "\u4e2d\u6587...\u6587\u540d"
    assert short("a\nb") == "a\\nb"


def test_lists_are_cut():
    assert listed(["a", "b"]) == "a, b"
    assert listed([str(number) for number in range(300)], 3) == "0, 1, 2 and 297 more"
    assert len(listed(["x" * 200] * 300, 20)) < 300
    assert listed(["x" * 500] * 2, width=400).endswith("x and 1 more")


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A table of 300 columns with names of 200 characters, half of them texts, and its store and model."""
    folder = tmp_path_factory.mktemp("wide")
    rng = np.random.default_rng(0)
    names = [(f"{number}_" + "measurement_" * 20)[:196] + f"_{number:03}" for number in range(300)]
    lines = [",".join(["label", *names])]
    for row in range(200):
        cells = [rng.choice(["a", "b"]) if at % 2 else f"{rng.normal():.2f}" for at in range(300)]
        lines.append(",".join([f"{'bad' if row % 2 else 'good'}-{'class' * 40}", *cells]))
    (folder / "wide.csv").write_text("\n".join(lines) + "\n")
    return folder, names


@pytest.mark.slow
def test_a_table_of_many_long_names_is_readable(wide, oocpeg):
    folder, names = wide
    data, store, model = folder / "wide.csv", folder / "s", folder / "m"
    commands = [
        (("convert", data, "-o", store), 0),
        (("convert", data, "--dry-run"), 0),
        (("train", store, "-o", model, "--holdout", "0.2"), 0),
        (("info", store), 0),
        (("info", model), 0),
        (("inspect", model), 0),
        (("evaluate", model, data), 0),
        (("convert", data, "-o", folder / "t", "--label", "nothing"), 2),
        (("convert", data, "-o", folder / "t", "--label", names[3][:-1] + "x"), 2),
        (("convert", data, "-o", folder / "t", "--numeric", names[1]), 3),
        (("convert", data, "-o", folder / "t", "--dates", names[1], "--categorical", names[1]), 2),
    ]
    for words, code in commands:
        done = oocpeg(*words, code=code)
        for line in (done.stdout + done.stderr).splitlines():
            assert "measurement_" * 5 not in line, line
            assert "class" * 9 not in line, line
            assert len(line.replace(str(folder), "")) < 420, line
    text = oocpeg("convert", data, "--dry-run").stdout
    assert f"{names[0][:19]}...{names[0][-18:]}" in text
    assert " and 145 more" in text


def test_json_has_whole_names(wide, oocpeg):
    folder, names = wide
    found = json.loads(oocpeg("convert", folder / "wide.csv", "--dry-run", "--json").stdout.splitlines()[-1])
    assert [column["name"] for column in found["recipe"]["table"]["columns"]] == names


def test_advice_is_quoted_for_the_shell(tmp_path, oocpeg):
    (tmp_path / "in.csv").write_text("y,user id\n" + "".join(f"{n % 2},{7000 + 13 * n}\n" for n in range(200)))
    told = oocpeg("convert", tmp_path / "in.csv", "-o", tmp_path / "s").stderr
    assert "give --id 'user id', else --ignore 'user id'" in told
