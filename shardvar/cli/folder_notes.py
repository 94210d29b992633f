"""Notes on what a path does not mean: the checkpoints of a folder that a command did not use, with
the command that shows them, and the other parts of the save that a file is a part of."""

import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import suppress

from shardvar.cli.output import count, folded, printable, short_path
from shardvar.errors import ShardvarError

_MOST_NAMED = 3
"""The names in a note; it counts the others."""


def notes_about(arguments: Namespace) -> list[str]:
    """Return a note for each folder among the arguments that holds checkpoints which its path does
    not mean; none with ``--latest``, which chooses one of several."""
    notes = []
    for folder in [] if getattr(arguments, "latest", False) else dict.fromkeys(_folders(arguments)):
        with suppress(ShardvarError):  # the command itself says what is wrong
            if text := _text(folder):
                notes.append(f"note: {text}")
    for path in dict.fromkeys(_paths(arguments, "path", "a", "b")):  # ``reshard`` refuses parts
        with suppress(ShardvarError):
            notes += _part_notes(path)
    return notes


def num_lines(notes: Sequence[str]) -> int:
    """Return the lines that notes take on a terminal."""
    return sum(len(folded(each)) for each in notes)


def _folders(arguments: Namespace) -> Iterator[str]:
    """Yield the paths among the arguments that are local folders."""
    return filter(os.path.isdir, _paths(arguments, "path", "a", "b", "source"))


def _paths(arguments: Namespace, *names: str) -> Iterator[str]:
    for name in names:
        given = getattr(arguments, name, [])
        yield from [given] if isinstance(given, str) else given


def _part_notes(path: str) -> list[str]:
    """Return the note about a checkpoint that is a part of a save; none for others."""
    from shardvar.formats.parts import find_part, split_numbers
    from shardvar.verbs.locate import find_checkpoints

    whole = path if "://" in path else os.path.abspath(path)
    if not split_numbers(whole)[1] or len(found := find_checkpoints(path)) != 1:
        return []
    kind, others = find_part(found[0].format, found[0].storage, found[0].name)
    if kind is None:
        return []
    parts = f"one of {len(others) + 1:,} parts" if others else "one part"
    return [f"note: {short_path(path)} is {parts} of a larger save: {kind.what}"]


def _text(folder: str) -> str:
    """Return the sentence about a folder; empty if its path means all that is in it."""
    # Not above: paths of files do without it.
    from shardvar.verbs.newest import find_omissions

    passed = find_omissions(folder)
    if not passed:
        return ""
    paths = [os.path.relpath(path, folder) for path in passed.folders]
    parts = []
    if passed.files:
        parts.append(_named(passed.files))
    if paths:
        parts.append(f"{count(len(paths), 'checkpoint')} in folders ({_named(paths)})")
    if passed.links:
        parts.append(f"links out of it that are not followed ({_named(passed.links)})")
    first = [*passed.files, *paths, *passed.links][0]
    shown = short_path(os.path.normpath(os.path.join(folder, first)))
    whole = "; ".join(parts)
    return f"{short_path(folder)} also contains {whole}. See one: `shardvar inspect {shown}`"


def _named(names: Sequence[str]) -> str:
    """Return the first few names, and the number of the others."""
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(map(printable, names[:_MOST_NAMED])) + more
