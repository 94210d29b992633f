"""An open native checkpoint: its table of contents, and the payloads.

Contents. To find a key, few blocks of the index are read. If the entries of a key continue over
several blocks they are joined: each table from ``scan`` has all entries of its keys. A few decoded
blocks are kept, because a reader of one key soon reads its neighbour.

Payloads. Between reading the index and opening the data files, a writer may commit a new checkpoint
and remove the old files. So the files are opened at once, and if one is missing the index is read
again. A checkpoint of more files than are held open (``DataFiles``) can still be replaced while it
is read; the error then tells.

Data files that several checkpoints of a directory need: found, kept, and removed by the last.

An index may name data files of other checkpoints in its directory. A reference always names the
file that holds the bytes, so no reader follows a chain. No count is kept: the indexes are the only
truth, so that a checkpoint may be copied or renamed by hand.

    save      1. mark ``PREFIX.svneeds-TOKEN``: the files that the new index may name
              2. look again: the base's index and the files must be as they were read
              3. write, and put the index in place; then remove the mark
    removal   1. mark ``PREFIX.svgone-TOKEN``: the files of others that the index names, and the
                 checkpoint's own
              2. take the index away (an overwrite: replace it)
              3. ask all other indexes and marks of running saves, and remove the files that none
                 of them needs; then remove the mark

A save and a removal of its base may run at the same time. The save looks for the base after it has
made its mark, and the removal looks for marks after it has taken the base away. So at least one of
them sees the other: the save fails, or the removal keeps the files.

A mark of a killed save counts until its lock is free, or, in a bucket, which has no locks, until its
checkpoint is saved again or removed. A mark of a killed removal is finished by the next save or
removal in the directory; until then no new file gets a name that is in it. An index or a mark of a
save that cannot be read (cut, changed, empty, of a later version, or a folder of its name) may need
any file, so all stay, and a mark lists them for the next removal.

To add a step, ask what a kill before and after it leaves, and what another process sees then.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial

import numpy as np

from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    MissingFile,
    ServerError,
    StorageError,
    UnsupportedError,
    log_warning,
    prefix_errors,
    replaced_error,
)
from shardvar.formats.files import (
    ATTEMPTS,
    DataFiles,
    FileSource,
    KeptValues,
    is_replaced,
    read_first_bytes,
    write_file,
)
from shardvar.formats.native.index import (
    Entries,
    Overview,
    aside_name,
    decode_entries,
    encode_text,
    find_native,
    has_neighbours,
    leftovers,
    mark_name,
    marks,
    native_index_name,
    owner_of,
    select_entries,
)
from shardvar.formats.protocol import Finding
from shardvar.limits import MAX_BLOCK_NBYTES
from shardvar.pictures.words import named
from shardvar.planning.index import (
    EntryTable,
    Metadata,
    References,
    ScannedFaults,
    concatenate_entries,
    find_faults,
    find_shared,
    unknown_key,
)
from shardvar.records import entity, field, frozen
from shardvar.storage.concurrency import as_answered
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.block_file import BlockFile, open_block_file
from shardvar.wire.crc import CRC32C
from shardvar.wire.damage import invalid, past_limit
from shardvar.wire.strict_json import parse_json


@frozen
class Needs:
    files: Mapping[str, frozenset[str]]
    """The files by the prefix of the checkpoint or save that needs them."""
    unread: Sequence[str] = ()
    """The indexes and marks that cannot be read, and so may need any file."""

    def users(self, name: str) -> list[str]:
        return sorted(prefix for prefix, files in self.files.items() if name in files)


def read_overview(storage: Storage, prefix: str) -> Overview:
    """Return the metadata of the index in place; only its end is read."""
    with closing(storage.open(native_index_name(prefix))) as file, prefix_errors(file.name):
        return Overview.decode(open_block_file(file.read, file.size).metadata)


def names_in_place(storage: Storage, prefix: str) -> list[str]:
    """Return the data files that the index in place names; none without a readable one."""
    try:
        return read_overview(storage, prefix).names(prefix)
    except (CheckpointError, UnsupportedError):
        return []


def names_of_others(storage: Storage, prefix: str) -> list[str]:
    # In most directories there is nothing to refer to, and the index is not read.
    there = storage.names()
    if native_index_name(prefix) not in there or all(
        owner_of(name) in (None, prefix) for name in there
    ):
        return []
    return [name for name in names_in_place(storage, prefix) if owner_of(name) != prefix]


def find_needs(storage: Storage, prefix: str, *, of_saves: bool = True) -> Needs:
    """Return the files that others need at one moment; with ``of_saves``, also for running saves."""
    for _ in range(ATTEMPTS):
        fresh = storage.refreshed()
        before = _state(fresh, prefix, of_saves=of_saves)
        if not before:
            return Needs({})
        try:
            needs = _read_needs(fresh, before)
        except MissingFile:
            continue
        if _state(storage.refreshed(), prefix, of_saves=of_saves) == before:
            return needs
    return Needs({}, [storage.path])


def without_needed(storage: Storage, left: Sequence[str]) -> list[str]:
    """Return leftover files without data files that checkpoints may refer to."""
    if not any(map(owner_of, left)):
        return [*left]
    needs = find_needs(storage, "", of_saves=False)
    return [name for name in left if not (owner_of(name) and (needs.unread or needs.users(name)))]


def check_in_place(storage: Storage, references: References) -> None:
    """Raise ``CheckpointError`` unless the files that are referred to are as they were read."""
    fresh = storage.refreshed()
    status = fresh.status(references.index)
    if status is None or status.stamp != references.stamp:
        raise replaced_error(references.index)
    for name, nbytes in zip(references.files, references.nbytes.tolist(), strict=True):
        status = fresh.status(name)
        if status is None or status.nbytes != nbytes:
            cause = f"{name}, to which the new checkpoint refers, is missing or has another size."
            raise MissingFile(cause, "Save without a base.").in_file(name)


def write_mark(storage: Storage, name: str, files: Iterable[str]) -> None:
    """Make a mark with the names of files; it is stored when this returns."""
    storage.announce([name])
    write_file(storage, name, json.dumps(_guarded(sorted(files))).encode())
    storage.finish(name)
    storage.sync()


def _guarded(files: list[str]) -> list[str]:
    """Return the names in a mark, and their checksum: a changed name may be another file's."""
    return [*files, f"crc32c:{CRC32C.compute(json.dumps(files).encode()):08x}"]


def release(
    storage: Storage,
    prefix: str,
    named_files: Collection[str],
    freed: Iterable[str] = (),
    current: str = "",
) -> tuple[list[str], list[str]]:
    """Return the files, and then the marks, that can be removed once the index is in place.
    ``freed`` are files of others that it named before, ``current`` is the mark of this save."""
    names = storage.names()
    left = leftovers(names, prefix, named_files)
    gone = {
        mark: owner
        for mark, owner in marks(names, "gone")
        if owner == prefix or storage.local_path is None or not _is_running(storage, owner)
    }
    # A dead save may have been the last to need a file.
    dead = [
        mark
        for mark, owner in marks(names, "needs")
        if mark != current and (owner == prefix or not _is_running(storage, owner))
    ]
    listed = {mark: freed_of(storage, mark) for mark in (*gone, *dead)}
    # Candidates: data files that no index may name any more.
    wanted = {name for name in left if owner_of(name) == prefix}
    wanted |= {name for files in (freed, *listed.values()) for name in files}
    wanted = {name for name in wanted.intersection(names) if owner_of(name)} - {*named_files}
    needs = find_needs(storage, prefix) if wanted else Needs({})
    if needs.unread:
        cause = (
            f"{storage.path}: Files of removed checkpoints stay, since other checkpoints that "
            f"cannot be read may need them: {named([*needs.unread])}."
        )
        log_warning(f"{cause} Remove or repair these.")
        with suppress(StorageError):  # so that the next removal in the directory looks again
            write_mark(storage, mark_name(prefix, "gone", "kept"), wanted)
        wanted = set()
    # A mark is done once its own checkpoint names none of its files: the others have theirs.
    done = [
        mark
        for mark, owner in gone.items()
        if not needs.unread
        and (owner == prefix or needs.files.get(owner, frozenset()).isdisjoint(listed[mark]))
    ]
    done += [] if needs.unread else dead
    needed = frozenset[str]().union(*needs.files.values())
    others = [name for name in left if owner_of(name) != prefix and name not in listed]
    others += {aside_name(gone[mark], "removed") for mark in done if mark in gone}.intersection(
        {*names} - {*left}
    )
    return [*sorted(wanted - needed), *others], done


def release_only(storage: Storage, files: Iterable[str]) -> list[str]:
    """Return the data files among some that no checkpoint and no running save needs."""
    there = {*files}.intersection(storage.refreshed().names())
    needs = find_needs(storage, "") if there else Needs({})
    return [] if needs.unread else sorted(name for name in there if not needs.users(name))


def freed_of(storage: Storage, mark: str) -> list[str]:
    """Return the files of a removal's mark; none if it is gone, or was not finished."""
    try:
        return _read_mark(storage, mark)
    except CheckpointError:
        return []


def _present(storage: Storage) -> list[str]:
    """Return all names of a directory: a folder may have taken the place of a file."""
    return [*storage.names(), *storage.folders()]


def _state(storage: Storage, prefix: str, *, of_saves: bool) -> dict[str, str]:
    """Return the stamps of the indexes of others, and of the marks of their saves."""
    names = _present(storage)
    indexes = [native_index_name(each) for each in find_native(names, "") if each != prefix]
    of_others = [mark for mark, owner in marks(names, "needs") if of_saves and owner != prefix]
    statuses = {name: storage.status(name) for name in [*indexes, *of_others]}
    return {name: "" if status is None else status.stamp for name, status in statuses.items()}


_named: dict[tuple[str, str, str], frozenset[str]] = {}
"""The data files that indexes of buckets name, by place, index and stamp: a job that removes a step
after each save reads only the new index. Of local files, reading costs less than being sure."""
_MOST_NAMED = 1000


def _named_files(storage: Storage, name: str, stamp: str) -> frozenset[str]:
    prefix = find_native([name], "")[0]
    known = (storage.path, name, stamp)
    files = _named.get(known)
    if files is None:
        files = frozenset(read_overview(storage, prefix).names(prefix))
        if storage.local_path is None and stamp:
            if len(_named) >= _MOST_NAMED:
                _named.clear()
            _named[known] = files
    return files


def _read_needs(storage: Storage, state: Mapping[str, str]) -> Needs:
    files: dict[str, frozenset[str]] = {}
    unread: list[str] = []
    prefixes = dict(marks(state, "needs"))

    def read(name: str) -> tuple[str, Iterable[str] | None]:
        try:
            if name in prefixes:
                is_held = _is_running(storage, prefixes[name])
                return name, _read_mark(storage, name) if is_held else ()
            return name, _named_files(storage, name, state[name])
        except ServerError:
            raise
        except (CheckpointError, UnsupportedError, StorageError) as error:
            if isinstance(error, MissingFile) and name not in _present(storage.refreshed()):
                raise
            return name, None

    for name, needed in as_answered(read, list(state), storage.traits, lambda _: 0):
        prefix = prefixes.get(name) or find_native([name], "")[0]
        if needed is None:
            unread.append(name)
        else:
            files[prefix] = files.get(prefix, frozenset()).union(needed)
    return Needs(files, sorted(unread))


def _is_running(storage: Storage, prefix: str) -> bool:
    """Return True unless the save that made a mark is known to have ended."""
    if storage.local_path is None:
        return True
    try:
        with storage.lock(prefix):
            return False
    except StorageError:  # also of a lock that cannot be asked
        return True


def _read_mark(storage: Storage, name: str) -> list[str]:
    content = parse_json(read_first_bytes(storage, name, MAX_BLOCK_NBYTES), 1)
    texts = content if isinstance(content, list) else [0]
    files = [each for each in texts if type(each) is str and owner_of(each)]
    if texts not in (files, _guarded(files)):  # the first is a mark of an earlier release
        raise invalid(f"{name} is not a list of data files.")
    return files


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
    """The data files; None if none is looked at: a share, which is a part, has none in place yet."""
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
        is_part = self.data is None or self.metadata.is_part
        lost = self.data.lost(table) if self.data else {}
        return lost | find_faults(table.slices, is_part=is_part)

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
            file, begin = entries.place(row)
            self.read_span(file, begin + start, buffer)
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
        raise error.at(file.name) from error

    def about(name: str) -> str:
        owner = owner_of(name)
        return f"It is a file of {owner!r}, to which this checkpoint refers." * (owner != prefix)

    names = overview.names(prefix)
    files = DataFiles(storage, names, written=overview.file_nbytes, about=about)
    index = NativeIndex(file.name, blocks, overview, names, files)
    return NativeSource(storage, prefix, file, index, files)
