"""Proof files, and their check, which is independent of training.
May import: compiled, config, scoring, store, util.
"""
