"""Chapter 15. Strategies: what becomes of a variable that is created in a scope.

It may be cut, placed on servers, mirrored or delegated to another strategy, and those who use it see
it whole or as its shards. Devices are names, or the numbers of servers.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial, reduce
from typing import Any

import numpy as np

from shardvar.spec.gradients import Gradient, Sparse, dense_gradients, sparse_gradients
from shardvar.spec.histories import Operation, applied
from shardvar.spec.optimizers import apply_gradients
from shardvar.spec.variables import Array, Shards, read

__all__ = [
    "FORMS",
    "Chooser",
    "Creator",
    "aggregated",
    "aggregated_rows",
    "chosen",
    "created",
    "expanded",
    "hints",
    "homes_of_copies",
    "host_or_device",
    "in_force",
    "in_form",
    "mirror_or_shard",
    "mirrored",
    "mirrored_step",
    "placed",
    "scoped_name",
    "sparse_or_dense",
]

Creator = Callable[..., Any]
"""``creator(next_creator, **arguments)`` returns a variable."""
Chooser = Callable[[str, Sequence[int], str], int | None]
"""``chooser(name, shape, dtype)`` answers 1 or 2, or None for the first strategy."""


# R-CREATE-1 (RFC 003): "Under the hood this will call a hierarchy of scoped constructor functions"
# "calling a base constructor to actually create a variable" "changing some arguments to the base
# constructor, and maybe calling it multiple times"
def created(scopes: Sequence[tuple[int, Creator]], base: Creator, **arguments: Any) -> Any:
    """Return what the creators of scopes, outermost first, and the base constructor make.

    Each scope has a priority. The highest is asked first, and of equal ones the innermost.

    >>> outer = (100, lambda create, **given: create(**given | {"name": "outer"}))
    >>> inner = (100, lambda create, **given: create(**given | {"name": "inner", "trainable": False}))
    >>> created([outer, inner], dict, name="w")
    {'name': 'outer', 'trainable': False}
    """
    make = base
    for _, creator in sorted(scopes, key=lambda scope: scope[0]):
        make = partial(creator, make)
    return make(**arguments)


# R-NAME-1 (RFC 003): "to control variable naming users can use tf.name_scope + tf.Variable"
def scoped_name(scopes: Sequence[str | None], name: str) -> str:
    """Name a variable in name scopes, outermost first.

    None starts again, and a scope that ends with a slash is the whole prefix.

    >>> [scoped_name(scopes, "w") for scopes in (["a", "b"], ["a", None], ["a", "c/d/"])]
    ['a/b/w', 'w', 'c/d/w']
    """
    prefix = ""
    for scope in scopes:
        prefix = f"{prefix}{scope}/" if scope and not scope.endswith("/") else scope or ""
    return prefix + name


# R-PARTSCOPE-1 (RFC 000): "Per-layer partitioner overwrites strategy-level partitioner."
# R-CREATESHARDED-2 (RFC 002): "If this is given, override the `partitioner` from the constructor."
def in_force(of_call: Any, of_scopes: Sequence[Any], of_strategy: Any) -> Any:
    """Return the partitioner that cuts a variable: of the call, the innermost scope, the strategy.

    >>> in_force(None, ["of the model", "of the layer"], "of the strategy")
    'of the layer'
    """
    given = [of_call, *reversed(of_scopes), of_strategy]
    return next((each for each in given if each is not None), None)


# R-PSS-2 (RFC 000): "Unlike `ParameterServerStrategy` that always partitions variables among
# parameter servers"
# R-CREATE-3 (RFC 000): 'For variables that are "colocated_with" other variables, they will be
# created as normal variables residing in the same device as the "colocated_with" variable.'
def placed(variables: Sequence[tuple[int, int | None]], servers: int) -> list[list[int]]:
    """Return the servers of each variable's parts. They are taken in turn, from variable to variable.

    A variable is its number of parts, and the number of the variable that it is colocated with.

    >>> placed([(4, None), (1, None), (1, 0), (2, None)], servers=3)
    [[0, 1, 2, 0], [1], [0], [2, 0]]
    """
    found: list[list[int]] = []
    turn = 0
    for count, neighbour in variables:
        if neighbour is not None:
            found.append(found[neighbour][:1])  # of a sharded variable, with its first shard
        else:
            found.append([part % servers for part in range(turn, turn + count)])
            turn += count
    return found


# R-MIRROR-3 (RFC 002): "In Mirrored and CollectiveAllReduce Strategy, we will start with mirroring
# everything." R-HINT-1 (RFC 002): "whether to mirror the variable on host or not"
# R-CREATESHARDED-2 (RFC 002): "Returns a Mirrored ShardedVariable."
# R-MIRROR-4 (RFC 000): "strategies like `MultiworkerMirroredStrategy` can choose to partition the
# variables in different flavors: on hosts of each worker, or on the replicas (GPUs)."
# R-PARTSCOPE-2 (RFC 000): "Defaults to replica devices."
def homes_of_copies(
    num_parts: int,
    replicas: Sequence[str],
    hosts: Sequence[str],
    mirror_on_host: bool = False,
    is_in_scope: bool = False,
    partition_devices: Sequence[str] | None = None,
) -> list[list[str]]:
    """Return the devices of each copy's parts, under a strategy that mirrors.

    A partitioning scope spreads the parts of one copy instead.

    >>> homes_of_copies(2, ["GPU:0", "GPU:1"], ["CPU:0"])
    [['GPU:0', 'GPU:0'], ['GPU:1', 'GPU:1']]
    >>> homes_of_copies(2, ["GPU:0", "GPU:1"], ["CPU:0"], is_in_scope=True)
    [['GPU:0', 'GPU:1']]
    """
    if is_in_scope and num_parts > 1:
        devices = partition_devices or replicas
        return [[devices[part % len(devices)] for part in range(num_parts)]]
    return [[home] * num_parts for home in (hosts if mirror_on_host else replicas)]


# R-HYBRID-1 (RFC 002): "strategy_chooser: a callable that takes variable name, variable shape and
# variable dtype and returns which strategy to apply for this variable."
def chosen(chooser: Chooser, variables: Sequence[tuple[str, Sequence[int], str]]) -> list[int]:
    """Return the strategy, 1 or 2, that creates each variable.

    >>> chosen(lambda name, shape, dtype: 2 if shape[0] > 9 else None, [("a", [5], "int8"), ("b", [50], "int8")])
    [1, 2]
    """
    return [chooser(name, shape, dtype) or 1 for name, shape, dtype in variables]


# Mirrored variables, and what several replicas give.


# R-MIRROR-1 (RFC 000): "represents a list of variables residing on different devices but are always
# kept in sync by applying the same updates to every copy." R-MIRROR-1 (RFC 002): "variables can
# also sometimes be `MirroredVariable` with `ShardedVariable`."
def mirrored(copies: Sequence[Shards], operation: Operation) -> list[list[Array]]:
    """Return all copies after an operation.

    >>> mirrored([[np.array([1])], [np.array([1])]], ("assign_add", np.array([2])))
    [[array([3])], [array([3])]]
    """
    return [applied(copy, operation) for copy in copies]


# R-MIRROR-2, R-PSS-4 (RFC 002): "In parameter server architecture, model variables can sometimes be
# `AggregatingVariable` with a underlying `ShardedVariable`"
# R-OPT-8 (RFC 002): "use the existing allreduce primitive to exchange gradients."
def aggregated(values: Sequence[Array], how: str) -> Array:
    """Return one value of all replicas' values. A mean of integers is rounded towards zero.

    >>> [aggregated([np.array([1]), np.array([-4])], how) for how in ("SUM", "MEAN", "ONLY_FIRST_REPLICA")]
    [array([-3]), array([-1]), array([1])]
    """
    if how == "ONLY_FIRST_REPLICA":
        return values[0]
    total = np.asarray(reduce(np.add, values))
    return _divided(total, len(values)) if how == "MEAN" else total


# R-MIRROR-2, R-PSS-4 (RFC 002): "model variables can sometimes be `AggregatingVariable` with a
# underlying `ShardedVariable`"
def aggregated_rows(updates: Sequence[Sparse], how: str) -> Sparse:
    """Return one sparse update of all replicas': they follow one another, each divided for a mean.

    >>> aggregated_rows([([1], np.array([4.0])), ([1, 0], np.array([2.0, 6.0]))], "MEAN")
    ([1, 1, 0], array([2., 1., 3.]))
    """
    if how == "ONLY_FIRST_REPLICA":
        return updates[0]
    rows = [row for rows, _ in updates for row in rows]
    values = np.concatenate([values for _, values in updates])
    return rows, _divided(values, len(updates)) if how == "MEAN" else values


def _divided(total: Array, count: int) -> Array:
    if total.dtype.kind in "iu":
        whole = [int(Fraction(int(each), count)) for each in total.ravel()]
        return np.array(whole, total.dtype).reshape(total.shape)
    return np.asarray(total / count, total.dtype)


# R-OPT-7 (RFC 000): "always kept in sync by applying the same updates to every copy."
def mirrored_step(
    optimizer: str,
    copies: Sequence[Shards],
    gradients: Sequence[Gradient],
    slots: Sequence[Mapping[str, Shards]],
    hyper: Mapping[str, float],
    step: int,
    how: str = "SUM",
) -> list[tuple[list[Array], dict[str, list[Array]]]]:
    """Step all copies, each with its slots, by one gradient that is made of the replicas'.

    >>> copies = [[np.ones(2)], [np.ones(2)]]
    >>> after = mirrored_step("SGD", copies, [np.ones(2), np.ones(2)], [{}, {}], {"learning_rate": 0.25}, 1)
    >>> [shards for shards, _ in after]
    [[array([0.5, 0.5])], [array([0.5, 0.5])]]
    """
    rows = [each for each in gradients if isinstance(each, tuple)]
    parts: Sequence[Gradient] = (
        sparse_gradients(*aggregated_rows(rows, how), copies[0])
        if rows
        else dense_gradients(aggregated([np.asarray(g) for g in gradients], how), copies[0])
    )
    return [
        apply_gradients(optimizer, copy, parts, own, hyper, step)
        for copy, own in zip(copies, slots, strict=True)
    ]


# Heuristics, which compare bytes. A variable's gradient, or one slot, is as large as the variable.


# R-HEUR-1 (RFC 002): "On multiple hosts, mirroring could be cheaper than sharding in terms of
# communication cost since it requires smaller number of communications although it transfers more
# data." R-HEUR-2 (RFC 002): "For large embeddings that cannot be fit in a single host,
# `ParameterServerStrategy` should be preferred for now."
def mirror_or_shard(nbytes: int, device_memory: int, host_memory: int) -> str:
    """Mirror a variable if the larger memory holds it twice.

    >>> mirror_or_shard(100, 50, 200), mirror_or_shard(101, 50, 200)
    ('mirror', 'shard')
    """
    return "mirror" if 2 * nbytes <= max(device_memory, host_memory) else "shard"


# R-HEUR-3 (RFC 002): "When an embedding variable is small, it may benefit from being mirrored on
# devices." R-HEUR-4 (RFC 002): "when an embedding variable is sufficiently large, we will place it
# on host memory."
def host_or_device(nbytes: int, device_memory: int) -> str:
    """Place a variable on a device that holds it twice, and else on the host.

    >>> host_or_device(25, 50), host_or_device(26, 50)
    ('device', 'host')
    """
    return "device" if 2 * nbytes <= device_memory else "host"


# R-HEUR-5 (RFC 002): "When updates to an embedding are not very sparse, converting them to dense
# updates and applying allreduce in the mirrored case can be faster than sharding which relies on
# all-to-all personalized communication or all-gather."
def sparse_or_dense(nbytes: int, num_rows: int, rows_a_step: int | None, replicas: int) -> str:
    """Choose the form of an update in which a replica sends fewer bytes.

    ``rows_a_step`` are the rows that it updates, None for all. One replica sends nothing.

    >>> [sparse_or_dense(16000, 1000, rows, replicas=4) for rows in (10, 900, None)]
    ['sparse', 'dense', 'dense']
    """
    if rows_a_step is None:
        return "dense"
    others = replicas - 1
    row_nbytes = Fraction(nbytes, max(1, num_rows))
    # All-gather: each row and its id, of 8 bytes, go to every other replica.
    gathered = others * (int(rows_a_step * row_nbytes) + 8 * rows_a_step)
    # All-reduce: the whole is cut by the number of replicas, and a replica sends a part to each
    # other one twice, to be summed and then as the sum.
    reduced = int(Fraction(2 * others * nbytes, replicas))
    return "sparse" if gathered < reduced or not others else "dense"


# R-HEUR-6 (RFC 002): "Add heuristics in Distribution Strategy to auto-set performance improvement
# hints, such as whether to place an embedding on host or whether to cast sparse updates to dense
# tensors."
def hints(
    nbytes: int, num_rows: int, rows_a_step: int | None, replicas: int, device_memory: int
) -> dict[str, bool]:
    """Return the hints that the heuristics choose.

    >>> hints(16000, 1000, 10, replicas=4, device_memory=20000)
    {'mirror_on_host': True, 'cast_updates_to_dense': False}
    """
    form = sparse_or_dense(nbytes, num_rows, rows_a_step, replicas)
    return {
        "mirror_on_host": host_or_device(nbytes, device_memory) == "host",
        "cast_updates_to_dense": form == "dense",
    }


# Forms. Some see a sharded variable whole, and others its shards.


FORMS: dict[tuple[str, str], str] = {
    ("tf.Module", "as attribute (auto-tracked)"): "folded",
    ("tf.Module", "variables trainable_variables"): "expanded",
    ("keras.layers.Layer", "as attribute (auto-tracked)"): "folded",
    ("keras.layers.Layer", "variables trainable_variables"): "expanded",
    ("keras.optimizers.Optimizer", "Slot variables (training)"): "expanded",
    ("keras.optimizers.Optimizer", "Slot variables (saving)"): "folded",
    ("keras.optimizers.Optimizer", "Hyperparameters"): "folded",
    ("Checkpoint", "save"): "folded",
    ("Checkpoint", "load"): "folded",
    ("Checkpoint", "load to slot variable"): "expanded",
}
"""RFC 000's table: where a sharded variable is used, and when."""


# R-FORM-1 (RFC 000): "Folded form: sharded variable is represented as a ShardedVariable instance."
# "Expanded form: sharded variable is expanded to a list of variables."
def in_form(where: str, when: str, shards: Shards) -> list[Array]:
    """Return the values of the variables that are seen.

    >>> in_form("Checkpoint", "save", [np.array([1]), np.array([2])])
    [array([1, 2])]
    """
    return [read(shards)] if FORMS[where, when] == "folded" else list(shards)


# R-MODULE-2 (RFC 000): "If a sharded variable is assigned to an attribute, the `variables` or
# `trainable_variables` can collect its component variables as opposed to the `ShardedVariable`
# instance"
# R-MODULE-1 (RFC 000): "We should disallow assigning component variables of a sharded variable to
# object attributes."
def expanded(module: Mapping[str, Any]) -> list[str]:
    """List the variables of a module: its own by the names of attributes, then its modules'.

    A variable is its name, a sharded one the tuple of its shards' names, a module a mapping.

    >>> expanded({"z": "b", "layer": {"k": "k"}, "a": ("w/part_0", "w/part_1")})
    ['w/part_0', 'w/part_1', 'b', 'k']
    """
    attributes = [module[name] for name in sorted(module)]
    shards = [name for each in attributes if isinstance(each, tuple) for name in each]
    if wrong := set(shards).intersection(each for each in attributes if isinstance(each, str)):
        raise ValueError(
            f"The shards {wrong} are attributes by themselves, and would be saved twice."
        )
    found: list[str] = []
    for each in attributes:
        found.extend([each] if isinstance(each, str) else each if isinstance(each, tuple) else ())
    for each in attributes:
        found.extend(expanded(each) if isinstance(each, Mapping) else ())
    return found
