"""Reshard: write a checkpoint again in other slices, other files or another format, never holding a
tensor whole.

    find     the source, and the location of the target
    plan     which tensors, under which keys and dtypes, in which slices and files
    move     through ``verbs.writing``, as a save does; the source is a checkpoint instead of
             arrays
    commit   the index last; a run that was killed is taken up by its generation, a digest of all that
             it would write

Tensors change their names, axes and dtypes on the way:

    stored entries --names, transpose--> --cast--> entries to write

New names and transposes are one map, whose rules are ``KEY -> NAME`` and ``KEY[a b] -> NAME[b a]``.
Each step gives entries and a source that reads them, so that planning and the engine see tensors as
they will be. Globs are of the keys of the target. A glob that matches nothing is an error.

Objects that a checkpoint holds next to its tensors are carried along:

    between distributed           as they are, of any class
      checkpoints of PyTorch
    to a format that holds        plain ones, as their encodings (``wire.plain``); ``formats.objects``
      objects                     has their places in each format
    to any other                  as string tensors of their literals, if it holds strings; else
                                  refused by name, and a filter leaves them out

TensorFlow's graph of objects is a string tensor that only TensorFlow reads. A format without
strings leaves it out, which the report tells.

An object of a class that is not plain is refused by name. One that would run code when it is loaded
is never carried.

Digests of tensors are carried as well, where they were compared or computed (``compare.claims``).

To leave out lost tensors, every payload is read and compared before the first byte is written:
which tensors the target has must be known when it is planned. A reshard that keeps going therefore
reads the source twice.

A *generation*, a digest, names the asides of a reshard, so that a second run takes up the files
that a first one has finished. It covers the files that are read, as they are now; the stored
entries; all that is made of them on the way; and the plan.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, contextmanager
from functools import partial
from inspect import signature, unwrap
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from shardvar.engine.cast import CastSource, cast_entries
from shardvar.engine.mapped import MappedSource, mapped
from shardvar.engine.pool import Progress
from shardvar.engine.quantised import BlockSource, EncodedSource
from shardvar.errors import (
    ArgumentError,
    CorruptCheckpoint,
    ReadError,
    UnsupportedError,
    log_warning,
)
from shardvar.formats.deferred import prefer_whole
from shardvar.formats.files import open_below
from shardvar.formats.parts import check_not_a_part
from shardvar.formats.protocol import Format, Source, WrappedSource
from shardvar.formats.published import check_no_delta
from shardvar.layout.dtypes import ITEMSIZES, STRING, is_floating, is_whole, parse_dtype
from shardvar.maps.map import Map, numbers_sources
from shardvar.maps.plan import plan_short_rules
from shardvar.maps.report import MapReport
from shardvar.pictures.words import human_shape, named
from shardvar.planning.index import EntryTable, Metadata, find_ties, take_tensors
from shardvar.planning.policies import Policy
from shardvar.planning.policies.max_shard_size import OBJECT_GRAPH_KEY
from shardvar.records import field, frozen, replace
from shardvar.storage.scratch import map_scratch
from shardvar.verbs.arguments import (
    check_globs,
    check_policy,
    check_progress,
    named_arguments,
    strings_of,
)
from shardvar.verbs.coded import DTYPES
from shardvar.verbs.dequantization import keys_of_numbers
from shardvar.verbs.joined_source import JoinedSource
from shardvar.verbs.joining import Join, open_numbered, open_sources
from shardvar.verbs.locate import (
    Location,
    Path,
    SplitPath,
    check_apart,
    check_not_inside,
    find_below,
    find_target,
    look_at,
    only_one,
    paths_of,
)
from shardvar.verbs.mapping import (
    MapLike,
    as_map,
    is_by_rank,
    kept_report,
    map_and_report,
    path_of_rank,
    split_ranks,
    write_ranks,
)
from shardvar.verbs.model_folder import components_of, with_model_files, write_pipeline
from shardvar.verbs.problems import Damage
from shardvar.verbs.quantization import check_not_quantised, quantised, scheme_named
from shardvar.verbs.reader import Reader, find_objects, first_fault, open_found, warn_of_files
from shardvar.verbs.renaming import Globs, matches_any, matching, new_names, select_keys, such_as
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.save import WRITER, check_keys
from shardvar.verbs.together.executors import Opening, check_executor, check_payloads, runner_of
from shardvar.verbs.writing import (
    Partitions,
    WritePlan,
    carry_out,
    check_may_write,
    plan_checkpoint,
    preview,
    rehearse,
    tells_requests,
)

_NEW = "Globs are of the names in the target. "


@frozen
class Conversions:
    cast: Mapping[str, str] | str | None = None
    """Dtypes by globs, or the dtype of all floating-point tensors."""
    transpose: Globs = None
    """Globs of matrices to transpose."""
    quantize: str | None = None
    """The scheme that matrices are quantised to, after everything else."""
    keep: Globs = None
    """Globs of matrices that are not quantised."""

    def dtype_of_numbers(self, dequantize: bool | str) -> bool | str:
        """Dequantize to the dtype of a cast, so that a number is rounded once; else to float32."""
        if dequantize is not True or not self.cast:
            return dequantize
        dtype = parse_dtype(self.cast) if isinstance(self.cast, str) else "float32"
        return dtype if dtype in DTYPES else "float32"

    def of(
        self,
        source: Source,
        stored: EntryTable,
        names: Sequence[str],
        encodings: Mapping[str, str],
        lost: Sequence[str] = (),
    ) -> tuple[EntryTable, Source]:
        """Return the converted entries and the source that reads them.

        ``names`` are the tensors' new names, by which ``encodings`` are given. A glob that matches
        only ``lost`` tensors, which are left out, is not wrong.
        """
        tensors = stored.slices.tensors
        ranks = tensors.ranks.tolist()
        is_matrix = np.zeros(len(tensors), np.bool)
        for glob in [] if self.transpose is None else strings_of(self.transpose, "globs"):
            hits = [row for row, name in enumerate(names) if matches_any(name, [glob])]
            for row in hits:
                key, dtype, shape = names[row], *tensors.fact(row)
                if len(shape) > 2:
                    cause = f"{key!r} has the shape {human_shape(shape)}, and only matrices are transposed."
                    raise ArgumentError(cause, "Choose a glob that does not match it.")
                if len(shape) == 2 and is_whole(dtype):
                    raise ArgumentError(
                        f"{key!r} is of dtype {dtype}, which is never cut or transposed.",
                        "Choose numbers.",
                    )
                if key in encodings:
                    raise _of_blocks(key, encodings[key], "transposed")
            # As in NumPy, a vector is its own transpose: a glob of kernels may match biases too.
            matrices = [row for row in hits if ranks[row] == 2]
            if not matrices and not matching(lost, glob):
                found = [name for name, rank in zip(names, ranks, strict=True) if rank == 2]
                raise ArgumentError(
                    f"No matrix matches {glob!r}, so none is transposed.", _NEW + such_as(found)
                )
            is_matrix[matrices] = True
        if is_matrix.any() or names is not tensors.keys:
            plan = plan_short_rules(tensors, names, is_matrix)
            stored, source = mapped(source, stored, plan, map_scratch)
        cast = {} if self.cast is None else self.cast
        stored, source = _cast(source, stored, cast, encodings, lost)
        if self.quantize is None:
            return stored, source
        return quantised(source, stored, self.quantize, self.keep, lost)


def warn_without_scales(path: str, source: Source, entries: EntryTable) -> None:
    """A cast to 8 bits only rounds, and programs that read such models expect scales."""
    if not isinstance(source, CastSource):
        return
    tensors, before = entries.slices.tensors, source.stored.slices.tensors.codes
    rows = np.flatnonzero((ITEMSIZES[tensors.codes] == 1) & (ITEMSIZES[before] > 1)).tolist()
    dtypes = {tensors.keys[row]: tensors.dtype(row) for row in rows}
    keys = [key for key, dtype in dtypes.items() if is_floating(dtype)]
    if keys:
        kinds = ", ".join(dict.fromkeys(map(dtypes.__getitem__, keys)))
        cause = f"{path}: no scales are written with {named(keys)}, cast to {kinds}."
        remedy = (
            "Programs that run such models expect scales (weight_scale): quantise with their tools."
        )
        log_warning(f"{cause} {remedy}")


def _cast(
    source: Source,
    stored: EntryTable,
    cast: Mapping[str, str] | str,
    encodings: Mapping[str, str],
    lost: Sequence[str],
) -> tuple[EntryTable, Source]:
    tensors, dtypes = stored.slices.tensors, dict[str, str]()
    wanted: Iterable[tuple[str | None, str]]
    if isinstance(cast, Mapping):
        check_globs(cast, "globs to dtypes")
        wanted = cast.items()
    else:
        wanted = [(None, cast)]
    for glob, given in wanted:  # of several globs that match, the last one counts
        dtype = parse_dtype(given)
        if glob is not None:
            hits, is_lost = matching(tensors.keys, glob), bool(matching(lost, glob))
            which, remedy = f"matches {glob!r}", _NEW + such_as(tensors.keys)
        else:
            hits = [key for row, key in enumerate(tensors.keys) if is_floating(tensors.dtype(row))]
            is_lost, which, remedy = bool(lost), "has floating-point numbers", "Leave it out."
        if not hits and not is_lost:
            raise ArgumentError(f"No tensor {which}, so none is cast to {dtype}.", remedy)
        dtypes |= dict.fromkeys(hits, dtype)
    for key in filter(encodings.__contains__, dtypes):
        raise _of_blocks(key, encodings[key], f"cast to {dtypes[key]}")
    if not dtypes:
        return stored, source
    return cast_entries(stored, dtypes), CastSource.of(source, stored)


def _of_blocks(key: str, encoding: str, change: str) -> ArgumentError:
    cause = f"{key!r} consists of blocks of {encoding}: {change}, their bytes would mean nothing."
    return ArgumentError(cause, "Dequantize first: dequantize=True (--dequantize).")


Carry = Callable[..., tuple[WritePlan, str]]
"""Gives a write the digests that it is to carry, as ``compare.claims.carry_digests``."""


def graph_left_out(reader: Reader, form: Format, keys: Collection[str]) -> tuple[str, ...]:
    """The key of TensorFlow's graph of objects if ``form`` cannot hold it next to others."""
    tensors = reader.entries().slices.tensors
    row = tensors.rows().get(OBJECT_GRAPH_KEY)
    if row is None or STRING in form.capabilities.dtypes or len(keys) == 1:
        return ()
    return (OBJECT_GRAPH_KEY,) * (tensors.dtype(row) == STRING)


def find_carry(reader: Reader, is_asked: bool, is_stored: bool, keep_going: bool) -> Carry | None:
    """The digests that a reshard carries on or makes. ``is_stored``: the keys are the file's."""
    if not is_asked and not reader.metadata.has_digests:
        return None
    from shardvar.verbs.compare.claims import carry_digests  # only where digests are carried

    return partial(carry_digests, reader, is_stored, is_asked, keep_going)


LOST = "shardvar.lost"
"""The name in the metadata under which a target lists what could not be rescued."""


def digest_of_reshard(found: Sequence[Location], reader: Reader, work: WritePlan) -> str | None:
    """None where the plan does not tell all that is written."""
    if work.substitutes is not None:  # they are not in the plan
        return None
    # The entries as the index gives them: what a cast makes of the same bytes depends on the dtype
    # they are stored in.
    stored, source, made = work.entries, work.source, b""
    if isinstance(source, EncodedSource):
        made, stored, source = _blocks(source), source.stored, source.inner
    if isinstance(source, CastSource):
        stored, source = source.stored, source.inner
    used = source.files_read(stored)
    while isinstance(source, MappedSource):  # a map, and transposes of its tensors
        stored, made, source = source.stored, made + source.digest(), source.inner
    made += _blocks(source)
    named = " ".join(map("{0.path} {0.format.name}".format, found))
    digest = hashlib.sha256(f"{WRITER} {named} {work.target.format.name}".encode())
    digest.update(
        repr((work.assignment.num_files, work.metadata, made)).encode("utf-8", "surrogateescape")
    )
    joined, files = reader.source.places, reader.index.files
    for number in used.tolist():  # a file that is not needed may be missing
        storage, name = joined[number] if joined else (found[0].storage, files[number])
        with closing(open_below(storage, name)) as file:
            digest.update(f"{name} {file.stamp}".encode("utf-8", "surrogateescape"))
    columns = [stored.file, stored.start, stored.checksum, work.assignment.file]
    for slices in (work.assignment.slices, stored.slices):
        # Separated by NUL: without it, the keys "ab", "c" and "a", "bc" would give one digest.
        digest.update("\0".join(slices.tensors.keys).encode("utf-8", "surrogateescape"))
        columns += [slices.tensors.codes, slices.tensor, slices.offset, slices.shape, slices.nbytes]
    for column in columns:
        digest.update(np.ascontiguousarray(column, dtype=np.int64).tobytes())
    # 64 bits keep names short, and two writes into one directory do not get the same ones by
    # chance.
    return digest.hexdigest()[:16]


def _blocks(source: Source) -> bytes:
    """The blocks of quantised tensors, which a model's description gives, and no file with values."""
    if isinstance(source, JoinedSource):
        return b"".join(map(_blocks, source.sources))
    if isinstance(source, BlockSource):
        return repr([*dict.fromkeys(source.quantised.values())]).encode("utf-8", "surrogateescape")
    return _blocks(source.inner) if isinstance(source, WrappedSource) else b""


@tells_requests
@named_arguments
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
    quantize: str | None = None,
    keep: str | Iterable[str] | None = None,
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
        in it is the number; a folder without it gets ``rank_0``, ``rank_1`` ... Of safetensors, a
        path without that ending is a folder, which also gets the other files of a model folder.
    format : str, optional
        The format to write; by default the ending of ``target`` decides, or the source's format.
    policy : policy, optional
        The policy that decides which slices share a file; one file by default.
    partition : partition or mapping of str to partition, optional
        The slices to write, as in ``save``; by default the source's.
    filter : str or iterable of str, optional
        Globs of keys; at least one must match. all tensors by default.
    exclude : str or iterable of str, optional
        Globs of keys; none may match.
    strip_prefix : str, optional
        A prefix that keys lose, before a map sees them.
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
    quantize : str, optional
        The scheme to quantise matrices ``X.weight`` to, after all other changes, such as
        ``"nvfp4"`` or ``"int4:32"``. The error of another name lists the schemes.
    keep : str or iterable of str, optional
        Globs of keys or modules that stay, next to embeddings, norms, routers and heads.
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
        If the format cannot hold a tensor, or workers cannot do this.
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
    options = {**locals()}
    check_policy(policy)
    check_progress(progress)
    changes = _changes(options)
    dequantize = dequantize and changes.conversions.dtype_of_numbers(dequantize)
    plan = partial(plan_checkpoint, policy=policy, force=force)
    places = [look_at(each) for each in paths_of(source)]
    if components := components_of(places):
        return write_pipeline(components, places[0], unwrap(reshard), options)
    found = _find_sources(places, keep_going)
    given = None if map is None else as_map(map, keep_going, [each.path for each in found])
    by_rank = is_by_rank(target, given)
    goal = _find_goal(found, path_of_rank(target, 0) if by_rank else target, format, by_rank)
    if (reads := goal.format.reads) is not None:
        found = [replace(x, format=reads) if x.format.name == reads.name else x for x in found]
    with _open(found, given, options, dequantize, changes) as reader:
        stamp, opened = partial(digest_of_reshard, found, reader), reader.source
        carry = find_carry(reader, digest, not (found[1:] or concat or dequantize), keep_going)
        reader, report_of_map = _mapped(reader, given, len(found), changes, options)
        move = partial(
            _move, executor=executor, found=found, dequantize=dequantize, progress=progress
        )
        write = partial(rewrite, found, changes, plan, stamp, None if dry_run else move, carry)
        if by_rank:
            goals = (_find_goal(found, path_of_rank(target, n), format, True) for n in count())
            ranks = [*zip(goals, split_ranks(reader), strict=False)]
            report = write_ranks(target, ranks, write, dry_run=dry_run)
        else:
            report = write(goal, reader)()
        told = report_of_map() if dry_run and report_of_map else None
        numbers = keys_of_numbers(opened) if dequantize else ()
        united = len(found) * (found[1:] != [] and given is None and type(opened) is JoinedSource)
        return replace(report, dequantized=numbers, num_united=united, map=told)


def _mapped(
    reader: Reader,
    given: Map | None,
    number: int,
    changes: "Changes",
    asked: Mapping[str, Any],
) -> tuple[Reader, Callable[[], Any] | None]:
    if changes.conversions.quantize is not None:
        check_not_quantised(reader)
    if given is None:
        return reader, None
    # Of several sources, the keys were chosen before they were joined.
    strip_prefix = asked["strip_prefix"]
    if number > 1:
        return map_and_report(reader, given, None, None, number, strip_prefix)
    return map_and_report(reader, given, asked["filter"], asked["exclude"], None, strip_prefix)


def _find_sources(places: Sequence[SplitPath], keep_going: bool) -> list[Location]:
    if not places:
        raise ArgumentError("There is no source.", "Give the path of a checkpoint.")
    if len(places) > 1 and keep_going:
        raise ArgumentError(
            "Several sources are joined only if all are whole.",
            "Rescue them one by one, then join.",
        )
    locations = [only_one(each, find_below(each)) for each in places]
    for each in locations:
        if not each.members:
            check_not_a_part(each.format, each.storage, each.name, is_alone=len(locations) == 1)
    return locations


def _changes(asked: Mapping[str, Any]) -> "Changes":
    quantize, keep = asked["quantize"], asked["keep"] or None
    if quantize is None and keep is not None:
        raise ArgumentError(
            "Nothing is quantised, so nothing is kept.", "Leave keep= (--keep) out."
        )
    if quantize is not None:
        scheme_named(quantize)
    if quantize is not None and asked["executor"] is not None:
        cause = "The workers of an executor do not quantise."
        raise UnsupportedError(cause, "Leave executor= (--workers, --dask) out.")
    conversions = Conversions(asked["cast"] or None, asked["transpose"] or None, quantize, keep)
    names: tuple[str, ...] = ("add_prefix", "partition", "keep_going")
    # A map sees the keys that these leave; the tensors that it makes have other names than the source's.
    names += ("filter", "exclude", "strip_prefix") if asked["map"] is None else ()
    own = {name: asked[name] for name in names}
    return Changes(**own, rename=asked["rename"] or {}, conversions=conversions)


_UNCHANGED = Conversions()


@frozen
class Changes:
    filter: Globs = None
    """Globs of keys; at least one must match."""
    exclude: Globs = None
    """Globs of keys; none may match."""
    strip_prefix: str | None = None
    rename: Mapping[str, str] = field(default_factory=dict)
    add_prefix: str | None = None
    conversions: Conversions = _UNCHANGED
    partition: Partitions = None
    keep_going: bool = False
    """True to leave out tensors that cannot be read."""


def rewrite(
    found: Sequence[Location],
    changes: Changes,
    plan: Callable[..., WritePlan],
    stamp: Callable[[WritePlan], str | None],
    move: Callable[..., WriteReport] | None,
    carry: Carry | None,
    goal: Location,
    reader: Reader,
    keep: bool = False,
) -> Callable[[], WriteReport]:
    """Plan and check; return the function that writes. ``keep`` leaves a finished target as it is."""
    check_no_delta(found[0].path, found[0].storage, found[0].format.name, reader.index)
    # Plan.
    kept, left_out, objects = _kept(reader, changes, goal.format, len(found))
    is_all = changes.filter is None and changes.exclude is None
    for fault in reader.source.file_faults().values() if is_all and not changes.keep_going else ():
        raise first_fault(reader) or fault
    lost = _find_lost(reader, kept, objects, changes) if changes.keep_going else ()
    warn_of_files(reader, {each.file for each in lost})
    gone = {each.key for each in lost if each.key is not None} if lost else set[str]()
    chosen = _select(reader, kept, objects, changes, gone)
    metadata = _metadata(reader, chosen, objects, lost)
    payloads, partition, names = chosen.source, chosen.partition, chosen.names
    ties = {**find_ties(take_tensors(reader.entries(), names)), **reader.metadata.ties}
    ties = {names[key]: names[first] for key, first in ties.items()}
    entries, untied = chosen.entries, tuple(ties.items())
    # Tied tensors become the same bytes in the target only if nothing changes them.
    is_same = changes.conversions == _UNCHANGED and not isinstance(partition, Mapping)
    if ties and is_same and goal.format.capabilities.holds_ties:
        others = set(entries.slices.tensors.keys).difference(ties)
        entries, metadata, untied = take_tensors(entries, others), replace(metadata, ties=ties), ()
    _check_blocks(goal, payloads)
    work = plan(goal, entries, partition=partition, metadata=metadata, source=payloads)
    sentence = ""
    if carry is not None:
        given = chosen.entries, chosen.names, objects
        work, sentence = carry(work, reader, *given, is_dry=move is None)
    if is_cast := bool(changes.conversions.cast):
        warn_without_scales(goal.path, payloads, chosen.entries)
    work, files = with_model_files(work, found, reader, is_cast=is_cast)
    generation = stamp(work)
    # Check, before a directory is made; a write checks again under its lock.
    if move is not None:
        check_may_write(work)
        for error in reader.source.storage_errors(kept - gone).values():
            raise error
    else:
        rehearse(lambda: reader.source.storage_errors(kept - gone))

    def write() -> WriteReport:
        # Move and commit.
        kept = kept_report(work) if keep else None
        made = preview(work, generation) if move is None else kept or move(work, generation)
        made = replace(made, lost=lost, untied=untied, left_out=left_out, digests=sentence)
        return files.add_to(made)

    return write


def _check_blocks(goal: Location, source: Source) -> None:
    name = goal.format.name
    if isinstance(source, EncodedSource) and source.encoder.nbytes and name != "gguf":
        cause = f"The format {name} does not keep the type of blocks of {source.encoder.kind}."
        raise UnsupportedError(cause, "Give a target that ends in .gguf, or choose another scheme.")


def _kept(
    reader: Reader, changes: Changes, form: Format, number: int
) -> tuple[set[str], tuple[str, ...], Mapping[str, bytes]]:
    """The keys that a format gets of ``number`` sources, the keys that it cannot hold, the objects."""
    # Of several sources, the keys were chosen before they were joined.
    kept = (
        select_keys(list(reader), changes.filter, changes.exclude) if number == 1 else set(reader)
    )
    left_out = graph_left_out(reader, form, kept) if OBJECT_GRAPH_KEY in kept else ()
    kept.difference_update(left_out)
    return kept, left_out, find_objects(reader, form, kept)


class Derived(NamedTuple):
    """The result of a reshard, before it is written."""

    entries: EntryTable
    source: Source
    names: Mapping[str, str]
    """The new names, by the keys that the map made, or else by the keys of the sources."""
    objects: Mapping[str, bytes]
    """The encodings of objects by their new names."""
    map: MapReport | None
    """The report of the map; None without one."""
    numbers: Collection[str]
    """The keys of the sources that were dequantised."""


@contextmanager
def derived(
    found: Sequence[Location], form: Format, options: Mapping[str, Any]
) -> Iterator[Derived]:
    """Open what ``reshard`` would write of sources in a format, by its arguments' names."""
    asked = dict.fromkeys(signature(reshard).parameters) | dict(options)
    changes, dequantize = _changes(asked), asked["dequantize"] or False
    dequantize = dequantize and changes.conversions.dtype_of_numbers(dequantize)
    paths = [each.path for each in found]
    given = None if asked["map"] is None else as_map(asked["map"], paths=paths)
    with _open(found, given, asked, dequantize, changes) as opened:
        reader, report = _mapped(opened, given, len(found), changes, asked)
        kept, _, objects = _kept(reader, changes, form, len(found))
        made = _select(reader, kept, objects, changes, set())
        named = {made.names[key]: encoding for key, encoding in objects.items()}
        numbers = keys_of_numbers(opened.source) if dequantize else ()
        told = report() if report else None
        yield Derived(made.entries, made.source, made.names, named, told, numbers)


def _move(
    work: WritePlan,
    generation: str | None,
    *,
    executor: Executor | None,
    found: Sequence[Location],
    dequantize: bool | str,
    progress: Progress,
) -> WriteReport:
    if executor is None:
        return carry_out(work, generation, progress)
    check_executor(executor)
    if work.substitutes is not None:
        cause = "The policy changed values, which only this process has."
        raise UnsupportedError(
            cause, "Leave the executor out, or give a policy that only assigns slices to files."
        )
    opening = Opening(found[0], dequantize, tuple(found[1:]))
    runner = runner_of(executor, opening, work.source, progress)
    return carry_out(work, generation, progress, runner)


def _open(
    found: Sequence[Location],
    given: Map | None,
    asked: Mapping[str, Any],
    dequantize: bool | str,
    changes: Changes,
) -> Reader:
    """Open the sources: one, or several that ``concat`` or the ranks of a map join."""
    concat, chosen = asked["concat"], (asked["filter"], asked["exclude"])
    if len(found) == 1 and not concat:
        reader = open_found(found[0], dequantize=dequantize)
        names = changes.strip_prefix, changes.rename, changes.add_prefix
        others = given, asked["executor"], dequantize, changes.keep_going, *names
        if found[0].storage.traits is not None and not any(others):
            prefer_whole(reader.index, changes.conversions == _UNCHANGED)
        return reader
    if given is None or not numbers_sources(given.parsed, len(found)):
        return open_sources(found, concat or {}, *chosen, dequantize=dequantize)
    if concat:
        cause = "Both the map, by ranks, and concat join the sources."
        raise ArgumentError(cause, "Leave concat= (--concat) out.")
    return open_numbered(found, *chosen, dequantize=dequantize)


def _find_goal(
    found: Sequence[Location], target: Path, format: str | None, is_prefix: bool
) -> Location:
    form = found[0].format.name
    goal = find_target(target, format, form, source=found[0], is_prefix=is_prefix)
    check_apart(goal, found, "the source and the target")
    for each in found:
        check_not_inside(goal, each, "source")
    return goal


class _Chosen(NamedTuple):
    entries: EntryTable
    source: Source
    """The source that reads and converts them."""
    names: Mapping[str, str]
    encodings: Mapping[str, str]
    """The encodings of blocks, by new names."""
    partition: Partitions


def _select(
    reader: Reader,
    kept: set[str],
    objects: Mapping[str, bytes],
    changes: Changes,
    gone: set[str],
) -> _Chosen:
    """The tensors to write: kept keys that are not ``gone``; patterns may match lost ones."""
    wrong = {
        key: error
        for key, error in reader.faults.items()
        if key in kept and key not in gone and key not in objects
    }
    for first, error in wrong.items():
        if not isinstance(error, UnsupportedError):
            raise error.at().in_file(error.file)
        others = [key for key, each in wrong.items() if key != first and type(each) is type(error)]
        cause, leave = error.cause, " Or leave it out with exclude= (--exclude)."
        if others:
            cause += f" Nor can {named(others)} be converted."
            leave = " Or leave them out with exclude= (--exclude)."
        raise type(error)(cause, error.remedy + leave).in_file(error.file)
    entries = take_tensors(reader.entries(), kept.difference(gone, objects))
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
    if isinstance(source, EncodedSource):
        encodings |= source.encodings()
    partition = changes.partition
    if lost and isinstance(partition, Mapping):
        # Globs that match only lost tensors are right, and cut nothing.
        chosen = entries.slices.tensors.keys
        idle = {g for g in partition if matching(lost, g) and not matching(chosen, g)}
        partition = {glob: cut for glob, cut in partition.items() if glob not in idle}
    return _Chosen(entries, source, new, encodings, partition)


def _find_lost(
    reader: Reader, kept: set[str], objects: Mapping[str, bytes], changes: "Changes"
) -> tuple[Damage, ...]:
    """Reasons for tensors that cannot be read whole; ``CorruptCheckpoint`` if none can."""
    # A pattern that is wrong is found before all is read.
    _select(reader, kept, objects, changes, kept.intersection(reader.faults).difference(objects))
    keys = kept.difference(objects)
    errors: dict[str, ReadError] = {
        key: error for key, error in reader.faults.items() if key in keys
    }
    files: dict[str, str] = {}
    errors |= reader.source.storage_errors(keys - errors.keys())
    entries = reader.entries()
    tensors = entries.slices.tensors
    wanted = np.array([key in keys and key not in errors for key in tensors.keys], dtype=np.bool)
    chosen = entries.take(np.flatnonzero(wanted[entries.slices.tensor]))
    for row, error in sorted(check_payloads(reader.source, chosen).items()):
        key = chosen.slices.key(row)
        if key not in errors:
            errors[key], files[key] = error, reader.index.files[int(chosen.file[row])]
    if errors and len(errors) == len(keys):
        cause = f"No tensor of {reader.path} is whole: {next(iter(errors.values())).cause}"
        raise CorruptCheckpoint(cause, "`shardvar verify` lists the damage.")
    return tuple(Damage.of(errors[key], key, files.get(key)) for key in reader if key in errors)


def _metadata(
    reader: Reader, chosen: _Chosen, objects: Mapping[str, bytes], lost: tuple[Damage, ...]
) -> Metadata:
    new = chosen.names
    user = dict(reader.metadata.user)
    if lost:
        user[LOST] = json.dumps(
            [{"key": each.key, "kind": each.kind, "message": each.message} for each in lost]
        )
    if chosen.encodings:  # without them, the bytes of blocks would mean nothing
        user["encodings"] = json.dumps(chosen.encodings)
    empty = reader.metadata.empty if {*zip(reader, reader, strict=True)} <= new.items() else {}
    known = reader.metadata.paths.items()
    paths = {key: steps for key, steps in known if new.get(key) == key or key in empty}
    carried = dict(zip(map(new.__getitem__, objects), objects.values(), strict=True))
    return Metadata(
        writer=WRITER, user=user, paths=paths, objects=carried, empty=empty,
        native=reader.metadata.native,
    )  # fmt: skip
