"""Open a distributed checkpoint: its index, its table of contents, and the laws that it must keep.

``.metadata``, the index, is a pickle of one ``Metadata``, read as columns (``Items``):

    state_dict_metadata   key -> TensorStorageMetadata: dtype, full shape, and the region of each
                          slice ("chunk"), or BytesStorageMetadata: an object
    storage_data          MetadataIndex (key, offset of the slice) -> _StorageInfo: file, offset,
                          length
    planner_data          key -> the path of its value in the nested value that was saved
    shardvar              what shardvar adds (``formats.torch``)
    storage_meta, version and unknown attributes tell nothing about bytes

A slice without elements may have the offset of another one, or of the end of its axis. It is never
read. A key with a field of the wrong type is a fault, and the others are read. Names of classes are
compared whole with ``_CLASSES``; a pickle that names any other would run code in Python, and is
refused whole.

The index is read when the checkpoint is opened, and is all that a listing needs. It tells which
item holds each slice, but not where in the item the elements lie. So an item's frame is read when
its slice is asked for (``formats.deferred``), and once only. Frames are read in the order of the
files: many small ones at a time, and in a bucket all requests together.

Laws: files are named by bare names, and the items of a file neither overlap nor leave gaps. The end
of the last item is the size of the file.

An item does not name its tensor, so a file of a wrong size may be another rank's. It is this one,
damaged, if no other file was written in its size, and its last item ends where the index says, with
no item behind it, or, if bytes are missing, not at the end of the file. Then its items are read, as
are all with a checksum in the index.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from math import prod
from operator import ne
from typing import Any, NamedTuple

import numpy as np

from shardvar.errors import (
    COPY_AGAIN,
    CheckpointError,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MissingFile,
    ReadError,
    ShardvarError,
    StorageError,
    UnsupportedError,
    prefix_errors,
    replaced_error,
)
from shardvar.formats.deferred import DeferredIndex, Enclosed, Located
from shardvar.formats.files import ATTEMPTS, DataFiles, is_replaced
from shardvar.formats.protocol import Finding
from shardvar.formats.sets import is_bare
from shardvar.formats.torch.source import (
    GROUP_NBYTES,
    SMALL_NBYTES,
    Frames,
    TensorView,
    TorchSource,
    encoding_in,
    located,
    payload_in,
)
from shardvar.formats.torch.values import dtype_of
from shardvar.layout.dtypes import STRING, Ints, code
from shardvar.limits import MAX_METADATA_NBYTES, MAX_NBYTES, MAX_RANK
from shardvar.planning.index import NO_CHECKSUM, Metadata
from shardvar.planning.slices import SliceTable, TensorTable
from shardvar.records import entity, field, mutable
from shardvar.storage.concurrency import do_all, without_collection
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.damage import (
    SNIFF_NBYTES,
    badly_written,
    check_key_nbytes,
    decoding,
    distrusted,
    foreign_file,
    invalid,
    malformed,
    past_limit,
)
from shardvar.wire.pickle import parse_pickle
from shardvar.wire.plain import Global, Node
from shardvar.wire.zip import END, END_MAGIC, LOCAL_MAGIC

METADATA, DATA_SUFFIX = ".metadata", ".distcp"
_RANK_METADATA = re.compile(r"__\d+\.metadata")
DCP = "torch.distributed.checkpoint."
ABOUT = "shardvar"  # The attribute in which shardvar keeps its facts about a checkpoint
_METADATA = f"{DCP}metadata.Metadata"
_TENSOR, _OBJECT = f"{DCP}metadata.TensorStorageMetadata", f"{DCP}metadata.BytesStorageMetadata"

Coordinates = tuple[int, ...]
_Place = tuple[str, int, int]
_Found = tuple[_Place, int]  # File, first byte and size of an item, and the CRC-32 of its elements
_COPY_INDEX = "Copy the index again, or save the checkpoint again."
_Described = tuple[str, Coordinates, list[tuple[Coordinates, Coordinates]]]
_AN_OBJECT: _Described = (STRING, (), [((), ())])


def find_dcp(names: list[str], name: str) -> list[str]:
    """Return the index of the distributed checkpoint that a name may mean in a folder with the
    files ``names``.

    >>> find_dcp([".metadata", "__0_0.distcp"], "__0_0.distcp"), find_dcp(["model.pt"], "")
    (['.metadata'], [])
    """
    # A folder has one checkpoint. An index that is missing is found by its data files, so that
    # opening it reports it. Of single ranks, it is ``__0.metadata``, …, which nothing joins.
    has_index = METADATA in names or any(map(_RANK_METADATA.fullmatch, names))
    is_named = name in names and (
        name.endswith(DATA_SUFFIX) or name == METADATA or _RANK_METADATA.fullmatch(name)
    )
    is_folder = not name and (has_index or any(file.endswith(DATA_SUFFIX) for file in names))
    return [METADATA] if is_named or is_folder else []


class _Item(NamedTuple):
    tensor: int  # its key, as a position
    offset: Coordinates
    shape: Coordinates
    file: str
    start: int  # in bytes of its file
    nbytes: int
    checksum: int  # the CRC-32 of its elements; ``NO_CHECKSUM`` if the index has none


@mutable
class Items:
    facts: list[tuple[str, str, Coordinates]] = field(default_factory=list)
    """[n] the keys, tensors and objects, sorted; the dtype, ``string`` for an object; the shape."""
    rows: list[_Item] = field(default_factory=list)
    faults: dict[str, ShardvarError] = field(default_factory=dict)
    strays: list[str] = field(default_factory=list)
    """Keys that have items and are not described."""
    rest_nbytes: int = 0  # Bytes after the pickle, which torch ignores
    places: list[_Place] = field(default_factory=list)
    """File, first byte and size of every item, including unread ones."""
    about: Metadata = field(default_factory=Metadata)


def parse_metadata(data: bytes) -> Items:
    root, stop = parse_pickle(data, check=_check_name)
    if type(root) is not Node or root.name != _METADATA or type(root.state) is not dict:
        raise malformed("The file is a pickle of something else than the index of a checkpoint.")
    described, stored = root.state.get("state_dict_metadata"), root.state.get("storage_data")
    if type(described) is not dict or type(stored) is not dict:
        raise malformed("The index lacks the dict of its tensors or the dict of their places.")
    own = _dict(root.state.get(ABOUT))
    texts = {name: value for name, value in own.items() if name in _TEXTS and _is_text(value)}
    user = _dict(own.get("user")).items()
    about = Metadata(
        **texts,
        user={key: text for key, text in user if _is_text(key) and _is_text(text)},
        paths={
            key: path
            for key, path in _dict(root.state.get("planner_data")).items()
            if _is_text(key) and type(path) is tuple and path and {*map(type, path)} <= {str, int}
        },
    )
    items = Items(rest_nbytes=len(data) - stop, about=about)
    packed = own.get("crc32", b"")
    if type(packed) is not bytes or len(packed) % 4 or len(packed) > 4 * len(stored):
        raise malformed("The checksums of the index are not as many as its items.")
    places = _places(items, stored, np.frombuffer(packed, "<u4").tolist())
    sizes: dict[int, Coordinates] = {}
    for key in sorted(filter(_is_text, described)):
        try:
            node = described[key]
            kind = node.name if type(node) is Node else None
            if kind not in (_OBJECT, _TENSOR):
                raise badly_written("The index describes neither a tensor nor an object.")
            described_as = _AN_OBJECT if kind == _OBJECT else _tensor(node.state, sizes)
            if key not in items.faults:
                _add(items, key, described_as, places)
        except (CheckpointError, UnsupportedError) as error:
            items.faults.setdefault(key, error.at(repr(key)))
    if not all(map(_is_text, described)):
        raise malformed("A key of the index is not text.")
    sizes_of_keys = (len(key.encode("utf-8", "surrogatepass")) for key, *_ in items.facts)
    check_key_nbytes(max(sizes_of_keys, default=0))
    items.places = [place for place, _ in places.values()]
    items.strays = sorted(
        {key for key, _ in places if key not in described} | items.faults.keys() - described.keys()
    )
    return items


def _is_text(value: Any) -> bool:
    return type(value) is str


def _dict(value: Any) -> dict[Any, Any]:
    return value if type(value) is dict else {}


def _places(
    items: Items, stored: Mapping[Any, Any], checksums: list[int]
) -> dict[tuple[str, Coordinates], _Found]:
    """Return place and checksum of each item, by key and offset of its slice; collect faults."""
    places: dict[tuple[str, Coordinates], _Found] = {}
    sums = chain(checksums, repeat(NO_CHECKSUM))
    for (index, info), checksum in zip(stored.items(), sums, strict=False):
        try:
            name, about = index.state, info.state
            key, offset = name["fqn"], name.get("offset")
            place = file, start, nbytes = about["relative_path"], about["offset"], about["length"]
        except CheckpointError:
            raise
        except (AttributeError, KeyError, TypeError):
            raise malformed("An entry of the index lacks its key or its place.") from None
        offset = () if offset is None else offset
        if type(key) is not str or type(offset) is not tuple or {*map(type, offset)} - {int}:
            raise malformed(
                "The key of an entry of the index is not text, or its offset not a tuple of "
                "integers."
            )
        # A wrong place is a fault of its key; the others can be read.
        cause = ""
        if type(file) is not str or type(start) is not int or type(nbytes) is not int:
            cause = "The place of an item is not a file, an offset and a length."
        elif not (0 <= start <= MAX_NBYTES and 0 <= nbytes <= MAX_NBYTES):
            cause = f"An item of {nbytes} bytes begins at offset {start}."
        elif about.get("transform_descriptors"):
            transformed = (
                "Its items were transformed by an extension of torch, such as a compression."
            )
            error = UnsupportedError(f"{key!r}: {transformed}", "Save it without extensions.")
            items.faults.setdefault(key, error)
        else:
            first, _ = places.get((key, offset), (place, 0))
            places[key, offset] = first, checksum
            if first != place:
                cause = f"Two items begin at the index {offset}."
        if cause:
            items.faults.setdefault(key, invalid(f"{key!r}: {cause}"))
    return places


def _add(
    items: Items,
    key: str,
    described: _Described,
    places: Mapping[tuple[str, Coordinates], _Found],
) -> None:
    dtype, full, slices = described
    placed = []
    for offset, shape in slices:
        item = places.get((key, offset))
        # torch forgets which of two slices was meant, if an empty one has the offset of another.
        if item is None and 0 not in shape:
            cause = f"The index has no place for the slice at {offset}."
            raise IncompleteCheckpoint(cause, _COPY_INDEX)
        if item is not None and (0 not in shape or 0 in full):
            placed.append((offset, shape, *item))
    if 0 in full:
        placed = placed[:1]  # a tensor without elements is one slice, whichever rank wrote it
    if not placed:
        raise IncompleteCheckpoint("The index has no place for any slice of it.", _COPY_INDEX)
    row = len(items.facts)
    items.facts.append((key, dtype, full))
    items.rows += [
        _Item(row, offset, shape, *place, checksum) for offset, shape, place, checksum in placed
    ]


_TEXTS = ("description", "writer", "generation")


def _tensor(state: Any, sizes: dict[int, Coordinates]) -> _Described:
    cause = "The index lacks its dtype, its shape or its slices."
    with decoding(
        lambda _: badly_written(cause),
        *(AttributeError, KeyError, TypeError, IndexError),
    ):
        properties, full, chunks = state["properties"].state, state["size"], state["chunks"]
        slices = [(chunk.state["offsets"], chunk.state["sizes"]) for chunk in chunks]
        dtype = properties[0] if type(properties) is tuple else properties["dtype"]
    rank = len(full) if type(full) is tuple else MAX_RANK + 1
    # The tensors of an index have few shapes, so each is looked at once; keeping it keeps its id
    # from other values.
    for extents in (full, *chain.from_iterable(slices)):
        is_shape = type(extents) is tuple and len(extents) <= MAX_RANK
        if (
            id(extents) not in sizes
            and is_shape
            and {*map(type, extents)} <= {int}
            and min(extents, default=0) >= 0
            and max(extents, default=0) <= MAX_NBYTES
        ):
            sizes[id(extents)] = extents
            # An element has at most 16 bytes, and NumPy cannot hold (2**62, 0) either.
            if prod(filter(None, extents)) > MAX_NBYTES // 16:
                raise distrusted(
                    f"Its shape {extents}, or the shape of a slice, is too large to exist."
                )
        if id(extents) not in sizes or len(extents) != rank:
            raise badly_written("Its shape, or the region of a slice, is not a tuple of sizes.")
    if type(dtype) is not Global:
        raise badly_written("Its dtype is not one of torch's.")
    return dtype_of(dtype.name), full, slices


_DTYPE_WORDS = (
    "torch.float",
    "torch.int",
    "torch.uint",
    "torch.bfloat",
    "torch.complex",
    "torch.bool",
    "torch.q",
    "torch.bits",
)
"""The beginnings of the names of torch's dtypes, also of later releases."""
_OLD_METADATA = "torch.distributed._shard.sharded_tensor.metadata."
_CLASSES = frozenset(
    [
        f"{DCP}metadata.{name}"
        for name in (
            "Metadata TensorStorageMetadata TensorProperties ChunkStorageMetadata "
            "BytesStorageMetadata MetadataIndex StorageMeta _MEM_FORMAT_ENCODING"
        ).split()
    ]
    + [f"{DCP}filesystem._StorageInfo", "olmo_core.distributed.checkpoint.filesystem._StorageInfo"]
    # Megatron-core adds the plans of its ranks, which repeat the index.
    + [
        f"{DCP}planner.{name}"
        for name in "SavePlan WriteItem WriteItemType TensorWriteData".split()
    ]
    + [f"{_OLD_METADATA}{name}" for name in ("TensorProperties", "MEM_FORMAT_ENCODING")]
    + ["torch.Size", "torch.serialization._get_layout", "torch.device", "collections.OrderedDict"]
    + [
        f"{module}.{name}"
        for module in ("pathlib", "pathlib._local")
        for name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
    ]
)
"""Every name that an index may have, apart from dtypes."""


def _check_name(name: str) -> None:
    is_dtype = name.startswith(_DTYPE_WORDS) and name.count(".") == 1
    if name not in _CLASSES and not is_dtype:
        raise distrusted(
            f"The index names {name[:200]}, which Python would import or call; nothing was run."
        )


_UNEVEN = (
    "If FSDP2 over tensor parallelism saved it, torch recorded the places that the placements "
    "say, which differ from the shards where extents do not divide: save each rank's state with "
    "torch.save, or pad the tensor."
)
"""The other cause of an item whose shape differs from the index: docs/layouts.md."""


@mutable
class DcpItems:
    """The items of a checkpoint, and all that was read of them, by row."""

    items: Items
    data: DataFiles
    slices: SliceTable
    file: Ints
    views: dict[int, TensorView] = field(default_factory=dict)
    payloads: dict[int, bytes] = field(default_factory=dict)
    unguarded: set[int] = field(default_factory=set)
    """The rows whose items were read and have bytes without a checksum."""
    _templates: dict[Any, Any] = field(default_factory=dict)
    _lost: dict[int, dict[int, ShardvarError]] = field(default_factory=dict)

    def locate(self, rows: Ints) -> dict[int, Located | ShardvarError]:
        places: dict[int, Located | ShardvarError] = {}
        for number in np.unique(self.file[rows]).tolist():
            places |= self._lost_in(number)
        rows = rows[~np.isin(rows, [*places])]

        def read(group: Ints) -> None:
            start, stop = self.extent(group[:1])[0], self.extent(group[-1:])[1]
            frames = Frames(self.data, self._templates, window_nbytes=int(stop[0] - start[0]))
            for row in group.tolist():
                try:
                    places[row] = self._read_item(row, frames)
                except (CheckpointError, StorageError, UnsupportedError) as error:
                    places[row] = self._placed(row, error)

        with without_collection():
            do_all(read, self._groups(rows), self.data.traits)
        return places

    def unframe(self, index: DeferredIndex, row: int, octets: memoryview) -> memoryview:
        """Return the payload in the bytes of an item, compared; the index learns its place."""
        file, start, _ = self._place(row)
        try:
            place = self._read_item(row, Frames(self.data, self._templates, held=octets))
            payload = payload_in(self.views[row], self.data, file, start, octets)
        except (CheckpointError, StorageError, UnsupportedError) as error:
            raise self._placed(row, error) from None
        index.learn(row, place)
        return payload

    def lost(self) -> dict[int, ShardvarError]:
        """Return the rows whose items are not there, or may be another rank's; reads no item."""
        errors: dict[int, ShardvarError] = {}
        for number in range(len(self.data.names)):
            errors |= self._lost_in(number)
        return errors

    def _lost_in(self, number: int) -> dict[int, ShardvarError]:
        if number not in self._lost:
            rows = np.flatnonzero(self.file == number)
            start, stop = self.extent(rows)
            lost: dict[int, ReadError] = {}
            lost |= self.data.lost_rows(self.file[rows], start, stop - start)
            fault = self.data.fault_of_size(number)
            if fault is not None and self._may_be_exchanged(number):
                cause = f"{fault.cause} It may be the file of another rank."
                # Of the others, the index has the checksum, which a read compares.
                unsure = [
                    at
                    for at, row in enumerate(rows.tolist())
                    if self.items.rows[row].checksum == NO_CHECKSUM
                    or self.slices.dtype(row) == STRING
                ]
                lost |= dict.fromkeys(unsure, type(fault)(cause, fault.remedy))
            errors = {int(rows[at]): error.at() for at, error in lost.items()}
            self._lost[number] = {row: self._placed(row, error) for row, error in errors.items()}
        return self._lost[number]

    def _may_be_exchanged(self, number: int) -> bool:
        """Return True unless a file of a wrong size is surely the written file, damaged."""
        file, written = self.data.open(number), self.data.written
        if written is None or file.size in written:
            return True
        end = min(file.size, int(written[number]))
        last = file.read(max(end - END.size, 0), min(end, END.size))
        is_item = file.read(end, min(file.size - end, 4)) == LOCAL_MAGIC
        return is_item or last.startswith(END_MAGIC) == (end == file.size)

    def read_objects(
        self, index: DeferredIndex, keys: Collection[str], as_items: bool
    ) -> dict[str, bytes]:
        objects = {}
        for row in range(len(self.slices)):
            key = self.slices.key(row)
            if self.slices.dtype(row) == STRING and key in keys and key not in index.broken:
                try:
                    if row in (lost := self._lost_in(int(self.file[row]))):
                        raise lost[row]
                    item = Frames(self.data).read_item(*self._place(row))
                    if as_items:
                        objects[key] = item
                    elif index.fault_of(key) is None:  # it is plain
                        objects[key] = encoding_in(item)
                except (CheckpointError, StorageError, UnsupportedError) as error:
                    raise self._placed(row, error) from None
        return objects

    def _place(self, row: int) -> tuple[int, int, int]:
        item = self.items.rows[row]
        return int(self.file[row]), item.start, item.nbytes

    def extent(self, rows: Ints) -> tuple[Ints, Ints]:
        items = [self.items.rows[row] for row in rows.tolist()]
        start = np.array([item.start for item in items], np.int64)
        return start, start + np.array([item.nbytes for item in items], np.int64)

    def _groups(self, rows: Ints) -> list[Ints]:
        """Cut rows, in the order of the files, into groups of items that are read at once."""
        start, stop = self.extent(rows)
        order = np.lexsort((start, self.file[rows]))
        rows, start, stop = rows[order], start[order], stop[order]
        is_large = stop - start > SMALL_NBYTES
        apart = (np.diff(self.file[rows]) != 0) | is_large[1:] | is_large[:-1]
        first, groups = 0, []
        for end in [*(np.flatnonzero(apart) + 1).tolist(), len(rows)]:
            while first < end:
                within = np.searchsorted(stop[first:end], start[first] + GROUP_NBYTES, "right")
                last = max(first + int(within), first + 1)
                groups.append(rows[first:last])
                first = last
        return groups

    def _read_item(self, row: int, frames: Frames) -> Located:
        place, item = self._place(row), self.items.rows[row]
        shape, dtype = item.shape, self.slices.dtype(row)
        if dtype == STRING:
            self.payloads[row], is_guarded = frames.read_object(*place)
            self.unguarded |= set() if is_guarded else {row}
            return Located(len(self.payloads[row]), row, NO_CHECKSUM, False)
        view = frames.read_tensor(*place, (dtype, shape))
        own = view.tensor.shape
        if (view.tensor.dtype, own) != (dtype, shape):
            cause = (
                f"The item at offset {place[1]} holds {view.tensor.dtype}{list(own)}, but the "
                f"index says {dtype}{list(shape)}."
            )
            is_alike = (view.tensor.dtype, len(own)) == (dtype, len(shape))
            is_cut_otherwise = is_alike and sum(map(ne, own, shape)) == 1
            remedy = f"{COPY_AGAIN} {_UNEVEN}" if is_cut_otherwise else COPY_AGAIN
            raise InvalidCheckpoint(cause, remedy)
        if item.checksum not in (NO_CHECKSUM, view.record.crc):
            cause = (
                f"The item at offset {place[1]} holds other elements than the index was written "
                "for."
            )
            raise InvalidCheckpoint(cause, COPY_AGAIN)
        self.views[row] = view
        payload = located(view, int(self.slices.nbytes[row]), row)
        # The checksum of a payload is that of its whole record.
        if payload.checksum == NO_CHECKSUM and (
            view.record.crc == NO_CHECKSUM or not view.spans_record
        ):
            self.unguarded.add(row)
        return payload

    def _placed(self, row: int, error: ShardvarError) -> ShardvarError:
        name, key = self.data.names[self.file[row]], self.slices.key(row)
        return error.at(repr(key), *([] if name in error.cause else [name])).in_file(name)


def open_dcp(storage: Storage, name: str) -> TorchSource:
    """Open the checkpoint of a folder; the index is read again if another one replaced it."""
    for _ in range(ATTEMPTS):
        file = _open_index(storage, name)
        try:
            with prefix_errors(file.name), without_collection():
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
                source = _source(storage, parse_metadata(data))
            source.data.hold()
            if not is_replaced(storage, name, file):
                source.data.watch(partial(is_replaced, storage, name, file))
                return source
            source.close()
        finally:
            file.close()
    raise replaced_error(file.name)


def _open_index(storage: Storage, name: str) -> ReadableFile:
    try:
        return storage.open(name)
    except MissingFile as error:
        ranks = [*filter(_RANK_METADATA.fullmatch, storage.names())]
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


def _source(storage: Storage, items: Items) -> TorchSource:
    faults = dict(items.faults)
    remarks = [
        Finding(METADATA, f"It has items of {key!r}, which it does not describe.", True)
        for key in items.strays
    ]
    # Files: only bare names, so that nothing outside of the folder is opened.
    names = sorted({place[0] for place in items.places if is_bare(place[0])})
    number = {name: position for position, name in enumerate(names)}
    for item in items.rows:
        if item.file not in number:
            key = items.facts[item.tensor][0]
            cause = f"{key!r}: {item.file[:200]!r} is not the name of a file in the folder of the checkpoint."
            remedy = "Use a checkpoint whose files lie next to its index."
            faults.setdefault(key, InvalidCheckpoint(cause, remedy))
    # Items: tiling.
    sizes, overlapping, gaps = _tile(items, number)
    for item in items.rows:
        if (item.file, item.start) in overlapping:
            key = items.facts[item.tensor][0]
            faults.setdefault(key, invalid(f"{key!r}: Its item shares bytes with another one."))
    remarks += [
        Finding(name, f"The {nbytes} bytes at offset {start} belong to no item.", True)
        for name, start, nbytes in gaps
    ]
    if items.rest_nbytes:
        message = f"{items.rest_nbytes} bytes follow the pickle, which torch ignores."
        remarks.append(Finding(METADATA, message, False))
    data = DataFiles(storage, names, written=sizes)
    slices = _slices(items)
    file = np.array([number.get(item.file, 0) for item in items.rows], np.int64)
    held = DcpItems(items, data, slices, file)
    alone = np.full(len(slices), -1)
    index = DeferredIndex(
        slices, file, names, faults, held.locate, alone, True, held.lost, items.about
    )
    # Tensors are read whole with their items; objects have other sizes than their items.
    good = np.array([key not in index.broken for key in slices.tensors.keys], np.bool)
    rows = np.flatnonzero(good[slices.tensor] & (slices.codes() != code(STRING)))
    columns = rows, held.file[rows], *held.extent(rows), slices.nbytes[rows]
    unframe = partial(held.unframe, index)
    index.enclosed = Enclosed.of(held.data, np.column_stack(columns), unframe)
    return _DcpSource(index, data, held.views, held.payloads, storage, held, remarks)


@entity
class _DcpSource(TorchSource):
    index: DeferredIndex = field()
    storage: Storage
    held: DcpItems
    remarks: Sequence[Finding]

    bare_index = METADATA

    def findings(self) -> Sequence[Finding]:
        others = [  # such as the files of a larger job
            Finding(name, "The index has no item in this file.", False)
            for name in self.storage.names()
            if name.endswith(DATA_SUFFIX) and name not in self.data.names
        ]
        return [*self.remarks, *others]

    def is_guarded(self, key: str) -> bool:
        # The frames of a key that is refused may lie anywhere, and none of them is read.
        return self.held.unguarded.isdisjoint(self.index.rows_of(key).tolist())

    def objects(self, keys: Collection[str], form: str) -> Mapping[str, bytes]:
        """Return the encodings of plain objects, or the items of all, undamaged."""
        return self.held.read_objects(self.index, keys, form == "torch")


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
        overlapping |= {(names[file[near]], int(start[near])) for near in (row - 1, row)}
    gaps = [
        (names[file[row]], int(due[row]), int(start[row] - due[row]))
        for row in np.flatnonzero(start > due).tolist()
    ]
    return sizes, overlapping, gaps


def _slices(items: Items) -> SliceTable:
    tensors = TensorTable.of(items.facts)
    tensor = np.array([item.tensor for item in items.rows], np.int64)
    nbytes = np.array([item.nbytes for item in items.rows], np.int64)
    offset, shape = tensors.padded(
        [item.offset for item in items.rows], [item.shape for item in items.rows]
    )
    # A tensor without elements is one slice, the whole of it. Its item has what one rank held of
    # it. One that reaches out of its tensor stays as it is, and is a fault.
    full = tensors.shapes[tensor]
    inside = ((offset >= 0) & (shape <= full - offset)).all(axis=1, keepdims=True)
    empty = (full == 0).any(axis=1, keepdims=True) & inside
    offset, shape = np.where(empty, 0, offset), np.where(empty, full, shape)
    return SliceTable.of(tensors, tensor, offset, shape, nbytes)
