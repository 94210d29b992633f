"""Sources that read through another source, and change some of its answers.

A wrapper inherits from ``WrappedSource``, which forwards every member of ``Source``, and overrides
only its own. So a wrapper around a checkpoint in a bucket has the bucket's ``traits`` without a
line about them.
"""

from abc import abstractmethod, update_abstractmethods
from functools import wraps
from typing import TYPE_CHECKING, Any

from shardvar.formats.protocol import Source


class WrappedSource(Source):
    """A source that answers like another one, except for members that a subclass overrides."""

    __slots__ = ()

    @property
    @abstractmethod
    def inner(self) -> Source:
        """The other source."""

    if TYPE_CHECKING:  # The loop below defines them.
        index: Any
        read_into: Any
        read_span: Any
        map: Any
        close: Any


def _forwarding(name: str, member: Any) -> Any:
    """Return a property or a method that hands on to the inner source."""
    if isinstance(member, property):
        return property(lambda self: getattr(self.inner, name), doc=member.__doc__)

    @wraps(member)
    def method(self: WrappedSource, *values: Any, **named: Any) -> Any:
        return getattr(self.inner, name)(*values, **named)

    vars(method).pop("__isabstractmethod__", None)
    return method


for _name, _member in vars(Source).items():
    if not _name.startswith("_"):
        setattr(WrappedSource, _name, _forwarding(_name, _member))
update_abstractmethods(WrappedSource)  # type: ignore[type-abstract]
