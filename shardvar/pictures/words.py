"""Text that is safe to print, and numbers for people."""

from collections.abc import Sequence


def printable(text: str) -> str:
    """Return the text with every character escaped that could move a cursor, change a colour or fake a line.

    Control and format characters, line separators and bytes that are not UTF-8 (surrogate escapes) become ``\\x``,
    ``\\u`` or ``\\U`` escapes, and a backslash becomes two, so that different names never look the same.

    >>> print(printable("a\\nb"), printable("\\udcff"), printable("é"))
    a\\x0ab \\xff é
    """
    # Nearly all names are plain, and this test is one pass in C.
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_escaped, text))


def one_line(text: str) -> str:
    """Return a message on one line: ``printable``, except that backslashes stay, names in it are quoted already."""
    return "".join(character if character == "\\" else _escaped(character) for character in text)


def human_size(nbytes: int) -> str:
    """Return a number of bytes in units of powers of 1000.

    >>> human_size(680), human_size(64936), human_size(64_000_000)
    ('680 B', '64.9 kB', '64.0 MB')
    """
    if nbytes < 1000:
        return f"{nbytes} B"
    size = float(nbytes)
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if size < 999.95:  # 999.95 and more would be rounded to 1000.0
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} PB"


def human_shape(shape: Sequence[int]) -> str:
    """Return a shape in brackets; a scalar's is ``[]``.

    >>> human_shape((13, 4)), human_shape(())
    ('[13, 4]', '[]')
    """
    return f"[{', '.join(map(str, shape))}]"


def count(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1.

    >>> count(1, "tensor"), count(20000, "slice")
    ('1 tensor', '20,000 slices')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _escaped(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    number = ord(character)
    # Python decodes a byte that is not UTF-8 as a surrogate: 0xff is U+DCFF, and 0xDCFF - 0xDC00 = 0xff.
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"  # a byte that is not UTF-8
    if number < 0x80:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
