"""Training that PyTorch saves and resumes: the state of a model and of its optimizer by
``torch.distributed.checkpoint.state_dict``, which gives slots the names of their parameters."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardvar.conformance.adapters.dtensor import SimulatedRanks, torch_tensor
from shardvar.layout.dtypes import Array

_Gradient = Array | tuple[Array, Array]
_Steps = Sequence[Mapping[str, _Gradient]]


class Training(SimulatedRanks):
    """The optimizers of level 5, and level 10."""

    create: Callable[..., Any]
    read: Callable[..., Array]
    shards: Callable[..., list[Array]]
    _replicated: Callable[..., Any]
    _like: Callable[..., Any]
    _save_state: Callable[..., None]
    _load_state: Callable[..., None]

    def optimize(
        self, kind: str, value: Array, num_shards: int, gradients: Sequence[_Gradient]
    ) -> Array:
        return self.read(self._trained(kind, value, num_shards, gradients)[0])

    def slots(
        self, kind: str, value: Array, num_shards: int, gradients: Sequence[_Gradient]
    ) -> dict[str, list[Array]]:
        return self._slots_of(*self._trained(kind, value, num_shards, gradients))

    def _slots_of(self, parameter: Any, optimizer: Any) -> dict[str, list[Array]]:
        # The step counter of Adam is a scalar in the state, and not a slot.
        return {
            name: self.shards(slot)
            for name, slot in optimizer.state[parameter].items()
            if slot.ndim
        }

    def _trained(
        self, kind: str, value: Array, num_shards: int, gradients: Sequence[_Gradient]
    ) -> tuple[Any, Any]:
        model, optimizer = self._model(kind, {"w": value}, num_shards)
        self._train(model, optimizer, [{"w": gradient} for gradient in gradients])
        return model.w, optimizer

    def _model(self, kind: str, values: Mapping[str, Array], num_shards: int) -> tuple[Any, Any]:
        if not isinstance(num_shards, int):
            raise NotImplementedError("shards of given sizes")
        torch = self._torch
        model, made = (
            torch.nn.Module(),
            {
                "sgd": lambda given: torch.optim.SGD(given, 0.1),
                "momentum": lambda given: torch.optim.SGD(given, 0.1, momentum=0.9),
                "adagrad": lambda given: torch.optim.Adagrad(given, 0.1),
                "adam": lambda given: torch.optim.Adam(given, 0.1),
            },
        )
        handles = {key: self.create(value, num_shards) for key, value in values.items()}
        with self._ranks(next(iter(handles.values()))):
            for key, handle in handles.items():
                model.register_parameter(key, torch.nn.Parameter(handle))
            return model, made[kind](list(model.parameters()))

    def _train(self, model: Any, optimizer: Any, gradients: _Steps) -> None:
        torch = self._torch
        parameters = dict(model.named_parameters())
        with self._ranks(next(iter(parameters.values()))):
            for step in gradients:
                optimizer.zero_grad()
                for key, parameter in parameters.items():
                    gradient = step[key]
                    if isinstance(gradient, tuple):
                        ids, rows = (
                            self._replicated(parameter, torch_tensor(torch, one))
                            for one in gradient
                        )
                        (torch.nn.functional.embedding(ids, parameter) * rows).sum().backward()
                    else:
                        parameter.grad = self._like(parameter, torch_tensor(torch, gradient))
                optimizer.step()

    def _state(self, model: Any, optimizer: Any) -> dict[str, Any]:
        """Return the state of both, flat, by names; on the ranks of the model."""
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions,
            get_model_state_dict,
            get_optimizer_state_dict,
        )

        flat = StateDictOptions(flatten_optimizer_state_dict=True)
        optimizers = get_optimizer_state_dict(model, optimizer, options=flat)
        return {
            **{f"model.{key}": one for key, one in get_model_state_dict(model).items()},
            **{f"optimizer.{key}": one for key, one in optimizers.items()},
        }

    def _whole(self, state: Mapping[str, Any]) -> dict[str, Any]:
        whole = {}
        for key, one in state.items():
            # Ranks that hold a tensor alike have it once.
            tensor = one.full_tensor() if hasattr(one, "full_tensor") else one
            local = getattr(tensor, "_local_tensors", None)
            tensor = tensor if local is None else local[0]
            whole[key] = tensor.detach().clone() if hasattr(tensor, "detach") else tensor
        return whole

    def save_training(
        self, path: str, kind: str, values: Mapping[str, Array], layout: Any, gradients: _Steps
    ) -> None:
        model, optimizer = self._model(kind, values, layout)
        self._train(model, optimizer, gradients)
        with self._ranks(next(model.parameters())):
            state = self._whole(self._state(model, optimizer))
        self._save_state(path, state, layout)

    def resume_training(
        self, path: str, kind: str, templates: Mapping[str, Array], layout: Any, gradients: _Steps
    ) -> dict[str, Array]:
        model, _ = self._resumed(path, kind, templates, layout, gradients)
        return {key: self.read(one.detach()) for key, one in model.named_parameters()}

    def resumed_slots(
        self, path: str, kind: str, templates: Mapping[str, Array], layout: Any, gradients: _Steps
    ) -> dict[str, dict[str, list[Array]]]:
        model, optimizer = self._resumed(path, kind, templates, layout, gradients)
        return {key: self._slots_of(one, optimizer) for key, one in model.named_parameters()}

    def _resumed(
        self, path: str, kind: str, templates: Mapping[str, Array], layout: Any, gradients: _Steps
    ) -> tuple[Any, Any]:
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions,
            set_model_state_dict,
            set_optimizer_state_dict,
        )

        model, optimizer = self._model(kind, templates, layout)
        first = next(model.parameters())
        with self._ranks(first):
            sharded = self._state(model, optimizer)
            state = self._whole(sharded)
        self._load_state(path, state, layout)
        with self._ranks(first):
            given = {
                key: self._like(sharded[key], one) if hasattr(sharded[key], "device_mesh") else one
                for key, one in state.items()
            }

            def of(prefix: str) -> dict[str, Any]:
                return {
                    key.removeprefix(prefix): one
                    for key, one in given.items()
                    if key.startswith(prefix)
                }

            set_model_state_dict(model, of("model."))
            flat = StateDictOptions(flatten_optimizer_state_dict=True)
            set_optimizer_state_dict(model, optimizer, of("optimizer."), options=flat)
        self._train(model, optimizer, gradients)
        return model, optimizer
