"""The shipped maps, by name: FAMILY-SOURCE-to-TARGET, where several families may have one file;
or ``to-TARGET``, for the model that ``config.json`` names, and ``from-TARGET``, its inverse."""

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from shardvar.errors import MapError
from shardvar.maps.matching import read_beside

_ENDING = ".toml"
_MODELS = re.compile(rb"^models = \[.*\]$", re.MULTILINE)
"""The line of each shipped map that lists its models: to parse them all takes seven times as long."""
_DIRECTION = re.compile("(to|from)-(.+)")
_BY_NAME = "Name the map: `shardvar maps` lists all."


@cache
def shipped_maps() -> list[str]:
    folder = resources.files("shardvar.maps")
    return sorted(
        each.name.removesuffix(_ENDING) for each in folder.iterdir() if each.name.endswith(_ENDING)
    )


@cache
def shipped_models() -> dict[str, list[str]]:
    lines = {name: _MODELS.search(shipped_file(name)) for name in shipped_maps()}
    return {name: parse_toml(line[0], name)["models"] for name, line in lines.items() if line}


def parse_toml(content: bytes, name: str, layout: str = "") -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise MapError(f"{name} is not TOML: {error}.", f"Mend it: {layout}") from None


def shipped_file(name: str) -> bytes:
    return resources.files("shardvar.maps").joinpath(name + _ENDING).read_bytes()


def find_shipped(name: str) -> str | None:
    """Return the name of the file that has a map; None if none has, or several have."""
    if name in shipped_maps():
        return name
    family, direction = split_name(name)
    found = [
        other
        for other, models in shipped_models().items()
        if split_name(other)[1] == direction and family in map(family_name, models)
    ]
    return found[0] if len(found) == 1 else None


def split_name(name: str) -> tuple[str, str]:
    """Return the family, and the direction: what follows from the source's program on."""
    programs = {each.partition("-to-")[2] for each in shipped_maps()}
    words = name.partition("-to-")[0].split("-")
    starts = [start for start in range(1, len(words)) if "-".join(words[start:]) in programs]
    family = "-".join(words[: min(starts, default=len(words) - 1)])
    return family, name[len(family) + 1 :]


def family_name(model: str) -> str:
    return re.sub("[_.]", "-", model.lower())


def shipped_inverse(name: str) -> str | None:
    family, direction = split_name(name)
    source, _, target = direction.partition("-to-")
    back = f"{family}-{target}-to-{source}"
    return back if back in shipped_maps() else None


def is_direction(name: str) -> bool:
    found = _DIRECTION.fullmatch(name)
    return found is not None and bool(_of_target(found[2]))


def choose_map(name: str, path: str) -> str:
    """Return the shipped map of a direction for the model of the checkpoint at ``path``."""
    names = _of_target(name.partition("-")[2])
    try:
        where, config = read_beside(path)
    except MapError as error:
        raise MapError(error.cause, f"{name} reads the model from it. {_BY_NAME}") from None
    config = config if isinstance(config, dict) else {}
    classes = config.get("architectures")
    for given in (classes if isinstance(classes, list) else [], [config.get("model_type")]):
        found = [each for each in names if not {*shipped_models()[each]}.isdisjoint(given)]
        if len(found) == 1:
            return found[0]
        if found:
            cause = f"{where} says {given[0]}, and {name} is any of {', '.join(found)}."
            raise MapError(cause, "Name one of them.")
    listed = f"There are {', '.join(names[:12])}{' ...' * (len(names) > 12)}."
    model = config.get("model_type") or "no model_type"
    cause = f"{where} says {model}, and no shipped map {name} is for it."
    raise MapError(cause, f"{listed} {_BY_NAME}")


def _of_target(target: str) -> Sequence[str]:
    return [each for each in shipped_maps() if each.partition("-to-")[2] == target]
