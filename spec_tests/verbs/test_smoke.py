"""The whole way through, in seconds: what must work before anything else is worth trying, in the
tree and installed."""

from pathlib import Path

import numpy as np
import pytest

import shardvar as sv

pytestmark = pytest.mark.smoke

FORMATS = {
    "shardvar": "model",
    "tensorflow": "model",
    "safetensors": "model.safetensors",
    "npz": "model.npz",
}


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {
        "table": rng.standard_normal((13, 4)).astype(np.float32),
        "column": rng.integers(-9, 9, (5, 1)),
        "nothing": np.zeros((0, 3), np.float32),
        "step": np.array(42, np.int64),
    }


def assert_same(read: dict[str, np.ndarray], written: dict[str, np.ndarray]) -> None:
    assert read.keys() == written.keys()
    for key, array in written.items():
        assert read[key].dtype == array.dtype
        np.testing.assert_array_equal(read[key], array, err_msg=key)


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_saved_is_loaded(form: str, tmp_path: Path) -> None:
    path = tmp_path / FORMATS[form]
    sv.save(path, arrays(), format=form)
    assert_same(sv.load(path), arrays())


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("source", FORMATS)
def test_a_checkpoint_of_any_format_is_resharded_into_any(
    source: str, target: str, tmp_path: Path
) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    sv.save(tmp_path / "from" / FORMATS[source], arrays(), format=source)
    sv.reshard(
        tmp_path / "from" / FORMATS[source], tmp_path / "to" / FORMATS[target], format=target
    )
    assert_same(sv.load(tmp_path / "to" / FORMATS[target]), arrays())


def test_three_shards_become_five_and_nothing_else_changes(tmp_path: Path) -> None:
    sv.save(tmp_path / "three", arrays(), partition=3)
    sv.reshard(tmp_path / "three", tmp_path / "five", partition=5)
    with sv.open_checkpoint(tmp_path / "five") as reader:
        assert [(r.offset[0], r.offset[0] + r.shape[0]) for r in regions(reader, "table")] == list(
            sv.div(13, 5)
        )
    assert_same(sv.load(tmp_path / "five"), arrays())


def test_verify_and_diff_tell_sound_from_damaged_and_same_from_other(tmp_path: Path) -> None:
    sv.save(tmp_path / "a", arrays(), partition=3)
    sv.save(tmp_path / "b.npz", arrays() | {"step": np.array(43, np.int64)})
    assert sv.verify(tmp_path / "a").ok
    assert sv.diff(tmp_path / "a", tmp_path / "a").equal
    assert not sv.diff(tmp_path / "a", tmp_path / "b.npz").equal
    flip_a_bit_of_the_table(tmp_path)
    assert not sv.verify(tmp_path / "a").ok


def regions(reader: object, key: str) -> list[sv.Region]:
    slices = reader.index.find(key).slices
    return [slices.region(row) for row in range(len(slices))]


def test_a_flipped_bit_is_never_a_value(tmp_path: Path) -> None:
    sv.save(tmp_path / "a", arrays())
    flip_a_bit_of_the_table(tmp_path)
    with pytest.raises(sv.errors.CorruptCheckpoint, match="table"):
        sv.load(tmp_path / "a")


def flip_a_bit_of_the_table(directory: Path) -> None:
    (data,) = directory.glob("a.svdata-*")
    octets = bytearray(data.read_bytes())
    octets[octets.index(arrays()["table"][:4].tobytes()) + 30] ^= 1
    data.write_bytes(octets)
