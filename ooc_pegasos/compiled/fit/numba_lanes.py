"""SIMD lanes: vectors of eight float64 for numba kernels, which has no type for them.

A panel is a matrix `A[feature, model]` in C order, whose width is a multiple of LANES. Lanes are loaded and stored at
an index of an array, which the caller has checked. There are no fused operations, so results are the same on all
processors, and those of scalar float64.
"""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, overload, register_model

from ooc_pegasos.compiled.fit.lanes import LANES

_I32 = ir.IntType(32)
_DOUBLES = ir.VectorType(ir.DoubleType(), LANES)
_STORED = {types.float64: ir.DoubleType(), types.float32: ir.FloatType(), types.uint8: ir.IntType(8)}


class Lanes(types.Type):  # type: ignore[misc]
    """The numba type of eight numbers."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _DOUBLES)


_LANES = Lanes()


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    vector = ir.VectorType(_STORED[kind.dtype], LANES)
    return builder.bitcast(builder.gep(data, [index]), vector.as_pointer())


@intrinsic
def lanes_of(_typing: Any, number: Any) -> Any:
    """Return lanes with the same number."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        undefined = ir.Constant(_DOUBLES, ir.Undefined)
        one = builder.insert_element(undefined, args[0], ir.Constant(_I32, 0))
        return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES))

    return _LANES(types.float64), codegen


@intrinsic
def load_lanes(_typing: Any, array: Any, index: Any) -> Any:
    """Load lanes from an array of float64, float32 or uint8."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        stored = builder.load(_address(context, builder, kind, *args), align=kind.dtype.bitwidth // 8)
        if kind.dtype == types.float32:
            return builder.fpext(stored, _DOUBLES)
        return builder.uitofp(stored, _DOUBLES) if kind.dtype == types.uint8 else stored

    return _LANES(array, types.uint64), codegen


@intrinsic
def store_lanes(_typing: Any, array: Any, index: Any, lanes: Any) -> Any:
    """Store lanes in an array of float64, float32 or uint8, with rounding."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind, value = signature.args[0], args[2]
        if kind.dtype == types.float32:
            value = builder.fptrunc(value, ir.VectorType(ir.FloatType(), LANES))
        elif kind.dtype == types.uint8:
            value = builder.fptoui(value, ir.VectorType(ir.IntType(8), LANES))
        builder.store(value, _address(context, builder, kind, *args[:2]), align=kind.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(array, types.uint64, _LANES), codegen


@intrinsic
def round_to_float32(_typing: Any, lanes: Any) -> Any:
    """Round each number to float32."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.fpext(builder.fptrunc(args[0], ir.VectorType(ir.FloatType(), LANES)), _DOUBLES)

    return _LANES(_LANES), codegen


@intrinsic
def where_less(_typing: Any, left: Any, right: Any, then: Any, other: Any) -> Any:
    """Return `then` in lanes with `left < right`, else `other`."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", args[0], args[1]), args[2], args[3])

    return _LANES(_LANES, _LANES, _LANES, _LANES), codegen


@intrinsic
def are_zero(_typing: Any, lanes: Any) -> Any:
    """True if all eight are 0."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        other = builder.fcmp_unordered("!=", args[0], ir.Constant(_DOUBLES, [0.0] * LANES))
        return builder.icmp_unsigned("==", builder.bitcast(other, ir.IntType(LANES)), ir.Constant(ir.IntType(LANES), 0))

    return types.boolean(_LANES), codegen


def _operation(operation: Callable[..., Any], instruction: str) -> None:
    """Define an operator for lanes."""

    @intrinsic
    def work(_typing: Any, left: Any, right: Any) -> Any:
        def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return getattr(builder, instruction)(*args)

        return _LANES(_LANES, _LANES), codegen

    @overload(operation)
    def operate(left: Any, right: Any) -> Any:
        def implementation(left: Any, right: Any) -> Any:
            return work(left, right)

        return implementation if isinstance(left, Lanes) and isinstance(right, Lanes) else None


_operation(operator.add, "fadd")
_operation(operator.sub, "fsub")
_operation(operator.mul, "fmul")
_operation(operator.truediv, "fdiv")
