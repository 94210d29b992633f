"""The transfer ledger: the bytes that crossed from one device to another, counted as they are
copied.

A ledger is open from ``track_transfers()`` until the end of its ``with`` statement. It counts the
moves of the thread that opened it, nested ledgers included, and the moves of threads that have not
opened one. Rows are totals by operation, source and target, so a long program takes no more memory
than a short one.

An operation is what the user called: the outermost ``operation_scope`` gives its name to all moves
beneath it.

Example: a worker looks up 100 rows of 16 float32 on two servers, 60 on one and 40 on the other. The
ledger gets two rows: ("sparse_read", ps:0, worker:0) of 60 * 16 * 4 = 3,840 bytes and one of 2,560,
each with one message.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import RLock

from shardvar.forks import new_lock
from shardvar.reference.devices.device import Device

_Route = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Transfer:
    """The bytes that one operation moved from one device to another."""

    operation: str
    """The operation that the user called."""
    source: str
    """The full name of the device that the bytes left."""
    target: str
    """The full name of the device that they reached."""
    nbytes: int
    """The bytes that crossed."""
    messages: int
    """The number of moves that carried them."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The totals of several transfers."""

    nbytes: int
    """The bytes that crossed between devices."""
    messages: int
    """The number of moves that carried them."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ledger:
    """The moves that were counted while it was open. It may be read at any time, also while threads
    still move.

    >>> with track_transfers() as ledger:
    ...     with operation_scope("assign"):
    ...         record_transfer(Device("worker:0"), Device("ps:1"), 80)
    >>> ledger.operations
    {'assign': Traffic(nbytes=80, messages=1)}
    """

    _nbytes: Counter[_Route] = field(init=False, repr=False, default_factory=Counter)
    _messages: Counter[_Route] = field(init=False, repr=False, default_factory=Counter)
    _lock: RLock = field(init=False, repr=False, default_factory=new_lock)

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """One row for each operation, source and target, in the order of their first moves."""
        with self._lock:
            return tuple(
                Transfer(*route, nbytes, self._messages[route])
                for route, nbytes in self._nbytes.items()
            )

    @property
    def operations(self) -> dict[str, Traffic]:
        """The totals of each operation."""
        return {row.operation: self.total(row.operation) for row in self.transfers}

    @property
    def nbytes(self) -> int:
        """All bytes that crossed."""
        return self.total().nbytes

    @property
    def messages(self) -> int:
        """All moves that crossed."""
        return self.total().messages

    def total(self, operation: str | None = None) -> Traffic:
        """Return the totals of one operation, or of all; zeros where nothing moved."""
        rows = [row for row in self.transfers if operation in (None, row.operation)]
        return Traffic(sum(row.nbytes for row in rows), sum(row.messages for row in rows))

    def __repr__(self) -> str:
        total = self.total()
        return f"<Ledger of {total.nbytes:,} bytes in {total.messages:,} messages>"

    def _repr_html_(self) -> str:
        """The totals and a row for each route, for notebooks."""
        # Imported on use, so that programs outside notebooks do not pay for the drawings.
        from shardvar.pictures.drawings import ledger_html

        total, rows = self.total(), self.transfers
        short = {name: Device(name).short_name for row in rows for name in (row.source, row.target)}
        routes = [
            (row.operation, short[row.source], short[row.target], row.nbytes, row.messages)
            for row in rows
        ]
        return ledger_html(total.nbytes, total.messages, routes)

    def add(self, route: _Route, nbytes: int, messages: int) -> None:
        """Count moves along a route: operation, source, target."""
        with self._lock:
            self._nbytes[route] += nbytes
            self._messages[route] += messages


_open: list[Ledger] = []
_open_lock = new_lock()
_own: ContextVar[tuple[Ledger, ...]] = ContextVar("ledgers", default=())
_operation: ContextVar[str | None] = ContextVar("operation", default=None)


@contextmanager
def track_transfers() -> Iterator[Ledger]:
    """Open a ledger of the moves between devices until the end of the ``with`` statement.

    Law: a nested ledger's totals are a part of the outer one's.

    Yields
    ------
    Ledger
        Counts bytes and messages while it is open: ``nbytes``, ``messages``, ``operations`` and
        ``transfers``.
    """
    # A thread with open ledgers counts in all of these (`_own`). A thread without any counts in the
    # ledgers of all threads (`_open`): a pool that moves on behalf of the opener is counted, and
    # two tests in two threads stay apart.
    ledger = Ledger()
    token = _own.set((*_own.get(), ledger))
    with _open_lock:
        _open.append(ledger)
    try:
        yield ledger
    finally:
        with _open_lock:
            _open.remove(ledger)
        _own.reset(token)


@contextmanager
def operation_scope(name: str) -> Iterator[None]:
    """Attribute the moves inside to this operation, unless an enclosing scope has named them."""
    # A strategy's reduction opens "reduce", and the reads inside it open "read_value": the outer
    # name stays.
    token = _operation.set(_operation.get() or name)
    try:
        yield
    finally:
        _operation.reset(token)


def record_transfer(source: Device, target: Device, nbytes: int, messages: int = 1) -> None:
    """Count a move. Where source and target are one device nothing crosses, and nothing is counted.

    Only ``devices.moves`` calls this, right after it has copied the bytes.
    """
    if source is target:
        return
    with _open_lock:
        ledgers = _own.get() or tuple(_open)
    for ledger in ledgers:
        ledger.add((_operation.get() or "move", source.name, target.name), nbytes, messages)
