"""What the verbs return has the types that the API reference documents."""

from pathlib import Path

import numpy as np

import shardvar as sv
from shardvar.verbs.clean import CleanReport, Leftover
from shardvar.verbs.compare.comparison import Unreadable
from shardvar.verbs.compare.digest import DigestReport
from shardvar.verbs.problems import Unverified
from shardvar.verbs.reader import LazyTensor
from shardvar.verbs.reports import WriteReport
from spec_tests.helpers.damage import flip


def test_reports_and_their_parts_have_the_types_of_the_reference(tmp_path: Path) -> None:
    for name in ("a", "b", "m.npz"):
        assert isinstance(sv.save(tmp_path / name, {"w": np.arange(300.0)}), WriteReport)
    assert isinstance(sv.digest(tmp_path / "m.npz"), DigestReport)
    with sv.open_checkpoint(tmp_path / "m.npz") as reader:
        assert isinstance(reader["w"], LazyTensor)
    np.save(tmp_path / "x.npy", np.ones(3))
    (unverified,) = sv.verify(tmp_path / "x.npy").unverified
    assert isinstance(unverified, Unverified) and not unverified.guarded
    flip(*tmp_path.glob("b.svdata*"), 100)
    (unreadable,) = sv.diff(tmp_path / "a", tmp_path / "b").unreadable
    assert isinstance(unreadable, Unreadable)
    assert (unreadable.side, unreadable.key, unreadable.damage.key) == ("b", "w", "w")
    (tmp_path / ".a.lock").touch()
    report = sv.clean(tmp_path, older_than=0)
    assert isinstance(report, CleanReport)
    assert [type(each) for each in report.leftovers] == [Leftover]
