"""Meshes without a fault that the kit knows, in plain NumPy: arrays are cut one mesh axis after the
other.

Each step that a mutant spoils is a method of its own.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Coordinate = tuple[int, ...]


class RightMeshes:
    """The methods of level 9."""

    def coordinates(self, mesh: Sequence[int]) -> Iterator[Coordinate]:
        """The coordinate of each device, in C order."""
        return iter(np.ndindex(*mesh))

    def chunk(self, value: Array, axis: int, part: int, count: int) -> Array:
        """One of ``count`` parts along an axis, by the chunk rule."""
        size = -(-value.shape[axis] // count)
        return value[(slice(None),) * axis + (slice(part * size, (part + 1) * size),)]

    def placed(self, value: Array, placement: Any, part: int, count: int) -> Array:
        """What a device of a mesh axis holds of what it got."""
        if placement is None:
            return value
        if not isinstance(placement, tuple):
            return self.chunk(value, placement, part, count)
        _, axis, factor = placement
        runs = (self.chunk(value, axis, run, factor) for run in range(factor))
        return np.concatenate([self.chunk(run, axis, part, count) for run in runs], axis)

    def check(self, rank: int, mesh: Sequence[int], placements: Sequence[Any]) -> None:
        """``ValueError`` for placements that the mesh or the tensor does not have."""
        axes = [one[1] if isinstance(one, tuple) else one for one in placements]
        if len(mesh) != len(placements) or any(
            axis is not None and not 0 <= axis < rank for axis in axes
        ):
            raise ValueError(f"{placements}")

    def mesh_parts(
        self, value: Array, mesh: Sequence[int], placements: Sequence[Any]
    ) -> list[Array]:
        self.check(value.ndim, mesh, placements)
        parts = []
        for coordinate in self.coordinates(mesh):
            part = value
            for at, count, placement in zip(coordinate, mesh, placements, strict=True):
                part = self.placed(part, placement, at, count)
            parts.append(part)
        return parts

    def places(
        self, shape: Sequence[int], mesh: Sequence[int], placements: Sequence[Any]
    ) -> list[Array]:
        """The C order numbers of the elements that each device holds."""
        return self.mesh_parts(np.arange(int(np.prod(shape))).reshape(shape), mesh, placements)

    def mesh_slices(
        self, shape: Sequence[int], mesh: Sequence[int], placements: Sequence[Any]
    ) -> Any:
        slices = []
        for place in self.places(shape, mesh, placements):
            first = np.unravel_index(place.flat[0], shape) if place.size else (0,) * len(shape)
            slices.append((tuple(map(int, first)), place.shape))
        return slices

    def mesh_gather(
        self,
        parts: Sequence[Array],
        shape: Sequence[int],
        mesh: Sequence[int],
        placements: Sequence[Any],
    ) -> Array:
        whole = np.zeros(shape, parts[0].dtype)
        for part, place in zip(parts, self.places(shape, mesh, placements), strict=True):
            if part.size != place.size:
                raise ValueError(f"a part of {part.size} elements")
            whole.ravel()[place.ravel()] = part.ravel()
        return whole

    def mesh_move(
        self, value: Array, mesh: Sequence[int], source: Sequence[Any], target: Sequence[Any]
    ) -> list[Array]:
        parts = self.mesh_parts(value, mesh, source)
        return self.mesh_parts(self.mesh_gather(parts, value.shape, mesh, source), mesh, target)

    def mesh_move_joined(
        self, value: Array, mesh: Sequence[int], source: Sequence[Any], target: Sequence[Any]
    ) -> list[Array]:
        return self.mesh_move(value, mesh, source, target)

    def combined(self, terms: Sequence[Array], op: str) -> Array:
        reduce = {"sum": np.sum, "avg": np.mean, "min": np.min, "max": np.max}[op]
        combined = np.asarray(reduce(np.stack(terms), axis=0))
        # A mean of integers keeps its fraction.
        is_mean = op == "avg" and terms[0].dtype.kind in "iu"
        return combined if is_mean else combined.astype(terms[0].dtype)

    def mesh_reduce(
        self,
        terms: Sequence[Array],
        mesh: Sequence[int],
        axis: int,
        op: str,
        placements: Sequence[Any],
    ) -> list[Array]:
        return self.mesh_parts(self.combined(terms, op), mesh, placements)

    def check_spec(
        self, value: Array, mesh: Sequence[int], names: Sequence[str], spec: Sequence[Any]
    ) -> None:
        """``ValueError`` for names that come twice or are unknown, and for extents that do not
        divide."""
        named = [name for entry in spec for name in entry]
        extents = dict(zip(names, mesh, strict=True))
        counts = [
            int(np.prod([extents.get(name, 1) for name in entry], dtype=int)) for entry in spec
        ]
        divides = all(
            extent % count == 0 for extent, count in zip(value.shape, counts, strict=True)
        )
        if len(set(named)) < len(named) or not set(named) <= set(names) or not divides:
            raise ValueError(f"{spec}")

    def spec_parts(
        self, value: Array, mesh: Sequence[int], names: Sequence[str], spec: Sequence[Any]
    ) -> list[Array]:
        self.check_spec(value, mesh, names, spec)
        parts = []
        for coordinate in self.coordinates(mesh):
            part = value
            for axis, entry in enumerate(spec):
                for name in entry:
                    part = self.chunk(
                        part, axis, coordinate[names.index(name)], mesh[names.index(name)]
                    )
            parts.append(part)
        return parts

    def spec_constrained(
        self, value: Array, mesh: Sequence[int], names: Sequence[str], spec: Sequence[Any]
    ) -> list[Array]:
        return self.spec_parts(value, mesh, names, spec)

    def fsdp_parts(self, value: Array, mesh: Sequence[int]) -> list[Array]:
        return [
            self.chunk(self.chunk(value, 0, tensor, mesh[1]), 0, data, mesh[0])
            for data, tensor in self.coordinates(mesh)
        ]

    def fsdp_shapes(self, shape: Sequence[int], mesh: Sequence[int]) -> list[tuple[int, ...]]:
        return [part.shape for part in self.fsdp_parts(np.zeros(shape), mesh)]

    def hsdp_parts(
        self, value: Array, mesh: Sequence[int], fsdp_axis: int, tp_axis: int | None
    ) -> list[Array]:
        self.check_hsdp(value.shape, mesh, fsdp_axis, tp_axis)
        return [
            self.of_rank(value, mesh, coordinate, fsdp_axis, tp_axis)
            for coordinate in self.coordinates(mesh)
        ]

    def check_hsdp(
        self, shape: Sequence[int], mesh: Sequence[int], fsdp_axis: int, tp_axis: int | None
    ) -> None:
        """``ValueError`` for axes that are missing, and for an axis but the first that FSDP does
        not divide."""
        of_tp = [] if tp_axis is None else [tp_axis]
        if any(not 0 <= axis < len(shape) for axis in [fsdp_axis, *of_tp]):
            raise ValueError(f"{fsdp_axis}, {tp_axis}")
        _, shards, tensor = mesh
        lengths = {shape[fsdp_axis]}
        if fsdp_axis == tp_axis:
            whole = np.arange(shape[fsdp_axis])
            lengths = {len(self.chunk(whole, 0, part, tensor)) for part in range(tensor)}
        if fsdp_axis and any(length % shards for length in lengths):
            raise ValueError(f"{shards} uneven parts of axis {fsdp_axis}")

    def of_rank(
        self,
        value: Array,
        mesh: Sequence[int],
        coordinate: Coordinate,
        fsdp_axis: int,
        tp_axis: int | None,
    ) -> Array:
        """What one device holds: its part by tensor parallelism, and of that its part by FSDP."""
        _, shards, tensor = mesh
        _, shard, rank = coordinate
        part = value if tp_axis is None else self.chunk(value, tp_axis, rank, tensor)
        return self.chunk(part, fsdp_axis, shard, shards)
