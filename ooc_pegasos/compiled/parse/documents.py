"""Lines of text that are documents: the positions of labels and texts."""

import numpy as np

from ooc_pegasos.compiled.jit import kernel
from ooc_pegasos.compiled.parse.lines import end_of_line, skip_blanks

# Problems of a line; `readers/lines.py` has the messages.
SOUND, LABEL_MISSING, LABEL_SEVERAL = range(3)
PREFIX = np.frombuffer(b"__label__", np.uint8)


@kernel
def _after_label(text: np.ndarray, at: int, prefix: np.ndarray) -> int:
    """Return the end of the word at a position if it begins with the prefix, else -1."""
    for k in range(len(prefix)):
        if text[at + k] != prefix[k]:
            return -1
    at += len(prefix)
    while not (text[at] == 32 or 9 <= text[at] <= 13):
        at += 1
    return at


@kernel
def _without_blanks(text: np.ndarray, begin: int, end: int) -> tuple[int, int]:
    """Return the part of a line without white space at either end."""
    begin = min(skip_blanks(text, begin), end)
    while end > begin and (text[end - 1] == 32 or 9 <= text[end - 1] <= 13):
        end -= 1
    return begin, end


@kernel
def cut_lines(
    text: np.ndarray,
    length: int,
    has_labels: bool,
    prefix: np.ndarray,
    labels: np.ndarray,
    texts: np.ndarray,
    lines: np.ndarray,
    status: np.ndarray,
) -> int:
    """Find label and text of each line of `text[:length]` (whole lines, then PADDING); return the number of rows.

    `labels` and `texts` take (begin, end) of each row, for which they need room, `lines` its line. With labels these
    are `__label__x` or stand before a tab, and blank lines are no rows; else all of a line is text.
    """
    row, line, at = 0, 0, 0
    while at < length:
        begin = at
        end = end_of_line(text, at)
        at = end + 1
        if end > begin and text[end - 1] == 13:
            end -= 1
        labels[row, 0] = labels[row, 1] = begin
        texts[row, 0], texts[row, 1], lines[row], status[row] = begin, end, line, SOUND
        line += 1
        if has_labels:
            first, last = _without_blanks(text, begin, end)
            if first == last:
                continue
            after = _after_label(text, first, prefix)
            tab = begin
            while tab < end and text[tab] != 9:
                tab += 1
            if after >= 0:
                labels[row, 0], labels[row, 1] = first + len(prefix), after
                texts[row, 0] = min(skip_blanks(text, after), end)
                after = _after_label(text, texts[row, 0], prefix)
                while after >= 0:  # `end` is white space, so no label goes beyond
                    status[row] = LABEL_SEVERAL
                    texts[row, 0] = min(skip_blanks(text, after), end)
                    after = _after_label(text, texts[row, 0], prefix)
            elif tab < end:
                labels[row, 0], labels[row, 1] = _without_blanks(text, begin, tab)
                texts[row, 0] = tab + 1
            if status[row] == SOUND and labels[row, 0] == labels[row, 1]:
                status[row] = LABEL_MISSING
        row += 1
    return row
