"""MaxShardSizePolicy beside TensorFlow's: its recorded answers, and a twin of its algorithm on
random tensors.

The twin is written from what TensorFlow 2.21 was seen to do (``MaxShardSizePolicy`` in its
``sharding_policies.py``): parts of even size along the axis that takes the fewest. It knows nothing
of shardvar but the texts of slices.
"""

import base64
import json
import re
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.layout.dtypes import numpy_dtype
from shardvar.layout.region import Region, parse_slice_text
from shardvar.planning.index import EntryTable
from shardvar.planning.policies.max_shard_size import (
    OBJECT_GRAPH_KEY,
    WeighedSlices,
    cut_along_an_axis,
    cut_to_elements,
    fewest_files,
    strings_nbytes,
    weights_of,
)
from shardvar.planning.policies.policy import HOLDS_ALL, tabulate
from shardvar.planning.slices import TensorTable
from shardvar.verbs.callbacks import SliceSource
from spec_tests.helpers import paths
from spec_tests.helpers.max_shard_size_twin import Tensors, answer, many_tensors, specs_of, twin
from spec_tests.helpers.thoroughness import stride

RECORDED = json.loads((paths.GOLDEN / "policies" / "policies.json").read_text())
CASES = [case for case in RECORDED["policy_cases"] if case["policy"] == "MaxShardSizePolicy"]
ENDING = [case for case in CASES if "shards" in case["result"] and case["max_shard_size"] >= 1]
NO_SLICE = {"slice_bad_no_space", "slice_bad_pair", "slice_spec_wrong_len"}


def shardables(case: dict[str, Any]) -> list[sv.ShardableTensor]:
    found = []
    for tensor in case["tensors"]:
        shape = tuple(tensor["shape"])
        if tensor["dtype"] == "string":
            texts = [base64.b64decode(text) for text in tensor["strings_b64"]]
            value = np.array([*texts, None], object)[:-1].reshape(shape)
        else:
            value = np.zeros(shape, numpy_dtype(tensor["dtype"]))
        found.append(
            sv.ShardableTensor(
                value, value.dtype, "", tensor["key"], shape, tensor["slice_spec"], tensor["key"]
            )
        )
    return found


@pytest.mark.parametrize("case", ENDING, ids=lambda case: str(case["name"]))
def test_compat_and_the_twin_give_the_recorded_slices_file_by_file(case: dict[str, Any]) -> None:
    """But for strings, which TensorFlow cuts and cannot read then, and for tensors without
    elements, which it drops. The twin knows only whole tensors of numbers."""
    if case["name"] in NO_SLICE:
        pytest.skip("its slice is none of its tensor")
    ours = sv.MaxShardSizePolicy(case["max_shard_size"], compat="tensorflow")(shardables(case))
    theirs = [
        {key: [part["spec"] for part in parts] for key, parts in shard.items()}
        for shard in case["result"]["shards"]
    ]
    strings = {t["key"] for t in case["tensors"] if t["dtype"] == "string" and t["shape"]}
    if strings:
        ours_strings = [
            spec for shard in specs_of(ours) for key in strings for spec in shard.get(key, [])
        ]
        assert len(ours_strings) == len(strings), "a string tensor is cut"
        return
    assert specs_of(ours, empty=False) == theirs
    if all(t["dtype"] != "string" and not t["slice_spec"] for t in case["tensors"]):
        tensors = [(t["key"], t["dtype"], tuple(t["shape"])) for t in case["tensors"]]
        assert twin(tensors, case["max_shard_size"]) == theirs


@pytest.mark.parametrize(
    "case", [case for case in CASES if "infinite_loop" in case["result"]], ids=lambda c: c["name"]
)
@pytest.mark.parametrize("compat", [None, "tensorflow"])
def test_where_tensorflow_loops_for_ever_there_is_an_answer(
    case: dict[str, Any], compat: Any
) -> None:
    given = shardables(case)
    shards = sv.MaxShardSizePolicy(max(case["max_shard_size"], 1), compat=compat)(given)
    stored = sum(
        value.size for shard in shards for parts in shard.values() for value in parts.values()
    )
    assert stored == sum(each.tensor.size for each in given)


@settings(max_examples=400 // stride(8))
@given(many_tensors, st.integers(1, 300))
def test_wherever_tensorflow_ends_compat_is_the_same_and_ours_takes_no_more_files(
    tensors: Tensors, limit: int
) -> None:
    theirs = twin(tensors, limit)
    if theirs is not None:
        same = specs_of(
            answer(tensors, sv.MaxShardSizePolicy(limit, compat="tensorflow")), empty=False
        )
        assert same == theirs
        assert len(specs_of(answer(tensors, sv.MaxShardSizePolicy(limit)), empty=False)) <= len(
            theirs
        )


def fewest(tensors: Tensors, limit: int) -> int:
    """The files that are filled if every element could be put anywhere, in order: by putting them
    one by one."""
    files, room, begun = 0, 0, False
    for _, dtype, shape in tensors:
        item = numpy_dtype(dtype).itemsize
        if not shape and item > limit:
            files += 1
            continue
        for _ in range(prod(shape)):
            if item > room:
                files, room, begun = files + 1, max(limit, item), True
            room -= item
            if item > limit:
                room = 0
    return files if begun or files else 0


@settings(max_examples=300 // stride(5))
@given(many_tensors, st.integers(1, 300))
def test_as_few_files_as_filling_in_order_takes(tensors: Tensors, limit: int) -> None:
    count = len(specs_of(answer(tensors, sv.MaxShardSizePolicy(limit)), empty=False))
    assert len(answer(tensors, sv.MaxShardSizePolicy(limit))) == max(count, min(len(tensors), 1))
    assert count == fewest(tensors, limit)
    table = TensorTable.of(tensors).whole()
    cuttable = table.tensors.ranks > 0
    counted = fewest_files(
        WeighedSlices(table, weights_of(table), cuttable, limit), np.arange(len(table))
    )
    assert counted == count


def test_ten_billion_floats_are_planned_without_being_there() -> None:
    """RFC 001: "10 billion floats!!" in files of 500 MiB are 77, since 40 * 10**9 / (500 * 2**20)
    is 76.3."""
    table = TensorTable.of([("x", "float32", (10_000_000_000,))]).whole()
    nothing = np.zeros(0, np.int64)
    entries = EntryTable(table.take(nothing), nothing, nothing, nothing, nothing.astype(np.bool))
    policy = sv.MaxShardSizePolicy(500 * 2**20)
    assert policy.assign(table, HOLDS_ALL).num_files == 77
    nothing: Any = None
    shards = policy(SliceSource(table, entries, nothing, {}).shardable_tensors())
    assert len(shards) == 77
    sizes = [value.nbytes for shard in shards for value in shard["x"].values()]
    assert sum(sizes) == 40_000_000_000 and max(sizes) == 500 * 2**20


@pytest.mark.parametrize("compat", [None, "tensorflow"])
@pytest.mark.parametrize("limit", [1, 3, 4, 399_000])
def test_more_files_than_are_allowed_are_refused_before_any_is_planned(
    limit: int, compat: Any
) -> None:
    """Ten billion floats in files of an element would take weeks; the limit that the error gives is
    large enough."""
    table = TensorTable.of([("x", "float32", (10_000_000_000,))]).whole()
    with pytest.raises(
        sv.errors.ArgumentError, match=f"limit of {limit} bytes a file takes 10.*99999"
    ) as caught:
        sv.MaxShardSizePolicy(limit, compat).assign(table, HOLDS_ALL)
    enough = int(re.search(r"such as (\d+) bytes", caught.value.remedy)[1])
    work = WeighedSlices(table, weights_of(table), np.ones(1, np.bool), enough)
    assert limit < enough and fewest_files(work, np.arange(1)) <= 99_999


def test_slices_of_a_sharded_variable_are_cut_in_the_coordinates_of_the_whole() -> None:
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    given = [
        sv.ShardableTensor(x[rows], x.dtype, "", "w", (3, 2), spec, "w")
        for rows, spec in ((slice(0, 3), "10 2 4,3:0,2"), (slice(3, 6), "10 2 7,3:0,2"))
    ]
    shards = sv.MaxShardSizePolicy(16)(given)
    assert specs_of(shards) == [
        {"w": ["10 2 4,2:0,2"]},
        {"w": ["10 2 6,1:0,2", "10 2 7,1:0,2"]},
        {"w": ["10 2 8,2:0,2"]},
    ]
    for shard in shards:
        for spec, value in shard["w"].items():
            start = parse_slice_text(spec)[1].offset[0] - 4
            np.testing.assert_array_equal(value, x[start : start + len(value)])


def test_the_graph_of_objects_and_the_lengths_of_strings_are_not_counted(tmp_path: Path) -> None:
    tensors: dict[str, Any] = {
        "w": np.zeros(2, np.float32),
        OBJECT_GRAPH_KEY: np.array(b"x" * 300, object),
    }
    report = sv.save(tmp_path / "m", tensors, policy=sv.MaxShardSizePolicy(8))
    assert report.num_files == 1
    [told] = report.exceeding
    assert told.file == 0 and "not counted" in told.reason


def test_what_cannot_be_cut_is_told_and_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors: dict[str, Any] = {
        "s": np.array([b"x" * 50, b"y"], object),
        "z": np.complex128(1),
        "w": np.zeros(4),
    }
    report = sv.save(tmp_path / "m", tensors, policy=sv.MaxShardSizePolicy(12))
    assert [each.file for each in report.exceeding] == [4, 5]
    assert "'s' is of dtype string" in report.exceeding[0].reason
    assert "'z' has elements of 16 bytes" in report.exceeding[1].reason
    assert caplog.text.count("WARNING") == 2 and "'s'" in caplog.text
    assert report.to_json()["exceeding"][1]["nbytes"] == 16
    assert tabulate([]).nbytes.tolist() == []


def test_compat_with_nothing_known_is_refused() -> None:
    for limit in (0, -1):
        with pytest.raises(sv.errors.ArgumentError, match="holds nothing"):
            sv.MaxShardSizePolicy(limit)
    with pytest.raises(sv.errors.ArgumentError, match="compat='torch'"):
        sv.MaxShardSizePolicy(8, compat="torch")  # type: ignore[arg-type]


@pytest.mark.parametrize("compat", [None, "tensorflow"])
@pytest.mark.parametrize("spec", ["10 3 2,4:0,3", "2 3 0,1:0,3", "6 0,6"])
def test_a_tensor_of_another_shape_than_its_slice_spec_is_refused(spec: str, compat: Any) -> None:
    given = [
        sv.ShardableTensor(np.zeros((2, 3), np.float32), np.float32, "", "w", (2, 3), spec, "w")
    ]
    with pytest.raises(sv.errors.LayoutError, match="'w' has shape"):
        sv.MaxShardSizePolicy(16, compat=compat)(given)


@given(st.integers(0, 1 << 22), st.integers(1, 50))
def test_strings_count_with_their_own_bytes(length: int, count: int) -> None:
    """Exactly for one string of any length, and for several of the same one: a varint has 7 bits a
    byte."""
    digits = max(1, -(-length.bit_length() // 7))
    assert strings_nbytes(4 + count * (digits + length), count) == count * length


def largest_first_parts(
    region: Region, itemsize: int, remaining: int
) -> list[tuple[int, int, int]]:
    """(bytes, minus the axis, count) of every cut along an axis whose first part fits."""
    return [
        (count * region.size // extent * itemsize, -axis, count)
        for axis, extent in enumerate(region.shape)
        for count in range(1, extent)
        if count * region.size // extent * itemsize <= remaining
    ]


@pytest.mark.parametrize("cut", [cut_along_an_axis, cut_to_elements])
def test_a_cut_fills_most_of_what_remains_along_the_first_axis_that_does(cut: Any) -> None:
    """All shapes of small extents, and all rests; R-POLICY-14."""
    for shape in [s for rank in (1, 2, 3) for s in product((1, 2, 3, 4), repeat=rank)]:
        region = Region(range(5, 5 + len(shape)), shape)
        for itemsize, limit in product((1, 4), (8, 40)):
            for remaining in range(min(limit, region.size * itemsize - 1) + 1):
                halves = cut(region, itemsize, remaining, limit)
                fitting = largest_first_parts(region, itemsize, remaining)
                if fitting:
                    _, axis, count = max(fitting)
                elif region.size > 1 and (
                    remaining >= limit or (cut is cut_to_elements and remaining >= itemsize)
                ):
                    axis, count = -shape.index(max(shape)), 1
                else:
                    assert halves is None
                    continue
                extent = [*shape]
                extent[-axis] = count
                assert halves[0] == Region(region.offset, extent)
                assert halves[0].size + halves[1].size == region.size
                assert halves[1].offset[-axis] == region.offset[-axis] + count
                assert halves[1].stop == region.stop
