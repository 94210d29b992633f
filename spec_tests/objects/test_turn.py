"""One save or restore of a checkpoint at a time: what would wait for itself gets an error
instead."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import LockHeld, StillSaving
from shardvar.planning.policies import AllInOnePolicy

Again = Callable[[], Any]


class Policy:
    """A policy that calls the user's code while a save is under way, and keeps the error of
    that."""

    description = "calls back"

    def __init__(self, again: Again) -> None:
        self.again = again
        self.error: BaseException | None = None

    def assign(self, slices: Any, capabilities: Any) -> Any:
        try:
            self.again()
        except BaseException as error:  # noqa: BLE001 - compared by the test
            self.error = error
        return AllInOnePolicy().assign(slices, capabilities)


class Calling(sv.Stateful):
    """An object that calls the user's code when its state is taken or restored."""

    def __init__(self, again: Again | None = None) -> None:
        self.again = again

    def state(self) -> Mapping[str, Any]:
        if self.again is not None:
            self.again()
        return {"number": np.int64(1)}

    def restore_state(self, values: Mapping[str, Any]) -> None:
        if self.again is not None:
            self.again()


def in_time(work: Callable[[], Any]) -> None:
    """Do the work in a thread, and fail where it hangs."""
    caught: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            caught.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it waits for itself"
    if caught:
        raise caught[0]


def verbs(
    checkpoint: sv.Checkpoint, manager: sv.CheckpointManager, place: Path
) -> dict[str, Again]:
    return {
        "save": lambda: checkpoint.save(place / "inner"),
        "save in the background": lambda: checkpoint.save(place / "inner", background=True),
        "write": lambda: checkpoint.write(place / "inner"),
        "read": lambda: checkpoint.read(place / "first"),
        "restore": lambda: checkpoint.restore(place / "first"),
        "manager": manager.save,
    }


VERBS = ["save", "save in the background", "write", "read", "restore", "manager"]


@pytest.mark.sample(4)
@pytest.mark.parametrize("inner", VERBS)
@pytest.mark.parametrize("outer", ["save", "save in the background", "restore"])
def test_a_state_that_saves_or_restores_what_is_under_way_fails_it(
    tmp_path: Path, inner: str, outer: str
) -> None:
    calling = Calling()
    checkpoint = sv.Checkpoint(w=sv.Variable([1.0]), calling=calling)
    checkpoint.write(tmp_path / "first")
    manager = sv.CheckpointManager(checkpoint, tmp_path / "managed", 2)
    calling.again = verbs(checkpoint, manager, tmp_path)[inner]
    path = tmp_path / "outer"
    outers = verbs(checkpoint, manager, tmp_path) | {
        "save": lambda: checkpoint.save(path),
        "save in the background": lambda: checkpoint.save(path, background=True),
    }
    what = "first is being saved or restored" if outer == "restore" else "outer-1 is being saved"
    with pytest.raises(LockHeld, match=what):
        in_time(outers[outer])
    assert not list(tmp_path.glob("outer*"))
    calling.again = None
    checkpoint.restore(tmp_path / "first").expect_partial().assert_nontrivial_match()
    assert checkpoint.save(path).path == str(tmp_path / "outer-1")


def test_a_background_save_that_joins_itself_gets_an_error(tmp_path: Path) -> None:
    handles: list[Any] = []
    begun = threading.Event()

    def join() -> None:
        assert begun.wait(20)
        handles[0].join()

    policy = Policy(join)
    checkpoint = sv.Checkpoint(w=sv.Variable([1.0]))
    handles.append(checkpoint.save(tmp_path / "outer", policy=policy, background=True))
    begun.set()
    in_time(lambda: handles[0].join(20))
    assert isinstance(policy.error, StillSaving)
    assert "outer-1 is being written by this thread" in str(policy.error)
