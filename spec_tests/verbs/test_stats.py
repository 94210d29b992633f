"""Statistics: those of NumPy on the whole array, whatever the blocks that they were gathered
from."""

from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import CorruptCheckpoint
from shardvar.verbs.compare import blocks
from shardvar.verbs.compare.blocks import (
    ScalarValue,
    Statistics,
    histograms,
    measure,
    read_scalars,
    statistics,
)
from spec_tests.helpers.damage import flip
from spec_tests.helpers.hypothesis_strategies import arrays, tensor_dicts


def by_numpy(array: Any) -> tuple[Any, ...]:
    """(count, finite, nan, inf, zero, minimum, maximum, mean, std), each by its own pass over the
    whole array."""
    flat = array.reshape(-1)
    with np.errstate(all="ignore"):
        wide = flat.astype(np.complex128) if flat.dtype.kind == "c" else flat.astype(np.float64)
        magnitude = np.abs(wide) if wide.dtype.kind == "c" else wide
        magnitude = np.where(np.isnan(wide), np.nan, magnitude)
        finite = magnitude[np.isfinite(magnitude)]
        some = (
            (finite.min(), finite.max(), finite.mean(), finite.std())
            if len(finite)
            else (None,) * 4
        )
    nan, infinite = int(np.isnan(magnitude).sum()), int(np.isinf(magnitude).sum())
    return len(flat), len(finite), nan, infinite, int((magnitude == 0).sum()), *some


def assert_like_numpy(found: Statistics, array: Any) -> None:
    *counts, low, high, mean, std = by_numpy(array)
    assert [found.count, found.finite, found.nan, found.inf, found.zero] == counts
    if low is None:
        assert (found.minimum, found.maximum, found.mean, found.std) == (None,) * 4
        return
    assert (found.minimum, found.maximum) == pytest.approx((low, high))
    scale = max(abs(low), abs(high))
    if scale < 1e150:  # beyond, squares of deviations overflow, in NumPy too
        assert found.mean == pytest.approx(mean, rel=1e-9, abs=1e-9 * scale)
        assert found.std == pytest.approx(std, rel=1e-6, abs=1e-9 * scale)


@given(arrays(), st.lists(st.integers(0, 40), max_size=4))
def test_statistics_and_those_of_blocks_merged_are_those_of_numpy(
    array: Any, cuts: list[int]
) -> None:
    assert_like_numpy(statistics(array), array)
    total = Statistics()
    for part in np.split(array.reshape(-1), sorted(cuts)):
        total = total.merge(statistics(part))
    assert_like_numpy(total, array)


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "float16", "float32", "float64"])
def test_every_pair_of_special_numbers_is_counted_as_by_numpy(dtype: str) -> None:
    """A complex number with a NaN in either part is NaN, also beside an infinity."""
    special = [0.0, -0.0, 1.5, -2.0, np.inf, -np.inf, np.nan]
    for real, imaginary in product(special, repeat=2):
        # A product with 1j would make NaN of an infinity.
        pair = complex(real, imaginary) if dtype.startswith("complex") else real
        for array in (np.array([pair], dtype), np.array([pair, 1, pair, 0], dtype)):
            assert_like_numpy(statistics(array), array)


def test_neither_a_small_deviation_on_a_large_mean_nor_a_digit_is_lost() -> None:
    """A sum of squares would lose all of it."""
    total = Statistics()
    for part in np.split(1e9 + np.tile([0.0, 1.0], 5000), 100):
        total = total.merge(statistics(part))
    assert total.std == pytest.approx(0.5, rel=1e-12)
    found = statistics(np.array([2**63 - 1, -(2**63)]))
    assert (found.minimum, found.maximum) == (-(2**63), 2**63 - 1)
    assert statistics(np.array([2**64 - 1], np.uint64)).maximum == 2**64 - 1


@settings(max_examples=30)
@given(tensor_dicts(strings=True), st.integers(1, 4), st.integers(16, 100))
def test_streamed_statistics_do_not_depend_on_the_layout(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, Any], parts: int, nbytes: int
) -> None:
    """Strings have none and are left out."""
    path = tmp_path_factory.mktemp("stats") / "a"
    sv.save(path, tensors, partition=parts)
    with patch.object(blocks, "BLOCK_NBYTES", nbytes), sv.open_checkpoint(path) as reader:
        found = dict(measure(reader, reader.keys()))
    assert found.keys() == {key for key, array in tensors.items() if array.dtype != object}
    for key, each in found.items():
        assert isinstance(each, Statistics)
        assert_like_numpy(each, tensors[key])


@pytest.mark.parametrize("rows", [3, 2_000_000])
def test_a_damaged_tensor_has_an_error_in_place_of_statistics(tmp_path: Path, rows: int) -> None:
    """And no histogram, if it is damaged later."""
    sv.save(tmp_path / "a", {"bad": np.arange(rows), "good": np.ones(2)})
    with sv.open_checkpoint(tmp_path / "a") as reader:
        before, start = dict(measure(reader, reader.keys())), int(reader.find("bad").start[0])
    flip(*tmp_path.glob("*svdata*"), start)
    with sv.open_checkpoint(tmp_path / "a") as reader:
        found = dict(measure(reader, reader.keys()))
        assert [key for key, _ in histograms(reader, before)] == ["good"]
    assert isinstance(found["bad"], CorruptCheckpoint)
    assert found["good"] == Statistics(2, 2, 0, 0, 0, 1.0, 1.0, 1.0, 0.0)


@pytest.mark.parametrize("rows", [3, 2_000_000])
def test_progress_counts_each_byte_once(tmp_path: Path, rows: int) -> None:
    """Of statistics and of histograms; strings, which have neither, are not counted."""
    tensors = {
        "large": np.arange(rows),
        "small": np.ones(2, np.float32),
        "words": np.array([b"a"], object),
    }
    sv.save(tmp_path / "a", tensors, partition={"large": 2, "*": 1})
    counted: list[int] = []
    with sv.open_checkpoint(tmp_path / "a") as reader:
        measured = dict(measure(reader, reader.keys(), counted.append))
        assert sum(counted) == 8 * rows + 8
        counted.clear()
        bins = dict(histograms(reader, measured, counted.append))
    assert sum(counted) == 8 * rows + 8
    assert {key: int(counts.sum()) for key, counts in bins.items()} == {"large": rows, "small": 2}


@pytest.mark.parametrize(
    ("scalar", "text", "value"),
    [(np.True_, "True", True), (np.False_, "False", False), (np.uint64(2**64 - 3), f"{2**64 - 3}", 2**64 - 3),
     (np.int8(-3), "-3", -3), (np.float32(0.1), "0.1", float(np.float32(0.1))), (np.float16(-0.0), "-0.0", -0.0),
     (np.float64(-np.inf), "-inf", "-inf"), (np.complex64(1 - 2j), "(1-2j)", "(1-2j)"),
     (np.array(b"\xffa", object), r"'\udcffa'", "\udcffa")],
)  # fmt: skip
def test_a_scalar_is_a_text_for_people_and_a_value_for_json(
    scalar: Any, text: str, value: Any, tmp_path: Path
) -> None:
    sv.save(tmp_path / "a", {"x": scalar})
    with sv.open_checkpoint(tmp_path / "a") as reader:
        assert repr(read_scalars(reader, ["x"])["x"]) == repr(ScalarValue(text, value))


def test_statistics_are_json_with_stable_keys() -> None:
    told = statistics(np.array([1.0, np.inf, 3.0])).to_json()
    sizes = {"count": 3, "nan": 0, "inf": 1, "zero": 0}
    assert told == sizes | {"min": 1.0, "max": 3.0, "mean": 2.0, "std": 1.0}
    assert set(statistics(np.zeros(0)).to_json().values()) == {0, None}
