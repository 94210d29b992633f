"""Values from typed text: sizes, counts, NAME=VALUE pairs, indexes. Other text is an ``ArgumentError``."""

import re
from collections.abc import Sequence

from shardvar.errors import ArgumentError

_SIZE = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,15}))? ?(?:([KMGTP])(I?))?B?", re.IGNORECASE)
_UNITS = ("", "K", "M", "G", "T", "P")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")

Item = int | slice


def parse_size(text: str) -> int:
    """Return a number of bytes from a number with an optional unit, of powers of 1000 (``MB``) or 1024 (``MiB``).

    >>> parse_size("64MB"), parse_size("64MiB"), parse_size("1.5 kB"), parse_size("4096")
    (64000000, 67108864, 1500, 4096)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ArgumentError(
            f"Invalid size {text!r}.", "Give a number with an optional unit, such as 64MB, 64MiB or 4096."
        )
    whole, fraction, unit, binary = match.groups()
    scale: int = (1024 if binary else 1000) ** _UNITS.index((unit or "").upper())
    # In integers, since a float of 64 bits rounds large sizes: 1.5 kB is 15 * 1000 / 10.
    decimals: int = 10 ** len(fraction or "")
    scaled = int(whole + (fraction or "")) * scale
    nbytes, rest = divmod(scaled, decimals)
    if rest or not nbytes:
        wrong = "not a whole number of bytes" if rest else "less than one byte"
        raise ArgumentError(f"Invalid size {text!r}: it is {wrong}.", "Give whole bytes, such as 64MB, 64MiB or 4096.")
    return nbytes


def parse_count(text: str, option: str) -> int:
    """Return an integer of at least 1; ``option`` is named in the error."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise ArgumentError(f"Invalid {option} {text!r}: expected an integer >= 1.", f"For example: {option} 4.")
    return int(text)


def parse_shards(texts: Sequence[str]) -> dict[str, int]:
    """Return the number of shards by glob: ``N`` is for every tensor, ``GLOB=N`` for the tensors that match.

    Of several globs that match a tensor the last one counts, so the plain number is put first.

    >>> parse_shards(["emb*=8", "2"])
    {'*': 2, 'emb*': 8}
    """
    general: dict[str, int] = {}
    special: dict[str, int] = {}
    for text in texts:
        glob, equals, count = text.rpartition("=")
        (special if equals else general)[glob or "*"] = parse_count(count, "--shards")
    return general | special


def parse_pairs(texts: Sequence[str], option: str, form: str) -> dict[str, str]:
    """Return pairs of ``NAME=VALUE``, cut at the first ``=``; ``form`` is how the option's help writes them."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name and value):
            raise ArgumentError(f"Invalid {option} {text!r}: expected {form}.", f"Quote it: {option} '{form}'.")
        if name in pairs:
            raise ArgumentError(f"{option} names {name!r} twice.", "Give each name once.")
        pairs[name] = value
    return pairs


def parse_index_text(text: str, shape: Sequence[int]) -> list[int | range]:
    """Return what a NumPy basic index selects along each axis: one position, or a range of them.

    Integers, slices with any step and one ``...``; brackets around it may be left out. Read by hand: nothing that a
    user types is ever evaluated.

    >>> parse_index_text("3:7, 0", (13, 4))
    [range(3, 7), 0]
    >>> parse_index_text("..., ::-1", (2, 3, 4))
    [range(0, 2), range(0, 3), range(3, -1, -1)]
    """
    body = text.strip()
    if body.startswith("[") and body.endswith("]"):
        body = body[1:-1]
    words = [word.strip() for word in body.split(",")] if body.strip() else []
    if len(words) > 1 and not words[-1]:
        words.pop()  # a trailing comma makes a tuple of one, as in Python
    given = len(words) - words.count("...")
    if given > len(shape) or words.count("...") > 1:
        raise ArgumentError(f"{text!r} has too many axes for the shape {list(shape)}.", "Leave some out, from the end.")
    rest = [slice(None)] * (len(shape) - given)
    if "..." not in words:
        words.append("...")
    items: list[Item] = [item for word in words for item in (rest if word == "..." else [_parse_item(word, text)])]
    return [_along(item, extent, axis) for axis, (item, extent) in enumerate(zip(items, shape, strict=True))]


def _parse_item(word: str, text: str) -> Item:
    parts = [part.strip() for part in word.split(":")]
    if len(parts) > 3 or not all(part == "" or _INTEGER.fullmatch(part) for part in parts) or word == "":
        raise ArgumentError(
            f"{word!r} in the index {text!r} is neither an integer nor a slice.", "Write it like '3:7, 0' or '..., -1'."
        )
    if len(parts) == 1:
        return int(word)
    numbers = [int(part) if part else None for part in parts]
    if len(numbers) == 3 and numbers[2] == 0:
        raise ArgumentError(f"The step of {word!r} is zero.", "Leave it out for a step of one.")
    return slice(*numbers)


def _along(item: Item, extent: int, axis: int) -> int | range:
    if isinstance(item, slice):
        return range(extent)[item]
    if not -extent <= item < extent:
        raise ArgumentError(f"Index {item} is out of range for axis {axis} of length {extent}.", "Count from 0.")
    return item % extent
