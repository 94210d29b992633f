"""Shards are real: what crosses between devices, what is counted, and what does not fit."""

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import DeviceFull
from shardvar.reference.devices import Device, device_scope, track_transfers
from shardvar.reference.variables import Variable
from spec_tests.helpers.sharded_variables import counting, sharded_of

ROW = 16  # bytes of a row of four float32
SPARSE, DENSE = (
    ["add", "sub", "mul", "div", "min", "max", "update"],
    ["assign", "assign_add", "assign_sub"],
)


def moved(sharded: Any, act: Any) -> dict[tuple[str, str], tuple[int, int]]:
    """What an act moves, run on a worker: (source, target) -> (bytes, messages)."""
    with device_scope(Device("worker:0")), track_transfers() as ledger:
        act(sharded)
    short = {device.name: device.short_name for device in sharded.devices}
    return {
        (short.get(row.source, "worker"), short.get(row.target, "worker")): (
            row.nbytes,
            row.messages,
        )
        for row in ledger.transfers
    }


def table() -> sv.ShardedVariable:
    return sharded_of(counting((10, 4)), [4, 0, 3, 3])


def slices(*rows: int) -> sv.IndexedSlices:
    return sv.IndexedSlices(np.ones((len(rows), 4), np.float32), list(rows))


def test_a_lookup_moves_its_rows_from_the_servers_that_hold_them() -> None:
    """R-MOVE-1: one message a server; rows as often as they are asked for; ids are not values and
    are not counted."""
    assert moved(table(), lambda s: s.sparse_read([9, 0, 9])) == {
        ("ps:0", "worker"): (ROW, 1),
        ("ps:3", "worker"): (2 * ROW, 1),
    }
    assert moved(table(), lambda s: s.sparse_read([])) == {}
    assert moved(table(), lambda s: s.gather_nd([[5, 1], [5, 2]])) == {("ps:2", "worker"): (ROW, 1)}


@pytest.mark.parametrize("verb", SPARSE)
def test_a_scatter_moves_its_values_to_the_servers_that_need_them(verb: str) -> None:
    assert moved(table(), lambda s: getattr(s, f"scatter_{verb}")(slices(9, 5, 9, 4))) == {
        ("worker", "ps:2"): (2 * ROW, 1),
        ("worker", "ps:3"): (2 * ROW, 1),
    }


@pytest.mark.parametrize("verb", DENSE)
def test_a_dense_write_moves_to_each_shard_its_own_rows(verb: str) -> None:
    assert moved(table(), lambda s: getattr(s, verb)(counting((10, 4)))) == {
        ("worker", "ps:0"): (4 * ROW, 1),
        ("worker", "ps:2"): (3 * ROW, 1),
        ("worker", "ps:3"): (3 * ROW, 1),
    }


@pytest.mark.parametrize(
    "act", [np.asarray, lambda s: s + 1, lambda s: s @ np.ones((4, 1)), lambda s: s.read_value()]
)
def test_concatenation_moves_everything_once(act: Any) -> None:
    """RFC 000: "auto-concatenation is not always preferable in terms of performance": the ledger
    says what it costs."""
    assert sum(nbytes for nbytes, _ in moved(table(), act).values()) == 10 * ROW


@pytest.mark.parametrize("kind", [*(f"scatter_{verb}" for verb in SPARSE), *DENSE])
def test_a_write_is_counted_under_its_name_or_the_one_that_it_is_given(kind: str) -> None:
    write = getattr(table(), kind)
    value: Any = np.ones((10, 4), np.float32) if kind in DENSE else slices(0)
    with device_scope(Device("worker:0")), track_transfers() as ledger:
        write(value)
        write(value, name="mine")
    assert list(ledger.operations) == [kind, "mine"]


def test_the_concatenated_value_must_fit_where_it_is_asked_for() -> None:
    worker = Device("worker:0", memory_limit=10 * ROW - 1)
    sharded = table()
    with device_scope(worker):
        with pytest.raises(DeviceFull, match="memory limit of 159 bytes"):
            np.asarray(sharded)
        assert sharded.sparse_read([1, 8]).shape == (2, 4)
    gc.collect()
    assert worker.used == 0


def test_a_write_for_which_one_server_has_no_room_writes_no_shard() -> None:
    """All or nothing: operands are moved to all servers before any shard changes."""
    devices = [Device("ps:0"), Device("ps:1", memory_limit=3 * ROW)]
    array = counting((4, 4))
    sharded = sv.ShardedVariable(
        [Variable(array[i * 2 : i * 2 + 2], device=devices[i]) for i in range(2)]
    )
    with device_scope(Device("worker:0")):
        for write in (
            lambda: sharded.assign_add(array),
            lambda: sharded.scatter_add(slices(0, 1, 2, 3)),
        ):
            with pytest.raises(DeviceFull):
                write()
            np.testing.assert_array_equal(sharded.numpy(), array)
        sharded.scatter_add(slices(0, 3))
        sharded.assign(array)
    np.testing.assert_array_equal(sharded.numpy(), array)
    gc.collect()
    assert [device.used for device in devices] == [2 * ROW] * 2, (
        "operands are gone when the write is done"
    )


def test_strings_that_grow_are_refused_before_any_shard_changes() -> None:
    devices = [Device("ps:0"), Device("ps:1", memory_limit=12)]
    sharded = sv.ShardedVariable(
        [Variable(["a"], device=devices[0]), Variable(["b", "c"], device=devices[1])]
    )
    with pytest.raises(DeviceFull):
        sharded.scatter_update(sv.IndexedSlices(["x", "y" * 20], [0, 2]))
    with pytest.raises(DeviceFull):
        sharded.assign(["x", "b", "y" * 20])
    assert sharded.numpy().tolist() == [b"a", b"b", b"c"]
    sharded.scatter_update(sv.IndexedSlices(["xx", "y", "yyy"], [0, 2, 2]))
    assert sharded.numpy().tolist() == [b"xx", b"b", b"yyy"]
    gc.collect()
    assert [device.used for device in devices] == [2, 4], "what is counted is what is there"
    assert sharded.assign(["x", "yy", ""]).numpy().tolist() == [b"x", b"yy", b""]
    gc.collect()
    assert [device.used for device in devices] == [1, 2]


def test_concurrent_scatters_of_strings_lose_nothing() -> None:
    variable = sv.ShardedVariable([Variable(["-"] * 40, device=Device("ps:0"))])

    def write(letter: str) -> None:
        for row in range("ab".index(letter), 40, 2):
            variable.scatter_update(sv.IndexedSlices([letter], [row]))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write, "ab"))
    assert variable.numpy().tolist() == [b"a", b"b"] * 20
