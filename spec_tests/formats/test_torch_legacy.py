"""Files in the form that ``torch.save`` had before version 1.6.

The golden file was written by torch 2.13 with ``_use_new_zipfile_serialization=False``: views,
tied and empty tensors, and objects.
"""

from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import IncompleteCheckpoint, InvalidCheckpoint, ShardvarError, UnsupportedError
from shardvar.formats.torch.values import STORAGES
from shardvar.wire.damage import LEGACY_MAGIC
from shardvar.wire.opcode_writer import Call, build_pickle
from shardvar.wire.plain import Global, Reference
from spec_tests.helpers.format_protocol import GOLDEN

FILE = GOLDEN / "torch_legacy" / "small.pt"
W = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_the_values_are_the_ones_that_torch_saved(tmp_path: Path) -> None:
    found = sv.load(FILE)
    np.testing.assert_array_equal(found["w"], W)
    np.testing.assert_array_equal(found["tied"], W)
    np.testing.assert_array_equal(found["b"], [True, False])
    np.testing.assert_array_equal(found["view"], [2, 3, 4])
    np.testing.assert_array_equal(found["t"], np.arange(6, dtype=np.int16).reshape(2, 3).T)
    assert found["e"].shape == (0, 2)
    assert (found["p"].dtype.name, found["p"].astype(float).tolist()) == ("bfloat16", [1, 1])
    assert found["args"].item() == b"Namespace(a=1)" and found["lr"].item() == b"np.float64(0.5)"
    with sv.open_checkpoint(FILE) as reader:
        np.testing.assert_array_equal(reader["w"][1, :2], W[1, :2])
    sv.reshard(FILE, tmp_path / "new.pt")
    assert sv.diff(FILE, tmp_path / "new.pt").equal


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    data, path = FILE.read_bytes(), tmp_path / "x.pt"
    for stop in range(0, len(data), 7):
        path.write_bytes(data[:stop])
        with pytest.raises(ShardvarError):
            sv.load(path)


def old_file(
    path: Path,
    keys: object = ("0",),
    version: object = 1001,
    view: object = None,
    count: int = 6,
    stored: int = 6,
    more: bytes = b"",
    little: object = True,
) -> Path:
    """Write a file of one tensor of 6 float32 by hand."""
    kind = Global(next(name for name, dtype in STORAGES.items() if dtype == "float32"))
    storage = Reference(("storage", kind, "0", "cpu", count, view))
    args = (storage, 0, (2, 3), (3, 1), False, Call("collections.OrderedDict", ()))
    pickles = [
        version,
        {"protocol_version": 1001, "little_endian": little, "type_sizes": {}},
        {"w": Call("torch._utils._rebuild_tensor_v2", args)},
        [*keys] if isinstance(keys, tuple) else keys,
    ]
    order = "<" if little is True else ">"
    head = LEGACY_MAGIC + b"".join(map(build_pickle, pickles))
    payload = np.array(stored, f"{order}i8").tobytes() + W.astype(f"{order}f4").tobytes()
    path.write_bytes(head + payload + more)
    return path


@pytest.mark.parametrize("little", [True, False])
def test_a_file_written_by_hand_is_read_in_both_orders_of_bytes(
    little: bool, tmp_path: Path
) -> None:
    np.testing.assert_array_equal(sv.load(old_file(tmp_path / "x.pt", little=little))["w"], W)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"keys": ()}, InvalidCheckpoint),
        ({"keys": ("0", "0")}, ShardvarError),
        ({"keys": ("0", "1")}, ShardvarError),
        ({"keys": 5}, ShardvarError),
        ({"keys": "0"}, ShardvarError),
        ({"version": 1002}, UnsupportedError),
        ({"version": [1001]}, UnsupportedError),
        ({"little": 1}, UnsupportedError),
        ({"view": ("1", 0, 6)}, UnsupportedError),
        ({"stored": 5}, InvalidCheckpoint),
        ({"stored": -1}, InvalidCheckpoint),
        ({"count": 7, "stored": 7}, IncompleteCheckpoint),
        ({"count": 2**60, "stored": 2**60}, ShardvarError),
        ({"count": -1}, ShardvarError),
        ({"more": b"x"}, InvalidCheckpoint),
    ],
)
def test_storages_that_do_not_fit_the_file_are_refused(
    changes: dict[str, object], error: type[ShardvarError], tmp_path: Path
) -> None:
    with pytest.raises(error):
        sv.load(old_file(tmp_path / "x.pt", **changes))  # type: ignore[arg-type]
