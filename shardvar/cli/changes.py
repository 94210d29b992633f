"""The differences of two checkpoints as a terminal shows them: what is there and how, then values.

Each tensor is in one table, once. Tensors share a line if their names differ only in numbers and
they differ in the same way: the same two shapes, the same two dtypes, or values whose change is of
one kind. Siblings whose names differ in one word share a line too; of values, if their largest
changes are near each other. A line of values has the range of their changes and the largest
distance. ``diff --all`` and a pipe get a line for each tensor, with all figures.

Names are never cut: two rows could then read the same. Columns are left out of a narrow table, and
one whose names are too long for the terminal becomes a block of lines for each row.
"""

from collections.abc import Iterator, Sequence
from math import isfinite
from shutil import get_terminal_size
from typing import NamedTuple

from shardvar.cli.output import can_print, count, human_shape, printable, say
from shardvar.cli.problems import print_problems
from shardvar.cli.tables import print_table
from shardvar.cli.tree import fold_keys, fold_words
from shardvar.verbs.compare.comparison import DiffReport, TensorDifference, agreement, only_dtypes
from shardvar.verbs.numbers import is_number

_MOST_ROWS = 40
"""The lines of a table; more are counted."""

_NEAR = 1.5
"""The factor within which the largest changes of siblings share a line."""

_BETWEEN = 2
"""Cells between two columns of a table."""

_Row = tuple[str, ...]


def print_changes(report: DiffReport, by_change: bool) -> None:
    """Print what differs, folded; values by their largest change, or in the order of the names."""
    structure, values = list(_structure(report)), list(_values(report, by_change))
    arrow = _arrow().strip()
    if not _is_in_verdict(report):
        _print(("structure", "tensors", f"A {arrow} B"), structure, (1,), (1,))
        dtypes = {row[4] for row in values}
        if len(dtypes) == 1 and (same := dtypes.pop()):
            values = [(*row[:4], "") for row in values]
            _print((f"values, {same}", *_OF_VALUES), values, (1, 2, 3), (1, 3))
        else:
            _print(("values", *_OF_VALUES), values, (1, 2, 3), (1, 3, 4))
    for side, broken in report.damages().items():
        print()
        say(f"{count(len(broken), 'tensor')} of {side} cannot be read:")
        print_problems(broken, pipe="")
    if (values and not _is_in_verdict(report)) or len(structure) > _MOST_ROWS:
        print()
        say("--all: a line for each tensor, with where it differs first and most")


def _is_in_verdict(report: DiffReport) -> bool:
    """Return True if all tensors differ only in the same two dtypes, as the verdict says."""
    dtypes = {(each.dtype_a, each.dtype_b) for each in report.differences}
    return only_dtypes(report) is not None and not report.num_equal and len(dtypes) == 1


_OF_VALUES = ("tensors", "change", "max |B-A|", "dtype")


def _arrow() -> str:
    return " → " if can_print("→") else " -> "


def _print(
    headers: Sequence[str], rows: Sequence[_Row], right: Sequence[int], drop: Sequence[int]
) -> None:
    """Print a table without the columns that say nothing, and without those that do not fit.

    A column says nothing if each line is one tensor, or if its cells are empty.
    """
    if not rows:
        return
    kept = [
        number
        for number in range(len(headers))
        if any(row[number] != _NOTHING.get(number, "") for row in rows)
    ]
    kept = _fitting(kept, [headers, *rows[:_MOST_ROWS]], drop)
    print()
    print_table(
        [headers[number] for number in kept],
        [tuple(row[number] for number in kept) for row in rows[:_MOST_ROWS]],
        [place for place, number in enumerate(kept) if number in right],
    )
    if len(rows) > _MOST_ROWS:
        say(f"{len(rows) - _MOST_ROWS:,} more lines")


_NOTHING = {1: "1"}
"""The cell of a column that says nothing if all lines have it; others are empty."""


def _fitting(kept: Sequence[int], lines: Sequence[Sequence[str]], drop: Sequence[int]) -> list[int]:
    """Return the columns with which whole lines fit the terminal; all if no choice does."""
    from rich.cells import cell_len

    widths = {number: max(cell_len(line[number]) for line in lines) for number in kept}
    for num_gone in range(len(drop) + 1):
        rest = [number for number in kept if number not in drop[:num_gone]]
        between = _BETWEEN * (len(rest) - 1)
        if sum(widths[number] for number in rest) + between <= get_terminal_size().columns:
            return rest
    return list(kept)


def _structure(report: DiffReport) -> Iterator[_Row]:
    """Yield lines of tensors that differ only in shape or dtype, or that one side lacks."""
    groups: dict[tuple[str, str], list[str]] = {}
    for kind in ("shape", "shape and dtype", "dtype"):
        for each in report.differences:
            if each.kind == kind:
                groups.setdefault((kind, _both(each, report.tolerance)), []).append(each.key)
    groups["only in A", ""], groups["only in B", ""] = (
        list(report.only_in_a),
        list(report.only_in_b),
    )
    for (kind, text), keys in groups.items():
        numbers = {label: len(shared) for label, shared in fold_keys(keys)}
        for label, labels in fold_words(list(numbers)):
            number = sum(numbers[each] for each in labels)
            yield printable(label), f"{number:,}", text or kind


def _both(each: TensorDifference, tolerance: str | None) -> str:
    """Return the shapes and dtypes of both sides, as far as they differ."""
    arrow = _arrow()
    sides = [(each.dtype_a, each.dtype_b)] if each.dtype_a != each.dtype_b else []
    if each.shape_a != each.shape_b:
        sides.append((human_shape(each.shape_a), human_shape(each.shape_b)))
        return arrow.join(" ".join(side) for side in zip(*sides, strict=True))
    both = "".join(arrow.join(side) for side in sides)
    return f"{both}, {agreement(each.only_dtype, tolerance)}" if each.only_dtype else both


class _Line(NamedTuple):
    """Tensors whose values differ in the same way, and whose names share a label."""

    label: str
    kind: str
    dtypes: str
    found: list[TensorDifference]

    @property
    def change(self) -> float:
        """The largest change of the tensors."""
        return max(each.change for each in self.found)


def _values(report: DiffReport, by_change: bool) -> Iterator[_Row]:
    """Yield lines of the tensors whose values differ."""
    groups: dict[tuple[str, str], dict[str, TensorDifference]] = {}
    for each in report.differences:
        if each.values is not None:
            groups.setdefault((_kind_of_change(each), _both(each, report.tolerance)), {})[
                each.key
            ] = each
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
        change = line.kind or _percentages(line.found)
        yield printable(line.label), f"{len(line.found):,}", change, largest, line.dtypes


def _siblings(lines: Sequence[_Line]) -> Iterator[_Line]:
    """Yield lines that differ in the same way; siblings with changes near each other are one."""
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


def _percentages(found: Sequence[TensorDifference]) -> str:
    """Return the least and the largest change of some tensors: ``0.9 - 4.3 %``."""
    ends = [min(each.change for each in found), max(each.change for each in found)]
    least, most = (
        f"{100 * end:#.2g}".rstrip(".") if end < 0.995 else f"{100 * end:.0f}" for end in ends
    )
    return f"{most} %" if least == most else f"{least} - {most} %"
