"""Mutants of the right adapter, each spoiled in one way: what the conformance kit must see.

A mutant is a function in the place of one method. Its docstring says what is wrong, ``@wrong``
names the method and a rule that sees it. The modules ``wrong_variables``, ``wrong_checkpoints``,
``wrong_training`` and ``wrong_meshes`` hold them.
"""

from collections.abc import Callable
from dataclasses import dataclass
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

    def make(self) -> Any:
        """The adapter."""
        return type(self.name, (Right,), {self.method: self.function})()


MUTANTS: list[AdapterMutant] = []


def wrong(method: str, rule: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as a wrong ``method``, which ``rule`` sees."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        MUTANTS.append(AdapterMutant(method, rule, function))
        return function

    return register
