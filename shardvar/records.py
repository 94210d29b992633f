"""Dataclasses that are built quickly: ``dataclass`` of the standard library for modules that commands import.

``frozen`` makes a frozen class with slots, as nearly all are; ``entity`` one whose objects are equal only
to themselves, such as columns, which have no ``==``, and what holds a lock; ``mutable`` one whose
objects are equal only to themselves and change.

The standard library compiles six methods of a frozen class, in 0.7 ms, and a command on a small file
builds a hundred classes: half of its time. Here all classes share the functions for ``repr``, ``==``
and ``hash``, which give the same results. ``__init__`` and the guards of frozen classes stay its own.
"""

from dataclasses import asdict, field, fields, replace
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, dataclass_transform

__all__ = ["asdict", "dataclass", "entity", "field", "fields", "frozen", "mutable", "replace"]

if TYPE_CHECKING:
    from dataclasses import dataclass

    @dataclass_transform(frozen_default=True, field_specifiers=(field,))
    def frozen(cls: Any = None, /, **options: bool) -> Any: ...

    @dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
    def entity(cls: Any = None, /, **options: bool) -> Any: ...

    @dataclass_transform(eq_default=False, field_specifiers=(field,))
    def mutable(cls: Any = None, /, **options: bool) -> Any: ...
else:
    from dataclasses import dataclass as standard

    def dataclass(cls=None, /, *, repr=True, eq=True, frozen=False, **options):
        if cls is None:
            return lambda cls: dataclass(cls, repr=repr, eq=eq, frozen=frozen, **options)
        own = vars(cls)
        # Without a docstring, one with the signature would be written, which takes 0.2 ms.
        cls.__doc__ = cls.__doc__ or cls.__name__
        if repr and "__repr__" not in own:
            cls.__repr__ = _repr
        if eq:
            has_hash = own.get("__hash__") is not None
            cls.__eq__ = own.get("__eq__", _eq)
            cls.__hash__ = own["__hash__"] if has_hash else _hash if frozen else None
        return standard(cls, repr=False, eq=False, frozen=frozen, **options)

    def frozen(cls=None, /, **options):
        return dataclass(cls, frozen=True, slots=True, **options)

    def entity(cls=None, /, **options):
        return frozen(cls, eq=False, **options)

    def mutable(cls=None, /, *, eq=False, **options):
        return dataclass(cls, slots=True, eq=eq, **options)


@recursive_repr("...")
def _repr(self: Any) -> str:
    shown = (each.name for each in fields(self) if each.repr)
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({values})"


_GETTERS: dict[type, Any] = {}
"""By class, the function that returns the fields which are compared."""


def _key(self: Any) -> tuple[Any, ...]:
    cls = type(self)
    if cls not in _GETTERS:
        names = [each.name for each in fields(cls) if each.compare]
        # With fewer than two names, an ``attrgetter`` returns no tuple.
        few = lambda self: tuple(getattr(self, name) for name in names)  # noqa: E731
        _GETTERS[cls] = attrgetter(*names) if len(names) > 1 else few
    key: tuple[Any, ...] = _GETTERS[cls](self)
    return key


def _eq(self: Any, other: object) -> Any:
    return _key(self) == _key(other) if type(self) is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_key(self))
