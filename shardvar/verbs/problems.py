"""The problems of a checkpoint, as values with stable JSON and as lines.

    Damage         one thing that is wrong, with the tensor and the file that it is about
    Cause          the problems that have one cause, with all their tensors: a lost file is one line

They are apart from the reports, which commands that only list or compare do not need.

Verdicts: what ``verify`` found, as values with stable JSON, lines and a table for notebooks.

VerifyReport   one ``Damage`` for each thing that is wrong, one ``Unverified`` for each tensor
               without a checksum, and the outcome of each tensor
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Literal, Self

from shardvar.errors import LISTS_MORE, ShardvarError
from shardvar.pictures.words import (
    all_tensors,
    count,
    human_size,
    human_tensors,
    in_command,
    named,
    one_line,
    printable,
    short_name,
)
from shardvar.records import field, fields, frozen, replace

__all__ = ["Damage", "Unverified", "VerifyReport"]

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


OK, DAMAGED, NOT_VERIFIABLE = "ok", "damaged", "not verifiable"
"""The outcomes of a tensor: its key, dtype, shape and every byte of its values were compared with
checksums and are right; it is wrong; neither is known."""
VALUES_MATCH = "values match"
"""The outcome of a tensor whose values agree with checksums, and whose key, dtype and shape no
checksum covers."""
COMPLETE, NOT_VERIFIED, NOT_FINITE = "complete", "not verified", "not finite"
"""The verdicts on checkpoints that lack checksums of values, could not be read whole, or have NaNs
or infinities."""
_VERDICTS = (DAMAGED, NOT_FINITE, NOT_VERIFIED, COMPLETE, VALUES_MATCH, OK)
"""The worst first."""

FOLDER = "folder"
"""The format of the report of a folder that means several checkpoints."""

NO_CHECKSUMS = "The format keeps no checksum of it: only its structure was verified."
"""The reason where no file of the format has a checksum."""


QUICK = "Only the index and the sizes of files were checked."
"""The reason where no payload was read."""


@frozen
class Unverified:
    """A tensor that is not verifiable, and why."""

    key: str
    """The tensor."""
    guarded: bool
    """True if the format keeps checksums of all its bytes, so that another reader may verify it."""
    kind: str | None
    """The name of the error's class; None if it was read, and has no checksum."""
    message: str
    """The reason."""


@frozen
class VerifyReport:
    """Report of ``verify``."""

    path: str
    """The checkpoint."""
    format: str
    """Its format."""
    damages: tuple[Damage, ...]
    """Everything that is wrong."""
    notes: tuple[str, ...]
    """Oddities that harm nothing."""
    num_tensors: int = 0
    """Tensors and settings in the index."""
    num_settings: int = 0
    """The settings among them: plain objects, such as a learning rate."""
    num_slices: int = 0
    """Slices that they are stored as."""
    num_files: int = 0
    """Data files that the index names."""
    read_nbytes: int = 0
    """Payload bytes that were read."""
    unguarded_nbytes: int = 0
    """Payload bytes without a checksum: only their presence is proven."""
    unverified: tuple[Unverified, ...] = ()
    """The tensors that are not verifiable."""
    doubts: tuple[Damage, ...] = ()
    """Things that may be wrong: a manifest or a checksum that could not be compared, or the file of a
    download that is not finished."""
    outcomes: Mapping[str, str] = field(default_factory=dict)
    """By key: ``"ok"``, ``"values match"``, ``"damaged"`` or ``"not verifiable"``."""
    bare_index: str = ""
    """The file whose keys, dtypes and shapes no checksum covers; empty if they are covered."""
    not_finite: Mapping[str, str] = field(default_factory=dict)
    """With ``nan=True``, ``"NaN"``, ``"infinity"`` or both, by the keys of tensors that have them."""
    others: "tuple[VerifyReport, ...]" = ()
    """The reports of the other checkpoints in the folder, or of all if its path means several."""
    not_read: tuple[str, ...] = ()
    """The files in the folder that were not verified, since they belong to no checkpoint that
    shardvar reads."""
    files: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """The paths of its files. Not in JSON."""

    @property
    def ok(self) -> bool:
        """True if nothing is wrong, all was read, and all that the format guards was compared.

        This includes the other checkpoints of the folder. With ``quick=True``, nothing is read.
        """
        own = not (self.damages or self.uncompared or self.doubts or self.not_finite)
        return own and all(each.ok for each in self.others)

    @property
    def uncompared(self) -> list[Unverified]:
        """The tensors that could not be read or compared although the format guards them."""
        return [each for each in self.unverified if each.kind is not None]

    @property
    def unguarded(self) -> list[Unverified]:
        """The tensors that were read, and have no checksums in this format or this checkpoint."""
        return [each for each in self.unverified if each.kind is None]

    @property
    def is_bare_format(self) -> bool:
        """True if the format keeps no checksums; False if only this checkpoint may lack them."""
        return any(each.message == NO_CHECKSUMS for each in self.unguarded)

    @property
    def is_delta(self) -> bool:
        """True for the changes between two checkpoints, which are applied to the first."""
        return any("the changes between two " in each for each in self.notes)

    @property
    def verdict(self) -> str:
        """The answer in a word or two, derived from what checksums cover.

        ``"ok"`` if keys, dtypes, shapes and all values are covered and right, ``"values match"`` if
        only values are covered, ``"complete"`` if some have no checksum or there is no tensor;
        ``"damaged"``; ``"not finite"``; ``"not verified"`` if something could not be read. Of a
        folder it is the worst.
        """
        own = VALUES_MATCH if self.bare_index else OK
        if self.damages:
            own = DAMAGED
        elif self.not_finite:
            own = NOT_FINITE
        elif self.uncompared or self.doubts:
            own = NOT_VERIFIED
        elif self.unguarded or (self.bare_index and not self.num_tensors):
            own = COMPLETE
        return min([own, *(each.verdict for each in self.others)], key=_VERDICTS.index)

    def __str__(self) -> str:
        parts = [self] * (self.format != FOLDER) + [*self.others]
        lines = list[str]()
        for each in parts:
            first, *more = _lines_of_verify(each)
            lines += [first, *("  " * (len(parts) > 1) + line for line in more)]
        if len(parts) > 1:
            lines.append(tally_of(verdict_of_verify(each)[1] for each in parts))
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object with stable keys."""
        fields = fields_as_json(self, "files")
        return {"schema": SCHEMA, "ok": self.ok, **fields, "verdict": self.verdict}

    def _repr_html_(self) -> str:
        from shardvar.pictures.drawings import Markup, bad, html_block, html_table

        about = [
            human_tensors(self.num_tensors, 0, self.num_settings),
            count(self.num_slices, "slice"),
            count(self.num_files, "file"),
        ]
        about.append(f"{human_size(self.read_nbytes)} read")
        if self.unguarded:
            about.append(
                f"{count(len(self.unguarded), 'tensor')} without a checksum: structure only"
            )
        rows = [
            (each.key or each.file or "", bad(each.kind), each.message) for each in self.damages
        ]
        rows += [(each.key, bad("not verifiable"), each.message) for each in self.uncompared]
        rows += [(each.file or "", bad("not verified"), each.message) for each in self.doubts]
        rows += [(key, bad("not finite"), what) for key, what in self.not_finite.items()]
        rows += [(each.path, Markup(each.verdict), "") for each in self.others]
        if not rows:
            return html_block(f"{self.verdict}: {self.path}", about)
        table = html_table(
            ("where", "problem", "what it is"), rows[:MOST_ROWS], more=max(0, len(rows) - MOST_ROWS)
        )
        return html_block(f"{self.verdict}: {self.path}", about, table)


def _lines_of_verify(report: VerifyReport) -> Iterator[str]:
    place = f"{printable(report.path)} ({report.format})"
    yield f"{verdict_of_verify(report)[1]} {place}: {compared_of(report)}"
    yield from lines_of_problems("damaged: ", report.damages)
    yield from lines_of_problems("not verified: ", problems_of(report))
    yield from facts_of_verify(report)
    if undamaged := undamaged_of(report):
        yield undamaged


def tally_of(verdicts: Iterable[str]) -> str:
    found = Counter(verdict.partition(":")[0] for verdict in verdicts)
    numbers = ", ".join(f"{number:,} {verdict}" for verdict, number in found.items())
    return f"{count(found.total(), 'checkpoint')}: {numbers}"


def num_damaged(report: VerifyReport) -> int:
    return sum(outcome == DAMAGED for outcome in report.outcomes.values())


def verdict_of_verify(
    report: VerifyReport, strict: bool = False
) -> tuple[Literal["good", "bad", "attention"], str]:
    """The verdict as a mark and words; an ending "in" counts tensors."""
    tensors = all_tensors(report.num_tensors, report.num_settings)
    if report.damages:
        damaged = num_damaged(report)
        return "bad", f"damaged: {damaged:,} of {tensors} in" if damaged else "damaged:"
    if report.not_finite:
        return "bad", f"not finite: {len(report.not_finite):,} of {tensors} in"
    if report.uncompared:
        return "attention", f"not verified: {len(report.uncompared):,} of {tensors} in"
    if report.doubts:
        return "attention", "not verified:"
    if report.unguarded:
        return (
            "attention",
            f"not guarded: {len(report.unguarded):,} of {tensors} in" if strict else "complete:",
        )
    return ("good" if report.verdict == OK else "attention"), f"{report.verdict}:"


def compared_of(report: VerifyReport, strict: bool = False) -> str:
    """Return the numbers that the verdict lacks: tensors, bytes that were read, and if they were compared."""
    if (report.damages or report.doubts) and not report.outcomes:
        return "no tensor could be read"
    # A verdict on some of the tensors ends with the number of all.
    is_numbered = verdict_of_verify(report, strict)[1].endswith(" in")
    tensors = human_tensors(report.num_tensors, 0, report.num_settings)
    if any(each.message == QUICK for each in report.unguarded):
        text = "only the index and the sizes of files: structure only"
        return text if is_numbered else f"{tensors}; {text}"
    read = f"{human_size(report.read_nbytes)} read"
    if not is_numbered:
        read = f"{tensors}, {read}"
    bare = len(report.unguarded)
    # Where the format keeps none, the names of whole tensors tell a user nothing.
    if bare and (report.is_bare_format or bare == report.num_tensors):
        return (
            f"{read}; no checksums in this {'format' if report.is_bare_format else 'checkpoint'}: "
            "structure only"
        )
    if bare:
        keys = named([each.key for each in report.unguarded])
        which = f"{count(bare, 'tensor')} ({human_size(report.unguarded_nbytes)})"
        return f"{read}; {which} without a checksum, {keys}: structure only"
    if report.damages or report.uncompared or report.doubts:
        return read
    text = f"{read}, every checksum matches" if report.num_tensors else read
    limit = f"; no checksum covers keys, dtypes and shapes ({report.bare_index})"
    return text + limit * bool(report.bare_index)


def problems_of(report: VerifyReport) -> list[Damage]:
    unread = (Damage(str(each.kind), each.key, None, each.message) for each in report.uncompared)
    return [*unread, *report.doubts]


def facts_of_verify(report: VerifyReport, everything: bool = False) -> Iterator[str]:
    keys = [f"{printable(key)} ({what})" for key, what in report.not_finite.items()]
    most = len(keys) if everything else _MOST_KEYS
    yield from (f"not finite: {text}" for text in keys[:most])
    if keys[most:]:
        yield f"not finite: {count(len(keys) - most, 'more tensor')} (--all lists them)"
    yield from (f"note: {one_line(each)}" for each in report.notes)


def undamaged_of(report: VerifyReport) -> str:
    others = len(report.outcomes) - num_damaged(report) - len(report.uncompared)
    # A checksum of a file that is wrong does not show which of its tensors are damaged.
    is_known = report.damages and all(each.key for each in report.damages)
    return (
        f"no damage found: {all_tensors(others, report.num_settings)}"
        if others and is_known
        else ""
    )


_MOST_KEYS = 16
"""The tensors with NaNs that are listed."""
