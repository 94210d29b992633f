"""Hostile checkpoints, which README.md lists; one that may be of any size; and the row of a format
with all that its tests need."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spec_tests.helpers.system_calls import snapshot

HERE = Path(__file__).parent
Files = dict[str, bytes]
Arrays = Mapping[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class Case:
    """One hostile checkpoint: a row of README.md."""

    name: str
    """Its directory."""
    path: str
    """The path that a person would type for it, in its directory."""
    error: str
    """The class of the error that every verb gives, as an error or as the kind of a damage."""
    why: str
    """The bug that it is there to catch."""

    @property
    def files(self) -> Files:
        """Its files, by their paths in its directory."""
        return snapshot(HERE / self.name)


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
    cases: str
    """How the names of its hostile checkpoints begin."""
    file: str = ""
    """The name of a checkpoint that is one file; the fuzzer changes that file."""
    make: Callable[[Arrays], Files] | None = None
    """Returns a checkpoint with ``file`` of float32 arrays. Needed if shardvar does not write the
    format."""
    growing: Sequence[Construct] = ()
    """Constructs whose cost its reader must bound."""


def _rows() -> list[Case]:
    lines = (HERE / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if re.match(r"\| [a-z]+[_/]", line)]
    return [Case(*row) for row in rows]


CASES = [case for case in _rows() if not case.name.startswith("deltas/")]
DELTA_CASES = [case for case in _rows() if case.name.startswith("deltas/")]
"""Deltas, which are applied to the base beside them and not read as checkpoints."""
