"""Numbers of any dtype in a wider one, and differences in words."""

from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from shardvar.layout.dtypes import numpy_dtype, widen_numbers
from shardvar.verbs.compare.comparison import lines_of_diff
from spec_tests.helpers.hypothesis_strategies import NUMBERS


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_widened_to_the_one_dtype_that_holds_them(name: str) -> None:
    """uint64 only for uint64: differences of smaller numbers may be negative."""
    dtype = numpy_dtype(name)
    wide = widen_numbers(np.array([0, 1]).astype(dtype))
    if name == "uint64":
        assert wide.dtype == np.uint64
    elif name.startswith(("int", "uint", "bool")):
        assert wide.dtype == np.int64
    else:
        assert wide.dtype == (np.complex128 if name.startswith("complex") else np.float64)
    assert wide.tolist() == [0, 1]


def test_a_difference_says_how_many_elements_have_no_distance(tmp_path: Path) -> None:
    a = np.array([1.0, 2.0, 3.0, 4.0])
    for nans in range(3):
        b = a + 1
        b[:nans] = np.nan
        sv.save(tmp_path / "a", {"t": a}, force=True)
        sv.save(tmp_path / "b", {"t": b}, force=True)
        text = "\n".join(lines_of_diff(sv.diff(tmp_path / "a", tmp_path / "b")))
        assert (f"; {nans} with NaN" in text) == (nans > 0)
        assert "by at most 1" in text and "relative" in text
