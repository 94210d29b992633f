"""npz, NumPy's zip archive of arrays, read more carefully than NumPy reads it.

``source`` reads an archive: its directory, the arrays' headers and their faults, and payloads, including
compressed, big-endian and Fortran-order ones.

An archive that is written is one that ``numpy.load`` reads. Members are stored without compression,
each payload at a multiple of 64 bytes, so that it can be mapped. Names of members are keys and not
paths, but an archive may be unpacked: a key that would lead out of the directory is refused.
"""

import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from shardvar.errors import UnsupportedError
from shardvar.formats.files import find_files, look_into
from shardvar.formats.npz.source import MEMBER_SUFFIX, open_npz
from shardvar.formats.protocol import FileChecksums, FileWriter, Format, NewCheckpoint
from shardvar.layout.dtypes import Ints
from shardvar.planning.index import OBJECTS
from shardvar.planning.slices import Capabilities, SliceTable, TensorTable
from shardvar.records import frozen
from shardvar.storage.protocol import Storage
from shardvar.wire.crc import CRC32
from shardvar.wire.npy import NPY_DTYPES, build_preamble
from shardvar.wire.zip import (
    LOCAL,
    build_central,
    build_end,
    build_local,
    encode_name,
    first_name,
    local_nbytes,
    plan_local_nbytes,
)

if TYPE_CHECKING:
    from shardvar.formats.sinks import OneFileSink

_FILE_SUFFIX = ".npz"

CAPABILITIES = Capabilities(
    dtypes=NPY_DTYPES,
    slice_dtypes=frozenset(),
    many_files=False,
    holds_objects=True,
    guards_metadata=True,
    holds_texts=False,
    objects_in_tensor=True,
)
"""Whole tensors of NumPy's own dtypes; an npy header cannot name others."""
_LEADS_OUT = r"(?s)[/\\]|[A-Za-z]:[/\\]|(?:.*[/\\])?\.\.[/\\]"
"""The beginning of a name that would be unpacked outside the directory of the archive."""


@frozen
class NpzWriter(FileWriter):
    objects: bytes = b""
    """The document of the objects, which is the last array; empty without objects."""

    crc = CRC32  # of a payload, from which the checksum of its member is computed

    def frame(
        self, slices: SliceTable, start: Ints, checksums: FileChecksums
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the headers of each member, the directory and the end records."""
        shares: dict[bytes, int] = {}
        directory, count, position = bytearray(), 0, 0
        rows = zip(
            _members(slices),
            start.tolist(),
            slices.nbytes.tolist(),
            checksums.payload.tolist(),
            strict=True,
        )
        for (name, preamble), begin, nbytes, checksum in rows:
            # The CRC of a member covers preamble and payload: the preamble's share (``source``)
            # plus the payload's own. Equal preambles mean equal dtypes and shapes, so the sizes are
            # equal too.
            if preamble not in shares:
                shares[preamble] = CRC32.combine(CRC32.compute(preamble), 0, nbytes)
            crc, total = shares[preamble] ^ checksum, len(preamble) + nbytes
            # The local header is padded, so that the payload begins at its planned place.
            header = build_local(begin - position - len(preamble), name, crc, total)
            yield position, header + preamble
            directory += build_central(position, name, crc, total)
            count, position = count + 1, begin + nbytes
        if self.objects:
            name, content = encode_name(OBJECTS + MEMBER_SUFFIX), self.objects
            content = build_preamble("uint8", (len(content),)) + content
            crc, total = CRC32.compute(content), len(content)
            nbytes = plan_local_nbytes(position, name, total)
            yield position, build_local(nbytes, name, crc, total) + content
            directory += build_central(position, name, crc, total)
            count, position = count + 1, position + nbytes + total
        yield position, bytes(directory) + build_end(position, len(directory), count)


def _members(slices: SliceTable) -> Iterator[tuple[bytes, bytes]]:
    """Yield the name of each member and the npy header that it begins with."""
    tensors = slices.tensors
    for row in slices.tensor.tolist():
        yield (
            encode_name(tensors.keys[row] + MEMBER_SUFFIX),
            build_preamble(*tensors.fact(row)),
        )


@frozen
class NpzFormat(Format):
    """npz: one zip archive of arrays."""

    name: str = "npz"
    capabilities: Capabilities = CAPABILITIES

    def locate(self, storage: Storage, name: str) -> list[str]:
        return find_files(storage, name, (_FILE_SUFFIX,), _begins_with_array)

    open = staticmethod(open_npz)

    def lay_out(self, new: NewCheckpoint) -> "OneFileSink":
        """Lay out an archive. Of the metadata only objects are kept, as an array."""
        from shardvar.formats.objects import document_of  # likewise
        from shardvar.formats.sinks import check_one_file, one_file  # of a write

        slices = new.assignment.slices
        check_one_file(new, self)
        leading_out = next(filter(partial(re.match, _LEADS_OUT), slices.tensors.keys), None)
        if leading_out is not None:
            cause = (
                f"{leading_out!r} would be unpacked from a zip archive as a file outside of its "
                "directory."
            )
            raise UnsupportedError(cause, "Rename the tensor.")
        # A dry run of the archive: each member is local header, preamble and payload, and begins
        # where the last one ends.
        starts, position = [], 0
        for (name, preamble), nbytes in zip(_members(slices), slices.nbytes.tolist(), strict=True):
            head = plan_local_nbytes(position, name, len(preamble) + nbytes) + len(preamble)
            starts.append(position + head)
            position += head + nbytes
        writer = NpzWriter(document_of(new.metadata, slices.tensors.keys).encode("ascii"))

        def empty() -> bytes:
            """Return an archive without tensors: only the frame."""
            none = np.zeros(0, np.int64)
            frame = writer.frame(TensorTable.of([]).whole(), none, FileChecksums(none))
            return b"".join(octets for _, octets in frame)

        return one_file(new, _file_name(new.name), starts, writer, empty)

    def remove(self, storage: Storage, name: str) -> None:
        from shardvar.formats.sinks import remove_one_file  # of a write

        remove_one_file(storage, _file_name(name))


def _file_name(name: str) -> str:
    return name if name.endswith(_FILE_SUFFIX) else name + _FILE_SUFFIX


def _begins_with_array(storage: Storage, name: str) -> bool:
    """Return True if a file begins as a zip archive whose first member is an array."""
    local = look_into(
        storage, name, lambda file: file.read(0, local_nbytes(file.read(0, LOCAL.size))), b""
    )
    return first_name(local).endswith(MEMBER_SUFFIX.encode())


FORMAT = NpzFormat()
