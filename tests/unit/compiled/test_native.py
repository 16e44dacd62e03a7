"""Machine code that is called without numba, compared with the Python functions that it was compiled from."""

import ctypes
import gc
import json
import resource
import subprocess
import sys
import threading

import numpy as np
import pytest

from ooc_pegasos.compiled import native
from ooc_pegasos.compiled.jit import called, inlined, kernel


def weighted(values, weight, is_doubled, nothing, pair):
    total = 0.0
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            total += values[row, column] * (row + 2 * column)
    if is_doubled:
        total *= 2
    if nothing is None:
        total += pair[0]
    return total * weight + pair[1][0], values.size, is_doubled


def several(values):
    copied = np.empty(len(values), np.float32)
    for at in range(len(values)):
        copied[at] = values[at] * 2
    return copied, copied[1:], values[::2], len(values)


def sevens(size):
    return np.full(size, 7)


def of_word(word, number):
    return word >> np.uint64(1), number


def without_result(values):
    values[0] = 5


def quotient(number, divisor):
    return number // divisor


def text_of(number):
    return str(number)


def numbers_in_list(count):
    found = [at * at for at in range(count)]
    return found[-1]


BASE = np.arange(60, dtype=np.float64).reshape(6, 10)
LAYOUTS = {
    "rows": BASE,
    "columns": np.asfortranarray(BASE),
    "parts": BASE[::2, 1::3],
    "backwards": BASE[::-1, ::-1],
    "empty": BASE[:0],
    "unwritable": np.frombuffer(BASE.tobytes()).reshape(6, 10),
    "integers": BASE.astype(np.int16),
    "truths": BASE > 7,
    "unaligned": np.frombuffer(b"0" + BASE.tobytes(), np.uint8)[1:].view(np.float64).reshape(6, 10),
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_of_any_layout(layout):
    values = LAYOUTS[layout]
    compiled = kernel(weighted)
    for rest in ((3, True, None, (2, (0.5,))), (np.float32(0.1), False, 4.0, (1.5, (np.int8(3), 1)))):
        assert compiled(values, *rest) == pytest.approx(weighted(values, *rest), rel=1e-6)


@pytest.mark.slow
def test_arrays_as_results():
    """New arrays, parts of them, and parts of arguments live as long as they are used."""
    compiled = kernel(several)
    for count in (0, 1, 2, 1000):
        values = np.arange(count, dtype=np.float32)
        expected = several(values)
        found = compiled(values)
        del values
        gc.collect()
        other = [np.full(count, -1, np.float32) for _ in range(10)]  # takes memory that was freed by mistake
        for one, right in zip(found, expected, strict=True):
            assert np.array_equal(one, right)
            assert np.asarray(one).dtype == np.asarray(right).dtype
        assert len(other) == 10


@pytest.mark.slow
def test_memory_of_results_is_returned():
    compiled, size = kernel(sevens), 1 << 20
    assert compiled(size)[-1] == 7
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100):
        compiled(size)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # in KiB; 800 MB in all


@pytest.mark.slow
def test_numbers_of_all_sizes():
    compiled = kernel(of_word)
    for number in (-(2**63), 2**63 - 1, 2**63, 2**64 - 1, True, 0.1, np.int8(-3), np.uint16(60_000), np.float32(0.5)):
        assert compiled(np.uint64(2**64 - 1), number) == (2**63 - 1, number)


@pytest.mark.slow
def test_no_result_and_exceptions():
    values = np.zeros(2)
    assert kernel(without_result)(values) is None
    assert values[0] == 5
    compiled = kernel(quotient)
    assert compiled(7, 2) == 3
    with pytest.raises(ZeroDivisionError, match=r"an error in the compiled function .*quotient"):
        compiled(7, 0)
    with pytest.raises(MemoryError):
        kernel(sevens)(1 << 55)
    with pytest.raises(TypeError, match="numbers or arrays"):
        kernel(text_of)(3)


@pytest.mark.slow
def test_functions_of_numbas_runtime():
    """Lists need more of numba's runtime than is replaced."""
    assert kernel(numbers_in_list)(5) == 16


@pytest.mark.slow
def test_functions_of_equal_names_are_not_mixed_up():
    """Each object file is loaded by itself."""

    def adding(number):
        @called
        def inner(x):
            return x + number if x > 0 else inner(-x) + number

        return kernel(lambda x: inner(x))

    functions = [adding(number) for number in range(3)]
    assert [one(5) for one in functions] == [5, 6, 7]
    assert [one(5) for one in functions] == [5, 6, 7]


@pytest.mark.slow
def test_threads_that_call_at_once():
    """A function is prepared once, and other threads run while machine code does."""
    compiled = kernel(weighted)
    found, expected = [], weighted(BASE, 3, True, None, (2, (0.5,)))
    work = [threading.Thread(target=lambda: found.append(compiled(BASE, 3, True, None, (2, (0.5,))))) for _ in range(8)]
    for one in work:
        one.start()
    for one in work:
        one.join()
    assert found == [expected] * 8


@pytest.mark.slow
def test_a_function_is_inlined_in_another():
    @inlined
    def half(x, factor):
        return x * factor / 2

    @kernel
    def both(x):
        return half(x, 3), half(x, 4)

    assert both(5.0) == (7.5, 10.0)


def test_headers_are_data():
    """A file in the cache is JSON and machine code: to load it runs no Python code."""
    code = """
import json, sys
import numpy as np
from ooc_pegasos.compiled import jit, native
from ooc_pegasos.compiled.fit.pegasos import square_distance
assert square_distance(np.array([3.0, 4.0]), np.zeros(2), 1.0) == 25.0
kinds = tuple(map(native.kind_of, (np.ones(2), np.ones(2), 1.0)))
header, _, rest = square_distance._read(kinds).partition(b"\\n")
print(json.dumps([json.loads(header), rest[:4].hex(), sorted({"numba", "pickle"} & set(sys.modules))]))
"""
    done = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(2)]
    header, magic, loaded = json.loads(done[1].stdout)
    assert header["result"] == "float64"
    assert header["arguments"][:2] == ["ptr", "ptr"]
    assert bytes.fromhex(magic) in (b"\x7fELF", b"\xcf\xfa\xed\xfe")
    assert "numba" not in loaded


def test_kinds_differ_where_types_do():
    """Arrays of equal kinds are passed in the same way."""
    kinds = [native.kind_of(one) for one in LAYOUTS.values()]
    kinds += [native.kind_of(one) for one in (BASE[0], BASE.astype(">f8"), 1, 2**63, True, 1.0, np.float32(1), None)]
    kinds += [native.kind_of(one) for one in ((1,), (1, 2), (1.0,), ((1,),))]
    assert len(set(kinds)) == len(kinds) - 2  # the parts and the reversed rows, the empty and the whole rows
    assert ctypes.sizeof(ctypes.c_void_p) == 8
