"""Payloads that are read together with their frames, in a bucket.

Laws, for the formats whose checksums or places are next to the payloads: what a verb returns or
finds in a bucket is what it returns or finds on a disk, for whole and damaged checkpoints; and
reading all of many tensors costs about a request for each 4 MiB.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.formats.deferred import ADDRESSES, Enclosed
from shardvar.formats.files import DataFiles
from shardvar.storage.remote import RemoteStorage
from spec_tests.helpers.memory_bucket import MemoryBucket, count_requests, in_bucket, in_memory

BLOCK = 4 << 20


INDEXES = ("zarr.json", ".metadata")


def tensors_of(count: int, most: int = 1 << 19) -> dict[str, Any]:
    """Tensors of many sizes, from 64 KiB on."""
    rng = np.random.default_rng(0)
    rows = np.exp(rng.uniform(np.log(1 << 16), np.log(most), count)).astype(int) >> 10
    rows = rows // 12 * 12
    return {
        f"l.{number}": rng.random((int(each), 256), np.float32) for number, each in enumerate(rows)
    }


WHOLE: dict[str, dict[str, Any]] = {"m.pt": {}, "m": {"format": "torch"}, "m.zarr": {}}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_reads_take_about_a_request_for_each_4_mib(name: str, tmp_path: Path) -> None:
    """A load, a verify and a copy: each byte comes once, and memory is bounded by the requests."""
    tensors = tensors_of(100)
    sv.save(tmp_path / "from" / name, tensors, **WHOLE[name])
    bucket, url = in_memory(tmp_path / "from"), f"s3://bucket/run/{name}"
    size = sum(map(len, bucket.files.values()))
    verbs: list[Callable[[], Any]] = [
        partial(sv.load, url),
        partial(sv.verify, url),
        partial(sv.reshard, url, tmp_path / "copy.safetensors"),
    ]
    for verb in verbs:
        bucket.ranges.clear()
        with in_bucket(bucket):
            # An array of Zarr has a description, and a file for each chunk.
            files = len(bucket.files) if name == "m.zarr" else 0
            assert count_requests(bucket, verb) <= 10 + files + 1.2 * size / BLOCK
        assert sum(nbytes for _, nbytes in bucket.ranges) <= 1.1 * size
        assert max(nbytes for _, nbytes in bucket.ranges) <= BLOCK + (64 << 10)
    with in_bucket(bucket):
        for loaded in (sv.load(tmp_path / "copy.safetensors"), sv.load(url)):
            assert all(np.array_equal(loaded[key], tensors[key]) for key in tensors)


def outcome(path: str) -> Any:
    """What a load and a verify of a path return, or the kinds of their errors."""
    found: list[Any] = []
    try:
        values = sv.load(path).items()
        found.append(
            {key: each.tolist() if each.dtype == object else each.tobytes() for key, each in values}
        )
    except sv.errors.ShardvarError as error:
        found.append(type(error))
    try:
        report = sv.verify(path)
        damages = sorted((each.kind, str(each.key)) for each in report.damages)
        # Of a wrong frame, the bytes were read in a bucket.
        found += [damages, report.outcomes, report.verdict, report.unguarded_nbytes]
    except sv.errors.ShardvarError as error:
        found.append(type(error))
    return found


@pytest.mark.parametrize("name", WHOLE)
@given(data=st.data())
def test_damage_is_found_as_on_a_disk(
    name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Each damaged byte, of a frame or of a payload, has the outcome that it has on a disk."""
    folder = tmp_path_factory.mktemp("damaged")
    sv.save(
        folder / name, {f"l.{each}": np.arange(40.0) + each for each in range(3)}, **WHOLE[name]
    )
    found = sorted(each for each in folder.rglob("*") if each.is_file())
    path = data.draw(st.sampled_from([each for each in found if each.name not in INDEXES]))
    octets = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(octets) - 1))
    octets[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(octets)
    here = outcome(str(folder / name))
    with in_bucket(in_memory(folder)):
        assert outcome(f"s3://bucket/run/{name}") == here


@given(
    extents=st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 30), st.integers(0, 9)), max_size=8
    ),
    low=st.integers(0, 200),
    nbytes=st.integers(1, 300),
)
def test_a_span_of_addresses_has_the_bytes_of_its_payloads(
    extents: list[tuple[int, int, int]], low: int, nbytes: int
) -> None:
    """Oracle: each payload cut out of the file by itself. Extents have a gap, a payload, a frame."""
    content = bytes(range(256)) * 2
    bucket = MemoryBucket({"f": content})
    begin, columns = 0, list[tuple[int, ...]]()
    for row, (gap, size, frame) in enumerate(extents):
        columns.append((row, 0, begin + gap, begin + gap + size + frame, size))
        begin = columns[-1][3]
    table = np.array(columns, np.int64).reshape(-1, 5)
    data = DataFiles(RemoteStorage(bucket, ""), ["f"])
    # A payload begins its extent here, and its frame follows.
    unframe = lambda row, octets: octets[: int(table[row, 4])]  # noqa: E731
    enclosed = Enclosed.of(data, table, unframe)
    assert len(enclosed.rows) == len(extents)
    span = memoryview(bytearray(b"?" * nbytes))
    enclosed.read_span(0, ADDRESSES + low, span)
    for _, _, first, stop, size in columns:
        for place, octet in zip(range(stop - size, stop), content[first:], strict=False):
            if low <= place < low + nbytes:
                assert span[place - low] == octet


def test_extents_that_share_bytes_are_left_out() -> None:
    bucket = MemoryBucket({"f": bytes(100), "g": bytes(100)})
    data = DataFiles(RemoteStorage(bucket, ""), ["f", "g"])
    extents = (0, 0, 50), (0, 10, 20), (0, 30, 40), (0, 60, 70), (1, 5, 15)
    table = np.array([[row, *extent, 9] for row, extent in enumerate(extents)])
    enclosed = Enclosed.of(data, table, lambda _row, octets: octets)
    assert enclosed.rows.tolist() == [3, 4]
