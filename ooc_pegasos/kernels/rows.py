"""Moving whole sparse rows: scattering a block to buckets, and coding rows as gaps.

A gap-coded row stores the differences between successive indices in a narrow unsigned type, the
first from 0. Its largest number is the escape: "advance by that much and touch nothing" (its value,
if there are values, is 0). See docs/store-format.md.
"""

import numpy as np

from ooc_pegasos.kernels.jit import inlined, kernel
from ooc_pegasos.kernels.xxh64 import START, absorb_stripes, finish

ESCAPE8, ESCAPE16 = 255, 65_535
# Columns of the per-bucket statistics that `scatter_rows` adds to. Escapes are counted for rows whose
# first index is taken as it stands (BASE0) and reduced by one (BASE1).
ROWS, PAIRS, ESCAPES8_BASE0, ESCAPES8_BASE1, ESCAPES16_BASE0, ESCAPES16_BASE1 = range(6)

_START = np.array([lane & 0xFFFFFFFFFFFFFFFF for lane in START], dtype=np.uint64)


@kernel
def random_buckets(first_row: int, seed: int, buckets: np.ndarray, number: int) -> None:
    """Give row `first_row + i` the bucket `splitmix64(seed, row) mod number`."""
    for i in range(len(buckets)):
        word = np.uint64(seed) + np.uint64(first_row + i + 1) * np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        buckets[i] = (word ^ (word >> np.uint64(31))) % np.uint64(number)


@kernel
def count_rows(indptr: np.ndarray, buckets: np.ndarray, stats: np.ndarray) -> None:
    """Rows and pairs of each bucket."""
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
    """Copy rows so that those of a bucket stand together, in their order, and count the escapes they need.

    `stats` holds the counts of `count_rows`. With one bucket there is nothing to move: `out_indices` and
    `out_values` are `indices` and `values`. Returns (whether all values are 1, smallest index, its row, largest
    index, its row).
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
    """One checksum for each bucket's slice of the columns (as bytes), of which `values` may be left out."""
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
def entries_of_rows(
    order: np.ndarray, indptr: np.ndarray, indices: np.ndarray, base: int, escape: int, entries: np.ndarray
) -> None:
    """How many entries row `order[i]` needs when coded as gaps with this escape; 0 means plain indices."""
    for i in range(len(order)):
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
    offsets: np.ndarray,
    out_indices: np.ndarray,
    out_values: np.ndarray,
    norms: np.ndarray,
) -> int:
    """Write rows `order` in the coding of `out_indices` (plain if `escape` is 0) and their l2 norms.

    An empty `values` means all ones, an empty `out_values` that values are left out. Returns the number of
    entries written.
    """
    to = np.int64(0)
    offsets[0] = 0
    for i in range(len(order)):
        begin, end = indptr[order[i]], indptr[order[i] + 1]
        squares = np.float64(0)
        if len(values) > 0:
            for pair in range(begin, end):
                squares += np.float64(values[pair]) * np.float64(values[pair])
        else:
            squares = np.float64(end - begin)
        norm = np.sqrt(squares)
        divide = normalize and norm > 0
        if divide:
            squares = np.float64(0)
        previous = np.int64(base)
        for pair in range(begin, end):
            gap = np.int64(indices[pair]) - previous
            if escape > 0:
                while gap >= escape:
                    out_indices[to] = escape
                    if len(out_values) > 0:
                        out_values[to] = 0
                    gap -= escape
                    to += 1
                previous = np.int64(indices[pair])
            out_indices[to] = gap
            if len(out_values) > 0:
                value = values[pair] if len(values) > 0 else np.float32(1.0)
                if divide:
                    value = np.float32(np.float64(value) / norm)
                    squares += np.float64(value) * np.float64(value)
                out_values[to] = value
            to += 1
        norms[i] = np.sqrt(squares) if divide else norm
        offsets[i + 1] = to
    return to


# What `decode_rows` may find wrong.
DECODED, INDEX_OUT_OF_RANGE, NOT_INCREASING, LOOSE_ESCAPE, ESCAPE_WITH_VALUE = range(5)


@kernel
def decode_rows(
    offsets: np.ndarray,
    coded: np.ndarray,
    values: np.ndarray,
    escape: int,
    features: int,
    indptr: np.ndarray,
    indices: np.ndarray,
    out_values: np.ndarray,
) -> tuple[int, int]:
    """Undo `encode_rows`, checking the structure: (status, row where it stopped).

    `offsets` must have been checked to lie within `coded`. Empty `values`: all ones. Empty `indices`: only
    check (then `indptr` still receives the row starts).
    """
    to = np.int64(0)
    indptr[0] = 0
    for row in range(len(offsets) - 1):
        index = np.int64(0)
        least = np.int64(0)  # the smallest index that may come next
        loose = False
        for at in range(offsets[row], offsets[row + 1]):
            code = np.int64(coded[at])
            if escape > 0:
                index += code
                if code == escape:
                    loose = True
                    if len(values) > 0 and values[at] != np.float32(0):
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
                out_values[to] = values[at] if len(values) > 0 else np.float32(1.0)
            to += 1
        if loose:
            return LOOSE_ESCAPE, row
        indptr[row + 1] = to
    return DECODED, 0


@kernel
def distinct_labels(labels: np.ndarray, keys: np.ndarray, counts: np.ndarray, first_rows: np.ndarray) -> int:
    """The distinct bit patterns of `labels` (uint64), their counts and first rows; -1 if `keys` is too short."""
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
        squares = np.float64(0)
        for pair in range(indptr[row], indptr[row + 1]):
            squares += np.float64(values[pair]) * np.float64(values[pair])
        norm = np.sqrt(squares)
        if norm > 0:
            for pair in range(indptr[row], indptr[row + 1]):
                values[pair] = np.float32(np.float64(values[pair]) / norm)


@kernel
def largest_index(offsets: np.ndarray, coded: np.ndarray, escape: int) -> int:
    """The largest index any row reaches, escapes included; -1 if offsets decrease or leave `coded`.

    All that must be known before other kernels may use the rows, at the speed of memory.
    """
    largest = np.uint64(0)
    for row in range(len(offsets) - 1):
        begin, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        if begin < 0 or end < begin or end > len(coded):
            return -1
        index = np.uint64(0)
        if escape > 0:
            for at in range(np.uint64(begin), np.uint64(end)):
                index += np.uint64(coded[at])
        else:
            for at in range(np.uint64(begin), np.uint64(end)):
                index = max(index, np.uint64(coded[at]))
        largest = max(largest, index)
    return np.int64(largest)
