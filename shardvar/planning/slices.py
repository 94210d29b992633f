"""Slices: named regions of named tensors. A checkpoint consists of them, wherever their bytes are.

``TensorSlice`` is one slice, for people. ``TensorTable`` and ``SliceTable`` are columns, for a
million of them: a property of a row is computed for all rows at once.

Columns of shapes and offsets are matrices, one row a slice, padded on the right to the largest rank
with axes of offset 0 and extent 1. Padding changes neither sizes nor intersections, so rank 0 is
not a special case. Example: the shapes ``(13, 4)`` and ``()`` are the rows ``[13, 4]`` and ``[1,
1]``.

Questions about all rows (which rows belong to each tensor, how many bytes each tensor has) are
methods of ``SliceTable``; add new ones there, so that each is answered once.

``Capabilities`` are the limits of a format, to which slices are fitted.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, Self

import numpy as np

from shardvar.errors import InconsistentTensor, MalformedCheckpoint, UnsupportedError
from shardvar.layout.dtypes import (
    NAMES,
    OWN_SIZE,
    STRING,
    Array,
    Bools,
    Ints,
    Shape,
    code,
    slice_nbytes,
)
from shardvar.layout.region import Region
from shardvar.limits import MAX_KEY_NBYTES, MAX_RANK
from shardvar.records import entity, frozen, replace

LOCAL_DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"
"""The device of arrays that were not put on any."""


def task_of(device: str) -> str:
    """The task of a device: the host part of its full name."""
    return device.partition("/device:")[0]


class Columns:
    __slots__: tuple[str, ...] = ()

    def columns(self) -> tuple[Ints, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __len__(self) -> int:
        return len(self.columns()[0])

    def take(self, rows: Ints | slice) -> Self:
        """The table of some of the rows, in the given order; a range of them as views."""
        return type(self)(*(column[rows] for column in self.columns()))

    def where(self, mask: Bools) -> Self:
        """The table of the rows at which the mask [k] is True, in order."""
        return self if mask.all() else self.take(np.flatnonzero(mask))


@frozen
class TensorSlice:
    """A named region of a named tensor."""

    key: str  # the tensor's name; bytes that are not UTF-8 stand in it as surrogate escapes
    dtype: str  # the name of the element type (``shardvar.layout.dtypes``)
    full_shape: Shape  # the shape of the whole tensor
    region: Region  # the elements that this slice holds, in the coordinates of the whole tensor
    nbytes: int  # the bytes of its payload
    task: str = ""
    """The task that holds the slice in memory; slices of different tasks never share a file."""

    @property
    def is_whole(self) -> bool:
        return self.region == Region.whole(self.full_shape)


@entity
class TensorTable:
    """Columns of tensors: one row for each key."""

    keys: Sequence[str]
    """The tensors' names, all different."""
    codes: Ints  # [n] codes of the dtypes: positions in ``dtypes.NAMES``
    ranks: Ints  # [n] numbers of axes
    shapes: Ints
    """[n, rank] full shapes, padded with 1."""

    @classmethod
    def of(cls, rows: Iterable[tuple[str, str, Sequence[int]]]) -> Self:
        """The table of (key, dtype name, shape) rows.

        >>> TensorTable.of([("a", "float32", (13, 4)), ("b", "string", ())]).shapes.tolist()
        [[13, 4], [1, 1]]
        """
        keys, dtypes, shapes = zip(*rows, strict=True) if (rows := list(rows)) else ((), (), ())
        codes = np.fromiter(map(code, dtypes), np.int64, len(keys))
        return cls(keys, codes, *pad(shapes, fill=1))

    def __len__(self) -> int:
        return len(self.keys)

    def dtype(self, row: int) -> str:
        return NAMES[int(self.codes[row])]

    def shape(self, row: int) -> Shape:
        return tuple(self.shapes[row, : self.ranks[row]].tolist())

    def fact(self, row: int) -> tuple[str, Shape]:
        return self.dtype(row), self.shape(row)

    def facts(self) -> dict[str, tuple[str, Shape]]:
        """The dtype's name and the full shape of each key."""
        shapes = map(slice, self.ranks.tolist())
        rows = map(list.__getitem__, self.shapes.tolist(), shapes)
        dtypes = map(NAMES.__getitem__, self.codes.tolist())
        return dict(zip(self.keys, zip(dtypes, map(tuple, rows), strict=True), strict=True))

    def rows(self) -> dict[str, int]:
        return dict(zip(self.keys, range(len(self.keys)), strict=True))

    def padded(
        self, offsets: Sequence[Sequence[int]], shapes: Sequence[Sequence[int]]
    ) -> tuple[Ints, Ints]:
        """Offsets and shapes of slices as matrices, padded to the rank of the table."""
        rank, columns = self.shapes.shape[1], ((offsets, 0), (shapes, 1))
        offset, shape = (widen(pad(column, fill)[1], rank, fill) for column, fill in columns)
        return offset, shape

    def take(self, rows: Ints) -> Self:
        keys = list(map(self.keys.__getitem__, rows.tolist()))
        return type(self)(keys, self.codes[rows], self.ranks[rows], self.shapes[rows])

    def whole(self) -> "SliceTable":
        """One slice for each tensor, all of it; strings get ``nbytes`` 0, which is unknown here."""
        return SliceTable.of(self, np.arange(len(self)), np.zeros_like(self.shapes), self.shapes)


@entity
class SliceTable:
    """Columns of slices: one row for each slice; several rows may belong to one tensor."""

    tensors: TensorTable
    """The tensors that the slices belong to; a tensor without a slice is allowed."""
    tensor: Ints  # [m] rows of ``tensors``
    offset: Ints  # [m, rank] first indices in the whole tensor, padded with 0
    shape: Ints  # [m, rank] extents, padded with 1
    nbytes: Ints  # [m] bytes of the payloads
    device: Ints | None = None
    """[m] positions in ``devices``; None where all slices are in one place."""
    devices: tuple[str, ...] = ()
    """The full names of the devices that hold slices in memory."""

    @classmethod
    def of(
        cls,
        tensors: TensorTable,
        tensor: Ints,
        offset: Ints,
        shape: Ints,
        nbytes: Ints | None = None,
    ) -> Self:
        """The table whose sizes follow from dtype and shape, except for strings and variants."""
        codes = tensors.codes[tensor]
        computed = slice_nbytes(codes, shape)
        if nbytes is not None:
            computed = np.where(OWN_SIZE[codes], nbytes, computed)
        return cls(tensors, tensor, offset, shape, computed)

    @classmethod
    def of_region(cls, tensors: TensorTable, region: Region, nbytes: Ints | None) -> Self:
        offset, shape = tensors.padded([region.offset], [region.shape])
        return cls.of(tensors, np.zeros(1, np.int64), offset, shape, nbytes)

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, row: int) -> TensorSlice:
        tensor = int(self.tensor[row])
        return TensorSlice(
            self.tensors.keys[tensor],
            self.tensors.dtype(tensor),
            self.tensors.shape(tensor),
            self.region(row),
            int(self.nbytes[row]),
            task_of(self.device_of(row)),
        )

    def device_of(self, row: int) -> str:
        return LOCAL_DEVICE if self.device is None else self.devices[int(self.device[row])]

    def tasks(self) -> tuple[Ints, list[str]]:
        """Task numbers [m] and the names that they index, in order of first appearance."""
        if self.device is None:
            return np.zeros(len(self), np.int64), [task_of(LOCAL_DEVICE)]
        tasks = list(map(task_of, self.devices))
        names = dict.fromkeys(tasks[number] for number in dict.fromkeys(self.device.tolist()))
        position = {name: number for number, name in enumerate(names)}
        # -1 for a device without slices; no row refers to it.
        of_device = np.array([position.get(task, -1) for task in tasks], np.int64)
        return of_device[self.device], list(position)

    def by_tensor(self, *, by_offset: bool = False) -> tuple[Ints, Ints]:
        """Rows grouped by tensor: ``order`` [m] and ``bounds`` [n + 1]. The rows of tensor ``t``
        are ``order[bounds[t] : bounds[t + 1]]``, ascending, or ``by_offset``."""
        # lexsort takes its last key first: for rank 2 the keys are (column 1, column 0, tensor).
        order = np.lexsort((*self.offset.T[::-1], self.tensor)) if by_offset else None
        return group_rows(self.tensor, len(self.tensors), order)

    def by_region(self) -> Ints:
        # By tensor, then by offset, then by shape, axis after axis; the sort is stable.
        return np.lexsort((*self.shape.T[::-1], *self.offset.T[::-1], self.tensor))

    def nbytes_of_tensors(self) -> Ints:
        return sum_by(self.tensor, self.nbytes, len(self.tensors))

    def key(self, row: int) -> str:
        return self.tensors.keys[int(self.tensor[row])]

    def dtype(self, row: int) -> str:
        return NAMES[int(self.tensors.codes[self.tensor[row]])]

    def region(self, row: int) -> Region:
        rank = self.tensors.ranks[self.tensor[row]]
        return Region(self.offset[row, :rank].tolist(), self.shape[row, :rank].tolist())

    def codes(self, rows: Ints | slice | int = slice(None)) -> Ints:
        """[rows] codes of the dtypes, of all rows by default."""
        codes: Ints = self.tensors.codes[self.tensor[rows]]
        return codes

    def is_whole(self) -> Bools:
        """[m] True where the slice is its whole tensor."""
        # Offsets need no look: a slice that has the full extents and lies within its tensor begins
        # at 0.
        whole: Bools = (self.shape == self.tensors.shapes[self.tensor]).all(axis=1)
        return whole

    def take(self, rows: Ints | slice) -> Self:
        return replace(
            self,
            tensor=self.tensor[rows],
            offset=self.offset[rows],
            shape=self.shape[rows],
            nbytes=self.nbytes[rows],
            device=None if self.device is None else self.device[rows],
        )

    def regions_by_tensor(self, rank: int) -> tuple[Ints, Ints]:
        """Offsets and shapes [m, 1 + rank], first the tensor, so that two tensors never meet."""
        return (
            np.column_stack([self.tensor, widen(self.offset, rank, 0)]),
            np.column_stack([np.ones_like(self.tensor), widen(self.shape, rank, 1)]),
        )


def group_rows(column: Ints, count: int, order: Ints | None = None) -> tuple[Ints, Ints]:
    """Rows grouped by a column of numbers below ``count``; those of the number ``k`` are
    ``order[bounds[k] : bounds[k + 1]]``, ascending, or in ``order``."""
    # A stable sort keeps the rows of one number in order; each number begins where it would be
    # inserted. Example: the column 2, 0, 2 has the order 1, 0, 2; sorted it is 0, 2, 2, so the
    # numbers 0, 1, 2 begin at 0, 1, 1, and end at 3.
    if order is None:
        order = np.argsort(column, kind="stable")
    # A number that does not occur begins where the next one does, so its range is empty.
    return order, np.searchsorted(column[order], np.arange(count + 1))


def sum_by(column: Ints, values: Ints, count: int) -> Ints:
    """[count] the sum of the values of each number; exact, unlike ``np.bincount`` with weights."""
    # bincount adds weights as float64, which turns 2**53 + 1 into 2**53.
    sums = np.zeros(count, np.int64)
    np.add.at(sums, column, values)
    return sums


def pad(shapes: Sequence[Sequence[int]], fill: int) -> tuple[Ints, Ints]:
    """Ranks [n] and a matrix [n, largest rank] of rows of several lengths, padded on the right."""
    ranks = np.fromiter(map(len, shapes), np.int64, len(shapes))
    rank = int(ranks.max(initial=0))
    if rank > MAX_RANK:
        raise MalformedCheckpoint(f"A shape has {rank} axes; NumPy has at most {MAX_RANK}.")
    matrix = np.full((len(shapes), rank), fill, np.int64)
    flat = list(chain.from_iterable(shapes))
    try:
        # The mask is True at the axes that each row has, in C order, so that one flat list fills
        # all rows. Ranks 2 and 0 give [[T, T], [F, F]].
        matrix[np.arange(rank) < ranks[:, None]] = np.array(flat, np.int64)
    except OverflowError:
        raise MalformedCheckpoint("A shape has an extent that 64 bits cannot hold.") from None
    return ranks, matrix


def widen(matrix: Ints, rank: int, fill: int) -> Ints:
    """Add columns of ``fill`` on the right of the matrix, up to ``rank`` columns."""
    missing = rank - matrix.shape[1]
    if missing <= 0:
        return matrix
    return np.column_stack([matrix, np.full((len(matrix), missing), fill, np.int64)])


def stack(tables: Sequence[SliceTable]) -> SliceTable:
    first = tables[0]
    columns = [(table.tensor, table.offset, table.shape, table.nbytes) for table in tables]
    tensor, offset, shape, nbytes = map(np.concatenate, zip(*columns, strict=True))
    devices = [table.device for table in tables if table.device is not None]
    device = None if first.device is None else np.concatenate(devices)
    return SliceTable(first.tensors, tensor, offset, shape, nbytes, device, first.devices)


def concatenate(tables: Sequence[SliceTable]) -> SliceTable:
    """One table of all rows, in order, over any tensors; tensors of one key become one."""
    if len(tables) == 1:
        return tables[0]
    rank = max((table.shape.shape[1] for table in tables), default=0)
    keys = [key for table in tables for key in table.tensors.keys]
    codes, ranks = (
        _stack([getattr(t.tensors, name) for t in tables]) for name in ("codes", "ranks")
    )
    shapes = _stack([widen(table.tensors.shapes, rank, 1) for table in tables], rank)
    # Every tensor becomes the first one of its key. Example: keys a, b, a have row_of 0, 1, 0; the
    # kept rows are 0, 1, whose new positions are 0, 1, so the slices of all three tensors get the
    # new tensors 0, 1, 0.
    first: dict[str, int] = {}
    rows = (first.setdefault(key, row) for row, key in enumerate(keys))
    row_of = np.fromiter(rows, np.int64, len(keys))
    same = (codes == codes[row_of]) & (ranks == ranks[row_of])
    same &= (shapes == shapes[row_of]).all(axis=1)
    if not same.all():
        key = keys[int(np.argmin(same))]
        raise InconsistentTensor(f"Slices of {key!r} disagree on its dtype or its full shape.")
    kept = np.fromiter(first.values(), np.int64, len(first))
    position = np.zeros(len(keys), np.int64)
    position[kept] = np.arange(len(kept))
    # Tensors of a table are numbered behind those before it: tables of 2 and 3 tensors start at 0
    # and 2.
    starts = np.cumsum([0, *(len(table.tensors) for table in tables)])
    tensor = _stack([table.tensor + start for table, start in zip(tables, starts, strict=False)])
    return SliceTable(
        TensorTable(list(first), codes[kept], ranks[kept], shapes[kept]),
        position[row_of[tensor]],
        _stack([widen(table.offset, rank, 0) for table in tables], rank),
        _stack([widen(table.shape, rank, 1) for table in tables], rank),
        _stack([table.nbytes for table in tables]),
    )


def _stack(columns: Sequence[Array], rank: int | None = None) -> Array:
    if columns:
        return np.concatenate(columns)
    return np.zeros(0 if rank is None else (0, rank), np.int64)


_NAMED = 8  # keys that an error names; the rest it counts


@entity
class Assignment:
    """A policy's answer: the slices to write and the file of each."""

    slices: SliceTable
    """The slices, in the order in which they are written."""
    file: Ints
    """[m] the number of the file of each slice."""
    num_files: int  # the number of files
    description: str = ""  # the policy's sentence about itself

    def by_file(self) -> tuple[Ints, Ints]:
        return group_rows(self.file, self.num_files)

    def starts(self, nbytes: Ints) -> Ints:
        """[m] Return the first byte of each slice in its file, where they follow each other."""
        # Lay all files out as one, file after file. 10, 20 and 5 bytes in the files 0, 0, 1 end at
        # 10, 30 and 35, and file 1 begins at 30: so they begin at 0, 10 and 35 - 5 - 30 = 0.
        order, bounds = self.by_file()
        ends = np.cumsum(nbytes[order])
        base = np.append(0, ends)[bounds[:-1]]
        start = np.empty_like(nbytes)
        start[order] = ends - nbytes[order] - base[self.file[order]]
        return start

    def nbytes_of_files(self) -> Ints:
        return sum_by(self.file, self.slices.nbytes, self.num_files)


class Capabilities(NamedTuple):
    """The limits of a format. Planning joins slices that must be whole, and refuses the rest."""

    dtypes: frozenset[str]  # the element types that it can hold at all
    slice_dtypes: frozenset[str]
    """The element types whose slices it can hold; others are joined and written whole."""
    max_slice_rank: int = 0  # Tensors of more axes are written whole
    empty_slices: bool = False
    """True if a slice without elements can be stored next to others of its tensor."""
    many_files: bool = True  # True if it can have more than one data file
    atomic_overwrite: bool = True
    """True if an existing checkpoint is replaced in one step, so that no crash leaves a mixture."""
    holds_objects: bool = False
    """True if it holds plain objects, such as settings, in addition to tensors
    (``formats.objects``)."""
    guards_metadata: bool = False  # True if a checksum covers the user's metadata
    holds_texts: bool = True  # True if it keeps the user's metadata
    objects_in_tensor: bool = False
    """True if the objects are a tensor, since the format has no metadata of the user."""
    holds_ties: bool = False  # True if two keys may have the same bytes: tied weights
    holds_digests: bool = False  # True if it can carry the digests of its tensors
    holds_references: bool = False
    """True if tensors may lie in data files of another checkpoint of the same directory."""
    is_grid: bool = False
    """True if the slices of a tensor must be equal; the last on axis 0 may be shorter."""
    is_separate: bool = False  # True if each slice is a file
    is_exact: bool = False
    """True if a data file has only the bytes of slices that the index names: one is left out by
    writing the file again."""
    file_order: tuple[str, ...] = ()
    """The dtypes in the order of their tensors in a data file, and then by name; empty for the order of
    the policy's answer."""
    folder_index: str = ""
    """The name of the index of a format whose checkpoint is a folder, which holds no other
    checkpoint; else empty."""
    folders: frozenset[str] = frozenset()
    """The names of checkpoints that are folders, of a format whose other checkpoints are files."""


def rows_in_file_order(slices: SliceTable, capabilities: Capabilities) -> Ints:
    """Return the rows of slices in the order that a format has within each data file."""
    places = {code(name): place for place, name in enumerate(capabilities.file_order)}
    if not places:
        return np.arange(len(slices))
    tensors = slices.tensors
    keys = [key.encode("utf-8", "surrogatepass") for key in tensors.keys]
    named = [*zip(map(places.get, tensors.codes.tolist()), keys, strict=True)]
    rank = np.empty(len(tensors), np.int64)
    rank[sorted(range(len(tensors)), key=named.__getitem__)] = np.arange(len(tensors))
    return np.argsort(rank[slices.tensor], kind="stable")


def check_holds(slices: SliceTable, capabilities: Capabilities, format_name: str) -> None:
    """Raise ``UnsupportedError`` unless the format can hold every tensor."""
    # A character has at most four bytes: only long keys are encoded to be measured.
    for key in [key for key in slices.tensors.keys if len(key) > MAX_KEY_NBYTES // 4]:
        nbytes = len(key.encode("utf-8", "surrogatepass"))
        if nbytes > MAX_KEY_NBYTES:
            cause = (
                f"The key {key!r} has {nbytes} bytes, which is beyond the limit of {MAX_KEY_NBYTES}"
            )
            raise UnsupportedError(f"{cause} (MAX_KEY_NBYTES).", "Choose a shorter key.")
    if not capabilities.dtypes:
        raise UnsupportedError(
            f"shardvar can read {format_name} but not write it.",
            "Choose another one, such as safetensors (--format).",
        )
    refused = np.flatnonzero(~_codes_of(capabilities.dtypes)[slices.tensors.codes])
    if len(refused):
        named = ", ".join(
            f"{slices.tensors.keys[row]!r} ({slices.tensors.dtype(row)})"
            for row in refused[:_NAMED].tolist()
        )
        more = f" and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
        # Only numbers become other numbers.
        are_texts = {slices.tensors.dtype(row) for row in refused.tolist()} == {STRING}
        cast = "" if are_texts else ", cast them"
        raise UnsupportedError(
            f"The format {format_name} cannot hold {named}{more}.",
            f"Leave them out (--exclude){cast}, or choose another format.",
        )


def cuttable_rows(slices: SliceTable, capabilities: Capabilities) -> Bools:
    """[m] True if the format can hold slices of the tensor; never for strings and scalars."""
    ranks = slices.tensors.ranks
    held = _codes_of(capabilities.slice_dtypes)[slices.tensors.codes]
    allowed: Bools = held & (ranks > 0) & (ranks <= capabilities.max_slice_rank)
    return np.asarray(allowed[slices.tensor])


def join_whole(slices: SliceTable, capabilities: Capabilities) -> SliceTable:
    """Join slices that the format cannot cut, and drop slices without elements next to others."""
    tensors = slices.tensors
    cuttable = _codes_of(capabilities.slice_dtypes)[tensors.codes] & (
        tensors.ranks <= capabilities.max_slice_rank
    )
    if capabilities.is_grid:
        cuttable &= are_grids(slices)
    joined = (~cuttable)[slices.tensor]
    keep: Bools = np.ones(len(slices), np.bool)
    if not capabilities.empty_slices:
        keep &= (slices.shape > 0).all(axis=1)
        # A tensor without elements keeps one slice: the whole of it.
        joined |= ~(tensors.shapes[slices.tensor] > 0).all(axis=1)
    # Of the slices that are joined only the first stays, and becomes the whole tensor.
    _, first = np.unique(slices.tensor, return_index=True)
    is_first = np.zeros(len(slices), np.bool)
    is_first[first] = True
    rows = np.flatnonzero(np.where(joined, is_first, keep))
    shape = np.where(joined[:, None], tensors.shapes[slices.tensor], slices.shape)[rows]
    offset = np.where(joined[:, None], 0, slices.offset)[rows]
    # Sizes are computed again, since joined slices are larger. The sizes of strings are kept,
    # because they do not follow from shapes.
    table = SliceTable.of(tensors, slices.tensor[rows], offset, shape, slices.nbytes[rows])
    if slices.device is None:
        return table
    return replace(table, device=slices.device[rows], devices=slices.devices)


def are_grids(slices: SliceTable) -> Bools:
    """[n] True for tensors whose slices with elements are equal, except that the last ones on axis
    0 may be shorter: 13 rows in slices of 3, 3, 3, 3 and 1 are a grid."""
    shapes, step = slices.tensors.shapes, grid_steps(slices)
    own, full = step[slices.tensor], shapes[slices.tensor]
    fits = (slices.offset % own == 0) & (slices.shape == np.minimum(own, full - slices.offset))
    fits[:, 1:] &= (full % own == 0)[:, 1:]
    is_odd = ~fits.all(axis=1) & (slices.shape > 0).all(axis=1)
    fit: Bools = np.bincount(slices.tensor[is_odd], minlength=len(shapes)) == 0
    return fit


def grid_steps(slices: SliceTable) -> Ints:
    """[n, rank] the extents of each tensor's first slice, at least 1 on each axis."""
    step = slices.tensors.shapes.copy()
    rows = np.flatnonzero((slices.offset == 0).all(axis=1) & (slices.shape > 0).all(axis=1))
    step[slices.tensor[rows]] = slices.shape[rows]
    return np.maximum(step, 1)


@lru_cache(maxsize=64)  # each format asks for the same two sets, at every write
def _codes_of(names: frozenset[str]) -> Bools:
    """[number of dtypes] True at the codes of these dtypes, to be indexed by a column of codes."""
    # A lookup table: one indexing answers for a whole column.
    held = np.zeros(len(NAMES), np.bool)
    held[list(map(code, names))] = True
    held.flags.writeable = False
    return held
