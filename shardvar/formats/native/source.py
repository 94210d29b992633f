"""An open native checkpoint: its table of contents, and the payloads.

Contents. To find a key, few blocks of the index are read. If the entries of a key continue over
several blocks they are joined: each table from ``scan`` has all entries of its keys. A few decoded
blocks are kept, because a reader of one key soon reads its neighbour.

Payloads. Between reading the index and opening the data files, a writer may commit a new checkpoint
and remove the old files. So the files are opened at once, and if one is missing the index is read
again. A checkpoint of more files than are held open (``DataFiles``) can still be replaced while it
is read; the error then tells.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    MissingFile,
    UnsupportedError,
    prefix_errors,
    replaced_error,
)
from shardvar.formats.files import ATTEMPTS, DataFiles, FileSource, KeptValues, is_replaced
from shardvar.formats.native.index import (
    Entries,
    Overview,
    decode_entries,
    encode_text,
    select_entries,
)
from shardvar.formats.native.names import has_neighbours, leftovers, native_index_name, owner_of
from shardvar.formats.native.references import Needs, find_needs
from shardvar.formats.protocol import Finding
from shardvar.pictures.words import named
from shardvar.planning.index import (
    EntryTable,
    Metadata,
    ScannedFaults,
    concatenate_entries,
    find_faults,
    find_shared,
    unknown_key,
    without_holes,
)
from shardvar.records import entity, field
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.block_file import BlockFile, open_block_file
from shardvar.wire.crc import CRC32C
from shardvar.wire.damage import invalid, past_limit

_KEPT_BLOCKS = 16
"""Decoded blocks that are kept: as in an index of some 40,000 entries, about 16 MiB."""


@entity
class NativeIndex:
    """The index of an open checkpoint; safe to use from several threads."""

    name: str
    """The index file's path, for messages."""
    blocks: BlockFile
    overview: Overview
    files: Sequence[str]
    data: DataFiles | None
    """The data files; None if none is looked at."""
    _kept: KeptValues[int, Entries] = field(
        init=False, default_factory=partial(KeptValues, _KEPT_BLOCKS)
    )
    _broken: dict[str, CheckpointError] = field(init=False, default_factory=dict)
    """The broken tensors of all blocks that were decoded so far."""
    _faults: list[dict[str, CheckpointError]] = field(init=False, default_factory=list)
    """All faults, as the only item, once they have been computed."""

    @property
    def metadata(self) -> Metadata:
        return self.overview.metadata

    @property
    def faults(self) -> ScannedFaults:
        return ScannedFaults(self._fault_of, self.all_faults)

    def find(self, key: str) -> EntryTable:
        table = self.find_or_none(key)
        if table is None:
            # The keys of the block where this key would be are the nearest ones, and the error
            # proposes one of them.
            near = max(0, self.blocks.numbers(_stored(key) or b"").stop - 1)
            keys = self._entries(near).rows if len(self.blocks) else {}
            raise unknown_key(key, keys)
        return table

    def find_or_none(self, key: str) -> EntryTable | None:
        """Return the entries of one key, or None; raise the key's error if it is broken."""
        stored = _stored(key)
        tables = []
        for number in self.blocks.numbers(stored) if stored is not None else ():
            entries = self._entries(number)
            if key in entries.broken:
                raise entries.broken[key]
            table = entries.find(key)
            if table is not None:
                tables.append(table)
        return concatenate_entries(tables) if tables else None

    def scan(self) -> Iterator[EntryTable]:
        """Yield all entries in the order of the keys; a key's entries are in one table.

        For blocks [a b] [b] [b c] the tables are [a], [b b b] and [c]: the entries of the last key
        of a block are held back while the next block continues that key.
        """
        held: list[EntryTable] = []  # entries of one key, which the next block continues
        for number in range(len(self.blocks)):
            entries = self._entries(number)
            table, count = entries.table, len(entries.table.slices.tensors)
            goes_on = (
                number + 1 < len(self.blocks)
                and self.blocks.first_keys[number + 1] == entries.last_key
            )
            # Unless this whole block is the held key and the next one continues it, the held
            # entries end here.
            if held and not (goes_on and count == 1):
                held.append(table)
                table, held = concatenate_entries(held), []
                count = len(table.slices.tensors)
            if goes_on and count:
                # The first entry of the last key.
                cut = int(np.searchsorted(table.slices.tensor, count - 1))
                held.append(select_entries(table, count - 1, count, cut, len(table)))
                table = select_entries(table, 0, count - 1, 0, cut)
            if len(table):
                yield table
        if held:
            yield concatenate_entries(held)

    def _fault_of(self, key: str) -> CheckpointError | None:
        try:
            table = self.find_or_none(key)
        except CheckpointError as error:
            return error
        return None if table is None else self.faults_in(table).get(key)

    def all_faults(self) -> dict[str, CheckpointError]:
        if not self._faults:
            found: dict[str, CheckpointError] = {}
            tables = list(self.scan())
            for table in tables:
                found |= self.faults_in(table)
            self._faults.append(self._shared(tables) | found | self._broken)
        return self._faults[0]

    def _shared(self, tables: Sequence[EntryTable]) -> dict[str, CheckpointError]:
        if not tables:
            return {}
        entries = concatenate_entries(tables)
        faults: dict[str, CheckpointError] = {}
        for row in np.flatnonzero(find_shared(entries, self.overview.file_nbytes)).tolist():
            key = entries.slices.key(row)
            what = (
                f"{self.name}: {key!r}: Its bytes at offset {entries.start[row]} also belong to "
                "other slices, and the payloads of the file are many times its size"
            )
            faults.setdefault(key, past_limit(what, "MAX_PAYLOAD_EXPANSION"))
        return faults

    def faults_in(self, table: EntryTable) -> dict[str, CheckpointError]:
        """Return the keys of a table that break a law, or whose bytes are not all there."""
        faults = without_holes(find_faults(table.slices), self.metadata)
        return (self.data.lost(table) if self.data else {}) | faults

    def _entries(self, number: int) -> Entries:
        return self._kept.get(number, partial(self._decode, number))

    def _decode(self, number: int) -> Entries:
        first_keys = self.blocks.first_keys
        with prefix_errors(self.name):
            block = self.blocks.block(number)
            with prefix_errors(f"index block {number} at offset {self.blocks.start[number]}"):
                entries = decode_entries(block, int(self.blocks.nbytes[number]), self.overview)
                # The table promises the first key of each block; keys of this block beyond the next
                # one's would never be found.
                is_last = number + 1 == len(first_keys)
                following = entries.last_key if is_last else first_keys[number + 1]
                if entries.first_key != first_keys[number] or entries.last_key > following:
                    raise invalid("Its keys are not the keys in the table.")
        # Once for each decoding: a block may have very many of them.
        self._broken.update(entries.broken)
        return entries


def _stored(key: str) -> bytes | None:
    try:
        return encode_text(key)
    except ArgumentError:
        return None


@entity
class NativeSource(FileSource):
    storage: Storage
    prefix: str
    file: ReadableFile
    """The index file, open."""
    index: NativeIndex = field()
    data: DataFiles = field()

    crc = CRC32C
    bare_index = ""

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        if not buffer.nbytes:
            return
        try:
            self.read_span(int(entries.file[row]), int(entries.start[row]) + start, buffer)
        except CheckpointError as error:
            raise error.at(repr(entries.slices.key(row))) from error

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        if buffer.nbytes:
            with self._explained():
                self.data.open(file).read_into(start, buffer)

    def map(self, file: int) -> memoryview:
        with self._explained():
            return self.data.map(file)

    def findings(self) -> Sequence[Finding]:
        """Return data files that are missing, and files outside the index."""
        faults = [(name, self.data.fault(number)) for number, name in enumerate(self.data.names)]
        findings = [Finding(name, fault.cause, True) for name, fault in faults if fault is not None]
        there = self.storage.names()
        others = leftovers(there, self.prefix, self.index.files)
        needs = Needs({})
        if any(map(owner_of, others)) and has_neighbours(there, self.prefix):
            needs = find_needs(self.storage, self.prefix, of_saves=False)
        about = "The index does not name this file"
        for name in others:
            users = needs.users(name)
            cause = f"{about}, which is needed by {named(users)}." if users else f"{about}."
            findings.append(Finding(name, cause, False))
        return findings

    def close(self) -> None:
        self.data.close()
        self.file.close()

    def hold_no_files(self) -> None:
        self.data.hold_none()
        self.file.close()

    def is_replaced(self) -> bool:
        return is_replaced(self.storage, native_index_name(self.prefix), self.file)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Add to the error about a missing file that the checkpoint was replaced, if it was."""
        try:
            yield
        except MissingFile as error:
            if not self.is_replaced():
                raise
            cause = f"{error.cause} The checkpoint was replaced while it was being read."
            raise MissingFile(cause, "Open it again.") from error


def open_native(storage: Storage, prefix: str) -> NativeSource:
    """Open a checkpoint; its index is read again if its files were replaced since."""
    for _ in range(ATTEMPTS):
        source = _read_index(storage, prefix)
        # A missing file is a fault of the checkpoint if its index is still in place, and a race
        # with a writer if not.
        if source.data.hold() or not source.is_replaced():
            return source
        source.close()
    raise replaced_error(source.file.name)


def read_native_index(storage: Storage, name: str) -> NativeIndex:
    """Return an index by the name of its file, without a look at data files."""
    file = storage.open(name)
    content = file.read(0, file.size)  # in one request
    file.close()
    return decode_native_index(file.name, content)


def decode_native_index(name: str, content: bytes, prefix: str = "") -> NativeIndex:
    with prefix_errors(name):
        blocks = open_block_file(lambda start, n: content[start : start + n], len(content))
        overview = Overview.decode(blocks.metadata)
    return NativeIndex(name, blocks, overview, overview.names(prefix), None)


def _read_index(storage: Storage, prefix: str) -> NativeSource:
    file = storage.open(native_index_name(prefix))
    try:
        with prefix_errors(file.name):
            blocks = open_block_file(file.read, file.size)
            overview = Overview.decode(blocks.metadata)
    except CheckpointError:
        file.close()
        raise
    except UnsupportedError as error:  # which ``prefix_errors`` does not change
        file.close()
        raise UnsupportedError(f"{file.name}: {error.cause}", error.remedy) from error

    def about(name: str) -> str:
        owner = owner_of(name)
        return f"It is a file of {owner!r}, to which this checkpoint refers." * (owner != prefix)

    names = overview.names(prefix)
    files = DataFiles(storage, names, written=overview.file_nbytes, about=about)
    index = NativeIndex(file.name, blocks, overview, names, files)
    return NativeSource(storage, prefix, file, index, files)
