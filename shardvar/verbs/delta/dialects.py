"""Dialects: the deltas of other programs that are read.

A dialect is known by its marks (``formats.published``), never by a name that the caller gives. One that
is not read is refused by its name. No dialect names its base by a digest, and none has new or removed
tensors. docs/delta.md names the sources.

The change of one tensor turns old leaves into new ones:

    mask       a stream of the XOR of all bytes
    places     ascending positions of elements or bytes, and a value for each

Both are read from their beginning to their end, a portion at a time, however large they are. The
promises of a stream are compared where it is read: the bytes that are due and no others; positions
that ascend, and lie in the tensor.

slime, miles, SGLang, vime and ModelExpress: a folder for each version

    weight_v000007/model-00000-of-00001.safetensors    changed tensors, uint8: one frame of zstd each
    weight_v000007/model.safetensors.index.json        metadata with five texts, and the weight_map

    version, base_version    numbers of six digits; any names in ModelExpress
    delta_encoding           xor: the mask of all bytes. overwrite: the number of changed bytes (u4),
                             their ascending positions (u4 each), their new values
    compression_format       zstd
    checksum_format          adler32, xxh3-128 or blake3: the metadata of a shard have the checksum of
                             each tensor after the change, under its name
    checksum_scope           only in a fork of vime: compressed_delta, the checksum is of the frame

TRL: one file of safetensors for each step, with the positions and values of elements

    deltas/step_000007.safetensors    the metadata are texts: format sparse_weight_patch, version 1,
                                      sparse True, model_version, and counts

    NAME.indices, NAME.values    int32 positions; bfloat16 values; changed_params is a list of the names
    NAME.idx, NAME.val           encoding raw: int32 positions. gap_delta: uint16 or uint32 gaps, each
                                 the step from the position before, less 1

Positions count elements in C order. No file has a checksum but the first ones of TRL: checksum_sha256
is of all tensors of the result in the order of their names.

To add a dialect, add its marks to ``formats.published``, a function that opens it, and a row of
``_OPENERS``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise

import numpy as np

from shardvar.engine.read import FlatTensor
from shardvar.errors import (
    COPY_AGAIN,
    ArgumentError,
    CorruptCheckpoint,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.compressed import CHECKSUMS, ReadPayload, Stream, new_checksum
from shardvar.formats.published import PAIRS, SLIME, TRL, TRL_FORMAT, Published, published_of
from shardvar.formats.sets import DELTA_ENCODING
from shardvar.layout.dtypes import Ints
from shardvar.planning.slices import TensorTable
from shardvar.records import entity, field
from shardvar.storage.protocol import Storage
from shardvar.verbs.compare.blocks import read_portion
from shardvar.verbs.delta.contents import check_faults
from shardvar.verbs.reader import Reader
from shardvar.wire.damage import invalid, malformed
from shardvar.wire.strict_json import parse_json

PORTION = 1 << 16
"""The positions that are read at once."""

Patch = Callable[[memoryview], None]
"""Turns an old leaf into the new one, in place."""


@entity
class ChangedTensor(ABC):
    """A tensor that a delta of another program changes."""

    reader: Reader = field(repr=False)
    encoding: str
    """The encoding of the change, by the name that the dialect has for it."""
    checksum: str
    """The checksum of the new tensor, in hexadecimal digits; empty if there is none."""

    @abstractmethod
    def open(self, dtype: str, nbytes: int) -> "Patcher":
        """Return the change of a tensor of a dtype and of so many bytes in the base."""

    @abstractmethod
    def check(self) -> None:
        """Raise the error of a damaged change, as far as that shows without the base."""


@entity
class PublishedDelta:
    reader: Reader
    dialect: str
    """The dialect, for messages."""
    changes: Mapping[str, ChangedTensor]
    """The tensors that it changes, by their keys in the base."""
    version: str = ""
    """The version that it makes; empty if unknown."""
    base_version: str = ""
    """The version that it was made of; empty if unknown."""
    algorithm: str = ""
    """The checksum of each new tensor; empty if it has none."""
    whole_sha256: str = ""
    """The SHA-256 of all tensors of the result; empty if it has none."""

    @property
    def path(self) -> str:
        return self.reader.path

    def at(self, key: str) -> AbstractContextManager[None]:
        return prefix_errors(f"{self.path}: {key!r}")


class MaskPatcher:
    """A stream of the XOR of all bytes; leaves come in order."""

    def __init__(self, stream: Stream, nbytes: int) -> None:
        stated = stream.content_nbytes
        if stated not in (None, nbytes):
            raise invalid(f"Its mask has {stated} bytes, and the tensor in the base {nbytes}.")
        self._stream = stream

    def patch(self, start: int, stop: int) -> Patch:
        mask = self._stream.read(stop - start)

        def xor(leaf: memoryview) -> None:
            words = np.frombuffer(leaf, np.uint8)
            np.bitwise_xor(words, np.frombuffer(mask, np.uint8), out=words)

        return xor

    def finish(self) -> None:
        self._stream.finish()


class PlacesPatcher:
    """Ascending positions, and a value for each."""

    def __init__(
        self, places: Iterator[Ints], values: "Stream | _Values", width: int, num: int
    ) -> None:
        self._places, self._values = in_ascent(places, num), values
        self._width, self._held = width, np.zeros(0, np.int64)

    def patch(self, start: int, stop: int) -> Patch:
        first, last = start // self._width, stop // self._width
        portions = [self._held]
        while not len(portions[-1]) or portions[-1][-1] < last:
            portion = next(self._places, None)
            if portion is None:
                break
            portions.append(portion)
        joined = np.concatenate(portions)
        count = int(np.searchsorted(joined, last))
        self._held = joined[count:]
        kind, places = np.dtype(f"<u{self._width}"), joined[:count] - first
        values = self._values.read(count * self._width)

        def put(leaf: memoryview) -> None:
            np.frombuffer(leaf, kind)[places] = np.frombuffer(values, kind)

        return put

    def finish(self) -> None:
        if len(self._held) or next(self._places, None) is not None:
            raise invalid("A position lies behind the tensor.")
        self._values.finish()


Patcher = MaskPatcher | PlacesPatcher
"""The change of one tensor, from its first leaf on. At the end it raises ``InvalidCheckpoint`` for a rest."""


def in_ascent(portions: Iterator[Ints], num: int | None) -> Iterator[Ints]:
    """Yield positions; ``InvalidCheckpoint`` unless they ascend, and lie in a tensor of ``num`` elements.

    >>> [each.tolist() for each in in_ascent(iter([np.array([0, 2]), np.array([5])]), 6)]
    [[0, 2], [5]]
    """
    before = -1
    for portion in portions:
        if not len(portion):
            continue
        steps = np.diff(portion, prepend=before)
        if not (steps > 0).all():
            at = int(np.argmax(steps <= 0))
            last = before if at == 0 else int(portion[at - 1])
            if int(portion[at]) < 0:
                raise invalid(f"A position is {int(portion[at])}.")
            raise invalid(f"The position {int(portion[at])} follows {last}: they must ascend.")
        before = int(portion[-1])
        if num is not None and before >= num:
            raise invalid(f"The position {before} lies outside of a tensor of {num}.")
        yield portion


def stored_payload(reader: Reader, key: str) -> tuple[ReadPayload, int]:
    """Return what reads the payload of a tensor of a delta, and its bytes."""
    flat = FlatTensor.of(reader.source, reader.find(key))

    def read(start: int, nbytes: int) -> bytes:
        return bytes(read_portion(flat, start, start + nbytes))

    return read, flat.nbytes


# slime, miles, SGLang, vime and ModelExpress.


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
    # Each tensor must be in the file that the index names.
    check_faults(reader)
    for finding in reader.source.findings():
        if finding.is_damage:
            raise invalid(f"{reader.path}: {finding.place}: {finding.message}")
    algorithm, changes = user["checksum_format"], dict[str, ChangedTensor]()
    for key in reader:
        checksum = user.get(key, "")
        with prefix_errors(f"{reader.path}: {key!r}"):
            tensors = reader.find(key).slices.tensors
            dtype, shape = tensors.fact(0)
            if dtype != "uint8" or len(shape) != 1:
                raise invalid(f"It is {dtype} of {list(shape)}, and not a frame.")
            if len(checksum) != CHECKSUMS[algorithm][0] or not _HEX.issuperset(checksum):
                raise invalid(f"Its checksum {checksum!r} is not one of {algorithm}.")
        of_result, of_frame = ("", (algorithm, checksum)) if scope else (checksum, None)
        changes[key] = _ChangedFrame(reader, user[DELTA_ENCODING], of_result, key, of_frame)
    return PublishedDelta(reader, "slime", changes, version, base, "" if scope else algorithm)


@entity
class _ChangedFrame(ChangedTensor):
    """A tensor whose change is a frame of zstd."""

    key: str
    of_frame: tuple[str, str] | None
    """The checksum of the frame: its kind, and its digits; None if checksums are of results."""

    def _frame(self) -> tuple[ReadPayload, int]:
        """Return what reads the frame, and its bytes, after comparing its checksum."""
        read, stored = stored_payload(self.reader, self.key)
        if self.of_frame:
            algorithm, wanted = self.of_frame
            checksum = new_checksum(algorithm)
            for start in range(0, stored, _READ_NBYTES):
                checksum.update(read(start, min(_READ_NBYTES, stored - start)))
            if checksum.hexdigest() != wanted:
                raise CorruptCheckpoint(
                    f"Its frame has another checksum ({algorithm}).", COPY_AGAIN
                )
        return read, stored

    def open(self, dtype: str, nbytes: int) -> Patcher:  # noqa: ARG002  # a frame is of bytes
        read, stored = self._frame()
        if self.encoding == XOR:
            return MaskPatcher(Stream(read, stored), nbytes)
        return PlacesPatcher(*_overwritten(read, stored), 1, nbytes)

    def check(self) -> None:
        read, stored = self._frame()
        if self.encoding == OVERWRITE:
            places, values = _overwritten(read, stored)
            for portion in in_ascent(places, None):
                values.skip(len(portion))
            values.finish()
            return
        stream = Stream(read, stored)
        stated, nbytes = stream.content_nbytes, sum(map(len, stream.portions()))
        if stated not in (None, nbytes):
            raise invalid(f"Its mask has {nbytes} bytes, and says {stated}.")


def _overwritten(read: ReadPayload, stored: int) -> tuple[Iterator[Ints], Stream]:
    """All positions come before all values, so the frame is unpacked twice, and never held."""
    first, second = Stream(read, stored), Stream(read, stored)
    (count,) = np.frombuffer(first.read(_POSITION.itemsize), _POSITION).tolist()
    second.skip(_POSITION.itemsize * (1 + count))

    def positions() -> Iterator[Ints]:
        for start in range(0, count, PORTION):
            octets = first.read(min(count - start, PORTION) * _POSITION.itemsize)
            yield np.frombuffer(octets, _POSITION).astype(np.int64)

    return positions(), second


# TRL.


VALUE = "bfloat16"
"""The dtype of all values."""
RAW, GAPS = "raw", "gap_delta"
"""The encodings of positions that are read."""
INDICES, IDX = PAIRS[:2]
"""The endings of keys, of the first layout and of the later ones."""
_MAX_DEPTH = 2


def open_trl(reader: Reader) -> PublishedDelta:
    user = reader.metadata.user
    if user.get("version") != "1":
        found = repr(user["version"]) if "version" in user else "missing"
        raise UnsupportedError(
            f"{reader.path}: The version of {TRL_FORMAT} is {found}; version 1 is read.",
            "Update shardvar, or apply it with the program that published it.",
        )
    check_faults(reader)
    keys = [*reader]
    # A file without tensors is of either layout.
    is_later = any(key.endswith(IDX) for key in keys)
    endings = IDX if is_later and not any(key.endswith(INDICES) for key in keys) else INDICES
    encoding = user.get("encoding", GAPS) if endings == IDX else RAW
    if encoding not in (RAW, GAPS):
        raise UnsupportedError(
            f"{reader.path}: The positions have the encoding {encoding!r}; {RAW} and {GAPS} are read.",
            f"Publish it with the encoding {GAPS}, or apply it with the program that published it.",
        )
    names = _names(reader, keys, endings)
    changes = {name: _changed_elements(reader, name, endings, encoding) for name in names}
    version = user.get("model_version", "")
    if version and not is_numeral(version):
        raise invalid(f"{reader.path}: model_version is {version!r}, and not a number.")
    # The first files name their base; later ones are published one step after the other.
    base = user.get("prev_model_version", "").replace("-1", "")
    base = base or (str(int(version) - 1) if version else "")
    whole = user.get("checksum_sha256", "")
    return PublishedDelta(reader, "trl", changes, version, base, whole_sha256=whole)


def _names(reader: Reader, keys: list[str], endings: tuple[str, str]) -> list[str]:
    """Return the names of the changed tensors: each has positions and values, and there is nothing else."""
    at, value = endings
    names = [key.removesuffix(at) for key in keys if key.endswith(at)]
    wanted = {name + ending for name in names for ending in endings}
    for key in keys:
        if key not in wanted:
            raise invalid(
                f"{reader.path}: There is {key!r}, and not {key.removesuffix(value) + at!r}."
            )
    for key in sorted(wanted.difference(keys)):
        raise invalid(f"{reader.path}: There are positions, and no {key!r}.")
    listed = reader.metadata.user.get("changed_params")
    if listed is not None:
        document = parse_json(listed.encode("utf-8", "surrogateescape"), _MAX_DEPTH)
        if not isinstance(document, list) or not all(isinstance(each, str) for each in document):
            raise malformed(f"{reader.path}: changed_params is not a list of names.")
        if sorted(document) != sorted(names):
            other = min({*document} ^ {*names}, default=min(document, default=""))
            raise invalid(
                f"{reader.path}: changed_params and the tensors disagree about {other!r}."
            )
    return names


def _changed_elements(
    reader: Reader, name: str, endings: tuple[str, str], encoding: str
) -> ChangedTensor:
    vectors: list[tuple[str, int]] = []
    for key in (name + ending for ending in endings):
        tensors = reader.find(key).slices.tensors
        dtype, shape = tensors.fact(0)
        if len(shape) != 1:
            raise invalid(f"{reader.path}: {key!r} has the shape {list(shape)}.")
        vectors.append((dtype, shape[0]))
    (places, num), (values, num_values) = vectors
    allowed = ("int32",) if encoding == RAW else ("uint16", "uint32")
    with prefix_errors(f"{reader.path}: {name!r}"):
        if places not in allowed:
            raise invalid(f"Its positions are {places}, not {' or '.join(allowed)}.")
        if values != VALUE:
            raise UnsupportedError(
                f"Its values are {values}; the dialect has {VALUE}.",
                "Apply it with the program that published it.",
            )
        if num != num_values:
            raise invalid(f"It has {num} positions and {num_values} values.")
    at, value = endings
    return _ChangedElements(reader, encoding, "", name + at, name + value, places)


@entity
class _ChangedElements(ChangedTensor):
    """A tensor whose change is positions and values of elements."""

    places: str
    values: str
    dtype: str
    """The dtype of the positions."""

    def _positions(self) -> Iterator[Ints]:
        read, nbytes = stored_payload(self.reader, self.places)
        kind = np.dtype(self.dtype).newbyteorder("<")
        step, before = PORTION * kind.itemsize, -1
        for start in range(0, nbytes, step):
            octets = read(start, min(step, nbytes - start))
            numbers = np.frombuffer(octets, kind).astype(np.int64)
            if self.encoding == RAW:
                yield numbers
                continue
            places = before + np.cumsum(numbers + 1)
            before = int(places[-1])
            yield places

    def open(self, dtype: str, nbytes: int) -> Patcher:
        if dtype != VALUE:
            raise UnsupportedError(
                f"The base has it as {dtype}, and the delta has values of {VALUE}.",
                f"Give a base of {VALUE}: `shardvar reshard BASE NEW --cast {VALUE}` makes one.",
            )
        width = np.dtype("<u2").itemsize
        values = _Values(stored_payload(self.reader, self.values)[0])
        return PlacesPatcher(self._positions(), values, width, nbytes // width)

    def check(self) -> None:
        for _ in in_ascent(self._positions(), None):
            pass


class _Values:
    """The values of a tensor, one after the other."""

    def __init__(self, read: ReadPayload) -> None:
        self._read, self._at = read, 0

    def read(self, nbytes: int, /) -> bytes:
        self._at += nbytes
        return self._read(self._at - nbytes, nbytes)

    def finish(self) -> None:
        """Do nothing: there are as many as positions."""


# The dialects by name, and deltas of them that are open.


_OPENERS: Mapping[str, Callable[[Reader], PublishedDelta]] = {SLIME: open_slime, TRL: open_trl}


def marks_of(reader: Reader, storage: Storage) -> Published | None:
    if reader.format != "safetensors":
        return None
    tables = [*reader.index.scan()]
    tensors = tables[0].slices.tensors if tables else TensorTable.of(())
    return published_of(storage, reader.metadata.user, tensors)


def open_published(reader: Reader, marks: Published) -> PublishedDelta:
    """Return a delta by its marks; ``UnsupportedError`` if its dialect is not read."""
    opener = _OPENERS.get(marks.dialect)
    if opener is None:
        kind = marks.kind()
        raise UnsupportedError(f"{reader.path} is {kind.what}.", kind.remedy)
    return opener(reader)


def check_versions(deltas: Sequence[PublishedDelta]) -> None:
    """Raise ``ArgumentError`` unless each delta was made of the version of its predecessor."""
    for before, after in pairwise(deltas):
        if before.dialect != after.dialect:
            raise ArgumentError(
                f"{after.path} is of the dialect {after.dialect}, and {before.path} of "
                f"{before.dialect}: nothing says that one follows the other.",
                "Apply them one after the other.",
            )
        if is_version(before.version, after.base_version):
            continue
        raise ArgumentError(
            f"{after.path} does not follow {before.path}: its base is the version "
            f"{after.base_version or '?'}, and its predecessor makes {before.version or '?'}.",
            "Give them in order, and each one between the first and the last.",
        )


def is_version(a: str, b: str) -> bool:
    """Return True if two texts mean one version: as numbers, or the same text.

    >>> is_version("000007", "7"), is_version("v7", "v7"), is_version("v7", "v07"), is_version("", "")
    (True, True, False, False)
    """
    return int(a) == int(b) if is_numeral(a) and is_numeral(b) else bool(a) and a == b


def is_numeral(version: str) -> bool:
    return version.isascii() and version.isdigit() and len(version) < 19
