"""SIMD lanes: vectors of eight float64, as names for compiled functions; see `numba_lanes.py`."""

from ooc_pegasos.compiled.jit import deferred

LANES = 8

are_zero, lanes_of, load_lanes, round_to_float32, store_lanes, where_less = deferred(
    "fit.numba_lanes", "are_zero", "lanes_of", "load_lanes", "round_to_float32", "store_lanes", "where_less"
)
