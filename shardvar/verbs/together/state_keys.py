"""The keys of a training state that not all processes have, as a text in the metadata of a checkpoint.

Stages of a pipeline have their own layers, and each process its own random generators. So a process
that loads may lack keys, which is an error for all others. No process knows the states of the others
when it loads; the shares know them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import accumulate

from shardvar.planning.index import SOME_PROCESSES
from shardvar.wire.damage import decoding, invalid
from shardvar.wire.strict_json import parse_json

_JSON_DEPTH = 4
"""Levels of the text."""
_WRONG = TypeError, KeyError


def keys_of_some(keys: Sequence[Set[str]]) -> dict[str, str]:
    """Return the text for the keys of each process, by its name; none if all have the same.

    Of keys that begin with the same steps, the text has only the beginning, unless all processes
    have one of the keys.

    >>> keys_of_some([{"step", "rng.0", "m.1.w", "m.1.b"}, {"step", "rng.1", "m.2.w"}])
    {'shardvar.keys_of_some_processes': '{"keys": [], "beginnings": ["m.", "rng."]}'}
    """
    every, common = frozenset().union(*keys), frozenset(keys[0]).intersection(*keys)
    if every == common:
        return {}
    of_all = {beginning for key in common for beginning in _beginnings(key)}
    single, beginnings = set[str](), set[str]()
    for key in every - common:
        first = next((each for each in _beginnings(key) if each not in of_all), None)
        if first is None:
            single.add(key)
        else:
            beginnings.add(first)
    found = {"keys": sorted(single), "beginnings": sorted(beginnings)}
    return {SOME_PROCESSES: json.dumps(found)}


def without_keys_of_some(keys: Iterable[str], texts: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys that all processes had; ``texts`` are the metadata of the checkpoint."""
    text = texts.get(SOME_PROCESSES)
    if text is None:
        return tuple(keys)
    found = parse_json(text.encode("utf-8", "surrogatepass"), _JSON_DEPTH)
    with decoding(lambda _: invalid(f"Its metadata {SOME_PROCESSES!r} are not keys."), *_WRONG):
        single, beginnings = (frozenset(found[name]) for name in ("keys", "beginnings"))
    return tuple(
        key for key in keys if key not in single and beginnings.isdisjoint(_beginnings(key))
    )


def _beginnings(key: str) -> Iterator[str]:
    """Yield the first step on the way to a key, the first two, and so on, each with a dot."""
    return accumulate(f"{step}." for step in key.split(".")[:-1])
