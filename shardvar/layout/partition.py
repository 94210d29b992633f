"""Partitions: one tensor cut into parts by the div rule, the chunk rule, arbitrary splits or N-d
grids.

A ``Partition`` is an ordered tuple of regions that tile a shape. Construction proves that they do,
so code that has a partition does not check it again. A ``PartitionSpec`` is what RFC 002 lets a
partitioner return.

Cuts. There is one interpreter of everything that a caller may give as a cut.
``sv.save(partition=...)`` and ``sv.reshard`` ask for N-d parts, variables for parts of rows. Both
accept the same forms with the same meaning, and refuse the rest with the same error:

    a number          so many div parts along the first axis
    counts            div parts along each axis; axes that are left out stay whole
    a PartitionSpec   counts, or uneven sizes
    a Partition       these parts
    a Layout          the parts that devices of a mesh hold, each part once
    a partitioner     a callable that answers with one of the forms above; the partition of a
                      variable with counts or a spec

1. ``call_partitioner`` asks a partitioner with the arguments of its signature: RFC 000's two, or
   RFC 002's three.
2. ``read_cut`` turns any form into a ``Partition`` or into the sizes of the parts along every axis.
   More parts than indices are clamped, so that no part of a count is empty.
3. ``part_columns`` gives the parts as columns, ``plan_rows`` as a proven ``Partition`` of rows. Of
   a layout there is also a column of devices.

A new form is read in ``read_cut``, and nowhere else.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import Parameter, signature
from itertools import accumulate, product
from math import prod
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError
from shardvar.layout.dtypes import Ints, Shape
from shardvar.layout.region import Region, find_overlap, read_integer, read_integers, subtract_all
from shardvar.limits import MAX_PARTS
from shardvar.records import frozen

_AXIS = "axis of a PartitionSpec"  # the name of what a spec has, for errors

Interval = tuple[int, int]
"""Half-open: ``(start, stop)``."""


def div(length: int, num_shards: int) -> tuple[Interval, ...]:
    """The intervals of the div rule.

    R-DIV-1 (RFC 000): "ids are assigned to shards in a contiguous manner, while attempting to keep
    each shard size identical. If the ids do not evenly divide the number of shards, each of the
    first several shards will be assigned one more id."

    Parameters
    ----------
    length : int
        The number of ids.
    num_shards : int
        The number of shards, at least 1.

    Returns
    -------
    tuple of tuple of int
        (start, stop) of each shard. The last ones are empty if there are fewer ids than shards.

    Raises
    ------
    ArgumentTypeError
        If an argument is not an integer.
    ArgumentError
        If `num_shards` is below 1 or more than 4,194,304, or `length` is negative.

    Examples
    --------
    >>> div(13, 5)
    ((0, 3), (3, 6), (6, 9), (9, 11), (11, 13))
    """
    length, num_shards = read_counts(length, num_shards)
    check_part_count(num_shards)
    small, larger = divmod(length, num_shards)
    # ``shard < larger`` counts as 0 or 1. 13 ids over 5 shards: small is 2 and larger 3, so the
    # sizes are 3, 3, 3, 2, 2.
    return _intervals(small + (shard < larger) for shard in range(num_shards))


def div_owner(ids: npt.ArrayLike, length: int, num_shards: int) -> tuple[Ints, Ints]:
    """The shard that holds each id under ``div``, and the row of the id within that shard.

    Parameters
    ----------
    ids : array_like of int
        Ids from 0 to ``length - 1``, of any shape.
    length : int
        The number of ids.
    num_shards : int
        The number of shards, at least 1.

    Returns
    -------
    shard : ndarray of int64
        The shard of each id, of the shape of `ids`.
    row : ndarray of int64
        The row of each id in its shard, of the shape of `ids`.

    Raises
    ------
    ArgumentTypeError
        If `length` or `num_shards` is not an integer.
    ArgumentError
        If an id is outside ``[0, length)``, `ids` are not integers, `num_shards` is below 1, or
        `length` is negative.

    Examples
    --------
    >>> div_owner([8, 0, 12], 13, 5)
    (array([2, 0, 4]), array([2, 0, 1]))
    """
    length, num_shards = read_counts(length, num_shards)
    array = np.asarray(ids)
    # To NumPy an empty list is an array of floats, but it is a valid list of ids.
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise ArgumentError(f"ids have dtype {array.dtype}.", "Give integers.")
    outside = (array < 0) | (array >= length)
    if outside.any():
        raise ArgumentError(
            f"id {array[outside].flat[0]} is outside [0, {length}).", "Give ids of existing rows."
        )
    # Only after the check: a uint64 id from 2**63 on would wrap to a negative row.
    rows = array.astype(np.int64)
    small, larger = divmod(length, num_shards)
    # The first `larger` shards hold small + 1 ids each; past them every shard holds `small`.
    # Example: 13 ids over 5 shards are 3, 3, 3, 2, 2, so 9 ids lie in the larger shards, and id 12
    # is the fourth past them: shard 3 + 3 // 2, row 3 % 2.
    ids_in_larger = larger * (small + 1)
    early = rows < ids_in_larger
    # ``np.where`` computes both sides for every id, so no divisor may be 0; ``small`` is 0 if there
    # are more shards than ids.
    shard = np.where(early, rows // (small + 1), larger + (rows - ids_in_larger) // max(small, 1))
    row = np.where(early, rows % (small + 1), (rows - ids_in_larger) % max(small, 1))
    return shard, row


def chunk(length: int, num_shards: int) -> tuple[Interval, ...]:
    """The intervals of PyTorch's chunk rule: all of ceil(length / num_shards), then a short one,
    then empty ones.

    See ``div`` for the parameters.

    Examples
    --------
    >>> chunk(13, 5)
    ((0, 3), (3, 6), (6, 9), (9, 12), (12, 13))
    >>> chunk(6, 4)
    ((0, 2), (2, 4), (4, 6), (6, 6))
    """
    length, num_shards = read_counts(length, num_shards)
    check_part_count(num_shards)
    # The quotient rounded up: 13 ids over 5 shards are -(-13 // 5) = 3 each, so shard 4 begins at
    # 12 and has one id.
    size = -(-length // num_shards)
    return tuple((min(i * size, length), min((i + 1) * size, length)) for i in range(num_shards))


class _SpecFields(NamedTuple):
    partitions: Shape | None
    """The number of parts along each axis, cut by div."""
    splits: tuple[Shape, ...] | None
    """The sizes of the parts along each axis; axes that are left out stay whole."""


class PartitionSpec(_SpecFields):
    """RFC 002's answer of a partitioner: counts per axis, or for uneven parts their sizes per axis;
    not both.

    A named tuple, as in RFC 002: ``partitions, splits = spec``.

    Parameters
    ----------
    partitions : sequence of int, optional
        The number of parts along each axis, cut by div.
    splits : sequence of sequences of int, optional
        The sizes of the parts along each axis. Axes that are left out, from the end, stay whole.

    Raises
    ------
    ArgumentError
        If both or neither are given, or they hold other values than integers.

    Examples
    --------
    >>> PartitionSpec(partitions=[3, 1]).sizes((13, 4))
    ((5, 4, 4), (4,))
    >>> PartitionSpec(splits=[[1, 8, 4]]).sizes((13, 4))
    ((1, 8, 4), (4,))
    """

    __slots__ = ()

    def __new__(
        cls, partitions: Sequence[int] | None = None, splits: Sequence[Sequence[int]] | None = None
    ) -> Self:
        # R-SPEC-1 (RFC 002): "either partitions or splits", "but not both".
        if (partitions is None) == (splits is None):
            raise ArgumentError(
                f"PartitionSpec got partitions={partitions} and splits={splits}.",
                "Give exactly one of them.",
            )
        if partitions is not None:
            return super().__new__(cls, read_integers(partitions, _AXIS, ArgumentError), None)
        if not isinstance(splits, Iterable):
            raise ArgumentError(
                f"Invalid splits {splits!r}.",
                "Give a sequence of integers for each axis: the sizes of its parts.",
            )
        sizes = tuple(read_integers(each, _AXIS, ArgumentError) for each in splits)
        return super().__new__(cls, None, sizes)

    @classmethod
    # Of any other named tuple.
    def _make(cls, iterable: Iterable[Any]) -> Self:  # type: ignore[override]
        """Also check what ``_replace`` makes, which a named tuple would not."""
        return cls(*iterable)

    def sizes(self, shape: Sequence[int]) -> tuple[Shape, ...]:
        """The sizes of the parts along every axis of a shape.

        Parameters
        ----------
        shape : sequence of int
            The full shape.

        Raises
        ------
        LayoutError
            If the spec has more axes than `shape`.
        ArgumentError
            If a number of parts is below 1.
        """
        counts, splits = self.partitions or (), self.splits or ()
        if len(counts) > len(shape) or len(splits) > len(shape):
            raise LayoutError(
                f"{self} has more axes than the shape {tuple(shape)}.",
                "Leave some out, from the end.",
            )
        if self.splits is not None:
            return (*splits, *((extent,) for extent in shape[len(splits) :]))
        # A count that is left out is 1, and div into one part is the whole axis.
        padded = (*counts, *(1 for _ in shape[len(counts) :]))
        return tuple(
            tuple(stop - start for start, stop in div(extent, count))
            for extent, count in zip(shape, padded, strict=True)
        )


@frozen
class Partition:
    """An ordered tuple of regions that tile a shape: every element lies in exactly one.

    Iterating gives the regions, and ``len`` their number.

    Parameters
    ----------
    shape : sequence of int
        The full shape.
    parts : sequence of Region
        The regions, in the order of the shards that hold them; empty ones are allowed.

    Raises
    ------
    LayoutError
        If the regions overlap, reach out of `shape`, or leave elements out.

    Examples
    --------
    >>> Partition.from_counts((13, 4), (5, 1)).parts[3]
    Region(offset=(9, 0), shape=(2, 4))
    """

    shape: Shape
    parts: tuple[Region, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "parts", tuple(self.parts))
        check_tiles(self.shape, self.parts)

    @classmethod
    def from_counts(cls, shape: Sequence[int], counts: Sequence[int]) -> Self:
        """The grid of parts that ``div`` cuts, in C order.

        Parameters
        ----------
        shape : sequence of int
            The full shape.
        counts : sequence of int
            The number of parts along each axis. Axes that are left out, from the end, stay whole.

        Raises
        ------
        ArgumentError
            If a number of parts is below 1.
        LayoutError
            If there are more counts than axes.
        """
        return cls.from_sizes(shape, PartitionSpec(partitions=counts).sizes(shape))

    @classmethod
    def from_sizes(cls, shape: Sequence[int], sizes: Sequence[Sequence[int]]) -> Self:
        """The grid of parts with given sizes, in C order.

        See ``from_counts`` for the other parameters.

        Parameters
        ----------
        sizes : sequence of sequences of int
            For each axis the sizes of its parts.

        Raises
        ------
        LayoutError
            If the sizes of an axis do not add up to its extent, or an axis has none.
        """
        if len(sizes) != len(shape):
            raise LayoutError(
                f"Sizes {sizes} do not fit the shape {tuple(shape)}.",
                "Give one list for each axis.",
            )
        for extent, along in zip(shape, sizes, strict=True):
            if sum(along) != extent or any(size < 0 for size in along):
                raise LayoutError(
                    f"Part sizes {tuple(along)} do not add up to {extent}, an axis of "
                    f"{tuple(shape)}."
                )
        check_part_count(prod(map(len, sizes)))
        grid = product(*(_intervals(along) for along in sizes))
        parts = (Region([a for a, _ in cell], [b - a for a, b in cell]) for cell in grid)
        return cls(tuple(shape), tuple(parts))

    def __iter__(self) -> Iterator[Region]:
        return iter(self.parts)

    def _repr_html_(self) -> str:
        """The parts as a drawing and a table, for notebooks."""
        # Imported on use, so that programs outside notebooks do not pay for the drawings.
        from shardvar.pictures.drawings import partition_html

        return partition_html(self.shape, [(part.offset, part.shape) for part in self.parts])

    def __len__(self) -> int:
        return len(self.parts)


def check_tiles(shape: Sequence[int], parts: Sequence[Region]) -> None:
    """Raise ``LayoutError`` unless every element of ``shape`` lies in exactly one part."""
    full = Region.whole(shape)
    for part in parts:
        if part.rank != full.rank or not full.covers(part):
            raise LayoutError(f"Part {part} reaches out of the shape {full.shape}.")
    pair = find_overlap(*columns_of(parts, full.rank))
    if pair is not None:
        raise LayoutError(f"Parts {parts[pair[0]]} and {parts[pair[1]]} overlap.")
    # Disjoint parts within the shape cover it if their sizes add up.
    if sum(part.size for part in parts) != full.size:
        missing = subtract_all(full, sorted(parts))
        raise LayoutError(
            f"Of the shape {full.shape} no part holds {', '.join(map(str, missing[:8]))}."
        )


def columns_of(parts: Sequence[Region], rank: int) -> tuple[Ints, Ints]:
    # Without the reshape, an empty list of parts would be an array of shape [0] instead of [0,
    # rank].
    offset = np.array([part.offset for part in parts], np.int64).reshape(len(parts), rank)
    shape = np.array([part.shape for part in parts], np.int64).reshape(len(parts), rank)
    return offset, shape


def read_counts(length: int, num_shards: int) -> tuple[int, int]:
    """Return both as integers; an error unless so many rows make so many shards."""
    # NumPy's would wrap around: chunk(np.uint8(200), np.uint8(3)) at 256.
    length, num_shards = (
        read_integer(length, "length"),
        read_integer(num_shards, "number of shards"),
    )
    if num_shards < 1:
        raise ArgumentError(
            f"Cannot cut {length} rows into {num_shards} shards.", "Give at least one shard."
        )
    if length < 0:
        raise ArgumentError(f"The length {length} is negative.", "Give a number of rows.")
    return length, num_shards


def check_part_count(count: int) -> None:
    """Raise ``ArgumentError`` for more parts than are listed one by one."""
    if count > MAX_PARTS:
        raise ArgumentError(
            f"{count} parts are too many; at most {MAX_PARTS} are allowed.", "Cut into fewer."
        )


def _intervals(sizes: Iterable[int]) -> tuple[Interval, ...]:
    stops = list(accumulate(sizes))
    # The starts are one number longer, so ``zip`` is not strict: sizes 3, 2 give (0, 3) and (3, 5).
    return tuple(zip([0, *stops], stops, strict=False))


@runtime_checkable
class DeviceParts(Protocol):
    """A cut with the device of each part: a ``shardvar.layout.meshes.Layout``."""

    @property
    def shape(self) -> Shape: ...

    def distinct_parts(self) -> tuple[Ints, Ints, Ints]:
        """The parts, which tile the shape: device [n], offsets [n, rank] and shapes [n, rank]."""
        ...


AnyPartitioner = Callable[..., "int | Sequence[int] | PartitionSpec | Partition | DeviceParts"]
"""``p(shape, dtype)`` or ``p(num_shards, shape, dtype)``."""

Cut = int | Sequence[int] | PartitionSpec | Partition | DeviceParts | AnyPartitioner
"""The cut of one tensor, in one of the forms of the module's docstring."""

Sizes = tuple[Shape, ...]
"""The sizes of the parts along each axis; they add up to its extent."""

# The remedies, by place: each names only forms that are accepted there.
_FORMS = (
    "a number of parts, a list with at most one number for each axis, a PartitionSpec, a "
    "Partition or a Layout."
)
_ROWS = (
    "Give a number n, a list [n, 1, ...] where n is at least 1, a PartitionSpec that cuts only the "
    "first axis, or a Partition or Layout whose parts are in the order of their rows."
)
_ROWS_ANSWER = (
    "Answer with a list [n, 1, ...] where n is at least 1, or with a PartitionSpec that cuts only "
    "the first axis."
)


def read_cut(
    cut: Cut, shape: Sequence[int], dtype: Any, num_shards: int = 1, *, rows_only: bool = False
) -> Partition | DeviceParts | Sizes:
    """The parts that ``cut`` means: a ``Partition`` or layout, else sizes for each axis."""
    source, is_answer = "The partition", callable(cut)
    if callable(cut):
        cut, source = call_partitioner(cut, shape, dtype, num_shards), "The partitioner's answer"
    place = f"{source} {cut!r} does not cut the shape {tuple(shape)}"
    remedy = f"{'Answer with' if is_answer else 'Give'} {_FORMS}"
    if rows_only:
        remedy = _ROWS_ANSWER if is_answer else _ROWS
    if rows_only and is_answer and isinstance(cut, int | np.integer | Partition | DeviceParts):
        # R-PART-1 (RFC 000): the answer is "a list/tuple representing the number of partitions on
        # each dimension". RFC 002 adds the spec. Variables keep to that; a save takes any form.
        raise LayoutError(f"{place}.", remedy)
    if isinstance(cut, Partition | DeviceParts):
        return _check_parts(cut, tuple(shape), source, rows_only)
    spec = _read_spec(cut, place, remedy)
    given = spec.splits if spec.partitions is None else spec.partitions
    # ``rows_only`` counts as 0 or 1: with it, an empty list is refused, which has no count of rows.
    if given is None or not rows_only <= len(given) <= len(shape):
        raise LayoutError(f"{place}, which has {len(shape)} axes.", remedy)
    if spec.partitions is None:
        sizes = spec.sizes(shape)
        for extent, along in zip(shape, sizes, strict=True):
            if not along or sum(along) != extent or any(size < 0 for size in along):
                raise LayoutError(
                    f"{place}: the sizes {along} do not add up to {extent}.",
                    "Give sizes that add up.",
                )
        if rows_only and any(len(along) != 1 for along in sizes[1:]):
            raise LayoutError(f"{place} only along its first axis.", remedy)
        return sizes
    counts = spec.partitions
    if min(counts, default=1) < 1:
        raise LayoutError(f"{place}: an axis has at least one part.", "Give counts from 1 on.")
    if rows_only and any(count != 1 for count in counts[1:]):
        raise LayoutError(f"{place} only along its first axis.", remedy)
    # Axes without a count stay whole, so ``zip`` may stop early. An axis without indices keeps one
    # empty part: min(3, max(0, 1)) is 1.
    clamped = [min(count, max(extent, 1)) for count, extent in zip(counts, shape, strict=False)]
    return PartitionSpec(partitions=clamped).sizes(shape)


def part_columns(
    cut: Cut, shape: Sequence[int], dtype: Any, num_shards: int = 1
) -> tuple[Ints, Ints, Ints | None]:
    """Offsets and shapes [parts, rank] of the parts in C order, and of a layout the devices."""
    # The parts of a layout are in the order of devices. Sizes that add up tile the shape, so that
    # the parts of many tensors need no proof.
    parts = read_cut(cut, shape, dtype, num_shards)
    if isinstance(parts, DeviceParts):
        device, offset, extent = parts.distinct_parts()
        return offset, extent, device
    if isinstance(parts, Partition):
        return *columns_of(parts.parts, len(shape)), None
    check_part_count(prod(map(len, parts)))
    # The grid in C order: the parts along the last axis follow each other, as in nested loops over
    # the axes. Row ``axis`` of ``index`` has the number of each part along that axis.
    index = np.indices(tuple(map(len, parts))).reshape(len(parts), -1)
    extent = np.empty(index.T.shape, np.int64)
    offset = np.empty_like(extent)
    for axis, along in enumerate(parts):
        sizes = np.array(along, np.int64)
        extent[:, axis] = sizes[index[axis]]
        offset[:, axis] = (np.cumsum(sizes) - sizes)[index[axis]]
    return offset, extent, None


def plan_rows(cut: Cut | None, shape: Sequence[int], dtype: Any, num_shards: int = 1) -> Partition:
    """The partition of rows that ``cut`` means; one whole part without a cut, and of a scalar."""
    # R-PART-4 (RFC 000): "We are only going to support partitioning on the first / outermost axis
    # at the moment. Exception will raised if the partitioner returns an unsupported partitioning
    # layout."
    # R-PART-5 (RFC 000): "If users don't explicitly pass in a partitioner, variables will not be
    # partitioned."
    if cut is None or not shape:
        return Partition(tuple(shape), (Region.whole(shape),))
    parts = read_cut(cut, shape, dtype, num_shards, rows_only=True)
    if isinstance(parts, DeviceParts):  # which ``rows_only`` made a partition of
        raise LayoutError(f"{parts!r} does not cut rows.", _ROWS)
    return parts if isinstance(parts, Partition) else Partition.from_sizes(shape, parts)


def call_partitioner(
    partitioner: AnyPartitioner, shape: Sequence[int], dtype: Any, num_shards: int
) -> Any:
    """Ask a partitioner, with the arguments that its signature takes."""
    # R-PART-2 (RFC 002): "a callable that accepts number of shards, variable shape and variable
    # dtype", and "the legacy partitioner in 1.x that only accepts variable shape and variable dtype
    # will be accepted as well". Errors of the partitioner itself pass through.
    try:
        taken = signature(partitioner)
    except (TypeError, ValueError):  # a callable without a signature, as some of C are
        return partitioner(tuple(shape), dtype)
    positional = [
        p
        for p in taken.parameters.values()
        if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]
    required = [p for p in positional if p.default is Parameter.empty]
    # Three required arguments can only be RFC 002's. With defaults the number is not enough, so the
    # first name decides: p(num_shards, shape, dtype=None) requires two.
    is_of_three = len(required) >= 3 or bool(positional and positional[0].name == "num_shards")
    given = (num_shards, tuple(shape), dtype) if is_of_three else (tuple(shape), dtype)
    try:
        # Bound before the call, so that a TypeError that the partitioner raises is not taken for a
        # wrong signature.
        taken.bind(*given)
    except TypeError as error:
        raise ArgumentTypeError(
            f"The partitioner {partitioner!r} cannot be called with {given}: {error}.",
            "Give p(shape, dtype) or p(num_shards, shape, dtype).",
        ) from None
    return partitioner(*given)


def _read_spec(cut: Any, place: str, remedy: str) -> PartitionSpec:
    """The spec that a number, counts or a spec mean; ``LayoutError`` for anything else."""
    if isinstance(cut, PartitionSpec):
        return cut
    if isinstance(cut, int | np.integer):
        return PartitionSpec(partitions=[int(cut)])
    try:
        if isinstance(cut, Sequence) and not isinstance(cut, str | bytes | bytearray):
            return PartitionSpec(partitions=cut)
    except ArgumentError:
        pass  # the same error as for other kinds
    raise LayoutError(f"{place}.", remedy)


def _check_parts(
    cut: Partition | DeviceParts, shape: Shape, source: str, rows_only: bool
) -> Partition | DeviceParts:
    if tuple(cut.shape) != shape:
        if isinstance(cut, Partition):
            raise LayoutError(
                f"A partition of {cut.shape} does not cut the shape {shape}.",
                "Give one of that shape.",
            )
        raise LayoutError(
            f"{source} is a layout of {cut.shape}; the tensor has {shape}.", "Give its own."
        )
    if not rows_only:
        return cut
    if not isinstance(cut, Partition):
        _, offset, extent = cut.distinct_parts()
        cut = Partition(shape, tuple(map(Region, offset.tolist(), extent.tolist())))
    # There is a part, and the parts are intervals of rows, in their order.
    start, is_in_order = 0, bool(cut.parts)
    for part in cut:
        is_in_order &= part == Region((start, *(0 for _ in shape[1:])), (part.shape[0], *shape[1:]))
        start += part.shape[0]
    if not is_in_order:
        parts = ", ".join(map(str, cut))
        raise LayoutError(
            f"The parts {parts} do not cut the shape {shape} only along its first axis.", _ROWS
        )
    return cut
