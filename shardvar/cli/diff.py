"""``shardvar diff``: compare two checkpoints."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from math import prod

from shardvar.checkpoint.diff import diff
from shardvar.checkpoint.reports import DiffReport, TensorDifference, ValueDifference
from shardvar.cli.output import count, human_shape, note, one_line, print_json, progress, short_name, short_path
from shardvar.cli.usage import parse_renames
from shardvar.cli.verify import payload_nbytes
from shardvar.cli.view import check_target, write_diff_page

_EQUAL, _DIFFERENT, _UNREADABLE = 0, 1, 3


def execute(arguments: Namespace) -> int:
    """Compare and print. Return 0 for equal checkpoints, 1 for different ones, 3 where a tensor cannot be read."""
    a, b = arguments.a, arguments.b
    if arguments.html:
        check_target(arguments.html)
    with progress("comparing", lambda: payload_nbytes(a) + payload_nbytes(b)) as advance:
        report = diff(
            a,
            b,
            advance,
            filter=arguments.filter,
            exclude=arguments.exclude,
            rename=parse_renames(arguments.rename or (), None),
            rtol=arguments.rtol,
            atol=arguments.atol,
            close=arguments.close,
            ignore_dtype=arguments.ignore_dtype,
        )
    if arguments.json:
        print_json(report.to_json())
    else:
        lines = list(_lines(report))
        for line in lines[-1:] if arguments.summary else lines:
            print(line)
    if arguments.html:
        write_diff_page(arguments.html, report)
        note(f"wrote {short_path(arguments.html)}")
    if report.unreadable:
        return _UNREADABLE
    return _EQUAL if report.equal else _DIFFERENT


def _lines(report: DiffReport) -> Iterator[str]:
    for key in report.only_in_a:
        yield f"only in A: {short_name(key)}"
    for key in report.only_in_b:
        yield f"only in B: {short_name(key)}"
    for each in report.differences:
        yield f"differs: {short_name(each.key)}: {'; '.join(_reasons(each))}"
    for broken in report.unreadable:
        place = f"unreadable in {broken.side.upper()}: {short_name(broken.key)}"
        yield f"{place}: {broken.kind}: {one_line(broken.message)}"
    if report.equal:
        within = "" if report.tolerance is None else f", within {report.tolerance}"
        yield f"equal: {count(report.num_equal, 'tensor')} in both{within}"
        return
    counts = {
        "equal": report.num_equal,
        "changed": len(report.differences),
        "only in A": len(report.only_in_a),
        "only in B": len(report.only_in_b),
    }
    # A tensor that is unreadable on both sides counts once.
    if unreadable := len({broken.key for broken in report.unreadable}):
        counts["unreadable"] = unreadable
    yield ", ".join(f"{number:,} {what}" for what, number in counts.items())


def _reasons(each: TensorDifference) -> Iterator[str]:
    if each.dtype_a != each.dtype_b:
        yield f"dtype {each.dtype_a} and {each.dtype_b}"
    if each.shape_a != each.shape_b:
        yield f"shape {human_shape(each.shape_a)} and {human_shape(each.shape_b)}"
    if each.values is not None:
        yield _describe(each.values, each.shape_a)


def _describe(values: ValueDifference, shape: Sequence[int]) -> str:
    if values.first is None:  # opaque elements: the bytes of their payloads are compared
        text = count(values.count, "byte")
    else:
        text = f"{values.count:,} of {count(prod(shape), 'element')}, first at {human_shape(values.first)}"
    if values.max_absolute is not None:
        text += f", by at most {values.max_absolute:.6g}"
    if values.max_relative is not None:
        text += f" (relative {values.max_relative:.3g})"
    if values.num_without_distance:
        text += f"; {values.num_without_distance:,} with NaN"
    return text
