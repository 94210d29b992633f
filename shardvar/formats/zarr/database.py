"""Writing the database of a checkpoint of Orbax: chunks lie one after the other in data files, as
in most formats, and the nodes of the database lead to them.

    manifest.ocdbt               the root
    d/...                        the nodes: descriptions of arrays, and chunks of at most 1024 bytes
    ocdbt.process_0/d/...        the data files: larger chunks

Nodes have checksums. So small chunks are copied into them from the finished files, and a file of
only small ones is not needed any more.
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from shardvar.errors import UnsupportedError
from shardvar.formats.folders import folder_asides
from shardvar.formats.zarr.names import DATABASE
from shardvar.formats.zarr.sink import CHUNK
from shardvar.layout.dtypes import ITEMSIZES, Bools, Ints
from shardvar.planning.capabilities import grid_steps
from shardvar.planning.plan import Assignment
from shardvar.planning.slices import SliceTable
from shardvar.storage.protocol import Storage
from shardvar.wire.ocdbt import INLINE_NBYTES, MAX_KEY_NBYTES, ValueRange, build_database

PROCESS = "ocdbt.process_0"
"""The folder that Orbax makes for its first process."""


@dataclass(frozen=True, slots=True, eq=False)
class Database:
    """The database of a checkpoint whose chunks are to be written."""

    assignment: Assignment
    """The chunks, and the data file of each."""
    paths: Sequence[str]
    """[m] the key of each chunk; empty for slices without elements."""
    nbytes: Ints
    """[m] the size of each chunk, with the zeros where it reaches out of its array."""
    start: Ints
    """[m] the first byte of each chunk, in bytes of its file."""
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
        """Return the database of slices whose files are decided."""
        nbytes = _chunk_nbytes(assignment.slices)
        order, bounds = assignment.by_file()
        ends = np.cumsum(nbytes[order])
        base = np.append(0, ends)[bounds[:-1]]
        start = np.empty_like(nbytes)
        start[order] = ends - nbytes[order] - base[assignment.file[order]]
        for key in (*paths, *documents):
            if len(_key(key)) > MAX_KEY_NBYTES:
                cause = f"The format orbax cannot hold the key {key!r}, which is too long."
                raise UnsupportedError(cause, "Rename the tensor (--rename).")
        return cls(assignment, paths, nbytes, start, documents, generation)

    @property
    def is_inline(self) -> Bools:
        """[m] True for chunks that are in nodes."""
        inline: Bools = (self.nbytes > 0) & (self.nbytes <= INLINE_NBYTES)
        return inline

    @property
    def files(self) -> list[str]:
        """[files] the path of each data file."""
        return [
            f"{PROCESS}/d/{self._name(str(number))}" for number in range(self.assignment.num_files)
        ]

    @property
    def kept_files(self) -> list[str]:
        """[files] the path of each data file; empty for files that no node leads to."""
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
        """Return the bytes of the chunks that are in nodes, by row."""
        found: dict[int, bytes] = {}
        rows = np.flatnonzero(self.is_inline)
        asides = folder_asides(CHUNK, self.assignment.num_files, self.generation)
        for number in np.unique(self.assignment.file[rows]).tolist():
            mine = rows[self.assignment.file[rows] == number]
            file = storage.open(asides[number])
            try:
                octets = file.map()
                for row, start, nbytes in zip(
                    mine.tolist(),
                    self.start[mine].tolist(),
                    self.nbytes[mine].tolist(),
                    strict=True,
                ):
                    found[row] = bytes(octets[start : start + nbytes])
            finally:
                file.close()
        return found

    def _name(self, what: str) -> str:
        """Return a name as TensorStore gives to files."""
        return hashlib.sha256(f"{self.generation}-{what}".encode()).hexdigest()[:32]


def _chunk_nbytes(slices: SliceTable) -> Ints:
    """[m] Return the bytes of the chunk of each slice: of a short one as many as of the others."""
    tensors, steps = slices.tensors, grid_steps(slices)
    nbytes = (steps.prod(axis=1) * ITEMSIZES[tensors.codes])[slices.tensor]
    return np.where((slices.shape > 0).all(axis=1), nbytes, 0)


def _key(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")
