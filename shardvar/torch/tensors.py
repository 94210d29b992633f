"""Tensors of torch, and the arrays that shardvar reads and writes for them."""

from typing import Any

import numpy as np
import torch

from shardvar.formats.torch.values import DTYPES
from shardvar.layout.dtypes import TORCH_ONLY, Array, numpy_dtype

_NAMES = frozenset(DTYPES.values()) - {*TORCH_ONLY}
"""The dtypes that torch shares with NumPy or ``ml_dtypes``."""
DTYPES_READ = frozenset(getattr(torch, name) for name in _NAMES if hasattr(torch, name))
"""The same as dtypes of torch."""
_BITS = {1: torch.uint8, 2: torch.int16}
"""A dtype that NumPy and torch share, by the size of an element."""


def torch_dtype(name: str) -> Any:
    """Return torch's dtype of a name; None if no tensor can be made of its values."""
    return getattr(torch, name, None) if name in _NAMES else None


def as_tensor(array: Array, name: str) -> Any:
    """Return a tensor that shares the memory of an array of the dtype ``name``.

    What only ``ml_dtypes`` has goes by its bits.
    """
    if hasattr(np, name):
        return torch.from_numpy(array)
    bits = _BITS[array.dtype.itemsize]
    shared = array.view(str(bits).removeprefix("torch."))
    return torch.from_numpy(shared).view(torch_dtype(name))


def shared_tensor(array: Array) -> Any:
    """Return a tensor with the elements of any array, which it shares where torch can."""
    is_shared = (
        array.dtype.isnative and array.flags.writeable and all(each >= 0 for each in array.strides)
    )
    shared = array if is_shared else array.astype(array.dtype.newbyteorder("="))
    return as_tensor(shared, array.dtype.name)


def memory_of(tensor: Any) -> Array | None:
    """Return the elements of a tensor as an array that shares its memory; None if another device has
    them, or they are to be conjugated or negated."""
    is_plain = tensor.layout is torch.strided and not (tensor.is_conj() or tensor.is_neg())
    if tensor.device.type != "cpu" or not is_plain:
        return None
    name = str(tensor.dtype).removeprefix("torch.")
    if hasattr(np, name):
        array: Array = tensor.numpy()
        return array
    bits: Array = tensor.view(_BITS[tensor.element_size()]).numpy()
    return bits.view(numpy_dtype(name))
