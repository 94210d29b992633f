"""Trackable: an object that knows its children by name, and tells whoever waits for one when it appears.

A restore may come before the objects that it restores. Whoever restores leaves a hook on the parent; ``track`` calls it
with each child that appears, and the hook may leave another on that child. So a variable is restored when it is
attached, before anyone can read it, and this layer need not know what restoring is. The hook belongs to the object, not
to the process: two restores of two models never meet.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, TypeVar

from shardvar.errors import ArgumentTypeError

_T = TypeVar("_T", bound="Trackable")

ChildHook = Callable[["Trackable", str, "Trackable"], None]
"""Called as ``hook(parent, name, child)`` once the child is in its parent's table."""


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """What a child is that is kept beside another object, as an optimizer keeps moments beside a variable."""

    beside: "Trackable"
    """The other object."""
    name: str
    """What is kept, such as "momentum": the child is found by the other object and this, whatever its own name is."""


class Trackable:
    """An object whose state is that of its named children, and its own.

    All attributes are made when first needed, so that a subclass need not call ``__init__``.
    """

    _children: dict[str, "Trackable"]
    _child_slots: dict[str, Slot]
    _child_hook: ChildHook | None

    other_names: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """How other libraries call children and slots of such objects, by their names here: checkpoints are read and
    written under both."""

    @property
    def children(self) -> Mapping[str, "Trackable"]:
        """The tracked children by name, in the order in which the names appeared; a view that cannot be written."""
        return MappingProxyType(self.__dict__.get("_children", {}))

    @property
    def child_slots(self) -> Mapping[str, Slot]:
        """Those of the children that are slots, by their names; a view that cannot be written."""
        return MappingProxyType(self.__dict__.get("_child_slots", {}))

    def track_slot(self, name: str, child: _T, beside: "Trackable", slot_name: str) -> _T:
        """``track`` a child that is kept beside another object."""
        self.__dict__.setdefault("_child_slots", {})[name] = Slot(beside, slot_name)
        return self.track(name, child)

    def track(self, name: str, child: _T) -> _T:
        """Make ``child`` the child of that name, tell the hook, and return it; a child of the same name is replaced."""
        if not isinstance(child, Trackable):
            raise ArgumentTypeError(f"The child {name!r} is {child!r}.", "Track objects that are Trackable.")
        self.__dict__.setdefault("_children", {})[name] = child
        hook: ChildHook | None = self.__dict__.get("_child_hook")
        if hook is not None:
            hook(self, name, child)
        return child

    def untrack(self, name: str) -> None:
        """Forget the child of that name, if there is one."""
        self.__dict__.get("_children", {}).pop(name, None)
        self.__dict__.get("_child_slots", {}).pop(name, None)

    def await_children(self, hook: ChildHook | None) -> None:
        """Leave a hook for the children that will appear from now on, or take it away with None."""
        self.__dict__["_child_hook"] = hook
