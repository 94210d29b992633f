"""Problems grouped by their cause: a lost file is one line, whatever the number of tensors that lie in it."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from shardvar.cli.output import count, one_line, short_name

_NAMED = 3
"""Keys that a line names; it counts the others."""
_MOST_ALIKE = 16
"""Problems that differ only in their numbers and are printed; the others are counted."""
_NUMBER = re.compile("[0-9]+")


def print_problems(
    prefix: str, problems: Iterable[tuple[str | None, str | None, str]], everything: bool = False
) -> None:
    """Print problems, each a key, the class of an error and its message: a line for each cause, with its keys.

    With ``everything``, all keys and all problems are named.
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
        pattern = kind, _NUMBER.sub("", cause.replace(repr(keys[0]), "") if keys else cause)
        alike[pattern] += 1
        if alike[pattern] > _MOST_ALIKE and not everything:
            others.setdefault(pattern, []).extend(keys)
            continue
        print(f"{prefix}{_named(keys, everything)}{kind}: {one_line(cause)}")
    for pattern, keys in others.items():
        number = count(alike[pattern] - _MOST_ALIKE, "problem")
        print(f"{prefix}{_named(keys)}{pattern[0]}: {number} more like those above; `--json` lists all.")


def _named(keys: Sequence[str], everything: bool = False) -> str:
    """The keys of a line, the first few by name, or all."""
    if not keys:
        return ""
    if len(keys) == 1:
        return f"{short_name(keys[0])}: "
    shown = len(keys) if everything else _NAMED
    more = f" and {len(keys) - shown:,} more" if len(keys) > shown else ""
    return f"{count(len(keys), 'tensor')} ({', '.join(map(short_name, keys[:shown]))}{more}): "
