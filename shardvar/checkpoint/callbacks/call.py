"""A policy asked once, in whichever way it answers: what goes to which file, and with which values."""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.checkpoint.callbacks.answer import Answer, read_answer
from shardvar.checkpoint.callbacks.held import Held
from shardvar.engine.arrays import ArraySource, array_source
from shardvar.errors import PolicyError
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import Ints
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.index import EntryTable
from shardvar.planning.plan import Assignment
from shardvar.planning.policies import Policy
from shardvar.planning.policies.exceeding import Exceeding
from shardvar.planning.restrictions import check_answer
from shardvar.planning.slices import SliceTable


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """What a policy decided."""

    assignment: Assignment
    """Which slice goes to which file; whole, and within every restriction."""
    seconds: float
    """How long the policy took. R-POLICY-16 (RFC 001): "A simple and informative metric to track callback latency"."""
    substitutes: ArraySource | None = None
    """The values that it changed."""
    changed: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The rows of the assignment's slices that have these values, in order."""
    num_empty: int = 0
    """Files that it named and put nothing in."""
    exceeding: tuple[Exceeding, ...] = ()
    """Files that are larger than it was to make them."""


def ask_policy(
    policy: Policy,
    slices: SliceTable,
    capabilities: Capabilities,
    entries: EntryTable,
    source: Source | None,
    trackables: Mapping[str, Any],
) -> Decision:
    """Ask for an answer once, and check it.

    R-POLICY-5 (RFC 001): "The callback will only be called once for a given `checkpoint.save()` call". R-POLICY-9: save
    "will perform validation checks after running the callback function". ``PolicyError`` where the answer breaks a
    restriction, is of another kind, or where the callback raises; its own error is the cause then.
    """
    assign = getattr(policy, "assign", None)
    if assign is not None:
        start = perf_counter()
        assignment: Assignment = assign(slices, capabilities)
        seconds = perf_counter() - start
        check_answer(slices, assignment, capabilities)
        return Decision(assignment, seconds, exceeding=_exceeding(policy, assignment))
    answer, seconds = _call(policy, Held(slices, entries, source, trackables))
    check_answer(slices, answer.assignment, capabilities)
    decision = Decision(answer.assignment, seconds, num_empty=answer.num_empty)
    if answer.arrays:
        decision = _substituted(decision, answer.arrays)
    return replace(decision, exceeding=_exceeding(policy, decision.assignment))


def _exceeding(policy: Policy, assignment: Assignment) -> tuple[Exceeding, ...]:
    """What a policy that has a limit says of the files that are larger."""
    exceeding = getattr(policy, "exceeding", None)
    return tuple(exceeding(assignment)) if exceeding is not None else ()


def _call(policy: Any, held: Held) -> tuple[Answer, float]:
    description: str = policy.description
    with _without_collection():
        given = held.shardable_tensors()
        start = perf_counter()
        try:
            shards = policy(list(given))  # a list of its own: what it does to it is no matter
        except PolicyError:
            raise
        except Exception as error:
            raise PolicyError(
                f"The policy {description!r} raised {type(error).__name__}: {error}.",
                "That error is the cause of this one; nothing was written.",
            ) from error
        seconds = perf_counter() - start
        answer = read_answer(shards, held, given, description)
        del given, shards  # before anybody looks for garbage among them
        return answer, seconds


@contextmanager
def _without_collection() -> Iterator[None]:
    """Make many objects that are all kept: to look for garbage among them meanwhile takes as long as making them.

    Python counts references all the same; only cycles wait, for as long as a callback takes.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _substituted(decision: Decision, arrays: Mapping[int, npt.NDArray[Any]]) -> Decision:
    """The decision with values of its own for some slices, which are a source like arrays that are saved.

    R-POLICY-13 (RFC 001): "Note that not only can the sharding callback rearrange tensors, but also modify tensors."
    """
    changed, slices = np.array(sorted(arrays), dtype=np.int64), decision.assignment.slices
    source = array_source(slices.take(changed), [arrays[row] for row in changed.tolist()])
    nbytes = slices.nbytes.copy()
    nbytes[changed] = source.index.entries.slices.nbytes  # strings may have grown
    assignment = replace(decision.assignment, slices=replace(slices, nbytes=nbytes))
    return replace(decision, assignment=assignment, substitutes=source, changed=changed)
