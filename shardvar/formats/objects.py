"""Plain objects that a checkpoint carries in its metadata, in formats that have only tensors.

Settings such as a learning rate belong to a training state, and tensors are not the place for them.
All of them are one document (``wire.plain``), which lies where a format keeps texts:

    native                   the user's metadata, under ``OBJECTS``
    safetensors              ``__metadata__`` of each file, under ``OBJECTS``
    orbax, zarr              the custom metadata of the tree, the attributes of the group
    npz                      an array of bytes (uint8) with the key ``OBJECTS``
    tensorflow               a string tensor without axes with that key, in a separate file
    torch, pt                nowhere: they have objects of their own

A sink writes ``texts_with_objects(metadata)``, or ``document_of(metadata)``. A source gives the
document among the user's metadata, or as a tensor, and ``with_objects`` wraps the source: objects
are listed as the formats of torch list theirs, as strings without a shape, whose payload is the
literal. Every verb then works with them.

An object that cannot be decoded is a fault of its key. A document that cannot is a fault of the key
``OBJECTS``; the tensors can be read all the same.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from shardvar.errors import (
    READ_ERRORS,
    CheckpointError,
    InvalidCheckpoint,
    UnknownKey,
    UnsupportedError,
)
from shardvar.formats.protocol import Source, WrappedSource
from shardvar.layout.dtypes import STRING, Bools, Ints
from shardvar.limits import MAX_OBJECTS_NBYTES
from shardvar.planning.index import (
    NO_CHECKSUM,
    OBJECTS,
    EntryTable,
    Index,
    Metadata,
    ScannedFaults,
    of_tensors,
    unknown_key,
)
from shardvar.planning.slices import Capabilities, TensorTable
from shardvar.records import entity, field, replace
from shardvar.wire import strings
from shardvar.wire.damage import corrupt, invalid, past_limit
from shardvar.wire.plain import (
    Tagged,
    build_objects,
    decode_value,
    encode_value,
    literal_of,
    parse_objects,
    value_of_node,
)


def payload_of(value: Any) -> bytes:
    return strings.encode(np.array(_literal(value), object))


def listed_text(encoding: bytes) -> bytes:
    """Return the element of the string tensor that an object is listed as, from its encoding."""
    return _literal(decode_value(encoding.decode("ascii")))


def _literal(value: Any) -> bytes:
    return literal_of(value).encode("utf-8", "surrogatepass")


def texts_with_objects(metadata: Metadata) -> dict[str, str]:
    """Return the user's metadata, with the document of the objects if there are any."""
    if not metadata.objects:
        return dict(metadata.user)
    return {**metadata.user, OBJECTS: document_of(metadata)}


def document_of(metadata: Metadata, keys: Sequence[str] = ()) -> str:
    """Return the document of the objects, empty without any; ``keys`` are the tensors."""
    if OBJECTS in keys:
        cause = f"A tensor has the key {OBJECTS!r}, under which the format has objects."
        raise UnsupportedError(cause, "Rename the tensor (--rename).")
    encodings = {key: octets.decode("ascii") for key, octets in metadata.objects.items()}
    return build_objects(encodings) if encodings else ""


def with_objects(source: Source, can: Capabilities) -> Source:
    if can.objects_in_tensor:
        index = _index(source, lambda: _read_tensor(source), OBJECTS)
    else:
        text = source.index.metadata.user[OBJECTS]
        index = _index(source, lambda: text, None)
    return ObjectsSource(source, index, can.guards_metadata)


def _read_tensor(source: Source) -> str:
    entries = source.index.find(OBJECTS)
    dtype, nbytes = entries.slices.dtype(0), int(entries.slices.nbytes.sum())
    if (
        dtype not in (STRING, "uint8")
        or len(entries) != 1
        or len(entries.slices.tensors.shape(0)) > 1
    ):
        raise invalid("The objects are not one text.")
    if nbytes > MAX_OBJECTS_NBYTES + 16:  # of the length and the checksum of a string
        raise past_limit(f"The objects have {nbytes} bytes", "MAX_OBJECTS_NBYTES")
    payload = bytearray(nbytes)
    source.read_into(entries, 0, 0, memoryview(payload))
    # The source compares the checksum of an entry that is not plain.
    crc, expected = source.crc, int(entries.checksum[0])
    if crc is not None and expected not in (NO_CHECKSUM, crc.compute(payload)):
        raise corrupt(f"The {nbytes} bytes of the objects disagree with their checksum.")
    octets = strings.decode(payload, entries.slices.tensors.shape(0)) if dtype == STRING else None
    text = payload if octets is None else b"".join(octets.reshape(-1).tolist())
    return text.decode("ascii", "replace")


@entity
class ObjectsIndex:
    inner: Index
    metadata: Metadata
    """The metadata of the checkpoint, without the document."""
    objects: EntryTable
    """The objects; each has a start below 0."""
    payloads: list[bytes]
    encodings: dict[str, bytes]
    broken: Mapping[str, CheckpointError]
    known: frozenset[str]
    """The keys that are equal objects in ``inner``: texts of Orbax."""
    hidden: str | None
    """The key of the tensor that is the document, if it is one."""

    @property
    def files(self) -> list[str]:
        return [*self.inner.files]

    @property
    def faults(self) -> ScannedFaults:
        return ScannedFaults(self._fault_of, self._all_faults)

    def find(self, key: str) -> EntryTable:
        if key == self.hidden:
            raise unknown_key(key, self.encodings)
        if key not in self.encodings:
            return self.inner.find(key)
        row = self.objects.slices.tensors.rows()[key]
        return of_tensors(self.objects, np.array([row]))

    def scan(self) -> Iterator[EntryTable]:
        for entries in self.inner.scan():
            keys = entries.slices.tensors.keys
            shown = [
                row
                for row, key in enumerate(keys)
                if key not in self.encodings and key != self.hidden
            ]
            yield (
                entries
                if len(shown) == len(keys)
                else of_tensors(entries, np.array(shown, np.int64))
            )
        if self.encodings:
            yield self.objects

    def _fault_of(self, key: str) -> CheckpointError | None:
        if key in self.broken:
            return self.broken[key]
        if key in self.encodings and key not in self.known and _is_there(self.inner, key):
            return _both(key)
        return self.inner.faults.get(key)

    def _all_faults(self) -> Mapping[str, CheckpointError]:
        keys = [key for entries in self.inner.scan() for key in entries.slices.tensors.keys]
        faults = dict(self.inner.faults.items())
        both = {*keys, *faults}.intersection(self.encodings).difference(self.known)
        return faults | {key: _both(key) for key in both} | dict(self.broken)


def _both(key: str) -> InvalidCheckpoint:
    return invalid(f"{key!r} is both a tensor and an object.")


@entity
class ObjectsSource(WrappedSource):
    inner: Source = field()
    index: ObjectsIndex = field()
    are_guarded: bool  # by checksums of the metadata

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        number = -1 - int(entries.start[row])
        if number < 0:
            self.inner.read_into(entries, row, start, buffer)
        else:
            buffer[:] = self.index.payloads[number][start : start + len(buffer)]

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        answers, held = np.zeros(len(rows), np.bool), entries.start[rows] >= 0
        answers[held] = self.inner.in_order(entries, rows[held])
        return answers

    def expect(self, entries: EntryTable, rows: Ints) -> None:
        self.inner.expect(entries, rows[entries.start[rows] >= 0])

    def decode(self, entries: EntryTable, row: int) -> memoryview | None:
        return self.inner.decode(entries, row) if entries.start[row] >= 0 else None

    def is_guarded(self, key: str) -> bool | None:
        return self.are_guarded if key in self.index.encodings else self.inner.is_guarded(key)

    def dequantized(self) -> Source:
        return replace(self, inner=self.inner.dequantized())

    def objects(self, keys: Collection[str], form: str) -> Mapping[str, bytes]:
        held = self.inner.objects(keys, form) or {}
        own = {key: each for key, each in self.index.encodings.items() if key in keys}
        return {**held, **own}


def _index(source: Source, read: Callable[[], str], hidden: str | None) -> ObjectsIndex:
    """Return the table of contents; the document may be the tensor with the key ``hidden``."""
    faults: dict[str, CheckpointError | UnsupportedError] = {}
    try:
        nodes = parse_objects(read())
    except (CheckpointError, UnsupportedError) as error:
        nodes, faults[OBJECTS] = {}, error.at(repr(OBJECTS))
    encodings: dict[str, bytes] = {}
    payloads: list[bytes] = []
    for key, node in nodes.items():
        try:
            value = value_of_node(node)
            payload, encoding = payload_of(value), encode_value(value).encode("ascii")
        except (CheckpointError, UnsupportedError) as error:
            faults[key] = error.at(repr(key))
        else:
            encodings[key] = encoding
            payloads.append(payload)
    inner = source.index
    held = source.objects([*encodings], "") or {}
    texts = {key: value_of_node(nodes[key]) for key in held}
    known = frozenset(
        key
        for key, octets in held.items()
        if type(texts[key]) is str
        and encode_value(Tagged("text", texts[key])).encode("ascii") == octets
    )
    user = {name: each for name, each in inner.metadata.user.items() if name != OBJECTS}
    # An object belongs to no data file; the number of the first one keeps columns of numbers valid.
    slices = TensorTable.of((key, STRING, ()) for key in encodings).whole()
    slices = replace(slices, nbytes=np.array([*map(len, payloads)], np.int64))
    start = -1 - np.arange(len(payloads))
    entries = EntryTable.without_checksums(slices, start, plain=False)
    return ObjectsIndex(
        inner,
        replace(inner.metadata, user=user),
        entries,
        payloads,
        encodings,
        cast(Mapping[str, CheckpointError], faults),
        known,
        hidden,
    )


def _is_there(index: Index, key: str) -> bool:
    try:
        index.find(key)
    except UnknownKey:
        return key in index.faults
    except READ_ERRORS:
        return True
    return True
