"""The sizes that ``config.json`` next to a checkpoint gives: ``config:num_key_value_heads``."""

import os
from typing import Any

from shardvar.errors import CheckpointError, MapError, StorageError
from shardvar.maps.nearest import did_you_mean
from shardvar.storage.local import split_place
from shardvar.wire.strict_json import parse_json

PREFIX = "config:"
"""The beginning of a name that is looked up in ``config.json``."""
_NAME = "config.json"
_MOST_NBYTES, _MAX_DEPTH = 16 << 20, 64
"""Bytes of a configuration that is read, and the depth of its tables."""
_BY_HAND = "Give the number by hand: --size NAME=N, in Python sizes={'NAME': N}."


def config_size(path: str, name: str) -> int:
    """Return an integer of the ``config.json`` next to a checkpoint.

    ``name`` has a dot for each table that it goes into: ``text_config.hidden_size``.
    """
    where, value = _read(path)
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            near = did_you_mean(part, value if isinstance(value, dict) else ())
            raise MapError(f"{where} has no {name!r}.", f"{near}{_BY_HAND}")
        value = value[part]
    if isinstance(value, bool) or not isinstance(value, int):
        raise MapError(f"{where} has {value!r} as {name!r}, not an integer.", _BY_HAND)
    return value


def _read(path: str) -> tuple[str, Any]:
    """The place of the configuration next to a checkpoint, and what it holds."""
    # Of a folder, it lies inside; of a file, next to it.
    for folder in dict.fromkeys((os.path.join(path, ""), os.path.join(os.path.dirname(path), ""))):
        try:
            storage, _ = split_place(folder)
            file = storage.open(_NAME)
        except (CheckpointError, StorageError):
            continue
        where = os.path.join(storage.path, _NAME)
        try:
            if file.size > _MOST_NBYTES:
                raise MapError(f"{where} has {file.size:,} bytes.", _BY_HAND)
            return where, parse_json(bytes(file.read(0, file.size)), _MAX_DEPTH, allow_nan=True)
        except CheckpointError as error:
            raise MapError(
                f"{where} cannot be read: {error.cause}", f"Mend it. {_BY_HAND}"
            ) from None
        finally:
            file.close()
    raise MapError(
        f"There is no {_NAME} next to {path}.",
        f"Copy the model's there. {_BY_HAND}",
    )
