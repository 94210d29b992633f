"""The database of a checkpoint of Orbax (OCDBT): its values, and writing it."""

import hashlib
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Self

import numpy as np

from shardvar.errors import (
    CheckpointError,
    IncompleteCheckpoint,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.compressed import unpack_frame
from shardvar.formats.files import DataFiles
from shardvar.formats.sinks import folder_asides
from shardvar.formats.zarr.files import (
    DATABASE,
    DATABASE_FILE,
    TREE,
    Tree,
    check_inside,
    read_document,
    read_ranges,
)
from shardvar.formats.zarr.sink import CHUNK
from shardvar.layout.dtypes import ITEMSIZES, Bools, Ints
from shardvar.limits import MAX_PAYLOAD_EXPANSION
from shardvar.planning.slices import Assignment, grid_steps
from shardvar.records import entity
from shardvar.storage.protocol import FileOpener, Storage
from shardvar.wire.damage import distrusted, invalid, malformed, past_limit
from shardvar.wire.ocdbt import (
    INLINE_NBYTES,
    MAX_KEY_NBYTES,
    DatabaseHead,
    LeafNode,
    NodePlace,
    NodeRoom,
    ValueRange,
    build_database,
    parse_manifest,
    parse_node,
)

# The values of the database of a checkpoint of Orbax: its nodes are read level by level, wherever
# the folder is.
#
#     manifest.ocdbt -> root -> branches -> ... -> leaves -> keys, each with a range of a file or of a node
#
# The nodes of a level are read together (``files.read_ranges``), so that opening takes about as many requests as
# the tree has levels. All nodes are held: they are the index. Together they
# have at most as many bytes as the files, so that a tree whose nodes lead to the same ones ends.

_NUMBERED = re.compile(r"manifest\.[0-9a-f]{16}")
_COPY_ALL = "Copy the checkpoint again, with all its folders."
_FILE = "The file of the database"
_FREE_NBYTES = 1 << 20


@entity
class DatabaseValues:
    names: list[str]
    """[n] the keys, sorted."""
    rows: dict[str, int]
    """The row of each key."""
    files: list[str]
    """The paths of the files that have values."""
    file: Ints
    """[n] the number of the file of each value; of a value in a node, -1 - the number of the
    node."""
    start: Ints
    """[n] the first byte of each value, in its file or its node."""
    nbytes: Ints
    sizes: list[int]  # of the files; -1 if missing
    bodies: list[bytes]
    """The nodes that have values."""

    def fault(self, row: int) -> CheckpointError | None:
        number, stop = int(self.file[row]), int(self.start[row] + self.nbytes[row])
        if number < 0 or stop <= self.sizes[number]:
            return None
        size, name = self.sizes[number], self.files[number]
        there = "is missing" if size < 0 else f"has {size} bytes"
        cause = (
            f"The value {self.names[row]!r} is the {self.nbytes[row]} bytes from byte "
            f"{self.start[row]} of {name!r} on, which {there}."
        )
        return IncompleteCheckpoint(cause, _COPY_ALL)

    def held(self, row: int) -> memoryview | None:
        """Return a value that is in a node; None for others."""
        if self.file[row] >= 0:
            return None
        body = memoryview(self.bodies[-1 - int(self.file[row])])
        return body[int(self.start[row]) :][: int(self.nbytes[row])]

    def check(self, names: Iterable[str]) -> None:
        for name in names:
            if (fault := self.fault(self.rows[name])) is not None:
                raise fault

    def read(self, tree: Tree, names: Sequence[str], most: int) -> list[bytes | CheckpointError]:
        """Return values or their errors; none may have more than ``most`` bytes."""
        answers: dict[str, bytes | CheckpointError] = {}
        for name in names:
            row = self.rows[name]
            if (fault := self.fault(row)) is not None:
                answers[name] = fault
            elif self.nbytes[row] > most:
                answers[name] = malformed(f"It has {self.nbytes[row]} bytes, more than {most}.")
            elif (octets := self.held(row)) is not None:
                answers[name] = bytes(octets)
        others = [name for name in names if name not in answers]
        rows = np.array([self.rows[name] for name in others], np.int64)
        places = self.file[rows], self.start[rows], self.nbytes[rows]
        answers.update(zip(others, _read(tree, self.files, *places), strict=True))
        return [answers[name] for name in names]


def _read(
    opener: FileOpener, files: Sequence[str], file: Ints, start: Ints, nbytes: Ints
) -> list[bytes]:
    with closing(DataFiles(opener, files)) as data:
        return [*map(bytes, read_ranges(data, file, start, nbytes))]


def read_values(tree: Tree) -> DatabaseValues:
    # A fifo or a device has no bytes here, and is refused by its kind.
    for path, status in tree.files.items():
        if not status.nbytes and DATABASE_FILE.fullmatch(path):
            tree.open(path).close()
    room = NodeRoom()
    if TREE in tree.files:
        room.add(tree.files[TREE].nbytes)
    # The root of the newest version, which may be in a numbered file: one is added for each version.
    manifest = _parse_manifest(tree, DATABASE, room)
    if manifest.is_numbered:
        numbered = max((path for path in tree.files if _NUMBERED.fullmatch(path)), default="")
        if not numbered:
            cause = f"{DATABASE} has only settings, and no file has the versions."
            raise IncompleteCheckpoint(cause, _COPY_ALL)
        newest = _parse_manifest(tree, numbered, room)
        if newest.is_numbered or newest.uuid != manifest.uuid:
            raise invalid(f"{numbered} is of another database than {DATABASE}.")
        manifest = newest
    root = manifest.root
    level = [] if root is None else [root]
    unseen = sum(status.nbytes for status in tree.files.values())
    leaves: list[LeafNode] = []
    while level:
        unseen -= sum(place.nbytes for place in level)
        for place in level:
            check_inside(place.file, _FILE)
            file = tree.files.get(place.file)
            if file is None:
                cause = f"{DATABASE} leads to nodes in {place.file!r}, which is missing."
                raise IncompleteCheckpoint(cause, _COPY_ALL)
            if place.start + place.nbytes > file.nbytes:
                cause = (
                    f"{DATABASE} leads to a node of {place.nbytes} bytes from byte {place.start} of "
                    f"{place.file!r} on, which has {file.nbytes} bytes."
                )
                raise IncompleteCheckpoint(cause, _COPY_ALL)
        if unseen < 0:
            raise distrusted(
                f"{DATABASE} leads to nodes of {-unseen} bytes more than all files have."
            )
        below: list[NodePlace] = []
        files = sorted({place.file for place in level})
        number = {path: row for row, path in enumerate(files)}
        places = [(number[place.file], place.start, place.nbytes) for place in level]
        columns = np.array(places, np.int64).T
        for place, octets in zip(level, _read(tree, files, *columns), strict=True):
            with prefix_errors(f"{place.file}, the node at byte {place.start}"):
                node = parse_node(octets, place, unpack_frame, room)
            if isinstance(node, LeafNode):
                leaves.append(node)
            else:
                below += node
        level = below
    return _join(tree, leaves)


def _parse_manifest(tree: Tree, name: str, room: NodeRoom) -> DatabaseHead:
    octets = read_document(tree, name)
    with prefix_errors(name):
        return parse_manifest(octets, unpack_frame, room)


def _join(tree: Tree, leaves: Sequence[LeafNode]) -> DatabaseValues:
    names = [key.decode("utf-8", "surrogateescape") for leaf in leaves for key in leaf.keys]
    number: dict[str, int] = {}
    bodies: list[bytes] = []
    file = [np.zeros(0, np.int64)]
    for leaf in leaves:
        new = [number.setdefault(path, len(number)) for path in leaf.files]
        own = -1 - len(bodies)
        if leaf.body:
            bodies.append(leaf.body)
        file.append(np.array([*new, own], np.int64)[leaf.file])
    for path in number:
        check_inside(path, _FILE)
    none = np.zeros(0, np.int64)
    start = np.concatenate([none, *(leaf.start for leaf in leaves)])
    nbytes = np.concatenate([none, *(leaf.nbytes for leaf in leaves)])
    # Bytes that are not UTF-8 are sorted otherwise than the text that stands for them.
    order = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
    names = [names[row] for row in order.tolist()]
    numbers, start, nbytes = np.concatenate(file)[order], start[order], nbytes[order]
    rows = {name: row for row, name in enumerate(names)}
    files = [tree.files.get(path) for path in number]
    sizes = [-1 if status is None else status.nbytes for status in files]
    # The same bytes of files are not repeated over and over.
    size = np.array([*sizes, -1], np.int64)[np.maximum(numbers, -1)]
    is_there = (numbers >= 0) & (start + nbytes <= size)
    total = nbytes[is_there].sum(dtype=np.float64)  # a float does not overflow
    if total > _FREE_NBYTES + MAX_PAYLOAD_EXPANSION * sum(max(each, 0) for each in sizes):
        raise past_limit(
            f"The values of the database have {int(total)} bytes, many of them the same",
            "MAX_PAYLOAD_EXPANSION",
        )
    return DatabaseValues(names, rows, [*number], numbers, start, nbytes, sizes, bodies)


# Writing the database of a checkpoint of Orbax: chunks lie one after the other in data files, as
# in most formats, and the nodes of the database lead to them.
#
#     manifest.ocdbt               the root
#     d/...                        the nodes: descriptions of arrays, and chunks of at most 1024 bytes
#     ocdbt.process_0/d/...        the data files: larger chunks
#
# Nodes have checksums. So small chunks are copied into them from the finished files, and a file of
# only small ones is not needed any more.


PROCESS = "ocdbt.process_0"
"""The folder that Orbax makes for its first process."""


@entity
class Database:
    assignment: Assignment
    """The chunks, and the data file of each."""
    paths: Sequence[str]
    """[m] the key of each chunk; empty for slices without elements."""
    nbytes: Ints
    """[m] the size of each chunk, with the zeros where it reaches out of its array."""
    start: Ints
    documents: Mapping[str, bytes]
    """The descriptions of the arrays, by key."""
    generation: str
    """The token in temporary names; names of files are made from it."""

    @classmethod
    def of(
        cls,
        assignment: Assignment,
        paths: Sequence[str],
        documents: Mapping[str, bytes],
        generation: str,
    ) -> Self:
        # A short chunk has as many bytes as the others.
        slices, steps = assignment.slices, grid_steps(assignment.slices)
        nbytes = (steps.prod(axis=1) * ITEMSIZES[slices.tensors.codes])[slices.tensor]
        nbytes = np.where((slices.shape > 0).all(axis=1), nbytes, 0)
        start = assignment.starts(nbytes)
        for key in (*paths, *documents):
            if len(_key(key)) > MAX_KEY_NBYTES:
                cause = f"The format orbax cannot hold the key {key!r}, which is too long."
                raise UnsupportedError(cause, "Rename the tensor (--rename).")
        return cls(assignment, paths, nbytes, start, documents, generation)

    @property
    def is_inline(self) -> Bools:
        inline: Bools = (self.nbytes > 0) & (self.nbytes <= INLINE_NBYTES)
        return inline

    @property
    def files(self) -> list[str]:
        return [
            f"{PROCESS}/d/{self._name(str(number))}" for number in range(self.assignment.num_files)
        ]

    @property
    def kept_files(self) -> list[str]:
        """[files] The path of each data file; empty for files that no node leads to."""
        needed = {*self.assignment.file[self.nbytes > INLINE_NBYTES].tolist()}
        return [path if number in needed else "" for number, path in enumerate(self.files)]

    def build(self, storage: Storage) -> dict[str, bytes]:
        """Return the manifest and the nodes, by path; ``storage`` has the finished data files."""
        values: dict[bytes, bytes | ValueRange] = {
            _key(path): document for path, document in self.documents.items()
        }
        rows = zip(
            self.paths,
            self.assignment.file.tolist(),
            self.start.tolist(),
            self.nbytes.tolist(),
            strict=True,
        )
        inline = self._read(storage)
        for row, (path, *place) in enumerate(rows):
            if path:
                values[_key(path)] = inline[row] if row in inline else ValueRange(*place)
        own, uuid = f"d/{self._name('nodes')}", bytes.fromhex(self._name("database"))
        manifest, nodes = build_database(values, self.files, own, uuid, time.time_ns())
        return {DATABASE: manifest} | ({own: nodes} if nodes else {})

    def _read(self, storage: Storage) -> dict[int, bytes]:
        rows = np.flatnonzero(self.is_inline)
        asides = folder_asides(CHUNK, self.assignment.num_files, self.generation)
        places = self.assignment.file[rows], self.start[rows], self.nbytes[rows]
        return dict(zip(rows.tolist(), _read(storage, asides, *places), strict=True))

    def _name(self, what: str) -> str:
        """Return a name as TensorStore gives to files."""
        return hashlib.sha256(f"{self.generation}-{what}".encode()).hexdigest()[:32]


def _key(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")
