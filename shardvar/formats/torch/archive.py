"""The archives of ``torch.save``: a whole file, or one item of a file of a distributed checkpoint.

    FOLDER/data.pkl                     the pickle: the value, with a reference to each storage
    FOLDER/byteorder                    "little" or "big"; older files lack it and are little-endian
    FOLDER/data/0, FOLDER/data/1, …     the storages
    FOLDER/version                      "3", and further records without tensors
    FOLDER/.shardvar/leaves             of shardvar: an encoded list of the keys that are one object,
                                        although their values are dicts or lists of dicts

FOLDER is ``archive`` or the stem of the file's name. Records are stored without compression, and
the bytes of each begin at a multiple of 64 from the beginning of the archive. Their local headers
have no sizes and no CRC, because they are written as streams; the zip's directory has them.

torch never compares the CRC-32 of a record. Here the CRC of a record is compared whenever all its
bytes are read. Where a program told torch not to compute them, all of them are 0, and none is
compared.

A fault of the directory is a fault of the archive; of a whole file, the records are found by their
local headers then (``wire.zip``). A fault of a record is a fault of the tensors in it.

An archive is written with the same records, in this order, and one storage a tensor. Sizes are
known before the bytes of storages are, and the CRC-32 of each record comes last, into its local
header and into the directory. The folder is named ``archive``, as in files that torch writes to a
buffer, so that the bytes do not depend on a file's name.

A tensor is a call of ``torch._utils._rebuild_tensor_v2``. It has the dtype of the class of its
storage. Younger dtypes have no such class, and are an argument of ``_rebuild_tensor_v3``.

The frame of an item is all its bytes but the tensor's elements and their CRC. An item is an archive
of one tensor. Its directory is padded, so that the size of the item is a multiple of 64 bytes. Then
the elements of every item of a file begin at a multiple of 64 bytes, and can be mapped. Tensors of
one dtype and one shape have one frame, so it is made once for all of them. The item of an object
has no elements, and is its pickle in an archive.

Before version 1.6, and later with ``_use_new_zipfile_serialization=False``, torch wrote another form
(``OldFile``), which has no checksums:

    pickle      the number 0x1950a86a20f9469cfc6c
    pickle      1001, the version of the form
    pickle      {"protocol_version": 1001, "little_endian": bool, "type_sizes": {…}}
    pickle      the value, with a reference to each storage
    pickle      the keys of the storages, in the order of what follows
    storages    of each: int64, the number of its elements; and the elements

A reference is ("storage", class, key, location, number of elements, view), where ``view`` is None
unless the storage was a part of another one. The class of a whole module is also a reference.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from shardvar.errors import (
    CheckpointError,
    IncompleteCheckpoint,
    MalformedCheckpoint,
    OutOfBounds,
    UnsupportedError,
)
from shardvar.formats.files import first_bytes, size_fault
from shardvar.formats.protocol import FileWriter
from shardvar.formats.torch.values import STORAGES, UNTYPED_STORAGE, pickled_of, storage_of
from shardvar.layout.dtypes import ITEMSIZES, Shape, code
from shardvar.limits import MAX_ARRAYS_NBYTES, MAX_PICKLE_NBYTES
from shardvar.planning.index import NO_CHECKSUM
from shardvar.records import field, frozen, mutable
from shardvar.storage.protocol import ReadableFile
from shardvar.wire.crc import CRC32
from shardvar.wire.damage import (
    WRITE_AGAIN,
    corrupt,
    distrusted,
    invalid,
    malformed,
    past_limit,
)
from shardvar.wire.opcode_writer import Call, build_pickle
from shardvar.wire.pickle import parse_pickle
from shardvar.wire.plain import ORDERED_DICT, Global, Node, Reference, decode_value, encode_value
from shardvar.wire.zip import (
    CENTRAL,
    FLAG_STREAMED,
    FLAG_UTF8,
    LOCAL,
    STORED,
    TAIL_NBYTES,
    Directory,
    Member,
    build_central,
    build_end,
    build_local,
    check_local,
    check_member,
    check_supported,
    encode_name,
    local_nbytes,
    plan_local_nbytes,
    plan_padding,
    read_directory,
)

PICKLE, LEAVES = "data.pkl", ".shardvar/leaves"
_SMALL_TAIL_NBYTES = 4096
"""The bytes at an archive's end that are read first: the directory of one tensor takes some 700."""
_MAX_TEXT_NBYTES = 1 << 10
_PEEK_NBYTES = 192
"""The name and the extra field of a local header, which torch pads to 64 bytes, are shorter."""
_USUAL_FLAGS = FLAG_STREAMED | FLAG_UTF8

Read = Callable[[int, int], bytes]


@frozen
class Record:
    start: int
    nbytes: int
    crc: int  # The CRC-32 of its bytes by the archive's directory; ``NO_CHECKSUM`` if it has none


@mutable
class UnplacedRecord:
    """One record of an archive, whose local header is read when its place is asked for."""

    archive: "Archive"
    member: Member
    _start: int = -1

    @property
    def nbytes(self) -> int:
        return self.member.nbytes

    @property
    def crc(self) -> int:
        return self.archive.crc_of(self.member)

    @property
    def header(self) -> int:
        return self.archive.start + self.member.start

    @property
    def start(self) -> int:
        """Its first byte; raises if its local header is wrong."""
        return self.place(self.archive.read)

    def place(self, read: Read) -> int:
        """Return ``start``, read by another function the first time."""
        if self._start < 0:
            self._start = self.archive.locate(self.member, read, _PEEK_NBYTES)
        return self._start


@mutable
class LostRecord:
    """A record that is not in an archive, since it was cut off; of the size that its storage has."""

    nbytes: int
    fault: CheckpointError
    crc: int = NO_CHECKSUM

    @property
    def start(self) -> int:
        raise self.fault.at()

    @property
    def header(self) -> int:
        return -1 - id(self)

    def place(self, _read: Read) -> int:
        return self.start


@frozen
class Archive:
    read: Read
    start: int  # The first byte of the archive, in bytes of the file
    stop: int  # The first byte of its directory, in bytes of the file: records end before it
    members: dict[str, list[Member]]
    """The records by name, without the folder; a name that occurs twice has two."""
    has_checksums: bool
    """False if every CRC is 0, as after ``torch.serialization.set_crc32_options(False)``."""
    directory: Directory
    _unplaced: dict[str, UnplacedRecord] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        return name in self.members

    def lost(self, name: str) -> CheckpointError | None:
        return self.directory.lost() if self.directory.fault and name not in self.members else None

    def _member(self, name: str) -> Member:
        members = self.members.get(name, [])
        if not members:
            raise invalid(f"The archive has no record {name!r}.")
        if len(members) > 1:
            count = len(members)
            raise distrusted(
                f"The archive has {count} records {name!r}, and readers choose different ones."
            )
        check_member(members[0])
        return members[0]

    def record(self, name: str) -> Record:
        """Return the place of a record; raise if its description is wrong, or its local header."""
        member = self._member(name)
        return Record(self.locate(member, self.read), member.nbytes, self.crc_of(member))

    def unplaced(self, name: str) -> "Record | UnplacedRecord":
        """Return a record whose local header is read later, the same one each time."""
        if name not in self._unplaced:
            member = self._member(name)
            if member.method != STORED or member.flags & ~_USUAL_FLAGS:
                return self.record(name)
            self._unplaced[name] = UnplacedRecord(self, member)
        return self._unplaced[name]

    def crc_of(self, member: Member) -> int:
        return member.crc if self.has_checksums else NO_CHECKSUM

    def locate(self, member: Member, read: Read, peek_nbytes: int = 0) -> int:
        # The local header lies before the directory, and so do the bytes behind it.
        header, room = self.start + member.start, self.stop - LOCAL.size
        local = b""
        start = self.stop + 1
        if header <= room:
            local = read(header, min(LOCAL.size + peek_nbytes, self.stop - header))
            start = header + local_nbytes(local[: LOCAL.size])
        if start + member.stored_nbytes > self.stop:
            cause = (
                f"The record {member.name.partition('/')[2]!r} at offset {header} reaches out of "
                f"its archive, which ends at {self.stop}."
            )
            raise OutOfBounds(cause, WRITE_AGAIN)
        if start - header > len(local):
            local = read(header, start - header)
        check_local(local[: start - header], member)
        check_supported(member)
        return start

    def check_stored(self, name: str) -> None:
        """Raise if a record is compressed, as tools for zip archives do and torch never does."""
        if self.members[name][0].method != STORED:
            cause = f"The record {name!r} is compressed."
            raise UnsupportedError(
                cause, "Unpack the archive and pack it again without compression: `zip -0`."
            )

    def content(self, name: str, most: int = _MAX_TEXT_NBYTES) -> bytes:
        record = self.record(name)
        self.check_stored(name)
        if record.nbytes > most:
            raise malformed(f"The record {name!r} has {record.nbytes} bytes, more than {most}.")
        content = self.read(record.start, record.nbytes)
        if record.crc not in (NO_CHECKSUM, CRC32.compute(content)):
            raise corrupt(
                f"The record {name!r} at offset {record.start} disagrees with its CRC-32."
            )
        return content

    def unpickled(self) -> tuple[Any, int]:
        """Return the value of the pickle, as inert nodes, and its size."""
        most = MAX_PICKLE_NBYTES + MAX_ARRAYS_NBYTES
        size = self.members[PICKLE][0].nbytes if self.has(PICKLE) else 0
        if size > most:
            raise past_limit(f"The pickle has {size} bytes", "MAX_ARRAYS_NBYTES")
        data = self.content(PICKLE, most)
        return parse_pickle(data, is_typed=True, most=MAX_PICKLE_NBYTES)[0], len(data)

    def is_big_endian(self) -> bool:
        order = self.content("byteorder") if self.has("byteorder") else b"little"
        if order not in (b"little", b"big"):
            raise malformed(f"The byte order is {order[:16]!r}.")
        return order == b"big"


def open_archive(
    read: Read, start: int, nbytes: int, find: Callable[..., Directory] = read_directory
) -> Archive:
    # The first attempt reads a little, which is enough unless a comment or a long directory follows
    # the records.
    tails = _SMALL_TAIL_NBYTES, TAIL_NBYTES
    directory = find(lambda begin, count: read(start + begin, count), nbytes, tails)
    members: dict[str, list[Member]] = {}
    has_checksums = False
    for member in directory.members:
        members.setdefault(member.name.partition("/")[2], []).append(member)
        has_checksums |= member.crc != 0
    return Archive(read, start, start + directory.stop, members, has_checksums, directory)


_FOLDER = "archive/"
_CLASSES = {dtype: name for name, dtype in STORAGES.items()}
"""The class of a typed storage, by its dtype."""


class PackedRecord(NamedTuple):
    name: str
    nbytes: int
    content: bytes | None = None  # Its bytes; None for a storage, whose bytes are written by others


def records_of(
    pickle: bytes, storage_nbytes: Sequence[int], leaves: Sequence[str] = ()
) -> list[PackedRecord]:
    storages = [
        PackedRecord(f"data/{number}", nbytes) for number, nbytes in enumerate(storage_nbytes)
    ]
    before = {PICKLE: pickle, "byteorder": b"little"}
    after = {"version": b"3\n"} | ({LEAVES: encode_value([*leaves]).encode()} if leaves else {})
    first, last = (
        [PackedRecord(name, len(content), content) for name, content in contents.items()]
        for contents in (before, after)
    )
    return [*first, *storages, *last]


def tensor_call(dtype: str, shape: Shape, number: int) -> Call:
    count, strides = 1, list[int]()
    for extent in reversed(shape):
        strides.append(count)
        count *= max(extent, 1)  # as torch counts, also where an axis has no elements
    total = count if 0 not in shape else 0
    kind = _CLASSES.get(dtype)
    # The size of an untyped storage counts bytes.
    size = total if kind else total * int(ITEMSIZES[code(dtype)])
    storage = Reference(("storage", Global(kind or UNTYPED_STORAGE), str(number), "cpu", size))
    args = (storage, 0, shape, tuple(reversed(strides)), False, Call(ORDERED_DICT, ()))
    if kind:
        return Call("torch._utils._rebuild_tensor_v2", args)
    return Call("torch._utils._rebuild_tensor_v3", (*args, Global(f"torch.{dtype}")))


def plan_starts(records: Sequence[PackedRecord]) -> list[int]:
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
    ``padding`` makes the directory so many bytes longer."""
    crcs, directory, position = iter(storage_crcs), bytearray(), 0
    for record, start in zip(records, plan_starts(records), strict=True):
        crc = next(crcs) if record.content is None else CRC32.compute(record.content)
        raw_name = _raw_name(record)
        local = build_local(start - position, raw_name, crc, record.nbytes)
        yield position, local + (record.content or b"")
        more = padding if record is records[-1] else 0
        directory += build_central(position, raw_name, crc, record.nbytes, more)
        position = start + record.nbytes
    yield position, bytes(directory) + build_end(position, len(directory), len(records))


class ArchiveWriter(FileWriter):
    """The frame and the checksums of files that consist of archives."""

    __slots__ = ()

    crc = CRC32


def build_file(value: Any, leaves: Sequence[str] = ()) -> bytes:
    """Return an archive of a value without tensors, as ``build_pickle`` takes it."""
    records = records_of(build_pickle(value), [], leaves)
    return b"".join(octets for _, octets in build_frame(records, []))


def _raw_name(record: PackedRecord) -> bytes:
    return encode_name(_FOLDER + record.name)


_LOCAL_CRC, _CENTRAL_CRC = 14, 16
"""The place of the CRC in a local header, and in an entry of the directory."""
_ELEMENTS = b"archive/data/0"  # The name of the record of the elements


@frozen
class ItemFrame:
    """The bytes before and behind the elements, each without four bytes of CRC."""

    head: tuple[bytes, bytes]
    tail: tuple[bytes, bytes]

    @property
    def head_nbytes(self) -> int:
        return sum(map(len, self.head)) + 4

    @property
    def tail_nbytes(self) -> int:
        return sum(map(len, self.tail)) + 4

    def build(self, crc: int) -> tuple[bytes, bytes]:
        """Return head and tail of an item whose elements have that CRC-32."""
        octets = struct.pack("<L", crc)
        return octets.join(self.head), octets.join(self.tail)


@lru_cache(256)
def frame_of(dtype: str, shape: Shape) -> ItemFrame:
    """Return the frame of a tensor in C order.

    >>> frame = frame_of("float32", (3, 4))
    >>> frame.head_nbytes % 64, (frame.head_nbytes + 48 + frame.tail_nbytes) % 64
    (0, 0)
    """
    nbytes = prod(shape) * int(ITEMSIZES[code(dtype)])
    records = records_of(build_pickle(tensor_call(dtype, shape, 0)), [nbytes])
    *_, (start, end) = build_frame(records, [0])
    ranges = [octets for _, octets in build_frame(records, [0], plan_padding(start + len(end)))]
    # Two records, and then the local header of the elements; behind them the last record and the
    # directory.
    head, tail = b"".join(ranges[:3]), b"".join(ranges[3:])
    entry = tail.rindex(_ELEMENTS) - CENTRAL.size
    return ItemFrame(
        _without(head, len(head) - len(ranges[2]) + _LOCAL_CRC),
        _without(tail, entry + _CENTRAL_CRC),
    )


def item_of(carried: bytes) -> bytes:
    """Return the item of an object that is carried: as another distributed checkpoint has it, which
    begins as a zip archive does, or an encoding (``wire.plain``), which never begins so.

    >>> item_of(b"[1]")[:2], item_of(item_of(b"[1]")) == item_of(b"[1]")
    (b'PK', True)
    """
    if carried.startswith(b"PK"):
        return carried
    return build_file(pickled_of(decode_value(carried.decode("ascii"))))


def _without(octets: bytes, crc: int) -> tuple[bytes, bytes]:
    return octets[:crc], octets[crc + 4 :]


_VERSION = 1001
_FIRST_NBYTES = 1 << 16  # Bytes that are read first; of a large file the pickles usually have fewer


@frozen
class OldFile:
    records: dict[str, Record]
    root: Any
    nbytes: int
    is_big_endian: bool
    fault: CheckpointError | None
    has_checksums: bool = False

    def lost(self, name: str) -> CheckpointError | None:
        is_cut = isinstance(self.fault, IncompleteCheckpoint) and name not in self.records
        return self.fault if is_cut else None

    def record(self, name: str) -> Record:
        if name not in self.records:
            raise invalid(f"The file has no storage {name!r}.")
        return self.records[name]

    def check_stored(self, name: str) -> None: ...


def open_old(file: ReadableFile) -> OldFile:
    (_, version, system, root, keys), nbytes = _pickles(file)
    is_little = system.get("little_endian") if isinstance(system, dict) else None
    if version != _VERSION or type(is_little) is not bool:
        raise UnsupportedError(
            f"The file is of the form {version!r} of torch.save.", "Write it again with torch."
        )
    if type(keys) is not list or not {*map(type, keys)} <= {str} or len({*keys}) < len(keys):
        raise malformed("The keys of the storages are not a list of texts.")
    sizes = _sizes(root)
    records, stop = dict[str, Record](), nbytes
    for key in keys:
        if key not in sizes:
            raise malformed(f"No value refers to the storage {key!r}.")
        width, count = sizes[key]
        start, stop = stop, stop + 8 + width * count
        if stop > file.size:
            continue
        stored = int.from_bytes(file.read(start, 8), "little" if is_little else "big")
        if stored != count:
            raise invalid(f"The storage {key!r} has {stored} elements, but its reference {count}.")
        records[f"data/{key}"] = Record(start + 8, stop - start - 8, NO_CHECKSUM)
    name = file.name.rpartition("/")[2]
    fault = size_fault(name, file.size, stop, "its storages end at byte")
    return OldFile(records, root, nbytes, not is_little, fault)


def _pickles(file: ReadableFile) -> tuple[list[Any], int]:
    # Their size is known from their ends only, so more is read until all are there. Each attempt
    # reads four times as much: together they take a third more than the last one.
    most = _FIRST_NBYTES
    while True:
        data = first_bytes(file, most)
        try:
            values, start = list[Any](), 0
            for _ in range(5):
                value, start = parse_pickle(data, is_typed=True, start=start)
                values.append(value)
            return values, start
        except MalformedCheckpoint:
            if len(data) == file.size:
                raise
            if most >= MAX_PICKLE_NBYTES:
                raise past_limit(f"The pickles have {most} bytes", "MAX_PICKLE_NBYTES") from None
        most = min(4 * most, MAX_PICKLE_NBYTES)


def _sizes(root: Any) -> dict[str, tuple[int, int]]:
    """Return the width and the number of elements of each storage that a value refers to."""
    sizes: dict[str, tuple[int, int]] = {}
    seen, left = set[int](), [root]
    while left:
        value = left.pop()
        if type(value) in (str, bytes, int, float, bool, type(None)) or id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) is Reference:
            fields = value.value
            if type(fields) is tuple and fields and fields[0] == "module":
                continue  # the class of a whole module, and its source text
            key, width, count = storage_of(value)
            if sizes.setdefault(key, (width, count)) != (width, count):
                raise malformed(f"Two references describe the storage {key!r} differently.")
        elif type(value) is Node:
            left += [value.name, value.args, value.state, value.items]
        elif isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list | tuple):
            left += value
    return sizes
