"""The epoch loop: set up, process rows, measure the gap, log, write checkpoints, stop, return the result.
May import: compiled, config, loading, objective, proof, reporting, scoring, solvers, store, util.
"""
