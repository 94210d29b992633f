"""From a partitioner's answer to a ``Partition``: who may be asked how, and which answers are layouts.

1. ``ask`` calls the partitioner with the arguments that its signature wants: RFC 000's two, or RFC 002's three.
2. ``check_answer`` turns what it said into a partition of rows, or refuses it with the answer in the message.
3. ``plan_partition`` is both; a scalar is never partitioned, so nobody is asked about one.
"""

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from typing import Any

from shardvar.errors import ArgumentTypeError, LayoutError
from shardvar.layout.partition import Partition, PartitionSpec
from shardvar.layout.region import Region

Answer = Sequence[int] | PartitionSpec
AnyPartitioner = Callable[..., Answer]


def plan_partition(
    partitioner: AnyPartitioner | None, shape: Sequence[int], dtype: Any, num_shards: int = 1
) -> Partition:
    """How the partitioner cuts the first axis of ``shape``; one whole part without a partitioner, and of a scalar.

    >>> [part.shape for part in plan_partition(lambda shape, dtype: [2, 1], (5, 4), "float32")]
    [(3, 4), (2, 4)]
    """
    # R-PART-5 (RFC 000): "If users don't explicitly pass in a partitioner, variables will not be partitioned."
    if partitioner is None or not shape:
        return Partition(tuple(shape), (Region.whole(shape),))
    return check_answer(ask(partitioner, shape, dtype, num_shards), shape)


def ask(partitioner: AnyPartitioner, shape: Sequence[int], dtype: Any, num_shards: int) -> Answer:
    """What the partitioner says, called by the signature that it has.

    R-PART-2 (RFC 002): "a callable that accepts number of shards, variable shape and variable dtype", and "the legacy
    partitioner in 1.x that only accepts variable shape and variable dtype will be accepted as well".

    >>> ask(lambda num_shards, shape, dtype: [num_shards, 1], (5, 4), "float32", num_shards=3)
    [3, 1]
    """
    given = (num_shards, tuple(shape), dtype) if _wants_number_of_shards(partitioner) else (tuple(shape), dtype)
    _check_takes(partitioner, given)
    return partitioner(*given)


def check_answer(answer: Any, shape: Sequence[int]) -> Partition:
    """The partition of rows that a partitioner's answer means; ``LayoutError`` where it is none.

    R-PART-4 (RFC 000): "We are only going to support partitioning on the first / outermost axis at the moment.
    Exception will raised if the partitioner returns an unsupported partitioning layout." More parts than rows are
    clamped; axes that the answer leaves out stay whole.

    >>> len(check_answer([7, 1], (2, 4))), len(check_answer(PartitionSpec(splits=[[1, 8, 4]]), (13, 4)))
    (2, 3)
    """
    spec = _spec(answer, shape)
    if spec.splits is not None:
        sizes = spec.sizes(shape)
        if any(len(along) != 1 for along in sizes[1:]) or not sizes[0]:
            raise _unsupported(answer, shape)
        return Partition.from_sizes(shape, sizes)
    counts = spec.partitions or ()
    if not counts or len(counts) > len(shape) or counts[0] < 1 or any(count != 1 for count in counts[1:]):
        raise _unsupported(answer, shape)
    return Partition.from_counts(shape, (max(1, min(counts[0], shape[0])),))


def _spec(answer: Any, shape: Sequence[int]) -> PartitionSpec:
    if isinstance(answer, PartitionSpec):
        return answer
    if not isinstance(answer, list | tuple) or not all(hasattr(count, "__index__") for count in answer):
        raise _unsupported(answer, shape)
    return PartitionSpec(partitions=answer)


def _unsupported(answer: Any, shape: Sequence[int]) -> LayoutError:
    return LayoutError(
        f"The partitioner's answer {answer!r} for the shape {tuple(shape)} is not supported.",
        "Cut the first axis alone: answer with a list [n, 1, ...] where n is at least 1, or with a PartitionSpec.",
    )


def _check_takes(partitioner: AnyPartitioner, given: tuple[Any, ...]) -> None:
    """``ArgumentTypeError`` where the signature does not take them; what a partitioner itself raises is its own."""
    try:
        taken = signature(partitioner)
    except (TypeError, ValueError):  # a callable without a signature, as some of C are
        return
    try:
        taken.bind(*given)
    except TypeError as error:
        raise ArgumentTypeError(
            f"The partitioner {partitioner!r} cannot be called with {given}: {error}.",
            "Give p(shape, dtype) or p(num_shards, shape, dtype).",
        ) from None


def _wants_number_of_shards(partitioner: AnyPartitioner) -> bool:
    try:
        parameters = signature(partitioner).parameters.values()
    except (TypeError, ValueError):  # a callable without a signature, as some of C are
        return False
    positional = [p for p in parameters if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is Parameter.empty]
    return len(required) >= 3 or bool(positional and positional[0].name == "num_shards")
