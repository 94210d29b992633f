"""An adapter of JAX: arrays under a ``NamedSharding`` over simulated CPU devices, and Orbax for
checkpoints.

It calls JAX as its users do. Arrays are never changed in place: a write returns a new one.
``NamedSharding`` refuses rows that the devices do not divide: such variables are not claimed, and
checkpoints hold them replicated, as is usual.
"""

import os
from collections.abc import Callable, Sequence
from functools import cached_property, partial, partialmethod
from types import SimpleNamespace
from typing import Any

import numpy as np

from shardvar.conformance.adapters import (
    GradientArrays,
    GradientSteps,
    Layouts,
    PartArrays,
    Placements,
    ShapeLike,
    SlotArrays,
    Tensors,
    Trainings,
)
from shardvar.layout.dtypes import Array

# Sixteen devices, for a grid of 4 x 4 parts, the largest that a rule asks for. Without
# optimization, since compiling takes much longer than computing with such small arrays.
_XLA_FLAGS = "--xla_force_host_platform_device_count=16 --xla_backend_optimization_level=0"
# JAX's names of operations on ``.at[ids]``, where they differ from the kit's.
_SCATTERS = {"sub": "subtract", "mul": "multiply", "div": "divide", "update": "set"}


_Region = tuple[tuple[int, ...], tuple[int, ...]]
"""An offset and a shape."""


class Adapter(Trainings, Layouts):
    @cached_property
    def _jax(self) -> Any:
        os.environ.setdefault("XLA_FLAGS", _XLA_FLAGS)  # read when JAX is imported
        import jax
        import jax.example_libraries.optimizers

        jax.config.update("jax_platforms", "cpu")
        # Without x64 JAX computes in 32 bits, so float64 tables and int64 ids would come back in
        # other dtypes.
        jax.config.update("jax_enable_x64", True)
        return jax

    @cached_property
    def _orbax(self) -> Any:
        _ = self._jax  # JAX must know its devices before Orbax imports it
        import orbax.checkpoint

        return orbax.checkpoint

    @cached_property
    def _checkpointer(self) -> Any:
        return self._orbax.Checkpointer(self._orbax.StandardCheckpointHandler())

    def _sharding(
        self,
        mesh: ShapeLike,
        names: Sequence[str] | None = None,
        spec: Sequence[Any] | None = None,
        explicit: bool = False,
    ) -> Any:
        """Return the sharding of a spec over a mesh; without names, each axis cuts its own."""
        sharding = self._jax.sharding
        names = [f"axis{axis}" for axis in range(len(mesh))] if names is None else names
        kind = sharding.AxisType.Explicit if explicit else sharding.AxisType.Auto
        count, every = max(0, int(np.prod(mesh))), self._jax.devices()
        if count > len(every):
            raise NotImplementedError(f"more than {len(every)} devices")
        devices = np.array(every[:count]).reshape(mesh)
        made = sharding.Mesh(devices, tuple(names), axis_types=(kind,) * len(mesh))
        spec = names if spec is None else spec
        return sharding.NamedSharding(made, sharding.PartitionSpec(*spec))

    def _divided(self, shape: ShapeLike, num_shards: int) -> Any:
        if shape[0] % num_shards:
            raise NotImplementedError("rows that the shards do not divide")
        return self._sharding([num_shards])

    def div(self, length: int, num_shards: int) -> list[tuple[int, int]]:
        regions = self._stated((length,), self._divided((length,), num_shards))
        return [(start, start + count) for (start,), (count,) in regions]

    def regions(self, shape: ShapeLike, counts: ShapeLike) -> list[_Region]:
        if any(extent % count for extent, count in zip(shape, counts, strict=True)):
            raise NotImplementedError("axes that the parts do not divide")
        return self._stated(shape, self._sharding(counts))

    def _stated(self, shape: ShapeLike, sharding: Any) -> list[_Region]:
        # The map is keyed by device; the shards are in the order of the mesh.
        places = sharding.devices_indices_map(tuple(shape))
        return [_region(places[device], shape) for device in sharding.mesh.devices.flat]

    def create(self, value: Array, num_shards: int) -> Any:
        return self._jax.device_put(value, self._divided(value.shape, num_shards))

    def create_partitioned(self, value: Array, counts: ShapeLike) -> Any:
        return self._jax.device_put(value, self._sharding(counts))

    def read(self, handle: Any) -> Array:
        return np.asarray(handle)

    def shards(self, handle: Any) -> PartArrays:
        data = {shard.device: shard.data for shard in handle.addressable_shards}
        return [np.asarray(data[device]) for device in handle.sharding.mesh.devices.flat]

    def index(self, handle: Any, key: Any) -> Array:
        return np.asarray(handle[key])

    def matmul(self, left: Array, handle: Any) -> Array:
        return np.asarray(left @ handle)

    def lookup(self, handle: Any, ids: Array) -> Array:
        # ``take`` and indexing do not raise for rows outside. The adapter adds no check, since the
        # kit judges JAX.
        return np.asarray(self._jax.numpy.take(handle, ids, axis=0))

    def sparse_read(self, handle: Any, ids: Array) -> Array:
        return np.asarray(handle[ids])

    def lookup_bags(self, handle: Any, bags: Any, weights: Any, combiner: str) -> Array:
        if combiner != "sum":
            raise NotImplementedError(f"segments combined by {combiner}")
        rows = self._jax.numpy.take(handle, np.concatenate(bags).astype(np.int64), axis=0)
        if weights is not None:
            # Python's floats would make float64 rows in x64 mode.
            rows = rows * np.concatenate(weights).astype(np.float32)[:, None]
        segments = np.repeat(np.arange(len(bags)), [len(bag) for bag in bags])
        return np.asarray(self._jax.ops.segment_sum(rows, segments, len(bags)))

    def _write_dense(self, operation: str, handle: Any, value: Array) -> Any:
        return getattr(handle.at[...], operation)(value)

    assign = partialmethod(_write_dense, "set")
    assign_add = partialmethod(_write_dense, "add")
    assign_sub = partialmethod(_write_dense, "subtract")

    def scatter(self, handle: Any, op: str, ids: Array, rows: Array) -> Any:
        # JAX's documentation leaves open which operand of a repeated index is set.
        if op == "update" and len(np.unique(ids)) < len(ids):
            raise NotImplementedError("at[...].set of repeated rows")
        return getattr(handle.at[ids], _SCATTERS.get(op, op))(rows)

    def initialize(
        self, kind: str, shape: ShapeLike, dtype: Any, num_shards: int, seed: int
    ) -> PartArrays:
        jax = self._jax
        draws: dict[str, Callable[..., Any]] = {
            "zeros": jax.nn.initializers.zeros,
            "ones": jax.nn.initializers.ones,
            # ``jax.nn.initializers.uniform`` draws from 0 upwards; the kit's range lies around 0.
            "random_uniform": partial(jax.random.uniform, minval=-0.05, maxval=0.05),
            "random_normal": jax.nn.initializers.normal(0.05),
            "truncated_normal": jax.nn.initializers.truncated_normal(0.05),
            "glorot_uniform": jax.nn.initializers.glorot_uniform(),
        }
        drawn = partial(draws[kind], shape=tuple(shape), dtype=dtype)
        return self.shards(
            jax.jit(drawn, out_shardings=self._divided(shape, num_shards))(jax.random.key(seed))
        )

    def initialize_parts(
        self, function: Any, shape: ShapeLike, dtype: Any, num_shards: int
    ) -> PartArrays:
        def part(index: Any) -> Any:
            return function(tuple(shape), dtype, *_region(index, shape)[::-1])

        sharding = self._divided(shape, num_shards)
        return self.shards(self._jax.make_array_from_callback(tuple(shape), sharding, part))

    def _begin(self, kind: str, variables: dict[str, Any]) -> SimpleNamespace:
        library = self._jax.example_libraries.optimizers
        made = {
            "sgd": lambda: library.sgd(0.1),
            "momentum": lambda: library.momentum(0.1, 0.9),
            # This library's adagrad has momentum 0.9 by default; the kit's kind has none.
            "adagrad": lambda: library.adagrad(0.1, momentum=0.0),
            "adam": lambda: library.adam(0.1),
        }
        init, update, read = made[kind]()
        states = {key: init(variable) for key, variable in variables.items()}
        return SimpleNamespace(states=states, count=0, update=update, read=read)

    def _train(self, training: SimpleNamespace, gradients: GradientSteps) -> None:
        for count, step in enumerate(gradients, training.count):
            for key, state in training.states.items():
                gradient = _gradient(self._jax, step[key], training.read(state))
                training.states[key] = training.update(count, gradient, state)
        training.count += len(gradients)

    def _leaves(self, training: SimpleNamespace) -> dict[str, list[Any]]:
        return {key: self._jax.tree.leaves(state) for key, state in training.states.items()}

    def _values(self, training: SimpleNamespace) -> dict[str, Array]:
        return {key: np.asarray(leaves[0]) for key, leaves in self._leaves(training).items()}

    def _slots(self, training: SimpleNamespace) -> dict[str, SlotArrays]:
        return {
            key: {f"slot{number}": self.shards(leaf) for number, leaf in enumerate(leaves[1:])}
            for key, leaves in self._leaves(training).items()
        }

    def _arrays(self, training: SimpleNamespace) -> dict[str, Array]:
        return {
            f"{key}#{number}": np.asarray(leaf)
            for key, leaves in self._leaves(training).items()
            for number, leaf in enumerate(leaves)
        }

    def _write(self, training: SimpleNamespace, path: str, layout: Any) -> None:
        self.save(path, {"": np.array(training.count), **self._arrays(training)}, layout)

    def _load(self, training: SimpleNamespace, path: str, layout: Any) -> None:
        # Orbax restores a tree whole; the wanted part has the templates' shapes.
        wanted = {key: np.zeros(*each) for key, each in self.list_tensors(path).items()}
        restored = self.restore(path, wanted | self._arrays(training), layout)
        for key, state in training.states.items():
            leaves, tree = self._jax.tree.flatten(state)
            placed = [
                self._jax.device_put(restored[f"{key}#{number}"], leaf.sharding)
                for number, leaf in enumerate(leaves)
            ]
            training.states[key] = self._jax.tree.unflatten(tree, placed)
        training.count = int(restored[""])

    def _placed(self, shape: ShapeLike, mesh: ShapeLike, placements: Placements) -> Any:
        """Return the sharding of placements on a mesh; JAX knows only even ones."""
        names = [f"axis{axis}" for axis in range(len(mesh))]
        if len(placements) != len(mesh):
            raise NotImplementedError(
                "placements for other axes: a spec has an entry for each axis of the tensor"
            )
        if any(isinstance(placement, int) and placement < 0 for placement in placements):
            raise NotImplementedError("axes from the end: a spec has an entry for each axis")
        if any(isinstance(placement, tuple) for placement in placements):
            raise NotImplementedError("strided shards")
        rank = max([len(shape), *(one + 1 for one in placements if one is not None)])
        # Names in the order of the mesh: the last one varies fastest, as the last cut does.
        spec = [
            tuple(n for n, one in zip(names, placements, strict=True) if one == axis)
            for axis in range(rank)
        ]
        cuts = [np.prod([mesh[names.index(name)] for name in entry], dtype=int) for entry in spec]
        if any(extent % count for extent, count in zip(shape, cuts, strict=False)):
            raise NotImplementedError("axes that the parts do not divide")
        return self._sharding(mesh, names, spec)

    def _named(self, _shape: ShapeLike, *mesh: Any) -> Any:
        return self._sharding(*mesh)

    def _held(self, value: Array, sharding: Any) -> PartArrays:
        return self.shards(self._jax.device_put(value, sharding))

    def _whole(self, parts: PartArrays, shape: ShapeLike, sharding: Any) -> Array:
        return np.asarray(self._joined(parts, shape, sharding))

    def _moved(self, value: Array, source: Any, target: Any) -> PartArrays:
        return self._held(self._jax.device_put(value, source), target)

    def _joined(self, parts: PartArrays, shape: ShapeLike, sharding: Any) -> Any:
        arrays = [
            self._jax.device_put(part, device)
            for part, device in zip(parts, sharding.mesh.devices.flat, strict=True)
        ]
        return self._jax.make_array_from_single_device_arrays(tuple(shape), sharding, arrays)

    def mesh_reduce(
        self,
        terms: PartArrays,
        mesh: ShapeLike,
        axis: int,
        op: str,
        placements: Placements,
    ) -> PartArrays:
        if op != "sum":
            raise NotImplementedError(f"unreduced axes of {op}")
        jax = self._jax
        target = self._placed(terms[0].shape, mesh, placements)
        names = target.mesh.axis_names
        pending = self._sharding(mesh, names, (), explicit=True)
        pending = pending.update(spec=jax.sharding.PartitionSpec(unreduced={names[axis]}))
        held = [terms[coordinate[axis]] for coordinate in np.ndindex(*mesh)]
        unreduced = self._joined(held, terms[0].shape, pending)
        with jax.set_mesh(pending.mesh):
            return self.shards(jax.sharding.reshard(unreduced, target.spec))

    def spec_constrained(
        self, value: Array, mesh: ShapeLike, names: Sequence[str], spec: Sequence[Any]
    ) -> PartArrays:
        sharding = self._sharding(mesh, names, spec)
        return self.shards(
            self._jax.jit(lambda one: self._jax.lax.with_sharding_constraint(one, sharding))(value)
        )

    def _saved_sharding(self, shape: tuple[int, ...], num_shards: int) -> Any:
        """Return the sharding of a checkpoint's array: in shards if these divide its rows, else replicated."""
        is_cut = bool(shape) and shape[0] % num_shards == 0
        return self._sharding([num_shards], spec=None if is_cut else ())

    def save(self, path: str, tensors: Tensors, num_shards: int) -> None:
        if any(value.dtype == object for value in tensors.values()):
            raise NotImplementedError("strings")
        arrays = {
            key: self._jax.device_put(
                # JAX has no dtypes of the other byte order.
                value.astype(value.dtype.newbyteorder("="), copy=False),
                self._saved_sharding(value.shape, num_shards),
            )
            for key, value in tensors.items()
        }
        self._checkpointer.save(path, args=self._orbax.args.StandardSave(arrays))

    def restore(self, path: str, templates: Tensors, num_shards: int) -> dict[str, Array]:
        wanted = {
            key: self._jax.ShapeDtypeStruct(
                one.shape, one.dtype, sharding=self._saved_sharding(one.shape, num_shards)
            )
            for key, one in templates.items()
        }
        restored = self._checkpointer.restore(path, args=self._orbax.args.StandardRestore(wanted))
        return {key: np.asarray(one) for key, one in restored.items()}

    def list_tensors(self, path: str) -> dict[str, tuple[tuple[int, ...], str]]:
        metadata = self._checkpointer.metadata(path).item_metadata.tree
        return {key: (tuple(one.shape), str(one.dtype)) for key, one in metadata.items()}


def _region(index: Sequence[slice], shape: ShapeLike) -> _Region:
    bounds = [one.indices(extent) for one, extent in zip(index, shape, strict=True)]
    return tuple(a for a, _, _ in bounds), tuple(b - a for a, b, _ in bounds)


def _gradient(jax: Any, gradient: GradientArrays, value: Any) -> Any:
    """Return a gradient laid out like the variable; for (ids, rows) the derivative of their lookup."""
    if not isinstance(gradient, tuple):
        return jax.device_put(gradient, value.sharding)
    ids, rows = gradient
    return jax.grad(lambda table: (jax.numpy.take(table, ids, axis=0) * rows).sum())(value)
