"""Proof files, and a check of proofs that is independent of training.
May import: compiled, config, scoring, store, util.
"""
