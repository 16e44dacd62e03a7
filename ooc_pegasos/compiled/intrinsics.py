"""Machine instructions that numba does not offer, as names for compiled functions; see `numba_intrinsics.py`."""

from ooc_pegasos.compiled.jit import deferred

(
    entries_of_line,
    escape_of_type,
    float_from_bits,
    leading_zeros,
    load_u64,
    move_bytes,
    multiply_high,
    prefetch,
    trailing_zeros,
    value_at,
) = deferred(
    "numba_intrinsics",
    "entries_of_line",
    "escape_of_type",
    "float_from_bits",
    "leading_zeros",
    "load_u64",
    "move_bytes",
    "multiply_high",
    "prefetch",
    "trailing_zeros",
    "value_at",
)
