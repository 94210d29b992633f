"""Mutants of the right adapter, each spoiled in one way: what the conformance kit must see.

A mutant is a function in the place of one method. Its docstring says what is wrong, ``@wrong``
names the method and a rule that sees it. Each other module of this package is a family of them.
Their signatures are the adapter's, so they have no types.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
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
        """The name of the function."""
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
