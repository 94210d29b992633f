"""A hostile checkpoint, one that may be of any size, and the row of a format with all that its tests
need."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Files = dict[str, bytes]
Arrays = Mapping[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class Case:
    """One hostile checkpoint."""

    name: str
    """Its directory."""
    path: str
    """The path that a person would type for it, in its directory."""
    error: str
    """The class of the error that every verb gives, as an error or as the kind of a damage."""
    why: str
    """The bug that it is there to catch."""
    files: Files
    """Its files, by their paths in its directory."""


@dataclass(frozen=True)
class Construct:
    """A kind of checkpoint that may be of any size."""

    name: str
    path: str
    """The path of the checkpoint, in its directory."""
    files: Callable[[int], Files]
    """Returns the files with n of the construct."""
    count: int
    """The n at which any worse growth is well above the noise."""


@dataclass(frozen=True)
class Evidence:
    """The row of a format: what holds it in the tests and the benchmarks."""

    golden: str
    """The path of an intact checkpoint that another program wrote, in ``spec_tests/golden``."""
    cases: Callable[[], Iterable[Case]]
    """Returns its hostile checkpoints."""
    file: str = ""
    """The name of a checkpoint that is one file; the fuzzer changes that file."""
    make: Callable[[Arrays], Files] | None = None
    """Returns a checkpoint with ``file`` of float32 arrays. Needed if shardvar does not write the
    format."""
    growing: Sequence[Construct] = ()
    """Constructs whose cost its reader must bound."""


PICTURE = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(200)
"""Something else, of which every byte is in order."""
