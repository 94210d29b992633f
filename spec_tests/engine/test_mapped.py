"""Targets of maps: whatever the rules, the cuts and the formats are, they are what NumPy's
transposes and reshapes make of the sources."""

import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.engine import arithmetic, kept, mapped, strides
from shardvar.engine.lattices import indices_within
from shardvar.engine.mapped import MappedSource
from shardvar.errors import CorruptCheckpoint
from shardvar.layout.region import Region
from shardvar.maps.plan import Arithmetic, MapPlan, Piece, Target, View
from shardvar.planning.index import EntryTable, Metadata
from shardvar.storage.scratch import map_scratch
from shardvar.verbs.locate import find_target
from shardvar.verbs.reader import Reader
from shardvar.verbs.writing import carry_out, plan_checkpoint
from spec_tests.helpers.map_plans import map_cases

EXAMPLES = 1000 if os.environ.get("EXHAUSTIVE") else 40
FORMATS = ["shardvar", "safetensors", "npz", "zarr", "torch", "deflated"]
cuts = st.lists(st.integers(1, 3), min_size=4, max_size=4).map(
    lambda counts: lambda shape, _dtype: counts[: len(shape)]
)


def saved(folder: Path, form: str, tensors: dict[str, Any], cut: Any) -> str:
    if form == "deflated":
        np.savez_compressed(folder / "a.npz", **tensors)
        return str(folder / "a.npz")
    if form not in ("shardvar", "torch"):
        cut = None
    return sv.save(folder / "a", tensors, format=form, partition=cut).path


def opened(reader: Reader, plan: MapPlan) -> tuple[Reader, EntryTable, MappedSource]:
    entries, source = mapped.mapped(reader.source, reader.entries(), plan, map_scratch)
    return Reader(reader.path, reader.format, source), entries, source


def write(reader: Reader, plan: MapPlan, target: Path, cut: Any) -> None:
    _, entries, source = opened(reader, plan)
    goal = find_target(target, "shardvar", otherwise="shardvar")
    options = {"policy": None, "partition": cut, "metadata": Metadata(), "force": False}
    work = plan_checkpoint(goal, entries, source=source, **options)
    carry_out(work, source, None, lambda _nbytes: None)


@settings(max_examples=EXAMPLES)
@given(st.data(), st.sampled_from(["uint8", "bfloat16", "float32", "complex128"]))
def test_targets_are_what_numpy_makes_of_the_sources(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, dtype: str
) -> None:
    """Read whole, in parts, by ranges of bytes, and written in other cuts."""
    case = data.draw(map_cases(dtype))
    form = data.draw(st.sampled_from(FORMATS if dtype in ("uint8", "float32") else ["shardvar"]))
    folder = tmp_path_factory.mktemp("mapped")
    path = saved(folder, form, case.sources, data.draw(cuts))
    with (
        patch.multiple(strides, _LEAST_TILE=4, _WIDE_TILE=(2, 3), _TALL_TILE=(3, 2)),
        patch.multiple(mapped, BLOCK_NBYTES=data.draw(st.sampled_from([4, 64, 4 << 20]))),
        patch.multiple(kept, _MOST_DECODED=data.draw(st.integers(1, 16))),
        sv.open_checkpoint(path) as reader,
    ):
        found, entries, source = opened(reader, case.plan)
        assert found.keys() == list(case.targets) and not found.faults
        for key, array in case.targets.items():
            assert found.read(key).tobytes() == array.tobytes() and found[key].shape == array.shape
            low = [data.draw(st.integers(0, extent)) for extent in array.shape]
            region = Region(low, [e - n for e, n in zip(array.shape, low, strict=True)])
            assert found.read(key, region).tobytes() == array[region.slices].tobytes()
        for row in range(len(entries)):
            payload = case.targets[entries.slices.key(row)][entries.slices.region(row).slices]
            octets, size = payload.tobytes(), payload.itemsize
            first = data.draw(st.integers(0, payload.size)) * size
            buffer = bytearray(data.draw(st.integers(0, payload.size - first // size)) * size)
            source.read_into(entries, row, first, memoryview(buffer))
            assert buffer == octets[first : first + len(buffer)]
        write(reader, case.plan, folder / "b", data.draw(cuts))
    written = sv.load(folder / "b")
    assert {key: array.tobytes() for key, array in written.items()} == {
        key: array.tobytes() for key, array in case.targets.items()
    }


@given(st.data())
def test_indices_within_a_region_are_found_once(data: st.DataObject) -> None:
    """Also where steps leave gaps."""
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    steps, reach = [], 1
    for extent in reversed(shape):
        steps.insert(0, (0, reach + data.draw(st.integers(0, 2))))
        reach = steps[0][1] * extent
    view = View("w", (data.draw(st.integers(0, 5)),), tuple(steps))
    low, count = data.draw(st.integers(0, reach + 5)), data.draw(st.integers(0, reach + 5))
    found = [
        tuple(a + b for a, b in zip(first, index, strict=True))
        for first, extents in indices_within(view, view.start, shape, Region((low,), (count,)))
        for index in np.ndindex(*extents)
    ]
    places = {
        index: view.start[0] + sum(n * step for n, (_, step) in zip(index, steps, strict=True))
        for index in np.ndindex(*shape)
    }
    expected = [index for index, place in places.items() if low <= place < low + count]
    assert sorted(found) == sorted(expected)
