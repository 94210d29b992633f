"""Several open checkpoints behind the interface of one.

Files and entries of all are numbered one source after the other: with 2 and 3 files, file 4 of the
join is file 2 of the second source. An entry that is not plain has no place in a file. Its start is
the number of its *origin*, the entry among all sources' entries that it came from, whichever keys
and places a caller gave it since.

An entry may be plain in its source and not here: if its checksum is of another kind than ``crc``,
which the engine compares. It is compared here.

``RankSource`` is one rank of several: its keys have the number of the rank before them.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from shardvar.engine.pieces import VerifiedRows
from shardvar.errors import CheckpointError, ReadError, UnsupportedError
from shardvar.formats.protocol import Finding, Source, WrappedSource
from shardvar.layout.dtypes import Bools, Ints
from shardvar.pictures.words import named
from shardvar.planning.index import EntryTable, TableIndex, concatenate_entries, take_tensors
from shardvar.records import entity, field, replace
from shardvar.storage.protocol import Storage, Traits
from shardvar.wire.crc import Checksum


@entity
class JoinedSource(Source):
    stored: Sequence[VerifiedRows]
    """The sources, in order, each with the entries that its index gives."""
    first_file: Ints
    """[n + 1] the number of the first file of each, among the files of all."""
    first_entry: Ints
    """[n + 1] the number of the first entry of each, among the entries of all."""
    places: Sequence[tuple[Storage, str]] = field()
    index: TableIndex = field()
    crc: Checksum | None = field()
    """The checksum that guards plain entries."""
    unopened: Mapping[str, ReadError] = field(default_factory=dict)
    """The faults of further files that cannot be opened."""

    @property
    def sources(self) -> list[Source]:
        return [each.source for each in self.stored]

    @property
    def traits(self) -> Traits | None:
        return next((each.traits for each in self.sources if each.traits is not None), None)

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        source, number = self._source_of(file)
        source.read_span(number, start, buffer)

    def map(self, file: int) -> memoryview:
        source, number = self._source_of(file)
        return source.map(number)

    def close(self) -> None:
        for source in self.sources:
            source.close()

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        if entries.plain[row]:
            file, begin = entries.place(row)
            self.read_span(file, begin + start, buffer)
            return
        stored, origin = self._origin(entries, row)
        if stored.entries.plain[origin]:
            held = stored.held(origin)
            if held is not None:
                buffer[:] = held[start : start + len(buffer)]
                return
            stored.verify(origin)
        stored.source.read_into(stored.entries, origin, start, buffer)

    def files_read(self, entries: EntryTable) -> Ints:
        plain = np.flatnonzero(entries.plain)
        found = [np.unique(entries.file[plain[entries.slices.nbytes[plain] > 0]])]
        every = np.arange(len(entries))
        for first, (stored, _, origins) in zip(
            self.first_file, self._by_source(entries, every), strict=False
        ):
            found.append(first + stored.source.files_read(stored.entries.take(origins)))
        return np.unique(np.concatenate(found))

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        found = np.zeros(len(rows), np.bool)
        for stored, at, origins in self._by_source(entries, rows):
            found[at] = stored.source.in_order(stored.entries, origins)
        return found

    def expect(self, entries: EntryTable, rows: Ints) -> None:
        for stored, _, origins in self._by_source(entries, rows):
            stored.expect(origins)

    def decode(self, entries: EntryTable, row: int) -> memoryview | None:
        stored, origin = self._origin(entries, row)
        is_plain = stored.entries.plain[origin]
        return None if is_plain else stored.source.decode(stored.entries, origin)

    def findings(self) -> Sequence[Finding]:
        return [finding for source in self.sources for finding in source.findings()]

    def file_faults(self) -> Mapping[str, ReadError]:
        found = [self.unopened, *(source.file_faults() for source in self.sources)]
        return {name: fault for faults in found for name, fault in faults.items()}

    def is_guarded(self, key: str) -> bool | None:
        answers = {source.is_guarded(key) for source in self.sources}
        return False if False in answers else None if None in answers else True

    def compare_bytes(self, key: str) -> bool:
        return all(source.compare_bytes(key) for source in self.sources)

    def storage_errors(
        self, keys: Collection[str], only_read: bool = False
    ) -> Mapping[str, ReadError]:
        return {
            key: error
            for source in self.sources
            for key, error in source.storage_errors(keys, only_read).items()
        }

    def is_part(self, key: str) -> bool:
        return any(source.is_part(key) for source in self.sources)

    def encodings(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for source in self.sources:
            found |= source.encodings()
        return found

    def objects(self, keys: Collection[str], form: str) -> Mapping[str, bytes] | None:
        found = [source.objects(keys, form) for source in self.sources]
        if all(each is None for each in found):
            return None
        return {key: value for each in found for key, value in (each or {}).items()}

    def _source_of(self, file: int) -> tuple[Source, int]:
        number = int(np.searchsorted(self.first_file, file, side="right")) - 1
        return self.stored[number].source, file - int(self.first_file[number])

    def _origin(self, entries: EntryTable, row: int) -> tuple[VerifiedRows, int]:
        """The source of an entry that is not plain, and its row there."""
        place = int(entries.start[row])
        number = int(np.searchsorted(self.first_entry, place, side="right")) - 1
        return self.stored[number], place - int(self.first_entry[number])

    def _by_source(
        self, entries: EntryTable, rows: Ints
    ) -> Iterator[tuple[VerifiedRows, Ints, Ints]]:
        """Each source, the positions in ``rows`` of its entries that are not plain, and their rows."""
        places = np.where(entries.plain[rows], -1, entries.start[rows])
        for number, stored in enumerate(self.stored):
            first, last = self.first_entry[number : number + 2].tolist()
            at = np.flatnonzero((first <= places) & (places < last))
            yield stored, at, places[at] - first


def join_sources(directories: Sequence[Storage], sources: Sequence[Source]) -> JoinedSource:
    """Sources as one, with the entries of none: a caller has these."""
    stored = [
        VerifiedRows(source, concatenate_entries(list(source.index.scan()))) for source in sources
    ]
    files = [[*source.index.files] for source in sources]
    places = [
        (storage, name) for storage, names in zip(directories, files, strict=True) for name in names
    ]
    no_entries = stored[0].entries.take(np.zeros(0, np.int64))
    return JoinedSource(
        stored,
        np.cumsum([0, *map(len, files)]),
        np.cumsum([0, *(len(each.entries) for each in stored)]),
        places,
        TableIndex(no_entries, [os.path.join(storage.path, name) for storage, name in places]),
        next((source.crc for source in sources if source.crc is not None), None),
    )


def join_tables(
    directories: Sequence[Storage], sources: Sequence[Source], keys: Sequence[Collection[str]]
) -> JoinedSource:
    """Sources as one, with the entries and the faults of some keys of each."""
    joined = join_sources(directories, sources)
    parts, faults = list[EntryTable](), dict[str, CheckpointError]()
    for number, (stored, some) in enumerate(zip(joined.stored, keys, strict=True)):
        table = stored.entries
        # A checksum of another kind is compared by the joined source.
        plain = table.plain & (stored.source.crc in (joined.crc, None))
        origin = joined.first_entry[number] + np.arange(len(table))
        start, file = np.where(plain, table.start, origin), table.file + joined.first_file[number]
        parts.append(take_tensors(replace(table, file=file, start=start, plain=plain), some))
        faults |= {key: each for key, each in stored.source.index.faults.items() if key in some}
    # Runs of one size are kept, where all have them.
    steps = {None if part.runs is None else part.runs.run_nbytes for part in parts}
    all_of = [source.index.metadata for source in sources]
    common = {
        name: text
        for name, text in all_of[0].user.items()
        if all(each.user.get(name) == text for each in all_of)
    }
    # Of other keys than the joined ones: it is only known that a source carries some.
    digests = next((each.digests for each in all_of if each.has_digests), {})
    metadata = replace(
        all_of[0],
        user=common,
        digests=digests,
        paths={key: steps for each in all_of for key, steps in each.paths.items()},
        empty={key: kind for each in all_of for key, kind in each.empty.items()},
    )
    entries = concatenate_entries(
        [part if len(steps) == 1 else replace(part, runs=None) for part in parts]
    )
    index = TableIndex(entries, joined.index.files, metadata, faults)
    return replace(joined, index=index)


def shared_keys(readers: Iterable[Iterable[str]], kept: Collection[str]) -> list[str]:
    """Return the keys that several sources have; without one, together they are a union."""
    counts = Counter(key for each in readers for key in each if key in kept)
    return [key for key, number in counts.items() if number > 1]


def unite(
    directories: Sequence[Storage], sources: Sequence[Source], kept: Collection[str] | None = None
) -> JoinedSource:
    """Sources of which no two have a key, as one; ``UnsupportedError`` for others."""
    owners = list[RankSource]()
    for source in sources:
        entries = concatenate_entries(list(source.index.scan()))
        faults = dict(source.index.faults.items())
        index = TableIndex(entries, source.index.files, source.index.metadata, faults)
        owners.append(RankSource(source, "", index, {*entries.slices.tensors.keys, *faults}))
    every = [each.keys for each in owners]
    if shared := shared_keys(every, {*chain(*every)} if kept is None else kept):
        raise UnsupportedError(
            f"Several files of {directories[0].path} have {named(shared)}.",
            "If they are parts of tensors, say along which axis they follow each other: `shardvar "
            "reshard FILE1 FILE2 ... TARGET --concat 'GLOB=AXIS'`.",
        )
    keys = every if kept is None else [{*kept}.intersection(some) for some in every]
    return join_tables(directories, owners, keys)


@entity
class RankSource(WrappedSource):
    """A source whose keys have the number of its rank before them."""

    inner: Source = field()
    prefix: str
    """The number and a slash, such as ``1/``; empty where all sources have other keys."""
    index: TableIndex = field()
    keys: Collection[str] = ()
    """Its keys, if there is no prefix."""

    def _own(self, key: str) -> str | None:
        """The key in the source; None for a key of another one."""
        if not self.prefix:
            return key if key in self.keys else None
        return key.removeprefix(self.prefix) if key.startswith(self.prefix) else None

    def is_guarded(self, key: str) -> bool | None:
        own = self._own(key)
        return True if own is None else self.inner.is_guarded(own)

    def compare_bytes(self, key: str) -> bool:
        own = self._own(key)
        return True if own is None else self.inner.compare_bytes(own)

    def storage_errors(
        self, keys: Collection[str], only_read: bool = False
    ) -> Mapping[str, ReadError]:
        own = {name for key in keys if (name := self._own(key)) is not None}
        found = self.inner.storage_errors(own, only_read)
        return {self.prefix + key: error for key, error in found.items()}

    def is_part(self, key: str) -> bool:
        own = self._own(key)
        return own is not None and self.inner.is_part(own)

    def encodings(self) -> Mapping[str, str]:
        return {self.prefix + key: each for key, each in self.inner.encodings().items()}

    def objects(self, keys: Collection[str], form: str) -> Mapping[str, bytes] | None:
        own = [name for key in keys if (name := self._own(key)) is not None]
        found = self.inner.objects(own, form)
        return None if found is None else {self.prefix + key: each for key, each in found.items()}
