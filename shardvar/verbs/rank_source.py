"""A source of one rank of several: its keys have the number of the rank before them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from shardvar.errors import ReadError
from shardvar.formats.protocol import Source
from shardvar.formats.source import WrappedSource
from shardvar.planning.index import TableIndex


@dataclass(frozen=True, slots=True, eq=False)
class RankSource(WrappedSource):
    """A source whose keys have the number of its rank before them."""

    inner: Source = field()
    """The source."""
    prefix: str
    """The number and a slash, such as ``1/``."""
    index: TableIndex = field()
    """The table of contents."""

    def _own(self, key: str) -> str | None:
        """The key in the source; None for a key of another rank."""
        return key.removeprefix(self.prefix) if key.startswith(self.prefix) else None

    def is_guarded(self, key: str) -> bool | None:
        """Return True if the source guards a key, and for keys of other ranks."""
        own = self._own(key)
        return True if own is None else self.inner.is_guarded(own)

    def compare_bytes(self, key: str) -> bool:
        """Let the source compare a key of its rank."""
        own = self._own(key)
        return True if own is None else self.inner.compare_bytes(own)

    def storage_errors(
        self, keys: Collection[str], only_read: bool = False
    ) -> Mapping[str, ReadError]:
        """Return the errors of storages of this rank."""
        own = {name for key in keys if (name := self._own(key)) is not None}
        found = self.inner.storage_errors(own, only_read)
        return {self.prefix + key: error for key, error in found.items()}

    def is_part(self, key: str) -> bool:
        """Return True if a tensor of this rank is part of a storage."""
        own = self._own(key)
        return own is not None and self.inner.is_part(own)

    def encodings(self) -> Mapping[str, str]:
        """Return the encodings of this rank."""
        return {self.prefix + key: each for key, each in self.inner.encodings().items()}

    def objects(self, keys: Collection[str], form: str) -> Mapping[str, bytes] | None:
        """Return the objects of this rank."""
        own = [name for key in keys if (name := self._own(key)) is not None]
        found = self.inner.objects(own, form)
        return None if found is None else {self.prefix + key: each for key, each in found.items()}
