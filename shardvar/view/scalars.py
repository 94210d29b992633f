"""Columns of scalars and settings, whose values a page shows: ``lr 0.001``, ``epoch 3``."""

from collections.abc import Mapping, Sequence

from shardvar.verbs.reader import Reader
from shardvar.verbs.scalars import ScalarValue, has_settings, is_setting
from shardvar.view.collect import Columns, ranges_of

_MOST_LETTERS = 200
"""The letters of a value that a page has; a text of a thousand would fill the panel."""


def scalar_columns(
    reader: Reader, keys: Sequence[str], scalars: Mapping[str, ScalarValue]
) -> Columns:
    """Return the rows that are settings, and row and text of each value that was read.

    Settings are not counted as tensors.
    """
    texts = ((row, scalars[key].text) for row, key in enumerate(keys) if key in scalars)
    return {
        "settings": _setting_ranges(reader, keys),
        "values": [[row, _shortened(text)] for row, text in texts],
    }


def _setting_ranges(reader: Reader, keys: Sequence[str]) -> list[list[int]]:
    if not has_settings(reader):
        return []
    tensors = reader.entries().slices.tensors
    row_of = tensors.rows()
    rows = [row_of.get(key, -1) for key in keys]
    return ranges_of(
        [row >= 0 and is_setting(reader, tensors.dtype(row), tensors.shape(row)) for row in rows]
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}…"
