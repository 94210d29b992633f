"""Open a checkpoint through a map: a reader of the tensors that the map makes.

Nothing is copied. The reader's source makes each tensor as it is read (``engine.mapped``), so every
verb sees the map's tensors as it sees stored ones.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardvar.engine.mapped import mapped
from shardvar.errors import ArgumentError, ArgumentTypeError, MapError
from shardvar.maps.fitting import Problem
from shardvar.maps.map import Map, facts_of, fit_map
from shardvar.maps.plan import MapPlan
from shardvar.maps.ranks import reads_ranks
from shardvar.maps.report import MapReport, first_problems, map_report, sentences_of
from shardvar.storage.scratch import map_scratch
from shardvar.verbs.ranks import check_left_out, number_ranks
from shardvar.verbs.reader import Reader
from shardvar.verbs.renaming import new_names, select_keys

MapLike = Map | str | os.PathLike[str] | Iterable[str]
"""A map: itself, the path of its file or the name of a shipped one, or its rules."""


def as_map(given: Any, keep_going: bool = False) -> Map:
    """Return the map that a caller gives: a ``Map``, a path, a name, or a list of rules."""
    if keep_going:
        raise ArgumentError(
            "A map takes every tensor, so none is left out with keep_going.",
            "Rescue the source first, then map it.",
        )
    if isinstance(given, Map):
        return given
    if isinstance(given, str | os.PathLike):
        return Map.read(given)
    if isinstance(given, Iterable):
        return Map(given)
    raise ArgumentTypeError(
        f"A map is not a {type(given).__name__}.",
        "Give sv.Map(rules), a path, the name of a shipped map, or a list of rules.",
    )


def map_reader(
    reader: Reader,
    given: Map,
    filter: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
) -> Reader:
    """Return a reader of what a map makes of an open checkpoint; ``MapError`` if it does not fit.

    The map sees the keys that ``filter`` and ``exclude`` take. Closing it closes the checkpoint.
    """
    return map_and_report(reader, given, filter, exclude)[0]


def map_and_report(
    reader: Reader,
    given: Map,
    filter: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    ranks: int | None = None,
) -> tuple[Reader, Callable[[], MapReport]]:
    """Return a reader as ``map_reader`` does, and what makes the report of the map.

    ``ranks`` is the number of sources that were joined by their ranks.
    """
    is_ranked, stored = reads_ranks(given.parsed), reader
    keys = None
    if filter is not None or exclude is not None:
        keys = select_keys(reader.keys(), filter, exclude)
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
        raise _error(found.problems)
    if is_ranked:
        check_left_out(reader, given, {*tensors}, found.plan.left_out)
    made = planned_reader(reader, found.plan, found.renamed)
    return made, lambda: map_report(given.parsed, found, tensors, len(objects))


def renamed_reader(reader: Reader, rename: Mapping[str, str]) -> Reader:
    """Return a reader of an open checkpoint whose keys have new names, as ``new_names`` gives
    them."""
    if not rename:
        return reader
    keys, stored = reader.keys(), reader.entries().slices.tensors.keys
    names = dict(zip(keys, new_names(keys, rename), strict=True))
    plan = MapPlan([], {}, {key: names[key] for key in stored})
    return planned_reader(reader, plan, {key: names[key] for key in reader.index.faults})


def planned_reader(reader: Reader, plan: MapPlan, objects: Mapping[str, str]) -> Reader:
    """Return a reader of a plan's targets; ``objects`` have their new names by their keys."""
    _, source = mapped(reader.source, reader.entries(), plan, map_scratch)
    index = replace(
        source.index, faults={name: reader.faults[key] for key, name in objects.items()}
    )
    old = {name: key for key, name in objects.items()}
    return Reader(reader.path, reader.format, replace(source, index=index, renamed=old))


def _error(problems: Sequence[Problem]) -> MapError:
    """The error of a map that does not fit: the first problem, with all of them as an attribute."""
    first, more = problems[0], len(problems) - 1
    others = f" There are {more:,} more problems." if more > 1 else " There is 1 more problem."
    error = MapError(first.cause + (others if more else ""), first.remedy)
    error.problems = sentences_of(problems)
    if more:  # Python prints notes below the error.
        error.add_note("\n".join(f"  {line}" for line in first_problems(error.problems)))
    return error
