"""Expressions: sizes, numbers, and sums and products of tensors; their trees, and exact values.

    sum      = product { ("+" | "-") product }
    product  = factor { ("*" | "/") factor }
    factor   = ( number | name | "config:" name | "(" sum ")" | "-" factor ) [ "**" factor ]

A rule's left side has more factors: tensors, functions, and two side by side (``language``).

A tree is a number, the name of a size, or a tuple of an operator and trees:

    ("+", ((1, a), (-1, b)))     a - b
    ("*", ((1, a), (-1, b)), summed)     a / b, summed over the indices ``summed``
    ("**", a, b)   ("exp", a)   ("clip", a, low, high)   ("sum", "j", a)   ("mean", "j", a)
    ("index", "j")   ("item", "w", "j")   ("tensor", 0)   ("float", a): a number that is rounded

Numbers are exact fractions. Roots, powers, ``exp`` and ``log`` of numbers have 50 digits. So a
number is rounded once, to float64, when it meets a tensor.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Context, Decimal, DecimalException
from fractions import Fraction
from typing import Any

from shardvar.errors import MapError
from shardvar.records import frozen

TermTree = Any
"""See the module."""
ExactNumber = int | Fraction
SizeOf = Callable[[str], Any]
"""Gives a size by its name: a number, or a list of numbers; ``MapError`` if it has none."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|\.[0-9]+)"
    r"|(?P<config>(?:[0-9]+/[A-Za-z0-9_]+\.json|config):[A-Za-z0-9_.|]+)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign>\*\*|[-+*/()]))"
)
_MOST_DIGITS = 18
"""Digits of an integer, which 64 bits hold."""
_DEEPEST = 20
"""Brackets and signs within each other."""
FUNCTIONS = {"exp": 1, "log": 1, "sqrt": 1, "abs": 1, "clip": 3}
"""The functions of numbers and tensors, with their numbers of arguments."""
_EXACT = Context(prec=50, Emax=4000, Emin=-4000)
_PI = Fraction("3.14159265358979323846264338327950288419716939937510")
_MOST_BITS = 1 << 14
"""Bits of an exact power; a larger one has 50 digits."""


@frozen
class Expression:
    """A parsed expression: its text, and its tree."""

    text: str
    tree: TermTree

    def names(self) -> Iterator[str]:
        return tree_names(self.tree)

    def integer(self, size_of: SizeOf) -> int:
        """Return its value; ``size_of`` gives the value of a name."""
        try:
            value = Fraction(number_of(self.tree, size_of))
        except ZeroDivisionError:
            value = Fraction(1, 2)
        if value.denominator != 1:
            factors = subtrees(self.tree) if operator_of(self.tree) == "*" else ()
            sides = [str(number_of(tree, size_of)) for tree in factors]
            given = " / ".join(sides) if len(sides) == 2 else f"{float(value)}"
            raise MapError(
                f"The size {self.text!r} is not an integer: {given}.",
                "Give sizes that divide each other.",
            )
        if abs(value) >= 1 << 62:
            raise MapError(f"The size {self.text!r} is too large.", "Give a smaller one.")
        return int(value)


def subtrees(tree: TermTree) -> Iterator[TermTree]:
    """Yield the trees right below a tree."""
    if isinstance(tree, tuple):
        for part in tree[1][:] if tree[0] in "+*" else tree[1:]:
            yield part[1] if tree[0] in "+*" else part


def walk(tree: TermTree) -> Iterator[TermTree]:
    """Yield a tree and all trees in it, in the order of the text."""
    yield tree
    for part in subtrees(tree):
        yield from walk(part)


def operator_of(tree: TermTree) -> str:
    """Return the operator of a tree; empty for a number and for a name."""
    return tree[0] if isinstance(tree, tuple) else ""


def tree_names(tree: TermTree) -> Iterator[str]:
    return (each for each in walk(tree) if isinstance(each, str))


def bound_names(tree: TermTree) -> Iterator[str]:
    """Yield the indices that sums and products of a tree are over."""
    for each in walk(tree):
        if operator_of(each) in ("sum", "mean"):
            yield each[1]
        elif operator_of(each) == "*":
            yield from each[2]


def is_constant(tree: TermTree) -> bool:
    """Return True if a tree has no tensor, and no number that is rounded already."""
    return not any(operator_of(each) in ("tensor", "float") for each in walk(tree))


def tensors_of(tree: TermTree) -> list[int]:
    """Return the positions of the tensors in a tree, in the order of the text."""
    return [each[1] for each in walk(tree) if operator_of(each) == "tensor"]


def replaced(tree: TermTree, change: Callable[[TermTree], TermTree]) -> TermTree:
    """Return a tree, with ``change`` of each of its trees, from the innermost one on."""
    if isinstance(tree, tuple) and tree[0] in "+*":
        parts = tuple((sign, replaced(part, change)) for sign, part in tree[1])
        return change((tree[0], parts, *(tuple(map(change, each)) for each in tree[2:])))
    if isinstance(tree, tuple):
        return change((tree[0], *(replaced(part, change) for part in tree[1:])))
    return change(tree)


def number_of(tree: TermTree, size_of: SizeOf, at: Mapping[str, int] | None = None) -> ExactNumber:
    """Return the exact value of a tree without tensors; indices have the values ``at``."""
    at = at or {}
    if isinstance(tree, int | Fraction):
        return tree
    if isinstance(tree, str):
        value = _PI if tree == "pi" else size_of(tree)
        if isinstance(value, list):
            raise MapError(f"The size {tree} is a list.", f"Write an element: {tree}(n).")
        return Fraction(value)
    word, *parts = tree
    if word == "index":
        return at[parts[0]]
    if word == "item":
        numbers, place = size_of(parts[0]), at[parts[1]]
        if not isinstance(numbers, list) or place >= len(numbers):
            have = f"has {len(numbers)} numbers" if isinstance(numbers, list) else "is not a list"
            raise MapError(f"The size {parts[0]} {have}, and {parts[1]} is {place}.", "Correct it.")
        return Fraction(numbers[place])
    if word in ("sum", "mean"):
        count = size_of(parts[0])
        terms = [number_of(parts[1], size_of, {**at, parts[0]: k}) for k in range(count)]
        return Fraction(sum(terms)) / (count if word == "mean" else 1)
    if word == "+":
        return Fraction(sum(sign * number_of(part, size_of, at) for sign, part in parts[0]))
    if word == "*":
        product = Fraction(1)
        for sign, part in parts[0]:
            factor = number_of(part, size_of, at)
            product = product * factor if sign > 0 else product / factor
        return product
    values: list[ExactNumber] = [number_of(part, size_of, at) for part in parts]
    if word == "abs":
        return -values[0] if values[0] < 0 else values[0]
    return min(max(*values[:2]), values[2]) if word == "clip" else _inexact(word, values)


def _inexact(word: str, values: list[ExactNumber]) -> Fraction:
    first, last = Fraction(values[0]), Fraction(values[-1])
    bits = max(first.numerator.bit_length(), first.denominator.bit_length())
    if word == "**" and last.denominator == 1 and bits * abs(last) <= _MOST_BITS:
        return Fraction(first ** int(last))
    a, b = (_EXACT.divide(Decimal(v.numerator), Decimal(v.denominator)) for v in (first, last))
    if word == "**":
        return Fraction(_EXACT.power(a, b))
    functions = {"exp": _EXACT.exp, "log": _EXACT.ln, "sqrt": _EXACT.sqrt}
    return Fraction(functions[word](a))


def float_of(tree: TermTree, size_of: SizeOf, at: Mapping[str, int] | None = None) -> Fraction:
    """As ``number_of``, of a number that a float64 holds; else ``MapError``."""
    try:
        value = Fraction(number_of(tree, size_of, at))
        float(value)
    except MapError:  # of a size: also a ValueError
        raise
    except (ArithmeticError, DecimalException, ValueError, TypeError):
        raise MapError("A constant has no value.", "Give another one.") from None
    return value


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
    reader = ExpressionReader(text)
    tree = reader.sum(0)
    return Expression(text[: reader.at].strip(), tree), text[reader.at :]


class ExpressionReader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def take(self, pattern: "re.Pattern[str]") -> "re.Match[str] | None":
        """Step over what a pattern matches here."""
        found = pattern.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return found

    def sign(self, signs: str) -> str:
        """Step over the next sign if it is among ``signs``, and return it, else an empty text."""
        found = _TOKEN.match(self.text, self.at)
        if found is None or found["sign"] not in signs.split():
            return ""
        self.at = found.end()
        return found["sign"]

    def begins_factor(self) -> bool:
        """Return True if a factor may follow another one without a sign, and one does."""
        return False

    def sum(self, depth: int) -> TermTree:
        terms = [(1, self.product(depth))]
        while sign := self.sign("+ -"):
            terms.append((1 if sign == "+" else -1, self.product(depth)))
        return ("+", tuple(terms)) if len(terms) > 1 else terms[0][1]

    def product(self, depth: int) -> TermTree:
        factors = [(1, self.factor(depth))]
        while (sign := self.sign("* /")) or self.begins_factor():
            if not sign and factors[-1][0] < 0:
                raise MapError("Two factors follow '/'.", "Write '/ (a * b)', or '/ a * b'.")
            factors.append((-1 if sign == "/" else 1, self.factor(depth)))
        return ("*", tuple(factors), ()) if len(factors) > 1 else factors[0][1]

    def factor(self, depth: int) -> TermTree:
        if depth > _DEEPEST:
            raise MapError(f"The expression {self.text.strip()[:40]!r} is nested too deep.")
        if self.sign("-"):
            return ("+", ((-1, self.factor(depth + 1)),))
        if self.sign("("):
            tree = self.sum(depth + 1)
            self.close()
        else:
            tree = self.atom(depth)
        return ("**", tree, self.factor(depth + 1)) if self.sign("**") else tree

    def close(self) -> None:
        if not self.sign(")"):
            raise self.error("')' is missing")

    def atom(self, depth: int) -> TermTree:  # noqa: ARG002
        found = _TOKEN.match(self.text, self.at)
        if found is None or found["sign"]:
            raise self.error("a number or a name is missing")
        self.at = found.end()
        if found["number"] is None:
            return found["config"] or found["name"]
        if not found["number"].isdigit():
            return decimal_number(found["number"])
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


def decimal_number(text: str) -> Fraction:
    try:
        return Fraction(_EXACT.create_decimal(text))
    except (ArithmeticError, ValueError):
        raise MapError(f"The number {text} is too large.", "Give a smaller one.") from None
