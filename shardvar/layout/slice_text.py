"""TensorFlow's text for a slice of a full tensor: ``"13 4 3,3:0,4"``.

Grammar: the full shape's extents, each followed by one blank, then one item an axis, separated by colons: either
``start,length`` or ``-`` for the whole axis. Neither scalars nor slices of zero length have such a text in TensorFlow;
the parser refuses them, the printer never makes them from a region that has an element. Sharding callbacks are given
slices of zero length too, since no tensor may be removed: for them ``empty=True`` takes ``"13 4 13,0:0,4"``.
"""

from collections.abc import Sequence

from shardvar.errors import LayoutError
from shardvar.layout.region import Region


def parse_slice_text(text: str, empty: bool = False) -> tuple[tuple[int, ...], Region]:
    """The full shape and the region that the text describes; ``LayoutError`` names the item that is wrong.

    >>> parse_slice_text("13 4 3,3:-")
    ((13, 4), Region(offset=(3, 0), shape=(3, 4)))
    """
    *dimensions, items = text.split(" ")
    if not dimensions:
        raise LayoutError(f"The slice text {text!r} has no shape.", "It reads like '13 4 3,3:0,4'.")
    shape = tuple(_number(item, text) for item in dimensions)
    # TensorFlow skips empty pieces between colons.
    extents = [piece for piece in items.split(":") if piece]
    if len(extents) != len(shape):
        raise LayoutError(f"The slice text {text!r} has {len(shape)} axes and {len(extents)} extents.")
    intervals = [_interval(piece, length, text, empty) for piece, length in zip(extents, shape, strict=True)]
    return shape, Region((start for start, _ in intervals), (count for _, count in intervals))


def format_slice_text(shape: Sequence[int], region: Region, empty: bool = False) -> str:
    """The text with explicit numbers on every axis, as TensorFlow's checkpoints write it.

    >>> format_slice_text((13, 4), Region((3, 0), (3, 4)))
    '13 4 3,3:0,4'
    """
    if len(shape) != region.rank or not Region.whole(shape).covers(region) or not (region.size or empty) or not shape:
        raise LayoutError(f"{region} of shape {tuple(shape)} has no slice text.")
    extents = ":".join(f"{start},{count}" for start, count in zip(region.offset, region.shape, strict=True))
    return f"{' '.join(map(str, shape))} {extents}"


def _interval(piece: str, length: int, text: str, empty: bool) -> tuple[int, int]:
    if piece == "-":
        return 0, length
    numbers = piece.split(",")
    if len(numbers) != 2:
        raise LayoutError(f"The slice text {text!r} has {piece!r} where 'start,length' or '-' must stand.")
    start, count = (_number(number, text) for number in numbers)
    if (count == 0 and not empty) or start + count > length:
        raise LayoutError(f"The slice text {text!r} has the extent {piece!r}, which does not fit {length} indices.")
    return start, count


def _number(item: str, text: str) -> int:
    number = int(item) if item.isascii() and item.isdecimal() and len(item) <= 19 else 2**63
    if number >= 2**63:
        raise LayoutError(f"The slice text {text!r} has {item!r} where a non-negative number must stand.")
    return number
