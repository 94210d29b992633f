"""How tensors are cut: the div and chunk rules exhaustively, and partitions that are proven when
they are made."""

import copy
import pickle
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError
from shardvar.layout import Partition, PartitionSpec, Region, check_tiles, chunk, div, div_owner
from spec_tests.helpers.hypothesis_strategies import shapes, tilings

COUNTS = [(length, num_shards) for length in range(41) for num_shards in range(1, 41)]


def test_div_cuts_as_numpy_splits() -> None:
    """``np.array_split`` gives the first ``length % n`` parts one more, which is the div rule.

    RFC 000: 13 ids over 5 shards are [0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10], [11, 12]."""
    assert div(13, 5) == ((0, 3), (3, 6), (6, 9), (9, 11), (11, 13))
    for length, num_shards in COUNTS:
        expected = [part.tolist() for part in np.array_split(np.arange(length), num_shards)]
        assert [list(range(*interval)) for interval in div(length, num_shards)] == expected


def test_chunk_cuts_as_pytorch_chunks() -> None:
    """``torch.chunk``: pieces of ceil(length / n) as long as rows last; then empty ones, to make n
    of them. The example of the design page is one of them."""
    assert chunk(13, 5) == ((0, 3), (3, 6), (6, 9), (9, 12), (12, 13))
    for length, num_shards in COUNTS:
        size = (length + num_shards - 1) // num_shards
        rows = list(range(length))
        pieces = [rows[start : start + size] for start in range(0, length, size)] if size else []
        pieces += [[]] * (num_shards - len(pieces))
        assert [list(range(*interval)) for interval in chunk(length, num_shards)] == pieces


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int32, np.uint64, np.array])
def test_counts_of_any_integer_type_are_as_python_computes(kind: Any) -> None:
    """NumPy's narrow integers wrap around: the last shard of chunk(np.uint8(200), np.uint8(3))
    began at 256 - 56."""
    for rule in (div, chunk):
        assert rule(kind(120), kind(50)) == rule(120, 50)
        assert {type(bound) for interval in rule(kind(120), kind(50)) for bound in interval} == {
            int
        }
    assert chunk(np.int32(2**31 - 1), 7) == chunk(2**31 - 1, 7)
    shard, row = div_owner([119], kind(120), kind(50))
    assert (shard.tolist(), row.tolist()) == ([49], [1])


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ((13.5, 5), "Invalid length 13.5."),
        ((13, 2.0), "Invalid number of shards 2.0."),
        (("13", 5), "Invalid length '13'."),
        ((None, 5), "Invalid length None."),
        ((13, None), "Invalid number of shards None."),
        (([13], 5), "Invalid length [13]."),
        ((True, 5), "Invalid length True."),
        ((13, np.True_), "Invalid number of shards np.True_."),
    ],
)
def test_counts_that_are_not_integers_are_refused(counts: Any, words: str) -> None:
    for call in (lambda: div(*counts), lambda: chunk(*counts), lambda: div_owner([0], *counts)):
        with pytest.raises(ArgumentTypeError, match=re.escape(words)):
            call()


@pytest.mark.parametrize(
    "ids", [[], [[1, 2], [3, 0]], 4, np.uint8(7), np.zeros((0, 3)), np.array([1], ">i4")]
)
def test_owners_have_the_shape_of_the_ids(ids: Any) -> None:
    shard, row = div_owner(ids, 13, 5)
    assert shard.shape == row.shape == np.shape(ids)
    assert shard.dtype == row.dtype == np.int64


@pytest.mark.parametrize(
    "ids", [[13], [-1], [0, 2**63 - 1], np.array([2**63], np.uint64), [2**70], [0.5], [True]]
)
def test_ids_that_no_shard_holds_are_refused(ids: Any) -> None:
    """And nobody owns an id of nothing."""
    with pytest.raises(ArgumentError, match="id"):
        div_owner(ids, 13, 5)
    with pytest.raises(ArgumentError, match=r"id 0 is outside \[0, 0\)"):
        div_owner([0], 0, 3)
    assert div_owner([], 0, 3)[0].shape == (0,)


@pytest.mark.parametrize("rule", [div, chunk])
@pytest.mark.parametrize(("length", "num_shards"), [(3, 0), (3, -1), (-1, 2)])
def test_counts_that_are_no_layout_are_refused(rule: Any, length: int, num_shards: int) -> None:
    with pytest.raises(ArgumentError):
        rule(length, num_shards)


@given(st.data())
def test_a_tiling_with_a_part_lost_has_a_hole_and_a_part_that_reaches_out_is_named(
    data: st.DataObject,
) -> None:
    shape = data.draw(shapes(min_rank=1))
    parts = data.draw(tilings(shape))
    out = Region(shape, (1,) * len(shape))
    with pytest.raises(LayoutError, match="reaches out") as caught:
        Partition(shape, (*parts, out))
    assert str(out) in str(caught.value) or repr(out) in str(caught.value)
    lost = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
    if lost.size:
        with pytest.raises(LayoutError, match="no part holds") as caught:
            Partition(shape, tuple(parts))
        # One region is missing; it may be named in pieces, the first of which begins where it does.
        assert str(lost) in str(caught.value) or f"[{lost.offset[0]}:" in str(caught.value)
    else:
        check_tiles(shape, parts)


def test_more_parts_than_rows_and_no_rows_and_no_axes_and_a_part_of_another_rank() -> None:
    with pytest.raises(LayoutError):
        Partition((3,), (Region((0, 0), (3, 1)),))
    assert [part.shape for part in Partition.from_counts((2, 3), (4, 1))] == [
        (1, 3),
        (1, 3),
        (0, 3),
        (0, 3),
    ]
    assert [part.shape for part in Partition.from_counts((0, 3), (2, 1))] == [(0, 3), (0, 3)]
    assert Partition.from_counts((), ()).parts == (Region((), ()),)
    assert Partition((0,), ()).parts == ()
    with pytest.raises(LayoutError, match=r"no part holds \[\]"):
        Partition((), ())
    with pytest.raises(LayoutError, match="overlap"):
        Partition((), (Region((), ()), Region((), ())))


def test_a_spec_is_a_named_tuple() -> None:
    """R-SPEC-1 (RFC 002): a ``collections.namedtuple`` of ``partitions`` and ``splits``, which
    stays checked."""
    spec = PartitionSpec(splits=[[1, 8, 4]])
    partitions, splits = spec
    assert (partitions, splits) == (None, ((1, 8, 4),)) == (spec.partitions, spec.splits)
    assert spec._fields == ("partitions", "splits") and spec._asdict() == {
        "partitions": None,
        "splits": ((1, 8, 4),),
    }
    assert isinstance(spec, tuple) and spec == PartitionSpec(None, [[1, 8, 4]]) == (
        None,
        ((1, 8, 4),),
    )
    assert spec._replace(splits=[[13]]) == PartitionSpec(splits=[[13]])
    assert pickle.loads(pickle.dumps(spec)) == copy.deepcopy(spec) == spec
    assert repr(spec) == "PartitionSpec(partitions=None, splits=((1, 8, 4),))"
    for replace in ({"partitions": [2]}, {"splits": None}, {"splits": [["a"]]}):
        with pytest.raises(ArgumentError):
            spec._replace(**replace)
    with pytest.raises(AttributeError):
        spec.splits = ((13,),)  # type: ignore[misc]


@pytest.mark.parametrize(
    "arguments",
    [
        {"partitions": [(0, 3), (3, 6)]},
        {"partitions": "31"},
        {"splits": [["a"]]},
        {"partitions": [2.5]},
    ],
)
def test_a_spec_is_made_of_integers(arguments: Any) -> None:
    with pytest.raises(ArgumentError, match="integer"):
        PartitionSpec(**arguments)
