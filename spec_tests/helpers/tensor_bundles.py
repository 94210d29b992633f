"""Reading and writing tensor bundles in the plainest way, without the engine: for the tests of the
format alone."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardvar.errors import CorruptCheckpoint
from shardvar.formats.protocol import FileChecksums
from shardvar.formats.tensorflow import FORMAT, BundleSource
from shardvar.layout.dtypes import STRING, dtype_name, is_opaque, is_whole, numpy_dtype
from shardvar.planning.index import EntryTable, Metadata
from shardvar.planning.slices import Assignment, SliceTable, TensorTable, pad
from shardvar.storage.local import LocalStorage
from shardvar.wire import strings
from spec_tests.helpers import paths

GOLDEN = paths.GOLDEN / "tensorflow"


def golden(name: str) -> tuple[dict[str, Any], LocalStorage, str]:
    """Return the expectations of a golden checkpoint, its directory and its prefix."""
    expected = json.loads((GOLDEN / name / "expected.json").read_text())
    path = GOLDEN / name / expected["prefix"]
    return expected, LocalStorage(str(path.parent)), path.name


def open_golden(name: str) -> tuple[dict[str, Any], BundleSource]:
    expected, storage, prefix = golden(name)
    return expected, FORMAT.open(storage, prefix)


def read_payload(source: BundleSource, entries: EntryTable, row: int) -> bytes:
    """One payload; ``CorruptCheckpoint`` where its checksum is not the index's."""
    payload = bytearray(int(entries.slices.nbytes[row]))
    source.read_into(entries, row, 0, memoryview(payload))
    if entries.plain[row] and source.crc.compute(payload) != entries.checksum[row]:
        raise CorruptCheckpoint("The checksum disagrees.", "Look for another copy.")
    return bytes(payload)


def read_tensor(source: BundleSource, key: str) -> Any:
    """The whole tensor, put together from its slices; the payload itself where the values have no
    NumPy type."""
    if key in source.index.faults:
        raise source.index.faults[key]
    entries = source.index.find(key)
    dtype, shape = (
        entries.slices.dtype(0),
        entries.slices.tensors.shape(int(entries.slices.tensor[0])),
    )
    if is_opaque(dtype):
        return read_payload(source, entries, 0)
    whole = np.empty(shape, numpy_dtype(dtype))
    for row in range(len(entries)):
        region, payload = entries.slices.region(row), read_payload(source, entries, row)
        part = (
            strings.decode(payload, region.shape)
            if dtype == STRING
            else np.frombuffer(payload, whole.dtype).reshape(region.shape)
        )
        whole[(*region.slices, ...)] = part
    return whole


def digest(value: Any) -> str:
    """The digest that the golden files give: of the bytes, or of strings behind their lengths."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = b"".join(
            len(element).to_bytes(4, "little") + element for element in value.ravel().tolist()
        )
    return hashlib.sha256(value if isinstance(value, bytes) else value.tobytes()).hexdigest()


def string_values(expected: Mapping[str, Any]) -> list[bytes]:
    return [base64.b64decode(value["b64"]) for value in expected["values"]]


def write_payloads(
    storage: LocalStorage,
    prefix: str,
    assignment: Assignment,
    payloads: Sequence[bytes],
    generation: str = "g0",
) -> None:
    """Write a bundle of these payloads, file by file."""
    sink = FORMAT.create(storage, prefix, assignment, Metadata(), generation)
    checksums = []
    for number, aside in enumerate(sink.asides):
        rows = np.flatnonzero(assignment.file == number).tolist()
        file = storage.create(aside)
        crcs = []
        for row in rows:
            file.write(int(sink.start[row]), payloads[row])
            dtype, count = assignment.slices.dtype(row), assignment.slices.region(row).size
            view = memoryview(payloads[row])
            crcs.append(
                sink.writer.checksum_whole(dtype, count, view)
                if is_whole(dtype)
                else sink.writer.crc.compute(view)
            )
        file.close()
        checksums.append(FileChecksums(np.array(crcs, np.int64)))
    sink.commit(checksums)


Part = tuple[Sequence[int], Sequence[int], int]
"""(offset, shape, file) of a slice."""


def write_arrays(
    storage: LocalStorage,
    prefix: str,
    arrays: Mapping[str, Any],
    cuts: Mapping[str, Sequence[Part]] | None = None,
    num_files: int = 1,
    generation: str = "g0",
) -> None:
    """Write arrays, those in ``cuts`` in slices, all others whole into the last file."""
    tensors = TensorTable.of(
        [(key, dtype_name(array.dtype), array.shape) for key, array in arrays.items()]
    )
    parts = [
        (
            row,
            offset,
            shape,
            file,
            _payload(array[(*(slice(o, o + n) for o, n in zip(offset, shape, strict=True)), ...)]),
        )
        for row, (key, array) in enumerate(arrays.items())
        for offset, shape, file in (cuts or {}).get(
            key, [((0,) * array.ndim, array.shape, num_files - 1)]
        )
    ]
    slices = SliceTable.of(
        tensors,
        np.array([row for row, *_ in parts], np.int64),
        pad([offset for _, offset, *_ in parts], fill=0)[1],
        pad([shape for _, _, shape, *_ in parts], fill=1)[1],
        np.array([len(payload) for *_, payload in parts], np.int64),
    )
    assignment = Assignment(slices, np.array([file for *_, file, _ in parts], np.int64), num_files)
    write_payloads(storage, prefix, assignment, [payload for *_, payload in parts], generation)


def _payload(array: Any) -> bytes:
    array = np.asarray(array)
    return strings.encode(array) if array.dtype == object else array.tobytes()
