"""Everything that an ``Accelerator`` has prepared, saved and restored by all processes.

steps = sv.SavedSteps("run", using=PreparedStates(accelerator), keep_last=3)
"""

from collections.abc import Mapping
from typing import Any

from accelerate import Accelerator

from shardvar.errors import ArgumentError
from shardvar.torch.generators import WithGenerators, set_generators
from shardvar.verbs.locate import Path

__all__ = ["PreparedStates"]


class PreparedStates(WithGenerators):
    """Functions for ``SavedSteps``: what was prepared, and random generators, with your own state.

    Parameters
    ----------
    accelerator : accelerate.Accelerator
        After ``prepare`` and ``register_for_checkpointing``.

    Notes
    -----
    A process takes its own random generators, if it was there when the step was saved. The position in
    the data is yours: keep it in your state, and resume with ``accelerator.skip_first_batches``.

    Examples
    --------
    ``SavedSteps("run", using=PreparedStates(accelerator)).save(7, {"batch": 7})``
    """

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()
        self._accelerator = accelerator

    # As in ``shardvar.torch``.

    def save(self, path: Path, state: Mapping[str, Any], **options: Any) -> Any:
        return super().save(path, self._joined(state), **options)

    def load(self, path: Path, state: dict[str, Any], **options: Any) -> Any:
        whole = self._joined(state)
        report = super().load(path, whole, **options)
        state |= {key: whole[key] for key in state}
        set_generators(self.found)
        return report

    def _joined(self, state: Mapping[str, Any]) -> dict[str, Any]:
        of = self._accelerator
        kinds = {
            "models": [*map(of.unwrap_model, of._models)],
            "optimizers": of._optimizers,
            "schedulers": of._schedulers,
            "custom": of._custom_objects,
            "scaler": [] if of.scaler is None else [of.scaler],
        }
        if both := sorted({*kinds, "rng"} & state.keys()):
            cause = f"The state has the key {both[0]!r}, which prepared objects have."
            raise ArgumentError(cause, "Rename it.")
        numbered = {kind: dict(enumerate(objects)) for kind, objects in kinds.items()}
        return {**numbered, **state}
