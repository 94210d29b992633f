"""The problems of a checkpoint, as values with stable JSON and as lines.

    Damage         one thing that is wrong, with the tensor and the file that it is about
    Cause          the problems that have one cause, with all their tensors: a lost file is one line

They are apart from the reports, which commands that only list or compare do not need.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Self

from shardvar.errors import LISTS_MORE, ShardvarError
from shardvar.pictures.words import (
    count,
    in_command,
    one_line,
    short_name,
)
from shardvar.records import field, fields, frozen, replace

__all__ = ["Damage"]

_ROOM = 40
"""The most characters of names that a line of several keys has; it counts longer ones."""
_MOST_ALIKE = 3
"""Problems in one file that differ only in their numbers and get a line each; of more, the first
one is an example."""
_MOST_LINES = 16
"""Lines that differ only in their numbers and are printed; the others are counted."""
_NUMBER = "[0-9]+"
_FILE = r"\S+: "
"""The file at the beginning of a cause."""


@frozen
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
    """The remedy, a sentence."""

    @classmethod
    def of(cls, error: ShardvarError, key: str | None = None, file: str | None = None) -> Self:
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


@frozen
class Cause:
    kind: str
    file: str | None
    """The file, as ``Damage`` has it."""
    text: str
    """The sentence, without the name of a tensor in front."""
    remedy: str
    keys: list[str] = field(default_factory=list)
    num_more: int = 0
    """Problems of the same kind in the same file; this one is an example."""

    @property
    def word(self) -> str:
        return (_WORDS_OF_FILES if self.file else _WORDS).get(self.kind, "invalid")

    @property
    def more(self) -> str:
        return f"{self.num_more:,} more in this file; `--json` lists all." if self.num_more else ""


def untold(
    faults: Mapping[str, ShardvarError], told: Iterable[Damage | ShardvarError]
) -> list[Damage]:
    """Return the faults of files that none of the told problems is about."""
    files = {each.file for each in told}
    return [Damage.of(fault, None, name) for name, fault in faults.items() if name not in files]


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
    """Yield a line for each cause; with ``everything``, all keys and all problems."""
    for each in causes_of(problems) if everything else main_causes_of(problems):
        sentences = " ".join(filter(None, (each.text, in_command(each.remedy), each.more)))
        which, keys = "", each.keys
        if len(keys) == 1:
            which = f"{short_name(keys[0])}: "
        elif keys:
            names = ", ".join(map(short_name, keys)) if everything or len(keys) <= _ROOM else ""
            shown = f" ({names})" if names and (everything or len(names) <= _ROOM) else ""
            which = f"{count(len(keys), 'tensor')}{shown}: "
        yield f"{prefix}{which}{each.kind}: {one_line(sentences)}"


def causes_of(problems: Iterable[Damage]) -> list[Cause]:
    causes: dict[tuple[str, str | None, str, str], Cause] = {}
    for each in problems:
        # The causes of one file's tensors differ only in the key.
        text = each.cause if each.key is None else each.cause.replace(f"{each.key!r}: ", "", 1)
        about = each.kind, each.file, text, each.remedy
        found = causes.setdefault(about, Cause(*about))
        found.keys.extend([] if each.key is None else [each.key])
    return list(causes.values())


def main_causes_of(problems: Iterable[Damage]) -> list[Cause]:
    """Of causes that differ in their numbers, the first ones, and the number of the others."""
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
    """Of many causes in one file that differ only in their numbers, the first."""
    alike: dict[tuple[str, str, str], list[Cause]] = {}
    for each in causes:
        file = each.file or (each.text.partition(": ")[0] if re.match(_FILE, each.text) else "")
        alike.setdefault((each.kind, file, _without_numbers(each)), []).append(each)
    for (_, file, _), some in alike.items():
        if len(some) <= _MOST_ALIKE or not file:
            yield from some
        else:
            every = list(dict.fromkeys(key for each in some for key in each.keys))
            yield replace(some[0], keys=every, num_more=len(some) - 1)


def _without_numbers(cause: Cause) -> str:
    text = cause.text.replace(repr(cause.keys[0]), "") if cause.keys else cause.text
    return re.sub(_NUMBER, "", text)


SCHEMA = 1
"""The version of the keys of ``to_json``; changes with a key's meaning or removal."""


def fields_as_json(report: Any, *left_out: str) -> dict[str, Any]:
    """Return the fields of a report: their values by its ``to_json`` or its fields, and tuples as lists."""
    names = (each.name for each in fields(report) if each.name not in left_out)
    return {name: _as_json(getattr(report, name)) for name in names}


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_json(each) for each in value]
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return fields_as_json(value)
    return dict(value) if isinstance(value, Mapping) else value


MOST_ROWS = 24
"""Rows of a table: a hundred thousand would make a notebook unusable."""
