"""Keys that a rule matches, and the extents of the indices that they and the axes have.

A rule matches whole keys. Most keys differ only in their numbers, so keys are grouped without their
digits, and a rule is compared with a group before it is compared with a key:

    layers.0.w, layers.1.w ... layers.79.w      ->  layers.#.w      one comparison

An index has a *full* extent on each side, and a *selected* one, which both sides share: without
``@`` they are the same, and with ``@ v=2:5`` a side has 3 of its full extent. A size is the full
extent on the sides that have ``@``, or on both if none has.

A number of a key is taken apart into the indices that make it, and an index outside of the range of
``@`` leaves the key to another rule. The keys that a side takes are columns, a column an index, from
which the keys of the other side are written.

Entries of ``config.json`` next to a checkpoint give sizes, as ``config:num_key_value_heads``, and
the model, which a map must be for. Models of several families have the same keys and shapes, and
other numbers in them, so that only the configuration tells if a map is right.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from decimal import Decimal
from difflib import SequenceMatcher, get_close_matches
from fractions import Fraction
from itertools import compress, islice
from math import inf, prod
from typing import Any

from shardvar.errors import CheckpointError, MapError, StorageError
from shardvar.limits import MAX_NAMED
from shardvar.maps.expressions import SizeOf, float_of, parse_expression
from shardvar.maps.language import (
    ANY_TEXT,
    NO_SIDE,
    AxisNames,
    Condition,
    KeyPattern,
    MapRule,
    NumberPart,
    Range,
    Side,
    TextPart,
    WordPart,
)
from shardvar.pictures.words import similar
from shardvar.records import field, frozen
from shardvar.storage.local import split_place
from shardvar.wire.strict_json import parse_json

_DIGITS = re.compile("[0-9]+")

Hit = tuple[str, tuple[str, ...]]
"""A key that a pattern matches, and the text of each named part."""


def match_keys(
    patterns: Sequence[KeyPattern], keys: Iterable[str]
) -> Iterator[tuple[str, list[tuple[int, tuple[str, ...]]]]]:
    """Yield each key with the patterns that match it, each as its position and the parts' texts."""
    exact = [re.compile(pattern.expression()) for pattern in patterns]
    groups = [_group_of(pattern) for pattern in patterns]
    of_group: dict[str, list[int]] = {}
    for key in keys:
        group = _DIGITS.sub("#", key)
        if group not in of_group:
            of_group[group] = [
                row for row, each in enumerate(groups) if each is None or each.fullmatch(group)
            ]
        found = [(row, exact[row].fullmatch(key)) for row in of_group[group]]
        yield key, [(row, texts.groups()) for row, texts in found if texts]


def matches_key(pattern: KeyPattern, key: str) -> bool:
    return re.fullmatch(pattern.expression(), key) is not None


def _group_of(key: KeyPattern) -> "re.Pattern[str] | None":
    """The expression of the groups that hold a pattern's keys; None if any group may."""
    for part in key.named_parts():
        # A text has any digits, and a word's digits may run into a number's.
        words = part.words if isinstance(part, WordPart) else ()
        if isinstance(part, TextPart) or any(w[:1].isdigit() or w[-1:].isdigit() for w in words):
            return None
    expression = key.expression().replace(NumberPart.pattern, "#")
    return re.compile(re.sub("#+", "#", _DIGITS.sub("#", expression)))


_MOST_CANDIDATES = 5_000
"""Names that are compared; each takes some ten microseconds."""


def nearest_names(name: str, names: Iterable[str], count: int = 1) -> list[str]:
    """If no name is a typing error away, names that have most of its letters in order count."""
    some = list(islice(names, _MOST_CANDIDATES))
    return similar(name, some, count) or get_close_matches(name, some, count)


def did_you_mean(name: str, names: Iterable[str], count: int = 1) -> str:
    """Return a question about the nearest names, with a space behind it; empty without one."""
    found = nearest_names(name, names, count)
    return f"Did you mean {' or '.join(map(repr, found))}? " if found else ""


def nearest_key(key: str, keys: Iterable[str]) -> str:
    """Return the key nearest to a missing one, first of the keys that begin as it does; empty without one."""
    beginning = key[: max(key.rfind("."), key.rfind("/")) + 1]
    listed = list(keys)
    siblings = [each for each in listed if each.startswith(beginning)] if beginning else []
    found = get_close_matches(key, siblings[:_MOST_CANDIDATES], 1) or nearest_names(key, listed)
    return found[0] if found else ""


def nearest_rule(key: str, rules: Sequence[MapRule], unused: Collection[int]) -> int | None:
    """Return the position of the rule whose source is spelled most like a key, if possible one that
    matches no key; None without any."""
    ratios = [likeness(key, rule) for rule in rules]
    near = [number for number in unused if ratios[number] >= NEAR]
    found = max(near or range(len(rules)), key=ratios.__getitem__, default=None)
    return found if found is not None and ratios[found] else None


NEAR = 0.8
"""The likeness from which a rule is taken for a misspelt one."""


def likeness(key: str, rule: MapRule) -> float:
    """Return how much of a key is spelled as the source of a rule is, apart from numbers."""
    pattern = re.sub(r"\{[^}]*\}|[0-9]+", "#", rule.source.key.text)
    return SequenceMatcher(a=pattern, b=_DIGITS.sub("#", key), autojunk=False).ratio()


def why_unmatched(key: str, pattern: KeyPattern) -> str:
    """Return the part of a pattern that a key would match if it were another kind of part."""
    literals = "".join(part for part in pattern.parts if isinstance(part, str))
    if "*" in literals and "*" not in key:
        return "'*' is a plain character: write {x:*} or {x:**}, and {x} on the other side"
    if any(isinstance(part, TextPart) and part.pattern == ANY_TEXT for part in pattern.parts):
        return ""
    for part in pattern.parts:
        if isinstance(part, NumberPart):
            name = part.axis[0]
            why = f"{{{name}}} is a number: write {{{name}:*}} for text, or {{{name}:a|b}}"
        elif isinstance(part, TextPart):
            name = part.name
            why = f"{{{name}:*}} is text without '.' and '/': write {{{name}:**}}"
        else:
            continue
        others = tuple(TextPart(name, ANY_TEXT) if each is part else each for each in pattern.parts)
        if matches_key(KeyPattern(pattern.text, others), key):
            return why
    return ""


@frozen
class Bounds:
    """A range of an index, in numbers."""

    start: int
    stop: int | None
    """The first past them; None up to the full extent."""
    is_single: bool
    """True for one index, which the other side does not have."""


_ANY_NAME = re.compile(r"\{[^:}]*")
"""The name of an index in a key, which another rule may call otherwise."""
ALL = Bounds(0, None, False)
"""A range of all indices."""


@frozen
class FittedSide:
    """A side of a rule, with the extents that are known before it meets a tensor."""

    side: Side
    ranges: Mapping[str, Bounds]
    given: Mapping[str, int]
    """The full extents that words, sizes, and the other rules of an inverse give."""
    shared: Mapping[str, int]
    """The selected extents that both sides have."""
    size_of: SizeOf

    def bounds(self, name: str) -> Bounds:
        return self.ranges.get(name, ALL)

    def starts(self) -> dict[str, int]:
        return {name: bounds.start for name, bounds in self.ranges.items()}

    def full(self, name: str, selected: int | None = None) -> int | None:
        """Return the full extent of an index, if it is known; ``selected`` may be known."""
        if name in self.given or name in self.ranges:
            return self.given.get(name)
        return self.shared.get(name, selected)


def fit_sides(
    rule: MapRule, size_of: SizeOf, sizes: Iterable[str]
) -> tuple[FittedSide, FittedSide]:
    """Return the source and the target of a rule; ``MapError`` if extents do not fit."""
    sides = (rule.source, rule.target or NO_SIDE)
    indices = dict.fromkeys(name for side in sides for name in side.indices())
    known = {name: size_of(name) for name in sizes if name in indices}
    for name, size in known.items():
        if size < 0:
            raise MapError(f"The size {name} is {size}.", "Sizes are not negative.")
    ends = {
        name: max(_bounds(each, name, size_of).stop or 0 for each in some)
        for name, some in rule.ends.items()
    }
    source, target = (
        {name: _bounds(each, name, size_of) for name, each in side.ranges.items()} for side in sides
    )
    # A size is the extent on the sides with a range, or on both.
    of_source = {name: n for name, n in known.items() if name in source or name not in target}
    of_target = {name: n for name, n in known.items() if name in target or name not in source}
    of_source, of_target = ends | of_source | sides[0].key.words(), of_target | sides[1].key.words()
    shared = dict[str, int]()
    for name in indices:
        lengths = list[int]()
        for own, given in ((source, of_source), (target, of_target)):
            bounds = own.get(name, ALL)
            stop = given.get(name) if bounds.stop is None else bounds.stop
            if stop is not None:
                lengths.append(stop - bounds.start)
                if not bounds.is_single:
                    shared.setdefault(name, lengths[-1])
        if len({*lengths}) > 1 and rule.target and name in rule.source.free():
            some = " and ".join(map(str, sorted(lengths)))
            raise MapError(
                f"The index {name!r} has {some} values on the two sides.",
                "Give ranges, words and sizes of one length.",
            )
    fitted = (
        FittedSide(sides[0], source, of_source, shared, size_of),
        FittedSide(sides[1], target, of_target, shared, size_of),
    )
    for each in fitted:
        for name in each.side.indices():
            full, bounds = each.full(name), each.bounds(name)
            last = bounds.start if bounds.stop is None else bounds.stop
            if full is not None and last > full:
                raise MapError(
                    f"'@' selects {name}={bounds.start}:{last}, and {name} has the extent {full}.",
                    f"Choose a range within {full}, or another size of {name}.",
                )
    return fitted


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


def _bounds(given: Range, name: str, size_of: SizeOf) -> Bounds:
    start = 0 if given.start is None else given.start.integer(size_of)
    stop = None if given.stop is None else given.stop.integer(size_of)
    stop = start + 1 if given.is_single else stop
    if start < 0 or (stop is not None and stop < start):
        raise MapError(
            f"The range {name}={start}:{'' if stop is None else stop} is not one.",
            "Indices count from 0, and the start comes before the stop.",
        )
    return Bounds(start, stop, given.is_single)


def solve(axis: AxisNames, extent: int, sizes: Mapping[str, int], where: str) -> dict[str, int]:
    """Return the full extents of the indices that make an axis; division gives one that is unknown."""
    unknown = [name for name in axis if name not in sizes]
    known = {name: sizes[name] for name in axis if name in sizes}
    group = f"({' '.join(axis)})" if len(axis) > 1 else "".join(axis) or "1"
    if len(unknown) > 1:
        raise MapError(
            f"{where} has an axis {group} of {extent}, and the sizes of {', '.join(unknown)} are "
            "not known.",
            f"Give all but one: {unknown[0]} in sizes, or --size {unknown[0]}=N.",
        )
    product = prod(known.values())
    given = ", ".join(f"{name} = {size}" for name, size in known.items())
    if unknown:
        if product == 0 or extent % product:
            raise MapError(
                f"{where} has an axis {group} of {extent}, which {product} does not divide "
                f"({given}).",
                "Give sizes that divide it.",
            )
        known[unknown[0]] = extent // product
    elif product != extent:
        raise MapError(
            f"{where} has an axis {group} of {extent}, not {product}"
            f"{f' ({given})' if given else ''}.",
            "Give the sizes of this model, or leave one of them out.",
        )
    return {name: known[name] for name in axis}


def indices_of_numbers(
    numbers: Sequence[int], axis: AxisNames, full: Mapping[str, int]
) -> dict[str, list[int]]:
    """Return the indices that make numbers; the first one is as large as it must be."""
    found, rest = dict[str, list[int]](), [*numbers]
    for name in reversed(axis[1:]):
        size = max(full[name], 1)
        found[name] = [number % size for number in rest]
        rest = [number // size for number in rest]
    return {axis[0]: rest} | found


@frozen
class Match:
    key: str
    indices: Mapping[str, int]
    """The indices that it has, counted from the start of each range; fixed ones are left out."""
    texts: Mapping[str, str]


@frozen
class MatchTable:
    """The keys that a side takes, in columns."""

    keys: Sequence[str]
    indices: Mapping[str, Sequence[int]]
    texts: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, rows: Sequence[Match]) -> "MatchTable":
        indices = {name: [row.indices[name] for row in rows] for name in rows[0].indices}
        texts = {name: [row.texts[name] for row in rows] for name in rows[0].texts}
        return cls([row.key for row in rows], indices, texts)

    def __iter__(self) -> Iterator[Match]:
        for row, key in enumerate(self.keys):
            indices = {name: column[row] for name, column in self.indices.items()}
            yield Match(key, indices, {name: column[row] for name, column in self.texts.items()})

    def where(self, is_kept: Sequence[bool]) -> "MatchTable":
        if all(is_kept):
            return self
        indices = {name: [*compress(each, is_kept)] for name, each in self.indices.items()}
        texts = {name: [*compress(each, is_kept)] for name, each in self.texts.items()}
        return MatchTable([*compress(self.keys, is_kept)], indices, texts)


def find_matches(fitted: FittedSide, hits: Sequence[Hit]) -> MatchTable:
    """Return the keys that a side takes, among the keys that its pattern matches."""
    is_taken = [True] * len(hits)

    def leave(numbers: Sequence[int], start: int, stop: float) -> None:
        """Leave keys with numbers outside of a range to other rules."""
        if numbers and not start <= min(numbers) <= max(numbers) < stop:
            is_taken[:] = [a and start <= n < stop for a, n in zip(is_taken, numbers, strict=True)]

    texts, numbers_of = dict[str, list[str]](), dict[AxisNames, list[int]]()
    for place, part in enumerate(fitted.side.key.named_parts()):
        column = [each[place] for _, each in hits]
        if isinstance(part, TextPart):
            texts[part.name] = column
        elif isinstance(part, WordPart):
            numbers_of[part.axis] = [*map(part.words.index, column)]
        else:
            shift = part.shift.integer(fitted.size_of)
            numbers_of[part.axis] = [int(text) - shift for text in column]
            leave(numbers_of[part.axis], 0, inf)
    indices, counted = dict[str, list[int]](), [*is_taken]
    for axis, numbers in numbers_of.items() if any(counted) else ():
        sizes = {name: n for name in axis if (n := fitted.full(name)) is not None}
        # The full extents of all but the first are needed.
        if not sizes.keys() >= {*axis[1:]}:
            where = f"The number {{({' '.join(axis)})}}"
            sizes = solve(axis, max(compress(numbers, counted)) + 1, sizes, where)
        for name, values in indices_of_numbers(numbers, axis, sizes).items():
            bounds, limit = fitted.bounds(name), sizes.get(name, inf)
            leave(values, bounds.start, inf if bounds.stop is None else bounds.stop)
            for (key, _), number, is_own in zip(hits, values, is_taken, strict=True):
                if is_own and number >= limit:
                    raise MapError(
                        f"The key {key!r} has {name} = {number}, and {name} has the extent {limit}.",
                        f"Give another size of {name}, or a rule for the other keys.",
                    )
            if not bounds.is_single:
                indices[name] = [number - bounds.start for number in values]
    return MatchTable([key for key, _ in hits], indices, texts).where(is_taken)


def write_keys(fitted: FittedSide, matches: MatchTable, counts: Mapping[str, int]) -> list[str]:
    """Return the keys of a side that have the indices of matches; ``counts`` may be full extents."""
    form, columns, zeros = "", list[Sequence[int | str]](), [0] * len(matches.keys)
    for part in fitted.side.key.parts:
        form += part.replace("%", "%%") if isinstance(part, str) else "%s"
        if isinstance(part, TextPart):
            columns.append(matches.texts[part.name])
        if isinstance(part, str | TextPart):
            continue
        numbers = zeros
        for name in part.axis:
            bounds, full = fitted.bounds(name), None
            # The first index of a number is as large as it must be.
            if name != part.axis[0] or isinstance(part, WordPart):
                full = fitted.full(name, counts.get(name))
                if full is None:
                    raise MapError(
                        f"The size of {name} in {{({' '.join(part.axis)})}} is not known.",
                        f"Give {name} in sizes, or --size {name}=N.",
                    )
            limit = min([stop for stop in (bounds.stop, full) if stop is not None], default=inf)
            own = [bounds.start + number for number in matches.indices.get(name, zeros)]
            for key, number in zip(matches.keys, own, strict=True):
                if number >= limit:
                    text = fitted.side.text
                    raise MapError(
                        f"{text!r} has {limit} values of {name}, and {key!r} needs {name} = {number}.",
                        f"Choose another range of {name}, another size, or more words.",
                    )
            numbers = [high * (full or 0) + low for high, low in zip(numbers, own, strict=True)]
        if isinstance(part, WordPart):
            columns.append([part.words[number] for number in numbers])
            continue
        shift = part.shift.integer(fitted.size_of)
        for key, number in zip(matches.keys, numbers, strict=True):
            if number + shift < 0:
                cause = f"{key!r} would get the number {number + shift}."
                raise MapError(cause, "Add to it in the rule.")
        columns.append([number + shift for number in numbers])
    rows = zip(*columns, strict=True) if columns else [()] * len(zeros)
    return [form % row for row in rows]


def count_numbers(
    fitted: FittedSide, matches: Iterable[Match]
) -> dict[tuple[str, ...], dict[str, int]]:
    """Return the extents of the indices of keys, for each of the texts in them, such as a decoder."""
    counts: dict[tuple[str, ...], dict[str, int]] = {}
    for match in matches:
        numbers = counts.setdefault(tuple(match.texts.values()), {})
        for name, value in match.indices.items():
            least = numbers[name] if name in numbers else fitted.shared.get(name, 0)
            numbers[name] = max(least, value + 1)
    return counts


PREFIX = "config:"
"""The beginning of a name that is looked up in ``config.json``."""
_NAME = "config.json"
_MOST_NBYTES, _MAX_DEPTH = 16 << 20, 64
"""Bytes of a file that is read, and the depth of the tables of a configuration."""
_GGUF = "gguf:"
_NEVERTHELESS = "To use it nevertheless: --any-model, in Python Map.extended(any_model=True)."
_BY_HAND = "Give the number by hand: --size NAME=N, in Python sizes={'NAME': N}."


@frozen
class Family:
    """The models that a map is for; without any, it is for all."""

    label: str = ""
    """The map, for messages: its name, or its file."""
    models: tuple[str, ...] = ()
    """Values of ``model_type``; class names of ``architectures``, which begin with a capital; and
    architectures of GGUF, as ``gguf:llama``."""
    requires: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The values that an entry of the configuration may have, or ``none`` if it is missing. The
    spellings of an entry have ``|`` between them."""
    lacks: tuple[str, ...] = ()
    """The tensors that other values need, which no rule makes."""

    def check(
        self, path: str, architecture: str, shipped: Callable[[], Mapping[str, Collection[str]]]
    ) -> str:
        """Return a sentence on the model of the checkpoint at ``path``, or raise with the map that fits it."""
        if not self.models:
            return ""
        try:
            where, config = read_beside(path)
            unknown = f"{where} has no model_type."
        except MapError as error:
            where, config, unknown = "", {}, error.cause
        types = [each for each in self.models if not each.startswith(_GGUF)]
        files = [each.removeprefix(_GGUF) for each in self.models if each.startswith(_GGUF)]
        tables = [*_tables(config)]
        # The outermost type first, and the classes if the map has any, or another map has them.
        named = _texts(table.get("model_type") for table in tables)
        listed = tables[0].get("architectures") if tables else ()
        classes = _texts(listed if isinstance(listed, list) else ())
        other = _fitting(self.label, classes, shipped())
        is_others = other not in ("", self.label) and set(types).isdisjoint(classes)
        if is_others:
            named = classes
        elif any(each[0].isupper() for each in types):
            named += classes
        checked = []
        for place, models, found in ((where, types, named), (path, files, _texts([architecture]))):
            own = [each for each in found if each in models]
            if models and found and (is_others or not own):
                more = f" and {len(models) - MAX_NAMED} more" * (len(models) > MAX_NAMED)
                some = ", ".join(models[:MAX_NAMED]) + more
                cause = f"{self.label} is for {some}, and {place} says {found[0]}."
                other = _fitting(self.label, named, shipped())
                remedy = f"For it: {other}. " if other else ""
                raise MapError(cause, remedy + _NEVERTHELESS)
            checked += [f"model checked: {place} says {each}" for each in own[:1]]
        for table in tables:
            if table is config or table.get("model_type") in types:
                self._check_required(where, table)
        return "; ".join(checked) or f"model not checked: {unknown}"

    def _check_required(self, where: str, table: Mapping[str, Any]) -> None:
        """Raise ``MapError`` if an entry of a table of the configuration has another value."""
        for spellings, allowed in self.requires.items():
            found = _entries(table, spellings) or {spellings.partition("|")[0]: "none"}
            for name, text in found.items():
                if text not in allowed:
                    lacks = f", such as {', '.join(self.lacks)}" if self.lacks else ""
                    raise MapError(
                        f"{where} has {name} = {text}, and {self.label} is for "
                        f"{', '.join(allowed)}: with other values, the target has tensors that no "
                        f"rule makes{lacks}.",
                        f"Convert with the target's own program. {_NEVERTHELESS}",
                    )


def _entries(table: Any, spellings: str) -> dict[str, str]:
    """The entries at names with dots, which have ``|`` between them, as texts; without missing and null ones."""
    found = dict[str, str]()
    for name in spellings.split("|"):
        value = table
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            found[name] = value if isinstance(value, str) else json.dumps(value)
    return found


def _tables(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from _tables(each)


def _texts(values: Iterable[Any]) -> list[str]:
    return [each for each in values if isinstance(each, str) and each]


def _fitting(label: str, named: Collection[str], shipped: Mapping[str, Collection[str]]) -> str:
    """The first map between the same libraries for a model; empty without one."""
    source, _, target = label.partition("-to-")
    for name, models in shipped.items():
        other, _, goal = name.partition("-to-")
        is_like = target == goal and source.rpartition("-")[2] == other.rpartition("-")[2]
        if is_like and not set(named).isdisjoint(models):
            return name
    return ""


SizeValue = int | float | str | Sequence[int | float]
"""A number, an expression, a name in a JSON file, or a list of numbers."""
FILE_SIZE = re.compile(r"([0-9]{1,9})/([A-Za-z0-9_.-]+\.json):(\S+)")
"""A name in a JSON file next to a source: the number of the source, the file, and the name."""


def exact_number(value: int | float) -> int | Fraction:
    """Return a number as its text writes it: 0.1 is a tenth."""
    exact = value if isinstance(value, int) else Fraction(Decimal(repr(value)))
    return int(exact) if exact.denominator == 1 else exact


def sizes_at(sizes: Mapping[str, SizeValue], path: str) -> SizeOf:
    """Return what gives the sizes of a map for the checkpoint at ``path``."""
    found: dict[str, Any] = {}
    asked: list[str] = []

    def size_of(name: str) -> Any:
        if name in asked:
            raise MapError(
                f"The sizes {' -> '.join([*asked, name])} depend on each other.",
                "Give one of them as a number.",
            )
        if name not in found:
            asked.append(name)
            try:
                found[name] = value_of(name)
            finally:
                asked.pop()
        return found[name]

    def value_of(name: str) -> Any:
        if name.startswith(PREFIX):
            return config_size(path, name.removeprefix(PREFIX))
        if name not in sizes:
            raise MapError(
                f"The size {name} is not given.",
                f"{did_you_mean(name, sizes)}Give it: --size {name}=N, in Python "
                f"sizes={{{name!r}: N}}.",
            )
        size = sizes[name]
        if not isinstance(size, str):
            return (
                exact_number(size) if isinstance(size, int | float) else [*map(exact_number, size)]
            )
        tree = parse_expression(size).tree
        if isinstance(tree, str) and isinstance(size_of(tree), list):
            return size_of(tree)
        value = float_of(tree, size_of)
        return value if value.denominator != 1 else int(value)

    return size_of


_HEAD, _OF_HEADS = "head_dim", ("hidden_size", "num_attention_heads")


def config_size(path: str, name: str, file: str = _NAME) -> Any:
    """Return a number, or a list of numbers, of a JSON file; ``name`` has a dot for each table that
    it goes into, and ``|`` between spellings. Configurations leave ``head_dim`` out if it follows."""
    where, content = read_beside(path, file)
    spellings = name.split("|")
    if name == _HEAD and not _entries(content, name):
        width, heads = (config_size(path, each, file) for each in _OF_HEADS)
        return Fraction(width) / heads
    for spelling in spellings:
        value = content
        for part in spelling.split("."):
            if not isinstance(value, dict) or part not in value:
                if spelling != spellings[-1]:
                    break
                near = did_you_mean(part, value if isinstance(value, dict) else ())
                raise MapError(f"{where} has no {name!r}.", f"{near}{_BY_HAND}")
            value = value[part]
        else:
            break
    numbers = value if isinstance(value, list) and value else [value]
    if any(isinstance(n, bool) or not isinstance(n, int | float) or n - n for n in numbers):
        raise MapError(f"{where} has {value!r} as {name!r}, not a number.", _BY_HAND)
    exact = [*map(exact_number, numbers)]
    return exact if isinstance(value, list) else exact[0]


def is_switched_on(condition: Condition | None, path: str) -> bool:
    """Return True if ``config.json`` next to a checkpoint has the value that a rule asks for."""
    if condition is None:
        return True
    try:
        _, config = read_beside(path)
    except MapError:  # every entry is missing
        config = {}
    found = next(iter(_entries(config, condition.name).values()), "none")
    return (found == condition.value) == condition.is_equal


def read_beside(path: str, name: str = _NAME) -> tuple[str, Any]:
    """The place of a JSON file next to a checkpoint, and its content."""
    # Of a folder, it lies inside; of a file, next to it.
    for place in dict.fromkeys((path, os.path.dirname(path) or os.curdir)):
        try:
            storage, _ = split_place(os.path.join(place, ""))
            file = storage.open(name)
        except (CheckpointError, StorageError):
            continue
        where = os.path.join(storage.path, name)
        try:
            content = read_limited(file, where, _BY_HAND)
            return where, parse_json(content, _MAX_DEPTH, allow_nan=True)
        except CheckpointError as error:
            cause = f"{where} cannot be read: {error.cause}"
            raise MapError(cause, f"Mend it. {_BY_HAND}") from None
    raise MapError(f"There is no {name} next to {path}.", f"Copy the model's there. {_BY_HAND}")


def read_limited(file: Any, name: str, remedy: str) -> bytes:
    """Return the content of a file, and close it; ``MapError`` for a large one."""
    with closing(file):
        if file.size > _MOST_NBYTES:
            raise MapError(f"{name} has {file.size:,} bytes.", remedy)
        return bytes(file.read(0, file.size))
