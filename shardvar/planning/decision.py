"""Decide about a write: cut the slices, ask a policy, hold its answer to RFC 001's restrictions,
and plan.

1. Cut: ``cut_slices`` applies ``partition=`` and ``--shards`` to a whole checkpoint;
   ``layout.partition`` cuts one tensor.
2. Ask: ``decide`` calls ``assign`` once, with all slices as columns. (A policy that is only a
   callback is asked by ``checkpoint.callbacks``, which turns its answer into the same
   ``Assignment``.)
3. Check: each check compares the slices given to a policy with the slices of its answer and lists
   every loss, with key and regions; ``check_answer`` raises one error of all. Unions of slices are
   compared, never the texts of slices, since policies may cut differently: R-POLICY-7 (RFC 001),
   "Tensor re-slicing in the callback is totally fine, though".
4. Plan: ``plan_copies`` from the sources to the slices of the answer.

To add a restriction, write a ``find_*`` that lists its losses, and call it in ``check_answer``.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from operator import itemgetter
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError, PolicyError
from shardvar.layout.dtypes import Bools, Ints, is_whole
from shardvar.layout.partition import Cut, check_part_count, part_columns
from shardvar.layout.region import Region
from shardvar.planning.index import find_faults
from shardvar.planning.plan import Plan, plan_copies
from shardvar.planning.policies.policy import Exceeding, Policy, TablePolicy
from shardvar.planning.slices import (
    LOCAL_DEVICE,
    Assignment,
    Capabilities,
    SliceTable,
    TensorTable,
    cuttable_rows,
    rows_in_file_order,
    stack,
    widen,
)
from shardvar.records import entity, replace

_NAMED = 256  # Losses that an error lists; more have one common cause, and are counted

REMEDY = (
    "A policy answers with every element that it was given, once, in its shape and dtype; nothing "
    "was written."
)


def cut_slices(slices: SliceTable, partition: Cut | Mapping[str, Cut] | None) -> SliceTable:
    """Cut every tensor that ``partition`` names. Of globs, the last one that matches a key counts,
    and one that matches none is an ``ArgumentError``. Strings and scalars stay whole. A partitioner
    is asked once for each dtype and shape, with the tasks that hold slices as ``num_shards``. Parts
    of a layout are on the first devices that hold them, and others on device 0, unless slices have
    devices."""
    if partition is None:
        return slices
    # Group: tensors of one rule, dtype and shape are cut together. There may be 100,000 tensors,
    # but they have few shapes.
    tensors = slices.tensors
    cuts, rule = _rules(tensors.keys, partition)
    rows = np.flatnonzero(rule >= 0)
    columns = np.column_stack([rule, tensors.codes, tensors.ranks, tensors.shapes])[rows]
    # Equal rows of the matrix are neighbours once they are sorted; where a row differs from its
    # predecessor, a group begins. Groups are put in the order of their first tensors, so that
    # errors name the first one.
    order = np.lexsort(columns.T[::-1])
    differs = (columns[order[1:]] != columns[order[:-1]]).any(axis=1)
    groups = np.split(rows[order], np.flatnonzero(differs) + 1) if len(rows) else []
    # Cut, and put the parts next to the slices that are not cut.
    nbytes = slices.nbytes_of_tensors()
    num_shards = len(slices.tasks()[1]) if any(map(callable, cuts)) else 1
    tables = [slices.take(np.flatnonzero(rule[slices.tensor] < 0))]
    total = 0
    for rows in sorted(groups, key=itemgetter(0)):
        tables.append(_cut_tensors(tensors, rows, cuts[rule[rows[0]]], nbytes[rows], num_shards))
        total += len(tables[-1])
        check_part_count(total)
    # Place: parts of a layout are on devices. A tensor whose slices have devices already stays
    # where its first slice is.
    if slices.device is None:
        # Devices of one task, so that the default policy writes one file, and
        # ``ShardByDevicePolicy`` one for each.
        host = LOCAL_DEVICE.rpartition(":")[0]
        names = tuple(f"{host}:{n}" for n in range(max(len(table.devices) for table in tables)))
        devices = [
            np.zeros(len(table), np.int64) if table.device is None else table.device
            for table in tables
        ]
        if names:
            tables = [
                replace(table, device=device, devices=names)
                for table, device in zip(tables, devices, strict=True)
            ]
    else:
        present, first = np.unique(slices.tensor, return_index=True)
        of_tensor = np.zeros(len(tensors), np.int64)
        of_tensor[present] = slices.device[first]
        tables[1:] = [
            replace(cut, device=of_tensor[cut.tensor], devices=slices.devices) for cut in tables[1:]
        ]
    table = stack(tables)
    # Tensors keep their order; the slices of one follow each other.
    return table.take(table.by_tensor()[0])


def is_cut_by(keys: Sequence[str], partition: Cut | Mapping[str, Cut] | None) -> Bools:
    """[n] True for the keys that a partition speaks of."""
    return _rules(keys, partition)[1] >= 0


def _rules(
    keys: Sequence[str], partition: Cut | Mapping[str, Cut] | None
) -> tuple[list[Any], Ints]:
    """The cuts, and [n] the number of the last cut whose glob matches each key, or -1."""
    rules = dict(partition) if isinstance(partition, Mapping) else {"*": partition}
    cuts: list[Any] = list(rules.values())
    rule: Ints = np.full(len(keys), -1, np.int64)
    for number, glob in enumerate(rules):
        matches = re.compile(translate(glob)).match  # what fnmatchcase does, but once
        matched = [row for row, key in enumerate(keys) if matches(key)]
        if not matched and glob != "*":
            such = f"Match a key that is written, such as {keys[0]!r}." if keys else ""
            raise ArgumentError(f"No tensor matches {glob!r}.", such)
        rule[matched] = number
    # A cut of None takes its tensors back from earlier globs; the last place belongs to tensors
    # without a rule, -1.
    rule[np.array([cut is None for cut in cuts] + [True])[rule]] = -1
    return cuts, rule


def _cut_tensors(
    tensors: TensorTable, rows: Ints, cut: Cut, nbytes: Ints, num_shards: int
) -> SliceTable:
    """The slices of tensors of one dtype and shape, whose whole sizes are ``nbytes``."""
    first = int(rows[0])
    full_shape, dtype = tensors.shape(first), tensors.dtype(first)
    if is_whole(dtype) or not full_shape:
        shapes = tensors.shapes[rows]
        return SliceTable.of(tensors, rows, np.zeros_like(shapes), shapes, nbytes)
    try:
        offset, shape, device = part_columns(cut, full_shape, dtype, num_shards)
    except ArgumentError as error:
        raise error.at(repr(tensors.keys[first])) from error
    count, rank, times = len(offset), tensors.shapes.shape[1], (len(rows), 1)
    check_part_count(count * len(rows))
    offset, shape = np.tile(widen(offset, rank, 0), times), np.tile(widen(shape, rank, 1), times)
    table = SliceTable.of(tensors, np.repeat(rows, count), offset, shape, np.repeat(nbytes, count))
    if device is None:
        return table
    places = ("",) * (int(device.max(initial=0)) + 1)  # the caller names them
    return replace(table, device=np.tile(device, len(rows)), devices=places)


@entity
class Decision:
    assignment: Assignment  # the file of each slice; whole, and within every restriction
    plan: Plan  # the copies that fill these slices from the sources
    seconds: float
    """The seconds that the policy took. R-POLICY-16 (RFC 001): "A simple and informative metric to
    track callback latency"."""
    exceeding: tuple[Exceeding, ...] = ()  # Files larger than the policy's limit
    num_empty: int = 0  # Files that a callback named and put nothing in; they are not written


def decide(
    policy: TablePolicy,
    slices: SliceTable,
    capabilities: Capabilities,
    sources: SliceTable,
    clock: Callable[[], float],
) -> Decision:
    """Ask a policy that answers in columns, check its answer, and plan; ``clock`` times it."""
    start = clock()
    # Slices of a grid are equal as they are: of some of them, a policy would make unequal ones.
    may_cut = frozenset() if capabilities.is_grid else capabilities.slice_dtypes
    assignment = policy.assign(slices, capabilities._replace(slice_dtypes=may_cut))
    seconds = clock() - start
    check_answer(slices, assignment, capabilities)
    exceeding = find_exceeding(policy, assignment)
    assignment = in_file_order(assignment, capabilities)
    return Decision(assignment, plan_copies(sources, assignment.slices), seconds, exceeding)


def in_file_order(assignment: Assignment, capabilities: Capabilities) -> Assignment:
    if not capabilities.file_order:
        return assignment
    rows = rows_in_file_order(assignment.slices, capabilities)
    return replace(assignment, slices=assignment.slices.take(rows), file=assignment.file[rows])


def find_exceeding(policy: Policy, assignment: Assignment) -> tuple[Exceeding, ...]:
    exceeding = getattr(policy, "exceeding", None)
    return tuple(exceeding(assignment)) if exceeding is not None else ()


def find_removed(given: SliceTable, answered: SliceTable) -> list[str]:
    """R-POLICY-1 (RFC 001): "Tensors must not be removed from the checkpoint." """
    lost = np.zeros(len(given.tensors), np.bool)
    lost[given.tensor] = True
    lost[answered.tensor] = False
    return [f"lost {given.tensors.keys[tensor]!r}" for tensor in np.flatnonzero(lost).tolist()]


def find_unequal(given: SliceTable, answered: SliceTable) -> list[str]:
    """R-POLICY-1 (RFC 001) of elements: those in no slice, and those in several."""
    losses = []
    for error in find_faults(answered).values():
        cause = error.cause.rstrip(".")
        losses.append(f"broke a tensor: {cause[:1].lower()}{cause[1:]}")
    # Slices without elements overlap with nothing; they are stored as often as they were given, at
    # most.
    if answered is not given:
        for key, region in _empties(answered) - _empties(given):
            losses.append(f"stored {region} of {key!r} once more")
    return losses


def _empties(slices: SliceTable) -> Counter[tuple[str, Region]]:
    rows = np.flatnonzero((slices.shape == 0).any(axis=1)).tolist()
    return Counter(zip(map(slices.key, rows), map(slices.region, rows), strict=True))


def find_cut(answered: SliceTable, capabilities: Capabilities) -> list[str]:
    """Tensors in slices that the format can only hold whole; strings are such in all formats."""
    cut = np.flatnonzero(~cuttable_rows(answered, capabilities) & ~answered.is_whole()).tolist()
    losses = {}
    for row in cut:
        key, dtype = answered.key(row), answered.dtype(row)
        losses[key] = f"cut {key!r}, which is of dtype {dtype} and stored whole"
    return list(losses.values())


def find_mixed_tasks(
    given: SliceTable, answer: Assignment, capabilities: Capabilities
) -> list[str]:
    """R-POLICY-8 (RFC 001): "Tensors within a shard must belong to the same task."
    A format with a single file leaves no choice; there the rule does not apply."""
    task_of_row, tasks = given.tasks()
    if len(tasks) < 2 or not capabilities.many_files:
        return []
    # A slice may have been cut differently, so its tasks are the tasks of the given slices that its
    # elements come from.
    copies = plan_copies(given, answer.slices).copies
    files, task_of_copy = answer.file[copies.target], task_of_row[copies.source]
    pairs = np.unique(np.column_stack([files, task_of_copy]), axis=0)
    losses = []
    for file in np.flatnonzero(np.bincount(pairs[:, 0]) > 1).tolist():
        mixed = []
        for task in pairs[pairs[:, 0] == file, 1].tolist():
            copy = int(np.argmax((files == file) & (task_of_copy == task)))
            mixed.append(f"{given.key(int(copies.source[copy]))!r} of {tasks[task]}")
        losses.append(f"put tensors of several tasks in file {file}: {', '.join(mixed)}")
    return losses


def check_answer(given: SliceTable, answer: Assignment, capabilities: Capabilities) -> None:
    """Raise ``PolicyError``, listing every loss, unless the answer holds every element once and
    mixes no tasks.

    R-POLICY-9 (RFC 001): save "will perform validation checks after running the callback function".
    """
    answered, tensors = answer.slices, given.tensors
    numbers = answer.file
    if len(answered) != len(numbers) or not ((numbers >= 0) & (numbers < answer.num_files)).all():
        raise_losses(answer.description, [f"named files other than its {answer.num_files}"])
    if answered.tensors is not tensors and answered.tensors.rows() != tensors.rows():
        raise_losses(answer.description, ["answered with other tensors than it was given"])
    # A policy that cuts nothing answers with the table that it was given.
    losses = find_removed(given, answered) if answered is not given else []
    losses += find_unequal(given, answered) + find_cut(answered, capabilities)
    # Tasks are compared by the copies from what was given, which only a whole answer has.
    losses = losses or find_mixed_tasks(given, answer, capabilities)
    if losses:
        raise_losses(answer.description, losses)


def raise_losses(description: str, losses: list[str], remedy: str = REMEDY) -> None:
    if losses:
        more = f"; and {len(losses) - _NAMED} more" if len(losses) > _NAMED else ""
        raise PolicyError(f"The policy {description!r} {'; '.join(losses[:_NAMED])}{more}.", remedy)
