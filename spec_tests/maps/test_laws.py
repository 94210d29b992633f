"""The laws of maps, end to end: random rules over random checkpoints, in any cuts and formats.

One oracle goes through the rules element by element (``helpers.random_maps``), the other cuts whole
arrays with NumPy (``helpers.random_operations``). A map that is right is never refused. One with a
random mutation is refused, or means what the oracle says.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.engine import lattices, pieces
from shardvar.errors import MapError
from shardvar.layout.dtypes import ITEMSIZES, NAMES, has_values, numpy_dtype
from shardvar.layout.region import Region
from shardvar.maps.fitting import bytes_of_number
from shardvar.verbs.mapping import map_reader
from spec_tests.helpers.map_arrays import assert_same, map_arrays
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket
from spec_tests.helpers.random_maps import Arrays, Case, Wrong, cases, meaning, mutations
from spec_tests.helpers.random_operations import KINDS, Operation, by_rank, operations

MORE = 40 if os.environ.get("EXHAUSTIVE") else 1
DTYPES = [
    name for name, size in zip(NAMES, ITEMSIZES.tolist(), strict=True) if size and has_values(name)
]
FORMATS = {"shardvar": "", "safetensors": ".safetensors", "npz": ".npz", "torch": "", "zarr": ""}
WIDE = ["bool", "int8", "float16", "float32", "float64", "complex64"]
"""Dtypes that every one of these formats holds."""


def save(path: Path, form: str, arrays: Arrays, counts: list[int]) -> Path:
    if form == "deflated":
        np.savez_compressed(path.with_suffix(".npz"), **arrays)
        return path.with_suffix(".npz")
    path = path.with_suffix(FORMATS[form])
    sv.save(path, arrays, format=form, partition=cutting(form, counts))
    return path


def cutting(form: str, counts: list[int]) -> Any:
    if form not in ("shardvar", "torch"):
        return None
    return lambda shape, _dtype: [
        min(n, max(extent, 1)) for n, extent in zip(counts, shape, strict=False)
    ]


@given(st.data(), st.sampled_from(["int16", "bool", "complex64"]))
@settings(max_examples=12 * MORE)
def test_a_map_that_is_right_is_never_refused(data: st.DataObject, dtype: str) -> None:
    """In any order of rules; and its inverse leads back."""
    case = data.draw(cases(numpy_dtype(dtype), plain=False))
    rules = data.draw(st.permutations(case.rules()))
    given_map = sv.Map(rules, sizes=case.sizes())
    made = map_arrays(given_map, case.sources)
    assert_same(made, meaning(case.lines, case.sources))
    if case.has_inverse:
        assert_same(map_arrays(given_map.inverse(), made), case.sources)


@given(st.data())
@settings(max_examples=18 * MORE)
def test_a_map_with_a_mutation_is_refused_or_means_what_it_says(data: st.DataObject) -> None:
    case = data.draw(cases(np.dtype(np.int16), plain=True))
    lines = data.draw(mutations(case))
    given_map = sv.Map([line.text() for line in lines], sizes=case.sizes())
    try:
        wanted = meaning(lines, case.sources)
    except Wrong:
        with pytest.raises(MapError):
            map_arrays(given_map, case.sources)
    else:
        assert_same(map_arrays(given_map, case.sources), wanted)


@pytest.mark.parametrize("dtype", [each for each in NAMES if each != "string"])
def test_a_number_fills_any_dtype_or_is_refused(dtype: str) -> None:
    """Without a warning: the fill of a complex tensor is real."""
    for text in ("1", "-1", "0.5", "nan", "1e39", "true"):
        try:
            octets = bytes_of_number(text, dtype)
        except MapError as error:
            assert text != "1" or not has_values(dtype), error
        else:
            element = np.frombuffer(octets, numpy_dtype(dtype))[0]
            assert element != element or complex(element).imag == 0


@given(st.data(), st.sampled_from(["shardvar", "shardvar", *FORMATS, "deflated"]))
@settings(max_examples=10 * MORE)
def test_every_verb_makes_the_same_of_a_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, form: str
) -> None:
    """``load``, ``reshard`` and ``diff`` agree, and parts are slices of the whole."""
    target = data.draw(st.sampled_from(["shardvar", *FORMATS]))
    is_native = form == target == "shardvar"
    dtype = numpy_dtype(data.draw(st.sampled_from(DTYPES if is_native else WIDE)))
    case: Case = data.draw(cases(dtype, plain=not is_native))
    wanted, folder = meaning(case.lines, case.sources), tmp_path_factory.mktemp("laws")
    counts = data.draw(st.lists(st.integers(1, 3), min_size=8, max_size=8))
    source = save(folder / "a", form, case.sources, counts)
    given_map = sv.Map(data.draw(st.permutations(case.rules())), sizes=case.sizes())
    block, panel = (data.draw(st.sampled_from([16, 64, 4 << 20])) for _ in range(2))
    with (
        patch.multiple(lattices, _LEAST_TILE=4, _TILE_ROWS=2, _TILE_COLUMNS=3),
        patch.multiple(lattices, BLOCK_NBYTES=block, _PANEL_NBYTES=panel),
        patch.multiple(pieces, _MOST_DECODED=data.draw(st.sampled_from([1, 64 << 20]))),
    ):
        assert_same(sv.load(source, map=given_map), wanted)
        made = (folder / "b").with_suffix(FORMATS[target])
        cut = cutting(target, counts[::-1])
        sv.reshard(source, made, map=given_map, format=target, partition=cut)
        assert_same(sv.load(made), wanted)
        assert sv.diff(source, made, map=given_map).equal
        with sv.open_checkpoint(source) as reader:
            parts = map_reader(reader, given_map)
            for key, array in wanted.items():
                low = [data.draw(st.integers(0, extent)) for extent in array.shape]
                region = Region(low, [e - n for e, n in zip(array.shape, low, strict=True)])
                assert parts.read(key, region).tobytes() == array[region.slices].tobytes()
        if case.has_inverse:
            back = (folder / "c").with_suffix(FORMATS[target])
            sv.reshard(made, back, map=given_map.inverse(), format=target)
            assert_same(sv.load(back), case.sources)


@dataclass(frozen=True)
class Way:
    """A map with arithmetic, texts or ranks, and how it is carried out."""

    operation: Operation
    form: str
    into: str
    is_in_bucket: bool
    has_workers: bool
    counts: tuple[int, ...]
    """The numbers of slices along the axes."""

    def kinds(self) -> set[str]:
        """Return what occurs in it."""
        given, found = self.operation, {f"from {self.form}", f"to {self.into}"}
        found |= {"bucket"} if self.is_in_bucket else set()
        found |= {"workers"} if self.has_workers else set()
        found |= {"several sources"} if (given.reads or 1) > 1 else set()
        found |= {"several targets"} if (given.makes or 1) > 1 else set()
        is_cut = max(self.counts) > 1
        found |= {"sliced source"} if is_cut and cutting(self.form, []) else set()
        found |= {"sliced target"} if is_cut and cutting(self.into, []) else set()
        return found | given.kinds | ({"inverse"} if given.has_inverse else set())


@st.composite
def ways(draw: st.DrawFn) -> Way:
    is_in_bucket = draw(st.booleans())
    forms = ["shardvar", "safetensors"] if is_in_bucket else [*FORMATS, "shardvar"]
    form, into = draw(st.sampled_from(forms)), draw(st.sampled_from(forms))
    is_native = form == into == "shardvar"
    given = draw(operations(DTYPES if is_native else WIDE, plain=not is_native))
    counts = draw(st.lists(st.integers(1, 3), min_size=8, max_size=8))
    return Way(given, form, into, is_in_bucket, draw(st.booleans()), tuple(counts))


OCCUR = (
    *KINDS,
    *("bucket", "workers", "several sources", "several targets", "sliced source", "sliced target"),
    *("inverse", *(f"from {form}" for form in FORMATS), *(f"to {form}" for form in FORMATS)),
)


def test_each_kind_of_map_and_way_is_drawn() -> None:
    """The laws below are about all of them."""
    seen = set[str]()

    @settings(max_examples=150, phases=[Phase.generate], derandomize=True, database=None)
    @given(ways())
    def look(way: Way) -> None:
        seen.update(way.kinds())

    look()
    assert seen >= {*OCCUR}, {*OCCUR} - seen


@given(operations(["int16", "bool", "complex64", "float32"], plain=False), st.data())
@settings(max_examples=20 * MORE)
def test_operations_mean_the_same_in_any_order_and_none_may_be_missing_or_twice(
    given: Operation, data: st.DataObject
) -> None:
    """Exactly once: without a rule a source is left over, and with it twice a target is filled twice."""
    made = map_arrays(sv.Map(given.rules, sizes=given.sizes), given.sources)
    assert_same(made, given.targets)
    order = data.draw(st.permutations(given.rules))
    assert_same(map_arrays(sv.Map(order, sizes=given.sizes), given.sources), given.targets)
    row = data.draw(st.integers(0, len(given.rules) - 1))
    if given.rules[row].endswith("@ rank=1: -> nothing") and given.reads == 1:
        return  # it leaves nothing out
    for others in (
        [r for n, r in enumerate(given.rules) if n != row],
        [*given.rules, given.rules[row]],
    ):
        with pytest.raises(MapError):
            map_arrays(sv.Map(others, sizes=given.sizes), given.sources)


@given(ways())
@settings(max_examples=14 * MORE)
def test_a_reshard_carries_out_each_operation(
    tmp_path_factory: pytest.TempPathFactory, way: Way
) -> None:
    """From and to disks and buckets, by workers, of slices to slices, of ranks to ranks."""
    given = way.operation
    for kind in sorted(way.kinds()):
        event(kind)
    root = "s3://bucket/folder" if way.is_in_bucket else str(tmp_path_factory.mktemp("ways"))
    with ExitStack() as stack:
        if way.is_in_bucket:
            stack.enter_context(in_bucket(MemoryBucket()))
        workers = stack.enter_context(ThreadPoolExecutor(2)) if way.has_workers else None
        sources = []
        for number, arrays in enumerate(by_rank(given.sources, given.reads)):
            sources.append(f"{root}/a-{number}{FORMATS[way.form]}")
            sv.save(
                sources[-1], arrays, format=way.form, partition=cutting(way.form, [*way.counts])
            )
        given_map = sv.Map(given.rules, sizes=given.sizes)

        def carry(sources: list[str], name: str, given_map: sv.Map, count: int | None) -> list[str]:
            rank = "" if count is None else "-{rank}"
            sv.reshard(
                sources if len(sources) > 1 else sources[0],
                f"{root}/{name}{rank}{FORMATS[way.into]}",
                map=given_map,
                format=way.into,
                partition=cutting(way.into, [*way.counts[::-1]]),
                executor=workers,
            )
            return [
                f"{root}/{name}{rank}{FORMATS[way.into]}".format(rank=n) for n in range(count or 1)
            ]

        made = carry(sources, "b", given_map, given.makes)
        for path, wanted in zip(made, by_rank(given.targets, given.makes), strict=True):
            assert_same(sv.load(path), wanted)
        if len(sources) == 1 and given.makes is None:
            assert sv.diff(sources[0], made[0], map=given_map).equal
        if given.has_inverse:
            back = carry(made, "c", given_map.inverse(), given.reads)
            for path, wanted in zip(back, by_rank(given.sources, given.reads), strict=True):
                assert_same(sv.load(path), wanted)
