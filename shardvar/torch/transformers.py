"""The steps of Hugging Face's ``Trainer``: a callback saves them, and trains on from the newest.

save      after a step: the model, the optimizer, the scheduler, the generators of each process, and the
          Trainer's own state, as one value
resume    the Trainer resumes from a folder that has only its state, by which it skips the batches that it has
          seen. The callback loads the rest when the training begins. The generators follow where the Trainer
          loads its own: after the batches that were skipped, or before the first one of an epoch
"""

import os
from dataclasses import asdict
from typing import Any

import transformers
from transformers import Trainer, TrainerCallback, TrainerState

from shardvar.errors import UnsupportedError
from shardvar.storage.scratch import temporary_folder
from shardvar.torch.generators import WithGenerators, set_generators
from shardvar.verbs.locate import Path
from shardvar.verbs.training.saved_steps import SavedSteps

__all__ = ["TrainerSteps"]

_STATE = "trainer"
_ZERO = {"is_world_process_zero": True, "is_local_process_zero": True}
"""The values that differ by process; the Trainer sets them again."""
_LOADS_MODEL = "_load_from_checkpoint"
"""The method that requires the Trainer's own files of the model: it does nothing in the meantime."""


class TrainerSteps(TrainerCallback):  # type: ignore[misc]
    """Save the steps of a ``Trainer``, whose own ``save_strategy`` is ``"no"``.

    Parameters
    ----------
    directory : path_like
        The directory of the steps, or a URL.
    every : int
        The number of steps from one that is saved to the next.
    background : bool, default False
        As in ``shardvar.torch.save``.
    **rules : Any
        More arguments of ``sv.SavedSteps``, such as ``keep_last=3``.

    Examples
    --------
    ``TrainerSteps("run", every=500, keep_last=3).train(trainer)``
    """

    def __init__(
        self, directory: Path, *, every: int, background: bool = False, **rules: Any
    ) -> None:
        self._states = WithGenerators()
        self.steps = SavedSteps(directory, using=self._states, **rules)
        self._every, self._background = every, background
        self._resumed: int | None = None

    # The Trainer calls these.

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._resumed is not None:
            self.steps.restore(_values(state, kwargs), step=self._resumed)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        loader, at_once = kwargs["train_dataloader"], args.gradient_accumulation_steps
        steps = -(-len(loader) // at_once) if hasattr(loader, "__len__") else state.max_steps
        if args.ignore_data_skip or not state.global_step % steps:
            self._set_generators()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._set_generators()

    def _set_generators(self) -> None:
        found, self._states.found = self._states.found, None
        if self._resumed is not None:
            set_generators(found)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self._every == 0:
            self.steps.save(state.global_step, _values(state, kwargs), background=self._background)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps.wait()

    def train(self, trainer: Trainer) -> Any:
        """Train from the newest whole step on, or from the beginning; every process calls this.

        Parameters
        ----------
        trainer : transformers.Trainer
            With the arguments and the data of the job that has saved.

        Returns
        -------
        Any
            The result of ``trainer.train``.

        Raises
        ------
        UnsupportedError
            If the release of transformers has a ``Trainer`` that loads a model in another way.
        """
        if not hasattr(trainer, _LOADS_MODEL):
            cause = f"The Trainer of transformers {transformers.__version__} has no {_LOADS_MODEL}."
            raise UnsupportedError(cause, "Use transformers 5.23, or save with sv.SavedSteps.")
        trainer.add_callback(self)
        own: dict[str, Any] = {_STATE: None}
        found = self.steps.restore(own, strict=False)
        if found is None:
            return trainer.train()
        self._resumed = found.number
        with temporary_folder() as folder:
            state = TrainerState(**own[_STATE][0])
            state.save_to_json(os.path.join(folder, "trainer_state.json"))
            setattr(trainer, _LOADS_MODEL, lambda *_args, **_kwargs: None)
            try:
                return trainer.train(resume_from_checkpoint=folder)
            finally:
                delattr(trainer, _LOADS_MODEL)


def _values(state: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return what a step has, of the arguments of a callback."""
    values = {key: kwargs[key] for key in ("model", "optimizer", "lr_scheduler")}
    return {**values, _STATE: (asdict(state) | _ZERO,)}
