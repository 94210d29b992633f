"""Problems of a checkpoint, as values and grouped by their causes: a lost file is one line
for all tensors in it.

    Damage    one thing that is wrong, with the tensor and the file that it is about
    Cause     the problems that have one cause, with all their tensors

A line begins with its key, or with the number of its keys, and their names only where these are
short.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from shardvar.engine.evidence import LISTS_MORE
from shardvar.errors import ReadError
from shardvar.pictures.words import count, one_line, short_name

__all__ = [
    "Damage",
]

_ROOM = 40
"""The most characters of names that a line of several keys has; it counts longer ones."""
_MOST_ALIKE = 3
"""Problems in one file that differ only in their numbers and get a line each; of more, the first
one is an example."""
_MOST_LINES = 16
"""Lines that differ only in their numbers and are printed; the others are counted."""
_NUMBER = re.compile("[0-9]+")
_FILE = re.compile(r"\S+: ")
"""The file at the beginning of a cause."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong with a checkpoint."""

    kind: str
    """The name of the error's class."""
    key: str | None
    """The tensor; None where it is not one tensor's."""
    file: str | None
    """The file that is missing, cut or changed, by its name; None if there is no single one."""
    cause: str
    """A sentence that names the thing, the value and the place."""
    remedy: str = ""
    """A sentence that says what to do."""

    @classmethod
    def of(cls, error: ReadError, key: str | None = None, file: str | None = None) -> Self:
        """Return the damage that an error tells of; ``file`` is where the error does not know it.

        Parameters
        ----------
        error : ShardvarError
            The error.
        key : str, optional
            The tensor.
        file : str, optional
            The file in which the tensor was read.
        """
        # A report is what that command lists.
        remedy = error.remedy.removesuffix(LISTS_MORE).rstrip()
        return cls(type(error).__name__, key, error.file or file, error.cause, remedy)

    @property
    def message(self) -> str:
        """The cause and the remedy."""
        return f"{self.cause} {self.remedy}".rstrip()

    @property
    def is_told_by_file(self) -> bool:
        """True if file and kind are enough: it is missing, or differs from what was written."""
        return self.file is not None and self.kind in ("MissingFile", "CorruptCheckpoint")

    def to_json(self) -> dict[str, Any]:
        """Return the damage as a JSON object with stable keys."""
        names = ("kind", "key", "file", "message", "cause", "remedy")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class Cause:
    """Problems that have one cause."""

    kind: str
    """The name of the error's class."""
    file: str | None
    """The file, as ``Damage`` has it."""
    text: str
    """The sentence, without the name of a tensor in front."""
    remedy: str
    """The sentence that says what to do."""
    keys: list[str] = field(default_factory=list)
    """The tensors."""
    num_more: int = 0
    """Problems of the same kind in the same file; this one is an example."""

    @property
    def word(self) -> str:
        """A word for the kind of the problem."""
        return (_WORDS_OF_FILES if self.file else _WORDS).get(self.kind, "invalid")

    @property
    def more(self) -> str:
        """A sentence on the other problems; empty without any."""
        return f"{self.num_more:,} more in this file; `--json` lists all." if self.num_more else ""


_WORDS = {
    "OverlappingSlices": "overlapping",
    "IncompleteCheckpoint": "incomplete",
    "MissingFile": "missing",
    "OutOfBounds": "out of bounds",
    "InconsistentTensor": "inconsistent",
    "CorruptCheckpoint": "changed",
    "MalformedCheckpoint": "unreadable",
    "UnsupportedError": "unsupported",
}
_WORDS_OF_FILES = _WORDS | {
    "IncompleteCheckpoint": "cut short",
    "CorruptCheckpoint": "bytes changed",
}
"""The words if the problem concerns a file."""


def lines_of_problems(
    prefix: str, problems: Iterable[Damage], everything: bool = False
) -> Iterator[str]:
    """Yield a line for each cause among problems.

    With ``everything``, all keys and all problems are named.

    >>> lost = [Damage("MissingFile", key, "f", f"{key!r}: No f.") for key in "ab"]
    >>> list(lines_of_problems("lost: ", lost))
    ['lost: 2 tensors (a, b): MissingFile: No f.']
    """
    for each in causes_of(problems) if everything else main_causes_of(problems):
        sentences = " ".join(filter(None, (each.text, each.remedy, each.more)))
        yield f"{prefix}{_named(each.keys, everything)}{each.kind}: {one_line(sentences)}"


def causes_of(problems: Iterable[Damage]) -> list[Cause]:
    """Return the causes of problems: one may concern many tensors, such as a missing file."""
    causes: dict[tuple[str, str | None, str, str], Cause] = {}
    for each in problems:
        # The causes of one file's tensors differ only in the key.
        text = each.cause if each.key is None else each.cause.replace(f"{each.key!r}: ", "", 1)
        about = each.kind, each.file, text, each.remedy
        found = causes.setdefault(about, Cause(*about))
        found.keys.extend([] if each.key is None else [each.key])
    return list(causes.values())


def main_causes_of(problems: Iterable[Damage]) -> list[Cause]:
    """Return causes, with similar ones shortened: the first ones, and the number of the others."""
    # Many causes may differ only in their numbers, such as lost files: the first ones are examples
    # of the others.
    shown: Counter[tuple[str, str]] = Counter()
    others: dict[tuple[str, str], list[str]] = {}
    main: list[Cause] = []
    for each in _by_file(causes_of(problems)):
        pattern = each.kind, _without_numbers(each)
        shown[pattern] += 1
        if shown[pattern] > _MOST_LINES:
            others.setdefault(pattern, []).extend(each.keys)
        else:
            main.append(each)
    for pattern, keys in others.items():
        number = count(shown[pattern] - _MOST_LINES, "problem")
        main.append(
            Cause(
                pattern[0], None, f"{number} more like those above; `--json` lists all.", "", keys
            )
        )
    return main


def _by_file(causes: Sequence[Cause]) -> Iterator[Cause]:
    """Yield causes; of many in one file that differ only in their numbers, the first one."""
    alike: dict[tuple[str, str, str], list[Cause]] = {}
    for each in causes:
        file = each.file or (each.text.partition(": ")[0] if _FILE.match(each.text) else "")
        alike.setdefault((each.kind, file, _without_numbers(each)), []).append(each)
    for (_, file, _), some in alike.items():
        if len(some) <= _MOST_ALIKE or not file:
            yield from some
        else:
            every = list(dict.fromkeys(key for each in some for key in each.keys))
            yield replace(some[0], keys=every, num_more=len(some) - 1)


def _without_numbers(cause: Cause) -> str:
    text = cause.text.replace(repr(cause.keys[0]), "") if cause.keys else cause.text
    return _NUMBER.sub("", text)


def _named(keys: Sequence[str], everything: bool) -> str:
    """The keys of a line: one by its name, several by their number, and by their names where there
    is room."""
    if not keys:
        return ""
    if len(keys) == 1:
        return f"{short_name(keys[0])}: "
    names = ", ".join(map(short_name, keys)) if everything or len(keys) <= _ROOM else ""
    named = f" ({names})" if names and (everything or len(names) <= _ROOM) else ""
    return f"{count(len(keys), 'tensor')}{named}: "
