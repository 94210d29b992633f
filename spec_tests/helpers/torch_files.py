"""Files of torch.save, written by hand, and the golden folders of files that are joined."""

import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from shardvar.formats.torch.archive import build_frame, plan_starts, records_of, tensor_call
from shardvar.wire.crc import CRC32
from shardvar.wire.opcode_writer import build_pickle
from spec_tests.helpers.paths import GOLDEN


def write_torch(path: Path, value: Any, *arrays: Any) -> None:
    """Write a file with a value, whose tensors have the storages of these arrays in turn."""
    payloads = [array.tobytes() for array in arrays]
    records = records_of(build_pickle(value), [len(each) for each in payloads])
    starts = [
        start
        for record, start in zip(records, plan_starts(records), strict=True)
        if record.content is None
    ]
    ranges = [
        *build_frame(records, [CRC32.compute(each) for each in payloads]),
        *zip(starts, payloads, strict=True),
    ]
    data = bytearray()
    for start, octets in ranges:
        data.extend(bytes(max(start + len(octets) - len(data), 0)))
        data[start : start + len(octets)] = octets
    path.write_bytes(data)


def write_saved(path: Path, plain: dict[str, object], flat: dict[str, np.ndarray]) -> None:
    """Write a dict with these values and flat vectors under keys whose steps ``/`` separates."""
    value: dict[str, object] = {}
    for number, (key, item) in enumerate([*flat.items(), *plain.items()]):
        steps, inner = key.split("/"), value
        for step in steps[:-1]:
            inner = inner.setdefault(step, {})  # type: ignore[assignment]
        is_flat = isinstance(item, np.ndarray)
        inner[steps[-1]] = tensor_call("float32", item.shape, number) if is_flat else item
    write_torch(path, value, *flat.values())


def save_pickled(path: Path, state: Any, protocol: int = 2, is_old: bool = False) -> Path:
    """Save a state as torch.save does, in either of its forms, with Python's own pickle."""
    octets = pickle.dumps(state, protocol)
    if is_old:
        system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}
        head = [pickle.dumps(each, 2) for each in (0x1950A86A20F9469CFC6C, 1001, system)]
        path.write_bytes(b"".join([*head, octets, pickle.dumps([], 2)]))
        return path
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", octets)
        archive.writestr("m/version", "3\n")
    return path


def copied(kind: str, case: str, place: Path) -> Path:
    """Copy the files of a golden checkpoint, and return their folder."""
    ignored = shutil.ignore_patterns("expected.npz")
    return Path(shutil.copytree(GOLDEN / kind / case, place / case, ignore=ignored))


def joined(kind: str, case: str) -> Any:
    """Return the tensors that its own program makes of a golden checkpoint; bfloat16 as uint16."""
    return np.load(GOLDEN / kind / case / "expected.npz")


def assert_joined(array: np.ndarray, expected: np.ndarray) -> None:
    bits = expected.dtype == np.uint16
    found = np.ascontiguousarray(array).view(np.uint16) if bits else array.astype(expected.dtype)
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)
