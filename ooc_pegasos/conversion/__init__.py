"""Conversion of inputs to a store: two passes of an external shuffle, resumable, within a memory budget.
May import: compiled, config, readers, reporting, store, util.
"""
