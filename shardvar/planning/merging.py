"""Merge the slices that several processes hold into the entries of one checkpoint, and prove that
they are whole.

1. Processes agree on the dtype and the full shape of each tensor.
2. Slices of the same region are replicas: the process of the lowest number is taken. Their
   checksums must agree, unless the caller says that the first one counts.
3. The slices that are left are disjoint and cover every tensor (``plan.find_faults``).

Each error names the processes that it is about.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from shardvar.errors import ArgumentError, CheckpointError, IncompleteCheckpoint, InconsistentTensor
from shardvar.layout.dtypes import Bools, Ints
from shardvar.planning.index import EntryTable, concatenate_entries
from shardvar.planning.plan import find_faults
from shardvar.planning.slices import SliceTable

_NAMED = 8
"""Processes that an error names; the rest it counts."""

REPLICAS = ("equal", "first")
"""Ways to treat replicas: they must be equal, or only the first one is read."""


def check_replicas(replicas: str) -> None:
    """Raise ``ArgumentError`` unless replicas are treated in a known way."""
    if replicas not in REPLICAS:
        cause = f"replicas={replicas!r} is not a way to choose among replicas."
        raise ArgumentError(
            cause, "Give 'equal' (they must agree) or 'first' (the lowest process counts)."
        )


def merge_entries(tables: Sequence[EntryTable], replicas: str) -> EntryTable:
    """Return the entries of one checkpoint, one table for each process; every tensor is covered
    exactly.

    ``InconsistentTensor`` if processes disagree on a tensor, or on the values of a replica with
    ``replicas="equal"``; ``OverlappingSlices``, ``OutOfBounds`` and ``IncompleteCheckpoint`` as for
    an index.
    """
    check_replicas(replicas)
    _check_agree(tables)
    merged = concatenate_entries(tables)
    process = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    merged, process = _without_replicas(merged, process, replicas)
    _raise_first(find_faults(merged.slices), merged.slices, process)
    return merged


def check_share(entries: EntryTable, process: int) -> None:
    """Raise ``OverlappingSlices`` if slices meet that are not replicas; holes are allowed."""
    kept, owner = _without_replicas(entries, np.full(len(entries), process), "first")
    faults = find_faults(kept.slices)
    _raise_first(
        {k: e for k, e in faults.items() if not isinstance(e, IncompleteCheckpoint)},
        kept.slices,
        owner,
    )


def _raise_first(faults: Mapping[str, CheckpointError], slices: SliceTable, process: Ints) -> None:
    """Raise the first fault of slices [m], with the processes that hold the tensor."""
    for key, error in faults.items():
        holders = np.unique(process[slices.tensor == slices.tensors.rows()[key]]).tolist()
        more = f" {len(faults) - 1} more tensors are at fault." if len(faults) > 1 else ""
        held = f" It is held by {name_processes(holders)}.{more}"
        raise type(error)(
            error.cause + held,
            "Compare the offsets and full shapes that these processes give, and save again, "
            "under a new run.",
        )


def name_processes(processes: Sequence[int]) -> str:
    """Return the processes as words.

    >>> name_processes([3]), name_processes([0, 1, 4])
    ('process 3', 'processes 0, 1 and 4')
    """
    texts = [str(process) for process in processes[:_NAMED]]
    if len(processes) > _NAMED:
        texts.append(f"{len(processes) - _NAMED} more")
    return (
        f"process {texts[0]}"
        if len(texts) == 1
        else f"processes {', '.join(texts[:-1])} and {texts[-1]}"
    )


def _check_agree(tables: Sequence[EntryTable]) -> None:
    """Raise ``InconsistentTensor`` if processes disagree on a tensor's dtype or shape."""
    known: dict[str, tuple[int, str, tuple[int, ...]]] = {}
    for process, table in enumerate(tables):
        tensors = table.slices.tensors
        for row, key in enumerate(tensors.keys):
            mine = process, tensors.dtype(row), tensors.shape(row)
            first = known.setdefault(key, mine)
            if first[1:] != mine[1:]:
                raise InconsistentTensor(
                    f"{key!r} is {first[1]}{list(first[2])} in process {first[0]} and "
                    f"{mine[1]}{list(mine[2])} in process {process}.",
                    "Give one dtype and one full shape in all processes.",
                )


def _without_replicas(entries: EntryTable, process: Ints, replicas: str) -> tuple[EntryTable, Ints]:
    """The entries with one slice a region, from the first process, and the process of each."""
    slices = entries.slices
    # Sorted by tensor and region, replicas are neighbours; lexsort is stable, so the first process
    # comes first.
    order = np.lexsort((*slices.shape.T[::-1], *slices.offset.T[::-1], slices.tensor))
    columns = np.column_stack([slices.tensor, slices.offset, slices.shape])[order]
    is_replica: Bools = np.zeros(len(order), np.bool)
    is_replica[1:] = (columns[1:] == columns[:-1]).all(axis=1)
    # Of replicas in the order 5, 2, 9 the first is 5: at each place, the last place that is not a
    # replica.
    first = order[np.maximum.accumulate(np.where(is_replica, 0, np.arange(len(order))))]
    if replicas == "equal":
        differs = (entries.checksum[order] != entries.checksum[first]) | (
            slices.nbytes[order] != slices.nbytes[first]
        )
        for place in np.flatnonzero(differs).tolist()[:1]:
            row, kept = int(order[place]), int(first[place])
            raise InconsistentTensor(
                f"The slice {slices.region(row)} of {slices.key(row)!r} has other values in "
                f"process {process[row]} than in process {process[kept]}.",
                "Save it from one of them, or give replicas='first' to take the process of the "
                "lowest number.",
            )
    rows = np.sort(order[~is_replica])
    return entries.take(rows), process[rows]
