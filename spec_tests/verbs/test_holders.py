"""The device that held each slice, where names of files or the layout of the slices tell."""

from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from shardvar.layout.meshes.dtensor import Shard, dtensor, fsdp
from shardvar.layout.meshes.layout import Layout, Mesh
from shardvar.planning.index import EntryTable
from shardvar.planning.slices import SliceTable, TensorTable
from shardvar.verbs.holders import holders_of
from spec_tests.helpers.paths import GOLDEN


def entries_of(*layouts: Layout, shuffled: bool = False) -> tuple[EntryTable, list[int]]:
    """The entries of tensors that are cut as layouts say, and the device of each by the layout."""
    tensors = TensorTable.of([(f"t{n}", "float32", each.shape) for n, each in enumerate(layouts)])
    tensor = np.concatenate([np.full(len(each.device), n) for n, each in enumerate(layouts)])
    slices = SliceTable.of(
        tensors,
        tensor,
        np.concatenate([e.offset for e in layouts]),
        np.concatenate([e.extent for e in layouts]),
    )
    count = len(tensor)
    table = EntryTable(
        slices, np.zeros(count, int), np.arange(count), np.full(count, -1), np.ones(count, bool)
    )
    order = np.random.default_rng(3).permutation(count) if shuffled else np.arange(count)
    return table.take(order), np.concatenate([each.device for each in layouts])[order].tolist()


FOUR, TWO, ONE = (dtensor((8,), Mesh((count,)), [Shard(0)]) for count in (4, 2, 1))
LARGE = dtensor((100,), Mesh((1,)), [Shard(0)])
BY_HAND = Layout(
    (8,), Mesh((2,)), "by hand", np.arange(2), np.array([[0], [3]]), np.array([[3], [5]])
)


@pytest.mark.parametrize(
    ("layouts", "told"),
    [
        ([dtensor((8, 6), Mesh((4,)), [Shard(0)]), dtensor((8, 1), Mesh((4,)), [Shard(0)])], []),
        ([dtensor((6, 8), Mesh((2, 2)), [Shard(0), Shard(1)])], []),
        ([fsdp((10, 4), Mesh((2, 2), ("dp", "tp")), tp_dim=0)], []),
        # Device 1 of 2 may be another than device 1 of 4; nothing tells the device of a whole.
        ([FOUR, TWO, ONE], [0, 1, 2, 3, -1, -1, -1]),
        ([ONE], None),
        # A file limit cuts a tensor where the file is full, and now and then in its middle.
        ([TWO, LARGE], None),
        ([TWO, TWO, LARGE], [0, 1, 0, 1, -1]),
        ([BY_HAND], None),
    ],
)
def test_slices_of_a_layout_are_told_to_be_on_its_devices(
    layouts: list[Layout], told: list[int] | None
) -> None:
    """By default the layout is the oracle; the order in which an index lists the slices does not
    matter."""
    entries, devices = entries_of(*layouts, shuffled=told == [])
    found = holders_of(entries, ["model.data"])
    if told is None:
        assert found is None
    else:
        assert found and found.noun == "device" and found.device.tolist() == (told or devices)


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["__0_0.distcp", "__11_2.distcp"], [0, 11]),
        (["mp_rank_00/model.pt", "mp_rank_01/model.pt"], [0, 1]),
        (["rank0.npz", "rank-7.npz"], [0, 7]),
    ],
)
def test_names_of_files_tell_ranks_where_each_has_one(names: list[str], ranks: list[int]) -> None:
    entries, _ = entries_of(dtensor((8,), Mesh((2,)), [Shard(0)]))
    entries.file[:] = [1, 0]
    found = holders_of(entries, names)
    assert found and found.noun == "rank" and found.device.tolist() == [ranks[1], ranks[0]]
    plain = holders_of(entries, [names[0], "franklin.data"])
    assert plain and plain.noun == "device"


def test_ranks_of_torch_are_those_that_wrote_the_files() -> None:
    path: Path = GOLDEN / "torch_dcp" / "fsdp2_tp2_transformer" / "ckpt"
    with sv.open_checkpoint(path) as reader:
        found = holders_of(reader.entries(), reader.index.files)
        names = [reader.index.files[number] for number in reader.entries().file.tolist()]
    assert found and [f"__{rank}_0.distcp" for rank in found.device.tolist()] == names
