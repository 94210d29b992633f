"""The random generators of a process, of Python, NumPy, PyTorch and its accelerator, in a training state.

Each process has its own, under its number. A process that was not there when a step was saved goes on with
its own.
"""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from shardvar.torch.training_states import gather_over_group, load_state, processes, save_state
from shardvar.verbs.load import open_checkpoint
from shardvar.verbs.locate import Path

_KEY = "rng"


class WithGenerators:
    """Functions for ``SavedSteps``: states with the generators of each process."""

    def __init__(self) -> None:
        self.found: Mapping[str, Any] | None = None
        """The generators that were loaded last; None if this process had none."""

    def save(self, path: Path, state: Mapping[str, Any], **options: Any) -> Any:
        own = {_KEY: {str(processes()[0]): generators()}}
        return save_state(path, {**state, **own}, **options)

    def load(self, path: Path, state: dict[str, Any], **options: Any) -> Any:
        with open_checkpoint(path) as reader:
            ranks = {key.split(".")[1] for key in reader if key.startswith(f"{_KEY}.")}
        whole = {**state, _KEY: {rank: generators() for rank in sorted(ranks)}}
        report = load_state(path, whole, **options)
        self.found = whole.pop(_KEY).get(str(processes()[0]))
        state |= whole
        return report

    processes = staticmethod(processes)
    gather = staticmethod(gather_over_group)


def generators() -> dict[str, Any]:
    """Return the states of the generators of this process."""
    found = {"python": random.getstate(), "torch": torch.get_rng_state()}
    found["numpy"] = np.random.get_state()  # noqa: NPY002 - the one that programs have
    if torch.accelerator.is_available():
        found["device"] = _of_device().get_rng_state()
    return found


def set_generators(found: Mapping[str, Any] | None) -> None:
    if found is None:
        return
    random.setstate(found["python"])
    np.random.set_state(found["numpy"])  # noqa: NPY002
    torch.set_rng_state(found["torch"])
    if "device" in found and torch.accelerator.is_available():
        _of_device().set_rng_state(found["device"])


def _of_device() -> Any:
    return torch.get_device_module(torch.accelerator.current_accelerator())
