"""sv.Module: an object whose attributes are its state.

An attribute that has state (a variable, a module, a list of them) becomes a child of that name, in *folded* form: a
sharded variable is one child, and so is saved and restored as one. ``variables`` gives them in *expanded* form: what
gradients and optimizers work on are the shards. R-FORM-1 (RFC 000): "Folded form: sharded variable is represented as a
ShardedVariable instance. Expanded form: sharded variable is expanded to a list of variables." Its appendix has a table:

    | where  | when                           | form     |
    | Module | as attribute                   | folded   |
    | Module | variables, trainable_variables | expanded |

The order is fixed: a module's own attributes alphabetically, then those of the modules found in them, in the same
order; lists and tuples in their order, dictionaries by their sorted keys; what was met before is not given again.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shardvar.errors import ArgumentTypeError
from shardvar.tracking import Trackable
from shardvar.training.containers import as_attribute, node_of
from shardvar.variables import ShardedVariable, Variable

_UNTRACKED = ("_children", "_child_slots", "_child_hook")


class Module(Trackable):
    """The base class of layers and models.

    >>> class Dense(Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.w = ShardedVariable([Variable([[1.0]], name="w/part_0"), Variable([[2.0]], name="w/part_1")])
    ...         self.b = Variable([0.0], name="b")
    >>> dense = Dense()
    >>> list(dense.children), [variable.name for variable in dense.variables]
    (['w', 'b'], ['b', 'w/part_0', 'w/part_1'])
    """

    def __init__(self, name: str | None = None) -> None:
        if not isinstance(name, str | None):
            raise ArgumentTypeError(f"The name {name!r} is no text.", "Give a str.")
        self._name = name

    @property
    def name(self) -> str:
        """The name that it was given, else its class's: ``UserModel`` is ``user_model``."""
        given: str | None = self.__dict__.get("_name")
        return given or re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(self).__name__).lower()

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All variables of this module and of those in it.

        R-MODULE-2 (RFC 000): "If a sharded variable is assigned to an attribute, the variables or trainable_variables
        can collect its component variables as opposed to the ShardedVariable instance".
        """
        return tuple(leaf for leaf in _leaves(self) if isinstance(leaf, Variable))

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """Those of ``variables`` that are trainable."""
        return tuple(variable for variable in self.variables if variable.trainable)

    @property
    def non_trainable_variables(self) -> tuple[Variable, ...]:
        """Those of ``variables`` that are not trainable."""
        return tuple(variable for variable in self.variables if not variable.trainable)

    @property
    def submodules(self) -> tuple["Module", ...]:
        """The modules in it, at any depth, in the order of ``variables``."""
        return tuple(leaf for leaf in _leaves(self) if isinstance(leaf, Module))

    def __setattr__(self, name: str, value: Any) -> None:
        kept = as_attribute(value)
        super().__setattr__(name, kept)
        node = node_of(kept)
        if node is None:
            self.untrack(name)
        elif self.__dict__.get(name) is kept:  # a property's setter keeps it elsewhere, under a name of its own
            self.track(name, node)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self.untrack(name)


def _leaves(root: Module) -> Iterator[Any]:
    """The variables and modules under ``root``, each once; breadth first within a module, then module by module.

    An explicit stack: models may be deeper than Python's own.
    """
    seen = {id(root)}
    ahead = [iter([root])]
    while ahead:
        module = next(ahead[-1], None)
        if module is None:
            ahead.pop()
            continue
        inner = []
        for leaf in _flat(vars(module)[name] for name in sorted(vars(module).keys() - set(_UNTRACKED))):
            if id(leaf) in seen:
                continue
            seen.add(id(leaf))
            yield leaf
            if isinstance(leaf, Module):
                inner.append(leaf)
        ahead.append(iter(inner))


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    """The variables and modules among the values and in their containers; sharded variables expanded."""
    ahead = [iter(values)]
    entered: set[int] = set()
    while ahead:
        value = next(ahead[-1], ahead)
        if value is ahead:
            ahead.pop()
        elif isinstance(value, ShardedVariable):
            yield from value.variables
        elif isinstance(value, Variable | Module):
            yield as_attribute(value)  # which refuses what became a shard after it became an attribute
        elif isinstance(value, list | tuple | Mapping) and id(value) not in entered:  # a list may contain itself
            entered.add(id(value))
            ahead.append(iter([value[key] for key in _sorted_keys(value)] if isinstance(value, Mapping) else value))


def _sorted_keys(mapping: Mapping[Any, Any]) -> list[Any]:
    try:
        return sorted(mapping)
    except TypeError:  # keys of several kinds have no order but that of insertion
        return list(mapping)
