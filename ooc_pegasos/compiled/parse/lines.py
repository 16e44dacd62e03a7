"""What the kernels that read text line by line have in common. Every text ends with a line feed and PADDING."""

from ooc_pegasos.compiled.jit import inlined

PADDING = 32  # bytes after the text that may be read: a line feed, then zeros


@inlined
def skip_blanks(text, at):
    """The position of the first character from `at` on that is not white space, or ends the line."""
    while text[at] == 32 or text[at] == 9 or 11 <= text[at] <= 13:
        at += 1
    return at


@inlined
def end_of_line(text, at):
    """The position of the line feed."""
    while text[at] != 10:
        at += 1
    return at


@inlined
def end_row(sound, line, row, bad_lines, pairs, indptr, lines, numbers):
    """Row number `row` ends at `pairs`; unless it is sound, it is dropped. Returns (rows, bad lines, pairs) now."""
    # without a branch: what is dropped stands where the next row will, and numba would count references to arrays
    lines[row] = line
    numbers[row] = row + bad_lines
    indptr[row + 1] = pairs
    rows = row + sound
    return rows, bad_lines + (not sound), indptr[rows]


@inlined
def note_bad(bad, number, found):
    """Put down what is wrong with a line, where there is room."""
    if number < len(bad):
        for k in range(len(found)):
            bad[number, k] = found[k]
