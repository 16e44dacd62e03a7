"""The model file; scores, metrics and calibrated probabilities.
May import: compiled, config, loading, objective, readers, reporting, store, util.
"""
