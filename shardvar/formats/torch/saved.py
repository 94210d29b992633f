"""The format of files that ``torch.save`` writes: state dicts and other values, in one file or a
set.

A file has a dict of tensors, which ``torch.load`` also reads with ``weights_only=True`` and
``mmap=True``. Keys are the keys of the dict: dots in them separate nothing. Each tensor is whole
and contiguous, and has its own storage, except for tied ones. Plain objects, such as steps and
parameter groups, follow the tensors in the dict. The same tensors make the same bytes. ``archive``
describes the file.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shardvar.errors import UnsupportedError
from shardvar.formats.files import look_into
from shardvar.formats.leaves import leaves_of
from shardvar.formats.protocol import FileChecksums, Format, NewCheckpoint
from shardvar.formats.sets import is_foreign
from shardvar.formats.sinks import OneFileSink, check_one_file, one_file, remove_one_file
from shardvar.formats.torch.archive import (
    ArchiveWriter,
    PackedRecord,
    build_file,
    build_frame,
    plan_starts,
    records_of,
    tensor_call,
)
from shardvar.formats.torch.dcp import DATA_SUFFIX
from shardvar.formats.torch.deepspeed import (
    UNIVERSAL,
    find_universal,
    find_zero,
    open_universal,
    open_zero,
)
from shardvar.formats.torch.parameter_folders import UniversalFormat
from shardvar.formats.torch.ranks import (
    RANK,
    find_llama,
    find_ranks,
    open_llama,
    open_ranks,
)
from shardvar.formats.torch.rankwise import RANKWISE, find_rankwise, open_rankwise
from shardvar.formats.torch.source import TorchSource
from shardvar.formats.torch.state_dict import open_file, open_set
from shardvar.formats.torch.values import DTYPES, is_tensor, pickled_of
from shardvar.layout.dtypes import Ints
from shardvar.limits import MAX_PICKLE_NBYTES
from shardvar.planning.slices import Capabilities, SliceTable
from shardvar.records import field, frozen_dataclass
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.damage import LEGACY_MAGIC
from shardvar.wire.opcode_writer import Call, LazyDict, build_pickle
from shardvar.wire.plain import decode_value
from shardvar.wire.zip import LOCAL, first_name, local_nbytes

_MODEL = re.compile(r"model_world_size_")
SET_INDEX_SUFFIX = ".bin.index.json"
SAVE_SUFFIXES = (".pt", ".pth")  # The endings of files that are torch's, with any content
_SHARED_SUFFIXES = (".bin", ".ckpt")
SAVED_SUFFIXES = (*SAVE_SUFFIXES, *_SHARED_SUFFIXES)  # The endings that files of torch.save have
_INDEX = re.compile(r"(.*)\.bin\.index(\.[^.]+)?\.json", re.DOTALL)
_PART = re.compile(r"(.*)-\d{5,}-of-\d{5,}\.bin", re.DOTALL)
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_PICKLE_RECORD = b"/data.pkl"


def set_of(name: str) -> str | None:
    """Return the prefix of the files of a set by the name of its index; None for other names.

    >>> set_of("pytorch_model.bin.index.json"), set_of("pytorch_model.bin.index.fp16.json"), set_of("model.bin")
    ('pytorch_model', 'pytorch_model.fp16', None)
    """
    index = _INDEX.fullmatch(name)
    return index[1] + (index[2] or "") if index else None


class FileDialect(NamedTuple):
    """A checkpoint in several files of ``torch.save``, from another program."""

    find: Callable[[Storage, str, Sequence[str]], list[str]]
    """Returns the checkpoints that a name may mean in a folder with these files."""
    open: Callable[..., TorchSource]  # Opens a checkpoint of that name
    is_deepspeed: bool = False
    """True if a Universal Checkpoint can be written of its contents (``is_whole``)."""


DIALECTS = (
    FileDialect(find_zero, open_zero, is_deepspeed=True),
    FileDialect(find_llama, open_llama),
    FileDialect(find_universal, open_universal, is_deepspeed=True),
    FileDialect(find_rankwise, open_rankwise),
    FileDialect(find_ranks, open_ranks),
)
"""In the order in which a name is offered to them. Files of the last may lie next to other files."""


def find_saved(storage: Storage, name: str) -> list[str]:
    names = storage.names()
    indexes = [file for file in names if set_of(file) is not None]
    for dialect in DIALECTS[:-1]:
        if joined := dialect.find(storage, name, names):
            return joined
    ranks = find_ranks(storage, name, names)
    if not name:
        # An index speaks for its folder: the files next to it belong to it.
        single = (file for file in names if not RANK.fullmatch(file) and _is_saved(storage, file))
        # The ranks of a trainer also save their optimizers and states: the model speaks for them.
        return indexes or [*([*filter(_MODEL.match, ranks)] or ranks), *single]
    part = _PART.fullmatch(name)
    own = [index for index in indexes if part and set_of(index) == part[1]]
    own = [index for index in own if not is_foreign(storage, index)]
    if own and name in names:
        return own
    if ranks:
        return ranks
    if name in names:
        if name in indexes or _is_saved(storage, name):
            return [name]
        # Items of distributed checkpoints are archives too.
        is_other = name.endswith(DATA_SUFFIX)
        return [name] if not is_other and _begins_as_saved(storage, name, (LEGACY_MAGIC,)) else []
    endings = (*SAVED_SUFFIXES, SET_INDEX_SUFFIX)
    files = (name + ending for ending in endings)
    return [file for file in files if file in names and find_saved(storage, file)]


def _is_saved(storage: Storage, name: str) -> bool:
    """Return True if a file is torch's by its name, or by its name and its first bytes."""
    return name.endswith(SAVE_SUFFIXES) or (
        name.endswith(_SHARED_SUFFIXES) and _begins_as_saved(storage, name, _PICKLES)
    )


def _begins_as_saved(storage: Storage, name: str, pickles: tuple[bytes, ...]) -> bool:
    """Return True if a file begins as a pickle, or as an archive with a pickle first."""

    def look(file: ReadableFile) -> bool:
        first = file.read(0, min(LOCAL.size, file.size))
        if first.startswith(pickles):
            return True
        local = file.read(0, local_nbytes(first)) if len(first) == LOCAL.size else b""
        return first_name(local).endswith(_PICKLE_RECORD)

    return look_into(storage, name, look, False)


@frozen_dataclass
class SavedWriter(ArchiveWriter):
    objects: Mapping[str, Any]
    """The objects in addition to the tensors, as ``build_pickle`` takes them."""
    ties: Mapping[str, str] = field(default_factory=dict)
    """Further keys, each with the key of the tensor whose storage it has."""

    def frame(
        self, slices: SliceTable, start: Ints, checksums: FileChecksums
    ) -> Iterator[tuple[int, bytes]]:
        return build_frame(_records(slices, self), checksums.payload.tolist())


def saved_sink(new: NewCheckpoint, form: Format) -> OneFileSink:
    slices, final, there = new.assignment.slices, file_name(new.name), new.storage.names()
    check_one_file(new, form)
    if new.name not in there and find_ranks(new.storage, new.name, there):
        cause = (
            f"{new.storage.path} has files of single ranks of {new.name}, which are read and not "
            "written."
        )
        raise UnsupportedError(cause, "Choose another name.")
    writer = SavedWriter(
        {
            key: pickled_of(decode_value(encoding.decode("ascii")))
            for key, encoding in new.metadata.objects.items()
        },
        new.metadata.ties,
    )
    records = _records(slices, writer)
    if records[0].nbytes > MAX_PICKLE_NBYTES:
        cause = (
            f"The pickle of {len(slices)} tensors has {records[0].nbytes} bytes, more than "
            f"{MAX_PICKLE_NBYTES}"
        )
        raise UnsupportedError(f"{cause} (MAX_PICKLE_NBYTES).", "Choose the format safetensors.")
    placed = zip(records, plan_starts(records), strict=True)
    starts = [start for record, start in placed if record.content is None]
    return one_file(
        new, final, starts, writer, lambda: build_file({**writer.objects}, _entered(writer.objects))
    )


def file_name(name: str) -> str:
    """Return the file of a target's name.

    >>> file_name("model"), file_name("model.pth")
    ('model.pt', 'model.pth')
    """
    if set_of(name) is not None:
        cause = f"{name} is the index of a set of files, which is read and not written."
        raise UnsupportedError(
            cause, "Choose a name that ends with .pt, or the format safetensors."
        )
    return name if name.endswith(SAVED_SUFFIXES) else f"{name}.pt"


def _records(slices: SliceTable, writer: SavedWriter) -> list[PackedRecord]:
    tensors, rows = slices.tensors, slices.tensor.tolist()

    def call_of(number: int) -> Call:
        row = rows[number]
        return tensor_call(tensors.dtype(row), tensors.shape(row), number)

    def values() -> Iterator[tuple[str, Any]]:
        for number, row in enumerate(rows):
            yield tensors.keys[row], call_of(number)
        firsts = {*writer.ties.values()}
        numbers = {
            tensors.keys[row]: number
            for number, row in enumerate(rows)
            if tensors.keys[row] in firsts
        }
        for key, first in writer.ties.items():
            yield key, call_of(numbers[first])
        yield from writer.objects.items()

    pickle = build_pickle(LazyDict(values))
    return records_of(pickle, slices.nbytes.tolist(), _entered(writer.objects))


def _entered(objects: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values a reader would take for several keys."""
    # A dict, or a list with one in it; torch has such tuples as one object.
    return [
        key
        for key, value in objects.items()
        if isinstance(value, dict | list | tuple)
        and [*leaves_of({key: value}, is_tensor)[0]] != [key]
    ]


__all__ = ["FOLDER", "FORMAT"]

CAPABILITIES = Capabilities(
    dtypes=frozenset(DTYPES.values()),
    slice_dtypes=frozenset(),
    many_files=False,
    holds_objects=True,
    holds_texts=False,
    holds_ties=True,
    folders=frozenset({RANKWISE, UNIVERSAL}),
)
"""Whole tensors of the dtypes that torch has, in one file."""


@frozen_dataclass
class SavedFormat(Format):
    """torch.save: a file; a set of files with an index, or of all ranks, which is only read."""

    name: str = "pt"
    capabilities: Capabilities = CAPABILITIES  # The dtypes that torch can read back
    is_whole: bool = False
    """True to list all that a Universal Checkpoint of DeepSpeed is written of."""

    def locate(self, storage: Storage, name: str) -> list[str]:
        return find_saved(storage, name)

    def open(self, storage: Storage, name: str) -> TorchSource:
        names = storage.names()
        for dialect in DIALECTS:
            if name in dialect.find(storage, name, names):
                options = {"is_whole": self.is_whole} if dialect.is_deepspeed else {}
                return dialect.open(storage, name, **options)
        return open_set(storage, name) if set_of(name) is not None else open_file(storage, name)

    def lay_out(self, new: NewCheckpoint) -> OneFileSink:
        """Lay out a file, whose metadata are only objects: a state dict has no more room."""
        return saved_sink(new, self)

    def remove(self, storage: Storage, name: str) -> None:
        names = storage.names()
        is_joined = name in (RANKWISE, UNIVERSAL) or find_ranks(storage, name, names)
        if is_joined or any(name in dialect.find(storage, name, names) for dialect in DIALECTS):
            cause = f"{storage.path}: The checkpoint {name} is several files of another program."
            raise UnsupportedError(cause, "Remove the files, or the folder.")
        remove_one_file(storage, file_name(name))


FORMAT = SavedFormat()
WHOLE = SavedFormat(is_whole=True)
FOLDER = UniversalFormat(reads=WHOLE)
