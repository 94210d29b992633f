"""Attempts: what passes is waited for, within bounds, and all requests slow down together.

Time is simulated: a clock that only pauses and requests move.
"""

import contextlib
import logging
import re
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.storage import requests
from shardvar.storage.concurrency import Threads, retries
from shardvar.storage.requests import Fault, FaultKind, Pace
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket

STALL_SECONDS = 20.0


class Failure(Exception):
    def __init__(self, fault: Fault | None) -> None:
        self.fault = fault


@dataclass
class World:
    """A server, and the time."""

    now: float = 0.0
    begun: list[float] = field(default_factory=list)
    """The times at which requests were made."""

    def pace(self, **options: Any) -> Pace:
        return Pace(clock=lambda: self.now, sleep=self.sleep, spread=lambda: 1.0, **options)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    def request(self, fate: Callable[[float], Fault | None]) -> Callable[[int], str]:
        def ask(_number: int) -> str:
            self.begun.append(self.now)
            fault = fate(self.now)
            if fault is None:
                return "done"
            self.now += STALL_SECONDS if fault.kind == "stalled" else 0.01
            raise Failure(fault)

        return ask


def fault_of(error: Exception) -> Fault | None:
    assert isinstance(error, Failure)
    return error.fault


@pytest.mark.parametrize("kind", ["refused", "stalled", "broken"])
def test_a_fault_that_passes_is_waited_for(kind: FaultKind) -> None:
    """For a minute, and half of that for a broken connection."""
    world, seconds = World(), 25.0 if kind == "broken" else 60.0
    pace = world.pace()
    assert pace.ask(world.request(lambda _: None), fault_of) == "done"
    begin = world.now
    answer = pace.ask(
        world.request(lambda now: Fault(kind) if now < begin + seconds else None), fault_of
    )
    assert answer == "done"
    assert world.now <= begin + seconds + 8 + STALL_SECONDS * (kind == "stalled")
    assert len(world.begun) <= 20


@pytest.mark.parametrize(
    ("kind", "seconds"), [("refused", 120), ("stalled", 120), ("broken", 30), ("odd", 0)]
)
def test_a_fault_that_stays_is_raised(kind: FaultKind, seconds: float) -> None:
    """Not before its time, nor long after it; a second request is then made once."""
    world = World()
    pace = world.pace()
    pace.ask(world.request(lambda _: None), fault_of)
    for expected in (seconds, 0):
        start, count = world.now, len(world.begun)
        with pytest.raises(Failure):
            pace.ask(world.request(lambda _: Fault(kind)), fault_of)
        assert expected <= world.now - start <= expected + STALL_SECONDS + 8.1
        if kind in ("refused", "stalled") and not expected:
            assert len(world.begun) == count + 1
    # Of a failure long ago nothing is concluded.
    world.now += 3600
    count = len(world.begun)
    with pytest.raises(Failure):
        pace.ask(world.request(lambda _: Fault(kind)), fault_of)
    assert len(world.begun) >= count + 2


@pytest.mark.parametrize("first", ["", None, "refused", "odd", "stalled", "broken"])
def test_an_address_that_answered_in_any_way_is_waited_for(first: Any) -> None:
    """A refusal is an answer too; a connection that breaks or stalls is none."""
    world = World()
    pace = world.pace()
    if first != "":  # which was never asked
        fates = iter([first and Fault(first)])
        with contextlib.suppress(Failure):
            pace.ask(world.request(lambda _: next(fates, Fault("broken"))), fault_of)
        world.now += 3600
    start = world.now
    with pytest.raises(Failure):
        pace.ask(world.request(lambda _: Fault("broken")), fault_of)
    least, most = (30, 39) if first in (None, "refused", "odd") else (5, 10)
    assert least <= world.now - start < most


def test_an_error_that_does_not_pass_is_raised_at_once() -> None:
    """Nor is the service asked how long to wait."""
    world, asked = World(), list[float]()

    def fail(_number: int) -> None:
        world.begun.append(world.now)
        raise Failure(None)

    def asked_pause() -> float:
        asked.append(world.now)
        return 7.0

    with pytest.raises(Failure):
        world.pace().ask(fail, fault_of, asked_pause)
    assert (world.begun, world.now, asked) == ([0.0], 0.0, [])


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["refused", "stalled", "broken", "odd", None]),
            st.sampled_from([0.0, 0.5, 3.0, 30.0]),
        ),
        max_size=30,
    )
)
def test_no_request_is_made_while_a_server_asks_to_be_left_alone(
    fates: list[tuple[FaultKind | None, float]],
) -> None:
    """Of any requests one after the other: none begins before the time that an answer gave, pauses
    stay within their bounds, and after enough answers the pace is what it was."""
    world, until = World(), 0.0
    pace, rest = world.pace(), list(fates)
    while rest:

        def request(_number: int) -> str:
            nonlocal until
            assert world.now >= until
            kind, seconds = rest.pop(0) if rest else (None, 0.0)
            if kind is None:
                return "done"
            until = max(until, world.now + seconds) if kind == "refused" else until
            raise Failure(Fault(kind, seconds if kind == "refused" else 0.0))

        start = world.now
        with contextlib.suppress(Failure):
            pace.ask(request, fault_of)
        assert world.now - start <= 8.1 * (1 + len(fates)) + 30 * len(fates)
        assert 0 <= pace.pause <= requests._LONGEST_PAUSE and pace.most >= 1
    for _ in range(2 * requests._MOST):
        pace.ask(lambda _: "done", fault_of)
    assert (pace.pause, pace.most) == (0.0, requests._MOST)


def test_all_requests_of_a_process_slow_down_and_recover() -> None:
    """Sixteen are under way when one is refused; then no more than half of them, and after the
    answers to these, more."""
    ticks = iter(range(10**9))
    pace = Pace(sleep=lambda _: None, clock=lambda: next(ticks) * 1e-3)
    barrier, lock = threading.Barrier(16), threading.Lock()
    under_way, most, phase = 0, 0, 0

    def request(number: int) -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way if phase else 0)
        try:
            if number == 0:
                barrier.wait(60)
                raise Failure(Fault("refused"))
        finally:
            with lock:
                under_way -= 1

    with ThreadPoolExecutor(16) as threads:
        first = [threads.submit(pace.ask, request, fault_of) for _ in range(16)]
        for each in first:
            each.result()
        assert pace.most >= 8 + 1
        phase = 1
        pace.most = 3
        pace._slowed = float("inf")  # no recovery meanwhile
        for each in [threads.submit(pace.ask, lambda _: request(1), fault_of) for _ in range(60)]:
            each.result()
    assert 1 <= most <= 3


def test_an_interrupt_ends_a_pause() -> None:
    """Of a request in a thread whose block is left: it is not made again."""
    made = threading.Event()
    pace = Pace(patience=600)

    def request(_number: int) -> None:
        made.set()
        raise Failure(Fault("refused", 300.0))

    with pytest.raises(KeyboardInterrupt), Threads(1) as threads:
        future = threads.submit(pace.ask, request, fault_of)
        made.wait(60)
        raise KeyboardInterrupt
    assert isinstance(future.exception(), CancelledError)


@pytest.mark.parametrize("kind", ["refused", "stalled", "broken"])
def test_each_repeated_request_is_counted_and_a_line_of_the_log(
    kind: FaultKind, caplog: pytest.LogCaptureFixture
) -> None:
    """The line has the request, the reason and the pause, which the clock agrees with."""
    world, before = World(), [*retries]
    pace = world.pace()
    caplog.set_level(logging.INFO, "shardvar.storage")
    pace.ask(world.request(lambda _: None), fault_of)
    assert [*retries] == before and not caplog.records
    world.begun.clear()
    begin = world.now
    pace.ask(
        world.request(lambda now: Fault(kind) if now < begin + 9 else None),
        fault_of,
        what="put s3://b/k",
    )
    lines = [each.getMessage() for each in caplog.records if each.name == "shardvar.storage"]
    assert len(lines) == retries[0] - before[0] == len(world.begun) - 1 > 0
    assert all(
        re.fullmatch(rf"put s3://b/k: {kind} .*attempt \d+ after a pause of .* s", x) for x in lines
    )
    spent = (STALL_SECONDS if kind == "stalled" else 0.01) * len(lines)
    assert retries[1] - before[1] == pytest.approx(world.now - begin - spent)


def test_the_report_of_a_save_has_its_repeated_requests() -> None:
    bucket, failed = MemoryBucket(), list[str]()

    def once(what: str) -> None:
        def request(_: int) -> None:
            if what not in failed:
                failed.append(what)
                raise Failure(Fault("broken"))

        Pace(sleep=lambda _: None).ask(request, fault_of)

    with in_bucket(bucket):
        assert sv.save("s3://b/run/a", {"a": np.arange(9)}).num_retries == 0
        bucket.gate = once
        report = sv.save("s3://b/run/b", {"a": np.arange(9)})
    assert report.num_retries == len(failed) > 0 and report.retry_seconds > 0
    about = report.to_json()
    assert (about["num_retries"], about["retry_seconds"]) == (len(failed), report.retry_seconds)
