"""Inflating a deflate stream piece by piece, never more than was asked for, whatever the stream would become."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shardvar.wire.damage import malformed


@dataclass(slots=True)
class Inflater:
    """One raw deflate stream."""

    take: Callable[[], bytes]
    """Gives the next compressed bytes, none at their end."""
    _zlib: Any = field(default_factory=lambda: zlib.decompressobj(-zlib.MAX_WBITS))

    def read(self, most: int) -> bytes:
        """The next bytes, at least one and at most ``most``; none once the stream has ended."""
        while not self._zlib.eof:
            compressed = self._zlib.unconsumed_tail or self.take()
            try:
                piece: bytes = self._zlib.decompress(compressed, most)
            except zlib.error:
                raise malformed("Its compressed bytes cannot be inflated.") from None
            if piece:
                return piece
            if not compressed and not self._zlib.eof:
                raise malformed("Its compressed bytes break off.")
        return b""

    def check_end(self) -> None:
        """Raise unless the stream has given all its bytes, and no compressed byte is left."""
        if self.read(1):
            raise malformed("Its compressed bytes become more than it should have.")
        if self._zlib.unused_data or self.take():
            raise malformed("Other bytes follow its compressed ones.")
