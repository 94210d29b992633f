"""Why a file is larger than its policy's limit.

R-POLICY-15 (RFC 001): "If the partition is larger than the max shard size, then we log a warning."
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exceeding:
    """A file that is larger than it was to be."""

    file: int
    """The number of the file."""
    nbytes: int
    """The bytes of its payloads."""
    reason: str
    """Why: one sentence that names the keys."""

    def __str__(self) -> str:
        return f"File {self.file} has {self.nbytes} bytes: {self.reason}"
