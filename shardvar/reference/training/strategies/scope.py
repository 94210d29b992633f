"""Scopes: the strategy that creates variables now, and the partitioning and hints for those created
inside.

Each thread has one innermost scope. Entering a scope of the same strategy again is allowed, and
changes only its partitioning and hints. Entering one of another strategy is refused; a
``HybridStrategy`` combines two.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import local
from typing import Any, Protocol

from shardvar.errors import ScopeError
from shardvar.layout.cutting import Cut
from shardvar.reference.devices import Device
from shardvar.reference.training.strategies.hints import Hints
from shardvar.reference.variables import variable_creator_scope
from shardvar.reference.variables.scopes import NextCreator


@dataclass(frozen=True, slots=True)
class Partitioning:
    """A way to cut variables, which overrides a strategy's partitioner."""

    cut: Cut | None
    """A partitioner, or what one may answer; None to leave variables whole."""
    devices: tuple[Device, ...] | None = None
    """The devices of the parts, in turn; None leaves it to the strategy."""
    is_mirrored: bool = False
    """For a strategy that mirrors: True gives each replica all parts, False spreads the parts over
    the replicas."""


class VariableFactory(Protocol):
    """The method of a strategy that a scope calls."""

    def create(self, next_creator: NextCreator, kwargs: dict[str, Any], scope: "Scope") -> Any:
        """Create the variable that ``sv.Variable(**kwargs)`` asks for."""
        ...


@dataclass(frozen=True, slots=True)
class Scope:
    """A strategy, with a partitioning and hints for the variables created inside."""

    strategy: VariableFactory
    """The strategy that creates variables."""
    partitioning: Partitioning | None = None
    """A partitioning that overrides the strategy's partitioner, if there is one."""
    hints: Hints = field(default_factory=Hints)
    """The user's hints."""

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Create variables by this scope inside the ``with`` block."""
        # Check. Of two strategies, it would be unclear which one creates a variable.
        outer = _current.scope
        if outer is not None and outer.strategy is not self.strategy:
            raise ScopeError(
                f"The scope of {self.strategy} was entered inside the scope of {outer.strategy}.",
                "Leave the outer one first, or give both to sv.HybridStrategy.",
            )
        # Enter, and restore the outer scope even if the user's code raises.
        _current.scope = self
        try:
            # ``_create`` is on the thread's stack of creators, and reads the innermost scope.
            if outer is not None:
                yield
            else:
                with variable_creator_scope(_create):
                    yield
        finally:
            _current.scope = outer


def current_scope() -> Scope | None:
    """Return the innermost scope of this thread, or None outside of any."""
    return _current.scope


def _create(next_creator: NextCreator, **kwargs: Any) -> Any:
    scope = _current.scope
    return (
        next_creator(**kwargs)
        if scope is None
        else scope.strategy.create(next_creator, kwargs, scope)
    )


class _Current(local):
    """The innermost scope of each thread; the stack of creators also belongs to the thread."""

    scope: Scope | None = None


_current = _Current()
