"""The name that is nearest to one that is missing, and the rule that is nearest to a key."""

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches
from itertools import islice

from shardvar.maps.syntax import MapRule
from shardvar.pictures.words import similar

_MOST_CANDIDATES = 5_000
"""Names that are compared; each takes some ten microseconds."""


def nearest_names(name: str, names: Iterable[str], count: int = 1) -> list[str]:
    """Return up to ``count`` names like ``name``, the nearest first.

    Where no name is a typing error away, names that have most of its letters in their order count.

    >>> nearest_names("num_heads", ["hidden_size", "num_attention_heads"])
    ['num_attention_heads']
    """
    some = list(islice(names, _MOST_CANDIDATES))
    return similar(name, some, count) or get_close_matches(name, some, count)


def did_you_mean(name: str, names: Iterable[str], count: int = 1) -> str:
    """Return a question about the nearest names, with a space behind it; empty without one."""
    found = nearest_names(name, names, count)
    return f"Did you mean {' or '.join(map(repr, found))}? " if found else ""


def nearest_key(key: str, keys: Iterable[str]) -> str:
    """Return the key that is nearest to one that is missing; empty without one.

    Keys that begin as it does, up to its last dot or slash, come before all others.

    >>> nearest_key("l.0.w.scale_inv", ["l.1.w.scale_inv", "l.0.w.scale"])
    'l.0.w.scale'
    """
    beginning = key[: max(key.rfind("."), key.rfind("/")) + 1]
    listed = list(keys)
    siblings = [each for each in listed if each.startswith(beginning)] if beginning else []
    found = get_close_matches(key, siblings[:_MOST_CANDIDATES], 1) or nearest_names(key, listed)
    return found[0] if found else ""


def nearest_rule(key: str, rules: Sequence[MapRule]) -> int | None:
    """Return the position of the rule whose source is spelled most like a key; None without one."""
    plain = re.sub("[0-9]+", "#", key)
    best, found = 0.0, None
    matcher = SequenceMatcher(b=plain, autojunk=False)
    for number, rule in enumerate(rules):
        matcher.set_seq1(re.sub(r"\{[^}]*\}|[0-9]+", "#", rule.source.key.text))
        if matcher.real_quick_ratio() > best and (ratio := matcher.ratio()) > best:
            best, found = ratio, number
    return found
