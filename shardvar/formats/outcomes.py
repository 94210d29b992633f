"""The state of a checkpoint after a write that raised an error, said in one place.

The commit knows the state. The disk that is full does not know what was there before. ``add_state``
adds the state to the remedy of an error, the first time that it is called: where a commit fails, or
where a write ends that has not come to its commit.
"""

from enum import Enum

from shardvar.errors import LockHeld, StorageError


class State(Enum):
    """Sentences about what there is after an error; empty where nothing is known."""

    OLD = "What was there before is as it was."
    NEW = "The new checkpoint is in place, but may not survive a power cut."
    NEITHER = "The old checkpoint is removed, and the new one is not in place."
    ASIDE = (
        "What was there before is next to its place, under a name that ends in .was.tmp: rename it "
        "back, or write again, which does so first."
    )
    REMOVED = "The checkpoint is removed, and files of it are left: remove it again."
    UNKNOWN = ""


def add_state(error: BaseException, state: State) -> None:
    """Say in an error of the storage what there is, unless it says so."""
    if not isinstance(error, StorageError) or isinstance(error, LockHeld):
        return
    if error.state is None:
        error.state = state.value
        error.remedy = f"{error.remedy} {state.value}".strip()
        error.args = error.cause, error.remedy
