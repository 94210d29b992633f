"""The differences of two checkpoints as a terminal shows them: what is there and how, then the
values, by change.

Each tensor is in one table, once. Tensors share a line if their names differ only in numbers and
they differ in the same way: the same two shapes, the same two dtypes, or values whose change is of
one kind. A line of values has the range of their changes and the largest distance. ``diff --all``
and a pipe get a line for each tensor, with all figures.
"""

from collections.abc import Iterator, Sequence
from math import isfinite
from shutil import get_terminal_size

from shardvar.cli.output import can_print, count, human_shape, print_table, printable, say
from shardvar.cli.problems import print_problems
from shardvar.cli.tree import fold_keys
from shardvar.verbs.compare.comparison import DiffReport, TensorDifference
from shardvar.verbs.numbers import is_number

_MOST_ROWS = 40
"""The lines of a table; more are counted."""

_NARROW = 60
"""The columns of a terminal below which names are not cut."""

_Row = tuple[str, ...]


def print_changes(report: DiffReport, by_change: bool) -> None:
    """Print what differs, folded; values by their largest change, or in the order of the names."""
    structure, values = list(_structure(report)), list(_values(report, by_change))
    arrow = _arrow().strip()
    _print(("structure", "tensors", f"A {arrow} B"), structure, (1,), (1,))
    dtypes = {row[4] for row in values}
    if len(dtypes) == 1 and (same := dtypes.pop()):
        values = [(*row[:4], "") for row in values]
        _print((f"values, {same}", *_OF_VALUES), values, (1, 2, 3), (3, 1))
    else:
        _print(("values", *_OF_VALUES), values, (1, 2, 3), (3, 1, 4))
    for side, broken in report.damages().items():
        print()
        say(f"{count(len(broken), 'tensor')} of {side} cannot be read:")
        print_problems(broken, pipe="")
    if values or len(structure) > _MOST_ROWS:
        print()
        say("--all: a line for each tensor, with where it differs first and most")


_OF_VALUES = ("tensors", "change", "max |B-A|", "dtype")


def _arrow() -> str:
    return " → " if can_print("→") else " -> "


def _print(
    headers: Sequence[str], rows: Sequence[_Row], right: Sequence[int], drop: Sequence[int]
) -> None:
    """Print a table without the columns that say nothing: one tensor a line, and cells that are
    empty in all lines."""
    kept = [
        number
        for number in range(len(headers))
        if any(row[number] != _NOTHING.get(number, "") for row in rows)
    ]
    if not rows:
        return
    print()
    shown = [tuple(row[number] for number in kept) for row in rows[:_MOST_ROWS]]
    places = {number: place for place, number in enumerate(kept)}
    print_table(
        [headers[number] for number in kept],
        shown,
        [places[number] for number in right if number in places],
        # Where a narrow terminal would cut most names, a tensor is a block of lines.
        [places[number] for number in drop if number in places]
        if get_terminal_size().columns >= _NARROW
        else None,
    )
    if len(rows) > _MOST_ROWS:
        say(f"{len(rows) - _MOST_ROWS:,} more lines")


_NOTHING = {1: "1"}
"""The cell of a column that says nothing where all lines have it; others are empty."""


def _structure(report: DiffReport) -> Iterator[_Row]:
    """Yield lines of tensors that differ only in shape or dtype, or that one side lacks."""
    groups: dict[tuple[str, str], list[str]] = {}
    for kind in ("shape", "shape and dtype", "dtype"):
        for each in report.differences:
            if each.kind == kind:
                groups.setdefault((kind, _both(each)), []).append(each.key)
    groups[("only in A", "")], groups[("only in B", "")] = (
        list(report.only_in_a),
        list(report.only_in_b),
    )
    for (kind, text), keys in groups.items():
        for label, shared in fold_keys(keys):
            yield printable(label), f"{len(shared):,}", text or kind


def _both(each: TensorDifference) -> str:
    """Return the shapes and dtypes of both sides, as far as they differ."""
    arrow = _arrow()
    sides = [(each.dtype_a, each.dtype_b)] if each.dtype_a != each.dtype_b else []
    if each.shape_a != each.shape_b:
        sides.append((human_shape(each.shape_a), human_shape(each.shape_b)))
        return arrow.join(" ".join(side) for side in zip(*sides, strict=True))
    same = (
        ", same values"
        if is_number(each.dtype_a) and is_number(each.dtype_b) and each.values is None
        else ""
    )
    return "".join(arrow.join(side) for side in sides) + same


def _values(report: DiffReport, by_change: bool) -> Iterator[_Row]:
    """Yield lines of the tensors whose values differ."""
    groups: dict[tuple[str, str], dict[str, TensorDifference]] = {}
    for each in report.differences:
        if each.values is not None:
            groups.setdefault((_kind_of_change(each), _both(each)), {})[each.key] = each
    lines = []
    for (kind, dtypes), members in groups.items():
        for label, shared in fold_keys(list(members)):
            found = [members[key] for key in shared]
            lines.append((max(each.change for each in found), label, kind, dtypes, found))
    for _, label, kind, dtypes, found in (
        sorted(lines, key=lambda line: -line[0]) if by_change else lines
    ):
        distances = [each.values.max_absolute for each in found if each.values]
        known = [distance for distance in distances if distance is not None]
        largest = f"{max(known):.3g}" if known and not kind.startswith("only") else ""
        yield printable(label), f"{len(found):,}", kind or _percentages(found), largest, dtypes


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
