"""``shardvar digest``: print digests that no layout changes, keep them, compare them.

0  done, or all digests agree
1  digests differ
3  a tensor cannot be read, so it has no digest
"""

from argparse import Namespace
from collections.abc import Mapping
from functools import partial

from shardvar.cli.output import (
    answer,
    count,
    note,
    one_line,
    paths_as_typed,
    print_json,
    progress,
    say,
    short_path,
)
from shardvar.cli.verify import payload_nbytes
from shardvar.cli.workers import executor_of
from shardvar.errors import ArgumentError
from shardvar.verbs.compare.digest import DigestReport, digest
from shardvar.verbs.compare.manifest import (
    Manifest,
    check_without_manifest,
    differences,
    read_manifest,
    write_manifest,
)
from shardvar.verbs.locate import find_checkpoint
from shardvar.verbs.problems import Damage, lines_of_problems

_SAME, _DIFFERENT, _UNREADABLE = 0, 1, 3


def execute(arguments: Namespace) -> int:
    """Print, write or compare the digests and return the exit code."""
    if arguments.force and not arguments.write:
        raise ArgumentError(
            "--force replaces a manifest, and none is written.",
            "Add --write, or leave --force out.",
        )
    manifest = read_manifest(arguments.against) if arguments.against else None
    if arguments.write:  # before the checkpoint is read, which may take long
        check_without_manifest(find_checkpoint(arguments.path), arguments.force)
    total = partial(payload_nbytes, arguments.path)
    with executor_of(arguments) as executor, progress("reading", total) as advance:
        report = digest(arguments.path, advance, executor=executor)
    found = {} if manifest is None else differences(manifest, report)
    fields = report.to_json()
    if manifest is not None:
        fields["against"] = manifest.place
        fields["differences"] = [each.to_json() for each in found.values()]
    if arguments.write and not report.unreadable:
        fields["manifest"] = write_manifest(report, arguments.force)
    if arguments.json:
        print_json(fields)
    elif manifest is None:
        _print_digests(report)
    else:
        _print_comparison(report, manifest, found)
    for line in lines_of_problems("error: ", report.unreadable):
        note(paths_as_typed(line, [arguments.path]))
    if "manifest" in fields and not arguments.json:
        note(f"wrote {short_path(fields['manifest'])}")
    return _UNREADABLE if report.unreadable else _DIFFERENT if found else _SAME


def _print_digests(report: DigestReport) -> None:
    """Print a line for each tensor, then one for the checkpoint, which begins with no digit."""
    for key, value in report.tensors.items():
        print(f"{value}  {one_line(key)}")
    if report.checkpoint is not None:
        print(f"checkpoint {report.checkpoint}")


def _print_comparison(
    report: DigestReport, manifest: Manifest, found: Mapping[str, Damage]
) -> None:
    """Print a line for each tensor that differs, then one that sums up."""
    for each in found.values():
        say(f"differs: {one_line(each.message)}")
    unreadable = len(report.unreadable)
    total = count(
        len({*report.tensors, *manifest.tensors}.union(each.key for each in report.unreadable)),
        "tensor",
    )
    place = short_path(manifest.place)
    if not found and not unreadable:
        answer("good", f"equal: {total} as in {place}")
        return
    text = f"{len(found):,} of {total} {'differs' if len(found) == 1 else 'differ'} from {place}"
    answer(
        "bad" if unreadable else "different",
        f"{text}; {unreadable:,} unreadable" if unreadable else text,
    )
