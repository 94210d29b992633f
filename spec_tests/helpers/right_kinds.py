"""Seven right implementations that differ where an implementation may: the kit must find nothing in
them.

A kit that catches what is wrong is of use only if it leaves alone what is right.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardvar.conformance.adapters.numpy import Adapter as NumpyAdapter
from spec_tests.helpers.right_adapter import Right

Array = np.ndarray[Any, Any]


class Own(np.ndarray[Any, Any]):
    """An array class of an implementation's own."""


def _own(answer: Any) -> Any:
    """Return an answer with its arrays in the own class."""
    if isinstance(answer, np.ndarray):
        return np.array(answer, order="F").view(Own)
    if isinstance(answer, list):
        return [_own(each) for each in answer]
    if isinstance(answer, dict):
        return {key: _own(each) for key, each in answer.items()}
    return answer


class OwnArrays(Right):
    """Every answer is an array of a subclass, as unit or tracing libraries have them, in Fortran's order."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("read", "lookup", "sparse_read", "index", "shards", "lookup_bags", "slots",
                        "optimize", "initialize", "restore", "mesh_parts", "mesh_move"):  # fmt: skip
            return found
        return lambda *arguments: _own(found(*arguments))


class OtherNumbers(Right):
    """Places are lists and narrow integers; the slots of a float32 variable are float64."""

    def div(self, length: int, num_shards: int) -> Any:
        return [list(pair) for pair in super().div(length, num_shards)]

    def owner(self, ids: Array, length: int, num_shards: int) -> Any:
        dtype = np.int32 if length < 2**31 else np.int64
        return [each.astype(dtype) for each in super().owner(ids, length, num_shards)]

    def regions(self, shape: Sequence[int], counts: Sequence[int]) -> Any:
        return [[[*offset], [*part]] for offset, part in super().regions(shape, counts)]

    def slots(
        self, kind: str, value: Array, num_shards: int, gradients: Sequence[Any]
    ) -> dict[str, list[Array]]:
        found = super().slots(kind, value, num_shards, gradients)
        return {name: [part.astype(np.float64) for part in parts] for name, parts in found.items()}


class ClampedParts(Right):
    """It has no empty shards: a variable of three rows has at most three."""

    def fixed_shards(self, shape: Sequence[int], dtype: Any, num_shards: int) -> list[int]:
        return super().fixed_shards(shape, dtype, max(1, min(num_shards, shape[0])))

    def create(self, value: Array, num_shards: int) -> Any:
        if num_shards < 1:
            raise ValueError("no shards")
        return super().create(value, max(1, min(num_shards, len(value))))


class GlobalSeeds(Right):
    """One seed gives one whole value, of which each shard is a part: it does not depend on the
    cutting."""

    def initialize(
        self, kind: str, shape: Any, dtype: Any, num_shards: int, seed: int
    ) -> list[Array]:
        whole = self.drawn(kind, shape, tuple(shape), self.generator(seed, 0)).astype(dtype)
        return [whole[start:stop] for start, stop in self.div(shape[0], num_shards)]


class FlatLookups(Right):
    """Ids have one axis; more are not supported, and no mask or list is an index."""

    def lookup(self, handle: Any, ids: Array) -> Array:
        if ids.ndim != 1:
            raise NotImplementedError
        return super().lookup(handle, ids)

    def sparse_read(self, handle: Any, ids: Array) -> Array:
        return self.lookup(handle, ids)

    def index(self, handle: Any, key: Any) -> Any:
        if any(isinstance(one, list | np.ndarray) for one in key):
            raise NotImplementedError
        return super().index(handle, key)


class EpsilonHat(Right):
    """TensorFlow 1's Adam: the bias is corrected in the rate, and epsilon is added to the root of
    the biased average."""

    def adam_step(self, value: Array, gradient: Array, slots: Any, step: int) -> Array:
        slots["m"] += 0.1 * (gradient - slots["m"])
        slots["v"] += 0.001 * (gradient**2 - slots["v"])
        rate = 0.1 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        return value - rate * slots["m"] / (np.sqrt(slots["v"]) + 1e-8)


class OneArray:
    """An own small implementation: one array and the stops of its shards, and few methods."""

    def create(self, value: Array, num_shards: int) -> Any:
        if num_shards < 1 or not value.ndim:
            raise ValueError("no shards")
        base, extra = divmod(len(value), num_shards)
        sizes = [base + 1] * extra + [base] * (num_shards - extra)
        return {"whole": np.array(value), "stops": [*itertools.accumulate(sizes)]}

    def read(self, handle: Any) -> Array:
        return np.array(handle["whole"])

    def shards(self, handle: Any) -> list[Array]:
        return [part.copy() for part in np.split(handle["whole"], handle["stops"][:-1])]

    def index(self, handle: Any, key: Any) -> Array:
        return np.array(handle["whole"][key])

    def lookup(self, handle: Any, ids: Array) -> Array:
        if ((ids < 0) | (ids >= len(handle["whole"]))).any():
            raise IndexError("no such row")
        return np.array(handle["whole"][ids])

    def assign(self, handle: Any, value: Array) -> None:
        if (value.shape, value.dtype) != (handle["whole"].shape, handle["whole"].dtype):
            raise ValueError("another shape or dtype")
        handle["whole"][...] = value

    def scatter(self, handle: Any, op: str, ids: Array, rows: Array) -> None:
        if op not in ("add", "sub", "update"):
            raise NotImplementedError
        self.lookup(handle, ids)
        if rows.shape != (*ids.shape, *handle["whole"].shape[1:]):
            raise ValueError("another shape")
        if op == "update":
            for row, value in zip(
                ids.ravel(), rows.reshape(-1, *rows.shape[ids.ndim :]), strict=True
            ):
                handle["whole"][row] = value
        else:
            {"add": np.add, "sub": np.subtract}[op].at(handle["whole"], ids, rows)


KINDS = (
    NumpyAdapter,
    OwnArrays,
    OtherNumbers,
    ClampedParts,
    GlobalSeeds,
    FlatLookups,
    EpsilonHat,
    OneArray,
)
"""NumPy's adapter, and the seven."""
