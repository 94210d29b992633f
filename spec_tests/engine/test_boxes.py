"""Boxes of a payload, several at once: what one by one would be read for each is read once; the values are NumPy's."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.checkpoint.save import source_of
from shardvar.engine import boxes, files
from shardvar.engine.evidence import Evidence
from shardvar.layout.region import Region
from shardvar.storage.local_file import LocalReadableFile


@dataclass
class Counted:
    """A source that says how much was read of it."""

    source: Any
    crc: Any = None
    reads: list[int] = field(default_factory=list)

    def read_into(self, entries: Any, row: int, start: int, buffer: memoryview) -> None:
        self.reads.append(len(buffer))
        self.source.read_into(entries, row, start, buffer)


@st.composite
def wanted_boxes(draw: st.DrawFn) -> tuple[np.dtype[Any], tuple[int, ...], list[tuple[int, Region]]]:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    ranges = [st.integers(0, n - 1).flatmap(lambda a, n=n: st.tuples(st.just(a), st.integers(1, n - a))) for n in shape]
    box = st.tuples(*ranges).map(lambda pairs: Region((a for a, _ in pairs), (n for _, n in pairs)))
    dtype = draw(st.sampled_from(["i1", "i2", "f4", "f8", "c16"]))
    return np.dtype(dtype), shape, draw(st.lists(st.tuples(st.integers(0, 1), box), min_size=1, max_size=8))


@given(wanted_boxes(), st.sampled_from([16, 64, 256]), st.sampled_from([1, 32]), st.booleans())
@example((np.dtype("f4"), (8, 8), [(0, Region((0, c), (8, 1))) for c in range(8)]), 64, 1, False)
def test_boxes_read_together_are_the_boxes(given: Any, block: int, small: int, turned: bool) -> None:
    dtype, shape, wanted = given
    size = int(np.prod(shape))
    tables = {str(row): (np.arange(size) * (row + 3) % 251).astype(dtype).reshape(shape) for row in (0, 1)}
    source = source_of(tables)
    outs = [np.zeros(box.shape, boxes._word(dtype.itemsize), order="F" if turned else "C") for _, box in wanted]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boxes, "BLOCK_NBYTES", block)
        patch.setattr(boxes, "_SMALL_NBYTES", small)
        counted = Counted(source)
        entries = source.index.entries
        jobs = [(row, box, out) for (row, box), out in zip(wanted, outs, strict=True)]
        boxes.read_boxes(counted, entries, jobs, Evidence(counted, entries))
    for (row, box), out in zip(wanted, outs, strict=True):
        expected = tables[str(row)][box.slices]
        assert np.ascontiguousarray(out).tobytes() == np.ascontiguousarray(expected).tobytes()
    assert max(counted.reads) <= max(block, small, dtype.itemsize)


@pytest.fixture
def read_nbytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    reads: list[int] = []
    plain = LocalReadableFile.read_into

    def read_into(self: LocalReadableFile, start: int, buffer: memoryview) -> None:
        reads.append(len(buffer))
        plain(self, start, buffer)

    monkeypatch.setattr(LocalReadableFile, "read_into", read_into)
    return reads


@pytest.mark.parametrize("form", ["shardvar", "tensorflow"])
@pytest.mark.parametrize("count", [2, 8, 16])
def test_columns_are_cut_in_a_few_readings_however_many_they_are(
    form: str, count: int, tmp_path: Path, read_nbytes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns lie interleaved: read one after the other, each of them would read all of the table."""
    for module in (boxes, files):
        monkeypatch.setattr(module, "BLOCK_NBYTES", 1 << 20)
    monkeypatch.setattr(files, "BATCH_NBYTES", 3 << 20)
    table = np.arange(1 << 22, dtype=np.int32).reshape(-1, 64)  # 16 MiB, and each of 16 columns one
    sv.save(tmp_path / "rows", {"w": table}, format=form, partition=3)
    read_nbytes.clear()
    sv.reshard(tmp_path / "rows", tmp_path / "columns", partition=[1, count])
    assert sum(read_nbytes) <= 4 * table.nbytes
    np.testing.assert_array_equal(sv.load(tmp_path / "columns")["w"], table)
    read_nbytes.clear()
    sv.reshard(tmp_path / "columns", tmp_path / "again", partition=5)
    assert sum(read_nbytes) <= 4 * table.nbytes
    assert sv.diff(tmp_path / "rows", tmp_path / "again").equal
