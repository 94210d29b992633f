"""Fitting slices to a format: what it cannot cut is joined, what it cannot hold is refused by
name."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import UnsupportedError
from shardvar.layout.dtypes import NAMES
from shardvar.planning.index import find_faults
from shardvar.planning.slices import Capabilities, SliceTable, TensorTable, check_holds, join_whole
from spec_tests.helpers.hypothesis_strategies import slice_tables

ALL = frozenset(NAMES)
NUMBERS = ALL - {"string", "variant"}

capabilities = st.builds(
    Capabilities,
    dtypes=st.just(ALL),
    slice_dtypes=st.sampled_from([frozenset(), NUMBERS, frozenset({"float32"})]),
    max_slice_rank=st.integers(0, 3),
    empty_slices=st.booleans(),
)


def is_joined(slices: SliceTable, row: int, capabilities: Capabilities) -> bool:
    slice_ = slices[row]
    return (
        slice_.dtype not in capabilities.slice_dtypes
        or len(slice_.full_shape) > capabilities.max_slice_rank
    )


@given(slice_tables(), capabilities)
def test_joining_keeps_every_tensor_and_every_element(
    slices: SliceTable, capabilities: Capabilities
) -> None:
    joined = join_whole(slices, capabilities)
    assert find_faults(joined) == {}
    assert set(joined.tensor.tolist()) == set(slices.tensor.tolist())
    assert joined.nbytes.sum() == slices.nbytes.sum()


@given(slice_tables(), capabilities)
def test_what_a_format_cannot_cut_is_whole_and_the_rest_as_it_was(
    slices: SliceTable, capabilities: Capabilities
) -> None:
    joined = join_whole(slices, capabilities)
    before = [slices[row] for row in range(len(slices))]
    for row in range(len(joined)):
        if is_joined(joined, row, capabilities):
            assert joined[row].is_whole
        elif joined[row].full_shape and 0 not in joined[row].full_shape:
            # Slices that are no grid are also joined, where a format needs one.
            assert joined[row] in before or (capabilities.is_grid and joined[row].is_whole)
        assert capabilities.empty_slices or joined[row].region.size or joined[row].is_whole


@given(slice_tables(), capabilities)
def test_a_joined_tensor_stands_where_its_first_slice_stood(
    slices: SliceTable, capabilities: Capabilities
) -> None:
    joined = join_whole(slices, capabilities)
    filled = slices.take(
        np.flatnonzero([slices[row].region.size > 0 for row in range(len(slices))])
    )
    order = [key for n, key in enumerate(map(filled.key, range(len(filled)))) if filled.key(n) not in
             list(map(filled.key, range(n)))]  # fmt: skip
    found = [joined.key(row) for row in range(len(joined)) if joined[row].region.size]
    if capabilities.slice_dtypes:
        return
    assert [key for key in found if key in order] == found
    assert sorted(found) == sorted(order)


def test_strings_keep_their_size_when_they_are_joined() -> None:
    tensors = TensorTable.of([("s", "string", (2, 2))])
    slices = SliceTable.of(
        tensors, np.array([0]), np.zeros((1, 2), int), np.full((1, 2), 2), np.array([77])
    )
    assert join_whole(slices, Capabilities(ALL, frozenset())).nbytes.tolist() == [77]


def test_what_a_format_cannot_hold_is_refused_with_keys_dtypes_and_remedy() -> None:
    tensors = TensorTable.of(
        [
            ("w", "float32", (2,)),
            ("names", "string", ()),
            *((f"q{n}", "qint8", ()) for n in "abcdefghi"),
        ]
    )
    can = Capabilities(frozenset({"float32"}), frozenset())
    with pytest.raises(UnsupportedError) as caught:
        check_holds(tensors.whole(), can, "safetensors")
    assert caught.value.cause.startswith(
        "The format safetensors cannot hold 'names' (string), 'qa' (qint8), "
    )
    assert caught.value.cause.endswith(" and 2 more.")
    assert "another format" in caught.value.remedy
    check_holds(TensorTable.of([("w", "float32", (2,))]).whole(), can, "safetensors")


def test_a_format_that_is_only_read_says_so() -> None:
    with pytest.raises(UnsupportedError, match="shardvar can read gguf but not write it"):
        check_holds(
            TensorTable.of([("w", "float32", (2,))]).whole(),
            Capabilities(frozenset(), frozenset()),
            "gguf",
        )
