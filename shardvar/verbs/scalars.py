"""Scalars and settings of a checkpoint, as values: ``lr 0.001`` tells more than a tensor without a
shape.

A *setting* is a number, a text or another plain object that a program kept with its tensors, such
as a learning rate. The formats of PyTorch and Orbax have them. They are listed as strings without a
shape, and they are not tensors.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardvar.errors import ReadError, StorageError
from shardvar.formats.deferred import DeferredIndex
from shardvar.layout.dtypes import STRING, Array, json_number, widen_numbers
from shardvar.planning.index import concatenate_entries
from shardvar.verbs.compare.blocks import Blocks
from shardvar.verbs.reader import Reader

_MOST_READ = 1000
"""The scalars of a checkpoint that are read; they take some 0.1 s."""
_MOST_NBYTES = 1000
"""The bytes of the longest text that is read."""


@dataclass(frozen=True, slots=True)
class ScalarValue:
    text: str
    """The value as a person writes it: ``0.001``, ``True``, ``'adamw'``."""
    value: bool | int | float | str
    """The value for JSON; a text for a setting, and for a number that JSON lacks."""


def has_settings(reader: Reader) -> bool:
    """Settings are listed as strings without a shape."""
    # No keys and no format are asked about, so that nothing is read.
    return reader.source.objects((), "") is not None


def is_setting(reader: Reader, dtype: str | None, shape: tuple[int, ...] | None) -> bool:
    return dtype == STRING and shape == () and has_settings(reader)


def read_scalars(
    reader: Reader, keys: Iterable[str], *, is_listing: bool = False
) -> dict[str, ScalarValue]:
    """All settings, then numbers, at most 1,000; in a bucket, only values that the index has."""
    index = reader.index
    if is_listing and isinstance(index, DeferredIndex) and index.is_apart:
        return {}
    blocks = Blocks.of_entries(reader.source, reader.listed())
    faults = reader.listed_faults()
    row_of, ranks = blocks.tensors.rows(), blocks.tensors.ranks
    is_local, has_any = reader.source.traits is None, has_settings(reader)
    settings: list[int] = []
    numbers: list[int] = []
    for key in keys:
        row = row_of.get(key, -1)
        if row < 0 or ranks[row] or blocks.nbytes[row] > _MOST_NBYTES or key in faults:
            continue
        if has_any and blocks.tensors.dtype(row) == STRING:
            settings.append(row)
        elif is_local and blocks.is_small(row):
            numbers.append(row)
    names = [blocks.tensors.keys[row] for row in (settings + numbers)[:_MOST_READ]]
    are_settings = {*names[: len(settings)]}
    # A value that cannot be read is shown as a shape; ``verify`` tells why. So is every value if the
    # files of the checkpoint may not be read.
    values: list[Array | ReadError] = []
    with suppress(StorageError):
        if isinstance(index, DeferredIndex) and names:
            index.expect(names)
            names = [key for key in names if key not in index.faults]
            tables = [reader.find(key) for key in names]
            blocks = Blocks.of_entries(reader.source, concatenate_entries(tables))
        row_of = blocks.tensors.rows()
        values = blocks.read([row_of[key] for key in names])
    return {
        key: _scalar(found[()], key in are_settings)
        for key, found in zip(names, values, strict=False)
        if not isinstance(found, ReadError)
    }


def _scalar(value: Any, is_setting: bool) -> ScalarValue:
    if isinstance(value, bytes):
        text = value.decode("utf-8", "surrogateescape")
        # A setting is kept as a literal of Python, whose texts have quotes.
        return ScalarValue(text if is_setting else repr(text), text)
    if isinstance(value, np.bool):
        return ScalarValue(str(value), bool(value))
    (wide,) = widen_numbers(np.reshape(value, 1)).tolist()
    if isinstance(wide, complex):
        return ScalarValue(str(value), str(value))
    if isinstance(wide, float):
        return ScalarValue(str(value), json_number(wide) or 0.0)
    return ScalarValue(str(wide), wide)
