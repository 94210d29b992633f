"""Keys that a rule matches, and the extents of the indices that they and the axes have.

A rule matches whole keys. Most keys differ only in their numbers, so keys are grouped without their
digits, and a rule is compared with a group before it is compared with a key:

    layers.0.w, layers.1.w ... layers.79.w      ->  layers.#.w      one comparison

An index has a *full* extent on each side, and a *selected* one, which both sides share: without
``@`` they are the same, and with ``@ v=2:5`` a side has 3 of its full extent. A size is the full
extent on the sides that have ``@``, or on both if none has.

A number of a key is taken apart into the indices that make it, and an index outside of the range of
``@`` leaves the key to another rule.

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
from itertools import islice
from math import prod
from typing import Any

from shardvar.errors import CheckpointError, MapError, StorageError
from shardvar.limits import MAX_NAMED
from shardvar.maps.expressions import SizeOf, float_of, parse_expression
from shardvar.maps.language import (
    ANY_TEXT,
    AxisNames,
    Condition,
    KeyPart,
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

_NUMBER = "(0|[1-9][0-9]{0,17})"
"""A number without leading zeros, which 64 bits hold."""
_DIGITS = re.compile("[0-9]+")

Values = tuple[int | str, ...]
"""For each part of a key, in order: a number, the position of a word, or a text."""


def match_keys(
    patterns: Sequence[KeyPattern], keys: Iterable[str]
) -> Iterator[tuple[str, list[tuple[int, Values]]]]:
    """Yield each key with the patterns that match it, each as its position and the parts' values."""
    exact = [re.compile(_expression(pattern, _NUMBER)) for pattern in patterns]
    groups = [_group_of(pattern) for pattern in patterns]
    # The value of each part: the number, the position of the word, or the text.
    readers: list[list[Callable[[str], int | str]]] = [
        [
            part.words.index
            if isinstance(part, WordPart)
            else str
            if isinstance(part, TextPart)
            else int
            for part in pattern.parts
            if not isinstance(part, str)
        ]
        for pattern in patterns
    ]
    of_group: dict[str, list[int]] = {}
    for key in keys:
        group = _DIGITS.sub("#", key)
        candidates = of_group.get(group)
        if candidates is None:
            candidates = [
                row for row, each in enumerate(groups) if each is None or each.fullmatch(group)
            ]
            of_group[group] = candidates
        hits = list[tuple[int, Values]]()
        for row in candidates:
            if found := exact[row].fullmatch(key):
                texts = zip(readers[row], found.groups(), strict=True)
                hits.append((row, tuple([read(text) for read, text in texts])))
        yield key, hits


def matches_key(pattern: KeyPattern, key: str) -> bool:
    return re.fullmatch(_expression(pattern, _NUMBER), key) is not None


def write_key(key: KeyPattern, values: Iterable[int | str]) -> str:
    """Return the key whose parts have some values: a number, the position of a word, or a text."""
    left = iter(values)
    written = []
    for part in key.parts:
        if isinstance(part, str):
            written.append(part)
            continue
        value = next(left)
        written.append(part.words[int(value)] if isinstance(part, WordPart) else str(value))
    return "".join(written)


def _group_of(key: KeyPattern) -> "re.Pattern[str] | None":
    """The expression of the groups that hold a pattern's keys; None if any group may."""
    for part in key.parts:
        # A text has any digits, and a word's digits may run into a number's.
        if isinstance(part, TextPart):
            return None
        if isinstance(part, WordPart) and any(
            w[:1].isdigit() or w[-1:].isdigit() for w in part.words
        ):
            return None
    return re.compile(re.sub("#+", "#", _DIGITS.sub("#", _expression(key, "#"))))


def _expression(key: KeyPattern, number: str) -> str:
    written = []
    for part in key.parts:
        if isinstance(part, str):
            written.append(re.escape(part))
        elif isinstance(part, NumberPart):
            written.append(number)
        elif isinstance(part, WordPart):
            # The longest first: of "a" and "ab", the shorter one would hide the other.
            words = sorted(part.words, key=len, reverse=True)
            written.append(f"({'|'.join(map(re.escape, words))})")
        else:
            written.append(f"({part.pattern})")
    return "".join(written)


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
        elif isinstance(part, TextPart) and part.pattern != ANY_TEXT:
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
class RuleExtents:
    """The extents that a rule gives its indices before it meets a tensor."""

    source: dict[str, Bounds]
    target: dict[str, Bounds]
    sizes: dict[str, int]
    words: tuple[dict[str, int], dict[str, int]]
    """The numbers of words of parts of the source's key, and of the target's."""
    ends: dict[str, int]
    """The extents of the source's indices that the rules of an inverse fill together."""

    def bounds(self, name: str, is_target: bool) -> Bounds:
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
    sides = (rule.source, rule.target)
    indices = {name for side in sides if side is not None for name in side.indices()}
    known = {name: size_of(name) for name in sizes if name in indices}
    for name, size in known.items():
        if size < 0:
            raise MapError(f"The size {name} is {size}.", "Sizes are not negative.")
    words: list[dict[str, int]] = []
    for side in sides:
        parts = () if side is None else side.key.parts
        words.append({part.name: len(part.words) for part in parts if isinstance(part, WordPart)})
    ends = {
        name: max(_bounds(each, name, size_of).stop or 0 for each in some)
        for name, some in rule.ends.items()
    }
    source, target = (
        {} if side is None else {n: _bounds(r, n, size_of) for n, r in side.ranges.items()}
        for side in sides
    )
    extents = RuleExtents(source, target, known, (words[0], words[1]), ends)
    for is_target, side in enumerate(sides):
        for name in () if side is None else side.indices():
            full, bounds = (
                extents.full(name, bool(is_target)),
                extents.bounds(name, bool(is_target)),
            )
            if full is not None and max(bounds.start, bounds.stop or 0) > full:
                last = bounds.start if bounds.stop is None else bounds.stop
                raise MapError(
                    f"'@' selects {name}={bounds.start}:{last}, and {name} has the extent {full}.",
                    f"Choose a range within {full}, or another size of {name}.",
                )
    for name in () if rule.target is None else rule.source.free():
        _check_same(extents, name)
    return extents


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
    """Return the full extents of the indices that make an axis; division gives one that is unknown."""
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
    sizes = ", ".join(f"{name} = {size}" for name, size in known.items())
    if unknown:
        if product == 0 or extent % product:
            raise MapError(
                f"{where} has an axis {group} of {extent}, which {product} does not divide "
                f"({sizes}).",
                "Give sizes that divide it.",
            )
        known[unknown[0]] = extent // product
    elif product != extent:
        raise MapError(
            f"{where} has an axis {group} of {extent}, not {product}"
            f"{f' ({sizes})' if sizes else ''}.",
            "Give the sizes of this model, or leave one of them out.",
        )
    return {name: known[name] for name in axis}


def split_number(number: int, axis: AxisNames, full: Mapping[str, int]) -> dict[str, int]:
    """Return the indices that make a number; the first one is as large as it must be."""
    found = {}
    for name in reversed(axis[1:]):
        number, found[name] = divmod(number, max(full[name], 1))
    found[axis[0]] = number
    return {name: found[name] for name in axis}


@frozen
class Match:
    key: str
    indices: Mapping[str, int]
    """The indices that it has, counted from the start of each range; fixed ones are left out."""
    texts: Mapping[str, str]


def find_matches(
    side: Side, extents: RuleExtents, found: Sequence[tuple[str, Values]], size_of: SizeOf
) -> list[Match]:
    """Return the keys that a side takes, among the keys that its pattern matches."""
    parts = [part for part in side.key.parts if not isinstance(part, str)]
    shifts = [part.shift.integer(size_of) if isinstance(part, NumberPart) else 0 for part in parts]
    rows = list[tuple[str, Values]]()
    for key, values in found:
        pairs = zip(values, shifts, strict=True)
        read = tuple([n if isinstance(n, str) else n - shift for n, shift in pairs])
        # A number below the least one is another rule's.
        if all(isinstance(n, str) or n >= 0 for n in read):
            rows.append((key, read))
    # The full extents of the indices that make numbers: of all but the first of each, at least.
    full: dict[str, int] = {}
    for place, part in enumerate(parts):
        if isinstance(part, NumberPart):
            known = {name: extents.full(name, False) for name in part.axis}
            full |= {name: size for name, size in known.items() if size is not None}
            if rows and any(name not in full for name in part.axis[1:]):
                count = max(int(read[place]) for _, read in rows) + 1
                where = f"The number {{({' '.join(part.axis)})}}"
                full |= solve(part.axis, count, full.get, where)
    matches = (_match(parts, key, read, extents, full) for key, read in rows)
    return [match for match in matches if match is not None]


def count_numbers(
    extents: RuleExtents, matches: Sequence[Match]
) -> dict[tuple[str, ...], dict[str, int]]:
    """Return the extents of the indices of keys, for each of the texts in them, such as a decoder."""
    counts: dict[tuple[str, ...], dict[str, int]] = {}
    for match in matches:
        numbers = counts.setdefault(tuple(match.texts.values()), {})
        for name, value in match.indices.items():
            numbers[name] = max(numbers.get(name, 0), value + 1)
    for numbers in counts.values():
        for name in numbers:
            numbers[name] = max(extents.selected(name) or 0, numbers[name])
    return counts


def _match(
    parts: Sequence[KeyPart],
    key: str,
    read: Values,
    extents: RuleExtents,
    full: Mapping[str, int],
) -> Match | None:
    indices, texts = dict[str, int](), dict[str, str]()
    for part, value in zip(parts, read, strict=True):
        if isinstance(part, NumberPart):
            found = split_number(int(value), part.axis, full)
        elif isinstance(part, WordPart):
            found = {part.name: int(value)}
        elif isinstance(part, TextPart):
            found, texts[part.name] = {}, str(value)
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
        # The outermost type first, and the classes if the map has any, or another map has them.
        given = [table.get("model_type") for table in _tables(config)]
        classes = config.get("architectures") if isinstance(config, dict) else ()
        classes = [c for c in classes if isinstance(c, str)] if isinstance(classes, list) else []
        other, is_others = _fitting(self.label, classes, shipped()), False
        if other and other != self.label and set(types).isdisjoint(classes):
            given, is_others = classes, True
        elif any(each[0].isupper() for each in types):
            given += classes
        named = [each for each in given if isinstance(each, str) and each]
        checked = []
        for place, models, found in ((where, types, named), (path, files, [architecture])):
            if models and found and found[0]:
                if is_others or set(models).isdisjoint(found):
                    more = f" and {len(models) - MAX_NAMED} more" * (len(models) > MAX_NAMED)
                    some = ", ".join(models[:MAX_NAMED]) + more
                    cause = f"{self.label} is for {some}, and {place} says {found[0]}."
                    other = _fitting(self.label, named, shipped())
                    remedy = f"For it: {other}. " if other else ""
                    raise MapError(cause, remedy + _NEVERTHELESS)
                own = next(each for each in found if each in models)
                checked.append(f"model checked: {place} says {own}")
        for table in _tables(config):
            if table is config or table.get("model_type") in types:
                self._check_required(where, table)
        return "; ".join(checked) or f"model not checked: {unknown}"

    def _check_required(self, where: str, table: Mapping[str, Any]) -> None:
        """Raise ``MapError`` if an entry of a table of the configuration has another value."""
        for spellings, allowed in self.requires.items():
            names = spellings.split("|")
            found = {name: text for name in names if (text := _text_of(table, name)) is not None}
            for name, text in (found or {names[0]: "none"}).items():
                if text not in allowed:
                    lacks = f", such as {', '.join(self.lacks)}" if self.lacks else ""
                    raise MapError(
                        f"{where} has {name} = {text}, and {self.label} is for "
                        f"{', '.join(allowed)}: with other values, the target has tensors that no "
                        f"rule makes{lacks}.",
                        f"Convert with the target's own program. {_NEVERTHELESS}",
                    )


def _text_of(value: Any, name: str) -> str | None:
    """The entry of a table at a name with dots, as text; None if it is missing or null."""
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _tables(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from _tables(each)


def is_like(name: str, other: str) -> bool:
    (a, _, target), (b, _, goal) = name.partition("-to-"), other.partition("-to-")
    return target == goal and a.rpartition("-")[2] == b.rpartition("-")[2]


def _fitting(label: str, named: Collection[str], shipped: Mapping[str, Collection[str]]) -> str:
    fitting = (name for name, models in shipped.items() if not set(named).isdisjoint(models))
    return next((name for name in fitting if is_like(label, name)), "")


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
        if name not in found:
            if name in asked:
                raise MapError(
                    f"The sizes {' -> '.join([*asked, name])} depend on each other.",
                    "Give one of them as a number.",
                )
            asked.append(name)
            try:
                if name.startswith(PREFIX):
                    found[name] = config_size(path, name.removeprefix(PREFIX))
                elif name in sizes:
                    size = sizes[name]
                    if isinstance(size, str):
                        tree = parse_expression(size).tree
                        is_list = isinstance(tree, str) and isinstance(size_of(tree), list)
                        value = size_of(tree) if is_list else float_of(tree, size_of)
                        found[name] = value if is_list or value.denominator != 1 else int(value)
                    elif not isinstance(size, int | float):
                        found[name] = [*map(exact_number, size)]
                    else:
                        found[name] = exact_number(size)
                else:
                    raise MapError(
                        f"The size {name} is not given.",
                        f"{did_you_mean(name, sizes)}Give it: --size {name}=N, in Python "
                        f"sizes={{{name!r}: N}}.",
                    )
            finally:
                asked.pop()
        return found[name]

    return size_of


_HEAD, _OF_HEADS = "head_dim", ("hidden_size", "num_attention_heads")


def config_size(path: str, name: str, file: str = _NAME) -> Any:
    """Return a number, or a list of numbers, of a JSON file; ``name`` has a dot for each table that
    it goes into, and ``|`` between spellings. Configurations leave ``head_dim`` out if it follows."""
    where, content = read_beside(path, file)
    spellings = name.split("|")
    if name == _HEAD and _text_of(content, name) is None:
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
    texts = (_text_of(config, name) for name in condition.name.split("|"))
    found = next((text for text in texts if text is not None), "none")
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
