"""Shard counts: partitioners, which choose the number of parts of a variable only from its shape
and dtype.

A partitioner is a callable ``p(shape, dtype)`` that answers with one count for each axis; ``[3,
1]`` cuts the first axis into three parts. Two families, TensorFlow 2's classes and TensorFlow 1's
functions, share three rules:

    fixed      a given number of parts
    min bytes  the most parts such that none falls below a size
    max bytes  the fewest parts such that none exceeds a size, unless it is a single row

All rules clamp the count to the number of rows, so that no part is empty. They answer for every
shape: ``[]`` for a scalar, which has no axis to cut, and one part for a shape without rows or
elements of zero bytes. A dimension may be None (unknown) where the rule does not need it.
"""

from collections.abc import Callable, Sequence
from operator import index
from typing import Any, Literal, Protocol, get_args

from shardvar.errors import ArgumentError, ArgumentTypeError, OutOfRange
from shardvar.layout.dtypes import ITEMSIZES, STRING, VARIANT, code, parse_dtype
from shardvar.records import frozen

PartialShape = Sequence[int | None]
Rounding = Literal["floor", "ceil"]


class Partitioner(Protocol):
    """R-PART-1 (RFC 000): "A partitioner is a callable with the signature num_partitions =
    fn(shape, dtype)"."""

    def __call__(self, shape: PartialShape, dtype: Any, axis: int = 0) -> list[int]:
        """The number of parts along each axis."""
        ...


@frozen
class FixedShardsPartitioner:
    """A partitioner that cuts into a fixed number of parts, or into single rows if there are fewer
    rows.

    Parameters
    ----------
    num_shards : int
        The number of parts, at least 1.

    Raises
    ------
    ArgumentError
        If `num_shards` is not a positive integer.

    Examples
    --------
    >>> FixedShardsPartitioner(5)((13, 4), "float32"), FixedShardsPartitioner(5)((3,), "float32")
    ([5, 1], [3])
    """

    num_shards: int

    def __post_init__(self) -> None:
        _check_positive(num_shards=self.num_shards)

    def __call__(self, shape: PartialShape, dtype: Any, axis: int = 0) -> list[int]:
        """Return the number of parts along each axis: ``min(num_shards, rows)`` along `axis`.

        Parameters
        ----------
        shape : sequence of int or None
            The shape of the variable; only the dimension `axis` must be known.
        dtype : dtype_like
            The dtype, which does not matter here.
        axis : int, default 0
            The axis to cut.

        Raises
        ------
        ArgumentError
            If the dimension is not known, or there is no such axis.
        """
        return _answer(shape, axis, lambda _rows: self.num_shards)


@frozen
class MinSizePartitioner:
    """A partitioner that cuts into the most parts that are not smaller than a size.

    Parameters
    ----------
    min_shard_bytes : int, default 262144
        The least bytes of a part. A smaller variable is one part.
    max_shards : int, default 1
        The largest number of parts.
    bytes_per_string : int, default 16
        The bytes that one string counts as; the dtype does not tell its true size.
    rounding : {"floor", "ceil"}, default "floor"
        "floor" keeps the minimum; "ceil" is TensorFlow's rule, whose parts may be smaller.

    Raises
    ------
    ArgumentError
        If a number is not a positive integer, or `rounding` is another text.

    Examples
    --------
    >>> MinSizePartitioner(64 << 20, max_shards=10)((60000, 1000), "float32")
    [3, 1]
    >>> MinSizePartitioner(64 << 20, max_shards=10, rounding="ceil")((60000, 1000), "float32")
    [4, 1]
    """

    min_shard_bytes: int = 256 << 10
    max_shards: int = 1
    bytes_per_string: int = 16
    rounding: Rounding = "floor"

    def __post_init__(self) -> None:
        _check_positive(min_shard_bytes=self.min_shard_bytes, max_shards=self.max_shards)
        _check_positive(bytes_per_string=self.bytes_per_string)
        if self.rounding not in get_args(Rounding):
            raise ArgumentError(f"rounding is {self.rounding!r}.", "It is 'floor' or 'ceil'.")

    def __call__(self, shape: PartialShape, dtype: Any, axis: int = 0) -> list[int]:
        """Return the number of parts along each axis.

        See ``FixedShardsPartitioner.__call__`` for the other parameters.

        Parameters
        ----------
        shape : sequence of int
            The shape of the variable; every dimension must be known.
        dtype : dtype_like
            The dtype of the variable.

        Raises
        ------
        ArgumentError
            If a dimension is not known, or there is no such axis.
        """
        row_nbytes, least = (
            _row_nbytes(shape, dtype, axis, self.bytes_per_string),
            self.min_shard_bytes,
        )

        def parts(rows: int) -> int:
            # TensorFlow divides bytes and rounds up: 240 MB in parts of 64 MiB are ceil(3.58) = 4
            # parts of 60 MB each, which is below the minimum.
            if self.rounding == "ceil" or row_nbytes == 0:
                return min(self.max_shards, -(-rows * row_nbytes // least))
            # Rows are not divisible, so a part that is large enough has at least `rows_a_part`
            # rows. The smallest part of div has rows // parts rows, which is at least rows_a_part
            # if parts <= rows // rows_a_part.
            rows_a_part = -(-least // row_nbytes)
            return min(self.max_shards, rows // rows_a_part)

        return _answer(shape, axis, parts)


@frozen
class MaxSizePartitioner:
    """A partitioner that cuts into the fewest parts that are not larger than a size.

    Parameters
    ----------
    max_shard_bytes : int
        The most bytes of a part. A part of one row may be larger, and so may all parts if
        `max_shards` is reached.
    max_shards : int, optional
        The largest number of parts; None, or 0 as in TensorFlow, for no limit.
    bytes_per_string : int, default 16
        The bytes that one string counts as; the dtype does not tell its true size.

    Raises
    ------
    ArgumentError
        If a number is not a positive integer.

    Examples
    --------
    >>> MaxSizePartitioner(100)((13, 7), "float32"), MaxSizePartitioner(100, max_shards=2)((13, 7), "float32")
    ([5, 1], [2, 1])
    """

    max_shard_bytes: int
    max_shards: int | None = None
    bytes_per_string: int = 16

    def __post_init__(self) -> None:
        _check_positive(
            max_shard_bytes=self.max_shard_bytes, bytes_per_string=self.bytes_per_string
        )
        if self.max_shards:
            _check_positive(max_shards=self.max_shards)

    def __call__(self, shape: PartialShape, dtype: Any, axis: int = 0) -> list[int]:
        """Return the number of parts along each axis.

        See ``MinSizePartitioner.__call__`` for the parameters.
        """
        row_nbytes = _row_nbytes(shape, dtype, axis, self.bytes_per_string)
        # For 13 rows of 28 bytes and at most 100 bytes: 3 rows a part, so 5 parts. Rows of zero
        # bytes all fit into one.
        rows_a_part = max(1, self.max_shard_bytes // row_nbytes) if row_nbytes else None

        def parts(rows: int) -> int:
            enough = 1 if rows_a_part is None else -(-rows // rows_a_part)
            return min(enough, self.max_shards or enough)

        return _answer(shape, axis, parts)


@frozen
class AxisPartitioner:
    """A partitioner for one axis, which TensorFlow 1's functions return."""

    rule: Partitioner  # the rule, which takes the axis as its last argument
    axis: int = 0  # the axis to cut

    def __call__(self, shape: PartialShape, dtype: Any) -> list[int]:
        """Return the number of parts along each axis."""
        return self.rule(shape, dtype, self.axis)


def fixed_size_partitioner(num_shards: int, axis: int = 0) -> AxisPartitioner:
    """Return a ``FixedShardsPartitioner`` with a fixed axis, under TensorFlow 1's name.

    Parameters
    ----------
    num_shards : int
        The number of parts, at least 1.
    axis : int, default 0
        The axis to cut.

    Returns
    -------
    callable
        ``partitioner(shape, dtype)``, which returns the number of parts along each axis.

    Raises
    ------
    ArgumentError
        If `num_shards` is not a positive integer.

    Examples
    --------
    >>> fixed_size_partitioner(5, axis=1)((13, 2), "float32")
    [1, 2]
    """
    return AxisPartitioner(FixedShardsPartitioner(num_shards), axis)


def variable_axis_size_partitioner(
    max_shard_bytes: int,
    axis: int = 0,
    bytes_per_string_element: int = 16,
    max_shards: int | None = None,
) -> AxisPartitioner:
    """Return a ``MaxSizePartitioner`` with a fixed axis, under TensorFlow 1's name.

    See ``fixed_size_partitioner`` for the other parameters.

    Parameters
    ----------
    max_shard_bytes : int
        The most bytes of a part. A part of one row may be larger.
    bytes_per_string_element : int, default 16
        The bytes that one string counts as.
    max_shards : int, optional
        The largest number of parts; None for no limit.

    Raises
    ------
    ArgumentError
        If a number is not a positive integer.

    Examples
    --------
    >>> variable_axis_size_partitioner(64)((16, 4), "float64")
    [8, 1]
    """
    rule = MaxSizePartitioner(max_shard_bytes, max_shards, bytes_per_string_element)
    return AxisPartitioner(rule, axis)


def min_max_variable_partitioner(
    max_partitions: int = 1,
    axis: int = 0,
    min_slice_size: int = 256 << 10,
    bytes_per_string_element: int = 16,
    rounding: Rounding = "floor",
) -> AxisPartitioner:
    """Return a ``MinSizePartitioner`` with a fixed axis, under TensorFlow 1's name.

    See ``fixed_size_partitioner`` for the other parameters.

    Parameters
    ----------
    max_partitions : int, default 1
        The largest number of parts. As in TensorFlow, a number below 1 means one part.
    min_slice_size : int, default 262144
        The least bytes of a part.
    bytes_per_string_element : int, default 16
        The bytes that one string counts as.
    rounding : {"floor", "ceil"}, default "floor"
        "floor" keeps the minimum; "ceil" is TensorFlow's rule, whose parts may be smaller.

    Raises
    ------
    ArgumentError
        If a number is not a positive integer, or `rounding` is another text.

    Examples
    --------
    R-PART-3 (RFC 000): "a partitioner that allocates at least 64MB for each partition", 10 of 240
    MB and 3 of 80 MB:

    >>> partitioner = min_max_variable_partitioner(max_partitions=10, min_slice_size=64 << 20)
    >>> [partitioner(shape, "float32") for shape in [(600000, 1000), (60000, 1000), (2000, 100), (100,)]]
    [[10, 1], [3, 1], [1, 1], [1]]
    """
    rule = MinSizePartitioner(
        min_slice_size, max(1, max_partitions), bytes_per_string_element, rounding
    )
    return AxisPartitioner(rule, axis)


def _answer(shape: PartialShape, axis: int, parts: Callable[[int], int]) -> list[int]:
    counts = [1] * len(_known_rank(shape))
    if counts:
        rows = _extent(shape, _checked_axis(shape, axis))
        counts[axis] = max(1, min(rows, parts(rows)))
    return counts


def _row_nbytes(shape: PartialShape, dtype: Any, axis: int, bytes_per_string: int) -> int:
    nbytes = element_nbytes(dtype, bytes_per_string)
    for position in range(len(_known_rank(shape))):
        if position != _checked_axis(shape, axis):
            nbytes *= _extent(shape, position)
    return nbytes


def element_nbytes(dtype: Any, bytes_per_string: int) -> int:
    """Return the bytes of one element: 0 for handles, an estimate for strings."""
    if isinstance(dtype, str) and dtype in ("resource", VARIANT):
        return 0
    name = parse_dtype(dtype)
    return bytes_per_string if name == STRING else int(ITEMSIZES[code(name)])


def _known_rank(shape: PartialShape) -> PartialShape:
    if shape is None:
        raise ArgumentError(
            "A shape of unknown rank cannot be partitioned.", "Give a tuple with one item an axis."
        )
    return shape


def _checked_axis(shape: PartialShape, axis: int) -> int:
    """Return the axis, counted from the front."""
    if not -len(shape) <= axis < len(shape):
        raise OutOfRange(
            f"The shape {tuple(shape)} has no axis {axis} to partition.",
            f"Give an axis from 0 to {len(shape) - 1}.",
        )
    return axis % len(shape)


def _extent(shape: PartialShape, axis: int) -> int:
    try:
        extent = index(shape[axis])  # type: ignore[arg-type]  # None is what the error is for
    except TypeError:
        raise ArgumentTypeError(
            f"Dimension {axis} of the shape {tuple(shape)} is not known.",
            "This partitioner needs its size.",
        ) from None
    if extent < 0:
        raise ArgumentError(f"The shape {tuple(shape)} has a negative dimension.")
    return extent


def _check_positive(**values: int) -> None:
    for name, value in values.items():
        if not hasattr(value, "__index__"):
            raise ArgumentTypeError(f"{name} is {value!r}.", "It must be a positive integer.")
        if value < 1:
            raise ArgumentError(f"{name} is {value}.", "It must be positive.")
