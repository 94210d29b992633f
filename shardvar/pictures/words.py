"""Text that is safe to print, and numbers for people."""

import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import islice

from shardvar.limits import MAX_MESSAGE_LENGTH, MAX_NAMED, MAX_SUGGESTED_LENGTH, MAX_WORD_LENGTH

_LONG_WORD = re.compile(rf"\S{{{MAX_WORD_LENGTH + 1},}}")
_MOST_CANDIDATES = 10_000
"""Names that a misspelled one is compared with."""
_LENGTHS = (3, 6)
"""The lengths from which a name may have one edit, and two."""


def printable(text: str) -> str:
    """Return the text with every character escaped that could move a cursor, change a colour or
    fake a line.

    Control and format characters, line separators and bytes that are not UTF-8 (surrogate escapes)
    become ``\\x``, ``\\u`` or ``\\U`` escapes, and a backslash becomes two, so that different names
    never look the same.

    >>> print(printable("a\\nb"), printable("\\udcff"), printable("é"))
    a\\x0ab \\xff é
    """
    # Nearly all names are plain, and this test is one pass in C.
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_escaped, text))


def short_name(text: str) -> str:
    """Return a key for a line of a report: ``printable``, without the middle of a long one."""
    return _shortened(printable(text), MAX_WORD_LENGTH)


def one_line(text: str) -> str:
    """Return a message on one line: ``printable``, except that backslashes stay, names in it are
    quoted already."""
    if text.isprintable():
        return text
    return "".join(character if character == "\\" else _escaped(character) for character in text)


def message(text: str) -> str:
    """As ``one_line``, with the middle of long words and long texts left out and counted."""
    # Nearly all messages are short and plain: these two tests are a pass each in C.
    if len(text) > MAX_WORD_LENGTH:
        text = _LONG_WORD.sub(lambda word: _shortened(word[0], MAX_WORD_LENGTH), text)
        text = _shortened(text, MAX_MESSAGE_LENGTH)
    if text.isprintable():
        return text
    # Escapes are up to ten characters long, so the text is cut once more.
    return _shortened(one_line(text), MAX_MESSAGE_LENGTH)


_BOTH = re.compile(r"(sv\.\w+\(\w*\)|\w+=[^\s()`]*) \((--[^()]*)\)")
"""An argument or a call of Python, and the option of a command that does the same."""
_OPTION = re.compile(r"\(--([a-z]+)\)")
_COMMAND = re.compile(r"`shardvar (apply|delta|digest|inspect|reshard|verify)((?: [A-Z]+)*)`")


def in_command(remedy: str) -> str:
    """Return a remedy as it helps at the command line.

    >>> in_command("Pass force=True (--force), or leave it out (--exclude).")
    'Pass --force, or leave it out (--exclude).'
    """
    return _BOTH.sub(r"\2", remedy)


def in_python(remedy: str) -> str:
    """Return a remedy as it helps in Python.

    >>> in_python("Pass force=True (--force), or leave it out (--exclude).")
    'Pass force=True, or leave it out (exclude=).'
    >>> in_python("`shardvar inspect` lists the keys.")
    '`sv.open_checkpoint(PATH)` lists the keys.'
    """

    def call(found: re.Match[str]) -> str:
        name = "open_checkpoint" if found[1] == "inspect" else found[1]
        return f"`sv.{name}({', '.join(found[2].split()) or 'PATH'})`"

    return _COMMAND.sub(call, _OPTION.sub(r"(\1=)", _BOTH.sub(r"\1", remedy)))


def named(names: Collection[str]) -> str:
    """Return the first ``MAX_NAMED`` names in quotation marks, and the number of the others."""
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return (
        ", ".join(_shortened(repr(name), MAX_WORD_LENGTH) for name in islice(names, MAX_NAMED))
        + more
    )


def similar(name: str, names: Iterable[str], count: int = 1) -> list[str]:
    """Names at most two edits away in any case, the nearest first; else names that contain it."""
    if len(name) > MAX_SUGGESTED_LENGTH:
        return []
    short = [each for each in islice(names, _MOST_CANDIDATES) if len(each) <= MAX_SUGGESTED_LENGTH]
    typed = name.lower()
    most = sum(len(name) >= length for length in _LENGTHS)
    far = {each: _num_edits(typed, each.lower(), most) for each in short}
    near = sorted((each for each in short if far[each] <= most), key=far.__getitem__)
    # One or two letters are part of too many names.
    return (near or [each for each in short if len(name) > 2 and typed in each.lower()])[:count]


def _num_edits(a: str, b: str, most: int) -> int:
    """Return the number of edits between two texts, or a larger number than ``most``.

    >>> _num_edits("filtre", "filter", 2), _num_edits("model.layer.1", "model.layers.1", 2), _num_edits("ab", "xyz", 2)
    (1, 1, 3)
    """
    # Each edit changes the length by one at most.
    if abs(len(a) - len(b)) > most:
        return most + 1
    # What both begin with costs nothing; at the first difference, a letter is removed from either
    # text, or replaced, or exchanged with the next one.
    start = next(
        (place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y),
        min(len(a), len(b)),
    )
    a, b = a[start:], b[start:]
    if not (a and b):
        return len(a) + len(b)
    if not most:
        return 1
    rests = [(a[1:], b), (a, b[1:]), (a[1:], b[1:])]
    if a[:2] == b[1::-1]:
        rests.append((a[2:], b[2:]))
    return 1 + min(_num_edits(x, y, most - 1) for x, y in rests)


def human_size(nbytes: int) -> str:
    """Return a number of bytes in units of powers of 1000: exact below 1000, else three digits.

    >>> human_size(680), human_size(8192), human_size(64_000_000), human_size(262_144_000)
    ('680 B', '8.19 kB', '64.0 MB', '262 MB')
    """
    return (
        f"{nbytes} B"
        if nbytes < 1000
        else " ".join(_three_digits(nbytes, ("kB", "MB", "GB", "TB", "PB")))
    )


def human_count(number: int) -> str:
    """Return a count of elements: exact below 10,000, else three digits and a unit.

    >>> human_count(9999), human_count(16_777_216), human_count(6_738_415_616)
    ('9,999', '16.8M', '6.74B')
    """
    return (
        f"{number:,}" if number < 10_000 else "".join(_three_digits(number, ("K", "M", "B", "T")))
    )


def _three_digits(number: int, units: Sequence[str]) -> tuple[str, str]:
    """Return a number of at least 1000 in the unit that leaves three digits or fewer, and the unit."""
    power = 1
    # 999.5 and more would be rounded to 1000.
    while power < len(units) and number / 1000**power >= 999.5:
        power += 1
    size = number / 1000**power
    return f"{size:,.{2 if size < 9.995 else 1 if size < 99.95 else 0}f}", units[power - 1]


def human_age(seconds: float) -> str:
    """Return how long ago something was, in the largest unit that fits twice; ``now`` below two
    minutes.

    >>> human_age(119), human_age(7200), human_age(86400), human_age(40 * 86400)
    ('now', '2 hours ago', '24 hours ago', '5 weeks ago')
    """
    for unit, length in (("week", 604_800), ("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length):,} {unit}s ago"
    return "now"


def human_time(seconds: float) -> str:
    """Return a duration in its largest units: ``0.4 s``, ``8 s``, ``2 min 10 s``, ``3 h 5 min``.

    >>> human_time(0.04), human_time(7.6), human_time(130), human_time(11_100)
    ('0.04 s', '7.6 s', '2 min 10 s', '3 h 5 min')
    """
    if seconds < 10:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def human_tensors(number: int, num_slices: int = 0, num_settings: int = 0) -> str:
    """Return a number of tensors, with their slices if any is cut, and the settings among them.

    >>> human_tensors(5, 11), human_tensors(5, 5), human_tensors(5, 3, 2), human_tensors(2, 0, 2)
    ('5 tensors in 11 slices', '5 tensors', '3 tensors and 2 settings', '2 settings')
    """
    own, settings = number - num_settings, count(num_settings, "setting")
    cut = f" in {count(num_slices, 'slice')}" if num_slices > own else ""
    if not num_settings:
        return count(own, "tensor") + cut
    return f"{count(own, 'tensor')}{cut} and {settings}" if own else settings


def all_tensors(number: int, num_settings: int) -> str:
    """Return the number of all tensors for a part of them, with the settings among them.

    >>> all_tensors(5, 0), all_tensors(5, 2), all_tensors(2, 2)
    ('5 tensors', '5 tensors and settings', '2 settings')
    """
    noun = "setting" if number == num_settings else "tensors and setting"
    return count(number, noun if num_settings else "tensor")


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


def _shortened(text: str, length: int) -> str:
    """Return at most ``length`` characters of a text: all, or two thirds from its beginning and the
    rest from its end.

    >>> _shortened(100 * "a" + 100 * "b", 60)
    'aaaaaaaaaaaaaaaaaaaa...(170 characters)...bbbbbbbbbb'
    """
    if len(text) <= length:
        return text
    kept = length - 30  # room for the note with a number of up to 11 digits
    tail = kept // 3
    return f"{text[: kept - tail]}...({len(text) - kept} characters)...{text[len(text) - tail :]}"


def _escaped(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    number = ord(character)
    # Python decodes a byte that is not UTF-8 as a surrogate: 0xff is U+DCFF, and 0xDCFF - 0xDC00 =
    # 0xff.
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"  # a byte that is not UTF-8
    if number < 0x80:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


# At most 18 digits, since ``int`` refuses texts of more than 4,300 digits, which a hostile key may
# hold.
_NUMBER = re.compile("([0-9]{1,18})")


@lru_cache(1024)
def natural_key(name: str) -> tuple[tuple[str, int], ...]:
    """Return a key that sorts names as people count: ``step-2`` before ``step-10``."""
    texts = _NUMBER.split(name)  # every second one is a number
    return tuple(zip(texts[::2], [*map(int, texts[1::2]), -1], strict=True))
