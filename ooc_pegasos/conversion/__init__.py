"""Inputs to a store: two passes that are an external shuffle, resumable, within a memory budget.
May import: compiled, config, readers, reporting, store, util.
"""
