"""Small checkpoints that shipped maps fit: made from the rules, as the maps do not say more."""

from collections.abc import Iterator
from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from shardvar.maps.language import NumberPart, Side, TextPart, WordPart
from shardvar.maps.map import Map

Arrays = dict[str, np.ndarray[Any, Any]]


@cache
def shipped(name: str) -> Map:
    """Return a shipped map, which is read once for all tests."""
    return Map.read(name)


def with_numbers(given: Map, numbers: dict[str, int]) -> Map:
    """Return a map with numbers instead of the names of config.json: those given, or 2."""
    sizes: dict[str, int | str] = {
        name: numbers.get(name, 2)
        for name, size in given.sizes.items()
        if name in numbers or (isinstance(size, str) and "config:" in size)
    }
    return given.extended(sizes=sizes)


def synthetic(given: Map) -> Arrays:
    """Return a checkpoint that a map without ranges fits: one family of keys for each rule."""
    extents: dict[str, int] = {}
    for rule in given.parsed:
        for side in (rule.source, *([rule.target] if rule.target else [])):
            for name in side.indices():
                extents.setdefault(name, 2 + len(extents) % 3)
    extents |= {name: size for name, size in given.sizes.items() if isinstance(size, int)}
    shapes: dict[str, tuple[int, ...]] = {}
    for rule in given.parsed:
        words = {
            part.name: len(part.words)
            for side in (rule.source, *([rule.target] if rule.target else []))
            for part in side.key.parts
            if isinstance(part, WordPart)
        }
        for key, shape in _tensors(rule.source, {**extents, **words}):
            # Of rules that share a tensor, the one with most indices says what divides it.
            shapes[key] = max(shapes.get(key, shape), shape, key=prod)
    found: Arrays = {}
    begin = 0
    for key, shape in shapes.items():
        found[key] = np.arange(begin, begin + prod(shape)).reshape(shape)
        begin += found[key].size
    return found


def _tensors(side: Side, extents: dict[str, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    names = [*side.key.indices()]
    shape = tuple(
        3 if axis == ("...",) else prod(extents[name] for name in axis) for axis in side.axes
    )
    for values in product(*(range(extents[name]) for name in names)):
        at = dict(zip(names, values, strict=True))
        key = ""
        for part in side.key.parts:
            if isinstance(part, str):
                key += part
            elif isinstance(part, NumberPart):
                number = 0
                for name in part.axis:
                    number = number * extents[name] + at[name]
                key += str(number + part.shift.integer(extents.__getitem__))
            elif isinstance(part, WordPart):
                key += part.words[at[part.name]]
            else:
                assert isinstance(part, TextPart)
                key += "weight"
        yield key, shape
