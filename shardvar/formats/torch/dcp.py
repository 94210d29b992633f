"""Open a distributed checkpoint: read its index, and check the laws that the index shows.

Laws: files are named by bare names, and the items of a file neither overlap nor leave gaps. The end
of the last item is the size of the file: this is the one test that finds a file which was exchanged
for another, for items say nothing about the tensor that they belong to.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from shardvar.errors import InvalidCheckpoint, MissingFile, UnsupportedError, prefix_errors
from shardvar.formats.files import ATTEMPTS, DataFiles, is_replaced, replaced_error
from shardvar.formats.protocol import Finding
from shardvar.formats.torch.index import DcpIndex
from shardvar.formats.torch.metadata import Items, parse_metadata
from shardvar.formats.torch.names import DATA_SUFFIX, METADATA, is_bare, rank_indexes
from shardvar.formats.torch.source import TorchSource
from shardvar.layout.dtypes import Ints, code
from shardvar.limits import MAX_METADATA_NBYTES
from shardvar.planning.slices import SliceTable, TensorTable, pad, widen
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.collection import without_collection
from shardvar.wire.damage import SNIFF_NBYTES, WRITE_AGAIN, foreign_file, past_limit


def open_dcp(storage: Storage, name: str) -> TorchSource:
    """Open the distributed checkpoint of a folder; its index is read again if another one replaced
    it meanwhile."""
    for _ in range(ATTEMPTS):
        file = _open_index(storage, name)
        try:
            with prefix_errors(file.name), without_collection():
                items = parse_metadata(_read_index(file))
                source = _source(storage, items)
            source.data.hold()
            if not is_replaced(storage, name, file):
                return source
            source.close()
        finally:
            file.close()
    raise replaced_error(file.name)


def _open_index(storage: Storage, name: str) -> ReadableFile:
    try:
        return storage.open(name)
    except MissingFile as error:
        ranks = rank_indexes(storage.names())
        if ranks:
            cause = (
                f"{storage.path}: {ranks[0]} is the index of one rank, and nothing joins the ranks."
            )
            raise UnsupportedError(cause, "Save it without `use_collectives=False`.") from None
        remedy = (
            "The save was interrupted, or the copy lacks hidden files: copy the folder with `cp "
            "-r`."
        )
        raise MissingFile(error.cause, remedy) from None


def _read_index(file: ReadableFile) -> bytes:
    if file.size > MAX_METADATA_NBYTES:
        raise past_limit(f"The index has {file.size} bytes", "MAX_METADATA_NBYTES")
    data = file.read(0, file.size)
    if not data.startswith(b"\x80"):
        raise foreign_file(
            "the index of a distributed checkpoint",
            data[:SNIFF_NBYTES],
            file.size,
            "it does not begin as a pickle does",
        )
    return data


def _source(storage: Storage, items: Items) -> TorchSource:
    """Return the source, with the faults that the index shows."""
    faults = dict(items.faults)
    remarks = [
        Finding(METADATA, f"It has items of {key!r}, which it does not describe.", True)
        for key in items.strays
    ]
    # Files: only bare names, so that nothing outside of the folder is opened.
    names = sorted({place[0] for place in items.places if is_bare(place[0])})
    number = {name: position for position, name in enumerate(names)}
    for row, name in enumerate(items.file):
        if name not in number:
            key = items.keys[items.tensor[row]]
            cause = (
                f"{key!r}: {name[:200]!r} is not the name of a file in the folder of the "
                "checkpoint."
            )
            faults.setdefault(
                key, InvalidCheckpoint(cause, "Use a checkpoint whose files lie next to its index.")
            )
    # Items: tiling.
    sizes, overlapping, gaps = _tile(items, number)
    for row, place in enumerate(zip(items.file, items.start, strict=True)):
        if place in overlapping:
            key = items.keys[items.tensor[row]]
            faults.setdefault(
                key,
                InvalidCheckpoint(f"{key!r}: Its item shares bytes with another one.", WRITE_AGAIN),
            )
    remarks += [
        Finding(name, f"The {nbytes} bytes at offset {start} belong to no item.", True)
        for name, start, nbytes in gaps
    ]
    if items.rest_nbytes:
        remarks.append(
            Finding(
                METADATA,
                f"{items.rest_nbytes} bytes follow the pickle, which torch ignores.",
                False,
            )
        )
    data = DataFiles(storage, names, sizes)
    slices = _slices(items)
    file = np.array([number.get(name, 0) for name in items.file], np.int64)
    index = DcpIndex(items, data, slices, file, faults)
    look = lambda: [*remarks, *_strays(storage, names)]  # noqa: E731
    return TorchSource(
        index, data, index.views, index.payloads, look, index.read_objects, index.is_guarded
    )


def _strays(storage: Storage, names: Sequence[str]) -> Iterator[Finding]:
    """Data files that the index does not name, such as files of a larger job."""
    for name in storage.names():
        if name.endswith(DATA_SUFFIX) and name not in names:
            yield Finding(name, "The index has no item in this file.", False)


def _tile(
    items: Items, number: dict[str, int]
) -> tuple[Ints, set[tuple[str, int]], list[tuple[str, int, int]]]:
    """Return the size of each file, overlapping items (file, offset), and gaps."""
    places = [place for place in items.places if place[0] in number]
    names = [*number]
    file = np.array([number[place[0]] for place in places], np.int64)
    start, nbytes = (np.array([place[column] for place in places], np.int64) for column in (1, 2))
    order = np.lexsort((start, file))
    file, start, stop = file[order], start[order], (start + nbytes)[order]
    sizes = np.zeros(len(number), np.int64)
    np.maximum.at(sizes, file, stop)
    # Where each item should begin: at the end of the one before it, or at the beginning of its
    # file.
    follows = np.append(False, file[1:] == file[:-1])[: len(file)]
    due = np.where(follows, np.append(0, stop[:-1])[: len(file)], 0)
    overlapping = set()
    for row in np.flatnonzero(start < due).tolist():
        overlapping |= {(names[file[each]], int(start[each])) for each in (row - 1, row)}
    gaps = [
        (names[file[row]], int(due[row]), int(start[row] - due[row]))
        for row in np.flatnonzero(start > due).tolist()
    ]
    return sizes, overlapping, gaps


def _slices(items: Items) -> SliceTable:
    codes = np.array([code(dtype) for dtype in items.dtypes], np.int64)
    tensors = TensorTable(items.keys, codes, *pad(items.shapes, fill=1))
    rank, tensor = tensors.shapes.shape[1], np.array(items.tensor, np.int64)
    offset, shape = (
        widen(pad(column, fill)[1], rank, fill)
        for column, fill in ((items.offset, 0), (items.shape, 1))
    )
    # A tensor without elements is one slice, the whole of it. Its item has what one rank held of
    # it. One that reaches out of its tensor stays as it is, and is a fault.
    full = tensors.shapes[tensor]
    inside = ((offset >= 0) & (shape <= full - offset)).all(axis=1, keepdims=True)
    empty = (full == 0).any(axis=1, keepdims=True) & inside
    offset, shape = np.where(empty, 0, offset), np.where(empty, full, shape)
    return SliceTable.of(tensors, tensor, offset, shape, np.zeros(len(tensor), np.int64))
