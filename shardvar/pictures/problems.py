"""Problems grouped by their cause: a lost file is one line, whatever the number of tensors that lie in it.

A line begins with its key, or with the number of its keys, and their names only where these are short.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from shardvar.pictures.words import count, one_line, short_name

_ROOM = 40
"""The most characters of names that a line of several keys has; it counts longer ones."""
_MOST_ALIKE = 3
"""Problems that differ only in their numbers and are printed; the others are counted."""
_NUMBER = re.compile("(-[0-9]+-of-[0-9]+)|[0-9]+")
"""A number, or those of a file of several, by which problems of one file stay apart from those of another."""


def lines_of_problems(
    prefix: str, problems: Iterable[tuple[str | None, str | None, str]], everything: bool = False
) -> Iterator[str]:
    """Yield a line for each cause among problems, each a key, the class of an error and its message.

    With ``everything``, all keys and all problems are named.

    >>> list(lines_of_problems("lost: ", [("a", "MissingFile", "No f."), ("b", "MissingFile", "No f.")]))
    ['lost: 2 tensors (a, b): MissingFile: No f.']
    """
    # One cause may be that of many keys, such as a missing file: their messages differ in the key alone.
    keys_of: dict[tuple[str | None, str], list[str]] = {}
    for key, kind, message in problems:
        cause = message if key is None else message.replace(f"{key!r}: ", "", 1)
        keys_of.setdefault((kind, cause), []).extend([] if key is None else [key])
    # Many causes may differ in their numbers alone, such as overlaps: the first ones are examples of the others.
    alike: Counter[tuple[str | None, str]] = Counter()
    others: dict[tuple[str | None, str], list[str]] = {}
    for (kind, cause), keys in keys_of.items():
        pattern = kind, _NUMBER.sub(r"\1", cause.replace(repr(keys[0]), "") if keys else cause)
        alike[pattern] += 1
        if alike[pattern] > _MOST_ALIKE and not everything:
            others.setdefault(pattern, []).extend(keys)
            continue
        yield f"{prefix}{_named(keys, everything)}{kind}: {one_line(cause)}"
    for pattern, keys in others.items():
        number = count(alike[pattern] - _MOST_ALIKE, "problem")
        yield f"{prefix}{_named(keys)}{pattern[0]}: {number} more like those above; `--json` lists all."


def _named(keys: Sequence[str], everything: bool = False) -> str:
    """The keys of a line: one by its name, several by their number, and by their names where there is room."""
    if not keys:
        return ""
    if len(keys) == 1:
        return f"{short_name(keys[0])}: "
    names = ", ".join(map(short_name, keys)) if everything or len(keys) <= _ROOM else ""
    named = f" ({names})" if names and (everything or len(names) <= _ROOM) else ""
    return f"{count(len(keys), 'tensor')}{named}: "
