"""A loop that is written for Orbax's manager, with shardvar's in its place."""

import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint import CheckpointManagerOptions as Options
from orbax.checkpoint.args import Composite, StandardRestore, StandardSave

import shardvar as sv
from shardvar.errors import ArgumentError, CheckpointNotFound, UnsupportedError
from shardvar.jax import pytrees
from shardvar.jax.manager import OrbaxCheckpointManager as CheckpointManager

LOSSES = [3.0, 6.0, 1.0, 2.0, 7.0, 4.0, 5.0]


def state(step: int) -> dict[str, Any]:
    return {"w": jnp.arange(4.0) * step, "inner": {"n": jnp.int32(step)}}


def answers(manager: Any) -> list[Any]:
    """Return all that a loop sees of a manager."""
    seen: list[Any] = [manager.latest_step(), [*manager.all_steps()]]
    for step, loss in enumerate(LOSSES):
        args = StandardSave(state(step))
        seen += [manager.should_save(step), manager.save(step, args=args, metrics={"loss": loss})]
    seen += [manager.save(3, args=args), manager.save(9, args=args, force=True)]
    manager.wait_until_finished()
    seen += [[*manager.all_steps()], manager.latest_step(), manager.best_step()]
    template = StandardRestore(jax.tree.map(jnp.zeros_like, state(0)))
    restored = manager.restore(manager.latest_step(), args=template)
    manager.delete(manager.all_steps()[0])
    seen += [[*manager.all_steps()], jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), restored)]
    manager.close()
    return seen


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_to_keep": 2, "keep_period": 3},
        {"max_to_keep": 3, "save_interval_steps": 2, "enable_async_checkpointing": False},
        {"best_fn": lambda metrics: metrics["loss"], "best_mode": "min"},
    ],
)
def test_a_loop_sees_what_orbax_shows(tmp_path: Path, options: dict[str, Any]) -> None:
    theirs = answers(ocp.CheckpointManager(tmp_path / "a", options=Options(**options)))
    assert answers(CheckpointManager(tmp_path / "b", options=Options(**options))) == theirs


def test_the_newest_step_stays_beside_the_best(tmp_path: Path) -> None:
    options = Options(max_to_keep=2, best_fn=lambda metrics: metrics["loss"], best_mode="min")
    with CheckpointManager(tmp_path, options) as manager:
        for step, loss in enumerate(LOSSES):
            manager.save(step, StandardSave(state(step)), metrics={"loss": loss})
    assert (manager.all_steps(), manager.best_step(), manager.latest_step()) == ([2, 3, 6], 2, 6)


def test_a_step_that_is_still_being_saved_is_not_saved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pytrees.save_with_objects

    def slow(*arguments: Any) -> Any:
        time.sleep(0.3)
        return real(*arguments)

    monkeypatch.setattr(pytrees, "save_with_objects", slow)
    with CheckpointManager(tmp_path) as manager:
        assert [manager.save(1, StandardSave(state(1))) for _ in range(2)] == [True, False]


def test_items_of_a_composite_have_names(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    manager.save(
        1, Composite(state=StandardSave(state(1)), data=StandardSave({"at": jnp.int32(7)}))
    )
    like = Composite(state=StandardRestore(state(0)), data=StandardRestore({"at": jnp.int32(0)}))
    found = manager.restore(args=like)
    assert (int(found["data"]["at"]), int(found["state"]["inner"]["n"])) == (7, 1)
    assert sorted(sv.load(tmp_path / "step-1")) == ["data.at", "state.inner.n", "state.w"]


def test_what_means_nothing_here_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="step_prefix='x'"):
        CheckpointManager(tmp_path, Options(step_prefix="x"))
    manager = CheckpointManager(tmp_path)
    with pytest.raises(CheckpointNotFound, match="no step"):
        manager.restore(args=StandardRestore(state(0)))
    with pytest.raises(ArgumentError, match="has no tree"):
        manager.restore(args=StandardRestore())
