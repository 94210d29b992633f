"""The checkpoints of a folder that holds several: the list that ``inspect`` prints, and the choice
of ``--latest``.

The list has the tensors and bytes of the last checkpoints. Their indexes are opened for that, and
no payload is read; those in buckets are not opened, since each would take requests.
"""

import os
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from time import time

from shardvar.cli.output import (
    at_terminal,
    count,
    human_age,
    human_size,
    note,
    num_lines,
    path_on_a_line,
    print_json,
    print_table,
    printable,
    say,
    short_path,
    terminal_size,
    warn,
)
from shardvar.errors import ArgumentError, CheckpointError, ShardvarError
from shardvar.formats.parts import PartsFormat
from shardvar.pictures.words import named, natural_key
from shardvar.records import frozen
from shardvar.storage.posix import inner_links
from shardvar.verbs.locate import Location, SplitPath, arrays_alone, exact_path
from shardvar.verbs.newest import (
    Candidate,
    candidates_next_to,
    candidates_of,
    contents_of,
    find_newest,
    newest_among,
)
from shardvar.verbs.problems import SCHEMA
from shardvar.verbs.reader import open_found, settings_in

_HEADERS = ("checkpoint", "format", "tensors", "size", "saved", "")
_SAVED, _REMARKS = 4, 5
_MOST_LISTED, _MOST_OPENED = 20, 100
"""The checkpoints that a terminal lists, and whose indexes are opened; both the last ones."""
_MOST_TENSORS = 100_000
"""After so many tensors in all, no further index is opened: they take some 1 s, and a larger index
its own time."""
_LINES_AROUND = 7
"""Lines of the terminal above and below the list."""
_NOT_OPENED = 3
"""The exit code if a checkpoint of the list cannot be opened."""


@frozen
class _Content:
    num_tensors: int | None
    """Its tensors and settings; None if it cannot be read."""
    num_settings: int
    nbytes: int | None
    """The bytes of its payloads; None if it cannot be read."""
    wrong: str
    """The problem with it, in words; empty if its index is sound."""
    error: ShardvarError | None = None
    """The reason why it could not be opened, such as a package that its format needs."""


def take_newest(arguments: Namespace) -> None:
    """Replace the folder that ``--latest`` was given for by its newest checkpoint."""
    name = "source" if "source" in arguments else "path"
    given = getattr(arguments, name)
    item = arguments.item
    newest = (
        [_newest_in(folder, item) for folder in given]
        if isinstance(given, list)
        else _newest_in(given, item)
    )
    setattr(arguments, name, newest)


def _newest_in(folder: str, item: str | None) -> str:
    newest, choice = find_newest(folder, item)
    for each in choice.notes:
        note(f"note: {printable(each)}")
    reason = f", since {printable(choice.reason)}" if choice.reason else ""
    note(f"note: the newest is {short_path(newest.path)}{reason}")
    return newest.path


def print_choices(
    place: SplitPath, locations: Sequence[Location], arguments: Namespace
) -> int | None:
    """Print the checkpoints that a path may mean, and return the exit code; None if it means one."""
    found = candidates_of(place, locations)
    if len(found) < 2:
        return None
    if arguments.csv:
        cause = f"--csv lists the tensors of one checkpoint, and {arguments.path} has {len(found)}."
        raise ArgumentError(cause, "Give the path of one; without --csv, they are listed.")
    try:
        newest = [*newest_among(place.storage, found).newest]
    except ShardvarError as error:  # the file that should name it cannot be read
        note(f"note: {error.cause}")
        newest = []
    whole = contents_of(place, locations)
    found = sorted(
        [*found, *candidates_next_to(whole)], key=lambda each: natural_key(each.location.path)
    )
    contents = _contents(found)
    failed = next((each.error for each in contents if each and each.error), None)
    if arguments.json:
        _print_json(found, contents, newest)
        return _told(failed)
    links = _links(place.storage.local_path, found)
    choose = "one of them"
    if newest:
        item = f" --item {newest[0].item}" if len(newest) > 1 else ""
        choose = f"one of them, or the newest with --latest{item}"
    say(f"{path_on_a_line(place.path)}: {count(len(found), 'checkpoint')}; inspect {choose}:")
    if kind := arrays_alone(locations):
        warn(f"! This is {kind.what}. {kind.remedy}")
    rows = [
        (short_path(name), *_cells(each, content, newest, link))
        for each, content, link, name in zip(found, contents, links, _paths(found), strict=True)
    ]
    if at_terminal():
        print()
    most = min(
        _MOST_LISTED, max(terminal_size().lines - _LINES_AROUND - num_lines(arguments.notes), 1)
    )
    if at_terminal() and not arguments.all and len(rows) > most:
        say(f"{len(rows) - most:,} before these, from {rows[0][0]} on (--all lists them)")
        rows = rows[-most:]
    _print_rows(rows)
    if whole.unsearched:
        say(f"not searched, since it has too many folders: {named(whole.unsearched)}")
    return _told(failed)


def _print_json(
    found: Sequence[Candidate], contents: Sequence[_Content | None], newest: Sequence[Candidate]
) -> None:
    listed = [
        {
            "path": name,
            "format": each.location.format.name,
            "newest": each in newest,
            "finished": each.is_finished,
            "saved": each.saved,
            "num_tensors": content and content.num_tensors,
            "num_settings": content and content.num_settings,
            "nbytes": content and content.nbytes,
            "opened": content is not None and content.error is None,
            "problem": _problem(each, content),
        }
        for each, content, name in zip(found, contents, _paths(found), strict=True)
    ]
    print_json({"schema": SCHEMA, "checkpoints": listed})


def _told(error: ShardvarError | None) -> int:
    if error is None:
        return 0
    note(f"error: {printable(error.cause)}")
    note(f"hint: {printable(error.remedy)}")
    return _NOT_OPENED


def _print_rows(rows: Sequence[tuple[str, ...]]) -> None:
    # A terminal needs no column that is empty, and no format that is the same in all lines.
    hidden = set[int]()
    if at_terminal():
        hidden = {column for column in range(6) if not any(row[column] for row in rows)}
        hidden |= {1} if len({row[1] for row in rows}) == 1 else set()
    styles: dict[int | tuple[int, int], str] = {_SAVED: "dim"}
    for number, row in enumerate(rows):
        is_newest, is_broken = row[_REMARKS].startswith("newest"), "unreadable" in row[_REMARKS]
        style = "red" if is_broken else "green" if is_newest else "dim"
        styles[number, _REMARKS] = style
    print_table(_HEADERS, rows, (2, 3), (1, _SAVED, 2, 3), styles, hidden=hidden)


def _links(folder: str | None, found: Sequence[Candidate]) -> list[str]:
    """Return the name of the link that leads to each checkpoint or to its folder; empty without one."""
    if folder is None:
        return [""] * len(found)
    names: dict[str, str] = {target: name for name, target in inner_links(folder, folder)}
    real = [os.path.realpath(each.location.path) for each in found]
    steps = [[path, os.path.dirname(path)] for path in real]
    return [next((names[step] for step in some if step in names), "") for some in steps]


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
    """Read the indexes of the last checkpoints on a local disk; None for the others."""
    contents: list[_Content | None] = [None] * len(found)
    left = _MOST_TENSORS
    for number in range(len(found))[: -_MOST_OPENED - 1 : -1]:
        each = found[number]
        if left > 0 and each.is_finished and each.location.storage.local_path is not None:
            content = contents[number] = _content(each.location)
            left -= content.num_tensors or 0
    return contents


def _content(location: Location) -> _Content:
    try:
        with open_found(location, dequantize=False) as reader:
            faults, slices = reader.listed_faults(), reader.listed().slices
            wrong = "damaged" if reader.source.file_faults() else ""
            wrong = f"{count(len(faults), 'tensor')} unreadable" if faults else wrong
            settings = settings_in(reader.source, slices.tensors.facts())
            return _Content(len(reader), len(settings), int(slices.nbytes.sum()), wrong)
    except CheckpointError:
        return _Content(None, 0, None, "unreadable")
    except ShardvarError as error:
        return _Content(None, 0, None, "not opened", error)


def _cells(
    each: Candidate, content: _Content | None, newest: Sequence[Candidate], link: str
) -> tuple[str, ...]:
    number, settings = (content.num_tensors, content.num_settings) if content else (None, 0)
    tensors = "" if number is None else f"{number - settings:,}"
    size = "" if content is None or content.nbytes is None else human_size(content.nbytes)
    saved = ""
    if each.saved is not None:
        # A terminal gets how long ago that was, a pipe the date.
        ago, date = time() - each.saved, datetime.fromtimestamp(each.saved)
        is_age = at_terminal() and ago >= 0
        saved = human_age(ago) if is_age else date.strftime("%Y-%m-%d %H:%M")
    remarks = ["newest" * (each in newest), f"also {printable(link)}" * bool(link)]
    remarks += [_problem(each, content), count(settings, "setting") * (number == settings > 0)]
    return each.location.format.name, tensors, size, saved, ", ".join(filter(None, remarks))


def _problem(each: Candidate, content: _Content | None) -> str:
    """Return why a checkpoint is not known to be sound; empty if its index is."""
    if not each.is_finished:
        return "not finished"
    if isinstance(each.location.format, PartsFormat):
        return "files of single ranks"
    return "not opened" if content is None else content.wrong
