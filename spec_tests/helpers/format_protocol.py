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
from shardvar.layout.dtypes import dtype_name, numpy_dtype
from shardvar.planning.index import NO_CHECKSUM, EntryTable, Metadata
from shardvar.planning.slices import Assignment, TensorTable
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


def read_payload(source: Source, entries: EntryTable, row: int, chunk: int = 1 << 20) -> bytes:
    """The payload of one entry, read from its beginning to its end, with its checksum compared."""
    payload = bytearray(int(entries.slices.nbytes[row]))
    for start in range(0, max(len(payload), 1), chunk):
        source.read_into(entries, row, start, memoryview(payload)[start : start + chunk])
    expected = int(entries.checksum[row])
    if (
        source.crc is not None
        and expected != NO_CHECKSUM
        and source.crc.compute(payload) != expected
    ):
        raise CorruptCheckpoint(f"The checksum of {entries.slices.key(row)!r} is wrong.")
    return bytes(payload)


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
    count = int(numbers.max(initial=-1)) + 1
    assignment = Assignment(tensors.whole(), numbers, count)
    sink = format.create(storage, name, assignment, metadata or Metadata(), generation)
    payloads = [
        np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
        for array in arrays.values()
    ]
    sink.commit(
        [_write_file(storage, sink, assignment, number, payloads) for number in range(count)]
    )


def _write_file(
    storage: Storage, sink: Sink, assignment: Assignment, number: int, payloads: list[bytes]
) -> FileChecksums:
    rows = np.flatnonzero(assignment.file == number)
    start, crc = sink.start[rows], sink.writer.crc
    assert (np.diff(start) >= 0).all(), "start must not decrease"
    file = storage.create(sink.asides[number])
    for row, begin in zip(rows.tolist(), start.tolist(), strict=True):
        file.write(begin, payloads[row])
    sums = [crc.compute(payloads[row]) if crc else 0 for row in rows.tolist()]
    checksums = FileChecksums(np.array(sums, dtype=np.int64))
    for begin, frame in sink.writer.frame(assignment.slices.take(rows), start, checksums):
        file.write(begin, frame)
    file.close()
    return checksums


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
