"""``shardvar digest``: print digests that no layout changes, keep them, compare them.

0  done, or all digests agree
1  digests differ
3  a tensor cannot be read, so it has no digest
"""

from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from time import perf_counter

from shardvar.cli.output import (
    all_tensors,
    answer,
    at_terminal,
    count,
    ellipsis,
    executor_of,
    human_size,
    human_tensors,
    human_time,
    note,
    one_line,
    paths_as_typed,
    payload_nbytes,
    print_json,
    printable,
    progress,
    put,
    say,
    short_path,
    shortened,
    terminal_size,
)
from shardvar.verbs.compare.digest import DigestReport, digest
from shardvar.verbs.compare.manifest import (
    Manifest,
    check_without_manifest,
    differences,
    read_manifest,
    statement_of,
    write_manifest,
)
from shardvar.verbs.locate import find_checkpoint
from shardvar.verbs.problems import Damage, lines_of_problems

_SAME, _DIFFERENT, _UNREADABLE = 0, 1, 3


def execute(arguments: Namespace) -> int:
    manifest = read_manifest(arguments.against) if arguments.against else None
    if arguments.write:  # before the checkpoint is read, which may take long
        check_without_manifest(find_checkpoint(arguments.path), arguments.force)
    total, begin = partial(payload_nbytes, arguments.path), perf_counter()
    with executor_of(arguments) as executor, progress("reading", total) as advance:
        report = digest(arguments.path, progress=advance, executor=executor)
    found = {} if manifest is None else differences(manifest, report)
    fields = report.to_json()
    if manifest is not None:
        fields["against"] = manifest.place
        fields["differences"] = [each.to_json() for each in found.values()]
    if arguments.write and not report.unreadable:
        fields["manifest"] = write_manifest(report, arguments.force)
    if arguments.in_toto:
        if not report.unreadable:
            print_json(statement_of(report))
    elif arguments.json:
        print_json(fields)
    elif manifest is not None:
        _print_comparison(report, manifest, found)
    elif at_terminal() and not arguments.all:
        _print_short(report, arguments, perf_counter() - begin)
    else:
        put(*(f"{value}  {one_line(key)}" for key, value in report.tensors.items()))
        if report.checkpoint is not None:  # a line that begins with no digit
            put(f"checkpoint {report.checkpoint}")
    for line in lines_of_problems("error: ", report.unreadable):
        note(paths_as_typed(line, [arguments.path]))
    if "manifest" in fields and not arguments.json:
        note(f"wrote {short_path(fields['manifest'])}")
    return _UNREADABLE if report.unreadable else _DIFFERENT if found else _SAME


def _print_short(report: DigestReport, arguments: Namespace, seconds: float) -> None:
    columns = terminal_size().columns
    if report.checkpoint is None:
        unreadable = count(len(report.unreadable), "tensor")
        answer("bad", f"no digest: {unreadable} cannot be read", "no digest")
    else:
        put(shortened(f"sha256:{report.checkpoint}", columns))
    digests = len(report.tensors)
    what = human_tensors(digests, 0, report.num_settings)
    what = f"{what}, {human_size(payload_nbytes(arguments.path))}"
    if report.unreadable:
        what = (
            f"{digests:,} of {all_tensors(digests + len(report.unreadable), report.num_settings)}"
        )
    say(f"{short_path(report.path)}  {what} in {human_time(seconds)}")
    if arguments.write or not report.tensors:
        return
    print()
    rows = [
        f"{value[:_DIGITS]}{ellipsis()}  {printable(key)}" for key, value in report.tensors.items()
    ]
    left_out = len(rows) - _FIRST - _LAST
    if left_out > 1:
        rows[_FIRST:-_LAST] = [f"{ellipsis()} {left_out:,} more (--all)"]
    for row in rows:
        put(shortened(row, columns))


_DIGITS = 12
"""The digits of a digest that tell tensors apart for a person."""
_FIRST, _LAST = 8, 2
"""The tensors that a terminal lists at both ends; it counts the others."""


def _print_comparison(
    report: DigestReport, manifest: Manifest, found: Mapping[str, Damage]
) -> None:
    for each in found.values():
        say(f"differs: {one_line(each.message)}")
    unreadable = len(report.unreadable)
    keys = {*report.tensors, *manifest.tensors, *(each.key for each in report.unreadable)}
    total = all_tensors(len(keys), report.num_settings)
    place = short_path(manifest.place)
    if not found and not unreadable:
        answer("good", f"equal: {total} as in {place}", "equal")
        return
    verb = "differs" if len(found) == 1 else "differ"
    text = f"{len(found):,} of {total} {verb} from {place}"
    text = f"{text}; {unreadable:,} unreadable" if unreadable else text
    answer("bad" if unreadable else "different", text, verb)
