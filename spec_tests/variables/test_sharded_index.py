"""Indexing: NumPy's answer on the whole array, for all of NumPy's indices, moving the rows that are
touched."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shardvar.errors import ArgumentError
from shardvar.reference.devices import Device, device_scope, track_transfers
from shardvar.reference.variables import ShardedVariable, Variable
from shardvar.reference.variables.rows import RowLayout
from spec_tests.helpers.sharded_variables import (
    UserVariable,
    counting,
    sharded_of,
)
from spec_tests.helpers.thoroughness import stride


def same(found: Any, wanted: Any) -> None:
    assert (
        np.shape(found) == np.shape(wanted) and np.asarray(found).dtype == np.asarray(wanted).dtype
    )
    np.testing.assert_array_equal(found, wanted)


ITEMS: list[Any] = [
    0, -1, 4, slice(None), slice(1, 4), slice(None, None, -2), slice(3, 3), None, Ellipsis, True, False,
    [0, 4, 4], [], np.array([[0], [3]]), np.array([True, False, True, True, False]), np.array(2), Variable(1),
]  # fmt: skip


def test_every_pair_and_triple_of_items_is_as_in_numpy() -> None:
    """What NumPy answers is answered, what it refuses is refused."""
    array = counting((5, 5, 2))
    sharded = sharded_of(array, [2, 0, 3])
    for count in (1, 2, 3):
        for key in [*product(ITEMS, repeat=count)][:: stride(5) if count == 3 else 1]:
            plain = tuple(int(item) if isinstance(item, Variable) else item for item in key)
            try:
                wanted = array[plain]
            except (IndexError, ValueError):
                wanted = None
            if wanted is None:
                with pytest.raises(ArgumentError):
                    sharded[key]
            else:
                found = sharded[key]
                assert np.shape(found) == wanted.shape and np.array_equal(found, wanted), key


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(sum), st.data())
def test_arrays_of_integers(sizes: list[int], data: st.DataObject) -> None:
    array = counting((sum(sizes), 3, 2))
    sharded = sharded_of(array, sizes)
    key = data.draw(hnp.integer_array_indices(array.shape))
    same(sharded[key], array[key])
    first = data.draw(hnp.integer_array_indices(array.shape[:1]))
    same(sharded[first], array[first])
    same(sharded[first[0], :, 1], array[first[0], :, 1])
    same(sharded[None, first[0], :, 1], array[None, first[0], :, 1])
    same(sharded[:, first[0] % 3], array[:, first[0] % 3])
    own = ShardedVariable([UserVariable(part) for part in np.split(array, np.cumsum(sizes)[:-1])])
    same(own[first], array[first])


def test_a_result_is_nobody_elses() -> None:
    sharded = sharded_of(counting((5, 2)), [2, 3])
    for key in (slice(None), slice(1, 4), 0, ..., None, [0, 1]):
        sharded[key][...] = 0
    np.testing.assert_array_equal(sharded.numpy(), counting((5, 2)))


def test_there_is_no_assignment_through_an_index() -> None:
    with pytest.raises(TypeError, match="does not support item assignment"):
        sharded_of(counting((5, 2)), [2, 3])[0] = 1


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 3000])
@pytest.mark.parametrize("shards", [1, 2, 8, 9, 300, 70_000])
def test_rows_are_split_among_their_shards(shards: int, count: int) -> None:
    """Each row is in the shard in whose bounds it is, under its number there, and in its place;
    whatever the way that numbers of shards and rows make the quickest."""
    sizes = [(number + 1) % 3 for number in range(shards)]
    layout = RowLayout.of_sizes(sizes)
    where = [(shard, row) for shard, size in enumerate(sizes) for row in range(size)]
    drawn = np.random.default_rng(shards + count).integers(0, len(where), count)
    for rows in (drawn, np.sort(drawn), np.full(count, len(where) - 1)):
        expected: dict[int, tuple[list[int], list[int]]] = {}
        for place, row in enumerate(rows.tolist()):
            local, places = expected.setdefault(where[row][0], ([], []))
            local.append(where[row][1])
            places.append(place)
        owners = (column.tolist() for column in layout.owner(rows))
        assert [*zip(*owners, strict=True)] == [where[row] for row in rows]
        found = {
            shard: (local.tolist(), list(range(count)) if places is None else places.tolist())
            for shard, local, places in layout.split_rows(rows)
        }
        assert found == expected and [*found] == sorted(found)


def test_only_the_rows_that_an_index_touches_are_moved() -> None:
    """R-MOVE-1 and R-MOVE-2: of rows and columns, those of the key cross, from the servers that
    hold them alone."""
    array = counting((10, 4))
    row = 16
    sharded = sharded_of(array, [4, 0, 3, 3])
    moves: list[tuple[Any, int, set[str]]] = [
        (3, 4, {"ps:0"}),
        (-1, 4, {"ps:3"}),
        (slice(2, 6), 16, {"ps:0", "ps:2"}),
        (slice(None, None, -3), 16, {"ps:0", "ps:2", "ps:3"}),
        (slice(5, 5), 0, set()),
        ((slice(5, 7), 0), 2, {"ps:2"}),
        ((slice(2, 6), None, slice(None, None, -2)), 8, {"ps:0", "ps:2"}),
        ((..., 1), 10, {"ps:0", "ps:2", "ps:3"}),
        ((9, 2), 1, {"ps:3"}),
        ((slice(5, 7), [0, 0, 3]), 8, {"ps:2"}),
    ]
    names = {device.name: device.short_name for device in sharded.devices}
    with device_scope(Device("worker:0")):
        for key, elements, servers in moves:
            with track_transfers() as ledger:
                same(sharded[key], array[key])
            assert (
                ledger.nbytes == elements * 4
                and {names[move.source] for move in ledger.transfers} == servers
            ), key
        with track_transfers() as ledger:
            same(sharded[[9, 0, 9]], array[[9, 0, 9]])
            same(sharded[array[:, 0] > 30], array[array[:, 0] > 30])
        assert ledger.operations["getitem"].nbytes == (3 + 2) * row
        with track_transfers() as ledger:
            assert np.shape(sharded) == (10, 4) and sharded.shape == (10, 4) and repr(sharded)
        assert ledger.nbytes == 0
