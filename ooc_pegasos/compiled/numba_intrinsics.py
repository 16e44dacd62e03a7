"""Machine instructions that numba does not offer.

The addresses are computed from an array and an index without a check: callers must ensure that the index is valid.
"""

from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

I64 = ir.IntType(64)
_HAS_HALF = bool(get_host_cpu_features().get("f16c"))  # numba's cache distinguishes kinds of processors


@intrinsic
def load_u64(_typing: Any, array: Any, index: Any) -> Any:
    """Return the eight bytes that start at `array[index]` as a little-endian integer; no alignment needed."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), I64.as_pointer())
        return builder.load(address, align=1)

    return types.uint64(array, types.int64), codegen


@intrinsic
def trailing_zeros(_typing: Any, word: Any) -> Any:
    """Return the number of low zero bits of a 64-bit word."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), codegen


@intrinsic
def leading_zeros(_typing: Any, word: Any) -> Any:
    """Return the number of high zero bits of a 64-bit word."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), codegen


@intrinsic
def multiply_high(_typing: Any, left: Any, right: Any) -> Any:
    """Return the upper 64 bits of the 128-bit product."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), I64)

    return types.uint64(types.uint64, types.uint64), codegen


@intrinsic
def float_from_bits(_typing: Any, word: Any) -> Any:
    """Return the float64 whose bits are `word`."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.uint64), codegen


@intrinsic
def prefetch(_typing: Any, array: Any, index: Any) -> Any:
    """Prefetch the cache line of `array[index]`. A hint: any address is allowed."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
        numbers = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, numbers, numbers, numbers])
        hint = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        # for reading, high locality, data cache
        builder.call(hint, [address, ir.Constant(numbers, 0), ir.Constant(numbers, 3), ir.Constant(numbers, 1)])
        return context.get_dummy_value()

    return types.none(array, types.int64), codegen


@intrinsic
def move_bytes(_typing: Any, source: Any, begin: Any, out: Any, at: Any, count: Any) -> Any:
    """Copy bytes `source[begin:begin + count]` to `out` from `at` on, which may overlap them."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = [context.make_array(signature.args[i])(context, builder, args[i]).data for i in (0, 2)]
        cgutils.raw_memmove(builder, builder.gep(data[1], [args[3]]), builder.gep(data[0], [args[1]]), args[4], 1)
        return context.get_dummy_value()

    return types.none(source, types.int64, out, types.int64, types.int64), codegen


@intrinsic
def escape_of_type(_typing: Any, array: Any) -> Any:
    """Return the escape gap of the type of `array`, 0 for plain uint32 indices: a constant for the compiler."""
    bits = array.dtype.bitwidth
    escape = 0 if bits == 32 else (1 << bits) - 1

    def codegen(_context: Any, _builder: Any, _signature: Any, _args: Any) -> Any:
        return ir.Constant(I64, escape)

    return types.int64(array), codegen


@intrinsic
def entries_of_line(_typing: Any, array: Any) -> Any:
    """Return the number of entries of `array` in a cache line of 64 bytes: a constant for the compiler."""
    entries = 512 // array.dtype.bitwidth

    def codegen(_context: Any, _builder: Any, _signature: Any, _args: Any) -> Any:
        return ir.Constant(I64, entries)

    return types.int64(array), codegen


@intrinsic
def value_at(_typing: Any, values: Any, index: Any, levels: Any) -> Any:
    """Return the value `values[index]` as float64, decoded as in `csr_block.VALUE_CODINGS`.

    float32 unchanged; uint8 as a code among the 256 `levels`; uint16 as the upper half of a float32 (bfloat16);
    int16 as the bits of a float16.
    """
    kind = values.dtype

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        stored = builder.load(builder.gep(data, [args[1]]))
        single, word = ir.FloatType(), ir.IntType(32)
        if kind == types.uint8:
            table = context.make_array(signature.args[2])(context, builder, args[2]).data
            stored = builder.load(builder.gep(table, [builder.zext(stored, I64)]))
        elif kind == types.uint16:
            bits = builder.shl(builder.zext(stored, word), ir.Constant(word, 16))
            stored = builder.bitcast(bits, single)
        elif kind == types.int16 and _HAS_HALF:
            stored = builder.fpext(builder.bitcast(stored, ir.HalfType()), single)
        elif kind == types.int16:
            # exponent and fraction in the positions of a float32, then the bias is corrected by a product, which is
            # exact for subnormal numbers as well
            bits = builder.zext(stored, word)
            size = builder.shl(builder.and_(bits, ir.Constant(word, 0x7FFF)), ir.Constant(word, 13))
            size = builder.fmul(builder.bitcast(size, single), ir.Constant(single, 2.0**112))
            sign = builder.shl(builder.and_(bits, ir.Constant(word, 0x8000)), ir.Constant(word, 16))
            stored = builder.bitcast(builder.or_(builder.bitcast(size, word), sign), single)
        return builder.fpext(stored, ir.DoubleType())

    return types.float64(values, types.uint64, levels), codegen
