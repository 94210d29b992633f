"""One policy inside the files of another, in columns."""

from dataclasses import dataclass

import numpy as np

from shardvar.planning.capabilities import Capabilities
from shardvar.planning.plan import Assignment
from shardvar.planning.policies.columnar import ColumnarPolicy
from shardvar.planning.policies.exceeding import Exceeding
from shardvar.planning.policies.protocol import TablePolicy
from shardvar.planning.slices import SliceTable, stack


def composed_description(outer: str, inner: str) -> str:
    """What a composition says of itself.

    >>> composed_description("A file a model.", "At most 8 bytes a file.")
    'A file a model. Then, in each of these: At most 8 bytes a file.'
    """
    return f"{outer} Then, in each of these: {inner}"


@dataclass(frozen=True, slots=True)
class TableComposition(ColumnarPolicy):
    """``inner`` applied to the slices of each file of ``outer``'s answer, one file after the other."""

    outer: TablePolicy
    """What decides first."""
    inner: TablePolicy
    """What divides each of its files."""

    @property
    def description(self) -> str:
        """One sentence about each."""
        return composed_description(self.outer.description, self.inner.description)

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """The files that ``inner`` makes of the first file of ``outer``, then those of the second."""
        first = self.outer.assign(slices, capabilities)
        answers = [
            self.inner.assign(first.slices.take(np.flatnonzero(first.file == file)), capabilities)
            for file in range(first.num_files)
        ]
        starts = np.cumsum([0, *(answer.num_files for answer in answers)]).tolist()
        file = np.concatenate([answer.file + start for answer, start in zip(answers, starts, strict=False)])
        return Assignment(stack([answer.slices for answer in answers]), file, starts[-1], self.description)

    def exceeding(self, assignment: Assignment) -> list[Exceeding]:
        """The files that exceed the inner policy's limit, where it has one."""
        exceeding = getattr(self.inner, "exceeding", None)
        return exceeding(assignment) if exceeding else []
