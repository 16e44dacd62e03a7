"""Values of texts as counts: against the definition in docs/store-format.md, and against stores of float32."""

import dataclasses
import json
import os
from decimal import Decimal, localcontext
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer
from typer.testing import CliRunner

from ooc_pegasos import ConvertConfig, Existing, Store, TrainConfig, convert, train
from ooc_pegasos.algorithms import ALGORITHMS
from ooc_pegasos.cli.main import app
from ooc_pegasos.compiled.rows.coding import encode_rows, entries_of_rows
from ooc_pegasos.compiled.rows.counts import counts_of, decode_counts
from ooc_pegasos.compiled.rows.values import SLOTS, fill_places
from ooc_pegasos.conversion.first_pass import Ingest
from ooc_pegasos.conversion.preview import preview
from ooc_pegasos.conversion.second_pass import Assembly
from ooc_pegasos.distributed import train_dask
from ooc_pegasos.errors import CorruptFileError, InputError, UsageError
from ooc_pegasos.loading.loader import open_loader
from ooc_pegasos.loading.window import cost_of
from ooc_pegasos.proof.check import prove
from ooc_pegasos.scoring.evaluate import evaluate, predict
from ooc_pegasos.store.append_expire import expire
from ooc_pegasos.store.chunk_file import write_chunk
from ooc_pegasos.store.csr_block import CODINGS, all_levels, escape_of
from ooc_pegasos.store.drop import drop
from ooc_pegasos.store.verify import verify
from ooc_pegasos.store.vocabulary import Vocabulary, idf_weights, of_store
from support.clusters import workers_of_this_process
from support.file_bytes import folder_bytes
from support.foreign_stores import rewrite
from support.stores import small_buckets

TEXT_OPTIONS = {"text": ("words",), "idf": True, "normalize": "l2", "hash_bits": 12}


def essays(rows, seed=0, words=600, most=60):
    rng = np.random.default_rng(seed)
    shares = 1 / np.arange(1, words + 1)
    names = np.array([f"word{number}" for number in range(words)])
    return [" ".join(rng.choice(names, rng.integers(0, most), p=shares / shares.sum())) for _ in range(rows)]


def essay_file(folder, rows=400, seed=0, name="in.parquet", texts=None):
    texts = essays(rows, seed) if texts is None else texts
    labels = [int(("word3 " in text) ^ (len(text) % 7 == 0)) for text in texts]
    pq.write_table(pa.table({"y": labels, "words": texts}), folder / name, row_group_size=90)
    return str(folder / name), texts


def two_stores(folder, source, **options):
    """The same rows, with values as counts and as float32."""
    config = ConvertConfig(**({"classes": ("0", "1")} | TEXT_OPTIONS | options))
    floats = dataclasses.replace(config, values="float32")
    counts = convert([source], folder / "counts", config), convert([source], folder / "floats", floats)
    assert [store.manifest.layout.values for store in counts] == ["count8", "float32"]
    return counts


@cache
def nearest_idf(texts, frequency):
    """The float32 nearest to ln((1 + texts) / (1 + frequency)) + 1, by 60 digits."""
    with localcontext(prec=60):
        exact = (Decimal(1 + texts) / Decimal(1 + frequency)).ln() + 1
        about = np.float32(exact)
        near = [np.nextafter(about, np.float32(0)), about, np.nextafter(about, np.float32(np.inf))]
        return min(near, key=lambda one: abs(Decimal(float(one)) - exact))


def defined(counts, idf, normalize):
    """The values of a row: products rounded to float32, divided by the norm in float64, rounded again."""
    values = (counts.astype(np.float64) * (idf if idf is not None else 1)).astype(np.float32).astype(np.float64)
    if normalize and values.any():
        values = values / np.sqrt(np.cumsum(values * values)[-1])  # cumsum adds in order
    return values.astype(np.float32)


def rows_from_the_format_page(folder):
    """Indices and values of all rows of a store of counts, by a reader that has no package but Arrow."""
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["version"], manifest["layout"]["values"]) == (2, "count8")
    recipe = manifest["recipe"]["table"] or manifest["recipe"]
    texts, known = recipe["tokens"]["texts"], {}
    if texts:
        features = pa.ipc.open_file(folder / manifest["vocabulary"]["file"]).read_all().to_pydict()
        known = dict(zip(features["feature"], features["texts"], strict=True))
    coding = manifest["layout"]["index_coding"]
    escape = {"gap8": 255, "gap16": 65_535, "uint32": -1}[coding]
    rows = []
    for chunk in manifest["chunks"]:
        batch = pa.ipc.open_file(folder / chunk["file"]).get_batch(0)
        for row in batch.column("features").to_pylist():
            gaps = np.array([entry["index" if coding == "uint32" else "gap"] for entry in row], np.int64)
            indices = gaps if coding == "uint32" else np.cumsum(gaps)
            kept = np.flatnonzero(gaps != escape)
            counts = np.array([row[at]["value"] for at in kept])
            idf = [nearest_idf(texts, known.get(indices[at], 0)) for at in kept] if texts else None
            normalize = manifest["recipe"]["normalize"] == "l2"
            rows.append((indices[kept].tolist(), defined(counts, idf, normalize).tolist()))
    return rows


# --- the definition -----------------------------------------------------------------------------------


@given(
    st.lists(st.dictionaries(st.integers(0, 1999), st.integers(-300, 300).filter(bool), max_size=30), max_size=8),
    st.sampled_from([*CODINGS]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_decoded_values_are_the_defined_products(rows, coding, normalize, with_idf, seed):
    idf = np.random.default_rng(seed).uniform(1, 15, 2000).astype(np.float32) if with_idf else np.empty(0, np.float32)
    indices = [np.array(sorted(row), np.uint32) for row in rows]
    counts = [np.array([row[index] for index in sorted(row)], np.float32) for row in rows]
    kinds = np.unique(np.concatenate([*counts, np.zeros(1, np.float32)]))[:200]
    counts = [np.where(np.isin(one, kinds), one, kinds[-1]) for one in counts]
    weights = [idf[some] if with_idf else None for some in indices]
    given_values = [defined(one, weight, False) for one, weight in zip(counts, weights, strict=True)]
    every = lambda parts, kind: np.concatenate([*parts, np.empty(0, kind)]).astype(kind)  # noqa: E731
    indptr = np.cumsum([0, *map(len, rows)])
    order, escape = np.arange(len(rows)), escape_of(coding)
    levels = np.array([0.0, *kinds[kinds != 0]], np.float32)
    keys, places = np.zeros(SLOTS, np.uint32), np.zeros(SLOTS, np.uint8)
    fill_places(levels, keys, places)
    entries = np.empty(len(rows), np.int64)
    entries_of_rows(order, indptr, every(indices, np.uint32), 0, escape, entries)
    offsets, coded = np.empty(len(rows) + 1, np.int64), np.empty(entries.sum(), CODINGS[coding])
    number = len(coded)
    out = np.full(number, np.nan, np.float32)
    codes = out.view(np.uint8)[3 * number :]  # as where windows are read
    source = order, indptr, every(indices, np.uint32), every(given_values, np.float32)
    table = 0, escape, normalize, 0, True, idf, keys, places
    written, error = encode_rows(*source, *table, offsets, coded, codes, np.empty(len(rows)))
    assert (written, error) == (number, 0)
    assert decode_counts(offsets, coded, codes, all_levels(levels), idf, escape, normalize, out) == -1
    kept = coded != escape if escape else np.ones(number, bool)
    expected = [defined(one, weight, normalize) for one, weight in zip(counts, weights, strict=True)]
    assert out[kept].tolist() == every(expected, np.float32).tolist()
    assert not out[~kept].any()


def test_values_that_are_not_products_are_not_coded():
    rng = np.random.default_rng(0)
    indices, counts = rng.integers(0, 500, 1000).astype(np.uint32), rng.integers(-200, 200, 1000)
    idf = rng.uniform(1, 15, 500).astype(np.float32)
    values = (counts * idf.astype(np.float64)[indices]).astype(np.float32)
    found = np.empty(1000, np.float32)
    assert counts_of(indices, values, idf, found)
    assert np.array_equal(found, counts)
    for at, other in (
        (999, np.nextafter(values[999], np.float32(np.inf))),
        (0, np.float32(1.0)),
        (5, np.float32(np.nan)),
    ):
        wrong = values.copy()
        wrong[at] = other
        assert not counts_of(indices, wrong, idf, found)
    assert not counts_of(indices, values, idf[: indices.max()], found)
    assert counts_of(indices, values, idf[:0], found)
    assert np.array_equal(found, values)


@pytest.mark.parametrize("escape", [0, 255])
def test_an_index_beyond_the_factors_is_not_read(escape):
    offsets, coded = np.array([7, 8, 10]), np.array([3, 5, 6], np.uint8 if escape else np.uint32)
    codes, levels, out = np.ones(3, np.uint8), all_levels([0.0, 2.0]), np.empty(3, np.float32)
    sizes = {12: -1, 11: 1, 7: -1, 6: 1, 4: 1, 3: 0} if escape else {7: -1, 6: 1, 4: 1, 3: 0}
    if escape:
        del sizes[7], sizes[6]  # gaps add up to 11
    for size, row in sizes.items():
        factors = np.ones(size, np.float32)
        assert decode_counts(offsets, coded, codes, levels, factors, escape, True, out) == row


@given(st.integers(1, 10**12), st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_idf_is_correctly_rounded(texts, shares):
    frequencies = np.array([int(share * texts) for share in shares], np.int64)
    known = Vocabulary(np.arange(len(shares), dtype=np.uint32), texts=frequencies)
    found = idf_weights(texts, len(shares) + 1, known)
    assert found.dtype == np.float32
    assert found.tolist() == [nearest_idf(texts, number) for number in [*frequencies.tolist(), 0]]


@pytest.mark.parametrize("direction", [-1, 1])
def test_idf_does_not_depend_on_the_last_digit_of_logarithms(monkeypatch, direction):
    """Pairs whose idf lies within 2e-15 of the middle of two float32, and a logarithm as wrong as it may be."""
    pairs = [(14150, 10891), (19527, 17964), (19905, 16592), (22477, 16446), (26124, 12708), (26168, 19171)]
    right = np.log
    expected = [nearest_idf(*pair) for pair in pairs]

    def wrong(x):
        return right(x) + direction * 4e-15

    plain = [np.float32(wrong((1 + texts) / (1 + number)) + 1) for texts, number in pairs]
    assert plain != expected
    monkeypatch.setattr(np, "log", wrong)
    for (texts, number), nearest in zip(pairs, expected, strict=True):
        known = Vocabulary(np.array([1, 3], np.uint32), texts=np.array([number, number]))
        assert idf_weights(texts, 4, known)[[1, 3]].tolist() == [nearest, nearest]


# --- stores -------------------------------------------------------------------------------------------

WAYS = [
    {},
    {"hash_signed": False},
    {"normalize": None, "hash_bits": 14, "ngrams": "1:2"},
    {"idf": None},
    {"dictionary": 5000, "hash_bits": None},
    {"hash_bits": 22, "ngrams": "1:2"},
    {"shuffle": False, "chunk_size": 4096},
]


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_values_are_those_of_a_store_of_float32_and_of_the_format_page(tmp_path, options):
    source, _texts = essay_file(tmp_path)
    counts, floats = two_stores(tmp_path, source, **options)
    assert (counts.manifest.version, floats.manifest.version) == (2, 1)
    matrix, labels = counts.to_scipy()
    other, other_labels = floats.to_scipy()
    assert (matrix != other).nnz == 0
    assert np.array_equal(labels, other_labels)
    rows = rows_from_the_format_page(counts.path)
    assert [row.indices.tolist() for row in matrix] == [indices for indices, _values in rows]
    assert [row.data.tolist() for row in matrix] == [values for _indices, values in rows]
    assert counts.manifest.statistics == floats.manifest.statistics
    assert counts.manifest.bytes < 0.68 * floats.manifest.bytes
    assert not verify(counts).problems


def test_counts_are_those_of_scikit_learn(tmp_path):
    source, texts = essay_file(tmp_path)
    store, _floats = two_stores(tmp_path, source, shuffle=False)
    counts = HashingVectorizer(n_features=2**12, norm=None).transform(texts)
    counts.eliminate_zeros()
    frequencies = np.bincount(counts.indices, minlength=2**12)
    idf = np.array([nearest_idf(len(texts), int(number)) for number in frequencies])
    matrix = store.to_scipy()[0]
    for row, expected in zip(matrix, counts, strict=True):
        expected.sort_indices()
        assert row.indices.tolist() == expected.indices.tolist()
        assert row.data.tolist() == defined(expected.data, idf[expected.indices], True).tolist()
    kinds = np.unique(counts.data)
    levels = store.manifest.layout.levels
    assert levels == [0.0, *sorted({*kinds.tolist(), *(sign * number for number in range(1, 113) for sign in (1, -1))})]
    assert len(levels) <= 256 - 30


def test_counts_of_several_columns_are_added_before_they_are_weighted(tmp_path):
    titles, bodies = essays(600, 1, words=2000), essays(600, 2, words=2000)
    table = pa.table({"y": np.arange(600) % 2, "title": titles, "body": bodies})
    pq.write_table(table, tmp_path / "in.parquet")
    options = {"text": ("title", "body"), "hash_bits": None, "dictionary": 5000, "shuffle": False, "normalize": None}
    store, floats = two_stores(tmp_path, str(tmp_path / "in.parquet"), **options)
    both = [f"{title} {body}" for title, body in zip(titles, bodies, strict=True)]
    counted = CountVectorizer().fit(both).transform(both).toarray()
    known = of_store(store.path, store.manifest)
    idf = [nearest_idf(store.manifest.recipe.tokens_of_texts.texts, int(number)) for number in known.texts]
    expected = (counted * np.array(idf, np.float64)).astype(np.float32)
    assert counted.max() > 5  # sums of rounded products would differ
    assert np.array_equal(store.to_scipy()[0].toarray(), expected)
    assert np.array_equal(floats.to_scipy()[0].toarray(), expected)


def test_documents_in_folders_have_counts(tmp_path):
    for number, text in enumerate(essays(200)):
        folder = tmp_path / "texts" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:04d}").write_text(text)
    options = {"classes": (), "text": ()}
    counts, floats = two_stores(tmp_path, str(tmp_path / "texts"), **options)
    assert (counts.to_scipy()[0] != floats.to_scipy()[0]).nnz == 0


@pytest.mark.parametrize(
    ("options", "coding"),
    [
        ({"values": "float16"}, "float16"),
        ({"idf": None, "normalize": None}, "code8"),
        ({"numeric": ("x",)}, "float32"),
        ({"numeric": ("x",), "idf": None}, "float32"),
        ({"categorical": ("y",), "label": "x", "task": "regression"}, "float32"),
    ],
)
def test_other_values_are_not_counts(tmp_path, options, coding):
    source, texts = essay_file(tmp_path)
    table = pq.read_table(source).append_column("x", pa.array(np.random.default_rng(0).normal(size=len(texts))))
    pq.write_table(table, source)
    chosen = {"label": "y"} | TEXT_OPTIONS | options
    store = convert([source], tmp_path / "store", ConvertConfig(**chosen))
    assert (store.manifest.layout.values, store.manifest.version) == (coding, 1)


@pytest.mark.parametrize(("kinds", "coding"), [(223, "count8"), (224, "float32")])
def test_stores_of_too_many_counts_have_float32(tmp_path, kinds, coding):
    rng = np.random.default_rng(0)
    texts = ["many " * number + f"word{rng.integers(40)}" for number in range(1, kinds + 1)]
    source, _texts = essay_file(tmp_path, texts=texts)
    options = TEXT_OPTIONS | {"hash_signed": False}
    store = convert([source], tmp_path / "store", ConvertConfig(**options, block_size=5000))
    assert store.manifest.layout.values == coding


def test_a_dry_run_expects_counts(tmp_path):
    source, _texts = essay_file(tmp_path, rows=2000)
    sizes = [preview([source], ConvertConfig(**TEXT_OPTIONS, values=values)).bytes for values in (None, "float32")]
    counts, floats = two_stores(tmp_path, source)
    assert sizes[0] == pytest.approx(counts.manifest.bytes, rel=0.2)
    assert sizes[1] == pytest.approx(floats.manifest.bytes, rel=0.2)


def test_info_names_the_coding(tmp_path):
    source, _texts = essay_file(tmp_path)
    store, _floats = two_stores(tmp_path, source)
    shown = CliRunner().invoke(app, ["info", str(store.path)])
    assert f"as codes of {len(store.manifest.layout.levels)} counts of words, exact" in " ".join(shown.output.split())


# --- whatever reads a store ---------------------------------------------------------------------------


def loaded_values(store, **options):
    loader = open_loader(store, options.pop("memory", 1 << 30), **options)
    for window in loader.stream(loader.in_order()):
        block = window.block
        for begin, end in window.row_ranges:
            values = block.values[block.indptr[begin] : block.indptr[end]]
            yield values[values != 0]  # others are escapes, which another coding of indices has elsewhere


@pytest.mark.parametrize("loading", ["mapped", "read"])
@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("options", [{}, {"hash_bits": 22, "ngrams": "1:2"}])
def test_windows_have_decoded_values(tmp_path, loading, few, options):
    source, _texts = essay_file(tmp_path)
    counts, floats = two_stores(tmp_path, source, chunk_size=8192, shuffle=False, **options)
    assert len(counts.manifest.chunks) > 3
    memory = 2 * max(cost_of(chunk, counts.manifest.layout) for chunk in counts.manifest.chunks) if few else 1 << 30
    found = list(loaded_values(counts, memory=memory, loading=loading))
    assert len(found) == len(counts.manifest.chunks)
    assert np.concatenate(found).tobytes() == np.concatenate(list(loaded_values(floats))).tobytes()


def test_memory_of_decoded_values_is_counted(tmp_path):
    source, _texts = essay_file(tmp_path, rows=3000)
    store, _floats = two_stores(tmp_path, source)
    made = store.manifest
    assert sum(cost_of(chunk, made.layout) - cost_of(chunk) for chunk in made.chunks) >= 3 * made.nonzeros
    needed = 2 * max(cost_of(chunk, made.layout) for chunk in made.chunks)
    with pytest.raises(UsageError, match="is too little"):
        open_loader(store, min(needed, cost_of(made.chunks[0], made.layout)) - 1)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_models_are_those_of_a_store_of_float32(tmp_path, algorithm):
    source, _texts = essay_file(tmp_path)
    stores = two_stores(tmp_path, source)
    config = TrainConfig(lam=1e-2, algorithm=algorithm, max_epochs=4)
    one, other = (train(store, config).model for store in stores)
    assert one.weights.tobytes() == other.weights.tobytes()


def test_calibrations_are_those_of_a_store_of_float32(tmp_path):
    source, _texts = essay_file(tmp_path)
    config = TrainConfig(lam=1e-2, calibrate="platt", holdout=0.2)
    one, other = (train(store, config).model.info for store in two_stores(tmp_path, source))
    assert one.calibrations == other.calibrations != []


def objective_on_rows(model, store, lam):
    matrix, labels = store.to_scipy()
    weights = model.weights.astype(np.float64)
    short = np.maximum(0, 1 - labels * (matrix.astype(np.float64) @ weights + model.bias))
    return lam / 2 * weights @ weights + short.mean()


def test_models_within_little_memory_prove_and_score(tmp_path):
    source, _texts = essay_file(tmp_path, rows=1500)
    counts, floats = two_stores(tmp_path, source, chunk_size=8192)
    memory = 3 * max(cost_of(chunk, counts.manifest.layout) + 100 * chunk.rows for chunk in counts.manifest.chunks)
    config = TrainConfig(lam=1e-3, memory=memory, loss="hinge", loading="read")
    result = train(counts, config, proof=tmp_path / "counts.proof")
    assert result.windows > 2
    model = result.model
    model.save(tmp_path / "model")
    (claim,) = prove(tmp_path / "model", counts.path, tmp_path / "counts.proof")
    assert claim.primal == pytest.approx(objective_on_rows(model, floats, 1e-3), rel=1e-12)
    assert 0.99 * claim.primal < claim.lower_bound <= claim.primal
    results = [evaluate(model, str(data)) for data in (counts.path, floats.path, source)]
    assert results[0]["objective"] == pytest.approx(claim.primal, rel=1e-12)
    assert results[0]["confusion"] == results[1]["confusion"] == results[2]["confusion"]
    for name, data in (("a", counts.path), ("b", floats.path)):
        predict(model, str(data), tmp_path / f"{name}.csv")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


@pytest.mark.dask
def test_workers_decode_counts(tmp_path):
    source, _texts = essay_file(tmp_path)
    counts, floats = two_stores(tmp_path, source, chunk_size=8192)
    with workers_of_this_process() as (_cluster, client):
        result = train_dask(client, counts, TrainConfig(lam=1e-2, loss="hinge", tolerance=0.01), parts=3)
    assert result.certified
    assert result.primal == pytest.approx(objective_on_rows(result.model, floats, 1e-2), rel=1e-9)


# --- appended, expired, interrupted -------------------------------------------------------------------


def test_appended_rows_keep_the_idf_of_the_store(tmp_path):
    source, _texts = essay_file(tmp_path)
    later, _texts = essay_file(tmp_path, 300, 1, "later.parquet", [*essays(299, 1, words=900), "word1 " * 777])
    counts, floats = two_stores(tmp_path, source)
    before = counts.manifest.layout.levels
    for name in ("counts", "floats"):
        convert([later], tmp_path / name, existing=Existing(append=True))
    counts, floats = Store.open(counts.path), Store.open(floats.path)
    levels = counts.manifest.layout.levels
    assert levels[: len(before)] == before
    assert {-777.0, 777.0} & set(levels[len(before) :])
    assert counts.rows == 700
    assert (counts.to_scipy()[0] != floats.to_scipy()[0]).nnz == 0
    assert not verify(counts).problems
    first = train(counts, TrainConfig(lam=1e-2)).model.weights
    assert first.tobytes() == train(floats, TrainConfig(lam=1e-2)).model.weights.tobytes()
    drop(counts.path, [source])
    left, whole = Store.open(counts.path).to_scipy()[0], floats.to_scipy()[0][400:]
    assert (left != whole).nnz == 0
    assert not verify(Store.open(counts.path)).problems


def test_rows_expire_from_a_store_of_counts(tmp_path):
    source, _texts = essay_file(tmp_path)
    os.utime(source, (1, 1))
    later, _texts = essay_file(tmp_path, 300, 1, "later.parquet")
    counts, floats = two_stores(tmp_path, source)
    for store in (counts, floats):
        convert([later], store.path, existing=Existing(append=True))
        assert expire(store.path, 10**10) == 400
    assert (Store.open(counts.path).to_scipy()[0] != Store.open(floats.path).to_scipy()[0]).nnz == 0


def test_rows_with_too_many_counts_are_not_appended(tmp_path):
    source, _texts = essay_file(tmp_path)
    counts, floats = two_stores(tmp_path, source)
    long = [f"{'often ' * number} word" for number in range(1, 257)]
    later, _texts = essay_file(tmp_path, name="later.parquet", texts=long)
    before = folder_bytes(counts.path)
    with pytest.raises(InputError, match="256 counts of words at most, and the new rows have more or other values"):
        convert([later], counts.path, existing=Existing(append=True))
    assert folder_bytes(counts.path) == before
    assert convert([later], floats.path, existing=Existing(append=True)).rows == 656
    with pytest.raises(UsageError, match="the store was made with counts of one byte"):
        convert([source], counts.path, ConvertConfig(values="float32"), existing=Existing(append=True))


@pytest.mark.parametrize(("kind", "method", "call"), [(Ingest, "take", 3), (Assembly, "_assemble", 2)])
def test_an_interrupted_conversion_resumes_to_the_same_counts(tmp_path, monkeypatch, kind, method, call):
    source, _texts = essay_file(tmp_path)
    small_buckets(monkeypatch, 3_000)
    config = ConvertConfig(**TEXT_OPTIONS, block_size=4000, threads=1)
    expected = folder_bytes(convert([source], tmp_path / "whole", config).path)
    calls, real = [0], getattr(kind, method)

    def interrupted(*arguments):
        calls[0] += 1
        if calls[0] == call:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(kind, method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            convert([source], tmp_path / "store", config)
    store = convert([source], tmp_path / "store", config, existing=Existing(resume=True))
    assert store.manifest.layout.values == "count8"
    assert folder_bytes(store.path) == expected


# --- damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"version": 1}, "format version 1 with values as count8"),
        ({"layout": {"values": "code8"}}, "format version 2 with values as code8"),
        ({"layout": {"levels": []}}, "a table of levels that does not fit"),
        ({"layout": {"levels": [1.0, 2.0]}}, "do not begin with 0"),
        ({"vocabulary": None}, "needs a vocabulary"),
    ],
)
def test_manifests_of_counts_that_contradict_themselves(tmp_path, change, problem):
    source, _texts = essay_file(tmp_path)
    store, _floats = two_stores(tmp_path, source)
    table = json.loads((store.path / "manifest.json").read_text())
    nested = {key: {**table[key], **value} if isinstance(value, dict) else value for key, value in change.items()}
    rewrite(store.path, **nested)
    with pytest.raises(CorruptFileError, match=problem):
        Store.open(store.path)


@pytest.mark.parametrize("texts", [-1, 2**53, 10**400])
def test_numbers_of_texts_that_cannot_be_are_refused(tmp_path, texts):
    source, _texts = essay_file(tmp_path)
    store, _floats = two_stores(tmp_path, source)
    recipe = json.loads((store.path / "manifest.json").read_text())["recipe"]
    recipe["table"]["tokens"]["texts"] = texts
    rewrite(store.path, recipe=recipe)
    with pytest.raises(CorruptFileError, match=f"a recipe with {texts} texts"):
        Store.open(store.path)


@pytest.mark.parametrize("loading", ["mapped", "read", None])
def test_an_index_that_has_no_factor_is_damage(tmp_path, loading):
    source, _texts = essay_file(tmp_path)
    store, _floats = two_stores(tmp_path, source, hash_bits=8)
    chunk = store.manifest.chunks[0]
    path = store.path / chunk.file
    block = store.parse(0, path.read_bytes())
    indices = block.indices.copy()
    indices[block.indptr[5]] = 254  # and the next gaps add to it
    written = write_chunk(path.with_suffix(".new"), dataclasses.replace(block, indices=indices))
    path.with_suffix(".new").rename(path)
    rewrite(store.path, chunks=[dataclasses.asdict(chunk) | dataclasses.asdict(written)])
    forged = Store.open(store.path)
    assert verify(forged).problems
    with pytest.raises(CorruptFileError, match=r"chunk-.*row 5: an index is not below the number of features"):
        list(loaded_values(forged, loading=loading)) if loading else forged.to_scipy()


def test_a_damaged_vocabulary_is_refused_before_values_are_decoded(tmp_path):
    source, _texts = essay_file(tmp_path)
    store, _floats = two_stores(tmp_path, source)
    path = store.path / store.manifest.vocabulary.file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    for read in (Store.to_scipy, lambda one: train(one, TrainConfig(lam=0.01))):
        with pytest.raises(CorruptFileError, match="the checksum does not match"):
            read(Store.open(store.path))
