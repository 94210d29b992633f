"""What the verbs return has the types that the API reference documents."""

from pathlib import Path

import numpy as np

import shardvar as sv
from shardvar.verbs.compare.comparison import Unreadable
from shardvar.verbs.compare.digest import DigestReport
from shardvar.verbs.problems import Unverified
from shardvar.verbs.reader import LazyTensor
from shardvar.verbs.reports import WriteReport


def test_reports_and_tensors_have_the_types_of_the_reference(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    assert isinstance(sv.save(path, {"w": np.arange(300.0)}), WriteReport)
    assert isinstance(sv.digest(path), DigestReport)
    with sv.open_checkpoint(path) as reader:
        assert isinstance(reader["w"], LazyTensor)


def test_a_tensor_without_a_checksum_is_unverified_and_says_so(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones(3))
    (unverified,) = sv.verify(tmp_path / "x.npy").unverified
    assert isinstance(unverified, Unverified)
    assert (unverified.key, unverified.guarded) == ("array", False)


def test_a_damaged_tensor_of_one_side_is_unreadable_and_has_its_damage(tmp_path: Path) -> None:
    for name in ("a", "b"):
        sv.save(tmp_path / name, {"w": np.arange(300.0)})
    (file,) = tmp_path.glob("b.svdata*")
    octets = bytearray(file.read_bytes())
    octets[100] ^= 1
    file.write_bytes(octets)
    (unreadable,) = sv.diff(tmp_path / "a", tmp_path / "b").unreadable
    assert isinstance(unreadable, Unreadable)
    assert (unreadable.side, unreadable.key, unreadable.damage.key) == ("b", "w", "w")
