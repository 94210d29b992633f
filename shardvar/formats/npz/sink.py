"""Writing an npz archive that ``numpy.load`` reads.

Members are stored without compression, each payload at a multiple of 64 bytes, so that it can be
mapped. Names of members are keys and not paths, but an archive may be unpacked: a key that would
lead out of the directory is refused.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardvar.errors import UnsupportedError
from shardvar.formats.files import discard_files, put_in_place, remove_unnamed, take_away
from shardvar.formats.npz.contents import MEMBER_SUFFIX
from shardvar.formats.protocol import FileChecksums
from shardvar.formats.unfinished import JOURNAL_ENDING
from shardvar.layout.dtypes import Ints
from shardvar.planning.capabilities import Capabilities, check_holds
from shardvar.planning.plan import Assignment
from shardvar.planning.slices import SliceTable
from shardvar.storage.protocol import Storage
from shardvar.wire.crc import CRC32, Checksum
from shardvar.wire.npy import build_preamble
from shardvar.wire.zip import build_central, build_end, build_local, encode_name, plan_local_nbytes

_LEADS_OUT = re.compile(r"[/\\]|[A-Za-z]:[/\\]|(?:.*[/\\])?\.\.[/\\]", re.DOTALL)
"""The beginning of a name that would be unpacked outside the directory of the archive."""


@dataclass(frozen=True, slots=True)
class NpzWriter:
    """The frame and the checksums of an archive."""

    run_nbytes: int = 0
    """0: an array has one checksum, and its runs have none."""

    @property
    def crc(self) -> Checksum:
        """The checksum of a payload; the checksum of its member is computed from it."""
        return CRC32

    def checksum_whole(self, dtype: str, count: int, payload: memoryview) -> int:
        """Return the checksum of the bytes; the format holds neither strings nor variants."""
        return CRC32.compute(payload)

    def frame(
        self, slices: SliceTable, start: Ints, checksums: FileChecksums
    ) -> Sequence[tuple[int, bytes]]:
        """Return the headers of each member, the directory and the end records."""
        parts: list[tuple[int, bytes]] = []
        directory: list[bytes] = []
        shares: dict[bytes, int] = {}
        position = 0
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
            parts.append(
                (
                    position,
                    build_local(begin - position - len(preamble), name, crc, total) + preamble,
                )
            )
            directory.append(build_central(position, name, crc, total))
            position = begin + nbytes
        listed = b"".join(directory)
        return [*parts, (position, listed + build_end(position, len(listed), len(directory)))]


@dataclass(frozen=True, slots=True, eq=False)
class NpzSink:
    """An npz archive that is being written."""

    storage: Storage
    """The directory for the file."""
    name: str
    """The final name of the file."""
    asides: list[str]
    """Its temporary name, as the only item."""
    start: Ints
    """[m] the first byte of each payload, in bytes of the file."""
    writer: NpzWriter = NpzWriter()
    """The frame and the checksums of the file."""

    def commit(self, checksums: Sequence[FileChecksums]) -> None:
        """Put the finished file in place."""
        empty = None if checksums else build_end(0, 0, 0)  # without slices no file was written
        # The rename is the commit. What earlier writers left is removed only after it.
        put_in_place(self.storage, [], (self.asides[0], self.name), empty, tidy=self._tidy)

    def withdraw(self) -> None:
        """Remove the file if it has its temporary name; a commit leaves none."""
        discard_files(self.storage, self.asides)

    def is_in_place(self) -> bool:
        """Return False: until the commit, no other process puts files under these names."""
        return False

    def _tidy(self) -> None:
        remove_unnamed(self.storage, lambda names: _asides(self.name, names))


def plan_archive(
    storage: Storage, name: str, assignment: Assignment, capabilities: Capabilities, generation: str
) -> NpzSink:
    """Lay the assigned tensors out; ``UnsupportedError`` if the format cannot hold them."""
    slices = assignment.slices
    check_holds(slices, capabilities, "npz")
    if assignment.num_files > 1:
        raise UnsupportedError(
            "An npz checkpoint is one file.", "Choose another format for several files."
        )
    cut = np.flatnonzero(~slices.is_whole())
    if len(cut):
        cause = (
            f"The format npz cannot hold the slice {slices.region(int(cut[0]))} of "
            f"{slices.key(int(cut[0]))!r}."
        )
        raise UnsupportedError(cause, "Write the tensor whole.")
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
    return NpzSink(storage, name, [f"{name}.{generation}.tmp"], np.array(starts, dtype=np.int64))


def remove_archive(storage: Storage, name: str) -> None:
    """Remove the archive of that name."""
    take_away(storage, [(name, f"{name}.removed.tmp")], lambda names: _asides(name, names))


def _asides(name: str, names: list[str]) -> list[str]:
    """Return the temporary files of that archive's writers, and their journals."""
    aside = re.compile(re.escape(name) + r"\.[A-Za-z0-9]+\.tmp" + JOURNAL_ENDING, re.DOTALL)
    return list(filter(aside.fullmatch, names))


def _members(slices: SliceTable) -> Iterator[tuple[bytes, bytes]]:
    """The name of each member and the npy header that it begins with."""
    tensors = slices.tensors
    for row in slices.tensor.tolist():
        yield (
            encode_name(tensors.keys[row] + MEMBER_SUFFIX),
            build_preamble(tensors.dtype(row), tensors.shape(row)),
        )
