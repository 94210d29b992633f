"""Collectives: the name of the communication that some copies between devices amount to.

Devices that exchange something, directly or through others, are a group. Each group is asked by
itself which collective it carries out, from the numbers of elements that its devices hold before
and after, keep, and send. The copies have a name where all groups have it and the other devices
keep what they hold.

    identity        every device holds what it held
    local_slice     every device keeps a part of what it held
    broadcast       one device holds all, and in the end each does
    all_gather      the devices hold disjoint parts of what each of them holds in the end
    permute         each device gives all that it holds to one other
    all_to_all      disjoint parts become other disjoint parts
    reduce_scatter  each device holds a term of all, and in the end the reduction of its part
    all_reduce      each device holds a term of all, and in the end the reduction of all

A broadcast is an all_gather in which all shards but one are empty, and a permute is an all_to_all.
So where uneven shards make some groups the special case, the name of all is the general one.
"""

from dataclasses import dataclass

import numpy as np

from shardvar.layout.dtypes import Bools, Ints

_GENERAL = {"broadcast": "all_gather", "permute": "all_to_all"}


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """The elements that each device holds and sends."""

    before: Ints
    """[devices] elements held before."""
    after: Ints
    """[devices] elements held after."""
    kept: Ints
    """[devices] elements that a device copies to itself."""
    sender: Ints
    """[messages] the sender of each message."""
    receiver: Ints
    """[messages] its receiver."""
    part: Ints
    """[devices] a number for what a device holds after, equal for the same; -1 for nothing."""
    num_terms: int
    """The number of terms that are reduced; 1 without a reduction."""


def find_collective(flow: Flow) -> str | None:
    """Return the name of the collective, or None where the copies are a mixture of several."""
    group = _groups(flow)
    in_group = np.zeros(len(group), np.bool)
    in_group[flow.sender] = in_group[flow.receiver] = True
    stays = (flow.before == flow.after) & (flow.after == flow.kept)
    if not in_group.any():
        return "identity" if stays.all() else "local_slice"
    if not stays[~in_group].all():
        return None
    order = np.argsort(group[in_group], kind="stable")
    devices = np.flatnonzero(in_group)[order]
    groups = np.split(devices, np.flatnonzero(np.diff(group[devices])) + 1)
    names = {_name(flow, members) for members in groups}
    if len(names) > 1:
        names = {_GENERAL.get(name or "", name) for name in names}
    return names.pop() if len(names) == 1 else None


def _groups(flow: Flow) -> Ints:
    """[devices] the smallest device of the group of each one."""
    label = np.arange(len(flow.before))
    while True:
        lower = label.copy()
        np.minimum.at(lower, flow.sender, label[flow.receiver])
        np.minimum.at(lower, flow.receiver, label[flow.sender])
        # A label is a device of the group too, which may have found a smaller one by now: a ring of
        # n devices takes about log n rounds instead of n.
        lower = lower[lower]
        if (lower == label).all():
            return label
        label = lower


def _name(flow: Flow, members: Ints) -> str | None:
    """The collective of one group of at least two devices."""
    before, after, kept = flow.before[members], flow.after[members], flow.kept[members]
    if flow.num_terms > 1:
        return _reduction(flow, before, after, kept)
    # All end with as many elements as the group had: then these were disjoint, and each device gets
    # all of them.
    if (after == before.sum()).all() and (kept == before).all():
        return "broadcast" if np.count_nonzero(before) == 1 else "all_gather"
    parts = flow.part[members]
    parts = parts[parts >= 0]
    is_disjoint = len(np.unique(parts)) == len(parts)
    # Disjoint parts come from within the group, so equal sums mean that each element went to one
    # place.
    if is_disjoint and after.sum() == before.sum():
        return "permute" if _is_permutation(flow, members, kept) else "all_to_all"
    return None


def _reduction(flow: Flow, before: Ints, after: Ints, kept: Ints) -> str | None:
    has_all_terms = (
        len(before) == flow.num_terms and (before == before[0]).all() and (kept == after).all()
    )
    if has_all_terms and (after == before).all():
        return "all_reduce"
    return "reduce_scatter" if has_all_terms and after.sum() == before[0] else None


def _is_permutation(flow: Flow, members: Ints, kept: Ints) -> bool:
    mine: Bools = np.isin(flow.sender, members)
    senders, receivers = flow.sender[mine], flow.receiver[mine]
    return (
        not kept.any()
        and len(np.unique(senders)) == len(senders)
        and len(np.unique(receivers)) == len(receivers)
    )
