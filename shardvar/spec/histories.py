"""Chapter 14. Histories: reads and writes of a variable in time, and the orders that they may take.

An operation is a pair: ``("read", None)``, ``("assign", value)``, ``("assign_add", value)``,
``("assign_sub", value)``, or a scatter, ``("scatter_add", (rows, updates))``. A history is a list of
operations in the order in which they happen.
"""

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import numpy as np

from shardvar.spec.variables import Array, Shards, assign, assign_add, assign_sub, read, scatter

__all__ = [
    "Operation",
    "Outcome",
    "applied",
    "branches",
    "is_possible",
    "orders",
    "run",
    "run_by_reference",
]

Operation = tuple[str, Any]
"""A name, and its argument."""
Outcome = tuple[list[Array], Array]
"""The values that a history read, and the value at its end."""

_DENSE: dict[str, Callable[[Shards, Array], list[Array]]] = {
    "read": lambda shards, _: list(shards),
    "assign": assign,
    "assign_add": assign_add,
    "assign_sub": assign_sub,
}


def applied(shards: Shards, operation: Operation) -> list[Array]:
    """Return the shards after one operation.

    >>> applied([np.array([1]), np.array([2])], ("scatter_add", ([1], np.array([5]))))
    [array([1]), array([7])]
    """
    name, argument = operation
    if name in _DENSE:
        return _DENSE[name](shards, argument)
    return scatter(shards, name.removeprefix("scatter_"), *argument)


# R-READ-2 (RFC 003): "it simply outputs a Tensor which has the same value as the Tensor in the
# resource handle state." "as long as no mutation is done to the Tensor returned by a
# read_variable_op after it's been read."
def run(shards: Shards, history: Sequence[Operation]) -> Outcome:
    """Return what the reads of a history give, each the value of its moment, and the last value.

    >>> run([np.array([1])], [("read", None), ("assign", np.array([5])), ("read", None)])
    ([array([1]), array([5])], array([5]))
    """
    reads = []
    for operation in history:
        if operation[0] == "read":
            reads.append(read(shards))  # a new array, which later operations do not change
        shards = applied(shards, operation)
    return reads, read(shards)


# R-REF-1 (RFC 003): "This means that normal tensor objects in the graph can silently alias a
# mutable tensor, and hence two ops with the same input can see it having different values."
def run_by_reference(shards: Shards, history: Sequence[Operation]) -> Outcome:
    """Return what reads show at the end of a history if they are the variable's own memory.

    >>> run_by_reference([np.array([1])], [("read", None), ("assign", np.array([5]))])
    ([array([5])], array([5]))
    """
    reads, last = run(shards, history)
    return [last] * len(reads), last


# R-READ-2 (RFC 003): 'because the "read" operation happened before the switch ops, only one branch
# of the conditional will execute.' R-REF-1 (RFC 003): "then a subset of both branches could
# execute"
def branches(
    predicate: bool, steps: Sequence[tuple[bool, bool | None]], by_reference: bool = False
) -> list[int]:
    """Return which steps of a conditional execute. Each looks at what was read of the predicate.

    A step is the branch that it belongs to, and a new value of the predicate or None.

    >>> steps = [(True, False), (True, None), (False, None)]
    >>> branches(True, steps), branches(True, steps, by_reference=True)
    ([0, 1], [0, 2])
    """
    seen, executed = predicate, []
    for number, (branch, new) in enumerate(steps):
        if seen == branch:
            executed.append(number)
            if by_reference and new is not None:
                seen = new
    return executed


# R-VAR-7 (RFC 003): "if there is a path formed of control or data edges connecting a resource-using
# op O to a resource-using op O', you know that O' is guaranteed to see the effects of O on the
# resource and, conversely, that O is guaranteed to not see the effects of O' on the resource."
def orders(count: int, edges: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
    """List the orders of numbered operations in which the first one of each edge comes first.

    >>> orders(3, [(0, 1)])
    [(0, 1, 2), (0, 2, 1), (2, 0, 1)]
    """
    return [
        order
        for order in permutations(range(count))
        if all(order.index(first) < order.index(second) for first, second in edges)
    ]


# R-RES-1 (RFC 003): "What's stored in the device's resource manager is a pair of a Tensor and a
# mutex."
def is_possible(shards: Shards, programs: Sequence[Sequence[Operation]], seen: Outcome) -> bool:
    """Return True if an order of the operations of programs gives what they saw, running at once.

    The mutex makes each operation one moment, also of a sharded variable. ``seen`` has the reads of
    all programs, one program after the other.

    >>> twice = [[("assign_add", np.array([1]))]] * 2
    >>> [is_possible([np.array([0])], twice, ([], np.array([last]))) for last in (1, 2)]
    [False, True]
    """
    operations = [operation for program in programs for operation in program]
    owners = [number for number, program in enumerate(programs) for _ in program]
    # In each program an edge leads from every operation to the next.
    edges = [(n - 1, n) for n in range(1, len(owners)) if owners[n - 1] == owners[n]]
    for order in orders(len(operations), edges):
        reads, last = run(shards, [operations[number] for number in order])
        readers = [number for number in order if operations[number][0] == "read"]
        values = [reads[readers.index(number)] for number in sorted(readers)]
        if all(map(np.array_equal, [*values, last], [*seen[0], seen[1]])):
            return True
    return False
