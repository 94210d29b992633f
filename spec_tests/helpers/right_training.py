"""Optimizers and their checkpoints without a fault that the kit knows, in plain NumPy.

Each step that a mutant spoils is a method of its own.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Slots = dict[str, Array]


class RightTraining:
    """The methods of level 5 and of level 10."""

    # From the classes that it is mixed into.
    create: Any
    create_uneven: Any
    read: Any
    save: Any
    loaded: Any
    check_template: Any

    def optimize(self, kind: str, value: Array, num_shards: int, gradients: Sequence[Any]) -> Array:
        return self.read(self.trained(kind, self.create(value, num_shards), gradients)[0])

    def optimize_uneven(
        self, kind: str, value: Array, sizes: Sequence[int], gradients: Sequence[Any]
    ) -> Array:
        return self.read(self.trained(kind, self.create_uneven(value, sizes), gradients)[0])

    def slots(
        self, kind: str, value: Array, num_shards: int, gradients: Sequence[Any]
    ) -> dict[str, list[Array]]:
        slots = self.trained(kind, self.create(value, num_shards), gradients)[1]
        return self.by_name(slots)

    def slots_uneven(
        self, kind: str, value: Array, sizes: Sequence[int], gradients: Sequence[Any]
    ) -> dict[str, list[Array]]:
        slots = self.trained(kind, self.create_uneven(value, sizes), gradients)[1]
        return self.by_name(slots)

    def by_name(self, slots: Sequence[Slots]) -> dict[str, list[Array]]:
        """The slots of the shards, by their names."""
        return {name: [shard[name] for shard in slots] for name in slots[0]}

    def trained(
        self, kind: str, handle: Any, gradients: Sequence[Any]
    ) -> tuple[list[Array], list[Slots]]:
        """The shards and their slots after a step a gradient."""
        slots = [self.new_slots(kind, shard) for shard in handle]
        return self.continued(kind, handle, slots, 0, gradients)

    def continued(
        self, kind: str, handle: Any, slots: list[Slots], steps: int, gradients: Sequence[Any]
    ) -> tuple[list[Array], list[Slots]]:
        """The same, of variables that have made some steps."""
        shards = [shard.astype(np.float64) for shard in handle]
        stops = np.cumsum([0, *map(len, shards)])
        for step, gradient in enumerate(gradients, steps + 1):
            whole = self.dense(gradient, (int(stops[-1]), *shards[0].shape[1:]))
            for number, (start, stop) in enumerate(pairwise(stops)):
                shards[number] = self.stepped(
                    kind, shards[number], whole[start:stop], slots[number], step
                )
        return [shard.astype(handle[0].dtype) for shard in shards], slots

    def dense(self, gradient: Any, shape: tuple[int, ...]) -> Array:
        """A gradient as an array: rows that come several times are summed."""
        self.check_gradient(gradient, shape)
        if not isinstance(gradient, tuple):
            return np.asarray(gradient, np.float64)
        whole = np.zeros(shape)
        np.add.at(whole, gradient[0], gradient[1])
        return whole

    def check_gradient(self, gradient: Any, shape: tuple[int, ...]) -> None:
        """``ValueError`` for another shape than the variable's, and for rows outside."""
        if isinstance(gradient, tuple):
            ids, rows = gradient
            fits = rows.shape == (*ids.shape, *shape[1:])
            if not fits or ((ids < 0) | (ids >= shape[0])).any():
                raise ValueError(f"{ids}")
        elif np.shape(gradient) != shape:
            raise ValueError(f"a gradient of the shape {np.shape(gradient)}")

    def new_slots(self, kind: str, shard: Array) -> Slots:
        """The slots of a shard before the first step."""
        names = {"momentum": ["momentum"], "adagrad": ["accumulator"], "adam": ["m", "v"]}.get(
            kind, []
        )
        return {name: np.full(shard.shape, 0.1 if name == "accumulator" else 0.0) for name in names}

    def stepped(self, kind: str, value: Array, gradient: Array, slots: Slots, step: int) -> Array:
        """The value of a shard after a step."""
        return getattr(self, f"{kind}_step")(value, gradient, slots, step)

    def sgd_step(self, value: Array, gradient: Array, slots: Slots, step: int) -> Array:
        """Plain descent."""
        return value - 0.1 * gradient

    def momentum_step(self, value: Array, gradient: Array, slots: Slots, step: int) -> Array:
        """Momentum 0.9."""
        slots["momentum"] = 0.9 * slots["momentum"] - 0.1 * gradient
        return value + slots["momentum"]

    def adagrad_step(self, value: Array, gradient: Array, slots: Slots, step: int) -> Array:
        """The sum of all squares."""
        slots["accumulator"] = slots["accumulator"] + gradient**2
        return value - 0.1 * gradient / (np.sqrt(slots["accumulator"]) + 1e-7)

    def adam_step(self, value: Array, gradient: Array, slots: Slots, step: int) -> Array:
        """Two averages without their bias."""
        slots["m"] = 0.9 * slots["m"] + 0.1 * gradient
        slots["v"] = 0.999 * slots["v"] + 0.001 * gradient**2
        mean, square = slots["m"] / (1 - 0.9**step), slots["v"] / (1 - 0.999**step)
        return value - 0.1 * mean / (np.sqrt(square) + 1e-8)

    # Level 10

    def save_training(
        self,
        path: str,
        kind: str,
        values: Mapping[str, Array],
        layout: int | Sequence[int],
        gradients: Sequence[Mapping[str, Any]],
    ) -> None:
        tensors: dict[str, Array] = {}
        for key, value in values.items():
            shards, slots = self.trained(
                kind, self.laid_out(value, layout), [gradient[key] for gradient in gradients]
            )
            tensors[self.variable_key(key)] = self.read(shards)
            for name, parts in self.saved_slots(slots).items():
                tensors[self.slot_key(key, name)] = self.joined_slot(parts)
        tensors["steps"] = np.array(self.steps_after(gradients))
        self.save(path, tensors, layout if isinstance(layout, int) else len(layout))

    def laid_out(self, value: Array, layout: int | Sequence[int]) -> Any:
        """A variable in so many shards, or in shards of these rows."""
        if isinstance(layout, int):
            return self.create(value, layout)
        return self.create_uneven(value, layout)

    def variable_key(self, key: str) -> str:
        return f"variables/{key}"

    def slot_key(self, key: str, name: str) -> str:
        return f"slots/{name}/{key}"

    def saved_slots(self, slots: Sequence[Slots]) -> dict[str, list[Array]]:
        """What is saved of the slots of a variable."""
        return self.by_name(slots)

    def joined_slot(self, parts: Sequence[Array]) -> Array:
        return np.concatenate(parts)

    def steps_after(self, gradients: Sequence[Any]) -> int:
        """The number of steps that is saved."""
        return len(gradients)

    def resume_training(
        self,
        path: str,
        kind: str,
        templates: Mapping[str, Array],
        layout: int | Sequence[int],
        gradients: Sequence[Mapping[str, Any]],
    ) -> dict[str, Array]:
        resumed = self.resumed(path, kind, templates, layout, gradients)
        return {key: self.read(shards) for key, (shards, _) in resumed.items()}

    def resumed_slots(
        self,
        path: str,
        kind: str,
        templates: Mapping[str, Array],
        layout: int | Sequence[int],
        gradients: Sequence[Mapping[str, Any]],
    ) -> dict[str, dict[str, list[Array]]]:
        resumed = self.resumed(path, kind, templates, layout, gradients)
        return {key: self.by_name(slots) for key, (_, slots) in resumed.items()}

    def resumed(
        self,
        path: str,
        kind: str,
        templates: Mapping[str, Array],
        layout: int | Sequence[int],
        gradients: Sequence[Mapping[str, Any]],
    ) -> dict[str, tuple[list[Array], list[Slots]]]:
        """The shards of each variable and their slots, restored and then trained."""
        found = {}
        for key, template in templates.items():
            value = self.loaded(path, self.variable_key(key))
            self.check_template(value, template)
            handle = self.laid_out(value, layout)
            slots = self.restored_slots(path, kind, key, handle)
            own = [gradient[key] for gradient in gradients]
            found[key] = self.continued(kind, handle, slots, self.restored_steps(path), own)
        return found

    def restored_slots(self, path: str, kind: str, key: str, handle: Any) -> list[Slots]:
        """The slots of the shards of a variable, as they were saved, cut as it is."""
        stops = np.cumsum([0, *map(len, handle)])
        slots: list[Slots] = [{} for _ in handle]
        for name in self.new_slots(kind, handle[0]):
            whole = self.loaded(path, self.slot_key(key, name))
            for shard, (start, stop) in zip(slots, pairwise(stops), strict=True):
                shard[name] = whole[start:stop]
        return slots

    def restored_steps(self, path: str) -> int:
        """The number of steps that was saved."""
        return int(self.loaded(path, "steps"))
