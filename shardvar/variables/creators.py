"""The stack of variable creators: what happens between ``sv.Variable(...)`` and the variable.

R-CREATE-1 (RFC 003): "Under the hood this will call a hierarchy of scoped constructor functions". A creator is called
as ``creator(next_creator, **kwargs)``; it may

    - call ``next_creator(**kwargs)``, the base constructor as it sees it, to make the variable,
    - return a variable that exists already,
    - change arguments, and call the next one as often as it likes.

The creator of the highest priority is called first, of equals the innermost. The stack belongs to the thread; a scope
that is left, by an exception or otherwise, leaves the stack as it found it.
"""

from collections.abc import Callable
from threading import local
from types import TracebackType
from typing import Any

from shardvar.errors import ArgumentError, ArgumentTypeError, ScopeError

NextCreator = Callable[..., Any]
Creator = Callable[..., Any]


class _Stack(local):
    """A thread's scopes, in the order in which they were entered."""

    scopes: tuple["variable_creator_scope", ...] = ()


_stack = _Stack()


class variable_creator_scope:  # noqa: N801 - a scope is written like a function, as in TensorFlow
    """A context in which ``creator`` takes part in the creation of every ``sv.Variable``.

    >>> from shardvar.variables import Variable
    >>> def quiet(next_creator, **kwargs):
    ...     return next_creator(**kwargs | {"trainable": False})
    >>> with variable_creator_scope(quiet):
    ...     variable = Variable([1.0])
    >>> variable.trainable
    False
    """

    def __init__(self, creator: Creator, *, priority: int = 100) -> None:
        if not callable(creator):
            raise ArgumentTypeError(
                f"The creator {creator!r} is not callable.", "Give creator(next_creator, **kwargs)."
            )
        self.creator = creator
        self.priority = priority

    def __enter__(self) -> "variable_creator_scope":
        _stack.scopes = (*_stack.scopes, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        scopes = _stack.scopes
        is_innermost = scopes[-1:] == (self,)
        _stack.scopes = scopes[:-1] if is_innermost else tuple(scope for scope in scopes if scope is not self)
        if not is_innermost and error is None:
            raise ScopeError(
                "A variable_creator_scope was left before one that was entered in it.",
                "Leave scopes in the reverse order, as `with` does.",
            )


def create(base: NextCreator, kwargs: dict[str, Any]) -> Any:
    """What the creators of this thread make of the arguments, ``base`` being the one at the bottom."""
    creators = sorted(_stack.scopes, key=lambda scope: scope.priority)  # stable: of equals the innermost comes last
    made = _chain(base, [scope.creator for scope in creators])(**kwargs)
    if made is None:
        raise ArgumentError("A variable creator returned None.", "Return a variable: return next_creator(**kwargs).")
    return made


def _chain(base: NextCreator, creators: list[Creator]) -> NextCreator:
    """What calls the last creator, whose next one is the one before it, and so on down to ``base``."""
    following = base
    for creator in creators:
        following = _link(creator, following)
    return following


def _link(creator: Creator, following: NextCreator) -> NextCreator:
    def next_creator(**kwargs: Any) -> Any:
        return creator(following, **kwargs)

    return next_creator
