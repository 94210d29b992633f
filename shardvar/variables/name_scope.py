"""Name scopes: a prefix for the names of variables that are created inside.

R-NAME-1 (RFC 003): "to control variable naming users can use tf.name_scope + tf.Variable". Names are labels, not keys:
two variables may have one name, and nothing is looked up by it. The scope belongs to the thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from shardvar.errors import ArgumentTypeError

_prefix: ContextVar[str] = ContextVar("prefix", default="")


@contextmanager
def name_scope(name: str | None) -> Iterator[str]:
    """Put ``name/`` before the names of variables created inside; None or "" starts again without a prefix.

    A name that ends with a slash is a whole prefix, as the one that this yields: with it a scope is entered again.

    >>> with name_scope("model"), name_scope("layer") as scope:
    ...     scoped_name("w"), scope
    ('model/layer/w', 'model/layer/')
    """
    if not isinstance(name, str | None):
        raise ArgumentTypeError(f"The name {name!r} is no text.", "Give a str.")
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
    """The name as a variable that is created here has it."""
    return _prefix.get() + name
