"""Digests that several processes take together: the digest of the whole tensor, by hashlib, for any
layout, and few bytes read at the commit."""

import hashlib
import re
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.engine.read import FlatTensor
from shardvar.errors import UnsupportedError
from shardvar.planning.index import Metadata
from shardvar.verbs.compare import digest as digest_module
from shardvar.wire import digests as definition
from shardvar.wire.plain import encode_value
from spec_tests.helpers.shared_saves import (
    divided,
    given_as,
    save_all,
    save_one,
    save_states,
    shard_of,
)

LEAF = 48


def small_leaves(patch: pytest.MonkeyPatch) -> None:
    """Make leaves small, so that small tensors have many."""
    for module in (definition, digest_module):
        patch.setattr(module, "LEAF_NBYTES", LEAF)


def digest_of(key: str, array: Any) -> str:
    """Return the digest as docs/digest.md defines it, with small leaves."""
    if array.dtype.kind == "O":
        dtype, data = (
            "string",
            b"".join(len(each).to_bytes(8, "little") + each for each in array.ravel()),
        )
    else:
        dtype, data = array.dtype.name, array.astype(array.dtype.newbyteorder("<")).tobytes()
        bits = re.fullmatch(r"u?int([24])|float([46])_.*", dtype)
        if bits:
            mask = (1 << int(bits[1] or bits[2])) - 1
            data = bytes(octet & mask for octet in data)
    leaves = [hashlib.sha256(data[at : at + LEAF]).digest() for at in range(0, len(data), LEAF)]
    head = f"shardvar digest 1\n{dtype}\n{','.join(map(str, array.shape))}\n{len(key.encode())}\n"
    return hashlib.sha256(head.encode() + key.encode() + b"".join(leaves)).hexdigest()


@given(drawn=divided(4), made=st.sampled_from(["array", "columns", "lazy", "rows"]))
def test_the_digests_are_the_ones_of_the_whole_tensors(
    drawn: Any, made: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tensors, shares = drawn
    path = tmp_path_factory.mktemp("saved") / "ck"
    given_shares = [
        {key: [given_as(each, made) for each in parts] for key, parts in share.items()}
        for share in shares
    ]
    with pytest.MonkeyPatch.context() as patch:
        small_leaves(patch)
        save_all(path, given_shares, "1", digest=True)
        with sv.open_checkpoint(path) as reader:
            assert dict(reader.digests) == {
                key: digest_of(key, array) for key, array in tensors.items()
            }
        assert sv.verify(path).ok


@given(
    shape=st.sampled_from([(40, 3), (7, 30), (3, 4, 20), (500,), (2, 1, 90), (1, 300)]),
    parts=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    first=st.booleans(),
)
def test_tensors_of_many_leaves_are_cut_along_any_axes(
    shape: tuple[int, ...],
    parts: tuple[int, int],
    first: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("saved") / "ck"
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    bias = np.arange(70.0)
    cuts = [1] * len(shape)
    cuts[-1] = parts[1]
    cuts[0] = max(cuts[0], parts[0])
    counts = [min(cut, extent) for cut, extent in zip(cuts, shape, strict=True)]
    regions = [*sv.Partition.from_counts(shape, counts)]
    shares = [
        {"w": [shard_of(array, each)], "bias": bias + first * number}
        for number, each in enumerate(regions)
    ]
    with pytest.MonkeyPatch.context() as patch:
        small_leaves(patch)
        save_all(path, shares, "1", digest=True, replicas="first")
        with sv.open_checkpoint(path) as reader:
            assert dict(reader.digests) == {
                "bias": digest_of("bias", bias),
                "w": digest_of("w", array),
            }


LONG = np.arange(5 << 18, dtype=np.uint32).reshape(5, -1)[:, :-3]


@pytest.mark.parametrize(
    ("shares", "read"),
    [
        ([{"w": shard_of(LONG, sv.Region((k, 0), (1, LONG.shape[1])))} for k in range(5)], 4),
        ([{"w": LONG}, {"w": LONG, "b": LONG[0, :5]}], 0),
    ],
    ids=["a leaf between two shards", "a process has it whole"],
)
def test_the_commit_reads_the_leaves_that_no_process_holds(
    shares: Any, read: int, tmp_path: Path
) -> None:
    real = FlatTensor.read
    with mock.patch.object(FlatTensor, "read", autospec=True, side_effect=real) as reads:
        save_all(tmp_path / "ck", shares, "1", digest=True)
    assert [len(each.args[2]) for each in reads.call_args_list] == [1 << 20] * read
    with sv.open_checkpoint(tmp_path / "ck") as reader:
        assert dict(reader.digests) == sv.digest(tmp_path / "ck").tensors


def test_a_format_that_cannot_carry_digests_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    for form in ("torch", "tensorflow", "safetensors"):
        with pytest.raises(UnsupportedError, match=f"cannot write the digests .* format {form}"):
            save_all(tmp_path / "ck", [{"w": np.ones(3)}], "1", format=form, digest=True)
    assert [*tmp_path.iterdir()] == []


def test_one_process_that_asks_is_enough(tmp_path: Path) -> None:
    """Unless one asks, no digest is kept."""
    array, path = np.arange(8.0).reshape(4, 2), tmp_path / "ck"
    shares = [{"w": shard_of(array, sv.Region((row, 0), (2, 2)))} for row in (0, 2)]
    for run in ("1", "2"):
        save_one(path, shares, 0, run=run)
        save_one(path, shares, 1, run=run, commit=True, digest=run == "1")
        with sv.open_checkpoint(path) as reader:
            assert dict(reader.digests) == (sv.digest(path).tensors if run == "1" else {})


def test_objects_have_the_digests_of_the_texts_that_they_are_listed_as(tmp_path: Path) -> None:
    values = {"step": 7, "words": ["näive", None], "nested": {"a": (1.5, b"x")}}
    objects = {key: encode_value(value).encode() for key, value in values.items()}
    for name, tensors in (("some", {"w": np.ones(3)}), ("none", {})):
        save_states(tmp_path / name, [(tensors, Metadata(objects=objects))], digest=True)
        with sv.open_checkpoint(tmp_path / name) as reader:
            assert dict(reader.digests) == sv.digest(tmp_path / name).tensors
            assert len(reader.digests) == 3 + len(tensors)
