"""Decoding ahead: what will be asked for next is decoded while the caller works with what it has.

    expected   a b c d e f g h
               ^ ^     ^
               | |     begun: d is the first that is not begun, since a, b and c fill the room that
                       there is
               | b and c are pending
               a was asked for last

An error of what was begun is kept, and raised when it is asked for.

Where the bytes come from a bucket (``is_batched``), as many bands as there is room for are begun
together, once none is pending: their ranges of files are read in joined requests.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardvar.forks import new_lock

Band = tuple[int, int, int]
"""The number of an entry, and the range of its rows that is decoded at once."""

_MOST_NBYTES = 1 << 26
"""Bytes that are pending, unless one band is larger."""
_MOST_BANDS = 64
"""Bands that are pending, however small they are."""
_MOST_BATCHED = 1 << 12
"""The same where they are begun together."""


def start_each(start: Callable[[Band], Any], bands: Sequence[Band]) -> list[Any]:
    """Return ``start`` of each band, or its error: another key's, raised when that is asked for."""
    begun: list[Any] = []
    for band in bands:
        try:
            begun.append(start(band))
        except Exception as error:  # noqa: BLE001
            begun.append(error)
    return begun


@dataclass(slots=True, eq=False)
class Ahead:
    """Bands in the order in which they will be asked for; safe to use from several threads."""

    start: Callable[[Sequence[Band]], list[Any]]
    """Begins to decode bands; returns what is pending of each, or its error."""
    is_batched: bool = False
    """True if bands are begun together."""
    _bands: Sequence[tuple[Band, int]] = ()
    _position: dict[Band, int] = field(default_factory=dict)
    _pending: "OrderedDict[int, Any]" = field(default_factory=OrderedDict)
    _begun: int = 0
    _nbytes: int = 0
    _lock: Any = field(default_factory=new_lock)

    def expect(self, bands: Sequence[tuple[Band, int]]) -> None:
        """Set the bands that will be asked for, each with its bytes."""
        with self._lock:
            self._bands, self._begun, self._nbytes = bands, 0, 0
            self._position = {band: position for position, (band, _) in enumerate(bands)}
            self._pending.clear()

    def take(self, band: Band) -> Any:
        """Return what was begun of a band, or begin it, and begin the bands that follow it."""
        with self._lock:
            at = self._position.get(band, -1)
            # Bands before it that were not asked for are given up.
            while self._pending and (first := next(iter(self._pending))) < at:
                self._drop(first)
            if at >= self._begun:
                self._begin(at)
            is_pending = at in self._pending
            found = self._drop(at) if is_pending else None
            if is_pending and not self.is_batched:
                self._begin(self._begun)
        if not is_pending:
            [found] = self.start([band])
        if isinstance(found, Exception):
            raise found
        return found

    def _drop(self, position: int) -> Any:
        self._nbytes -= self._bands[position][1]
        return self._pending.pop(position)

    def _begin(self, first: int) -> None:
        """Begin the bands from one on that there is room for, and the first one if nothing is
        pending."""
        most, at, nbytes = _MOST_BATCHED if self.is_batched else _MOST_BANDS, first, self._nbytes
        while at < len(self._bands) and len(self._pending) + at - first < most:
            nbytes += self._bands[at][1]
            if (self._pending or at > first) and nbytes > _MOST_NBYTES:
                break
            at += 1
        if at > first:
            begun = self.start([band for band, _ in self._bands[first:at]])
            self._pending.update(zip(range(first, at), begun, strict=True))
            self._nbytes += sum(size for _, size in self._bands[first:at])
            self._begun = at
