"""Rows from a store to memory, window by window and within a budget; the orders in which rows are visited.
May import: compiled, store, util.
"""
