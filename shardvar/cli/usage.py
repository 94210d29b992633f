"""What was typed, as values: sizes, NAME=VALUE pairs, indexes. Anything else is an ``ArgumentError`` with a remedy."""

import re
from collections.abc import Sequence
from typing import Any

from shardvar.errors import ArgumentError
from shardvar.layout.indexing import select_basic

_SIZE = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,15}))? ?(?:([KMGTP])(I?))?B?", re.IGNORECASE)
_UNITS = ("", "K", "M", "G", "T", "P")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def parse_size(text: str) -> int:
    """Bytes: a plain number, or one with a unit of powers of 1000 (``MB``) or 1024 (``MiB``).

    >>> parse_size("64MB"), parse_size("64MiB"), parse_size("1.5 kB"), parse_size("4096")
    (64000000, 67108864, 1500, 4096)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ArgumentError(f"{text!r} is no size.", "Write it like 64MB, 64MiB or 4096.")
    whole, fraction, unit, binary = match.groups()
    scale: int = (1024 if binary else 1000) ** _UNITS.index((unit or "").upper())
    decimals: int = 10 ** len(fraction or "")
    scaled = int(whole + (fraction or "")) * scale
    nbytes, rest = divmod(scaled, decimals)
    if rest or not nbytes:
        raise ArgumentError(f"{text!r} is {'no whole number of bytes' if rest else 'nothing'}.", "Write 64MB or more.")
    return nbytes


def parse_count(text: str, what: str) -> int:
    """A whole number from 1 on."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise ArgumentError(f"{text!r} is no number of {what}.", "Give a whole number from 1 on.")
    return int(text)


def parse_shards(texts: Sequence[str]) -> dict[str, int]:
    """``N`` for every tensor, ``GLOB=N`` for those that match; what is said of all comes first, so that globs win.

    >>> parse_shards(["emb*=8", "2"])
    {'*': 2, 'emb*': 8}
    """
    general: dict[str, int] = {}
    special: dict[str, int] = {}
    for text in texts:
        glob, equals, count = text.rpartition("=")
        (special if equals else general)[glob or "*"] = parse_count(count, "slices")
    return general | special


def parse_pairs(texts: Sequence[str], form: str) -> dict[str, str]:
    """``NAME=VALUE`` pairs, cut at the first ``=``; ``form`` is how the option's help writes them."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name and value):
            raise ArgumentError(f"{text!r} does not look like {form}.", f"Write {form}, in quotes.")
        if name in pairs:
            raise ArgumentError(f"{name!r} is given twice.", "Give each name once.")
        pairs[name] = value
    return pairs


def parse_index(text: str, shape: Sequence[int]) -> list[int | range]:
    """The positions that a basic index of NumPy, written as text, selects along each axis: one position, or a range.

    The text has integers, slices with any step and one ``...``; the brackets around it are optional. It is read by
    hand: text that a user types is never evaluated. ``layout.indexing`` says what the key selects.

    >>> parse_index("3:7, 0", (13, 4))
    [range(3, 7), 0]
    >>> parse_index("..., ::-1", (2, 3, 4))
    [range(0, 2), range(0, 3), range(3, -1, -1)]
    """
    body = text.strip()
    if body.startswith("[") and body.endswith("]"):
        body = body[1:-1]
    words = [word.strip() for word in body.split(",")] if body.strip() else []
    if len(words) > 1 and not words[-1]:
        words.pop()  # a trailing comma makes a tuple of one, as in Python
    key = tuple(_parse_item(word, text) for word in words)
    # The text has no word for a new axis, so that every selection is of an axis.
    return [along for along in select_basic(key, tuple(shape)) if along is not None]


def _parse_item(word: str, text: str) -> Any:
    """One item of a key: ``...``, an integer, or a slice."""
    if word == "...":
        return ...
    parts = [part.strip() for part in word.split(":")]
    if len(parts) > 3 or not all(part == "" or _INTEGER.fullmatch(part) for part in parts) or word == "":
        raise ArgumentError(
            f"{word!r} in the index {text!r} is neither an integer nor a slice.", "Write it like '3:7, 0' or '..., -1'."
        )
    return int(word) if len(parts) == 1 else slice(*(int(part) if part else None for part in parts))
