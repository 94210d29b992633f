"""``shardvar inspect``: list the tensors of a checkpoint.

The index alone says almost everything, so the steps are: open the checkpoint, gather its entries into one ``Tensor`` a
key, read the values only for ``--stats``, and print a tree for people or one object for programs.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from shardvar.checkpoint.locate import find_checkpoint
from shardvar.checkpoint.newest import candidates_of
from shardvar.checkpoint.numbers import Number
from shardvar.checkpoint.reader import Reader
from shardvar.checkpoint.reports import SCHEMA
from shardvar.checkpoint.stats import Statistics, measure
from shardvar.cli.listing import print_choices
from shardvar.cli.output import (
    count,
    human_shape,
    human_size,
    one_line,
    print_json,
    print_table,
    printable,
    progress,
    short_path,
)
from shardvar.cli.tree import Line, tree_lines
from shardvar.errors import ArgumentError, ReadError
from shardvar.planning.index import NO_CHECKSUM, EntryTable

_StatisticsByKey = dict[str, Statistics | ReadError]

_MARKS = {
    "OverlappingSlices": "overlapping",
    "IncompleteCheckpoint": "incomplete",
    "MissingFile": "file missing",
    "OutOfBounds": "out of bounds",
    "InconsistentTensor": "inconsistent",
    "CorruptCheckpoint": "corrupt",
}


@dataclass(frozen=True, slots=True)
class Slice:
    """A stored slice."""

    offset: tuple[int, ...]
    """Its first index along each axis of the whole tensor."""
    shape: tuple[int, ...]
    """Its extents."""
    file: str
    """The data file that holds it."""
    start: int
    """The position of its first byte in the file, in formats that store payloads as they are."""
    nbytes: int
    """The bytes of the payload."""
    checksum: str | None
    """The payload's checksum as eight hexadecimal digits; None where the index has none."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that a checkpoint names."""

    key: str
    """The name under which it was saved."""
    dtype: str | None
    """Its dtype; None where the index lacks it."""
    shape: tuple[int, ...] | None
    """Its full shape; None where the index lacks it."""
    nbytes: int
    """The bytes of its payloads."""
    num_slices: int
    """The number of slices that it is stored as."""
    files: tuple[str, ...]
    """The data files that hold them."""
    fault: ReadError | None
    """The reason why it cannot be read; None for a sound tensor."""
    rows: tuple[int, ...]
    """Its rows in the reader's table of entries."""
    encoding: str | None = None
    """The encoding of its bytes, such as Q8_0; None for a tensor whose elements are its values."""

    @property
    def mark(self) -> str:
        """A word for the fault; empty for a tensor without one."""
        return "" if self.fault is None else _MARKS.get(type(self.fault).__name__, "unreadable")

    def to_json(self) -> dict[str, Any]:
        """Return the tensor as a JSON object with stable keys."""
        fault = self.fault and {"kind": type(self.fault).__name__, "message": str(self.fault)}
        return {
            "key": self.key,
            "dtype": self.dtype,
            "encoding": self.encoding,
            "shape": None if self.shape is None else list(self.shape),
            "nbytes": self.nbytes,
            "num_slices": self.num_slices,
            "files": list(self.files),
            "fault": fault,
        }


def execute(arguments: Namespace) -> int:
    """Show one checkpoint, or list the checkpoints that the path may mean."""
    found = candidates_of(arguments.path)
    if len(found) > 1:
        print_choices(arguments.path, found, arguments.json)
        return 0
    # Where nothing was found, the strict search raises the error that says what is there instead.
    one = found[0].location if found else find_checkpoint(arguments.path)
    with Reader(one.path, one.format.name, one.open()) as reader:
        tensors = list_tensors(reader, arguments.filter)
        measured = _measure(reader, tensors) if arguments.stats else {}
        if arguments.json:
            _print_json(reader, tensors, measured, arguments)
        else:
            _print_text(reader, tensors, measured, arguments)
    return 0


def _measure(reader: Reader, tensors: Sequence[Tensor]) -> _StatisticsByKey:
    total = sum(tensor.nbytes for tensor in tensors)
    with progress("reading", lambda: total) as advance:
        return dict(measure(reader, [tensor.key for tensor in tensors], advance))


def _print_json(reader: Reader, tensors: Sequence[Tensor], measured: _StatisticsByKey, arguments: Namespace) -> None:
    listed = []
    for tensor in tensors:
        row = tensor.to_json()
        if arguments.slices:
            row["slices"] = [slice_json(each) for each in list_slices(reader, tensor)]
        if arguments.stats:
            row |= _statistics_json(measured.get(tensor.key))
        listed.append(row)
    metadata = reader.metadata
    print_json(
        {
            "schema": SCHEMA,
            "path": reader.path,
            "format": reader.format,
            "writer": metadata.writer,
            "description": metadata.description,
            "metadata": dict(metadata.user),
            "num_tensors": len(tensors),
            "num_slices": sum(tensor.num_slices for tensor in tensors),
            "nbytes": sum(tensor.nbytes for tensor in tensors),
            "files": list(reader.index.files),
            "tensors": listed,
        }
    )


def _statistics_json(found: Statistics | ReadError | None) -> dict[str, object]:
    if isinstance(found, ReadError):
        return {"stats": None, "stats_error": {"kind": type(found).__name__, "message": str(found)}}
    return {"stats": found and found.to_json()}


def _print_text(reader: Reader, tensors: Sequence[Tensor], measured: _StatisticsByKey, arguments: Namespace) -> None:
    for line in _heading(reader, tensors):
        print(line)
    if tensors:
        print()
        print_table(
            ("tensor", "dtype", "shape", "size", "slices", "files", ""), _rows(reader, tensors, arguments), (3, 4)
        )
    if measured:
        print()
        headers = ("tensor", "min", "max", "mean", "std", "NaN", "inf", "zero")
        print_table(headers, [_statistics_row(key, each) for key, each in measured.items()], range(1, 8))
    faults = [tensor.fault for tensor in tensors if tensor.fault is not None]
    if faults:
        print(f"\n{count(len(faults), 'tensor')} cannot be read:")
        for fault in faults:
            print(f"  {type(fault).__name__}: {one_line(str(fault))}")


def _heading(reader: Reader, tensors: Sequence[Tensor]) -> Iterator[str]:
    metadata = reader.metadata
    yield f"{short_path(reader.path)} ({reader.format})"
    if metadata.writer:
        yield f"written by {printable(metadata.writer)}"
    if metadata.description:
        yield f"policy: {printable(metadata.description)}"
    for name, value in metadata.user.items():
        yield f"metadata: {printable(name)} = {printable(value)}"
    slices = sum(tensor.num_slices for tensor in tensors)
    files = len({name for tensor in tensors for name in tensor.files})
    nbytes = sum(tensor.nbytes for tensor in tensors)
    yield f"{count(len(tensors), 'tensor')} in {count(slices, 'slice')}, {count(files, 'file')}, {human_size(nbytes)}"


def _rows(reader: Reader, tensors: Sequence[Tensor], arguments: Namespace) -> list[tuple[str, ...]]:
    """Return the rows of the table: branches and groups of like tensors at a terminal, every whole key in a pipe."""
    at_terminal = sys.stdout.isatty()
    # Like tensors share a line only in an overview; these options ask about each tensor.
    in_brief = at_terminal and not (arguments.slices or arguments.filter or arguments.stats)
    kinds = (
        [(tensor.dtype, tensor.encoding, tensor.shape, tensor.num_slices, tensor.mark) for tensor in tensors]
        if in_brief
        else None
    )
    rows: list[tuple[str, ...]] = []
    for line in tree_lines([tensor.key for tensor in tensors], kinds):
        # A guide has three characters for each level, and a pipe gets two spaces below the first: 6 // 3 - 1 = 1 step.
        indent = line.guide if at_terminal else "  " * (len(line.guide) // 3 - 1)
        if line.leaf is None:
            rows.append(_branch_row(indent, line, tensors))
            continue
        tensor = tensors[line.leaf]
        alike = f" (x{len(line.leaves)})" if in_brief and _is_shared(line) else ""
        label = line.label if at_terminal else tensor.key
        rows.append(_tensor_row(indent + printable(label) + alike, tensor))
        if arguments.slices:
            rows.extend(_slice_rows(reader, tensor))
    return rows


def _is_shared(line: Line) -> bool:
    # Several leaves alone may be a key and the keys below it, such as ``a/`` and ``a/b``.
    return "{" in line.label and len(line.leaves) > 1


def _branch_row(indent: str, line: Line, tensors: Sequence[Tensor]) -> tuple[str, ...]:
    below = [tensors[leaf] for leaf in line.leaves]
    nbytes = human_size(sum(tensor.nbytes for tensor in below))
    return indent + printable(line.label), count(len(below), "tensor"), "", nbytes, "", "", ""


def _tensor_row(label: str, tensor: Tensor) -> tuple[str, ...]:
    shape = "" if tensor.shape is None else human_shape(tensor.shape)
    return (
        label,
        f"{tensor.dtype or ''} {tensor.encoding or ''}".strip(),
        shape,
        human_size(tensor.nbytes),
        str(tensor.num_slices),
        str(len(tensor.files)),
        tensor.mark.upper(),
    )


def _slice_rows(reader: Reader, tensor: Tensor) -> Iterator[tuple[str, ...]]:
    for each in list_slices(reader, tensor):
        region = ", ".join(f"{start}:{start + extent}" for start, extent in zip(each.offset, each.shape, strict=True))
        yield "", "", f"[{region}]", human_size(each.nbytes), "", f"{printable(each.file)} at {each.start}", ""


def _statistics_row(key: str, found: Statistics | ReadError) -> tuple[str, ...]:
    if isinstance(found, ReadError):
        return printable(key), type(found).__name__, *[""] * 6
    numbers = (found.minimum, found.maximum, found.mean, found.std)
    return printable(key), *map(_number, numbers), str(found.nan), str(found.inf), str(found.zero)


def _number(value: Number | None) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def list_tensors(reader: Reader, globs: Sequence[str] | None = None) -> list[Tensor]:
    """Return the tensors whose keys match one of the globs, in the order of the index."""
    entries, faults = reader.entries(), reader.faults
    tensors, files = entries.slices.tensors, reader.index.files
    # Lists, since taking single elements from NumPy arrays is slow, and a checkpoint may have 10^5 tensors.
    order_list, bounds = (column.tolist() for column in entries.slices.by_tensor())
    nbytes, file = entries.slices.nbytes.tolist(), entries.file.tolist()
    row_of, encodings = tensors.rows(), reader.encodings
    listed = []
    for key in reader:
        if globs and not any(fnmatchcase(key, glob) for glob in globs):
            continue
        row = row_of.get(key)
        # A key whose entries could not be decoded is listed all the same, with its fault.
        if row is None:
            listed.append(Tensor(key, None, None, 0, 0, (), faults.get(key), ()))
            continue
        rows = tuple(order_list[bounds[row] : bounds[row + 1]])
        names = tuple(files[number] for number in sorted({file[entry] for entry in rows}))
        total = sum(nbytes[entry] for entry in rows)
        dtype, shape = tensors.dtype(row), tensors.shape(row)
        fault, encoding = faults.get(key), encodings.get(key)
        listed.append(Tensor(key, dtype, shape, total, len(rows), names, fault, rows, encoding))
    # In a checkpoint without tensors no pattern matches, which is not the user's mistake.
    if globs and not listed and reader.keys():
        raise ArgumentError(
            f"No tensor matches {' or '.join(globs)}.", "`shardvar inspect` without --filter lists all."
        )
    return listed


def list_slices(reader: Reader, tensor: Tensor) -> list[Slice]:
    """Return the slices of one tensor, in the order of their offsets."""
    entries, files = reader.entries(), reader.index.files
    return sorted((_slice(entries, files, row) for row in tensor.rows), key=lambda each: each.offset)


def slice_json(each: Slice) -> dict[str, Any]:
    """Return the slice as a JSON object with stable keys."""
    return asdict(each) | {"offset": list(each.offset), "shape": list(each.shape)}


def _slice(entries: EntryTable, files: Sequence[str], row: int) -> Slice:
    slices = entries.slices
    # Offsets and shapes are padded to the highest rank of the checkpoint.
    rank = int(slices.tensors.ranks[slices.tensor[row]])
    checksum = int(entries.checksum[row])
    return Slice(
        tuple(slices.offset[row, :rank].tolist()),
        tuple(slices.shape[row, :rank].tolist()),
        files[int(entries.file[row])],
        int(entries.start[row]),
        int(slices.nbytes[row]),
        None if checksum == NO_CHECKSUM else f"{checksum:08x}",
    )
