"""Scopes in which variables are created: a stack of creators, and a prefix for names.

R-CREATE-1 (RFC 003): "Under the hood this will call a hierarchy of scoped constructor functions". A
creator is called as ``creator(next_creator, **kwargs)``. It may

    - call ``next_creator(**kwargs)``, the base constructor as this creator sees it, to make the
      variable,
    - return a variable that exists already,
    - change arguments, and call the next creator any number of times.

Steps of one ``sv.Variable(...)``: ``create`` sorts the scopes of the thread by priority, chains
their creators, and calls the last one. The creator of the highest priority runs first; among equals
the innermost runs first. Both scopes belong to the thread, and leaving one, by an exception or
otherwise, restores what was there before.

R-NAME-1 (RFC 003): "to control variable naming users can use tf.name_scope + tf.Variable". Names
are labels, not keys: two variables may have the same name, and nothing is looked up by it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import local
from types import TracebackType
from typing import Any

from shardvar.errors import ArgumentError, ArgumentTypeError, ScopeError

NextCreator = Callable[..., Any]
Creator = Callable[..., Any]


class _Stack(local):
    """The creator scopes of a thread, in the order in which they were entered."""

    scopes: tuple["variable_creator_scope", ...] = ()


_stack = _Stack()
_prefix: ContextVar[str] = ContextVar("prefix", default="")


class variable_creator_scope:  # noqa: N801 - a scope is written like a function, as in TensorFlow
    """A context in which a creator takes part in the creation of every ``sv.Variable``.

    Parameters
    ----------
    creator : callable
        Called as ``creator(next_creator, **kwargs)``; it returns a variable, usually
        ``next_creator(**kwargs)`` with some arguments changed.
    priority : int, default 100
        The creator of the highest priority runs first; among equals the innermost one.

    Raises
    ------
    ArgumentTypeError
        If `creator` is not callable.
    ScopeError
        On leaving, if a scope that was entered inside is still open.

    Examples
    --------
    >>> import shardvar as sv
    >>> def quiet(next_creator, **kwargs):
    ...     return next_creator(**kwargs | {"trainable": False})
    >>> with sv.variable_creator_scope(quiet):
    ...     variable = sv.Variable([1.0])
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
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        scopes = _stack.scopes
        is_innermost = scopes[-1:] == (self,)
        # Remove this scope first, wherever it is in the stack, so that even a wrong order leaves
        # none behind.
        _stack.scopes = (
            scopes[:-1] if is_innermost else tuple(scope for scope in scopes if scope is not self)
        )
        # An error that is already on its way says more than a second one about the order of scopes.
        if not is_innermost and error is None:
            raise ScopeError(
                "A variable_creator_scope was left before one that was entered in it.",
                "Leave scopes in the reverse order, as `with` does.",
            )


def create(base: NextCreator, kwargs: dict[str, Any]) -> Any:
    """Return the variable that the creators of this thread make of the arguments; ``base`` is the
    innermost creator."""
    # The sort is stable and the last creator of the chain runs first: among equals, the innermost
    # scope.
    creators = sorted(_stack.scopes, key=lambda scope: scope.priority)
    made = _chain(base, [scope.creator for scope in creators])(**kwargs)
    if made is None:
        raise ArgumentError(
            "A variable creator returned None.", "Return a variable: return next_creator(**kwargs)."
        )
    return made


def _chain(base: NextCreator, creators: list[Creator]) -> NextCreator:
    """Return the last creator, bound to the one before it, and so on down to ``base``."""
    following = base
    for creator in creators:
        following = _link(creator, following)
    return following


def _link(creator: Creator, following: NextCreator) -> NextCreator:
    def next_creator(**kwargs: Any) -> Any:
        return creator(following, **kwargs)

    return next_creator


@contextmanager
def name_scope(name: str | None) -> Iterator[str]:
    """Put ``name/`` before the names of variables that are created inside.

    Parameters
    ----------
    name : str or None
        The name of the scope. None or "" starts again without a prefix. A name that ends with a
        slash is a whole prefix, such as the one that this context manager yields: it enters that
        scope again.

    Yields
    ------
    str
        The whole prefix.

    Raises
    ------
    ArgumentTypeError
        If `name` is not a text.

    Examples
    --------
    >>> with name_scope("model"), name_scope("layer") as scope:
    ...     scoped_name("w"), scope
    ('model/layer/w', 'model/layer/')
    """
    if not isinstance(name, str | None):
        raise ArgumentTypeError(
            f"Invalid name {name!r} of a scope.", "Give a str, or None for no prefix."
        )
    if not name or name.endswith("/"):
        prefix = name or ""
    else:
        prefix = f"{_prefix.get()}{name}/"
    token = _prefix.set(prefix)
    try:
        yield prefix
    finally:
        _prefix.reset(token)


def scoped_name(name: str) -> str:
    """Return ``name`` with the prefix of the name scopes that are open here."""
    return _prefix.get() + name
