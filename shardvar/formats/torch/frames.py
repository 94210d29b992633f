"""The frames of items: what surrounds the elements of a tensor in a file, and where in it they lie.

An item is an archive (``archive``) with one tensor or one object. Small items are read whole, many
at a time; of a large one, both ends are read.

Tensors of one dtype and one shape have frames that differ in nothing but checksums. So the frame of
the first one is kept as a template. If the next item has the same bytes in front of its elements,
and the same directory apart from checksums, then everything that was checked about the first one
holds for it too, and only the CRC differs.
"""

from dataclasses import dataclass, field, replace

from shardvar.errors import InvalidCheckpoint
from shardvar.formats.files import DataFiles
from shardvar.formats.torch.archive import Archive, Read, Record, open_archive
from shardvar.formats.torch.items import View, payload_of, view_of
from shardvar.formats.torch.tensors import is_tensor, tensor_of, unsupported
from shardvar.formats.window import Window
from shardvar.limits import MAX_PICKLE_NBYTES
from shardvar.storage.protocol import ReadableFile
from shardvar.wire.damage import WRITE_AGAIN, past_limit
from shardvar.wire.inert import Node
from shardvar.wire.pickle import parse_pickle
from shardvar.wire.zip import CENTRAL, CENTRAL_MAGIC

_HEAD_NBYTES = 1 << 12
"""Bytes of a large item that are read first: nearly always all pickle and headers."""
_SMALL_NBYTES = 1 << 14
"""Items up to this size are read whole."""
_WINDOW_NBYTES = 1 << 20
_CRC_START, _CRC_STOP, _LOCAL_CRC_START = 16, 20, 14
"""The place of a CRC in an entry of a zip's directory, and in a local header."""

Kind = tuple[str, tuple[int, ...]]
"""The dtype and the shape of a tensor."""


@dataclass(frozen=True, slots=True)
class _Template:
    """The frame of a tensor; offsets count from the beginning of the item."""

    view: View
    """The tensor, in an item at offset 0."""
    head: bytes
    """The bytes in front of the elements, up to the CRC of the elements if it is there."""
    fixed: tuple[tuple[int, int, bytes], ...]
    """Start, stop and content of the other ranges that are the same in all items."""
    crc_start: int
    """The place of the CRC of the elements in the directory."""
    crc_again: int
    """The place of the same CRC in front of the elements, or else in the directory."""

    def view_in(self, item: bytes, start: int) -> View | None:
        """Return the tensor of an item that begins at byte ``start`` of its file; None if its frame
        is another one."""
        if not item.startswith(self.head):
            return None
        for begin, stop, octets in self.fixed:
            if item[begin:stop] != octets:
                return None
        crc_octets = item[self.crc_start : self.crc_start + 4]
        if item[self.crc_again : self.crc_again + 4] != crc_octets:
            return None
        crc = int.from_bytes(crc_octets, "little")
        record = self.view.record
        return View(
            self.view.tensor,
            Record(start + record.start, record.nbytes, crc),
            self.view.is_big_endian,
        )


@dataclass(slots=True, eq=False)
class Frames:
    """The files of a checkpoint, whose items are read in order."""

    data: DataFiles
    """The files."""
    templates: dict[tuple[int, Kind], _Template] = field(default_factory=dict)
    """The frames that were seen, by the size of the item and the kind of the tensor."""
    uses_templates: bool = True
    """False reads every frame by itself, with the same result."""
    _window: Window | None = None

    def read_tensor(self, file: int, start: int, nbytes: int, kind: Kind) -> View:
        """Return the tensor in the item at byte ``start``; ``kind`` is the index's."""
        opened = self.data.open(file)
        is_small = nbytes <= _SMALL_NBYTES
        item = self._whole(opened, start, nbytes) if is_small else b""
        template = self.templates.get((nbytes, kind)) if self.uses_templates else None
        view = template.view_in(item, start) if template and is_small else None
        if view is not None:
            return view
        archive = open_archive(self._reader(opened, start, item), start, nbytes)
        root, _ = parse_pickle(archive.pickle())
        if not is_tensor(root):
            if type(root) is Node:
                raise unsupported(root)
            raise InvalidCheckpoint(
                "The item holds an object, and the index says that it is a tensor.", WRITE_AGAIN
            )
        view = view_of(archive, tensor_of(root), archive.is_big_endian())
        if is_small and (view.tensor.dtype, view.tensor.shape) == kind:
            made = _template_of(archive, view, item, start)
            if made is not None:
                self.templates[nbytes, kind] = made
        return view

    def read_object(self, file: int, start: int, nbytes: int) -> tuple[bytes, bool]:
        """Return the payload of the object in the item at byte ``start`` of a file, and True if it
        has a checksum."""
        opened = self.data.open(file)
        item = self._whole(opened, start, nbytes) if nbytes <= _SMALL_NBYTES else b""
        archive = open_archive(self._reader(opened, start, item), start, nbytes)
        return payload_of(parse_pickle(archive.pickle())[0]), archive.has_checksums

    def read_item(self, file: int, start: int, nbytes: int) -> bytes:
        """Return the item at byte ``start`` of a file as it is, with all its CRCs compared."""
        if nbytes > MAX_PICKLE_NBYTES:
            raise past_limit(f"The item of an object has {nbytes} bytes", "MAX_PICKLE_NBYTES")
        item = self.data.open(file).read(start, nbytes)
        archive = open_archive(lambda begin, count: item[begin : begin + count], 0, nbytes)
        for name in archive.members:
            archive.content(name, nbytes)
        return item

    def _whole(self, file: ReadableFile, start: int, nbytes: int) -> bytes:
        if self._window is None or self._window.file is not file:
            self._window = Window(file, _WINDOW_NBYTES)
        return self._window.read(start, nbytes)

    def _reader(self, file: ReadableFile, start: int, item: bytes) -> Read:
        """Return a function that reads a file, most of it from bytes that were read before."""
        held = item or file.read(start, min(_HEAD_NBYTES, max(file.size - start, 0)))

        def read(begin: int, nbytes: int) -> bytes:
            position = begin - start
            if position >= 0 and position + nbytes <= len(held):
                return held[position : position + nbytes]
            return file.read(begin, nbytes)

        return read


def _template_of(archive: Archive, view: View, item: bytes, start: int) -> _Template | None:
    """Return the template of an item; None if it has no checksums, or something checked lies behind
    the elements."""
    if not archive.has_checksums:
        return None
    (member,) = archive.members[view.tensor.record]
    stop = view.record.start - start
    # In a local header, the CRC stands 14 bytes after its beginning; a stream's is 0.
    crc_again = member.start + _LOCAL_CRC_START
    is_again = crc_again + 4 <= stop and item[crc_again : crc_again + 4] != bytes(4)
    head = item[: crc_again if is_again else stop]
    directory = archive.stop - start
    for name in ("data.pkl", "byteorder"):
        if archive.has(name) and archive.record(name).start > view.record.start:
            return None
    # The CRCs of the elements, and of records that hold something random, differ from item to item.
    begins = [crc_again + 4, stop, directory] if is_again else [directory]
    crc_start = -1
    for name, members in archive.members.items():
        if name in ("data.pkl", "byteorder"):
            continue
        entry = item.find(members[0].raw_name, directory) - CENTRAL.size
        if (
            not item.startswith(CENTRAL_MAGIC, entry)
            or CENTRAL.unpack_from(item, entry)[7] != members[0].crc
        ):
            return None
        begins += [entry + _CRC_START, entry + _CRC_STOP]
        if members[0] is member:
            crc_start = entry + _CRC_START
    begins = sorted([*begins, len(item)])
    fixed = tuple((a, b, item[a:b]) for a, b in zip(begins[::2], begins[1::2], strict=True))
    moved = replace(view, record=replace(view.record, start=view.record.start - start))
    return _Template(moved, head, fixed, crc_start, crc_again if is_again else crc_start)
