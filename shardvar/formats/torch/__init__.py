"""torch's checkpoints, read and written without torch, and read without running a pickle.

Begin with ``dcp``, which opens a distributed checkpoint, and ``state_dict``, which opens a file of
``torch.save``. In the order in which they build on each other:

    values      tensors and plain objects, from the nodes of a pickle; the names of element types
    archive     the archives of ``torch.save``, read and written, and their old form
    source      a stored tensor or object, its place in a file, and the payloads of an open checkpoint
    dcp         opening a distributed checkpoint
    shares      the part of a tensor that the file of one rank holds
    state_dict  opening a file of ``torch.save``, or a set of them
    ranks       the files of all ranks, joined; the dialects of FSDP and of Meta's Llama
    rankwise    the dialect of torch_checkpointing
    deepspeed   the files of ZeRO, and Universal Checkpoints of DeepSpeed
    saved       the format of files of ``torch.save``, its table of dialects, and writing a file or a
                Universal Checkpoint

Writing a distributed checkpoint. The index is ``.metadata``, the pickle of one ``Metadata``, which
``dcp`` describes. It names the files, and no path, no machine and no time. One more attribute,
``shardvar``, which torch does not look at, is a dict of what torch has no place for:

    description, writer, user   the policy's description, the program, the user's metadata
    generation                  the run of the processes that wrote it, if there were several
    crc32                       the CRC-32 of the elements of each item, in the order of
                                ``storage_data``, as 32-bit numbers: items tell nothing about the
                                tensor that they belong to, and one file could take the place of
                                another

Within a file, items keep the order of the assignment and follow each other without gaps, as torch's
do. Objects that are carried over from another distributed checkpoint have a file of their own, the
last one.

A data file is named by a digest of the checkpoint's content, and never by the name of an older
file. So the index can be replaced in one step, and the same input makes the same names and bytes in
every empty folder. After the commit, the files are removed that a distributed checkpoint in this
folder may have had before, written by shardvar or by torch.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from typing import Any

import numpy as np

from shardvar.errors import UnsupportedError
from shardvar.formats.protocol import FileChecksums, NewCheckpoint, SharedFormat
from shardvar.formats.sinks import CommitSteps, SetSink, aside_names, take_away
from shardvar.formats.torch.archive import ArchiveWriter, ItemFrame, frame_of, item_of
from shardvar.formats.torch.dcp import (
    ABOUT,
    DATA_SUFFIX,
    DCP,
    METADATA,
    find_dcp,
    open_dcp,
    parse_metadata,
)
from shardvar.formats.torch.source import TorchSource
from shardvar.formats.torch.values import DTYPES
from shardvar.formats.unfinished import JOURNAL_ENDING, share_files, share_prefix
from shardvar.layout.dtypes import NAMES, Ints
from shardvar.limits import MAX_METADATA_NBYTES, MAX_RANK
from shardvar.planning.index import Metadata
from shardvar.planning.slices import Capabilities, SliceTable, check_holds
from shardvar.records import entity, frozen, replace
from shardvar.storage.protocol import Storage
from shardvar.wire.opcode_writer import Call, Instance, LazyDict, build_pickle
from shardvar.wire.plain import SIZE, Global

_VERSION = "1.0.0"
_CONTIGUOUS = 0  # The number of C order among torch's memory formats


@entity
class ItemTable:
    slices: SliceTable  # [m] the slices of tensors
    file: Ints  # [m] the number of the file of each
    start: Ints  # [m] the first byte of the item of each, in bytes of its file
    nbytes: Ints  # [m] the size of the item of each
    checksum: Ints  # [m] the CRC-32 of the elements of each
    objects: Mapping[str, bytes]
    """The items of objects, which lie one after the other in the last file."""


def build_metadata(items: ItemTable, names: Sequence[str], about: Metadata) -> bytes:
    """Return the content of the index; ``names`` are the names of the files, by number."""
    order, bounds = items.slices.by_tensor(by_offset=True)
    tensors = np.flatnonzero(np.diff(bounds))

    # One tensor at a time: as objects, its description and its places take ten times as much memory
    # as in the pickle.
    def rows() -> Iterator[tuple[int, list[int]]]:
        for tensor in tensors.tolist():
            yield tensor, order[bounds[tensor] : bounds[tensor + 1]].tolist()

    def described() -> Iterator[tuple[str, Any]]:
        for tensor, own_rows in rows():
            yield items.slices.tensors.keys[tensor], _tensor(items.slices, tensor, own_rows)
        for key in items.objects:
            yield key, Call(f"{DCP}metadata.BytesStorageMetadata", ())

    def planned() -> Iterator[tuple[str, Any]]:
        keys = (items.slices.tensors.keys[row] for row in tensors.tolist())
        for key in chain(keys, items.objects):
            yield key, about.paths.get(key, (key,))

    def stored() -> Iterator[tuple[Instance, Instance]]:
        for tensor, own_rows in rows():
            for number, row in enumerate(own_rows):
                offset = _size(items.slices.region(row).offset)
                file, start, nbytes = items.file[row], items.start[row], items.nbytes[row]
                index = _index(items.slices.tensors.keys[tensor], offset, number)
                yield index, _info(names[int(file)], int(start), int(nbytes))
        start = 0
        for key, item in items.objects.items():
            yield _index(key, None, None), _info(names[-1], start, len(item))
            start += len(item)

    own = {"description": about.description, "writer": about.writer, "user": dict(about.user)}
    own |= {"generation": about.generation} if about.generation else {}
    crc = {"crc32": items.checksum[order].astype("<u4").tobytes()}
    state = {
        "state_dict_metadata": LazyDict(described),
        "planner_data": LazyDict(planned),
        "storage_data": LazyDict(stored),
        "version": _VERSION,
        ABOUT: own | crc,
    }
    return build_pickle(_instance("metadata.Metadata", **state), 4)


def _tensor(slices: SliceTable, tensor: int, rows: Sequence[int]) -> Instance:
    chunks = []
    for row in rows:
        region = slices.region(row)
        extents = {"offsets": _size(region.offset), "sizes": _size(region.shape)}
        chunks.append(_instance("metadata.ChunkStorageMetadata", **extents))
    # Dense, without gradient, in C order, not pinned.
    layout = Call("torch.serialization._get_layout", ("torch.strided",))
    memory_format = Call(f"{DCP}metadata._MEM_FORMAT_ENCODING", (_CONTIGUOUS,))
    dtype = Global(f"torch.{slices.tensors.dtype(tensor)}")
    state = (dtype, layout, False, memory_format, False)
    properties = Instance(f"{DCP}metadata.TensorProperties", state)
    full = _size(slices.tensors.shape(tensor))
    return _instance(
        "metadata.TensorStorageMetadata", properties=properties, size=full, chunks=chunks
    )


def _index(key: str, offset: Call | None, number: int | None) -> Instance:
    """Return the key of a place; the number of the slice is a hint."""
    return _instance("metadata.MetadataIndex", fqn=key, offset=offset, index=number)


def _instance(name: str, **state: Any) -> Instance:
    return Instance(DCP + name, state)


def _info(name: str, start: int, nbytes: int) -> Instance:
    return _instance("filesystem._StorageInfo", relative_path=name, offset=start, length=nbytes)


def _size(extents: Sequence[int]) -> Call:
    return Call(SIZE, (tuple(extents),))


_OTHER = "x"  # Appended to a digest whose name is taken
_PROCESS_NAME = re.compile(r"__\d+_0-[A-Za-z0-9]+\.distcp")
"""A final name, such as several processes write files under in a bucket."""
_OWN = re.compile(
    # data files, also those that torch wrote
    rf"__\d+_\d+(-[A-Za-z0-9]+)?\.distcp(\.[A-Za-z0-9]+\.tmp{JOURNAL_ENDING})?"
    # unfinished indexes, and indexes of single ranks
    r"|(__\d+)?\.metadata\.([A-Za-z0-9]+\.)?tmp|__\d+\.metadata"
)
"""The files of a folder that belong to its distributed checkpoint, apart from the index."""


@frozen
class DcpWriter(ArchiveWriter):
    def frame(
        self, slices: SliceTable, start: Ints, checksums: FileChecksums
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the bytes before the first payload, between two, and after the last."""
        position, tail = 0, b""
        columns = start.tolist(), slices.nbytes.tolist(), checksums.payload.tolist()
        for frame, begin, nbytes, crc in zip(_frames(slices), *columns, strict=True):
            head, next_tail = frame.build(crc)
            yield position, tail + head
            position, tail = begin + nbytes, next_tail
        yield position, tail


@entity(kw_only=True)
class DcpSink(SetSink):
    about: Metadata  # The metadata, with the items of the objects that are carried
    item: tuple[Ints, Ints]  # [m] the first byte of each item in its file, and its size

    def index(self, checksums: Sequence[FileChecksums], there: list[str]) -> CommitSteps:
        """Return the files that have items, and the index that names them."""
        assignment, checksum = self.new.assignment, self.by_row(checksums)
        filled = np.unique(assignment.file).tolist()
        asides = [*self.asides, *(self.objects or ())[:1]]
        numbers = [*filled, *range(assignment.num_files, len(asides))]
        slices = assignment.slices
        head = slices.tensors.keys, sorted(self.about.user.items()), self.about.objects
        digest = hashlib.sha256(repr(head).encode())
        columns = (slices.tensors.codes, slices.tensors.shapes, slices.tensor, slices.offset)
        for column in (*columns, slices.shape, self.start, assignment.file, checksum):
            digest.update(np.ascontiguousarray(column, np.int64).tobytes())
        token = digest.hexdigest()[:16]
        if self.asides and all(map(_PROCESS_NAME.fullmatch, self.asides)):
            final = [*self.asides, process_name(assignment.num_files, token)]
            names = [final[number] for number in numbers]
        else:
            names = [process_name(number, token) for number in range(len(numbers))]
            while not set(names).isdisjoint(there):
                token += _OTHER
                names = [process_name(number, token) for number in range(len(numbers))]
        position = np.searchsorted(np.array(filled, np.int64), assignment.file)
        items = ItemTable(assignment.slices, position, *self.item, checksum, self.about.objects)
        content = build_metadata(items, names, self.about)
        renames = [(asides[number], name) for number, name in zip(numbers, names, strict=True)]
        tidy = self.sweep(lambda there: _others(there, names))
        return CommitSteps(renames, (self.index_aside, METADATA), content, tidy)


def _frames(slices: SliceTable) -> list[ItemFrame]:
    # Many slices have one dtype and one shape: only differing ones are looked at.
    tensors = slices.tensors
    columns = tensors.codes[slices.tensor], tensors.ranks[slices.tensor], slices.shape
    kinds, position = np.unique(np.column_stack(columns), axis=0, return_inverse=True)
    frames = [frame_of(NAMES[code], tuple(shape[:rank])) for code, rank, *shape in kinds.tolist()]
    return [frames[number] for number in position.ravel().tolist()]


def _file_name(number: int) -> str:
    return f"__{number}_0{DATA_SUFFIX}"


def process_name(process: int, token: str) -> str:
    return f"__{process}_0-{token}{DATA_SUFFIX}"


def _others(there: Iterable[str], named: Sequence[str]) -> list[str]:
    there = list(there)
    own = [name for name in there if name not in named and _OWN.fullmatch(name)]
    return own + share_files(there, share_prefix(METADATA, "torch"))


CAPABILITIES = Capabilities(
    dtypes=frozenset(DTYPES.values()),
    slice_dtypes=frozenset(DTYPES.values()),
    max_slice_rank=MAX_RANK,
    holds_objects=True,
    is_exact=True,
    folder_index=METADATA,
)
"""Every dtype that torch and NumPy share; a slice without elements is not told from another one at
its offset."""


@frozen
class TorchFormat(SharedFormat):
    """torch.distributed.checkpoint: a folder with an index and files of items."""

    name: str = "torch"
    capabilities: Capabilities = CAPABILITIES  # The dtypes that torch can read back

    def locate(self, storage: Storage, name: str) -> list[str]:
        return find_dcp(storage.names(), name)

    def open(self, storage: Storage, name: str) -> TorchSource:
        return open_dcp(storage, METADATA)

    def lay_out(self, new: NewCheckpoint) -> DcpSink:
        assignment, slices = new.assignment, new.assignment.slices
        asides = aside_names(new, _file_name)
        if new.files is not None and all(map(_PROCESS_NAME.fullmatch, asides)):
            new.storage.announce(asides)
        check_holds(slices, self.capabilities, self.name)
        is_wide = slices.tensors.ranks[slices.tensor] > self.capabilities.max_slice_rank
        for is_wrong, what, remedy in (
            (~(slices.shape > 0).all(axis=1), " without elements", "Leave the slice out."),
            (is_wide, ", which has too many axes", "Write the tensor whole."),
        ):
            wrong = np.flatnonzero(~slices.is_whole() & is_wrong)
            if len(wrong):
                cause = (
                    f"The format torch cannot hold a slice of {slices.key(int(wrong[0]))!r}{what}."
                )
                raise UnsupportedError(cause, remedy)
        frames = _frames(slices)
        head = np.array([frame.head_nbytes for frame in frames], np.int64)
        nbytes = head + slices.nbytes + np.array([frame.tail_nbytes for frame in frames], np.int64)
        # The items of written files have the same sizes, and end their heads where the payloads begin.
        start = assignment.starts(nbytes) + head if new.files is None else new.files.start
        items = {key: item_of(carried) for key, carried in new.metadata.objects.items()}
        objects = (
            f"{_file_name(assignment.num_files)}.{new.generation}.tmp",
            b"".join(items.values()),
        )
        return DcpSink(
            new=new,
            asides=asides,
            start=start,
            writer=DcpWriter(),
            index_aside=f"{METADATA}.{new.generation}.tmp",
            objects=objects if items else None,
            about=replace(new.metadata, objects=items),
            item=(start - head, nbytes),
        )

    def process_file(self, name: str, token: str, process: int, count: int) -> str:
        return process_name(process, token)

    def adopts_objects(self) -> bool:
        """Return True: the commit writes them into a file for objects."""
        return True

    def generation_of(self, storage: Storage, name: str) -> str:
        with closing(storage.open(METADATA)) as file:
            if file.size > MAX_METADATA_NBYTES:
                return ""
            return parse_metadata(file.read(0, file.size)).about.generation

    def remove(self, storage: Storage, name: str) -> None:
        take_away(
            storage, [(METADATA, f"{METADATA}.removed.tmp")], lambda names: _others(names, ())
        )


FORMAT = TorchFormat()
