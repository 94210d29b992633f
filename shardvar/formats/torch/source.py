"""The payloads of an open checkpoint of torch, of either kind."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardvar.errors import CorruptCheckpoint, prefix_errors
from shardvar.formats.files import DataFiles, FileSource
from shardvar.formats.protocol import Finding
from shardvar.formats.torch.item_frame import object_item
from shardvar.formats.torch.items import View, literal_in, read_view
from shardvar.formats.torch.tensors import value_of
from shardvar.layout.dtypes import STRING, code
from shardvar.planning.index import EntryTable, Index
from shardvar.wire.crc import CRC32, Checksum


@dataclass(frozen=True, slots=True)
class StorageChecks:
    """Checksums of storages whose parts are tensors, and that cover other bytes as well."""

    parts: frozenset[str] = frozenset()
    """The keys of such tensors."""
    compare: Callable[[Collection[str], bool], Mapping[str, CorruptCheckpoint]] = (
        lambda _keys, _only_read: {}
    )
    """Compares the checksums that no read of some keys does, and returns the keys that they show to
    be damaged; with True, only of storages whose every byte belongs to the keys."""


@dataclass(frozen=True, slots=True, eq=False)
class TorchSource(FileSource):
    """An open checkpoint."""

    index: Index = field()
    """The table of contents; ``start`` of a non-plain entry numbers one of the next two."""
    data: DataFiles = field()
    """The data files, open."""
    views: Mapping[int, View]
    """The tensors."""
    payloads: Mapping[int, bytes]
    """The objects."""
    look: Callable[[], Iterable[Finding]]
    """Finds the oddities of the files."""
    carry: Callable[[Collection[str]], Mapping[str, bytes]]
    """Returns the objects among keys as items of a distributed checkpoint."""
    is_covered: Callable[[str], bool]
    """Returns True for a key whose bytes all have a checksum that is compared."""
    storages: StorageChecks = StorageChecks()
    """The checksums that cover more than a tensor."""

    @property
    def crc(self) -> Checksum:
        """The kind of checksum that guards plain entries."""
        return CRC32

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the payload of one entry, from byte ``start`` of the payload on."""
        file, begin = int(entries.file[row]), int(entries.start[row])
        if entries.plain[row]:
            self.read_span(file, begin + start, buffer)
        elif begin in self.payloads:
            buffer[:] = self.payloads[begin][start : start + len(buffer)]
        else:
            with prefix_errors(f"{self.data.names[file]}: {entries.slices.key(row)!r}"):
                read_view(self.views[begin], self.data, file, start, buffer)

    def findings(self) -> Sequence[Finding]:
        """Return the oddities of the files."""
        return [*self.look()]

    def is_guarded(self, key: str) -> bool:
        """Return True if checksums cover every byte of the key."""
        return self.is_covered(key)

    def storage_errors(
        self, keys: Collection[str], only_read: bool = False
    ) -> Mapping[str, CorruptCheckpoint]:
        """Return the errors of keys whose tensors are parts of damaged storages.

        The checksum of a storage is not compared while parts of it are read: it covers bytes of no
        tensor too. With ``only_read``, compare it where reading all of the keys reads every byte of
        the storage.
        """
        return self.storages.compare(keys, only_read)

    def is_part(self, key: str) -> bool:
        """Return True if a tensor is a part of a storage: reading only it compares no checksum."""
        return key in self.storages.parts

    def objects(self, keys: Collection[str], form: str) -> Mapping[str, bytes]:
        """Return the objects among keys: items of a distributed checkpoint, literals of a file, or
        texts of Orbax."""
        if form == "torch":
            return self.carry(keys)
        literals = _plain(self, keys) if form in ("pt", "orbax") else {}
        if form == "pt":
            return {
                key: literal.encode("utf-8", "surrogatepass") for key, literal in literals.items()
            }
        values = {key: value_of(literal) for key, literal in literals.items()}
        return {
            key: value.encode("utf-8", "surrogatepass")
            for key, value in values.items()
            if type(value) is str
        }


def _plain(source: TorchSource, keys: Collection[str]) -> dict[str, str]:
    """Return the literals of the objects among keys, except for values that are not plain."""
    found = {}
    for entries in source.index.scan():
        for row in np.flatnonzero(entries.slices.codes() == code(STRING)).tolist():
            key, literal = (
                entries.slices.key(row),
                literal_in(source.payloads[int(entries.start[row])]),
            )
            if key in keys and object_item(literal) is not None:
                found[key] = literal
    return found
