"""Rotation: the newest checkpoints of a manager stay, and one every so many hours."""

from dataclasses import dataclass
from typing import Any

from shardvar.errors import ArgumentError
from shardvar.verbs.newest import (
    SeriesState,
)

_HOUR = 3600.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The checkpoints that a manager keeps."""

    max_to_keep: int | None
    """The number of the newest ones to keep; None for all."""
    every_n_hours: float | None = None
    """The hours after which one more of the others is kept for good; None for none."""

    def __post_init__(self) -> None:
        most: Any = self.max_to_keep
        hours: Any = self.every_n_hours
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most <= 0):
            raise ArgumentError(
                f"max_to_keep={most!r} keeps no checkpoint.",
                "Give a positive integer, or None for all.",
            )
        if hours is not None and (
            isinstance(hours, bool) or not isinstance(hours, int | float) or not hours >= 0
        ):
            raise ArgumentError(
                f"Invalid keep_checkpoint_every_n_hours={hours!r}.",
                "Give a number of hours >= 0, or None.",
            )


def plan_rotation(
    state: SeriesState, newest: str, time: float, keep: Retention
) -> tuple[SeriesState, list[str]]:
    """Return the state after ``newest`` was saved at that time, and the checkpoints to remove,
    oldest first.

    A checkpoint that would be removed is preserved, outside of the state, if it was saved at least
    ``every_n_hours`` after the one that was preserved last. A checkpoint that is saved again is the
    newest again.

    >>> state = SeriesState("b", ("a", "b"), (1.0, 2.0))
    >>> plan_rotation(state, "c", 3.0, Retention(2))
    (SeriesState(newest='c', kept=('b', 'c'), times=(2.0, 3.0), preserved=0.0), ['a'])
    """
    kept = [
        (name, saved) for name, saved in zip(state.kept, state.times, strict=True) if name != newest
    ]
    kept.append((newest, time))
    preserved, gone = state.preserved, []
    while keep.max_to_keep is not None and len(kept) > keep.max_to_keep:
        # With every_n_hours=1, the last one preserved at 0 s, and checkpoints of 1800 s and 3600 s
        # that are too many: the first is removed (1800 - 3600 < 0), the second is preserved (3600 -
        # 3600 >= 0), and the next hour starts.
        name, saved = kept.pop(0)
        if keep.every_n_hours and saved - keep.every_n_hours * _HOUR >= preserved:
            preserved = saved
        else:
            gone.append(name)
    names, times = zip(*kept, strict=True)
    return SeriesState(newest, names, times, preserved), gone
