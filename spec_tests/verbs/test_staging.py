"""Staging: places for values in memory that is kept, and copies into them."""

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import ArgumentError, StillSaving, StorageError
from shardvar.verbs import background
from shardvar.verbs.background import Staging, Turn, start_save

REPORT: Any = "a report"


@given(rounds=st.lists(st.lists(st.integers(0, 300), max_size=6), min_size=1, max_size=4))
def test_places_are_apart_and_aligned(rounds: list[list[int]]) -> None:
    memory = Staging()
    for sizes in rounds:
        places = memory.places(sizes)
        assert [place.nbytes for place in places] == sizes
        for number, place in enumerate(places):
            place[:] = number
            assert place.ctypes.data % 8 == 0 or not place.nbytes
        for number, place in enumerate(places):
            assert (place == number).all()


def test_memory_is_kept_while_it_fits_and_given_back_when_it_is_much_larger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "_PORTION_NBYTES", 10)
    made: list[int] = []

    def new(nbytes: int) -> Any:
        made.append(nbytes)
        return np.empty(nbytes, np.uint8)

    memory = Staging(new)
    for sizes in ([640], [320, 64], [640], [704], [64, 64], [0]):
        memory.places(sizes)
    assert made == [640, 704, 128, 0]
    memory.places([64])
    memory.clear()
    assert memory.nbytes == 0


def test_values_that_take_more_than_the_most_are_refused() -> None:
    memory = Staging()
    assert len(memory.places([64, 64], most=128)) == 2
    with pytest.raises(ArgumentError, match=r"take 192 B in.*staging_nbytes is 128 B") as raised:
        memory.places([64, 1, 64], most=128)
    assert "without background" in raised.value.remedy and memory.nbytes == 128


@given(
    shapes=st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), max_size=5),
    portion=st.integers(1, 200),
)
def test_what_is_copied_equals_the_values(shapes: list[tuple[int, ...]], portion: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(background, "_PORTION_NBYTES", portion)
        values = [np.arange(np.prod(shape), dtype=np.int16).reshape(shape).T for shape in shapes]
        copies = Staging().copy(values)
    assert all(map(np.array_equal, copies, values))


def test_the_next_save_waits_or_is_an_error_while_one_is_under_way() -> None:
    turn, goes_on = Turn(), threading.Event()
    turn.take_next("wait")
    turn.name("run/step-1")
    pending = start_save("run/step-1", lambda: goes_on.wait(60) and REPORT, turn, is_kept=True)
    with pytest.raises(StillSaving, match="run/step-1 is still being saved"):
        turn.take_next("raise")
    threading.Timer(0.05, goes_on.set).start()
    turn.take_next("wait")
    assert pending.done() and pending.result() == REPORT
    turn.give_back()
    turn.take_next("raise")
    turn.give_back()
    with pytest.raises(ArgumentError, match="busy='never'"):
        turn.take_next("never")


@pytest.mark.parametrize("is_joined", [True, False])
def test_the_next_save_raises_the_error_of_the_last_unless_it_was_joined(is_joined: bool) -> None:
    turn = Turn()

    def fail() -> Any:
        raise StorageError("The disk is full.", "Free some space.")

    turn.take_next("wait")
    pending = start_save("run/step-1", fail, turn, is_kept=True)
    if is_joined:
        with pytest.raises(StorageError, match="full"):
            pending.result()
    else:
        with pytest.raises(StorageError, match="full"):
            turn.take_next("wait")
    turn.take_next("raise")  # an error is raised once
    turn.give_back()
