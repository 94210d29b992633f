"""Which indices do the keys have that a rule matches?

A number of a key is taken apart into the indices that make it, and an index outside of the range of
``@`` leaves the key to another rule.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardvar.errors import MapError
from shardvar.maps.extents import RuleExtents, SizeOf, shift_of, solve, split_number
from shardvar.maps.keys import Values
from shardvar.maps.syntax import AxisNames, KeyPattern, NumberPart, Side, TextPart

_Named = Mapping[AxisNames | str, int | str]
"""The values of the parts of a key: a number by its indices, the position of a word, or a text."""


@dataclass(frozen=True, slots=True)
class Match:
    """A key that a rule takes."""

    key: str
    """The key."""
    indices: Mapping[str, int]
    """The indices that it has, counted from the start of each range; fixed ones are left out."""
    texts: Mapping[str, str]
    """The texts that it has."""


def find_matches(
    side: Side, extents: RuleExtents, found: Sequence[tuple[str, Values]], size_of: SizeOf
) -> list[Match]:
    """Return the keys that a side takes, of the ones that its pattern matches."""
    read = [(key, _named(side.key, values, size_of)) for key, values in found]
    named = [(key, parts) for key, parts in read if parts is not None]
    full = _full(side.key, extents, [parts for _, parts in named])
    return [
        match
        for key, parts in named
        if (match := _match(side.key, key, parts, extents, full)) is not None
    ]


def count_numbers(
    extents: RuleExtents, matches: Sequence[Match]
) -> dict[tuple[str, ...], dict[str, int]]:
    """Return the extents of the indices of keys, by the texts that the keys have.

    They are counted by themselves for each text that renames: an encoder and a decoder need not
    have equally many layers.
    """
    counts: dict[tuple[str, ...], dict[str, int]] = {}
    for match in matches:
        mine = counts.setdefault(tuple(match.texts.values()), {})
        for name, value in match.indices.items():
            mine[name] = max(mine.get(name, 0), value + 1)
    for mine in counts.values():
        for name in mine:
            mine[name] = max(extents.selected(name) or 0, mine[name])
    return counts


def _named(key: KeyPattern, values: Values, size_of: SizeOf) -> _Named | None:
    """The values of the parts of a key; None if a number is below the least one."""
    parts = [part for part in key.parts if not isinstance(part, str)]
    found: dict[AxisNames | str, int | str] = {}
    for part, value in zip(parts, values, strict=True):
        if isinstance(part, NumberPart):
            number = int(value) - shift_of(part, size_of)
            if number < 0:
                return None
            found[part.axis] = number
        else:
            found[part.name] = value
    return found


def _full(key: KeyPattern, extents: RuleExtents, named: Sequence[_Named]) -> dict[str, int]:
    """The full extents of the indices that make numbers: of all but the first of each, at least."""
    full: dict[str, int] = {}
    for part in key.parts:
        if not isinstance(part, NumberPart):
            continue
        for name in part.axis:
            known = extents.full(name, False)
            if known is not None:
                full[name] = known
        if named and any(name not in full for name in part.axis[1:]):
            count = max(int(parts[part.axis]) for parts in named) + 1
            full |= solve(part.axis, count, full.get, f"The number {{({' '.join(part.axis)})}}")
    return full


def _match(
    pattern: KeyPattern, key: str, named: _Named, extents: RuleExtents, full: Mapping[str, int]
) -> Match | None:
    indices, texts = dict[str, int](), dict[str, str]()
    for part in pattern.parts:
        if isinstance(part, str):
            continue
        if isinstance(part, TextPart):
            texts[part.name] = str(named[part.name])
            continue
        if isinstance(part, NumberPart):
            found = split_number(int(named[part.axis]), part.axis, full)
        else:
            found = {part.name: int(named[part.name])}
        for name, value in found.items():
            bounds = extents.bounds(name, False)
            if value < bounds.start or (bounds.stop is not None and value >= bounds.stop):
                return None
            if name in full and value >= full[name]:
                raise MapError(
                    f"The key {key!r} has {name} = {value}, and {name} has the extent "
                    f"{full[name]}.",
                    f"Give another size of {name}, or a rule for the other keys.",
                )
            if not bounds.is_single:
                indices[name] = value - bounds.start
    return Match(key, indices, texts)
