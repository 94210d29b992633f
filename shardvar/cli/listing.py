"""The checkpoints of a folder that holds several: the list that ``inspect`` prints, and the choice
of ``--latest``.

The list has the tensors and bytes of the last checkpoints. Their indexes are opened for that, and
no payload is read; those in buckets are not opened, since each would take requests.
"""

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from time import time

from shardvar.cli.output import (
    count,
    human_age,
    human_size,
    note,
    print_json,
    print_table,
    printable,
    say,
    short_path,
    warn,
)
from shardvar.errors import CheckpointError, ShardvarError
from shardvar.verbs.locate import Location, arrays_alone, exact_path
from shardvar.verbs.newest import Candidate, newest_among, newest_checkpoint, steps_of
from shardvar.verbs.reader import Reader
from shardvar.verbs.reports import SCHEMA

_HEADERS = ("checkpoint", "format", "tensors", "size", "saved", "")
_MOST_LISTED = 20
"""The checkpoints that a terminal lists, and whose indexes are opened; both the last ones."""
_MOST_TENSORS = 20_000
"""After so many tensors in all, no further index is opened: they take some 0.2 s, and a larger
index its own time."""


@dataclass(frozen=True, slots=True)
class _Content:
    """The words of an index for a line of the list."""

    num_tensors: int | None
    """Its tensors; None if it cannot be read."""
    nbytes: int | None
    """The bytes of its payloads; None if it cannot be read."""
    wrong: str
    """The problem with it, in words; empty if its index is sound."""


def take_newest(arguments: Namespace) -> None:
    """Replace the folder that ``--latest`` was given for by its newest checkpoint."""
    name = "source" if "source" in arguments else "path"
    given = getattr(arguments, name)
    newest = (
        [_newest_in(folder) for folder in given] if isinstance(given, list) else _newest_in(given)
    )
    setattr(arguments, name, newest)


def _newest_in(folder: str) -> str:
    """The path of the newest checkpoint in a folder, after notes that say which it is."""
    newest = newest_checkpoint(folder)
    unfinished = [each for each in steps_of(folder) if not each.is_finished]
    if unfinished:
        steps = ", ".join(printable(each.step) for each in unfinished[-3:])
        note(f"note: passed over {count(len(unfinished), 'unfinished checkpoint')}: {steps}")
    note(f"note: the newest is {short_path(newest)}")
    return newest


def print_choices(
    path: str, found: Sequence[Candidate], as_json: bool, everything: bool = False
) -> None:
    """Print the checkpoints that a path may mean, in natural order, and mark the newest; a terminal
    gets the last ones.

    ``everything`` prints all at a terminal too.
    """
    newest = _newest(path, found)
    contents = _contents(found)
    if as_json:
        listed = [
            {
                "path": name,
                "format": each.location.format.name,
                "newest": [each] == newest,
                "finished": each.is_finished,
                "saved": each.saved,
                "num_tensors": content and content.num_tensors,
                "nbytes": content and content.nbytes,
            }
            for each, content, name in zip(found, contents, _paths(found), strict=True)
        ]
        print_json({"schema": SCHEMA, "checkpoints": listed})
        return
    choose = "one of them, or the newest with --latest" if len(newest) == 1 else "one of them"
    say(f"{short_path(path)}: {count(len(found), 'checkpoint')}; inspect {choose}:")
    if kind := arrays_alone([each.location for each in found]):
        warn(f"! This is {kind.what}. {kind.remedy}")
    rows = [
        (short_path(name), *_cells(each, content, newest))
        for each, content, name in zip(found, contents, _paths(found), strict=True)
    ]
    if sys.stdout.isatty():
        print()
    if sys.stdout.isatty() and not everything and len(rows) > _MOST_LISTED:
        say(f"{len(rows) - _MOST_LISTED:,} before these, from {rows[0][0]} on (--all lists them)")
        rows = rows[-_MOST_LISTED:]
    # A terminal needs no column that is the same in all lines.
    kept = [0, *(1,) * (not sys.stdout.isatty() or len({row[1] for row in rows}) > 1), 2, 3, 4, 5]
    right, drop = [kept.index(column) for column in (2, 3)], range(1, len(kept) - 1)
    print_table(
        [_HEADERS[each] for each in kept],
        [[row[each] for each in kept] for row in rows],
        right,
        drop,
    )


def _newest(path: str, found: Sequence[Candidate]) -> list[Candidate]:
    """The newest one; none if the file that should name it cannot be read."""
    try:
        return newest_among(path, found)
    except ShardvarError as error:
        note(f"note: {error.cause}")
        return []


def _paths(found: Sequence[Candidate]) -> list[str]:
    """Return a path that means only this checkpoint: its index if the prefix is shared."""
    places = [(each.location.storage.path, each.location.stem) for each in found]
    shared = {place for place, number in Counter(places).items() if number > 1}
    pairs = zip(found, places, strict=True)
    return [
        exact_path(each.location) if place in shared else each.location.path
        for each, place in pairs
    ]


def _contents(found: Sequence[Candidate]) -> list[_Content | None]:
    """Read the indexes of the last checkpoints on a local disk, as many as take little time; None
    for the others."""
    contents: list[_Content | None] = [None] * len(found)
    left = _MOST_TENSORS
    for number in range(len(found))[: -_MOST_LISTED - 1 : -1]:
        each = found[number]
        if left > 0 and each.is_finished and each.location.storage.local_path is not None:
            content = contents[number] = _content(each.location)
            left -= content.num_tensors or 0 if content else 0
    return contents


def _content(location: Location) -> _Content | None:
    try:
        with Reader(location.path, location.format.name, location.open()) as reader:
            wrong = f"{count(len(reader.faults), 'tensor')} unreadable" if reader.faults else ""
            return _Content(len(reader.keys()), int(reader.entries().slices.nbytes.sum()), wrong)
    except CheckpointError:
        return _Content(None, None, "unreadable")
    except ShardvarError:  # such as a package that the format needs
        return None


def _cells(
    each: Candidate, content: _Content | None, newest: Sequence[Candidate]
) -> tuple[str, ...]:
    """Return the format, the tensors, their size, the time of a checkpoint, and remarks."""
    tensors = "" if content is None or content.num_tensors is None else f"{content.num_tensors:,}"
    size = "" if content is None or content.nbytes is None else human_size(content.nbytes)
    saved = "" if each.saved is None else _time(each.saved)
    words = [
        "newest" * ([each] == newest),
        "not finished" * (not each.is_finished),
        content.wrong if content else "",
    ]
    return each.location.format.name, tensors, size, saved, ", ".join(filter(None, words))


def _time(saved: float) -> str:
    """Return how long ago that was, at a terminal; a pipe gets the date."""
    ago = time() - saved
    if sys.stdout.isatty() and ago >= 0:
        return human_age(ago)
    return datetime.fromtimestamp(saved).strftime("%Y-%m-%d %H:%M")
