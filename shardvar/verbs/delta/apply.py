"""Apply deltas: write the checkpoint that they make of their base.

find     the base, the deltas and the location of the result
check    that the deltas follow each other, and that the base has the tensors that they need
write    ``join.PatchedSource`` through ``verbs.reshard``, so that formats, cuts, policies and
         interrupted writes are as in any reshard
commit   after comparing the digest of each tensor with the last delta

Deltas of other programs are read first, leaf by leaf, with their base. The checksums that they have
are compared, and frames of ``wire.digests`` from the base to the last result go to a scratch file. Then
these are applied as a delta of shardvar is, so that a change of the base since is found.
"""

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

import numpy as np

from shardvar.engine.pool import Progress, thread_buffer
from shardvar.errors import (
    READ_ERRORS,
    ArgumentError,
    CheckpointError,
    CorruptCheckpoint,
    StorageError,
    TargetExists,
    UnsupportedError,
)
from shardvar.formats.compressed import StreamChecksum, new_checksum
from shardvar.formats.files import open_below
from shardvar.formats.native.index import native_index_name
from shardvar.formats.parts import check_not_a_part
from shardvar.formats.protocol import Source
from shardvar.formats.published import check_no_delta
from shardvar.formats.unfinished import unfinished_files
from shardvar.layout.dtypes import OWN_SIZE, code
from shardvar.pictures.words import count
from shardvar.planning.index import TableIndex, concatenate_entries, take_tensors
from shardvar.planning.policies import Policy
from shardvar.records import entity, replace
from shardvar.storage.exchange import left_beside
from shardvar.storage.scratch import ScratchFile
from shardvar.verbs.arguments import check_policy, check_progress, named_arguments
from shardvar.verbs.callbacks import OverlaidSource
from shardvar.verbs.compare.blocks import Blocks, ReadBytes
from shardvar.verbs.compare.digest import digests_of
from shardvar.verbs.delta.chain import check_base, count_applied, find_deltas, open_chain
from shardvar.verbs.delta.contents import (
    CHANGED,
    EQUAL,
    ApplyReport,
    Contents,
    Delta,
    DeltaRow,
    apply_report,
    check_faults,
)
from shardvar.verbs.delta.dialects import Patch, Patcher, PublishedDelta
from shardvar.verbs.delta.draft import (
    DeltaDraft,
    LeafChange,
    LeafWork,
    checked,
    compare_leaf,
    digests_of_changes,
    draft_tensors,
    drafted_delta,
    leaf_reads,
)
from shardvar.verbs.delta.join import PatchedSource
from shardvar.verbs.locate import (
    Location,
    Path,
    check_apart,
    check_not_inside,
    find_checkpoint,
    find_target,
    is_same,
)
from shardvar.verbs.mapping import names_at
from shardvar.verbs.reader import Reader, open_found
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.reshard import Changes, digest_of_reshard, find_carry, rewrite
from shardvar.verbs.writing import (
    Partitions,
    WritePlan,
    carry_out,
    plan_checkpoint,
    tells_requests,
)
from shardvar.wire.digests import LEAF_NBYTES

# The result of deltas of other programs.

_OTHER_BASE = "Give the checkpoint that it was made of, or copy the delta again."


def apply_published(
    base: Reader, deltas: Sequence[PublishedDelta], scratch: ScratchFile
) -> tuple[Source, PatchedSource]:
    """Return the result and the tensors that change; only the scratch file is written."""
    blocks = Blocks.of(base)
    rows = blocks.tensors.rows()
    check_faults(base)
    for delta in deltas:
        for key in delta.changes:
            if key not in rows:
                raise ArgumentError(
                    f"{base.path} is not the base of {delta.path}: it lacks {key!r}.",
                    "Give the checkpoint that it was made of, with the names of its tensors.",
                )
            dtype = blocks.tensors.dtype(rows[key])
            if OWN_SIZE[code(dtype)]:
                raise UnsupportedError(
                    f"{base.path}: {key!r} is of {dtype}, which the dialect {delta.dialect} cannot "
                    "change.",
                    "Give the checkpoint that the delta was made of.",
                )
    draft = DeltaDraft(scratch)
    changed = {key for delta in deltas for key in delta.changes}
    read = {key: rows[key] for key in rows if key in changed}
    changes = _read_changes(blocks, read, deltas, draft)
    contents = Contents.of(changes, {})
    patched = PatchedSource.of(base, [drafted_delta(draft, contents, deltas[-1].path)])
    # All tensors, in the order of the base.
    of_base, of_deltas = base.entries(), patched.index.entries
    num_files = max(len(base.index.files), int(of_base.file.max(initial=-1)) + 1)
    unchanged = take_tensors(of_base, {*rows} - changed)
    behind = replace(of_deltas, file=of_deltas.file + num_files)
    joined = Blocks.of_entries(base.source, concatenate_entries([unchanged, behind]))
    position = joined.tensors.rows()
    entries = joined.entries_of([position[key] for key in rows])
    metadata = replace(base.metadata, digests={})  # the base's are of other bytes
    index = TableIndex(entries, [*base.index.files, "result"], metadata)
    source = OverlaidSource(base.source, index, patched, num_files)
    last, result = deltas[-1], Blocks.of_entries(source, entries)
    if last.whole_sha256:
        position = result.tensors.rows()
        in_order = [position[key] for key in sorted(position)]
        if _checksum_of("sha256", result, in_order) != last.whole_sha256:
            raise CorruptCheckpoint(
                f"{last.path}: The result does not have the checksum that the delta gives (sha256): "
                "the base is another one, or the delta is damaged.",
                _OTHER_BASE,
            )
    return source, patched


def count_published(base: Reader, deltas: Sequence[PublishedDelta]) -> int:
    """Return the last delta, counted from 1, whose checksums a checkpoint has; 0 if there is none."""
    blocks = Blocks.of(base)
    rows = blocks.tensors.rows()
    # [n] False if a tensor has not the checksum that the last of n deltas gives that changes it.
    can_be = np.ones(len(deltas) + 1, np.bool)
    can_be[0] = False
    changing: dict[str, list[int]] = {}
    for number, delta in enumerate(deltas):
        can_be[number + 1 :] &= bool(delta.algorithm)
        for key in delta.changes:
            changing.setdefault(key, []).append(number)
    for key, numbers in changing.items():
        sums: dict[str, str] = {}
        for number, after in zip(numbers, [*numbers[1:], len(deltas)], strict=True):
            kind, wanted = deltas[number].algorithm, deltas[number].changes[key].checksum
            if kind and kind not in sums and key in rows and can_be[number + 1 : after + 1].any():
                sums[kind] = _checksum_of(kind, blocks, [rows[key]])
            can_be[number + 1 : after + 1] &= sums.get(kind) == wanted
    return int(np.flatnonzero(can_be).max(initial=0))


def _checksum_of(kind: str, blocks: Blocks, rows: Sequence[int]) -> str:
    checksum = new_checksum(kind)
    for row in rows:
        flat = blocks.flat(row)
        for _, _, (read,) in leaf_reads(flat):
            checksum.update(read())
        flat.check()
    return checksum.hexdigest()


def notes_on_result(deltas: Sequence[PublishedDelta]) -> tuple[str, ...]:
    """Return the sentences about what was compared, and what was not; without deltas, of own ones."""
    if not deltas:
        return ("every tensor has the digest that the delta gives",)
    last = deltas[-1]
    note = "the result was not compared: the delta has no checksum of it"
    if last.algorithm:
        kinds = ", ".join(sorted({each.algorithm for each in deltas if each.algorithm}))
        note = f"every tensor that changed has the checksum that the delta gives ({kinds})"
    elif last.whole_sha256:
        note = "the result has the checksum that the delta gives (sha256)"
    return "the base was not compared: the dialect has no digest of it", note


def _read_changes(
    base: Blocks, rows: Mapping[str, int], deltas: Sequence[PublishedDelta], draft: DeltaDraft
) -> list[DeltaRow]:
    """Return the change of each tensor, after comparing its checksums; the frames go to the draft."""
    sums: dict[str, list[tuple[PublishedDelta, StreamChecksum]]] = {}

    def sums_of(key: str) -> list[tuple[PublishedDelta, StreamChecksum]]:
        if key not in sums:
            having = [each for each in deltas if each.algorithm and key in each.changes]
            sums[key] = [(each, new_checksum(each.algorithm)) for each in having]
        return sums[key]

    def add(key: str, leaf: LeafChange) -> None:
        for (_, checksum), octets in zip(sums_of(key), leaf.steps, strict=True):
            checksum.update(octets)

    changes: list[DeltaRow] = []
    with closing(draft_tensors(draft, _leaves(base, rows, deltas), add)) as tensors:
        for key, leaves in tensors:
            for delta, checksum in sums_of(key):
                if checksum.hexdigest() != delta.changes[key].checksum:
                    raise CorruptCheckpoint(
                        f"{delta.path}: {key!r} with the delta applied does not have the checksum "
                        f"that the delta gives ({delta.algorithm}): the base is another one, or the "
                        "delta is damaged.",
                        _OTHER_BASE,
                    )
            del sums[key]
            kind = CHANGED if draft.frames else EQUAL
            if kind == CHANGED:
                draft.keep(key)
            dtype, shape = base.tensors.fact(rows[key])
            digests = digests_of_changes(key, dtype, shape, leaves)
            changes.append(DeltaRow(key, kind, dtype, shape, *digests))
    return changes


def _leaves(
    base: Blocks, rows: Mapping[str, int], deltas: Sequence[PublishedDelta]
) -> Generator[LeafWork]:
    for key, row in rows.items():
        tensor, dtype = base.flat(row), base.tensors.dtype(row)
        changing: list[tuple[PublishedDelta, Patcher]] = []
        for delta in deltas:
            if key in delta.changes:
                with delta.at(key):
                    changing.append((delta, delta.changes[key].open(dtype, tensor.nbytes)))
        for start, stop, (read,) in leaf_reads(tensor):
            is_last, patches = stop == tensor.nbytes, list[tuple[Patch, bool]]()
            for delta, patcher in changing:
                with delta.at(key):
                    if stop:
                        patches.append((patcher.patch(start, stop), bool(delta.algorithm)))
                    if is_last:
                        patcher.finish()
            compare = partial(_patch_leaf, start // LEAF_NBYTES, read, patches, dtype)
            yield LeafWork(key, tensor.nbytes, compare if stop else list, is_last, [tensor])


def _patch_leaf(
    number: int, read: ReadBytes, patches: Sequence[tuple[Patch, bool]], dtype: str
) -> list[LeafChange]:
    """Return the change of a leaf by all deltas, and the leaf after each delta with a checksum."""
    old = read()
    new = thread_buffer(len(old), "span")
    new[:] = old
    steps = []
    for patch, has_checksum in patches:
        patch(new)
        if has_checksum:
            steps.append(bytes(new))
    return [compare_leaf(number, old, new, dtype)._replace(steps=steps)]


# The verb.


@contextmanager
def patched_source(
    base: Reader, own: Sequence[Delta], others: Sequence[PublishedDelta]
) -> Iterator[tuple[Reader, PatchedSource]]:
    """Open the result of deltas, which are own ones, or ``others`` of another program."""
    with ScratchFile() as scratch:
        if others:
            source, patched = apply_published(base, others, scratch)
        else:
            check_base(base, own)
            source = patched = PatchedSource.of(base, own)
        yield Reader(base.path, base.format, source), patched


@contextmanager
def applied(base: Location, deltas: Sequence[Location]) -> Iterator[Reader]:
    """Open the result of deltas on their base, before it is written."""
    with ExitStack() as stack:
        own, others = open_chain(deltas, stack)
        reader = stack.enter_context(open_found(base, dequantize=False))
        result, _ = stack.enter_context(patched_source(reader, own, others))
        yield result


@tells_requests
@named_arguments
def apply(
    base: Path,
    deltas: Path | Sequence[Path],
    target: Path,
    *,
    format: str | None = None,
    policy: Policy | None = None,
    partition: Partitions = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress = lambda _nbytes: None,
) -> ApplyReport:
    """Write the checkpoint that deltas make of their base.

    Parameters
    ----------
    base : path_like
        The checkpoint that the first delta was made of, in any format and shards.
    deltas : path_like or sequence of path_like
        The delta, or several in order: each was made of its predecessor's result. They may be
        of a dialect that ``delta`` writes; its files tell which.
    target : path_like
        The checkpoint to write. With ``force``, it may be the base.
    format : str, optional
        The format to write. By default the ending of ``target`` decides; without one it is the
        base's.
    policy : policy, optional
        The policy, which puts slices into files; one file by default.
    partition : partition or mapping of str to partition, optional
        The slices to write, as in ``save``; whole tensors by default.
    force : bool, default False
        Replace an existing checkpoint.
    dry_run : bool, default False
        Write nothing, and report what would be written.
    progress : callable, optional
        Called with numbers of payload bytes as they are written.

    Returns
    -------
    ApplyReport
        The report of what was written, or would be, and of what was compared.

    Raises
    ------
    CheckpointNotFound
        If there is no checkpoint at ``base``, or no delta.
    ArgumentError
        If ``base`` is another checkpoint than the delta was made of, or the deltas do not follow
        each other.
    CheckpointError
        If the base or a delta is damaged. The digest of each tensor of the result is compared
        before the commit, also of tensors that did not change.
    UnsupportedError
        If one of ``deltas`` is not a delta, or of a dialect that is not read, or the format cannot
        hold a tensor.
    MissingExtra
        If a dialect needs a package that is not installed.
    TargetExists
        If ``target`` exists and is not the result, and ``force`` is not set.
    StorageError
        If the disk is full, or the file system refuses.

    See Also
    --------
    delta : Make a delta.

    Notes
    -----
    Several deltas are applied at once: no checkpoint between is written. Memory: some MiB a thread,
    32 bytes for each MiB of a tensor, and the largest string tensor. Files of more than 16 deltas are
    open only while they are read; one that was replaced since it was checked is an error.

    An apply that is given again after it was committed finds the result in place, writes nothing, and
    sets ``already``. If the base is the target and the result of one of the deltas, only the
    later ones are applied. So a run that was killed at any time is given again as it was.

    Deltas of other programs name no digest of their base. So the report notes that the base was
    not compared. The checksums that they have are compared before the first byte is written.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import shardvar as sv
    >>> a, b, d, c = (os.path.join(tempfile.mkdtemp(), name) for name in ("a", "b", "d", "c.npz"))
    >>> table = np.arange(52, dtype=np.float32).reshape(13, 4)
    >>> _ = sv.save(a, {"table": table}, partition=5), sv.save(b, {"table": table + 1})
    >>> _ = sv.delta(a, b, d)
    >>> _ = sv.apply(a, d, c)
    >>> sv.diff(b, c).equal
    True
    """
    check_policy(policy)
    check_progress(progress)
    with ExitStack() as stack:
        # Find and check.
        given = find_deltas(deltas)
        own, others = open_chain(given, stack)
        found = find_checkpoint(base)
        check_not_a_part(found.format, found.storage, found.name, is_alone=True)
        # The target may be the base, and not a delta.
        goal = find_target(target, format, found.format.name, source=found)
        check_apart(goal, given, "a delta and the target")
        check_not_inside(goal, found, "base")
        reader = stack.enter_context(open_found(found, dequantize=False))
        check_no_delta(found.path, found.storage, found.format.name, reader.index)
        options = policy, partition, force, dry_run, progress
        work = _Apply(found, goal, reader, given, own, others, *options)
        try:
            return work.run()
        except (ArgumentError, CorruptCheckpoint):
            # In place, an earlier run may have applied some of the deltas, or all.
            count = 0 if dry_run or not work.is_in_place else work.count_applied()
            if not count:
                raise
        last = (own or others)[count - 1].path
        if count == len(given):
            return work.settle(last, notes_on_result(others))
        rest = replace(work, given=given[count:], own=own[count:], others=others[count:])
        report = rest.run()
        note = f"{found.path} was already the result of {last}"
        return replace(report, notes=(note, *report.notes))


@entity
class _Apply:
    found: Location
    goal: Location
    reader: Reader
    given: Sequence[Location]
    own: Sequence[Delta]
    others: Sequence[PublishedDelta]
    """The deltas of another program; empty if they are own ones."""
    policy: Policy | None
    partition: Partitions
    force: bool
    dry_run: bool
    progress: Progress

    @property
    def is_in_place(self) -> bool:
        return is_same(self.found, self.goal)

    def run(self) -> ApplyReport:
        """Write the result of deltas that follow each other; only report it if it is there."""
        last = (self.own or self.others)[-1].path
        notes = () if self.own and self.dry_run else notes_on_result(self.others)
        with patched_source(self.reader, self.own, self.others) as (result, patched):
            is_base = self.others and all(part.change.kind == EQUAL for part in patched.parts)
            as_it_is = self.policy is None and self.partition is None and not self.dry_run
            if is_base and self.is_in_place and as_it_is:
                return self.settle(last, notes)
            # Plan.
            try:
                write = self._rewrite(result, patched)
            except TargetExists:
                if self.dry_run or not self._is_there(result):
                    raise
                return self._report_there(result, last, notes)
            # Move and commit.
            return apply_report(write(), notes)

    def settle(self, delta: str, notes: tuple[str, ...]) -> ApplyReport:
        """Report that the base is the result of a delta; files of an interrupted run go as it is written again."""
        storage, stem = self.goal.storage, self.goal.stem
        names = storage.names()
        left = unfinished_files(names, "" if self.goal.is_folder else stem)
        if storage.local_path is not None and self.goal.is_folder:
            left += left_beside(storage.local_path)
        # A run that was killed has left its lock.
        if not self.force or not (left or f".{stem}.lock" in names):
            return self._report_there(self.reader, delta, notes)
        note = f"{self.goal.path} was already the result of {delta}"
        return apply_report(self._rewrite(self.reader, None)(), (note, *notes))

    def _rewrite(self, result: Reader, patched: PatchedSource | None) -> Callable[[], WriteReport]:
        """Return the write of a result, or its preview; without ``patched``, of the base as it is."""

        def plan(*given: Any, **options: Any) -> WritePlan:
            try:
                return plan_checkpoint(*given, policy=self.policy, force=self.force, **options)
            except UnsupportedError as error:
                # A tensor that the format cannot hold is not left out of a result.
                if "--exclude" not in error.remedy:
                    raise
                remedy = "Choose another format: format= (--format), or the ending of the target."
                raise UnsupportedError(error.cause, remedy) from None

        def stamp(work: WritePlan) -> str | None:
            # What an interrupted run of another dialect has finished is written again.
            is_own = patched is not None and not self.others
            base = digest_of_reshard([self.found], result, work) if is_own else None
            return None if base is None else self._stamp(base)

        def move(work: WritePlan, generation: str | None) -> WriteReport:
            runner = None
            if patched is not None:
                runner = checked(work.source, self.progress, patched.finish)
            return carry_out(work, generation, self.progress, runner)

        def carry_compared(work: WritePlan, *_: object, is_dry: bool) -> tuple[WritePlan, str]:
            # The digests of the last delta are compared before the commit.
            form = work.target.format
            if not form.capabilities.holds_digests or work.substitutes is not None:
                return work, f"The digests of the base are left out: {form.name} cannot carry them."
            changes = [each.change for each in patched.parts] if patched else []
            digests = {each.key: str(each.result) for each in changes}
            report = "" if is_dry else f"It carries the digests of {count(len(digests), 'tensor')}."
            return replace(work, metadata=replace(work.metadata, digests=digests)), report

        carry = find_carry(self.reader, False, False, False)
        if carry and patched is not None and self.own:
            carry = carry_compared
        return rewrite(
            [self.found],
            goal=self.goal,
            reader=result,
            changes=Changes(partition=self.partition),
            plan=plan,
            stamp=stamp,
            move=None if self.dry_run else move,
            carry=carry,
        )

    def _stamp(self, base: str) -> str:
        """Return a digest of the base and the plan, and of the deltas as they are now."""
        digest = hashlib.sha256(base.encode())
        for there, delta in zip(self.given, self.own, strict=True):
            # It has the checksums of all that the delta has.
            index = native_index_name(there.stem)
            file = open_below(there.storage, index)
            try:
                digest.update(f"{index} {file.stamp} {delta.contents.result}".encode())
            finally:
                file.close()
        return digest.hexdigest()[:16]

    def count_applied(self) -> int:
        """Return the number of deltas whose result the base is; 0 if that cannot be told."""
        try:
            if self.others:
                return count_published(self.reader, self.others)
            return count_applied(self.reader, self.own, self.goal.format.capabilities.holds_texts)
        except READ_ERRORS:
            return 0

    def _is_there(self, result: Reader) -> bool:
        names, capabilities = names_at(self.goal), self.goal.format.capabilities
        if len(names) != 1:
            return False
        try:
            with open_found(replace(self.goal, name=names[0]), dequantize=False) as there:
                if self.own:
                    return bool(count_applied(there, self.own[-1:], capabilities.holds_texts))
                return digests_of(there, [*there]) == digests_of(result, [*result])
        except (CheckpointError, StorageError, UnsupportedError):
            return False

    def _report_there(self, there: Reader, delta: str, notes: tuple[str, ...]) -> ApplyReport:
        path, slices = self.goal.path, there.listed().slices
        about = path, self.goal.format.name, there.metadata.description
        free = self.goal.storage.free_nbytes()
        values = *about, len(there), len(slices), 0, (), 0, 0, 0, free
        notes = (f"{path} is already the result of {delta}", *notes)
        return ApplyReport(*values, notes=notes, already=True)
