"""``shardvar verify``: check every checksum, region and file of a checkpoint.

0  everything was compared, or has no checksum in its format, which the answer says; ``--strict`` makes that 1
1  something is damaged
3  nothing is damaged, and something that the format guards could not be read or compared
"""

import re
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Sequence

from shardvar.checkpoint.reader import open_checkpoint
from shardvar.checkpoint.reports import VerifyReport
from shardvar.checkpoint.verify import verify
from shardvar.cli.output import count, human_size, one_line, print_json, progress, short_name, short_path
from shardvar.errors import CheckpointError

_OK, _NO, _NOT_VERIFIED = 0, 1, 3

_NAMED = 3
"""Keys that a line names; it counts the others."""
_MOST_ALIKE = 16
"""Problems that differ only in their numbers and are printed; the others are counted."""
_NUMBER = re.compile("[0-9]+")


def execute(arguments: Namespace) -> int:
    """Verify, print the report and return its exit code."""
    report = verify_with_progress(arguments.path, arguments.against)
    if arguments.json:
        print_json(report.to_json())
    else:
        print_report(report, arguments.strict)
    return code_of_report(report, arguments.strict)


def code_of_report(report: VerifyReport, strict: bool = False) -> int:
    """Return the exit code that a report means; ``strict`` asks for a checksum of every tensor."""
    if report.damages:
        return _NO
    if report.uncompared:
        return _NOT_VERIFIED
    return _NO if strict and report.unguarded else _OK


def verify_with_progress(path: str, against: str | None = None) -> VerifyReport:
    """Verify a checkpoint, with a progress bar at a terminal."""
    with progress("verifying", lambda: payload_nbytes(path)) as advance:
        return verify(path, advance, against=against)


def payload_nbytes(path: str) -> int:
    """Return the payload bytes of a checkpoint, for a progress bar; 0 where its index cannot be read."""
    try:
        with open_checkpoint(path) as reader:
            return int(reader.entries().slices.nbytes.sum())
    except CheckpointError:
        return 0


def print_report(report: VerifyReport, strict: bool = False) -> None:
    """Print the report for people, damage first."""
    _print_problems("damaged", [(each.key, each.kind, each.message) for each in report.damages])
    unread = [(each.key, each.kind, each.message) for each in report.unverified if each.kind is not None]
    _print_problems("not verified", unread)
    for each in report.notes:
        print(f"note: {one_line(each)}")
    what = f"{count(report.num_tensors, 'tensor')} in {count(report.num_slices, 'slice')}"
    read = f"{what}, {count(report.num_files, 'file')}, {human_size(report.read_nbytes)} read"
    bare = len(report.unguarded)
    if bare and bare == report.num_tensors:
        read += "; no checksums in this format: structure only"
    elif bare:
        read += f"; {count(bare, 'tensor')} ({human_size(report.unguarded_nbytes)}) without a checksum: structure only"
    print(f"{_verdict(report, strict)} {short_path(report.path)} ({report.format}): {read}")


def _verdict(report: VerifyReport, strict: bool) -> str:
    if report.damages:
        return f"{count(len(report.damages), 'problem')} in"
    if report.uncompared:
        return f"not verified: {len(report.uncompared):,} of {count(report.num_tensors, 'tensor')} in"
    if strict and report.unguarded:
        return f"not guarded: {len(report.unguarded):,} of {count(report.num_tensors, 'tensor')} in"
    return "ok:"


def _print_problems(word: str, problems: Iterable[tuple[str | None, str | None, str]]) -> None:
    """Print problems, each a key, the class of an error and its message: a line for each cause, with its keys."""
    # One cause may be that of many keys, such as a missing file: their messages differ in the key alone.
    keys_of: dict[tuple[str | None, str], list[str]] = {}
    for key, kind, message in problems:
        cause = message if key is None else message.replace(f"{key!r}: ", "", 1)
        keys_of.setdefault((kind, cause), []).extend([] if key is None else [key])
    # Many causes may differ in their numbers alone, such as overlaps: the first ones are examples of the others.
    alike: Counter[tuple[str | None, str]] = Counter()
    others: dict[tuple[str | None, str], list[str]] = {}
    for (kind, cause), keys in keys_of.items():
        pattern = kind, _NUMBER.sub("", cause.replace(repr(keys[0]), "") if keys else cause)
        alike[pattern] += 1
        if alike[pattern] > _MOST_ALIKE:
            others.setdefault(pattern, []).extend(keys)
            continue
        print(f"{word}: {_named(keys)}{kind}: {one_line(cause)}")
    for pattern, keys in others.items():
        number = count(alike[pattern] - _MOST_ALIKE, "problem")
        print(f"{word}: {_named(keys)}{pattern[0]}: {number} more like those above; `--json` lists all.")


def _named(keys: Sequence[str]) -> str:
    """The keys of a line, the first few by name."""
    if not keys:
        return ""
    if len(keys) == 1:
        return f"{short_name(keys[0])}: "
    more = f" and {len(keys) - _NAMED:,} more" if len(keys) > _NAMED else ""
    return f"{count(len(keys), 'tensor')} ({', '.join(map(short_name, keys[:_NAMED]))}{more}): "
