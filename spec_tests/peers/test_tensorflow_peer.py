"""TensorFlow itself reads what is written in its format: lists, loads, restores into other shard
counts.

And the other way: what TensorFlow saves here and now, with whatever version it has, is read.
"""

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardvar.formats.tensorflow import FORMAT
from shardvar.layout.dtypes import is_opaque, numpy_dtype
from shardvar.layout.partition import div
from shardvar.planning.policies import BalancedPolicy
from shardvar.storage.local import LocalStorage
from shardvar.verbs.reshard import reshard
from shardvar.verbs.save import save
from shardvar.wire.sstable import encode_table
from spec_tests.helpers.tensor_bundles import digest, write_arrays

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

ARRAYS: dict[str, Any] = {
    "a/w": np.arange(12, dtype=np.float32).reshape(4, 3),
    "bfloat": np.arange(6).reshape(3, 2).astype(ml_dtypes.bfloat16),
    "bytes": np.arange(7, dtype=np.uint8),
    "complex": np.array([[1 + 2j, 3 - 4j]], np.complex64),
    "empty": np.zeros((0, 3), np.int16),
    "half": np.array([1.5, -2], np.float16),
    "scalar": np.array(7, np.int64),
    "truth": np.array([True, False]),
    "uint": np.array([1, 2**63], np.uint64),
    "words": np.array([b"", b"\x00\xff", b"three" * 50], object).reshape(3, 1),
}
CUTS = {
    "a/w": [((0, 0), (4, 1), 1), ((0, 1), (2, 2), 0), ((2, 1), (2, 2), 2)],
    "bfloat": [((2, 0), (1, 2), 0), ((0, 0), (2, 2), 2)],
    "bytes": [((i,), (1,), i % 3) for i in range(7)],
    "complex": [((0, 0), (1, 1), 0), ((0, 1), (1, 1), 1)],
    "truth": [((0,), (1,), 0), ((1,), (1,), 1)],
}


@pytest.fixture
def written(tmp_path: Path) -> str:
    write_arrays(LocalStorage(str(tmp_path)), "ck", ARRAYS, CUTS, 3)
    return str(tmp_path / "ck")


def test_tensorflow_lists_and_loads_what_is_written(written: str) -> None:
    """Names, shapes, dtypes and values of strings, slices, empty, scalar and extended dtypes."""
    assert tf.train.list_variables(written) == [
        (key, list(array.shape)) for key, array in sorted(ARRAYS.items())
    ]
    reader = tf.train.load_checkpoint(written)
    for key, array in ARRAYS.items():
        value = np.asarray(reader.get_tensor(key))
        assert digest(value) == digest(array) and value.shape == array.shape


def test_tensorflow_restores_any_part_of_a_sliced_tensor(written: str) -> None:
    part = tf.raw_ops.RestoreV2(
        prefix=written, tensor_names=["a/w"], shape_and_slices=["4 3 1,3:0,2"], dtypes=[tf.float32]
    )
    np.testing.assert_array_equal(part[0], ARRAYS["a/w"][1:4, 0:2])


def test_every_dtype_that_tensorflow_saves_comes_back_to_it(tmp_path: Path) -> None:
    """Including those that NumPy has no type for, whose bytes are carried."""
    names = sorted(FORMAT.capabilities.dtypes - {"variant", "string"})
    values = []
    for name in names:
        plain = is_opaque(name)
        values.append(
            tf.bitcast(
                tf.constant([1, 2, 3], f"{'u' if 'u' in name else ''}int{name[-2:].lstrip('t')}"),
                name,
            )
            if plain
            else tf.constant(np.array([1, 0, 1]).astype(numpy_dtype(name)))
        )
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "theirs"),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=values,
    )
    reshard(tmp_path / "theirs", tmp_path / "ours", policy=BalancedPolicy(2))
    restored = tf.raw_ops.RestoreV2(
        prefix=str(tmp_path / "ours"),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        dtypes=[value.dtype for value in values],
    )
    for name, value, back in zip(names, values, restored, strict=True):
        assert back.dtype == value.dtype and back.shape == value.shape
        if not is_opaque(name):
            np.testing.assert_array_equal(np.asarray(back), np.asarray(value))


def sharded(rows: int, count: int, value: float | None = None) -> Any:
    """A sharded variable cut by div, of zeros or of a range."""
    from tensorflow.python.distribute.sharded_variable import ShardedVariable

    whole = (
        np.zeros((rows, 4), np.float32)
        if value is None
        else np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    )
    return ShardedVariable([tf.Variable(whole[start:stop]) for start, stop in div(rows, count)])


@pytest.mark.parametrize("how", [{"policy": BalancedPolicy(4)}, {"partition": 4}], ids=str)
@pytest.mark.parametrize("stored", [1, 3])
@pytest.mark.parametrize("wanted", [1, 2, 5])
def test_a_sharded_variable_restores_into_another_number_of_shards(
    stored: int, wanted: int, how: dict[str, Any], tmp_path: Path
) -> None:
    """From its slices or from those of div. The object graph is carried, so that Checkpoint.read
    matches everything."""
    tf.train.Checkpoint(v=sharded(13, stored, 1)).write(str(tmp_path / "theirs"))
    reshard(tmp_path / "theirs", tmp_path / "ours", **how)
    target = sharded(13, wanted)
    tf.train.Checkpoint(v=target).read(str(tmp_path / "ours")).assert_consumed()
    np.testing.assert_array_equal(
        tf.concat(list(target.variables), 0), np.arange(52).reshape(13, 4)
    )


def test_a_float16_tensor_that_tensorflow_cannot_read_back_is_joined_so_that_it_can(
    tmp_path: Path,
) -> None:
    """TensorFlow saves slices of float16 and raises in reading them: "Dtype half not supported"."""
    halves = np.arange(8, dtype=np.float16)
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "theirs"),
        tensor_names=["t", "t"],
        shape_and_slices=["8 0,3", "8 3,5"],
        tensors=[halves[:3], halves[3:]],
    )
    reshard(tmp_path / "theirs", tmp_path / "ours", policy=BalancedPolicy(1))
    np.testing.assert_array_equal(
        tf.train.load_checkpoint(str(tmp_path / "ours")).get_tensor("t"), halves
    )


@settings(max_examples=25)
@given(
    names=st.lists(
        st.text("ab\x01\x7fé日/", min_size=1, max_size=6) | st.just("x" * 300),
        min_size=1,
        max_size=40,
        unique=True,
    ),
    sizes=st.lists(st.integers(0, 200), min_size=40, max_size=40),
)
def test_for_the_same_tensors_the_files_are_the_same_bytes(
    names: list[str], sizes: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Index and data file, for any names and sizes."""
    directory = tmp_path_factory.mktemp("same")
    values = {
        name: np.arange(size, dtype=np.int32) for name, size in zip(names, sizes, strict=False)
    }
    tf.raw_ops.SaveV2(
        prefix=str(directory / "theirs"),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=list(values.values()),
    )
    write_arrays(LocalStorage(str(directory)), "ours", values)
    for suffix in (".index", ".data-00000-of-00001"):
        assert (directory / f"ours{suffix}").read_bytes() == (
            directory / f"theirs{suffix}"
        ).read_bytes()


def test_an_index_of_several_blocks_is_the_same_bytes(tmp_path: Path) -> None:
    """20,000 tensors with long names make more than one block of 256 KiB, and separators between
    them."""
    values = {
        f"layer_{i % 97}/{'deep/' * (i % 23)}kernel_{i}": np.full(i % 3, i, np.int64)
        for i in range(20_000)
    }
    names = list(values)
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "theirs"),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=list(values.values()),
    )
    write_arrays(LocalStorage(str(tmp_path)), "ours", values)
    theirs = (tmp_path / "theirs.index").read_bytes()
    assert (tmp_path / "ours.index").read_bytes() == theirs and len(theirs) > 2 * 262144
    source = FORMAT.open(LocalStorage(str(tmp_path)), "theirs")
    assert len(source.index.entries) == 20_000 and not source.index.faults


def test_tensorflow_notices_the_same_flipped_bit(written: str) -> None:
    """The checksums written are the ones that TensorFlow compares, for numbers and for strings."""
    for key in ("half", "words"):
        entries = FORMAT.open(LocalStorage(os.path.dirname(written)), "ck").index.find(key)
        path = Path(f"{written}.data-{int(entries.file[0]):05}-of-00003")
        whole = path.read_bytes()
        last = int(entries.start[0] + entries.slices.nbytes[0]) - 1
        path.write_bytes(whole[:last] + bytes([whole[last] ^ 1]) + whole[last + 1 :])
        with pytest.raises(tf.errors.OpError, match="[Cc]hecksum"):
            tf.train.load_checkpoint(written).get_tensor(key)
        path.write_bytes(whole)


def test_an_empty_table_has_the_bytes_of_tensorflows_metaindex() -> None:
    assert bytes.fromhex("0000000001000000 00c0f2a1b0") in encode_table([(b"", b"")])


def test_tensorflow_restores_an_overwritten_bundle_and_cannot_merge_it(tmp_path: Path) -> None:
    """As docs/deviations.md says, with the remedy: what is resharded into a new prefix is
    merged."""

    def merge(path: Path, merged: Path) -> Any:
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=[str(path)], destination_prefix=str(merged), delete_old_dirs=False
        )
        return tf.train.load_checkpoint(str(merged)).get_tensor("a")

    old, new = tmp_path / "old", tmp_path / "new"
    for value in (1.0, 2.0):
        save(old, {"a": np.full(3, value)}, format="tensorflow", force=True)
    assert (tmp_path / "old.data-00000-of-00002").exists(), (
        "one file, and the next count that was free"
    )
    assert tf.train.load_checkpoint(str(old)).get_tensor("a").tolist() == [2.0] * 3
    reshard(old, new)
    assert merge(new, tmp_path / "merged").tolist() == [2.0] * 3
    with pytest.raises(tf.errors.OpError, match="No such file"):
        merge(old, tmp_path / "broken")
