"""An adapter of JAX: arrays under a ``NamedSharding`` over simulated CPU devices, and Orbax for
checkpoints.

It calls JAX as its users do. Arrays are never changed in place: a write returns a new one.
``NamedSharding`` refuses rows that the devices do not divide: such variables are not claimed, and
checkpoints hold them replicated, as is usual.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from shardvar.layout.dtypes import Array

_Gradient = Array | tuple[Array, Array]
_Steps = Sequence[Mapping[str, _Gradient]]

# Sixteen devices, for a grid of 4 x 4 parts, the largest that a rule asks for. Without
# optimization, since compiling takes much longer than computing with such small arrays.
_XLA_FLAGS = "--xla_force_host_platform_device_count=16 --xla_backend_optimization_level=0"
# JAX's names of operations on ``.at[ids]``, where they differ from the kit's.
_SCATTERS = {"sub": "subtract", "mul": "multiply", "div": "divide", "update": "set"}


class Adapter:
    """JAX's sharded arrays and Orbax's checkpoints."""

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

    def _sharding(self, counts: Sequence[int]) -> Any:
        """Return the sharding over a mesh with some number of devices along each axis."""
        jax = self._jax
        names = tuple(f"axis{axis}" for axis in range(len(counts)))
        mesh = jax.make_mesh(
            tuple(counts), names, axis_types=(jax.sharding.AxisType.Auto,) * len(counts)
        )
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*names))

    def _divided(self, shape: Sequence[int], num_shards: int) -> Any:
        if shape[0] % num_shards:
            raise NotImplementedError("rows that the shards do not divide")
        return self._sharding([num_shards])

    def div(self, length: int, num_shards: int) -> list[tuple[int, int]]:
        return [
            rows.indices(length)[:2]
            for (rows,) in self._indices((length,), self._divided((length,), num_shards))
        ]

    def regions(
        self, shape: Sequence[int], counts: Sequence[int]
    ) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        if any(extent % count for extent, count in zip(shape, counts, strict=True)):
            raise NotImplementedError("axes that the parts do not divide")
        regions = []
        for index in self._indices(tuple(shape), self._sharding(counts)):
            bounds = [one.indices(extent) for one, extent in zip(index, shape, strict=True)]
            regions.append((tuple(a for a, _, _ in bounds), tuple(b - a for a, b, _ in bounds)))
        return regions

    def _indices(self, shape: tuple[int, ...], sharding: Any) -> list[Any]:
        # The map is keyed by device; the shards are in the order of the mesh.
        places = sharding.devices_indices_map(shape)
        return [places[device] for device in sharding.mesh.devices.flat]

    def create(self, value: Array, num_shards: int) -> Any:
        return self._jax.device_put(value, self._divided(value.shape, num_shards))

    def create_partitioned(self, value: Array, counts: Sequence[int]) -> Any:
        return self._jax.device_put(value, self._sharding(counts))

    def read(self, handle: Any) -> Array:
        return np.asarray(handle)

    def shards(self, handle: Any) -> list[Array]:
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

    def assign(self, handle: Any, value: Array) -> Any:
        return handle.at[...].set(value)

    def assign_add(self, handle: Any, value: Array) -> Any:
        return handle.at[...].add(value)

    def assign_sub(self, handle: Any, value: Array) -> Any:
        return handle.at[...].subtract(value)

    def scatter(self, handle: Any, op: str, ids: Array, rows: Array) -> Any:
        # JAX's documentation leaves open which operand of a repeated index is set.
        if op == "update" and len(np.unique(ids)) < len(ids):
            raise NotImplementedError("at[...].set of repeated rows")
        return getattr(handle.at[ids], _SCATTERS.get(op, op))(rows)

    def initialize(
        self, kind: str, shape: Sequence[int], dtype: Any, num_shards: int, seed: int
    ) -> list[Array]:
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

    def initialize_whole(
        self, function: Any, shape: Sequence[int], dtype: Any, num_shards: int
    ) -> list[Array]:
        sharding, value = self._divided(shape, num_shards), function(tuple(shape), dtype)
        if value.shape != tuple(shape):
            raise NotImplementedError("another shape than the value has")
        return self.shards(self._jax.device_put(value, sharding))

    def initialize_parts(
        self, function: Any, shape: Sequence[int], dtype: Any, num_shards: int
    ) -> list[Array]:
        def part(index: Any) -> Any:
            bounds = [one.indices(extent) for one, extent in zip(index, shape, strict=True)]
            return function(
                tuple(shape),
                dtype,
                tuple(b - a for a, b, _ in bounds),
                tuple(a for a, _, _ in bounds),
            )

        sharding = self._divided(shape, num_shards)
        return self.shards(self._jax.make_array_from_callback(tuple(shape), sharding, part))

    def optimize(
        self, kind: str, value: Array, num_shards: int, gradients: Sequence[_Gradient]
    ) -> Array:
        state, get_params = self._trained(kind, value, num_shards, gradients)
        return np.asarray(get_params(state))

    def slots(
        self, kind: str, value: Array, num_shards: int, gradients: Sequence[_Gradient]
    ) -> dict[str, list[Array]]:
        state, _ = self._trained(kind, value, num_shards, gradients)
        leaves = self._jax.tree.leaves(state)[1:]  # the first one is the variable
        return {f"slot{number}": self.shards(leaf) for number, leaf in enumerate(leaves)}

    def _trained(
        self, kind: str, value: Array, num_shards: int, gradients: Sequence[_Gradient]
    ) -> Any:
        init, _, get_params = self._optimizer(kind)
        state = init(self.create(value, num_shards))
        return self._stepped(kind, state, 0, gradients), get_params

    def _stepped(self, kind: str, state: Any, steps: int, gradients: Sequence[_Gradient]) -> Any:
        _, update, get_params = self._optimizer(kind)
        for step, gradient in enumerate(gradients, steps):
            state = update(step, _gradient(self._jax, gradient, get_params(state)), state)
        return state

    def _optimizer(self, kind: str) -> Any:
        library = self._jax.example_libraries.optimizers
        made = {
            "sgd": lambda: library.sgd(0.1),
            "momentum": lambda: library.momentum(0.1, 0.9),
            # This library's adagrad has momentum 0.9 by default; the kit's kind has none.
            "adagrad": lambda: library.adagrad(0.1, momentum=0.0),
            "adam": lambda: library.adam(0.1),
        }
        return made[kind]()

    def save_training(
        self, path: str, kind: str, values: Mapping[str, Array], layout: Any, gradients: _Steps
    ) -> None:
        if not isinstance(layout, int):
            raise NotImplementedError("shards of given sizes")
        arrays: dict[str, Array] = {"": np.array(len(gradients))}
        for key, value in values.items():
            own = [step[key] for step in gradients]
            state, _ = self._trained(kind, value, layout, own)
            # The leaves of a state are the variable and its slots.
            for number, leaf in enumerate(self._jax.tree.leaves(state)):
                arrays[f"{key}#{number}"] = np.asarray(leaf)
        self.save(path, arrays, layout)

    def resume_training(
        self, path: str, kind: str, templates: Mapping[str, Array], layout: Any, gradients: _Steps
    ) -> dict[str, Array]:
        resumed = self._resumed(path, kind, templates, layout, gradients)
        return {key: np.asarray(leaves[0]) for key, leaves in resumed.items()}

    def resumed_slots(
        self, path: str, kind: str, templates: Mapping[str, Array], layout: Any, gradients: _Steps
    ) -> dict[str, dict[str, list[Array]]]:
        resumed = self._resumed(path, kind, templates, layout, gradients)
        return {
            key: {f"slot{number}": self.shards(leaf) for number, leaf in enumerate(leaves[1:])}
            for key, leaves in resumed.items()
        }

    def _resumed(
        self, path: str, kind: str, templates: Mapping[str, Array], layout: Any, gradients: _Steps
    ) -> dict[str, list[Any]]:
        if not isinstance(layout, int):
            raise NotImplementedError("shards of given sizes")
        jax, resumed = self._jax, {}
        # Orbax restores a tree whole; what is wanted of it has the templates' shapes.
        wanted = {key: np.zeros(*each) for key, each in self.list_tensors(path).items()}
        new = {key: self._trained(kind, one, layout, []) for key, one in templates.items()}
        for key, (state, _) in new.items():
            for number, leaf in enumerate(jax.tree.leaves(state)):
                wanted[f"{key}#{number}"] = np.asarray(leaf)
        restored = self.restore(path, wanted, layout)
        for key, (state, _) in new.items():
            leaves, tree = jax.tree.flatten(state)
            found = [
                jax.device_put(restored[f"{key}#{number}"], leaf.sharding)
                for number, leaf in enumerate(leaves)
            ]
            own = [step[key] for step in gradients]
            began = jax.tree.unflatten(tree, found), int(restored[""])
            resumed[key] = jax.tree.leaves(self._stepped(kind, *began, own))
        return resumed

    def _named(
        self, mesh: Sequence[int], names: Sequence[str], spec: Sequence[Any], explicit: bool = False
    ) -> Any:
        sharding = self._jax.sharding
        kind = sharding.AxisType.Explicit if explicit else sharding.AxisType.Auto
        devices = np.array(self._jax.devices()[: int(np.prod(mesh))]).reshape(mesh)
        made = sharding.Mesh(devices, tuple(names), axis_types=(kind,) * len(mesh))
        return sharding.NamedSharding(made, sharding.PartitionSpec(*spec))

    def _by_placements(
        self, shape: Sequence[int], mesh: Sequence[int], placements: Sequence[Any]
    ) -> Any:
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
        return self._named(mesh, names, spec)

    def mesh_parts(
        self, value: Array, mesh: Sequence[int], placements: Sequence[Any]
    ) -> list[Array]:
        return self.shards(
            self._jax.device_put(value, self._by_placements(value.shape, mesh, placements))
        )

    def mesh_slices(
        self, shape: Sequence[int], mesh: Sequence[int], placements: Sequence[Any]
    ) -> Any:
        slices = []
        for index in self._indices(tuple(shape), self._by_placements(shape, mesh, placements)):
            bounds = [one.indices(extent) for one, extent in zip(index, shape, strict=True)]
            slices.append((tuple(a for a, _, _ in bounds), tuple(b - a for a, b, _ in bounds)))
        return slices

    def mesh_gather(
        self,
        parts: Sequence[Array],
        shape: Sequence[int],
        mesh: Sequence[int],
        placements: Sequence[Any],
    ) -> Array:
        jax, sharding = self._jax, self._by_placements(shape, mesh, placements)
        arrays = [
            jax.device_put(part, device)
            for part, device in zip(parts, sharding.mesh.devices.flat, strict=True)
        ]
        return np.asarray(jax.make_array_from_single_device_arrays(tuple(shape), sharding, arrays))

    def mesh_move(
        self, value: Array, mesh: Sequence[int], source: Sequence[Any], target: Sequence[Any]
    ) -> list[Array]:
        before, after = (self._by_placements(value.shape, mesh, each) for each in (source, target))
        return self.shards(self._jax.device_put(self._jax.device_put(value, before), after))

    def mesh_reduce(
        self,
        terms: Sequence[Array],
        mesh: Sequence[int],
        axis: int,
        op: str,
        placements: Sequence[Any],
    ) -> list[Array]:
        if op != "sum":
            raise NotImplementedError(f"unreduced axes of {op}")
        jax = self._jax
        target = self._by_placements(terms[0].shape, mesh, placements)
        names = target.mesh.axis_names
        pending = self._named(mesh, names, (), explicit=True)
        pending = pending.update(spec=jax.sharding.PartitionSpec(unreduced={names[axis]}))
        held = [terms[coordinate[axis]] for coordinate in np.ndindex(*mesh)]
        arrays = [
            jax.device_put(part, device)
            for part, device in zip(held, pending.mesh.devices.flat, strict=True)
        ]
        unreduced = jax.make_array_from_single_device_arrays(terms[0].shape, pending, arrays)
        with jax.set_mesh(pending.mesh):
            return self.shards(jax.sharding.reshard(unreduced, target.spec))

    def spec_parts(
        self, value: Array, mesh: Sequence[int], names: Sequence[str], spec: Sequence[Any]
    ) -> list[Array]:
        return self.shards(self._jax.device_put(value, self._named(mesh, names, spec)))

    def spec_constrained(
        self, value: Array, mesh: Sequence[int], names: Sequence[str], spec: Sequence[Any]
    ) -> list[Array]:
        sharding = self._named(mesh, names, spec)
        return self.shards(
            self._jax.jit(lambda one: self._jax.lax.with_sharding_constraint(one, sharding))(value)
        )

    def _placed(self, shape: tuple[int, ...], num_shards: int) -> Any:
        """Return the sharding of a checkpoint's array: in shards if these divide its rows, else replicated."""
        if shape and shape[0] % num_shards == 0:
            return self._sharding([num_shards])
        mesh = self._sharding([num_shards]).mesh
        return self._jax.sharding.NamedSharding(mesh, self._jax.sharding.PartitionSpec())

    def save(self, path: str, tensors: Mapping[str, Array], num_shards: int) -> None:
        if any(value.dtype == object for value in tensors.values()):
            raise NotImplementedError("strings")
        # JAX has no dtypes of the other byte order.
        native = {
            key: value.astype(value.dtype.newbyteorder("="), copy=False)
            for key, value in tensors.items()
        }
        arrays = {
            key: self._jax.device_put(one, self._placed(one.shape, num_shards))
            for key, one in native.items()
        }
        self._checkpointer.save(path, args=self._orbax.args.StandardSave(arrays))

    def restore(
        self, path: str, templates: Mapping[str, Array], num_shards: int
    ) -> dict[str, Array]:
        wanted = {
            key: self._jax.ShapeDtypeStruct(
                one.shape, one.dtype, sharding=self._placed(one.shape, num_shards)
            )
            for key, one in templates.items()
        }
        restored = self._checkpointer.restore(path, args=self._orbax.args.StandardRestore(wanted))
        return {key: np.asarray(one) for key, one in restored.items()}

    def list_tensors(self, path: str) -> dict[str, tuple[tuple[int, ...], str]]:
        metadata = self._checkpointer.metadata(path).item_metadata.tree
        return {key: (tuple(one.shape), str(one.dtype)) for key, one in metadata.items()}


def _gradient(jax: Any, gradient: _Gradient, value: Any) -> Any:
    """Return a gradient laid out like the variable; for (ids, rows) the derivative of their lookup."""
    if not isinstance(gradient, tuple):
        return jax.device_put(gradient, value.sharding)
    ids, rows = gradient
    return jax.grad(lambda table: (jax.numpy.take(table, ids, axis=0) * rows).sum())(value)
