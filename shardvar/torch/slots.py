"""Slots of an optimizer that has not made a step: it has no state yet, and a checkpoint has some.

A trainer that resumes makes a new optimizer, and PyTorch fills its state at its first step. So ``load``
makes what the checkpoint has for each parameter: a slot of the parameter's shape is divided as the
parameter is, any other one, such as a step, is a tensor that is not divided.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from shardvar.torch.leaves import Leaf, LoadedObject
from shardvar.torch.tensors import torch_dtype
from shardvar.verbs.reader import Reader

_STATE, _GROUPS, _PARAMS = "state", "param_groups", "params"
"""The keys of an optimizer's state."""


def new_slots(
    reader: Reader, stored: Collection[str], owners: Sequence[LoadedObject], known: Collection[str]
) -> dict[str, Leaf]:
    """Return slots that the checkpoint has and optimizers lack, by key; they are put into the
    states of ``owners``, to be filled."""
    found: dict[str, Leaf] = {}
    for each in owners:
        if not isinstance(each.owner, torch.optim.Optimizer):
            continue
        params = _parameters(each)
        path = (*each.path, _STATE)
        prefix = "".join(f"{step}." for step in path)
        for key in stored:
            if not key.startswith(prefix) or key in known:
                continue
            number, _, slot = key.removeprefix(prefix).partition(".")
            for param in params.get(number, ()):
                value = _new_slot(reader, key, param)
                if slot and "." not in slot and value is not NotImplemented:
                    holder = each.state[_STATE].setdefault(int(number), {})
                    holder[slot] = value
                    found[key] = Leaf((*path, number, slot), value, holder, slot)
    return found


def _parameters(optimizer: LoadedObject) -> Mapping[str, tuple[Any]]:
    """Return each parameter, as the only item, by its number in the optimizer's state."""
    return dict(_numbered(optimizer.state[_GROUPS], optimizer.owner.param_groups))


def _numbered(stored: Any, groups: Any) -> Iterator[tuple[str, tuple[Any]]]:
    for numbers, group in zip(stored, groups, strict=True):
        for number, param in zip(numbers[_PARAMS], group[_PARAMS], strict=True):
            yield str(number), (param,)


def _new_slot(reader: Reader, key: str, param: Any) -> Any:
    """Return a tensor without values for a slot, None for a plain value, or ``NotImplemented`` if
    it is unknown how the slot is divided."""
    stored = reader[key]
    dtype = torch_dtype(stored.dtype)
    if dtype is None:
        return None
    if stored.shape == tuple(param.shape):
        return torch.empty_like(param.detach(), dtype=dtype)
    if stored.shape and isinstance(param, DTensor):
        return NotImplemented
    return torch.empty(stored.shape, dtype=dtype)
