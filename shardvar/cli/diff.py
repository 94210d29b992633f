"""``shardvar diff``: compare two checkpoints, and with ``--html`` draw both on one page.

At a terminal each tensor is in one table, once: structure, then values. Tensors share a line if
their names differ only in numbers and they differ in the same way: the same two shapes, the same
two dtypes, or values whose change is of one kind. Siblings whose names differ in one word share a
line too; of values, if their largest changes are near each other. ``--all`` and a pipe get a line
for each tensor, with all figures.

Names are never cut: two rows could then read the same. Columns are left out of a narrow table.
"""

import os
import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import takewhile
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from shardvar.cli.maps import map_of, print_rules
from shardvar.cli.output import (
    Mark,
    answer,
    at_terminal,
    can_print,
    count,
    executor_of,
    human_shape,
    note,
    note_dequantized,
    note_unread,
    payload_nbytes,
    print_json,
    print_table,
    printable,
    progress,
    say,
    short_path,
    terminal_size,
)
from shardvar.cli.tree import fold_keys, fold_words, print_problems
from shardvar.cli.usage import parse_renames
from shardvar.errors import ArgumentError, ShardvarError
from shardvar.layout.dtypes import is_number
from shardvar.verbs.compare.comparison import (
    DiffReport,
    TensorDifference,
    agreement,
    lines_of_diff,
    only_dtypes,
)
from shardvar.verbs.compare.diff import diff
from shardvar.verbs.load import open_checkpoint
from shardvar.verbs.renaming import REGULAR, new_names

if TYPE_CHECKING:
    from shardvar.maps.map import Map

_MOST_ROWS = 40  # of a table
_NEAR = 1.5  # The factor within which the largest changes of siblings share a line
_BETWEEN = 2

_Row = tuple[str, ...]


def print_changes(report: DiffReport, by_change: bool) -> None:
    """Print what differs, folded; values by their largest change, or in the order of the names."""
    structure, values = list(_structure(report)), list(_values(report, by_change))
    arrow = _arrow().strip()
    if not _is_in_verdict(report):
        _print_columns(("structure", "tensors", f"A {arrow} B"), structure, (1,), (1,))
        dtypes = {row[4] for row in values}
        if len(dtypes) == 1 and (same := dtypes.pop()):
            values = [(*row[:4], "") for row in values]
            _print_columns((f"values, {same}", *_OF_VALUES), values, (1, 2, 3), (1, 3))
        else:
            _print_columns(("values", *_OF_VALUES), values, (1, 2, 3), (1, 3, 4))
    for side, broken in report.damages().items():
        print()
        say(f"{count(len(broken), 'tensor')} of {side} cannot be read:")
        print_problems(broken, pipe="")
    if (values and not _is_in_verdict(report)) or len(structure) > _MOST_ROWS:
        print()
        say("--all: a line for each tensor, with where it differs first and most")


def _is_in_verdict(report: DiffReport) -> bool:
    """Return True if all tensors differ only in the same two dtypes, which the verdict names."""
    dtypes = {(each.dtype_a, each.dtype_b) for each in report.differences}
    return only_dtypes(report) is not None and not report.num_equal and len(dtypes) == 1


_OF_VALUES = ("tensors", "change", "max |B-A|", "dtype")


def _arrow() -> str:
    return " → " if can_print("→") else " -> "


def _print_columns(
    headers: Sequence[str], rows: Sequence[_Row], right: Sequence[int], drop: Sequence[int]
) -> None:
    """Leave out columns that do not fit, or are empty or all "1"; all stay if no choice fits."""
    if not rows:
        return
    kept = [
        number
        for number in range(len(headers))
        if any(row[number] != _NOTHING.get(number, "") for row in rows)
    ]
    from rich.cells import cell_len

    shown = [headers, *rows[:_MOST_ROWS]]
    widths = {number: max(cell_len(line[number]) for line in shown) for number in kept}
    for num_gone in range(len(drop) + 1):
        rest = [number for number in kept if number not in drop[:num_gone]]
        between = _BETWEEN * (len(rest) - 1)
        if sum(widths[number] for number in rest) + between <= terminal_size().columns:
            kept = rest
            break
    print()
    print_table(headers, rows[:_MOST_ROWS], right, hidden={*range(len(headers))} - {*kept})
    if len(rows) > _MOST_ROWS:
        say(f"{len(rows) - _MOST_ROWS:,} more lines")


_NOTHING = {1: "1"}  # The cell of a column that is left out if all lines have it; else empty


def _structure(report: DiffReport) -> Iterator[_Row]:
    groups: dict[tuple[str, str], list[str]] = {}
    for kind in ("shape", "shape and dtype", "dtype"):
        for each in report.differences:
            if each.kind == kind:
                groups.setdefault((kind, _both(each, report.tolerance)), []).append(each.key)
    groups["only in A", ""] = list(report.only_in_a)
    groups["only in B", ""] = list(report.only_in_b)
    for (kind, text), keys in groups.items():
        numbers = {label: len(shared) for label, shared in fold_keys(keys)}
        for label, labels in fold_words(list(numbers)):
            number = sum(numbers[each] for each in labels)
            yield printable(label), f"{number:,}", text or kind


def _both(each: TensorDifference, tolerance: str | None) -> str:
    arrow = _arrow()
    sides = [(each.dtype_a, each.dtype_b)] if each.dtype_a != each.dtype_b else []
    if each.shape_a != each.shape_b:
        sides.append((human_shape(each.shape_a), human_shape(each.shape_b)))
        return arrow.join(" ".join(side) for side in zip(*sides, strict=True))
    both = "".join(arrow.join(side) for side in sides)
    return f"{both}, {agreement(each.only_dtype, tolerance)}" if each.only_dtype else both


class _Line(NamedTuple):
    label: str
    kind: str
    dtypes: str
    found: list[TensorDifference]

    @property
    def change(self) -> float:
        return max(each.change for each in self.found)


def _values(report: DiffReport, by_change: bool) -> Iterator[_Row]:
    groups: dict[tuple[str, str], dict[str, TensorDifference]] = {}
    for each in report.differences:
        if each.values is not None:
            alike = _kind_of_change(each), _both(each, report.tolerance)
            groups.setdefault(alike, {})[each.key] = each
    lines: list[_Line] = []
    for (kind, dtypes), members in groups.items():
        lines += _siblings(
            [
                _Line(label, kind, dtypes, [members[key] for key in shared])
                for label, shared in fold_keys(list(members))
            ]
        )
    for line in sorted(lines, key=lambda line: -line.change) if by_change else lines:
        distances = [each.values.max_absolute for each in line.found if each.values]
        known = [distance for distance in distances if distance is not None]
        largest = f"{max(known):.3g}" if known and not line.kind.startswith("only") else ""
        least, most = (
            f"{100 * end:#.2g}".rstrip(".") if end < 0.995 else f"{100 * end:.0f}"
            for end in (min(each.change for each in line.found), line.change)
        )
        change = line.kind or (f"{most} %" if least == most else f"{least} - {most} %")
        yield printable(line.label), f"{len(line.found):,}", change, largest, line.dtypes


def _siblings(lines: Sequence[_Line]) -> Iterator[_Line]:
    by_label = {line.label: line for line in lines}
    for _, labels in fold_words(list(by_label)):
        some = sorted((by_label[label] for label in labels), key=lambda line: -line.change)
        while some:
            near = [line for line in some if some[0].change <= _NEAR * line.change]
            some = [line for line in some if line not in near]
            ((label, _),) = fold_words([line.label for line in near])
            found = [each for line in near for each in line.found]
            yield near[0]._replace(label=label, found=found)


def _kind_of_change(each: TensorDifference) -> str:
    """Return the words for a change without a number; empty for one that is a percentage."""
    values = each.values
    if values is None or isfinite(each.change):
        return f"only the {values.only}" if values and values.only else ""
    if not is_number(each.dtype_a):
        return "not numbers"
    return "NaN on one side" if values.num_without_distance > values.num_nans else "infinite"


_NEAREST = 3  # Similar names of the other side whose beginnings are tried
_MOST_COMPARED = 10_000  # Names that are compared letter by letter: more would take seconds

_Heads = tuple[str, str]
"""The texts with which names in A and in B begin, and after which they are the same."""


def rename_hint(report: DiffReport, arguments: Namespace) -> str | None:
    """Return the command that finds most names of one side in the other; None without one."""
    only_a, only_b = report.only_in_a, report.only_in_b
    if not (only_a and only_b):
        return None
    there = set(only_b)

    def num_found(heads: _Heads) -> int:
        a, b = heads
        return sum(name.startswith(a) and b + name[len(a) :] in there for name in only_a)

    found = {heads: num_found(heads) for heads in _candidates(only_a, only_b)}
    best = max(found, key=found.__getitem__, default=None)
    if best is None or 2 * found[best] <= min(len(only_a), len(only_b)):
        return None
    try:
        command = _command(best, report, arguments)
    except ShardvarError:  # a name would stand for two tensors, or an index is no longer there
        return None
    a, b = best
    short, long, head = ("B", "A", a) if a else ("A", "B", b)
    begins = f"Most names of {short} are in {long}, after {head!r}."
    if a and b:
        begins = f"Most names begin with {a!r} in A and with {b!r} in B."
    return command and f"{begins} To compare them: `{command}`"


def _candidates(only_a: Sequence[str], only_b: Sequence[str]) -> Iterator[_Heads]:
    """Yield beginnings of a few names, and of the names that end most like them in the other."""
    fewer, more = sorted((only_a, only_b), key=len)
    for name in (fewer[0], fewer[len(fewer) // 2], fewer[-1]):
        near = [other for other in more if other.endswith(name) or name.endswith(other)]
        # Comparing letter by letter is slow, and most prefixes do not need it.
        near = near or sorted(more[:_MOST_COMPARED], key=lambda other: -len(_tail(name, other)))
        for other in near[:_NEAREST]:
            tail = _tail(name, other)
            heads = name[: len(name) - len(tail)], other[: len(other) - len(tail)]
            # A star or an equals sign would mean something else in the option.
            if tail and not any("*" in head or "=" in head for head in heads):
                yield heads if fewer is only_a else heads[::-1]


def _tail(name: str, other: str) -> str:
    """Return the end that two names have in common, from a separator on unless it is a whole name.

    >>> _tail("model.layers.0.w", "layers.0.w"), _tail("layers.0.w", "h.0.w"), _tail("ab", "cb")
    ('layers.0.w', '0.w', '')
    """
    pairs = zip(reversed(name), reversed(other), strict=False)
    length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    tail = name[len(name) - length :]
    if tail in (name, other):
        return tail
    place = min((place for place in map(tail.find, "./") if place >= 0), default=len(tail))
    return tail[place + 1 :]


def _command(heads: _Heads, report: DiffReport, arguments: Namespace) -> str | None:
    """Return the command with ``--rename``, with A and B exchanged if only that order works."""
    asked = arguments.dequantize
    with (
        open_checkpoint(report.path_a, dequantize=asked) as one,
        open_checkpoint(report.path_b, dequantize=asked) as other,
    ):
        a, b = list(one), list(other)
    if _finds_more(heads, a, b):
        return _joined(arguments.words, heads)
    words, sides = arguments.words, [arguments.a, arguments.b]
    for place in range(len(words) - 1):
        # Only if A and B follow each other.
        if words[place : place + 2] == sides and _finds_more(heads[::-1], b, a):
            exchanged = [*words[:place], *sides[::-1], *words[place + 2 :]]
            return _joined(exchanged, heads[::-1])
    return None


def _finds_more(heads: _Heads, a: Sequence[str], b: Sequence[str]) -> bool:
    """Return True if no name of A that is in B is lost by the renaming, and others are found."""
    there = set(b)
    if heads[0].startswith(REGULAR):
        return False
    renamed = new_names(a, {f"{heads[0]}*": f"{heads[1]}*"})
    was = {row for row, name in enumerate(a) if name in there}
    return was < {row for row, name in enumerate(renamed) if name in there}


def _joined(words: Sequence[str], heads: _Heads) -> str:
    return shlex.join(["shardvar", *words, "--rename", f"{heads[0]}*={heads[1]}*"])


_EQUAL, _DIFFERENT, _UNREADABLE = 0, 1, 3


def execute(arguments: Namespace) -> int:
    """Return 0 for equal checkpoints, 1 for different ones, 3 if a tensor cannot be read."""
    a, b = arguments.a, arguments.b
    given = map_of(arguments)
    stored = _stored_paths(a, b, given)
    rename = parse_renames(arguments.rename or (), None)
    if arguments.html:
        if len(stored) > 2:
            cause = f"--html shows two checkpoints, and {len(stored)} are compared."
            raise ArgumentError(cause, "Leave --html out: the report in text is about all ranks.")
        from shardvar.cli.view import check_diff_page, check_target, show_link, write_diff_page

        check_target(arguments.html)
        check_diff_page(arguments, rename or {})
    with (
        executor_of(arguments) as executor,
        progress("comparing", lambda: sum(map(payload_nbytes, stored))) as advance,
    ):
        report = diff(
            a,
            b,
            progress=advance,
            filter=arguments.filter,
            exclude=arguments.exclude,
            rename=rename,
            map=given,
            rtol=arguments.rtol,
            atol=arguments.atol,
            close=arguments.close,
            ignore_dtype=arguments.ignore_dtype,
            dequantize=arguments.dequantize,
            executor=executor,
        )
    if not report.is_of_folders:
        note_dequantized(stored, arguments.dequantize)
    if arguments.sort == "change":
        report = report.by_change()
    if arguments.json:
        print_json(report.to_json())
    else:
        _print(report, arguments)
        if report.not_compared:
            note_unread("not compared", report.not_compared, arguments.all)
    if arguments.html:
        write_diff_page(arguments, report, rename or {})
        note(f"wrote {short_path(arguments.html)}")
        show_link(arguments.html)
    if not arguments.json:
        for remedy in [] if report.is_of_folders else _remedies(report, arguments):
            note(f"hint: {remedy}")
    if any(each.unreadable for each in (report, *report.others)):
        return _UNREADABLE
    return _EQUAL if report.equal else _DIFFERENT


def _stored_paths(a: str, b: str, given: "Map | None") -> list[str]:
    if given is None:
        return [a, b]
    from shardvar.verbs.mapping import paths_of_ranks  # most are compared without a map

    sides = ((a, False), (b, True))
    paths = (paths_of_ranks(path, given, is_made=is_made) for path, is_made in sides)
    return [os.fsdecode(each) for some in paths for each in some]


def _remedies(report: DiffReport, arguments: Namespace) -> Iterator[str]:
    if not arguments.rename and (remedy := rename_hint(report, arguments)):
        yield remedy
    pairs = {dtype for each in report.differences for dtype in (each.dtype_a, each.dtype_b)}
    if only_dtypes(report) and pairs <= _ROUNDED_CLOSELY:
        options = [] if arguments.ignore_dtype else ["--ignore-dtype"]
        has_tolerance = arguments.close or arguments.rtol is not None or arguments.atol is not None
        if not has_tolerance and any(each.values for each in report.differences):
            options.append("--close")
        if options:
            command = shlex.join(["shardvar", *arguments.words, *options])
            yield f"To compare only values: `{command}`"


_ROUNDED_CLOSELY = {"float64", "float32", "float16", "bfloat16"}
"""Dtypes whose tolerances allow for rounding from a more precise one among them."""


def _print(report: DiffReport, arguments: Namespace) -> None:
    """Print the verdict and what differs: folded at a terminal, a line a tensor in a pipe."""
    verdict, *lines = lines_of_diff(report)
    is_bad = any(each.unreadable for each in (report, *report.others))
    mark: Mark = "good" if report.equal else "bad" if is_bad else "different"
    words = "equal", "differs", "differ", "unreadable"
    answer(mark, verdict, next(word for word in words if word in verdict))
    if arguments.summary:
        return
    if at_terminal() and not arguments.all and not report.is_of_folders:
        print_changes(report, by_change=arguments.sort != "index")
    else:
        for line in lines:
            say(line)
    if report.map is not None:
        print_rules(report.map)
