"""Reshard: write a checkpoint again in other slices, other files or another format, never holding a
tensor whole.

find     the source, and the location of the target
plan     which tensors, under which keys and dtypes, in which slices and files
move     through ``checkpoint.writing``, as a save does; the source is a checkpoint instead of
         arrays
commit   the index last; a run that was killed is taken up by its generation, a digest of all that
         it would write
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from shardvar.engine.pool import Progress
from shardvar.errors import ArgumentError, UnsupportedError
from shardvar.formats.deferred import prefer_whole
from shardvar.formats.parts import check_not_a_part
from shardvar.formats.protocol import Source
from shardvar.formats.published import check_no_delta
from shardvar.maps.map import Map
from shardvar.maps.ranks import numbers_sources
from shardvar.planning.index import EntryTable, Metadata, find_ties, take_tensors
from shardvar.planning.policies import Policy
from shardvar.verbs.arguments import check_policy, check_progress
from shardvar.verbs.carried import Carry, find_carry, find_objects, graph_left_out, readable_entries
from shardvar.verbs.conversions import Conversions, warn_without_scales
from shardvar.verbs.generation import digest_of_reshard
from shardvar.verbs.joining import open_numbered, open_sources
from shardvar.verbs.locate import Location, Path, find_checkpoint, find_target, is_inside, is_same
from shardvar.verbs.mapping import MapLike, as_map, map_and_report
from shardvar.verbs.part_places import Join
from shardvar.verbs.problems import Damage
from shardvar.verbs.ranks import is_by_rank, kept_report, path_of_rank, split_ranks, write_ranks
from shardvar.verbs.reader import Reader, open_found
from shardvar.verbs.renaming import new_names, select_keys
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.rescue import find_lost, note_of, without_lost
from shardvar.verbs.save import WRITER, check_keys
from shardvar.verbs.together.executors import Opening, check_executor, runner_of
from shardvar.verbs.writing import (
    Partitions,
    WritePlan,
    carry_out,
    check_may_write,
    plan_checkpoint,
    preview,
)


def reshard(
    source: Path | Sequence[Path],
    target: Path,
    *,
    format: str | None = None,
    policy: Policy | None = None,
    partition: Partitions = None,
    filter: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    strip_prefix: str | None = None,
    rename: Mapping[str, str] | None = None,
    add_prefix: str | None = None,
    map: MapLike | None = None,
    concat: Mapping[str, Join] | None = None,
    transpose: str | Iterable[str] | None = None,
    cast: Mapping[str, str] | str | None = None,
    dequantize: bool | str = False,
    digest: bool = False,
    keep_going: bool = False,
    force: bool = False,
    dry_run: bool = False,
    executor: Executor | None = None,
    progress: Progress = lambda _nbytes: None,
) -> WriteReport:
    """Write a checkpoint again in other slices, other files or another format, in bounded memory.

    This converts between formats, unshards (consolidates) sharded checkpoints into one file, shards
    whole ones, and merges several into one.

    Parameters
    ----------
    source : path_like or sequence of path_like
        The checkpoint to read, or several that become one. It is never changed.
    target : path_like
        The checkpoint to write. If the map makes one checkpoint a rank, ``{rank}`` or ``{rank:02}``
        in it is the number; a folder without it gets ``rank_0``, ``rank_1`` ...
    format : str, optional
        The format to write; by default the ending of ``target`` decides, or the source's format.
    policy : policy, optional
        The policy that says which slices share a file; one file by default.
    partition : partition or mapping of str to partition, optional
        The slices to write, as in ``save``; by default the source's.
    filter : str or iterable of str, optional
        Globs of keys; at least one must match. all tensors by default.
    exclude : str or iterable of str, optional
        Globs of keys; none may match.
    strip_prefix : str, optional
        A prefix that keys lose.
    rename : mapping of str to str, optional
        New names by old ones: globs, or of old names regular expressions with ``re:`` in front.
    add_prefix : str, optional
        A prefix that all keys get.
    map : Map, path_like or list of str, optional
        A map between model families, as ``sv.Map``: itself, its file, the name of a shipped one, or
        its rules. It sees the keys of ``source`` that ``filter`` and ``exclude`` take, and makes
        the tensors that all other arguments see. Rules with ``{rank}/`` before the key take the
        sources by their number, and make the targets.
    concat : mapping of str to int or (Mesh, spec), optional
        For several sources: by globs of keys, the axis along which their parts follow each other,
        or a mesh and a spec, where source ``i`` has what device ``i`` holds. Copies must be the
        same.
    transpose : str or iterable of str, optional
        Globs of matrices to transpose, by new names.
    cast : str or mapping of str to str, optional
        The dtype of all float tensors, or dtypes by globs of new names.
    dequantize : bool or dtype, default False
        Write the numbers of quantised tensors, as ``open_checkpoint`` reads them.
    digest : bool, default False
        Keep the digests of the tensors in the checkpoint, as ``save`` does. A source that carries
        digests has them compared, and the new checkpoint carries them where the format can.
    keep_going : bool, default False
        Leave out tensors that cannot be read, and list them in the report.
    force : bool, default False
        Replace an existing checkpoint.
    dry_run : bool, default False
        Write nothing, and report what would be written.
    executor : concurrent.futures.Executor, optional
        An executor whose workers write the files. They must see the same paths.
    progress : callable, optional
        Called with numbers of payload bytes as they are written.

    Returns
    -------
    WriteReport
        The report of what was written, or would be.

    Raises
    ------
    CheckpointNotFound
        If there is no checkpoint at ``source``.
    AmbiguousPath
        If ``source`` matches several checkpoints.
    CheckpointError
        If a tensor of the source is damaged or incomplete; every checksum is compared before the
        commit.
    TargetExists
        If ``target`` exists and ``force`` is not set.
    UnsupportedError
        If the format cannot hold a tensor, or workers cannot do what is asked.
    ArgumentError
        If a glob or a name matches nothing, two tensors would get one name, or source and target
        are the same.
    StorageError
        If the disk is full, or the file system refuses.
    WorkerLost
        If a worker of ``executor`` ended.

    See Also
    --------
    save : Write arrays.
    """
    check_policy(policy)
    check_progress(progress)
    given = None if map is None else as_map(map, keep_going)
    report_of_map: Callable[[], Any] | None = None
    # A map sees the keys that these take; the names of what it makes are no longer the source's.
    kept = (filter, exclude) if given is None else (None, None)
    names = *kept, strip_prefix, rename or {}, add_prefix
    changes = Changes(*names, Conversions(cast or None, transpose or None), partition, keep_going)
    dequantize = dequantize and changes.conversions.dtype_of_numbers(dequantize)
    plan = partial(plan_checkpoint, policy=policy, force=force)
    found = _find_sources(source, keep_going)
    by_rank = given is not None and is_by_rank(given, target)
    goal = _find_goal(found, path_of_rank(target, 0) if by_rank else target, format)
    if (reads := goal.format.reads) is not None:
        found = [replace(x, format=reads) if x.format.name == reads.name else x for x in found]
    with _open(found, given, concat, filter, exclude, dequantize, changes, executor) as reader:
        stamp, opened = partial(digest_of_reshard, found, reader), reader.source
        is_made = len(found) > 1 or concat or dequantize
        carry = find_carry(reader, digest, not is_made, keep_going)
        if given is not None:
            # Of several sources, the keys were chosen before they were joined.
            chosen = (filter, exclude, None) if len(found) == 1 else (None, None, len(found))
            reader, report_of_map = map_and_report(reader, given, *chosen)
        move = partial(
            _move, executor=executor, found=found, dequantize=dequantize, progress=progress
        )
        write = partial(rewrite, found, changes, plan, stamp, None if dry_run else move, carry)
        if by_rank:
            # All is planned and checked before the first is written.
            goals = (_find_goal(found, path_of_rank(target, rank), format) for rank in count())
            ranks = [*zip(goals, split_ranks(reader), strict=False)]
            report = write_ranks(target, ranks, write, dry_run=dry_run)
        else:
            report = write(goal, reader)()
        report = replace(report, dequantized=_dequantized(opened) if dequantize else ())
        return replace(report, map=report_of_map()) if dry_run and report_of_map else report


_UNCHANGED = Conversions(None, None)


def _dequantized(source: Source) -> tuple[str, ...]:
    from shardvar.verbs.dequantization import keys_of_numbers

    return keys_of_numbers(source)


@dataclass(frozen=True, slots=True)
class Changes:
    """Which tensors are taken, which keys and dtypes they get, and how they are cut."""

    filter: str | Iterable[str] | None
    """Globs of keys; at least one must match."""
    exclude: str | Iterable[str] | None
    """Globs of keys; none may match."""
    strip_prefix: str | None
    """A prefix that keys lose."""
    rename: Mapping[str, str]
    """New names by old ones."""
    add_prefix: str | None
    """A prefix that all keys get."""
    conversions: Conversions
    """The tensors that get other dtypes or axes."""
    partition: Partitions
    """The slices to write."""
    keep_going: bool
    """True to leave out tensors that cannot be read."""


def rewrite(
    found: Sequence[Location],
    changes: Changes,
    plan: Callable[..., WritePlan],
    stamp: Callable[[Source, WritePlan], str | None],
    move: Callable[..., WriteReport] | None,
    carry: Carry | None,
    goal: Location,
    reader: Reader,
    keep: bool = False,
) -> Callable[[], WriteReport]:
    """Plan and check a write; return what carries it out, or only reports it without ``move``, or
    with ``keep`` leaves a target that has all of it already."""
    check_no_delta(found[0].path, found[0].storage, found[0].format.name, reader.index)
    # Plan.
    # Of several sources, the keys were chosen before they were joined.
    is_one = len(found) == 1
    kept = select_keys(reader.keys(), changes.filter, changes.exclude) if is_one else set(reader)
    left_out = graph_left_out(reader, goal.format, kept)
    kept -= {*left_out}
    objects = find_objects(reader, goal.format, kept)
    lost = _lost(reader, kept, objects, changes) if changes.keep_going else ()
    gone = {each.key for each in lost if each.key is not None} if lost else set[str]()
    chosen = _select(reader, kept, objects, changes, gone)
    metadata = _metadata(reader, chosen, objects, lost)
    partition = changes.partition
    if lost:
        partition = without_lost(partition, chosen.entries.slices.tensors.keys, chosen.lost)
    payloads, entries = chosen.source, chosen.entries
    found_ties = {**find_ties(take_tensors(reader.entries(), chosen.names)), **reader.metadata.ties}
    ties = {chosen.names[key]: chosen.names[first] for key, first in found_ties.items()}
    untied = tuple(ties.items())
    if ties and _keeps_ties(goal, changes):
        others = set(entries.slices.tensors.keys).difference(ties)
        entries, metadata, untied = take_tensors(entries, others), replace(metadata, ties=ties), ()
    work = plan(goal, entries, partition=partition, metadata=metadata, source=payloads)
    said = ""
    if carry is not None:
        given = payloads, chosen.entries, chosen.names, objects
        work, said = carry(work, reader, *given, is_dry=move is None)
    if changes.conversions.cast:
        warn_without_scales(goal.path, payloads, chosen.entries)
    generation = stamp(payloads, work)
    # Check, before a directory is made; a write checks again under its lock.
    if move is not None:
        check_may_write(work)
        for error in reader.source.storage_errors(kept - gone).values():
            raise error

    def write() -> WriteReport:
        # Move and commit.
        kept = kept_report(work, payloads) if keep else None
        made = (
            preview(work, generation) if move is None else kept or move(work, payloads, generation)
        )
        return replace(made, lost=lost, untied=untied, left_out=left_out, digests=said)

    return write


def _keeps_ties(goal: Location, changes: Changes) -> bool:
    """Return True if tied tensors become the same bytes in the target, which can hold that."""
    is_same = changes.conversions == _UNCHANGED and not isinstance(changes.partition, Mapping)
    return goal.format.capabilities.holds_ties and is_same


def _move(
    work: WritePlan,
    source: Source,
    generation: str | None,
    *,
    executor: Executor | None,
    found: Sequence[Location],
    dequantize: bool | str,
    progress: Progress,
) -> WriteReport:
    """Write the files, here or by the workers of an executor, and commit."""
    if executor is None:
        return carry_out(work, source, generation, progress)
    check_executor(executor)
    if work.substitutes is not None:
        cause = "The policy changed values, which only this process has."
        raise UnsupportedError(
            cause, "Leave the executor out, or give a policy that only assigns slices to files."
        )
    opening = Opening(found[0], dequantize, tuple(found[1:]))
    runner = runner_of(executor, opening, source, progress)
    return carry_out(work, source, generation, progress, runner)


def _open(
    found: Sequence[Location],
    given: Map | None,
    concat: Mapping[str, Join] | None,
    filter: str | Iterable[str] | None,
    exclude: str | Iterable[str] | None,
    dequantize: bool | str,
    changes: Changes,
    executor: Executor | None,
) -> Reader:
    """Open the sources: one, or several that ``concat`` or the ranks of a map join."""
    if len(found) == 1 and not concat:
        reader = open_found(found[0], dequantize=dequantize)
        names = changes.strip_prefix, changes.rename, changes.add_prefix
        others = given, executor, dequantize, changes.keep_going, *names
        if found[0].storage.traits is not None and not any(others):
            prefer_whole(reader.index, changes.conversions == _UNCHANGED)
        return reader
    if given is None or not numbers_sources(given.parsed, len(found)):
        return open_sources(found, concat or {}, filter, exclude, dequantize=dequantize)
    if concat:
        cause = "Both the map, by ranks, and concat join the sources."
        raise ArgumentError(cause, "Leave concat (--concat) out.")
    return open_numbered(found, filter, exclude, dequantize=dequantize)


def _find_sources(source: Path | Sequence[Path], keep_going: bool) -> list[Location]:
    """The locations of sources."""
    given: Any = source
    is_one = isinstance(given, str | bytes | os.PathLike) or not isinstance(given, Iterable)
    sources: list[Path] = [given] if is_one else list(given)
    if not sources:
        raise ArgumentError("There is no source.", "Give the path of a checkpoint.")
    if len(sources) > 1 and keep_going:
        raise ArgumentError(
            "Several sources are joined only if all are whole.",
            "Rescue them one by one, then join.",
        )
    found = list(map(find_checkpoint, sources))
    for each in found:
        check_not_a_part(each.format, each.storage, each.name, is_alone=len(found) == 1)
    return found


def _find_goal(found: Sequence[Location], target: Path, format: str | None) -> Location:
    """The location of a target, which must not be a source."""
    goal = find_target(target, format, otherwise=found[0].format.name)
    for each in found:
        if is_same(each, goal):
            raise ArgumentError(
                f"{each.path} is both the source and the target.", "Choose another target."
            )
        if is_inside(goal, each):
            raise ArgumentError(
                f"{goal.path} is a folder of the source {each.path}.", "Choose another target."
            )
    return goal


class _Chosen(NamedTuple):
    """The tensors to write, under their new keys and dtypes."""

    entries: EntryTable
    """Their entries."""
    source: Source
    """The source that reads and converts them."""
    names: Mapping[str, str]
    """The new names of their keys and of objects."""
    encodings: Mapping[str, str]
    """The encodings of blocks, by new names."""
    lost: Sequence[str]
    """The names that lost tensors would have."""


def _select(
    reader: Reader,
    kept: set[str],
    objects: Mapping[str, bytes],
    changes: Changes,
    gone: set[str],
) -> _Chosen:
    """The tensors to write: kept keys that are not ``gone``; patterns may match lost ones."""
    entries = readable_entries(reader, kept - gone, {*objects})
    tensors = entries.slices.tensors
    lost = [key for key in reader if key in gone]
    keys = [*tensors.keys, *objects, *lost]
    renamed = keys
    if changes.rename or changes.strip_prefix or changes.add_prefix:
        renamed = new_names(keys, changes.rename, changes.strip_prefix, changes.add_prefix)
        check_keys(renamed)
    new = dict(zip(keys, renamed, strict=True))
    lost = [new.pop(key) for key in lost]
    encodings = {new[key]: encoding for key, encoding in reader.encodings.items() if key in new}
    source, names = reader.source, tensors.keys if renamed is keys else renamed[: len(tensors)]
    if changes.conversions != _UNCHANGED or renamed is not keys:
        entries, source = changes.conversions.of(source, entries, names, encodings, lost)
    return _Chosen(entries, source, new, encodings, lost)


def _lost(
    reader: Reader, kept: set[str], objects: Mapping[str, bytes], changes: Changes
) -> tuple[Damage, ...]:
    """The tensors that cannot be read."""
    # A pattern that is wrong is found before all is read.
    unreadable = kept.intersection(reader.faults).difference(objects)
    _select(reader, kept, objects, changes, unreadable)
    return find_lost(reader, kept.difference(objects))


def _metadata(
    reader: Reader, chosen: _Chosen, objects: Mapping[str, bytes], lost: tuple[Damage, ...]
) -> Metadata:
    """The metadata that are kept with the tensors."""
    new = chosen.names
    user = dict(reader.metadata.user)
    if lost:
        user |= note_of(lost)
    if chosen.encodings:  # without them, nothing would say what the bytes of blocks mean
        user["encodings"] = json.dumps(chosen.encodings)
    empty = reader.metadata.empty if {*zip(reader, reader, strict=True)} <= new.items() else {}
    known = reader.metadata.paths.items()
    paths = {key: steps for key, steps in known if new.get(key) == key or key in empty}
    carried = dict(zip(map(new.__getitem__, objects), objects.values(), strict=True))
    return Metadata(writer=WRITER, user=user, paths=paths, objects=carried, empty=empty)
