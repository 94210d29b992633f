"""The places of a rule's elements in a tensor: its axes, taken apart into the indices of a side."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from shardvar.errors import MapError
from shardvar.maps.extents import ALL, Bounds, solve
from shardvar.maps.plan import View
from shardvar.maps.proof import Use
from shardvar.maps.syntax import ELLIPSIS, AxisNames, Side
from shardvar.pictures.words import human_shape


@dataclass(frozen=True, slots=True)
class TensorAxes:
    """The axes of one tensor as a side has them, with all extents."""

    axes: tuple[AxisNames, ...]
    """The axes, without an ellipsis."""
    full: Mapping[str, int]
    """The full extent of each index."""
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
    side: Side,
    shape: tuple[int, ...],
    key: str,
    full: Callable[[str], int | None],
    ranges: Mapping[str, Bounds],
    *,
    may_cut: bool = False,
) -> tuple[TensorAxes, dict[str, int]]:
    """Return the axes of a side for a tensor's shape, and the selected extents of its free indices.

    With ``may_cut``, the last block of an axis ``(a p)`` may be shorter than the others.
    """
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
            found |= solve(axis, extent, full, f"{key!r} of {human_shape(shape)}")
    for name, size in found.items():
        bounds = ranges.get(name, ALL)
        stop = size if bounds.stop is None else bounds.stop
        if max(stop, bounds.start) > size:
            raise MapError(
                f"'@' selects {name}={bounds.start}:{stop}, and {key!r} of {human_shape(shape)} "
                f"has {name} = {size}.",
                f"Choose a range within {size}.",
            )
        if not bounds.is_single:
            selected[name] = stop - bounds.start
    starts = {name: bounds.start for name, bounds in ranges.items()}
    return TensorAxes(tuple(axes), found, starts, cut), selected


def blocks(
    placed: TensorAxes, selected: Mapping[str, int], at: Mapping[str, int]
) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Yield fixed indices and selected extents: of the whole blocks, and of each that is cut.

    Of an axis (a p) of 20 with p = 8: a = 0 and 1 with all of p, then a = 2 with 4 of p. Indices
    ``at`` one value have no others. Like the fixed ones, they count from the start of a range.
    """
    choices = []
    for (block, within), extent in placed.cut.items():
        last, left = divmod(extent, placed.full[within])
        begin, first = placed.starts.get(block, 0), placed.starts.get(within, 0)
        whole = min(last - begin, selected.get(block, 1))
        rest = min(left - first, selected.get(within, 1))
        mine = list[tuple[dict[str, int], dict[str, int]]]()
        # An index that the side fixes to one value is in none of them.
        if whole > 0:
            mine.append(({}, {block: whole} if block in selected else {}))
        if rest > 0 and begin <= last < begin + selected.get(block, 1):
            fixed = {block: last - begin} if block in selected else {}
            mine.append((fixed, {within: rest} if within in selected else {}))
        choices.append(mine)
    for some in product(*choices):
        fixed, counts = dict[str, int](), {**selected}
        for values, extents in some:
            fixed |= values
            counts |= extents
        is_there = all(at.get(name, value) == value for name, value in fixed.items())
        if is_there and all(at.get(name, -1) < count for name, count in counts.items()):
            yield fixed, counts


def expand(axes: Sequence[AxisNames], source: TensorAxes) -> tuple[AxisNames, ...]:
    """Return a target's axes, with the ones that the source has for ``...``."""
    rest = [axis for axis in source.axes if axis and axis[0].startswith("...")]
    found = list[AxisNames]()
    for axis in axes:
        found += rest if axis == ELLIPSIS else [axis]
    return tuple(found)


def merge(counts: Sequence[int], views: Sequence[View]) -> tuple[tuple[int, ...], list[View]]:
    """Merge neighbouring indices that count as one in all views, and drop the ones of one element.

    >>> a, b = View("a", (0,), ((0, 3), (0, 1))), View("b", (0, 0), ((1, 3), (1, 1)))
    >>> merge([2, 3], [a, b])[0]
    (6,)
    """
    shape, steps = list[int](), list[list[tuple[int, int]]]()
    for row, count in enumerate(counts):
        mine = [view.steps[row] for view in views]
        if count == 1:
            continue
        if shape and all(
            before[0] == axis and before[1] == step * count
            for before, (axis, step) in zip(steps[-1], mine, strict=True)
        ):
            shape[-1] *= count
            steps[-1] = mine
        else:
            shape.append(count)
            steps.append(mine)
    return tuple(shape), [
        View(view.key, view.start, tuple(each[row] for each in steps))
        for row, view in enumerate(views)
    ]
