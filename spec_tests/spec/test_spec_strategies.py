"""Chapters 14 and 15: reads and writes in time, and what strategies make of a variable, equal their
plain rules."""

from collections.abc import Callable
from contextlib import ExitStack
from itertools import product
from math import comb
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array
from shardvar.reference.tracking import ObjectGraph
from shardvar.reference.training.layers import Embedding
from shardvar.reference.training.strategies import (
    Hints,
    Workload,
    choose_host_or_device,
    choose_mirror_or_shard,
    choose_sparse_or_dense,
    hints_for,
)
from shardvar.reference.variables import (
    AggregatingVariable,
    MirroredVariable,
    PerReplica,
    RefVariable,
    VariableAggregation,
)
from shardvar.reference.variables.mirrored import aggregate
from shardvar.spec import gradients, histories, optimizers, strategies, variables
from spec_tests.helpers.embedding_tables import shard
from spec_tests.helpers.sharded_variables import UserVariable

sizes = st.lists(st.integers(0, 2), min_size=1, max_size=3).filter(sum)
KINDS: dict[str, Callable[[Array, list[int]], Any]] = {
    "resource": lambda value, cut: sv.Variable(value),
    "sharded": shard,
    "mirrored": lambda value, cut: MirroredVariable([shard(value, cut), shard(value, cut)]),
    "aggregating": lambda value, cut: AggregatingVariable(shard(value, cut), "SUM"),
    "user's": lambda value, cut: UserVariable(value),
    "sharded user's": lambda value, cut: sv.ShardedVariable(
        [UserVariable(part) for part in variables.shard(value, cut)]
    ),
}


@st.composite
def operations(draw: st.DrawFn, rows: int) -> histories.Operation:
    name = draw(st.sampled_from("read assign assign_add assign_sub scatter".split()))
    if name == "read":
        return name, None
    number = st.integers(-3, 3)
    if name != "scatter":
        return name, np.array(draw(st.lists(number, min_size=rows, max_size=rows)), np.int64)
    kind = draw(st.sampled_from("add sub mul min max update".split()))
    ids = draw(st.lists(st.integers(0, rows - 1), max_size=3))
    values = draw(st.lists(number, min_size=len(ids), max_size=len(ids)))
    return f"scatter_{kind}", (ids, np.array(values, np.int64))


def perform(variable: Any, operation: histories.Operation) -> Any:
    name, argument = operation
    if name == "read":
        return variable.read_value()
    if name.startswith("scatter"):
        rows, values = argument
        return getattr(variable, name)(sv.IndexedSlices(values, np.array(rows, np.int64)))
    return getattr(variable, name)(argument)


def reads_of(variable: Any, history: list[histories.Operation]) -> list[Array]:
    return [
        value
        for operation in history
        if (value := perform(variable, operation)) is not None and operation[0] == "read"
    ]


def equal(one: Any, other: Any) -> bool:
    return all(map(np.array_equal, one, other)) and len(one) == len(other)


# Histories.


@given(st.sampled_from(sorted(KINDS)), sizes, st.data())
def test_reads_show_the_value_of_their_moment(
    kind: str, cut: list[int], data: st.DataObject
) -> None:
    """R-READ-2 (RFC 003): "it simply outputs a Tensor which has the same value as the Tensor in the
    resource handle state", and "no mutation is done to the Tensor returned by a read_variable_op
    after it's been read": what was read is looked at when all is written."""
    value = np.arange(sum(cut), dtype=np.int64)
    history = data.draw(st.lists(operations(len(value)), max_size=6))
    variable = KINDS[kind](value.copy(), cut)
    reads, last = histories.run(variables.shard(value, cut), history)
    assert equal(reads_of(variable, history), reads)
    assert np.array_equal(variable.read_value(), last)


@given(sizes, st.data())
def test_reads_of_a_ref_variable_show_the_last_value(cut: list[int], data: st.DataObject) -> None:
    """R-REF-1 (RFC 003): "normal tensor objects in the graph can silently alias a mutable
    tensor"."""
    value = np.arange(sum(cut), dtype=np.int64)
    history = data.draw(st.lists(operations(len(value)), max_size=6))
    variable = RefVariable(value.copy())
    reads, last = histories.run_by_reference([value], history)
    assert equal(reads_of(variable, history), reads)
    assert np.array_equal(variable.read_value(), last)


@given(
    st.booleans(),
    st.lists(st.tuples(st.booleans(), st.sampled_from([None, True, False]))),
    st.data(),
)
def test_branches(
    predicate: bool, steps: list[tuple[bool, bool | None]], data: st.DataObject
) -> None:
    """R-READ-2 (RFC 003): "only one branch of the conditional will execute". R-REF-1 (RFC 003):
    "then a subset of both branches could execute"."""
    by_reference = data.draw(st.booleans())
    variable: Any = (RefVariable if by_reference else sv.Variable)(predicate)
    seen, executed = variable.read_value(), []
    for number, (branch, new) in enumerate(steps):
        if bool(seen) is branch:
            executed.append(number)
            if new is not None:
                variable.assign(new)
    assert executed == histories.branches(predicate, steps, by_reference)
    assert by_reference or len({steps[number][0] for number in executed}) <= 1


@given(st.sampled_from(["resource", "sharded", "mirrored"]), sizes, st.data())
def test_threads_see_one_order_of_their_operations(
    kind: str, cut: list[int], data: st.DataObject
) -> None:
    """R-RES-1 (RFC 003): "a pair of a Tensor and a mutex". R-VAR-7 (RFC 003): "O' is guaranteed to
    see the effects of O on the resource": in each program, and over all shards and copies."""
    value = np.arange(sum(cut), dtype=np.int64)
    programs = data.draw(
        st.lists(st.lists(operations(len(value)), max_size=3), min_size=2, max_size=2)
    )
    variable, seen, start = KINDS[kind](value.copy(), cut), {}, Barrier(2)

    def follow(number: int) -> None:
        start.wait()
        seen[number] = reads_of(variable, programs[number])

    threads = [Thread(target=follow, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcome = [*seen[0], *seen[1]], variable.read_value()
    assert histories.is_possible(variables.shard(value, cut), programs, outcome)


@given(st.integers(0, 3), st.integers(0, 3))
def test_orders_of_two_programs(first: int, second: int) -> None:
    """R-VAR-7 (RFC 003): "if there is a path formed of control or data edges"."""
    count = first + second
    edges = [(n - 1, n) for n in range(1, count) if n != first]
    assert len(histories.orders(count, edges)) == comb(count, first)
    if count > 1:
        assert histories.orders(count, [*edges, (0, 1), (1, 0)]) == []


# Creation.


@given(st.lists(st.sampled_from([50, 100, 150]), max_size=4))
def test_creators(priorities: list[int]) -> None:
    """R-CREATE-1 (RFC 003): "a hierarchy of scoped constructor functions", "changing some arguments
    to the base constructor"."""

    def creator(number: int) -> Callable[..., Any]:
        return lambda make, **given: make(**given | {"name": f"{given['name']}{number}"})

    scopes = [(priority, creator(number)) for number, priority in enumerate(priorities)]
    with ExitStack() as stack:
        for priority, each in scopes:
            stack.enter_context(sv.variable_creator_scope(each, priority=priority))
        variable = sv.Variable(1.0, name="w")
    assert variable.name == strategies.created(scopes, dict, name="w")["name"]


@given(st.lists(st.sampled_from(["a", "b/c", "d/", "", None]), max_size=4))
def test_names_in_scopes(scopes: list[str | None]) -> None:
    """R-NAME-1 (RFC 003): "users can use tf.name_scope + tf.Variable"."""
    with ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(sv.name_scope(scope))
        assert sv.Variable(1.0, name="w").name == strategies.scoped_name(scopes, "w")


counts = st.none() | st.integers(2, 5)


@given(counts, st.lists(st.integers(2, 5), max_size=2), counts)
def test_the_partitioner_in_force(
    of_call: int | None, of_scopes: list[int], of_strategy: int | None
) -> None:
    """R-PARTSCOPE-1 (RFC 000): "Per-layer partitioner overwrites strategy-level partitioner."
    R-CREATESHARDED-2 (RFC 002): "override the `partitioner` from the constructor"."""
    own = None if of_strategy is None else sv.FixedShardsPartitioner(of_strategy)
    strategy = sv.ParameterServerStrategy(2, own)
    with ExitStack() as stack:
        stack.enter_context(strategy.scope())
        for count in of_scopes:
            partitioner = sv.FixedShardsPartitioner(count)
            stack.enter_context(strategy.variable_partitioning_scope(partitioner))
        made: Any = strategy.experimental_create_sharded_variable(
            "w", [9], "float32", None if of_call is None else [of_call]
        )
    assert len(made.variables) == (strategies.in_force(of_call, of_scopes, of_strategy) or 1)


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 5), st.none() | st.integers(0, 9)), max_size=6),
)
def test_placement_on_servers(servers: int, drawn: list[tuple[int, int | None]]) -> None:
    """R-PSS-2 (RFC 000): "always partitions variables among parameter servers". R-CREATE-3
    (RFC 000): 'they will be created as normal variables residing in the same device as the
    "colocated_with" variable.'"""
    plan = [
        (count, None if beside is None or not number else beside % number)
        for number, (count, beside) in enumerate(drawn)
    ]
    strategy = sv.ParameterServerStrategy(servers, lambda shape, dtype: [shape[0]])
    made: list[Any] = []
    with strategy.scope():
        for count, beside in plan:
            neighbour = None if beside is None else made[beside]
            made.append(sv.Variable(np.zeros(count), colocated_with=neighbour))
    numbers = {device: number for number, device in enumerate(strategy.cluster.servers)}
    found = [[numbers[each.device] for each in variable.resources] for variable in made]
    assert found == strategies.placed(plan, servers)


@given(st.integers(1, 4), st.booleans(), st.booleans(), st.sampled_from([None, (0,), (1, 0)]))
def test_copies_and_their_homes(
    parts: int, on_host: bool, in_scope: bool, chosen: tuple[int, ...] | None
) -> None:
    """R-MIRROR-3 (RFC 002): "we will start with mirroring everything". R-HINT-1 (RFC 002): "whether
    to mirror the variable on host or not". R-MIRROR-4 (RFC 000): "on hosts of each worker, or on
    the replicas (GPUs)". R-PARTSCOPE-2 (RFC 000): "Defaults to replica devices." R-CREATESHARDED-2
    (RFC 002): "Returns a Mirrored ShardedVariable."."""
    strategy = sv.strategies.CollectiveAllReduceStrategy(2, 2)
    hosts, replicas = strategy.host_devices, strategy.replica_devices
    devices = None if chosen is None else [hosts[number] for number in chosen]
    with strategy.scope(), strategy.hint_scope(Hints(mirror_on_host=on_host)):
        if in_scope:
            partitioner = sv.FixedShardsPartitioner(parts)
            with strategy.variable_partitioning_scope(partitioner, devices):
                made: Any = sv.Variable(np.zeros(5))
        else:
            made = strategy.experimental_create_sharded_variable("w", [5], "float32", [parts])
    copies = made.copies if isinstance(made, MirroredVariable) else [made]
    plain = strategies.homes_of_copies(
        parts,
        [device.name for device in replicas],
        [device.name for device in hosts],
        on_host,
        in_scope,
        None if devices is None else [device.name for device in devices],
    )
    assert [[each.device.name for each in copy.resources] for copy in copies] == plain


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from([None, 1, 2])), max_size=5))
def test_hybrids(drawn: list[tuple[int, int | None]]) -> None:
    """R-HYBRID-1 (RFC 002): "a callable that takes variable name, variable shape and variable dtype
    and returns which strategy to apply"."""
    wanted = {f"v{number}": answer for number, (_, answer) in enumerate(drawn)}
    mirroring, servers = sv.MirroredStrategy(["GPU:0", "GPU:1"]), sv.ParameterServerStrategy(1)
    hybrid = sv.HybridStrategy(mirroring, servers, lambda name, shape, dtype: wanted[str(name)])
    described = [(f"v{number}", [rows], "float32") for number, (rows, _) in enumerate(drawn)]
    with hybrid.scope():
        made = [sv.Variable(np.zeros(shape, dtype), name=name) for name, shape, dtype in described]
    plain = strategies.chosen(lambda name, shape, dtype: wanted[name], described)
    assert [1 if isinstance(each, MirroredVariable) else 2 for each in made] == plain


# Copies.


@given(sizes, st.data())
def test_every_copy_gets_every_write(cut: list[int], data: st.DataObject) -> None:
    """R-MIRROR-1 (RFC 000): "applying the same updates to every copy"; R-MIRROR-1 (RFC 002):
    "`MirroredVariable` with `ShardedVariable`"."""
    value = np.arange(sum(cut), dtype=np.int64)
    operation = data.draw(operations(len(value)))
    variable = MirroredVariable([shard(value, cut), shard(value, cut)])
    perform(variable, operation)
    plain = strategies.mirrored([variables.shard(value, cut)] * 2, operation)
    assert all(
        equal([each.numpy() for each in copy.variables], shards)  # type: ignore[attr-defined]
        for copy, shards in zip(variable.copies, plain, strict=True)
    )


MODES = st.sampled_from(["SUM", "MEAN", "ONLY_FIRST_REPLICA"])


@given(MODES, st.sampled_from(["int8", "int64", "float32"]), st.integers(1, 4), st.data())
def test_replicas_values_become_one(
    how: str, dtype: str, replicas: int, data: st.DataObject
) -> None:
    """R-MIRROR-2, R-PSS-4 (RFC 002): "model variables can sometimes be `AggregatingVariable`".
    R-OPT-8 (RFC 002): "use the existing allreduce primitive to exchange gradients"."""
    number = st.integers(-30, 30)
    rows = st.lists(st.tuples(st.integers(0, 2), number), max_size=3)
    mode = VariableAggregation[how]
    values = [
        np.array(data.draw(st.lists(number, min_size=3, max_size=3)), dtype)
        for _ in range(replicas)
    ]
    came = aggregate(PerReplica(values), mode)
    plain = strategies.aggregated(values, how)
    assert came.tobytes() == plain.tobytes() and came.dtype == plain.dtype
    updates: list[gradients.Sparse] = [
        ([row for row, _ in drawn], np.array([v for _, v in drawn], dtype))
        for drawn in (data.draw(rows) for _ in range(replicas))
    ]
    slices = [sv.IndexedSlices(v, np.array(ids, np.int64)) for ids, v in updates]
    some = aggregate(PerReplica(slices), mode)
    ids, each = strategies.aggregated_rows(updates, how)
    assert some.indices.tolist() == ids and some.values.tobytes() == each.tobytes()
    # R-HINT-2 (RFC 002): "Updates can be casted to dense tensors"
    dense = gradients.densified((ids, each), [3])
    assert np.array_equal(sv.IndexedSlices(some.values, some.indices, (3,)).to_dense(), dense)


@given(st.sampled_from(["SGD", "Momentum", "Adam"]), MODES, sizes, st.booleans(), st.data())
def test_steps_of_copies(
    name: str, how: str, cut: list[int], is_sparse: bool, data: st.DataObject
) -> None:
    """R-OPT-7 (RFC 000): "always kept in sync by applying the same updates to every copy."."""
    hyper: dict[str, float] = {"learning_rate": 0.125}
    if name == "Momentum":
        hyper["momentum"] = 0.5
    if name == "Adam":
        hyper |= {"beta_1": 0.875, "beta_2": 0.96875, "epsilon": 2.0**-20}
    value = np.arange(sum(cut), dtype=np.float64)
    variable = MirroredVariable([shard(value, cut), shard(value, cut)], how)
    number = st.integers(-9, 9).map(float)
    given_gradients: list[gradients.Gradient] = []
    for _ in range(2):
        rows = data.draw(st.lists(st.integers(0, len(value) - 1), max_size=3))
        count = len(rows) if is_sparse else len(value)
        values = np.array(data.draw(st.lists(number, min_size=count, max_size=count)), np.float64)
        given_gradients.append((rows, values) if is_sparse else values)
    fast: Any = getattr(sv.optimizers, name)(**hyper)
    per_replica = PerReplica(
        [
            sv.IndexedSlices(each[1], np.array(each[0], np.int64))
            if isinstance(each, tuple)
            else each
            for each in given_gradients
        ]
    )
    fast.apply_gradients([(per_replica, variable)])
    copies = [variables.shard(value, cut)] * 2
    slots = {key: optimizers.add_slot(copies[0], 0.0) for key in optimizers.RULES[name][1]}
    plain = strategies.mirrored_step(name, copies, given_gradients, [slots] * 2, hyper, 1, how)
    for copy, (shards, _) in zip(variable.copies, plain, strict=True):
        assert np.allclose(copy.numpy(), variables.read(shards), rtol=1e-9, atol=1e-12)
    for key in slots:
        for copy, (_, after) in zip(fast.get_slot(variable, key).copies, plain, strict=True):
            assert np.allclose(copy.numpy(), variables.read(after[key]), rtol=1e-9, atol=1e-12)


# Heuristics.


@pytest.mark.parametrize("replicas", range(1, 6))
@pytest.mark.parametrize("columns", [1, 2, 5, 16])
def test_heuristics(columns: int, replicas: int) -> None:
    """R-HEUR-1 (RFC 002): "mirroring could be cheaper than sharding". R-HEUR-2 (RFC 002): "large
    embeddings that cannot be fit in a single host". R-HEUR-3 (RFC 002): "When an embedding variable
    is small". R-HEUR-4 (RFC 002): "when an embedding variable is sufficiently large, we will place
    it on host memory". R-HEUR-5 (RFC 002): "When updates to an embedding are not very sparse".
    R-HEUR-6 (RFC 002): "auto-set performance improvement hints"."""
    for rows in (0, 1, 2, 3, 9):
        nbytes = 8 * rows * columns
        # Memories around twice the variable, where the answer changes.
        memories = [max(0, 2 * nbytes + more) for more in (-999, -1, 0, 1, 999)]
        for touched, device in product((None, *range(rows + 2)), memories):
            load = Workload((rows, columns), "float64", touched, replicas)
            form = strategies.sparse_or_dense(nbytes, rows, touched, replicas)
            assert choose_sparse_or_dense(load).decision == form
            chosen = strategies.hints(nbytes, rows, touched, replicas, device)
            assert hints_for(load, device) == Hints(**chosen)
        for device, host in product(memories, memories):
            place = strategies.host_or_device(nbytes, device)
            assert choose_host_or_device(load, device).decision == place
            kind = strategies.mirror_or_shard(nbytes, device, host)
            assert choose_mirror_or_shard(load, device, host).decision == kind


# Forms.


def seen(where: str, when: str) -> tuple[list[Any], Any]:
    """What is seen there of a variable of three shards, or of its slot; and the sharded variable."""
    with sv.ParameterServerStrategy(2, sv.fixed_size_partitioner(3)).scope():
        layer = Embedding(6, 2)
        optimizer = sv.optimizers.Momentum(0.125)
    module, table = sv.Module(), layer.embeddings
    module.w = table
    optimizer.apply_gradients([(np.ones(one.shape, np.float32), one) for one in table.variables])
    slot = optimizer.get_slot(table, "momentum")
    saved = [node for node in ObjectGraph.of(module).objects if node is not module]
    found = {
        ("tf.Module", "as attribute (auto-tracked)"): [*module.children.values()],
        ("tf.Module", "variables trainable_variables"): [*module.trainable_variables],
        ("keras.layers.Layer", "as attribute (auto-tracked)"): [*layer.children.values()],
        ("keras.layers.Layer", "variables trainable_variables"): [*layer.variables],
        ("keras.optimizers.Optimizer", "Slot variables (training)"): [
            optimizer.get_slot(one, "momentum") for one in table.variables
        ],
        ("keras.optimizers.Optimizer", "Slot variables (saving)"): [
            node for node in optimizer.children.values() if node is slot
        ],
        ("keras.optimizers.Optimizer", "Hyperparameters"): [optimizer.learning_rate],
        ("Checkpoint", "save"): saved,
        ("Checkpoint", "load"): saved,
        ("Checkpoint", "load to slot variable"): slot.variables,
    }[where, when]
    if when == "Hyperparameters":  # a scalar, which is never sharded
        return [one.numpy().reshape(1) for one in found], [np.float32([0.125])]
    of = slot if "lot variable" in when else table
    return [one.numpy() for one in found], [one.numpy() for one in of.variables]


@pytest.mark.parametrize(("where", "when"), strategies.FORMS)
def test_the_table_of_rfc_000_row_by_row(where: str, when: str) -> None:
    """R-FORM-1 (RFC 000): "Folded form: sharded variable is represented as a ShardedVariable
    instance." "Expanded form: sharded variable is expanded to a list of variables."."""
    found, shards = seen(where, when)
    assert equal(found, strategies.in_form(where, when, shards))


names = st.sampled_from("abcd")
TREES: Any = st.recursive(
    st.sampled_from(["plain", 1, 2, 3]), lambda tree: st.dictionaries(names, tree, max_size=3)
).filter(lambda tree: isinstance(tree, dict))


@given(TREES)
def test_the_variables_of_modules(tree: dict[str, Any]) -> None:
    """R-MODULE-2 (RFC 000): "the `variables` or `trainable_variables` can collect its component
    variables as opposed to the `ShardedVariable` instance". R-MODULE-1 (RFC 000): "We should
    disallow assigning component variables of a sharded variable to object attributes."."""

    def built(tree: Any, path: str) -> tuple[Any, Any]:
        if tree == "plain":
            return sv.Variable(0.0, name=path), path
        if isinstance(tree, int):
            made = [sv.Variable([0.0], name=f"{path}/part_{part}") for part in range(tree)]
            return sv.ShardedVariable(made), tuple(each.name for each in made)
        module, plain = sv.Module(), {}
        for name, inner in tree.items():
            of_inner, plain[name] = built(inner, f"{path}.{name}")
            setattr(module, name, of_inner)
        return module, plain

    module, plain = built(tree, "m")
    assert [each.name for each in module.variables] == strategies.expanded(plain)
    table = shard(np.zeros(2), [1, 1])
    with pytest.raises(ArgumentError):
        module.e = table.variables[0]
    with pytest.raises(ValueError, match="saved twice"):
        strategies.expanded({"e": "w/part_0", "w": ("w/part_0", "w/part_1")})
