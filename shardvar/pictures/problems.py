"""Problems grouped by their cause: a lost file is one line, whatever the number of tensors that lie in it.

A line begins with its key, or with the number of its keys, and their names only where these are short.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from shardvar.pictures.words import count, one_line, short_name

_ROOM = 40
"""The most characters of names that a line of several keys has; it counts longer ones."""
_MOST_ALIKE = 3
"""Problems in one file that differ only in their numbers and get a line each; of more, the first one is an example."""
_MOST_LINES = 16
"""Lines that differ only in their numbers and are printed; the others are counted."""
_NUMBER = re.compile("[0-9]+")
_FILE = re.compile(r"\S+: ")
"""The file at the beginning of a cause."""


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
    if everything:
        for (kind, cause), keys in keys_of.items():
            yield f"{prefix}{_named(keys, everything)}{kind}: {one_line(cause)}"
        return
    # Many lines may still differ in their numbers alone, such as lost files: the first ones are examples of the others.
    shown: Counter[tuple[str | None, str]] = Counter()
    others: dict[tuple[str | None, str], list[str]] = {}
    for kind, keys, cause in _by_file(keys_of):
        pattern = kind, _without_numbers(cause, keys)
        shown[pattern] += 1
        if shown[pattern] > _MOST_LINES:
            others.setdefault(pattern, []).extend(keys)
        else:
            yield f"{prefix}{_named(keys)}{kind}: {one_line(cause)}"
    for pattern, keys in others.items():
        number = count(shown[pattern] - _MOST_LINES, "problem")
        yield f"{prefix}{_named(keys)}{pattern[0]}: {number} more like those above; `--json` lists all."


def _by_file(keys_of: Mapping[tuple[str | None, str], list[str]]) -> Iterator[tuple[str | None, list[str], str]]:
    """Yield kinds, keys and causes; of many causes in one file that differ in their numbers alone, the first one."""
    alike: dict[tuple[str | None, str, str], list[tuple[list[str], str]]] = {}
    for (kind, cause), keys in keys_of.items():
        file = cause.partition(": ")[0] if _FILE.match(cause) else ""
        alike.setdefault((kind, file, _without_numbers(cause, keys)), []).append((keys, cause))
    for (kind, file, _), causes in alike.items():
        if len(causes) <= _MOST_ALIKE or not file:
            yield from ((kind, keys, cause) for keys, cause in causes)
        else:
            every = list(dict.fromkeys(key for keys, _ in causes for key in keys))
            yield kind, every, f"{causes[0][1]} {len(causes) - 1:,} more in this file; `--json` lists all."


def _without_numbers(cause: str, keys: Sequence[str]) -> str:
    return _NUMBER.sub("", cause.replace(repr(keys[0]), "") if keys else cause)


def _named(keys: Sequence[str], everything: bool = False) -> str:
    """The keys of a line: one by its name, several by their number, and by their names where there is room."""
    if not keys:
        return ""
    if len(keys) == 1:
        return f"{short_name(keys[0])}: "
    names = ", ".join(map(short_name, keys)) if everything or len(keys) <= _ROOM else ""
    named = f" ({names})" if names and (everything or len(names) <= _ROOM) else ""
    return f"{count(len(keys), 'tensor')}{named}: "
