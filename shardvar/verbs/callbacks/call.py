"""Ask a sharding callback once: which tensor goes to which file, and with which values.

1. Call it with the slices, and read its answer (``answer``).
2. Check the answer like any other policy's (``planning.decision``).
3. Lay the values that it changed over the source's: they are arrays, "files" and entries after the
   source's, so that rows and files of the source keep their numbers. Which value fills which slice
   is a plan like any other.

Policies that answer in columns never come here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from shardvar.engine.arrays import ArraySource, array_source
from shardvar.errors import PolicyError
from shardvar.formats.protocol import Source
from shardvar.formats.source import WrappedSource
from shardvar.layout.dtypes import Array, Bools, Ints
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.decision import Decision, check_answer, find_exceeding
from shardvar.planning.index import EntryTable, TableIndex, concatenate_entries
from shardvar.planning.plan import Assignment, CopyTable, Plan, plan_copies
from shardvar.planning.policies import CallbackPolicy
from shardvar.planning.slices import SliceTable
from shardvar.verbs.callbacks.answer import Answer, read_answer
from shardvar.verbs.callbacks.slice_source import SliceSource
from shardvar.wire.collection import without_collection


def ask_callback(
    policy: CallbackPolicy, capabilities: Capabilities, given: SliceSource
) -> tuple[Decision, ArraySource | None]:
    """Ask for an answer once, check it, and plan; with the values that the callback changed, if
    there are any.

    R-POLICY-5 (RFC 001): "The callback will only be called once for a given `checkpoint.save()`
    call". ``PolicyError`` if the answer breaks a restriction or is of another kind, or if the
    callback raises; its own error is the cause then.
    """
    # Ask the policy, and check its answer.
    answer, seconds = _call(policy, given)
    check_answer(given.slices, answer.assignment, capabilities)
    assignment, entries = answer.assignment, given.entries
    # Plan.
    if answer.arrays:
        assignment, arrays = _substitute(assignment, answer.arrays)
        plan = _plan_substituted(
            entries, assignment.slices, arrays, np.array(sorted(answer.arrays), dtype=np.int64)
        )
    else:
        arrays, plan = None, plan_copies(entries.slices, assignment.slices)
    return Decision(
        assignment, plan, seconds, find_exceeding(policy, assignment), answer.num_empty
    ), arrays


def _call(policy: CallbackPolicy, held: SliceSource) -> tuple[Answer, float]:
    description = policy.description
    with without_collection():
        given = held.shardable_tensors()
        start = perf_counter()
        try:
            shards = policy(list(given))  # a copy: the callback may change its list
        except PolicyError:
            raise
        except Exception as error:
            raise PolicyError(
                f"The policy {description!r} raised {type(error).__name__}: {error}.",
                "That error is the cause of this one; nothing was written.",
            ) from error
        seconds = perf_counter() - start
        answer = read_answer(shards, held, given, description)
        del given, shards  # before garbage is looked for among them
        return answer, seconds


def _substitute(
    assignment: Assignment, arrays: Mapping[int, Array]
) -> tuple[Assignment, ArraySource]:
    """The assignment with the sizes of changed values, and these values as a source, like arrays
    that are saved.

    R-POLICY-13 (RFC 001): "Note that not only can the sharding callback rearrange tensors, but also
    modify tensors."
    """
    changed, slices = np.array(sorted(arrays), dtype=np.int64), assignment.slices
    source = array_source(slices.take(changed), [arrays[row] for row in changed.tolist()])
    nbytes = slices.nbytes.copy()
    nbytes[changed] = source.index.entries.slices.nbytes  # strings may have grown
    return replace(assignment, slices=replace(slices, nbytes=nbytes)), source


def _plan_substituted(
    entries: EntryTable, targets: SliceTable, arrays: ArraySource, changed: Ints
) -> Plan:
    """The plan that fills the changed targets from the arrays, the others from the source."""
    is_changed = np.zeros(len(targets), dtype=np.bool)
    is_changed[changed] = True
    kept = np.flatnonzero(~is_changed)
    parts = [
        _renumbered(plan_copies(entries.slices, targets.take(kept)).copies, 0, kept),
        _renumbered(
            plan_copies(arrays.index.entries.slices, targets.take(changed)).copies,
            len(entries),
            changed,
        ),
    ]
    columns = (
        [getattr(part, name) for part in parts] for name in ("source", "target", "offset", "shape")
    )
    copies = CopyTable(*map(np.concatenate, columns))
    # Both parts are ordered by target, and no target is in both, so a stable sort by target
    # restores the order.
    return Plan(
        overlay_entries(entries, arrays).slices,
        targets,
        copies.take(np.argsort(copies.target, kind="stable")),
    )


def _renumbered(copies: CopyTable, first_source: int, targets: Ints) -> CopyTable:
    return CopyTable(
        copies.source + first_source, targets[copies.target], copies.offset, copies.shape
    )


def overlay_entries(entries: EntryTable, arrays: ArraySource) -> EntryTable:
    """The entries of a source, followed by the entries of the arrays."""
    mine = arrays.index.entries
    num_files = int(entries.file.max(initial=-1)) + 1
    return concatenate_entries([entries, replace(mine, file=mine.file + num_files)])


def overlay(source: Source, entries: EntryTable, arrays: ArraySource) -> Source:
    """The source that reads the entries of ``overlay_entries``; arrays over arrays are one source
    of arrays."""
    count = len(arrays.arrays)
    # The arrays come last, each as a file: behind 3 files, the last of 2 arrays is file 4, and 4 +
    # 1 - 2 is 3.
    num_files = int(entries.file[-1]) + 1 - count
    if isinstance(source, ArraySource):
        values = [*source.arrays[:num_files], *arrays.arrays]
        return ArraySource(values, TableIndex(entries, ["memory"] * len(values)))
    return OverlaidSource(source, arrays, num_files)


@dataclass(frozen=True, slots=True, eq=False)
class OverlaidSource(WrappedSource):
    """Another source with arrays behind its files, and their entries behind its own."""

    inner: Source = field()
    """The source of the values that the callback kept."""
    arrays: Source
    """The values that it changed."""
    num_files: int
    """The number of the first array; lower ones are files of the other source."""

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        """Read bytes of a file, or of an array."""
        if file < self.num_files:
            self.inner.read_span(file, start, buffer)
        else:
            self.arrays.read_span(file - self.num_files, start, buffer)

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the payload of one entry."""
        if entries.file[row] < self.num_files:
            self.inner.read_into(entries, row, start, buffer)
        else:
            self.read_span(int(entries.file[row]), int(entries.start[row]) + start, buffer)

    def map(self, file: int) -> memoryview:
        """Map a file, or an array."""
        is_file = file < self.num_files
        return self.inner.map(file) if is_file else self.arrays.map(file - self.num_files)

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        """[rows] Return True for payloads that the other source is best asked for in order."""
        found = np.zeros(len(rows), np.bool)
        is_stored = entries.file[rows] < self.num_files
        found[is_stored] = self.inner.in_order(entries, rows[is_stored])
        return found
