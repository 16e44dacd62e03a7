"""Pegasos and dual coordinate ascent: windows to weights, behind one protocol.
May import: compiled, config, loading, objective, store, util.
"""
