"""The state that objects keep themselves: arrays by names of their own, taken by all of them or by none."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy.typing as npt

from shardvar.checkpoint.arguments import as_array
from shardvar.checkpoint.reader import Reader
from shardvar.tracking import Stateful

States = Sequence[tuple[Stateful, Mapping[str, str]]]
"""Objects, each with the keys of its own state by its names."""
State = tuple[Stateful, Mapping[str, npt.NDArray[Any]]]
"""An object, and what it is to take."""


def read_states(reader: Reader, wanted: States) -> list[State]:
    """What each object is to take: the values of its keys, under its names."""
    return [(each, {name: reader.read(key) for name, key in keys.items()}) for each, keys in wanted]


def take_states(states: Sequence[State]) -> None:
    """Have each object take its state; where one refuses, those before it are given back what they had."""
    before = [{name: as_array(name, value).copy() for name, value in each.state().items()} for each, _ in states]
    with ExitStack() as undo:
        for (each, values), old in zip(states, before, strict=True):
            each.restore_state(values)
            undo.callback(each.restore_state, old)
        undo.pop_all()
