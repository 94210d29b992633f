"""Devices: limits are enforced, bytes are given back, and the ledger counts what was copied and
nothing else."""

import copy
import gc
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import ArgumentError, ArgumentTypeError, DeviceFull, ScopeError
from shardvar.reference.devices import (
    Device,
    Traffic,
    adopt,
    allocate,
    copy_into,
    current_device,
    device_scope,
    full_name,
    gather_into,
    gather_parts,
    make_cluster,
    move,
    move_array,
    operation_scope,
    place,
    track_transfers,
    value_nbytes,
)
from shardvar.reference.variables.rows import RowLayout
from spec_tests.helpers.thoroughness import stride


def floats(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.float32)


def test_names_are_completed_and_two_devices_of_one_name_are_two_memories() -> None:
    full = "/job:ps/replica:0/task:1/device:CPU:0"
    for name in (
        "ps:1",
        "/job:ps/task:1",
        "/job:ps/replica:0/task:1",
        "/job:ps/task:1/cpu:0",
        full,
    ):
        assert full_name(name) == full
    assert (
        Device(full).short_name == "ps:1"
        and Device("worker:3/GPU:2").short_name == "worker:3/GPU:2"
    )
    assert Device("worker:3/gpu:2").host_name == full_name("worker:3")
    assert Device("ps:1") != Device("ps:1")
    for device in (*make_cluster(3, 2, 2), Device("/job:worker/replica:1/task:0")):
        assert full_name(device.short_name) == device.name


@pytest.mark.parametrize(
    "name",
    ["", "ps", "ps:", "ps:x", "/job:", "ps:1/", "ps:1\n", "/device", "ps:-1", "CPU", "ps:\u0661"],
)
def test_what_names_no_device_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match="Invalid device name"):
        Device(name)


def test_an_allocation_past_the_limit_names_device_limit_used_and_requested_bytes_and_changes_nothing() -> (
    None
):
    device = Device("ps:1", memory_limit=100)
    held = place(floats(20), device)
    for attempt in (
        lambda: place(floats(6), device),
        lambda: allocate((6,), np.float32, device),
        lambda: adopt(floats(6), device),
        lambda: move_array(floats(6), Device("ps:2"), device),
    ):
        with pytest.raises(DeviceFull) as caught:
            attempt()
        for word in (device.name, "100 bytes", "80 are used", "24 were requested"):
            assert word in caught.value.cause
        assert device.used == 80
    place(floats(5), device)
    assert held.array.tolist() == list(range(20))


def test_bytes_are_given_back_when_a_buffer_goes_or_is_released() -> None:
    device = Device("ps:0", memory_limit=100)
    for _ in range(3):
        buffer = place(floats(25), device)
        assert device.used == 100 == buffer.nbytes
        del buffer
    buffer = place(floats(25), device)
    buffer.release()
    buffer.release()
    assert device.used == 0
    with pytest.raises(ScopeError, match="after its release"):
        _ = buffer.array
    del buffer
    assert (device.used, device.peak) == (0, 100)


def test_a_view_keeps_the_bytes_in_use() -> None:
    device = Device("ps:0")
    view = place(floats(10), device).array[3:5]
    gc.collect()
    assert device.used == 40
    del view
    assert device.used == 0


def test_buffers_in_a_cycle_make_room_before_an_allocation_is_refused() -> None:
    device = Device("ps:0", memory_limit=40)
    cycle: list[object] = [place(floats(10), device)]
    cycle.append(cycle)
    del cycle
    gc.disable()
    try:
        buffer = place(floats(10), device)
    finally:
        gc.enable()
    assert device.used == buffer.nbytes == 40


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=40 // stride(4)),
    st.integers(0, 200),
)
def test_used_is_the_sum_of_what_lives_and_never_passes_the_limit(
    steps: list[tuple[bool, int]], limit: int
) -> None:
    device, living = Device("ps:0", limit), []
    for is_new, number in steps:
        if not is_new:
            living[number : number + 1] = []
        elif sum(living_one.nbytes for living_one in living) + 4 * number <= limit:
            living.append(place(floats(number), device))
        else:
            with pytest.raises(DeviceFull):
                place(floats(number), device)
        assert device.used == sum(buffer.nbytes for buffer in living) <= limit


def test_concurrent_allocations_lose_no_byte() -> None:
    device = Device("ps:0")

    def churn(_: int) -> object:
        kept = [place(floats(3), device) for _ in range(50)]
        return kept[:10]

    with ThreadPoolExecutor(8) as pool:
        kept = list(pool.map(churn, range(40)))
    assert device.used == 40 * 10 * 12
    del kept
    assert device.used == 0


def test_place_copies_and_adopt_does_not() -> None:
    value = floats(4)
    placed, adopted = place(value), adopt(value)
    assert not np.shares_memory(placed.array, value) and adopted.array is value
    for borrowed in (value[1:], np.asfortranarray(np.ones((2, 3))), np.broadcast_to(value, (2, 4))):
        own = adopt(borrowed).array
        assert not np.shares_memory(own, value) and own.flags.c_contiguous and own.flags.writeable
        np.testing.assert_array_equal(own, borrowed)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool, np.complex128, object])
def test_allocated_memory_is_zeros(dtype: type) -> None:
    array = allocate((2, 3), dtype).array
    assert array.shape == (2, 3) and array.dtype == dtype and not array.any()


def test_strings_count_their_own_bytes() -> None:
    device = Device("ps:0", memory_limit=5)
    assert place(np.array([b"abc", b"", b"de"], object), device).nbytes == 5
    with pytest.raises(DeviceFull, match="6 were requested"):
        place(np.array([b"abcdef"], object), device)


def test_a_deep_copy_lives_on_the_same_device_in_other_memory() -> None:
    device = Device("ps:0")
    buffer = place(floats(3), device)
    twin, same = copy.deepcopy((buffer, device))
    assert (
        twin.device is same is copy.copy(device) is device
        and not np.shares_memory(twin.array, buffer.array)
        and device.used == 24
    )


def test_only_what_crosses_between_devices_is_counted() -> None:
    here, there, third = Device("worker:0"), Device("ps:0"), Device("ps:1")
    with track_transfers() as ledger, device_scope(here), operation_scope("assign"):
        buffer = place(floats(10), there)
        place(floats(10), here)
        assert move(buffer, there) is buffer
        copy_into(buffer.array, floats(10), there, there)
        assert (ledger.nbytes, ledger.messages) == (40, 1)
        copy = move(buffer)
        copy_into(buffer.array[2:4], floats(2), here, there)
        assert move_array(buffer.array, there, there) is buffer.array
        np.testing.assert_array_equal(move_array(buffer.array, there, third), buffer.array)
    assert not np.shares_memory(copy.array, buffer.array) and copy.device is here
    assert ledger.operations == {"assign": Traffic(128, 4)}
    assert repr(ledger) == "<Ledger of 128 bytes in 4 messages>"
    assert [(row.source, row.target, row.nbytes, row.messages) for row in ledger.transfers] == [
        (here.name, there.name, 48, 2),
        (there.name, here.name, 40, 1),
        (there.name, third.name, 40, 1),
    ]


@given(st.lists(st.integers(0, 7), max_size=30))
def test_gather_into_is_numpy_indexing_and_moves_the_rows_that_it_touches(rows: list[int]) -> None:
    source, target = Device("ps:0"), Device("worker:0")
    table = np.arange(16.0).reshape(8, 2)
    at = np.argsort(rows, kind="stable")
    plain, permuted = np.zeros((len(rows), 2)), np.zeros((len(rows), 2))
    with track_transfers() as ledger:
        gather_into(plain, table, np.array(rows, np.int64), source, target)
        gather_into(permuted, table, np.array(rows, np.int64), source, target, at)
    np.testing.assert_array_equal(plain, table[np.array(rows, np.int64)])
    np.testing.assert_array_equal(permuted[at], plain)
    assert (ledger.nbytes, ledger.messages) == (2 * 16 * len(rows), 2 * bool(rows))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.booleans(), st.data())
def test_gather_parts_is_indexing_of_their_concatenation_and_one_message_from_each(
    sizes: list[int], is_text: bool, data: st.DataObject
) -> None:
    """Parts of any sizes, empty ones included, of numbers and of strings; the rows in any order,
    some of them twice."""
    count = sum(sizes)
    whole = np.arange(2 * count).reshape(count, 2)
    whole = (
        np.array([b"%d" % (100 * value) for value in whole.flat], object).reshape(count, 2)
        if is_text
        else whole
    )
    bounds = np.cumsum([0, *sizes])
    parts = [
        place(whole[start:stop], Device(f"ps:{number}"))
        for number, (start, stop) in enumerate(pairwise(bounds))
    ]
    rows = np.array(
        data.draw(st.lists(st.integers(0, count - 1), max_size=30)) if count else [], np.int64
    )
    out = np.empty((len(rows), 2), whole.dtype)
    with track_transfers() as ledger:
        gather_parts(out, parts, rows, RowLayout.of_sizes(sizes).split_rows, Device("worker:0"))
    np.testing.assert_array_equal(out, whole[rows], strict=True)
    owner = np.searchsorted(bounds[1:], rows, side="right")
    expected = {
        parts[number].device.name: (value_nbytes(whole[rows[owner == number]]), 1)
        for number in set(owner.tolist())
    }
    assert {row.source: (row.nbytes, row.messages) for row in ledger.transfers} == expected


@pytest.mark.sample(2)
@pytest.mark.parametrize("order", ["any", "ascending", "one part"])
@pytest.mark.parametrize("num_parts", [1, 3, 9])
def test_many_rows_of_many_parts_which_two_threads_gather_are_those_of_the_whole(
    num_parts: int, order: str
) -> None:
    whole = np.arange(3 * 70_000, dtype=np.float64).reshape(70_000, 3)
    parts = [
        place(part, Device(f"ps:{number}"))
        for number, part in enumerate(np.array_split(whole, num_parts))
    ]
    rows = np.random.default_rng(1).integers(
        0, len(parts[0].array) if order == "one part" else len(whole), 100_000
    )
    rows = np.sort(rows) if order == "ascending" else rows
    out = np.empty((len(rows), 3))
    with track_transfers() as ledger:
        layout = RowLayout.of_sizes([len(part.array) for part in parts])
        gather_parts(out, parts, rows, layout.split_rows, Device("worker:0"))
    np.testing.assert_array_equal(out, whole[rows])
    assert (ledger.nbytes, ledger.messages) == (out.nbytes, 1 if order == "one part" else num_parts)


def test_a_gather_in_the_middle_of_another_does_not_touch_its_rows() -> None:
    """A thread keeps memory between gathers; a finalizer may gather while the thread is in one."""
    whole, other = np.arange(8.0).reshape(4, 2), -np.ones((4, 2))
    rows, layout, target = np.array([3, 0, 2, 1]), RowLayout.of_sizes([2, 2]), Device("worker:0")

    def gather(values: np.ndarray, split: Callable[[np.ndarray], Iterable]) -> np.ndarray:
        out = np.empty((4, 2))
        gather_parts(
            out, [place(part, Device("ps:0")) for part in np.split(values, 2)], rows, split, target
        )
        return out

    def interrupted(block: np.ndarray) -> Iterator:
        for piece in layout.split_rows(block):
            yield piece
            np.testing.assert_array_equal(gather(other, layout.split_rows), other)

    gather(whole, layout.split_rows)
    np.testing.assert_array_equal(gather(whole, interrupted), whole[rows])


@pytest.mark.parametrize("width", [0, 1, (2 << 20) + 1])
def test_rows_of_any_size_are_a_message_from_each_part(width: int) -> None:
    """Rows without elements, which are a message of no bytes, and rows larger than 2 MiB."""
    whole = np.repeat(np.arange(4, dtype=np.uint8)[:, None], width, axis=1)
    parts = [place(part, Device(f"ps:{number}")) for number, part in enumerate(np.split(whole, 2))]
    out, rows = np.empty((3, width), np.uint8), np.array([3, 0, 1])
    with track_transfers() as ledger:
        gather_parts(out, parts, rows, RowLayout.of_sizes([2, 2]).split_rows, Device("worker:0"))
    np.testing.assert_array_equal(out, whole[rows])
    assert (ledger.nbytes, ledger.messages) == (3 * width, 2)


def test_nested_ledgers_each_see_their_own_and_the_outermost_operation_names_the_moves() -> None:
    device = Device("ps:0")
    with track_transfers() as outer:
        place(floats(1), device)
        with track_transfers() as inner, operation_scope("lookup"), operation_scope("gather"):
            place(floats(2), device)
        place(floats(3), device)
    place(floats(4), device)
    assert inner.operations == {"lookup": Traffic(8, 1)}
    assert outer.operations == {"move": Traffic(16, 2), "lookup": Traffic(8, 1)}
    assert outer.total("lookup") == Traffic(8, 1) and outer.total("absent") == Traffic(0, 0)


def test_threads_that_track_nothing_are_seen_and_threads_that_track_see_their_own() -> None:
    device, start = Device("ps:0"), threading.Barrier(4)

    def bare(_: int) -> None:
        for _ in range(100):
            place(floats(1), device)

    def tracking(count: int) -> int:
        start.wait()
        with track_transfers() as own:
            for _ in range(count):
                place(floats(1), device)
        return own.messages

    with track_transfers() as ledger, ThreadPoolExecutor(8) as pool:
        list(pool.map(bare, range(16)))
    assert ledger.total() == Traffic(6400, 1600)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(tracking, [10, 20, 30, 40])) == [10, 20, 30, 40]


def test_scopes_end_with_their_block_whatever_happens_inside() -> None:
    default, device = current_device(), Device("ps:0")
    with (
        pytest.raises(KeyError),
        track_transfers() as ledger,
        device_scope(device),
        operation_scope("x"),
    ):
        assert current_device() is device
        raise KeyError
    assert current_device() is default
    place(floats(1), device)
    assert ledger.messages == 0
    with pytest.raises(ArgumentTypeError, match="device scope is given"), device_scope("ps:0"):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize(
    "counts", [(10**9,), (0, 10**9), (0, 10**5, np.int32(10**5)), (1, 2**19, 1)]
)
def test_a_cluster_of_more_devices_than_memory_holds_is_refused_before_one_is_made(
    counts: tuple[int, ...],
) -> None:
    with pytest.raises(
        ArgumentError, match=r"cluster of \d+ devices is asked for.*At most 1048576"
    ):
        make_cluster(*counts)


def test_a_cluster_finds_its_devices_by_either_name() -> None:
    cluster = make_cluster(2, 2, 2, ps_memory_limit=7)
    assert [d.short_name for d in cluster.servers] == ["ps:0", "ps:1"] and cluster[
        "ps:1"
    ].memory_limit == 7
    assert [d.short_name for d in cluster.hosts] == ["worker:0", "worker:1"]
    assert [d.short_name for d in cluster.replicas][1:3] == ["worker:0/GPU:1", "worker:1/GPU:0"]
    assert [d.short_name for d in make_cluster(1, 2).replicas] == ["worker:0", "worker:1"]
    with pytest.raises(ArgumentError, match=r"no device /job:ps/replica:0/task:2.*ps:0"):
        cluster["ps:2"]
    with pytest.raises(ArgumentError, match="num_ps is -1"):
        make_cluster(-1)
    with pytest.raises(ArgumentError, match="two devices"):
        type(cluster)((Device("ps:0"), Device("/job:ps/task:0")))
