"""Everything that numba compiles: functions of arrays only, and the cache of their machine code.
May import: nothing.
"""
