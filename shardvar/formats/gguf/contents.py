"""The contents of a GGUF file, or of all parts of a split one.

A tensor of single numbers has their dtype. A tensor of quantised blocks is listed as what is
stored: bytes; the last axis has the bytes of a row. Example: 4,096 x 4,096 numbers in blocks of
Q8_0, each of 32 numbers in 34 bytes, are uint8 of the shape [4096, 4352].

A fault of a tensor (its type, its place) is a fault of its key and leaves the others readable.
Nothing in a file tells if its data were changed: it has no checksums.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from shardvar.errors import (
    COPY_AGAIN,
    READ_ERRORS,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    ReadError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles
from shardvar.formats.gguf.names import parts_of
from shardvar.formats.protocol import Finding
from shardvar.layout.dtypes import ITEMSIZES, code
from shardvar.limits import MAX_NBYTES
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import DISTRUST, WRITE_AGAIN, invalid
from shardvar.wire.ggml import BLOCKS, NUMBERS, BlockType
from shardvar.wire.gguf import GgufArray, GgufHeader, GgufTensor, Scalar, parse_gguf
from shardvar.wire.zip import overlapping


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor that can be read."""

    key: str
    """Its name."""
    dtype: str
    """The dtype of its payload."""
    shape: tuple[int, ...]
    """The shape of its payload."""
    file: int
    """The number of its file."""
    start: int
    """Its first byte, in bytes of the file."""
    is_big_endian: bool
    """True if numbers of its file are big-endian, also in blocks."""
    block: BlockType | None = None
    """The type of its blocks; None for single numbers."""

    @property
    def nbytes(self) -> int:
        """The size of its payload."""
        return prod(self.shape) * self.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of an element of its payload."""
        return int(ITEMSIZES[code(self.dtype)])

    @property
    def is_plain(self) -> bool:
        """True if its payload lies in the file byte for byte."""
        return not self.is_big_endian or self.itemsize == 1


@dataclass(slots=True, eq=False)
class GgufContents:
    """The tensors of all files."""

    data: DataFiles
    """The files, open."""
    metadata: dict[str, str] = field(default_factory=dict)
    """The metadata of the first file, as text."""
    tensors: list[TensorPlace] = field(default_factory=list)
    """The readable ones."""
    faults: dict[str, ReadError] = field(default_factory=dict)
    """The keys that cannot be read, with the reason."""
    findings: list[Finding] = field(default_factory=list)
    """Bytes that belong to no tensor."""


def read_gguf(storage: Storage, name: str) -> GgufContents:
    """Return the contents of a file, or of the split file whose first part is ``name``."""
    names = parts_of(storage, name)
    contents = GgufContents(DataFiles(storage, names))
    headers = []
    for number in range(len(names)):
        file = contents.data.open(number)
        with prefix_errors(file.name):
            header = parse_gguf(file.read, file.size)
            _check_split(header.metadata, number, len(names))
            _add_tensors(contents, header, number, file.name, file.size)
        headers.append(header)
    contents.data.check_in_place()
    _check_counts(contents, headers, f"{storage.path}: {name}")
    contents.metadata = {key: _text(value) for key, value in headers[0].metadata.items()}
    contents.tensors = sorted(
        (each for each in contents.tensors if each.key not in contents.faults),
        key=lambda each: each.key,
    )
    return contents


def _check_split(metadata: Mapping[str, Scalar | GgufArray], number: int, count: int) -> None:
    """Raise if a file's part or number of parts is not the one in its name."""
    parts, part = metadata.get("split.count", count), metadata.get("split.no", number)
    if parts == 0 and count == 1:  # a file that was joined again
        return
    if count == 1 and parts != 1:
        cause = (
            f"It is one of {parts} parts of a split file, and its name does not show which file."
        )
        raise IncompleteCheckpoint(
            cause, "Name the parts as they were: NAME-00001-of-00003.gguf, and so on."
        )
    if (parts, part) != (count, number):
        cause = (
            f"Its name says part {number + 1} of {count}, but its metadata part number {part} "
            f"(from 0) of {parts}."
        )
        raise InvalidCheckpoint(cause, "Give each part the name that it had.")


def _check_counts(contents: GgufContents, headers: Sequence[GgufHeader], place: str) -> None:
    """Find keys of several tensors; raise if a split file states another number of tensors."""
    keys = [tensor.name for header in headers for tensor in header.tensors]
    claim = headers[0].metadata.get("split.tensors.count", len(keys))
    if len(headers) > 1 and claim != len(keys):
        raise IncompleteCheckpoint(
            f"{place}: The parts have {len(keys)} tensors, not {claim}.", COPY_AGAIN
        )
    for key, times in Counter(keys).items():
        if times > 1:
            cause = f"{place}: {key!r}: {times} tensors have this name."
            contents.faults[key] = InvalidCheckpoint(cause, WRITE_AGAIN)


def _add_tensors(
    contents: GgufContents, header: GgufHeader, number: int, name: str, file_nbytes: int
) -> None:
    """Add the tensors of one file, and what is wrong with them."""
    tensors: list[TensorPlace] = []
    for tensor in header.tensors:
        try:
            tensors.append(_stored(tensor, header, number, file_nbytes))
        except READ_ERRORS as error:
            contents.faults[tensor.name] = error.at(name, repr(tensor.name))
    contents.tensors += tensors
    # Tensors without bytes share none.
    some = [tensor for tensor in tensors if tensor.nbytes]
    start = np.array([tensor.start for tensor in some], np.int64)
    stop = start + np.array([tensor.nbytes for tensor in some], np.int64)
    for row in overlapping(start, stop).tolist():
        cause = (
            f"{name}: {some[row].key!r}: Its bytes from {start[row]} on also belong to another "
            "tensor."
        )
        contents.faults[some[row].key] = InvalidCheckpoint(cause, DISTRUST)
    if len(tensors) == len(header.tensors):
        spare = list(_spare(start, stop, header, file_nbytes))
        if spare:
            cause = f"{sum(spare)} bytes of the data belong to no tensor."
            contents.findings.append(Finding(contents.data.names[number], cause, False))


def _spare(
    start: np.ndarray, stop: np.ndarray, header: GgufHeader, file_nbytes: int
) -> Iterator[int]:
    """The sizes of gaps before, between and behind tensors that are too wide to be padding."""
    ends = np.concatenate([[header.data_start], np.sort(stop)])
    begins = np.concatenate([np.sort(start), [max(file_nbytes, int(ends[-1]))]])
    gaps = begins - ends
    yield from gaps[gaps >= header.alignment].tolist()


def _stored(tensor: GgufTensor, header: GgufHeader, number: int, file_nbytes: int) -> TensorPlace:
    """Return one tensor; raise if its type, its shape or its place is impossible."""
    dtype, shape, block = _payload(tensor)
    if tensor.offset % header.alignment:
        raise invalid(
            f"Its offset {tensor.offset} is not a multiple of the alignment, {header.alignment}."
        )
    # Extents of 0 do not make a shape harmless: NumPy cannot hold (2**62, 2**62, 0). Dequantized, a
    # number has 4 bytes.
    if prod(filter(None, tensor.shape)) * max(4, int(ITEMSIZES[code(dtype)])) > MAX_NBYTES:
        raise invalid(f"Its shape {list(tensor.shape)} is too large to exist.")
    start = header.data_start + tensor.offset
    stored = TensorPlace(tensor.name, dtype, shape, number, start, header.is_big_endian, block)
    if stored.nbytes and start + stored.nbytes > file_nbytes:
        cause = (
            f"Its bytes from {start} to {start + stored.nbytes} are not all in the file, which has "
            f"{file_nbytes}."
        )
        raise IncompleteCheckpoint(cause, COPY_AGAIN)
    return replace(stored, start=start if stored.nbytes else 0)


def _payload(tensor: GgufTensor) -> tuple[str, tuple[int, ...], BlockType | None]:
    """Return dtype and shape of a tensor's payload, and the type of its blocks."""
    if tensor.type in NUMBERS:
        return NUMBERS[tensor.type], tensor.shape, None
    block = BLOCKS.get(tensor.type)
    if block is None:
        cause = f"It has the type {tensor.type}, which is unknown or was given up by ggml."
        raise UnsupportedError(cause, "Write the file again with a newer llama.cpp.")
    row = tensor.shape[-1] if tensor.shape else 1
    if row % block.length:
        cause = (
            f"Its rows have {row} numbers, which is not a multiple of the {block.length} in a "
            f"block of {block.name}."
        )
        raise invalid(cause)
    return "uint8", (*tensor.shape[:-1], row // block.length * block.nbytes), block


def _text(value: Scalar | GgufArray) -> str:
    """Return a metadatum as text: of a long array the beginning, its number of elements and their
    type.

    >>> _text(GgufArray("int32", 3, (1, 2, 3))), _text(GgufArray("string", 32000, ("<s>", "</s>")))
    ('[1, 2, 3]', "['<s>', '</s>', ... 32000 of string]")
    """
    if not isinstance(value, GgufArray):
        return str(value)
    shown = [repr(each) for each in value.first]
    return f"[{', '.join(shown if len(shown) == value.count else [*shown, f'... {value.count} of {value.type}'])}]"
