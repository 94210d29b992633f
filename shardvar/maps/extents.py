"""The extents of a rule's indices, as far as its text, the sizes and the numbers of keys give them.

An index has a *full* extent on each side, and a *selected* one, which both sides share: without
``@`` they are the same, and with ``@ v=2:5`` a side has 3 of its full extent. A size is the full
extent on the sides that have ``@``, or on both if none has.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod

from shardvar.errors import MapError
from shardvar.maps.expressions import Expression
from shardvar.maps.syntax import AxisNames, MapRule, NumberPart, Range, Side, WordPart

SizeOf = Callable[[str], int]
"""Gives a size by its name; ``MapError`` if it has none."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A range of an index, in numbers."""

    start: int
    """The first index."""
    stop: int | None
    """The first past them; None up to the full extent."""
    is_single: bool
    """True for one index, which the other side does not have."""


_ANY_NAME = re.compile(r"\{[^:}]*")
"""The name of an index in a key, which another rule may call otherwise."""
ALL = Bounds(0, None, False)
"""A range of all indices."""


@dataclass(frozen=True, slots=True)
class RuleExtents:
    """The extents that a rule gives its indices before it meets a tensor."""

    source: dict[str, Bounds]
    """The ranges of the source."""
    target: dict[str, Bounds]
    """The ranges of the target."""
    sizes: dict[str, int]
    """The sizes that the indices have."""
    words: tuple[dict[str, int], dict[str, int]]
    """The numbers of words of parts of the source's key, and of the target's."""
    ends: dict[str, int]
    """The extents of the source's indices that the rules of an inverse fill together."""

    def bounds(self, name: str, is_target: bool) -> Bounds:
        """Return the range that a side has of an index."""
        return (self.target if is_target else self.source).get(name, ALL)

    def full(self, name: str, is_target: bool, selected: int | None = None) -> int | None:
        """Return the full extent of an index on a side, if it is known; ``selected`` may be."""
        found = self.words[is_target].get(name)
        if found is not None:
            return found
        ranges, others = self.target, self.source
        if not is_target:
            ranges, others = others, ranges
        if name in self.sizes and (name in ranges or name not in others):
            return self.sizes[name]
        if name in ranges:
            return None if is_target else self.ends.get(name)
        return self.selected(name) if selected is None else selected

    def selected(self, name: str) -> int | None:
        """Return the extent of an index that both sides share, if it is known."""
        for is_target in (False, True):
            bounds = self.bounds(name, is_target)
            if bounds.is_single:
                continue
            has_range = name in (self.target if is_target else self.source)
            if bounds.stop is not None:
                return bounds.stop - bounds.start
            full = self.words[is_target].get(name)
            if full is None and name in self.sizes:
                is_other = name in (self.source if is_target else self.target)
                full = self.sizes[name] if has_range or not is_other else None
            if full is None and not is_target:
                full = self.ends.get(name)
            if full is not None:
                return full - bounds.start
        return None


def rule_extents(rule: MapRule, size_of: SizeOf, sizes: Iterable[str]) -> RuleExtents:
    """Return the extents that a rule and the sizes give; ``MapError`` where they do not fit."""
    known = {name: size_of(name) for name in sizes if name in _names(rule)}
    for name, size in known.items():
        if size < 0:
            raise MapError(f"The size {name} is {size}.", "Sizes are not negative.")
    sides = (rule.source, rule.target)
    words = tuple(
        {part.name: len(part.words) for part in side.key.parts if isinstance(part, WordPart)}
        if side is not None
        else {}
        for side in sides
    )
    found = RuleExtents(
        _bounds(rule.source, size_of),
        {} if rule.target is None else _bounds(rule.target, size_of),
        known,
        (words[0], words[1]),
        {name: max(_end(each, size_of) for each in ranges) for name, ranges in rule.ends.items()},
    )
    for is_target, side in enumerate(sides):
        for name in () if side is None else side.indices():
            _check_bounds(found, name, bool(is_target))
    for name in () if rule.target is None else rule.source.free():
        _check_same(found, name)
    return found


def filled_ranges(rules: Iterable[MapRule], target: Side) -> dict[str, tuple[Range, ...]]:
    """Return the ranges of each index of a target that every rule which fills it closes."""
    key = _ANY_NAME.sub("{", target.key.text)
    sides = [rule.target for rule in rules if rule.target is not None]
    sides = [side for side in sides if _ANY_NAME.sub("{", side.key.text) == key]
    found = {}
    for name in target.ranges:
        ranges = [side.ranges[name] for side in sides if name in side.ranges]
        is_closed = all(each.is_single or each.stop is not None for each in ranges)
        if is_closed and len(ranges) == len(sides) and all(s.axes == target.axes for s in sides):
            found[name] = tuple(ranges)
    return found


def _end(given: Range, size_of: SizeOf) -> int:
    """The index after a closed range."""
    if given.is_single and given.start is not None:
        return given.start.integer(size_of) + 1
    return 0 if given.stop is None else given.stop.integer(size_of)


def _names(rule: MapRule) -> set[str]:
    target = [] if rule.target is None else rule.target.indices()
    return {*rule.source.indices(), *target}


def _bounds(side: Side, size_of: SizeOf) -> dict[str, Bounds]:
    found = {}
    for name, given in side.ranges.items():
        start = 0 if given.start is None else given.start.integer(size_of)
        stop = None if given.stop is None else given.stop.integer(size_of)
        if given.is_single:
            stop = start + 1
        if start < 0 or (stop is not None and stop < start):
            raise MapError(
                f"The range {name}={start}:{'' if stop is None else stop} is not one.",
                "Indices count from 0, and the start comes before the stop.",
            )
        found[name] = Bounds(start, stop, given.is_single)
    return found


def _check_bounds(extents: RuleExtents, name: str, is_target: bool) -> None:
    full, bounds = extents.full(name, is_target), extents.bounds(name, is_target)
    if full is not None and max(bounds.start, bounds.stop or 0) > full:
        last = bounds.start if bounds.stop is None else bounds.stop
        raise MapError(
            f"'@' selects {name}={bounds.start}:{last}, and {name} has the extent {full}.",
            f"Choose a range within {full}, or another size of {name}.",
        )


def _check_same(extents: RuleExtents, name: str) -> None:
    """Raise ``MapError`` if the sides have words or ranges of different lengths."""
    lengths = set[int]()
    for is_target in (False, True):
        bounds, full = extents.bounds(name, is_target), extents.full(name, is_target, -1)
        stop = bounds.stop if bounds.stop is not None else full
        if stop is not None and stop >= 0:
            lengths.add(stop - bounds.start)
    if len(lengths) > 1:
        some = " and ".join(map(str, sorted(lengths)))
        raise MapError(
            f"The index {name!r} has {some} values on the two sides.",
            "Give ranges, words and sizes of one length.",
        )


def solve(
    axis: AxisNames, extent: int, full: Callable[[str], int | None], where: str
) -> dict[str, int]:
    """Return the full extents of the indices that make an axis of a known extent.

    One of them may be unknown, which division gives.

    >>> solve(("n", "d"), 12, {"n": 3}.get, "w")
    {'n': 3, 'd': 4}
    """
    found = {name: full(name) for name in axis}
    unknown = [name for name, size in found.items() if size is None]
    known = {name: size for name, size in found.items() if size is not None}
    group = f"({' '.join(axis)})" if len(axis) > 1 else "".join(axis) or "1"
    if len(unknown) > 1:
        raise MapError(
            f"{where} has an axis {group} of {extent}, and the sizes of {', '.join(unknown)} are "
            "not known.",
            f"Give all but one: {unknown[0]} in sizes, or --size {unknown[0]}=N.",
        )
    product = prod(known.values())
    if unknown:
        if product == 0 or extent % product:
            sizes = ", ".join(f"{name} = {size}" for name, size in known.items())
            raise MapError(
                f"{where} has an axis {group} of {extent}, which {product} does not divide "
                f"({sizes}).",
                "Give sizes that divide it.",
            )
        known[unknown[0]] = extent // product
    elif product != extent:
        sizes = ", ".join(f"{name} = {size}" for name, size in known.items())
        raise MapError(
            f"{where} has an axis {group} of {extent}, not {product}"
            f"{f' ({sizes})' if sizes else ''}.",
            "Give the sizes of this model, or leave one of them out.",
        )
    return {name: known[name] for name in axis}


def split_number(number: int, axis: AxisNames, full: Mapping[str, int]) -> dict[str, int]:
    """Return the indices that make a number; the first one is as large as it must be.

    >>> split_number(26, ("b", "p"), {"p": 6})
    {'b': 4, 'p': 2}
    """
    found = {}
    for name in reversed(axis[1:]):
        number, found[name] = divmod(number, max(full[name], 1))
    found[axis[0]] = number
    return {name: found[name] for name in axis}


def shift_of(part: NumberPart, size_of: SizeOf) -> int:
    """Return what is added to the number of a part."""
    shift: Expression = part.shift
    return shift.integer(size_of)
