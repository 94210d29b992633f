"""Several reads as one: what is returned is what NumPy picks from each tensor, in any format."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import shardvar as sv
from shardvar.errors import ArgumentError, OutOfRange, UnknownKey
from shardvar.formats.table import format_named
from shardvar.layout.region import Region
from shardvar.verbs.load import open_checkpoint
from spec_tests.helpers.hypothesis_strategies import (
    Array,
    any_indexes,
    arrays,
    cuts,
    regions_in,
    same,
    string_arrays,
)
from spec_tests.verbs.test_verbs import FORMATS, SLICED, SOME, directory, held, home, target

STEPS = [slice(None, None, step) for step in (1, 2, 3, -1, -2)]


@st.composite
def requests(draw: st.DrawFn, tensors: dict[str, Array]) -> list[tuple[str, Any]]:
    """Keys with regions, indexes and None: they repeat, overlap, and may be empty."""
    found: list[tuple[str, Any]] = []
    for _ in range(draw(st.integers(0, 6))):
        key = draw(st.sampled_from(sorted(tensors)))
        shape = tensors[key].shape
        basic = hnp.basic_indices(shape, allow_newaxis=True)
        strided = st.tuples(*[st.sampled_from(STEPS)] * len(shape))
        wanted = st.one_of(st.none(), regions_in(shape), any_indexes(shape), basic, strided)
        found.append((key, draw(wanted)))
    return found


def picked(array: Array, wanted: Any) -> Array:
    """What NumPy picks, as an array."""
    if wanted is None:
        return array
    if isinstance(wanted, Region):
        wanted = (*wanted.slices, ...)
    found: Any = array[wanted]
    if isinstance(found, np.ndarray):
        return found
    one = np.empty((), array.dtype)
    one[()] = found
    return one


@pytest.mark.parametrize("form", FORMATS)
@SOME
@given(data=st.data())
def test_parts_alone_and_in_a_batch_are_what_numpy_picks(form: str, data: st.DataObject) -> None:
    """With and without arrays of the caller's, some of them with other strides."""
    each = arrays(held(form), max_extent=6)
    if "string" in format_named(form).capabilities.dtypes:
        each = st.one_of(each, each, string_arrays())
    tensors = {name: data.draw(each) for name in ("a", "b", "c")}
    partition = data.draw(cuts(tensors["a"].shape)) if form in SLICED else None
    with directory() as path, pytest.MonkeyPatch.context() as patch:
        cut = None if partition is None else {"a": partition}
        sv.save(target(path, form), tensors, format=form, partition=cut)
        # The bytes above which what lies between long steps is left out.
        nbytes = data.draw(st.sampled_from([16, 64, 1 << 22]))
        patch.setattr("shardvar.engine.read.BLOCK_NBYTES", nbytes)
        with open_checkpoint(home(path, form)) as reader:
            for verify in ("auto", "full"):
                wanted = data.draw(requests(tensors))
                try:
                    expected = [picked(tensors[key], index) for key, index in wanted]
                except IndexError:
                    with pytest.raises(OutOfRange):
                        reader.read_many(wanted, verify)
                    continue
                out: list[Any] = []
                for array in expected:
                    kind = data.draw(st.sampled_from(["fresh", "C", "F"]))
                    dtype = array.dtype.newbyteorder("=")
                    made = np.zeros(array.shape, dtype, order="F" if kind == "F" else "C")
                    out.append(None if kind == "fresh" else made)
                try:
                    found = reader.read_many(iter(wanted), verify, out=out)
                except OutOfRange:
                    # Stricter than NumPy where another array of the index selects nothing.
                    assert any(array.size == 0 for array in expected)
                    continue
                assert len(found) == len(wanted)
                for array, given_array, result in zip(expected, out, found, strict=True):
                    assert same(result, array)
                    assert given_array is None or result is given_array
                assert verify == "auto" or not reader.unverified
                for (key, index), array in zip(wanted, expected, strict=True):
                    part = (None,) if index is None else index
                    assert same(reader.read(key, part, verify=verify), picked(tensors[key], part))
                    if not isinstance(index, Region) and index is not None:
                        assert same(reader[key][index], array)
                reader.unverified.clear()
            assert same(np.asarray(reader["a"]), tensors["a"])


NO_INDEXES: list[tuple[Any, type[Exception], str]] = [
    ([0, 13], IndexError, "Index 13"), (np.array([-14]), IndexError, "Index -14"),
    (np.array([True] * 12), IndexError, "mask"), (([1, 2], [0, 1, 0]), IndexError, "broadcast"),
    (np.array([1.0]), ArgumentError, "integers"), (slice("a", "b"), ArgumentError, "'a' must be"),
    (slice(0, 3, 0), ArgumentError, "step 0"),
    (Region((10, 0), (4, 4)), ArgumentError, "reaches out"), (Region((0,), (4,)), ArgumentError, "rank"),
]  # fmt: skip


def test_requests_and_arrays_that_are_none_are_refused(tmp_path: Path) -> None:
    """Before anything is read: each names the key and what is wrong."""
    table = np.arange(26.0).reshape(13, 2)
    sv.save(tmp_path / "m", {"t": table})
    fixed = np.zeros((13, 2))
    fixed.flags.writeable = False
    with open_checkpoint(tmp_path / "m") as reader:
        with pytest.raises(UnknownKey, match="'u'"):
            reader.read_many([("t", None), ("u", None)])
        for index, error, words in NO_INDEXES:
            with pytest.raises(error, match=words):
                reader.read("t", index)
            with pytest.raises(error, match=words):
                reader.read_many([("t", None), ("t", index)])
        for wrong in ("t", ("t",), ("t", None, None), ["t", None], 7):
            with pytest.raises(ArgumentError, match="Invalid request"):
                reader.read_many([wrong])  # type: ignore[list-item]
        with pytest.raises(ArgumentError, match="strings"):
            reader.read_many([(7, None)])  # type: ignore[list-item]
        for out, words in (
            ([], "0 arrays for 1 request"),
            ([np.zeros((13, 2), np.float32)], r"'t' gives float64\[13, 2\].*float32"),
            ([np.zeros((2, 13))], r"float64\[2, 13\]"),
            ([[[0.0] * 2] * 13], "list for 't'"),
            ([fixed], "read-only"),
        ):
            with pytest.raises(ArgumentError, match=words):
                reader.read_many([("t", None)], out=out)  # type: ignore[arg-type]
        assert reader.read_many([]) == []
        assert same(reader.read_many([("t", None)], out=[None])[0], table)
