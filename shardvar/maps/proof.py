"""The proof of a map: each source element is used once, and each target element is filled once.

What a rule holds of a tensor is a box in the indices that make its axes. If all rules make an axis
of the same indices, the axis is taken apart into them; else what a rule holds of it is a number of
intervals. Either way a tensor has boxes, and ``layout.tiling`` finds a hole or an overlap.

    [(g s d)] @ s=0:2 and [(g s d)] @ s=2       boxes [0:g, 0:2, 0:d] and [0:g, 2:3, 0:d] of (g, s, d)
    [(n two)] @ two=0 and [x] @ x=7:9           intervals 0, 2, 4 ... and 7:9
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from shardvar.errors import MapError
from shardvar.layout.dtypes import Ints
from shardvar.layout.overlap import find_overlap
from shardvar.layout.tiling import find_flaw
from shardvar.maps.nearest import nearest_rule, why_unmatched
from shardvar.maps.syntax import MapRule

_MOST_BOXES = 1 << 22
"""Boxes of one tensor, about 100 bytes each."""
_MOST_CELLS = 1 << 24
"""Cells of a grid that is searched for holes."""
MOST_PROBLEMS = 20
"""Problems that are described; the others are counted."""


@dataclass(slots=True)
class Use:
    """The elements of one tensor that a rule holds."""

    rule: int
    """The position of the rule."""
    radices: tuple[tuple[int, ...], ...]
    """[rank] the full extents of the indices that make each axis."""
    begins: tuple[int, ...]
    """The first of each index, axis after axis."""
    counts: tuple[int, ...]
    """[indices] the number of each."""
    is_cut: tuple[bool, ...] = ()
    """[rank] True for axes whose last block is cut, so that their extents are not the products of
    their radices."""
    is_again: bool = False
    """True if others may use the same elements."""

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.counts)


ElementFlaw = tuple[str, tuple[int, ...]]
"""An element, as text, and the rows of the uses that hold it: none, or several."""


def check_targets(
    shape: Sequence[int], uses: Sequence[Use], *, has_fill: bool
) -> ElementFlaw | None:
    """Return an element of a target that is not filled once; None if there is none."""
    return _flaw(shape, uses, may_have_holes=has_fill)


def check_uses(
    rules: Sequence[MapRule],
    shapes: Mapping[str, Sequence[int]],
    uses: Mapping[str, Sequence[Use]],
    unselected: Mapping[str, int],
    keys: Sequence[str],
    selected: Collection[str],
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the use of each key, and what to do about it.

    ``unselected`` has the keys whose names a rule matches, and whose numbers it does not take.
    """
    described = 0
    for key in keys:
        if key not in selected and key not in uses:
            described += 1
            if described > MOST_PROBLEMS:
                yield f"{key!r} is matched by no rule.", ""
                continue
            yield (
                f"{key!r} is matched by no rule{_nearest(key, rules, unselected)}.",
                f"Add a rule for it, or leave it out: '{quoted_key(key)} -> nothing'.",
            )
        elif key in shapes:
            problem = _of_source(key, shapes[key], uses.get(key, ()), rules)
            if problem is not None:
                yield problem


def _of_source(
    key: str, shape: Sequence[int], uses: Sequence[Use], rules: Sequence[MapRule]
) -> tuple[str, str] | None:
    first = [use for use in uses if not use.is_again]
    flaw = _flaw(shape, first)
    if flaw is None:
        return None
    where, rows = flaw
    if rows:
        numbers = sorted({first[row].rule for row in rows})
        named = " and ".join(f"rule {each + 1} {rules[each].text!r}" for each in numbers)
        return (
            f"{key!r}: its element {where} is used {len(rows)} times, by {named}.",
            "Leave one of them out, separate them with '@', or write 'also' before one.",
        )
    if len(first) < len(uses) and _covers(shape, uses):
        return None
    named = "; ".join(
        f"rule {each + 1} {rules[each].text!r}" for each in sorted({use.rule for use in uses})[:3]
    )
    return (
        f"{key!r}: its element {where} is used by no rule; others are used by {named}.",
        "Add a rule for it, such as one with '@' and '-> nothing'.",
    )


def quoted_key(key: str) -> str:
    """Return a key as a rule writes it."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_./-]*", key) and key != "also":
        return key
    return "'" + key.replace("'", "''") + "'"


def _nearest(key: str, rules: Sequence[MapRule], unselected: Mapping[str, int]) -> str:
    if key in unselected:
        number = unselected[key]
        return f"; rule {number + 1} {rules[number].text!r} matches its name and not its numbers"
    found = nearest_rule(key, rules)
    if found is None:
        return ""
    why = why_unmatched(key, rules[found].source.key)
    return (
        f"; the nearest is rule {found + 1} {rules[found].text!r}{f', where {why}' if why else ''}"
    )


def _flaw(
    shape: Sequence[int], uses: Sequence[Use], *, may_have_holes: bool = False
) -> ElementFlaw | None:
    uses = [*uses]
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
    """The element at a corner, in the coordinates of the tensor."""
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
    rank = len(shape)
    is_split = [
        len({use.radices[axis] for use in uses}) <= 1
        and not any(use.is_cut and use.is_cut[axis] for use in uses)
        for axis in range(rank)
    ]
    splits = [
        uses[0].radices[axis] if uses and is_split[axis] else (shape[axis],) for axis in range(rank)
    ]
    offsets, extents, owners, total = [], [], [], 0
    for row, use in enumerate(uses):
        if not use.size:
            continue
        columns, place = list[tuple[Ints, Ints]](), 0
        for axis in range(rank):
            stop = place + len(use.radices[axis])
            begins, counts = use.begins[place:stop], use.counts[place:stop]
            if is_split[axis]:
                columns += [
                    (np.array([b]), np.array([c])) for b, c in zip(begins, counts, strict=True)
                ]
            else:
                columns.append(_intervals(use.radices[axis], begins, counts))
            place = stop
        number = prod(len(start) for start, _ in columns)
        total += number
        if total > _MOST_BOXES:
            raise MapError(
                "The rules take it apart in too many places to be compared.",
                "Make the axis of the same indices in all rules.",
            )
        grid = np.indices([len(start) for start, _ in columns]).reshape(len(columns), number)
        offsets.append(
            np.stack([c[0][g] for c, g in zip(columns, grid, strict=True)], axis=1)
            if columns
            else np.zeros((1, 0), np.int64)
        )
        extents.append(
            np.stack([c[1][g] for c, g in zip(columns, grid, strict=True)], axis=1)
            if columns
            else np.zeros((1, 0), np.int64)
        )
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
    """The intervals of an axis that some of its indices make, ascending, each as long as can be.

    >>> [column.tolist() for column in _intervals((2, 3, 4), (0, 1, 0), (2, 1, 4))]
    [[4, 16], [4, 4]]
    """
    starts, run, step = np.zeros(1, np.int64), 1, 1
    for radix, begin, count in zip(
        reversed(radices), reversed(begins), reversed(counts), strict=True
    ):
        if len(starts) == 1 and run == step:
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
    """Return True if each element is used at least once."""
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
