"""Frameworks: the functions by which a training loop saves and loads its state."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from shardvar.errors import UnsupportedError
from shardvar.formats.table import format_named
from shardvar.verbs.load import load
from shardvar.verbs.save import save


class Framework(Protocol):
    """Functions that save and load steps.

    The modules ``shardvar.torch`` and ``shardvar.jax`` have them, and so may an object of your own. With
    ``gather``, the processes agree through the group that connects them, and write nothing to restore.
    """

    # The types of the arguments are open: functions may have any others.

    def save(self, *arguments: Any, **options: Any) -> Any:
        """Save the share of this process, as ``sv.save_shards`` does.

        The arguments are the path, the state, ``run=``, ``metadata=``, and what the caller adds.
        """

    def load(self, *arguments: Any, **options: Any) -> Any:
        """Load what this process needs; raise a ``CheckpointError`` if the checkpoint is damaged.

        The arguments are the path, and what the caller adds.
        """

    def processes(self) -> tuple[int, int]:
        """Return the number of this process, and the number of processes."""


@runtime_checkable
class GatheringFramework(Framework, Protocol):
    """Functions whose processes are connected."""

    def gather(self, mine: list[int], timeout: float) -> list[list[int]]:
        """Return the integers that each process gives."""


class Arrays:
    """Arrays of NumPy in one process."""

    def save(
        self, path: str, state: Any, *, run: str, metadata: Mapping[str, str], **options: Any
    ) -> Any:
        """Save with ``sv.save``."""
        del run
        return save(path, state, metadata=metadata, **options)

    def load(self, path: str, *arguments: Any, **options: Any) -> Any:
        """Load with ``sv.load``."""
        return load(path, *arguments, **options)

    def processes(self) -> tuple[int, int]:
        """Return the only process."""
        return 0, 1


def check_takes_base(function: Callable[..., Any]) -> None:
    """Raise ``UnsupportedError`` if a function that saves has no argument ``base``."""
    parameters = inspect.signature(function).parameters
    is_open = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    if "base" not in parameters and not is_open:
        cause = "incremental=True: the function that saves has no argument base."
        raise UnsupportedError(cause, "Leave it out, and save whole steps.")


def check_value(form: object) -> None:
    """Raise ``UnsupportedError`` if a format has no metadata for a value."""
    if isinstance(form, str) and not format_named(form).capabilities.holds_texts:
        cause = f"The format {form} keeps no metadata, and so no value of a step."
        raise UnsupportedError(cause, "Save in the format shardvar, or without a value.")
