"""Joining: several checkpoints as one, such as the files that each rank of a tensor-parallel
program saved.

    names a set whose names show that some are missing is refused, and so is one in another order
    keys      every checkpoint has every key that is taken
    rules     the parts of a tensor that matches a glob of ``concat`` follow each other along an
              axis, or lie where a mesh has the devices that the checkpoints are of
    copies    all else is the same in several checkpoints: it is compared, and kept once
    objects   so are values that are not tensors, such as the arguments of a training program

Sources of which no two have a key are a union: each tensor comes from the source that has it. So are
the files of a set that lost its index (``Location.members``).

``JoinedSource`` has the slices of all checkpoints, each with the number of its checkpoint before
its key. A map makes tensors of them, the map of a call or of ``concat``
(``plan_join``). All that is wrong with keys, dtypes and shapes is found before a value is read.

A *place* tells where in a joined tensor the part of a source lies:

    an axis            source ``i`` has part ``i`` along it
    a mesh and a spec  source ``i`` has what device ``i`` of the mesh holds, by
                       ``layouts.named_sharding``

It has a number for each axis of the tensor. Sources with one number along an axis have the
same extent there, and sources in one place have copies. ``plan_join`` makes the map of them, whose
rules are ``{rank}/KEY[a b] -> KEY[(rank a) b]`` and the like.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from math import prod
from typing import Any

from shardvar.errors import ArgumentError, InconsistentTensor, UnsupportedError
from shardvar.layout.dtypes import Shape, is_whole
from shardvar.layout.meshes import named_sharding
from shardvar.layout.meshes.layout import Mesh, check_mesh
from shardvar.layout.meshes.named_sharding import SpecEntry
from shardvar.limits import MAX_NAMED
from shardvar.maps.map import numbered
from shardvar.maps.plan import MapPlan, Piece, Target, View
from shardvar.pictures.words import human_shape, named
from shardvar.storage.local import split_place
from shardvar.verbs.arguments import check_globs
from shardvar.verbs.compare.walk import compare_readers
from shardvar.verbs.joined_source import join_tables, shared_keys, unite
from shardvar.verbs.locate import Location, is_same
from shardvar.verbs.mapping import number_keys, planned_reader
from shardvar.verbs.reader import Reader, open_found
from shardvar.verbs.renaming import Globs, matching, select_keys, such_as

Spec = Sequence[SpecEntry]
"""The mesh axes that cut each axis of a tensor, as in ``layouts.named_sharding``."""

Join = int | tuple[Mesh, Spec]
"""The axis along which parts follow; or a mesh with source ``i`` as device ``i``, and a spec."""

Place = tuple[int, ...]
"""The number of a part along each axis of a tensor: 0 where nothing was cut."""

About = tuple[str, Shape]
"""The dtype and the shape of a tensor."""


def places_of(key: str, rule: Any, count: int, dtype: str, shape: Shape) -> list[Place]:
    if is_whole(dtype):
        raise ArgumentError(
            f"{key!r} is of dtype {dtype}, which is never concatenated.", "Choose numbers."
        )
    if isinstance(rule, tuple) and len(rule) == 2:
        mesh, spec = rule
        check_mesh(mesh)
        if mesh.size != count:
            raise ArgumentError(
                f"The mesh {mesh} has {mesh.size} devices, and there are {count} sources.",
                "Give a source for each device of the mesh, in their order.",
            )
        # One index for each part: where a layout of this shape puts a device is the place of its part.
        names = [
            () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
            for entry in spec
        ]
        counts = [
            prod(mesh.shape[mesh.axis(name)] for name in entry) for entry in names[: len(shape)]
        ]
        layout = named_sharding([*counts, *[1] * (len(shape) - len(counts))], mesh, spec)
        return [layout.regions(device)[0].offset for device in range(count)]
    if isinstance(rule, bool) or not isinstance(rule, int) or not -len(shape) <= rule < len(shape):
        cause = (
            f"{key!r} has the shape {human_shape(shape)}, and no axis {rule!r} to concatenate "
            "along."
        )
        raise ArgumentError(
            cause, "Choose an axis of the tensor, or a glob that does not match it."
        )
    axis = rule % len(shape)
    return [
        tuple(number if each == axis else 0 for each in range(len(shape)))
        for number in range(count)
    ]


def agree(tensors: Sequence[About], places: Sequence[Place]) -> bool:
    """Return True if dtypes, ranks and the extents of parts in the same place are equal."""
    dtype, first = tensors[0]
    if any(each != dtype or len(shape) != len(first) for each, shape in tensors):
        return False
    extents = extents_of([shape for _, shape in tensors], places)
    return all(
        extents[axis][place[axis]] == extent
        for (_, shape), place in zip(tensors, places, strict=True)
        for axis, extent in enumerate(shape)
    )


def extents_of(shapes: Sequence[Shape], places: Sequence[Place]) -> list[dict[int, int]]:
    """For each axis, the extent of the parts in each place, by the first source that has it."""
    extents: list[dict[int, int]] = [{} for _ in shapes[0]]
    for shape, place in zip(shapes, places, strict=True):
        for axis, extent in enumerate(shape):
            extents[axis].setdefault(place[axis], extent)
    return extents


def firsts_of(places: Sequence[Place]) -> list[int]:
    """For each source, the number of the first one whose part is in the same place."""
    seen: dict[Place, int] = {}
    return [seen.setdefault(place, number) for number, place in enumerate(places)]


def plan_join(
    sources: Sequence[Mapping[str, About]], places: Mapping[str, Sequence[Place]]
) -> MapPlan:
    """Return the plan that joins the parts in numbered sources; of copies it takes the first."""
    targets, names = list[Target](), dict[str, str]()
    for key, where in places.items():
        shapes = [tensors[key][1] for tensors in sources]
        extents = extents_of(shapes, where)
        shape = tuple(sum(axis.values()) for axis in extents)
        if shape == shapes[0]:
            names[numbered(0, key)] = key
            continue
        begins = [[0, *accumulate(axis[part] for part in range(len(axis)))] for axis in extents]
        zeros, steps = (0,) * len(shape), tuple((axis, 1) for axis in range(len(shape)))
        pieces = list[Piece]()
        for number, first in enumerate(firsts_of(where)):
            if number == first:
                start = tuple(begin[at] for begin, at in zip(begins, where[number], strict=True))
                source = View(numbered(number, key), zeros, steps)
                pieces.append(Piece(0, shapes[number], source, View(key, start, steps)))
        targets.append(Target(key, sources[0][key][0], shape, tuple(pieces)))
    return MapPlan(targets, {}, names)


_OF_TOTAL = re.compile(r"(?<![0-9])([0-9]{1,6})[-_]?of[-_]?([0-9]{1,6})(?![0-9])")
"""A number and the number of all in a name: ``x-00001-of-00004``, ``rank_0_of_4``."""
_RANK = re.compile(r"(?:rank[-_]?|consolidated\.)([0-9]{1,6})(?![0-9])")
"""The number of a rank in a name, which count from 0: ``mp_rank_00``, ``consolidated.00``."""


def open_sources(
    found: Sequence[Location],
    concat: Mapping[str, Join],
    filter: Globs,
    exclude: Globs,
    *,
    dequantize: bool | str,
) -> Reader:
    """Parts of a tensor become one by ``concat``; of copies the first is kept."""
    if len(found) == 1:
        raise ArgumentError(
            "There is one source, so nothing is concatenated.",
            "Give several, or leave out concat.",
        )
    check_globs(concat, "globs to axes")
    with _opened(found, dequantize) as readers:
        kept = _select(readers, filter, exclude)
        if not concat and not shared_keys(readers, kept):
            sources = [reader.source for reader in readers]
            union = unite([each.storage for each in found], sources, kept)
            return Reader(found[0].path, found[0].format.name, union)
        _check_set([each.path for each in found], is_ordered=True)
        objects = _unread_objects(readers, kept)
        tensors = kept.difference(objects)
        for reader in readers:
            for key, fault in reader.faults.items():
                if key in tensors:
                    raise fault
        encodings = [reader.encodings for reader in readers]
        for key in tensors:
            kinds = sorted({table[key] for table in encodings if key in table})
            if len(kinds) > 1:
                raise InconsistentTensor(
                    f"The sources hold {key!r} in blocks of {named(kinds)}.",
                    "Dequantize them: dequantize=True (--dequantize).",
                )
        tables = [reader.entries().slices.tensors.facts() for reader in readers]
        places = _places(readers, tables, tensors, concat)
        _check_copies(readers, places)
        plan = plan_join(tables, places)
        joined = _join(found, readers, kept)
        return planned_reader(joined, plan, {numbered(0, key): key for key in objects})


def open_numbered(
    found: Sequence[Location],
    filter: Globs,
    exclude: Globs,
    *,
    dequantize: bool | str,
) -> Reader:
    _check_set([each.path for each in found], is_ordered=True)
    with _opened(found, dequantize) as readers:
        return _join(found, readers, _select(readers, filter, exclude))


@contextmanager
def _opened(found: Sequence[Location], dequantize: bool | str) -> Iterator[list[Reader]]:
    for number, each in enumerate(found):
        other = next((before for before in found[:number] if is_same(before, each)), None)
        if other is not None:
            raise ArgumentError(
                f"{other.path} and {each.path} are one checkpoint.", "Give it once."
            )
    _check_set([each.path for each in found], is_ordered=False)
    _check_beside([each.path for each in found])
    with ExitStack() as stack:
        yield [stack.enter_context(open_found(each, dequantize=dequantize)) for each in found]
        stack.pop_all()  # the joined source closes them


def _select(
    readers: Sequence[Reader],
    filter: Globs,
    exclude: Globs,
) -> set[str]:
    keys = dict.fromkeys(key for reader in readers for key in reader)
    return select_keys([*keys], filter, exclude)


def _check_set(paths: Sequence[str], *, is_ordered: bool) -> None:
    """Numbers in names may show that sources are missing, or in another order."""
    for pattern in (_OF_TOTAL, _RANK):
        matches = [list(pattern.finditer(path)) for path in paths]
        if not all(matches):
            continue
        # The last number of a path: a folder may have one too.
        words = [tuple(map(int, found[-1].groups())) for found in matches]
        numbers = [word[0] for word in words]
        total = words[0][1] if pattern is _OF_TOTAL else max(numbers) + 1
        if len(set(numbers)) < len(numbers) or any(word[1:] != words[0][1:] for word in words):
            continue
        if len(numbers) < total:
            cause = (
                f"The names are of {len(numbers)} of {total} sources: "
                f"{named([os.path.basename(p) for p in paths])}."
            )
            raise ArgumentError(cause, "Give all of them, in order.")
        if is_ordered and numbers != sorted(numbers):
            cause = f"The numbers in the names are not in order: {', '.join(map(str, numbers))}."
            raise ArgumentError(
                cause, "Give the sources in the order of their ranks: `sort -V` sorts names so."
            )


def _check_beside(paths: Sequence[str]) -> None:
    matches = [list(_RANK.finditer(path)) for path in paths]
    if not all(matches):
        return
    frames = {
        (path[: found[-1].start(1)], path[found[-1].end(1) :])
        for path, found in zip(paths, matches, strict=True)
    }
    if len(frames) > 1:
        return
    before, after = frames.pop()
    folder, start = os.path.split(before)
    storage = split_place(os.path.join(folder, ""))[0]
    form = re.compile(f"{re.escape(start)}([0-9]{{1,6}}){re.escape(after.partition('/')[0])}")
    there = {
        int(hit[1])
        for name in (*storage.names(), *storage.folders())
        if (hit := form.fullmatch(name))
    }
    missing = sorted(there.difference(int(found[-1][1]) for found in matches))
    if missing:
        listed = ", ".join(map(str, missing[:MAX_NAMED])) + (
            "" if len(missing) <= MAX_NAMED else ", ..."
        )
        cause = (
            f"Next to the given sources lie files of other ranks, which were not given: {listed}."
        )
        raise ArgumentError(cause, "Give all of them, in order, or move the others elsewhere.")


def _unread_objects(readers: Sequence[Reader], kept: Collection[str]) -> list[str]:
    """The objects that are not read, and may be carried as they are: the same in all sources."""
    if any(reader.source.objects((), "") is None for reader in readers):  # of no key
        return []
    objects = set(kept).intersection(
        *(
            {key for key, error in each.faults.items() if isinstance(error, UnsupportedError)}
            for each in readers
        )
    )
    first, *others = (each.source.objects(objects, each.format) or {} for each in readers)
    unlike = sorted(key for key in objects for each in others if each.get(key) != first.get(key))
    if unlike:
        cause = f"The sources hold different objects under {named(unlike)}."
        raise InconsistentTensor(cause, "Leave them out: exclude= (--exclude).")
    return sorted(objects)


def _places(
    readers: Sequence[Reader],
    tables: Sequence[Mapping[str, About]],
    kept: set[str],
    concat: Mapping[str, Join],
) -> dict[str, list[Place]]:
    """The places of the sources' parts, by key; raises if keys, dtypes or shapes do not agree."""
    for reader in readers:
        missing = sorted(kept.difference(reader))
        if missing:
            cause = f"{reader.path} lacks {named(missing)}, which other sources have."
            raise InconsistentTensor(
                cause, "Give the sources of one run, or leave the keys out: exclude= (--exclude)."
            )
    places = {
        key: [(0,) * len(shape)] * len(readers)
        for key, (_, shape) in tables[0].items()
        if key in kept
    }
    for glob, rule in concat.items():
        hits = matching(places, glob)
        if not hits:
            cause = f"No tensor matches {glob!r}, so none is concatenated."
            raise ArgumentError(cause, such_as(list(places)))
        places.update({key: places_of(key, rule, len(readers), *tables[0][key]) for key in hits})
    unlike = [key for key in places if not agree([table[key] for table in tables], places[key])]
    if unlike:
        which = "; ".join(
            f"{each.path}: {table[unlike[0]][0]} {human_shape(table[unlike[0]][1])}"
            for each, table in zip(readers, tables, strict=True)
        )
        cause = f"The sources differ in the dtype or the shape of {named(unlike)}. {which}."
        remedy = f"Say along which axis their parts follow each other: {_AXIS}."
        if len({table[unlike[0]][0] for table in tables}) > 1:
            remedy = "Cast each source to one dtype: `shardvar reshard SRC DST --cast DTYPE`."
        elif any(map(any, places[unlike[0]])):
            remedy = "Parts have equal extents along all other axes: choose another axis, or leave "
            remedy += "them out (--exclude)."
        raise InconsistentTensor(cause, remedy)
    return places


_AXIS = "concat={'GLOB':AXIS} (--concat 'GLOB=AXIS')"


def _check_copies(readers: Sequence[Reader], places: Mapping[str, Sequence[Place]]) -> None:
    """Raise unless parts in one place are the same in all checkpoints; the first is kept."""
    copies: dict[tuple[int, int], list[str]] = {}
    for key, found in places.items():
        for number, first in enumerate(firsts_of(found)):
            if first < number:
                copies.setdefault((first, number), []).append(key)
    for (first, number), keys in copies.items():
        one, other = readers[first], readers[number]
        report = compare_readers(one, other, keys)
        for broken in report.unreadable:
            raise InconsistentTensor(
                f"{broken.key!r} cannot be compared: {broken.message}", "Take it from a copy."
            )
        if report.differences:
            which = named([each.key for each in report.differences])
            only = {each.values.only if each.values else None for each in report.differences}
            bits = f", only in the {only.pop()}" if len(only) == 1 and None not in only else ""
            cause = f"{one.path} and {other.path} hold different values of {which}{bits}."
            remedy = f"If they are parts, say along which axis: {_AXIS}. Else the sources are of two runs."
            raise InconsistentTensor(cause, remedy)


def _join(found: Sequence[Location], readers: Sequence[Reader], kept: Collection[str]) -> Reader:
    """Number the keys by their source. A map looks for ``config.json`` next to the first source."""
    sources = [number_keys(reader, rank).source for rank, reader in enumerate(readers)]
    keys = [{numbered(rank, key) for key in kept} for rank in range(len(readers))]
    joined = join_tables([each.storage for each in found], sources, keys)
    return Reader(found[0].path, found[0].format.name, joined)
