"""Machine code of numba's functions, loaded and called without numba.

A record of a function is its machine code, an object file, after a header: the name of its symbol, the types of its
arguments in LLVM, and of its result. numba's calling convention is

    status = function(address of the result, address of an exception, arguments)

where an array is seven or more arguments: two owners, which are 0 here, the number of entries and their size, the
address, the shape, and the strides.
"""

from __future__ import annotations

import ctypes
import gc
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

_STATUS_NONE = -2
_C_TYPES: dict[str, Any] = {
    "ptr": ctypes.c_void_p,
    "i8": ctypes.c_int8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
_RESULTS: dict[str, Any] = {
    "bool": ctypes.c_bool,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    **{f"{sign}int{bits}": getattr(ctypes, f"c_{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_EXCEPTIONS = (MemoryError, ValueError, ZeroDivisionError, IndexError, OverflowError)
_MEMORY = """
declare ptr @malloc(i64)
declare void @free(ptr)

define ptr @NRT_MemInfo_alloc_aligned(i64 %size, i32 %align) {
  %align64 = zext i32 %align to i64
  %room = add i64 %align64, 48
  %total = add i64 %room, %size
  %is_overflow = icmp ult i64 %total, %size
  br i1 %is_overflow, label %failed, label %allocate
allocate:
  %info = call ptr @malloc(i64 %total)
  %is_null = icmp eq ptr %info, null
  br i1 %is_null, label %failed, label %fill
fill:
  %address = ptrtoint ptr %info to i64
  %end = add i64 %address, %room
  %rest = urem i64 %end, %align64
  %start = sub i64 %end, %rest
  %data = inttoptr i64 %start to ptr
  store i64 1, ptr %info
  %at_data = getelementptr i8, ptr %info, i64 24
  store ptr %data, ptr %at_data
  %at_size = getelementptr i8, ptr %info, i64 32
  store i64 %size, ptr %at_size
  ret ptr %info
failed:
  ret ptr null
}

define void @NRT_MemInfo_call_dtor(ptr %info) {
  call void @free(ptr %info)
  ret void
}

define void @release(ptr %info) {
  %before = atomicrmw sub ptr %info, i64 1 seq_cst
  %is_last = icmp eq i64 %before, 1
  br i1 %is_last, label %last, label %done
last:
  call void @free(ptr %info)
  br label %done
done:
  ret void
}
"""
"""Memory of arrays made in compiled functions: numba's structure, with a count of references, and no destructor."""
_MEMORY_NAMES = ("NRT_MemInfo_alloc_aligned", "NRT_MemInfo_call_dtor")


def kind_of(argument: Any) -> Any:
    """Return what decides the type of an argument, a key that can be written."""
    if isinstance(argument, np.ndarray):
        flags = argument.flags
        layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        return argument.dtype.str, argument.ndim, layout, flags.writeable, flags.aligned
    if isinstance(argument, bool | np.bool_):
        return "bool"
    if isinstance(argument, int):
        return "int64" if -(2**63) <= argument < 2**63 else "uint64"
    if isinstance(argument, np.generic):
        return argument.dtype.name
    if isinstance(argument, float):
        return "float64"
    if isinstance(argument, tuple):
        return "tuple", *map(kind_of, argument)
    return None if argument is None else argument._numba_type_


def are_in_memory(kinds: tuple[Any, ...]) -> bool:
    """True if some argument has a type of its own, which the sources of this package do not determine."""
    return not all(isinstance(kind, str | tuple | None) for kind in kinds)


@cache
def processor() -> tuple[str, str, str]:
    """Return what the machine code is for."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features().flatten()
    return llvm.get_process_triple(), llvm.get_host_cpu_name(), features


# --- compile ------------------------------------------------------------------------------------


def compile_code(dispatcher: Any, arguments: tuple[Any, ...]) -> bytes:
    """Compile a function for arguments of these types."""
    import numba

    types = tuple(numba.typeof(one) for one in arguments)
    with _no_collection():
        dispatcher.compile(types)
    compiled = dispatcher.overloads[types]
    name = compiled.fndesc.llvm_func_name
    module = compiled.library._final_module
    ((inside,),) = (re.findall(r"^i32 \((.*)\)$", str(module.get_function(name).global_value_type)),)
    header = {
        "symbol": name,
        "arguments": inside.split(", "),
        "result": _result_of(compiled.signature.return_type),
        "symbols": sorted(
            one.name for one in module.functions if one.is_declaration and not one.name.startswith("llvm.")
        ),
    }
    return json.dumps(header).encode() + b"\n" + compiled.library._get_compiled_object()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from searching the compiler's objects again and again: a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _result_of(kind: Any) -> Any:
    """Return the type of a result: None, a name, a list of them for a tuple, or an entry of an array."""
    if hasattr(kind, "types"):
        return [_result_of(one) for one in kind.types]
    if hasattr(kind, "ndim"):
        from numba.np.numpy_support import as_dtype

        return {"entry": as_dtype(kind.dtype).str, "dimensions": kind.ndim}
    name = str(getattr(kind, "literal_type", kind))
    if name != "none" and name not in _RESULTS:
        raise TypeError(f"a compiled function returns {kind}; it has to return numbers or arrays")
    return None if name == "none" else name


# --- load and call ------------------------------------------------------------------------------


def load(name: str, code: bytes) -> Callable[[tuple[Any, ...]], Any]:
    """Return a function of a tuple of arguments that calls machine code."""
    import llvmlite.binding as llvm

    text, _, machine_code = code.partition(b"\n")
    header = json.loads(text)
    engine = _engine(header["symbols"])
    engine.add_object_file(llvm.ObjectFileRef.from_data(machine_code))
    engine.finalize_object()
    types = [_C_TYPES[one] for one in header["arguments"]]
    native = ctypes.CFUNCTYPE(ctypes.c_int32, *types)(engine.get_function_address(header["symbol"]))
    kind = header["result"]
    result_type = _c_type(kind)

    def call(arguments: tuple[Any, ...]) -> Any:
        result, exception = result_type(), ctypes.c_void_p()
        flat: list[Any] = [ctypes.addressof(result), ctypes.addressof(exception)]
        for argument in arguments:
            _flatten(argument, flat)
        status = native(*flat)
        if status not in (0, _STATUS_NONE):
            raise _exception_at(exception.value)(f"an error in the compiled function {name}")
        return _value_of(result, kind, arguments)

    call.engine = engine  # type: ignore[attr-defined]  # owns the machine code
    return call


def _exception_at(address: int | None) -> type[Exception]:
    """Return the class of an exception, by its name in numba's pickle of it, which is not unpickled."""
    if address:
        text = ctypes.string_at(ctypes.c_void_p.from_address(address).value or 0, _size_at(address))
        return next((kind for kind in _EXCEPTIONS if kind.__name__.encode() in text), RuntimeError)
    return RuntimeError


def _size_at(address: int) -> int:
    return ctypes.c_int32.from_address(address + ctypes.sizeof(ctypes.c_void_p)).value


def _flatten(argument: Any, flat: list[Any]) -> None:
    """Append an argument as numba passes it."""
    if isinstance(argument, np.ndarray):
        shape, strides = argument.shape, argument.strides
        flat += (None, None, argument.size, argument.itemsize, argument.ctypes.data, *shape, *strides)
    elif isinstance(argument, int | float):
        flat.append(argument)
    elif isinstance(argument, np.generic):
        flat.append(argument.item())
    elif isinstance(argument, tuple):
        for one in argument:
            _flatten(one, flat)
    else:  # None, or a type of its own that has no value
        flat.append(None)


def _c_type(result: Any) -> Any:
    if isinstance(result, dict):
        many = ctypes.c_int64 * result["dimensions"]
        heads = [("info", ctypes.c_void_p), ("parent", ctypes.c_void_p), ("size", ctypes.c_int64)]
        tails = [("entry", ctypes.c_int64), ("data", ctypes.c_void_p), ("shape", many), ("strides", many)]
        return type("ArrayResult", (ctypes.Structure,), {"_fields_": heads + tails})
    if isinstance(result, list):
        fields = [(f"_{number}", _c_type(one)) for number, one in enumerate(result)]
        return type("TupleResult", (ctypes.Structure,), {"_fields_": fields})
    return _RESULTS[result] if result else ctypes.c_void_p


def _value_of(found: Any, kind: Any, arguments: tuple[Any, ...]) -> Any:
    """Return a result as a Python object."""
    if isinstance(kind, dict):
        return np.asarray(_Memory(found, kind["entry"], arguments))
    if isinstance(kind, list):
        return tuple(_value_of(getattr(found, f"_{number}"), one, arguments) for number, one in enumerate(kind))
    return None if kind is None else getattr(found, "value", found)


class _Memory:
    """The memory of an array that a compiled function made, or of the argument of which it is a part."""

    def __init__(self, found: Any, entry: str, arguments: tuple[Any, ...]) -> None:
        self._info, self._release = found.info, _release()
        self._arguments = None if self._info else arguments
        self.__array_interface__ = {
            "version": 3,
            "typestr": entry,
            "shape": tuple(found.shape),
            "strides": tuple(found.strides),
            "data": (found.data or 0, False),
        }

    def __del__(self) -> None:
        if self._info:
            self._release(self._info)


@cache
def _release() -> Any:
    release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_memory().get_function_address("release"))
    release.engine = _memory()  # type: ignore[attr-defined]  # owns the machine code
    return release


def _new_engine(module: Any) -> Any:
    """Return an engine, which owns its module and its description of the machine."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(module, machine)


@cache
def _memory() -> Any:
    """Compile the functions that allocate."""
    import llvmlite.binding as llvm

    engine = _new_engine(llvm.parse_assembly(_MEMORY))
    engine.finalize_object()
    return engine


def _engine(symbols: list[str]) -> Any:
    """Return an engine of one object file. In a common one, functions of equal names would be taken for each other."""
    import llvmlite.binding as llvm

    missing = [name for name in symbols if name not in _MEMORY_NAMES and not llvm.address_of_symbol(name)]
    if missing:  # functions of numba's runtime
        from numba.core.registry import cpu_target

        cpu_target.target_context.refresh()
    needed = [name for name in symbols if name in _MEMORY_NAMES]
    declared = "".join(f"declare void @{name}()\n" for name in needed)
    module = llvm.parse_assembly(declared)
    engine = _new_engine(module)
    for name in needed:
        engine.add_global_mapping(module.get_function(name), _memory().get_function_address(name))
    return engine
