"""Retention: which of the saved steps stay.

A step stays if one of the rules keeps it:

    last    it is one of the newest
    every   its number is a multiple
    best    its value is one of the best

The rules do not take from each other: however bad the newest step is, it stays, since a job resumes
from it. A step without a value, or with NaN, is never one of the best.
"""

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardvar.errors import ArgumentError, ArgumentTypeError

MODES = "min", "max"
"""Is a small value good, or a large one?"""


@dataclass(frozen=True, slots=True)
class StepRules:
    """The rules by which steps stay."""

    last: int | None = None
    """The number of the newest steps that stay; None for all."""
    every: int | None = None
    """The steps whose numbers are multiples of it stay; None for no such rule."""
    best: int = 0
    """The number of the steps with the best values that stay."""
    mode: str = "min"
    """``'min'`` if a small value is good, ``'max'`` if a large one is."""

    def __post_init__(self) -> None:
        for name, least in (("last", 1), ("every", 1), ("best", 0)):
            value: Any = getattr(self, name)
            if value is None and name != "best":
                continue
            try:
                number = operator.index(value)
            except TypeError:
                number = -1
            if isinstance(value, bool) or number < least:
                none = "" if name == "best" else ", or None"
                cause = f"keep_{name}={value!r} is not a number of steps."
                raise ArgumentError(cause, f"Give an integer >= {least}{none}.")
            object.__setattr__(self, name, number)
        if self.mode not in MODES:
            raise ArgumentError(f"mode={self.mode!r} is unknown.", "Give 'min' or 'max'.")


def best_steps(values: Mapping[int, float | None], rules: StepRules, count: int) -> list[int]:
    """Return the numbers of the steps with the best values, the best first; of equal values, the
    earlier step.

    >>> best_steps({1: 0.5, 2: 0.25, 3: None, 4: 0.25}, StepRules(), 2)
    [2, 4]
    """
    sign = -1.0 if rules.mode == "max" else 1.0
    known = [
        (sign * value, number)
        for number, value in values.items()
        if value is not None and not math.isnan(value)
    ]
    return [number for _, number in sorted(known)[:count]]


def plan_removal(values: Mapping[int, float | None], rules: StepRules) -> list[int]:
    """Return the numbers of the whole steps that no rule keeps, the oldest first.

    >>> plan_removal({10: 0.1, 20: 0.4, 30: 0.3, 40: 0.2}, StepRules(last=1, every=20, best=1))
    [30]
    """
    numbers = sorted(values)
    if rules.last is None:
        return []
    kept = {*numbers[-rules.last :], *best_steps(values, rules, rules.best)}
    if rules.every is not None:
        kept.update(number for number in numbers if number % rules.every == 0)
    return [number for number in numbers if number not in kept]


def read_value(value: Any) -> float | None:
    """Return the value of a step as a number of Python; ``ArgumentTypeError`` for anything else."""
    if value is None:
        return None
    try:
        if isinstance(value, str | bytes | bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        cause = f"value={value!r} is not a number."
        raise ArgumentTypeError(cause, "Give one number, such as the loss, or None.") from None
