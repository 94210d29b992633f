"""The stored bytes of members that will be asked for next, read together.

A member that is deflated is a stream, which is read a step at a time. In a bucket each step would
wait for a request. So the members that the engine expects are brought by spans of neighbours, many
at a time, and each is held until it was asked for to its end.

    expected    b  a  c  d           as they will be asked for
    the file    | a | b | c | d |    spans: [a b c] [d]
    asked: b    both spans are read at once; a, c and d are held
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shardvar.errors import CheckpointError
from shardvar.forks import new_lock
from shardvar.formats.files import DataFiles
from shardvar.formats.npz.contents import PlacedMember
from shardvar.storage.concurrency import do_all

_SPAN_NBYTES = 1 << 22
"""Members that lie within so many bytes are read by one request; a larger one is not held."""
_GAP_NBYTES = 4096
"""The bytes between two of them, such as a local header."""
_HELD_NBYTES = 1 << 26
"""The bytes that are held, and under way."""

_Span = list[PlacedMember]
"""Neighbours in the file, in its order."""


@dataclass(slots=True, eq=False)
class ExpectedMembers:
    """Members as they will be asked for; safe to use from several threads."""

    data: DataFiles
    """The archive."""
    _spans: list[_Span] = field(default_factory=list)
    """The spans, by the first of their members that is expected."""
    _span_of: dict[int, int] = field(default_factory=dict)
    """The number of the span of each member, by its first byte."""
    _held: dict[int, memoryview] = field(default_factory=dict)
    """The bytes of members that were read and not yet asked for, by their first byte."""
    _lock: Any = field(default_factory=new_lock)

    def expect(self, places: Sequence[PlacedMember]) -> None:
        """Set the members that will be asked for; nothing on a disk."""
        spans = [] if self.data.traits is None else _spans(places)
        span_of = {each.start: number for number, span in enumerate(spans) for each in span}
        order = list(dict.fromkeys(span_of[each.start] for each in places if each.start in span_of))
        rank = {number: position for position, number in enumerate(order)}
        with self._lock:
            self._held = {}
            self._spans = [spans[number] for number in order]
            self._span_of = {start: rank[number] for start, number in span_of.items()}

    def take(self, place: PlacedMember) -> memoryview | None:
        """Return the stored bytes of a member that is expected, and forget them; else None."""
        with self._lock:
            number = self._span_of.pop(place.start, None)
            if number is None:
                return None
            if place.start not in self._held:
                self._read_from(number)
            return self._held.pop(place.start, None)

    def _read_from(self, number: int) -> None:
        """Read a span and the spans after it, as many as are held at a time."""
        total, chosen = sum(map(len, self._held.values())), list[_Span]()
        for span in self._spans[number:]:
            total += span[-1].start + span[-1].member.stored_nbytes - span[0].start
            if chosen and total > _HELD_NBYTES:
                break
            chosen.append(span)
        file = self.data.open(0)

        def read(span: _Span) -> None:
            start, stop = span[0].start, span[-1].start + span[-1].member.stored_nbytes
            try:
                octets = memoryview(file.read(start, stop - start))
            except CheckpointError:
                return  # each member is read by itself then, and the error is of its key
            for each in span:
                begin = each.start - start
                self._held[each.start] = octets[begin : begin + each.member.stored_nbytes]

        do_all(read, chosen, self.data.traits)


def _spans(places: Sequence[PlacedMember]) -> list[_Span]:
    """Return the members of at most a span, in groups of neighbours."""
    found: list[_Span] = []
    for each in sorted(places, key=lambda place: place.start):
        if each.member.stored_nbytes > _SPAN_NBYTES:
            continue
        stop = found[-1][-1].start + found[-1][-1].member.stored_nbytes if found else 0
        is_near = bool(found) and stop <= each.start <= stop + _GAP_NBYTES
        if is_near and each.start + each.member.stored_nbytes - found[-1][0].start <= _SPAN_NBYTES:
            found[-1].append(each)
        else:
            found.append([each])
    return found
