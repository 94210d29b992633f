"""An adapter of a minimal implementation: a sharded variable is a list of arrays, a checkpoint an
npz file.

It is an example to copy from: a few lines a method. What such a list has not, such as policies, it
does not claim.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.layout.dtypes import Array

_Shards = list[Array]
_Layout = int | Sequence[int]
_Steps = Sequence[Mapping[str, Any]]

_SCATTERS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.minimum, "max": np.maximum,
}  # fmt: skip


class Adapter:
    """Lists of arrays."""

    def div(self, length: int, num_shards: int) -> list[tuple[int, int]]:
        if length < 0 or num_shards < 1:
            raise ValueError(f"{length} rows cannot be divided into {num_shards} shards.")
        stops = np.cumsum(
            [length // num_shards + (shard < length % num_shards) for shard in range(num_shards)]
        ).tolist()
        return list(zip([0, *stops[:-1]], stops, strict=True))

    def owner(self, ids: Array, length: int, num_shards: int) -> tuple[Array, Array]:
        _check(ids, length)
        starts = np.array([start for start, stop in self.div(length, num_shards) if start < stop])
        # The shard is the last whose start is not above the id: starts 0 and 3 and id 4 give shard
        # 1, row 4 - 3 = 1.
        shard = np.searchsorted(starts, ids, side="right") - 1
        return shard, ids - starts[shard]

    def create(self, value: Array, num_shards: int) -> _Shards:
        # ``array_split`` returns views, through which a later change of the caller's array would
        # show.
        return [part.copy() for part in np.array_split(value, num_shards)]

    def create_uneven(self, value: Array, sizes: Sequence[int]) -> _Shards:
        if sum(sizes) != len(value) or min(sizes) < 0:
            raise ValueError(f"{sizes} are not the sizes of shards of {len(value)} rows.")
        return [part.copy() for part in np.split(value, np.cumsum(sizes)[:-1])]

    def _made(self, value: Array, layout: _Layout) -> _Shards:
        if isinstance(layout, int):
            return self.create(value, layout)
        return self.create_uneven(value, layout)

    def read(self, handle: _Shards) -> Array:
        # A copy, so that a value that was read stays as it is when the variable is written
        # (R-READ-2).
        return np.concatenate(handle)

    def shards(self, handle: _Shards) -> _Shards:
        return handle

    def index(self, handle: _Shards, key: Any) -> Array:
        return np.asarray(np.concatenate(handle)[key])

    def matmul(self, left: Array, handle: _Shards) -> Array:
        value: Array = left @ np.concatenate(handle)
        return value

    def lookup(self, handle: _Shards, ids: Array) -> Array:
        whole = np.concatenate(handle)
        _check(ids, len(whole))
        rows: Array = whole[ids]
        return rows

    def sparse_read(self, handle: _Shards, ids: Array) -> Array:
        return self.lookup(handle, ids)

    def assign(self, handle: _Shards, value: Array) -> _Shards:
        # ``np.split`` at the ends of the old shards would put surplus rows into the last shard
        # without an error.
        _check_shape(value, (sum(map(len, handle)), *handle[0].shape[1:]))
        return np.split(value.copy(), np.cumsum([len(shard) for shard in handle])[:-1])

    def assign_add(self, handle: _Shards, value: Array) -> _Shards:
        return self._combined(handle, np.add, value)

    def assign_sub(self, handle: _Shards, value: Array) -> _Shards:
        return self._combined(handle, np.subtract, value)

    def _combined(self, handle: _Shards, ufunc: np.ufunc, value: Array) -> _Shards:
        whole = self.read(handle)
        _check_shape(value, whole.shape)  # NumPy would broadcast it
        return self.assign(handle, ufunc(whole, value))

    def scatter(self, handle: _Shards, op: str, ids: Array, rows: Array) -> _Shards:
        whole = np.concatenate(handle)
        _check(ids, len(whole))
        _check_shape(rows, (*ids.shape, *whole.shape[1:]))
        # NumPy would cut fractions off, and leave imaginary parts out.
        if not np.can_cast(rows.dtype, whole.dtype, "same_kind"):
            raise TypeError(f"{rows.dtype} for {whole.dtype}")
        if op == "update":
            whole[ids] = rows
        else:
            # ``whole[ids] += rows`` would count a repeated id once; ``ufunc.at`` applies every
            # operand.
            with np.errstate(all="ignore"):  # NumPy warns of NaN and of divisions by 0
                _SCATTERS[op].at(whole, ids, rows)
        return self.assign(handle, whole)

    def initialize(
        self, kind: str, shape: Sequence[int], dtype: npt.DTypeLike, num_shards: int, seed: int
    ) -> _Shards:
        if kind not in ("zeros", "ones", "random_uniform"):
            raise NotImplementedError(kind)
        shards = []
        for start, stop in self.div(shape[0], num_shards):
            part = (stop - start, *shape[1:])
            # The first row is part of the seed, so shards differ (R-INIT-5) and a second call gives
            # the same values.
            drawn = np.random.default_rng([seed, start]).uniform(-0.05, 0.05, part)
            shards.append(np.full(part, {"zeros": 0, "ones": 1}.get(kind, drawn), dtype))
        return shards

    def initialize_whole(
        self,
        function: Callable[..., Array],
        shape: Sequence[int],
        dtype: npt.DTypeLike,
        num_shards: int,
    ) -> _Shards:
        value = function(shape, dtype)
        _check_shape(value, tuple(shape))
        return np.array_split(value, num_shards)

    def optimize(self, kind: str, value: Array, layout: _Layout, gradients: Sequence[Any]) -> Array:
        return self._stepped(kind, {"w": value}, layout, [{"w": each} for each in gradients])["w"]

    optimize_uneven = optimize

    def _stepped(
        self, kind: str, values: Mapping[str, Array], layout: _Layout, gradients: _Steps
    ) -> dict[str, Array]:
        if kind != "sgd":
            raise NotImplementedError(kind)
        stepped = {}
        for key, value in values.items():
            handle = self._made(value, layout)
            for gradient in [step[key] for step in gradients]:
                if isinstance(gradient, tuple):
                    ids, rows = gradient
                    handle = self.scatter(handle, "sub", ids, np.asarray(0.1, rows.dtype) * rows)
                else:
                    handle = self.assign_sub(handle, np.asarray(0.1, gradient.dtype) * gradient)
            stepped[key] = self.read(handle)
        return stepped

    def save_training(
        self, path: str, kind: str, values: Mapping[str, Array], layout: _Layout, gradients: _Steps
    ) -> None:
        # Plain descent has no slots, and does not count its steps: the values are all there is.
        num_shards = layout if isinstance(layout, int) else len(layout)
        self.save(path, self._stepped(kind, values, layout, gradients), num_shards)

    def resume_training(
        self,
        path: str,
        kind: str,
        templates: Mapping[str, Array],
        layout: _Layout,
        gradients: _Steps,
    ) -> dict[str, Array]:
        return self._stepped(kind, self.restore(path, templates, layout), layout, gradients)

    def save(self, path: str, tensors: Mapping[str, Array], num_shards: int) -> None:
        shards: dict[str, Any] = {}
        for key, value in tensors.items():
            # An npz holds objects by pickle only, and bfloat16 and its like without their name.
            if value.dtype.kind == "O" or value.dtype.isbuiltin == 2:
                raise NotImplementedError(f"{value.dtype} in an npz")
            parts = np.array_split(value, num_shards) if value.ndim else [value]
            shards |= {f"{key}#{number}": part for number, part in enumerate(parts)}
        np.savez(path + ".npz", allow_pickle=False, **shards)

    def restore(
        self, path: str, templates: Mapping[str, Array], layout: _Layout
    ) -> dict[str, Array]:
        restored = {}
        with open(path + ".npz", "rb") as file, np.load(file) as saved:
            for key, template in templates.items():
                # ``rpartition``, since a key may hold a ``#`` itself. PartArrays come in the order of
                # writing.
                parts = [saved[name] for name in saved.files if name.rpartition("#")[0] == key]
                value = np.concatenate(parts) if template.ndim else parts[0]
                if value.shape != template.shape or value.dtype != template.dtype:
                    raise ValueError(f"{key} is saved as {value.dtype}{list(value.shape)}.")
                restored[key] = self.read(self._made(value, layout)) if value.ndim else value
        return restored

    restore_uneven = restore


def _check_shape(value: Array, shape: tuple[int, ...]) -> None:
    """Raise ``ValueError`` for a value of another shape, also if NumPy would broadcast it."""
    if value.shape != shape:
        raise ValueError(f"A value of the shape {value.shape} does not fit {shape}.")


def _check(ids: Array, length: int) -> None:
    """Raise ``IndexError`` for ids outside the rows; NumPy would accept negative ones."""
    if ((ids < 0) | (ids >= length)).any():
        raise IndexError(f"{ids.tolist()} are not all in [0, {length}).")
