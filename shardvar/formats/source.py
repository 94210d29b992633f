"""Sources that read through another source, and change some of what it gives.

A wrapper inherits from ``WrappedSource``, which forwards every member of ``Source``, and overrides
only what it changes. So a wrapper around a checkpoint in a bucket has the bucket's ``traits``
without a line about them. ``spec_tests`` holds that the base forwards all members, and lists what
each wrapper overrides and why.
"""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence

from shardvar.errors import ReadError
from shardvar.formats.protocol import Finding, Source
from shardvar.layout.dtypes import Bools, Ints
from shardvar.planning.index import EntryTable, Index
from shardvar.storage.protocol import Storage, Traits
from shardvar.wire.crc import Checksum


class WrappedSource(Source):
    """A source that answers as another one does, in all that a subclass does not override."""

    __slots__ = ()

    @property
    @abstractmethod
    def inner(self) -> Source:
        """The other source."""

    @property
    def index(self) -> Index:
        """The table of contents of the inner source."""
        return self.inner.index

    @property
    def crc(self) -> Checksum | None:
        """The checksum of plain entries of the inner source."""
        return self.inner.crc

    @property
    def traits(self) -> Traits | None:
        """The cost of a request to the inner source."""
        return self.inner.traits

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Read from the payload of an entry of the inner source."""
        self.inner.read_into(entries, row, start, buffer)

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        """Read from a file of the inner source."""
        self.inner.read_span(file, start, buffer)

    def map(self, file: int) -> memoryview:
        """Map a file of the inner source."""
        return self.inner.map(file)

    def close(self) -> None:
        """Close the inner source."""
        self.inner.close()

    def files_read(self, entries: EntryTable) -> Ints:
        """Return the numbers of the files that the inner source reads."""
        return self.inner.files_read(entries)

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        """[rows] Return True for payloads that the inner source is best asked for in order."""
        return self.inner.in_order(entries, rows)

    def expect(self, entries: EntryTable, rows: Ints) -> None:
        """Let the inner source prepare."""
        self.inner.expect(entries, rows)

    def decode(self, entries: EntryTable, row: int) -> memoryview | None:
        """Let the inner source decode."""
        return self.inner.decode(entries, row)

    def findings(self) -> Sequence[Finding]:
        """Return the findings of the inner source."""
        return self.inner.findings()

    def is_guarded(self, key: str) -> bool | None:
        """Return True if the inner source guards a key."""
        return self.inner.is_guarded(key)

    @property
    def bare_index(self) -> str:
        """The file of the inner source that no checksum covers."""
        return self.inner.bare_index

    def compare_bytes(self, key: str) -> bool:
        """Let the inner source compare."""
        return self.inner.compare_bytes(key)

    def storage_errors(
        self, keys: Collection[str], only_read: bool = False
    ) -> Mapping[str, ReadError]:
        """Return the errors of storages of the inner source."""
        return self.inner.storage_errors(keys, only_read)

    def is_part(self, key: str) -> bool:
        """Return True if a tensor is part of a storage of the inner source."""
        return self.inner.is_part(key)

    def encodings(self) -> Mapping[str, str]:
        """Return the encodings of the inner source."""
        return self.inner.encodings()

    def dequantized(self) -> Source:
        """Return the inner source with numbers in place of encoded bytes."""
        return self.inner.dequantized()

    def objects(self, keys: Collection[str], form: str) -> Mapping[str, bytes] | None:
        """Return the objects of the inner source."""
        return self.inner.objects(keys, form)

    @property
    def places(self) -> Sequence[tuple[Storage, str]]:
        """[files] the places of the inner source's files."""
        return self.inner.places
