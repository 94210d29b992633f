"""Comparison of two checkpoints: what ``diff`` found, as values with stable JSON, as lines, and as
a table.

DiffReport            one ``TensorDifference`` for each tensor that is not the same, one
                      ``Unreadable`` for each that could not be compared
TensorDifference      its dtypes and shapes, and a ``ValueDifference`` where its values differ
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf, prod
from typing import TYPE_CHECKING, Any, Self

from shardvar.layout.dtypes import Number, is_number, json_number
from shardvar.pictures.words import (
    all_tensors,
    count,
    human_shape,
    human_tensors,
    printable,
    short_name,
)
from shardvar.records import frozen, replace
from shardvar.verbs.problems import MOST_ROWS, SCHEMA, Damage, fields_as_json, lines_of_problems

if TYPE_CHECKING:
    from shardvar.maps.report import MapReport

__all__ = [
    "DiffReport",
    "TensorDifference",
    "Unreadable",
    "ValueDifference",
]


@frozen
class ValueDifference:
    """The difference between the values of one tensor."""

    count: int
    """Elements that differ; bytes of the payload where the dtype is variant."""
    first: tuple[int, ...] | None
    """The index of the first one that differs, in C order; None for a variant."""
    max_absolute: Number | None
    """The largest distance; None where nothing has one (strings, opaque dtypes, NaNs)."""
    max_absolute_at: tuple[int, ...] | None
    """The index of the first element that has it."""
    max_relative: float | None
    """The largest distance relative to the larger of the two magnitudes."""
    max_relative_at: tuple[int, ...] | None
    """The index of the first element that has it."""
    num_without_distance: int
    """Differing elements that have no distance, because a NaN is among them."""
    num_zeros: int
    """Differing elements that are zero in both, and so differ only in the sign."""
    num_nans: int
    """Differing elements that are NaN in both, and so differ only in the other bits."""
    cosine: float | None
    """The cosine similarity of the tensors, over elements finite in both; None if undefined."""
    relative_norm: float | None
    """The norm of the difference over the larger norm, for elements that are finite in both."""
    num_rounded: int = 0
    """Differing elements of two dtypes that are equal once the more precise ones are rounded to the
    other dtype."""

    @property
    def only(self) -> str | None:
        """The only bits in which the elements differ, if no value differs; None if one does.

        ``"sign of zero"``, ``"bits of NaN"``, or ``"sign of zero and bits of NaN"``.
        """
        if self.count > self.num_zeros + self.num_nans:
            return None
        names = [("sign of zero", self.num_zeros), ("bits of NaN", self.num_nans)]
        return " and ".join(name for name, number in names if number)

    def to_json(self) -> dict[str, Any]:
        """Return the difference as a JSON object with stable keys."""
        numbers = {
            "max_absolute": json_number(self.max_absolute),
            "max_relative": json_number(self.max_relative),
        }
        return fields_as_json(self) | numbers | {"only": self.only}


@frozen
class TensorDifference:
    """A tensor that both checkpoints have and that is not the same in both."""

    key: str
    """Its name."""
    dtype_a: str
    """Its dtype in the first."""
    dtype_b: str
    """Its dtype in the second."""
    shape_a: tuple[int, ...]
    """Its shape in the first."""
    shape_b: tuple[int, ...]
    """Its shape in the second."""
    values: ValueDifference | None
    """The difference of its values; None if they are equal, differ in shape, or one holds strings
    and the other numbers."""

    @property
    def kind(self) -> str:
        """The properties that differ: ``"shape"``, ``"dtype"``, ``"values"``, joined by ``and``."""
        differing = {
            "shape": self.shape_a != self.shape_b,
            "dtype": self.dtype_a != self.dtype_b,
            "values": self.values is not None,
        }
        return " and ".join(name for name, is_other in differing.items() if is_other)

    @property
    def only_dtype(self) -> str | None:
        """The relation of the values if only the dtypes differ; None if more does.

        ``"same values"``, or ``"same values when rounded"`` to the less precise dtype.
        """
        if self.shape_a != self.shape_b or self.dtype_a == self.dtype_b:
            return None
        if self.values is None:
            return "same values" if is_number(self.dtype_a) and is_number(self.dtype_b) else None
        return "same values when rounded" if self.values.num_rounded == self.values.count else None

    @property
    def change(self) -> float:
        """The relative norm of the difference of its values.

        0.0 if no value differs. Infinity if values cannot be compared as numbers, or an element is
        not finite on only one side.
        """
        values = self.values
        if values is None:
            is_same = (
                self.shape_a == self.shape_b and is_number(self.dtype_a) and is_number(self.dtype_b)
            )
            return 0.0 if is_same else inf
        if values.only is not None:
            return 0.0
        is_finite = values.num_without_distance == values.num_nans and values.max_relative != inf
        return values.relative_norm if is_finite and values.relative_norm is not None else inf

    def to_json(self) -> dict[str, Any]:
        """Return the difference as a JSON object with stable keys."""
        return fields_as_json(self) | {"change": json_number(self.change)}


@frozen
class Unreadable:
    """A tensor that could not be compared, since one of the checkpoints is damaged there."""

    side: str
    """``"a"`` or ``"b"``: which of the two."""
    damage: Damage
    """The damage."""

    @property
    def key(self) -> str:
        """The name of the tensor."""
        return self.damage.key or ""

    @property
    def kind(self) -> str:
        """The name of the error's class."""
        return self.damage.kind

    @property
    def message(self) -> str:
        """The cause and the remedy."""
        return self.damage.message

    def to_json(self) -> dict[str, Any]:
        """Return the damage and the side as a JSON object with stable keys."""
        return {"side": self.side, **self.damage.to_json()}


@frozen
class DiffReport:
    """Report of ``diff``."""

    path_a: str
    """The first checkpoint."""
    path_b: str
    """The second."""
    only_in_a: tuple[str, ...]
    """Keys that only the first has."""
    only_in_b: tuple[str, ...]
    """Keys that only the second has."""
    differences: tuple[TensorDifference, ...]
    """The tensors that both have and that differ, in the order of the first."""
    unreadable: tuple[Unreadable, ...]
    """The tensors that could not be compared."""
    num_equal: int
    """Tensors that are the same in both: dtype, shape and every element."""
    num_settings: int = 0
    """The settings among all tensors of both: plain objects, such as a learning rate."""
    tolerance: str | None = None
    """The distance at which elements count as the same; None if their bits must be the same."""
    map: "MapReport | None" = None
    """The report of the map that made the tensors of the first; None without one."""
    others: "tuple[DiffReport, ...]" = ()
    """Of two folders, the reports of the other checkpoints that both have, by their paths."""
    checkpoints_only_in_a: tuple[str, ...] = ()
    """Of two folders, the paths of the checkpoints that only the first has."""
    checkpoints_only_in_b: tuple[str, ...] = ()
    """The same of the second."""
    not_compared: tuple[str, ...] = ()
    """Of two folders, the paths in them of files that belong to no checkpoint that was read."""

    @property
    def equal(self) -> bool:
        """True where both hold the same tensors, and folders the same checkpoints."""
        only = self.only_in_a or self.only_in_b
        only = only or self.checkpoints_only_in_a or self.checkpoints_only_in_b
        is_same = not (only or self.differences or self.unreadable)
        return is_same and all(each.equal for each in self.others)

    @property
    def is_of_folders(self) -> bool:
        """True if two folders were compared that hold more than one checkpoint."""
        return bool(self.others or self.checkpoints_only_in_a or self.checkpoints_only_in_b)

    def parts(self) -> "list[DiffReport]":
        """Return the reports of all checkpoints of two folders.

        Returns
        -------
        list of DiffReport
            The report of what the paths mean, if that is one checkpoint, and ``others``.
        """
        own = replace(
            self, others=(), checkpoints_only_in_a=(), checkpoints_only_in_b=(), not_compared=()
        )
        has_own = own.num_equal or not own.equal
        return [own, *self.others] if has_own else [*self.others]

    def unlike_in_a(self) -> set[str]:
        """Return the keys of the first that are not known to be the same in the second."""
        unreadable = [each.key for each in self.unreadable]
        return {*self.only_in_a, *(each.key for each in self.differences), *unreadable}

    def damages(self) -> dict[str, list[Damage]]:
        """Return the damage that kept tensors from being compared, by the side that has it."""
        found: dict[str, list[Damage]] = {}
        for each in sorted(self.unreadable, key=lambda each: each.side):
            found.setdefault(each.side.upper(), []).append(each.damage)
        return found

    def by_change(self) -> Self:
        """Return the same report, the tensors that changed most first.

        Returns
        -------
        DiffReport
            The report in another order: by ``TensorDifference.change``, then by the largest
            relative distance.
        """

        def order(each: TensorDifference) -> tuple[float, float]:
            return -each.change, -((each.values and each.values.max_relative) or 0.0)

        return replace(self, differences=tuple(sorted(self.differences, key=order)))

    def __str__(self) -> str:
        return "\n".join(lines_of_diff(self))

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object with stable keys."""
        return {"schema": SCHEMA, "equal": self.equal, **fields_as_json(self)}

    def _repr_html_(self) -> str:
        from shardvar.pictures.drawings import Markup, bad, html_block, html_table

        about = [f"A: {self.path_a}", f"B: {self.path_b}", f"{self.num_equal:,} equal"]
        rows: list[tuple[object, object, object]] = [
            (broken.key, bad(f"unreadable in {broken.side.upper()}"), broken.message)
            for broken in self.unreadable
        ]
        for each in self.differences:
            told = [*_unlike(each)]
            if each.values is not None:
                most = each.values.max_absolute
                by = "" if most is None else f", by at most {most:.6g}"
                told.append(f"{count(each.values.count, 'value')}{by}")
            rows.append((each.key, "differs", "; ".join(told)))
        rows += [(key, "only in A", "") for key in self.only_in_a]
        rows += [(key, "only in B", "") for key in self.only_in_b]
        title = "equal" if self.equal else f"{count(len(rows), 'difference')}"
        table = html_table(
            ("tensor", "", "what differs"), rows[:MOST_ROWS], more=max(0, len(rows) - MOST_ROWS)
        )
        return html_block(title, about, table if rows else Markup(""))


# Lines of text, as the command prints them.


def lines_of_diff(report: DiffReport) -> Iterator[str]:
    yield verdict_of_diff(report)
    for each in report.parts() if report.is_of_folders else ():
        first, *lines = lines_of_diff(each)
        yield f"{printable(each.path_b)}: {first}"
        yield from (f"  {line}" for line in lines)
    for side, names in (("A", report.checkpoints_only_in_a), ("B", report.checkpoints_only_in_b)):
        yield from (f"only in {side}: {printable(name)}" for name in names)
    if report.is_of_folders:
        return
    for key in report.only_in_a:
        yield f"only in A: {short_name(key)}"
    for key in report.only_in_b:
        yield f"only in B: {short_name(key)}"
    for difference in report.differences:
        values = difference.values
        told = [] if values is None else [_describe(values, difference.shape_a)]
        text = "; ".join([*_unlike(difference), *told])
        yield f"differs: {short_name(difference.key)}: {text}"
    for side, broken in report.damages().items():
        yield from lines_of_problems(f"unreadable in {side}: ", broken)


_KINDS = ("in values", "in shape", "in dtype", "in dtype and values", "in shape and dtype")
"""Differences of tensors that both have, in the order in which the verdict counts them. Differences
of only the dtype follow."""


def verdict_of_diff(report: DiffReport) -> str:
    if report.is_of_folders:
        parts = report.parts()
        alone = len(report.checkpoints_only_in_a) + len(report.checkpoints_only_in_b)
        unlike = alone + sum(not each.equal for each in parts)
        checkpoints = count(alone + len(parts), "checkpoint")
        verb = "differs" if unlike == 1 else "differ"
        return f"{unlike:,} of {checkpoints} {verb}" if unlike else f"equal: {checkpoints} in both"
    if report.equal:
        within = "" if report.tolerance is None else f", within {report.tolerance}"
        return f"equal: {human_tensors(report.num_equal, 0, report.num_settings)} in both{within}"
    kinds = Counter(
        f"only in dtype ({agreement(only, report.tolerance)})"
        if (only := each.only_dtype)
        else f"in {each.kind}"
        for each in report.differences
    )
    counts = {kind: kinds[kind] for kind in (*_KINDS, *sorted(kinds.keys() - {*_KINDS}, key=len))}
    counts |= {"only in A": len(report.only_in_a), "only in B": len(report.only_in_b)}
    differ = sum(counts.values())
    # A tensor that is unreadable on both sides counts once.
    unreadable = len({broken.key for broken in report.unreadable})
    total = all_tensors(report.num_equal + differ + unreadable, report.num_settings)
    if not differ:
        same = f", {report.num_equal:,} equal" if report.num_equal else ""
        return f"{unreadable:,} of {total} unreadable{same}"
    how = only_dtypes(report) or ", ".join(
        f"{number:,} {what}" for what, number in counts.items() if number
    )
    text = f"{differ:,} of {total} {'differs' if differ == 1 else 'differ'}: {how}"
    return f"{text}; {unreadable:,} unreadable" if unreadable else text


def agreement(only_dtype: str, tolerance: str | None) -> str:
    """Return how values agree: with a tolerance, equal ones are not told from close ones."""
    is_close = only_dtype == "same values" and tolerance is not None
    return f"values within {tolerance}" if is_close else only_dtype


def only_dtypes(report: DiffReport) -> str | None:
    """Return the verdict if nothing but dtypes differs; None if anything else does."""
    how = {each.only_dtype for each in report.differences}
    if None in how or not how or report.only_in_a or report.only_in_b:
        return None
    pairs = {(each.dtype_a, each.dtype_b) for each in report.differences}
    between = "".join(f", {a} to {b}" for a, b in pairs) if len(pairs) == 1 else ""
    how_close = agreement(max(filter(None, how), key=len), report.tolerance)
    return f"only in dtype{between}, {how_close}"


def _unlike(each: TensorDifference) -> Iterator[str]:
    if each.dtype_a != each.dtype_b:
        yield f"dtype {each.dtype_a} and {each.dtype_b}"
    if each.shape_a != each.shape_b:
        yield f"shape {human_shape(each.shape_a)} and {human_shape(each.shape_b)}"


def _describe(values: ValueDifference, shape: Sequence[int]) -> str:
    if values.first is None:  # opaque elements: the bytes of their payloads are compared
        text = count(values.count, "byte")
    else:
        text = (
            f"{values.count:,} of {count(prod(shape), 'element')}, first at "
            f"{human_shape(values.first)}"
        )
    if values.only is not None:
        return f"{text}, only in the {values.only}"
    if values.max_absolute is not None:
        text += (
            f", by at most {values.max_absolute:.6g}{_place(values.max_absolute_at, values.first)}"
        )
    if values.max_relative is not None:
        text += (
            f" (relative {values.max_relative:.3g}{_place(values.max_relative_at, values.first)})"
        )
    if values.num_without_distance:
        text += f"; {values.num_without_distance:,} with NaN"
    if values.relative_norm is not None:
        text += f"; relative norm {values.relative_norm:.3g}"
    if values.cosine is not None:
        text += f", cosine {values.cosine:.6g}"
    return text


def _place(index: Sequence[int] | None, first: Sequence[int] | None) -> str:
    """The place of the largest difference, if it is not the first one."""
    return "" if index is None or index == first else f" at {human_shape(index)}"
