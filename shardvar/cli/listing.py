"""The checkpoints of a folder that holds several: the list that ``inspect`` prints, and the choice of ``--latest``."""

from argparse import Namespace
from collections.abc import Sequence
from datetime import datetime

from shardvar.checkpoint.newest import Candidate, candidates_of, newest_among, newest_checkpoint
from shardvar.checkpoint.reports import SCHEMA
from shardvar.cli.output import count, note, print_json, print_table, printable, short_path
from shardvar.errors import ShardvarError


def take_newest(arguments: Namespace) -> None:
    """Put the path of the newest checkpoint in the place of the folder that ``--latest`` was given for."""
    name = "source" if "source" in arguments else "path"
    given = getattr(arguments, name)
    newest = [_newest_in(folder) for folder in given] if isinstance(given, list) else _newest_in(given)
    setattr(arguments, name, newest)


def _newest_in(folder: str) -> str:
    """The path of the newest checkpoint in a folder, after notes that say which it is."""
    newest = newest_checkpoint(folder)
    unfinished = [each for each in candidates_of(folder) if not each.is_finished]
    if unfinished:
        steps = ", ".join(printable(each.step) for each in unfinished[-3:])
        note(f"note: passed over {count(len(unfinished), 'checkpoint')} that were not finished: {steps}")
    note(f"note: the newest is {short_path(newest)}")
    return newest


def print_choices(path: str, found: Sequence[Candidate], as_json: bool) -> None:
    """Print the checkpoints that a path may mean, in natural order, and mark the newest."""
    newest = _newest(path, found)
    if as_json:
        listed = [
            {
                "path": each.location.path,
                "format": each.location.format.name,
                "newest": [each] == newest,
                "finished": each.is_finished,
                "saved": each.saved,
            }
            for each in found
        ]
        print_json({"schema": SCHEMA, "checkpoints": listed})
        return
    choose = "one of them, or the newest with --latest" if len(newest) == 1 else "one of them"
    print(f"{count(len(found), 'checkpoint')} here; inspect {choose}:")
    print_table(("format", "path", "saved", ""), [_row(each, newest) for each in found])


def _newest(path: str, found: Sequence[Candidate]) -> list[Candidate]:
    """The newest one; none where the file that should name it cannot be read, which a list need not know."""
    try:
        return newest_among(path, found)
    except ShardvarError as error:
        note(f"note: {error.cause}")
        return []


def _row(each: Candidate, newest: Sequence[Candidate]) -> tuple[str, ...]:
    saved = "" if each.saved is None else datetime.fromtimestamp(each.saved).strftime("%Y-%m-%d %H:%M")
    mark = "newest" if [each] == newest else "" if each.is_finished else "not finished"
    return each.location.format.name, short_path(each.location.path), saved, mark
