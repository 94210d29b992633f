"""Bytes that small reads of a server have brought along, and that the next ones take.

    read --SpanAhead--> ReadAhead --take--> the next read, without a request

What was brought and not yet taken is counted for all files of a folder together, so that the reader
can bound it (``remote.AHEAD_NBYTES``). What was taken is held all the same: a file that is sniffed,
and then read, is brought once.
"""

from dataclasses import dataclass, field

_MOST_SPANS = 32
"""Spans that are held, so that they take at most 8 MiB."""


@dataclass(slots=True)
class SpanAhead:
    """A range of a file that is held in memory."""

    key: str
    version: str
    start: int
    """The first byte, in the file."""
    octets: memoryview
    surplus: int
    """The number of bytes that were not taken yet."""


@dataclass(slots=True)
class ReadAhead:
    """The bytes that are held ahead for all files of a folder together; used under the lock."""

    nbytes: int = 0
    """Bytes that were brought and not taken yet, dropped spans included."""
    spans: list[SpanAhead] = field(default_factory=list)
    """The spans that are held, the one that was brought last at the end."""

    def take(self, key: str, version: str, start: int, nbytes: int) -> memoryview | None:
        """Return bytes that are held, and count them as taken."""
        for span in self.spans:
            first = start - span.start
            if (
                (span.key, span.version) == (key, version)
                and first >= 0
                and first + nbytes <= len(span.octets)
            ):
                # Bytes that are taken twice count twice: so a span counts less rather than for ever.
                taken = min(nbytes, span.surplus)
                span.surplus -= taken
                self.nbytes -= taken
                return span.octets[first : first + nbytes]
        return None

    def hold(self, span: SpanAhead) -> None:
        """Hold one more span. What is dropped for it stays counted: it was brought in vain."""
        self.spans.append(span)
        if len(self.spans) > _MOST_SPANS:
            # A span that was taken goes before one that may still be asked for.
            spent = (number for number, each in enumerate(self.spans) if not each.surplus)
            del self.spans[next(spent, 0)]
