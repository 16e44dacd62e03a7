"""Codings of sparse rows: scatter a block to buckets, and encode indices as gaps.

A gap-coded row stores the differences between successive indices in a narrow unsigned type, the first from 0. The
largest number of the type is the escape: it advances the index by that number without an entry (its value, if there are
values, is 0). See docs/store-format.md.
"""

import numpy as np

from ooc_pegasos.compiled.intrinsics import prefetch, value_at
from ooc_pegasos.compiled.jit import inlined, kernel
from ooc_pegasos.compiled.rows.counts import count_of
from ooc_pegasos.compiled.rows.gather import OFFSETS_AHEAD, ROWS_AHEAD, prefetch_row
from ooc_pegasos.compiled.rows.values import SLOTS, bits_of, norm_of, rounded_value, short_bits, slot_of
from ooc_pegasos.compiled.rows.xxh64 import START, absorb_stripes, finish

ESCAPE8, ESCAPE16 = 255, 65_535
# Columns of the statistics of each bucket, to which `scatter_rows` adds. Escapes are counted for rows with unchanged
# first index (BASE0) and with a first index reduced by one (BASE1).
ROWS, PAIRS, ESCAPES8_BASE0, ESCAPES8_BASE1, ESCAPES16_BASE0, ESCAPES16_BASE1 = range(6)

_START = np.array([lane & 0xFFFFFFFFFFFFFFFF for lane in START], dtype=np.uint64)


@kernel
def random_buckets(first_row: int, seed: int, buckets: np.ndarray, number: int) -> None:
    """Assign to row `first_row + i` the bucket `splitmix64(seed, row) mod number`."""
    for i in range(len(buckets)):
        word = np.uint64(seed) + np.uint64(first_row + i + 1) * np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        buckets[i] = (word ^ (word >> np.uint64(31))) % np.uint64(number)


@kernel
def count_rows(indptr: np.ndarray, buckets: np.ndarray, stats: np.ndarray) -> None:
    """Count rows and pairs of each bucket."""
    for row in range(len(buckets)):
        stats[buckets[row], ROWS] += 1
        stats[buckets[row], PAIRS] += indptr[row + 1] - indptr[row]


@kernel
def scatter_rows(
    labels: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    buckets: np.ndarray,
    stats: np.ndarray,
    out_labels: np.ndarray,
    out_lengths: np.ndarray,
    out_indices: np.ndarray,
    out_values: np.ndarray,
) -> tuple[bool, int, int, int, int]:
    """Copy rows so that those of a bucket are contiguous, in their order, and count the escapes they need.

    `stats` holds the counts of `count_rows`. With one bucket no row moves: `out_indices` and `out_values` are `indices`
    and `values`. Returns (True if all values are 1, smallest index, its row, largest index, its row).
    """
    number = len(stats)
    move = number > 1
    row_at = np.zeros(number, np.int64)
    pair_at = np.zeros(number, np.int64)
    for bucket in range(1, number):
        row_at[bucket] = row_at[bucket - 1] + stats[bucket - 1, ROWS]
        pair_at[bucket] = pair_at[bucket - 1] + stats[bucket - 1, PAIRS]
    ones = True
    smallest, smallest_row, largest, largest_row = np.int64(1) << 40, 0, np.int64(-1), 0
    for row in range(len(buckets)):
        bucket = buckets[row]
        begin, end = indptr[row], indptr[row + 1]
        out_labels[row_at[bucket]] = labels[row]
        out_lengths[row_at[bucket]] = end - begin
        row_at[bucket] += 1
        if begin == end:
            continue
        first = np.int64(indices[begin])
        if first < smallest:
            smallest, smallest_row = first, row
        if np.int64(indices[end - 1]) > largest:
            largest, largest_row = np.int64(indices[end - 1]), row
        reduced = max(first - 1, 0)
        escapes8, escapes16 = np.int64(0), np.int64(0)
        previous = first
        to = pair_at[bucket]
        for pair in range(begin, end):
            index = np.int64(indices[pair])
            value = values[pair]
            gap = index - previous
            if gap >= ESCAPE8:
                escapes8 += gap // ESCAPE8
                if gap >= ESCAPE16:
                    escapes16 += gap // ESCAPE16
            previous = index
            ones &= value == np.float32(1.0)
            if move:
                out_indices[to] = index
                out_values[to] = value
                to += 1
        pair_at[bucket] = to
        stats[bucket, ESCAPES8_BASE0] += escapes8 + first // ESCAPE8
        stats[bucket, ESCAPES8_BASE1] += escapes8 + reduced // ESCAPE8
        stats[bucket, ESCAPES16_BASE0] += escapes16 + first // ESCAPE16
        stats[bucket, ESCAPES16_BASE1] += escapes16 + reduced // ESCAPE16
    return ones, smallest, smallest_row, largest, largest_row


@inlined
def _hash(data):
    lanes = _START.copy()
    absorb_stripes(data, lanes)
    tail = np.zeros(40, np.uint8)
    whole = len(data) // 32 * 32
    for at in range(whole, len(data)):
        tail[at - whole] = data[at]
    return finish(lanes, len(data), tail)


@kernel
def segment_checksums(
    stats: np.ndarray,
    labels: np.ndarray,
    lengths: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    with_values: bool,
    out: np.ndarray,
) -> None:
    """Compute a checksum for the slice of the columns (as bytes) of each bucket; `values` are optional."""
    row, pair = 0, 0
    for bucket in range(len(stats)):
        row_end = row + stats[bucket, ROWS]
        pair_end = pair + stats[bucket, PAIRS]
        mixed = _hash(labels[8 * row : 8 * row_end])
        mixed = mixed * np.uint64(3) + _hash(lengths[4 * row : 4 * row_end])
        mixed = mixed * np.uint64(3) + _hash(indices[4 * pair : 4 * pair_end])
        if with_values:
            mixed = mixed * np.uint64(3) + _hash(values[4 * pair : 4 * pair_end])
        out[bucket] = mixed
        row, pair = row_end, pair_end


@kernel
def add_weights_to_checksums(stats: np.ndarray, weights: np.ndarray, checksums: np.ndarray) -> None:
    """Extend the checksums of `segment_checksums` by a column of weights (as bytes)."""
    row = 0
    for bucket in range(len(stats)):
        row_end = row + stats[bucket, ROWS]
        checksums[bucket] = checksums[bucket] * np.uint64(3) + _hash(weights[4 * row : 4 * row_end])
        row = row_end


@inlined
def _prefetch_rows(order, i, indptr, indices, values):
    """Prefetch the next rows of a random order."""
    if i + OFFSETS_AHEAD < len(order):
        prefetch(indptr, np.int64(order[i + OFFSETS_AHEAD]))
    if i + ROWS_AHEAD < len(order):
        prefetch_row(indptr, indices, values, np.int64(order[i + ROWS_AHEAD]))


@kernel
def entries_of_rows(
    order: np.ndarray, indptr: np.ndarray, indices: np.ndarray, base: int, escape: int, entries: np.ndarray
) -> None:
    """Count the entries of row `order[i]` when coded as gaps with this escape; 0 means plain indices."""
    for i in range(len(order)):
        if escape > 0:
            _prefetch_rows(order, i, indptr, indices, None)
        begin, end = indptr[order[i]], indptr[order[i] + 1]
        needed = end - begin
        if escape > 0 and begin < end:
            previous = np.int64(base)
            for pair in range(begin, end):
                gap = np.int64(indices[pair]) - previous
                if gap >= escape:
                    needed += gap // escape
                previous = np.int64(indices[pair])
        entries[i] = needed


@kernel
def encode_rows(
    order: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    base: int,
    escape: int,
    normalize: bool,
    rounding: int,
    as_counts: bool,
    idf: np.ndarray,
    keys: np.ndarray,
    places: np.ndarray,
    offsets: np.ndarray,
    out_indices: np.ndarray,
    out_values: np.ndarray,
    norms: np.ndarray,
) -> tuple[int, float]:
    """Write rows `order` in the coding of `out_indices` (plain if `escape` is 0), and their l2 norms as stored.

    An empty `values` means all ones, an empty `out_values` that values are left out. Values are written to float32
    unchanged, to uint16 as the bits of the rounded value, to uint8 as codes in the table of `fill_places`, `as_counts`
    those of the counts of which `values` are products with `idf`. Returns (number of entries written, -1 if a value is
    not in the table; largest relative rounding error).
    """
    to = np.int64(0)
    offsets[0] = 0
    write = len(out_values) > 0
    width = out_values.itemsize
    worst = np.float64(0)
    for i in range(len(order)):
        _prefetch_rows(order, i, indptr, indices, values)
        begin, end = np.uint64(indptr[order[i]]), np.uint64(indptr[order[i] + 1])
        norm = norm_of(values, begin, end) if len(values) > 0 else np.sqrt(np.float64(end - begin))
        divide = normalize and norm > 0
        again = divide or rounding > 0
        squares = np.float64(0)
        previous = np.int64(base)
        for pair in range(begin, end):
            gap = np.int64(indices[pair]) - previous
            if escape > 0:
                while gap >= escape:
                    out_indices[to] = escape
                    if write:
                        out_values[to] = 0
                    gap -= escape
                    to += 1
                previous = np.int64(indices[pair])
            out_indices[to] = gap
            if write or again:
                value = values[pair] if len(values) > 0 else np.float32(1.0)
                given = value
                if divide:
                    value = np.float32(np.float64(value) / norm)
                if rounding > 0:
                    exact = np.float64(value)
                    value = rounded_value(value, rounding)
                    error = np.abs(np.float64(value) - exact)
                    if error > worst * np.abs(exact):
                        worst = error / np.abs(exact)
                if again:
                    squares += np.float64(value) * np.float64(value)
                if write:
                    if width == 4:
                        out_values[to] = value
                    elif width == 2:
                        out_values[to] = short_bits(value, rounding)
                    else:
                        index = np.int64(indices[pair]) - base
                        bits = bits_of(count_of(given, index, idf) if as_counts else value)
                        place = np.uint8(0)
                        if bits != np.uint32(0):
                            slot = slot_of(bits)
                            while keys[slot] != bits:
                                if keys[slot] == np.uint32(0):
                                    return -1, worst
                                slot = (slot + np.uint64(1)) & np.uint64(SLOTS - 1)
                            place = places[slot]
                        out_values[to] = place
            to += 1
        norms[i] = np.sqrt(squares) if again else norm
        offsets[i + 1] = to
    return to, worst


# Status of `decode_rows`.
DECODED, INDEX_OUT_OF_RANGE, NOT_INCREASING, LOOSE_ESCAPE, ESCAPE_WITH_VALUE, NOT_FINITE = range(6)


@kernel
def decode_rows(
    offsets: np.ndarray,
    coded: np.ndarray,
    values: np.ndarray | None,
    levels: np.ndarray,
    escape: int,
    features: int,
    indptr: np.ndarray,
    indices: np.ndarray,
    out_values: np.ndarray,
) -> tuple[int, int]:
    """Decode the rows of `encode_rows` and check their structure; return (status, row where it stopped).

    `offsets` must have been checked to lie within `coded`. `values` None: all ones. Empty `indices`: only check
    (then `indptr` still receives the row starts).
    """
    to = np.int64(0)
    indptr[0] = 0
    for row in range(len(offsets) - 1):
        index = np.int64(0)
        least = np.int64(0)  # the smallest valid next index
        loose = False
        for at in range(np.uint64(offsets[row]), np.uint64(offsets[row + 1])):
            code = np.int64(coded[at])
            value = 1.0
            if values is not None:
                value = value_at(values, at, levels)
                if not np.isfinite(value):
                    return NOT_FINITE, row
            if escape > 0:
                index += code
                if code == escape:
                    loose = True
                    if values is not None and value != 0.0:
                        return ESCAPE_WITH_VALUE, row
                    if index >= features:
                        return INDEX_OUT_OF_RANGE, row
                    continue
            else:
                index = code
            loose = False
            if index >= features:
                return INDEX_OUT_OF_RANGE, row
            if index < least:
                return NOT_INCREASING, row
            least = index + 1
            if len(indices) > 0:
                indices[to] = index
                out_values[to] = value
            to += 1
        if loose:
            return LOOSE_ESCAPE, row
        indptr[row + 1] = to
    return DECODED, 0


@kernel
def place_offsets(offsets: np.ndarray, first_entry: int, entries: int, out: np.ndarray) -> bool:
    """Set `out = offsets + first_entry`; return False if offsets decrease or leave 0 to `entries`."""
    before = np.int64(0)
    sound = offsets[0] == 0 and offsets[-1] == entries
    for row in range(len(offsets)):
        offset = np.int64(offsets[row])
        sound &= offset >= before
        before = offset
        out[row] = first_entry + offset
    return sound


@kernel
def distinct_labels(labels: np.ndarray, keys: np.ndarray, counts: np.ndarray, first_rows: np.ndarray) -> int:
    """Find the distinct bit patterns of `labels` (uint64), their counts and first rows; -1 if `keys` is too short."""
    found = 0
    for row in range(len(labels)):
        at = 0
        while at < found and keys[at] != labels[row]:
            at += 1
        if at == found:
            if found == len(keys):
                return -1
            keys[at], counts[at], first_rows[at] = labels[row], 0, row
            found += 1
        counts[at] += 1
    return found


@kernel
def normalize_rows(indptr: np.ndarray, values: np.ndarray) -> None:
    """Scale every row to length 1, in place, as `encode_rows` does."""
    for row in range(len(indptr) - 1):
        norm = norm_of(values, indptr[row], indptr[row + 1])
        if norm > 0:
            for pair in range(indptr[row], indptr[row + 1]):
                values[pair] = np.float32(np.float64(values[pair]) / norm)


@kernel
def row_norms(indptr: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the l2 norm of every row, as `encode_rows` computes it."""
    norms = np.empty(len(indptr) - 1)
    for row in range(len(norms)):
        norms[row] = norm_of(values, indptr[row], indptr[row + 1])
    return norms
