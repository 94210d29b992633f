"""Values of a pytree that this process holds, and a copy of them for a save in the background.

tensors   the local shards of arrays, on the host; a copy puts them into memory that is kept
          between saves, and fetches what lies on other devices
objects   plain values, encoded when the state is read
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardvar.errors import ShardvarError
from shardvar.jax.leaves import (
    empty_leaves,
    form_of,
    is_jax_array,
    tree_leaves,
    written_shards,
)
from shardvar.planning.index import KEY_IMPL, Metadata
from shardvar.verbs.staging import Staging
from shardvar.verbs.together.local_shards import LocalShard
from shardvar.verbs.training.states import encode_object


@dataclass(frozen=True, slots=True, eq=False)
class HeldTree:
    """The values of a pytree that this process is to write."""

    tensors: Mapping[str, list[LocalShard]]
    """The regions of tensors."""
    about: Metadata
    """The texts, the objects, and the steps to all leaves, also to empty ones."""


def held_tree(state: Any, texts: Mapping[str, str]) -> HeldTree:
    """Return what this process is to write of a pytree; nothing is copied on the host."""
    leaves, _ = tree_leaves(state)
    tensors: dict[str, list[LocalShard]] = {}
    objects: dict[str, bytes] = {}
    user = dict(texts)
    for key, leaf in leaves.items():
        try:
            form = form_of(leaf.value)
            if form is None:
                objects[key] = encode_object(leaf.value)
            elif is_jax_array(leaf.value):
                tensors[key] = written_shards(leaf.value)
            else:
                array = np.asarray(leaf.value)
                tensors[key] = [LocalShard(array, (0,) * array.ndim, array.shape)]
            if form is not None and form.key_impl is not None:
                user[KEY_IMPL + key] = str(form.key_impl)
        except ShardvarError as error:
            raise error.at(repr(key)) from None
    empty = empty_leaves(state)
    paths = {key: leaf.path for key, leaf in leaves.items()}
    paths |= {key: steps for key, (steps, _) in empty.items()}
    kinds = {key: kind for key, (_, kind) in empty.items()}
    return HeldTree(tensors, Metadata(user=user, paths=paths, objects=objects, empty=kinds))


def copied_tree(held: HeldTree, memory: Staging, most: int | None) -> HeldTree:
    """Return the values in memory that is kept, of at most ``most`` bytes, until the next copy."""
    shards = [each for held_shards in held.tensors.values() for each in held_shards]
    arrays = [np.asarray(each.array) for each in shards]
    # Strings are objects of Python, which a copy of their addresses would share.
    numbers = [row for row, array in enumerate(arrays) if not array.dtype.hasobject]
    copies = dict(zip(numbers, memory.copy([arrays[row] for row in numbers], most), strict=True))
    made = iter(
        LocalShard(copies[row] if row in copies else array.copy(), each.offset, each.full_shape)
        for row, (each, array) in enumerate(zip(shards, arrays, strict=True))
    )
    tensors = {key: [next(made) for _ in shards] for key, shards in held.tensors.items()}
    return replace(held, tensors=tensors)
