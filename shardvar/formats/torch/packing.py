"""Writing an archive of ``torch.save``: its records, in the order of the file, and the zip that
frames them.

    archive/data.pkl      the pickle: the tensors, each with the number of its storage
    archive/byteorder     "little"
    archive/data/0, …     the storages, one of each tensor
    archive/version       "3"

The bytes of every record begin at a multiple of 64 from the beginning of the archive. Sizes are
known before the bytes of storages are, and the CRC-32 of each record comes last, into its local
header and into the directory. The folder is named ``archive``, as in files that torch writes to a
buffer, so that the bytes do not depend on a file's name.

A tensor is a call of ``torch._utils._rebuild_tensor_v2``. It has the dtype of the class of its
storage. Younger dtypes have no such class, and are an argument of ``_rebuild_tensor_v3``.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardvar.formats.torch.archive import PICKLE
from shardvar.formats.torch.dtypes import STORAGES, UNTYPED_STORAGE
from shardvar.layout.dtypes import numpy_dtype
from shardvar.wire.crc import CRC32
from shardvar.wire.inert import ORDERED_DICT, Global, Reference
from shardvar.wire.opcode_writer import Call
from shardvar.wire.zip import build_central, build_end, build_local, encode_name, plan_local_nbytes

_FOLDER = "archive/"
_CLASSES = {dtype: name for name, dtype in STORAGES.items()}
"""The class of a typed storage, by its dtype."""


class PackedRecord(NamedTuple):
    """A record of an archive that is being written."""

    name: str
    """Its name, without the folder."""
    nbytes: int
    """Its size."""
    content: bytes | None = None
    """Its bytes; None for a storage, whose bytes are written by others."""


def records_of(pickle: bytes, storage_nbytes: Sequence[int]) -> list[PackedRecord]:
    """Return the records of an archive, whose storages have these sizes."""
    storages = [
        PackedRecord(f"data/{number}", nbytes) for number, nbytes in enumerate(storage_nbytes)
    ]
    return [
        _text(PICKLE, pickle),
        _text("byteorder", b"little"),
        *storages,
        _text("version", b"3\n"),
    ]


def _text(name: str, content: bytes) -> PackedRecord:
    return PackedRecord(name, len(content), content)


def tensor_call(dtype: str, shape: tuple[int, ...], number: int) -> Call:
    """Return the call that makes a tensor of a whole storage, in C order."""
    count, strides = 1, list[int]()
    for extent in reversed(shape):
        strides.append(count)
        count *= max(extent, 1)  # as torch counts, also where an axis has no elements
    total = count if 0 not in shape else 0
    kind = _CLASSES.get(dtype)
    # The size of an untyped storage counts bytes.
    size = total if kind else total * numpy_dtype(dtype).itemsize
    storage = Reference(("storage", Global(kind or UNTYPED_STORAGE), str(number), "cpu", size))
    args = (storage, 0, shape, tuple(reversed(strides)), False, Call(ORDERED_DICT, ()))
    if kind:
        return Call("torch._utils._rebuild_tensor_v2", args)
    return Call("torch._utils._rebuild_tensor_v3", (*args, Global(f"torch.{dtype}")))


def plan_starts(records: Sequence[PackedRecord]) -> list[int]:
    """Return the first byte of each record, in bytes of the archive."""
    # A dry run of the archive: each record is a local header and its bytes, and begins where the
    # last one ends.
    starts, position = [], 0
    for record in records:
        starts.append(position + plan_local_nbytes(position, _raw_name(record), record.nbytes))
        position = starts[-1] + record.nbytes
    return starts


def build_frame(
    records: Sequence[PackedRecord], storage_crcs: Sequence[int], padding: int = 0
) -> Iterator[tuple[int, bytes]]:
    """Yield all bytes of an archive outside of storages, each range with its offset in the archive.

    ``storage_crcs`` are the checksums of the storages, in the order of the records. ``padding``
    makes the directory so many bytes longer.
    """
    crcs = iter(storage_crcs)
    directory: list[bytes] = []
    position = 0
    for record, start in zip(records, plan_starts(records), strict=True):
        crc = next(crcs) if record.content is None else CRC32.compute(record.content)
        raw_name = _raw_name(record)
        yield (
            position,
            build_local(start - position, raw_name, crc, record.nbytes) + (record.content or b""),
        )
        more = padding if record is records[-1] else 0
        directory.append(build_central(position, raw_name, crc, record.nbytes, more))
        position = start + record.nbytes
    listed = b"".join(directory)
    yield position, listed + build_end(position, len(listed), len(directory))


def _raw_name(record: PackedRecord) -> bytes:
    return encode_name(_FOLDER + record.name)
