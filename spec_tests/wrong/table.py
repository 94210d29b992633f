"""Mutants of the right adapter, each spoiled in one way: what the conformance kit must see.

A mutant is a function in the place of one method. Its docstring says what is wrong, ``@wrong``
names the method and a rule that sees it. Its signature is the adapter's, so it has no types. Where
only one argument or only the answer of the right method is another, the mutant is a row of a table.
Each other module of this package is a family of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from inspect import signature
from typing import Any

from spec_tests.helpers.right_adapter import Right


@dataclass(frozen=True, slots=True)
class AdapterMutant:
    """One wrong adapter."""

    method: str
    """The method that is spoiled."""
    rule: str
    """A rule of the kit that sees it."""
    function: Callable[..., Any]
    """The method in its place."""

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def family(self) -> str:
        """The family, a name of ``FAMILIES``."""
        return self.function.__module__.rpartition(".")[2]

    def make(self) -> Any:
        """The adapter."""
        return type(self.name, (Right,), {self.method: self.function})()


FAMILIES = (
    "partition create update lookup initialize optimize save restore mesh move fsdp resume".split()
)
"""The modules of this package that hold wrong implementations."""

_MUTANTS: list[AdapterMutant] = []


def mutants() -> list[AdapterMutant]:
    """Return all wrong implementations, family by family."""
    for family in FAMILIES:
        import_module(f"spec_tests.wrong.{family}")
    return _MUTANTS


def wrong(method: str, rule: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as a wrong ``method``, which ``rule`` sees."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _MUTANTS.append(AdapterMutant(method, rule, function))
        return function

    return register


Change = Callable[..., Any]
"""Makes another value, from the arguments of the method that it names."""


def change_what_is_given(*rows: tuple[str, str, str, str, str, Change]) -> None:
    """Register wrong adapters that give the right method another argument.

    A row is the method, the rule that sees it, its name, what is wrong, the argument and its
    change. "each of tensors" changes every ``value`` of a mapping.
    """
    for method, rule, name, why, argument, change in rows:
        each, key = argument.startswith("each of "), argument.removeprefix("each of ")

        def spoil(
            right: Any, given: Any, change: Any = change, key: str = key, each: Any = each
        ) -> Any:
            told = given[key]
            made = (
                {k: _asked(change, given, value=v) for k, v in told.items()}
                if each
                else _asked(change, given)
            )
            return right(**given | {key: made})

        _add(method, rule, name, why, change, spoil)


def change_what_is_found(*rows: tuple[str, str, str, str, Change]) -> None:
    """Register wrong adapters that answer otherwise than the right method: ``found`` is its answer."""
    for method, rule, name, why, change in rows:

        def spoil(right: Any, given: Any, change: Any = change) -> Any:
            return _asked(change, given, found=right(**given))

        _add(method, rule, name, why, change, spoil)


def _asked(change: Change, given: dict[str, Any], **more: Any) -> Any:
    known = given | more
    return change(**{name: known[name] for name in signature(change).parameters})


def _add(method: str, rule: str, name: str, why: str, change: Change, spoil: Change) -> None:
    right = getattr(Right, method)

    @wraps(right)
    def function(*arguments: Any, **named: Any) -> Any:
        return spoil(right, signature(right).bind(*arguments, **named).arguments)

    function.__name__, function.__doc__, function.__module__ = name, why, change.__module__
    wrong(method, rule)(function)
