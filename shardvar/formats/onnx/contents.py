"""The contents of an ONNX model: its tensors, and where their elements are.

    raw_data, external data     little-endian elements, in C order; the ones of less than a byte
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
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import numpy as np

from shardvar.errors import (
    COPY_AGAIN,
    READ_ERRORS,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MissingFile,
    ShardvarError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles, of_another_set, open_below, strangers
from shardvar.formats.sets import is_bare
from shardvar.formats.window import structure_of
from shardvar.layout.dtypes import HALVES, STRING, code, slice_nbytes
from shardvar.limits import MAX_NBYTES
from shardvar.storage.protocol import ReadableFile, Storage, Traits
from shardvar.wire import onnx, strings
from shardvar.wire.damage import DISTRUST, SNIFF_NBYTES, foreign_file, invalid
from shardvar.wire.kinds import kind_of

_WHAT = "an ONNX model"
_RENAME = "Rename one of them in the model, or export it again."


class _Type(NamedTuple):
    """A data type of ONNX."""

    dtype: str
    """The dtype of the payload."""
    field: int
    """The field of a tensor that has its numbers, if ``raw_data`` has not."""
    bits: int = 0
    """Bits of an element, if they are less than the payload's."""


_TYPES = {
    1: _Type("float32", onnx.FLOATS), 2: _Type("uint8", onnx.INT32S), 3: _Type("int8", onnx.INT32S),
    4: _Type("uint16", onnx.INT32S), 5: _Type("int16", onnx.INT32S), 6: _Type("int32", onnx.INT32S),
    7: _Type("int64", onnx.INT64S), 8: _Type(STRING, onnx.STRINGS), 9: _Type("bool", onnx.INT32S),
    10: _Type("float16", onnx.INT32S), 11: _Type("float64", onnx.DOUBLES), 12: _Type("uint32", onnx.UINT64S),
    13: _Type("uint64", onnx.UINT64S), 14: _Type("complex64", onnx.FLOATS), 15: _Type("complex128", onnx.DOUBLES),
    16: _Type("bfloat16", onnx.INT32S), 17: _Type("float8_e4m3fn", onnx.INT32S),
    18: _Type("float8_e4m3fnuz", onnx.INT32S), 19: _Type("float8_e5m2", onnx.INT32S),
    20: _Type("float8_e5m2fnuz", onnx.INT32S), 21: _Type("uint4", onnx.INT32S, 4), 22: _Type("int4", onnx.INT32S, 4),
    23: _Type(HALVES, onnx.INT32S), 24: _Type("float8_e8m0fnu", onnx.INT32S),
    25: _Type("uint2", onnx.INT32S, 2), 26: _Type("int2", onnx.INT32S, 2),
    27: _Type("float6_e2m3fn", onnx.INT32S, 6), 28: _Type("float6_e3m2fn", onnx.INT32S, 6),
}  # fmt: skip
"""The data types by their numbers. ONNX packs ``float4_e2m1fn`` as the packed dtype does."""


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """A tensor that can be read."""

    key: str
    """Its name."""
    dtype: str
    """The dtype of its payload."""
    shape: tuple[int, ...]
    """Its shape."""
    nbytes: int
    """The size of its payload."""
    file: int
    """The number of its file; the model is 0."""
    start: int
    """Its first byte, in bytes of the file."""
    stop: int
    """The byte after its last one."""
    bits: int = 0
    """Bits of an element in the file, if its elements share bytes and the payload's do not."""
    is_varints: bool = False
    """True if a varint has each element, or each byte of elements that share one."""
    num_varints: int = 0
    """Their number."""
    payload: bytes | None = None
    """The payload itself, of texts."""
    checksum: str = ""
    """The SHA-1 of its file; empty without one."""

    @property
    def is_plain(self) -> bool:
        """True if its payload lies in the file byte for byte."""
        return not self.bits and not self.is_varints and self.payload is None


@dataclass(frozen=True, slots=True)
class _Folder:
    """The folder of a model, whose files have paths with "/"."""

    root: Storage

    @property
    def traits(self) -> Traits | None:
        """The cost of a request."""
        return self.root.traits

    def open(self, name: str) -> ReadableFile:
        """Open a file in the folder or below."""
        return open_below(self.root, name)


@dataclass(slots=True, eq=False)
class OnnxContents:
    """The tensors of a model."""

    data: DataFiles
    """The files, open: the model, then the files of external data."""
    model: onnx.OnnxModel
    """The tensors as the model describes them, and the user's metadata."""
    tensors: list[PlacedTensor] = field(default_factory=list)
    """The readable ones, sorted by key."""
    faults: dict[str, ShardvarError] = field(default_factory=dict)
    """The keys that cannot be read, with the reason."""
    sizes: list[int] = field(default_factory=list)
    """[files] the size of each file; -1 if it is missing."""
    digests: dict[int, str] = field(default_factory=dict)
    """The SHA-1 of files, once they were computed."""
    named: list[str] = field(default_factory=list)
    """The files that the model names, once one was missing."""
    strangers: list[str] = field(default_factory=list)
    """The files of another set, looked for then."""

    def check(self, tensor: PlacedTensor) -> None:
        """Raise ``CorruptCheckpoint`` if the file of a tensor has another checksum than the model
        says."""
        if tensor.checksum and tensor.file not in self.digests:
            self.digests[tensor.file] = _digest(self.data.open(tensor.file))
        found = self.digests.get(tensor.file, "")
        if tensor.checksum and found != tensor.checksum:
            name = self.data.names[tensor.file]
            raise CorruptCheckpoint(
                f"{name}: Its SHA-1 is {found}, but the model says {tensor.checksum}.", COPY_AGAIN
            ).at(repr(tensor.key))


def _digest(file: ReadableFile) -> str:
    digest, at = hashlib.sha1(usedforsecurity=False), 0
    while at < file.size:
        octets = file.read(at, min(1 << 22, file.size - at))
        digest.update(octets)
        at += len(octets)
    return digest.hexdigest()


def read_onnx(storage: Storage, name: str) -> OnnxContents:
    """Return the contents of a model; files of external data are looked for and not read."""
    names = [name]
    data = DataFiles(_Folder(storage), names, named=name)
    file = data.open(0)
    with prefix_errors(file.name):
        first = file.read(0, min(SNIFF_NBYTES, file.size))
        # A model begins with the number of its version, as few other files do.
        if not first or (not first.startswith(b"\x08") and kind_of(first) is not None):
            raise foreign_file(_WHAT, first, file.size, "it begins otherwise")
        model = onnx.parse_model(structure_of(file, data.traits).read, file.size)
    contents = OnnxContents(data, model, sizes=[file.size])
    numbers = {"": 0}
    keys: set[str] = set()
    for tensor in model.tensors:
        try:
            if tensor.name in keys:
                raise InvalidCheckpoint("Two tensors have this name.", _RENAME)
            contents.tensors.append(_placed(tensor, contents, storage, numbers, names))
        except (*READ_ERRORS, UnsupportedError) as error:
            contents.faults[tensor.name] = error.at(file.name, repr(tensor.name))
        keys.add(tensor.name)
    contents.tensors = sorted(
        (each for each in contents.tensors if each.key not in contents.faults),
        key=lambda each: each.key,
    )
    return contents


def _placed(
    tensor: onnx.OnnxTensor,
    contents: OnnxContents,
    storage: Storage,
    numbers: dict[str, int],
    names: list[str],
) -> PlacedTensor:
    """Return one tensor with the place of its elements; raise if it has none, or an impossible
    one."""
    if tensor.error is not None:
        raise tensor.error
    if tensor.kind not in _TYPES:
        cause = f"It has the data type {tensor.kind}, which is unknown."
        raise UnsupportedError(cause, "Leave it out with a filter (--exclude).")
    kind, shape = _TYPES[tensor.kind], tensor.dims
    if any(each < 0 for each in shape):
        raise invalid(f"An extent of its shape {list(shape)} is negative.")
    # Extents of 0 do not make a shape harmless: NumPy cannot hold (2**62, 2**62, 0).
    if prod(filter(None, shape)) * 16 > MAX_NBYTES:
        raise invalid(f"Its shape {list(shape)} is too large to exist.")
    if kind.dtype == STRING:
        return _texts(tensor, contents)
    nbytes = _nbytes(kind.dtype, shape)
    stored = -(-prod(shape) * kind.bits // 8) if kind.bits else nbytes
    if tensor.external is not None:
        file, start, stop = _external(tensor.external, storage, contents, numbers, names)
        checksum = tensor.external.get("checksum", "").lower()
    else:
        file, checksum = 0, ""
        has_raw = onnx.RAW in tensor.data
        held = tensor.data.get(onnx.RAW if has_raw else kind.field, (0, 0))
        if len(tensor.data) > 1 or (tensor.data and held == (0, 0)):
            raise invalid("Its elements are in several fields, or in one of another type.")
        start, stop = held
        if not has_raw and kind.field not in (onnx.FLOATS, onnx.DOUBLES):
            # Elements of 6 bits have a varint each, as all that have a byte or more.
            bits = kind.bits if kind.bits != 6 else 0
            count = stored if bits or kind.dtype == HALVES else prod(shape)
            if not count <= stop - start <= 10 * count:  # a varint has 1 to 10 bytes
                cause = f"Its {count} numbers cannot be in {stop - start} bytes."
                raise IncompleteCheckpoint(cause, COPY_AGAIN)
            place = (tensor.name, kind.dtype, shape, nbytes, 0, start, stop, bits)
            return PlacedTensor(*place, num_varints=count, is_varints=True)
    if stop - start != stored:
        error = IncompleteCheckpoint if stop - start < stored else InvalidCheckpoint
        cause = f"Its shape {list(shape)} of {kind.dtype} needs {stored} bytes, but it has {stop - start}."
        raise error(cause, COPY_AGAIN)
    start, stop = (start, stop) if stored else (0, 0)
    return PlacedTensor(
        tensor.name, kind.dtype, shape, nbytes, file, start, stop, kind.bits, checksum=checksum
    )


def _nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    extents = np.array([shape], np.int64).reshape(1, len(shape))
    return int(slice_nbytes(np.array([code(dtype)]), extents)[0])


def _texts(tensor: onnx.OnnxTensor, contents: OnnxContents) -> PlacedTensor:
    """Return a tensor of texts, which are read at once."""
    count, file = prod(tensor.dims), contents.data.open(0)
    if tensor.data or tensor.external is not None or len(tensor.strings) != count:
        raise IncompleteCheckpoint(
            f"It has {len(tensor.strings)} of the {count} texts that its shape {list(tensor.dims)} needs.",
            COPY_AGAIN,
        )
    texts = np.empty(count, object)
    texts[:] = [file.read(start, stop - start) for start, stop in tensor.strings]
    payload = strings.encode(texts)
    return PlacedTensor(tensor.name, STRING, tensor.dims, len(payload), 0, 0, 0, payload=payload)


def _external(
    external: Mapping[str, str],
    storage: Storage,
    contents: OnnxContents,
    numbers: dict[str, int],
    names: list[str],
) -> tuple[int, int, int]:
    """Return the number of a file of external data, and the range of a tensor in it."""
    location = external.get("location", "")
    *steps, last = location.removeprefix("./").split("/")
    if not all(map(is_bare, (*steps, last))):
        cause = f"Its data are at {location[:200]!r}, which is not in the folder of the model."
        raise InvalidCheckpoint(cause, DISTRUST)
    path = "/".join([*steps, last])
    if path not in numbers:
        folder = storage
        for step in steps:
            folder = folder.folder(step)
        status = folder.status(last)
        numbers[path] = len(names)
        names.append(path)
        contents.sizes.append(-1 if status is None else status.nbytes)
    number = numbers[path]
    size = contents.sizes[number]
    if size < 0:
        if not contents.named:
            tensors = (each.external for each in contents.model.tensors if each.external)
            places = {each.get("location", "").removeprefix("./") for each in tensors}
            contents.named = sorted(places)
            contents.strangers = strangers(storage, contents.named)
        if contents.strangers:
            raise of_another_set(contents.strangers, contents.named)
        remedy = "Copy the files of external data together with the model."
        raise MissingFile(f"Its data are in {path}, which is missing.", remedy).in_file(path)
    start = _number(external, "offset", 0)
    stop = start + _number(external, "length", max(size - start, 0))
    if stop > size:
        cause = f"Its data are the bytes {start} to {stop} of {path}, which has {size}."
        raise IncompleteCheckpoint(cause, COPY_AGAIN)
    return number, start, stop


def _number(external: Mapping[str, str], name: str, otherwise: int) -> int:
    """Return a number of external data."""
    text = external.get(name, "")
    if not text:
        return otherwise
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise invalid(f"The {name} of its data is {text[:40]!r}, which is not a number.")
    return int(text)
