"""The vocabulary of a Megatron model: the padded rows of its embedding, and each rank's words."""

from shardvar.errors import ArgumentError, LayoutError, OutOfRange
from shardvar.layout.partition import Interval


def padded_vocabulary(size: int, tensor_parallel: int, multiple: int = 128) -> int:
    """The number of rows of an embedding for a vocabulary, padded to a multiple that all ranks
    divide.

    The rows from `size` on are padding, and their number depends on the parallelism: to reshard,
    load the rows that both have.

    Parameters
    ----------
    size : int
        The number of words.
    tensor_parallel : int
        The number of ranks of tensor parallelism.
    multiple : int, default 128
        Megatron's make_vocab_size_divisible_by.

    Returns
    -------
    int
        The next multiple of ``multiple * tensor_parallel``.

    Raises
    ------
    ArgumentError
        If `size` is negative, or another argument below 1.

    Examples
    --------
    >>> padded_vocabulary(50257, 1), padded_vocabulary(50257, 8)
    (50304, 51200)
    """
    if size < 0 or tensor_parallel < 1 or multiple < 1:
        raise ArgumentError(
            f"A vocabulary of {size} words cannot be padded for {tensor_parallel} ranks to a "
            f"multiple of {multiple}.",
            "Give positive numbers.",
        )
    step = multiple * tensor_parallel
    return -(-size // step) * step


def vocabulary_range(size: int, rank: int, world_size: int) -> Interval:
    """The words of one rank.

    Parameters
    ----------
    size : int
        The number of words, padding included.
    rank : int
        The number of the rank, from 0.
    world_size : int
        The number of ranks.

    Returns
    -------
    tuple of int
        (start, stop), the first word and the word behind the last.

    Raises
    ------
    LayoutError
        If the ranks do not divide the vocabulary.
    OutOfRange
        If `rank` is not one of ``world_size`` ranks.

    Examples
    --------
    >>> vocabulary_range(96, 1, 4)
    (24, 48)
    """
    if world_size < 1 or size < 0 or size % world_size:
        raise LayoutError(
            f"A vocabulary of {size} words is not divisible by {world_size} ranks.",
            "Pad it with padded_vocabulary.",
        )
    if not 0 <= rank < world_size:
        raise OutOfRange(
            f"There is no rank {rank} of {world_size}.",
            f"Give a number from 0 to {world_size - 1}.",
        )
    return rank * size // world_size, (rank + 1) * size // world_size
