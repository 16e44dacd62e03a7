"""Modules that know nothing of machine learning: files, locks, checksums, typed JSON, threads, memory, signals.
May import: compiled.
"""
