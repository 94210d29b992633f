"""Tensors that an overview keeps apart from a model: the slots of optimizers, and the object
graph of TensorFlow."""

import re
from collections.abc import Sequence

from shardvar.cli.output import count
from shardvar.cli.tensors import Tensor

SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
"""The end of the keys of TensorFlow's checkpoints of objects."""
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_SLOT = re.compile(
    r"(.+)/\.OPTIMIZER_SLOT/.+/([^/]+)|(?:.+\.)?optim(?:izer)?\.state\.(.+)\.([^.]+)"
)
"""A slot in TensorFlow's checkpoints of objects, without the suffix, or in PyTorch's: the variable,
the slot's name."""


def fold_state(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], list[str]]:
    """Return the tensors of the tree, the slots that share a line, and the words for what the tree
    leaves out."""
    graph = [each for each in tensors if each.key == _GRAPH]
    slots = [each for each in tensors if _SLOT.fullmatch(each.key.removesuffix(SUFFIX))]
    if len(slots) + len(graph) == len(tensors):  # the checkpoint of only an optimizer
        slots = []
    apart = {each.key for each in (*graph, *slots)}
    shown = [each for each in tensors if each.key not in apart]
    left_out = [SUFFIX] if any(each.key.endswith(SUFFIX) for each in tensors) else []
    left_out += ["the object graph"] if graph else []
    left_out += [count(len(slots), "slot")] if slots else []
    return shown, slots, left_out


def slot_name(key: str) -> str:
    """Return the name of the slot of an optimizer that has this key; empty for another key.

    >>> slot_name("optimizer.state.w.exp_avg")
    'exp_avg'
    """
    found = _SLOT.fullmatch(key.removesuffix(SUFFIX))
    return (found[2] or found[4]) if found else ""


def slot_names(slots: Sequence[Tensor]) -> list[str]:
    """Return the names of slots, each once."""
    return list(dict.fromkeys(slot_name(each.key) for each in slots))
