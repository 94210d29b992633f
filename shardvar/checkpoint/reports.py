"""What a write did, or would do.

R-POLICY-16 (RFC 001): "Other metrics will give a summary of the shards collection (number of shards, callback
description)."
"""

from dataclasses import asdict, dataclass
from typing import Any

from shardvar.planning.policies.policy import Exceeding

SCHEMA = 1
"""The version of the keys that ``to_json`` gives; it changes when one changes its meaning or goes."""


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What ``save`` or ``reshard`` did; with ``dry_run`` what it would do."""

    path: str
    """The checkpoint that was written."""
    format: str
    """Its format."""
    description: str
    """The description of the policy that assigned slices to files."""
    num_tensors: int
    """Tensors in it."""
    num_slices: int
    """Slices that they are stored as."""
    nbytes: int
    """Payload bytes written."""
    file_nbytes: tuple[int, ...]
    """Payload bytes of each data file."""
    num_copies: int
    """Regions that were moved: ranges of the source that go to a place in the target."""
    read_nbytes: int
    """Payload bytes read from the source."""
    peak_nbytes: int
    """An upper bound of the memory for buffers, besides the columns of the plan."""
    free_nbytes: int
    """Free bytes on the target's disk before the write."""
    callback_seconds: float = 0.0
    """How long the policy took to decide; kept in no index, so that equal input gives equal bytes."""
    num_empty_files: int = 0
    """Files that a callback named and put nothing in; they are not written."""
    exceeding: tuple[Exceeding, ...] = ()
    """The files that are larger than the policy's limit, each with the reason."""
    reused_files: int = 0
    """Data files that an earlier, interrupted run had finished."""
    dry_run: bool = False
    """Whether nothing was written."""

    @property
    def num_files(self) -> int:
        """Data files."""
        return len(self.file_nbytes)

    def __fspath__(self) -> str:
        """The path, so that the report of a checkpoint may be given where its path is asked for."""
        return self.path

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object with stable keys."""
        lists = {"file_nbytes": list(self.file_nbytes), "exceeding": [asdict(each) for each in self.exceeding]}
        return {"schema": SCHEMA, **asdict(self), **lists, "num_files": self.num_files}

    def _repr_html_(self) -> str:
        """The report as a table, for notebooks."""
        from shardvar.checkpoint.pictures import write_html

        return write_html(self)
