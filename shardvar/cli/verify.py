"""``shardvar verify``: check every checksum, region and file of a checkpoint.

0  everything was read, and compared if its format has a checksum of it; ``--strict`` makes it 1
   where one is missing, also of keys, dtypes and shapes
1  something is damaged, or not finite (``--nan``)
3  nothing is damaged, and something could not be read or compared
"""

import shlex
from argparse import Namespace
from concurrent.futures import Executor
from contextlib import closing, suppress
from functools import partial
from typing import Any

from shardvar.cli.output import (
    answer,
    at_terminal,
    executor_of,
    nbytes_of,
    note,
    note_unread,
    one_line,
    payload_nbytes,
    print_json,
    progress,
    say,
    seen_from_here,
    short_path,
)
from shardvar.cli.tree import print_problems
from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    ShardvarError,
)
from shardvar.formats.files import open_below
from shardvar.formats.table import format_named
from shardvar.pictures.words import in_command
from shardvar.verbs.compare.manifest import manifest_beside, read_against, sums_beside
from shardvar.verbs.locate import Location
from shardvar.verbs.problems import (
    OK,
    SCHEMA,
    VerifyReport,
    compared_of,
    facts_of_verify,
    lines_of_problems,
    num_damaged,
    problems_of,
    tally_of,
    undamaged_of,
    verdict_of_verify,
)
from shardvar.verbs.reader import open_found
from shardvar.verbs.verify import (
    VerifyOptions,
    contents_to_verify,
    joined_report,
    reports_of,
    verify_location,
)

_OK, _NO, _NOT_VERIFIED = 0, 1, 3


def execute(arguments: Namespace) -> int:
    if arguments.derived_from or arguments.statement:
        return _verify_derivation(arguments)
    with executor_of(arguments) as executor:
        return _verify_all(arguments, executor)


def _verify_derivation(arguments: Namespace) -> int:
    from shardvar.verbs.derivation import DERIVED, UNDECIDED, verify_derivation  # few need it

    if not (arguments.derived_from and arguments.statement) or len(arguments.path) > 1:
        raise ArgumentError(
            "A derivation is of one PATH, by --derived-from SRC and --statement FILE.",
            "Give each: `shardvar verify PATH --derived-from SRC --statement FILE`.",
        )
    given = [*arguments.path, *arguments.derived_from]
    with progress("deriving", lambda: 2 * sum(map(payload_nbytes, given))) as advance:
        found = verify_derivation(
            given[0], arguments.derived_from, arguments.statement, progress=advance
        )
    if arguments.json:
        print_json(found.to_json())
    elif not (found.ok and arguments.quiet):
        first, *lines = str(found).splitlines()
        answer("good" if found.ok else "bad", seen_from_here(first), found.verdict)
        for line in lines:
            say(seen_from_here(line))
    return {DERIVED: _OK, UNDECIDED: _NOT_VERIFIED}.get(found.verdict, _NO)


def _verify_all(arguments: Namespace, executor: Executor | None) -> int:
    paths, strict = arguments.path, arguments.strict
    if len(paths) > 1 and arguments.against is not None:
        raise ArgumentError("--against compares one checkpoint with a manifest.", "Give one PATH.")
    names = VerifyOptions._fields[:-1]
    options = VerifyOptions._make([*(getattr(arguments, name) for name in names), executor])
    told: list[dict[str, Any]] = []
    codes: list[int] = []
    verdicts: list[str] = []
    for path in paths:
        reports = list[VerifyReport]()
        try:
            contents, is_whole = contents_to_verify(path, options)
            is_one = len(paths) == len(contents.all if is_whole else contents.meant) == 1
            check = partial(verify_with_progress, options=options)
            for report in reports_of(contents, check, is_whole):
                reports.append(report)
                verdicts.append(verdict_of_verify(report, strict)[1])
                codes.append(code_of_report(report, strict))
                if not arguments.json and (codes[-1] or not arguments.quiet):
                    print_report(report, strict, arguments.all, indent="  " * (not is_one))
                    remedy = _remedy(report, path, strict) if is_one else None
                    if remedy and not arguments.quiet:
                        note(f"hint: {remedy}")
        except CheckpointError as error:
            # Of several, one that cannot be opened hides no other.
            if len(paths) == 1:
                raise
            told.append({"schema": SCHEMA, "path": path, "error": _refused(error)})
            codes.append(_NOT_VERIFIED)
            verdicts.append("not opened")
            continue
        whole = joined_report(contents, reports)
        told.append(whole.to_json())
        if whole.not_read and not (arguments.json or arguments.quiet):
            note_unread("not verified", whole.not_read, arguments.all)
    if arguments.json:
        print_json(told[0] if len(paths) == 1 else told)
    elif len(verdicts) > 1 and not arguments.quiet:
        _space()
        say(tally_of(verdicts))
    if len(paths) > 1 and not any(codes):
        from shardvar.verbs.delta.chain import ends_of_chain  # only for several paths

        try:
            ends = ends_of_chain(paths)  # if all of them are deltas
        except ArgumentError as error:
            _refused(error)
            return _NO
        if ends and not (arguments.quiet or arguments.json):
            say(f"The deltas follow each other: {ends[0]} to {ends[1]}")
    return max(codes)


def _refused(error: ShardvarError) -> dict[str, str]:
    """Print an error that ends nothing, and return its fields."""
    remedy = in_command(error.remedy)
    note(f"error: {one_line(seen_from_here(error.cause))}")
    note(f"hint: {one_line(seen_from_here(remedy))}")
    return {"kind": type(error).__name__, "cause": error.cause, "remedy": remedy}


def _space() -> None:
    # Only a terminal has paragraphs.
    if at_terminal():
        print()


def _remedy(report: VerifyReport, path: str, strict: bool) -> str | None:
    if report.ok and (report.is_bare_format or (strict and report.verdict != OK)):
        return (
            f"Run `shardvar digest {shlex.quote(path)} --write` to store digests that `verify` "
            "will check."
        )
    if report.is_delta and report.damages:
        return "Copy the delta again, or make it again from both checkpoints."
    if report.damages and num_damaged(report) < len(report.outcomes):
        # As SRC, unless its format is only read.
        target = (
            "rescued" if format_named(report.format).capabilities.dtypes else "rescued.safetensors"
        )
        return (
            f"`shardvar reshard {shlex.quote(path)} {target} --keep-going` saves the tensors "
            "without damage."
        )
    return None


def code_of_report(report: VerifyReport, strict: bool = False) -> int:
    """Return the exit code that a report means; ``strict`` asks for checksums of everything."""
    if report.damages or report.not_finite:
        return _NO
    if report.uncompared or report.doubts:
        return _NOT_VERIFIED
    return _NO if strict and report.verdict != OK else _OK


def verify_with_progress(found: Location, options: VerifyOptions) -> VerifyReport:
    """Verify a checkpoint with options of ``verify``, with a progress bar at a terminal."""

    def total() -> int:
        # Above the bar: facts that need no value.
        for line in lines_of_problems(
            "damaged: ", verify_location(found, VerifyOptions(quick=True)).damages
        ):
            note(line)
        nbytes = nbytes_of(lambda: open_found(found, dequantize=False))
        # All payloads are read once more for digests, and files for their checksums.
        with suppress(ShardvarError):
            given = None if options.against is None else read_against(options.against)
            claim = given or manifest_beside(found)
            with closing(found.open()) as source:
                names = {each.file for each in sums_beside(found, source, given).sums}
            sizes = [open_below(found.storage, name).size for name in names]
            return nbytes + sum(sizes) + (nbytes if claim and not claim.is_list else 0)
        return nbytes

    if options.quick:
        return verify_location(found, options)
    with progress("verifying", total) as advance:
        return verify_location(found, options, advance)


def print_report(
    report: VerifyReport, strict: bool = False, everything: bool = False, indent: str = ""
) -> None:
    """Print the report, the verdict first; with ``everything``, the keys of all problems."""
    mark, verdict = verdict_of_verify(report, strict)
    text = f"{verdict} {short_path(report.path)} ({report.format}): {compared_of(report, strict)}"
    answer(mark, text, verdict.partition(":")[0])
    problems = problems_of(report)
    if not indent and (report.damages or problems):
        _space()
    print_problems(report.damages, everything, indent, pipe="damaged: ")
    print_problems(problems, everything, indent, pipe="not verified: ")
    for text in facts_of_verify(report, everything):
        say(f"{indent}{text}")
    if undamaged := undamaged_of(report):
        if not indent:
            _space()
        say(f"{indent}{undamaged}")
