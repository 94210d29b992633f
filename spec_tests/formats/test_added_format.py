"""A format of another package, found by its entry point, needs no more than it must have."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from shardvar.formats.table import format_named, format_names
from shardvar.verbs.locate import find_checkpoints

MODULE = '''
"""A format that is only read: the elements of one vector of uint8, and nothing else."""

import numpy as np

from shardvar.formats.files import DataFiles, FileSource
from shardvar.formats.protocol import Format
from shardvar.planning.index import NO_CHECKSUM, EntryTable, TableIndex
from shardvar.planning.slices import TensorTable


class RawSource(FileSource):
    def __init__(self, storage, name):
        self.files = DataFiles(storage, [name])
        count = self.files.open(0).size
        one = np.zeros(1, np.int64)
        table = TensorTable.of([("bytes", "uint8", (count,))]).whole()
        entries = EntryTable(table, one, one, np.array([NO_CHECKSUM]), np.ones(1, bool))
        self.table = TableIndex(entries, [name])

    @property
    def data(self):
        return self.files

    @property
    def index(self):
        return self.table

    def read_into(self, entries, row, start, buffer):
        self.read_span(int(entries.file[row]), int(entries.start[row]) + start, buffer)


class RawFormat(Format):
    name = "raw"

    def locate(self, storage, name):
        there = [each for each in storage.names() if each.endswith(".raw")]
        return [each for each in there if name in ("", each)]

    def open(self, storage, name):
        return RawSource(storage, name)


FORMAT = RawFormat()
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a checkpoint of the format, whose package is installed."""
    site = tmp_path / "site"
    about = site / "rawformat-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: rawformat\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[shardvar.formats]\nraw = rawformat:FORMAT\n")
    (site / "rawformat.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(site))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a.raw").write_bytes(bytes(range(9)))
    yield tmp_path / "run"
    sys.modules.pop("rawformat", None)


def test_an_added_format_is_found_and_read(folder: Path) -> None:
    assert format_names()[-1] == "raw"
    assert [each.format.name for each in find_checkpoints(folder)] == ["raw"]
    np.testing.assert_array_equal(sv.load(folder / "a.raw")["bytes"], np.arange(9, dtype=np.uint8))
    report = sv.verify(folder / "a.raw")
    assert (report.damages, [each.key for each in report.unverified]) == ((), ["bytes"])
    target = folder / "b.safetensors"
    sv.reshard(folder / "a.raw", target)
    assert sv.load(target)["bytes"].tolist() == list(range(9))


def test_an_added_format_that_is_only_read_refuses_to_write(folder: Path) -> None:
    """It holds no dtype, as its capabilities say by default."""
    with pytest.raises(sv.errors.UnsupportedError, match="raw"):
        sv.save(folder / "new", {"w": np.zeros(3)}, format="raw")
    form = format_named("raw")
    with pytest.raises(sv.errors.UnsupportedError, match="The format raw is read and not written"):
        form.remove(find_checkpoints(folder)[0].storage, "a.raw")
    with pytest.raises(sv.errors.UnsupportedError, match="cannot be written by several processes"):
        sv.save_shards(folder / "new", {}, run="r", process=0, num_processes=1, format="raw")
