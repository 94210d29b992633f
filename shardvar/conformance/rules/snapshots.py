"""Level 3: what was read stays as it was, whatever is written afterwards."""

from typing import Any

import numpy as np

from shardvar.conformance.calls import Calls, NotClaimed, expect_equal
from shardvar.conformance.registry import rule
from shardvar.conformance.rules.cases import TableCase, tables

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
