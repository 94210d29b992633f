"""Level 3: what was read stays as it was, whatever is written afterwards."""

from collections.abc import Callable
from typing import Any

import numpy as np

from shardvar.conformance.calls import Calls, NotClaimed, expect_equal, text
from shardvar.conformance.registry import rule
from shardvar.conformance.rules.cases import TableCase, tables, uneven_tables
from shardvar.layout.dtypes import Array

SNAPSHOT = "no mutation is done to the Tensor returned by a read_variable_op after it's been read"


def write_something(adapter: Calls, handle: Any, value: Any) -> None:
    """Change every row of a variable by a write that the adapter has."""
    if adapter.has("assign_add"):
        adapter.assign_add(handle, np.ones_like(value))
    elif adapter.has("assign"):
        adapter.assign(handle, value + np.ones_like(value))
    elif adapter.has("scatter"):
        adapter.scatter(handle, "add", np.arange(len(value)), np.ones_like(value))
    else:
        raise NotClaimed("no assign_add, assign or scatter")


def check_snapshot(adapter: Calls, case: TableCase, method: str, *arguments: Any) -> None:
    """Read, write, and look again at what was read."""
    value, num_shards = case
    handle = adapter.create(value, num_shards)
    before = adapter.name(getattr(adapter, method)(handle, *arguments), "before")
    # ``read`` does not make a handle, so its line gets the name here.
    adapter.lines[-1] = f"before = {adapter.lines[-1]}"
    # A copy, since an adapter may also have kept the array that it was given.
    must = value.copy()
    write_something(adapter, handle, value)
    adapter.note("before")
    expect_equal(before, must)


@rule("R-READ-2", 3, "003", SNAPSHOT, "create read", tables())
def reads_are_snapshots(adapter: Calls, case: TableCase) -> None:
    """A value that was read stays as it was when the variable is written afterwards."""
    check_snapshot(adapter, case, "read")


@rule("R-READ-2-lookup", 3, "003", SNAPSHOT, "create lookup", tables())
def lookups_are_snapshots(adapter: Calls, case: TableCase) -> None:
    """Rows that were looked up stay as they were when the variable is written afterwards."""
    check_snapshot(adapter, case, "lookup", np.arange(len(case[0])))


@rule("R-READ-2-sparse-read", 3, "003", SNAPSHOT, "create sparse_read", tables())
def sparse_reads_are_snapshots(adapter: Calls, case: TableCase) -> None:
    """Rows of a sparse read stay as they were when the variable is written afterwards."""
    check_snapshot(adapter, case, "sparse_read", np.arange(len(case[0])))


@rule("R-READ-2-index", 3, "003", SNAPSHOT, "create index", tables())
def slices_are_snapshots(adapter: Calls, case: TableCase) -> None:
    """A slice that was taken stays as it was when the variable is written afterwards."""
    check_snapshot(adapter, case, "index", (slice(None),))


def check_own_memory(adapter: Calls, given: Array, write: Callable[[Array], Any]) -> None:
    """Give an array to the adapter, change it afterwards, and read."""
    kept = adapter.name(given.copy(), "given")
    adapter.note(f"given = {text(given)}")
    handle = write(kept)
    kept += np.float32(100)
    adapter.note("given += 100")
    expect_equal(adapter.read(handle), given)


@rule("R-READ-2-created", 3, "003", SNAPSHOT, "create read", tables())
def variables_have_their_own_memory(adapter: Calls, case: TableCase) -> None:
    """A variable stays as it was when the array that it was created with changes."""
    value, num_shards = case
    check_own_memory(adapter, value, lambda given: adapter.create(given, num_shards))


@rule("R-READ-2-created-uneven", 3, "003", SNAPSHOT, "create_uneven read", uneven_tables())
def uneven_variables_have_their_own_memory(adapter: Calls, case: tuple[Array, list[int]]) -> None:
    """A variable in shards of given sizes stays as it was when the array that it was created with
    changes."""
    value, sizes = case
    check_own_memory(adapter, value, lambda given: adapter.create_uneven(given, sizes))


@rule("R-READ-2-assigned", 3, "003", SNAPSHOT, "create assign read", tables())
def assigned_variables_have_their_own_memory(adapter: Calls, case: TableCase) -> None:
    """A variable stays as it was when the array that was assigned to it changes."""
    value, num_shards = case
    handle = adapter.create(np.zeros_like(value), num_shards)
    check_own_memory(adapter, value, lambda given: adapter.assign(handle, given))
