"""Trackable objects: children with names, slots, state, and a hook for children that appear later.

A restore may come before the objects that it restores. It leaves a hook on the parent, and
``track`` calls the hook with each child that appears; the hook may leave another one on that child.
So a variable is restored when it is attached, before other code can read it, and this layer need
not know what restoring is. Several restores may wait for the children of one object, so it may have
several hooks. They belong to the object, not to the process: restores of two models never meet.

The state of a variable is its value. The state of most objects is the state of their children.
``Stateful`` is for the rest (a vocabulary, the position in an input, a schedule): such an object
names arrays to save, and takes them back. Each array is a tensor of the checkpoint, under the key
``path/.ATTRIBUTES/name``.

Subclasses need not call ``__init__``: every attribute of this module is made in ``__dict__`` when
it is first needed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import numpy.typing as npt

from shardvar.errors import ArgumentTypeError

_T = TypeVar("_T", bound="Trackable")

ChildHook = Callable[["Trackable", str, "Trackable"], None]
"""Called as ``hook(parent, name, child)`` once the child is in its parent's table."""


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """The role of a child that belongs to another object, as moments to a variable."""

    variable: "Trackable"
    """The object that the child belongs to."""
    name: str
    """The role, such as "momentum". The child is found by ``variable`` and this name, not by its
    own name."""


class Trackable:
    """An object whose state is its own and its named children's."""

    _children: dict[str, "Trackable"]
    _child_slots: dict[str, Slot]
    _child_hooks: tuple[ChildHook, ...]

    other_names: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Names of children and slots in other libraries, by their names here. Checkpoints are read and
    written under both."""

    @property
    def children(self) -> Mapping[str, "Trackable"]:
        """The tracked children by name, in the order of appearance; a read-only view."""
        return MappingProxyType(self.__dict__.get("_children", {}))

    @property
    def child_slots(self) -> Mapping[str, Slot]:
        """The roles of the children that are slots, by the children's names; a read-only view."""
        return MappingProxyType(self.__dict__.get("_child_slots", {}))

    def track_slot(self, name: str, child: _T, beside: "Trackable", slot_name: str) -> _T:
        """Track a child that belongs to another object as its slot.

        Parameters
        ----------
        name : str
            The name of the child.
        child : Trackable
            The child.
        beside : Trackable
            The object that the child belongs to.
        slot_name : str
            The role of the child there, such as "momentum".

        Returns
        -------
        Trackable
            The child.

        Raises
        ------
        ArgumentTypeError
            If ``child`` is not a ``Trackable``.
        """
        # The role comes first: the hook that ``track`` calls looks it up.
        self.__dict__.setdefault("_child_slots", {})[name] = Slot(beside, slot_name)
        return self.track(name, child)

    def track(self, name: str, child: _T) -> _T:
        """Add a child, in the place of an older one of its name, and call the hooks.

        Parameters
        ----------
        name : str
            The name of the child.
        child : Trackable
            The child.

        Returns
        -------
        Trackable
            The child.

        Raises
        ------
        ArgumentTypeError
            If ``child`` is not a ``Trackable``.
        """
        if not isinstance(child, Trackable):
            raise ArgumentTypeError(
                f"The child {name!r} is {child!r}.", "Track objects that are Trackable."
            )
        # The child is in the table before a hook runs, so that the hook may walk the graph from
        # here.
        self.__dict__.setdefault("_children", {})[name] = child
        for hook in self.child_hooks:
            hook(self, name, child)
        return child

    def untrack(self, name: str) -> None:
        """Remove a child, if there is one of that name.

        Parameters
        ----------
        name : str
            The name of the child.
        """
        self.__dict__.get("_children", {}).pop(name, None)
        self.__dict__.get("_child_slots", {}).pop(name, None)

    @property
    def child_hooks(self) -> tuple[ChildHook, ...]:
        """The hooks for children that appear, in the order in which they are called."""
        hooks: tuple[ChildHook, ...] = self.__dict__.get("_child_hooks", ())
        return hooks

    def await_children(self, *hooks: ChildHook) -> None:
        """Set the hooks for children that appear from now on, in the place of those before.

        Parameters
        ----------
        *hooks : callable
            Called as ``hook(parent, name, child)`` once the child is in its parent's table.
        """
        self.__dict__["_child_hooks"] = hooks


class Stateful(Trackable, ABC):
    """A trackable object with state in addition to its children's.

    Examples
    --------
    >>> import numpy as np
    >>> class Vocabulary(Stateful):
    ...     def __init__(self, words):
    ...         self.words = words
    ...
    ...     def state(self):
    ...         return {"words": np.array(self.words, dtype=object)}
    ...
    ...     def restore_state(self, values):
    ...         self.words = list(values["words"])
    >>> vocabulary = Vocabulary([b"a"])
    >>> vocabulary.restore_state(Vocabulary([b"b", b"c"]).state())
    >>> vocabulary.words
    [b'b', b'c']
    """

    @abstractmethod
    def state(self) -> Mapping[str, npt.ArrayLike]:
        """Return the arrays to save.

        Returns
        -------
        mapping of str to array_like
            The arrays by names that this object chooses.

        Notes
        -----
        Called once a save, in the thread that saves, before the values of variables are taken; the
        arrays are copied then. Also called before a restore: the answer goes back to
        ``restore_state`` if the restore fails.
        """

    @abstractmethod
    def restore_state(self, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take the arrays of a checkpoint.

        Parameters
        ----------
        values : mapping of str to ndarray
            The arrays by their names, with the dtypes and shapes that they were stored with.

        Notes
        -----
        Called once a restore, before any variable is written. To refuse the arrays, raise any error
        and change nothing: the whole checkpoint is then refused, and objects that took theirs
        before get back what they had.
        """
