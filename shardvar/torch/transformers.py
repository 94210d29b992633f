"""The steps of Hugging Face's ``Trainer``: a callback saves them, and trains on from the newest.

save      after a step: the model, the optimizer, the scheduler, the generators of each process, and the
          Trainer's own state, as one value
resume    the Trainer gets its state and the rest where it would read its own files, and skips the batches
          that it has seen
"""

from dataclasses import asdict
from typing import Any
from unittest import mock

from transformers import Trainer, TrainerCallback, TrainerState

from shardvar.torch.generators import WithGenerators, set_generators
from shardvar.verbs.locate import Path
from shardvar.verbs.training.saved_steps import SavedSteps

_STATE = "trainer"
_ZERO = {"is_world_process_zero": True, "is_local_process_zero": True}
"""The values that differ by process; the Trainer sets them again."""


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

    # The Trainer calls these.

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self._every == 0:
            values = {key: kwargs[key] for key in ("model", "optimizer", "lr_scheduler")}
            values[_STATE] = (asdict(state) | _ZERO,)
            self.steps.save(state.global_step, values, background=self._background)

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
        """
        trainer.add_callback(self)
        own: dict[str, Any] = {_STATE: None}
        found = self.steps.restore(own, strict=False)
        if found is None:
            return trainer.train()
        begin, (saved,) = trainer._init_training_state, own[_STATE]

        def init(
            most: int, in_epoch: int, epochs: int, _folder: Any, trial: Any
        ) -> tuple[int, int]:
            begin(most, in_epoch, epochs, None, trial)
            trainer.state = TrainerState(**saved)
            trainer.state.init_training_references(trainer, most, epochs, trial)
            epoch, batches = divmod(trainer.state.global_step, in_epoch)
            batches *= trainer.args.gradient_accumulation_steps
            return epoch, 0 if trainer.args.ignore_data_skip else batches

        def restore(_folder: Any) -> None:
            values = {"model": trainer.model, "optimizer": trainer.optimizer, **own}
            values["lr_scheduler"] = trainer.lr_scheduler
            self.steps.restore(values, step=found.number)

        with (
            mock.patch.object(TrainerState, "load_from_json", lambda _path: TrainerState(**saved)),
            mock.patch.multiple(
                trainer,
                _init_training_state=init,
                _load_from_checkpoint=lambda *_args, **_kwargs: None,
                _load_optimizer_and_scheduler=restore,
                _load_rng_state=lambda _folder: set_generators(self._states.found),
            ),
        ):
            return trainer.train(resume_from_checkpoint=found.path)
