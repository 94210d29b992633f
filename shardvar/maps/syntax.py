"""The language of maps: one line a rule, ``SIDE -> SIDE``.

    rule      = [ "also" ] source "->" ( target | "nothing" )
    source    = side { "times" ( KEY[axes] | constant ) } [ "plus" constant ]
    target    = side [ "else" number ]
    side      = key [ "[" axes "]" ] [ "@" range { "," range } ]
    key       = text, 'quoted text', and parts:
                {l}           a number, which is an index; also {l + 1}
                {(b p)}       a number that two or more indices make, as they make an axis
                {s:gate|up}   one of the words, whose index counts them from 0
                {x:*}         text without "." and "/"; {x:**} any text: only to rename
    axes      = names, "(" names ")", "1", and once "...", separated by spaces
    range     = name "=" ( value | [ start ] ":" [ stop ] )

A named part of a key is an index, exactly as an axis is. Both sides have the same indices, and each
once. With ``also``, the target's key may have more: ``also norm[h] -> {rank}/norm[h]`` makes a copy
for each. A key that begins with a number and a slash is a key of that source, or of that target, of
several (``maps.ranks``). This module has a rule as a value;
``maps.parsing`` reads it from its text, and ``maps.fitting`` fits it to the tensors of a checkpoint.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shardvar.maps.expressions import Expression

AxisNames = tuple[str, ...]
"""The indices that make an axis, the slowest first; none for the axis ``1``."""

ELLIPSIS: AxisNames = ("...",)
"""Axes that keep their order and their place."""


@dataclass(frozen=True, slots=True)
class NumberPart:
    """A part of a key that is a number: the number is its index plus a shift."""

    axis: AxisNames
    """The indices that make the number."""
    shift: Expression
    """The number that is added to it."""


@dataclass(frozen=True, slots=True)
class WordPart:
    """A part of a key that is one of several words, each with its position as the index."""

    name: str
    """The index."""
    words: tuple[str, ...]
    """The words, which all differ."""


ANY_TEXT = "(?s:.+)"
"""The pattern of ``{x:**}``."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part of a key that is any text, and only renamed."""

    name: str
    """Its name."""
    pattern: str
    """The regular expression that it matches."""


KeyPart = str | NumberPart | WordPart | TextPart


@dataclass(frozen=True, slots=True)
class KeyPattern:
    """A key with named parts."""

    text: str
    """As it was written."""
    parts: tuple[KeyPart, ...]
    """Its literal texts and its parts, in order."""

    def indices(self) -> Iterator[str]:
        """Yield the names of its indices."""
        for part in self.parts:
            if isinstance(part, NumberPart):
                yield from part.axis
            elif isinstance(part, WordPart):
                yield part.name

    def texts(self) -> list[str]:
        """Return the names of the parts that are texts."""
        return [part.name for part in self.parts if isinstance(part, TextPart)]


@dataclass(frozen=True, slots=True)
class Range:
    """The indices that a side selects: ``start:stop``, or one value."""

    start: Expression | None
    """The first; None for 0."""
    stop: Expression | None
    """The first past them; None for all that follow."""
    is_single: bool
    """True for one value, ``start``."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a rule."""

    text: str
    """As it was written."""
    key: KeyPattern
    """Its key."""
    axes: tuple[AxisNames, ...]
    """Its axes."""
    ranges: dict[str, Range] = field(default_factory=dict)
    """The ranges of some of its indices."""

    def indices(self) -> list[str]:
        """Return the names of its indices, the ones of the key first."""
        of_axes = [name for axis in self.axes if axis != ELLIPSIS for name in axis]
        return [*self.key.indices(), *of_axes]

    def free(self) -> set[str]:
        """Return the indices that are not fixed by a single value."""
        return {
            name
            for name in self.indices()
            if not (name in self.ranges and self.ranges[name].is_single)
        }


@dataclass(frozen=True, slots=True)
class MapRule:
    """One line of a map."""

    text: str
    """As it was written."""
    source: Side
    """The side that it takes from."""
    target: Side | None
    """The side that it fills; None for ``nothing``."""
    is_again: bool = False
    """True with ``also``: what it takes may be used by other rules."""
    factors: tuple[Side, ...] = ()
    """The tensors that the source is multiplied by."""
    times: tuple[Expression, ...] = ()
    """The constants that it is multiplied by."""
    plus: Expression | None = None
    """The constant that is added to it."""
    fill: str | None = None
    """The number that fills what no rule covers."""
    ends: Mapping[str, tuple[Range, ...]] = field(default_factory=dict)
    """Of an inverse, the ranges that all rules of the map fill of an index of the source. The extent
    of the index is the largest stop of them, unless it is given."""

    def names(self) -> Iterator[str]:
        """Yield the names in it that sizes may have: indices, and names in expressions."""
        expressions = [*self.times, *([] if self.plus is None else [self.plus])]
        for side in (self.source, *self.factors, *([] if self.target is None else [self.target])):
            yield from side.indices()
            expressions += [part.shift for part in side.key.parts if isinstance(part, NumberPart)]
            for limits in side.ranges.values():
                expressions += [each for each in (limits.start, limits.stop) if each is not None]
        for expression in expressions:
            yield from expression.names()

    def repeated(self) -> list[str]:
        """Return the indices of the target's key that the source does not have: with ``also``, it
        is used for each of them."""
        if self.target is None or not self.is_again:
            return []
        of_key, of_source = [*self.target.key.indices()], self.source.indices()
        return [name for name in of_key if name in self.target.free() and name not in of_source]

    @property
    def keeps_tensors(self) -> bool:
        """True if the rule moves whole tensors, each element to its own place."""
        source, target = self.source, self.target
        if target is None or source.axes != target.axes or self.has_arithmetic:
            return False
        # A range of a number in a key chooses whole tensors.
        cuts = {name for axis in source.axes for name in axis}
        return not cuts & (source.ranges.keys() | target.ranges.keys())

    @property
    def has_arithmetic(self) -> bool:
        """True if the rule computes, so that values are rounded."""
        return bool(self.factors or self.times or self.plus is not None)
