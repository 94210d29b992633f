"""A reshard through a map gives one result, from and to every format, whatever the slices are, and
whoever carries it out."""

import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.planning.policies import BalancedPolicy
from spec_tests.helpers.map_arrays import Example, examples
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket
from spec_tests.helpers.thoroughness import EXHAUSTIVE

SLICED = ["shardvar", "tensorflow", "torch", "zarr"]
WHOLE = ["safetensors", "npz", "pt"]
FORMATS = [*SLICED, *WHOLE]
DTYPES = {"complex128": {"safetensors", "torch", "pt"}, "float16": set[str]()}


def lays(form: str, cut: Any) -> dict[str, Any]:
    """The arguments that write a format in slices, if it has them."""
    return {
        "format": form,
        "partition": cut if form in ("shardvar", "tensorflow", "torch") else None,
    }


def path_in(folder: Path, name: str, form: str) -> str:
    return str(folder / (f"{name}.zarr" if form == "zarr" else name))


@st.composite
def ways(draw: st.DrawFn) -> tuple[Example, str, str]:
    case = draw(examples())
    dtype = next(iter(case.sources.values())).dtype.name
    forms = [each for each in FORMATS if each not in DTYPES.get(dtype, set[str]())]
    return case, draw(st.sampled_from(forms)), draw(st.sampled_from(forms))


@pytest.fixture(scope="module")
def executors() -> Iterator[dict[str, Executor | None]]:
    with (
        ThreadPoolExecutor(2) as threads,
        ProcessPoolExecutor(1, get_context("forkserver" if os.name == "posix" else None)) as one,
    ):
        yield {"here": None, "threads": threads, "one process": one}


@settings(max_examples=400 if EXHAUSTIVE else 12)
@given(ways(), st.integers(1, 3), st.integers(1, 3), st.sampled_from(["here", "threads"]))
def test_random_rules_from_and_to_every_format(
    executors: dict[str, Executor | None],
    tmp_path_factory: pytest.TempPathFactory,
    way: tuple[Example, str, str],
    cut: int,
    other: int,
    who: str,
) -> None:
    """The oracle is einops, on whole arrays."""
    case, form, into = way
    folder = tmp_path_factory.mktemp("mapped")
    source, target = path_in(folder, "a", form), path_in(folder, "b", into)
    sv.save(source, case.sources, **lays(form, cut))
    mapped = sv.Map(case.rule, sizes=used_sizes(case))
    sv.reshard(source, target, map=mapped, executor=executors[who], **lays(into, other))
    assert same(sv.load(target), case.targets)


def used_sizes(case: Example) -> dict[str, int | str]:
    return {name: size for name, size in case.sizes.items() if name in case.rule}


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return {key: (a.dtype, a.shape, a.tobytes()) for key, a in found.items()} == {
        key: (a.dtype, a.shape, np.ascontiguousarray(a).tobytes()) for key, a in expected.items()
    }


RULES = (
    "also a[v h] -> again[h v]",
    "a[(v two) h] -> pairs[two v h]",
    "b[(g s) h] @ s=0 -> first[g h]",
    "b[(g s) h] @ s=1: -> rest[(g s) h]",
    "c.{n}[h] -> rows[n h] @ n=0: else 7",
    "w[(p i) (q j)] times scale[p q] -> w[(p i) (q j)]",
    "d[h] plus 1 -> d[h]",
    "left -> nothing",
)
SIZES: dict[str, int | str] = {"two": 2, "s": 3, "n": 5, "i": 2, "j": 3}
RNG = np.random.default_rng(5)
TENSORS: dict[str, Any] = {
    "a": RNG.random((6, 4), np.float32),
    "b": RNG.random((9, 4), np.float32),
    "w": RNG.random((7, 8), np.float32),
    "scale": RNG.random((4, 3), np.float32),
    "d": RNG.random(4, np.float32),
    "left": np.arange(3),
    **{f"c.{n}": RNG.random(4, np.float32) for n in range(3)},
}
MADE: dict[str, Any] = {
    "again": TENSORS["a"].T,
    "pairs": TENSORS["a"].reshape(3, 2, 4).swapaxes(0, 1),
    "first": TENSORS["b"][::3],
    "rest": np.delete(TENSORS["b"], np.s_[::3], axis=0),
    "rows": np.concatenate([[TENSORS[f"c.{n}"] for n in range(3)], np.full((2, 4), 7)]).astype(
        "f4"
    ),
    "w": TENSORS["w"] * TENSORS["scale"].repeat(2, 0)[:7].repeat(3, 1)[:, :8],
    "d": TENSORS["d"] + np.float32(1),
}


@pytest.mark.parametrize("number", range(len(FORMATS)))
def test_rules_of_all_kinds_from_and_to_every_format(
    executors: dict[str, Executor | None], tmp_path: Path, number: int
) -> None:
    """Cut, padded, repeated, scaled, left out; in other slices and files."""
    form, mapped = FORMATS[number], sv.Map(RULES, sizes=SIZES)
    source = path_in(tmp_path, "a", form)
    sv.save(source, TENSORS, **lays(form, 2))
    into = FORMATS if EXHAUSTIVE else (FORMATS[number - 1], FORMATS[number - 3])
    for (row, each), who in product(enumerate(into), executors):
        if EXHAUSTIVE or (row + number + len(who)) % 2 == 0:
            target = path_in(tmp_path, f"{each}-{len(who)}", each)
            policy = BalancedPolicy(3) if each in ("shardvar", "safetensors") else None
            options = lays(each, 3) | {"policy": policy, "executor": executors[who]}
            report = sv.reshard(source, target, map=mapped, **options)
            assert same(sv.load(target), MADE), (form, each, who)
            assert report.nbytes == sum(array.nbytes for array in MADE.values())


@pytest.mark.parametrize("who", ["here", "threads"])
def test_sliced_layouts_are_sources_and_targets(
    executors: dict[str, Executor | None], tmp_path: Path, who: str
) -> None:
    """Uneven slices of a mesh, and a spec of other sizes."""
    by_rows = sv.PartitionSpec(splits=[[1, 4, 2], [8]])
    sv.save(tmp_path / "a", TENSORS, partition={"w": by_rows, "b": sv.PartitionSpec([2, 2])})
    cuts = {"w": sv.PartitionSpec(splits=[[3, 4], [5, 3]]), "pairs": sv.PartitionSpec([2, 3, 1])}
    mapped = sv.Map(RULES, sizes=SIZES)
    options = {"partition": cuts, "executor": executors[who], "policy": BalancedPolicy(2)}
    sv.reshard(tmp_path / "a", tmp_path / "b", map=mapped, **options)
    assert same(sv.load(tmp_path / "b"), MADE) and sv.verify(tmp_path / "b").ok
    with sv.open_checkpoint(tmp_path / "b") as reader:
        assert len(reader.find("w").slices) == 4 and len(reader.find("pairs").slices) == 6


def test_a_map_from_and_to_a_bucket(tmp_path: Path) -> None:
    sv.save(tmp_path / "a", TENSORS, partition=2)
    mapped, url, out = sv.Map(RULES, sizes=SIZES), "s3://bucket/folder", tmp_path / "c.safetensors"
    with in_bucket(MemoryBucket()):
        sv.reshard(tmp_path / "a", f"{url}/a", policy=BalancedPolicy(2))
        sv.reshard(f"{url}/a", f"{url}/b", map=mapped, partition=2)
        sv.reshard(f"{url}/a", out, map=mapped)
        assert same(sv.load(f"{url}/b"), MADE) and same(sv.load(out), MADE)
