"""Writing an npz archive that ``numpy.load`` reads.

Members are stored without compression, each payload at a multiple of 64 bytes, so that it can be
mapped. Names of members are keys and not paths, but an archive may be unpacked: a key that would
lead out of the directory is refused.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardvar.errors import UnsupportedError
from shardvar.formats.npz.contents import MEMBER_SUFFIX
from shardvar.formats.objects import document_of
from shardvar.formats.protocol import FileChecksums, FileWriter, Format, NewCheckpoint
from shardvar.formats.sinks import OneFileSink, check_one_file, one_file
from shardvar.layout.dtypes import Ints
from shardvar.planning.index import OBJECTS
from shardvar.planning.slices import SliceTable, TensorTable
from shardvar.wire.archive_writer import (
    build_central,
    build_end,
    build_local,
    encode_name,
    plan_local_nbytes,
)
from shardvar.wire.crc import CRC32, Checksum
from shardvar.wire.npy import build_preamble

_LEADS_OUT = re.compile(r"[/\\]|[A-Za-z]:[/\\]|(?:.*[/\\])?\.\.[/\\]", re.DOTALL)
"""The beginning of a name that would be unpacked outside the directory of the archive."""


@dataclass(frozen=True, slots=True)
class NpzWriter(FileWriter):
    """The frame and the checksums of an archive."""

    objects: bytes = b""
    """The document of the objects, which is the last array; empty without objects."""

    @property
    def crc(self) -> Checksum:
        """The checksum of a payload; the checksum of its member is computed from it."""
        return CRC32

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
            # The CRC of a member covers preamble and payload: the preamble's share (``contents``)
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
            name, content = encode_name(OBJECTS + MEMBER_SUFFIX), _array_of(self.objects)
            crc, total = CRC32.compute(content), len(content)
            nbytes = plan_local_nbytes(position, name, total)
            yield position, build_local(nbytes, name, crc, total) + content
            directory += build_central(position, name, crc, total)
            count, position = count + 1, position + nbytes + total
        yield position, bytes(directory) + build_end(position, len(directory), count)


def npz_sink(new: NewCheckpoint, final: str, form: Format) -> OneFileSink:
    """Return the sink of an archive. Of the metadata only objects are kept, as an array."""
    slices = new.assignment.slices
    check_one_file(new, form)
    leading_out = next(filter(_LEADS_OUT.match, slices.tensors.keys), None)
    if leading_out is not None:
        cause = (
            f"{leading_out!r} would be unpacked from a zip archive as a file outside of its "
            "directory."
        )
        raise UnsupportedError(cause, "Rename the tensor.")
    # A dry run of the archive: each member is local header, preamble and payload, and begins where
    # the last one ends.
    starts, position = [], 0
    for (raw_name, preamble), nbytes in zip(_members(slices), slices.nbytes.tolist(), strict=True):
        start = (
            position + plan_local_nbytes(position, raw_name, len(preamble) + nbytes) + len(preamble)
        )
        starts.append(start)
        position = start + nbytes
    writer = NpzWriter(document_of(new.metadata, slices.tensors.keys).encode("ascii"))
    return one_file(new, final, starts, writer, lambda: _empty(writer))


def _array_of(octets: bytes) -> bytes:
    """Return bytes as an array of NumPy, with its header."""
    return build_preamble("uint8", (len(octets),)) + octets


def _empty(writer: NpzWriter) -> bytes:
    """Return an archive without tensors: only the frame."""
    none = np.zeros(0, np.int64)
    slices = TensorTable.of([]).whole()
    return b"".join(octets for _, octets in writer.frame(slices, none, FileChecksums(none)))


def _members(slices: SliceTable) -> Iterator[tuple[bytes, bytes]]:
    """The name of each member and the npy header that it begins with."""
    tensors = slices.tensors
    for row in slices.tensor.tolist():
        yield (
            encode_name(tensors.keys[row] + MEMBER_SUFFIX),
            build_preamble(tensors.dtype(row), tensors.shape(row)),
        )
