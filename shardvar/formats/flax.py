"""Flax: one file of msgpack, or a set of files with an index.

    flax_model.msgpack               a file, as transformers and most programs name it
    checkpoint_300                   a file of flax.training.checkpoints for step 300
    flax_model.msgpack.index.json    the index of a set, which has the file of each key

The keys are the paths of the values, joined by dots: ``params.dense.kernel``. The index of a set
joins them by slashes. Arrays and scalars of NumPy are tensors; numbers, texts, None and lists of
these are objects. Nothing in a file tells if its data were changed: it has no checksums.
"""

import re
from functools import partial
from math import prod
from typing import Any

from shardvar.errors import (
    READ_ERRORS,
    CheckpointError,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MissingFile,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles, check_same, first_bytes, read_beginning, structure_of
from shardvar.formats.leaves import leaves_of
from shardvar.formats.listing import (
    FileNames,
    ListedFormat,
    ListedTensor,
    Listing,
    ReadSpan,
    check_size,
)
from shardvar.formats.sets import add_files, read_weight_map
from shardvar.layout.dtypes import ITEMSIZES, code, has_values
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import foreign_file, invalid, kind_of
from shardvar.wire.msgpack_tree import PlacedArray, RefusedValue, parse_msgpack

_WHAT = "a msgpack file of Flax"
_INDEX = ".msgpack.index.json"
_MAP = re.compile(rb"([\x81-\x8f]|\xde..|\xdf....)([\xa1-\xbf]|\xd9.)[ -~]", re.DOTALL)
"""The beginning of a map whose first key is a text."""


def _read(storage: Storage, name: str) -> Listing:
    if not name.endswith(_INDEX):
        listing = Listing(DataFiles(storage, [name], named=name))
        _add(listing, 0, None)
        return listing
    try:
        slashed, stamp = read_weight_map(storage, name)
    except MissingFile as error:
        raise MissingFile(
            f"{error.cause} It lists the file of each key of the set.",
            "Fetch it from the source of the set, or name one file of the set to read only that.",
        ) from None
    weight_map = {key.replace("/", "."): file for key, file in slashed.items()}
    names = sorted(set(weight_map.values()))
    listing = Listing(DataFiles(storage, names, index=name))
    faults, findings = add_files(storage, weight_map, names, partial(_add, listing))
    listing.faults |= faults
    listing.findings += findings
    check_same(storage, name, stamp)
    listing.data.check_in_place()
    return listing


def _add(listing: Listing, number: int, wanted: set[str] | None) -> list[str]:
    file = listing.data.open(number)
    with prefix_errors(file.name):
        first = first_bytes(file)
        foreign = foreign_file(_WHAT, first, file.size, "its bytes are not one map of msgpack")
        window = structure_of(file, listing.data.traits)
        # A text, a pickle or an archive begins as a number or a short map of msgpack does.
        try:
            root, fault = parse_msgpack(window.read, file.size) if first else (None, None)
        except CheckpointError as error:
            root, fault = {}, error
        if not isinstance(root, dict | list | PlacedArray) or (fault and kind_of(first)):
            raise foreign
        if fault and not root:
            raise fault
        listing.data.note(number, fault and fault.at(file.name))
        leaves, clashes = leaves_of(root, lambda each: isinstance(each, PlacedArray), file.size)
    keys = [key if wanted is None else key.replace("/", ".") for key in leaves]
    for key, value in zip(keys, leaves.values(), strict=True):
        if wanted is not None and key not in wanted:
            continue
        try:
            if key in clashes:
                raise InvalidCheckpoint(
                    "Two values of the file have this key.", "Rename one of them."
                )
            if isinstance(value, PlacedArray):
                listing.tensors.append(_stored(key, number, value))
            else:
                listing.add_object(key, _plain(value))
        except READ_ERRORS as error:
            listing.faults[key] = error.at(file.name, repr(key)).in_file(listing.data.names[number])
    return keys


def _stored(key: str, number: int, array: PlacedArray) -> ListedTensor:
    try:
        itemsize = int(ITEMSIZES[code(array.dtype)]) if has_values(array.dtype) else 0
    except UnsupportedError:
        itemsize = 0
    if not itemsize:
        cause = (
            f"It is an array of the dtype {array.dtype!r}, which has no numbers of a known size."
        )
        raise UnsupportedError(cause, "Leave it out with a filter (--exclude).")
    check_size(array.shape, itemsize)
    nbytes, expected = sum(size for _, size in array.spans), prod(array.shape) * itemsize
    if nbytes != expected:
        raise invalid(
            f"Its shape {list(array.shape)} of {array.dtype} needs {expected} bytes, but it has {nbytes}."
        )
    decode = None if len(array.spans) < 2 else partial(_read_spans, array.spans)
    start = array.spans[0][0] if array.spans else 0
    return ListedTensor(key, array.dtype, array.shape, number, start, decode)


def _read_spans(
    spans: Any, read: ReadSpan, tensor: ListedTensor, start: int, buffer: memoryview
) -> None:
    """Fill a buffer from an array above 2**30 bytes, which has several ranges."""
    # With ranges of 100 and 50 bytes, the bytes 90 to 120 of the payload are the last 10 of the
    # first one and the first 20 of the second one.
    first, stop = start, start + len(buffer)
    for place, nbytes in spans:
        if first < nbytes and stop > 0:
            low, high = max(first, 0), min(stop, nbytes)
            read(tensor.file, place + low, buffer[low - first : high - first])
        first, stop = first - nbytes, stop - nbytes


def _plain(value: Any) -> Any:
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, RefusedValue):
            if each is value or isinstance(each.error, IncompleteCheckpoint):
                raise each.error
            cause = "It is a list with a value that is not plain."
            raise UnsupportedError(cause, "Leave it out with a filter (--exclude).")
        if isinstance(each, dict | list):
            left += each if isinstance(each, list) else each.values()
    return value


NAMES = FileNames(
    ".msgpack",
    lambda storage, name: _MAP.match(read_beginning(storage, name, 8)) is not None,
    _INDEX,
    re.compile(r"checkpoint_\d{1,18}"),
)
FORMAT = ListedFormat("flax", NAMES.find, _read)
