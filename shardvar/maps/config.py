"""Entries of ``config.json`` next to a checkpoint: sizes, as ``config:num_key_value_heads``, and the
model, which a map must be for.

Models of several families have the same keys and shapes, and other numbers in them, so that only the
configuration tells if a map is right.
"""

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardvar.errors import CheckpointError, MapError, StorageError
from shardvar.maps.expressions import parse_expression
from shardvar.maps.extents import SizeOf
from shardvar.maps.nearest import did_you_mean
from shardvar.storage.local import split_place
from shardvar.wire.strict_json import parse_json

PREFIX = "config:"
"""The beginning of a name that is looked up in ``config.json``."""
_NAME = "config.json"
_MOST_NBYTES, _MAX_DEPTH = 16 << 20, 64
"""Bytes of a configuration that is read, and the depth of its tables."""
_GGUF = "gguf:"
_NEVERTHELESS = "To use it nevertheless: --any-model, in Python Map.extended(any_model=True)."
_BY_HAND = "Give the number by hand: --size NAME=N, in Python sizes={'NAME': N}."


@dataclass(frozen=True, slots=True)
class Family:
    """The models that a map is for; without any, it is for all."""

    label: str = ""
    """The map, for messages: its name, or its file."""
    models: tuple[str, ...] = ()
    """Values of ``model_type``; class names of ``architectures``, which begin with a capital; and
    architectures of GGUF, as ``gguf:llama``."""
    requires: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The values that an entry of the configuration may have, or ``none`` if it is missing. The
    spellings of an entry have ``|`` between them."""
    lacks: tuple[str, ...] = ()
    """The tensors that other values need, which no rule makes."""

    def check(
        self, path: str, architecture: str, shipped: Callable[[], Mapping[str, Collection[str]]]
    ) -> str:
        """Return a sentence on the model of the checkpoint at ``path``, for the report of the map.

        ``architecture`` is the one that a GGUF file names. ``MapError``, with the map that fits, if
        it is another model's; ``shipped`` gives the models of the shipped maps.
        """
        if not self.models:
            return ""
        try:
            where, config = _read(path)
            unknown = f"{where} has no model_type."
        except MapError as error:
            where, config, unknown = "", {}, error.cause
        types = [each for each in self.models if not each.startswith(_GGUF)]
        files = [each.removeprefix(_GGUF) for each in self.models if each.startswith(_GGUF)]
        named = _named(config, any(each[0].isupper() for each in types))
        checked = []
        for place, models, found in ((where, types, named), (path, files, [architecture])):
            if models and found and found[0]:
                if set(models).isdisjoint(found):
                    cause = f"{self.label} is for {', '.join(models)}, and {place} says {found[0]}."
                    other = _fitting(self.label, named, shipped())
                    raise MapError(cause, f"{other}{_NEVERTHELESS}")
                checked.append(f"model checked: {place} says {found[0]}")
        for table in _tables(config):
            if table is config or table.get("model_type") in types:
                self._check_required(where, table)
        return "; ".join(checked) or f"model not checked: {unknown}"

    def _check_required(self, where: str, table: Mapping[str, Any]) -> None:
        """Raise ``MapError`` if an entry of a table of the configuration has another value."""
        for spellings, allowed in self.requires.items():
            names = spellings.split("|")
            found = {name: text for name in names if (text := _text_of(table, name)) is not None}
            for name, text in (found or {names[0]: "none"}).items():
                if text not in allowed:
                    lacks = f", such as {', '.join(self.lacks)}" if self.lacks else ""
                    raise MapError(
                        f"{where} has {name} = {text}, and {self.label} is for "
                        f"{', '.join(allowed)}: with other values, the target has tensors that no "
                        f"rule makes{lacks}.",
                        f"Convert with the target's own program. {_NEVERTHELESS}",
                    )


def _text_of(value: Any, name: str) -> str | None:
    """The entry of a table at a name with dots, as text; None if it is missing or null."""
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _tables(value: Any) -> Iterator[dict[str, Any]]:
    """Yield a table of a configuration, and the tables in it."""
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from _tables(each)


def _named(config: Any, with_classes: bool) -> list[str]:
    """The model types that a configuration names, the outermost first, and maybe its classes."""
    named = [table.get("model_type") for table in _tables(config)]
    classes = config.get("architectures") if isinstance(config, dict) and with_classes else ()
    named += classes if isinstance(classes, list) else ()
    return [each for each in named if isinstance(each, str) and each]


def _fitting(label: str, named: Collection[str], shipped: Mapping[str, Collection[str]]) -> str:
    """The shipped map between the same libraries for a model, as the beginning of a remedy."""
    source, _, target = label.partition("-to-")
    for name, models in shipped.items():
        other, _, goal = name.partition("-to-")
        is_like = goal == target and other.split("-")[-1] == source.split("-")[-1]
        if is_like and not set(named).isdisjoint(models):
            return f"For it: {name}. "
    return ""


def sizes_at(sizes: Mapping[str, int | str], path: str) -> SizeOf:
    """Return what gives the sizes of a map for the checkpoint at ``path``."""
    found: dict[str, int] = {}
    asked: list[str] = []

    def size_of(name: str) -> int:
        if name not in found:
            if name in asked:
                raise MapError(
                    f"The sizes {' -> '.join([*asked, name])} depend on each other.",
                    "Give one of them as a number.",
                )
            asked.append(name)
            try:
                found[name] = _size_of(sizes, name, size_of, path)
            finally:
                asked.pop()
        return found[name]

    return size_of


def _size_of(sizes: Mapping[str, int | str], name: str, size_of: SizeOf, path: str) -> int:
    if name.startswith(PREFIX):
        return config_size(path, name.removeprefix(PREFIX))
    if name not in sizes:
        near = did_you_mean(name, sizes)
        raise MapError(
            f"The size {name} is not given.",
            f"{near}Give it: --size {name}=N, in Python sizes={{{name!r}: N}}.",
        )
    size = sizes[name]
    return size if isinstance(size, int) else parse_expression(size).integer(size_of)


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
    for place in dict.fromkeys((path, os.path.dirname(path) or os.curdir)):
        try:
            storage, _ = split_place(os.path.join(place, ""))
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
