"""The payloads of an ONNX model: in place, or decoded from varints and from bits.

Elements that share bytes are unpacked, any range by itself. Varints have no positions: a range is
decoded from the nearest place before it that a read has reached, so reading a payload block by
block passes over it once.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import cast

import ml_dtypes
import numpy as np
import numpy.typing as npt

from shardvar.errors import CheckpointError, ReadError, ShardvarError, prefix_errors
from shardvar.forks import new_lock
from shardvar.formats.files import DataFiles, FileSource
from shardvar.formats.onnx.contents import OnnxContents, PlacedTensor
from shardvar.formats.protocol import Finding
from shardvar.layout.dtypes import ITEMSIZES, Bools, Ints, code
from shardvar.planning.index import NO_CHECKSUM, EntryTable, Metadata, TableIndex, find_shared
from shardvar.planning.slices import SliceTable, TensorTable, pad
from shardvar.wire.damage import invalid, past_limit
from shardvar.wire.varint import MAX_VARINT_NBYTES, decode_varints

_STEP = 1 << 16
"""Varints that are decoded at once."""


@dataclass(frozen=True, slots=True, eq=False)
class OnnxSource(FileSource):
    """An open model."""

    contents: OnnxContents
    """The tensors."""
    index: TableIndex = field(init=False)
    """The table of contents; ``start`` of a non-plain entry numbers ``contents.tensors``."""
    _reached: dict[int, tuple[list[int], list[int]]] = field(init=False, default_factory=dict)
    """For each tensor of varints, the numbers of elements that were reached, and their places."""
    _lock: RLock = field(init=False, default_factory=new_lock)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", _index(self.contents))

    @property
    def data(self) -> DataFiles:
        """The model, and the files of external data."""
        return self.contents.data

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        """[rows] Return True for varints, which are decoded one after the other."""
        tensors = self.contents.tensors
        return np.array(
            [
                not entries.plain[row] and tensors[int(entries.start[row])].is_varints
                for row in rows.tolist()
            ],
            np.bool,
        )

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the payload of one entry, from byte ``start`` of the payload on."""
        begin = int(entries.start[row])
        if entries.plain[row]:
            self.read_span(int(entries.file[row]), begin + start, buffer)
            return
        tensor = self.contents.tensors[begin]
        if tensor.payload is not None:
            buffer[:] = tensor.payload[start : start + len(buffer)]
        elif tensor.bits:
            # Of elements of 6 bits, 4 have 3 bytes of the file. So the elements 5 to 9, which are
            # bytes of the payload, are in the groups 1 and 2, from element 4 on.
            count, nbytes = (4, 3) if tensor.bits == 6 else (8 // tensor.bits, 1)
            first, stop = start // count, -(-(start + len(buffer)) // count)
            octets = self._bytes(begin, tensor, first * nbytes, stop * nbytes)
            buffer[:] = _unpacked(octets, tensor)[start - first * count :][: len(buffer)].tobytes()
        else:
            size = max(int(ITEMSIZES[code(tensor.dtype)]), 1)
            first, stop = start // size, -(-(start + len(buffer)) // size)
            stored = self._numbers(begin, tensor, first, stop).astype(f"<u{size}").tobytes()
            buffer[:] = stored[start - first * size :][: len(buffer)]

    def findings(self) -> Sequence[Finding]:
        """Return a note if the model has graphs for training."""
        if not self.contents.model.has_training:
            return ()
        cause = "It has graphs for training (training_info), whose tensors are not listed."
        return (Finding(self.contents.data.names[0], cause, False),)

    def is_guarded(self, key: str) -> bool | None:
        """Return True if the model has the checksum of the tensor's file."""
        tensor = self._tensor(key)
        return tensor is not None and bool(tensor.checksum)

    def is_part(self, key: str) -> bool:
        """Return True if a tensor has such a checksum, which no read of only the tensor compares."""
        return bool(self.is_guarded(key))

    def storage_errors(
        self, keys: Collection[str], only_read: bool = False
    ) -> Mapping[str, ReadError]:
        """Return the errors of those keys whose file has another checksum than the model says."""
        guarded = [each for each in self.contents.tensors if each.key in keys and each.checksum]
        nbytes: dict[int, int] = {}
        for tensor in guarded:
            nbytes[tensor.file] = nbytes.get(tensor.file, 0) + tensor.stop - tensor.start
        errors: dict[str, ReadError] = {}
        for tensor in guarded:
            if only_read and nbytes[tensor.file] < self.contents.sizes[tensor.file]:
                continue
            try:
                self.contents.check(tensor)
            except CheckpointError as error:
                errors[tensor.key] = error
        return errors

    def _tensor(self, key: str) -> PlacedTensor | None:
        """Return a tensor that can be read; None for any other key."""
        tensors = self.contents.tensors
        at = bisect_left(tensors, key, key=lambda each: each.key)
        return tensors[at] if at < len(tensors) and tensors[at].key == key else None

    def _bytes(
        self, number: int, tensor: PlacedTensor, first: int, stop: int
    ) -> npt.NDArray[np.uint8]:
        """Return bytes of elements that share bytes."""
        if tensor.is_varints:
            return self._numbers(number, tensor, first, min(stop, tensor.num_varints)).astype(
                np.uint8
            )
        octets = np.empty(min(stop, tensor.stop - tensor.start) - first, np.uint8)
        self.read_span(tensor.file, tensor.start + first, octets.data)
        return octets

    def _numbers(
        self, number: int, tensor: PlacedTensor, first: int, stop: int
    ) -> npt.NDArray[np.uint64]:
        """Return the varints [first, stop) of a tensor; behind the last one, its bytes end."""
        total = tensor.num_varints
        with self._lock:
            counts, places = self._reached.setdefault(number, ([0], [tensor.start]))
            at = bisect_right(counts, first) - 1
            count, place = counts[at], places[at]
        found: list[npt.NDArray[np.uint64]] = []
        while count < stop:
            wanted = min(_STEP - count % _STEP, total - count)
            room = min(wanted * MAX_VARINT_NBYTES, tensor.stop - place)
            file = self.data.open(tensor.file)
            with prefix_errors(f"{file.name}: {tensor.key!r}"):
                values, used = decode_varints(file.read(place, room), wanted)
            found.append(values[max(first - count, 0) : max(stop - count, 0)])
            count, place = count + wanted, place + used
            with self._lock:
                if count > counts[-1]:
                    counts.append(count)
                    places.append(place)
        if count == total and place != tensor.stop:
            raise invalid(
                f"{tensor.key!r}: {tensor.stop - place} bytes follow its {total} numbers."
            )
        return np.concatenate(found) if found else np.zeros(0, np.uint64)


def _unpacked(octets: npt.NDArray[np.uint8], tensor: PlacedTensor) -> npt.NDArray[np.uint8]:
    """Return elements that share bytes, a byte each as ``ml_dtypes`` has them."""
    bits = np.unpackbits(octets, bitorder="little")
    rows = bits[: len(bits) // tensor.bits * tensor.bits].reshape(-1, tensor.bits)
    elements = np.packbits(rows, axis=1, bitorder="little").reshape(-1)
    if not tensor.dtype.startswith("int"):
        return elements
    # Two's complement of 4 bits: 15 is -1.
    sign = 1 << (tensor.bits - 1)
    signed = (elements.astype(np.int8) ^ sign) - sign
    dtype = np.dtype(getattr(ml_dtypes, tensor.dtype))
    return signed.astype(dtype).view(np.uint8)


def _index(contents: OnnxContents) -> TableIndex:
    """Return the table of contents; tensors that share too many bytes are faults."""
    entries = _entries(contents.tensors)
    places = np.array([each.start for each in contents.tensors], np.int64)
    sizes = np.maximum(np.array(contents.sizes, np.int64), 0)
    shared = find_shared(replace(entries, start=places), sizes)
    faults: dict[str, ShardvarError] = dict(contents.faults)
    if shared.any():
        for row in np.flatnonzero(shared).tolist():
            what = "Its bytes also belong to other tensors, and the tensors are many times the file's size"
            error = past_limit(what, "MAX_PAYLOAD_EXPANSION")
            key = contents.tensors[row].key
            faults[key] = error.at(contents.data.names[0], repr(key))
        contents.tensors = [each for each in contents.tensors if each.key not in faults]
        entries = _entries(contents.tensors)
    model = contents.model
    metadata = Metadata("", model.producer, model.properties)
    names = [*contents.data.names]
    return TableIndex(entries, names, metadata, cast(Mapping[str, CheckpointError], faults))


def _entries(tensors: Sequence[PlacedTensor]) -> EntryTable:
    codes = np.array([code(each.dtype) for each in tensors], np.int64)
    table = TensorTable(
        [each.key for each in tensors], codes, *pad([each.shape for each in tensors], fill=1)
    )
    plain = np.array([each.is_plain for each in tensors], np.bool)
    sizes = np.array([each.nbytes for each in tensors], np.int64)
    whole = table.whole()
    slices = SliceTable.of(table, whole.tensor, whole.offset, whole.shape, sizes)
    return EntryTable(
        slices,
        np.array([each.file for each in tensors], np.int64),
        np.where(
            plain, np.array([each.start for each in tensors], np.int64), np.arange(len(tensors))
        ),
        np.full(len(tensors), NO_CHECKSUM),
        plain,
    )
