"""Reading and writing tensor bundles in the plainest way, without the engine: for the tests of the
format alone."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardvar.formats.tensorflow import FORMAT, BundleSource
from shardvar.layout.dtypes import STRING, dtype_name, is_opaque, numpy_dtype
from shardvar.layout.region import Region
from shardvar.planning.slices import Assignment
from shardvar.storage.local import LocalStorage
from shardvar.wire import strings
from spec_tests.helpers import paths
from spec_tests.helpers.format_protocol import read_payload, write_aside
from spec_tests.helpers.native_checkpoints import Piece, assignment_of

GOLDEN = paths.GOLDEN / "tensorflow"


def golden(name: str) -> tuple[dict[str, Any], LocalStorage, str]:
    """Return the expectations of a golden checkpoint, its directory and its prefix."""
    expected = json.loads((GOLDEN / name / "expected.json").read_text())
    path = GOLDEN / name / expected["prefix"]
    return expected, LocalStorage(str(path.parent)), path.name


def open_golden(name: str) -> tuple[dict[str, Any], BundleSource]:
    expected, storage, prefix = golden(name)
    return expected, FORMAT.open(storage, prefix)


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


Part = tuple[Sequence[int], Sequence[int], int]
"""(offset, shape, file) of a slice."""


def write_payloads(
    storage: LocalStorage,
    prefix: str,
    assignment: Assignment,
    payloads: Sequence[bytes],
    generation: str = "g0",
) -> None:
    """Write a bundle of these payloads, file by file."""
    how = FORMAT, storage, prefix, assignment, payloads
    sink, checksums = write_aside(*how, generation=generation)
    sink.commit(checksums)


def write_arrays(
    storage: LocalStorage,
    prefix: str,
    arrays: Mapping[str, Any],
    cuts: Mapping[str, Sequence[Part]] | None = None,
    num_files: int = 1,
    generation: str = "g0",
) -> None:
    """Write arrays, those in ``cuts`` in slices, all others whole into the last file."""
    pieces = []
    for key, array in arrays.items():
        everything = [((0,) * array.ndim, array.shape, num_files - 1)]
        for offset, shape, file in (cuts or {}).get(key, everything):
            region = Region(offset, shape)
            part = np.asarray(array[(*region.slices, ...)])
            payload = strings.encode(part) if part.dtype == object else part.tobytes()
            pieces.append(Piece(key, dtype_name(array.dtype), array.shape, region, payload, file))
    assignment, payloads = assignment_of(pieces, num_files), [each.payload for each in pieces]
    write_payloads(storage, prefix, assignment, payloads, generation)
