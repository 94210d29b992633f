"""The policies: nothing lost, nothing doubled, limits kept, files even and filled; the same answer
every time."""

import re
from dataclasses import dataclass
from dataclasses import replace as replace_
from itertools import product
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import ArgumentError, ArgumentTypeError, InconsistentTensor, LayoutError
from shardvar.layout.dtypes import NAMES, numpy_dtype
from shardvar.layout.region import format_slice_text
from shardvar.planning.index import find_faults
from shardvar.planning.policies import (
    AllInOnePolicy,
    BalancedPolicy,
    ColumnarPolicy,
    MaxShardSizePolicy,
    SeparatePolicy,
    ShardByDevicePolicy,
    ShardByTaskPolicy,
    TablePolicy,
)
from shardvar.planning.policies.max_shard_size import weights_of
from shardvar.planning.policies.policy import HOLDS_ALL, tabulate
from shardvar.planning.slices import LOCAL_DEVICE, Assignment, Capabilities, SliceTable, TensorTable
from shardvar.records import replace
from shardvar.verbs.callbacks import ColumnarComposition
from shardvar.wire.protobuf import encode_varints
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
        indices = product(*map(range, region.offset, region.stop))
        found.extend((slices.key(row), index) for index in indices)
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
    # Files are numbered in order without gaps.
    assert answer.num_files >= 1 and (np.diff(answer.file) >= 0).all()
    if len(slices):
        assert set(answer.file.tolist()) == set(range(answer.num_files)), "a file is empty"
    assert answer.description == policy.description != ""


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


DEVICES = tuple(f"/job:w/task:{n}/device:CPU:{n // 2}" for n in (1, 0, 3))


@given(slice_tables(), st.data())
def test_each_slice_each_task_and_each_device_has_a_file(
    slices: SliceTable, data: st.DataObject
) -> None:
    """Tasks in the order of their first slices, devices in the order of their numbers; slices of one
    file keep their order."""
    count = len(slices)
    column = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    devices = data.draw(st.sampled_from([DEVICES, ("", *DEVICES[:1] * 2)]))
    placed = replace(slices, device=np.array(column, np.int64), devices=devices)
    tasks = [devices[number].partition("/device:")[0] for number in column]
    by_task = [*map([*dict.fromkeys(tasks)].index, tasks)]
    by_device = [*map(sorted({*column}).index, column)]
    several, one = CUTS_NUMBERS, CUTS_NUMBERS._replace(many_files=False)
    for policy, table, can, files in (
        (SeparatePolicy(), placed, several, [*range(count)]),
        (ShardByTaskPolicy(), placed, several, by_task),
        (ShardByTaskPolicy(), placed, one, [0] * count),
        (ShardByTaskPolicy(), slices, several, [0] * count),
        (ShardByDevicePolicy(), placed, several, by_device),
        (ShardByDevicePolicy(), slices, several, [0] * count),
    ):
        answer = policy.assign(table, can)
        order = sorted(range(count), key=files.__getitem__)
        assert answer.file.tolist() == [files[row] for row in order]
        assert answer.num_files == max([*files, -1 if policy == SeparatePolicy() else 0]) + 1
        assert answer.description == policy.description != ""
        rows = [(answer.slices[n], answer.slices.device_of(n)) for n in range(count)]
        assert rows == [(table[row], table.device_of(row)) for row in order]
        starts, ends = answer.starts(answer.slices.nbytes), dict[int, int]()
        for file, start, nbytes in zip(
            answer.file.tolist(), starts.tolist(), answer.slices.nbytes.tolist(), strict=True
        ):
            assert start == ends.get(file, 0), "slices of a file follow each other"
            ends[file] = start + nbytes
        assert answer.nbytes_of_files().tolist() == [
            ends.get(file, 0) for file in range(answer.num_files)
        ]


def test_slices_of_one_file_keep_their_order_however_many_there_are() -> None:
    slices = TensorTable.of([(f"t{n}", "int8", ()) for n in range(400)]).whole()
    placed = replace(slices, device=np.arange(400) % 2, devices=DEVICES[:2])
    expected = [*range(1, 400, 2), *range(0, 400, 2)]
    for device, order in (
        (np.arange(400) % 2, [*range(0, 400, 2), *range(1, 400, 2)]),
        (np.arange(1, 401) % 2, expected),
    ):
        answer = ShardByDevicePolicy().assign(replace(placed, device=device), CUTS_NUMBERS)
        assert answer.slices.tensor.tolist() == order
    answer = MaxShardSizePolicy(150).assign(slices, CUTS_NUMBERS)
    assert answer.slices.tensor.tolist() == [*range(400)] and answer.num_files == 3


@dataclass(frozen=True)
class Given:
    """What RFC 001 calls a shardable tensor: these attributes."""

    checkpoint_key: str
    dtype: Any
    shape: tuple[int, ...]
    slice_spec: str
    device: str
    tensor: Any


@given(
    slice_tables(),
    st.one_of(
        policies,
        st.just(MaxShardSizePolicy(9, compat="tensorflow")),
        st.just(ShardByDevicePolicy()),
    ),
    st.lists(st.integers(0, 2), min_size=1),
)
def test_a_callback_answers_what_the_columns_answer(
    slices: SliceTable, policy: ColumnarPolicy, device: list[int]
) -> None:
    """For every file, from keys to the texts of slices to values; a whole tensor has no text, unless
    TensorFlow gives it one."""
    tensors, full = slices.tensors, dict[str, Any]()
    for n, key in enumerate(tensors.keys):
        size = prod(tensors.shape(n))
        values = (
            [b"x" * (100 * each + n) for each in range(size)]
            if tensors.dtype(n) == "string"
            else range(size)
        )
        full[key] = np.array([*values, None], object)[:-1].reshape(tensors.shape(n))
        if tensors.dtype(n) != "string":
            full[key] = full[key].astype(int).astype(numpy_dtype(tensors.dtype(n)))
    shardables = []
    for row in range(len(slices)):
        each, place = slices[row], device[row % len(device)]
        spec = "" if each.is_whole else format_slice_text(each.full_shape, each.region, empty=True)
        value = full[each.key][(..., *each.region.slices)]
        shardables.append(
            Given(
                each.key,
                value.dtype,
                each.region.shape,
                spec,
                DEVICES[place] if place else "",
                value,
            )
        )
    table = tabulate(shardables)
    for row, shardable in enumerate(shardables):
        same, texts = replace(slices[row], task=table[row].task), shardable.tensor
        if same.dtype == "string":
            lengths = encode_varints(np.array([len(text) for text in texts.ravel()], np.uint64))
            same = replace(same, nbytes=len(lengths) + 4 + sum(map(len, texts.ravel())))
        assert table[row] == same and table.device_of(row) == (shardable.device or LOCAL_DEVICE)
    assert table.devices == (*dict.fromkeys(each.device or LOCAL_DEVICE for each in shardables),)
    answer, expected = policy.assign(table, HOLDS_ALL), list[dict[str, dict[str, Any]]]()
    for file in range(answer.num_files):
        parts: dict[str, dict[str, Any]] = {}
        for part in map(answer.slices.__getitem__, np.flatnonzero(answer.file == file).tolist()):
            is_bare = part.is_whole and (not policy.has_full_specs or not part.full_shape)
            spec = "" if is_bare else format_slice_text(part.full_shape, part.region, empty=True)
            parts.setdefault(part.key, {})[spec] = full[part.key][
                (..., *part.region.slices)
            ].tolist()
        expected += [parts] if parts else []
    assert [
        {
            key: {spec: value.tolist() for spec, value in parts.items()}
            for key, parts in file.items()
        }
        for file in policy(shardables)
    ] == expected


def test_what_shardable_tensors_disagree_about_is_named() -> None:
    one = Given("k", "float32", (3,), "", "", np.zeros(3, np.float32))
    for other in (
        replace_(one, dtype="int32"),
        replace_(one, shape=(2,)),
        replace_(one, shape=(1,), slice_spec="4 0,1"),
    ):
        with pytest.raises(
            InconsistentTensor, match="^Slices of 'k' disagree on its dtype or its full shape"
        ):
            tabulate([one, other])
    lazy = replace_(one, dtype="string", tensor=SimpleNamespace(nbytes=99))
    assert tabulate([lazy]).nbytes.tolist() == [99], "which is not read"
    with pytest.raises(LayoutError) as caught:
        tabulate([replace_(one, slice_spec="6 0,2")])
    assert caught.value.cause == "The slice of 'k' has shape (3,), and the slice_spec '6 0,2'."


@pytest.mark.parametrize(
    ("row", "can", "reason"),
    [
        (("a", "string", (3,), 60), CUTS_NUMBERS, "'a' is of dtype string, which is never cut."),
        (("a", "complex128", (3,), 0), CUTS_NUMBERS, "'a' has elements of 16 bytes."),
        (("a", "int8", (16,), 0), CUTS_NOTHING, "'a' can only be held whole by the format."),
        (("a", "string", (4,), 20), CUTS_NUMBERS, "The object graph and the lengths of strings are not counted."),
    ],
)  # fmt: skip
def test_each_reason_of_a_file_beyond_the_limit_in_words(
    row: tuple[str, str, tuple[int, ...], int], can: Capabilities, reason: str
) -> None:
    """The first file is within the limit."""
    tensors = TensorTable.of([("z", "int8", (15,)), row[:3]])
    slices = replace(tensors.whole(), nbytes=tensors.whole().nbytes + np.array([0, row[3]]))
    policy = MaxShardSizePolicy(15)
    found = policy.exceeding(policy.assign(slices, can))
    count = 3 if row[1] == "complex128" else 1
    assert [(each.nbytes, each.reason) for each in found] == [
        (int(slices.nbytes[1]) // count, reason)
    ] * count
    file = found[0].file
    assert str(found[0]) == f"File {file} has {found[0].nbytes} bytes: {reason}"
