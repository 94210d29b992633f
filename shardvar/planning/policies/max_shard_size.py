"""MaxShardSizePolicy: files of at most so many bytes.

R-POLICY-4 (RFC 001): "The main goal of the `MaxShardSizePolicy` is to place tensors in shards without those shards
exceeding a specified size." The appendix says how a tensor is cut that does not fit (``cutting``). That alone may take
more files than there need be, since after a cut along one axis the rest may be awkward. So files are filled along
single axes first; where that takes more files than filling in order takes at least, slices are cut further, into single
elements if need be. TensorFlow fills in order too, so it never needs fewer files.
"""

from dataclasses import dataclass
from math import inf
from numbers import Real
from typing import Literal

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import Ints, is_whole
from shardvar.layout.region import Region
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.plan import Assignment
from shardvar.planning.policies.columnar import ColumnarPolicy
from shardvar.planning.policies.cutting import cut_along_an_axis, cut_as_tensorflow, cut_to_elements
from shardvar.planning.policies.exceeding import Exceeding
from shardvar.planning.policies.filling import Filled, Filling, fewest_files, fill
from shardvar.planning.policies.pieces import cuttable_rows, file_nbytes, take_parts
from shardvar.planning.policies.weights import weights_of
from shardvar.planning.slices import SliceTable


@dataclass(frozen=True, slots=True)
class MaxShardSizePolicy(ColumnarPolicy):
    """Files of at most ``max_shard_size`` bytes, filled in order, cutting the slices that do not fit.

    Slices are those of the full tensor, also where a shard of a sharded variable is cut. Tensors without elements are
    kept, strings are never cut, and the tensors of two tasks never share a file. What cannot be cut and exceeds the
    limit gets a file of its own, after the others. As many files as filling in order takes at least.

    >>> policy = MaxShardSizePolicy(500 * 2**20)
    >>> policy.description
    'Fills files up to 524288000 bytes, cutting slices that do not fit.'
    """

    max_shard_size: int
    """The limit in bytes of elements; neither indexes, nor the object graph, nor the lengths of strings are counted."""
    compat: Literal["tensorflow"] | None = None
    """``"tensorflow"`` cuts into the very slices that TensorFlow cuts into, wherever its algorithm ends."""

    def __post_init__(self) -> None:
        given: object = self.max_shard_size
        if not isinstance(given, Real):
            raise ArgumentTypeError(f"{given!r} is no number of bytes.", "Give an integer.")
        if not 1 <= self.max_shard_size < inf:
            raise ArgumentError(f"A maximum of {self.max_shard_size} bytes a file holds nothing.", "Give at least 1.")
        if self.compat not in (None, "tensorflow"):
            raise ArgumentError(f"compat={self.compat!r} is nothing to be compatible with.", "Give 'tensorflow'.")

    @property
    def description(self) -> str:
        """One sentence about the policy."""
        manner = "" if self.compat is None else " as TensorFlow does"
        return f"Fills files up to {self.max_shard_size} bytes, cutting slices that do not fit{manner}."

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """The slices of each task in files of their own, one file after the other."""
        work = Filling(slices, weights_of(slices), cuttable_rows(slices, capabilities), int(self.max_shard_size))
        number, names = slices.tasks()
        groups = [np.flatnonzero(number == task) for task in range(len(names))]
        rows: list[Ints] = []
        files: list[Ints] = []
        regions: dict[int, Region] = {}
        count = num_files = 0
        for filled in (self._fill(work, group) for group in groups):
            for run, (some, file) in enumerate(zip(filled.rows, filled.files, strict=True)):
                if run in filled.regions:
                    regions[count] = filled.regions[run]
                rows.append(some)
                files.append(np.full(len(some), num_files + file))
                count += len(some)
            num_files += filled.num_files
        nothing = np.zeros(0, dtype=np.int64)
        table = take_parts(slices, np.concatenate([nothing, *rows]), regions)
        return Assignment(table, np.concatenate([nothing, *files]), max(num_files, 1), self.description)

    def _fill(self, work: Filling, rows: Ints) -> Filled:
        if self.compat is not None:
            return fill(work, rows, cut_as_tensorflow)
        filled = fill(work, rows, cut_along_an_axis)
        return filled if filled.num_files <= fewest_files(work, rows) else fill(work, rows, cut_to_elements)

    @property
    def has_full_specs(self) -> bool:
        """As TensorFlow's policy: whole tensors get their texts too, but for scalars, which have none."""
        return self.compat is not None

    def exceeding(self, assignment: Assignment) -> list[Exceeding]:
        """The files that are larger than the limit, each with the reason."""
        nbytes, weights = file_nbytes(assignment), weights_of(assignment.slices)
        found = []
        for file in np.flatnonzero(nbytes > self.max_shard_size).tolist():
            rows = np.flatnonzero((assignment.file == file) & (weights > self.max_shard_size)).tolist()
            reasons = [_why(assignment.slices, row) for row in rows]
            reason = " ".join(reasons) or "The object graph and the lengths of strings are not counted."
            found.append(Exceeding(file, int(nbytes[file]), reason))
        return found


def _why(slices: SliceTable, row: int) -> str:
    """Why one slice could not be cut."""
    key, dtype, region = slices.key(row), slices.dtype(row), slices.region(row)
    if is_whole(dtype):
        return f"{key!r} is of dtype {dtype}, which is never cut."
    if region.size == 1:
        return f"{key!r} has elements of {int(slices.nbytes[row])} bytes."
    return f"{key!r} can only be held whole by the format."
