"""``shardvar reshard``: write a checkpoint with other slices, other files, or in another format."""

import logging
import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from shardvar.cli.cuts import parse_joins, parse_mesh, parse_shards
from shardvar.cli.maps import map_of
from shardvar.cli.numbers import note_dequantized
from shardvar.cli.output import (
    answer,
    count,
    human_size,
    human_tensors,
    note,
    one_line,
    print_json,
    printable,
    progress,
    put,
    say,
    short_path,
)
from shardvar.cli.plan import print_plan
from shardvar.cli.problems import print_problems
from shardvar.cli.usage import parse_casts, parse_count, parse_renames, parse_size
from shardvar.cli.verify import code_of_report, payload_nbytes, print_report, verify_with_progress
from shardvar.cli.view import check_target, show_link, write_plan_page
from shardvar.cli.workers import executor_of
from shardvar.errors import ArgumentError, CheckpointError
from shardvar.formats.table import name_of_target, names_of_target
from shardvar.limits import MAX_NAMED
from shardvar.pictures.words import message
from shardvar.planning.policies import (
    BalancedPolicy,
    MaxShardSizePolicy,
    ShardByDevicePolicy,
    TablePolicy,
)
from shardvar.verbs.locate import exact_path, find_target
from shardvar.verbs.reports import VerifyReport, WriteReport, lines_of_problems
from shardvar.verbs.reshard import Conversions, reshard

_LOST = 1


def execute(arguments: Namespace) -> int:
    """Write the checkpoint. Return 0, or what ``--verify`` makes of what was written, or 1 where
    tensors were lost."""
    if arguments.html:
        if not arguments.dry_run:
            raise ArgumentError(
                "--html is given without --dry-run.",
                "Add --dry-run, or leave --html out.",
            )
        check_target(arguments.html)
    try:
        with warnings_below():
            report = _reshard(arguments)
    except CheckpointError as error:
        if error.file is None or arguments.keep_going:
            raise
        raise type(error)(
            error.cause, f"{error.remedy} Or save all other tensors: --keep-going."
        ) from error
    verified = [
        verify_with_progress(_written(each))
        for each in (report.ranks or (report,) if arguments.verify and not report.dry_run else ())
    ]
    if arguments.json:
        is_right = all(each.ok for each in verified) if verified else None
        print_json(report.to_json() | {"verified": is_right})
    else:
        cast = Conversions(parse_casts(arguments.cast or ()), None)
        note_dequantized(arguments.source, cast.dtype_of_numbers(arguments.dequantize))
        note_large_files(report, arguments.max_file_size)
        print_write(report, arguments.source, verified, arguments.verbose)
    if arguments.html:
        drawn = replace(report, map=None) if _changes_map(arguments) else report
        write_plan_page(arguments.html, drawn, arguments.source, _command(arguments.words))
        note(f"wrote {short_path(arguments.html)}")
        show_link(arguments.html)
    code = next(filter(None, map(code_of_report, verified)), 0)
    return code or (_LOST if report.lost else 0)


def _reshard(arguments: Namespace) -> WriteReport:
    policy = parse_policy(arguments)
    mesh = None if arguments.mesh is None else parse_mesh(arguments.mesh)
    concat = parse_joins(arguments.concat or (), mesh)
    partition = parse_shards(
        arguments.shards or (), mesh, on_devices=bool(arguments.files_by), joins=concat
    )
    rename = parse_renames(arguments.rename or (), arguments.rename_file)
    cast = parse_casts(arguments.cast or ())
    with (
        executor_of(arguments) as executor,
        progress("resharding", lambda: sum(map(payload_nbytes, arguments.source))) as advance,
    ):
        return reshard(
            arguments.source,
            arguments.target,
            format=arguments.format,
            policy=policy,
            partition=dict(partition) or None,
            filter=arguments.filter,
            exclude=arguments.exclude,
            strip_prefix=arguments.strip_prefix,
            rename=rename,
            add_prefix=arguments.add_prefix,
            map=map_of(arguments),
            concat=concat,
            transpose=arguments.transpose,
            cast=cast,
            dequantize=arguments.dequantize,
            digest=arguments.digest,
            keep_going=arguments.keep_going,
            force=arguments.force,
            dry_run=arguments.dry_run,
            executor=executor,
            progress=advance,
        )


@contextmanager
def warnings_below() -> Iterator[None]:
    """Print the warnings of a write below its progress bar, without its report's."""
    warnings: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        if not hasattr(record, "is_in_report"):
            warnings.append(record.getMessage())
        return False  # the handler itself prints nothing

    log, handler = logging.getLogger("shardvar"), logging.Handler(logging.WARNING)
    handler.addFilter(keep)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        for warning in warnings:
            note(f"warning: {warning}")


def note_large_files(report: WriteReport, limit: str) -> None:
    """Say how many files are larger than they were to be, and why the largest of them is."""
    if report.exceeding:
        largest = max(report.exceeding, key=lambda each: each.nbytes)
        number = f"{len(report.exceeding):,} of {count(report.num_files, 'file')}"
        what = (
            f"{number} larger than --max-file-size {limit}, up to {human_size(largest.nbytes)}: "
            f"{largest.reason}"
        )
        note(f"note: {message(what)}")


def _changes_map(arguments: Namespace) -> bool:
    """Return True, with a note, if other options change what a map makes, so that a page cannot
    show the regions of the map."""
    names = ("rename", "rename_file", "strip_prefix", "add_prefix", "transpose")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name)]
    has_map = arguments.map is not None or bool(arguments.rule)
    if has_map and given:
        note(
            f"note: the page does not draw the map, because {given[0]} changes what it makes; "
            "write it as a rule"
        )
    return has_map and bool(given)


def _written(report: WriteReport) -> str:
    """Return a path of only the new checkpoint, even if another shares its prefix."""
    return exact_path(find_target(report.path, report.format, report.format))


def _file(report: WriteReport) -> str:
    """Return the path of the one file that a new checkpoint is, with its ending; else the path of
    the checkpoint."""
    names = names_of_target(report.path, report.format)
    files = [
        each
        for each in names
        if os.path.isfile(each) and name_of_target(each, report.format) == each
    ]
    return files[0] if files and report.num_files == 1 and not report.dry_run else report.path


def _command(words: Sequence[str]) -> str:
    """Return the command that does what a dry run showed: the same words without ``--dry-run`` and
    ``--html FILE``."""
    kept = list(words)
    at = kept.index("--html") if "--html" in kept else None
    if at is not None:
        del kept[at : at + 2]
    kept = [
        word
        for word in kept
        if word not in ("--dry-run", "--json") and not word.startswith("--html=")
    ]
    return shlex.join(["shardvar", *kept])


def parse_policy(arguments: Namespace) -> TablePolicy | None:
    """Return the policy that the options of files ask for."""
    if arguments.files is not None:
        return BalancedPolicy(parse_count(arguments.files, "--files"))
    if getattr(arguments, "files_by", None) is not None:
        return ShardByDevicePolicy()
    return (
        None
        if arguments.max_file_size is None
        else MaxShardSizePolicy(parse_size(arguments.max_file_size))
    )


def print_write(
    report: WriteReport, sources: Sequence[str], verified: Sequence[VerifyReport], verbose: bool
) -> None:
    """Print the report of a write, and of a verify of what was written."""
    done = "would write" if report.dry_run else "wrote"
    what = human_tensors(report.num_tensors, report.num_slices)
    size = f"{count(report.num_files, 'file')}, {human_size(report.nbytes)}"
    line = f"{done} {short_path(_file(report))} ({report.format}): {what}, {size}"
    if report.dry_run:
        say(line)
    else:
        answer("bad" if report.lost else "good", line, done)
    for each in report.ranks:
        size = f"{count(each.num_tensors, 'tensor')}, {human_size(each.nbytes)}"
        say(f"  {short_path(_file(each))}: {size}")
    if verbose:
        say(f"policy: {one_line(report.description)}")
    if sys.stdout.isatty() and report.lost:
        put("", f"{count(len(report.lost), 'tensor')} could not be read:")
        print_problems(report.lost, pipe="")
    else:
        for problem in lines_of_problems("lost: ", report.lost, everything=True):
            say(problem)
    if report.num_objects:
        put(f"carried {count(report.num_objects, 'object')} with the tensors")
    if report.untied:
        pairs = [f"{key!r} and {first!r}" for key, first in report.untied]
        more = f" and {len(pairs) - MAX_NAMED} more pairs" if len(pairs) > MAX_NAMED else ""
        put(f"written twice, and one in the source: {', '.join(pairs[:MAX_NAMED])}{more}")
    if report.left_out:
        keys = ", ".join(map(printable, report.left_out))
        note(
            f"note: left out {keys}: {report.format} holds no strings, and only TensorFlow reads it"
        )
    if report.digests:
        note(f"note: {message(report.digests)}")
    if report.reused_files:
        put(f"kept {count(report.reused_files, 'file')} that an interrupted run had finished")
    if report.dry_run:
        print_plan(report, sources)
    for found in verified:
        print_report(found)
