"""The contents of a file of Flax, or of a set: arrays, and plain values.

The keys are the paths of the values, joined by dots (``formats.leaves``): ``params.dense.kernel``,
as in a checkpoint of Orbax. The index of a set joins them by slashes. Arrays and scalars of NumPy
are tensors; numbers, texts, None and lists of these are objects, as in all formats
(``formats.objects``).

A fault of an array (its dtype, its size) is a fault of its key and leaves the others readable.
Nothing in a file tells if its data were changed: it has no checksums.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from shardvar.errors import (
    READ_ERRORS,
    InvalidCheckpoint,
    MissingFile,
    ShardvarError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles, check_same
from shardvar.formats.leaves import leaves_of
from shardvar.formats.protocol import Finding
from shardvar.formats.sets import add_files, read_weight_map
from shardvar.formats.window import structure_of
from shardvar.layout.dtypes import ITEMSIZES, code, has_values
from shardvar.limits import MAX_NBYTES, MAX_OBJECTS_NBYTES
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import SNIFF_NBYTES, WRITE_AGAIN, foreign_file, invalid, past_limit
from shardvar.wire.kinds import kind_of
from shardvar.wire.msgpack_tree import PlacedArray, RefusedValue, parse_msgpack
from shardvar.wire.plain import encode_value

_WHAT = "a msgpack file of Flax"


@dataclass(frozen=True, slots=True)
class FlaxArray:
    """An array that can be read."""

    key: str
    """Its key."""
    file: int
    """The number of its file."""
    place: PlacedArray
    """Its dtype, its shape and its bytes."""


@dataclass(slots=True, eq=False)
class FlaxContents:
    """The values of all files."""

    data: DataFiles
    """The files, open."""
    arrays: list[FlaxArray] = field(default_factory=list)
    """The readable arrays."""
    objects: dict[str, str] = field(default_factory=dict)
    """The encodings of plain values by key (``wire.plain``)."""
    faults: dict[str, ShardvarError] = field(default_factory=dict)
    """The keys that cannot be read, with the reason."""
    findings: list[Finding] = field(default_factory=list)
    """Disagreements between the files and the index of a set."""
    objects_nbytes: int = 0
    """The length of the encodings, with their keys."""


def read_flax(storage: Storage, name: str) -> FlaxContents:
    """Return the contents of one file."""
    contents = FlaxContents(DataFiles(storage, [name]))
    _add(contents, 0, None)
    return contents


def read_flax_set(storage: Storage, name: str) -> FlaxContents:
    """Return the contents of a set, by the name of its index."""
    try:
        slashed, stamp = read_weight_map(storage, name)
    except MissingFile as error:
        remedy = (
            "Fetch it from the source of the set, or name one file of the set to read only that."
        )
        raise MissingFile(
            f"{error.cause} It lists the file of each key of the set.", remedy
        ) from None
    weight_map = {_dotted(key): file for key, file in slashed.items()}
    names = sorted(set(weight_map.values()))
    contents = FlaxContents(DataFiles(storage, names))
    faults, findings = add_files(
        storage, weight_map, names, lambda number, keys: _add(contents, number, keys)
    )
    contents.faults |= faults
    contents.findings += findings
    check_same(storage, name, stamp)
    contents.data.check_in_place()
    return contents


def _dotted(key: str) -> str:
    return key.replace("/", ".")


def _add(contents: FlaxContents, number: int, wanted: set[str] | None) -> list[str]:
    """Add the values of one file, either those with wanted keys or all; return the keys of all."""
    leaves, clashes, place = _leaves(contents.data, number)
    keys = [*leaves] if wanted is None else [*map(_dotted, leaves)]
    for key, value in zip(keys, leaves.values(), strict=True):
        if wanted is not None and key not in wanted:
            continue
        try:
            if key in clashes:
                raise InvalidCheckpoint(
                    "Two values of the file have this key.", "Rename one of them."
                )
            _add_value(contents, number, key, value)
        except READ_ERRORS as error:
            contents.faults[key] = error.at(place, repr(key))
    return keys


def _leaves(data: DataFiles, number: int) -> tuple[Mapping[str, Any], set[str], str]:
    """Return the values of a file by key, the keys that two values have, and the file's path."""
    file = data.open(number)
    with prefix_errors(file.name):
        first = file.read(0, min(SNIFF_NBYTES, file.size))
        why = "its bytes are not one map of msgpack"
        # A text, a pickle or an archive begins as a number or a short map of msgpack does.
        is_known = kind_of(first) is not None
        try:
            root = parse_msgpack(structure_of(file, data.traits).read, file.size) if first else None
        except READ_ERRORS:
            if is_known:
                raise foreign_file(_WHAT, first, file.size, why) from None
            raise
        if not isinstance(root, dict | list | PlacedArray):
            raise foreign_file(_WHAT, first, file.size, why)
        return *leaves_of(root, _is_array, file.size), file.name


def _is_array(value: Any) -> bool:
    return isinstance(value, PlacedArray)


def _add_value(contents: FlaxContents, number: int, key: str, value: Any) -> None:
    """Add the value of a key; raise what is wrong with it."""
    if isinstance(value, RefusedValue):
        raise value.error
    if not isinstance(value, PlacedArray):
        _add_object(contents, key, value)
        return
    try:
        itemsize = int(ITEMSIZES[code(value.dtype)]) if has_values(value.dtype) else 0
    except UnsupportedError:
        itemsize = 0
    if not itemsize:
        cause = (
            f"It is an array of the dtype {value.dtype!r}, which has no numbers of a known size."
        )
        raise UnsupportedError(cause, "Leave it out with a filter (--exclude).")
    # Extents of 0 do not make a shape harmless: NumPy cannot hold (2**62, 2**62, 0).
    if prod(filter(None, value.shape)) * itemsize > MAX_NBYTES:
        raise invalid(f"Its shape {list(value.shape)} is too large to exist.")
    nbytes, expected = sum(size for _, size in value.spans), prod(value.shape) * itemsize
    if nbytes != expected:
        cause = f"Its shape {list(value.shape)} of {value.dtype} needs {expected} bytes, but it has {nbytes}."
        raise InvalidCheckpoint(cause, WRITE_AGAIN)
    contents.arrays.append(FlaxArray(key, number, value))


def _add_object(contents: FlaxContents, key: str, value: Any) -> None:
    """Add a plain value."""
    if _has_unreadable(value):
        cause = "It is a list with a value that is not plain."
        raise UnsupportedError(cause, "Leave it out with a filter (--exclude).")
    encoding = encode_value(value)
    contents.objects_nbytes += len(encoding) + 6 * len(key) + 8
    if contents.objects_nbytes > MAX_OBJECTS_NBYTES:
        raise past_limit("The plain values have more bytes", "MAX_OBJECTS_NBYTES")
    contents.objects[key] = encoding


def _has_unreadable(value: Any) -> bool:
    """Return True if a value has one in it that is not plain, at any depth."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, RefusedValue):
            return True
        if isinstance(each, dict | list):
            left += each if isinstance(each, list) else each.values()
    return False
