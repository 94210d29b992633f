"""Lazy arrays: what is saved from them is what is saved from arrays, each value is made once, and no
two are alive at once.

The oracle is the same save of arrays in memory, and a count of what is made and what is alive.
"""

import os
import subprocess
import sys
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import ArgumentError, CorruptCheckpoint, StorageError
from shardvar.formats.table import all_formats
from shardvar.verbs import lazy as lazy_module
from spec_tests.helpers.hypothesis_strategies import NUMBERS, Array, arrays, keys, same
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket
from spec_tests.helpers.thoroughness import EXHAUSTIVE, is_due

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
FORMATS = [form.name for form in all_formats() if form.capabilities.dtypes]
POLICIES: list[Callable[[], Any]] = [
    lambda: None,
    lambda: sv.MaxShardSizePolicy(300),
    lambda: sv.BalancedPolicy(3),
]
CUTS: list[Any] = [None, 4, [1, 3], [2, 2]]


class Made:
    """A count of what was made by key, and the most values that were alive at once."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.most = 0
        self.stored: dict[str, Stored] = {}
        self._alive: list[weakref.ref[Array]] = []

    def copy(self, key: str, array: Array) -> Array:
        made = np.array(array)
        self.count[key] += 1
        self._alive = [each for each in self._alive if each() is not None] + [weakref.ref(made)]
        self.most = max(self.most, len(self._alive))
        return made


class Stored:
    """An array as HDF5 and Zarr give it: slices of its rows are read."""

    def __init__(self, key: str, array: Array, made: Made, chunk: int = 1) -> None:
        self.shape, self.dtype, self.chunks = array.shape, array.dtype, (chunk,) * array.ndim
        self.times = np.zeros(array.shape[:1], np.int64)
        self.reads: list[tuple[int, int]] = []
        self._key, self._array, self._made = key, array, made

    def __getitem__(self, rows: slice) -> Array:
        self.times[rows] += 1
        self.reads.append((rows.start, rows.stop))
        return self._made.copy(self._key, self._array[rows])


def are_same(a: dict[str, Array], b: dict[str, Array]) -> bool:
    return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)


def lazy_of(key: str, array: Array, made: Made, is_stored: bool) -> Any:
    if is_stored and array.ndim:
        stored = Stored(key, array, made)
        if len(key) % 2:
            return stored
        computed = sv.lazy(
            array.shape, array.dtype, lambda rows, each: each[rows], stored, by_rows=True
        )
        made.stored[key] = stored
        return computed
    return sv.lazy(array.shape, array.dtype, made.copy, key, array)


def check_once(lazy: dict[str, Any], made: Made) -> None:
    for key, value in (lazy | made.stored).items():
        if isinstance(value, Stored):
            assert (value.times == 1).all(), (key, value.reads)
        else:
            assert made.count[key] == 1, (key, made.count)
    assert made.most <= 1


def cases() -> list[tuple[str, int, int]]:
    """Return every format with the cuts and policies that it takes."""
    found = []
    for form in all_formats():
        can = form.capabilities
        cuts = [0, 1, 2, 3] if can.slice_dtypes and not can.is_grid else [0, 3] * can.is_grid or [0]
        policies = [0, 1, 2] if can.many_files and not can.is_grid else [0]
        if can.dtypes:
            found += [(form.name, cut, policy) for cut in cuts for policy in policies]
    return [case for number, case in enumerate(found) if is_due(number, 3)]


@pytest.mark.parametrize("form, cut, policy", cases())
def test_lazy_arrays_in_any_files_are_made_once_and_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, cut: int, policy: int
) -> None:
    monkeypatch.setattr(lazy_module, "PORTION_NBYTES", 100)
    random, made = np.random.default_rng(1), Made()
    full = {f"k{number}": random.standard_normal((13, 8)).astype("f4") for number in range(5)}
    options = {"format": form, "partition": CUTS[cut], "policy": POLICIES[policy]()}
    lazy = {
        key: lazy_of(key + "x" * (n % 4 == 1), full[key], made, bool(n % 2))
        for n, key in enumerate(full)
    }
    lazy["k2"] = full["k2"]  # one in memory comes between them
    sizes = []
    for name, tensors in (("eager", full), ("lazy", lazy)):
        sv.save(tmp_path / name / "m", tensors, **options)
        files = [each for each in (tmp_path / name).rglob("*") if each.is_file()]
        # One of Orbax has the path.
        sizes.append(sorted(f.stat().st_size for f in files if f.name != "commit_success.txt"))
    assert sizes[0] == sizes[1]
    check_once({key: each for key, each in lazy.items() if key != "k2"}, made)
    assert are_same(sv.load(tmp_path / "lazy" / "m"), full)
    assert sv.diff(tmp_path / "eager" / "m", tmp_path / "lazy" / "m").equal
    assert sv.verify(tmp_path / "lazy" / "m").ok


@settings(max_examples=200 if EXHAUSTIVE else 8)
@given(data=st.data())
def test_lazy_arrays_of_any_dtype_and_shape_are_saved_as_arrays_are(data: st.DataObject) -> None:
    full = data.draw(st.dictionaries(keys(), arrays(NUMBERS), max_size=5))
    made = Made()
    lazy = {key: lazy_of(key, array, made, data.draw(st.booleans())) for key, array in full.items()}
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        sv.save(f"{folder}/eager", full, format="shardvar")
        sv.save(f"{folder}/lazy", lazy, format="shardvar")
        assert are_same(sv.load(f"{folder}/lazy"), full)
        assert sv.diff(f"{folder}/lazy", f"{folder}/eager").equal
    check_once(lazy, made)


@pytest.mark.parametrize("form", [form for n, form in enumerate(FORMATS) if is_due(n, 3)])
def test_lazy_arrays_in_a_bucket(form: str) -> None:
    made = Made()
    full = {"a": np.arange(12.0).reshape(4, 3), "b": np.arange(5)}
    lazy = {key: lazy_of(key, array, made, key == "a") for key, array in full.items()}
    with in_bucket(MemoryBucket()):
        sv.save("s3://bucket/lazy/m", lazy, format=form)
        assert are_same(sv.load("s3://bucket/lazy/m"), full)
    check_once(lazy, made)


def test_local_shards_may_be_lazy(tmp_path: Path) -> None:
    made, full = Made(), np.arange(26.0).reshape(13, 2)
    for process in (1, 0):
        rows = slice(0, 8) if process else slice(8, 13)
        part = full[rows]
        lazy = {"t": lazy_of(f"t{process}", part, made, False)}
        held = {
            "t": sv.LocalShard(lazy["t"], (rows.start, 0), (13, 2)),
            "same": sv.lazy((3,), "int64", lambda: np.arange(3)),
        }
        sv.save_shards(
            tmp_path / "m", held, process=process, num_processes=2, run="r", commit=not process,
            attempt="1",
        )  # fmt: skip
    assert np.array_equal(sv.load(tmp_path / "m")["t"], full)
    assert made.count == {"t0": 1, "t1": 1} and made.most == 1


class Reads(sv.ShardingCallback):
    description = "Reads all values."

    def __call__(self, given: Any) -> Any:
        assert all(np.asarray(each.tensor).sum() > 0 for each in given)
        return [{each.checkpoint_key: {each.slice_spec: each.tensor}} for each in given]


def test_values_that_a_policy_reads_are_made_once(tmp_path: Path) -> None:
    made, full = Made(), {"a": np.ones((4, 4)), "b": np.ones((5, 2))}
    lazy = {key: lazy_of(key, array, made, key == "a") for key, array in full.items()}
    sv.save(tmp_path / "m", lazy, policy=Reads())
    assert are_same(sv.load(tmp_path / "m"), full)
    assert made.count == {"a": 1, "b": 1}


def fails(error: Exception) -> Any:
    raise error


WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: np.ones((4, 3)), ArgumentError, r"announced as float32\[4, 2\], and gives float64\[4, 3\]"),
    (lambda: np.ones((4, 2)), ArgumentError, r"announced as float32\[4, 2\], and gives float64\[4, 2\]"),
    (lambda: np.ones((8,), np.float32), ArgumentError, r"and gives float32\[8\]"),
    (lambda: np.ma.masked_less(np.ones((4, 2), "f4"), 2), ArgumentError, "is a masked array"),
    (lambda: 1 / 0, ArgumentError, "cannot be made: ZeroDivisionError: division by zero"),
    (lambda: None, ArgumentError, r"gives string\[\]"),
    *((lambda kind=kind: fails(kind("It is damaged.")), kind,
       r"'w': It is damaged\. What was there before is as it was\.") for kind in (CorruptCheckpoint, StorageError)),
]  # fmt: skip


@pytest.mark.parametrize("function, error, words", WRONG)
def test_a_wrong_value_is_one_error_with_its_key(
    tmp_path: Path, function: Callable[[], Any], error: type[Exception], words: str
) -> None:
    """Errors of a source keep their kind."""
    path = tmp_path / "m.safetensors"
    sv.save(path, {"w": np.zeros(3)})
    before = path.read_bytes()
    lazy = {"first": sv.lazy((2,), "int32", lambda: np.zeros(2, np.int32))}
    with pytest.raises(error, match=words) as caught:
        sv.save(path, lazy | {"w": sv.lazy((4, 2), np.float32, function)})
    assert "'w'" in str(caught.value)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_a_function_is_refused_with_the_way_to_give_it(tmp_path: Path) -> None:
    for make, words in (
        (
            lambda: sv.save(tmp_path / "m", {"w": fails}),
            r"'w' is a function, not an array.*sv\.lazy",
        ),
        (lambda: sv.lazy((), "int8", np.zeros, by_rows=True), "has no rows"),
        (lambda: sv.lazy((3,), "int8", np.zeros(3)), "is not a function"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ArgumentError, match=words):
            make()


def test_tensors_of_an_open_checkpoint_are_lazy(tmp_path: Path) -> None:
    full = {"a": np.arange(12.0).reshape(4, 3), "b": np.arange(5)}
    sv.save(tmp_path / "m", full)
    same, twice = tmp_path / "same.safetensors", tmp_path / "twice.safetensors"
    with sv.open_checkpoint(tmp_path / "m") as reader:
        sv.save(same, dict(reader))
        doubled = {
            key: sv.lazy(each.shape, each.dtype, lambda tensor: tensor[...] * 2, each)
            for key, each in reader.items()
        }
        sv.save(twice, doubled)
    assert are_same(sv.load(same), full)
    assert are_same(sv.load(twice), {key: each * 2 for key, each in full.items()})


_PROGRAM = """
import re, sys
import numpy as np
import shardvar as sv

def peak():
    # Not ru_maxrss: a process begins with the peak of the one that started it.
    with open("/proc/self/status") as status:
        return int(re.search("VmHWM:[^0-9]*([0-9]+) kB", status.read())[1])

path, form, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
make = lambda number: np.full((rows, 1024), number, np.float32)
tensors = {f"k{number}": sv.lazy((rows, 1024), "float32", make, number) for number in range(8)}
before = peak()
sv.save(path, tensors, format=form)
print(peak() - before, peak())
"""
ROWS = 32768 if EXHAUSTIVE else 8192
"""Eight arrays of 128 MiB, or of 32 MiB."""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc has the peak")
@pytest.mark.parametrize("form", FORMATS if EXHAUSTIVE else ["safetensors"])
def test_eight_arrays_take_the_memory_of_one(tmp_path: Path, form: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "m"), form, str(ROWS)],
        capture_output=True,
        text=True,
        check=True,
    )
    growth, peak = (int(each) * 1024 for each in found.stdout.split())
    assert growth < ROWS * 4096 + (64 << 20), growth
    assert peak < 300 << 20, peak
