"""Policies that group slices by a simple rule: one file, a file for each task or device, files of
about equal size.

Each rule numbers the files of all slices at once, in columns. Only ``BalancedPolicy`` cuts slices,
and only along axis 0.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Ints
from shardvar.layout.region import Region, read_integer
from shardvar.limits import MAX_FILES
from shardvar.planning.capabilities import Capabilities, cuttable_rows
from shardvar.planning.plan import Assignment
from shardvar.planning.policies.policy import ColumnarPolicy, take_parts
from shardvar.planning.slices import SliceTable


@dataclass(frozen=True, slots=True)
class AllInOnePolicy(ColumnarPolicy):
    """Everything in a single file, which the tensors of several tasks may not share."""

    @property
    def description(self) -> str:
        """One sentence about the policy."""
        return "Places all slices in a single file."

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """Put the slices in file 0, uncut.

        Parameters
        ----------
        slices : SliceTable
            The slices to store.
        capabilities : Capabilities
            The abilities of the format.

        Returns
        -------
        Assignment
            The slices, and the file of each.
        """
        return Assignment(slices, np.zeros(len(slices), dtype=np.int64), 1, self.description)


@dataclass(frozen=True, slots=True)
class SeparatePolicy(ColumnarPolicy):
    """A file for each slice, in formats whose slices are files."""

    @property
    def description(self) -> str:
        """One sentence about the policy."""
        return "Places each slice in a separate file."

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """Put slice number n in file n."""
        return Assignment(
            slices, np.arange(len(slices), dtype=np.int64), len(slices), self.description
        )


@dataclass(frozen=True, slots=True)
class ShardByTaskPolicy(ColumnarPolicy):
    """A file for each task, the default; one file in formats that have only one.

    R-POLICY-10 (RFC 001): "Common sharding policies like sharding by task and sharding according to
    a maximum file size will be provided".
    """

    @property
    def description(self) -> str:
        """One sentence about the policy."""
        return "Places the slices of each task in a file of their own."

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """Put the slices of the first task in file 0, the slices of the next task in file 1, and so
        on.

        Otherwise as ``AllInOnePolicy.assign``.

        Parameters
        ----------
        capabilities : Capabilities
            The abilities of the format; with only one file, all slices are in it.
        """
        number, _ = slices.tasks()
        if not capabilities.many_files:
            number = np.zeros_like(number)
        return _by_number(slices, number, self.description)


@dataclass(frozen=True, slots=True)
class ShardByDevicePolicy(ColumnarPolicy):
    """A file for each device: R-POLICY-10 (RFC 001), "Callback to split tensors into shards based
    on their device"."""

    @property
    def description(self) -> str:
        """One sentence about the policy."""
        return "Places the slices of each device in a file of their own."

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """Put the slices of the device with the lowest number in file 0, the slices of the next one
        in file 1, and so on.

        Otherwise as ``AllInOnePolicy.assign``.
        """
        device = np.zeros(len(slices), dtype=np.int64) if slices.device is None else slices.device
        # Devices without slices have no file: devices 7, 2, 7 are files 1, 0, 1.
        _, number = np.unique(device, return_inverse=True)
        return _by_number(slices, number, self.description)


def _by_number(slices: SliceTable, number: Ints, description: str) -> Assignment:
    """Order the slices by the number of their file; slices of one file keep their order."""
    num_files = int(number.max(initial=0)) + 1
    if (number[1:] >= number[:-1]).all():  # as they are: nothing has to be checked for losses
        return Assignment(slices, number, num_files, description)
    order = np.argsort(number, kind="stable")
    return Assignment(slices.take(order), number[order], num_files, description)


@dataclass(frozen=True, slots=True)
class SlicePart:
    """A part of a slice, in one of the balanced files."""

    row: int
    """The row of the slice."""
    region: Region | None
    """The part, in the coordinates of the whole tensor; None for all of the slice."""
    nbytes: int
    """The bytes of its payload."""


@dataclass(frozen=True, slots=True)
class BalancedPolicy(ColumnarPolicy):
    """Files of about equal payload, ``num_files`` of them, cutting slices along axis 0 where that
    helps.

    Tensors of several tasks may share a file, which a save refuses; arrays and checkpoints are of
    one task.

    Raises
    ------
    ArgumentError
        If ``num_files`` is below 1 or above 99,999.

    Examples
    --------
    >>> import tempfile
    >>> import shardvar as sv
    >>> tensors = {"table": np.ones((13, 4), np.float32), "bias": np.ones(8, np.float32)}
    >>> sv.save(f"{tempfile.mkdtemp()}/model", tensors, policy=sv.BalancedPolicy(3)).file_nbytes
    (80, 80, 80)
    """

    num_files: int
    """The number of files, at most 99,999; fewer if there are too few rows and tensors."""

    def __post_init__(self) -> None:
        if not 1 <= read_integer(self.num_files, "num_files") <= MAX_FILES:
            raise ArgumentError(f"num_files is {self.num_files}.", f"Give 1 to {MAX_FILES}.")

    @property
    def description(self) -> str:
        """One sentence about the policy."""
        return f"Balances payload bytes over {self.num_files} files."

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """Lay all payloads end to end, draw ``num_files - 1`` even marks, and cut at the row
        nearest to each mark.

        Parameters
        ----------
        slices : SliceTable
            The slices to store.
        capabilities : Capabilities
            The abilities of the format: which slices may be cut.

        Returns
        -------
        Assignment
            The slices, some of them cut, and the file of each.

        Notes
        -----
        If everything can be cut, a file is within one row of its even share. A slice that cannot be
        cut goes to the file that its middle falls in, unless that leaves a file empty: every file
        gets a part as long as there are as many parts as files. Files beyond that are not written,
        because a cut is made only for balance.
        """
        cuttable = cuttable_rows(slices, capabilities)
        total = int(slices.nbytes.sum())
        # A mark is a fraction of a byte: 5 bytes in 2 files have it at 2.5. So that all numbers are
        # whole, places of payloads are counted in units of 1 / unit byte.
        unit = 2 * self.num_files
        marks = [2 * total * n for n in range(1, self.num_files)]
        parts: list[SlicePart] = []
        middles: list[int] = []
        position = 0
        for row, nbytes in enumerate(each * unit for each in slices.nbytes.tolist()):
            # Only marks strictly inside the payload cut it: a mark on its first or last byte lies
            # between two slices.
            inside = marks[bisect_right(marks, position) : bisect_left(marks, position + nbytes)]
            cuts = [mark - position for mark in inside] if cuttable[row] else []
            for part in _cut_at(slices, row, nbytes // unit, cuts, unit):
                parts.append(part)
                middles.append(position + part.nbytes * unit // 2)
                position += part.nbytes * unit
        num_files = max(1, min(self.num_files, len(parts)))
        # A row whose middle is on a mark is in front of the cut, and belongs to the file before it.
        first = _leave_none_empty(
            [bisect_right(middles, mark) for mark in marks], len(parts), num_files
        )
        # first[k] is the first part of file k + 1, so the file of a part is the number of such
        # firsts up to it.
        file = np.searchsorted(np.array(first, dtype=np.int64), np.arange(len(parts)), side="right")
        return Assignment(
            _table_of(slices, parts), file.astype(np.int64), num_files, self.description
        )


def _cut_at(
    slices: SliceTable, row: int, nbytes: int, marks: list[int], unit: int
) -> list[SlicePart]:
    """Cut a slice along axis 0 at the rows nearest to some places of its payload, which are counted
    in 1 / ``unit`` bytes."""
    if not marks:
        return [SlicePart(row, None, nbytes)]
    region = slices.region(row)
    count = region.shape[0]
    row_nbytes = nbytes // count
    # Half a row is added before dividing, so that the nearest row is taken: with rows of 10 bytes,
    # byte 14 is row 1 and byte 15 is row 2. Cuts at the first or the last row would leave an empty
    # part.
    units = row_nbytes * unit
    cuts = sorted({(mark + units // 2) // units for mark in marks} - {0, count})
    parts = []
    for start, stop in zip([0, *cuts], [*cuts, count], strict=True):
        part = Region(
            (region.offset[0] + start, *region.offset[1:]), (stop - start, *region.shape[1:])
        )
        parts.append(SlicePart(row, part, (stop - start) * row_nbytes))
    return parts


def _table_of(slices: SliceTable, parts: list[SlicePart]) -> SliceTable:
    """The table with one row for each part."""
    rows = np.array([part.row for part in parts], dtype=np.int64)
    return take_parts(
        slices,
        rows,
        {place: part.region for place, part in enumerate(parts) if part.region is not None},
    )


def _leave_none_empty(first: list[int], num_parts: int, num_files: int) -> list[int]:
    """The first part of each file but the first, moved so that every file has a part."""
    # Example: 4 parts in 4 files with first = [0, 0, 3]. Forwards, each first moves behind the one
    # before: [1, 2, 3]. Backwards, each moves in front of the one after, so that the last files
    # have parts too: of 4 parts in 3 files, [3, 4] becomes [2, 3].
    kept = list(first) if num_files == len(first) + 1 else list(range(1, num_files))
    for file in range(len(kept)):
        kept[file] = max(kept[file], kept[file - 1] + 1 if file else 1)
    for file in reversed(range(len(kept))):
        kept[file] = min(kept[file], num_parts - len(kept) + file)
    return kept
