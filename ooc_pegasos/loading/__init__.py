"""Rows from disk to memory, window by window and within a budget.

One interface, `Loader`, and two ways behind it: chunk files mapped side by side, without a copy, where the store fits
the budget (`mapped.py`), and windows read ahead into two pieces of memory that take turns, where it does not
(`readahead.py`). Both lay out the chunks of a window as one block, so a kernel cannot tell them apart.
"""

from ooc_pegasos.loading.loader import Loader, open_loader
from ooc_pegasos.loading.window import Window

__all__ = ["Loader", "Window", "open_loader"]
