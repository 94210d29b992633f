"""The policies: nothing lost, nothing doubled, limits kept, files even and filled; the same answer
every time."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import NAMES
from shardvar.planning.index import find_faults
from shardvar.planning.policies import (
    AllInOnePolicy,
    BalancedPolicy,
    ColumnarPolicy,
    MaxShardSizePolicy,
    SeparatePolicy,
    TablePolicy,
)
from shardvar.planning.policies.max_shard_size import weights_of
from shardvar.planning.policies.policy import HOLDS_ALL
from shardvar.planning.slices import Assignment, Capabilities, SliceTable, TensorTable
from shardvar.verbs.callbacks import ColumnarComposition
from spec_tests.helpers.hypothesis_strategies import slice_tables

ALL = frozenset(NAMES)
CUTS_NUMBERS = Capabilities(ALL, ALL - {"string"}, 64, empty_slices=True)
CUTS_NOTHING = Capabilities(ALL, frozenset())
CUTS_FLOATS = Capabilities(ALL, frozenset({"float32"}), 2, empty_slices=True)

capabilities = st.sampled_from([CUTS_NUMBERS, CUTS_NOTHING, CUTS_FLOATS])
policies: st.SearchStrategy[TablePolicy] = st.one_of(
    st.just(AllInOnePolicy()),
    st.integers(1, 300).map(MaxShardSizePolicy),
    st.integers(1, 12).map(BalancedPolicy),
)


def elements(slices: SliceTable) -> set[tuple[str, tuple[int, ...]]]:
    """Every element of every tensor that the slices hold, each of which they must hold once."""
    found = []
    for row in range(len(slices)):
        region = slices.region(row)
        x = (
            np.stack(np.meshgrid(*map(np.arange, region.shape), indexing="ij"), axis=-1)
            if region.rank
            else None
        )
        indices = (
            [()] if x is None else (x.reshape(-1, region.rank) + np.array(region.offset)).tolist()
        )
        found.extend((slices.key(row), tuple(index)) for index in indices)
    assert len(found) == len(set(found))
    return set(found)


def elements_of_file(answer: Assignment, file: int) -> set[tuple[str, tuple[int, ...]]]:
    return elements(answer.slices.take(np.flatnonzero(answer.file == file)))


def is_cuttable(slices: SliceTable, row: int, capabilities: Capabilities) -> bool:
    rank = len(slices[row].full_shape)
    return (
        slices.dtype(row) in capabilities.slice_dtypes and 0 < rank <= capabilities.max_slice_rank
    )


@given(slice_tables(), policies, policies, capabilities)
def test_a_composition_divides_the_files_of_the_outer_policy(
    slices: SliceTable, outer: TablePolicy, inner: TablePolicy, capabilities: Capabilities
) -> None:
    """No file of it holds elements of two of the outer policy's files, and the elements of all are
    those given."""
    first, answer = (
        each.assign(slices, capabilities) for each in (outer, ColumnarComposition(outer, inner))
    )
    outer_file = {
        each: file for file in range(first.num_files) for each in elements_of_file(first, file)
    }
    assert elements(answer.slices) == elements(slices)
    for file in range(answer.num_files):
        assert len({outer_file[each] for each in elements_of_file(answer, file)}) <= 1


@given(slice_tables(), policies, capabilities)
def test_a_policy_keeps_every_element_once_and_every_tensor(
    slices: SliceTable, policy: TablePolicy, capabilities: Capabilities
) -> None:
    answer = policy.assign(slices, capabilities)
    assert elements(answer.slices) == elements(slices)
    # Tensors without elements are listed, too.
    assert set(answer.slices.tensor.tolist()) == set(slices.tensor.tolist())
    assert find_faults(answer.slices) == {}
    assert answer.slices.nbytes.sum() == slices.nbytes.sum()


@given(slice_tables(), policies, capabilities)
def test_only_what_the_format_can_cut_is_cut_and_order_is_kept(
    slices: SliceTable, policy: TablePolicy, capabilities: Capabilities
) -> None:
    """What cannot be cut and exceeds a limit alone leaves its place: it comes last, in order too.

    In formats of whole tensors it comes before the others of the file that was begun, as
    ``test_huggingface`` tells.
    """
    answer = policy.assign(slices, capabilities)
    if not capabilities.slice_dtypes and isinstance(policy, MaxShardSizePolicy):
        # Slices without elements may be equal: the first of them in the answer is the first that
        # was given.
        places: dict[object, list[int]] = {}
        for row in reversed(range(len(slices))):
            places.setdefault(slices[row], []).append(row)
        rows = [places[answer.slices[row]].pop() for row in range(len(answer.slices))]
        assert rows == [row for _, row in sorted(zip(answer.file.tolist(), rows, strict=True))]
        return
    limit = policy.max_shard_size if isinstance(policy, MaxShardSizePolicy) else np.inf
    weights = weights_of(slices)
    aside = [
        row
        for row in range(len(slices))
        if weights[row] > limit and not is_cuttable(slices, row, capabilities)
    ]
    parts = [answer.slices[row] for row in range(len(answer.slices))]
    position = 0
    for row in [*(row for row in range(len(slices)) if row not in aside), *aside]:
        whole = slices[row]
        if not is_cuttable(slices, row, capabilities):
            assert parts[position] == whole
            position += 1
            continue
        size = 0
        while position < len(parts) and size < max(whole.region.size, 1):
            assert whole.region.covers(parts[position].region) and parts[position].key == whole.key
            size += max(parts[position].region.size, 1)
            position += 1
    assert position == len(parts)


@given(slice_tables(), policies, capabilities)
def test_files_are_numbered_in_order_without_gaps(
    slices: SliceTable, policy: TablePolicy, capabilities: Capabilities
) -> None:
    answer = policy.assign(slices, capabilities)
    assert answer.num_files >= 1
    assert (np.diff(answer.file) >= 0).all()
    if len(slices):
        assert set(answer.file.tolist()) == set(range(answer.num_files)), "a file is empty"
    assert answer.description == policy.description != ""


@given(slice_tables(), policies, capabilities)
def test_a_policy_answers_the_same_every_time(
    slices: SliceTable, policy: TablePolicy, capabilities: Capabilities
) -> None:
    first, second = policy.assign(slices, capabilities), policy.assign(slices, capabilities)
    for name in ("tensor", "offset", "shape", "nbytes"):
        np.testing.assert_array_equal(getattr(first.slices, name), getattr(second.slices, name))
    np.testing.assert_array_equal(first.file, second.file)


@given(slice_tables(), st.integers(1, 200), capabilities)
def test_a_limit_is_kept_except_by_a_single_slice_that_cannot_be_cut(
    slices: SliceTable, limit: int, capabilities: Capabilities
) -> None:
    """R-POLICY-4. Of strings their own bytes count, without their lengths, as in TensorFlow."""
    answer = MaxShardSizePolicy(limit).assign(slices, capabilities)
    weights = weights_of(answer.slices)
    for file in range(answer.num_files):
        rows = [row for row in np.flatnonzero(answer.file == file).tolist() if weights[row]]
        if weights[rows].sum() > limit:
            assert len(rows) == 1
            row = rows[0]
            assert (
                not is_cuttable(answer.slices, row, capabilities)
                or answer.slices.region(row).size == 1
            )


def balanced(
    tensors: list[tuple[str, str, tuple[int, ...]]], num_files: int, can: Capabilities
) -> Assignment:
    return BalancedPolicy(num_files).assign(TensorTable.of(tensors).whole(), can)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 5), st.integers(1, 12))
def test_balanced_files_are_within_one_row_of_even(
    lengths: list[int], width: int, num_files: int
) -> None:
    """As long as a file is to hold a row at all."""
    tensors = [(f"t{n}", "float32", (length, width + n)) for n, length in enumerate(lengths)]
    row = 4 * (width + len(lengths) - 1)
    total = sum(4 * (width + n) * length for n, length in enumerate(lengths))
    if total // num_files >= row:
        loads = balanced(tensors, num_files, CUTS_NUMBERS).nbytes_of_files()
        assert len(loads) == num_files
        assert abs(loads - total / num_files).max() <= row


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(1, 15))
def test_as_many_files_as_asked_for_if_there_is_something_for_each(
    sizes: list[int], num_files: int
) -> None:
    """Tensors that cannot be cut: as many files as tensors at most, none without a tensor."""
    answer = balanced(
        [(f"t{n}", "int8", (size,)) for n, size in enumerate(sizes)], num_files, CUTS_NOTHING
    )
    assert answer.num_files == min(num_files, len(sizes))


def test_more_files_than_rows_are_as_many_files_as_rows() -> None:
    assert balanced([("w", "float32", (3, 7))], 5, CUTS_NUMBERS).num_files == 3
    assert balanced([("a", "float32", ()), ("b", "float32", ())], 5, CUTS_NUMBERS).num_files == 2
    assert balanced([("e", "float32", (0,))], 5, CUTS_NUMBERS).num_files == 1
    assert balanced([], 5, CUTS_NUMBERS).num_files == 1


@pytest.mark.parametrize("limit", [0, -1])
def test_limits_that_hold_nothing_are_refused(limit: int) -> None:
    for policy in (MaxShardSizePolicy, BalancedPolicy):
        with pytest.raises(ArgumentError, match=str(limit)):
            policy(limit)


def test_more_files_than_their_numbers_have_digits_are_refused() -> None:
    """A billion files would be a billion marks, however little there is to fill them."""
    with pytest.raises(ArgumentError, match=r"num_files is 100000\. Give 1 to 99999\."):
        BalancedPolicy(100_000)
    assert balanced([("w", "int8", (5,))], 99_999, CUTS_NUMBERS).num_files == 5


@pytest.mark.parametrize("limit", [1.5, 2.0, float("inf"), True, "8", None])
def test_limits_that_are_not_integers_are_refused(limit: Any) -> None:
    for policy, name in ((MaxShardSizePolicy, "max_shard_size"), (BalancedPolicy, "num_files")):
        with pytest.raises(
            ArgumentTypeError, match=re.escape(f"Invalid {name} {limit!r}. Give an integer.")
        ):
            policy(limit)


def test_a_columnar_policy_must_say_what_it_does_and_decide() -> None:
    """The base class answers neither, so that a policy that forgot one fails instead of writing
    nothing."""
    slices = TensorTable.of([("a", "int8", (2,))]).whole()
    with pytest.raises(NotImplementedError):
        _ = ColumnarPolicy().description
    with pytest.raises(NotImplementedError):
        ColumnarPolicy().assign(slices, HOLDS_ALL)


@given(slices=slice_tables())
def test_separate_slices_are_in_files_of_their_own(slices: SliceTable) -> None:
    assigned = SeparatePolicy().assign(slices, CUTS_NUMBERS)
    assert assigned.file.tolist() == list(range(len(slices))) and assigned.num_files == len(slices)
