"""Ranges of files, read together: neighbours are one range, and all requests to a remote storage are
under way at once.

wanted     | a | b |   | c |                     | d  ...         |
spans      <--------------->                     <--------------->
requests   <--------------->                     <-----> <-----> <>    each of at most 4 MiB
"""

from dataclasses import dataclass, field

import numpy as np

from shardvar.formats.files import DataFiles
from shardvar.layout.dtypes import Ints
from shardvar.storage.concurrency import do_all

_REQUEST_NBYTES = 1 << 22
"""The bytes that are read at once."""


@dataclass(slots=True)
class _Span:
    """A range of a file that has several."""

    file: int
    start: int
    stop: int
    octets: memoryview = field(default_factory=lambda: memoryview(b""))


def read_ranges(data: DataFiles, file: Ints, start: Ints, nbytes: Ints) -> list[memoryview]:
    """Return ranges of files, in order; nothing is allocated for what a file does not have.

    ``file`` are numbers of ``data``. Memory: the ranges, and the gaps between neighbours.
    """
    spans, span_of = _spans(data, file, start, nbytes)
    remote = []
    for span in spans:
        opened, count = data.open(span.file), span.stop - span.start
        # A disk gives bytes, which the decoder takes without a copy. Of a file that is too short, the
        # error says what is missing.
        if data.traits is None or span.stop > opened.size:
            span.octets = memoryview(opened.read(span.start, count))
        else:
            span.octets = memoryview(bytearray(count))
            remote.append(span)
    requests = [
        (span, at, min(at + _REQUEST_NBYTES, len(span.octets)))
        for span in remote
        for at in range(0, len(span.octets), _REQUEST_NBYTES)
    ]

    def read(request: tuple[_Span, int, int]) -> None:
        span, first, stop = request
        data.open(span.file).read_into(span.start + first, span.octets[first:stop])

    do_all(read, requests, data.traits, lambda request: request[2] - request[1])
    rows = zip(span_of, start.tolist(), nbytes.tolist(), strict=True)
    return [
        spans[number].octets[first - spans[number].start :][:size] for number, first, size in rows
    ]


def _spans(data: DataFiles, file: Ints, start: Ints, nbytes: Ints) -> tuple[list[_Span], list[int]]:
    """Return the spans that have all ranges, and the number of the span of each."""
    traits = data.traits
    gap, waste = (0, 0) if traits is None else (traits.gap_nbytes, traits.waste_nbytes)
    spans: list[_Span] = []
    span_of = [0] * len(file)
    for row in np.lexsort((start, file)).tolist():
        number, first = int(file[row]), int(start[row])
        stop = first + int(nbytes[row])
        last = spans[-1] if spans else None
        between = 0 if last is None else max(first - last.stop, 0)
        if (
            last is not None
            and last.file == number
            and between <= min(gap, waste)
            and max(stop, last.stop) - last.start <= _REQUEST_NBYTES
        ):
            last.stop, waste = max(stop, last.stop), waste - between
        else:
            spans.append(_Span(number, first, stop))
        span_of[row] = len(spans) - 1
    return spans, span_of
