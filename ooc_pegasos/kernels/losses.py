"""The losses, by number: numba serves kernels that take functions as arguments from no cache.

A new loss is a branch here and an entry in `ooc_pegasos/losses.py`.
"""

from ooc_pegasos.kernels.jit import inlined

HINGE = 0


@inlined
def loss_at(loss, z, y):
    """(value l(z), a subgradient g at z, l(z) - g z) for score z and label y.

    The last is -l*(g), what the row adds to the dual, equation (4). It is written out, not computed from the
    other two, where that is exact: the hinge adds exactly 1 for each margin error.
    """
    margin = y * z
    value, slope, dual = 0.0, 0.0, 0.0
    if margin <= 1.0:
        value, slope, dual = 1.0 - margin, -y, 1.0
    return value, slope, dual
