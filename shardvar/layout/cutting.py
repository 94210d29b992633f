"""One interpreter of a cut: how is this tensor cut into parts?

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

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from math import prod
from typing import Any, Protocol, runtime_checkable

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError
from shardvar.layout.dtypes import Ints
from shardvar.layout.partition import Partition, PartitionSpec, check_part_count, columns_of
from shardvar.layout.region import Region


@runtime_checkable
class DeviceParts(Protocol):
    """A cut that says which device holds each part: a ``shardvar.layout.meshes.Layout``."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The full shape."""
        ...

    def distinct_parts(self) -> tuple[Ints, Ints, Ints]:
        """The parts, which tile the shape: device [n], offsets [n, rank] and shapes [n, rank]."""
        ...


AnyPartitioner = Callable[..., "int | Sequence[int] | PartitionSpec | Partition | DeviceParts"]
"""``p(shape, dtype)`` or ``p(num_shards, shape, dtype)``."""

Cut = int | Sequence[int] | PartitionSpec | Partition | DeviceParts | AnyPartitioner
"""The cut of one tensor, in one of the forms of the module's docstring."""

Sizes = tuple[tuple[int, ...], ...]
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
    """The parts that ``cut`` means for a tensor with an axis: a ``Partition`` or layout, else sizes
    for each axis.

    ``LayoutError`` if it does not cut this shape; with ``rows_only`` also if it cuts another axis
    than the first, or says nothing of that. Partitioners get ``dtype`` and ``num_shards``.

    >>> read_cut(5, (13, 4), "float32"), read_cut([2, 9], (13, 4), "float32")
    (((3, 3, 3, 2, 2), (4,)), ((7, 6), (1, 1, 1, 1)))
    """
    source, is_answer = "The partition", callable(cut)
    if callable(cut):
        cut, source = call_partitioner(cut, shape, dtype, num_shards), "The partitioner's answer"
    place = f"{source} {cut!r} does not cut the shape {tuple(shape)}"
    remedy = f"{'Answer with' if is_answer else 'Give'} {_FORMS}"
    if rows_only:
        remedy = _ROWS_ANSWER if is_answer else _ROWS
    if rows_only and is_answer and isinstance(cut, int | np.integer | Partition | DeviceParts):
        # R-PART-1 (RFC 000): the answer is "a list/tuple representing the number of partitions on
        # each dimension". RFC 002 adds the spec. Variables keep to that; a save also takes what it
        # takes without a partitioner.
        raise LayoutError(f"{place}.", remedy)
    if isinstance(cut, Partition | DeviceParts):
        return _check_parts(cut, tuple(shape), source, rows_only)
    spec = _read_spec(cut, place, remedy)
    given = spec.splits if spec.partitions is None else spec.partitions
    # ``rows_only`` counts as 0 or 1: with it, an empty list is refused, because it does not say how
    # rows are cut.
    if given is None or not rows_only <= len(given) <= len(shape):
        raise LayoutError(f"{place}, which has {len(shape)} axes.", remedy)
    if spec.partitions is None:
        sizes = _check_sizes(spec.sizes(shape), shape, place)
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
    """Offsets and shapes [parts, rank] of the parts that ``cut`` means, in C order; errors as
    ``read_cut``.

    The third column has the device [parts] of each part of a layout, whose parts are in the order
    of devices; it is None for other cuts. Sizes that add up tile the shape, so that the parts of
    many tensors need no proof.

    >>> offset, shape, _ = part_columns([2, 2], (3, 4), "float32")
    >>> offset.tolist(), shape.tolist()
    ([[0, 0], [0, 2], [2, 0], [2, 2]], [[2, 2], [2, 2], [1, 2], [1, 2]])
    """
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
    extent = np.empty(index.T.shape, dtype=np.int64)
    offset = np.empty_like(extent)
    for axis, along in enumerate(parts):
        sizes = np.array(along, dtype=np.int64)
        extent[:, axis] = sizes[index[axis]]
        offset[:, axis] = (np.cumsum(sizes) - sizes)[index[axis]]
    return offset, extent, None


def plan_rows(cut: Cut | None, shape: Sequence[int], dtype: Any, num_shards: int = 1) -> Partition:
    """The partition of rows that ``cut`` means; one whole part without a cut, and of a scalar.

    R-PART-4 (RFC 000): "We are only going to support partitioning on the first / outermost axis at
    the moment. Exception will raised if the partitioner returns an unsupported partitioning
    layout." Errors as ``read_cut``.

    >>> [part.shape for part in plan_rows(lambda shape, dtype: [2, 1], (5, 4), "float32")]
    [(3, 4), (2, 4)]
    >>> len(plan_rows([7, 1], (2, 4), "int8")), len(plan_rows(PartitionSpec(splits=[[1, 8, 4]]), (13, 4), "int8"))
    (2, 3)
    """
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
    """Ask a partitioner, with the arguments that its signature takes.

    R-PART-2 (RFC 002): "a callable that accepts number of shards, variable shape and variable
    dtype", and "the legacy partitioner in 1.x that only accepts variable shape and variable dtype
    will be accepted as well". ``ArgumentTypeError`` if the signature takes neither; errors of the
    partitioner itself pass through.

    >>> call_partitioner(lambda num_shards, shape, dtype: [num_shards, 1], (5, 4), "float32", num_shards=3)
    [3, 1]
    """
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
    # Three required arguments can only be RFC 002's. With defaults the number says too little, so
    # the first name decides: p(num_shards, shape, dtype=None) has two required ones.
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


def _check_sizes(sizes: Sizes, shape: Sequence[int], place: str) -> Sizes:
    for extent, along in zip(shape, sizes, strict=True):
        if not along or sum(along) != extent or any(size < 0 for size in along):
            raise LayoutError(
                f"{place}: the sizes {along} do not add up to {extent}.", "Give sizes that add up."
            )
    return sizes


def _check_parts(
    cut: Partition | DeviceParts, shape: tuple[int, ...], source: str, rows_only: bool
) -> Partition | DeviceParts:
    if isinstance(cut, Partition):
        return _check_partition(cut, shape, rows_only)
    if tuple(cut.shape) != shape:
        raise LayoutError(
            f"{source} is a layout of {cut.shape}; the tensor has {shape}.", "Give its own."
        )
    if not rows_only:
        return cut
    _, offset, extent = cut.distinct_parts()
    return _check_partition(
        Partition(shape, tuple(map(Region, offset.tolist(), extent.tolist()))), shape, True
    )


def _check_partition(partition: Partition, shape: tuple[int, ...], rows_only: bool) -> Partition:
    if partition.shape != shape:
        raise LayoutError(
            f"A partition of {partition.shape} does not cut the shape {shape}.",
            "Give one of that shape.",
        )
    if rows_only and not _cuts_rows_in_order(partition):
        named = ", ".join(map(str, partition))
        raise LayoutError(
            f"The parts {named} do not cut the shape {shape} only along its first axis.", _ROWS
        )
    return partition


def _cuts_rows_in_order(partition: Partition) -> bool:
    """Return True if there is a part, and the parts are intervals of rows, in their order."""
    start = 0
    for part in partition:
        if (
            part.offset != (start, *(0 for _ in part.shape[1:]))
            or part.shape[1:] != partition.shape[1:]
        ):
            return False
        start += part.shape[0]
    return bool(partition.parts)
