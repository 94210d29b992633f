"""The name that is nearest to one that is missing, and the rule that is nearest to a key."""

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches
from itertools import islice

from shardvar.maps.keys import matches_key
from shardvar.maps.syntax import ANY_TEXT, KeyPattern, MapRule, NumberPart, TextPart
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


def why_unmatched(key: str, pattern: KeyPattern) -> str:
    """Return the part of a pattern that a key would match if it were another kind of part.

    >>> from shardvar.maps.parsing import parse_rule
    >>> why_unmatched("a.b.w", parse_rule("{x:*}.w -> {x}.v").source.key)
    "{x:*} is text without '.' and '/': write {x:**}"
    """
    literals = "".join(part for part in pattern.parts if isinstance(part, str))
    if "*" in literals and "*" not in key:
        return "'*' is a plain character: write {x:*} or {x:**}, and {x} on the other side"
    if any(isinstance(part, TextPart) and part.pattern == ANY_TEXT for part in pattern.parts):
        return ""
    for part in pattern.parts:
        if isinstance(part, NumberPart):
            name = part.axis[0]
            why = f"{{{name}}} is a number: write {{{name}:*}} for text, or {{{name}:a|b}}"
        elif isinstance(part, TextPart) and part.pattern != ANY_TEXT:
            name = part.name
            why = f"{{{name}:*}} is text without '.' and '/': write {{{name}:**}}"
        else:
            continue
        others = tuple(TextPart(name, ANY_TEXT) if each is part else each for each in pattern.parts)
        if matches_key(KeyPattern(pattern.text, others), key):
            return why
    return ""
