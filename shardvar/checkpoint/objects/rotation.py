"""Which of the saved checkpoints stay when one more is there: the newest, and one every so many hours."""

from dataclasses import dataclass
from typing import Any

from shardvar.checkpoint.objects.state_file import SeriesState
from shardvar.errors import ArgumentError

_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Retention:
    """What a manager keeps."""

    max_to_keep: int | None
    """How many of the newest ones; None for all."""
    every_n_hours: float | None = None
    """Of those that would go, the hours after which one more stays for good; None for none."""

    def __post_init__(self) -> None:
        most: Any = self.max_to_keep
        hours: Any = self.every_n_hours
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most <= 0):
            raise ArgumentError(
                f"max_to_keep={most!r} keeps no checkpoint.", "Give a positive integer, or None for all."
            )
        if hours is not None and (isinstance(hours, bool) or not isinstance(hours, int | float) or not hours >= 0):
            raise ArgumentError(
                f"keep_checkpoint_every_n_hours={hours!r} is no time.", "Give a number of hours, or None."
            )


def plan_rotation(state: SeriesState, newest: str, time: float, keep: Retention) -> tuple[SeriesState, list[str]]:
    """The state after ``newest`` was saved at that time, and the checkpoints that go, oldest first.

    A checkpoint that would go is preserved, outside of the state, where it was saved at least so many hours after the
    one that was preserved last. One that is saved again is the newest again.

    >>> state = SeriesState("b", ("a", "b"), (1.0, 2.0))
    >>> plan_rotation(state, "c", 3.0, Retention(2))
    (SeriesState(newest='c', kept=('b', 'c'), times=(2.0, 3.0), preserved=0.0), ['a'])
    """
    kept = [(name, saved) for name, saved in zip(state.kept, state.times, strict=True) if name != newest]
    kept.append((newest, time))
    preserved, gone = state.preserved, []
    while keep.max_to_keep is not None and len(kept) > keep.max_to_keep:
        name, saved = kept.pop(0)
        if keep.every_n_hours and saved - keep.every_n_hours * _HOUR >= preserved:
            preserved = saved
        else:
            gone.append(name)
    names, times = zip(*kept, strict=True)
    return SeriesState(newest, names, times, preserved), gone
