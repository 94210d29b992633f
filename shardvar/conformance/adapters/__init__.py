"""Adapters of real implementations: ``shardvar.conformance.adapters.NAME:Adapter``.

``Trainings``, ``Layouts`` and ``Sharded`` have the methods that the adapters of frameworks share: a training is
begun, stepped, written and loaded, and a layout is made, in the way of each framework, and these steps
are put together here.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partialmethod
from typing import Any

import numpy as np

from shardvar.layout.dtypes import Array
from shardvar.spec.partitions import intervals

ShapeLike = Sequence[int]
"""A shape, a number of parts or of devices along each axis, or the rows of each shard."""
PartArrays = list[Array]
"""The array of each shard, or of each device."""
Tensors = Mapping[str, Array]
Placements = Sequence[Any]
"""The placement on each axis of a mesh, or the names of a spec for each axis of a tensor."""
CountOrSizes = int | ShapeLike
"""A number of shards, or the rows of each."""
GradientArrays = Array | tuple[Array, Array]
GradientSteps = Sequence[Mapping[str, GradientArrays]]
SlotArrays = dict[str, PartArrays]


class Trainings:
    """Levels 5 and 10 by six methods of a framework; a training is any object that it makes."""

    create: Callable[..., Any]
    shards: Callable[..., PartArrays]
    _begin: Callable[..., Any]
    """Of a kind, variables and the values that they had before their layout."""
    _train: Callable[..., None]
    _values: Callable[..., dict[str, Array]]
    _slots: Callable[..., dict[str, SlotArrays]]
    _write: Callable[..., None]
    _load: Callable[..., None]

    def div(self, length: int, num_shards: int) -> list[tuple[int, int]]:
        # One byte a row, since only the number of rows matters.
        shards = self.shards(self.create(np.zeros(length, np.int8), num_shards))
        return intervals([len(shard) for shard in shards])

    def initialize_whole(
        self, function: Any, shape: ShapeLike, dtype: Any, num_shards: int
    ) -> PartArrays:
        value = function(tuple(shape), dtype)
        if value.shape != tuple(shape):
            raise NotImplementedError("another shape than the value has")
        return self.shards(self.create(value, num_shards))

    def _laid_out(self, values: Tensors, layout: CountOrSizes) -> dict[str, Any]:
        create = self.create if isinstance(layout, int) else getattr(self, "create_uneven", None)
        if create is None:
            raise NotImplementedError("shards of given sizes")
        return {key: create(value, layout) for key, value in values.items()}

    def optimize(
        self, kind: str, value: Array, layout: CountOrSizes, gradients: Sequence[GradientArrays]
    ) -> Array:
        return self._values(self._trained(kind, value, layout, gradients))["w"]

    def slots(
        self, kind: str, value: Array, layout: CountOrSizes, gradients: Sequence[GradientArrays]
    ) -> SlotArrays:
        return self._slots(self._trained(kind, value, layout, gradients))["w"]

    def _trained(
        self, kind: str, value: Array, layout: CountOrSizes, gradients: Sequence[GradientArrays]
    ) -> Any:
        training = self._begin(kind, self._laid_out({"w": value}, layout))
        self._train(training, [{"w": gradient} for gradient in gradients])
        return training

    def save_training(
        self,
        path: str,
        kind: str,
        values: Tensors,
        layout: CountOrSizes,
        gradients: GradientSteps,
    ) -> None:
        training = self._begin(kind, self._laid_out(values, layout))
        self._train(training, gradients)
        self._write(training, path, layout)

    def resume_training(self, *training: Any) -> dict[str, Array]:
        return self._values(self._resumed(*training))

    def resumed_slots(self, *training: Any) -> dict[str, SlotArrays]:
        return self._slots(self._resumed(*training))

    def _resumed(
        self,
        path: str,
        kind: str,
        templates: Tensors,
        layout: CountOrSizes,
        gradients: GradientSteps,
    ) -> Any:
        training = self._begin(kind, self._laid_out(templates, layout))
        self._load(training, path, layout)
        self._train(training, gradients)
        return training


class Layouts:
    """Level 9 by six methods of a framework; a layout is any object that it makes."""

    _placed: Callable[..., Any]
    """The layout of a shape on a mesh, by placements."""
    _named: Callable[..., Any]
    """The layout of a shape on a mesh, by its names and a spec."""
    _held: Callable[..., PartArrays]
    """The parts of a value that the devices of a layout hold."""
    _stated: Callable[..., Any]
    _whole: Callable[..., Array]
    _moved: Callable[..., PartArrays]
    """The parts that they hold once a value was moved from one layout to another."""

    def mesh_parts(self, value: Array, mesh: ShapeLike, placements: Placements) -> PartArrays:
        return self._held(value, self._placed(value.shape, mesh, placements))

    def mesh_slices(self, shape: ShapeLike, mesh: ShapeLike, placements: Placements) -> Any:
        return self._stated(shape, self._placed(shape, mesh, placements))

    def mesh_gather(
        self, parts: PartArrays, shape: ShapeLike, mesh: ShapeLike, placements: Placements
    ) -> Array:
        return self._whole(parts, shape, self._placed(shape, mesh, placements))

    def mesh_move(
        self, value: Array, mesh: ShapeLike, source: Placements, target: Placements
    ) -> PartArrays:
        layouts = (self._placed(value.shape, mesh, each) for each in (source, target))
        return self._moved(value, *layouts)

    def spec_parts(
        self, value: Array, mesh: ShapeLike, names: Sequence[str], spec: Placements
    ) -> PartArrays:
        return self._held(value, self._named(value.shape, mesh, names, spec))


class Sharded(Trainings):
    """Levels 2 and 3 by the interface of RFC 000, which TensorFlow and shardvar have."""

    read: Callable[..., Array]
    _slices: Any
    """The class of rows that are written to their ids."""

    def _given(self, value: Array) -> Any:
        return value

    def shards(self, handle: Any) -> PartArrays:
        # One part makes a normal variable (R-CREATE-2), which has no ``variables``.
        return [shard.numpy() for shard in getattr(handle, "variables", [handle])]

    def _write_dense(self, method: str, handle: Any, value: Array) -> None:
        getattr(handle, method)(self._given(value))

    assign = partialmethod(_write_dense, "assign")
    assign_add = partialmethod(_write_dense, "assign_add")
    assign_sub = partialmethod(_write_dense, "assign_sub")

    def scatter(self, handle: Any, op: str, ids: Array, rows: Array) -> None:
        getattr(handle, f"scatter_{op}")(self._slices(self._given(rows), self._given(ids)))

    def _values(self, training: Any) -> dict[str, Array]:
        return {key: self.read(handle) for key, handle in training[0].items()}

    optimize_uneven = Trainings.optimize
    slots_uneven = Trainings.slots
