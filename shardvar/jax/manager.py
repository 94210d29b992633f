"""The interface of Orbax's ``CheckpointManager`` over ``sv.SavedSteps``, without Orbax.

A loop that is written for Orbax goes on with another import. ``args`` are Orbax's, or anything with an
``item``; of Orbax's options those are taken that mean something here, and others are refused.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

import shardvar.jax as face
from shardvar.errors import ArgumentError, CheckpointNotFound, UnsupportedError
from shardvar.verbs.locate import Path
from shardvar.verbs.remove import remove
from shardvar.verbs.training.saved_steps import SavedSteps

__all__ = ["OrbaxCheckpointManager"]

_TAKEN: dict[str, Any] = {
    "max_to_keep": None,
    "keep_period": None,
    "save_interval_steps": 1,
    "best_fn": None,
    "best_mode": "max",
    "enable_async_checkpointing": True,
}
"""The options of Orbax that are taken, and their defaults."""
_HARMLESS = {"create", "cleanup_tmp_directories", "save_root_metadata", "enable_background_delete"}
"""Options that change no step that is kept."""


class OrbaxCheckpointManager:
    """Saved steps as Orbax's manager has them.

    Parameters
    ----------
    directory : path_like
        The directory or URL, the same in all processes.
    options : orbax.checkpoint.CheckpointManagerOptions, optional
        ``max_to_keep``, ``keep_period``, ``save_interval_steps``, ``best_fn``, ``best_mode`` and
        ``enable_async_checkpointing``.

    Raises
    ------
    UnsupportedError
        If another option is set.

    Notes
    -----
    With ``best_fn`` the best ``max_to_keep`` steps stay, and the newest one.

    Examples
    --------
    ``manager = shardvar.jax.manager.OrbaxCheckpointManager("run", ocp.CheckpointManagerOptions(max_to_keep=3))``
    """

    def __init__(self, directory: Path, options: Any = None) -> None:
        given = {name: getattr(options, name, value) for name, value in _TAKEN.items()}
        for field in dataclasses.fields(options) if options is not None else ():
            value, default = (getattr(each, field.name) for each in (options, type(options)()))
            if field.name not in {*_TAKEN, *_HARMLESS} and value != default:
                cause = f"The option {field.name}={value!r} of Orbax means nothing here."
                raise UnsupportedError(cause, "Leave it out, or use sv.SavedSteps itself.")
        self._interval, self._best = given["save_interval_steps"], given["best_fn"]
        self._is_async, most = given["enable_async_checkpointing"], given["max_to_keep"]
        self._steps = SavedSteps(
            directory,
            using=face,
            keep_last=most if self._best is None or most is None else 1,
            keep_every=given["keep_period"],
            keep_best=(most or 0) if self._best else 0,
            mode=given["best_mode"],
        )

    # Orbax documents the rest.

    @property
    def directory(self) -> str:
        return self._steps.directory

    def all_steps(self, read: bool = False) -> Sequence[int]:
        del read  # the directory is always read
        return [each.number for each in self._steps.steps()]

    def latest_step(self) -> int | None:
        newest = self._steps.newest()
        return None if newest is None else newest.number

    def best_step(self) -> int | None:
        best = self._steps.best() if self._best else self._steps.newest()
        return None if best is None else best.number

    def should_save(self, step: int) -> bool:
        newest = self.latest_step()
        return (newest is None or step > newest) and step % self._interval == 0

    def save(
        self, step: int, args: Any = None, *, metrics: Any = None, force: bool = False
    ) -> bool:
        self._steps.wait()
        newest = self.latest_step()
        if not self.should_save(step) and not (force and (newest is None or step > newest)):
            return False
        value = self._best(metrics) if self._best and metrics is not None else None
        self._steps.save(step, _item(args), value, background=self._is_async)
        return True

    def restore(self, step: int | None = None, args: Any = None) -> Any:
        like = _item(args)
        found = self._steps.restore(like, step=step)
        if found is None:
            cause = f"{self.directory} has no step."
            raise CheckpointNotFound(cause, "Save a step first.")
        return found.loaded

    def delete(self, step: int) -> None:
        self._steps.wait()
        if not face.processes()[0]:
            remove(self._steps.path_of(step))

    def wait_until_finished(self) -> None:
        self._steps.wait()

    check_for_errors = wait_until_finished
    close = wait_until_finished

    def reload(self) -> None:
        """Do nothing: each call reads the directory."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._steps.__exit__(kind, error, trace)


def _item(args: Any) -> Any:
    """Return the tree of ``StandardSave`` and its like; of ``Composite`` one by name."""
    if isinstance(args, Mapping) or hasattr(args, "keys"):
        return {name: _item(args[name]) for name in args.keys()}  # noqa: SIM118
    item = getattr(args, "item", None)
    if item is None:
        cause = f"args={args!r} has no tree."
        raise ArgumentError(cause, "Give StandardSave(state), or StandardRestore(like).")
    return item
