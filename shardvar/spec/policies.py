"""Chapter 11. Policies: which slices share a file, and what a policy must not do.

A policy takes tensors and returns files. A file is a list of slices ``(key, offset, shape)``.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import Any

from shardvar.spec.partitions import Index, coverage

__all__ = [
    "Answer",
    "Cut",
    "Files",
    "SliceRegion",
    "Tensor",
    "asked",
    "balanced",
    "broken_restrictions",
    "composed",
    "even",
    "exceeding",
    "fewest_files",
    "filled",
    "grouped",
    "max_shard_size",
    "most_filling",
    "to_elements",
    "whole",
]

Tensor = tuple[str, int, Sequence[int]]
"""Key, bytes of an element, shape."""
SliceRegion = tuple[str, Index, Index]
"""Key, offset and shape of a slice."""
Files = list[list[SliceRegion]]
Cut = Callable[[Sequence[int], int, int, int], tuple[int, int] | None]
"""(shape, bytes of an element, bytes that remain in the file, limit) -> the axis and the number of
indices to cut off, or None to begin the next file."""


def whole(tensor: Tensor) -> SliceRegion:
    """Return a tensor as one slice.

    >>> whole(("w", 4, [3, 2]))
    ('w', (0, 0), (3, 2))
    """
    key, _, shape = tensor
    return key, (0,) * len(shape), tuple(shape)


# R-POLICY-8 (RFC 001): "A single device must be used to save a shard, so all tensors in a shard
# must belong to the same task."
# R-POLICY-10 (RFC 001): "Callback to split tensors into shards based on their device."
def grouped(tensors: Sequence[Tensor], groups: Sequence[int]) -> Files:
    """Put the tensors of each task, or of each device, in one file. Files are in order of groups.

    >>> grouped([("a", 4, [2]), ("b", 4, [3])], [1, 0])
    [[('b', (0,), (3,))], [('a', (0,), (2,))]]
    """
    return [
        [whole(tensor) for tensor, each in zip(tensors, groups, strict=True) if each == group]
        for group in sorted(set(groups))
    ]


# R-POLICY-4 (RFC 001): "The main goal of the `MaxShardSizePolicy` is to place tensors in shards
# without those shards exceeding a specified size."
def max_shard_size(tensors: Sequence[Tensor], limit: int) -> Files:
    """Fill files up to a limit. Cut by the sentence, or to elements where that takes fewer files.

    >>> max_shard_size([("a", 4, [3]), ("b", 4, [2])], 12)
    [[('a', (0,), (3,))], [('b', (0,), (2,))]]
    """
    files = filled(tensors, limit, most_filling)
    # "so we don't create more shards than is necessary"
    if len(files) <= fewest_files(tensors, limit):
        return files
    return filled(tensors, limit, to_elements)


# R-POLICY-14 (RFC 001): "If a given tensor can fit in the remaining space available in the current
# shard, then the policy's job is simple: it appends the tensor to the list of tensors in the
# shard." "If not, the tensor must be partitioned." "If the partition is larger than the remaining
# shard space, we start over with a new shard. Otherwise, we add the partition to the current shard,
# then get the remaining tensor slice (without the partition) to shard on the next iteration of the
# loop."
def filled(tensors: Sequence[Tensor], limit: int, cut: Cut) -> Files:
    """Fill files in order, and cut the slices that do not fit by a rule.

    >>> filled([("a", 4, [3, 2])], 16, most_filling)
    [[('a', (0, 0), (2, 2))], [('a', (2, 0), (1, 2))]]
    """
    files: Files = [[]]
    remaining = limit
    for tensor in tensors:
        todo, itemsize = [whole(tensor)], tensor[1]
        while todo:
            key, offset, shape = region = todo.pop(0)
            nbytes = prod(shape) * itemsize
            found = cut(shape, itemsize, remaining, limit) if nbytes > remaining else None
            if found is not None:
                axis, count = found
                first, rest = list(shape), list(shape)
                first[axis], rest[axis] = count, shape[axis] - count
                behind = tuple(o + count if a == axis else o for a, o in enumerate(offset))
                todo = [(key, offset, tuple(first)), (key, behind, tuple(rest)), *todo]
            elif nbytes <= remaining or remaining == limit:
                files[-1].append(region)  # also one element that is larger than the limit
                remaining -= min(nbytes, remaining)
            else:
                files.append([])
                remaining, todo = limit, [region, *todo]
    return [file for file in files if file]


# R-POLICY-14 (RFC 001): "We want to partition along the axis that results in the most amount of
# remaining shard space being filled up, so we don't create more shards than is necessary. We do
# this by partitioning the tensor ... of maximum size <= the remaining shard size. We do this along
# each axis to find the partitioning scheme that best fits in the remaining shard space."
def most_filling(
    shape: Sequence[int], itemsize: int, remaining: int, limit: int
) -> tuple[int, int] | None:
    """Find the cut that fills most, of all that fit; of equal ones the first axis.

    If no index of any axis fits an empty file, one index of the longest axis is cut further.

    >>> most_filling([4, 5], 4, 50, 80)  # 3 of 5 columns fill 48 bytes, 2 of 4 rows only 40
    (1, 3)
    """
    best, most = None, 0
    for axis, extent in enumerate(shape):
        for count in range(1, extent + 1):
            nbytes = count * prod(shape) // extent * itemsize
            if most < nbytes <= remaining:
                best, most = (axis, count), nbytes
    if best is None and remaining == limit and prod(shape) > 1:
        return _longest(shape), 1
    return best


def to_elements(
    shape: Sequence[int], itemsize: int, remaining: int, limit: int
) -> tuple[int, int] | None:
    """Cut as ``most_filling`` does, and further as long as one element fits.

    >>> to_elements([2, 5], 4, 8, 80), to_elements([2, 5], 4, 7, 80), most_filling([2, 5], 4, 7, 80)
    ((1, 1), (1, 1), None)
    """
    found = most_filling(shape, itemsize, remaining, limit)
    if found is None and itemsize <= remaining and prod(shape) > 1:
        return _longest(shape), 1
    return found


# TensorFlow, tf.train.experimental.MaxShardSizePolicy.
def even(shape: Sequence[int], itemsize: int, remaining: int, limit: int) -> tuple[int, int] | None:
    """Cut as TensorFlow does: into parts of even size, along the axis that takes the fewest.

    If no index fits an empty file, TensorFlow never ends. Then the cut is as in ``most_filling``.

    >>> even([13], 4, 24, 24)  # 6 of 13 rows fit, so there are 3 parts: 5, 5 and 3
    (0, 5)
    """
    best, fewest = None, 0
    for axis, extent in enumerate(shape):
        per_file = remaining // (prod(shape) // extent * itemsize)
        parts = -(-extent // per_file) if per_file else 0
        if parts and (best is None or parts < fewest):
            best, fewest = (axis, -(-extent // parts)), parts
    return best or most_filling(shape, itemsize, remaining, limit)


def fewest_files(tensors: Sequence[Tensor], limit: int) -> int:
    """Return the number of files if any two elements could be cut apart.

    >>> fewest_files([("a", 4, [3]), ("b", 8, [2])], 12)
    3
    """
    files, remaining = 0, 0
    for _, itemsize, shape in tensors:
        for _ in range(prod(shape)):
            if not files or (itemsize > remaining and remaining < limit):
                files, remaining = files + 1, limit
            remaining -= min(itemsize, remaining)
    return max(files, 1 if tensors else 0)


def _longest(shape: Sequence[int]) -> int:
    return list(shape).index(max(shape))


# R-POLICY-15 (RFC 001): "If the partition is larger than the max shard size, then we log a warning."
def exceeding(tensors: Sequence[Tensor], files: Files, limit: int) -> list[int]:
    """Return the numbers of the files that are larger than the limit.

    >>> tensors = [("a", 8, [1]), ("b", 1, [2])]
    >>> exceeding(tensors, max_shard_size(tensors, 4), 4)
    [0]
    """
    itemsize = {key: nbytes for key, nbytes, _ in tensors}
    sizes = [sum(prod(shape) * itemsize[key] for key, _, shape in file) for file in files]
    return [number for number, nbytes in enumerate(sizes) if nbytes > limit]


# R-POLICY-17 (RFC 001): "With a little hacking, we can even get some callback composition going."
# R-POLICY-13 (RFC 001): "Each model gets its own shard."
def composed(
    tensors: Sequence[Tensor],
    outer: Callable[[Sequence[Tensor]], Files],
    inner: Callable[[Sequence[Tensor]], Files],
) -> Files:
    """Apply a policy in each file of another one.

    >>> tensors = [("a", 4, [2]), ("b", 4, [1])]
    >>> composed(tensors, lambda given: grouped(given, [1, 0]), lambda given: max_shard_size(given, 4))
    [[('b', (0,), (1,))], [('a', (0,), (1,))], [('a', (1,), (1,))]]
    """
    itemsize, files = {key: nbytes for key, nbytes, _ in tensors}, []
    for whole_file in outer(tensors):
        start = {key: offset for key, offset, _ in whole_file}
        for file in inner([(key, itemsize[key], shape) for key, _, shape in whole_file]):
            places = [[a + b for a, b in zip(start[key], at, strict=True)] for key, at, _ in file]
            files.append(
                [(key, tuple(at), shape) for (key, _, shape), at in zip(file, places, strict=True)]
            )
    return files


# shardvar, docs/policies.md: `BalancedPolicy`.
def balanced(tensors: Sequence[Tensor], num_files: int) -> Files:
    """Lay payloads end to end, and cut at the row that is nearest to each even mark.

    Of two rows that are equally near, the later one is taken.

    >>> balanced([("a", 4, [4]), ("b", 4, [4])], 2)
    [[('a', (0,), (4,))], [('b', (0,), (4,))]]
    """
    ends, rows = [Fraction(0)], []
    for key, itemsize, shape in tensors:
        for row in range(shape[0] if shape else 1):  # a scalar is one row
            ends.append(ends[-1] + prod(shape[1:]) * itemsize)
            rows.append((key, row))
    marks = [ends[-1] * number / num_files for number in range(1, num_files)]
    cuts = [max(range(len(ends)), key=lambda end: (-abs(ends[end] - mark), end)) for mark in marks]
    files: Files = []
    for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        file = []
        for key, _, shape in tensors:
            held = [row for each, row in rows[start:stop] if each == key]
            if held:
                first, count = ((held[0],), (len(held),)) if shape else ((), ())
                file.append((key, (*first, *[0] * len(shape[1:])), (*count, *shape[1:])))
        files.append(file)
    return files


Answer = Sequence[Sequence[tuple[str, str, Sequence[int], Sequence[int], Sequence[int]]]]
"""Files of slices: key, dtype, full shape, offset, shape."""


# R-POLICY-9 (RFC 001): "`MultiDeviceSaver.save()` will perform validation checks after running the
# callback function."
# R-POLICY-1 (RFC 001): "Tensors must not be removed from the checkpoint."
# R-POLICY-2 (RFC 001): "Tensors must not be reshaped."
# R-POLICY-3 (RFC 001): "Tensor dtypes must not change."
# R-POLICY-8 (RFC 001): "Tensors within a shard must belong to the same task."
def broken_restrictions(
    tensors: Mapping[str, tuple[str, Sequence[int], int]], answer: Answer
) -> list[str]:
    """Return the restrictions that a policy's answer breaks, for tensors of (dtype, shape, task).

    >>> tensors = {"a": ("int8", [2], 0), "b": ("int8", [1], 1)}
    >>> broken_restrictions(tensors, [[("a", "int8", [2], [0], [1]), ("b", "int8", [1], [0], [1])]])
    ['removed', 'mixed tasks']
    """
    slices = [each for file in answer for each in file]
    known = [each for each in slices if each[0] in tensors]
    broken = {
        "invented": len(known) < len(slices),
        "cast": any(dtype != tensors[key][0] for key, dtype, *_ in known),
        "reshaped": any(list(full) != list(tensors[key][1]) for key, _, full, *_ in known),
    }
    regions = {key: [(o, s) for name, _, _, o, s in known if name == key] for key in tensors}
    verdicts = [
        # A tensor without elements is still a tensor: nothing covers it, yet a slice must name it.
        coverage(shape, regions[key]) if regions[key] else "hole"
        for key, (_, shape, _) in tensors.items()
    ]
    broken["removed"] = "hole" in verdicts
    broken["duplicated"] = "overlap" in verdicts
    broken["outside"] = "outside" in verdicts
    broken["mixed tasks"] = any(
        len({tensors[key][2] for key, *_ in file if key in tensors}) > 1 for file in answer
    )
    return [name for name, is_broken in broken.items() if is_broken]


# R-POLICY-5 (RFC 001): "The callback will only be called once for a given `checkpoint.save()` call."
# R-POLICY-6 (RFC 001): "The `description` is saved alongside the tensor data in the checkpoint"
# R-POLICY-12 (RFC 001): "organize them by shard in whatever way they see fit, and output them in
# `tensors_by_shard`, which is a list of dictionaries."
def asked(
    tensors: Mapping[str, tuple[str, Sequence[int], int]],
    description: str,
    callback: Callable[[Mapping[str, Any]], Answer],
) -> tuple[str, Answer]:
    """Ask a callback, once, and return the description and the files to save.

    >>> asked({"a": ("int8", [2], 0)}, "One file.", lambda given: [[("a", "int8", [2], [0], [2])]])
    ('One file.', [[('a', 'int8', [2], [0], [2])]])
    """
    answer = callback(tensors)
    if broken := broken_restrictions(tensors, answer):
        raise ValueError(f"{description} The answer breaks restrictions: {broken}.")
    return description, answer
