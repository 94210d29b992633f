"""What ``partition=`` means: every way of saying it, and what is clamped, kept whole or refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import ArgumentError, ShardvarError
from shardvar.layout import PartitionSpec, Region, check_tiles, div
from shardvar.layout.meshes import Replicate, Shard, dtensor
from shardvar.layout.meshes.layout import Mesh
from shardvar.planning.decision import cut_slices, is_cut_by
from shardvar.planning.index import find_faults
from shardvar.planning.slices import SliceTable, TensorTable
from shardvar.records import replace
from spec_tests.helpers.hypothesis_strategies import (
    cuts,
    filled_shapes,
    shapes,
    slice_tables,
    tensor_tables,
)


def regions(shape: tuple[int, ...], dtype: str, cut: Any) -> list[Region]:
    """The slices of one tensor that is saved with ``partition=cut``."""
    slices = cut_slices(TensorTable.of([("t", dtype, shape)]).whole(), cut)
    return [slices.region(row) for row in range(len(slices))]


@given(st.data())
def test_whatever_says_how_the_parts_tile_the_tensor(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    check_tiles(shape, regions(shape, "float32", data.draw(cuts(shape))))


@given(filled_shapes(min_rank=1), st.integers(1, 9))
def test_a_number_is_that_many_div_parts_along_the_first_axis_at_most_one_a_row(
    shape: tuple[int, ...], count: int
) -> None:
    expected = [(start, stop - start) for start, stop in div(shape[0], min(count, shape[0]))]
    for cut in (
        count,
        np.int64(count),
        (count,),
        PartitionSpec(partitions=[count]),
        lambda shape, dtype: [count],
    ):
        found = regions(shape, "float32", cut)
        assert [(region.offset[0], region.shape[0]) for region in found] == expected
        assert all(region.shape[1:] == shape[1:] and not any(region.offset[1:]) for region in found)


@pytest.mark.parametrize(
    "cut", [1, 5, (5,), (2, 3), PartitionSpec(partitions=[5]), PartitionSpec(splits=[[0]])]
)
def test_a_tensor_without_rows_is_one_part(cut: Any) -> None:
    assert regions((0, 4), "float32", cut)[0].size == 0
    check_tiles((0, 4), regions((0, 4), "float32", cut))


@pytest.mark.parametrize("cut", [1, 5, (), (5,), lambda shape, dtype: [3]])
def test_scalars_and_strings_stay_whole(cut: Any) -> None:
    assert regions((), "float32", cut) == [Region((), ())]
    assert regions((4, 4), "string", cut) == [Region.whole((4, 4))]


@given(tensor_tables(), st.data())
def test_every_tensor_that_is_spoken_of_is_cut_and_no_other(
    tensors: TensorTable, data: st.DataObject
) -> None:
    if len(tensors):
        chosen = data.draw(st.sampled_from(list(tensors.keys)))
        glob = "".join(
            f"[{character}]" if character in "*?[" else character for character in chosen
        )
        cut = cut_slices(tensors.whole(), {glob: 3})
        for row in range(len(cut)):
            assert cut.key(row) == chosen or cut[row].is_whole
        assert find_faults(cut) == {}
        assert cut.tensor.tolist() == sorted(cut.tensor.tolist()), "tensors keep their order"


@given(slice_tables())
def test_what_nobody_speaks_of_stays_as_it_is(slices: SliceTable) -> None:
    assert cut_slices(slices, None) is slices
    again = cut_slices(slices, {"*": 1})
    assert again.is_whole().all()
    assert again.nbytes.sum() == sum(
        slices.nbytes[slices.tensor == t].sum()
        for t in range(len(slices.tensors))
        if (slices.tensor == t).any()
    )


def test_the_last_glob_that_matches_counts() -> None:
    tensors = TensorTable.of(
        [("a/w", "float32", (6,)), ("a/b", "float32", (6,)), ("c", "float32", (6,))]
    )
    cut = cut_slices(tensors.whole(), {"*": 1, "a/*": 2, "*/b": 3})
    assert [cut.key(row) for row in range(len(cut))] == ["a/w"] * 2 + ["a/b"] * 3 + ["c"]


def test_a_glob_that_matches_nothing_is_a_mistake() -> None:
    tensors = TensorTable.of([("a/w", "float32", (6,))])
    with pytest.raises(ArgumentError, match="'b/\\*'"):
        cut_slices(tensors.whole(), {"b/*": 2})
    assert len(cut_slices(TensorTable.of([]).whole(), 3)) == 0


def test_what_does_not_fit_a_tensor_is_said_of_that_tensor() -> None:
    tensors = TensorTable.of([("good", "float32", (6, 6)), ("bad", "float32", (6,))])
    with pytest.raises(ShardvarError, match="'bad'"):
        cut_slices(tensors.whole(), (2, 3))


@given(tensor_tables(), st.sampled_from([1, 2, 3, (2,), lambda shape, dtype: [len(shape) + 1]]))
def test_cutting_many_tensors_is_cutting_each_alone(tensors: TensorTable, cut: Any) -> None:
    """Tensors that are alike share their work, and nothing else."""
    whole = tensors.whole()
    together = cut_slices(whole, cut)
    alone = [cut_slices(whole.take(np.array([row])), {"*": cut}) for row in range(len(tensors))]
    expected = [
        table[row]
        for number, table in enumerate(alone)
        for row in np.flatnonzero(table.tensor == number)
    ]
    assert [together[row] for row in range(len(together))] == expected


def test_parts_of_a_layout_are_on_its_first_devices_unless_slices_have_devices() -> None:
    """Every other slice is on device 0; a partitioner is asked with the tasks that hold slices."""
    tensors = TensorTable.of([(key, "float32", (4,)) for key in "abcd"])
    layout = dtensor((4,), Mesh((2, 3)), [Replicate(), Shard(0)])
    partition: Any = {
        "*": lambda num_shards, shape, dtype: [num_shards],
        "[ab]": layout,
        "b*": None,
    }
    assert is_cut_by(["a", "b", "x"], partition).tolist() == [True, False, True]
    cut = cut_slices(tensors.whole(), partition)
    host = "/job:localhost/replica:0/task:0/device:CPU:"
    assert [(cut.key(row), cut.region(row).shape[0], cut.device_of(row)) for row in range(len(cut))] == [
        ("a", 2, f"{host}0"), ("a", 2, f"{host}1"), *[(key, 4, f"{host}0") for key in "bcd"]
    ]  # fmt: skip
    assert cut.devices == (f"{host}0", f"{host}1")
    names = tuple(f"/task:{task}/device:GPU:0" for task in range(3))
    placed = replace(tensors.whole(), device=np.array([2, 0, 1, 2]), devices=names)
    cut = cut_slices(placed, partition)
    assert [(cut.key(row), cut.region(row).shape[0], int(cut.device[row])) for row in range(len(cut))] == [
        ("a", 2, 2), ("a", 2, 2), ("b", 4, 0), *[("c", n, 1) for n in (2, 1, 1)], *[("d", n, 2) for n in (2, 1, 1)]
    ]  # fmt: skip
    assert cut.devices == names and cut_slices(tensors.whole(), 2).devices == ()
