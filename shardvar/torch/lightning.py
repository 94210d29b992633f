"""Lightning's checkpoints in a folder each, committed whole and with checksums.

``Trainer(plugins=[CheckpointIO()])`` saves and resumes with it. Lightning gives the whole state to process
0, which writes. Strategies that divide the model (FSDP) do not ask a ``CheckpointIO``.

The state is a dict without a template to load it:

save    the tensors by their keys, and one plain value: the rest, with the key of each tensor in its place
load    that value, and new tensors in their places
"""

import os
import secrets
from collections.abc import Mapping
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from shardvar.torch.leaves import torch_dtype
from shardvar.torch.training_states import alone, load_state, save_state
from shardvar.verbs.load import open_checkpoint
from shardvar.verbs.locate import Path
from shardvar.verbs.remove import remove

__all__ = ["CheckpointIO"]

_REST, _TENSOR = "shardvar.rest", "shardvar.tensor"
"""The key of the plain value; the only key of a dict in the place of a tensor."""


def save_tree(path: Path, tree: Mapping[str, Any], **options: Any) -> Any:
    """Save a dict as the only process, with further options of ``shardvar.torch.save``."""
    state: dict[str, Any] = {}
    state[_REST] = (_without_tensors(tree, "", state),)  # a value, and no dict of values
    with alone():
        return save_state(path, state, run=secrets.token_hex(8), **options)


def load_tree(path: Path, device: Any = None) -> dict[str, Any]:
    with open_checkpoint(path) as reader:
        facts = reader.listed().slices.tensors.facts()
    state: dict[str, Any] = {
        key: torch.empty(shape, dtype=dtype, device=device)
        for key, (name, shape) in facts.items()
        if (dtype := torch_dtype(name)) is not None
    }
    state[_REST] = None
    with alone():
        load_state(path, state)
    found: dict[str, Any] = _with_tensors(state[_REST][0], state)
    return found


def _without_tensors(value: Any, key: str, tensors: dict[str, Any]) -> Any:
    if isinstance(value, torch.Tensor):
        while key in tensors:
            key += "_"
        tensors[key] = value
        return {_TENSOR: key}
    if isinstance(value, Mapping):
        below = f"{key}." if key else ""
        return {k: _without_tensors(each, f"{below}{k}", tensors) for k, each in value.items()}
    if type(value) in (list, tuple):
        items = enumerate(value)
        return type(value)(_without_tensors(each, f"{key}.{n}", tensors) for n, each in items)
    return value


def _with_tensors(value: Any, tensors: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            return tensors[value[_TENSOR]]
        return {key: _with_tensors(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_tensors(each, tensors) for each in value)
    return value


class CheckpointIO(TorchCheckpointIO):  # type: ignore[misc]
    """A plugin of Lightning's ``Trainer``.

    Parameters
    ----------
    **options : Any
        More arguments of ``shardvar.torch.save``, such as ``background=True`` or ``digest=True``.

    Notes
    -----
    Files that Lightning has written before are also loaded. Hyperparameters and states of callbacks must be
    plain values and tensors, unless ``format="torch"`` is given.

    Examples
    --------
    ``Trainer(plugins=[CheckpointIO(background=True)])``
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options
        self._pending: Any = None

    # Lightning calls the rest, and documents it.

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        self.teardown()
        saved = save_tree(os.path.join(path, ""), checkpoint, **self._options)  # in a folder
        self._pending = saved if self._options.get("background") else None

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        self.teardown()
        if os.path.isfile(path):
            found: dict[str, Any] = super().load_checkpoint(path, map_location, weights_only)
            return found
        return load_tree(path, None if callable(map_location) else map_location)

    def remove_checkpoint(self, path: Any) -> None:
        self.teardown()
        if os.path.isfile(path):
            super().remove_checkpoint(path)
        else:
            remove(path)

    def teardown(self) -> None:
        """Wait for a save in the background."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
