"""The proof that each element is used once and filled once, from what each rule takes of a tensor.

What a rule holds of a tensor is a box in the indices that make its axes. If all rules make an axis
of the same indices, the axis is taken apart into them; else what a rule holds of it is a number of
intervals. Either way a tensor has boxes, and ``layout.region`` finds a hole or an overlap.

    [(g s d)] @ s=0:2 and [(g s d)] @ s=2       boxes [0:g, 0:2, 0:d] and [0:g, 2:3, 0:d] of (g, s, d)
    [(n two)] @ two=0 and [x] @ x=7:9           intervals 0, 2, 4 ... and 7:9

A contribution is the elements that a rule takes from one tensor to one target, before the target's
shape is known.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from math import prod

import numpy as np

from shardvar.errors import MapError
from shardvar.layout.dtypes import Ints, Shape, is_whole
from shardvar.layout.region import find_flaw, find_overlap
from shardvar.maps.expressions import SizeOf, operator_of, walk
from shardvar.maps.language import (
    ELLIPSIS,
    AxisNames,
    MapRule,
)
from shardvar.maps.matching import (
    ALL,
    FittedSide,
    Match,
    MatchTable,
    fit_sides,
    solve,
    write_keys,
)
from shardvar.maps.plan import Piece, View
from shardvar.pictures.words import human_shape
from shardvar.records import field, frozen, mutable, replace

_MOST_BOXES = 1 << 22
"""Boxes of one tensor, about 100 bytes each."""
_MOST_CELLS = 1 << 24
"""Cells of a grid that is searched for holes."""
MOST_PROBLEMS = 20
"""Problems that are described; the others are counted."""


@mutable
class Use:
    """The elements of one tensor that a rule holds."""

    rule: int
    radices: tuple[tuple[int, ...], ...]
    """[rank] the full extents of the indices that make each axis."""
    begins: tuple[int, ...]
    counts: tuple[int, ...]
    """[indices] the number of each."""
    is_cut: tuple[bool, ...] = ()
    """[rank] True for axes whose last block is cut, so that their extents are not the products of
    their radices."""
    is_again: bool = False
    """True if others may use the same elements."""

    @property
    def size(self) -> int:
        return prod(self.counts)


@frozen
class Problem:
    """A problem of a map, or of its result."""

    cause: str
    """One sentence that names the rule, the key and the values."""
    remedy: str
    """One sentence that tells what to do."""


def name_rules(numbers: Sequence[int], rules: Sequence[MapRule], mark: str = "") -> str:
    return mark.join(f"rule {number + 1} {rules[number].text!r}" for number in numbers)


def check_uses(
    key: str, shape: Sequence[int], uses: Sequence[Use], rules: Sequence[MapRule]
) -> Iterator[Problem]:
    """Yield a problem if not each element of a tensor is used once."""
    first = [use for use in uses if not use.is_again]
    flaw = find_element(shape, first)
    if flaw is None:
        return
    where, rows = flaw
    if rows:
        named = name_rules(sorted({first[row].rule for row in rows}), rules, " and ")
        yield Problem(
            f"{key!r}: its element {where} is used {len(rows)} times, by {named}.",
            "Leave one of them out, separate them with '@', or write 'also' before one.",
        )
    elif len(first) == len(uses) or not _covers(shape, uses):
        named = name_rules(sorted({use.rule for use in uses})[:3], rules, "; ")
        yield Problem(
            f"{key!r}: its element {where} is used by no rule; others are used by {named}.",
            "Add a rule for it, such as one with '@' and '-> nothing'.",
        )


def quoted_key(key: str) -> str:
    """Return a key as a rule writes it."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_./-]*", key) and key != "also":
        return key
    return "'" + key.replace("'", "''") + "'"


def find_element(
    shape: Sequence[int], uses: Sequence[Use], *, may_have_holes: bool = False
) -> tuple[str, Shape] | None:
    """Return an element that is not used once, as text, with the rows of its uses: none, or several."""
    if 0 in shape:
        return None
    if len(uses) == 1 and (may_have_holes or uses[0].size == prod(shape)):
        return None
    offset, extents, owner, full, splits = _boxes(shape, uses)
    if may_have_holes:
        pair = find_overlap(offset, extents)
        if pair is None:
            return None
        corner = np.maximum(offset[pair[0]], offset[pair[1]])
        return _element(corner, splits), tuple(int(owner[row]) for row in pair)
    flaw = find_flaw(offset, extents, full)
    if flaw is None:
        return None
    rows = tuple(dict.fromkeys(int(owner[row]) for row in flaw.rows))
    return _element(np.array(flaw.cell.offset, dtype=np.int64), splits), rows


def _element(corner: Ints, splits: Sequence[tuple[int, ...]]) -> str:
    left = iter(corner.tolist())
    coordinates = []
    for radices in splits:
        at = 0
        for radix in radices:
            at = at * radix + next(left)
        coordinates.append(at)
    return f"[{', '.join(map(str, coordinates))}]"


def _boxes(
    shape: Sequence[int], uses: Sequence[Use]
) -> tuple[Ints, Ints, Ints, list[int], list[tuple[int, ...]]]:
    """The boxes of uses: offsets, shapes, the use of each, the full shape, and its split axes."""
    # An axis is taken apart if all uses make it of the same indices.
    splits: list[tuple[int, ...]] = []
    for axis, extent in enumerate(shape):
        radices = {use.radices[axis] for use in uses}
        is_cut = any(use.is_cut and use.is_cut[axis] for use in uses)
        splits.append(radices.pop() if len(radices) == 1 and not is_cut else (extent,))
    offsets, extents, owners, total = list[Ints](), list[Ints](), list[Ints](), 0
    for row, use in enumerate(uses):
        if not use.size:
            continue
        columns, place = list[tuple[Ints, Ints]](), 0
        for own, split in zip(use.radices, splits, strict=True):
            stop = place + len(own)
            begins, counts = use.begins[place:stop], use.counts[place:stop]
            if own == split:
                columns += [
                    (np.array([b]), np.array([c])) for b, c in zip(begins, counts, strict=True)
                ]
            else:
                columns.append(_intervals(own, begins, counts))
            place = stop
        number = prod(len(start) for start, _ in columns)
        total += number
        if total > _MOST_BOXES:
            raise MapError(
                "The rules take it apart in too many places to be compared.",
                "Make the axis of the same indices in all rules.",
            )
        grid = np.indices([len(start) for start, _ in columns]).reshape(len(columns), number)
        for side, tables in enumerate((offsets, extents)):
            parts = [column[side][at] for column, at in zip(columns, grid, strict=True)]
            tables.append(np.stack(parts, axis=1) if parts else np.zeros((1, 0), np.int64))
        owners.append(np.full(number, row))
    full = [radix for split in splits for radix in split]
    empty = np.zeros((0, len(full)), np.int64)
    return (
        np.concatenate([empty, *offsets]),
        np.concatenate([empty, *extents]),
        np.concatenate([np.zeros(0, np.int64), *owners]),
        full,
        splits,
    )


def _intervals(
    radices: Sequence[int], begins: Sequence[int], counts: Sequence[int]
) -> tuple[Ints, Ints]:
    """The intervals of an axis that some of its indices make, ascending, each as long as can be."""
    starts, run, step = np.zeros(1, np.int64), 1, 1
    for radix, begin, count in zip(
        reversed(radices), reversed(begins), reversed(counts), strict=True
    ):
        if run == step:  # one interval up to here
            starts, run = starts + begin * step, run * count
        else:
            if len(starts) * count > _MOST_BOXES:
                raise MapError(
                    "The rules take it apart in too many places to be compared.",
                    "Make the axis of the same indices in all rules.",
                )
            starts = ((begin + np.arange(count))[:, None] * step + starts).ravel()
        step *= radix
    return starts, np.full(len(starts), run)


def _covers(shape: Sequence[int], uses: Sequence[Use]) -> bool:
    if any(use.size == prod(shape) for use in uses):
        return True
    offset, extents, _, full, _ = _boxes(shape, uses)
    cuts = [
        np.unique(np.concatenate([[0, size], offset[:, axis], (offset + extents)[:, axis]]))
        for axis, size in enumerate(full)
    ]
    if prod(len(each) for each in cuts) > _MOST_CELLS:
        return False
    grid = np.zeros([len(each) - 1 for each in cuts], np.bool)
    for first, stop in zip(offset, offset + extents, strict=True):
        grid[
            tuple(
                slice(*np.searchsorted(along, [a, b]))
                for along, a, b in zip(cuts, first.tolist(), stop.tolist(), strict=True)
            )
        ] = True
    return bool(grid.all())


@frozen
class TensorAxes:
    """The axes of one tensor as a side has them, with all extents."""

    axes: tuple[AxisNames, ...]
    """The axes, without an ellipsis."""
    full: Mapping[str, int]
    starts: Mapping[str, int]
    """The first of each index that the side selects; 0 for the others."""
    cut: Mapping[AxisNames, int] = field(default_factory=dict)
    """The extents of axes whose last block is cut, which their indices do not make."""

    def view(self, key: str, fixed: Mapping[str, int], free: Sequence[str]) -> View:
        """Return the view of a piece whose indices are ``free``; others have ``fixed`` values."""
        start, steps = [], dict.fromkeys(free, (-1, 0))
        for number, axis in enumerate(self.axes):
            step, first = 1, 0
            for name in reversed(axis):
                first += step * (self.starts.get(name, 0) + fixed.get(name, 0))
                if name in steps:
                    steps[name] = (number, step)
                step *= self.full[name]
            start.append(first)
        return View(key, tuple(start), tuple(steps[name] for name in free))

    def selected_of_cut(self, axis: AxisNames, selected: Mapping[str, int]) -> int | None:
        """Return the selected elements of an axis if its cut block is among them; else None."""
        if axis not in self.cut:
            return None
        block, within = axis
        begin, step = self.starts.get(block, 0), self.full[within]
        has_last = begin + selected.get(block, 1) > self.cut[axis] // step
        return self.cut[axis] - begin * step if has_last else None

    def use(
        self,
        rule: int,
        fixed: Mapping[str, int],
        selected: Mapping[str, int],
        *,
        is_again: bool = False,
    ) -> Use:
        """Return what a piece holds of the tensor, in the indices of its axes."""
        names = [name for axis in self.axes for name in axis]
        begins = tuple(self.starts.get(name, 0) + fixed.get(name, 0) for name in names)
        counts = tuple(1 if name in fixed else selected.get(name, 1) for name in names)
        radices = tuple(tuple(self.full[name] for name in axis) for axis in self.axes)
        is_cut = tuple(axis in self.cut for axis in self.axes)
        return Use(rule, radices, begins, counts, is_cut, is_again)


def axes_of(
    fitted: FittedSide,
    shape: Shape,
    key: str,
    known: Mapping[str, int],
    *,
    may_cut: bool = False,
) -> tuple[TensorAxes, dict[str, int]]:
    """Return the axes of a tensor, and the selected extents of their indices.

    With ``may_cut``, the last block of an axis ``(a p)`` may be shorter than the others.
    """
    side = fitted.side

    def full(name: str) -> int | None:
        return fitted.full(name, known.get(name))

    others = len(side.axes) - (ELLIPSIS in side.axes)
    more = len(shape) - others
    if more < 0 or (more and ELLIPSIS not in side.axes):
        raise MapError(
            f"{key!r} has the shape {human_shape(shape)}, of {len(shape)} axes, and {side.text!r} "
            f"has {others}.",
            "Write as many axes as the tensor has, or '...' for the ones that stay.",
        )
    axes = list[AxisNames]()
    for axis in side.axes:
        axes += [(f"...{number}",) for number in range(more)] if axis == ELLIPSIS else [axis]
    found, selected, cut = dict[str, int](), dict[str, int](), dict[AxisNames, int]()
    for axis, extent in zip(axes, shape, strict=True):
        step = full(axis[1]) if may_cut and len(axis) == 2 and full(axis[0]) is None else None
        if step and extent % step:
            cut[axis] = extent
            found |= {axis[0]: -(-extent // step), axis[1]: step}
        else:
            sizes = {name: size for name in axis if (size := full(name)) is not None}
            found |= solve(axis, extent, sizes, f"{key!r} of {human_shape(shape)}")
    for name, size in found.items():
        bounds = fitted.bounds(name)
        stop = size if bounds.stop is None else bounds.stop
        if max(stop, bounds.start) > size:
            raise MapError(
                f"'@' selects {name}={bounds.start}:{stop}, and {key!r} of {human_shape(shape)} "
                f"has {name} = {size}.",
                f"Choose a range within {size}.",
            )
        if not bounds.is_single:
            selected[name] = stop - bounds.start
    return TensorAxes(tuple(axes), found, fitted.starts(), cut), selected


def blocks(
    placed: TensorAxes, selected: Mapping[str, int], at: Mapping[str, int]
) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Yield (fixed indices, selected extents). Of an axis (a p) of 20 with p = 8: a = 0 and 1 with
    all of p, then a = 2 with 4 of p. Indices ``at`` one value count from the start of a range.
    """
    choices = []
    for (block, within), extent in placed.cut.items():
        last, left = divmod(extent, placed.full[within])
        begin, first = placed.starts.get(block, 0), placed.starts.get(within, 0)
        whole = min(last - begin, selected.get(block, 1))
        rest = min(left - first, selected.get(within, 1))
        choice = list[tuple[dict[str, int], dict[str, int]]]()
        # An index that the side fixes to one value is in none of them.
        if whole > 0:
            choice.append(({}, {block: whole} if block in selected else {}))
        if rest > 0 and begin <= last < begin + selected.get(block, 1):
            fixed = {block: last - begin} if block in selected else {}
            choice.append((fixed, {within: rest} if within in selected else {}))
        choices.append(choice)
    for some in product(*choices):
        fixed, counts = dict[str, int](), {**selected}
        for values, extents in some:
            fixed |= values
            counts |= extents
        is_there = all(at.get(name, value) == value for name, value in fixed.items())
        if is_there and all(at.get(name, -1) < count for name, count in counts.items()):
            yield fixed, counts


def merge(counts: Sequence[int], views: Sequence[View]) -> tuple[tuple[int, ...], list[View]]:
    """Merge neighbouring indices that count as one in all views; drop indices of one element."""
    shape, steps = list[int](), list[list[tuple[int, int]]]()
    for row, count in enumerate(counts):
        if count == 1:
            continue
        own = [view.steps[row] for view in views]
        if shape and steps[-1] == [(axis, step * count) for axis, step in own]:
            shape[-1] *= count
            steps[-1] = own
        else:
            shape.append(count)
            steps.append(own)
    return tuple(shape), [
        View(view.key, view.start, tuple(each[row] for each in steps))
        for row, view in enumerate(views)
    ]


_MOST_TARGETS = 1 << 22
"""Tensors that are made of one."""

TensorFacts = tuple[str, Shape]
"""The dtype and the shape of a tensor."""


@frozen
class FittedRule:
    """A rule with all that does not depend on a tensor."""

    number: int
    rule: MapRule
    source: FittedSide
    target: FittedSide
    tensors: tuple[FittedSide, ...]
    """The tensors of a rule that computes."""
    origins: tuple[int, ...]
    """The positions of the rules in which these are written."""


def fit_rule(number: int, rule: MapRule, size_of: SizeOf, sizes: Collection[str]) -> FittedRule:
    ranges = {name: each for side in rule.tensors for name, each in side.ranges.items()}
    source = replace(rule.source, ranges=ranges | rule.source.ranges)
    both, *others = (
        fit_sides(replace(rule, source=side), size_of, sizes) for side in (source, *rule.tensors)
    )
    origins = tuple(number if origin is None else origin for origin in rule.origins)
    return FittedRule(number, rule, *both, tuple(side for side, _ in others), origins)


@frozen
class Binding:
    """The tensors of a rule that computes, for one choice of numbers, words and texts."""

    in_keys: tuple[tuple[str, ...], ...]
    """For each tensor, the indices in its key that are summed over."""
    keys: Mapping[tuple[int, ...], str]
    """The keys, by the place of the tensor and the values of these indices."""
    axes: tuple[TensorAxes, ...]
    """For each tensor, its axes."""
    extents: Mapping[str, int]
    """The selected extents of all indices that it has."""


@frozen
class Contribution:
    """The elements that a rule takes from one tensor, or several, to one target."""

    fitted: FittedRule
    match: Match
    dtype: str
    target: str
    axes: tuple[AxisNames, ...]
    fixed: Mapping[str, int]
    """The indices that have one value, from the start of each range."""
    selected: Mapping[str, int]
    """The extents of the others, which both sides share."""
    full: Mapping[str, int | None]
    """The full extents of the target's indices, as far as they are known."""
    source: TensorAxes
    cut: Mapping[AxisNames, int]
    """The extents of the target's axes whose last block is cut."""
    binding: Binding | None = None
    """The tensors, of a rule that computes."""

    @property
    def number(self) -> int:
        return self.fitted.number

    def uses(self) -> list[tuple[str, Use]]:
        """Return its part of each tensor; ``Use.rule`` is the rule that it is written in."""
        fitted, binding = self.fitted, self.binding
        tensors = [(self.match.key, self.source, self.number)]
        if binding is not None:
            places = [(place, key) for (place, *_), key in binding.keys.items()]
            tensors = [(key, binding.axes[n], fitted.origins[n]) for n, key in places]
        is_again = fitted.rule.is_again
        return [
            (key, placed.use(number, self.fixed, self.selected, is_again=is_again))
            for key, placed, number in tensors
        ]

    def fixed_in(self, axes: Sequence[AxisNames]) -> tuple[tuple[str, int], ...]:
        fixed = self.fixed
        return tuple([(name, fixed[name]) for axis in axes for name in axis if name in fixed])

    def extent(self, axis: int) -> int | None:
        names = self.axes[axis]
        if names in self.cut:
            return self.cut[names]
        sizes = [self.full[name] for name in names]
        return None if None in sizes else prod(size for size in sizes if size is not None)

    def free(self) -> list[str]:
        """Return the indices of its piece, in the order of the target."""
        return [
            name
            for axis in self.axes
            for name in axis
            if name not in self.fixed and name in self.selected
        ]


def contributions_of(
    fitted: FittedRule,
    rows: Sequence[Match],
    dtype: str,
    placed: TensorAxes,
    selected: Mapping[str, int],
    counts: Mapping[str, int],
    binding: Binding | None = None,
) -> Iterator[Contribution]:
    """Yield the contributions of tensors of one shape: one for each target, and for each block that is cut."""
    rule, target = fitted.rule, fitted.target
    if rule.target is None:
        return
    axes, extent = tuple[AxisNames, ...](), {**selected}
    for axis in target.side.axes:
        rest = [each for each in placed.axes if each and each[0].startswith("...")]
        axes += tuple(rest) if axis == ELLIPSIS else (axis,)
    extent |= {name: _size_of_repeated(rule, target, name) for name in rule.repeated()}
    shared = {**counts, **extent}
    cut = {
        axis: length
        for axis in placed.cut
        if (length := placed.selected_of_cut(axis, extent)) is not None
        and all(target.bounds(name) == ALL for name in axis)
    }
    full = {
        name: shared[name] if axis in cut else target.full(name, shared.get(name))
        for axis in axes
        for name in axis
    }
    # Indices of the source's axes that are in the target's key, and with 'also' indices that the
    # source does not have: one target for each value.
    of_key = [name for name in target.side.key.indices() if name in extent]
    unstacked = [name for name in of_key if name not in rows[0].indices]
    number = prod(extent[name] for name in unstacked)
    if number > _MOST_TARGETS:
        raise MapError(
            f"{rows[0].key!r} would become {number:,} tensors.",
            f"At most {_MOST_TARGETS:,} are made of one: keep an index among the axes.",
        )
    if not number:
        return
    values = [*product(*(range(extent[name]) for name in unstacked))]
    rows = [
        replace(row, indices={**row.indices, **dict(zip(unstacked, each, strict=True))})
        for row in rows
        for each in values
    ]
    keys = write_keys(target, MatchTable.of(rows), shared)
    for row, key in zip(rows, keys, strict=True):
        for block, extents_of_block in blocks(placed, extent, row.indices):
            fixed, both = {**row.indices, **block}, {**shared, **extents_of_block}
            yield Contribution(
                fitted, row, dtype, key, axes, fixed, both, full, placed, cut, binding
            )


def _size_of_repeated(rule: MapRule, target: FittedSide, name: str) -> int:
    """The extent of an index that only the target has."""
    if (size := target.shared.get(name)) is not None:
        return size
    items = [each for each in walk(rule.tree) if operator_of(each) == "item"]
    lists = [numbers for _, numbers, index in items if index == name]
    if lists:
        return len(target.size_of(lists[0]))
    cause = f"The size of {name} in {rule.text!r} is not known, and only the target has it."
    raise MapError(cause, f"Give {name} in sizes, or --size {name}=N.")


def piece_of(contribution: Contribution, target: TensorAxes) -> Piece:
    """Return the piece of a contribution that moves bits, and whose target has all extents."""
    free = contribution.free()
    views = [
        contribution.source.view(contribution.match.key, contribution.fixed, free),
        target.view(contribution.target, contribution.fixed, free),
    ]
    shape, (taken, filled) = merge([contribution.selected[name] for name in free], views)
    return Piece(contribution.number, shape, taken, filled)


def missing_key(contribution: Contribution, name: str, value: int) -> str:
    """Return the key next to a contribution's source that would have another value of one index, or ""."""
    fitted, match = contribution.fitted, contribution.match
    key, indices = fitted.rule.source.key, {**match.indices, name: value}
    if any(len(part.axis) > 1 for part in key.named_parts()):
        return ""
    rows = MatchTable.of([replace(match, indices=indices)])
    return write_keys(fitted.source, rows, {})[0]


def check_kind(rule: MapRule, key: str, dtype: str, encoding: str | None) -> None:
    """Raise ``MapError`` if the elements of a tensor cannot be moved, or computed with."""
    if rule.target is None or rule.keeps_tensors:
        return
    if is_whole(dtype):
        raise MapError(
            f"{key!r} is of dtype {dtype}, which is never cut or moved.", "Only rename it."
        )
    last = rule.source.axes[-1:]
    keeps_last = (
        last == rule.target.axes[-1:]
        and last != ()
        and not rule.has_arithmetic
        and (last[0] == ELLIPSIS or len(last[0]) == 1)
        and rule.source.ranges.keys().isdisjoint(last[0])
        and rule.target.ranges.keys().isdisjoint(last[0])
    )
    if encoding is not None and not keeps_last:
        raise MapError(
            f"{key!r} consists of blocks of {encoding} along its last axis, which the rule changes.",
            "Dequantize first: dequantize=True (--dequantize).",
        )
