"""Verdicts: what ``verify`` found, as values with stable JSON, lines and a table for notebooks.

VerifyReport   one ``Damage`` for each thing that is wrong, one ``Unverified`` for each tensor
               without a checksum, and the outcome of each tensor
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from shardvar.pictures.words import (
    all_tensors,
    count,
    human_size,
    human_tensors,
    named,
    one_line,
    printable,
)
from shardvar.records import field, frozen
from shardvar.verbs.problems import MOST_ROWS, SCHEMA, Damage, fields_as_json, lines_of_problems

__all__ = ["Unverified", "VerifyReport"]

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
        from shardvar.pictures.table import Markup, bad, html_block, html_table

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
