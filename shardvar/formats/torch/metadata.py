"""``.metadata``, the index of a distributed checkpoint: a pickle of one ``Metadata``, read as
columns.

    state_dict_metadata   key -> TensorStorageMetadata: dtype, full shape, and the region of each
                          slice ("chunk"), or BytesStorageMetadata: an object
    storage_data          MetadataIndex (key, offset of the slice) -> _StorageInfo: file, offset,
                          length
    planner_data          key -> the path of its value in the nested value that was saved
    shardvar what shardvar adds (``formats.torch.sink``) storage_meta, version and unknown
    attributes say nothing about bytes

A slice without elements may have the offset of another one, or of the end of its axis. It is never
read. A key with a field of the wrong type is a fault, and the others are read. Names of classes are
compared whole with ``_CLASSES``; a pickle that names any other would run code in Python, and is
refused whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, repeat
from math import prod
from typing import Any

import numpy as np

from shardvar.errors import (
    COPY_AGAIN,
    CheckpointError,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MalformedCheckpoint,
    ShardvarError,
    UnsupportedError,
)
from shardvar.formats.torch.tensors import dtype_of
from shardvar.layout.dtypes import STRING
from shardvar.limits import MAX_NBYTES, MAX_RANK
from shardvar.planning.index import NO_CHECKSUM, Metadata
from shardvar.wire.damage import DISTRUST, WRITE_AGAIN, check_key_nbytes, decoding, malformed
from shardvar.wire.inert import Global, Node
from shardvar.wire.pickle import parse_pickle

DCP = "torch.distributed.checkpoint."
"""The package of the classes of the index."""
ABOUT = "shardvar"
"""The attribute in which shardvar keeps what it knows about a checkpoint."""
_METADATA = f"{DCP}metadata.Metadata"
_TENSOR, _OBJECT = f"{DCP}metadata.TensorStorageMetadata", f"{DCP}metadata.BytesStorageMetadata"

Coordinates = tuple[int, ...]
_Place = tuple[str, int, int]
_Places = Mapping[tuple[str, Coordinates], _Place]
_COPY_INDEX = "Copy the index again, or save the checkpoint again."
_Described = tuple[str, Coordinates, list[tuple[Coordinates, Coordinates]]]
"""The dtype, the full shape, and offset and shape of each slice."""
_AN_OBJECT: _Described = (STRING, (), [((), ())])


@dataclass(slots=True, eq=False)
class Items:
    """The slices and objects of a checkpoint, and the place of each, column by column."""

    keys: list[str] = field(default_factory=list)
    """[n] the keys, tensors and objects, sorted."""
    dtypes: list[str] = field(default_factory=list)
    """[n] the dtype of each key; ``string`` for an object."""
    shapes: list[Coordinates] = field(default_factory=list)
    """[n] full shapes."""
    tensor: list[int] = field(default_factory=list)
    """[m] the key of each slice, as a position in ``keys``."""
    offset: list[Coordinates] = field(default_factory=list)
    """[m] the first indices of each slice in its tensor."""
    shape: list[Coordinates] = field(default_factory=list)
    """[m] the extents of each slice."""
    file: list[str] = field(default_factory=list)
    """[m] the name of the file of each item."""
    start: list[int] = field(default_factory=list)
    """[m] the first byte of each item, in bytes of its file."""
    nbytes: list[int] = field(default_factory=list)
    """[m] the size of each item."""
    faults: dict[str, ShardvarError] = field(default_factory=dict)
    """The keys that cannot be read, with the reason."""
    strays: list[str] = field(default_factory=list)
    """Keys that have items and are not among ``keys``."""
    rest_nbytes: int = 0
    """Bytes after the pickle, which torch ignores."""
    places: list[_Place] = field(default_factory=list)
    """File, first byte and size of every item, including unread ones."""
    checksum: list[int] = field(default_factory=list)
    """[m] the CRC-32 of the elements of each slice; ``NO_CHECKSUM`` if the index has none."""
    about: Metadata = field(default_factory=Metadata)
    """The description, the user's metadata, and the paths of the keys."""


def parse_metadata(data: bytes) -> Items:
    """Return the items of a checkpoint, from the bytes of ``.metadata``."""
    root, stop = parse_pickle(data, check=_check_name)
    if type(root) is not Node or root.name != _METADATA or type(root.state) is not dict:
        raise MalformedCheckpoint(
            "The file is a pickle of something else than the index of a checkpoint.", COPY_AGAIN
        )
    described, stored = root.state.get("state_dict_metadata"), root.state.get("storage_data")
    if type(described) is not dict or type(stored) is not dict:
        raise malformed("The index lacks the dict of its tensors or the dict of their places.")
    said = root.state.get(ABOUT, {})
    items = Items(rest_nbytes=len(data) - stop, about=_about(said, root.state.get("planner_data")))
    places, checksums = _places(items, stored, _checksums(said, len(stored)))
    sizes: dict[int, Coordinates] = {}
    for key in sorted(filter(_is_text, described)):
        try:
            _add(items, key, _described(described[key], sizes), places, checksums)
        except (CheckpointError, UnsupportedError) as error:
            items.faults.setdefault(key, error.at(repr(key)))
    if not all(map(_is_text, described)):
        raise malformed("A key of the index is not text.")
    check_key_nbytes(
        max((len(key.encode("utf-8", "surrogatepass")) for key in items.keys), default=0)
    )
    items.places = [*places.values()]
    items.strays = sorted(
        {key for key, _ in places if key not in described} | items.faults.keys() - described.keys()
    )
    return items


def _is_text(value: Any) -> bool:
    return type(value) is str


def _places(
    items: Items, stored: Mapping[Any, Any], known: list[int]
) -> tuple[dict[tuple[str, Coordinates], _Place], dict[tuple[str, Coordinates], int]]:
    """Return file, offset and length, and the checksum, of each item, by key and offset of the
    slice; collect faults.

    ``known`` are the checksums of the first items.
    """
    places: dict[tuple[str, Coordinates], _Place] = {}
    checksums: dict[tuple[str, Coordinates], int] = {}
    for (index, info), checksum in zip(
        stored.items(), chain(known, repeat(NO_CHECKSUM)), strict=False
    ):
        try:
            name, place = index.state, info.state
            key, offset = name["fqn"], name.get("offset")
            found = place["relative_path"], place["offset"], place["length"]
        except CheckpointError:
            raise
        except (AttributeError, KeyError, TypeError):
            raise malformed("An entry of the index lacks its key or its place.") from None
        offset = () if offset is None else offset
        if (
            type(key) is not str
            or type(offset) is not tuple
            or not all(type(each) is int for each in offset)
        ):
            raise malformed(
                "The key of an entry of the index is not text, or its offset not a tuple of "
                "integers."
            )
        # What is wrong with one place is a fault of its key; the others can be read.
        file, start, nbytes = found
        if type(file) is not str or type(start) is not int or type(nbytes) is not int:
            items.faults.setdefault(
                key, _fault(key, "The place of an item is not a file, an offset and a length.")
            )
        elif not (0 <= start <= MAX_NBYTES and 0 <= nbytes <= MAX_NBYTES):
            cause = f"An item of {nbytes} bytes begins at offset {start}."
            items.faults.setdefault(key, _fault(key, cause))
        elif place.get("transform_descriptors"):
            cause = (
                f"{key!r}: Its items were transformed by an extension of torch, such as a "
                "compression."
            )
            items.faults.setdefault(key, UnsupportedError(cause, "Save it without extensions."))
        elif places.setdefault((key, offset), found) != found:
            items.faults.setdefault(key, _fault(key, f"Two items begin at the index {offset}."))
        checksums[key, offset] = checksum
    return places, checksums


def _fault(key: str, cause: str) -> InvalidCheckpoint:
    return InvalidCheckpoint(f"{key!r}: {cause}", WRITE_AGAIN)


def _described(node: Any, sizes: dict[int, Coordinates]) -> _Described:
    """Return the index's entry of a key; ``sizes`` are checked tuples by id."""
    kind = node.name if type(node) is Node else None
    if kind == _OBJECT:
        return _AN_OBJECT
    if kind == _TENSOR:
        return _tensor(node.state, sizes)
    raise MalformedCheckpoint("The index describes neither a tensor nor an object.", WRITE_AGAIN)


def _add(
    items: Items,
    key: str,
    about: _Described,
    places: _Places,
    checksums: Mapping[tuple[str, Coordinates], int],
) -> None:
    """Add a key with its slices, or raise what is wrong with it."""
    dtype, full, slices = about
    if key in items.faults:
        return
    found = []
    for offset, shape in slices:
        place = places.get((key, offset))
        # torch forgets which of two slices was meant, if an empty one has the offset of another.
        if place is None and 0 not in shape:
            cause = f"The index has no place for the slice at {offset}."
            raise IncompleteCheckpoint(cause, _COPY_INDEX)
        if place is not None and (0 not in shape or 0 in full):
            found.append((offset, shape, place, checksums.get((key, offset), NO_CHECKSUM)))
    if 0 in full:
        found = found[:1]  # a tensor without elements is one slice, whichever rank wrote it
    if not found:
        raise IncompleteCheckpoint("The index has no place for any slice of it.", _COPY_INDEX)
    row = len(items.keys)
    items.keys.append(key)
    items.dtypes.append(dtype)
    items.shapes.append(full)
    for offset, shape, (file, start, nbytes), checksum in found:
        items.tensor.append(row)
        items.offset.append(offset)
        items.shape.append(shape)
        items.file.append(file)
        items.start.append(start)
        items.nbytes.append(nbytes)
        items.checksum.append(checksum)


_TEXTS = ("description", "writer", "generation")
"""The texts that shardvar stores in an index."""


def _about(said: Any, paths: Any) -> Metadata:
    """Return what the index says of the checkpoint itself."""
    said = said if type(said) is dict else {}
    texts = {name: value for name, value in said.items() if name in _TEXTS and _is_text(value)}
    user = said.get("user")
    user = user if type(user) is dict else {}
    paths = paths if type(paths) is dict else {}
    known = {
        key: path
        for key, path in paths.items()
        if type(key) is str
        and type(path) is tuple
        and path
        and all(type(step) in (str, int) for step in path)
    }
    return Metadata(
        **texts,
        user={key: text for key, text in user.items() if _is_text(key) and _is_text(text)},
        paths=known,
    )


def _checksums(said: Any, count: int) -> list[int]:
    """Return the CRC-32 of the elements of the first items; none if the index has none."""
    packed = said.get("crc32", b"") if type(said) is dict else b""
    if type(packed) is not bytes or len(packed) % 4 or len(packed) > 4 * count:
        raise malformed("The checksums of the index are not as many as its items.")
    checksums: list[int] = np.frombuffer(packed, "<u4").tolist()
    return checksums


def _is_shape(extents: Coordinates) -> bool:
    """Return True for a tuple of sizes."""
    if not extents or len(extents) > MAX_RANK:
        return not extents
    return {*map(type, extents)} == {int} and min(extents) >= 0 and max(extents) <= MAX_NBYTES


def _tensor(state: Any, sizes: dict[int, Coordinates]) -> _Described:
    """Return the dtype, the full shape, and offset and shape of each slice."""
    cause = "The index lacks its dtype, its shape or its slices."
    with decoding(
        lambda _: MalformedCheckpoint(cause, WRITE_AGAIN),
        *(AttributeError, KeyError, TypeError, IndexError),
    ):
        properties, full, chunks = state["properties"].state, state["size"], state["chunks"]
        slices = [(each.state["offsets"], each.state["sizes"]) for each in chunks]
        dtype = properties[0] if type(properties) is tuple else properties["dtype"]
    rank = len(full) if type(full) is tuple else MAX_RANK + 1
    # The tensors of an index have few shapes, so each is looked at once; keeping it keeps its id
    # from other values.
    for extents in (full, *chain.from_iterable(slices)):
        if id(extents) not in sizes and type(extents) is tuple and _is_shape(extents):
            sizes[id(extents)] = extents
            # An element has at most 16 bytes, and NumPy cannot hold (2**62, 0) either.
            if prod(filter(None, extents)) > MAX_NBYTES // 16:
                raise InvalidCheckpoint(
                    f"Its shape {extents}, or the shape of a slice, is too large to exist.",
                    DISTRUST,
                )
        if id(extents) not in sizes or len(extents) != rank:
            raise MalformedCheckpoint(
                "Its shape, or the region of a slice, is not a tuple of sizes.", WRITE_AGAIN
            )
    if type(dtype) is not Global:
        raise MalformedCheckpoint("Its dtype is not one of torch's.", WRITE_AGAIN)
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
"""The beginnings of the names of torch's dtypes begin; of later releases too."""
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
    # Megatron-core adds the plans of its ranks, which say nothing that the index does not say.
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
    """Raise if a name is not one that torch writes into an index."""
    is_dtype = name.startswith(_DTYPE_WORDS) and name.count(".") == 1
    if name not in _CLASSES and not is_dtype:
        cause = f"The index names {name[:200]}, which Python would import or call; nothing was run."
        raise InvalidCheckpoint(cause, DISTRUST)
