"""Decoding ahead: what will be asked for next is decoded while the caller works with what it has.

    expected   a b c d e f g h
               ^ ^     ^
               | |     begun: d is the first that is not begun, since a, b and c fill the room that
                       there is
               | b and c are pending
               a was asked for last

An error of what was begun is kept, and raised when it is asked for.
"""

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


@dataclass(slots=True, eq=False)
class Ahead:
    """Bands in the order in which they will be asked for; safe to use from several threads."""

    start: Callable[[Band], Any]
    """Begins to decode a band."""
    _bands: Sequence[tuple[Band, int]] = ()
    _position: dict[Band, int] = field(default_factory=dict)
    _pending: dict[int, Any] = field(default_factory=dict)
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
            at = self._position.get(band)
            if at is None:
                return self.start(band)
            # Bands before it that were not asked for are given up.
            for skipped in [position for position in self._pending if position < at]:
                self._drop(skipped)
            pending = self._drop(at) if at in self._pending else None
            self._begun = max(self._begun, at + 1)
            found = self.start(band) if pending is None else pending
            self._begin_more()
        if isinstance(found, Exception):
            raise found
        return found

    def _drop(self, position: int) -> Any:
        self._nbytes -= self._bands[position][1]
        return self._pending.pop(position)

    def _begin_more(self) -> None:
        while self._begun < len(self._bands) and len(self._pending) < _MOST_BANDS:
            band, nbytes = self._bands[self._begun]
            if self._pending and self._nbytes + nbytes > _MOST_NBYTES:
                break
            try:
                self._pending[self._begun] = self.start(band)
            # Another key's, raised when that is asked for.
            except Exception as error:  # noqa: BLE001
                self._pending[self._begun] = error
            self._nbytes += nbytes
            self._begun += 1
