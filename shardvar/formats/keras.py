"""Keras, the files of Keras 3 and of Keras 2: arrays in HDF5 (extra ``keras``).

    model.weights.h5      the arrays of a model, by the paths of its layers
    model.keras           a zip archive with one such file, and the model's configuration
    model.weights.json    the index of a set: model_00000.weights.h5, model_00001.weights.h5, …
    model.h5, .hdf5       a whole model of Keras 2, or any other HDF5 file

The endings are believed. Of a file of another name, the first bytes decide. Nothing is written:
Keras restores a file only into the model whose layers it names.

The key of an array is its path in HDF5: ``layers/dense/vars/0``. An array that two files of a set
have is a fault of its key. The index of a set names files for the paths of layers, and not for
arrays: what a missing file would have held is named by the paths of its layers.

The HDF5 file in an archive is a member that is not compressed, whose bytes lie in the archive as
they are. The archive's checksum covers the whole member, not single arrays: it is compared before
the first array is read. The other members, among them the configuration that Keras builds a model
of, are not read.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from threading import RLock

import numpy as np

from shardvar.errors import (
    READ_ERRORS,
    IncompleteCheckpoint,
    UnsupportedError,
    prefix_errors,
)
from shardvar.forks import new_lock
from shardvar.formats.files import (
    DataFiles,
    FileSource,
    check_same,
    find_files,
    first_bytes,
    read_beginning,
    read_blocks,
)
from shardvar.formats.hdf5 import Dataset, Hdf5File, Span
from shardvar.formats.listing import (
    ListedFormat,
    ListedSource,
    ListedTensor,
    Listing,
    ReadSpan,
)
from shardvar.formats.protocol import Finding
from shardvar.formats.sets import is_bare, read_json_index
from shardvar.planning.index import EntryTable, Metadata
from shardvar.records import entity, field, mutable
from shardvar.storage.protocol import Storage
from shardvar.wire.crc import CRC32
from shardvar.wire.damage import (
    SNIFF_NBYTES,
    badly_written,
    corrupt,
    distrusted,
    foreign_file,
    incomplete,
    invalid,
)
from shardvar.wire.zip import (
    LOCAL,
    LOCAL_MAGIC,
    STORED,
    check_supported,
    first_name,
    locate_member,
    read_members,
)

_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_ARCHIVE = ".keras"
_INDEX = ".weights.json"
_MEMBER = "model.weights.h5"
"""The member of an archive that has the arrays."""
_SUFFIXES = (".weights.h5", _ARCHIVE, ".h5", ".hdf5", _INDEX)
_PART = re.compile(r"(.+)_\d{5}\.weights\.h5", re.DOTALL)
_FIRST_MEMBERS = (b"metadata.json", b"config.json", _MEMBER.encode())
"""The members of an archive; one of them comes first."""


@mutable
class _KerasListing(Listing):
    opened: dict[int, Hdf5File] = field(default_factory=dict)
    """The files that h5py has open to decode some of their arrays, by number."""
    spans: dict[int, Span] = field(default_factory=dict)  # the HDF5 bytes of each file
    file_of: dict[str, int] = field(default_factory=dict)  # of each array

    def close(self) -> None:
        for file in self.opened.values():
            file.close()
        self.data.close()


def _read(storage: Storage, name: str) -> _KerasListing:
    layers, stamp = _read_index(storage, name) if name.endswith(_INDEX) else ({}, "")
    # A model without weights has a set without files.
    names = sorted(layers) if name.endswith(_INDEX) else [name]
    listing = _KerasListing(DataFiles(storage, names, named=name, index=name))
    try:
        for number, file in enumerate(names):
            own = layers.get(file)
            try:
                _add_file(listing, number, own)
            except READ_ERRORS as error:
                if own is None:
                    raise
                listing.faults.update((layer, error.at(repr(layer))) for layer in own)
        if stamp:
            check_same(storage, name, stamp)
            listing.data.check_in_place()
    except BaseException:
        listing.close()
        raise
    # The same bytes may have several names, but a small file does not become a thousand large
    # arrays. What h5py decodes is counted where it is found.
    spans = map(listing.spans.get, range(len(names)))
    sizes = np.array([span.nbytes if span else 0 for span in spans], np.int64)
    for shared in listing.shared(sizes, lambda tensor: tensor.decode is None):
        cause = f"{names[shared.file]}: {shared.key!r}: Its bytes also belong to other arrays."
        listing.faults[shared.key] = distrusted(cause)
    return listing


def _add_file(listing: _KerasListing, number: int, layers: Sequence[str] | None) -> None:
    """Add the arrays of one file; ``layers`` are the paths that the index of a set names it for."""
    file = listing.data.open(number)
    with prefix_errors(file.name):
        is_archive = file.name.endswith(_ARCHIVE) or first_bytes(file, 4) == LOCAL_MAGIC
        span = listing.spans[number] = _find_span(listing.data, number, is_archive)
        opened = listing.opened[number] = Hdf5File(partial(listing.data.open, number), span)
        contents = opened.list()
    if opened.nbytes > span.nbytes:
        listing.data.judge(number, file.size - span.nbytes + opened.nbytes, "its first block says")
    if all(dataset.start is not None for dataset in contents.datasets):
        listing.opened.pop(number).close()
    listing.metadata = Metadata(user={**listing.metadata.user, **contents.attributes})
    for key, fault in contents.faults.items():
        listing.faults[key] = fault.at(file.name)
    place = listing.data.names[number]
    listing.findings += [Finding(place, note, False) for note in contents.notes]
    for each in contents.datasets:
        if each.key in listing.file_of:
            other = listing.data.names[listing.file_of[each.key]]
            cause = f"{file.name}: {each.key!r} is in {other!r} too."
            listing.faults[each.key] = invalid(cause)
        listing.file_of[each.key] = number
        decode = None if each.start is not None else partial(_decode, opened, each, file.name)
        where = (number, each.start or 0, decode, decode is not None)
        listing.tensors.append(ListedTensor(each.key, each.dtype, each.shape, *where))
    if layers is None:
        return
    paths = {each.key.rpartition("/")[0] for each in contents.datasets}
    for layer in sorted(set(layers) - paths):
        cause = f"{place}: {layer!r}: The index of the set names arrays here that it lacks."
        listing.faults[layer] = incomplete(cause)
    for path in sorted(paths - set(layers)):
        listing.findings.append(
            Finding(place, f"The index of the set does not name it for {path!r}.", True)
        )


def _decode(
    opened: Hdf5File,
    dataset: Dataset,
    name: str,
    _read: ReadSpan,
    _tensor: ListedTensor,
    start: int,
    buffer: memoryview,
) -> None:
    with prefix_errors(f"{name}: {dataset.key!r}"):
        opened.read_into(dataset, start, buffer)


def _find_span(data: DataFiles, number: int, is_archive: bool) -> Span:
    """Return the HDF5 bytes of a file: the member of an archive, or all of it."""
    file = data.open(number)
    span, first = Span(0, file.size), first_bytes(file)
    if is_archive:
        if not first.startswith(LOCAL_MAGIC):
            why = "it does not begin as a zip archive does"
            raise foreign_file("an archive of Keras", first, file.size, why)
        directory = read_members(file.read, file.size)
        members, stop, fault, _ = directory
        if fault is not None:
            data.note(number, fault.at(file.name))
        own = [each for each in members if each.name == _MEMBER]
        if not own and fault is not None:
            raise directory.lost().at(repr(_MEMBER))
        if not own:
            cause = f"The archive has no member {_MEMBER!r}, which holds the arrays."
            raise IncompleteCheckpoint(cause, "Save the model again, with its weights.")
        if len(own) > 1:
            raise invalid(
                f"The archive has {len(own)} members {_MEMBER!r}, and readers choose different ones."
            )
        with prefix_errors(repr(_MEMBER)):
            start = locate_member(file.read, own[0], stop)
            check_supported(own[0])
        if own[0].method != STORED:
            raise UnsupportedError(
                f"{_MEMBER!r} is compressed.", "Unpack the archive and pack it again: `zip -0`."
            )
        span = Span(start, own[0].nbytes, own[0].crc)
        first = file.read(span.start, min(SNIFF_NBYTES, span.nbytes))
    # HDF5 allows other bytes in front, a multiple of 512; Keras writes none, and a file without the
    # magic is foreign.
    if not first.startswith(_HDF5_MAGIC):
        if is_archive:
            raise badly_written(f"{_MEMBER!r} is not an HDF5 file: it begins otherwise.")
        raise foreign_file("an HDF5 file", first, span.nbytes, "it begins otherwise")
    return span


def _read_index(storage: Storage, name: str) -> tuple[Mapping[str, Sequence[str]], str]:
    with closing(storage.open(name)) as file, prefix_errors(file.name):
        weight_map = read_json_index(file.read, file.size).get("weight_map")
        if type(weight_map) is not dict:
            raise invalid("The index lacks a weight_map from paths of layers to names of files.")
        layers: dict[str, list[str]] = {}
        for layer, files in weight_map.items():
            files = [files] if isinstance(files, str) else files
            if type(files) is not list or not files or not set(map(type, files)) <= {str}:
                raise invalid(f"The weight_map has no names of files for {layer!r}.")
            for each in files:
                if not is_bare(each):
                    raise distrusted(f"The index names {each!r}, which is not a file next to it.")
                layers.setdefault(each, []).append(layer.strip("/"))
        return layers, file.stamp


@entity
class _KerasSource(ListedSource):
    listing: _KerasListing
    _compared: dict[int, bool] = field(init=False, default_factory=dict)
    """True if the member of an archive agrees with its checksum, by the number of the file."""
    _lock: RLock = field(init=False, default_factory=new_lock)

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        self._check(int(entries.file[row]))
        ListedSource.read_into(self, entries, row, start, buffer)

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        self._check(file)
        FileSource.read_span(self, file, start, buffer)

    bare_index = ""  # a checksum covers each member of an archive, and no other file has any

    def close(self) -> None:
        self.listing.close()

    def findings(self) -> Sequence[Finding]:
        """Return the links that were not followed; an archive without arrays is compared."""
        findings = list(self.listing.findings)
        for number, span in self.listing.spans.items():
            if not self.listing.tensors and not self._is_right(number):
                cause = (
                    f"The {span.nbytes} bytes at offset {span.start}, which hold all arrays, "
                    "disagree with their CRC."
                )
                findings.append(Finding(self.data.names[number], cause, True))
        return findings

    def is_guarded(self, key: str) -> bool:
        """Return True if an archive's checksum agrees; Fletcher-32 covers no places and shapes."""
        number = self.listing.file_of.get(key)
        return number is not None and self.listing.spans[number].crc is not None

    def _check(self, number: int) -> None:
        # The checksum covers all arrays at once.
        if not self._is_right(number):
            span, name = self.listing.spans[number], self.data.open(number).name
            raise corrupt(
                f"{name}: The {span.nbytes} bytes at offset {span.start} disagree with their CRC."
            )

    def _is_right(self, number: int) -> bool:
        """Return True unless a checksum covers a file and disagrees; it is compared once."""
        with self._lock:
            if number not in self._compared:
                span, crc = self.listing.spans[number], 0
                if span.crc is not None:
                    file, stop = self.data.open(number), span.start + span.nbytes
                    for octets in read_blocks(file, span.start, stop):
                        crc = CRC32.compute(octets, crc)
                self._compared[number] = span.crc is None or crc == span.crc
            return self._compared[number]


def _find(storage: Storage, name: str) -> list[str]:
    names = storage.names()
    files = find_files(storage, name, _SUFFIXES, _begins)
    if name and name not in names:
        return files
    # A file that is a part of a set means the set.
    parts = {each: _PART.fullmatch(each) for each in files}
    indexes = {each: part[1] + _INDEX if part else "" for each, part in parts.items()}
    return sorted({index if index in names else each for each, index in indexes.items()})


def _begins(storage: Storage, name: str) -> bool:
    first = read_beginning(storage, name, LOCAL.size + max(map(len, _FIRST_MEMBERS)))
    if first.startswith(_HDF5_MAGIC):
        return True
    return first.startswith(LOCAL_MAGIC) and first_name(first) in _FIRST_MEMBERS


FORMAT = ListedFormat("keras", _find, _read, _KerasSource)
