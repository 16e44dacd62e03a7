"""The epoch loop: set up, present rows, measure the gap, log, write checkpoints, stop, return the result.
May import: compiled, config, loading, objective, proof, reporting, scoring, solvers, store, util.
"""
