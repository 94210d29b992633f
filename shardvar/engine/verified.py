"""Payloads that are compared whole before the first of their bytes is used, and the order in which
to read them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import RLock

from shardvar.engine.evidence import check_entry
from shardvar.forks import new_lock
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import Bools, Ints
from shardvar.planning.index import EntryTable


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedRows:
    """The payloads of a source that were verified: each once, by the first thread that needs it."""

    source: Source
    """The source."""
    entries: EntryTable
    """Its entries, as they are stored."""
    _rows: set[int] = field(default_factory=set)
    _waits: dict[int, RLock] = field(default_factory=dict)
    _lock: RLock = field(default_factory=new_lock)

    def verify(self, row: int) -> None:
        """Read one payload whole, in bounded blocks, and raise unless it is right; return at once
        if it was read."""
        if row in self._rows:
            return
        with self._lock:
            wait = self._waits.setdefault(row, new_lock())
        # One thread reads it; threads that need the same one wait, and threads that need another
        # one do not.
        with wait:
            if row not in self._rows:
                check_entry(self.source, self.entries, row)
                self._rows.add(row)
        with self._lock:
            self._waits.pop(row, None)


def read_in_order(source: Source, entries: EntryTable, rows: Ints) -> Bools:
    """[rows] Return True for payloads that are best read from their beginning to their end.

    These are the ones that a source decodes, but for sources that say otherwise, since they convert
    what lies in a file as it is.
    """
    answer: Callable[[Ints], Bools] | None = getattr(source, "in_order", None)
    return ~entries.plain[rows] if answer is None else answer(rows)
