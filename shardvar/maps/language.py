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
several.

Expressions of sizes: ``r + 1``, ``config:hidden_size / h``.

    expression  = term   { ("+" | "-") term }
    term        = factor { ("*" | "/") factor }
    factor      = integer | name | "config:" name | "(" expression ")" | "-" factor

A size is an integer, so a division with a remainder is an error. A constant of arithmetic is a
float: it may also have decimals, and powers (``h ** -0.5``).
"""

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from shardvar.errors import MapError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|\.[0-9]+)"
    r"|(?P<config>config:[A-Za-z0-9_.]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign>\*\*|[-+*/()]))"
)
_MOST_DIGITS = 18
"""Digits of an integer, which 64 bits hold."""
_DEEPEST = 20
"""Brackets and signs within each other."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression: its text, and its tree."""

    text: str
    tree: Any
    """A number, a name, or a sign with one or two trees."""

    def names(self) -> Iterator[str]:
        trees = [self.tree]
        for tree in trees:
            if isinstance(tree, str):
                yield tree
            elif isinstance(tree, tuple):
                trees += tree[1:]

    def integer(self, size_of: Callable[[str], int]) -> int:
        """Return its value; ``size_of`` gives the value of a name."""
        value = _integer(self.tree, size_of, self.text)
        if abs(value) >= 1 << 62:
            raise MapError(f"The size {self.text!r} is too large.", "Give a smaller one.")
        return value

    def real(self, size_of: Callable[[str], int]) -> float:
        try:
            return float(_real(self.tree, size_of))
        except MapError:  # of a size: also a ValueError
            raise
        except (ArithmeticError, TypeError, ValueError):
            cause = f"The constant {self.text!r} has no value."
            raise MapError(cause, "Give another one.") from None


def parse_expression(text: str) -> Expression:
    """Return the expression of a whole text; ``MapError`` if it is not one."""
    expression, rest = read_expression(text)
    if rest.strip():
        raise MapError(
            f"{text!r} is not an expression: {rest.strip()!r} does not belong to it.",
            "Write integers, names of sizes, + - * / and brackets.",
        )
    return expression


def read_expression(text: str) -> tuple[Expression, str]:
    """Return the expression at the beginning of a text, and the rest of the text."""
    reader = _ExpressionReader(text)
    tree = reader.sum(0)
    return Expression(text[: reader.at].strip(), tree), text[reader.at :]


class _ExpressionReader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def sign(self, signs: str) -> str:
        """Step over the next sign if it is among ``signs``, and return it, else an empty text."""
        found = _TOKEN.match(self.text, self.at)
        if found is None or found["sign"] not in signs.split():
            return ""
        self.at = found.end()
        return found["sign"]

    def sum(self, depth: int) -> Any:
        tree = self.product(depth)
        while sign := self.sign("+ -"):
            tree = (sign, tree, self.product(depth))
        return tree

    def product(self, depth: int) -> Any:
        tree = self.factor(depth)
        while sign := self.sign("* /"):
            tree = (sign, tree, self.factor(depth))
        return tree

    def factor(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise MapError(f"The expression {self.text.strip()[:40]!r} is nested too deep.")
        if self.sign("-"):
            return ("-", 0, self.factor(depth + 1))
        if self.sign("("):
            tree = self.sum(depth + 1)
            if not self.sign(")"):
                raise self.error("')' is missing")
        else:
            tree = self.atom()
        if self.sign("**"):
            tree = ("**", tree, self.factor(depth + 1))
        return tree

    def atom(self) -> Any:
        found = _TOKEN.match(self.text, self.at)
        if found is None or found["sign"]:
            raise self.error("a number or a name is missing")
        self.at = found.end()
        if found["number"] is None:
            return found["config"] or found["name"]
        if not found["number"].isdigit():
            return float(found["number"])
        if len(found["number"]) > _MOST_DIGITS:
            raise MapError(f"The number {found['number']} is too large.", "Give a smaller one.")
        return int(found["number"])

    def error(self, what: str) -> MapError:
        cause = f"{self.text.strip()!r} is not an expression: {what}"
        where = self.text[self.at :].strip()
        return MapError(
            f"{cause} before {where!r}." if where else f"{cause} at its end.",
            "Write integers, names of sizes, + - * / and brackets.",
        )


_SIGNS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": operator.pow,
}


def _real(tree: Any, size_of: Callable[[str], int]) -> Any:
    if isinstance(tree, tuple):
        sign, left, right = tree
        return _SIGNS[sign](_real(left, size_of), _real(right, size_of))
    return float(size_of(tree) if isinstance(tree, str) else tree)


def _integer(tree: Any, size_of: Callable[[str], int], text: str) -> int:
    if isinstance(tree, str):
        return size_of(tree)
    if isinstance(tree, int):
        return tree
    if isinstance(tree, float) or tree[0] == "**":
        remedy = "Write integers, + - * / and brackets."
        raise MapError(f"The size {text!r} is not an integer.", remedy)
    sign, left, right = tree
    a, b = _integer(left, size_of, text), _integer(right, size_of, text)
    if sign == "/" and (b == 0 or a % b):
        raise MapError(
            f"The size {text!r} is not an integer: {a} / {b}{f' leaves {a % b}' if b else ''}.",
            "Give sizes that divide each other.",
        )
    return int(a // b if sign == "/" else _SIGNS[sign](a, b))


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
    words: tuple[str, ...]
    """The words, which all differ."""


ANY_TEXT = "(?s:.+)"
"""The pattern of ``{x:**}``."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part of a key that is any text, and only renamed."""

    name: str
    pattern: str
    """The regular expression that it matches."""


KeyPart = str | NumberPart | WordPart | TextPart


@dataclass(frozen=True, slots=True)
class KeyPattern:
    text: str
    parts: tuple[KeyPart, ...]

    def indices(self) -> Iterator[str]:
        for part in self.parts:
            if isinstance(part, NumberPart):
                yield from part.axis
            elif isinstance(part, WordPart):
                yield part.name

    def texts(self) -> list[str]:
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
    text: str
    key: KeyPattern
    axes: tuple[AxisNames, ...]
    ranges: dict[str, Range] = field(default_factory=dict)
    """The ranges of some of its indices."""

    def indices(self) -> list[str]:
        """Return the names of its indices, the key's first."""
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
    text: str
    source: Side
    target: Side | None
    """The side that it fills; None for ``nothing``."""
    is_again: bool = False
    """True with ``also``: other rules may use the same elements."""
    factors: tuple[Side, ...] = ()
    """The tensors that the source is multiplied by."""
    times: tuple[Expression, ...] = ()
    """The constants that it is multiplied by."""
    plus: Expression | None = None
    """The constant that is added to it."""
    fill: str | None = None
    """The number that fills what no rule covers."""
    ends: Mapping[str, tuple[Range, ...]] = field(default_factory=dict)
    """Of an inverse, the ranges that all rules of the map fill of an index of the source: the largest
    stop is its extent, unless that is given."""

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
        """Return the indices of the target's key for which ``also`` uses the source again."""
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
    def exception(self) -> str:
        """The word by which it is an exception to "once"; empty without one."""
        if self.target is None:
            return "nothing"
        return "also" if self.is_again else "else" if self.fill is not None else ""

    @property
    def has_arithmetic(self) -> bool:
        """True if the rule computes, so that values are rounded."""
        return bool(self.factors or self.times or self.plus is not None)


_PLAIN = re.compile(r"""[^\s\[\]{}()'"`]+""")
_TEXTS = {"*": r"[^./]+", "**": ANY_TEXT}
_LONGEST = 10_000
"""Characters of a rule."""
_MOST_INDICES = 32
"""Indices of a side, as NumPy has axes."""
_GRAMMAR = "Write 'KEY[axes] -> KEY[axes]', such as 'h.{l}.w[i o] -> layers.{l}.w[o i]'."
_SPACES = "Write a space on both sides of '->'."
_QUOTES = "Put a key with spaces or brackets in quotes: 'odd [key]'[a b] -> KEY[b a]."
_INSTEAD = {
    "@": "Separate ranges by commas: @ a=0, b=1:3.",
    "minus": "Write 'plus -1' for a constant, and 'times -1 plus 1' for 1 minus a tensor.",
    "divided": "Write 'times 1/2'.",
    ".": "A tensor after 'times' has its axes in brackets, or [...]: w times w.scale[...] -> w.",
}
"""The remedies for words of other languages, by how they begin."""
_ONE_TARGET = "A rule has one target: write a rule for each, and 'also' before the second one."


def parse_rule(text: str, number: int | None = None) -> MapRule:
    """Return the rule of a text, at position ``number`` of a map.

    >>> rule = parse_rule("h.{l}.w[(a b) i] -> w[l (b a) i]")
    >>> rule.source.axes, rule.target.axes
    ((('a', 'b'), ('i',)), (('l',), ('b', 'a'), ('i',)))
    """
    name = "The rule" if number is None else f"Rule {number + 1},"
    if len(text) > _LONGEST:
        raise MapError(
            f"{name} {text[:40]!r}..., has {len(text):,} characters.",
            f"At most {_LONGEST:,} are read: write several rules.",
        )
    reader = _Reader(text.strip())
    try:
        rule = _parse(reader)
    except MapError as error:
        where = f"{name} {reader.text!r}, at character {reader.column}"
        raise MapError(f"{where}: {error.cause}", error.remedy) from None
    try:
        _check(rule)
    except MapError as error:
        raise MapError(f"{name} {reader.text!r}: {error.cause}", error.remedy) from None
    return rule


def _parse(reader: "_Reader") -> MapRule:
    is_again = reader.word("also")
    source = reader.side()
    factors, times, plus = [], [], None
    while not reader.word("->"):
        if reader.word("times"):
            if reader.is_constant():
                times.append(reader.expression())
            else:
                factors.append(reader.side())
        elif plus is None and reader.word("plus"):
            plus = reader.expression()
        elif reader.is_at_end():
            is_close = "->" in reader.text
            raise MapError("' -> ' is missing.", _SPACES if is_close else _GRAMMAR)
        else:
            remedy = _QUOTES if "->" in reader.text else _GRAMMAR
            instead = (text for word, text in _INSTEAD.items() if reader.begins(word))
            remedy = next(instead, remedy)
            raise reader.unexpected("'->', '@', 'times' or 'plus'", remedy)
        if plus is not None and not reader.sees("->"):
            remedy = "'plus' adds a constant. Only 'times' takes a tensor."
            is_key = reader.begins("[") or reader.begins("{") or reader.begins(".")
            raise reader.unexpected(
                "'->', because 'plus' comes last", remedy if is_key else _GRAMMAR
            )
    if reader.word("nothing"):
        target, fill = None, None
    else:
        target = reader.side()
        if target.text.lower() in ("nothing", "none", "null"):
            cause = f"{target.text!r} would be the name of a tensor."
            raise MapError(cause, "To leave one out, write '-> nothing'. Quote a key of this name.")
        fill = reader.rest() if reader.word("else") else None
        if fill == "":
            raise MapError("'else' has no number.", "Write 'else 0'.")
    if not reader.is_at_end():
        raise reader.unexpected("the end of the rule", _ONE_TARGET)
    if target is not None:
        source, target = _with_texts(source, target), _with_texts(target, source)
    factors = [_with_texts(factor, source) for factor in factors]
    return MapRule(reader.text, source, target, is_again, tuple(factors), tuple(times), plus, fill)


def _with_texts(side: Side, other: Side) -> Side:
    """The side, where ``{x}`` is the text that the other side has as ``{x:*}``."""
    texts = {part.name: part for part in other.key.parts if isinstance(part, TextPart)}
    parts = tuple(
        texts.get(part.axis[0], part)
        if isinstance(part, NumberPart) and len(part.axis) == 1 and part.shift.text == "0"
        else part
        for part in side.key.parts
    )
    return replace(side, key=replace(side.key, parts=parts))


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    @property
    def column(self) -> int:
        """The number of the next character that is not a space, from 1 on."""
        return len(self.text) - len(self.text[self.at :].lstrip()) + 1

    def is_at_end(self) -> bool:
        return not self.text[self.at :].strip()

    def sees(self, word: str) -> bool:
        left = self.text[self.at :].lstrip()
        return left.startswith(word) and (len(left) == len(word) or left[len(word)].isspace())

    def begins(self, text: str) -> bool:
        return self.text[self.at :].lstrip().startswith(text)

    def word(self, word: str) -> bool:
        if not self.sees(word):
            return False
        self.at += self.text[self.at :].index(word) + len(word)
        return True

    def rest(self) -> str:
        left, self.at = self.text[self.at :].strip(), len(self.text)
        return left

    def unexpected(self, expected: str, remedy: str = _GRAMMAR) -> MapError:
        left = self.text[self.at :].strip()
        found = repr(left[:40]) if left else "the end of the rule"
        return MapError(f"Expected {expected}, found {found}.", remedy)

    def is_constant(self) -> bool:
        """Return True if a number or an expression follows, not a key with its axes."""
        left = self.text[self.at :].lstrip()
        found = _PLAIN.match(left)
        is_key = found is not None and left[found.end() : found.end() + 1] in ("[", "{", "'", '"')
        return not is_key and left[:1] not in ("{", "'", '"', "")

    def expression(self) -> Expression:
        # The sign of an arrow is not a minus.
        arrow = re.compile(r"\s->(\s|$)").search(self.text, self.at)
        stop = len(self.text) if arrow is None else arrow.start()
        expression, left = read_expression(self.text[self.at : stop])
        self.at = stop - len(left)
        return expression

    def side(self) -> Side:
        self.at += len(self.text[self.at :]) - len(self.text[self.at :].lstrip())
        begin = self.at
        if self.sees("->"):
            raise self.unexpected("a key")
        key = self.key()
        axes: tuple[AxisNames, ...] = (ELLIPSIS,)
        if self.text[self.at : self.at + 1] == "[":
            axes = self.axes()
        ranges: dict[str, Range] = {}
        if self.text[self.at :].lstrip().startswith("@"):
            self.at = self.text.index("@", self.at) + 1
            ranges = self.ranges()
        return Side(self.text[begin : self.at].strip(), key, axes, ranges)

    def key(self) -> KeyPattern:
        """Read a key: texts, quoted texts and parts, without a space between them."""
        begin, parts = self.at, list[KeyPart]()
        while self.at < len(self.text) and not self.text[self.at].isspace():
            character = self.text[self.at]
            if character == "[":
                break
            if character in "'\"":
                parts.append(self.quoted(character))
            elif character == "{":
                parts.append(self.part())
            else:
                found = _PLAIN.match(self.text, self.at)
                if found is None:
                    raise MapError(f"A key has {character!r}.", _QUOTES)
                parts.append(found[0])
                self.at = found.end()
        if not parts:
            raise self.unexpected("a key")
        joined = list[KeyPart]()
        for part in parts:
            if isinstance(part, str) and joined and isinstance(joined[-1], str):
                joined[-1] += part
            else:
                joined.append(part)
        return KeyPattern(self.text[begin : self.at], tuple(joined))

    def quoted(self, mark: str) -> str:
        """Read a text in quotes; a doubled quote in it is one."""
        found = re.compile(f"{mark}((?:[^{mark}]|{mark}{mark})*){mark}").match(self.text, self.at)
        if found is None:
            raise MapError("A quote is not closed.", f"Write {mark} at the end of the key.")
        self.at = found.end()
        return found[1].replace(mark * 2, mark)

    def part(self) -> KeyPart:
        stop = self.closing("}", "part")
        inside, begin = self.text[self.at + 1 : stop].strip(), self.at + 1
        name, colon, what = inside.partition(":")
        if not colon:
            number = self.number(begin, stop)
            self.at = stop + 1
            return number
        if not NAME.fullmatch(name):
            raise MapError(f"{{{inside}}} has no name.", "Write {name:a|b}.")
        if not what:
            raise MapError(f"{{{inside}}} has no words.", "Write {name:a|b}, or {name:*}.")
        words = tuple(what.split("|"))
        if what not in _TEXTS and len(set(words)) < len(words):
            raise MapError(f"{{{inside}}} has a word twice.", "Give each word once.")
        self.at = stop + 1
        return TextPart(name, _TEXTS[what]) if what in _TEXTS else WordPart(name, words)

    def number(self, begin: int, stop: int) -> NumberPart:
        """Read ``l``, ``l + 1`` or ``(b p)`` between two places, in braces."""
        inside = self.text[begin:stop].strip()
        found = re.fullmatch(r"(\([^)]*\)|[A-Za-z_][A-Za-z0-9_]*)\s*(?:([-+])(.*))?", inside)
        if found is None:
            raise MapError(
                f"{{{inside}}} is not a part of a key.", "Write {l}, {l+1}, {(b p)} or {s:a|b}."
            )
        first = self.text.index(found[1], begin)
        axis = self.axes_between(first, first + len(found[1]))
        if len(axis) != 1 or axis[0] in ((), ELLIPSIS):
            raise MapError(f"{{{inside}}} is not one number.", "Write {l} or {(b p)}.")
        shift = parse_expression(f"0 {found[2]} ({found[3]})" if found[2] else "0")
        return NumberPart(axis[0], shift)

    def closing(self, bracket: str, what: str) -> int:
        stop = self.text.find(bracket, self.at)
        mark = self.text[self.at]
        # Of two sides, the first one's bracket is not closed by the second one's.
        inside = self.text[self.at + 1 : max(stop, 0)]
        if stop < 0 or mark in inside or re.search(r"(\s|^)->(\s|$)", inside):
            raise MapError(f"{mark!r} is not closed.", f"Write {bracket!r} after the {what}.")
        return stop

    def axes(self) -> tuple[AxisNames, ...]:
        stop = self.closing("]", "axes")
        axes = self.axes_between(self.at + 1, stop)
        self.at = stop + 1
        return axes

    def axes_between(self, begin: int, stop: int) -> tuple[AxisNames, ...]:
        """Read names, groups, ``1`` and ``...`` between two places."""
        axes, group, opened = list[AxisNames](), list[str](), list[int]()
        for found in re.compile(r"\(|\)|[^\s()]+").finditer(self.text, begin, stop):
            token, self.at = found[0], found.start()
            if token == "(":
                opened.append(self.at)
            elif token == ")":
                if not opened:
                    raise MapError("A ')' has no '('.", "Remove it, or write '(' before its names.")
                opened.pop()
                if not opened:
                    if not group:
                        raise MapError("A group is empty.", "Write names in it, or 1 in its place.")
                    axes.append(tuple(group))
                    group = []
            elif token in ("...", "…"):
                if opened:
                    raise MapError("'...' is in a group.", "Put it outside of brackets.")
                if ELLIPSIS in axes:
                    raise MapError("'...' is there twice.", "Write it once on a side.")
                axes.append(ELLIPSIS)
            elif token == "1":
                if not opened:
                    axes.append(())
            elif NAME.fullmatch(token) is None:
                remedy = (
                    "Select a range after the axes: KEY[o i] @ o=0:4."
                    if ":" in token
                    else "Write names separated by spaces, such as [(n d) i]; their sizes go to sizes."
                )
                raise MapError(f"{token!r} is not the name of an axis.", remedy)
            elif opened:
                group.append(token)
            else:
                axes.append((token,))
        if opened:
            self.at = opened[-1]
            raise MapError("'(' is not closed.", "Write ')' after the names of the group.")
        return tuple(axes)

    def ranges(self) -> dict[str, Range]:
        found: dict[str, Range] = {}
        while True:
            name = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=").match(self.text, self.at)
            if name is None:
                raise self.unexpected("'name=start:stop' after '@'", "Write '@ v=0:5' or '@ v=3'.")
            if name[1] in found:
                raise MapError(f"'@' has {name[1]!r} twice.", "Give each index one range.")
            self.at = name.end()
            found[name[1]] = self.range()
            comma = re.compile(r"\s*,").match(self.text, self.at)
            if comma is None:
                return found
            self.at = comma.end()

    def range(self) -> Range:
        """Read ``start:stop``, where either may be left out, or one value."""
        start = None if self.text[self.at :].lstrip().startswith(":") else self.expression()
        colon = re.compile(r"\s*:").match(self.text, self.at)
        if colon is None:
            return Range(start, None, is_single=True)
        self.at = colon.end()
        left = self.text[self.at :].lstrip()
        ends = not left or left[0] == "," or re.match(r"(->|times|plus|else)(\s|$)", left)
        return Range(start, None if ends else self.expression(), is_single=False)


def _check(rule: MapRule) -> None:
    """Raise ``MapError`` unless both sides have the same indices, each once."""
    for side in (rule.source, rule.target, *rule.factors):
        if side is not None:
            _check_side(side)
    for factor in rule.factors:
        if factor.ranges:
            raise MapError(
                f"The factor {factor.text!r} has '@'.",
                "Select a range of the source: its factors follow.",
            )
        unknown = set(factor.indices()) - set(rule.source.indices())
        unknown |= set(factor.key.texts()) - set(rule.source.key.texts())
        if unknown:
            which = ", ".join(sorted(unknown))
            raise MapError(
                f"{factor.text!r} has {which}, which {rule.source.text!r} does not have.",
                "A factor has indices and texts of the source.",
            )
    if rule.target is None:
        if rule.has_arithmetic or rule.is_again:
            raise MapError("'nothing' takes no arithmetic and no 'also'.", "Leave them out.")
        return
    source, target = rule.source, rule.target
    for side, other in ((source, target), (target, source)):
        for name in side.key.texts():
            if name in other.indices():
                raise MapError(
                    f"{{{name}}} of {side.key.text!r} is any text, and an index in {other.text!r}.",
                    f"A text only renames. List the words that are counted: {{{name}:a|b}}.",
                )
        left = sorted(side.free().difference(other.free(), rule.repeated()))
        theirs = sorted(other.free().difference(side.indices()))
        if left and theirs and left[0] not in other.indices():
            raise MapError(
                f"The index {left[0]!r} is only in {side.text!r}, and {theirs[0]!r} only in "
                f"{other.text!r}.",
                "Both sides have the same indices: give what is the same one name.",
            )
        if left:
            name = left[0]
            is_new = side is target and name in side.key.indices() and name not in other.indices()
            again = f", or write 'also' before the rule: a copy for each {name}" if is_new else ""
            verb = "is fixed by '@'" if name in other.indices() else "is missing"
            raise MapError(
                f"The index {name!r} of {side.text!r} {verb} on the other side.",
                f"Both sides have the same indices. Add {name!r} there, or fix it here: "
                f"@ {name}=0{again}.",
            )
        if ELLIPSIS in side.axes and ELLIPSIS not in other.axes:
            raise MapError(
                f"{side.text!r} has '...' and {other.text!r} does not.",
                "A key without brackets is [...]: write the axes of both sides, or of neither.",
            )
        texts = sorted(set(side.key.texts()) - set(other.key.texts()))
        if texts:
            raise MapError(
                f"The text {{{texts[0]}}} of {side.key.text!r} is missing on the other side.",
                "A part {name:*} is for renaming: write it on both sides.",
            )


def _check_side(side: Side) -> None:
    names = [*side.indices(), *side.key.texts()]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise MapError(
            f"{side.text!r} has the index {twice[0]!r} twice.",
            "On one side each index stands once, in the key or among the axes.",
        )
    if len(names) > _MOST_INDICES:
        raise MapError(
            f"{side.text!r} has {len(names)} indices.", f"At most {_MOST_INDICES} are allowed."
        )
    unknown = sorted(set(side.ranges) - set(side.indices()))
    if unknown:
        raise MapError(
            f"'@' has {unknown[0]!r}, which is not an index of {side.key.text!r}.",
            f"Its indices are {', '.join(names) or 'none'}.",
        )
    for part, after in pairwise(side.key.parts):
        if not isinstance(part, str | WordPart) and not isinstance(after, str | WordPart):
            raise MapError(
                f"Two parts of {side.key.text!r} follow each other.", "Put text between them."
            )
    if sum(isinstance(part, TextPart) and part.pattern == ANY_TEXT for part in side.key.parts) > 1:
        raise MapError(f"{side.key.text!r} has two parts '**'.", "Any text can be in one only.")
