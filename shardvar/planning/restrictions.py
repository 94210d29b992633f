"""RFC 001's restrictions on what a policy answers, one check each.

A check compares the slices that a policy was given with those that it answered and lists every loss, with key and
regions; ``check_answer`` raises one error of all. Unions of slices are compared, never the texts of slices: cutting
anew is what policies are for: R-POLICY-7 (RFC 001), "Tensor re-slicing in the callback is totally fine, though".

Before an answer is a table of slices it is a list of claims: a key, a region of a shape, and a value of some dtype and
shape. Those of a claim that the tensor does not bear out are told by the checks of claims.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardvar.errors import PolicyError
from shardvar.layout.region import Region
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.faults import find_faults
from shardvar.planning.plan import Assignment, plan_copies
from shardvar.planning.policies.pieces import cuttable_rows
from shardvar.planning.slices import SliceTable, TensorTable

_NAMED = 256
"""Losses that an error lists; beyond that, there is one cause for all of them, and the rest are counted."""

REMEDY = "A policy answers with every element that it was given, once, in its shape and dtype; nothing was written."


@dataclass(frozen=True, slots=True)
class Claim:
    """What an answer says that a value is."""

    key: str
    """The checkpoint key that it stands under."""
    full_shape: tuple[int, ...]
    """The shape of the whole tensor, as the slice spec has it."""
    region: Region
    """The part of the whole tensor, as the slice spec has it."""
    dtype: str
    """The dtype of the value."""
    shape: tuple[int, ...]
    """The shape of the value."""


def find_added(rows: Mapping[str, int], claims: Sequence[Claim]) -> list[str]:
    """The keys that nobody gave. "Tensors must not be removed" has this other side: nor invented."""
    added = dict.fromkeys(claim.key for claim in claims if claim.key not in rows)
    return [f"added {key!r}, which is no tensor that it was given" for key in added]


def find_reshaped(tensors: TensorTable, rows: Mapping[str, int], claims: Sequence[Claim]) -> list[str]:
    """R-POLICY-2 (RFC 001): "Tensors must not be reshaped." Neither the whole nor the value of a slice."""
    losses = []
    for claim in claims:
        shape = tensors.shape(rows[claim.key])
        if claim.full_shape != shape:
            losses.append(f"reshaped {claim.key!r} from {shape} to {claim.full_shape}")
        elif claim.shape != claim.region.shape:
            losses.append(f"reshaped {claim.key!r}: a value of shape {claim.shape} stands for the slice {claim.region}")
    return losses


def find_cast(tensors: TensorTable, rows: Mapping[str, int], claims: Sequence[Claim]) -> list[str]:
    """R-POLICY-3 (RFC 001): "Tensor dtypes must not change." """
    return [
        f"changed the dtype of {claim.key!r} in {claim.region} from {dtype} to {claim.dtype}"
        for claim in claims
        if claim.dtype != (dtype := tensors.dtype(rows[claim.key]))
    ]


def find_removed(given: SliceTable, answered: SliceTable) -> list[str]:
    """R-POLICY-1 (RFC 001): "Tensors must not be removed from the checkpoint." """
    lost = np.zeros(len(given.tensors), dtype=np.bool)
    lost[given.tensor] = True
    lost[answered.tensor] = False
    return [f"lost {given.tensors.keys[tensor]!r}" for tensor in np.flatnonzero(lost).tolist()]


def find_unequal(given: SliceTable, answered: SliceTable) -> list[str]:
    """R-POLICY-1 (RFC 001) of elements: those that are in no slice, or in several."""
    causes = [error.cause.rstrip(".") for error in find_faults(answered).values()]
    losses = [f"broke a tensor: {cause[:1].lower()}{cause[1:]}" for cause in causes]
    # Slices without elements overlap with nothing; they are stored as often as they were given, at most.
    doubled = _empties(answered) - _empties(given)
    return losses + [f"stored {region} of {key!r} once more" for key, region in doubled]


def _empties(slices: SliceTable) -> Counter[tuple[str, Region]]:
    rows = np.flatnonzero((slices.shape == 0).any(axis=1)).tolist()
    return Counter((slices.key(row), slices.region(row)) for row in rows)


def find_cut(answered: SliceTable, capabilities: Capabilities) -> list[str]:
    """Tensors in slices that the format can only hold whole; strings are such in all of them."""
    cut = np.flatnonzero(~cuttable_rows(answered, capabilities) & ~answered.is_whole()).tolist()
    names = {answered.key(row): answered.dtype(row) for row in cut}
    return [f"cut {key!r}, which is of dtype {dtype} and stored whole" for key, dtype in names.items()]


def find_mixed_tasks(given: SliceTable, answer: Assignment, capabilities: Capabilities) -> list[str]:
    """R-POLICY-8 (RFC 001): "Tensors within a shard must belong to the same task."

    Where a format has one file alone, there is no other to put them in.
    """
    task_of_row, tasks = given.tasks()
    if len(tasks) < 2 or not capabilities.many_files:
        return []
    copies = plan_copies(given, answer.slices).copies
    pairs = np.unique(np.column_stack([answer.file[copies.target], task_of_row[copies.source]]), axis=0)
    losses = []
    for file in np.flatnonzero(np.bincount(pairs[:, 0]) > 1).tolist():
        mixed = []
        for task in pairs[pairs[:, 0] == file, 1].tolist():
            source = np.flatnonzero((answer.file[copies.target] == file) & (task_of_row[copies.source] == task))[0]
            mixed.append(f"{given.key(int(copies.source[source]))!r} of {tasks[task]}")
        losses.append(f"put tensors of several tasks in file {file}: {', '.join(mixed)}")
    return losses


def check_claims(description: str, tensors: TensorTable, claims: Sequence[Claim]) -> None:
    """Raise ``PolicyError``, listing every loss, unless every claim is one that its tensor bears out."""
    if not claims:
        return
    rows = tensors.rows()
    known = [claim for claim in claims if claim.key in rows]
    losses = find_added(rows, claims) + find_reshaped(tensors, rows, known) + find_cast(tensors, rows, known)
    raise_losses(description, losses)


def check_answer(given: SliceTable, answer: Assignment, capabilities: Capabilities) -> None:
    """Raise ``PolicyError``, listing every loss, unless the answer holds every element once and mixes no tasks."""
    answered, tensors = answer.slices, given.tensors
    numbers = answer.file
    if len(answered) != len(numbers) or not ((numbers >= 0) & (numbers < answer.num_files)).all():
        raise_losses(answer.description, [f"named files other than the {answer.num_files} that it spoke of"])
    if answered.tensors is not tensors and answered.tensors.rows() != tensors.rows():
        raise_losses(answer.description, ["answered with other tensors than it was given"])
    losses = find_removed(given, answered) + find_unequal(given, answered) + find_cut(answered, capabilities)
    raise_losses(answer.description, losses)
    raise_losses(answer.description, find_mixed_tasks(given, answer, capabilities))


def raise_losses(description: str, losses: list[str], remedy: str = REMEDY) -> None:
    """Raise ``PolicyError`` of all losses, if there are any."""
    if losses:
        more = f"; and {len(losses) - _NAMED} more" if len(losses) > _NAMED else ""
        raise PolicyError(f"The policy {description!r} {'; '.join(losses[:_NAMED])}{more}.", remedy)
