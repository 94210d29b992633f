"""``shardvar verify``: check every checksum, region and file of a checkpoint."""

from argparse import Namespace

from shardvar.checkpoint.reader import open_checkpoint
from shardvar.checkpoint.reports import Damage, VerifyReport
from shardvar.checkpoint.verify import verify
from shardvar.cli.output import count, human_size, one_line, print_json, printable, progress, short_path
from shardvar.errors import CheckpointError


def execute(arguments: Namespace) -> int:
    """Verify and print the report. Return 0 for a sound checkpoint, 1 for a damaged one."""
    report = verify_with_progress(arguments.path)
    if arguments.json:
        print_json(report.to_json())
    else:
        print_report(report)
    return 0 if report.ok else 1


def verify_with_progress(path: str) -> VerifyReport:
    """Verify a checkpoint, with a progress bar at a terminal."""
    with progress("verifying", lambda: payload_nbytes(path)) as advance:
        return verify(path, advance)


def payload_nbytes(path: str) -> int:
    """Return the payload bytes of a checkpoint, for a progress bar; 0 where its index cannot be read."""
    try:
        with open_checkpoint(path) as reader:
            return int(reader.entries().slices.nbytes.sum())
    except CheckpointError:
        return 0


def print_report(report: VerifyReport) -> None:
    """Print the report for people, damage first."""
    for damage in report.damages:
        print(f"damaged: {_place(damage)}{damage.kind}: {one_line(damage.message)}")
    for each in report.notes:
        print(f"note: {one_line(each)}")
    what = f"{count(report.num_tensors, 'tensor')} in {count(report.num_slices, 'slice')}"
    read = f"{what}, {count(report.num_files, 'file')}, {human_size(report.read_nbytes)} read"
    if report.unguarded_nbytes:
        read += f"; {human_size(report.unguarded_nbytes)} have no checksum in this format: structure only"
    verdict = "ok:" if report.ok else f"{count(len(report.damages), 'problem')} in"
    print(f"{verdict} {short_path(report.path)} ({report.format}): {read}")


def _place(damage: Damage) -> str:
    return "" if damage.key is None else f"{printable(damage.key)}: "
