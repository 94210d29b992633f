"""The renaming that compares two checkpoints whose names differ only in how they begin.

Hugging Face writes ``model.layers.0.…`` for a model, and ``layers.0.…`` for the same model without
its head. Distributed training puts ``module.`` before all names. ``diff`` then has nothing to
compare, or only the few names that are the same in both. The hint has the ``--rename`` for the
others.
"""

import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import takewhile

from shardvar.errors import ShardvarError
from shardvar.verbs.compare.comparison import DiffReport
from shardvar.verbs.reader import open_checkpoint
from shardvar.verbs.renaming import REGULAR, new_names

_NEAREST = 3
"""Names of the other side, the most similar ones, whose beginnings are tried."""

_MOST_COMPARED = 10_000
"""Names of the other side that are compared letter by letter: more would take seconds."""

_Heads = tuple[str, str]
"""The texts with which names in A and in B begin, and after which they are the same."""


def rename_hint(report: DiffReport, arguments: Namespace) -> str | None:
    """Return the command that finds most names of one side in the other; None without one.

    ``arguments`` are those of the ``diff`` that made the report.
    """
    heads = _heads(report.only_in_a, report.only_in_b)
    if heads is None:
        return None
    try:
        command = _command(heads, report, arguments)
    except ShardvarError:  # a name would stand for two tensors, or an index is no longer there
        return None
    return command and f"{_sentence(heads)} To compare them: `{command}`"


def _heads(only_a: Sequence[str], only_b: Sequence[str]) -> _Heads | None:
    """Return the beginnings by which most names of the side with fewer are in the other."""
    if not (only_a and only_b):
        return None
    there = set(only_b)

    def num_found(heads: _Heads) -> int:
        a, b = heads
        return sum(name.startswith(a) and b + name[len(a) :] in there for name in only_a)

    found = {heads: num_found(heads) for heads in _candidates(only_a, only_b)}
    best = max(found, key=found.__getitem__, default=None)
    is_most = best is not None and 2 * found[best] > min(len(only_a), len(only_b))
    return best if is_most else None


def _candidates(only_a: Sequence[str], only_b: Sequence[str]) -> Iterator[_Heads]:
    """Yield beginnings of a few names, and of the names that end most like them in the other."""
    fewer, more = sorted((only_a, only_b), key=len)
    for name in (fewer[0], fewer[len(fewer) // 2], fewer[-1]):
        near = [other for other in more if other.endswith(name) or name.endswith(other)]
        # Comparing letter by letter is slow, and most prefixes do not need it.
        near = near or sorted(more[:_MOST_COMPARED], key=lambda other: -len(_tail(name, other)))
        for other in near[:_NEAREST]:
            tail = _tail(name, other)
            heads = name[: len(name) - len(tail)], other[: len(other) - len(tail)]
            # A star or an equals sign would mean something else in the option.
            if tail and not any("*" in head or "=" in head for head in heads):
                yield heads if fewer is only_a else heads[::-1]


def _tail(name: str, other: str) -> str:
    """Return the end that two names have in common, from a separator on unless it is a whole name.

    >>> _tail("model.layers.0.w", "layers.0.w"), _tail("layers.0.w", "h.0.w"), _tail("ab", "cb")
    ('layers.0.w', '0.w', '')
    """
    pairs = zip(reversed(name), reversed(other), strict=False)
    length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    tail = name[len(name) - length :]
    if tail in (name, other):
        return tail
    place = min((place for place in map(tail.find, "./") if place >= 0), default=len(tail))
    return tail[place + 1 :]


def _command(heads: _Heads, report: DiffReport, arguments: Namespace) -> str | None:
    """Return the command with ``--rename``, with A and B exchanged if only that order works.

    ``*=model.*`` would rename names that are the same in both; ``model.*=*`` does not.
    """
    asked = arguments.dequantize
    with (
        open_checkpoint(report.path_a, dequantize=asked) as one,
        open_checkpoint(report.path_b, dequantize=asked) as other,
    ):
        a, b = list(one), list(other)
    if _finds_more(heads, a, b):
        return _joined(arguments.words, heads)
    exchanged = _exchanged(arguments)
    if exchanged and _finds_more(heads[::-1], b, a):
        return _joined(exchanged, heads[::-1])
    return None


def _finds_more(heads: _Heads, a: Sequence[str], b: Sequence[str]) -> bool:
    """Return True if no name of A that is in B is lost by the renaming, and others are found."""
    there = set(b)
    if heads[0].startswith(REGULAR):
        return False
    renamed = new_names(a, {f"{heads[0]}*": f"{heads[1]}*"})
    was = {row for row, name in enumerate(a) if name in there}
    return was < {row for row, name in enumerate(renamed) if name in there}


def _joined(words: Sequence[str], heads: _Heads) -> str:
    return shlex.join(["shardvar", *words, "--rename", f"{heads[0]}*={heads[1]}*"])


def _exchanged(arguments: Namespace) -> list[str]:
    """Return the typed words with A and B exchanged; none unless they follow each other."""
    words, sides = list(arguments.words), [arguments.a, arguments.b]
    for place in range(len(words) - 1):
        if words[place : place + 2] == sides:
            return [*words[:place], *sides[::-1], *words[place + 2 :]]
    return []


def _sentence(heads: _Heads) -> str:
    a, b = heads
    if a and b:
        return f"Most names begin with {a!r} in A and with {b!r} in B."
    short, long, head = ("B", "A", a) if a else ("A", "B", b)
    return f"Most names of {short} are in {long}, after {head!r}."
