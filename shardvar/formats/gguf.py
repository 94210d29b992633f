"""GGUF, the files of llama.cpp: metadata, tokenizer and tensors, most of them quantised.

    model.gguf, or a file of any other name that begins with GGUF
    model-00001-of-00003.gguf, …    the parts of a split file, which is called by its first part

A tensor of single numbers has their dtype. A tensor of quantised blocks is listed as its
bytes; the last axis has the bytes of a row. Example: 4,096 x 4,096 numbers in blocks of
Q8_0, each of 32 numbers in 34 bytes, are uint8 of the shape [4096, 4352].

A fault of a tensor (its type, its place) is a fault of its key and leaves the others readable.
Nothing in a file tells if its data were changed: it has no checksums.

A file that is written has tensors, each at a multiple of 32 bytes, some of them blocks. The metadata
of a GGUF are copied byte for byte; a file that is made of others has none.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from shardvar.errors import (
    READ_ERRORS,
    CheckpointError,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles
from shardvar.formats.listing import (
    FileNames,
    ListedFormat,
    ListedTensor,
    Listing,
    ReadSpan,
    begins_with,
    check_size,
    swapped,
)
from shardvar.formats.protocol import FileChecksums, FileWriter, Finding, NewCheckpoint
from shardvar.layout.dtypes import Ints
from shardvar.planning.index import Metadata
from shardvar.planning.slices import Capabilities, SliceTable, TensorTable
from shardvar.records import frozen, replace
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import distrusted, incomplete, invalid
from shardvar.wire.ggml import BLOCKS, NUMBERS, BlockType, dequantize
from shardvar.wire.gguf import (
    ALIGNMENT,
    GGUF_MAGIC,
    GgufArray,
    GgufHeader,
    GgufTensor,
    Scalar,
    build_gguf,
    parse_gguf,
)
from shardvar.wire.strict_json import parse_json
from shardvar.wire.zip import overlapping

if TYPE_CHECKING:
    from shardvar.formats.sinks import OneFileSink


def _read(storage: Storage, name: str) -> Listing:
    part, parts = NAMES.part(name), [name]
    if part is not None:  # the first one
        numbers = range(1, max(int(part["count"]), 1) + 1)
        parts = [f"{part['stem']}-{number:05d}-of-{part['count']}.gguf" for number in numbers]
    listing = Listing(DataFiles(storage, parts, named=name))
    blocks: dict[str, BlockType] = {}
    headers: dict[int, GgufHeader] = {}
    count, fault = len(parts), None
    for number in range(count):
        try:
            file = listing.data.open(number)
            with prefix_errors(file.name):
                header = parse_gguf(file.read, file.size)
                _check_split(header.metadata, number, count)
        except CheckpointError as error:  # the tensors of the other parts can be read
            listing.data.note(number, fault := error)
            continue
        with prefix_errors(file.name):
            blocks |= _add(listing, header, number, file.name, file.size)
        headers[number] = header
    if fault and not headers:
        raise fault
    listing.data.check_in_place()
    # Keys of several tensors, and a split file of another number of tensors than it states.
    place = f"{storage.path}: {name}"
    keys = Counter(tensor.name for header in headers.values() for tensor in header.tensors)
    first = next(iter(headers.values()))
    metadata = first.metadata
    claim = metadata.get("split.tensors.count", keys.total())
    if count > 1 and not fault and claim != keys.total():
        raise incomplete(f"{place}: The parts have {keys.total()} tensors, not {claim}.")
    for key, times in keys.items():
        if times > 1:
            cause = f"{place}: {key!r}: {times} tensors have this name."
            listing.faults[key] = invalid(cause)
    texts = {key: _text(value) for key, value in metadata.items()}
    listing.metadata = Metadata(user=texts, native=first.copied)
    blocks = {key: each for key, each in blocks.items() if key not in listing.faults}
    listing.encodings = {key: block.name for key, block in blocks.items()}
    big = {each.key for each in listing.tensors if headers[each.file].is_big_endian}
    listing.numbers = partial(_numbers, listing, blocks, big)
    return listing


def _check_split(metadata: Mapping[str, Scalar | GgufArray], number: int, count: int) -> None:
    """Raise if a file's part or number of parts contradicts its name."""
    parts, part = metadata.get("split.count", count), metadata.get("split.no", number)
    if parts == 0 and count == 1:  # a file that was joined again
        return
    if count == 1 and parts != 1:
        raise IncompleteCheckpoint(
            f"It is one of {parts} parts of a split file, and its name does not show which file.",
            "Name the parts as they were: NAME-00001-of-00003.gguf, and so on.",
        )
    if (parts, part) != (count, number):
        raise InvalidCheckpoint(
            f"Its name says part {number + 1} of {count}, but its metadata part number {part} "
            f"(from 0) of {parts}.",
            "Give each part the name that it had.",
        )


def _add(
    listing: Listing, header: GgufHeader, number: int, name: str, file_nbytes: int
) -> dict[str, BlockType]:
    readable: list[ListedTensor] = []
    blocks: dict[str, BlockType] = {}
    for tensor in header.tensors:
        try:
            stored, block = _stored(tensor, header, number, file_nbytes)
        except READ_ERRORS as error:
            own = error.at(name, repr(tensor.name)).in_file(listing.data.names[number])
            listing.faults[tensor.name] = own
            continue
        readable.append(stored)
        blocks |= {stored.key: block} if block else {}
    listing.tensors += readable
    some = [each for each in readable if each.nbytes]  # tensors without bytes share none
    start = np.array([each.start for each in some], np.int64)
    stop = start + np.array([each.nbytes for each in some], np.int64)
    for row in overlapping(start, stop).tolist():
        key = some[row].key
        cause = f"{name}: {key!r}: Its bytes from {start[row]} on also belong to another tensor."
        listing.faults[key] = distrusted(cause)
    # Gaps before, between and behind tensors that are too wide to be padding.
    ends = np.concatenate([[header.data_start], np.sort(stop)])
    begins = np.concatenate([np.sort(start), [max(file_nbytes, int(ends[-1]))]])
    spare = int((begins - ends)[begins - ends >= header.alignment].sum())
    if spare and len(readable) == len(header.tensors):
        cause = f"{spare} bytes of the data belong to no tensor."
        listing.findings.append(Finding(listing.data.names[number], cause, False))
    return blocks


def _stored(
    tensor: GgufTensor, header: GgufHeader, number: int, file_nbytes: int
) -> tuple[ListedTensor, BlockType | None]:
    block, shape = BLOCKS.get(tensor.type), tensor.shape
    dtype = NUMBERS.get(tensor.type, "uint8")
    if dtype == "uint8":
        if block is None:
            cause = f"It has the type {tensor.type}, which is unknown or was given up by ggml."
            raise UnsupportedError(cause, "Write the file again with a newer llama.cpp.")
        row = shape[-1] if shape else 1
        if row % block.length:
            raise invalid(
                f"Its rows have {row} numbers, which is not a multiple of the {block.length} in a "
                f"block of {block.name}."
            )
        shape = (*shape[:-1], row // block.length * block.nbytes)
    if tensor.offset % header.alignment:
        raise invalid(
            f"Its offset {tensor.offset} is not a multiple of the alignment, {header.alignment}."
        )
    start = header.data_start + tensor.offset
    stored = ListedTensor(tensor.name, dtype, shape, number, start)
    check_size(tensor.shape, max(4, stored.itemsize))  # dequantized, a number has 4 bytes
    if stored.nbytes and start + stored.nbytes > file_nbytes:
        raise incomplete(
            f"Its bytes from {start} to {start + stored.nbytes} are not all in the file, which has "
            f"{file_nbytes}."
        )
    is_swapped = header.is_big_endian and stored.itemsize > 1
    return stored._replace(decode=swapped if is_swapped else None), block


def _numbers(listing: Listing, blocks: Mapping[str, BlockType], big: set[str]) -> Listing:
    faults, tensors = dict(listing.faults), []
    for each in listing.tensors:
        block = blocks.get(each.key)
        if block and each.key in big:
            faults[each.key] = UnsupportedError(
                f"{each.key!r} consists of big-endian blocks, which are not dequantized.",
                "Leave it out with a filter, or read its blocks as bytes.",
            )
        elif block:
            shape = (*each.shape[:-1], each.shape[-1] // block.nbytes * block.length)
            each = each._replace(dtype="float32", shape=shape, decode=partial(_decode, block))
        tensors.append(each)
    return replace(listing, tensors=tensors, faults=faults, encodings={}, numbers=None)


def _decode(
    block: BlockType, read: ReadSpan, tensor: ListedTensor, start: int, buffer: memoryview
) -> None:
    # Blocks of 32 numbers are 128 bytes of the payload: bytes 300 to 400 are of the blocks 2 and 3,
    # from 44 on.
    size = block.length * 4
    first, stop = start // size, -(-(start + len(buffer)) // size)
    blocks = np.empty((stop - first) * block.nbytes, np.uint8)
    read(tensor.file, tensor.start + first * block.nbytes, blocks.data)
    numbers = dequantize(blocks, block.name).view(np.uint8)
    buffer[:] = numbers[start - first * size :][: len(buffer)].data


def _text(value: Scalar | GgufArray) -> str:
    """Return a metadatum as text, shortened.

    >>> _text(GgufArray("int32", 3, (1, 2, 3))), _text(GgufArray("string", 32000, ("<s>", "</s>")))
    ('[1, 2, 3]', "['<s>', '</s>', ... 32000 of string]")
    """
    if not isinstance(value, GgufArray):
        return str(value)
    shown = [repr(each) for each in value.first]
    return f"[{', '.join(shown if len(shown) == value.count else [*shown, f'... {value.count} of {value.type}'])}]"


NAMES = FileNames(".gguf", begins_with(GGUF_MAGIC))


# --- Writing


@frozen
class GgufWriter(FileWriter):
    """The frame of a file: its header, and zeros up to the place of the next tensor."""

    native: tuple[bytes, ...]  # The metadata, as they are stored
    encodings: Mapping[str, str]  # The types of blocks, by key

    crc = None

    def header(self, slices: SliceTable) -> tuple[bytes, list[int]]:
        """Return the header, and where each tensor begins in the data."""
        starts = np.cumsum(-(-slices.nbytes // ALIGNMENT) * ALIGNMENT)
        starts = np.concatenate([np.zeros(1, np.int64), starts])[: len(slices)]
        tensors = []
        for row, offset in enumerate(starts.tolist()):
            key, dtype, shape = slices.key(row), slices.dtype(row), slices.region(row).shape
            kinds = {name: number for number, name in NUMBERS.items()}
            for number, block in BLOCKS.items():
                if self.encodings.get(key) == block.name:
                    kinds = {dtype: number}
                    shape = (*shape[:-1], shape[-1] // block.nbytes * block.length)
            if dtype not in kinds:
                cause = f"{key!r} is of {dtype}, which GGUF only holds as blocks."
                raise UnsupportedError(cause, "Leave it out with exclude= (--exclude).")
            tensors.append(GgufTensor(key, shape, kinds[dtype], offset))
        return build_gguf(self.native, tensors), starts.tolist()

    def frame(
        self, slices: SliceTable, start: Ints, checksums: FileChecksums
    ) -> Iterator[tuple[int, bytes]]:
        yield 0, self.header(slices)[0]
        for stop in (start + slices.nbytes).tolist():
            yield stop, bytes(-stop % ALIGNMENT)


CAPABILITIES = Capabilities(
    dtypes=frozenset([*NUMBERS.values(), "uint8"]),
    slice_dtypes=frozenset(),
    many_files=False,
    holds_texts=False,
)
"""Whole tensors of these numbers, and of blocks."""


@frozen
class GgufFormat(ListedFormat):
    capabilities: Capabilities = CAPABILITIES

    def lay_out(self, new: NewCheckpoint) -> "OneFileSink":
        from shardvar.formats.sinks import check_one_file, one_file  # of a write

        encodings = parse_json(new.metadata.user.get("encodings", "{}").encode(), 2)
        check_one_file(new, self)
        writer = GgufWriter(new.metadata.native, encodings)
        header, starts = writer.header(new.assignment.slices)
        places = [len(header) + start for start in starts]
        name = new.name.removesuffix(NAMES.suffix) + NAMES.suffix
        empty = TensorTable.of([]).whole()
        return one_file(new, name, places, writer, lambda: writer.header(empty)[0])

    def remove(self, storage: Storage, name: str) -> None:
        from shardvar.formats.sinks import remove_one_file  # of a write

        remove_one_file(storage, name.removesuffix(NAMES.suffix) + NAMES.suffix)


FORMAT = ListedFormat("gguf", NAMES.find, _read)
BLOCKS_FORMAT = GgufFormat("gguf", NAMES.find, _read)
"""The same, written on request."""
