"""Creating variables that may be partitioned: geometry, names, devices, and initial values made
part by part."""

import gc
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import ArgumentError, DeviceFull, LayoutError
from shardvar.layout.partition import Partition, div
from shardvar.reference.devices import Device, current_device, device_scope, track_transfers
from shardvar.reference.variables import create_sharded_variable, initializers
from shardvar.reference.variables.initial_value import makes_new_arrays
from spec_tests.helpers.sharded_variables import counting


@given(st.integers(0, 20), st.integers(1, 8), st.sampled_from([(), (3,)]))
def test_an_array_is_sliced_by_div(rows: int, count: int, row_shape: tuple[int, ...]) -> None:
    """R-INIT-1, R-DIV-1, R-CREATE-4: parts of div, named ``w/part_0``; R-CREATE-2: one is a plain
    variable."""
    value = counting((rows, *row_shape))
    variable = create_sharded_variable(value, count, name="w")
    np.testing.assert_array_equal(np.asarray(variable), value)
    assert variable.name == "w"
    parts = div(rows, max(1, min(count, rows)))
    if len(parts) < 2:
        assert isinstance(variable, sv.Variable)
    else:
        assert [shard.shape[0] for shard in variable.variables] == [
            stop - start for start, stop in parts
        ]
        assert [shard.name for shard in variable.variables] == [
            f"w/part_{i}" for i in range(len(parts))
        ]


def test_parts_go_to_the_devices_in_turn_and_each_is_made_there() -> None:
    """R-INIT-2 (RFC 000): "create initial values on each sharding device"."""
    devices = [Device("ps:0"), Device("ps:1")]
    made_on = []

    def part(partition: Any) -> Any:
        made_on.append(current_device())
        return np.full(partition.shape, partition.offset[0], np.float32)

    with track_transfers() as ledger:
        variable = create_sharded_variable(
            part, 3, devices, shape=(5, 2), dtype="float32", name="w"
        )
    assert variable.devices == (devices[0], devices[1], devices[0]) == tuple(made_on)
    assert variable.numpy()[:, 0].tolist() == [0, 0, 2, 2, 4] and ledger.nbytes == 0


CUTS: list[Any] = [
    [2, 1],
    (2,),
    sv.PartitionSpec(partitions=[2, 1]),
    sv.FixedShardsPartitioner(2),
    lambda shape, dtype: [2, 1],
    lambda num_shards, shape, dtype: [num_shards + 1, 1],
    Partition.from_counts((5, 2), (2, 1)),
]


@pytest.mark.parametrize("cut", CUTS)
def test_a_cut_may_be_said_in_many_ways(cut: Any) -> None:
    variable = create_sharded_variable(counting((5, 2)), cut)
    assert [shard.shape for shard in variable.variables] == [(3, 2), (2, 2)]
    assert variable.name == "ShardedVariable" and variable.variables[0].name == "Variable"


def test_uneven_and_empty_parts() -> None:
    """R-SPEC-1 (RFC 002): "allowing uneven sharding"."""
    variable = create_sharded_variable(counting((5, 2)), sv.PartitionSpec(splits=[[0, 4, 1]]))
    assert [shard.shape[0] for shard in variable.variables] == [0, 4, 1]


def test_a_partition_whose_parts_are_no_runs_of_rows_in_order_is_refused() -> None:
    rows = Partition.from_counts((5, 2), (2, 1))
    for wrong in (Partition((5, 2), rows.parts[::-1]), Partition.from_counts((5, 2), (1, 2))):
        with pytest.raises(
            LayoutError, match=r"do not cut the shape \(5, 2\) only along its first"
        ):
            create_sharded_variable(counting((5, 2)), wrong)
    with pytest.raises(LayoutError, match=r"does not cut the shape \(4, 2\)"):
        create_sharded_variable(counting((4, 2)), rows)
    assert create_sharded_variable(1.0, Partition.from_counts((), ())).shape == ()


class Recording:
    """An initializer that is partition-aware and notes what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __call__(self, shape: Any, dtype: Any = None, partition: Any = None) -> Any:
        self.calls.append((tuple(shape), partition and (partition.shape, tuple(partition.offset))))
        full = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
        return full if partition is None else full[partition.slices]


BOUND: list[Callable[[Recording], Any]] = [
    lambda init: (init, {"shape": (5, 2), "dtype": "float32"}),
    lambda init: (partial(init, (5, 2), "float32"), {}),
    lambda init: (partial(init, shape=(5, 2), dtype=np.float32), {}),
    lambda init: (partial(partial(init, (5, 2)), dtype="float32"), {}),
    lambda init: (partial(init, (5, 2)), {"dtype": "float32"}),
    lambda init: (init, {"shape": (5, 2)}),
]


@pytest.mark.parametrize("bind", BOUND)
def test_a_partition_aware_initializer_is_called_once_a_part_and_the_full_value_never_exists(
    bind: Any,
) -> None:
    """R-INIT-2, however shape and dtype are bound to it."""
    init = Recording()
    value, kwargs = bind(init)
    variable = create_sharded_variable(value, 2, **kwargs)
    assert init.calls == [((5, 2), ((3, 2), (0, 0))), ((5, 2), ((2, 2), (3, 0)))]
    assert variable.numpy().ravel().tolist() == list(range(10)) and variable.dtype == np.float32


def test_the_other_spellings_of_a_partition() -> None:
    """R-INIT-7 (RFC 000): "a map from device string to the shard assigned to that device";
    TensorFlow's own two."""

    def by_layout(layout: Any) -> Any:
        return {device: np.full(part.shape, part.offset[0]) for device, part in layout.items()}

    def by_two(partition_shape: Any, partition_offset: Any) -> Any:
        return np.full(partition_shape, partition_offset[0])

    def by_info(shard_info: Any) -> Any:
        return np.full(shard_info.shape, shard_info.offset[0])

    for function in (by_layout, by_two, by_info):
        variable = create_sharded_variable(
            function, 2, [Device("ps:0"), Device("ps:1")], shape=(3,), dtype="int64"
        )
        assert variable.numpy().tolist() == [0, 0, 2]


def test_a_value_of_a_layout_becomes_one_variable() -> None:
    """A creator that makes each part twice gets two arrays, and so two calls for each map."""
    calls = []

    def by_layout(layout: Any) -> Any:
        calls.append([*layout])
        return {device: np.zeros(part.shape) for device, part in layout.items()}

    by_layout.makes_new_arrays = True  # type: ignore[attr-defined]
    made: list[Any] = []

    def twice(next_creator: Any, **kwargs: Any) -> Any:
        made.extend(next_creator(**kwargs) for _ in range(2))
        return made[-1]

    devices = [Device("ps:0"), Device("ps:1")]
    with sv.variable_creator_scope(twice):
        create_sharded_variable(by_layout, 2, devices, shape=(2,), dtype="float64")
    for number, variable in enumerate(made):
        variable.assign([number + 1.0])
    assert [variable.numpy().tolist() for variable in made] == [[1], [2], [3], [4]]
    assert {tuple(names) for names in calls} == {tuple(device.name for device in devices)}


@pytest.mark.parametrize("answer", [{}, {"ps:9": 1}, np.zeros(2), None])
def test_a_layouts_answer_has_a_value_for_each_device(answer: Any) -> None:
    def by_layout(layout: Any) -> Any:
        return answer

    with pytest.raises(ArgumentError, match="Return a dict with a value for each device"):
        create_sharded_variable(
            by_layout, 2, [Device("ps:0"), Device("ps:1")], shape=(4,), dtype="float32"
        )


def test_a_partition_is_a_named_tuple_that_unpacks() -> None:
    """R-INIT-8 (RFC 000): '"partition" is a namedtuple of two fields: shape and offset.' The offset
    "is a list"."""
    seen: list[Any] = []

    def by_partition(partition: Any) -> Any:
        shape, offset = partition
        assert (shape, offset) == (partition.shape, partition.offset) == tuple(partition)
        seen.append(partition)
        return counting((5, 2))[partition.slices]

    def by_layout(layout: Any) -> Any:
        made = {device: by_partition(part) for device, part in layout.items()}
        layout.clear()  # the map is the initializer's own
        return made

    for function in (by_partition, by_layout):
        variable = create_sharded_variable(function, 2, shape=(5, 2), dtype="float32")
        assert (variable.numpy() == counting((5, 2))).all()
    assert seen == [((3, 2), [0, 0]), ((2, 2), [3, 0])] * 2
    for part in seen:
        assert part._fields == ("shape", "offset") and type(part.offset) is list
        assert part._asdict() == {"shape": part.shape, "offset": part.offset}
        # Initializers take it as they gave it, and a Region, which has the same fields.
        region = sv.Region(part.offset, part.shape)
        draw = sv.initializers.RandomUniform(seed=3)
        assert np.array_equal(draw((5, 2), partition=part), draw((5, 2), partition=region))


def test_an_array_that_others_hold_is_copied_and_a_new_one_is_not() -> None:
    held = counting((4, 2))
    for value in (held, lambda: held, partial(lambda _: held, 1)):
        made = [sv.Variable(value), create_sharded_variable(value, 2, shape=(4, 2), dtype="f4")]
        for variable in made:
            variable.assign_add(np.ones((4, 2)))
    assert (held == counting((4, 2))).all() and not makes_new_arrays(lambda: held)
    zeros = initializers.Zeros()
    assert makes_new_arrays(zeros) is makes_new_arrays(partial(partial(zeros, (4,)), "f4")) is True


def test_what_an_initializer_raises_is_never_swallowed() -> None:
    """A TypeError of its own does not mean that it takes no partition."""

    def broken(partition: Any = None) -> Any:
        raise TypeError("its own")

    with pytest.raises(TypeError, match="its own"):
        create_sharded_variable(broken, 2, shape=(4,), dtype="float32")


def test_where_a_part_does_not_fit_nothing_stays() -> None:
    devices = [Device("ps:0", memory_limit=1000), Device("ps:1", memory_limit=10)]
    with pytest.raises(DeviceFull):
        create_sharded_variable(counting((20, 2)), 2, devices)
    gc.collect()
    assert [device.used for device in devices] == [0, 0]


def test_while_a_shard_is_made_no_more_than_it_and_8_mib_exist() -> None:
    rows, shards = 400_000, 8
    nbytes = rows * 16 * 4
    init = partial(initializers.RandomUniform(seed=3, seed_mode="global"), (rows, 16), "float32")
    made = []

    def creator(next_creator: Any, **kwargs: Any) -> Any:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        made.append(next_creator(**kwargs))
        _, peak = tracemalloc.get_traced_memory()
        assert peak - before <= nbytes / shards + (8 << 20)
        return made[-1]

    tracemalloc.start()
    try:
        with sv.variable_creator_scope(creator):
            create_sharded_variable(init, shards, [Device(f"ps:{i}") for i in range(shards)])
    finally:
        tracemalloc.stop()
    assert len(made) == shards


def test_slices_of_an_array_cross_to_their_devices_and_parts_that_are_made_there_do_not() -> None:
    """R-INIT-3 (RFC 000): "create initial values on each sharding device": the ledger says what
    that saves."""
    homes, worker = [Device("ps:0"), Device("ps:1")], Device("worker:0")
    array = counting((5, 2))
    for value, nbytes in (
        (array, [24, 16]),
        (lambda: array, [24, 16]),
        (partial(initializers.Zeros(), shape=(5, 2), dtype="float32"), []),
    ):
        with device_scope(worker), track_transfers() as ledger:
            create_sharded_variable(value, 2, homes, name="w")
        assert [(row.source, row.nbytes) for row in ledger.transfers] == [
            (worker.name, size) for size in nbytes
        ]
        assert {row.operation for row in ledger.transfers} <= {"create"}
    with device_scope(homes[0]), track_transfers() as ledger:
        create_sharded_variable(array, 2, homes)
    assert [(row.target, row.nbytes) for row in ledger.transfers] == [(homes[1].name, 16)]


def test_a_callable_of_any_keywords_does_not_say_that_it_makes_parts() -> None:
    """R-INIT-2 (RFC 000): "we will inspect the initializer to see if it accepts the `partition`
    argument": by name.

    Whoever takes any keyword takes misspelled ones too; called once and sliced, its value is right
    whatever it does.
    """
    calls: list[dict[str, Any]] = []

    def function(**given: Any) -> Any:
        calls.append(given)
        return counting((5, 2))

    def named(partition: Any, **given: Any) -> Any:
        calls.append({"partition": partition, **given})
        return counting((5, 2))[partition.slices]

    variable = create_sharded_variable(function, 2, shape=(5, 2), dtype="float32")
    assert calls == [{}] and (variable.numpy() == counting((5, 2))).all()
    calls.clear()
    variable = create_sharded_variable(named, 2, shape=(5, 2), dtype="float32")
    assert [call["partition"].offset for call in calls] == [[0, 0], [3, 0]]
    assert (variable.numpy() == counting((5, 2))).all()
