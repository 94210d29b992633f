"""``shardvar show``: print the values of a tensor, or of a part of it.

A selection that is too long to print is shown as NumPy shows it, by the first and last indices
along each axis. Only those are read, so the first rows of a table larger than memory can be
printed. A tensor that fits in an I/O block is verified whole, for any selection; for a larger one a
note names the parts without a compared checksum.
"""

from argparse import Namespace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from shardvar.cli.maps import through_map
from shardvar.cli.output import (
    at_terminal,
    count,
    human_shape,
    line_width,
    note,
    note_numbers,
    one_line,
    path_on_a_line,
    print_json,
    printable,
    put,
    say,
    short_path,
    terminal_size,
)
from shardvar.cli.tensors import Table, list_tensors, print_keys
from shardvar.cli.usage import parse_index_text
from shardvar.engine.evidence import Evidence
from shardvar.engine.pool import BLOCK_NBYTES
from shardvar.errors import ArgumentError, UnknownKey
from shardvar.layout.dtypes import STRING, Array, json_number, widen_numbers
from shardvar.pictures.words import natural_key
from shardvar.planning.index import NO_CHECKSUM, unknown_key
from shardvar.verbs.compare.blocks import read_scalars
from shardvar.verbs.load import open_checkpoint
from shardvar.verbs.problems import SCHEMA
from shardvar.verbs.reader import LazyTensor, Reader, settings_in

_PRINTED = 1000
"""Elements up to which a selection is printed in full."""

_EDGE = 3
"""Indices that are shown at each end of an axis of a longer selection."""

_MOST_CORNERS = 256
"""Regions that are read to show an excerpt."""

_MOST_JSON = 1_000_000
"""Elements of a selection that JSON may hold."""

_MOST_BYTES = 200
"""Bytes of one string that are printed."""

_LINES_AROUND = 7
"""Lines of the terminal around a list of keys."""

Axes = list[int | range]


def execute(arguments: Namespace) -> int:
    """Print a selection of one tensor, or without a KEY of several the keys."""
    opened = _open(arguments)
    note_numbers(opened, arguments.dequantize)
    with through_map(opened, arguments) as reader:
        if arguments.key is None and len(reader) != 1:
            _print_keys(reader, arguments.json)
            return 0
        key = next(iter(reader)) if arguments.key is None else _find_key(reader, arguments.key)
        for fault in reader.source.file_faults().values():
            note(f"note: {one_line(fault.cause)}")
        if arguments.json:
            tensor = reader[key]
            axes = parse_index_text(arguments.index, tensor.shape)
            is_checked = _check(reader, key, arguments.verify)
            shape = _shape_of(axes)
            if prod(shape) > _MOST_JSON:
                raise ArgumentError(
                    f"The selection has {prod(shape):,} values; JSON output is limited to "
                    f"{_MOST_JSON:,}.",
                    "Give an INDEX that selects fewer.",
                )
            values = _as_json(_read(reader, key, axes), tensor.dtype)
            is_verified = has_checksums(reader, key) and (is_checked or not reader.unverified)
            print_json(
                {
                    "schema": SCHEMA,
                    "key": key,
                    "dtype": tensor.dtype,
                    "full_shape": list(tensor.shape),
                    "shape": list(shape),
                    "verified": is_verified,
                    "values": values,
                }
            )
            caution = _caution(reader, is_checked)
        else:
            heading, text, caution = describe_selection(
                reader, key, arguments.index, line_width(), arguments.verify
            )
            put(heading, *text.split("\n"))
        if caution:
            note(f"note: {caution}; pass --verify full.")
    return 0


def _open(arguments: Namespace) -> Reader:
    """Open a checkpoint, with numbers in the place of quantised tensors if these are asked for."""
    opened = open_checkpoint(arguments.path, dequantize=arguments.dequantize)
    is_given = arguments.raw or arguments.dequantize is not False
    if is_given or arguments.key is None or not opened.logical():
        return opened
    from shardvar.verbs.dequantization import key_of_numbers  # few checkpoints have any

    numbers, key = open_checkpoint(arguments.path, dequantize=True), arguments.key
    arguments.key, fault = key_of_numbers(numbers.source, key), numbers.faults.get(key)
    if (
        arguments.map is None
        and key in opened
        and (fault is not None or arguments.key not in numbers)
    ):
        numbers.close()
        arguments.key = key
        note(f"note: values as they are stored{f': {one_line(fault.cause)}' if fault else ''}")
        return opened
    opened.close()
    return numbers


def _print_keys(reader: Reader, as_json: bool) -> None:
    """Print the keys that a selection can be of; a terminal gets as many as it has lines for."""
    tensors = sorted(list_tensors(reader), key=lambda each: natural_key(each.key))
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "path": reader.path,
                "format": reader.format,
                "keys": [each.key for each in tensors],
            }
        )
        return
    say(
        f"{path_on_a_line(reader.path)} ({reader.format}): {count(len(tensors), 'key')}; give the "
        "KEY of one:"
    )
    most = max(terminal_size().lines - _LINES_AROUND, 1) if at_terminal() else len(tensors)
    shown = tensors[:most]
    scalars = read_scalars(reader, [each.key for each in shown if each.shape == ()])
    table = Table(reader, shown, scalars, with_slices=False, nbytes=0, numbers={})
    print_keys([row for each in shown for row in table.of_tensors(printable(each.key), [each])])
    if len(shown) < len(tensors):
        say(
            f"{len(tensors) - most:,} more: `shardvar inspect {short_path(reader.path)}` shows "
            "them folded."
        )


def describe_selection(
    reader: Reader, key: str, index: str, width: int, verify: str = "auto"
) -> tuple[str, str, str]:
    """Return the heading of a selection, its values, and why they are not verified, or ""."""
    tensor = reader[key]
    axes = parse_index_text(index, tensor.shape)
    is_checked = _check(reader, key, verify)
    index = index.strip().removeprefix("[").removesuffix("]")
    selected = f"[{printable(index)}]" if index else ""
    whole = f", of {human_shape(tensor.shape)}" if index else ""
    if not index and settings_in(reader.source, {key: (tensor.dtype, tensor.shape)}):
        text = bytes(reader.read(key)[()]).decode("utf-8", "surrogateescape")
        return f"{printable(key)} setting", one_line(text), ""
    dtype = f"{tensor.dtype} {reader.encodings.get(key, '')}".strip()
    heading = f"{printable(key)}{selected} {dtype} {human_shape(_shape_of(axes))}{whole}"
    return heading, _as_text(reader, tensor, axes, width), _caution(reader, is_checked)


def has_checksums(reader: Reader, key: str) -> bool:
    answer = reader.source.is_guarded(key)  # of what a map makes, by its sources
    if answer is not None:
        return answer
    entries = reader.find(key)
    return bool(((entries.checksum != NO_CHECKSUM) | ~entries.plain).all())


def _check(reader: Reader, key: str, verify: str) -> bool:
    """Verify a tensor that is small or wanted whole; return False if it was not verified."""
    entries = reader.find(key)
    # Verify first, so that values which fail their checksum are never printed.
    is_checked = verify == "full" or int(entries.slices.nbytes.sum()) <= BLOCK_NBYTES
    if is_checked:
        for row in range(len(entries)):
            Evidence(reader.source, entries).read_whole(row)
        for error in reader.source.storage_errors([key]).values():
            raise error
    return is_checked


def _caution(reader: Reader, is_checked: bool) -> str:
    is_unverified = reader.unverified and not is_checked
    return (
        f"not verified, since {reader.format} has checksums of whole slices only"
        if is_unverified
        else ""
    )


def _shape_of(axes: Axes) -> tuple[int, ...]:
    return tuple(len(axis) for axis in axes if isinstance(axis, range))


def _find_key(reader: Reader, typed: str) -> str:
    """Return the key that was typed, as it is or with the escapes of ``inspect``."""
    # The key as typed comes first, so that a key which looks like an escape stays reachable.
    try:
        reader.find(typed)
    except UnknownKey:
        escaped = [key for key in reader if printable(key) == typed and key != typed]
        if len(escaped) != 1:
            # Without the policy that wrote the checkpoint, which explains no word that was typed.
            raise unknown_key(typed, reader) from None
        return escaped[0]
    return typed


def _read(reader: Reader, key: str, axes: Axes) -> Array:
    index: list[int | slice] = []
    for axis in axes:
        if isinstance(axis, range):
            # A backward range down to index 0 has stop -1, which a slice would count from the end:
            # range(3, -1, -1) is 3::-1.
            stop = axis.stop if axis.stop >= 0 else None
            index.append(slice(axis.start, stop, axis.step) if axis else slice(0, 0))
        else:
            index.append(axis)
    return reader.read(key, tuple(index))


def _as_text(reader: Reader, tensor: LazyTensor, axes: Axes, width: int) -> str:
    def string(value: bytes) -> str:
        is_long = len(value) > _MOST_BYTES
        return f"{value[:_MOST_BYTES]!r}... ({len(value)} bytes)" if is_long else repr(value)

    size = prod(_shape_of(axes))
    if size <= _PRINTED or tensor.dtype == STRING:
        array = _read(reader, tensor.key, axes)
    else:
        array = _excerpt(reader, tensor.key, axes)
    return np.array2string(
        array,
        # An excerpt is smaller than the selection it stands for; 0 makes NumPy abbreviate it all
        # the same.
        threshold=_PRINTED if size <= _PRINTED else 0,
        edgeitems=_EDGE,
        max_line_width=width,
        separator=", ",
        # NumPy's stubs name other elements.
        formatter={"object": string},  # type: ignore[arg-type]
    )


def _excerpt(reader: Reader, key: str, axes: Axes) -> Array:
    """NumPy prints only corners, so only these are read: of a long axis 3 + 1 + 3 indices."""
    # For each axis the ranges that are read, and the places in the excerpt where their values go.
    ends: list[list[tuple[int | range, slice | None]]] = []
    shape = []
    for axis in axes:
        if isinstance(axis, int):
            ends.append([(axis, None)])
        elif len(axis) <= 2 * _EDGE:
            ends.append([(axis, slice(None))])
            shape.append(len(axis))
        else:
            ends.append([(axis[:_EDGE], slice(0, _EDGE)), (axis[-_EDGE:], slice(_EDGE + 1, None))])
            shape.append(2 * _EDGE + 1)
    # Two ends for each long axis: 2**8 = 256 corners are eight long axes.
    if prod(map(len, ends)) > _MOST_CORNERS:
        raise ArgumentError(
            "The selection has too many long axes to show.", "Give an INDEX that selects fewer."
        )
    excerpt: Array | None = None
    for corner in product(*ends):
        values = _read(reader, key, [indices for indices, _ in corner])
        if excerpt is None:
            excerpt = np.zeros(shape, values.dtype)
        excerpt[tuple(place for _, place in corner if place is not None)] = values
    return np.zeros(shape) if excerpt is None else excerpt


def _as_json(array: Array, dtype: str) -> Any:
    """Return nested lists: text with surrogate escapes, pairs for complex numbers, NaN and inf by name."""
    if dtype == STRING:
        return _mapped(array.tolist(), lambda value: value.decode("utf-8", "surrogateescape"))
    if array.dtype.kind == "c":
        return _mapped(
            array.tolist(), lambda value: [json_number(value.real), json_number(value.imag)]
        )
    # Integers and bools are JSON as they are; floats may be NaN or infinite, which JSON lacks.
    if array.dtype.kind in "iub":
        return array.tolist()
    return _mapped(widen_numbers(array).tolist(), json_number)


def _mapped(value: Any, function: Any) -> Any:
    return (
        [_mapped(each, function) for each in value] if isinstance(value, list) else function(value)
    )
