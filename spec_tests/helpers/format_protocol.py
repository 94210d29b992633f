"""Reading a source through its protocol alone, and writing one: for the tests of every format."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from shardvar.errors import CheckpointNotFound, CorruptCheckpoint, ShardvarError
from shardvar.formats.protocol import FileChecksums, Finding, Format, Sink, Source
from shardvar.layout.dtypes import dtype_name, is_whole, numpy_dtype
from shardvar.planning.index import NO_CHECKSUM, EntryTable, Metadata
from shardvar.planning.slices import Assignment, SliceTable, TensorTable
from shardvar.storage.local import split_path
from shardvar.storage.protocol import Storage
from spec_tests.helpers import paths

GOLDEN = paths.GOLDEN
Array = npt.NDArray[Any]


def open_path(format: Format, path: Path | str) -> Source:
    """The one checkpoint of the format that a path means."""
    storage, name = split_path(path)
    found = format.locate(storage, name)
    if len(found) != 1:
        raise CheckpointNotFound(f"{path} means {found or 'nothing'}.")
    return format.open(storage, found[0])


def read_payload(source: Source, entries: EntryTable, row: int) -> bytes:
    """The payload of one entry, with its checksum and those of its runs compared."""
    payload = bytearray(int(entries.slices.nbytes[row]))
    source.read_into(entries, row, 0, memoryview(payload))
    expected, is_right = int(entries.checksum[row]), True
    if source.crc is not None and expected != NO_CHECKSUM:
        is_right = source.crc.compute(payload) == expected
    if source.crc is not None and entries.runs is not None:
        runs = runs_of(payload, entries.runs.run_nbytes)
        stored = entries.runs.of(row, len(payload)).tolist()
        is_right = is_right and list(map(source.crc.compute, runs)) == stored
    if not is_right:
        cause = f"The checksum of {entries.slices.key(row)!r} is wrong."
        raise CorruptCheckpoint(cause, "Look for another copy.")
    return bytes(payload)


def runs_of(payload: bytes | bytearray, nbytes: int) -> list[bytes | bytearray]:
    return [payload[start : start + nbytes] for start in range(0, len(payload), nbytes)]


def read_whole(source: Source) -> tuple[dict[str, Array], dict[str, ShardvarError]]:
    """Every tensor that can be read, and the error of every other; tensors must be whole
    entries."""
    arrays: dict[str, Array] = {}
    errors: dict[str, ShardvarError] = dict(source.index.faults)
    for entries in source.index.scan():
        for row in range(len(entries)):
            key = entries.slices.key(row)
            try:
                payload = read_payload(source, entries, row)
            except ShardvarError as error:
                errors[key] = error
                continue
            if key not in errors:
                shape = entries.slices.region(row).shape
                if entries.slices.dtype(row) == "float4_e2m1fn_packed":
                    payload = bytes(half for byte in payload for half in (byte & 15, byte >> 4))
                arrays[key] = np.frombuffer(
                    payload, numpy_dtype(entries.slices.dtype(row))
                ).reshape(shape)
    return arrays, errors


def findings(source: Source) -> list[Finding]:
    """Return the metadata and the findings of a source."""
    return list(source.findings())


def golden_cases(format: str) -> list[str]:
    """The names of a format's golden checkpoints."""
    return sorted(path.parent.name for path in (GOLDEN / format).glob("*/expected.json"))


def expectation(format: str, case: str) -> dict[str, Any]:
    """Return the contents of a case's `expected.json`."""
    expected: dict[str, Any] = json.loads(
        (GOLDEN / format / case / "expected.json").read_text(encoding="utf-8")
    )
    return expected


def described(array: Array, tensor: Mapping[str, Any]) -> dict[str, Any]:
    """An array in the words of ``expected.json``; elements of 4 bits are packed where ``tensor``
    says that they are."""
    data = np.ascontiguousarray(array).tobytes()
    if tensor.get("packed"):
        octets = np.frombuffer(data, np.uint8)
        data = (octets[0::2] | octets[1::2] << 4).tobytes()
    sha256 = hashlib.sha256(data).hexdigest()
    return {
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "nbytes": len(data),
        "sha256": sha256,
    }


def write_arrays(
    format: Format,
    storage: Storage,
    name: str,
    arrays: Mapping[str, Array],
    *,
    file_of: Mapping[str, int] | None = None,
    metadata: Metadata | None = None,
    generation: str = "g1",
) -> None:
    """Write whole arrays through the protocol, as the engine would."""
    numbers = np.array([(file_of or {}).get(key, 0) for key in arrays], dtype=np.int64)
    tensors = TensorTable.of(
        (key, dtype_name(array.dtype), array.shape) for key, array in arrays.items()
    )
    assignment = Assignment(tensors.whole(), numbers, int(numbers.max(initial=-1)) + 1)
    payloads = [
        np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
        for array in arrays.values()
    ]
    sink, checksums = write_aside(format, storage, name, assignment, payloads, metadata, generation)
    sink.commit(checksums)


def write_aside(
    format: Format,
    storage: Storage,
    name: str,
    assignment: Assignment,
    payloads: Sequence[bytes],
    metadata: Metadata | None = None,
    generation: str = "g1",
) -> tuple[Sink, list[FileChecksums]]:
    """Everything that comes before the commit, as the engine does it."""
    sink = format.create(storage, name, assignment, metadata or Metadata(), generation)
    checksums = []
    for number, aside in enumerate(sink.asides):
        rows = np.flatnonzero(assignment.file == number)
        slices, start = assignment.slices.take(rows), sink.start[rows]
        held = [payloads[row] for row in rows.tolist()]
        file = storage.create(aside)
        for begin, payload in zip(start.tolist(), held, strict=True):
            file.write(begin, payload)
        checksums.append(checksums_of(sink, slices, held))
        for begin, frame in sink.writer.frame(slices, start, checksums[-1]):
            file.write(begin, frame)
        file.close()
    return sink, checksums


def checksums_of(sink: Sink, slices: SliceTable, payloads: Sequence[bytes]) -> FileChecksums:
    """The checksums of the payloads of a file and of their runs, as the writer of a sink takes
    them."""
    crc, run = sink.writer.crc, sink.writer.run_nbytes
    sums, runs = [0] * len(payloads), list[int]()
    for row, payload in enumerate(payloads if crc else ()):
        dtype, octets = slices.dtype(row), memoryview(payload)
        if is_whole(dtype) and not run:
            sums[row] = sink.writer.checksum_whole(dtype, slices.region(row).size, octets)
        else:
            sums[row] = crc.compute(octets)
        runs += [crc.compute(each) for each in runs_of(payload, run)] if run else []
    return FileChecksums(np.array(sums, np.int64), np.array(runs, np.uint32))


NAMES = st.text(max_size=8)
"""Names of tensors."""


@st.composite
def some_arrays(
    draw: st.DrawFn, dtypes: Sequence[str], keys: st.SearchStrategy[str] = NAMES
) -> dict[str, Array]:
    """Named arrays of any bytes, some big-endian, some transposed, some strided, of rank 0 to 3,
    some empty."""
    arrays: dict[str, Array] = {}
    for key in draw(st.lists(keys, unique=True)):
        dtype = numpy_dtype(draw(st.sampled_from(dtypes)))
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        nbytes = 2 * int(np.prod(shape, dtype=int)) * dtype.itemsize
        data = draw(st.binary(min_size=nbytes, max_size=nbytes))
        octets = np.frombuffer(data, np.uint8) & (1 if dtype.kind == "b" else 0xFF)
        array = octets.view(dtype).reshape([*shape, 2])[..., draw(st.integers(0, 1))]
        array = array.T if draw(st.booleans()) else array
        is_swapped = draw(st.booleans()) and dtype.kind in "iufc" and dtype.itemsize > 1
        arrays[key] = array.astype(dtype.newbyteorder(">")) if is_swapped else array
    return arrays
