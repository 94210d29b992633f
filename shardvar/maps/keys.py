"""Which keys does a rule match, and which numbers and texts do its parts have in each?

A rule matches whole keys. Most keys differ only in their numbers, so keys are grouped by what is
left without digits, and a rule is compared with a group before it is compared with a key:

    layers.0.w, layers.1.w ... layers.79.w      ->  layers.#.w      one comparison
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from shardvar.maps.syntax import KeyPart, KeyPattern, NumberPart, TextPart, WordPart

_NUMBER = "(0|[1-9][0-9]{0,17})"
"""A number without leading zeros, which 64 bits hold."""
_DIGITS = re.compile("[0-9]+")

Values = tuple[int | str, ...]
"""For each part of a key, in order: a number, the position of a word, or a text."""


def match_keys(
    patterns: Sequence[KeyPattern], keys: Iterable[str]
) -> Iterator[tuple[str, list[tuple[int, Values]]]]:
    """Yield each key with the patterns that match it, each as its position and the parts' values.

    >>> from shardvar.maps.parsing import parse_rule
    >>> pattern = parse_rule("h.{l}.{s:q|k} -> x.{l}.{s:a|b}").source.key
    >>> list(match_keys([pattern], ["h.10.k", "h.01.q"]))
    [('h.10.k', [(0, (10, 1))]), ('h.01.q', [])]
    """
    exact = [re.compile(_expression(pattern, _NUMBER)) for pattern in patterns]
    groups = [_group_of(pattern) for pattern in patterns]
    readers = [
        [_reader_of(part) for part in each.parts if not isinstance(part, str)] for each in patterns
    ]
    of_group: dict[str, list[int]] = {}
    for key in keys:
        group = _DIGITS.sub("#", key)
        candidates = of_group.get(group)
        if candidates is None:
            candidates = [
                row for row, each in enumerate(groups) if each is None or each.fullmatch(group)
            ]
            of_group[group] = candidates
        yield (
            key,
            [
                (
                    row,
                    tuple(
                        [
                            read(text)
                            for read, text in zip(readers[row], found.groups(), strict=True)
                        ]
                    ),
                )
                for row in candidates
                if (found := exact[row].fullmatch(key))
            ],
        )


def matches_key(pattern: KeyPattern, key: str) -> bool:
    """Return True if a pattern matches a key."""
    return re.fullmatch(_expression(pattern, _NUMBER), key) is not None


def write_key(key: KeyPattern, values: Iterable[int | str]) -> str:
    """Return the key whose parts have some values: a number, the position of a word, or a text.

    >>> from shardvar.maps.parsing import parse_rule
    >>> write_key(parse_rule("{l}.{s:q|k} -> h.{l}.{s:q|k}").target.key, [3, 1])
    'h.3.k'
    """
    left = iter(values)
    written = []
    for part in key.parts:
        if isinstance(part, str):
            written.append(part)
            continue
        value = next(left)
        written.append(part.words[int(value)] if isinstance(part, WordPart) else str(value))
    return "".join(written)


def _group_of(key: KeyPattern) -> "re.Pattern[str] | None":
    """The expression of the groups that hold a pattern's keys; None if any group may."""
    for part in key.parts:
        # A text has any digits, and a word's digits may run into a number's.
        if isinstance(part, TextPart):
            return None
        if isinstance(part, WordPart) and any(
            w[:1].isdigit() or w[-1:].isdigit() for w in part.words
        ):
            return None
    return re.compile(re.sub("#+", "#", _DIGITS.sub("#", _expression(key, "#"))))


def _reader_of(part: KeyPart) -> Callable[[str], int | str]:
    """The function that makes the value of a part of its text."""
    if isinstance(part, NumberPart):
        return int
    return part.words.index if isinstance(part, WordPart) else str


def _expression(key: KeyPattern, number: str) -> str:
    """The regular expression of a key, with one group a part."""
    written = []
    for part in key.parts:
        if isinstance(part, str):
            written.append(re.escape(part))
        elif isinstance(part, NumberPart):
            written.append(number)
        elif isinstance(part, WordPart):
            # The longest first: of "a" and "ab", the shorter one would hide the other.
            words = sorted(part.words, key=len, reverse=True)
            written.append(f"({'|'.join(map(re.escape, words))})")
        else:
            written.append(f"({part.pattern})")
    return "".join(written)
