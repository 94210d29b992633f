"""ONNX, the tensors of models, in the model and in files next to it.

    raw_data, external data     little-endian elements, in C order; elements of less than a byte
                                follow each other without gaps, from the lowest bit on
    float_data, double_data     elements of 4 or 8 bytes: the same, if they are in one field
    int32_data, int64_data,     a varint for each element; narrow types are int32_data, and of
    uint64_data                 elements of 4 and 2 bits, each varint has a byte of them
    string_data                 a text each

External data are in a file next to the model, or in a folder below: ``location`` is its path,
``offset`` and ``length`` are the bytes (from the beginning, to the end without them), ``checksum``
is the SHA-1 of the whole file, which few programs write.

A fault of a tensor is a fault of its key and leaves the others readable.
"""

import hashlib
import re
from bisect import bisect_right
from collections.abc import Collection, Mapping
from math import prod
from typing import NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from shardvar.errors import (
    COPY_AGAIN,
    READ_ERRORS,
    CheckpointError,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MissingFile,
    ReadError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.forks import new_lock
from shardvar.formats.files import (
    DataFiles,
    FilesBelow,
    find_files,
    first_bytes,
    of_another_set,
    read_blocks,
    strangers,
    structure_of,
)
from shardvar.formats.listing import (
    ListedFormat,
    ListedSource,
    ListedTensor,
    Listing,
    ReadSpan,
    check_size,
)
from shardvar.formats.protocol import Finding
from shardvar.formats.sets import is_bare
from shardvar.layout.dtypes import HALVES, STRING, code, slice_nbytes
from shardvar.planning.index import Metadata
from shardvar.records import entity, field, frozen, mutable
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire import onnx, strings
from shardvar.wire.damage import (
    corrupt,
    distrusted,
    foreign_file,
    incomplete,
    invalid,
    kind_of,
    past_limit,
)
from shardvar.wire.protobuf import MAX_VARINT_NBYTES, decode_varints

_WHAT = "an ONNX model"
_RENAME = "Rename one of them in the model, or export it again."
_DATA = re.compile(r"(.*\.onnx)[._]data([._-]\d+)?", re.DOTALL)
"""The usual names of the files next to a model: of torch.onnx, and of onnxruntime."""
_STEP = 1 << 16
"""Varints that are decoded at once."""


class _Type(NamedTuple):
    dtype: str  # of the payload
    field: int  # of a tensor, which has its numbers if ``raw_data`` has not
    bits: int = 0  # of an element, if they are less than the payload's


_NUMBERED = (
    "float32 uint8 int8 uint16 int16 int32 int64 string bool float16 float64 uint32 uint64 "
    "complex64 complex128 bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
    "uint4 int4 float4_e2m1fn_packed float8_e8m0fnu uint2 int2 float6_e2m3fn float6_e3m2fn"
).split()
_FIELDS = {
    "float32": onnx.FLOATS, "complex64": onnx.FLOATS, "float64": onnx.DOUBLES, "complex128": onnx.DOUBLES,
    "int64": onnx.INT64S, "uint32": onnx.UINT64S, "uint64": onnx.UINT64S, STRING: onnx.STRINGS,
}  # fmt: skip
_BITS = {
    "uint2": 2, "int2": 2, "uint4": 4, "int4": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6,
}  # fmt: skip
_TYPES = {
    number: _Type(name, _FIELDS.get(name, onnx.INT32S), _BITS.get(name, 0))
    for number, name in enumerate(_NUMBERED, 1)
}
"""The data types by their numbers. ONNX packs ``float4_e2m1fn`` as the packed dtype does."""


class _Guard(NamedTuple):
    """The checksum of the file that a tensor is in."""

    file: int
    nbytes: int  # of the tensor in it
    checksum: str


@mutable(kw_only=True)
class _OnnxListing(Listing):
    """The tensors of a model. The model is file 0, and files of external data follow."""

    storage: Storage
    model: onnx.OnnxModel
    names: list[str]
    sizes: list[int]  # [files] -1 if it is missing
    numbers_of: dict[str, int] = field(default_factory=dict)
    """The number of each file of external data, by its path."""
    guards: dict[str, _Guard] = field(default_factory=dict)
    varints: "_Varints"
    wanted: list[str] = field(default_factory=list)
    """The files that the model names, once one was missing."""
    others: list[str] = field(default_factory=list)
    """The files of another set, looked for then."""


def _read(storage: Storage, name: str) -> _OnnxListing:
    """Return the contents of a model; files of external data are looked for and not read."""
    names = [name]
    data = DataFiles(FilesBelow(storage), names, named=name)
    file = data.open(0)
    with prefix_errors(file.name):
        first = first_bytes(file)
        # A model begins with the number of its version, as few other files do.
        if not first or (not first.startswith(b"\x08") and kind_of(first) is not None):
            raise foreign_file(_WHAT, first, file.size, "it begins otherwise")
        model = onnx.parse_model(structure_of(file, data.traits).read, file.size)
    listing = _OnnxListing(
        data=data,
        metadata=Metadata("", model.producer, model.properties),
        storage=storage,
        model=model,
        names=names,
        sizes=[file.size],
        varints=_Varints(data),
    )
    data.note(0, model.fault and model.fault.at(file.name))
    if model.has_training:
        cause = "It has graphs for training (training_info), whose tensors are not listed."
        listing.findings.append(Finding(name, cause, False))
    keys: set[str] = set()
    for tensor in model.tensors:
        try:
            if tensor.name in keys:
                raise InvalidCheckpoint("Two tensors have this name.", _RENAME)
            listing.tensors.append(_placed(tensor, listing))
        except (*READ_ERRORS, UnsupportedError) as error:
            listing.faults[tensor.name] = error.at(file.name, repr(tensor.name)).in_file(
                error.file or name
            )
        keys.add(tensor.name)
    for shared in listing.shared(np.maximum(np.array(listing.sizes, np.int64), 0)):
        what = (
            "Its bytes also belong to other tensors, and the tensors are many times the file's size"
        )
        fault = past_limit(what, "MAX_PAYLOAD_EXPANSION")
        listing.faults[shared.key] = fault.at(name, repr(shared.key))
    return listing


def _placed(tensor: onnx.OnnxTensor, listing: _OnnxListing) -> ListedTensor:
    """Return one tensor with the place of its elements; raise if it has none."""
    if tensor.error is not None:
        raise tensor.error
    if tensor.kind not in _TYPES:
        cause = f"It has the data type {tensor.kind}, which is unknown."
        raise UnsupportedError(cause, "Leave it out with a filter (--exclude).")
    kind, shape = _TYPES[tensor.kind], tensor.dims
    if any(each < 0 for each in shape):
        raise invalid(f"An extent of its shape {list(shape)} is negative.")
    check_size(shape, 16)
    if kind.dtype == STRING:
        count = prod(shape)
        if tensor.data or tensor.external is not None or len(tensor.strings) != count:
            raise incomplete(
                f"It has {len(tensor.strings)} of the {count} texts that its shape {list(shape)} needs."
            )
        return _texts(tensor, listing.data.open(0))
    extents = np.array([shape], np.int64).reshape(1, len(shape))
    nbytes = int(slice_nbytes(np.array([code(kind.dtype)]), extents)[0])
    stored = -(-prod(shape) * kind.bits // 8) if kind.bits else nbytes
    placed = ListedTensor(tensor.name, kind.dtype, shape, 0, 0)
    if tensor.external is not None:
        file, start, stop = _external(tensor.external, listing)
        checksum = tensor.external.get("checksum", "").lower()
        if checksum:
            listing.guards[tensor.name] = _Guard(file, stop - start, checksum)
    else:
        file = 0
        has_raw = onnx.RAW in tensor.data
        start, stop = tensor.data.get(onnx.RAW if has_raw else kind.field, (0, 0))
        if len(tensor.data) > 1 or (tensor.data and (start, stop) == (0, 0)):
            raise invalid("Its elements are in several fields, or in one of another type.")
        if not has_raw and kind.field not in (onnx.FLOATS, onnx.DOUBLES):
            # Elements of 6 bits have a varint each, as all that have a byte or more.
            bits = kind.bits if kind.bits != 6 else 0
            count = stored if bits or kind.dtype == HALVES else prod(shape)
            if not count <= stop - start <= 10 * count:  # a varint has 1 to 10 bytes
                raise incomplete(f"Its {count} numbers cannot be in {stop - start} bytes.")
            elements = _Elements(stop, bits, count, listing.varints)
            return placed._replace(start=start, decode=elements.read_into, is_in_order=True)
    if stop - start != stored:
        error = IncompleteCheckpoint if stop - start < stored else InvalidCheckpoint
        cause = f"Its shape {list(shape)} of {kind.dtype} needs {stored} bytes, but it has {stop - start}."
        raise error(cause, COPY_AGAIN)
    decode = _Elements(stop, kind.bits).read_into if kind.bits else None
    return placed._replace(file=file, start=start, decode=decode)


def _texts(tensor: onnx.OnnxTensor, file: ReadableFile) -> ListedTensor:
    texts = np.empty(len(tensor.strings), object)
    texts[:] = [file.read(start, stop - start) for start, stop in tensor.strings]
    payload = strings.encode(texts)

    def decode(_read: ReadSpan, _tensor: ListedTensor, start: int, buffer: memoryview) -> None:
        buffer[:] = payload[start : start + len(buffer)]

    return ListedTensor(tensor.name, STRING, tensor.dims, 0, 0, decode, size=len(payload))


def _external(external: Mapping[str, str], listing: _OnnxListing) -> tuple[int, int, int]:
    """Return the number of a file of external data, and the range of a tensor in it."""
    location = external.get("location", "")
    *steps, last = location.removeprefix("./").split("/")
    if not all(map(is_bare, (*steps, last))):
        raise distrusted(
            f"Its data are at {location[:200]!r}, which is not in the folder of the model."
        )
    path = "/".join([*steps, last])
    if path not in listing.numbers_of:
        folder = listing.storage
        for step in steps:
            folder = folder.folder(step)
        status = folder.status(last)
        listing.numbers_of[path] = len(listing.names)
        listing.names.append(path)
        listing.sizes.append(-1 if status is None else status.nbytes)
    number = listing.numbers_of[path]
    size = listing.sizes[number]
    if size < 0:
        if not listing.wanted:
            tensors = (each.external for each in listing.model.tensors if each.external)
            places = {each.get("location", "").removeprefix("./") for each in tensors}
            listing.wanted = sorted(places)
            listing.others = strangers(listing.storage, listing.wanted)
        if listing.others:
            raise of_another_set(listing.others, listing.wanted)
        remedy = "Copy the files of external data together with the model."
        raise MissingFile(f"Its data are in {path}, which is missing.", remedy).in_file(path)
    start = _number(external, "offset", 0)
    stop = start + _number(external, "length", max(size - start, 0))
    if stop > size:
        raise incomplete(f"Its data are the bytes {start} to {stop} of {path}, which has {size}.")
    return number, start, stop


def _number(external: Mapping[str, str], name: str, otherwise: int) -> int:
    text = external.get(name, "")
    if not text:
        return otherwise
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise invalid(f"The {name} of its data is {text[:40]!r}, which is not a number.")
    return int(text)


class _Varints:
    """Numbers without positions, which are decoded from the nearest place reached before."""

    def __init__(self, data: DataFiles) -> None:
        self._data, self._lock = data, new_lock()
        self._reached: dict[str, tuple[list[int], list[int]]] = {}
        """By key, the numbers of elements that were reached, and their places."""

    def read(
        self, tensor: ListedTensor, end: int, total: int, first: int, stop: int
    ) -> npt.NDArray[np.uint64]:
        """Return the varints [first, stop) of ``total`` up to the byte ``end``."""
        with self._lock:
            counts, places = self._reached.setdefault(tensor.key, ([0], [tensor.start]))
            at = bisect_right(counts, first) - 1
            count, place = counts[at], places[at]
        parts: list[npt.NDArray[np.uint64]] = []
        while count < stop:
            wanted = min(_STEP - count % _STEP, total - count)
            room = min(wanted * MAX_VARINT_NBYTES, end - place)
            file = self._data.open(tensor.file)
            with prefix_errors(f"{file.name}: {tensor.key!r}"):
                values, used = decode_varints(file.read(place, room), wanted)
            parts.append(values[max(first - count, 0) : max(stop - count, 0)])
            count, place = count + wanted, place + used
            with self._lock:
                if count > counts[-1]:
                    counts.append(count)
                    places.append(place)
        if count == total and place != end:
            raise invalid(f"{tensor.key!r}: {end - place} bytes follow its {total} numbers.")
        return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


@frozen
class _Elements:
    """The elements of a tensor that are not in the file as in its payload."""

    stop: int  # the byte after the last one
    bits: int
    """Bits of an element in the file, if its elements share bytes and the payload's do not."""
    count: int = 0  # of varints
    varints: _Varints | None = None
    """The reader, if a varint has each element, or each byte of elements that share one."""

    def read_into(
        self, read: ReadSpan, tensor: ListedTensor, start: int, buffer: memoryview
    ) -> None:
        if self.bits:
            # Of elements of 6 bits, 4 have 3 bytes of the file. So the elements 5 to 9, which are
            # bytes of the payload, are in the groups 1 and 2, from element 4 on.
            count, nbytes = (4, 3) if self.bits == 6 else (8 // self.bits, 1)
            first, stop = start // count, -(-(start + len(buffer)) // count)
            octets = self._bytes(read, tensor, first * nbytes, stop * nbytes)
            elements = _unpacked(octets, tensor.dtype, self.bits)
            buffer[:] = elements[start - first * count :][: len(buffer)].tobytes()
        elif self.varints:
            size = max(tensor.itemsize, 1)
            first, stop = start // size, -(-(start + len(buffer)) // size)
            values = self.varints.read(tensor, self.stop, self.count, first, stop)
            octets = values.astype(f"<u{size}").view(np.uint8)
            buffer[:] = octets[start - first * size :][: len(buffer)].tobytes()

    def _bytes(
        self, read: ReadSpan, tensor: ListedTensor, first: int, stop: int
    ) -> npt.NDArray[np.uint8]:
        if self.varints:
            stop = min(stop, self.count)
            values = self.varints.read(tensor, self.stop, self.count, first, stop)
            return values.astype(np.uint8)
        octets = np.empty(min(stop, self.stop - tensor.start) - first, np.uint8)
        read(tensor.file, tensor.start + first, octets.data)
        return octets


def _unpacked(octets: npt.NDArray[np.uint8], dtype: str, width: int) -> npt.NDArray[np.uint8]:
    """Return elements that share bytes as ``ml_dtypes`` has them, a byte each."""
    bits = np.unpackbits(octets, bitorder="little")
    rows = bits[: len(bits) // width * width].reshape(-1, width)
    elements = np.packbits(rows, axis=1, bitorder="little").reshape(-1)
    if not dtype.startswith("int"):
        return elements
    # Two's complement of 4 bits: 15 is -1.
    sign = 1 << (width - 1)
    signed = (elements.astype(np.int8) ^ sign) - sign
    return signed.astype(np.dtype(getattr(ml_dtypes, dtype))).view(np.uint8)


@entity
class _OnnxSource(ListedSource):
    """An open model; a checksum covers a whole file, which reading one tensor does not compare."""

    listing: _OnnxListing
    _digests: dict[int, str] = field(init=False, default_factory=dict)
    """The SHA-1 of files, once they were computed."""

    def is_guarded(self, key: str) -> bool:
        return key in self.listing.guards and key not in self.listing.faults

    is_part = is_guarded

    def storage_errors(
        self, keys: Collection[str], only_read: bool = False
    ) -> Mapping[str, ReadError]:
        guards = {
            each.key: self.listing.guards[each.key]
            for each in self.listing.tensors
            if each.key in keys and each.key in self.listing.guards
        }
        nbytes: dict[int, int] = {}
        for guard in guards.values():
            nbytes[guard.file] = nbytes.get(guard.file, 0) + guard.nbytes
        errors: dict[str, ReadError] = {}
        for key, guard in guards.items():
            if only_read and nbytes[guard.file] < self.listing.sizes[guard.file]:
                continue
            try:
                self._check(key, guard)
            except CheckpointError as error:
                errors[key] = error
        return errors

    def _check(self, key: str, guard: _Guard) -> None:
        if guard.file not in self._digests:
            file, sha1 = self.data.open(guard.file), hashlib.sha1(usedforsecurity=False)
            for octets in read_blocks(file, 0, file.size):
                sha1.update(octets)
            self._digests[guard.file] = sha1.hexdigest()
        digest = self._digests[guard.file]
        if digest != guard.checksum:
            raise corrupt(
                f"{self.data.names[guard.file]}: Its SHA-1 is {digest}, but the model says {guard.checksum}."
            ).at(repr(key))


def _find(storage: Storage, name: str) -> list[str]:
    """Return the models that a name may mean, which may be a file of external data."""
    data = _DATA.fullmatch(name)
    models = find_files(storage, name, (".onnx",))
    return models or ([data[1]] if data and data[1] in storage.names() else [])


FORMAT = ListedFormat("onnx", _find, _read, _OnnxSource)
