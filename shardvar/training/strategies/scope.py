"""Which strategy creates variables now, and what was said about those that are created inside.

There is one innermost scope a thread. Entering one strategy's scope again is allowed and changes nothing but what is
said; entering another strategy's inside is refused: who wants two takes a ``HybridStrategy``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import local
from typing import Any, Protocol

from shardvar.devices import Device
from shardvar.errors import ScopeError
from shardvar.training.strategies.hints import Hints
from shardvar.variables import variable_creator_scope
from shardvar.variables.create import Cut
from shardvar.variables.scopes import NextCreator


@dataclass(frozen=True, slots=True)
class Partitioning:
    """What overrides a strategy's own partitioner."""

    cut: Cut
    """How to cut: a partitioner, or what one may answer; None for not at all."""
    devices: tuple[Device, ...] | None = None
    """Where the parts go, in turn; None leaves it to the strategy."""
    is_mirrored: bool = False
    """Where a strategy mirrors: whether each replica gets all parts, instead of the parts being spread over them."""


class Creates(Protocol):
    """What a scope needs of a strategy."""

    def create(self, next_creator: NextCreator, kwargs: dict[str, Any], said: "Scope") -> Any:
        """The variable."""
        ...


@dataclass(frozen=True, slots=True)
class Scope:
    """A strategy, and what is said to it."""

    strategy: Creates
    """Who creates."""
    partitioning: Partitioning | None = None
    """What overrides the strategy's own partitioner, if anything."""
    hints: Hints = field(default_factory=Hints)
    """What the user knows better."""

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Create variables so inside."""
        outer = _current.scope
        if outer is not None and outer.strategy is not self.strategy:
            raise ScopeError(
                f"The scope of {self.strategy} was entered inside that of {outer.strategy}.",
                "Leave the outer one first, or give both to sv.HybridStrategy.",
            )
        _current.scope = self
        try:
            if outer is not None:  # its creator is on the stack already
                yield
            else:
                with variable_creator_scope(_create):
                    yield
        finally:
            _current.scope = outer


def current_scope() -> Scope | None:
    """The innermost scope of this thread, if it is in one."""
    return _current.scope


def _create(next_creator: NextCreator, **kwargs: Any) -> Any:
    scope = _current.scope
    return next_creator(**kwargs) if scope is None else scope.strategy.create(next_creator, kwargs, scope)


class _Current(local):
    """A thread's innermost scope: of the thread, as its stack of creators is."""

    scope: Scope | None = None


_current = _Current()
