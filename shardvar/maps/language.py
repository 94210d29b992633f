"""The language of maps: one line a rule, ``EXPRESSION -> SIDE``.

    rule      = [ "also" | "rest" ] sum "->" ( target | "nothing" ) [ "if" "config:" NAME sign VALUE ]
    sum       = [ "-" ] product { ( "+" | "-" ) product }
    product   = factor { [ "*" ] factor | "/" factor }
    factor    = ( number | NAME | NAME "(" INDEX ")" | side | function | "(" sum ")" ) [ "**" factor ]
    function  = exp, log, sqrt, abs, clip, index(INDEX), sum(INDEX: sum), mean(INDEX: sum)
    target    = [ "$" ] side [ "as" DTYPE ] [ "else" number ]
    side      = key [ "[" axes "]" ] [ "@" range { "," range } ]
    key       = text, 'quoted text', and parts:
                {l}           a number, which is an index; also {l + 1}
                {(b p)}       a number that two or more indices make, as they make an axis
                {s:gate|up}   one of the words, whose index counts them from 0
                {x:*}         text without "." and "/"; {x:**} any text: only to rename
    axes      = names, "(" names ")", "1", and once "...", separated by spaces
    range     = name "=" ( value | [ start ] ":" [ stop ] )

A named part of a key is an index, exactly as an axis is. A rule that is one side and no more moves
bits: both sides have the same indices, and each once. With ``also``, the target may have more: the
values are repeated. A key that begins with a number and a slash is a key of that source, or of that
target, of several.

Every other rule computes. Signs have a space or a bracket on both sides, else they belong to a key.
A name without brackets is a size then. In a product, an index that the target lacks and that two or
more tensors have is summed over; one that a single tensor has needs ``sum`` or ``mean``.

A rule whose target begins with ``$`` is put into the rules that use it: $v[o i], ${x}.v[o i].
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import ClassVar

from shardvar.errors import MapError
from shardvar.layout.dtypes import NAMES
from shardvar.maps.expressions import (
    FUNCTIONS,
    Expression,
    ExpressionReader,
    TermTree,
    is_constant,
    parse_expression,
    read_expression,
    subtrees,
    tensors_of,
    tree_names,
)
from shardvar.pictures.words import similar
from shardvar.records import field, frozen, replace

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
AxisNames = tuple[str, ...]
"""The indices that make an axis, the slowest first; none for the axis ``1``."""

ELLIPSIS: AxisNames = ("...",)
"""Axes that keep their order and their place."""


@frozen
class NumberPart:
    """A part of a key that is a number: the number is its index plus a shift."""

    axis: AxisNames
    """The indices that make the number."""
    shift: Expression
    """The number that is added to it."""
    pattern: ClassVar[str] = "(?:0|[1-9][0-9]{0,17})"
    """A number without leading zeros, which 64 bits hold."""


@frozen
class WordPart:
    """A part of a key that is one of several words, each with its position as the index."""

    name: str
    words: tuple[str, ...]
    """The words, which all differ."""

    @property
    def axis(self) -> AxisNames:
        return (self.name,)

    @property
    def pattern(self) -> str:
        # The longest first: of "a" and "ab", the shorter one would hide the other.
        return "|".join(map(re.escape, sorted(self.words, key=len, reverse=True)))


ANY_TEXT = "(?s:.+)"
"""The pattern of ``{x:**}``."""


@frozen
class TextPart:
    """A part of a key that is any text, and only renamed."""

    name: str
    pattern: str
    """The regular expression that it matches."""
    axis: ClassVar[AxisNames] = ()


NamedPart = NumberPart | WordPart | TextPart
KeyPart = str | NamedPart


def names_of_part(part: KeyPart) -> AxisNames:
    if isinstance(part, TextPart):
        return (part.name,)
    return () if isinstance(part, str) else part.axis


@frozen
class KeyPattern:
    text: str
    parts: tuple[KeyPart, ...]

    def named_parts(self) -> list[NamedPart]:
        return [part for part in self.parts if not isinstance(part, str)]

    def indices(self) -> list[str]:
        return [name for part in self.named_parts() for name in part.axis]

    def words(self) -> dict[str, int]:
        """Return the numbers of words of its indices that count words."""
        return {part.name: len(part.words) for part in self.parts if isinstance(part, WordPart)}

    def expression(self) -> str:
        """Return the regular expression of its keys, with a group for each named part."""
        return "".join(
            re.escape(part) if isinstance(part, str) else f"({part.pattern})" for part in self.parts
        )

    def texts(self) -> list[str]:
        return [part.name for part in self.parts if isinstance(part, TextPart)]

    def rank(self) -> AxisNames:
        """Return the indices that make the number of a checkpoint, before the first slash; else none."""
        parts: tuple[object, ...] = self.parts[:2]
        match parts:
            case NumberPart() as first, str() as second if second.startswith("/"):
                return first.axis
        return ()


@frozen
class Range:
    """The indices that a side selects: ``start:stop``, or one value."""

    start: Expression | None
    """The first; None for 0."""
    stop: Expression | None
    """The first past them; None for all that follow."""
    is_single: bool
    """True for one value, ``start``."""


@frozen
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


NO_SIDE = Side("", KeyPattern("", ()), ())


@frozen
class Condition:
    """An entry of ``config.json`` that switches a rule."""

    name: str
    value: str
    is_equal: bool
    """False if any other value switches it on."""


@frozen
class MapRule:
    text: str
    source: Side
    """The side whose keys are matched; of a rule that computes, the tensor that has all parts of keys."""
    target: Side | None
    """The side that it fills; None for ``nothing``."""
    is_again: bool = False
    """True with ``also``: other rules may use the same elements."""
    is_rest: bool = False
    """True with ``rest``: it takes the keys that no other rule takes."""
    tree: TermTree | None = None
    """The expression, of a rule that computes."""
    tensors: tuple[Side, ...] = ()
    """The tensors of the expression, in the order of the text."""
    origins: tuple[int | None, ...] = ()
    """For each of them, the position of the ``$`` rule that it comes from, if any."""
    dtype: str = ""
    """The dtype of the target that ``as`` gives."""
    fill: str | None = None
    """The number that fills what no rule covers."""
    condition: Condition | None = None
    ends: Mapping[str, tuple[Range, ...]] = field(default_factory=dict)
    """Of an inverse, the ranges that all rules of the map fill of an index of the source: the largest
    stop is its extent, unless that is given."""

    def taken(self) -> tuple[Side, ...]:
        """Return the tensors that it takes."""
        return self.tensors if self.tree is not None else (self.source,)

    def sides(self) -> list[Side]:
        """Return the tensors that it takes, and its target."""
        return [*self.taken(), *([] if self.target is None else [self.target])]

    def names(self) -> Iterator[str]:
        """Yield the names in it that sizes may have: indices, and names in expressions."""
        expressions = list[Expression]()
        for side in self.sides():
            yield from side.indices()
            expressions += [part.shift for part in side.key.parts if isinstance(part, NumberPart)]
            for limits in side.ranges.values():
                expressions += [each for each in (limits.start, limits.stop) if each is not None]
        for expression in expressions:
            yield from expression.names()
        yield from tree_names(self.tree)

    def repeated(self) -> list[str]:
        """Return the indices of the target for which ``also``, or a rule without tensors, repeats."""
        if self.target is None or not (self.is_again or self.is_made):
            return []
        taken = {name for side in self.taken() for name in side.indices()}
        free = self.target.free()
        return [name for name in self.target.indices() if name in free and name not in taken]

    def summed(self) -> set[str]:
        """Return the indices of the tensors that the target does not have."""
        free = set[str]() if self.target is None else self.target.free()
        return {name for side in self.tensors for name in side.free()} - free

    @property
    def is_made(self) -> bool:
        """True if the rule makes its target of sizes, without a tensor."""
        return self.tree is not None and not self.tensors

    @property
    def is_hidden(self) -> bool:
        """True if it makes nothing, but is put into the rules that use it."""
        return self.target is not None and self.target.key.text.startswith("$")

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
        """True if the rule does more than to move bits."""
        return self.tree is not None

    @property
    def kind(self) -> str:
        """``moved``: bits; ``rounded``: numbers, in another dtype; ``computed``: other numbers."""
        if self.tree is None:
            return "moved"
        return "rounded" if self.tree == ("tensor", 0) else "computed"


_PLAIN = re.compile(r"""[^\s\[\]{}()'"`]+""")
_PLAIN_IN_BRACKETS = re.compile(r"""[^\s\[\]{}()'"`,]+""")
_TEXTS = {"*": r"[^./]+", "**": ANY_TEXT}
_LONGEST = 10_000
"""Characters of a rule."""
_MOST_INDICES = 32
"""Indices of a side, as NumPy has axes."""
_GRAMMAR = "Write 'KEY[axes] -> KEY[axes]', such as 'h.{l}.w[i o] -> layers.{l}.w[o i]'."
_SPACES = "Write a space on both sides of '->'."
_QUOTES = "Put a key with spaces or brackets in quotes: 'odd [key]'[a b] -> KEY[b a]."
_ONE_TARGET = "A rule has one target: write a rule for each, and 'also' before the second one."
_BRACKETS = "For a tensor, write brackets: {0}[...]. For a size, give it: --size {0}=N."
_DIGITS = r"[0-9]+(?:\.[0-9]+)?(?:[eE]-?[0-9]+)?"
_NUMBER = re.compile(rf"\s*(-?{_DIGITS}(?:(?:\*\*|[-+*/]){_DIGITS})*)(?=[\s),]|$)")
"""A number, in digits and signs."""
_IDENTIFIER = "([A-Za-z_][A-Za-z0-9_]*)"
_CALL = re.compile(rf"\s*{_IDENTIFIER}\(")
_ELEMENT = re.compile(rf"\s*{_IDENTIFIER}\s*\)")
_INDEX = re.compile(rf"\s*{_IDENTIFIER}\s*:\s")
_RANGE = re.compile(rf"\s*{_IDENTIFIER}\s*=")
_COMMA, _COLON, _AT, _WORD = map(re.compile, (r"\s*,", r"\s*:", r"\s*@", r"\s*(\S*)"))
_ARROW = re.compile(r"\s->(\s|$)")
_END_OF_RANGE = re.compile(r"$|[,)]|(->|times|plus|as|else|if)(\s|$)")
_SUMS = ("sum", "mean")
_SIGN = re.compile(r"\s*(\*\*(?=[\s(])|[-+*/](?=[\s(])|[()]|(?:times|plus)(?=\s))")
_MINUS = re.compile(r"\s*-(?=\(|[A-Za-z_][A-Za-z0-9_]*\()")
_WORDS = {"times": "*", "plus": "+"}
_ENDS = re.compile(r"\s*(?:$|[),@+/*]|->|-\s|(?:as|else|if)\s|(?:times|plus)\s)")
_IF = re.compile(r"\s*if\s+config:(\S+)\s+(!?=)\s+(\S+)$")


def parse_rule(text: str, number: int | None) -> MapRule:
    """Return the rule of a text, at position ``number`` of a map.

    >>> rule = parse_rule("h.{l}.w[(a b) i] -> w[l (b a) i]", 0)
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
        raise error.at(where) from None
    try:
        _check(rule)
        return rule if rule.tree is None or rule.target is None else _with_sums(rule, rule.target)
    except MapError as error:
        raise error.at(f"{name} {reader.text!r}") from None


def _parse(reader: "_Reader") -> MapRule:
    is_again = reader.word("also")
    is_rest = not reader.left.startswith("rest ->") and reader.word("rest")
    begin = reader.at
    tree = reader.sum(0)
    left = reader.text[begin : reader.at].strip()
    if not reader.word("->"):
        raise reader.no_arrow()
    target, dtype, fill = None, "", None
    if not reader.word("nothing"):
        target = reader.side()
        if target.text.lower() in ("nothing", "none", "null"):
            cause = f"{target.text!r} would be the name of a tensor."
            raise MapError(cause, "To leave one out, write '-> nothing'. Quote a key of this name.")
        if re.match(r"(\*\*|[-+*/]|times|plus)(\s|$)", reader.left):
            raise reader.unexpected("the end of the rule", "Write arithmetic left of '->'.")
        dtype = reader.dtype() if reader.word("as") else ""
        fill = reader.number_of_else() if reader.word("else") else None
    condition = reader.condition() if reader.left.startswith("if ") else None
    if reader.left:
        raise reader.unexpected("the end of the rule", _ONE_TARGET)
    is_bare = NAME.fullmatch(left) or _NUMBER.fullmatch(left)
    if is_bare and (target is None or ELLIPSIS in target.axes):  # a key
        tree = reader.add(Side(left, KeyPattern(left, (left,)), (ELLIPSIS,)))
    sides = [*reader.tensors, *([] if target is None else [target])]
    texts = {name for side in sides for name in side.key.texts()}
    sides = [_with_texts(side, sides) if texts else side for side in sides]
    tensors = tuple(sides[: len(reader.tensors)])
    # A range of an index holds for all tensors that give no other one.
    common = {name: given for side in tensors for name, given in side.ranges.items()}
    tensors = tuple(
        replace(side, ranges={n: common[n] for n in side.indices() if n in common} | side.ranges)
        for side in tensors
    )
    target = None if target is None else sides[-1]
    rule = MapRule(
        *(reader.text, anchor_of(tensors, target), target, is_again, is_rest, tree, tensors),
        *((None,) * len(tensors), dtype, fill, condition),
    )
    is_moved = tree == ("tensor", 0) and not dtype and not rule.is_hidden
    return replace(rule, tree=None, tensors=(), origins=()) if is_moved else rule


def anchor_of(tensors: Sequence[Side], target: Side | None) -> Side:
    """The side whose keys are matched: the tensor with all parts of keys, or else the most of them."""
    kept = set[str]() if target is None else target.free()
    names = {name for side in tensors for name in side.key.indices() if name in kept}

    def rank(side: Side) -> tuple[int, int]:
        of_key = [name for name in side.key.indices() if name in names]
        return len(of_key) + len(side.key.texts()), len(side.indices())

    return max(tensors, key=rank, default=NO_SIDE)


def _with_texts(side: Side, sides: Iterable[Side]) -> Side:
    """The side, where ``{x}`` is the text that another side has as ``{x:*}``."""
    parts_of = (part for each in sides for part in each.key.parts)
    texts = {part.name: part for part in parts_of if isinstance(part, TextPart)}
    parts = tuple(
        texts.get(part.axis[0], part)
        if isinstance(part, NumberPart) and len(part.axis) == 1 and part.shift.text == "0"
        else part
        for part in side.key.parts
    )
    return replace(side, key=replace(side.key, parts=parts))


class _Reader(ExpressionReader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.tensors = list[Side]()
        self.depth = 0  # brackets that are open

    def sign(self, signs: str) -> str:
        if signs == "-":
            return "-" if self.take(_MINUS) else ""
        found = _SIGN.match(self.text, self.at)
        sign = _WORDS.get(found[1], found[1]) if found else ""
        if found is None or sign not in signs.split():
            return ""
        self.depth += {"(": 1, ")": -1}.get(sign, 0)
        self.at = found.end()
        return sign

    def begins_factor(self) -> bool:
        return _ENDS.match(self.text, self.at) is None

    def close(self) -> None:
        if not self.sign(")"):
            raise self.unexpected("')'", "'(' is not closed: write ')'.")

    def add(self, side: Side) -> TermTree:
        self.tensors.append(side)
        return ("tensor", len(self.tensors) - 1)

    def atom(self, depth: int) -> TermTree:
        if found := self.take(_NUMBER):
            return parse_expression(found[1]).tree
        if found := self.take(_CALL):
            return self.call(found[1], depth)
        is_first = not self.tensors and self.text[: self.at].strip() in ("", "also", "rest")
        side = self.side()
        if self.text[self.at : self.at + 1] in [*"+-*/"]:
            sign = self.text[self.at]
            raise MapError(f"{sign!r} has no space around it.", f"Write ' {sign} '.")
        if NAME.fullmatch(side.text):
            if side.text in ("minus", "divided") and not is_first:
                self.at -= len(side.text)
                raise self.unexpected("a sign", "Write ' - ', or ' / '.")
            # These words stood for arithmetic on one tensor.
            is_key = is_first and (self.sees("times") or self.sees("plus"))
            return self.add(side) if is_key else side.text
        return side.text if side.text.startswith("config:") else self.add(side)

    def call(self, name: str, depth: int) -> TermTree:
        """Read what follows the name of a function, or of a list, and its bracket."""
        opened = self.at - len(name) - 1
        if name not in FUNCTIONS and name not in _SUMS:
            if element := self.take(_ELEMENT):
                return ("index", element[1]) if name == "index" else ("item", name, element[1])
            known = (*FUNCTIONS, *_SUMS, "index")
            near = similar(name, known, 1)
            meant = f"Did you mean {near[0]}? " if near else ""
            self.at = opened
            raise MapError(f"There is no function {name}.", f"{meant}There are {', '.join(known)}.")
        self.depth += 1
        parts: list[TermTree] = []
        if name in _SUMS:
            index = self.take(_INDEX)
            if index is None:
                raise self.unexpected("an index", f"Write {name}(j: x[i j]), with its index.")
            parts = [index[1]]
        parts.append(self.sum(depth + 1))
        while self.take(_COMMA):
            parts.append(self.sum(depth + 1))
        self.close()
        count = FUNCTIONS.get(name, 2)
        if len(parts) != count:
            self.at = opened
            remedy = f"Give {count}." if count > 1 else "Give one."
            raise MapError(f"{name} has {len(parts)} arguments.", remedy)
        return (name, *parts)

    def dtype(self) -> str:
        name = self.token()
        if name not in NAMES or "float" not in name:
            near = get_close_matches(name, [each for each in NAMES if "float" in each], 1)
            meant = f"Did you mean {near[0]}?" if near else "Write a float, such as float32."
            raise MapError(f"There is no floating-point dtype {name}.", meant)
        return name

    def token(self) -> str:
        """Read up to the next space."""
        found = self.take(_WORD)
        return found[1] if found else ""

    def number_of_else(self) -> str:
        number = self.token()
        if not number:
            raise MapError("'else' has no number.", "Write 'else 0'.")
        return number

    def condition(self) -> Condition:
        found = self.take(_IF)
        if found is None:
            raise MapError("'if' has no condition.", "Write 'if config:NAME = value', or != .")
        return Condition(found[1], found[3].strip("'\""), found[2] == "=")

    def no_arrow(self) -> MapError:
        if not self.left:
            return MapError("' -> ' is missing.", _SPACES if "->" in self.text else _GRAMMAR)
        remedy = _QUOTES if "->" in self.text else _GRAMMAR
        if self.sees("as"):
            remedy = "Write 'as' after the target."
        if self.left.startswith("@"):
            remedy = "Separate ranges by commas: @ a=0, b=1:3."
        return self.unexpected("'->', '@' or a sign", remedy)

    @property
    def left(self) -> str:
        """The text from the next character on that is not a space."""
        return self.text[self.at :].lstrip()

    @property
    def column(self) -> int:
        """The number of the next character that is not a space, from 1 on."""
        return len(self.text) - len(self.left) + 1

    def sees(self, word: str) -> bool:
        return self.left.startswith(word) and not self.left[len(word) :][:1].strip()

    def word(self, word: str) -> bool:
        if found := self.sees(word):
            self.at = self.column - 1 + len(word)
        return found

    def unexpected(self, expected: str, remedy: str = _GRAMMAR) -> MapError:
        found = repr(self.left[:40]) if self.left else "the end of the rule"
        return MapError(f"Expected {expected}, found {found}.", remedy)

    def expression(self) -> Expression:
        # The sign of an arrow is not a minus.
        arrow = _ARROW.search(self.text, self.at)
        stop = len(self.text) if arrow is None else arrow.start()
        expression, left = read_expression(self.text[self.at : stop])
        self.at = stop - len(left)
        return expression

    def side(self) -> Side:
        self.at = begin = self.column - 1
        if self.sees("->"):
            raise self.unexpected("a key")
        key = self.key()
        axes: tuple[AxisNames, ...] = (ELLIPSIS,)
        if self.text[self.at : self.at + 1] == "[":
            axes = self.axes()
        ranges: dict[str, Range] = {}
        if self.take(_AT):
            ranges = self.ranges()
        return Side(self.text[begin : self.at].strip(), key, axes, ranges)

    def key(self) -> KeyPattern:
        """Read a key: texts, quoted texts and parts, without a space between them."""
        begin, parts = self.at, list[KeyPart]()
        while self.at < len(self.text) and not self.text[self.at].isspace():
            character = self.text[self.at]
            if character == "[" or (self.depth and character in "),"):
                break
            if character in "'\"":
                parts.append(self.quoted(character))
            elif character == "{":
                parts.append(self.part())
            else:
                found = self.take(_PLAIN_IN_BRACKETS if self.depth else _PLAIN)
                if found is None:
                    raise MapError(f"A key has {character!r}.", _QUOTES)
                parts.append(found[0])
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
        found = self.take(re.compile(f"{mark}((?:[^{mark}]|{mark}{mark})*){mark}"))
        if found is None:
            raise MapError("A quote is not closed.", f"Write {mark} at the end of the key.")
        return found[1].replace(mark * 2, mark)

    def part(self) -> KeyPart:
        begin, stop = self.at + 1, self.closing("}", "part")
        inside = self.text[begin:stop].strip()
        name, colon, what = inside.partition(":")
        if not colon:
            return self.number(begin, stop)
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
        self.at = stop + 1
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
        while not found or self.take(_COMMA):
            begin, name = self.at, self.take(_RANGE)
            if name is None:
                raise self.unexpected("'name=start:stop' after '@'", "Write '@ v=0:5' or '@ v=3'.")
            if name[1] in found:
                self.at = begin
                raise MapError(f"'@' has {name[1]!r} twice.", "Give each index one range.")
            found[name[1]] = self.range()
        return found

    def range(self) -> Range:
        """Read ``start:stop``, where either may be left out, or one value."""
        start = None if self.left.startswith(":") else self.expression()
        if not self.take(_COLON):
            return Range(start, None, is_single=True)
        ends = _END_OF_RANGE.match(self.left)
        return Range(start, None if ends else self.expression(), is_single=False)


def _with_sums(rule: MapRule, target: Side) -> MapRule:
    """Return a rule that computes, where each product has the indices that it is summed over."""
    kept = target.free()
    tree, owners = _summed(rule.tree, frozenset(kept), rule.tensors)
    lonely = {name: texts for name, texts in owners.items() if name not in kept}
    for name, texts in lonely.items():
        if name in (each for side in rule.tensors for each in side.key.rank()) or not texts:
            what = "a number of sources" if texts else "in no tensor of its product,"
            remedy = f"Write 'sum({name}: ...)', or 'mean({name}: ...)'."
            raise MapError(f"{name} is {what} and not on the right.", remedy)
    if lonely:
        some = ", ".join(f"{n} is in one tensor, {texts[0]!r}" for n, texts in lonely.items())
        name = next(iter(lonely))
        alike = "Did you mean one index? Name it alike. " if len(lonely) > 1 else ""
        remedy = f"{alike}Write 'sum({name}: ...)', or 'mean({name}: ...)', or {name} on the right."
        raise MapError(f"{some}, and not on the right.", remedy)
    new = [name for name in target.indices() if name in kept and name not in owners]
    if new and rule.tensors and not rule.is_again:
        cause = f"No tensor has {new[0]!r} of {target.text!r}."
        raise MapError(cause, f"'also', and a size of {new[0]}, repeat the values.")
    is_open = [ELLIPSIS in side.axes for side in rule.tensors]
    if (ELLIPSIS in target.axes) != any(is_open):
        names = [*tree_names(rule.tree)]
        if not rule.tensors:
            raise MapError(
                f"{names[0]} has no brackets, so it is a size.", _BRACKETS.format(names[0])
            )
        remedy = "A key without brackets is [...]: write the axes of both sides, or of neither."
        raise MapError("Only one side of '->' has '...'.", remedy)
    if not rule.tensors and not rule.dtype and not rule.is_hidden:
        given = ", ".join(target.indices())
        remedy = f"Write 'as float32' after the target{f', and {given} in sizes' if given else ''}."
        raise MapError("The rule has no tensor, so no dtype.", remedy)
    of_keys = {name for side in (*rule.tensors, target) for name in side.key.texts()}
    lost = of_keys.difference(rule.source.key.texts())
    if lost:
        raise MapError(
            f"{rule.source.text!r} lacks the text {{{min(lost)}}}, and other tensors have it.",
            "One tensor of a rule has all texts and numbers of keys.",
        )
    return replace(rule, tree=tree)


def _summed(
    tree: TermTree, kept: frozenset[str], tensors: Sequence[Side]
) -> tuple[TermTree, dict[str, list[str]]]:
    """The tree with its sums, and the tensors of each index that is left, in the order of the text."""
    if not isinstance(tree, tuple):
        return tree, {}
    word = tree[0]
    if word == "tensor":
        side = tensors[tree[1]]
        free = side.free()
        return tree, {name: [side.text] for name in side.indices() if name in free}
    if word in ("index", "item"):
        return tree, {tree[-1]: []}
    if word in ("sum", "mean"):
        name, inner = tree[1], tree[2]
        if name in kept:
            remedy = "Give one of them another name."
            raise MapError(f"{name} is summed over, and is also an index around the sum.", remedy)
        inner, owners = _summed(inner, kept | {name}, tensors)
        if name not in owners:
            raise MapError(f"Nothing in {word}({name}: ...) has {name}.", "Correct the name.")
        del owners[name]
        return (word, name, inner), owners
    found = [_summed(part, kept, tensors) for part in subtrees(tree)]
    owners = dict[str, list[str]]()
    for _, each in found:
        for name, texts in each.items():
            owners[name] = owners.get(name, []) + texts
    parts = [part for part, _ in found]
    if word not in "+*":
        return (word, *parts), owners
    signs = [sign for sign, _ in tree[1]]
    done = tuple(zip(signs, parts, strict=True))
    if word == "+":
        return (word, done), owners
    counts = Counter(name for part, each in found if not is_constant(part) for name in each)
    in_numbers = {name for part, each in found if is_constant(part) for name in each}
    summed = [n for n in owners if counts[n] > 1 and n not in kept and n not in in_numbers]
    # The numbers of sources, which two tensors may have, are never summed over unasked.
    ranks = {name for number in tensors_of(tree) for name in tensors[number].key.rank()}
    summed = [name for name in summed if name not in ranks]
    in_keys = {name for number in tensors_of(tree) for name in tensors[number].key.indices()}
    summed.sort(key=lambda name: name not in in_keys)
    return (word, done, tuple(summed)), {n: t for n, t in owners.items() if n not in summed}


def _check(rule: MapRule) -> None:
    """Raise ``MapError`` unless both sides have the same indices, each once."""
    for side in rule.sides():
        _check_side(side)
    if rule.target is None:
        if rule.has_arithmetic or rule.is_again:
            raise MapError("'nothing' takes no arithmetic and no 'also'.", "Leave them out.")
        return
    if rule.has_arithmetic:
        if rule.is_hidden and (rule.dtype or rule.fill or rule.is_again or rule.target.ranges):
            remedy = "Write them where it is used."
            raise MapError("A '$' takes no 'also', 'as', 'else' and '@'.", remedy)
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
            is_new = side is target and name not in other.indices()
            again = ", or write 'also' before the rule, to repeat the values" if is_new else ""
            again = again or f", or write 'mean({name}: ...)' or 'sum({name}: ...)'"
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
