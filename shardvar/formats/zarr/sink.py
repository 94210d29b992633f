"""Writing a folder of arrays: files of chunks, descriptions, and an index. A file has one chunk, in
the folder of its array, or is a data file of a database (``database``).

Names of files follow from the keys, so two checkpoints cannot be in one folder, and files cannot
replace each other in one step. So on a disk the folder is replaced whole (``FolderSink``).
Folders of a bucket, and folders that cannot be exchanged (a mount point, the working directory),
are filled where they are:

    prepare  the new index stands aside, too
    retire   the old index is removed, and then the arrays that it led to; only in a bucket
    move     descriptions and chunks come to their places; without an index, they are not a
             checkpoint
    commit   the index is renamed

A database has data files and nodes of new names, and its manifest leads to them. So where nothing
else changes, the manifest is replaced in one step:

    move     the files of the new names come to their places; the manifest leads to the old ones
    commit   the manifest is renamed
    retire   the old files are removed

While an index stands aside (or is about to be removed), the arrays of the folder belong to an
interrupted writer, and the next one removes them. Without any index they may be another program's,
and nothing is written among them.
"""

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Self

import numpy as np

from shardvar.errors import MissingFile, StorageError, TargetExists, UnsupportedError
from shardvar.formats.files import State, add_state, discard_files, remove_unnamed, write_file
from shardvar.formats.protocol import FileChecksums, FileWriter, Format, NewCheckpoint
from shardvar.formats.sinks import FolderSink, telling_of_removal
from shardvar.formats.zarr.files import (
    DATABASE,
    DATABASE_FILE,
    arrays_of,
    asides_of,
    check_paths,
    folders_above,
    is_interrupted,
)
from shardvar.layout.dtypes import ITEMSIZES, Ints, code
from shardvar.limits import MAX_TREE_NBYTES
from shardvar.planning.slices import Assignment, SliceTable, are_grids, check_holds, grid_steps
from shardvar.records import entity, frozen
from shardvar.storage.concurrency import do_all
from shardvar.storage.exchange import FolderBeside, sync_all
from shardvar.storage.local import LocalStorage
from shardvar.storage.posix import writing
from shardvar.storage.protocol import Storage
from shardvar.wire.crc import CRC32C, Checksum
from shardvar.wire.zarr_metadata import ARRAYS_ATTRIBUTE, COMPLETE, DTYPES_V2, DTYPES_V3, NATIVE

# Descriptions of arrays and groups as they are written, and the names of chunks.
#
# Version 3 has the codecs ``bytes`` and ``crc32c``: 4 bytes after the elements of a chunk guard them,
# and every reader of Zarr compares them. Version 2, which Orbax reads, has no such codec; its chunks
# are the bare elements.

WRITTEN = frozenset(DTYPES_V3) - {"float4_e2m1fn", "int4", "int2"}
"""The dtypes that are written. Readers pack elements below a byte differently."""


def build_document(fields: Mapping[str, Any] | str) -> bytes:
    return json.dumps(fields, ensure_ascii=True).encode()


def build_group(attributes: Mapping[str, Any]) -> bytes:
    return build_document({"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)})


def build_root(
    attributes: Mapping[str, str],
    nodes: Mapping[str, bytes],
    arrays: Sequence[str],
    dtypes: Collection[str],
) -> bytes:
    """Return the description of a group that lists its ``arrays``, by their paths.

    Consolidated metadata of the ``nodes`` below it do. zarr-python parses all of these to open the
    group, and cannot parse a dtype that NumPy lacks. A group with one of these dtypes has an
    attribute instead, so that its other arrays can be opened there.
    """
    group = build_group(attributes)
    whole = (
        b'%s, "consolidated_metadata": {"kind": "inline", "must_understand": false, "metadata": '
        b"{%s}}}"
    )
    repeated = b", ".join(
        build_document(path) + b": " + node for path, node in sorted(nodes.items())
    )
    if {*dtypes} <= NATIVE and len(group) + len(whole) + len(repeated) <= MAX_TREE_NBYTES:
        return whole % (group.removesuffix(b"}"), repeated)
    listing = build_group({**attributes, ARRAYS_ATTRIBUTE: sorted(arrays)})
    return listing if len(listing) <= MAX_TREE_NBYTES else group


def build_array(key: str, dtype: str, shape: Sequence[int], chunk_shape: Sequence[int]) -> bytes:
    # xarray opens only arrays whose axes have names, and takes axes of one name for the same. So the
    # key is part of them.
    is_byte = ITEMSIZES[code(dtype)] == 1
    order = {} if is_byte else {"configuration": {"endian": "little"}}
    # No chunk is absent, but version 3 asks for a fill value.
    fill: Any = False if dtype == "bool" else 0.0 if "float" in dtype else 0
    fill = [0.0, 0.0] if dtype.startswith("complex") else fill
    return build_document(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(shape),
            "data_type": dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": fill,
            "codecs": [{"name": "bytes", **order}, {"name": "crc32c"}],
            "attributes": COMPLETE,
            "dimension_names": [f"{key}.axis{axis}" for axis in range(len(shape))],
        }
    )


def build_array_v2(dtype: str, shape: Sequence[int], chunk_shape: Sequence[int]) -> bytes:
    return build_document(
        {
            "chunks": list(chunk_shape),
            "compressor": None,
            "dimension_separator": ".",
            "dtype": _NAMES_V2[dtype],
            "fill_value": None,
            "filters": None,
            "order": "C",
            "shape": list(shape),
            "zarr_format": 2,
        }
    )


def chunk_name(version: int, place: Sequence[int]) -> str:
    """Return the name of the chunk at a place of the grid, in the folder of its array."""
    if version == 3:
        return "/".join(["c", *map(str, place)])
    return ".".join(map(str, place)) or "0"


_NAMES_V2 = {dtype: name for name, dtype in DTYPES_V2.items() if not name.startswith(">")}
"""The names of version 2, for little-endian elements."""


CHUNK = "chunk"
"""The beginning of the temporary names of chunks."""
_PADDING = bytes(1 << 20)
_DESCRIPTIONS = {"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"}


@frozen
class ChunkWriter(FileWriter):
    """The frame of a chunk: zeros where it reaches out of its array, and its checksum."""

    is_guarded: bool
    steps: Mapping[str, int]
    """The rows of the chunks of each tensor, by key: a worker has other numbers."""

    @classmethod
    def of(cls, slices: SliceTable, *, is_guarded: bool) -> Self:
        """Return the frame of the chunks of slices."""
        steps = grid_steps(slices)
        rows = steps[:, 0] if steps.shape[1] else np.ones(len(steps), np.int64)
        return cls(is_guarded, dict(zip(slices.tensors.keys, rows.tolist(), strict=True)))

    @property
    def crc(self) -> Checksum | None:
        return CRC32C if self.is_guarded else None

    def frame(
        self, slices: SliceTable, start: Ints, checksums: FileChecksums
    ) -> Iterator[tuple[int, bytes]]:
        if not len(slices):
            return
        # 13 rows in chunks of 3 end with a chunk of 1 row, after which 2 rows of zeros are stored.
        has_rows = slices.shape.shape[1] > 0
        rows = slices.shape[:, 0] if has_rows else np.ones(len(slices), np.int64)
        step = np.array([self.steps[slices.key(row)] for row in range(len(slices))], np.int64)
        framed = (slices.nbytes > 0) & (self.is_guarded | (rows < step))
        for row in np.flatnonzero(framed).tolist():
            nbytes, crc = int(slices.nbytes[row]), int(checksums.payload[row])
            place, end = int(start[row]), nbytes // int(rows[row]) * int(step[row])
            while nbytes < end:
                zeros = _PADDING[: end - nbytes]
                yield place + nbytes, zeros
                crc = CRC32C.compute(zeros, crc) if self.is_guarded else crc
                nbytes += len(zeros)
            if self.is_guarded:
                yield place + end, crc.to_bytes(4, "little")


@entity(kw_only=True)
class ArraysSink(FolderSink):
    index: str
    content: bytes
    """The bytes of the index."""
    sides: frozenset[str]
    """Names of files that an older index may have had next to it."""
    marker: str = ""
    """The name of the file that marks a complete checkpoint, after the index."""
    of_finished: Callable[[], Mapping[str, bytes]] = dict
    """Returns the descriptions that are made of finished files, by path."""
    manifest: str = ""
    """The description that leads to all files, which have names that no older checkpoint has; empty if
    names follow from keys."""
    stem: str = CHUNK

    def commit(self, checksums: Sequence[FileChecksums]) -> None:
        storage = self.new.storage
        # A bucket has no lock, and other writers would give their files the same names. One of the
        # other format of arrays may have come since this write began.
        storage.claim()
        check_folder(storage.refreshed(), self.index)
        if storage.local_path is not None:
            beside = FolderBeside(storage.local_path)
            # A folder with a checkpoint can be exchanged, or ``check_folder`` had refused it.
            if self.index in storage.names() or beside.is_new(self.own):
                self.exchange(beside)
                return
        self._fill()

    def own(self, folder: str) -> set[str]:
        return own_files(LocalStorage(folder), self.index, self.sides)

    def conclude(self) -> Mapping[str, bytes]:
        return self.of_finished()

    def ends(self) -> Mapping[str, bytes]:
        marker = {self.marker: self._mark()} if self.marker else {}
        return {self.index: self.content, **marker}

    def _fill(self) -> None:
        """Put all files in place, one after the other."""
        storage, state = self.new.storage, State.OLD
        try:
            # Prepare: nothing names the chunks yet.
            if storage.local_path is not None:
                with writing(storage.path):
                    sync_all(os.path.join(storage.local_path, name) for name in self.asides)
            # The name of the new index must be on the disk before an array is removed or
            # made.
            documents = {**self.documents, **self.conclude()}
            if self._is_alike():
                self._replace_manifest(documents)
                return
            storage.announce([self._index_aside, *documents])
            write_file(storage, self._index_aside, self.content)
            storage.sync()
            if self.index in storage.names():
                state = State.NEITHER
            _clear(storage, self.index, self.sides)
            # Move: descriptions first, because a chunk is known by the description in the folder of
            # its array.
            self._describe(documents)
            self._move()
            # Commit.
            was, state = state, State.UNKNOWN
            storage.rename(self._index_aside, self.index)
            self._write_mark()
            self._tidy()
        except BaseException as error:
            with suppress(StorageError):  # the next writer removes the rest
                names = storage.names()
                if state is State.UNKNOWN and self._index_aside in names:
                    state = was
                if state is State.NEITHER and self.index in names:
                    state = State.OLD  # its index is the first to go
                if state is State.UNKNOWN:  # in place, but an error followed
                    state = State.NEW if storage.local_path is not None else State.UNKNOWN
                    self._tidy()
                else:
                    discard_files(storage, self.asides)
                    if self.index not in names:
                        _clear(storage, self.index, self.sides)
                    storage.remove(self._index_aside)
            add_state(error, state)
            raise

    def _describe(self, documents: Mapping[str, bytes]) -> None:
        storage = self.new.storage

        def describe(document: tuple[str, bytes]) -> None:
            write_file(storage, *document)
            storage.finish(document[0])

        do_all(describe, documents.items(), storage.traits)
        _sync_above(storage, documents)

    def _move(self) -> None:
        storage = self.new.storage
        do_all(lambda pair: storage.move(*pair), self.moves(), storage.traits)
        _sync_above(storage, self.paths)

    def _is_alike(self) -> bool:
        """Return True if the checkpoint in place differs only in what its manifest leads to."""
        storage = self.new.storage
        if self.documents or not {self.index, self.manifest} <= {*storage.names()}:
            return False
        with closing(storage.open(self.index)) as file:
            return file.size == len(self.content) and file.read(0, file.size) == self.content

    def _replace_manifest(self, documents: dict[str, bytes]) -> None:
        storage, state = self.new.storage, State.OLD
        manifest = documents.pop(self.manifest)
        nodes = {path: documents.pop(path) for path in [*documents] if "/" in path}
        new = {*filter(None, self.paths), *nodes}
        try:
            storage.announce([*nodes, *documents])
            self._describe(nodes)
            self._move()
            write_file(storage, self._index_aside, manifest)
            storage.sync()
            state = State.UNKNOWN
            storage.rename(self._index_aside, self.manifest)
            state = state if storage.local_path is None else State.NEW
            old = [path for path in _own_files(storage, self.sides) if path not in new]
            do_all(storage.remove, old, storage.traits)
            self._describe(documents)
            self._tidy()
        except BaseException as error:
            with suppress(StorageError):
                if state is State.UNKNOWN and self._index_aside in storage.names():
                    state = State.OLD
            if state is State.OLD:
                discard_files(storage, new)
            add_state(error, state)
            raise

    def _mark(self) -> bytes:
        """Return the marker of a complete checkpoint, for the format's own reader."""
        return f"Checkpoint commit was successful to {self.new.storage.path}".encode()

    def _write_mark(self) -> None:
        """Write the marker where the folder cannot be exchanged."""
        if not self.marker:
            return
        try:
            self.new.storage.announce([self.marker])
            write_file(self.new.storage, self.marker, self._mark())
            self.new.storage.sync()
            if self.new.storage.stamp(self.marker) is None:
                raise StorageError("The service has taken it, and answers untruly.")
        except StorageError as error:
            cause = (
                f"{self.new.storage.path}: the checkpoint is in place, but its mark {self.marker} is "
                f"not. {error.cause}"
            )
            raise StorageError(cause, "Save it again if Orbax is to read it.") from None

    def _tidy(self) -> None:
        remove_unnamed(self.new.storage, lambda names: asides_of(names, self.index))

    @property
    def _index_aside(self) -> str:
        return f"{self.index}.{self.new.generation}.tmp"


def remove_arrays(storage: Storage, index: str, sides: frozenset[str]) -> None:
    """Remove the checkpoint of a folder, and not the folder."""
    if storage.local_path is None:
        storage.claim(removes=True)
    names = storage.names()
    marker = f"{index}.removed.tmp"
    with telling_of_removal(storage, [index]):
        # Commit: without its index the folder has no checkpoint, and the index that stands aside marks
        # the arrays for removal.
        if index in names:
            storage.rename(index, marker)
        if is_interrupted(storage.names(), index):
            _clear(storage, index, sides)
        # The index that stands aside goes last, when all else is gone from the disk.
        for name in sorted(
            asides_of(storage.names(), index), key=lambda name: name.startswith(index)
        ):
            storage.remove(name)


def check_folder(storage: Storage, index: str) -> None:
    """Raise if a folder has arrays without an index, or a checkpoint and cannot be exchanged."""
    names = storage.names()
    if index in names and storage.local_path is not None:
        FolderBeside(storage.local_path).check()
    if index in names or is_interrupted(names, index):
        return
    for path in _tree(storage):
        if _is_description(path) or path.rpartition("/")[2] == DATABASE:
            cause = f"{storage.path} has no {index}, but arrays: {path}."
            raise TargetExists(cause, "Write into a folder that is empty or new.")


def check_arrays(new: NewCheckpoint, form: Format, index: str, names: Sequence[str]) -> None:
    """Raise if the slices cannot be chunks, a key no path, or the folder has other arrays."""
    assignment, capabilities, slices = new.assignment, form.capabilities, new.assignment.slices
    tensors = slices.tensors
    check_holds(slices, capabilities, form.name)
    if capabilities.is_separate and (np.bincount(assignment.file, minlength=1) > 1).any():
        cause = f"The format {form.name} has a file for each slice."
        raise UnsupportedError(cause, "Leave the policy out.")
    deep = np.flatnonzero(tensors.ranks > capabilities.max_slice_rank)
    if len(deep):
        cause = (
            f"{tensors.keys[int(deep[0])]!r} has {tensors.ranks[deep[0]]} axes, and arrays of the "
            f"format {form.name}"
        )
        raise UnsupportedError(
            f"{cause} at most {capabilities.max_slice_rank}.", "Reshape it, or leave it out."
        )
    is_odd = ~are_grids(slices)[slices.tensor]
    is_odd |= ~slices.is_whole() & ~(slices.shape > 0).all(axis=1)
    if is_odd.any():
        key = slices.key(int(is_odd.argmax()))
        cause = (
            f"The format {form.name} cannot hold the slices of {key!r}, which are not a grid of equal "
            "ones."
        )
        raise UnsupportedError(cause, "Write the tensor whole, or in equal parts.")
    check_paths(names, form.name)
    check_folder(new.storage, index)


def chunk_paths(slices: SliceTable, folders: Sequence[str], version: int) -> list[str]:
    """Return the path of each slice's chunk, empty without elements; [n] ``folders`` of arrays."""
    places = slices.offset // grid_steps(slices)[slices.tensor]
    ranks = slices.tensors.ranks.tolist()
    is_filled = np.asarray((slices.shape > 0).all(axis=1)).tolist()
    rows = zip(slices.tensor.tolist(), places.tolist(), is_filled, strict=True)
    return [
        f"{folders[tensor]}/{chunk_name(version, place[: ranks[tensor]])}" if has_elements else ""
        for tensor, place, has_elements in rows
    ]


def files_of_chunks(assignment: Assignment, paths: Sequence[str]) -> list[str]:
    """[files] Return the path of the only chunk of each file."""
    of_file = [""] * assignment.num_files
    for number, path in zip(assignment.file.tolist(), paths, strict=True):
        of_file[number] = path
    return of_file


def _clear(storage: Storage, index: str, sides: frozenset[str]) -> None:
    """Remove the index and the arrays of a folder, also on the disk, in that order."""
    names = storage.names()
    own = [*_own_files(storage, sides)]
    for name in sorted({index, *sides}.intersection(names), key=lambda name: name != index):
        storage.remove(name)
    # Were an array gone and the index back after a power cut, the fill value would stand for its
    # chunks.
    if own or index in names:
        storage.sync()
    # Chunks first: without its description, the next writer would not know a chunk.
    for paths in (
        [path for path in own if not _is_description(path)],
        [*filter(_is_description, own)],
    ):
        do_all(storage.remove, paths, storage.traits)
        _sync_above(storage, paths)
    if own:
        storage.sync()


def _sync_above(storage: Storage, paths: Iterable[str]) -> None:
    """Force the names in the folders that paths lead through to the disk."""
    for folder in reversed(folders_above(paths)):
        storage.sync(folder)


def _is_description(path: str) -> bool:
    return path.rpartition("/")[2] in _DESCRIPTIONS


def own_files(storage: Storage, index: str, sides: frozenset[str]) -> set[str]:
    """Return the files of the checkpoint of a folder, and of its writers; others are the user's."""
    names = storage.names()
    top = {index, *sides}.intersection(names).union(asides_of(names, index))
    return top.union(_own_files(storage, sides))


def _own_files(storage: Storage, sides: frozenset[str]) -> Iterator[str]:
    """Yield the files of arrays, groups and the database below a folder; others are the user's."""
    tree = _tree(storage)
    nodes = {path.rpartition("/")[0] for path in tree if _is_description(path)}
    for path in tree:
        if "/" in path and (
            _is_description(path)
            or not nodes.isdisjoint(arrays_of(path))
            or (DATABASE in sides and DATABASE_FILE.fullmatch(path))
        ):
            yield path


def _tree(storage: Storage) -> list[str]:
    try:
        return [*storage.tree()]
    except MissingFile:  # a folder that is not made yet
        return []
