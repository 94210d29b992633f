"""``shardvar diff``: compare two checkpoints."""

from argparse import Namespace

from shardvar.checkpoint.comparison import lines_of_diff
from shardvar.checkpoint.diff import diff
from shardvar.cli.output import note, print_json, progress, short_path
from shardvar.cli.usage import parse_renames
from shardvar.cli.verify import payload_nbytes
from shardvar.cli.view import check_target, write_diff_page
from shardvar.cli.workers import executor_of

_EQUAL, _DIFFERENT, _UNREADABLE = 0, 1, 3


def execute(arguments: Namespace) -> int:
    """Compare and print. Return 0 for equal checkpoints, 1 for different ones, 3 where a tensor cannot be read."""
    a, b = arguments.a, arguments.b
    rename = parse_renames(arguments.rename or (), None)
    if arguments.html:
        check_target(arguments.html)
    with (
        executor_of(arguments) as executor,
        progress("comparing", lambda: payload_nbytes(a) + payload_nbytes(b)) as advance,
    ):
        report = diff(
            a,
            b,
            advance,
            filter=arguments.filter,
            exclude=arguments.exclude,
            rename=rename,
            rtol=arguments.rtol,
            atol=arguments.atol,
            close=arguments.close,
            ignore_dtype=arguments.ignore_dtype,
            executor=executor,
        )
    if arguments.sort == "change":
        report = report.by_change()
    if arguments.json:
        print_json(report.to_json())
    else:
        lines = list(lines_of_diff(report))
        for line in lines[-1:] if arguments.summary else lines:
            print(line)
    if arguments.html:
        write_diff_page(arguments.html, report, arguments.filter, arguments.exclude, rename)
        note(f"wrote {short_path(arguments.html)}")
    if report.unreadable:
        return _UNREADABLE
    return _EQUAL if report.equal else _DIFFERENT
