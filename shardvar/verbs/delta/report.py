"""Reports of ``delta`` and of a chain, as values with stable JSON."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from shardvar.pictures.words import count, human_size, one_line, printable, short_name
from shardvar.records import asdict, fields, frozen
from shardvar.verbs.delta.contents import CHANGED, EQUAL, REMOVED, WHOLE
from shardvar.verbs.problems import SCHEMA
from shardvar.verbs.reports import WriteReport

__all__ = ["ApplyReport", "DeltaReport", "TensorChange"]


@frozen
class TensorChange:
    """The change of one tensor, and the form that is stored."""

    key: str
    """Its name."""
    kind: str
    """``"equal"``, ``"changed"``, ``"new"``, ``"whole"`` or ``"removed"``."""
    nbytes: int
    """The bytes of the tensor; 0 if it is removed."""
    stored_nbytes: int
    """The bytes that the delta has of it."""
    num_changed: int | None = None
    """The elements that differ, of a changed tensor."""
    num_positions: int = 0
    """The leaves whose change is stored as positions and values."""
    num_masks: int = 0
    """The leaves whose change is stored as the XOR of all bytes."""
    tie: str | None = None
    """The tensor whose bytes it has in the new checkpoint: tied weights. None if it has its own."""

    def to_json(self) -> dict[str, Any]:
        """Return the change as a JSON object with stable keys."""
        return asdict(self)


@frozen
class DeltaReport:
    """Report of ``delta``."""

    path: str
    """The delta."""
    base: str
    """The digest of the checkpoint before."""
    result: str
    """The digest of the checkpoint after."""
    tensors: tuple[TensorChange, ...]
    """The change of each tensor."""
    num_joined: int = 0
    """The deltas that were joined to this one; 0 if it was made of two checkpoints."""
    dry_run: bool = False
    """True if nothing was written."""
    dialect: str = ""
    """The dialect, if it is written for another program; empty for a delta of shardvar."""

    @property
    def nbytes(self) -> int:
        """The bytes of the tensors of the new checkpoint."""
        return sum(each.nbytes for each in self.tensors)

    @property
    def stored_nbytes(self) -> int:
        """The bytes that the delta has of them, without its table."""
        return sum(each.stored_nbytes for each in self.tensors)

    def __fspath__(self) -> str:
        """The path, so that the report may be given where the path is asked for."""
        return self.path

    def __str__(self) -> str:
        return "\n".join(lines_of_delta(self))

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object with stable keys."""
        return {
            "schema": SCHEMA,
            "path": self.path,
            "base": self.base,
            "result": self.result,
            "nbytes": self.nbytes,
            "stored_nbytes": self.stored_nbytes,
            "num_joined": self.num_joined,
            "dry_run": self.dry_run,
            "dialect": self.dialect or None,
            "tensors": [each.to_json() for each in self.tensors],
        }


@frozen
class ApplyReport(WriteReport):
    """Report of ``apply``, also of one that writes nothing."""

    notes: tuple[str, ...] = ()
    """Sentences about what was compared, and what could not be."""
    already: bool = False
    """True if the target was the result already, so that nothing was written."""

    def __str__(self) -> str:
        written = () if self.already else (WriteReport.__str__(self),)
        return "\n".join([*written, *map(one_line, self.notes)])


def apply_report(written: WriteReport, notes: tuple[str, ...]) -> ApplyReport:
    values = {each.name: getattr(written, each.name) for each in fields(written)}
    return ApplyReport(**values, notes=notes)


def lines_of_delta(report: DeltaReport, name: Callable[[str], str] = printable) -> Iterator[str]:
    done = "would write" if report.dry_run else "wrote"
    joined = f" of {report.num_joined} deltas" if report.num_joined else ""
    yield f"{done} {name(report.path)}{joined}: {summary_of(report)}"
    for each in report.tensors:
        if each.kind == EQUAL:
            continue
        details = f": {human_size(each.stored_nbytes)} for {human_size(each.nbytes)}"
        if each.kind == REMOVED:
            details = ""
        elif each.tie is not None and not each.stored_nbytes:
            details = f": tied to {short_name(each.tie)}"
        elif each.kind == CHANGED:
            ways = []
            if each.num_positions:
                some = f"{each.num_positions:,} by positions"
                ways.append(some if each.num_masks else "positions")
            if each.num_masks:
                ways.append(f"{each.num_masks:,} of all bytes" if ways else "all bytes")
            elements = count(each.num_changed or 0, "element")
            details = f": {elements}, {details[2:]}{', XOR of ' * bool(ways)}{' and '.join(ways)}"
        yield f"{each.kind}: {short_name(each.key)}{details}"


def summary_of(report: DeltaReport) -> str:
    """One line: how many tensors changed and how, and the sizes."""
    kinds = Counter(each.kind for each in report.tensors)
    total = count(len(report.tensors), "tensor")
    words = [f"{kinds[kind]:,} {kind}" for kind in (CHANGED, "new", WHOLE, REMOVED) if kinds[kind]]
    if [*kinds] == [EQUAL] or not kinds:
        return f"no change: {total} as in the base"
    words[0] = words[0].replace(" ", f" of {total} ", 1)
    share = f" ({report.stored_nbytes / report.nbytes:.2%})" if report.nbytes else ""
    sizes = f"{human_size(report.stored_nbytes)} for {human_size(report.nbytes)}{share}"
    return f"{', '.join(words)}; {sizes.replace('%', ' %')}"
