"""Attempts of requests to servers: one that fails in passing is made again, and all requests of the
process slow down together when a server asks for it.

    refused    the server says that there are too many requests (503, 429): nothing is sent for a
               pause that grows, and half as many requests are under way after it
    stalled    no answer in time: again, with half as many under way
    broken     the connection is refused or breaks, or the server fails (500, 502, 504): again
    odd        an answer that cannot be decoded, such as half a listing: once more

Pauses and the number of requests recover as the server answers. A request is made again for
``Pace.patience`` seconds, a broken one for less. Once all requests have failed for so long, each is
made only once, so that cleaning up after an error comes to an end.

Only what may be done twice is given to ``Pace.ask``: reads, whole files, and writes with a
condition.
"""

import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition
from typing import Literal

from shardvar.forks import new_lock
from shardvar.storage.concurrency import Result, check_wanted

FaultKind = Literal["refused", "stalled", "broken", "odd"]

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.2, 8.0
"""Pauses double from one to the other. After a minute of refusals, a pause ends within 8 s."""

_LONGEST_REQUEST = 110.0
"""The longest pause that a server may ask for: less than a request is made again."""

_LEAST_REFUSALS = 5
"""A request is refused so often before it fails, since the others before it take their time."""

_MOST = 1024
"""Requests under way at a time if no server has refused any: as many as there are threads."""

_LOOK_SECONDS = 0.1
"""Between two looks at whether a request that waits is still wanted."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure of a request that may pass."""

    kind: FaultKind
    """The failure, by the words at the top of this module."""
    retry_after: float = 0.0
    """The pause that the server asks for, in seconds; 0 if it names none."""


def pause_of_header(text: str | None) -> float:
    """Return the pause of a header ``Retry-After``, in seconds; 0 if there is none.

    >>> pause_of_header("7"), pause_of_header("Fri, 31 Dec 1999 23:59:59 GMT"), pause_of_header("?")
    (7.0, 0.0, 0.0)
    """
    from email.utils import parsedate_to_datetime  # of no use where no server is asked

    try:
        seconds = float(text or 0)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(str(text)).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    return min(max(seconds, 0.0), _LONGEST_REQUEST) if math.isfinite(seconds) else 0.0


@dataclass(slots=True)
class Pace:
    """The pace of all requests of a process, which the servers' answers set."""

    patience: float = 120.0
    """Seconds from the first attempt of a request to its last."""
    patience_broken: float = 30.0
    """The same for broken connections, which pass soon or never."""
    patience_unknown: float = 5.0
    """The same if no server has ever answered: the address may be wrong."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    spread: Callable[[], float] = random.random
    """Numbers from 0 to 1, which keep processes from coming back at the same moment."""
    most: int = _MOST
    """The requests that may be under way."""
    pause: float = 0.0
    """The seconds of the last pause, less what the answers since then have taken off."""
    _ready: float = -math.inf
    """No request begins before this time."""
    _slowed: float = -math.inf
    """The time of the last change to a slower pace. Requests from before it do not count again."""
    _failing: float = math.inf
    """The time since which all requests have failed."""
    _failed: float = -math.inf
    """The time of the last failure."""
    _has_answered: bool = False
    """True once a server has answered."""
    _busy: set[int] = field(default_factory=set)
    """The threads that have a request under way."""
    _changed: Condition = field(default_factory=lambda: Condition(new_lock()))

    def ask(
        self,
        request: Callable[[int], Result],
        fault_of: Callable[[Exception], Fault | None],
        asked_pause: Callable[[], float] = lambda: 0.0,
    ) -> Result:
        """Return the result of a request, called with the number of the attempts before.

        ``fault_of`` says of an error if it may pass; another error, or the last, is raised. After
        the first of many refusals, ``asked_pause`` returns the pause that the server asks for.
        """
        number, began = 0, self.clock()
        while True:
            self._enter()
            start, fault = self.clock(), None
            try:
                result = request(number)
            except Exception as error:
                fault = fault_of(error)
                if self._slow_down(fault, start) and (pause := asked_pause()):
                    self._ready = max(self._ready, start + pause)
                if fault is None or not self._may_repeat(fault, number, began):
                    raise
            else:
                self._speed_up(start)
                return result
            finally:
                self._leave()
            # A refused request waits with all others, and any other one for itself.
            if fault.kind != "refused":
                self._wait(self.clock() + self._pause_of(number))
            number += 1

    def wait(self) -> None:
        """Wait until the next request may begin; for the parts of an upload, which are one."""
        self._wait(self._ready)

    def _wait(self, until: float) -> None:
        while (pause := until - self.clock()) > 0:
            check_wanted()
            self.sleep(min(pause, _LOOK_SECONDS))

    def _enter(self) -> None:
        """Wait for a place among the requests under way."""
        me = threading.get_ident()
        while True:
            self.wait()
            with self._changed:
                if self.clock() >= self._ready:
                    # By thread: a place that an interrupt has kept from being left is found again.
                    if len(self._busy - {me}) < self.most:
                        self._busy.add(me)
                        return
                    self._changed.wait(_LOOK_SECONDS)
            check_wanted()

    def _leave(self) -> None:
        with self._changed:
            self._busy.discard(threading.get_ident())
            self._changed.notify()

    def _slow_down(self, fault: Fault | None, start: float) -> bool:
        """Take note of a failed attempt that was begun at a time; return True for the first refusal
        since the pace was set."""
        with self._changed:
            now = self.clock()
            if fault is None or fault.kind in ("refused", "odd"):
                self._has_answered = True
            if fault is None:
                return False
            # A failure of an hour ago says nothing about now.
            if start - self._failed > self.patience / 2:
                self._failing = math.inf
            self._failing, self._failed = min(self._failing, start), now
            if fault.kind not in ("refused", "stalled"):
                return False
            if is_first := start >= self._slowed:
                self._slowed = now
                self.most = max(min(self.most, len(self._busy)) // 2, 1)
                if fault.kind == "refused":
                    self.pause = min(max(2 * self.pause, _SHORTEST_PAUSE), _LONGEST_PAUSE)
            if fault.kind == "refused":
                pause = max(self.pause * (0.75 + 0.25 * self.spread()), fault.retry_after)
                self._ready = max(self._ready, self._slowed + pause, now + fault.retry_after)
            return is_first and fault.kind == "refused" and not fault.retry_after

    def _speed_up(self, start: float) -> None:
        """Take note of an answered attempt that was begun at a time."""
        with self._changed:
            self._has_answered, self._failing = True, math.inf
            if start >= self._slowed and self.most < _MOST:
                self.most += 1
                self.pause = self.pause / 2 if self.pause > _SHORTEST_PAUSE else 0.0
                self._changed.notify_all()

    def _may_repeat(self, fault: Fault, number: int, began: float) -> bool:
        if fault.kind == "odd":
            return number == 0
        now, longest = self.clock(), self.patience
        if fault.kind == "broken":
            longest = self.patience_broken if self._has_answered else self.patience_unknown
        if now - self._failing >= longest:
            return False
        is_early = fault.kind == "refused" and number < _LEAST_REFUSALS
        return is_early or now - began < longest

    def _pause_of(self, number: int) -> float:
        """Return the pause after an attempt."""
        longest = min(math.ldexp(_SHORTEST_PAUSE, number), _LONGEST_PAUSE)
        return longest * (0.5 + 0.5 * self.spread())


PACE = Pace()
"""The pace of this process."""
