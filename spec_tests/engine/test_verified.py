"""Payloads that are verified before they are used: each byte is read once, whoever asks."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.engine import pieces, pool
from shardvar.engine.pieces import VerifiedRows
from shardvar.errors import CorruptCheckpoint
from shardvar.formats.native.index import RUN_NBYTES
from spec_tests.engine.test_pieces import Counted
from spec_tests.helpers.damage import flip


@pytest.mark.parametrize("is_damaged", [False, True])
def test_threads_read_one_payload_together(is_damaged: bool, tmp_path: Path) -> None:
    """Each block is read once, and all threads wait for the last one; damage is found by each of
    them."""
    sv.save(tmp_path / "a", {"t": np.arange(1000)})
    [file] = tmp_path.glob("a.svdata*")
    if is_damaged:
        flip(file, 5000)
    with (
        patch.object(pieces, "BLOCK_NBYTES", 64),
        patch.object(pool, "BLOCK_NBYTES", 64),
        sv.open_checkpoint(tmp_path / "a") as reader,
        ThreadPoolExecutor(8) as threads,
    ):
        source = Counted(reader.source)
        rows = VerifiedRows(source, reader.entries())
        for answer in [threads.submit(rows.verify, 0) for _ in range(64)]:
            with pytest.raises(CorruptCheckpoint) if is_damaged else nullcontext():
                answer.result()
    if not is_damaged:
        assert sorted(source.reads) == [(start, 64) for start in range(0, 8000, 64)]


@given(
    bounds=st.lists(st.integers(0, 600_000), min_size=2, max_size=2, unique=True).map(sorted),
    nbytes=st.integers(1, 600_000),
    form=st.sampled_from(["shardvar", "safetensors", "torch"]),
)
@example(bounds=[300_000, 520_000], nbytes=220_000, form="shardvar")
def test_a_part_is_what_the_payload_has(
    tmp_path_factory: pytest.TempPathFactory, bounds: list[int], nbytes: int, form: str
) -> None:
    """Whatever the format: by its runs, after the whole payload, or as it is; never more than a
    quarter in vain, but for a payload that only has a checksum of its own."""
    array = np.random.default_rng(0).integers(0, 256, 600_000, np.uint8)
    path = tmp_path_factory.mktemp("part") / "a"
    sv.save(path, {"t": array}, format=form)
    start, stop = bounds
    nbytes = min(nbytes, stop - start)
    with sv.open_checkpoint(path) as reader:
        source = Counted(reader.source)
        rows = VerifiedRows(source, reader.entries())
        found = rows.read(0, start, stop, nbytes)
        edges = [*range(0, len(array), RUN_NBYTES), len(array)]
        begin, end = max(x for x in edges if x <= start), min(x for x in edges if x >= stop)
        width = end - begin if form == "shardvar" else stop - start
        assert (found is None) == (4 * nbytes < 3 * width)
        if found is None:
            assert not source.reads
            return
        assert bytes(found) == array[start:stop].tobytes()
        total = sum(nbytes for _, nbytes in source.reads)
        assert total == width + (len(array) if form == "torch" else 0)
