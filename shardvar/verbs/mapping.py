"""Open a checkpoint through a map: a reader of the tensors that the map makes.

Nothing is copied. The reader's source makes each tensor as it is read (``engine.mapped``), so every
verb sees the map's tensors as it sees stored ones.

A map may read several checkpoints as one, or make several, by their *ranks*:

    sources    each with its number before its keys, in the order of the call
    copies     tensors that a map leaves out because another rank has them: they are compared
    targets    the tensors of each number, without it, as checkpoints of their own

``maps.map`` has the rules that are meant by this.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, takewhile
from math import prod
from typing import Any, TypeVar

import numpy as np

from shardvar.engine.mapped import MappedSource, mapped, read_mapped
from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointError,
    InconsistentTensor,
    MapError,
    StorageError,
    TargetExists,
)
from shardvar.formats.table import format_of_name
from shardvar.layout.dtypes import is_floating, is_whole, parse_dtype
from shardvar.layout.region import regions_of_range
from shardvar.maps.map import (
    Map,
    chosen,
    copies_left_out,
    facts_of,
    fit_map,
    makes_ranks,
    missing_rank,
    numbered,
    reads_ranks,
    sizes_of_ranks,
    split_rank,
    with_files,
)
from shardvar.maps.matching import sizes_at
from shardvar.maps.plan import MapPlan
from shardvar.maps.proof import quoted_key
from shardvar.maps.report import MapReport, first_problems, map_report, sentences_of
from shardvar.pictures.words import human_shape
from shardvar.planning.index import (
    EntryTable,
    TableIndex,
    concatenate_entries,
    rename_tensors,
    take_tensors,
)
from shardvar.records import replace
from shardvar.storage.scratch import map_scratch
from shardvar.verbs.arguments import strings_of
from shardvar.verbs.compare.blocks import Blocks
from shardvar.verbs.compare.distances import compare_arrays
from shardvar.verbs.compare.walk import PairWalk
from shardvar.verbs.joined_source import RankSource
from shardvar.verbs.locate import Location, Path, find_below, look_at
from shardvar.verbs.reader import LazyTensor, Reader
from shardvar.verbs.renaming import Globs, matches_any, new_names, select_keys
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.writing import WritePlan, report_of, slice_names

T = TypeVar("T")

_PLACE = re.compile(r"\{rank(?::0?([1-9]))?d?\}")
"""The place of the number in the path of a target: ``{rank}``, or ``{rank:02}`` with its digits."""
_PORTION = 1 << 22
"""The elements that are compared at a time: at most 64 MiB."""


# --- Sources


def number_keys(reader: Reader, rank: int) -> Reader:
    prefix = numbered(rank, "")
    entries = rename_tensors(reader.entries(), lambda key: prefix + key)
    faults = {prefix + key: error for key, error in reader.faults.items()}
    index = TableIndex(entries, reader.index.files, reader.metadata, faults)
    return Reader(reader.path, reader.format, RankSource(reader.source, prefix, index))


def number_ranks(reader: Reader, given: Map, ranks: int | None) -> tuple[Reader, Map]:
    """One checkpoint, without ``ranks``, is rank 0, unless all of its keys have numbers."""
    if ranks is None:
        if missing_rank(given.parsed, [*reader]):
            reader = number_keys(reader, 0)
        ranks = 1 + max((parts[0] for key in reader if (parts := split_rank(key))), default=0)
    size_of = sizes_at(given.sizes, reader.path)
    return reader, given.extended((), sizes_of_ranks(given.parsed, given.sizes, size_of, ranks))


def check_left_out(
    reader: Reader, given: Map, copies: Mapping[str, str], left_out: Mapping[str, int]
) -> None:
    """Raise ``InconsistentTensor`` unless copies that a map leaves out are equal to those it keeps."""
    for key, kept in copies.items():
        place = tensor_difference(reader[key], reader[kept])
        if place is not None:
            number = left_out[key]
            raise InconsistentTensor(
                f"Rule {number + 1}, {given.parsed[number].text!r}, leaves out {key!r} as a copy of "
                f"{kept!r}, and they differ {place}.",
                "Check that the sources are of one model. To leave it out uncompared, write its "
                f"key: '{quoted_key(key)} -> nothing'.",
            )


def tensor_difference(a: LazyTensor, b: LazyTensor) -> str | None:
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return "in dtype or shape"
    size = prod(a.shape)
    step = max(size, 1) if is_whole(a.dtype) else _PORTION  # strings are read whole
    for region in (
        region
        for first in range(0, size, step)
        for region in regions_of_range(a.shape, first, min(first + step, size))
    ):
        found = compare_arrays(a[region.slices], b[region.slices])
        if found.first is not None:
            place = np.unravel_index(found.first, region.shape)
            at = [int(p) + o for p, o in zip(place, region.offset, strict=True)]
            return f"first at {human_shape(at)}"
    return None


# --- Targets


def is_by_rank(path: Path, given: Map | None, *, is_made: bool = True) -> bool:
    """True if a map makes, or reads, ranks; ``ArgumentError`` if only the path has some."""
    has_ranks = given is not None and (makes_ranks if is_made else reads_ranks)(given.parsed)
    if given is not None and not has_ranks and "{rank" in os.fsdecode(path):
        raise ArgumentError(
            f"{os.fsdecode(path)} has {{rank}}, and no rule of the map "
            f"{'makes' if is_made else 'reads'} keys '{{rank}}/...'.",
            "Leave {rank} out of the path, or use {rank}/ in the rules.",
        )
    return has_ranks


def path_of_rank(target: Path, rank: int) -> str:
    path = os.fsdecode(target)
    if "{rank" not in path:
        if format_of_name(os.path.basename(path)):
            raise ArgumentError(
                f"{path} is the path of one file, and the map makes one checkpoint a rank.",
                "Put {rank} in its name, such as model-{rank}.safetensors.",
            )
        return os.path.join(path, f"rank_{rank}")
    found = _PLACE.sub(lambda place: f"{rank:0{place[1] or 1}}", path)
    if "{rank" in found:
        raise ArgumentError(
            f"{path} has a {{rank}} that is not the place of a number.",
            "Write {rank}, or {rank:02} for two digits.",
        )
    return found


def paths_of_ranks(path: Path, given: Map | None, *, is_made: bool) -> list[Path]:
    """``{rank}``, or a folder of ``rank_0`` ..., means the checkpoints there, from rank 0 on."""
    has_place = "{rank" in os.fsdecode(path)
    if not is_by_rank(path, given, is_made=is_made):
        return [path]
    if not has_place and not os.path.isdir(path):
        return [path]
    ranks = (path_of_rank(path, rank) for rank in count())
    found = takewhile(lambda each: find_below(look_at(each)), ranks)
    return [*found] or [path_of_rank(path, 0) if has_place else path]


def check_numbered(reader: Reader, given: Map) -> None:
    if makes_ranks(given.parsed) and not any(map(split_rank, reader)):
        raise ArgumentError(
            f"The map makes one checkpoint a rank, and the keys of {reader.path} have no numbers of "
            "ranks.",
            "Give the path of all ranks, with {rank} in it, such as out/rank_{rank}.safetensors.",
        )


def split_ranks(reader: Reader) -> Iterator[Reader]:
    source, found = reader.source, dict[int, dict[str, str]]()
    for key in reader:
        parts = split_rank(key)
        if parts is None:
            raise MapError(
                f"The map makes {key!r}, which is in no checkpoint of a rank.",
                "Begin its key with {rank}/, or with a number: 0/...",
            )
        found.setdefault(parts[0], {})[key] = parts[1]
    missing = sorted(set(range(max(found, default=-1) + 1)).difference(found))
    if missing:
        raise MapError(
            f"The map makes no tensor of rank {missing[0]}, and some of rank {max(found)}.",
            "Ranks count from 0.",
        )
    for _, names in sorted(found.items()):
        if not isinstance(source, MappedSource):
            raise TypeError(f"A {type(source).__name__} is not made by a map.")
        entries = rename_tensors(take_tensors(reader.entries(), names), names.__getitem__)
        faults: dict[str, CheckpointError] = {
            names[key]: error for key, error in reader.faults.items() if key in names
        }
        index = TableIndex(entries, reader.index.files, reader.metadata, faults)
        split = replace(
            source,
            index=index,
            sources_of=_by_new_name(source.sources_of, names),
            kept=_by_new_name(source.kept, names),
            renamed=_by_new_name(source.renamed, names),
        )
        yield Reader(reader.path, reader.format, split)


def _by_new_name(table: Mapping[str, T], names: Mapping[str, str]) -> dict[str, T]:
    return {new: table[key] for key, new in names.items() if key in table}


_KEPT = (
    " If an earlier run was interrupted between ranks, this keeps ranks that it has finished: "
    "every byte of them is compared."
)
"""The remedy if some ranks of a target exist and others do not."""


def write_ranks(
    target: Path,
    ranks: Sequence[tuple[Location, Reader]],
    write: Callable[..., Callable[[], WriteReport]],
    *,
    dry_run: bool,
) -> WriteReport:
    """Plan all before one is written; ``force`` keeps ranks that an interrupted run has finished."""
    there = [bool(names_at(goal)) for goal, _ in ranks]
    is_interrupted = any(there) and not all(there)
    try:
        writes = [write(*each, keep=is_interrupted and not dry_run) for each in ranks]
    except TargetExists as error:
        remedy = error.remedy + (_KEPT if is_interrupted else "")
        raise TargetExists(error.cause, remedy) from None
    return join_reports(target, [each() for each in writes])


def kept_report(work: WritePlan) -> WriteReport | None:
    """The report of a plan whose target has every byte of it already; else None."""
    if work.substitutes is not None or work.metadata.objects:
        return None
    target, names = work.target, names_at(work.target)
    if len(names) != 1:
        return None
    try:
        source_there = target.format.open(target.storage, names[0])
        with Reader(target.path, target.format.name, source_there) as there:
            is_same = (
                {*slice_names(there.entries().slices)} == {*slice_names(work.assignment.slices)}
                and len(there.index.files) == work.assignment.num_files
                and there.metadata.user == work.metadata.user
                and there.metadata.ties == work.metadata.ties
                and there.metadata.digests == work.metadata.digests
            )
            if not is_same or there.faults:
                return None
            sides = Blocks.of_entries(work.source, work.entries), Blocks.of(there)
            walk = PairWalk(*sides, None, False, lambda _nbytes: None)
            walk.compare([*there])
            if walk.differences or walk.unreadable:
                return None
    except (CheckpointError, StorageError):
        return None  # it is written again
    report = report_of(work, target.storage.free_nbytes())
    return replace(report, reused_files=work.assignment.num_files, dry_run=False)


def names_at(goal: Location) -> list[str]:
    return goal.format.locate(goal.storage, "" if goal.is_folder else goal.name)


def join_reports(target: Path, reports: Sequence[WriteReport]) -> WriteReport:
    numbers = (
        "num_tensors num_slices nbytes num_copies read_nbytes callback_seconds num_empty_files "
        "num_objects reused_files"
    ).split()
    lists = "file_nbytes exceeding untied left_out".split()
    columns: dict[str, Any] = {
        name: sum(getattr(each, name) for each in reports) for name in numbers
    }
    columns |= {name: sum((getattr(each, name) for each in reports), ()) for name in lists}
    plans = [each.planned for each in reports if each.planned is not None]  # none after a write
    if plans:
        # All entries, with their ranks before their keys.
        tables, files = list[EntryTable](), 0
        for rank, (plan, report) in enumerate(zip(plans, reports, strict=True)):
            named = rename_tensors(plan, partial(numbered, rank))
            tables.append(replace(named, file=named.file + files))
            files += report.num_files
        columns["planned"] = concatenate_entries(tables)
    columns["peak_nbytes"] = max(each.peak_nbytes for each in reports)
    return replace(reports[0], path=os.fsdecode(target), ranks=tuple(reports), **columns)


MapLike = Map | Path | Iterable[str]
"""A map: itself, the path of its file or the name of a shipped one, or its rules."""


def as_map(given: Any, keep_going: bool = False, paths: Sequence[str] = ()) -> Map:
    """Return a map, with the sizes that files next to the sources at ``paths`` give."""
    if keep_going:
        raise ArgumentError(
            "A map takes every tensor, so none is left out with keep_going.",
            "Rescue the source first, then map it.",
        )
    if isinstance(given, Map):
        return with_files(given, paths) if paths else given
    if isinstance(given, str | os.PathLike):
        return as_map(Map.read(given), paths=paths)
    if isinstance(given, Iterable):
        return Map(given)
    raise ArgumentTypeError(
        f"A map is not a {type(given).__name__}.",
        "Give sv.Map(rules), a path, the name of a shipped map, or a list of rules.",
    )


def map_reader(reader: Reader, given: Map) -> Reader:
    return map_and_report(reader, given)[0]


def map_and_report(
    reader: Reader,
    given: Map,
    filter: Globs = None,
    exclude: Globs = None,
    ranks: int | None = None,
    strip_prefix: str | None = None,
) -> tuple[Reader, Callable[[], MapReport]]:
    """Return also what makes the report; the map sees the keys that ``filter`` and ``exclude`` take.

    ``ranks`` is the number of joined sources.
    """
    given = chosen(given, reader.path)
    is_ranked, stored = reads_ranks(given.parsed), reader
    keys = None
    if filter is not None or exclude is not None:
        try:
            keys = select_keys(list(reader), filter, exclude)
        except ArgumentError as none:
            made: Iterable[str] = ()
            with suppress(MapError):
                made = map_and_report(reader, given, ranks=ranks, strip_prefix=strip_prefix)[0]
            globs = [*strings_of(filter or (), "globs"), *strings_of(exclude or (), "globs")]
            near = next((key for key in made if matches_any(key, globs)), "")
            cause = f"{none.cause} With a map, filter and exclude take keys of the source"
            also = f", and {near!r} is one that the map makes" if near else ""
            raise ArgumentError(f"{cause}{also}.", none.remedy) from None
    if strip_prefix is not None:
        of_rank = {rf"re:([0-9]+/){re.escape(strip_prefix)}(.+)": r"\1\2"}
        change = ({}, strip_prefix) if ranks is None else (of_rank, None)
        new = dict(zip(reader, new_names([*reader], *change), strict=True))
        keys = keys and {new[key] for key in keys}
        reader = stored = renamed_reader(reader, *change)
    if is_ranked:
        reader, given = number_ranks(reader, given, ranks)
        if keys is not None and reader is not stored:
            keys = {f"0/{key}" for key in keys}
    tensors, objects = facts_of(reader)
    if keys is not None:
        tensors = {key: facts for key, facts in tensors.items() if key in keys}
        objects = [key for key in objects if key in keys]
    found = fit_map(given, tensors, objects, reader.encodings, reader.path, reader.metadata.user)
    if found.problems:
        # The error of a map that does not fit: the first problem, with all of them as an
        # attribute.
        first, more = found.problems[0], len(found.problems) - 1
        others = f" There are {more:,} more problems." if more > 1 else " There is 1 more problem."
        error = MapError(first.cause + (others if more else ""), first.remedy)
        error.problems = sentences_of(found.problems)
        if more:  # Python prints notes below the error.
            error.add_note("\n".join(f"  {line}" for line in first_problems(error.problems)))
        raise error
    copies, left_out = {**found.copies}, found.plan.left_out
    if is_ranked:
        size_of = sizes_at(given.sizes, reader.path)
        copies |= copies_left_out(given.parsed, left_out, {*tensors}, size_of)
    check_left_out(reader, given, copies, left_out)
    made = planned_reader(reader, found.plan, found.renamed)
    return made, lambda: map_report(given.parsed, found, tensors, len(objects))


def cast_reader(reader: Reader, dtype: str) -> Reader:
    """Return a reader whose floating-point tensors are rounded to a dtype."""
    name, tensors = parse_dtype(dtype), reader.entries().slices.tensors
    keys = [key for row, key in enumerate(tensors.keys) if is_floating(tensors.dtype(row))]
    rules = [f"{quoted_key(key)} -> {quoted_key(key)} as {name}" for key in keys]
    return map_reader(reader, Map([*rules, *["rest {x:**} -> {x}"] * (len(keys) < len(reader))]))


def renamed_reader(
    reader: Reader, rename: Mapping[str, str], strip_prefix: str | None = None
) -> Reader:
    if not (rename or strip_prefix):
        return reader
    keys, stored = list(reader), reader.entries().slices.tensors.keys
    names = dict(zip(keys, new_names(keys, rename, strip_prefix), strict=True))
    plan = MapPlan([], {}, {key: names[key] for key in stored})
    return planned_reader(reader, plan, {key: names[key] for key in reader.index.faults})


def planned_reader(reader: Reader, plan: MapPlan, objects: Mapping[str, str]) -> Reader:
    """Return a reader of a plan's targets; ``objects`` have their new names by their keys."""
    _, source = mapped(reader.source, reader.entries(), plan, map_scratch)
    index = replace(
        source.index, faults={name: reader.faults[key] for key, name in objects.items()}
    )
    old = {name: key for key, name in objects.items()}
    source = replace(source, index=index, renamed=old)
    return Reader(reader.path, reader.format, source, _batch=read_mapped)
