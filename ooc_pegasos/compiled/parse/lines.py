"""The common part of functions that parse text line by line. Each text ends with a line feed and PADDING."""

from ooc_pegasos.compiled.jit import inlined

PADDING = 32  # readable bytes after the text: a line feed, then zeros


@inlined
def skip_blanks(text, at):
    """Return the position of the first character from `at` on that is not white space, or ends the line."""
    while text[at] == 32 or text[at] == 9 or 11 <= text[at] <= 13:
        at += 1
    return at


@inlined
def end_of_line(text, at):
    """Return the position of the line feed."""
    while text[at] != 10:
        at += 1
    return at


@inlined
def end_row(is_good, line, row, bad_lines, pairs, indptr, lines, numbers):
    """End row number `row` at `pairs`, or drop a bad row; return the new (rows, bad lines, pairs)."""
    # no branch, for which numba would count references to arrays: the next row overwrites a dropped one
    lines[row] = line
    numbers[row] = row + bad_lines
    indptr[row + 1] = pairs
    rows = row + is_good
    return rows, bad_lines + (not is_good), indptr[rows]


@inlined
def record_bad(bad, number, found):
    """Record the problem of a line, if there is room."""
    if number < len(bad):
        for k in range(len(found)):
            bad[number, k] = found[k]
