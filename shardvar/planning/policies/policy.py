"""A policy decides which slices share a file. It has a ``description`` and answers in one of two
ways:

    columns    ``assign(slices, capabilities)``: all slices at once, only from metadata
    callback   ``__call__(shardable_tensors)``: tensor by tensor, RFC 001's ``ShardingCallback``

The policies of shardvar answer in columns, which is fast. ``ColumnarPolicy`` also makes each of
them a callback, with the law that both ways give the same answer. A shardable tensor is anything
with the attributes ``checkpoint_key``, ``dtype``, ``shape``, ``slice_spec``, ``device`` and
``tensor``; a tensor is anything that a basic index of NumPy cuts. Nothing is read here.

To add a policy, derive from ``ColumnarPolicy`` and write ``description`` and ``assign``; a policy
with a limit adds ``exceeding(assignment)``, which lists the files that are larger.

Here are also the policies with a simple rule: one file, a file for each task or device, files of
about equal size. Each rule numbers the files of all slices at once, in columns. Only
``BalancedPolicy`` cuts slices, and only along axis 0.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from shardvar.errors import ArgumentError, InconsistentTensor, LayoutError
from shardvar.layout.dtypes import NAMES, Ints, Shape, is_whole, parse_dtype
from shardvar.layout.region import Region, format_slice_text, parse_slice_text, read_integer
from shardvar.limits import MAX_FILES, MAX_RANK
from shardvar.planning.plan import plan_copies
from shardvar.planning.slices import (
    LOCAL_DEVICE,
    Assignment,
    Capabilities,
    SliceTable,
    TensorTable,
    cuttable_rows,
    pad,
)
from shardvar.records import frozen, replace

TensorSliceDict = Mapping[str, Mapping[str, Any]]
"""One file of a callback's answer: from keys to the texts of slices to values."""


class TablePolicy(Protocol):
    """Decides which slices share a file."""

    @property
    def description(self) -> str:
        """One sentence, kept in the index and repeated in errors."""

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """The slices, possibly cut further, each with its file."""


class CallbackPolicy(Protocol):
    """Decides which slices share a file, tensor by tensor (RFC 001's ``ShardingCallback``)."""

    @property
    def description(self) -> str:
        """One sentence, kept in the index and repeated in errors."""

    def __call__(self, shardable_tensors: Sequence[Any], /) -> Sequence[TensorSliceDict]:
        """For every file the tensors in it: from keys to the texts of slices to values."""


Policy = TablePolicy | CallbackPolicy

HOLDS_ALL = Capabilities(
    dtypes=frozenset(NAMES),
    slice_dtypes=frozenset(name for name in NAMES if not is_whole(name)),
    max_slice_rank=MAX_RANK,
    empty_slices=True,
)
"""The capabilities that a policy assumes without a format: all dtypes but strings are cut."""


@frozen
class Exceeding:
    """A file that is larger than its policy's limit.

    R-POLICY-15 (RFC 001): "If the partition is larger than the max shard size, then we log a
    warning."
    """

    file: int
    """The number of the file."""
    nbytes: int  # the bytes of its payloads
    reason: str  # One sentence that names the keys that could not be cut

    def __str__(self) -> str:
        return f"File {self.file} has {self.nbytes} bytes: {self.reason}"


class ColumnarPolicy:
    """The base of policies that decide in columns; gives them RFC 001's ``__call__``."""

    __slots__ = ()

    @property
    def description(self) -> str:
        raise NotImplementedError

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        raise NotImplementedError

    @property
    def has_full_specs(self) -> bool:
        """True if whole tensors also get a text in an answer."""
        return False

    def __call__(self, shardable_tensors: Sequence[Any]) -> list[dict[str, dict[str, Any]]]:
        """Answer as RFC 001 asks: for every file, from keys to the texts of slices to tensors.

        Law: equal to what ``assign`` answers for the same slices and a format that can hold all of
        them.
        """
        slices = tabulate(shardable_tensors)
        answer = self.assign(slices, HOLDS_ALL)
        parts, source = answer.slices, _source_rows(slices, answer.slices)
        kept = (parts.shape == slices.shape[source]).all(axis=1).tolist()
        files: list[dict[str, dict[str, Any]]] = [{} for _ in range(answer.num_files)]
        for row, (file, number) in enumerate(
            zip(answer.file.tolist(), source.tolist(), strict=True)
        ):
            given = shardable_tensors[number]
            part, spec = given.tensor, given.slice_spec
            if not kept[row]:
                # Parts are in coordinates of the whole tensor; the value begins at the offset of
                # the given slice.
                part = part[parts.region(row).relative_to(slices.region(number)).slices]
            if not kept[row] or self.has_full_specs:
                full, region = parts.tensors.shape(int(parts.tensor[row])), parts.region(row)
                spec = slice_spec(full, region)
                if self.has_full_specs and full:  # a scalar has no text
                    spec = format_slice_text(full, region, empty=True)
            files[file].setdefault(given.checkpoint_key, {})[spec] = part
        return [file for file in files if file]


def take_parts(slices: SliceTable, rows: Ints, regions: dict[int, Region]) -> SliceTable:
    """The table of some of the rows, in the given order; those in ``regions`` in part."""
    table = slices.take(rows)
    if not regions:
        return table
    offset, shape = table.offset.copy(), table.shape.copy()
    for position, region in regions.items():
        offset[position, : region.rank] = region.offset
        shape[position, : region.rank] = region.shape
    sized = SliceTable.of(table.tensors, table.tensor, offset, shape, table.nbytes)
    return replace(sized, device=table.device, devices=table.devices)


def slice_spec(full_shape: Shape, region: Region) -> str:
    """TensorFlow's text for a slice in callbacks; empty for the whole tensor."""
    is_whole_tensor = region == Region.whole(full_shape)
    return "" if is_whole_tensor else format_slice_text(full_shape, region, empty=True)


def parse_slice_spec(spec: str, shape: Shape) -> tuple[Shape, Region]:
    """The full shape and the region of a slice_spec, which is empty for a whole tensor."""
    spec = spec.strip()
    return parse_slice_text(spec, empty=True) if spec else (shape, Region.whole(shape))


def tabulate(shardable_tensors: Sequence[Any]) -> SliceTable:
    tensors: dict[str, tuple[str, Shape]] = {}
    position: dict[str, int] = {}
    names: dict[Any, str] = {}
    rows, offsets, shapes, nbytes = [], [], [], []
    for given in shardable_tensors:
        key, shape = given.checkpoint_key, tuple(given.shape)
        full_shape, offset = shape, (0,) * len(shape)
        if given.slice_spec:
            full_shape, region = parse_slice_spec(given.slice_spec, shape)
            if region.shape != shape:
                raise LayoutError(
                    f"The slice of {key!r} has shape {shape}, and the slice_spec "
                    f"{given.slice_spec!r}.",
                    "Give the slice_spec of a slice of that shape.",
                )
            offset = region.offset
        # Remembered, since 100,000 tensors have a handful of dtypes.
        name = names.get(given.dtype) or names.setdefault(given.dtype, parse_dtype(given.dtype))
        if tensors.setdefault(key, (name, full_shape)) != (name, full_shape):
            raise InconsistentTensor(f"Slices of {key!r} disagree on its dtype or its full shape.")
        rows.append(position.setdefault(key, len(position)))
        offsets.append(offset)
        shapes.append(shape)
        nbytes.append(_payload_nbytes(given.tensor) if is_whole(name) else 0)
    table = TensorTable.of((key, *tensor) for key, tensor in tensors.items())
    columns = (pad(offsets, fill=0)[1], pad(shapes, fill=1)[1], np.array(nbytes, np.int64))
    devices = [str(given.device or LOCAL_DEVICE) for given in shardable_tensors]
    number = {name: number for number, name in enumerate(dict.fromkeys(devices))}
    device = np.array([number[name] for name in devices], np.int64)
    slices = SliceTable.of(table, np.array(rows, np.int64), *columns)
    return replace(slices, device=device, devices=tuple(number))


def _payload_nbytes(tensor: Any) -> int:
    """The bytes of a payload; for strings including their lengths and the checksum of these."""
    if not isinstance(tensor, np.ndarray) or tensor.dtype.kind != "O":
        return int(tensor.nbytes)
    lengths = [len(element) for element in tensor.ravel().tolist()]
    # A length is a varint of 7 bits a byte, at least one: 127 takes 1 byte, 128 takes 2.
    return sum(lengths) + sum(max(1, -(-length.bit_length() // 7)) for length in lengths) + 4


def _source_rows(slices: SliceTable, parts: SliceTable) -> Ints:
    """[n] the row of the slice that each part belongs to."""
    counts = np.bincount(slices.tensor, minlength=len(slices.tensors))
    # Right at once for tensors with one slice, as most are. The parts of the others are looked up
    # below.
    row_of = np.zeros(len(slices.tensors), np.int64)
    row_of[slices.tensor] = np.arange(len(slices))
    source: Ints = row_of[parts.tensor]
    several = np.flatnonzero(counts[parts.tensor] > 1)
    if len(several):
        # A part that is a whole slice is found by its place, also one without elements, which
        # overlaps with nothing. Every other part is found by its elements.
        places = {place: row for row, place in enumerate(_places(slices, np.arange(len(slices))))}
        source[several] = [places.get(place, -1) for place in _places(parts, several)]
        cut = several[source[several] < 0]
        copies = plan_copies(slices, parts.take(cut)).copies
        source[cut[copies.target]] = copies.source
    return source


def _places(slices: SliceTable, rows: Ints) -> list[tuple[int, bytes, bytes]]:
    columns = (slices.tensor[rows].tolist(), slices.offset[rows], slices.shape[rows])
    return [
        (tensor, offset.tobytes(), shape.tobytes())
        for tensor, offset, shape in zip(*columns, strict=True)
    ]


@frozen
class AllInOnePolicy(ColumnarPolicy):
    """Everything in a single file, which the tensors of several tasks may not share."""

    description = "Places all slices in a single file."
    """One sentence about the policy."""

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
        return Assignment(slices, np.zeros(len(slices), np.int64), 1, self.description)


@frozen
class SeparatePolicy(ColumnarPolicy):
    """A file for each slice, in formats whose slices are files."""

    description = "Places each slice in a separate file."
    """One sentence about the policy."""

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """Put slice number n in file n."""
        files = np.arange(len(slices))
        return Assignment(slices, files, len(slices), self.description)


@frozen
class ShardByTaskPolicy(ColumnarPolicy):
    """A file for each task, the default; one file in formats that have only one.

    R-POLICY-10 (RFC 001): "Common sharding policies like sharding by task and sharding according to
    a maximum file size will be provided".
    """

    description = "Places the slices of each task in a file of their own."
    """One sentence about the policy."""

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


EACH_PROCESS = "One file for each process."
"""The description of a checkpoint that several processes write."""
USUAL_DESCRIPTIONS = EACH_PROCESS, ShardByTaskPolicy().description
"""The descriptions of checkpoints without a chosen policy."""


@frozen
class ShardByDevicePolicy(ColumnarPolicy):
    """A file for each device: R-POLICY-10 (RFC 001), "Callback to split tensors into shards based
    on their device"."""

    description = "Places the slices of each device in a file of their own."
    """One sentence about the policy."""

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """Put the slices of the device with the lowest number in file 0, the slices of the next one
        in file 1, and so on.

        Otherwise as ``AllInOnePolicy.assign``.
        """
        device = np.zeros(len(slices), np.int64) if slices.device is None else slices.device
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


@frozen
class SlicePart:
    row: int
    region: Region | None
    """The part, in the coordinates of the whole tensor; None for all of the slice."""
    nbytes: int  # the bytes of its payload


@frozen
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
        for row, nbytes in enumerate(size * unit for size in slices.nbytes.tolist()):
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
        begins = [bisect_right(middles, mark) for mark in marks]
        # Moved so that every file has a part: 4 parts in 4 files with [0, 0, 3] get [1, 2, 3],
        # forwards, and 4 parts in 3 files with [3, 4] get [2, 3], backwards.
        first = begins if num_files == len(begins) + 1 else list(range(1, num_files))
        for k in range(len(first)):
            first[k] = max(first[k], first[k - 1] + 1 if k else 1)
        for k in reversed(range(len(first))):
            first[k] = min(first[k], len(parts) - len(first) + k)
        # first[k] is the first part of file k + 1, so the file of a part is the number of such
        # firsts up to it.
        file = np.searchsorted(np.array(first, np.int64), np.arange(len(parts)), side="right")
        rows = np.array([part.row for part in parts], np.int64)
        regions = {
            place: part.region for place, part in enumerate(parts) if part.region is not None
        }
        table = take_parts(slices, rows, regions)
        return Assignment(table, file.astype(np.int64), num_files, self.description)


def _cut_at(
    slices: SliceTable, row: int, nbytes: int, marks: list[int], unit: int
) -> list[SlicePart]:
    """Cut a slice along axis 0 at the rows nearest to places, in 1 / ``unit`` bytes."""
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
