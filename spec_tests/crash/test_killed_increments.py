"""Incremental saves, overwrites and removals that are killed at any call, or meet each other: no
checkpoint loses a byte that it needs, and what is left is removed later."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import shardvar as sv
from shardvar.errors import CheckpointError, StorageError
from shardvar.storage.local import LocalStorage
from spec_tests.helpers.incremental_stage import (
    are_equal,
    checkpoints,
    remove_all,
    save_together,
    tensors,
    three,
)
from spec_tests.helpers.system_calls import Killed
from spec_tests.helpers.thoroughness import stride


@contextmanager
def calls_of(directory: Path, meet: Callable[[int], None]) -> Iterator[None]:
    """Call ``meet`` with a number before each call of a storage of the directory."""
    count = [0]

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: LocalStorage, *arguments: Any, **options: Any) -> Any:
            if self.path == str(directory):
                count[0] += 1
                meet(count[0])
            return method(self, *arguments, **options)

        return call

    names = ("open", "names", "status", "create", "rename", "move", "remove", "sync", "lock")
    with mock.patch.multiple(
        LocalStorage, **{name: counted(getattr(LocalStorage, name)) for name in names}
    ):
        yield


_STEP = stride(7)
"""Of the calls at which one meets another, each in ``make crash``, else some."""


EVENTS: dict[str, Callable[[Path], object]] = {
    "save": lambda path: sv.save(path / "d", tensors(0, 2, 5), base=path / "c"),
    "save over the base": lambda path: sv.save(path / "c", tensors(0, 1, 3), base=path / "c"),
    "save together": lambda path: save_together(path / "e", path / "c"),
    "save over the base together": lambda path: save_together(path / "c", path / "c"),
    "overwrite a user": lambda path: sv.save(path / "c", tensors(4, 5)),
    "overwrite an owner": lambda path: sv.save(path / "a", tensors(4, 5)),
    "remove a user": lambda path: sv.remove(path / "c"),
    "remove an owner": lambda path: sv.remove(path / "a"),
    "make whole": lambda path: sv.reshard(path / "c", path / "a", force=True),
}
AFTER: dict[str, dict[str, Any]] = {
    "save": {"d": tensors(0, 2, 5)},
    "save over the base": {"c": tensors(0, 1, 3)},
    "save together": {"e": tensors(0, 2, 5)},
    "save over the base together": {"c": tensors(0, 2, 5)},
    "overwrite a user": {"c": tensors(4, 5)},
    "overwrite an owner": {"a": tensors(4, 5)},
    "remove a user": {"c": None},
    "remove an owner": {"a": None},
    "make whole": {"a": tensors(0, 2, 3)},
}
"""What each event makes of ``three``."""


def outcomes(before: dict[str, Any], *events: str) -> list[dict[str, Any]]:
    """The directories that the events may leave, each of them done or not."""
    found = [before]
    for event in events:
        done = [{**each, **AFTER[event]} for each in found]
        if event == "make whole":
            done += [{**each, "a": each["c"]} for each in found if "c" in each]
        found += [
            {name: value for name, value in each.items() if value is not None} for each in done
        ]
    return found


def assert_one_of(directory: Path, allowed: list[dict[str, Any]]) -> None:
    there = {name: sv.load(directory / name) for name in checkpoints(directory)}
    assert any(
        there.keys() == each.keys() and all(are_equal(there[name], each[name]) for name in each)
        for each in allowed
    ), sorted(there)
    assert all(sv.verify(directory / name).ok for name in there)


PAIRS = [*product(EVENTS, [None]), *[*product(EVENTS, EVENTS)][:: stride(7)]]


@pytest.mark.parametrize(("outer", "inner"), PAIRS)
def test_a_kill_or_another_event_at_any_call_loses_nothing_and_later_removals_leave_nothing(
    outer: str, inner: str | None, tmp_path: Path
) -> None:
    """The other one runs whole there; each of them is done, or says that it is not."""
    model, events = three(tmp_path / "before"), list(EVENTS)
    at = start = 1 + (3 * events.index(outer) + events.index(inner)) % _STEP if inner else 1
    while True:
        place = tmp_path / "run"
        shutil.copytree(tmp_path / "before", place)
        done, met = list[bool](), list[int]()

        def attempt(event: str, place: Path = place, done: list[bool] = done) -> None:
            try:
                EVENTS[event](place)
                done.append(True)
            except (CheckpointError, StorageError):
                done.append(False)

        def meet(number: int, at: int = at, met: list[int] = met) -> None:
            if number == at or (number > at and inner is None):
                met.append(number)
                if inner is None:
                    raise Killed
                attempt(inner)

        with calls_of(place, meet), suppress(Killed):
            attempt(outer)
        orders = [(inner, outer), (outer, inner)] if inner else [(outer,)]
        assert_one_of(place, [each for order in orders for each in outcomes(model, *order)])
        # An attempt that meets itself is given up for both.
        is_itself = outer == inner and "together" in outer
        assert any(done) or is_itself or (met and inner is None)
        remove_all(place, ("a", "b", "c", "d", "e"))
        assert {name for name in os.listdir(place) if not name.endswith(".lock")} == set(), at
        shutil.rmtree(place)
        if not met:
            break
        at += _STEP
    assert at > start
