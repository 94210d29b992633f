"""Expressions of sizes: ``r + 1``, ``config:hidden_size / h``.

    expression  = term   { ("+" | "-") term }
    term        = factor { ("*" | "/") factor }
    factor      = integer | name | "config:" name | "(" expression ")" | "-" factor

A size is an integer, so a division with a remainder is an error. A constant of arithmetic is a
float: it may also have decimals, and powers (``h ** -0.5``).
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    """The text."""
    tree: Any
    """A number, a name, or a sign with one or two trees."""

    def names(self) -> Iterator[str]:
        """Yield the names of sizes in it.

        >>> sorted(parse_expression("(r + 1) / config:heads").names())
        ['config:heads', 'r']
        """
        trees = [self.tree]
        for tree in trees:
            if isinstance(tree, str):
                yield tree
            elif isinstance(tree, tuple):
                trees += tree[1:]

    def integer(self, size_of: Callable[[str], int]) -> int:
        """Return its value, an integer; ``size_of`` gives the value of a name.

        >>> parse_expression("(r + 1) * 2").integer({"r": 3}.__getitem__)
        8
        """
        value = _integer(self.tree, size_of, self.text)
        if abs(value) >= 1 << 62:
            raise MapError(f"The size {self.text!r} is too large.", "Give a smaller one.")
        return value

    def real(self, size_of: Callable[[str], int]) -> float:
        """Return its value, a float.

        >>> parse_expression("h ** -0.5").real({"h": 64}.__getitem__)
        0.125
        """
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
    reader = _Reader(text)
    tree = reader.sum(0)
    return Expression(text[: reader.at].strip(), tree), text[reader.at :]


class _Reader:
    """A text, and how far it was read."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def sign(self, signs: str) -> str:
        """Return the next sign if it is one of some, and step over it; else an empty text."""
        found = _TOKEN.match(self.text, self.at)
        if found is None or found["sign"] not in signs.split():
            return ""
        self.at = found.end()
        return found["sign"]

    def sum(self, depth: int) -> Any:
        """Read terms that are added and subtracted."""
        tree = self.product(depth)
        while sign := self.sign("+ -"):
            tree = (sign, tree, self.product(depth))
        return tree

    def product(self, depth: int) -> Any:
        """Read factors that are multiplied and divided."""
        tree = self.factor(depth)
        while sign := self.sign("* /"):
            tree = (sign, tree, self.factor(depth))
        return tree

    def factor(self, depth: int) -> Any:
        """Read one factor, and its power."""
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
        """Read a number or a name."""
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
        """Return the error for a text that ends, or goes on, where it should not."""
        cause = f"{self.text.strip()!r} is not an expression: {what}"
        where = self.text[self.at :].strip()
        return MapError(
            f"{cause} before {where!r}." if where else f"{cause} at its end.",
            "Write integers, names of sizes, + - * / and brackets.",
        )


def _integer(tree: Any, size_of: Callable[[str], int], text: str) -> int:
    if isinstance(tree, str):
        return size_of(tree)
    if isinstance(tree, int):
        return tree
    if isinstance(tree, float) or tree[0] == "**":
        raise MapError(
            f"The size {text!r} is not an integer.", "Write integers, + - * / and brackets."
        )
    sign, left, right = tree
    a, b = _integer(left, size_of, text), _integer(right, size_of, text)
    if sign == "/":
        if b == 0 or a % b:
            raise MapError(
                f"The size {text!r} is not an integer: {a} / {b}{f' leaves {a % b}' if b else ''}.",
                "Give sizes that divide each other.",
            )
        return a // b
    return a + b if sign == "+" else a - b if sign == "-" else a * b


def _real(tree: Any, size_of: Callable[[str], int]) -> Any:
    if isinstance(tree, str):
        return float(size_of(tree))
    if isinstance(tree, int | float):
        return float(tree)
    sign, left, right = tree
    a, b = _real(left, size_of), _real(right, size_of)
    if sign == "**":
        return a**b
    if sign == "/":
        return a / b
    return a + b if sign == "+" else a - b if sign == "-" else a * b
