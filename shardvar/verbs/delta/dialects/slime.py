"""The layout of slime, miles, SGLang, vime and ModelExpress: a folder for each version.

    weight_v000007/model-00000-of-00001.safetensors    changed tensors, uint8: one frame of zstd each
    weight_v000007/model.safetensors.index.json        metadata with five texts, and the weight_map

    version, base_version    numbers of six digits; any names in ModelExpress
    delta_encoding           xor: the mask of all bytes. overwrite: the number of changed bytes (u4),
                             their ascending positions (u4 each), their new values
    compression_format       zstd
    checksum_format          adler32, xxh3-128 or blake3: the metadata of a shard have the checksum of
                             each tensor after the change, under its name
    checksum_scope           only in a fork of vime: compressed_delta, the checksum is of the frame

The dtype and the shape of a tensor are the base's. A base is named by its version, which no other file
has. docs/delta.md names the sources.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np

from shardvar.errors import COPY_AGAIN, CorruptCheckpoint, UnsupportedError, prefix_errors
from shardvar.formats.compressed import CHECKSUMS, Stream, new_checksum
from shardvar.layout.dtypes import Ints
from shardvar.verbs.delta.dialects.changes import (
    PORTION,
    ChangedTensor,
    MaskPatcher,
    Patcher,
    PlacesPatcher,
    PublishedDelta,
    in_ascent,
    stored_payload,
)
from shardvar.verbs.reader import Reader
from shardvar.wire.damage import invalid
from shardvar.wire.set_index import DELTA_ENCODING
from shardvar.wire.zstd_frame import ReadPayload

XOR, OVERWRITE = "xor", "overwrite"
"""The encodings of a change."""
OF_FRAMES = "compressed_delta"
"""The scope of checksums that are of frames."""
ALGORITHMS = ("xxh3-128", "adler32", "blake3")
"""The checksums that the programs know."""
_KNOWN = {
    DELTA_ENCODING: (XOR, OVERWRITE),
    "compression_format": ("zstd",),
    "checksum_format": ALGORITHMS,
}
_POSITION = np.dtype("<u4")
_HEX = frozenset("0123456789abcdef")
_READ_NBYTES = 1 << 20


def open_slime(reader: Reader) -> PublishedDelta:
    """Return the delta that files of this layout are; no payload is read."""
    user = reader.metadata.user
    for name, values in _KNOWN.items():
        if user.get(name) not in values:
            found = repr(user[name]) if name in user else "missing"
            raise UnsupportedError(
                f"{reader.path}: {name} is {found}; {' and '.join(values)} are read.",
                "Publish it with one of these, or apply it with the program that published it.",
            )
    scope = user.get("checksum_scope", "")
    if scope not in ("", OF_FRAMES):
        raise UnsupportedError(
            f"{reader.path}: checksum_scope is {scope!r}; {OF_FRAMES} is read, or none.",
            "Apply it with the program that published it.",
        )
    version, base = (user.get(name, "") for name in ("version", "base_version"))
    if not version or not base:
        raise invalid(f"{reader.path}: The metadata have no version, or no base_version.")
    _check_shards(reader)
    algorithm = user["checksum_format"]
    changes = {key: _changed(reader, key, user[DELTA_ENCODING], algorithm, scope) for key in reader}
    of_result = "" if scope else algorithm
    return PublishedDelta(reader, "slime", changes, version, base, of_result)


def _check_shards(reader: Reader) -> None:
    """Raise what is wrong with the files: each tensor must be in the one that the index names."""
    for key, error in reader.faults.items():
        raise error.at(f"{reader.path}: {key!r}")
    for each in reader.source.findings():
        if each.is_damage:
            raise invalid(f"{reader.path}: {each.place}: {each.message}")


def _changed(reader: Reader, key: str, encoding: str, algorithm: str, scope: str) -> ChangedTensor:
    tensors = reader.find(key).slices.tensors
    with prefix_errors(f"{reader.path}: {key!r}"):
        if tensors.dtype(0) != "uint8" or len(tensors.shape(0)) != 1:
            raise invalid(f"It is {tensors.dtype(0)} of {list(tensors.shape(0))}, and not a frame.")
        checksum = reader.metadata.user.get(key, "")
        if len(checksum) != CHECKSUMS[algorithm][0] or not _HEX.issuperset(checksum):
            raise invalid(f"Its checksum {checksum!r} is not one of {algorithm}.")
    of_frame = (algorithm, checksum) if scope else None
    return ChangedTensor(
        partial(_open, reader, key, encoding, of_frame),
        partial(_check, reader, key, encoding, of_frame),
        "" if scope else checksum,
    )


_OfFrame = tuple[str, str] | None
"""The checksum of a frame: its kind, and its digits; None if checksums are of results."""


def _frame(reader: Reader, key: str, of_frame: _OfFrame) -> tuple[ReadPayload, int]:
    """Return what reads a frame, and its bytes, after comparing its checksum."""
    read, stored = stored_payload(reader, key)
    if of_frame:
        algorithm, wanted = of_frame
        checksum = new_checksum(algorithm)
        for start in range(0, stored, _READ_NBYTES):
            checksum.update(read(start, min(_READ_NBYTES, stored - start)))
        if checksum.hexdigest() != wanted:
            raise CorruptCheckpoint(f"Its frame has another checksum ({algorithm}).", COPY_AGAIN)
    return read, stored


def _open(
    reader: Reader, key: str, encoding: str, of_frame: _OfFrame, _dtype: str, nbytes: int
) -> Patcher:
    read, stored = _frame(reader, key, of_frame)
    if encoding == XOR:
        return MaskPatcher(Stream(read, stored), nbytes)
    return PlacesPatcher(*_overwritten(read, stored), 1, nbytes)


def _overwritten(read: ReadPayload, stored: int) -> tuple[Iterator[Ints], Stream]:
    """Return the positions of an overwrite, and a stream that is at its values.

    All positions come before all values, so that the frame is unpacked twice, and never held.
    """
    first, second = Stream(read, stored), Stream(read, stored)
    (count,) = np.frombuffer(first.read(_POSITION.itemsize), _POSITION).tolist()
    second.skip(_POSITION.itemsize * (1 + count))
    return _positions(first, count), second


def _positions(stream: Stream, count: int) -> Iterator[Ints]:
    while count:
        some = min(count, PORTION)
        yield np.frombuffer(stream.read(some * _POSITION.itemsize), _POSITION).astype(np.int64)
        count -= some


def _check(reader: Reader, key: str, encoding: str, of_frame: _OfFrame) -> None:
    """Raise what is wrong with a frame, as far as that shows without the base."""
    read, stored = _frame(reader, key, of_frame)
    if encoding == OVERWRITE:
        places, values = _overwritten(read, stored)
        for each in in_ascent(places, None):
            values.skip(len(each))
        values.finish()
        return
    stream = Stream(read, stored)
    said, found = stream.content_nbytes, sum(map(len, stream.portions()))
    if said not in (None, found):
        raise invalid(f"Its mask has {found} bytes, and says {said}.")
