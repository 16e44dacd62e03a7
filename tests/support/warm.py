"""Imported by the server that programs are forked from (see forked.py): what each of them would do first."""

from importlib import import_module

import numpy as np

from ooc_pegasos.compiled.fit.pegasos import square_distance

for name in (
    "ooc_pegasos.cli.main",
    "ooc_pegasos.conversion.pipeline",
    "ooc_pegasos.scoring.evaluate",
    "ooc_pegasos.scoring.model",
    "ooc_pegasos.training.api",
    "support.forked",
):
    import_module(name)

square_distance(np.ones(3), np.empty(0), 1.0)  # numba sets itself up at the first call; no thread is started
