"""Values of a pytree that this process holds, and a copy of them for a save in the background.

tensors   the local shards of arrays, on the host; a copy puts them into memory that is kept
          between saves, and fetches what lies on other devices
objects   plain values, encoded when the state is read
processes what connects them
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import jax
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
from shardvar.verbs.background import Staging
from shardvar.verbs.together.local_shards import LocalShard
from shardvar.verbs.together.run import Peers
from shardvar.verbs.training.resuming import gather
from shardvar.verbs.training.states import encode_object


@dataclass(frozen=True, slots=True, eq=False)
class HeldTree:
    """The values of a pytree that this process is to write."""

    tensors: Mapping[str, list[LocalShard]]
    """The regions of tensors."""
    changing: frozenset[str]
    """The keys of values of NumPy, which may change after the call."""
    about: Metadata
    """The texts, the objects, and the steps to all leaves, also to empty ones."""


def held_tree(state: Any, texts: Mapping[str, str]) -> HeldTree:
    """Return what this process is to write of a pytree; nothing is copied on the host."""
    leaves, _ = tree_leaves(state)
    tensors: dict[str, list[LocalShard]] = {}
    changing = set()
    objects: dict[str, bytes] = {}
    user = dict(texts)
    for key, leaf in sorted(leaves.items()):  # in one order in all processes
        try:
            form = form_of(leaf.value)
            if form is None:
                objects[key] = encode_object(leaf.value)
            elif is_jax_array(leaf.value):
                tensors[key] = written_shards(leaf.value)
            else:
                array = np.asarray(leaf.value)
                changing.add(key)
                tensors[key] = [LocalShard(array, (0,) * array.ndim, array.shape)]
            if form is not None and form.key_impl is not None:
                user[KEY_IMPL + key] = str(form.key_impl)
        except ShardvarError as error:
            raise error.at(repr(key)) from None
    empty = empty_leaves(state)
    paths = {key: leaf.path for key, leaf in leaves.items()}
    paths |= {key: steps for key, (steps, _) in empty.items()}
    kinds = {key: kind for key, (_, kind) in empty.items()}
    about = Metadata(user=user, paths=paths, objects=objects, empty=kinds)
    return HeldTree(tensors, frozenset(changing), about)


def copied_tree(held: HeldTree, memory: Staging, most: int | None) -> HeldTree:
    """Return values that no longer change; the copies are in memory that is kept, of at most
    ``most`` bytes, until the next copy.

    Arrays of JAX never change, unless another library writes to memory that they share, which JAX
    forbids. One that NumPy views on the host is not copied: JAX keeps its memory as long as the view,
    and donates it to no other array.
    """
    tensors = {key: [*shards] for key, shards in held.tensors.items()}
    places: list[tuple[list[LocalShard], int]] = []
    arrays = []
    for key, shards in tensors.items():
        for row, shard in enumerate(shards):
            array = np.asarray(shard.array)
            if array.dtype.hasobject:  # a copy of their addresses would share the strings
                shards[row] = LocalShard(array.copy(), shard.offset, shard.full_shape)
            elif key in held.changing or array is not shard.array:
                places.append((shards, row))
                arrays.append(array)
    for (shards, row), copy in zip(places, memory.copy(arrays, most), strict=True):
        shards[row] = LocalShard(copy, shards[row].offset, shards[row].full_shape)
    return replace(held, tensors=tensors)


# --- The processes


class _Group:
    """The store of keys of the service that connects the processes of JAX."""

    def tell(self, key: str, text: str) -> None:
        with suppress(RuntimeError):
            _client().key_value_set(f"shardvar/{key}", text, allow_overwrite=True)

    def told(self, key: str) -> str | None:
        try:
            return str(_client().key_value_try_get(f"shardvar/{key}"))
        except RuntimeError:  # of a key that is not there, and of a service that has ended
            return None

    def ended(self, processes: Sequence[int]) -> list[int]:  # noqa: ARG002 - the service ends all
        return []


def _client() -> Any:
    return jax._src.distributed.global_state.client


def connected_processes() -> Peers | None:
    """Return the processes that JAX connects; None without others."""
    return _Group() if _client() is not None and jax.process_count() > 1 else None


def gather_integers(mine: Sequence[int], timeout: float = 600.0) -> list[list[int]]:
    """Return the integers that each process gives; every process calls this, in the same order.

    Through the service that connects the processes of JAX, which needs no directory.

    Parameters
    ----------
    mine : sequence of int
        The integers of this process.
    timeout : float, default 600.0
        The seconds to wait for other processes.

    Raises
    ------
    IncompleteCheckpoint
        If a process does not come within ``timeout``.

    Examples
    --------
    ``shardvar.jax.gather([7])``
    """
    return gather(connected_processes(), (jax.process_index(), jax.process_count()), mine, timeout)
