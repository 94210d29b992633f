"""MaxShardSizePolicy: files of at most so many bytes.

R-POLICY-4 (RFC 001): "The main goal of the `MaxShardSizePolicy` is to place tensors in shards
without those shards exceeding a specified size."

1. Weigh. Only elements count against the limit, as in TensorFlow: neither the object graph, which
   belongs to the checkpoint and cannot be cut, nor the lengths in front of strings. Otherwise a
   limit that TensorFlow keeps with n files would take more files here.
2. Fill files in order. Slices that fit go in; a slice that does not fit is cut, or begins the next
   file. Row ranges that fit are found by bisection, so the cost grows with the files, not with the
   slices.
3. Cut. The RFC's appendix cuts along one axis (``cut_along_an_axis``). After such a
   cut the rest may be awkward, so this can take more files than necessary. Where it takes more than
   ``fewest_files``, fill again and cut down to single elements (``cut_to_elements``). TensorFlow
   also fills in order, so it never needs fewer files.

A ``CutRule`` cuts a slice that does not fit in a file in two; ``fill`` does not change for another.

    ``cut_along_an_axis``   the RFC's: what fills most of the file, by whole indices of one axis
    ``cut_to_elements``     the same, and further as long as one element fits
    ``cut_as_tensorflow``   parts of even size, exactly TensorFlow's
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Literal

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import ITEMSIZES, STRING, Bools, Ints, code, is_whole
from shardvar.layout.region import Region, read_integer
from shardvar.limits import MAX_FILES
from shardvar.planning.policies.policy import ColumnarPolicy, Exceeding, take_parts
from shardvar.planning.slices import Assignment, Capabilities, SliceTable, cuttable_rows
from shardvar.records import field, frozen, mutable

CutRule = Callable[[Region, int, int, int], "tuple[Region, Region] | None"]
"""(region, bytes of an element, bytes that remain in the file, limit) -> the region in two, or None
to begin the next file."""


def cut_along_an_axis(
    region: Region, itemsize: int, remaining: int, limit: int
) -> tuple[Region, Region] | None:
    """Cut off as many indices along one axis as fill most of the rest; None to begin the next file.
    R-POLICY-14 (RFC 001): "We want to partition along the axis that results in the most amount of
    remaining shard space being filled up, so we don't create more shards than is necessary. We do
    this by partitioning the tensor ... of maximum size <= the remaining shard size." Where not one
    index fits a whole file, the longest axis is cut into single indices."""
    # Example: (4, 5) of 4 bytes with 50 bytes left. An index along axis 0 has 20 bytes, so 2 of
    # them fill 40; one along axis 1 has 16 bytes, so 3 of them fill 48: cut along axis 1.
    indices = [region.size // extent * itemsize for extent in region.shape]
    filled = [remaining // nbytes * nbytes for nbytes in indices]
    axis = filled.index(max(filled))
    if filled[axis]:
        return _split(region, axis, filled[axis] // indices[axis])
    if remaining < limit or region.size <= 1:
        return None
    return _split(region, region.shape.index(max(region.shape)), 1)


def cut_to_elements(
    region: Region, itemsize: int, remaining: int, limit: int
) -> tuple[Region, Region] | None:
    """Cut as ``cut_along_an_axis`` does, and further as long as one element fits."""
    return cut_along_an_axis(region, itemsize, remaining, min(limit, itemsize))


def cut_as_tensorflow(
    region: Region, itemsize: int, remaining: int, limit: int
) -> tuple[Region, Region] | None:
    """Cut off a part of even size, along the first axis that needs the fewest parts. Where not one
    index fits a whole file, TensorFlow never ends; this cuts as ``cut_along_an_axis``."""
    best: tuple[int, int] | None = None
    for axis, extent in enumerate(region.shape):
        per_file = remaining // (region.size // extent * itemsize)
        if per_file:
            parts = -(-extent // per_file)
            if best is None or parts < best[0]:
                best = parts, axis
    if best is None:
        return cut_along_an_axis(region, itemsize, remaining, limit)
    parts, axis = best
    # Even parts instead of full ones: if 6 of 13 rows fit, three parts have ceil(13 / 3) = 5, 5 and
    # 3 rows.
    return _split(region, axis, -(-region.shape[axis] // parts))


def _split(region: Region, axis: int, count: int) -> tuple[Region, Region]:
    shape, offset, rest = list(region.shape), list(region.offset), list(region.shape)
    shape[axis], offset[axis], rest[axis] = count, offset[axis] + count, rest[axis] - count
    return Region(region.offset, shape), Region(offset, rest)


OBJECT_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""TensorFlow's key for the graph of objects, a string."""

_CHECKSUM_NBYTES = 4  # the checksum between the lengths of strings and the strings


# Weigh.


def weights_of(slices: SliceTable) -> Ints:
    """[m] the bytes of each slice that count against a limit."""
    weights = slices.nbytes.copy()
    for row in np.flatnonzero(slices.codes() == code(STRING)).tolist():
        count = int(np.prod(slices.shape[row]))
        is_graph = slices.key(row) == OBJECT_GRAPH_KEY
        weights[row] = 0 if is_graph else strings_nbytes(int(weights[row]), count)
    return weights


def strings_nbytes(payload_nbytes: int, count: int) -> int:
    """Bytes of the elements of ``count`` strings, as if all had the same length: exact for one
    string, and where every string is shorter than 128 bytes."""
    rest = payload_nbytes - _CHECKSUM_NBYTES
    # A length is a varint, 7 bits a byte: take the fewest digits whose range holds the average
    # length. Example: one string of 300 bytes leaves rest = 302. With 1 digit it would have 301
    # bytes, and 301 >= 128; with 2 digits it has 300 < 128 ** 2.
    for digits in range(1, 10):
        if rest - count * digits < count << 7 * digits:
            break
    return max(0, rest - count * digits)


# Fill.


@frozen
class WeighedSlices:
    """Slices with what the filling of files needs to know of each."""

    slices: SliceTable
    """All slices."""
    weights: Ints  # [m] bytes of each slice that count against the limit
    cuttable: Bools  # [m] True if the slice may be cut
    limit: int  # the most bytes of a file, counted as the weights are
    are_whole: bool = False  # True if the format holds only whole tensors


@mutable
class FileContents:
    """The files filled so far: ranges of rows, and parts of rows, in files."""

    limit: int  # the most bytes of a file
    rows: list[Ints] = field(default_factory=list)
    """Row ranges, in the order in which they were put in."""
    files: list[int] = field(default_factory=list)  # the file of each row range
    regions: dict[int, Region] = field(default_factory=dict)
    """Parts of slices that were cut, by the number of the row range, which is then a single row."""
    file: int = 0
    """The file that is being filled."""
    remaining: int = field(init=False)  # bytes that remain in it

    def __post_init__(self) -> None:
        self.remaining = self.limit

    @property
    def num_files(self) -> int:
        return max(self.files, default=-1) + 1

    def next_file(self) -> None:
        self.file, self.remaining = self.file + 1, self.limit

    def put(self, rows: Ints, nbytes: int) -> None:
        """Put rows in the file; rows that exceed the limit fill it."""
        self.rows.append(rows)
        self.files.append(self.file)
        self.remaining = max(self.remaining - nbytes, 0)


def fill(work: WeighedSlices, rows: Ints, cut: CutRule) -> FileContents:
    """Fill files in order; each row that is larger than a file gets its own file."""
    filled = FileContents(work.limit)
    weights = work.weights[rows]
    # total[i] is the weight of the rows before i, so the rows [position, stop) that fit are found
    # by one bisection.
    total = np.concatenate([[0], np.cumsum(weights)])
    # Rows that no file can hold, and the file that was being filled when they came.
    aside: list[tuple[int, int]] = []
    position = 0
    while position < len(rows):
        stop = int(np.searchsorted(total, total[position] + filled.remaining, side="right")) - 1
        if stop > position:
            filled.put(rows[position:stop], int(total[stop] - total[position]))
            position = stop
            continue
        if work.cuttable[rows[position]]:
            _fill_cut(work, filled, int(rows[position]), cut)
        elif weights[position] > work.limit:
            aside.append((position, filled.file))
        else:
            filled.next_file()
            filled.put(rows[position : position + 1], int(weights[position]))
        position += 1
    for position, number in _placed(work, filled, aside):
        filled.file = number
        filled.put(rows[position : position + 1], work.limit)
    return filled


def _placed(
    work: WeighedSlices, filled: FileContents, aside: list[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield the rows that were put aside, each with the number of its file."""
    if work.are_whole:
        # As ``save_pretrained`` of Hugging Face numbers files, by the time at which they are
        # finished: the row's file comes before the unfinished one. Limit 5, sizes 2 10 2
        # 4: the files are 10, 2 + 2, 4.
        open_files = [file for _, file in aside]
        filled.files = [file + bisect_right(open_files, file) for file in filled.files]
        yield from ((position, file + number) for number, (position, file) in enumerate(aside))
        return
    # Rows without elements do not justify a file for themselves: the first row that was put aside
    # joins them.
    has_elements = any(work.slices.nbytes[rows].any() for rows in filled.rows)
    first = filled.num_files if has_elements else 0
    yield from ((position, first + number) for number, (position, _) in enumerate(aside))


def _fill_cut(work: WeighedSlices, filled: FileContents, row: int, cut: CutRule) -> None:
    """Cut one slice until each of its parts is in a file."""
    itemsize = int(ITEMSIZES[work.slices.tensors.codes[work.slices.tensor[row]]])
    rest = [work.slices.region(row)]
    while rest:
        region = rest.pop()
        nbytes = region.size * itemsize
        if nbytes > filled.remaining:
            halves = cut(region, itemsize, filled.remaining, work.limit)
            if halves:
                rest.extend(reversed(halves))
                continue
            if filled.remaining < work.limit:
                filled.next_file()
                rest.append(region)
                continue
        filled.regions[len(filled.rows)] = region
        filled.put(np.array([row]), nbytes)


def fewest_files(work: WeighedSlices, rows: Ints) -> int:
    """Number of files that any filling in order takes at least, as if cuts were allowed between any
    two elements.

    Each file then holds as many whole elements as fit, so no other filling in order is ahead of
    this one after any file.
    """
    limit, weights = work.limit, work.weights[rows]
    items = ITEMSIZES[work.slices.codes(rows)]
    # total[i] is the weight of the rows before i, as in ``fill``.
    total = np.concatenate([[0], np.cumsum(weights)])
    # Files that are full, bytes that remain in the next one, and rows that get their own file. A
    # file is begun by a row with an element.
    full, remaining, aside, is_begun = 0, limit, 0, False
    position = 0
    while position < len(rows):
        # Rows that fit whole.
        stop = int(np.searchsorted(total, total[position] + remaining, side="right")) - 1
        if stop > position:
            remaining -= int(total[stop] - total[position])
            is_begun |= bool(work.slices.nbytes[rows[position:stop]].any())
            position = stop
            continue
        # One row that does not fit in this file.
        nbytes, item = int(weights[position]), int(items[position])
        if work.cuttable[rows[position]]:
            # As many elements as fit go into this file; `count` are left, and `files` more hold
            # them, `each` in all but the last. Example: 10 elements of 4 bytes, limit 12, 4 bytes
            # remain: 1 element fits, 9 are left, 3 a file, so 3 files, and 0 bytes remain.
            count = nbytes // item - remaining // item
            each = max(limit // item, 1)
            files = -(-count // each)
            # This file is full now, unless it is empty and no element fits: then it is the first of
            # `files`, whose elements exceed the limit one by one.
            is_this_full = remaining < limit or remaining >= item
            full += files if is_this_full else files - 1
            remaining = max(limit - (count - (files - 1) * each) * item, 0)
            is_begun = True
        elif nbytes > limit:
            aside += 1
        else:
            full, remaining = full + 1, limit - nbytes
        position += 1
    return full + is_begun + aside


# The policy.


@frozen
class MaxShardSizePolicy(ColumnarPolicy):
    """Files of at most ``max_shard_size`` bytes, filled in order; slices that do not fit are cut.

    Slices refer to the full tensor, also if a shard of a sharded variable is cut. Tensors without
    elements are kept, strings are never cut, and the tensors of two tasks never share a file. A
    slice that cannot be cut and exceeds the limit gets its own file, after the others; in a format
    of whole tensors, such as safetensors, in the order of ``save_pretrained`` of Hugging Face. The
    number of files is the least that filling in order can take.

    Examples
    --------
    >>> policy = MaxShardSizePolicy(500 * 2**20)
    >>> policy.description
    'Fills files up to 524288000 bytes, cutting slices that do not fit.'
    """

    max_shard_size: int
    """The limit in bytes of elements; neither indexes, nor the object graph, nor the lengths of
    strings are counted."""
    compat: Literal["tensorflow"] | None = None
    """``"tensorflow"`` cuts exactly the slices that TensorFlow cuts."""

    def __post_init__(self) -> None:
        if read_integer(self.max_shard_size, "max_shard_size") < 1:
            raise ArgumentError(
                f"max_shard_size is {self.max_shard_size}; such a file holds nothing.",
                "Give at least 1.",
            )
        if self.compat not in (None, "tensorflow"):
            raise ArgumentError(f"Unknown compat={self.compat!r}.", "Give 'tensorflow' or None.")

    @property
    def description(self) -> str:
        """One sentence about the policy."""
        manner = "" if self.compat is None else " as TensorFlow does"
        return (
            f"Fills files up to {self.max_shard_size} bytes, cutting slices that do not "
            f"fit{manner}."
        )

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """Fill files task by task: the tensors of two tasks never share a file.

        Parameters
        ----------
        slices : SliceTable
            The slices to store.
        capabilities : Capabilities
            The abilities of the format: which slices may be cut, for example.

        Returns
        -------
        Assignment
            The slices, some of them cut, and the file of each.

        Raises
        ------
        ArgumentError
            If more than 99,999 files are needed.
        """
        weights, cuttable = weights_of(slices), cuttable_rows(slices, capabilities)
        limit, are_whole = int(self.max_shard_size), not capabilities.slice_dtypes
        work = WeighedSlices(slices, weights, cuttable, limit, are_whole)
        number, names = slices.tasks()
        groups = [np.flatnonzero(number == task) for task in range(len(names))]
        fewest = [fewest_files(work, group) for group in groups]
        self._check_count(sum(fewest), int(weights.sum()))
        rows: list[Ints] = []
        files: list[Ints] = []
        regions: dict[int, Region] = {}
        count = num_files = 0
        for filled in map(self._fill, repeat(work), groups, fewest):
            # Row ranges, files and parts are numbered within the task; here they are put behind
            # those before them.
            for place, (some, file) in enumerate(zip(filled.rows, filled.files, strict=True)):
                if place in filled.regions:
                    regions[count] = filled.regions[place]
                rows.append(some)
                files.append(np.full(len(some), num_files + file))
                count += len(some)
            num_files += filled.num_files
        nothing = np.zeros(0, np.int64)
        table = take_parts(slices, np.concatenate([nothing, *rows]), regions)
        numbers = np.concatenate([nothing, *files])
        order = np.argsort(numbers, kind="stable")
        return Assignment(table.take(order), numbers[order], max(num_files, 1), self.description)

    def _check_count(self, num_files: int, nbytes: int) -> None:
        """Refuse a limit that takes too many files, before any of them is filled."""
        if num_files > MAX_FILES:
            # Two files that follow each other hold more than the limit, and so does a slice that is
            # set aside. So there are at most 3 * nbytes / limit.
            enough = 3 * nbytes // MAX_FILES + 1
            cause = f"A limit of {self.max_shard_size} bytes a file takes {num_files} files or more"
            remedy = f"Give a larger limit, such as {enough} bytes."
            raise ArgumentError(f"{cause}; at most {MAX_FILES} are allowed.", remedy)

    def _fill(self, work: WeighedSlices, rows: Ints, fewest: int) -> FileContents:
        if self.compat is not None:
            return fill(work, rows, cut_as_tensorflow)
        filled = fill(work, rows, cut_along_an_axis)
        return filled if filled.num_files <= fewest else fill(work, rows, cut_to_elements)

    @property
    def has_full_specs(self) -> bool:
        """True as in TensorFlow's policy: whole tensors also get their texts, apart from scalars,
        which have none."""
        return self.compat is not None

    def exceeding(self, assignment: Assignment) -> list[Exceeding]:
        """Return the number, the bytes and the reason of each file that is larger than the limit.

        Parameters
        ----------
        assignment : Assignment
            The slices, and the file of each.
        """
        nbytes, weights = assignment.nbytes_of_files(), weights_of(assignment.slices)
        uncounted = "The object graph and the lengths of strings are not counted."
        exceeding = []
        for file in np.flatnonzero(nbytes > self.max_shard_size).tolist():
            rows = np.flatnonzero((assignment.file == file) & (weights > self.max_shard_size))
            reasons = " ".join(_why_whole(assignment.slices, row) for row in rows.tolist())
            exceeding.append(Exceeding(file, int(nbytes[file]), reasons or uncounted))
        return exceeding


def _why_whole(slices: SliceTable, row: int) -> str:
    key, dtype, region = slices.key(row), slices.dtype(row), slices.region(row)
    if is_whole(dtype):
        return f"{key!r} is of dtype {dtype}, which is never cut."
    if region.size == 1:
        return f"{key!r} has elements of {int(slices.nbytes[row])} bytes."
    return f"{key!r} can only be held whole by the format."
