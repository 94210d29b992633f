"""Limits count over the whole checkpoint, and what is absent or repeated costs next to nothing.

The oracles are counts: of calls, of keys that are refused, and of bytes that Python allocates.
"""

import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import CheckpointError, InvalidCheckpoint
from shardvar.formats.zarr.source import Decoder
from shardvar.limits import (
    MAX_ABSENT_FILES,
    MAX_FILL_NBYTES,
    MAX_VIEW_EXPANSION,
)
from spec_tests.formats.test_zarr import GROUP, make
from spec_tests.helpers.golden_verdicts import check_parts, read_all
from spec_tests.hostile import torch as torch_file
from spec_tests.hostile.zarr import BYTES, described_v3, grid

ZSTD = {"name": "zstd", "configuration": {"level": 0, "checksum": False}}


def write_group(folder: Path, arrays: dict[str, dict[str, Any]]) -> Path:
    """Write a Zarr group with arrays, of each the fields that differ and the chunks in ``files``."""
    files: dict[str, Any] = {"zarr.json": GROUP}
    for key, fields in arrays.items():
        chunks = fields.pop("files", {})
        files[f"{key}/zarr.json"] = described_v3(**{"fill_value": 0, **fields})
        files |= {f"{key}/{name}": octets for name, octets in chunks.items()}
    return make(folder, files)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The numbers of chunks that are decoded, and of fill values that are read."""
    calls = Counter[str]()

    def count(name: str, real: Any) -> Any:
        def counted(*args: Any) -> Any:
            calls[name] += 1
            return real(*args)

        return counted

    for name in ("start_reading", "fill_value"):
        monkeypatch.setattr(Decoder, name, count(name, getattr(Decoder, name)))
    return calls


@pytest.mark.parametrize("verb", [sv.load, sv.verify, sv.digest])
def test_absent_chunks_are_not_looked_for_one_by_one(
    tmp_path: Path, asked: Counter[str], verb: Any
) -> None:
    one = {"shape": [300], "chunk_grid": grid(1), "codecs": [BYTES, ZSTD]}
    arrays = {key: dict(one) for key in "ab"}
    verb(write_group(tmp_path / "g", arrays))
    assert asked["start_reading"] == 0 and asked["fill_value"] == 2


FILLS: list[tuple[str, Any, Any]] = [
    ("float32", 1.5, 1.5),
    ("float64", "NaN", np.nan),
    ("float32", "-Infinity", -np.inf),
    ("int16", -300, -300),
    ("uint8", 7, 7),
    ("bool", True, True),
    ("complex64", [1.0, -2.0], 1 - 2j),
]


@pytest.mark.parametrize(("dtype", "written", "value"), FILLS)
def test_the_fill_value_stands_for_every_absent_chunk(
    tmp_path: Path, dtype: str, written: Any, value: Any
) -> None:
    """In chunks at the edge, in parts of chunks, and next to chunks that are stored."""
    stored = np.arange(12).reshape(3, 4).astype(dtype)
    one = {"shape": [8, 6], "data_type": dtype, "fill_value": written, "chunk_grid": grid(3, 4)}
    one["files"] = {"c/1/0": stored.tobytes()}
    path = write_group(tmp_path / "g", {"a": one})
    expected = np.full((8, 6), value, dtype)
    expected[3:6, :4] = stored
    np.testing.assert_array_equal(sv.load(path)["a"], expected)
    with sv.open_checkpoint(path) as reader:
        np.testing.assert_array_equal(reader["a"][1:7, 2:5], expected[1:7, 2:5])
    check_parts(path, sv.load(path))
    outcome = sv.verify(path)
    assert outcome.ok and "5 of 6 chunks are absent" in " ".join(outcome.notes)


def test_the_arrays_of_a_group_share_what_may_be_absent(tmp_path: Path) -> None:
    many = MAX_ABSENT_FILES // 2
    arrays = {key: {"shape": [many], "chunk_grid": grid(1)} for key in ("a", "b", "c")}
    report = sv.verify(write_group(tmp_path / "many", arrays))
    assert [damage.key for damage in report.damages] == ["c"]
    assert "MAX_ABSENT_FILES" in report.damages[0].cause
    large = MAX_FILL_NBYTES // 8
    arrays = {key: {"shape": [large], "chunk_grid": grid(large)} for key in ("a", "b", "c")}
    with sv.open_checkpoint(write_group(tmp_path / "large", arrays)) as reader:
        assert [*reader] == ["a", "b", "c"]
        with pytest.raises(InvalidCheckpoint, match="MAX_FILL_NBYTES"):
            reader.read("c")


def test_what_may_be_absent_grows_with_what_is_stored(tmp_path: Path) -> None:
    """As with zarr-python, which leaves out chunks that have the fill value only."""
    files = {f"c/{row * 60}": np.float32(row).tobytes() for row in range(600)}
    one = {"shape": [36_000], "chunk_grid": grid(1), "files": files}
    arrays = {key: dict(one) for key in "ab"}
    path = write_group(tmp_path / "g", arrays)
    assert MAX_ABSENT_FILES < 2 * (36_000 - 600)
    loaded = sv.load(path, ["b"])["b"]
    assert loaded[60 * 599] == 599 and np.count_nonzero(loaded) == 599


def test_an_absent_chunk_is_verified_without_its_memory(tmp_path: Path) -> None:
    size = 1 << 27
    one = {"shape": [size], "chunk_grid": grid(size), "data_type": "int8"}
    path = write_group(tmp_path / "g", {"a": one})
    assert sv.verify(path).ok  # what is imported once
    tracemalloc.start()
    try:
        assert sv.verify(path).ok
        assert tracemalloc.get_traced_memory()[1] < size // 8
    finally:
        tracemalloc.stop()


def saved(path: Path, storage: bytes, **tensors: bytes) -> Path:
    body = torch_file.mapping(**tensors)
    path.write_bytes(torch_file.archive(body, ("data/0", storage), ("version", b"3\n")))
    return path


@pytest.mark.parametrize("count", [1 << 33, 1 << 45])
def test_a_view_that_repeats_a_few_elements_for_ever_is_a_fault(tmp_path: Path, count: int) -> None:
    good, large = (torch_file.tensor(n, strides=(step,)) for n, step in ((4, 1), (count, 0)))
    path = saved(tmp_path / "m.pt", torch_file.VALUES, good=good, large=large)
    with pytest.raises(InvalidCheckpoint, match="'large'.*MAX_VIEW_EXPANSION"):
        sv.load(path)
    assert sv.load(path, ["good"])["good"].tolist() == [0, 1, 2, 3]
    assert [damage.key for damage in sv.verify(path).damages] == ["large"]


def test_views_of_one_storage_share_a_limit(tmp_path: Path) -> None:
    """A layer with the names of all layers is read; thousands of names of one storage are not."""
    count = 1 << 16
    storage = np.arange(count, dtype="<f4")
    names = {
        f"k{number:04d}": torch_file.tensor(count, strides=(1,), count=count)
        for number in range(1000)
    }
    few = dict(list(names.items())[:96])
    tied = sv.load(saved(tmp_path / "tied.pt", storage.tobytes(), **few))
    assert len(tied) == 96 and np.array_equal(tied["k0095"], storage)
    report = sv.verify(saved(tmp_path / "many.pt", storage.tobytes(), **names))
    whole = (1 << 26) + MAX_VIEW_EXPANSION * storage.nbytes
    assert len(report.damages) == 1000 - whole // storage.nbytes


def test_a_mask_that_torch_expanded_is_read(tmp_path: Path) -> None:
    mask = torch_file.tensor(2048, 1024, strides=(0, 0), count=1)
    loaded = sv.load(saved(tmp_path / "m.pt", torch_file.VALUES[4:8], mask=mask))["mask"]
    assert loaded.shape == (2048, 1024) and (loaded == 1).all()


def test_objects_that_share_a_value_share_a_limit(tmp_path: Path) -> None:
    """However often they repeat a value that takes two bytes in the pickle."""
    shared = b"](" + torch_file.number(1 << 40) * 300 + b"eq\x00"
    lists = {f"k{row:04d}": b"](h\x00e" for row in range(400)}
    body = torch_file.mapping(first=shared, **lists)
    path = tmp_path / "m.pt"
    path.write_bytes(torch_file.archive(body, ("version", b"3\n")))
    arrays, errors = read_all(path)
    texts = sum(len(array.item()) for array in arrays.values())
    # A literal has more characters than were counted: commas, spaces, quotation marks.
    assert texts < 2 * 64 * len(body) and errors
    assert all("64 times" in str(error) for error in errors.values())


def test_an_item_of_a_distributed_checkpoint_repeats_no_element(tmp_path: Path) -> None:
    count = 1 << 40
    item = torch_file.archive(
        torch_file.tensor(count, strides=(0,)), ("data/0", torch_file.VALUES), ("version", b"3\n")
    )
    at = torch_file.size(0)
    (tmp_path / "__0_0.distcp").write_bytes(item)
    slices = torch_file.slices((at, torch_file.size(count)))
    places = torch_file.places((at, "__0_0.distcp", 0, len(item)))
    index = torch_file.metadata(slices, places, torch_file.size(count))
    (tmp_path / ".metadata").write_bytes(index)
    with pytest.raises(CheckpointError, match="repeated"):
        sv.load(tmp_path)
    assert not sv.verify(tmp_path).ok
