"""``shardvar verify``: check every checksum, region and file of a checkpoint.

0  everything was read, and compared if its format has a checksum of it; ``--strict`` makes it 1 where one is missing
1  something is damaged
3  nothing is damaged, and something could not be read or compared
"""

import shlex
from argparse import Namespace
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any

from shardvar.checkpoint.locate import find_checkpoint
from shardvar.checkpoint.manifest import manifest_beside
from shardvar.checkpoint.reader import open_checkpoint
from shardvar.checkpoint.reports import SCHEMA, VerifyReport
from shardvar.checkpoint.verify import verify
from shardvar.cli.output import Mark, answer, count, human_size, note, one_line, print_json, progress, say, short_path
from shardvar.cli.workers import executor_of
from shardvar.errors import ArgumentError, CheckpointError, ShardvarError
from shardvar.pictures.problems import lines_of_problems
from shardvar.pictures.words import named

_OK, _NO, _NOT_VERIFIED = 0, 1, 3


def execute(arguments: Namespace) -> int:
    """Verify, print the reports and return the largest of their exit codes."""
    with executor_of(arguments) as executor:
        return _verify_all(arguments, executor)


def _verify_all(arguments: Namespace, executor: Executor | None) -> int:
    paths, strict = arguments.path, arguments.strict
    if len(paths) > 1 and arguments.against is not None:
        raise ArgumentError("A manifest is of one checkpoint, and several were given.", "Give one PATH.")
    chosen = {"filter": arguments.filter, "exclude": arguments.exclude}
    told: list[dict[str, Any]] = []
    codes: list[int] = []
    for path in paths:
        try:
            report = verify_with_progress(path, executor, against=arguments.against, **chosen)
        except CheckpointError as error:
            # Of several, one that cannot be opened hides no other.
            if len(paths) == 1:
                raise
            note(f"error: {one_line(error.cause)}")
            note(f"hint: {one_line(error.remedy)}")
            fields = {"kind": type(error).__name__, "cause": error.cause, "remedy": error.remedy}
            told.append({"schema": SCHEMA, "path": path, "error": fields})
            codes.append(_NOT_VERIFIED)
            continue
        codes.append(code_of_report(report, strict))
        told.append(report.to_json())
        if not arguments.json and (codes[-1] or not arguments.quiet):
            print_report(report, strict, arguments.all)
            if report.is_bare_format and report.ok and len(paths) == 1 and not arguments.quiet:
                note(f"hint: `shardvar digest {shlex.quote(path)} --write` keeps digests, which verify compares then.")
    if arguments.json:
        print_json(told[0] if len(paths) == 1 else told)
    return max(codes)


def code_of_report(report: VerifyReport, strict: bool = False) -> int:
    """Return the exit code that a report means; ``strict`` asks for a checksum of every tensor."""
    if report.damages:
        return _NO
    if report.uncompared:
        return _NOT_VERIFIED
    return _NO if strict and report.unguarded else _OK


def verify_with_progress(path: str, executor: Executor | None = None, **options: Any) -> VerifyReport:
    """Verify a checkpoint with options of ``verify``, with a progress bar at a terminal."""

    def total() -> int:
        # All payloads are read once more for digests.
        return payload_nbytes(path) * (2 if options.get("against") or _has_digests(path) else 1)

    with progress("verifying", total) as advance:
        return verify(path, advance, executor=executor, **options)


def _has_digests(path: str) -> bool:
    """Return True if digests are kept beside a checkpoint that verify compares."""
    with suppress(ShardvarError):
        return manifest_beside(find_checkpoint(path)) is not None
    return False


def payload_nbytes(path: str) -> int:
    """Return the payload bytes of a checkpoint, for a progress bar; 0 where its index cannot be read."""
    try:
        with open_checkpoint(path) as reader:
            return int(reader.entries().slices.nbytes.sum())
    except CheckpointError:
        return 0


def print_report(report: VerifyReport, strict: bool = False, everything: bool = False) -> None:
    """Print the report for people, damage first; with ``everything``, the keys of all problems."""
    damages = [(each.key, each.kind, each.message) for each in report.damages]
    problems = [(each.key, each.kind, each.message) for each in report.unverified if each.kind is not None]
    for line in lines_of_problems("damaged: ", damages, everything):
        say(line)
    for line in lines_of_problems("not verified: ", problems, everything):
        say(line)
    for each in report.notes:
        say(f"note: {one_line(each)}")
    mark, verdict = _verdict(report, strict)
    answer(mark, f"{verdict} {short_path(report.path)} ({report.format}): {_compared(report)}")


def _compared(report: VerifyReport) -> str:
    """The numbers of the answer: the tensors, the bytes that were read, and if they were compared."""
    read = f"{count(report.num_tensors, 'tensor')}, {human_size(report.read_nbytes)} read"
    bare = len(report.unguarded)
    # Where the format keeps none, the names of the tensors that are whole say nothing.
    if bare and (report.is_bare_format or bare == report.num_tensors):
        return f"{read}; no checksums in this {'format' if report.is_bare_format else 'checkpoint'}: structure only"
    if bare:
        keys = named([each.key for each in report.unguarded])
        which = f"{count(bare, 'tensor')} ({human_size(report.unguarded_nbytes)})"
        return f"{read}; {which} without a checksum, {keys}: structure only"
    return read if report.damages or report.uncompared or not report.num_tensors else f"{read}, every checksum matches"


def _verdict(report: VerifyReport, strict: bool) -> tuple[Mark, str]:
    tensors = count(report.num_tensors, "tensor")
    if report.damages:
        return "bad", f"{count(len(report.damages), 'problem')} in"
    if report.uncompared:
        return "attention", f"not verified: {len(report.uncompared):,} of {tensors} in"
    if report.unguarded:
        return "attention", f"not guarded: {len(report.unguarded):,} of {tensors} in" if strict else "complete:"
    return "good", "ok:"
