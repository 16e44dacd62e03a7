"""The hot loops, and nothing else: numba functions over plain arrays.

`jit.kernel` says how all of them are compiled. Nothing here opens files, knows options or raises:
a kernel returns a status, and its caller turns that into words.
"""
