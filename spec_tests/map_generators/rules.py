"""Rules of a map from examples: which tensor of a file goes to which tensor in memory.

number     a number of a key that varies becomes an index, if the other key has it too
join       rules that differ in one word become one rule with words
shorten    rules that rename all keys with one beginning become one rule, with a text
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spec_tests.map_generators.moves import Axes, Part, Unsupported

_NUMBER = re.compile(r"((?<![^.])\d+(?![^.])|(?<=_)\d+(?![^.]))")
_INDICES = "lmkjhgf"
_MOST = 8
"""Values of a number of which each gets a rule."""

Tokens = tuple[str, ...]
"""The texts of a key and the numbers between them: text, number, text, number, text."""


@dataclass(frozen=True)
class Link:
    """One part of a tensor of a file, and the tensor in memory that has it."""

    file: str
    memory: str
    part: Part | None = None
    """The axes; None if the tensor is only renamed."""


@dataclass(frozen=True)
class _Rule:
    file: str
    memory: str
    file_axes: Axes | None = None
    memory_axes: Axes | None = None
    file_fixed: Mapping[str, int] = field(default_factory=dict)
    memory_fixed: Mapping[str, int] = field(default_factory=dict)

    def text(self) -> str:
        sides = (
            _side(self.file, self.file_axes, self.file_fixed),
            _side(self.memory, self.memory_axes, self.memory_fixed),
        )
        return " -> ".join(sides)


def _side(key: str, axes: Axes | None, fixed: Mapping[str, int]) -> str:
    if axes is None:
        return key
    shown = " ".join(axis[0] if len(axis) == 1 else f"({' '.join(axis)})" for axis in axes)
    ranges = ", ".join(f"{name}={value}" for name, value in fixed.items())
    return f"{key}[{shown}]" + (f" @ {ranges}" if ranges else "")


def rules_of(links: Sequence[Link]) -> tuple[list[str], dict[str, int | str]]:
    """Return the rules of links, and the sizes that they need."""
    varying = [_varying(each.file for each in links), _varying(each.memory for each in links)]
    groups: dict[object, list[Link]] = {}
    for link in links:
        part = link.part
        shape = part and (
            part.memory_axes,
            part.file_axes,
            tuple(part.file_fixed.items()),
            tuple((n, v) for n, v in part.memory_fixed.items() if n != part.stacked),
            part.stacked,
        )
        groups.setdefault((_tokens(link.file)[::2], _tokens(link.memory)[::2], shape), []).append(
            link
        )
    found = [rule for group in groups.values() for rule in _rules(group, varying)]
    sizes: dict[str, int | str] = {}
    for link in links:
        for name, size in {} if link.part is None else link.part.sizes.items():
            if sizes.setdefault(name, size) != size:
                raise Unsupported(f"two sizes of {name}")
    rules = _shortened(_joined(found))
    text = " ".join(rule.text() for rule in rules)
    used = {name: size for name, size in sizes.items() if re.search(rf"\b{name}\b", text)}
    return [rule.text() for rule in rules], used


def _tokens(key: str) -> Tokens:
    return tuple(_NUMBER.split(key))


def _varying(keys: Iterable[str]) -> set[Tokens]:
    """The beginnings of keys that are followed by several numbers."""
    numbers: dict[Tokens, set[str]] = {}
    for key in keys:
        tokens = _tokens(key)
        for place in range(1, len(tokens), 2):
            numbers.setdefault(tokens[:place:2], set()).add(tokens[place])
    return {beginning for beginning, found in numbers.items() if len(found) > 1}


def _rules(group: Sequence[Link], varying: Sequence[set[Tokens]]) -> list[_Rule]:
    """One rule, or one for each value of a number that no number in memory follows."""
    try:
        return [_generalised(group, varying)]
    except Unsupported:
        tokens = [_tokens(link.file) for link in group]
        places = range(1, len(tokens[0]), 2)
        counts = {place: len({each[place] for each in tokens}) for place in places}
        place = min(
            (n for n, each in counts.items() if 1 < each < _MOST), default=0, key=counts.get
        )
        if not place:
            raise
    parts: dict[str, list[Link]] = {}
    for link, each in zip(group, tokens, strict=True):
        parts.setdefault(each[place], []).append(link)
    others = [varying[0] - {tokens[0][:place:2]}, varying[1]]
    return [rule for part in parts.values() for rule in _rules(part, others)]


def _generalised(group: Sequence[Link], varying: Sequence[set[Tokens]]) -> _Rule:
    """The one rule of links whose keys differ in their numbers only."""
    sides = [[_tokens(each.file) for each in group], [_tokens(each.memory) for each in group]]
    columns = [
        [[int(tokens[place]) for tokens in side] for place in range(1, len(side[0]), 2)]
        for side in sides
    ]
    names: list[list[str]] = [[""] * len(side) for side in columns]
    unused = list(range(len(columns[1])))
    part, free = group[0].part, iter(_INDICES)
    stack = part.stacked if part else ""
    stacked = [each.part.memory_fixed[stack] for each in group if each.part] if stack else None
    for place, column in enumerate(columns[0]):
        beginning = sides[0][0][: 2 * place + 1 : 2]
        partner, shift = _partner(column, columns[1], unused)
        if stack and column == stacked and partner is None:
            names[0][place], stack = stack, ""
            continue
        if partner is None or beginning not in varying[0]:
            if len(set(column)) > 1:
                raise Unsupported(f"the numbers of {group[0].file} follow another rule")
            continue
        unused.remove(partner)
        names[0][place] = next(free)
        names[1][partner] = names[0][place] + (f"{shift:+}" if shift else "")
    if stack or any(len(set(columns[1][other])) > 1 for other in unused):
        raise Unsupported(f"the numbers of {group[0].memory} follow another rule")
    keys = [_written(side[0], named) for side, named in zip(sides, names, strict=True)]
    if part is None:
        return _Rule(keys[0], keys[1])
    fixed = {n: v for n, v in part.memory_fixed.items() if n != part.stacked}
    return _Rule(keys[0], keys[1], part.file_axes, part.memory_axes, dict(part.file_fixed), fixed)


def _partner(
    column: Sequence[int], columns: Sequence[Sequence[int]], unused: Sequence[int]
) -> tuple[int | None, int]:
    """The numbers that equal others, or differ by a shift; None if there are none."""
    found = dict[int, int]()
    for other in unused:
        shifts = {b - a for a, b in zip(column, columns[other], strict=True)}
        if shifts == {0}:
            return other, 0
        if len(shifts) == 1 and len(set(column)) > 1:
            found[other] = shifts.pop()
    return next(iter(found.items()), (None, 0))


def _written(tokens: Tokens, names: Sequence[str]) -> str:
    written = list(tokens)
    for place, name in enumerate(names):
        if name:
            written[2 * place + 1] = f"{{{name}}}"
    return "".join(written)


def _joined(rules: Sequence[_Rule]) -> list[_Rule]:
    """Join rules of which each takes one value of an index: the values become words of a key."""
    groups: dict[object, list[_Rule]] = {}
    for rule in rules:
        fixed = tuple(rule.file_fixed), tuple(rule.memory_fixed)
        key = (rule.memory if rule.memory_fixed else rule.file, rule.file_axes, rule.memory_axes)
        groups.setdefault((key, fixed) if any(map(any, fixed)) else id(rule), []).append(rule)
    found = []
    for group in groups.values():
        found += _with_words(group) or group
    return found


def _with_words(group: Sequence[_Rule]) -> list[_Rule]:
    first = group[0]
    fixed = [rule.memory_fixed or rule.file_fixed for rule in group]
    if len(group) < 2 or any(len(each) != 1 for each in fixed):
        return []
    if bool(first.memory_fixed) == bool(first.file_fixed):
        return []
    (name,) = fixed[0]
    by_value = dict(sorted((each[name], rule) for each, rule in zip(fixed, group, strict=True)))
    count = int(name.lstrip("s") or 0) if name.startswith("s") else 0
    if [*by_value] != list(range(count)) or len(group) != count:
        return []
    keys = [rule.file if first.memory_fixed else rule.memory for rule in by_value.values()]
    others = {rule.memory if first.memory_fixed else rule.file for rule in group}
    head = _beginning(keys)
    tail = _beginning([key[len(head) :][::-1] for key in keys])[::-1]
    words = [key[len(head) : len(key) - len(tail)] for key in keys]
    if len(others) > 1 or any(not re.fullmatch(r"[A-Za-z0-9_]+", word) for word in words):
        return []
    if head.endswith("}"):
        return []
    # Words give the extent of their index, so that it needs no size.
    key = f"{head}{{s:{'|'.join(words)}}}{tail}"
    file, memory = (key, first.memory) if first.memory_fixed else (first.file, key)
    axes = [
        tuple(tuple("s" if each == name else each for each in axis) for axis in side or ())
        for side in (first.file_axes, first.memory_axes)
    ]
    return [_Rule(file, memory, *axes)]


def _beginning(keys: Sequence[str]) -> str:
    """The text that all keys begin with."""
    same = [len(set(letters)) == 1 for letters in zip(*keys, strict=False)]
    return keys[0][: [*same, False].index(False)]


def _shortened(rules: Sequence[_Rule]) -> list[_Rule]:
    """Write one rule for all keys with one beginning, where they are only renamed together."""
    files = [_split(rule.file) for rule in rules]
    memories = [_split(rule.memory) for rule in rules]
    found, done = list[_Rule](), set[int]()
    for row, rule in enumerate(rules):
        if row in done:
            continue
        for length in range(1, len(files[row]) if rule.file_axes is None else 0):
            beginning = files[row][:length]
            mine = [i for i, file in enumerate(files) if file[:length] == beginning]
            left = _left(rules, files, memories, mine, row, length)
            if left is None:
                continue
            text = ".".join(beginning), ".".join(left)
            found.append(_Rule(f"{text[0]}.{{x:**}}", f"{text[1]}.{{x:**}}"))
            done.update(mine)
            break
        else:
            found.append(rule)
    return found


def _split(key: str) -> tuple[str, ...]:
    return tuple(re.sub(r"\{[^}]*\}", lambda m: m[0].replace(".", "\0"), key).split("."))


def _left(
    rules: Sequence[_Rule],
    files: Sequence[tuple[str, ...]],
    memories: Sequence[tuple[str, ...]],
    mine: Sequence[int],
    row: int,
    length: int,
) -> tuple[str, ...] | None:
    """What replaces the beginning of a file's key in all rules that have it; None if it differs."""
    rest = files[row][length:]
    left = memories[row][: len(memories[row]) - len(rest)]
    for i in mine:
        if rules[i].file_axes is not None or len(files[i]) <= length:
            return None
        if memories[i] != (*left, *files[i][length:]):
            return None
    others = (i for i in range(len(rules)) if i not in mine)
    if not left or any(_may_begin(memories[i], left) for i in others):
        return None
    if any(_may_begin(files[i], files[row][:length]) for i in others):
        return None
    return left


def _may_begin(key: Sequence[str], beginning: Sequence[str]) -> bool:
    """True if a key may begin so, whatever the numbers are."""
    return len(key) > len(beginning) and all(
        a == b or "{" in a or "{" in b for a, b in zip(key, beginning, strict=False)
    )


def map_file(
    comments: Iterable[str],
    about: str,
    models: Sequence[str],
    rules: Iterable[str],
    *more: str,
    **tables: Mapping[str, object],
) -> str:
    """Return the file of a map; ``more`` are lines before its rules."""
    lines = [
        *(f"# {comment}".rstrip() for comment in comments),
        f"about = {json.dumps(about)}",
        f"models = {json.dumps(models)}",
        *more,
        "rules = [",
        *(f"    {json.dumps(rule)}," for rule in rules),
        "]",
    ]
    for title, rows in tables.items():
        if rows:
            lines += ["", f"[{title}]"]
            lines += [f"{name} = {json.dumps(value)}" for name, value in rows.items()]
    return "\n".join(lines) + "\n"
