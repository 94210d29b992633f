"""What ``verify`` found, as values."""

from dataclasses import asdict, dataclass
from typing import Any

from shardvar.checkpoint.reports import SCHEMA


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong with a checkpoint."""

    kind: str
    """The name of the error's class."""
    key: str | None
    """The tensor; None where it is not one tensor's."""
    file: str | None
    """The file, where it is known."""
    message: str
    """What is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What ``verify`` found."""

    path: str
    """The checkpoint."""
    format: str
    """Its format."""
    damages: tuple[Damage, ...]
    """Everything that is wrong."""
    notes: tuple[str, ...]
    """What is odd and harms nothing."""
    num_tensors: int = 0
    """Tensors in the index."""
    num_slices: int = 0
    """Slices that they are stored as."""
    num_files: int = 0
    """Data files that the index names."""
    read_nbytes: int = 0
    """Payload bytes that were read, but for those of keys that the index itself cannot read."""
    unguarded_nbytes: int = 0
    """Those of them that no checksum guards, so that only their being there is proven."""

    @property
    def ok(self) -> bool:
        """True where nothing is wrong."""
        return not self.damages

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object with stable keys."""
        lists = {"damages": [asdict(damage) for damage in self.damages], "notes": list(self.notes)}
        return {"schema": SCHEMA, "ok": self.ok, **asdict(self), **lists}

    def _repr_html_(self) -> str:
        """The report as a table, for notebooks."""
        from shardvar.checkpoint.pictures import verify_html

        return verify_html(self)
