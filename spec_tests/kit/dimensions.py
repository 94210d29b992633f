"""The table of the conformance kit: each method of an adapter by each dimension that can hide a mistake.

A cell is measured: it is filled where a rule gives the method such an input on the right adapter.
What a rule cannot ask for has a reason here: ``ABSENT`` gives, for each reason, the dimensions and the
methods that lack them. ``test_dimensions`` demands that each cell has exactly one of the two.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from shardvar.conformance.adapter import METHODS

DIMENSIONS = (
    "complex", "unsigned", "narrow", "beyond 2**31", "beyond 2**53", "negative", "fractions", "NaN", "-0.0",
    "byte order", "rank 3", "axis", "three mesh axes", "empty", "repeated ids", "long keys", "memory", "refusal",
)  # fmt: skip
"""Complex numbers; unsigned integers of more than 8 bits; dtypes of 16 bits or fewer; integers that 32
bits, and that float64 do not hold; numbers below zero; numbers that float16 rounds; the other byte
order; tensors of three axes or more; another axis than the first; meshes of three axes; nothing in a
part; ids that come twice; keys of more than 64 characters; arrays that their owner changes; inputs
that must be refused."""

EVERY = sorted(METHODS)
PLACES = "div owner regions fixed_shards min_size max_size".split()
SHAPES = [*PLACES[2:], "mesh_slices", "fsdp_shapes"]
MESHES = [name for name in EVERY if name.split("_")[0] in ("mesh", "spec", "fsdp", "hsdp")]
TRAINS = "optimize optimize_uneven slots slots_uneven save_training resume_training resumed_slots".split()
IDS = "owner lookup sparse_read lookup_clipped lookup_bags scatter".split()
MESH_AT = dict.fromkeys(MESHES, 1) | {"mesh_gather": 2}
"""The position of the mesh among the arguments."""
SHARDS_AT = dict.fromkeys(
    "create initialize_whole initialize_parts save save_limited optimize slots".split(), -1
)
SHARDS_AT |= {"initialize": 3, "optimize": 2, "slots": 2, "save_limited": 2, "restore": 2}
SHARDS_AT |= {"save_training": 3, "resume_training": 3, "resumed_slots": 3}
"""The position of the number of shards."""


class Seen:
    """An adapter that notes the dimensions of what each method of another one is given."""

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        self.cells: set[tuple[str, str]] = set()
        self.held: dict[Any, set[str]] = {}
        self.alive: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.adapter, name)
        return partial(self._call, name) if name in METHODS else found

    def _call(self, name: str, *arguments: Any) -> Any:
        given = {one for value in arguments for one in dimensions_of(value)}
        given |= {one for value in arguments for one in self.held.get(_key(value), ())}
        given |= set(_of_method(name, arguments))
        try:
            answer = getattr(self.adapter, name)(*arguments)
        except Exception:
            self.cells.add((name, "refusal"))
            raise
        self.cells |= {(name, one) for one in (*given, *dimensions_of(answer))}
        # What a handle or a path holds is given to each method that takes it.
        for made in (answer, arguments[0]):
            if _key(made) is not None:
                self.held.setdefault(_key(made), set()).update(given - {"repeated ids"})
                self.alive.append(made)
        return answer


def _key(value: Any) -> Any:
    """The name of a path, and the identity of a handle; None for what is neither."""
    if isinstance(value, str):
        return value
    return id(value) if isinstance(value, list) else None


def dimensions_of(value: Any) -> Iterator[str]:
    """Yield the dimensions of an argument, and of what it holds."""
    if isinstance(value, dict):
        yield from dimensions_of([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from dimensions_of(each)
        is_shape = all(isinstance(each, int) for each in value)
        yield from ["rank 3"] * (is_shape and len(value) >= 3)
        yield from ["empty"] * (is_shape and 0 in value[:2])
    elif isinstance(value, str):
        yield from ["long keys"] * (len(value) > 64)
    elif isinstance(value, np.dtype):
        yield from _of_dtype(value)
    elif isinstance(value, np.ndarray | np.generic) or (
        isinstance(value, int | float) and not isinstance(value, bool)
    ):
        yield from _of_array(np.asarray(value))


def _of_dtype(dtype: np.dtype[Any]) -> Iterator[str]:
    yield from ["complex"] * (dtype.kind == "c")
    yield from ["unsigned"] * (dtype.kind == "u" and dtype.itemsize > 1)
    yield from ["narrow"] * (dtype.itemsize <= 2 and dtype.kind != "b")
    yield from ["byte order"] * (dtype.byteorder == ">")


def _of_array(array: Any) -> Iterator[str]:
    yield from _of_dtype(array.dtype)
    yield from ["rank 3"] * (array.ndim >= 3)
    yield from ["empty"] * (array.size == 0)
    if array.dtype == object:
        if array.ndim:
            return
        # An integer of Python that 64 bits do not hold.
        array = array.astype(np.float64)
    if array.dtype.kind in "iu":
        most = max(map(abs, (int(array.min()), int(array.max())))) if array.size else 0
        yield from ["beyond 2**31"] * (most > 2**31)
        yield from ["beyond 2**53"] * (most > 2**53)
        yield from ["negative"] * bool((array < 0).any())
        return
    wide = array.astype(np.complex128).ravel().view(np.float64)
    with np.errstate(all="ignore"):
        rounded = wide.astype(np.float16).astype(np.float64)
    yield from ["negative"] * bool((wide < 0).any())
    yield from ["NaN"] * bool(np.isnan(wide).any())
    yield from ["-0.0"] * bool((np.signbit(wide) & (wide == 0)).any())
    is_within = (np.abs(wide) < 6e4) & (np.abs(wide) > 1e-4)
    yield from ["fractions"] * bool((is_within & (rounded != wide)).any())


def _of_method(name: str, arguments: tuple[Any, ...]) -> Iterator[str]:
    """Yield the dimensions that arguments have by their places."""
    if name in MESH_AT:
        yield from ["three mesh axes"] * (len(arguments[MESH_AT[name]]) == 3)
        yield from ["axis"] * _cuts_another_axis(arguments[MESH_AT[name] + 1 :])
    if name in ("regions", "create_partitioned"):
        yield from ["axis"] * any(count > 1 for count in arguments[1][1:])
    if name == "index":
        yield from ["axis"] * (len(arguments[1]) > 1)
    if name == "save_parts":
        yield from ["axis"] * any(any(offset[1:]) for offset, _ in arguments[4])
    if name in SHAPES:
        bytes_of = int(np.prod(arguments[0], dtype=object))
        yield from ["beyond 2**31"] * (bytes_of > 2**31)
    if name in (*IDS, *TRAINS):
        yield from ["repeated ids"] * any(map(_repeats, arguments))
    if name in SHARDS_AT:
        yield from ["empty"] * _has_fewer_rows(arguments[SHARDS_AT[name]], arguments)


def _has_fewer_rows(count: Any, value: Any) -> bool:
    """Return True if an array, or a shape, has fewer rows than there are shards."""
    if isinstance(count, list):
        return 0 in count
    if isinstance(value, dict):
        return any(_has_fewer_rows(count, each) for each in value.values())
    if isinstance(value, tuple):
        is_shape = bool(value) and all(isinstance(each, int) for each in value)
        return value[0] < count if is_shape else any(_has_fewer_rows(count, each) for each in value)
    return isinstance(value, np.ndarray) and value.ndim > 0 and len(value) < count


def _cuts_another_axis(placements: Any) -> bool:
    if isinstance(placements, tuple | list):
        # An entry of a spec behind the first that has names.
        behind = any(isinstance(each, tuple) and each and isinstance(each[0], str) and each[0] != "strided"
                     for each in placements[1:])  # fmt: skip
        return behind or any(map(_cuts_another_axis, placements))
    return isinstance(placements, int) and placements >= 1


def _repeats(value: Any) -> bool:
    """Return True if an argument, or a gradient or a bag within it, has an id twice."""
    if isinstance(value, dict):
        return any(map(_repeats, value.values()))
    if isinstance(value, list | tuple):
        is_ids = bool(value) and all(isinstance(each, int) for each in value)
        return len(set(value)) < len(value) if is_ids else any(map(_repeats, value))
    is_ids = isinstance(value, np.ndarray) and value.dtype == np.int64 and value.ndim > 0
    return bool(is_ids and len(np.unique(value)) < value.size)


STATED = [*PLACES, "mesh_slices", "fsdp_shapes", "description"]
FLOATS = ["lookup_bags", "lookup_clipped", "initialize", *TRAINS]
CUT = [*MESHES, *"regions index save_parts restore restore_uneven read_rows list_tensors".split()]
NOT_CUT = [name for name in EVERY if name not in CUT]
LARGE = ["beyond 2**31", "beyond 2**53"]
TYPES = ["complex", "unsigned", "narrow"]

ABSENT: dict[str, list[tuple[list[str], list[str]]]] = {
    "It has no values: only places, shapes or a text": [
        (["fractions", "NaN", "-0.0", "byte order", "memory"], STATED),
        (["complex", "unsigned", "narrow"], ["div", "owner", "regions", "mesh_slices", "fsdp_shapes", "description"]),
        (["unsigned"], ["fixed_shards", "min_size", "max_size"]),
        (["negative"], [name for name in STATED if name != "description"]),
        (["rank 3"], ["div", "description"]),
        ([*LARGE, "empty"], ["description"]),
    ],
    "An implementation may find places by arrays of that many elements": [
        (LARGE, ["mesh_slices", "fsdp_shapes"]),
        (["beyond 2**53"], ["fixed_shards", "min_size", "max_size"]),
    ],
    "What it computes is of floating-point numbers": [
        (["complex", "unsigned", *LARGE], FLOATS),
    ],
    "Other dtypes than float32 are asked of `optimize` and of `resume_training`": [
        (["narrow"], ["slots", "slots_uneven", "resumed_slots"]),
    ],
    "Embeddings and clipped rows are of float32 or float64": [
        (["narrow"], ["lookup_bags", "lookup_clipped"]),
    ],
    "Its arithmetic may lose the sign of a zero": [
        (["-0.0"], ["initialize", "matmul"]),
    ],
    "A NaN would fill the answer, or is asked of `optimize` and of `resume_training`": [
        (["NaN"], ["initialize", "slots", "slots_uneven", "resumed_slots"]),
    ],
    "It is given no array, or only junk": [
        (["byte order"], ["initialize", "initialize_whole", "initialize_parts", "file_nbytes", "list_tensors"]),
        (["memory"], ["initialize", "file_nbytes", "list_tensors"]),
    ],
    "The other byte order is asked of `optimize` and of `resume_training`": [
        (["byte order"], ["slots", "slots_uneven", "resumed_slots"]),
    ],
    "It cuts rows, and no other axis": [
        (["axis"], [*NOT_CUT, "fsdp_parts", "fsdp_shapes"]),
    ],
    "It has no mesh, or one of two axes": [
        (["three mesh axes"], [*(name for name in EVERY if name not in MESHES), "fsdp_parts", "fsdp_shapes",
                               "mesh_move_joined"]),
    ],
    "It has no ids": [
        (["repeated ids"], [name for name in EVERY if name not in (*IDS, *TRAINS)]),
    ],
    "It has no keys, or the one that it saves itself": [
        (["long keys"], [name for name in EVERY if name not in (
            "description list_tensors read_rows restore restore_uneven resume_training save save_by_callback "
            "save_limited save_training file_nbytes").split()]),
        (["long keys"], ["file_nbytes"]),
    ],
    "A partitioner is asked about a variable, which may be cut into more shards than it has rows": [
        (["empty"], ["create_partitioned", "fixed_shards", "min_size", "max_size"]),
    ],
    "Whatever it is given has an answer, or its refusal is asked of the method that made it": [
        (["refusal"], ["description", "file_nbytes", "list_tensors", "read", "shards", "save_limited", "save_training",
                       "resumed_slots", "fixed_shards", "min_size", "max_size", "fsdp_parts", "fsdp_shapes",
                       "optimize_uneven", "slots_uneven"]),
    ],
}  # fmt: skip
"""A reason -> the dimensions and the methods that lack them."""
