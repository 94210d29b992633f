"""ShardableTensor: a tensor, or a slice of one, with what a callback may want to know of it."""

from typing import Any, NamedTuple

import numpy as np

from shardvar.planning.slices import LOCAL_DEVICE, task_of


class ShardableTensor(NamedTuple):
    """R-POLICY-11 (RFC 001): "all the information about a tensor that a user will need to perform custom sharding".

    A named tuple rather than a dataclass because a hundred thousand of them are made in a tenth of a second; like the
    latter it is frozen. Two are equal only if they are one: their tensors are not compared, nor read.
    """

    tensor: Any
    """The values: a ``LazySlice``, which reads none of them until it is asked to, or in a callback's hand any array."""
    dtype: np.dtype[Any]
    """The dtype of the elements; ``object`` for strings."""
    device: str
    """The full name of the device that holds it in memory."""
    name: str
    """The name of the variable that it is of, or the key where there is none."""
    shape: tuple[int, ...]
    """The shape of what is held here: of the slice, not of the whole tensor."""
    slice_spec: str
    """Which part of the whole tensor that is, as TensorFlow writes it: ``"13 4 3,3:0,4"``; empty for all of it."""
    checkpoint_key: str
    """The key in the checkpoint; slices of one tensor have one."""
    trackable: Any = None
    """The object that it is saved for; None for arrays, and for the graph of objects."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(self)

    @property
    def task(self) -> str:
        """The task of the device; tensors of different tasks may not share a file."""
        return task_of(self.device or LOCAL_DEVICE)
