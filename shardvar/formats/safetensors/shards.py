"""The shards of PyTorch's distributed checkpoints, joined: each rank wrote its slices into other
files.

1. Group. The files of one checkpoint differ only in the numbers of their names (``names``).
2. Join. Each header says where its slices begin (``offsets``). A tensor reaches to the end of its
   last slice, since no file says how large it is. That its slices cover it is a law of every index,
   which the reader checks.
3. Doubt. A tensor whose last slices are lost looks smaller, and whole. So a shard that cannot be
   read, or whose number is missing between others, makes every key a fault. A lost last shard
   leaves no trace; ``findings`` says so.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardvar.errors import (
    COPY_AGAIN,
    CheckpointError,
    IncompleteCheckpoint,
    InconsistentTensor,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles
from shardvar.formats.protocol import Finding
from shardvar.formats.safetensors.names import ShardName, shard_names_of, split_shard_name
from shardvar.formats.safetensors.offsets import LAYOUT_KEYS, SHARDING_INFO_KEY, saved_offsets
from shardvar.formats.safetensors.source import SafetensorsContents, read_header
from shardvar.layout.dtypes import code
from shardvar.limits import MAX_RANK
from shardvar.planning.index import NO_CHECKSUM, EntryTable, Metadata, TableIndex
from shardvar.planning.slices import SliceTable, TensorTable, pad, widen
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import invalid
from shardvar.wire.digests import DIGESTS
from shardvar.wire.safetensors_header import BITS, Header, sizes_of

_UNKNOWN_NUMBER = "No file says how many shards there were: a lost last shard cannot be noticed."


@dataclass(slots=True, eq=False)
class _Tensor:
    """A tensor, as far as its slices tell it."""

    dtype: str
    shape: list[int]
    rows: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Joined:
    """All slices, column by column, and their tensors."""

    tensors: dict[str, _Tensor] = field(default_factory=dict)
    offset: list[Sequence[int]] = field(default_factory=list)
    shape: list[Sequence[int]] = field(default_factory=list)
    file: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    faults: dict[str, CheckpointError | UnsupportedError] = field(default_factory=dict)


def read_shards(storage: Storage, name: str) -> SafetensorsContents:
    """Return the contents of all shards of a checkpoint, by the name of one of them."""
    names = shard_names_of(name, storage.names()) or [name]
    files = DataFiles(storage, names)
    joined, metadata = _Joined(), dict[str, str]()
    for number in range(len(names)):
        file = files.open(number)
        header = read_header(file)
        with prefix_errors(file.name):
            offsets = saved_offsets(header)
            if offsets is None:
                raise invalid(f"It is named as a shard, but it has no {SHARDING_INFO_KEY}.")
        _join(joined, header, offsets, number)
        metadata |= header.metadata
    files.check_in_place()
    for key, tensor in joined.tensors.items():
        _check_tensor(joined, key, tensor)
    parts = [part for each in names if (part := split_shard_name(each))]
    lost = _missing_ranks(storage, parts)
    if lost:
        joined.faults |= {
            key: IncompleteCheckpoint(f"{key!r}: {lost.cause}", lost.remedy)
            for key in joined.tensors
        }
    user = {key: text for key, text in metadata.items() if key not in (*LAYOUT_KEYS, DIGESTS)}
    # UnsupportedError is listed too.
    faults: Mapping[str, CheckpointError] = joined.faults  # type: ignore[assignment]
    index = TableIndex(_entries(joined), names, Metadata(user=user), faults)
    return SafetensorsContents(index, files, list(_findings(names, parts)))


def _join(
    joined: _Joined, header: Header, offsets: Mapping[str, Sequence[int]], number: int
) -> None:
    """Add the slices of one file."""
    for row, key in enumerate(header.keys):
        dtype, shape = header.dtypes[row], header.shapes[row]
        tensor = joined.tensors.setdefault(key, _Tensor(dtype, [0] * len(shape)))
        if key not in offsets:
            joined.faults[key] = invalid(
                f"{key!r}: {SHARDING_INFO_KEY} does not say where one of its slices begins."
            )
        elif (tensor.dtype, len(tensor.shape)) != (dtype, len(shape)):
            cause = (
                f"{key!r} is {tensor.dtype} with {len(tensor.shape)} axes in one shard and {dtype} "
                "with "
            )
            joined.faults[key] = InconsistentTensor(f"{cause}{len(shape)} in another.", COPY_AGAIN)
        else:
            ends = (offset + extent for offset, extent in zip(offsets[key], shape, strict=True))
            tensor.shape = list(map(max, tensor.shape, ends))
            tensor.rows.append(len(joined.start))
            joined.offset.append(offsets[key])
            joined.shape.append(shape)
            joined.file.append(number)
            joined.start.append(int(header.start[row]))


def _check_tensor(joined: _Joined, key: str, tensor: _Tensor) -> None:
    """Make a tensor a fault if its dtype, its rank or its size cannot be held."""
    if len(tensor.shape) > MAX_RANK:
        cause = f"{key!r} has {len(tensor.shape)} axes; NumPy allows at most {MAX_RANK}."
        joined.faults[key] = UnsupportedError(cause, "Write it with fewer axes.")
        return
    if BITS[tensor.dtype] < 8:
        cause = (
            f"{key!r} has the dtype {tensor.dtype}, whose elements share bytes; its slices cannot "
            "be joined."
        )
        joined.faults[key] = UnsupportedError(
            cause, "Consolidate the checkpoint with the program that wrote it."
        )
        return
    try:
        sizes_of([key], [tensor.shape], [BITS[tensor.dtype]])
    except CheckpointError as error:
        joined.faults[key] = error


def _missing_ranks(storage: Storage, parts: Sequence[ShardName]) -> IncompleteCheckpoint | None:
    """Return the error of the shards whose numbers are missing; ranks count from 1."""
    ranks = {part.rank for part in parts}
    missing = max(ranks, default=0) - len(ranks - {0})
    if not missing:
        return None
    first = next(rank for rank in range(1, max(ranks) + 1) if rank not in ranks)
    named = f"shard {first}" if missing == 1 else f"shard {first} and {missing - 1} more"
    cause = f"{storage.path} lacks {named} of at least {max(ranks)}."
    return IncompleteCheckpoint(cause, "Copy the files of all ranks into the folder.")


def _entries(joined: _Joined) -> EntryTable:
    """Return the slices of the tensors that can be read, in the order of the keys."""
    keys = sorted(key for key, tensor in joined.tensors.items() if _is_listed(joined, key, tensor))
    tensors = [joined.tensors[key] for key in keys]
    codes = np.array([code(tensor.dtype) for tensor in tensors], np.int64)
    table = TensorTable(keys, codes, *pad([tensor.shape for tensor in tensors], fill=1))
    rows = [row for tensor in tensors for row in tensor.rows]
    number = np.repeat(
        np.arange(len(keys)), np.array([len(tensor.rows) for tensor in tensors], np.int64)
    )
    rank = table.shapes.shape[1]
    offset = widen(pad([joined.offset[row] for row in rows], fill=0)[1], rank, 0)
    shape = widen(pad([joined.shape[row] for row in rows], fill=1)[1], rank, 1)
    slices = SliceTable.of(table, number, offset, shape)
    file, start = (
        np.array([column[row] for row in rows], np.int64) for column in (joined.file, joined.start)
    )
    return EntryTable(
        slices, file, start, np.full(len(rows), NO_CHECKSUM), np.ones(len(rows), np.bool)
    )


def _is_listed(joined: _Joined, key: str, tensor: _Tensor) -> bool:
    """Return True unless the tensor's own columns are wrong; tensors that lack a shard are listed
    with their fault."""
    return bool(tensor.rows) and type(joined.faults.get(key)) in (type(None), IncompleteCheckpoint)


def _findings(names: Sequence[str], parts: Sequence[ShardName]) -> Iterator[Finding]:
    """Yield what the numbers of the files show, and what they cannot show."""
    yield Finding(names[0], _UNKNOWN_NUMBER, False)
    ranks_of = Counter(part.number for part in parts)
    count, ranks = parts[0].num_files, len({part.rank for part in parts})
    if len(ranks_of) != count:
        yield Finding(
            names[0],
            f"The names imply {count} files, but only {len(ranks_of)} of them exist.",
            True,
        )
    for number, present in sorted(ranks_of.items()):
        if present < ranks:
            cause = (
                f"{present} of {ranks} shards have a file {number} of {count}: the others had none "
                "of its tensors, or "
            )
            yield Finding(names[0], f"{cause}their file is lost.", False)
