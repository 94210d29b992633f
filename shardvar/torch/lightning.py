"""Lightning's checkpoints in a folder each, committed whole and with checksums.

``Trainer(plugins=[CheckpointIO()])`` saves and resumes with it. Lightning gives the whole state to process
0, which writes. Strategies that divide the model (FSDP) do not ask a ``CheckpointIO``.
"""

import os
from typing import Any

from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from shardvar.torch.trees import load_tree, save_tree
from shardvar.verbs.remove import remove


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
