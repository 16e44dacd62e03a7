"""How values are stored: rounding, tables of levels, and that everything else goes by the values as stored."""

import json
import random
import shutil
import time
from pathlib import Path

import numba
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from ooc_pegasos import ConvertConfig, Existing, Store, convert, verify
from ooc_pegasos.compiled.intrinsics import value_at
from ooc_pegasos.compiled.rows.values import ROUNDINGS, round_values
from ooc_pegasos.config import load_toml
from ooc_pegasos.errors import CorruptFileError, InputError, UsageError
from ooc_pegasos.scoring.model import Certificate, Model, ModelInfo
from ooc_pegasos.scoring.score import score
from ooc_pegasos.store.csr_block import LEVELS, NO_LEVELS, all_levels
from support.file_bytes import folder_bytes, write_text
from support.foreign_stores import forge_chunk, independent_reader, rewrite
from support.fork_server import Process, program
from support.rows import random_rows, same_matrix, svmlight_text

APPEND = Existing(append=True)
LARGEST = {"float16": 65_504.0, "bfloat16": float(np.uint32(0x7F7F0000).view(np.float32))}


def bits(values: object) -> np.ndarray:
    return np.asarray(values, np.float32).view(np.uint32)


def nearest_bfloat16(values: np.ndarray) -> np.ndarray:
    """By comparing the distances to both neighbours."""
    patterns = values.view(np.uint32).astype(np.uint64)
    down = patterns >> 16 << 16
    up = down + 0x10000

    def number(pattern: np.ndarray) -> np.ndarray:
        found = pattern.astype(np.uint32).view(np.float32).astype(np.float64)
        return np.where(np.isinf(found), np.copysign(2.0**128, found), found)

    exact = values.astype(np.float64)
    below, above = np.abs(exact - number(down)), np.abs(number(up) - exact)
    take_up = (above < below) | ((above == below) & (down >> 16 & 1 == 1))
    return np.where(take_up, up, down).astype(np.uint32).view(np.float32)


def reference(values: np.ndarray, rounding: str | None) -> np.ndarray:
    if rounding == "float16":
        return values.astype(np.float16).astype(np.float32)
    return nearest_bfloat16(values) if rounding == "bfloat16" else values


def hard_cases() -> np.ndarray:
    """Every float16 and bfloat16, the middles between them, the floats beside those, and random ones."""
    halves = np.arange(65_536, dtype=np.uint16)
    numbers = np.concatenate([bits(halves.view(np.float16).astype(np.float32)), halves.astype(np.uint32) << 16])
    middles = [numbers + step for step in (0, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001)]
    small = np.arange(0, 2**12).astype(np.float32) * np.float32(2.0**-27)  # all middles of subnormal float16
    beside = np.concatenate([bits(small[1:]), bits(small[1:]) + 1, bits(small[1:]) - 1])
    noise = np.random.default_rng(0).integers(0, 2**32, 1_000_000, dtype=np.uint32)
    around = (noise & 0x807FFFFF) | (100 + (noise >> 23) % 45 << 23)  # where float16 has its numbers
    values = np.concatenate([*middles, beside, noise, around]).astype(np.uint32).view(np.float32)
    return values[np.isfinite(values)]


@pytest.mark.parametrize("rounding", ["float16", "bfloat16"])
def test_rounding_is_to_the_nearest_and_to_even(rounding):
    values = hard_cases()
    with np.errstate(over="ignore"):
        expected = reference(values, rounding)
    values, expected = values[np.isfinite(expected)], expected[np.isfinite(expected)]
    assert len(values) > 1_000_000
    assert (np.abs(expected) == LARGEST[rounding]).any()
    found = values.copy()
    round_values(found, ROUNDINGS[rounding])
    assert np.array_equal(bits(found), bits(expected))


@numba.njit
def all_values(stored, levels, out):
    for at in range(len(stored)):
        out[at] = value_at(stored, np.uint64(at), levels)


def test_kernels_see_the_values_of_all_codes():
    patterns = np.arange(65_536, dtype=np.uint16)
    out = np.empty(65_536)
    all_values(patterns.view(np.int16), NO_LEVELS, out)
    expected = patterns.view(np.float16).astype(np.float64)
    finite = np.isfinite(expected)
    assert finite.sum() == 63_488
    assert np.array_equal(out[finite].view(np.uint64), expected[finite].view(np.uint64))
    all_values(patterns, NO_LEVELS, out)
    expected = (patterns.astype(np.uint32) << 16).view(np.float32)
    finite = np.isfinite(expected)
    assert np.array_equal(bits(out[finite].astype(np.float32)), bits(expected[finite]))
    levels = all_levels([0.0, -0.0, 1.5, 1e-45])
    codes = np.arange(LEVELS, dtype=np.uint8)
    all_values(codes, levels, out)
    assert np.array_equal(bits(out[:LEVELS].astype(np.float32)), bits(levels))


# --- tables of levels ---------------------------------------------------------------------------


def with_levels(folder: Path, levels: list[float], name: str = "in.svm", rows: int = 400) -> tuple[str, sp.csr_matrix]:
    """A file in which each of these values occurs, and its matrix."""
    rng = np.random.default_rng(len(levels))
    matrix = sp.random(rows, 50, 0.1, "csr", np.float32, rng=rng, data_rvs=lambda size: rng.choice(levels, size))
    matrix.sort_indices()
    matrix.data[: len(levels)] = levels
    labels = np.where(np.arange(rows) % 2, 1, -1)
    return write_text(folder / name, svmlight_text(matrix, labels)), matrix


def plain(**options: object) -> ConvertConfig:
    return ConvertConfig(shuffle=False, **{"features": 50, "chunk_size": 1024, "block_size": 500, **options})


@pytest.mark.parametrize("zero", [0.0, None])
@pytest.mark.parametrize(("number", "coding"), [(1, "code8"), (254, "code8"), (255, "code8"), (256, "float32")])
def test_at_most_255_levels_beside_0_take_a_byte_each(tmp_path, number, coding, zero):
    levels = [(-1) ** i * (0.1 + i) for i in range(number)] + ([] if zero is None else [zero])
    source, matrix = with_levels(tmp_path, levels)
    store = convert([source], tmp_path / "store", plain())
    made = store.manifest
    assert made.layout.values == coding
    if coding == "code8":
        assert made.layout.levels == [0.0, *sorted(np.array(levels[:number], np.float32).tolist())]
        assert all(block.values.dtype == np.uint8 for block in store.blocks())
    assert len(made.chunks) > 2
    assert same_matrix(store.to_scipy()[0], matrix)
    assert same_matrix(independent_reader(store.path)[0], matrix)
    assert verify(store).problems == []


@pytest.mark.parametrize(
    ("levels", "coding"),
    [([1.0], None), ([0.0], "code8"), ([0.0, 1.0], "code8"), ([-0.0, 0.0, 1.0], "code8"), ([1e-45, -3e38], "code8")],
)
def test_zeros_of_both_signs_and_other_oddities(tmp_path, levels, coding):
    source, matrix = with_levels(tmp_path, levels)
    store = convert([source], tmp_path / "store", plain())
    assert store.manifest.layout.values == coding
    assert same_matrix(store.to_scipy()[0], matrix)
    assert same_matrix(independent_reader(store.path)[0], matrix)
    assert verify(store).problems == []


def test_normalised_rows_have_few_levels_if_their_lengths_are_few(tmp_path):
    rng = np.random.default_rng(1)
    rows = [sorted(rng.choice(50, rng.integers(1, 40), replace=False).tolist()) for _ in range(300)]
    text = "".join(f"{1 - 2 * (i % 2)} {' '.join(f'{j + 1}:1' for j in row)}\n" for i, row in enumerate(rows))
    source = write_text(tmp_path / "in.svm", text)
    store = convert([source], tmp_path / "store", plain(normalize="l2"))
    lengths = {len(row) for row in rows}
    expected = [np.float32(1 / np.sqrt(np.float64(length))) for length in lengths]
    assert store.manifest.layout.values == "code8"
    assert store.manifest.layout.levels == [0.0, *sorted(map(float, expected))]
    for row, found in zip(rows, store.to_scipy()[0], strict=True):
        assert found.data.tolist() == [np.float32(1 / np.sqrt(np.float64(len(row))))] * len(row)
    assert verify(store).problems == []
    # one entry a row: all that is stored is 1
    one = convert([write_text(tmp_path / "one.svm", "1 1:5\n-1 2:7\n")], tmp_path / "one", plain(normalize="l2"))
    assert one.manifest.layout.values is None
    assert one.to_scipy()[0].data.tolist() == [1, 1]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("number", [200, 300])
def test_the_table_does_not_depend_on_threads_or_blocks(tmp_path, number, threads):
    source, _matrix = with_levels(tmp_path, [i + 0.5 for i in range(number)])
    one = convert([source], tmp_path / "one", ConvertConfig(threads=1, chunk_size=1024))
    other = convert([source], tmp_path / "other", ConvertConfig(threads=threads, chunk_size=1024, block_size=400))
    assert one.manifest.layout.values == ("code8" if number == 200 else "float32")
    assert one.manifest.layout == other.manifest.layout
    again = convert([source], tmp_path / "again", ConvertConfig(threads=1, chunk_size=1024, block_size=400))
    assert folder_bytes(other.path) == folder_bytes(again.path)


def test_append_extends_the_table(tmp_path):
    first, before = with_levels(tmp_path, [1.0, 2.0, -3.0], "a.svm")
    more, after = with_levels(tmp_path, [2.0, -5.0, 0.5, 0.0, -0.0], "b.svm")
    convert([first], tmp_path / "store", plain())
    old = Store.open(tmp_path / "store").manifest
    store = convert([more], tmp_path / "store", plain(), existing=APPEND)
    assert old.layout.levels == [0.0, -3.0, 1.0, 2.0]
    assert [str(level) for level in store.manifest.layout.levels] == [
        "0.0",
        "-3.0",
        "1.0",
        "2.0",
        "-5.0",
        "-0.0",
        "0.5",
    ]
    assert store.manifest.chunks[: len(old.chunks)] == old.chunks
    whole = sp.vstack([before, after], format="csr")
    assert same_matrix(store.to_scipy()[0], whole)
    assert same_matrix(independent_reader(store.path)[0], whole)
    assert verify(store).problems == []
    third, last = with_levels(tmp_path, [1.0, -5.0], "c.svm")
    store = convert([third], tmp_path / "store", plain(), existing=APPEND)
    assert len(store.manifest.layout.levels) == 7
    assert same_matrix(store.to_scipy()[0], sp.vstack([whole, last], format="csr"))
    assert verify(store).problems == []


@pytest.mark.parametrize("number", [155, 156, 300])
def test_append_until_the_table_is_full(tmp_path, number):
    first, _matrix = with_levels(tmp_path, [i + 0.5 for i in range(100)], "a.svm")
    more, _matrix = with_levels(tmp_path, [-i - 0.5 for i in range(number)], "b.svm")
    convert([first], tmp_path / "store", plain())
    before = folder_bytes(tmp_path / "store")
    if number == 155:
        store = convert([more], tmp_path / "store", plain(), existing=APPEND)
        assert len(store.manifest.layout.levels) == LEVELS
        assert verify(store).problems == []
        return
    with pytest.raises(InputError, match=r"dictionary of 256 values, too few .* all inputs together; with values="):
        convert([more], tmp_path / "store", plain(), existing=APPEND)
    assert folder_bytes(tmp_path / "store") == before


# --- float32 because it was asked for -----------------------------------------------------------

ASKED = ["many", "few", "ones", "one", "zeros"]


def some_values(kind: str) -> list[float]:
    kinds = {"few": [0.25, -3.0, 0.0], "ones": [1.0], "one": [-7.5], "zeros": [-0.0, 0.0]}
    return kinds.get(kind) or np.random.default_rng(4).standard_normal(400).astype(np.float32).tolist()


def stored_values(store: Store) -> np.ndarray:
    """The bytes of all values as they lie in the chunk files, escapes left out, read by the store's description."""
    made = json.loads((store.path / "manifest.json").read_text())
    kinds = {"gap8": np.uint8, "gap16": np.uint16, "uint32": np.uint32}
    kind = kinds[made["layout"]["index_coding"]]
    found = []
    for chunk in made["chunks"]:
        content = (store.path / chunk["file"]).read_bytes()
        indices = np.frombuffer(content, kind, chunk["entries"], chunk["starts"]["indices"])
        values = np.frombuffer(content, np.uint32, chunk["entries"], chunk["starts"]["values"])
        found.append(values if kind is np.uint32 else values[indices != np.iinfo(kind).max])
    return np.concatenate(found)


@pytest.mark.parametrize("kind", ASKED)
@pytest.mark.parametrize("features", [50, 200_000])
def test_float32_where_it_is_asked_for(tmp_path, kind, features):
    source, matrix = with_levels(tmp_path, some_values(kind))
    store = convert([source], tmp_path / "store", plain(values="float32", features=features))
    assert (store.manifest.layout.values, store.manifest.layout.levels) == ("float32", [])
    assert store.manifest.recipe.values is None
    matrix.resize(400, features)
    assert np.array_equal(stored_values(store), bits(matrix.data))
    assert same_matrix(store.to_scipy()[0], matrix)
    assert same_matrix(independent_reader(store.path)[0], matrix)
    assert verify(store).problems == []
    norms = np.sqrt(np.asarray(matrix.astype(np.float64).power(2).sum(axis=1))).ravel()
    assert store.manifest.statistics.max_row_norm == pytest.approx(norms.max(), rel=1e-12)
    assert store.manifest.statistics.rounding_error == 0


def test_shuffled_and_scaled_rows_stay_float32(tmp_path):
    text = "".join(f"{1 - 2 * (i % 2)} {1 + i % 40}:2 {50 + i // 40}:2\n" for i in range(400))
    source = write_text(tmp_path / "in.svm", text)
    store = convert([source], tmp_path / "store", ConvertConfig(values="float32", normalize="l2", chunk_size=1024))
    half = np.float32(1 / np.sqrt(2))
    assert store.manifest.layout.values == "float32"
    assert stored_values(store).tolist() == bits([half] * 800).tolist()
    assert sorted(map(tuple, store.to_scipy()[0].indices.reshape(400, 2).tolist())) == sorted(
        (i % 40, 49 + i // 40) for i in range(400)
    )


@pytest.mark.slow
@pytest.mark.parametrize("later", [None, "float32"])
@pytest.mark.parametrize("kind", ASKED)
def test_any_values_can_be_appended_where_float32_was_asked_for(tmp_path, kind, later):
    first, before = with_levels(tmp_path, some_values(kind), "first.svm")
    store = convert([first], tmp_path / "store", plain(values="float32"))
    whole = before
    for number, next_kind in enumerate(ASKED):
        more, after = with_levels(tmp_path, some_values(next_kind), f"{number}.svm")
        store = convert([more], store.path, plain(values=later), existing=APPEND)
        whole = sp.vstack([whole, after], format="csr")
    assert (store.manifest.layout.values, store.manifest.layout.levels) == ("float32", [])
    assert np.array_equal(stored_values(store), bits(whole.data))
    assert same_matrix(store.to_scipy()[0], whole)
    assert same_matrix(independent_reader(store.path)[0], whole)
    assert verify(store).problems == []


@pytest.mark.parametrize(("kind", "told"), [("few", "codes of one byte"), ("ones", "values that are all 1")])
def test_a_store_of_fewer_bytes_says_what_would_have_helped(tmp_path, kind, told):
    first, _matrix = with_levels(tmp_path, some_values(kind), "first.svm")
    more, _matrix = with_levels(tmp_path, some_values("many"), "more.svm")
    store = convert([first], tmp_path / "store", plain())
    before = folder_bytes(store.path)
    with pytest.raises(InputError, match=r"convert all inputs together; with values=float32 any values"):
        convert([more], store.path, plain(), existing=APPEND)
    for resume in (False, True):
        with pytest.raises(UsageError, match=f"values=float32: the store was made with {told}; leave it out"):
            convert([first], store.path, plain(values="float32"), existing=Existing(append=True, resume=resume))
    with pytest.raises(InputError, match="with other options"):
        convert([first], store.path, plain(values="float32"), existing=Existing(resume=True))
    assert folder_bytes(store.path) == before
    assert not store.path.with_name("store.unfinished").exists()
    made = convert([first], store.path, plain(values="float32"), existing=Existing(force=True))
    again = convert([first], store.path, plain(values="float32"), existing=Existing(resume=True))
    assert again.manifest == made.manifest
    assert convert([more], store.path, plain(), existing=APPEND).rows == 800


def test_a_damaged_table_is_found(tmp_path):
    source, _matrix = with_levels(tmp_path, [1.0, 2.5, -3.0])
    store = convert([source], tmp_path / "store", plain())
    path = store.path / store.manifest.chunks[1].file
    content = path.read_bytes()
    at = content.index(np.array([0.0, -3.0, 1.0, 2.5], np.float32).tobytes()) + 4
    path.write_bytes(content[:at] + b"\1" + content[at + 1 :])
    problems = verify(store).problems
    assert len(problems) == 1
    assert "checksum" in problems[0]
    path.write_bytes(content)

    def found(change: str) -> list[str]:
        copy = Store.open(shutil.copytree(store.path, tmp_path / "copy"))
        block = copy.block(1)
        levels, values = block.levels.copy(), block.values.copy()
        if change == "another level":
            levels[2] = 9
        elif change == "a level too many":
            levels[4] = 9
        elif change == "escapes with another code":
            gaps, values = block.indices.copy(), values.copy()
            gaps[0], values[0] = 255, 1
            forge_chunk(copy, 1, indices=gaps, values=values)
            rewrite(copy.path, features=1000)
            values = None
        if values is not None:
            forge_chunk(copy, 1, levels=levels)
        problems = verify(Store.open(copy.path)).problems
        shutil.rmtree(copy.path)
        return problems

    assert found("nothing") == []
    for change in ("another level", "a level too many"):
        assert "its table of levels is not the manifest's" in found(change)[0]
    assert "escape entry has a value other than 0" in found("escapes with another code")[0]


@pytest.mark.parametrize("levels", [[0.0, 1e39], [0.0, 0.1], [0.5, 0.0], [0.0, float("nan")], [0.0] * 257, []])
def test_invalid_level_tables(tmp_path, levels):
    source, _matrix = with_levels(tmp_path, [1.0, 2.5, -3.0])
    store = convert([source], tmp_path / "store", plain())
    layout = json.loads((store.path / "manifest.json").read_text())["layout"]
    rewrite(store.path, layout={**layout, "levels": levels})
    with pytest.raises(CorruptFileError, match=r"table of levels|not JSON compliant"):
        Store.open(store.path)


# --- rounding -----------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [None, "l2"])
@pytest.mark.parametrize("values", ["float16", "bfloat16"])
def test_values_are_rounded_last_and_statistics_are_of_what_is_stored(tmp_path, values, normalize):
    from sklearn.preprocessing import normalize as scale

    matrix, labels = random_rows(300, 200, 3)
    matrix.data[:4] = [1e-5, 1e-9, -1e-7, 0]  # subnormal, nothing left, subnormal, as it was
    source = write_text(tmp_path / "in.svm", svmlight_text(matrix, labels))
    store = convert([source], tmp_path / "store", plain(features=200, values=values, normalize=normalize))
    exact = matrix.copy()
    if normalize:
        exact.data = scale(matrix.astype(np.float64)).astype(np.float32).data
    expected = exact.copy()
    expected.data = reference(exact.data, values)
    assert store.manifest.layout.values == values
    assert store.manifest.recipe.values == values
    assert same_matrix(store.to_scipy()[0], expected)
    assert same_matrix(independent_reader(store.path)[0], expected)
    norms = np.sqrt(np.asarray(expected.astype(np.float64).power(2).sum(axis=1))).ravel()
    told = store.manifest.statistics
    assert told.max_row_norm == pytest.approx(norms.max(), rel=1e-12)
    assert told.mean_row_norm == pytest.approx(norms.mean(), rel=1e-12)
    kept = exact.data != 0
    errors = np.abs(expected.data[kept].astype(np.float64) - exact.data[kept]) / np.abs(exact.data[kept])
    assert told.rounding_error == pytest.approx(errors.max(), rel=1e-6)
    assert (told.rounding_error == 1) == (values == "float16")
    assert verify(store).problems == []


def test_rounded_values_that_are_few_take_a_byte(tmp_path):
    levels = [1 + i / 2**14 for i in range(1000)]  # four to a float16, 32 to a bfloat16
    source, matrix = with_levels(tmp_path, levels)
    store = convert([source], tmp_path / "store", plain(values="float16"))
    assert (store.manifest.layout.values, store.manifest.recipe.values) == ("code8", "float16")
    assert store.manifest.layout.levels == [0.0, *np.unique(reference(matrix.data, "float16")).tolist()]
    assert 0 < store.manifest.statistics.rounding_error <= 2**-11
    matrix.data = reference(matrix.data, "float16")
    assert same_matrix(store.to_scipy()[0], matrix)
    ones = convert([source], tmp_path / "ones", plain(values="bfloat16", features=None))
    assert ones.manifest.layout.values == "code8"
    close = write_text(tmp_path / "close.svm", "1 1:1.00001 2:1\n-1 2:0.99999\n")
    store = convert([close], tmp_path / "close", plain(values="bfloat16"))
    assert (store.manifest.layout.values, store.manifest.recipe.values) == (None, "bfloat16")
    assert store.manifest.statistics.rounding_error == pytest.approx(1e-5, rel=0.01)
    assert store.manifest.statistics.max_row_norm == np.sqrt(2)


@pytest.mark.parametrize(
    ("values", "fits", "beyond", "use"),
    [
        ("float16", "65519.99", "-65520", "bfloat16 or float32"),
        ("bfloat16", "3.3961773e38", "3.39617753e38", "float32"),
    ],
)
def test_values_that_would_be_infinite(tmp_path, values, fits, beyond, use):
    good = "".join(f"1 1:{i}\n-1 2:{fits}\n" for i in range(50))
    source = write_text(tmp_path / "in.svm", good)
    config = plain(values=values)
    store = convert([source], tmp_path / "store", config)
    assert store.to_scipy()[0].data.max() == LARGEST[values]
    write_text(tmp_path / "in.svm", f"{good}1 1:1 2:{beyond}\n{good}")
    with pytest.raises(InputError, match=rf"in\.svm:101: the value .* is too large for {values}; use values={use}$"):
        convert([source], tmp_path / "other", config)
    assert not (tmp_path / "other").exists()
    before = folder_bytes(store.path)
    with pytest.raises(InputError, match=r"in\.svm:101: "):
        convert([source], store.path, plain(), existing=APPEND)
    assert folder_bytes(store.path) == before
    skipped = convert([source], tmp_path / "other", plain(values=values, on_bad_row="skip"))
    assert (skipped.rows, skipped.manifest.rejected) == (200, 1)
    listed = json.loads((skipped.path / "rejected.jsonl").read_text())
    assert listed["line"] == 101
    assert "too large" in listed["problem"]
    scaled = convert([source], tmp_path / "scaled", plain(values=values, normalize="l2"))  # nothing is above 1
    assert scaled.rows == 201


def test_append_rounds_as_the_store_does(tmp_path):
    matrix, labels = random_rows(300, 50, 5, 0.3)
    more, others = random_rows(200, 50, 6, 0.3)
    first = write_text(tmp_path / "a.svm", svmlight_text(matrix, labels))
    second = write_text(tmp_path / "b.svm", svmlight_text(more, others))
    convert([first], tmp_path / "store", plain(values="float16"))
    for wrong in ("bfloat16", "float32"):
        with pytest.raises(UsageError, match=f"values={wrong}: the store was made with float16; leave it out"):
            convert([second], tmp_path / "store", plain(values=wrong), existing=APPEND)
    store = convert([second], tmp_path / "store", plain(), existing=APPEND)
    whole = convert([first, second], tmp_path / "whole", plain(values="float16"))
    assert same_matrix(store.to_scipy()[0], whole.to_scipy()[0])
    assert store.manifest.recipe == whole.manifest.recipe
    assert store.manifest.statistics.rounding_error == whole.manifest.statistics.rounding_error > 0
    exact = convert([first], tmp_path / "exact", plain())
    with pytest.raises(UsageError, match="values=float16: the store was made with float32"):
        convert([second], exact.path, plain(values="float16"), existing=APPEND)
    for values in ("float32", None):  # few levels are no reason to leave the coding of the store
        few, _matrix = with_levels(tmp_path, [0.1, 0.2], "few.svm")
        grown = convert([few], exact.path, plain(values=values), existing=APPEND)
        assert grown.manifest.layout == exact.manifest.layout
        assert verify(grown).problems == []


def test_resume_checks_the_option(tmp_path):
    source, _matrix = with_levels(tmp_path, [1.0, 0.3])
    convert([source], tmp_path / "store", plain(values="float16"))
    resume = Existing(resume=True)
    assert convert([source], tmp_path / "store", plain(values="float16"), existing=resume).rows == 400
    with pytest.raises(InputError, match="with other options"):
        convert([source], tmp_path / "store", plain(), existing=resume)


CHILD = """
import json, sys
from ooc_pegasos import ConvertConfig, Existing, convert
ConvertConfig.bucket_limit = lambda _config: 20_000
config = ConvertConfig(chunk_size=6_000, block_size=3_000, threads=2, **json.loads(sys.argv[3]))
convert([sys.argv[1]], sys.argv[2], config, existing=Existing(resume=True))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "levels", "coding"),
    [
        ({}, 0, "float32"),
        ({"values": "float16"}, 0, "float16"),
        ({"values": "bfloat16", "normalize": "l2"}, 0, "bfloat16"),
        ({}, 200, "code8"),
        ({"values": "float16", "normalize": "l2"}, 1, "code8"),
        ({"values": "bfloat16"}, 1, None),
        ({"values": "float32"}, 1, "float32"),
    ],
)
def test_killed_and_resumed_gives_the_same_bytes(tmp_path, options, levels, coding):
    matrix, labels = random_rows(6_000, 300, 7, 0.03)
    if levels:
        matrix.data = (1 + np.arange(len(matrix.data)) % levels).astype(np.float32)
    source = write_text(tmp_path / "in.svm", svmlight_text(matrix, labels))

    def start(target: Path) -> Process:
        return program(CHILD, source, target, json.dumps(options))

    def finish(target: Path) -> dict[str, bytes]:
        child = start(target)
        _out, problem = child.communicate(timeout=120)
        assert child.returncode == 0, problem
        return folder_bytes(target)

    expected = finish(tmp_path / "warm")
    began = time.monotonic()
    assert finish(tmp_path / "whole") == expected
    length = time.monotonic() - began
    assert Store.open(tmp_path / "whole").manifest.layout.values == coding
    rng = random.Random(8)
    killed = 0
    for attempt in range(3):
        target = tmp_path / f"store{attempt}"
        for _ in range(2):
            child = start(target)
            while not target.with_name(target.name + ".unfinished").exists() and child.poll() is None:
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.4) * length)
            killed += child.poll() is None
            child.kill()
            child.communicate()
        assert finish(target) == expected
    assert killed > 0


# --- what comes after ---------------------------------------------------------------------------


def model_for(store: Store) -> Model:
    made = store.manifest
    weights = np.random.default_rng(9).standard_normal(store.features)
    info = ModelInfo(
        features=store.features,
        lam=0.1,
        loss="hinge",
        parameter=0.0,
        costs=None,
        algorithm="sgd-s",
        sampling="permutation",
        seed=0,
        epochs=1,
        certificate=Certificate(1.0, None, None, False),
        history=[],
        trials=[],
        calibrations=[],
        labels=made.labels,
        recipe=made.recipe,
        config={},
        store_checksum="",
        versions={},
    )
    return Model(weights, info)


@pytest.mark.parametrize("normalize", [None, "l2"])
@pytest.mark.parametrize(
    ("values", "levels"),
    [(None, 0), ("float16", 0), ("bfloat16", 0), (None, 200), ("float32", 200), ("bfloat16", 300), ("float16", 1)],
)
def test_scores_of_text_and_of_its_store_are_the_same_bits(tmp_path, values, levels, normalize):
    matrix, labels = random_rows(500, 300, 10, 0.05)
    if levels:
        matrix.data = (1 + np.arange(len(matrix.data)) % levels / 7).astype(np.float32)
    source = write_text(tmp_path / "in.svm", svmlight_text(matrix, labels))
    config = ConvertConfig(shuffle=False, values=values, normalize=normalize, chunk_size=3000)
    store = convert([source], tmp_path / "store", config)
    model = model_for(store)
    from_store = np.concatenate([part.scores for part in score(model, str(store.path), 2, False)])
    from_text = np.concatenate([part.scores for part in score(model, source, 2, False)])
    assert len(from_text) == 500
    assert np.array_equal(from_text.view(np.uint64), from_store.view(np.uint64))
    if values == "float16" and not normalize:
        write_text(tmp_path / "in.svm", f"1 1:1\n-1 2:1e6 {store.features + 5}:1\n")
        with pytest.raises(InputError, match=r"the value 1e\+06 is too large for float16"):
            list(score(model, source, 2, False))


def test_the_command_says_what_rounding_did(tmp_path, oocpeg):
    matrix, labels = random_rows(300, 50, 11)
    write_text(tmp_path / "in.svm", svmlight_text(matrix, labels))
    done = oocpeg("convert", "in.svm", "-o", "half", "--values", "float16")
    error = Store.open(tmp_path / "half").manifest.statistics.rounding_error
    line = next(line for line in done.stdout.splitlines() if line.startswith("values"))
    told = line.removeprefix("values rounded to float16: relative error at most ")
    assert len(told) == len("4.9e-04")
    assert 0 < error <= float(told) < 1.1 * error
    done = oocpeg("convert", "in.svm", "-o", "brain", "--values", "bfloat16", "--json")
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["rounding_error"] == Store.open(tmp_path / "brain").manifest.statistics.rounding_error > 1e-3
    done = oocpeg("convert", "in.svm", "-o", "exact", "--json")
    assert json.loads(done.stdout.splitlines()[-1])["rounding_error"] == 0
    assert "rounded" not in oocpeg("convert", "in.svm", "-o", "again").stdout
    write_text(tmp_path / "few.svm", "1 1:0.5\n-1 2:3\n")
    done = oocpeg("convert", "few.svm", "-o", "few", "--values", "float16")
    assert "values rounded to float16: none changed by it" in done.stdout
    done = oocpeg("convert", "in.svm", "-o", "wrong", "--values", "float64", code=2)
    assert "--values should be one of float32, float16, bfloat16" in done.stderr


def test_the_option_in_a_file(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('values = "bfloat16"\n')
    assert ConvertConfig(**load_toml(ConvertConfig, path)).rounding == "bfloat16"
    path.write_text('values = "code8"\n')
    with pytest.raises(UsageError, match="'values' should be"):
        load_toml(ConvertConfig, path)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-65_519, max_value=65_519)))
def test_rounding_any_values(values):
    array = np.array(values, np.float32)
    for rounding in ("float16", "bfloat16"):
        found = array.copy()
        round_values(found, ROUNDINGS[rounding])
        assert np.array_equal(bits(found), bits(reference(array, rounding)))
