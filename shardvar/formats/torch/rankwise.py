"""Checkpoints of PyTorch's package torch_checkpointing, joined as other files of ranks (``ranks``).

    metadata.pkl                 the index, plain data: for each item the file of each rank, and for
                                 each tensor how the ranks hold it
    model_0.pt, model_1.pt, …    an item of each rank: ITEM_RANK.pt, or the path in the index, as a
                                 file of torch.save or of safetensors

Keys are ITEM.NAME, such as ``model.emb.weight`` and ``optimizer.state.emb.weight.exp_avg``; an item
that is one value has the key ITEM. A DTensor tells itself which part of it a rank holds, and must
agree with the index. A plain tensor has the part in the index, or all of it.

The index is written if an item can be resharded. It may lack items, whose files are found by their
names. Files of JSON and of raw bytes are left out, which ``verify`` notes.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from math import prod
from typing import Any

from shardvar.errors import (
    CheckpointError,
    IncompleteCheckpoint,
    InconsistentTensor,
    MissingFile,
    ServerError,
    StorageError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles, FilesBelow, first_bytes
from shardvar.formats.protocol import Finding
from shardvar.formats.sets import is_bare
from shardvar.formats.torch.archive import LostRecord, Record
from shardvar.formats.torch.ranks import (
    COPY,
    RankFile,
    RankLeaves,
    join_parts,
    part_of,
    read_parts,
    read_torch,
)
from shardvar.formats.torch.shares import Share, Spread, read_placement, sizes
from shardvar.formats.torch.source import SavedContents, TensorView, TorchSource
from shardvar.formats.torch.values import StoredTensor, dtype_of
from shardvar.limits import MAX_METADATA_NBYTES, MAX_NAMED, MAX_RANK
from shardvar.pictures.words import named
from shardvar.planning.index import NO_CHECKSUM
from shardvar.records import field, mutable, replace
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import (
    WRITE_AGAIN,
    badly_written,
    distrusted,
    incomplete,
    invalid,
    malformed,
    past_limit,
)
from shardvar.wire.pickle import parse_pickle
from shardvar.wire.safetensors_header import PREAMBLE_NBYTES, header_nbytes, parse_header
from shardvar.wire.strict_json import parse_json

RANKWISE = "metadata.pkl"
_TORCH, _SAFETENSORS = "TorchSerialization", "SafetensorsSerialization"
_OTHERS = ("JsonSerialization", "RawSerialization")
_OF_ITEM = re.compile(r"(.+)_(0|[1-9]\d{0,8})\.pt", re.DOTALL)
_MAX_PATH_DEPTH = 2

Sharding = Mapping[str, Any]  # A description of a tensor in the index, with its mesh or its offsets


@mutable
class _Item:
    files: dict[int, tuple[str, str]] = field(default_factory=dict)
    """The path of the file of each rank, and its kind."""
    tensors: dict[str, dict[int, Sharding]] = field(default_factory=dict)
    """The ranks that hold a tensor, by its name, and how they do."""

    def place(self, name: str, rank: int, share: Share) -> Share:
        if rank not in self.tensors.get(name, {}):
            return share
        sharding = self.tensors[name][rank]
        kind, about = sharding.get("type"), _dict(sharding.get("data"))
        shape = sizes(about.get("global_shape"))
        dtype = about.get("dtype")
        if type(dtype) is not str or dtype_of(dtype) != share.dtype:
            cause = f"The index says the dtype {dtype!r}, and the file {share.dtype}."
            raise InconsistentTensor(cause, WRITE_AGAIN)
        if kind == "DTensorShardingMetadata":
            placed = _of_mesh(share, shape, about, rank)
        elif kind == "default_tensor_v1":
            names = ("global_offsets", "local_offsets", "local_sizes")
            lists = [_list(about.get(name)) for name in names]
            if len({*map(len, lists)}) != 1:
                raise badly_written("Its offsets and sizes differ in number.")
            (view,), offsets, views = share.views, list[tuple[int, ...]](), list[TensorView]()
            for triple in zip(*lists, strict=True):
                offset, inner, size = map(sizes, triple)
                own = view.tensor.shape
                if not len(offset) == len(inner) == len(size) == len(own) or any(
                    at + n > most for at, n, most in zip(inner, size, own, strict=True)
                ):
                    raise invalid(
                        f"The region {size} at {inner} is outside of the shape {own} of the file."
                    )
                offsets.append(offset)
                views.append(part_of(view, inner, size))
            placed = replace(share, shape=shape, views=tuple(views), offsets=tuple(offsets))
        else:
            raise UnsupportedError(f"The index describes it as {kind!r}.", "Update shardvar.")
        if placed.shape != shape:
            cause = f"The index says the shape {shape}, and the file {placed.shape}."
            raise InconsistentTensor(cause, WRITE_AGAIN)
        return placed


def _read_index(storage: Storage) -> Mapping[Any, Any]:
    with closing(storage.open(RANKWISE)) as file:
        if file.size > MAX_METADATA_NBYTES:
            raise past_limit(f"It has {file.size} bytes", "MAX_METADATA_NBYTES")
        root, _ = parse_pickle(file.read(0, file.size))
    if type(root) is not dict or type(root.get("metadata")) is not dict:
        raise malformed("It is not an index of torch_checkpointing.")
    return root


def find_rankwise(storage: Storage, name: str, names: Sequence[str]) -> list[str]:
    if name not in ("", RANKWISE) or RANKWISE not in names:
        return []
    try:
        root = _read_index(storage)
    except ServerError:
        raise
    except (CheckpointError, StorageError, UnsupportedError):
        return []
    return [RANKWISE] if "world_size" in root else []


def open_rankwise(storage: Storage, _name: str) -> TorchSource:
    contents = SavedContents()
    there = storage.tree()
    with prefix_errors(RANKWISE):
        items = _items_of(_read_index(storage), there)
    read_value = partial(read_torch, may_be_value=True)
    lost, paths, files = list[str](), list[str](), list[RankFile]()
    for name, item in items.items():
        needed = {rank for held in item.tensors.values() for rank in held}
        for rank, (path, kind) in item.files.items():
            if path not in there:
                lost += [path] if rank in needed else []
            elif kind in _OTHERS:
                remark = f"{path} holds the item {name!r} as {kind}, which is not read."
                contents.findings.append(Finding(path, remark, False))
            else:
                read = read_value if kind == _TORCH else _read_safetensors
                paths.append(path)
                files.append(RankFile(rank, read, name, item.place))
    if lost:
        raise MissingFile(f"{storage.path}: {named(lost[: MAX_NAMED + 1])} is missing.", COPY)
    if not paths:
        raise IncompleteCheckpoint(f"{RANKWISE} names no file with a tensor.", COPY)
    data = DataFiles(FilesBelow(storage), paths)
    parts, nbytes = read_parts(data, files, contents)
    for name, item in items.items():
        for tensor, held in item.tensors.items():
            key = f"{name}.{tensor}" if tensor else name
            lacking = sorted({*held} - {part.rank for part in parts.get(key, ())})
            if lacking and key not in contents.faults:
                which = named([item.files[rank][0] for rank in lacking[: MAX_NAMED + 1]])
                cause = f"{which} has no part of {key!r}, which the index names."
                contents.faults[key] = IncompleteCheckpoint(cause, COPY)
    whole = ((key, held) for key, held in parts.items() if key not in contents.faults)
    return join_parts(data, whole, nbytes, contents)


def _items_of(root: Mapping[Any, Any], there: Mapping[str, Any]) -> dict[str, _Item]:
    version, world = root.get("version", "1.0"), root.get("world_size")
    if version not in ("1.0", "2.0"):
        cause = f"The index is of version {version!r}, and 1.0 and 2.0 are read."
        raise UnsupportedError(cause, "Update shardvar.")
    if type(world) is not int or world < 1:
        raise badly_written(f"The number of ranks is {world!r}.")
    items = {}
    for name, (tensors, files) in _described(root, version).items():
        if type(name) is not str or not is_bare(name):
            raise distrusted(f"An item is named {name!r}.")
        items[name] = item = _Item(dict(_files(name, files, world)))
        for path, groups in tensors.items():
            key = ".".join(_steps(path))
            held = item.tensors.setdefault(key, {})
            for group in _list(groups):
                sharding = _dict(_dict(group).get("sharding_metadata"))
                for rank in _list(group.get("ranks")):
                    if type(rank) is not int or rank not in item.files or rank in held:
                        raise invalid(f"{key!r} of {name!r} is of the rank {rank!r}, or twice.")
                    held[rank] = sharding
    for path in there:
        match = _OF_ITEM.fullmatch(path)
        if match and "/" not in path and int(match[2]) < world:
            item = items.setdefault(match[1], _Item())
            item.files.setdefault(int(match[2]), (path, _TORCH))
    return items


def _described(root: Mapping[Any, Any], version: str) -> dict[Any, tuple[dict[Any, Any], Any]]:
    """Return tensors and files of each item; an index of version 1.0 has one table of all."""
    table = _dict(root.get("metadata"))
    if version == "2.0":
        names = "nested_path_to_metadata", "rank_to_layout_info"
        pairs = {name: [_dict(item).get(part) for part in names] for name, item in table.items()}
        return {name: (_dict(tensors), files) for name, (tensors, files) in pairs.items()}
    items: dict[Any, tuple[dict[Any, Any], Any]] = {}
    for rank, layouts in _dict(root.get("rank_to_layout_info_mappings")).items():
        for name, layout in _dict(layouts).items():
            items.setdefault(name, ({}, {}))[1][rank] = layout
    for path, groups in table.items():
        name, *rest = _steps(path)
        if name not in items:
            raise badly_written(f"The item {name!r} has no files.")
        items[name][0][tuple(rest)] = groups
    return items


def _dict(value: Any) -> dict[Any, Any]:
    if type(value) is not dict:
        raise badly_written("A table of the index is not a dict.")
    return value


def _list(value: Any) -> list[Any]:
    if type(value) not in (list, tuple):
        raise badly_written("A list of the index is not a list.")
    return [*value]


def _files(item: str, layouts: Any, world: int) -> Iterator[tuple[int, tuple[str, str]]]:
    table = _dict(layouts)
    ranks = [int(rank) if type(rank) is str and rank.isdecimal() else rank for rank in table]
    if len(ranks) != world or {*ranks} != {*range(len(ranks))}:
        raise invalid(
            f"The item {item!r} has files of {len(ranks)} ranks, and {world} ranks wrote."
        )
    for rank, layout in zip(ranks, table.values(), strict=True):
        if layout is None:
            yield rank, (f"{item}_{rank}.pt", _TORCH)
            continue
        path = _dict(layout).get("file_path")
        kind = _dict(layout.get("serialization_format")).get("type")
        if type(path) is not str or not all(map(is_bare, path.split("/"))):
            raise distrusted(
                f"The file of the item {item!r} is {path!r}, which is not in the folder."
            )
        if kind not in (_TORCH, _SAFETENSORS, *_OTHERS):
            raise UnsupportedError(f"{path} is of the kind {kind!r}.", "Update shardvar.")
        yield rank, (path, kind)


def _steps(path: Any) -> list[str]:
    steps = list(path) if type(path) is tuple else None
    if type(path) is str:
        steps = parse_json(path.encode("utf-8", "surrogatepass"), _MAX_PATH_DEPTH)
    if type(steps) is not list or not {*map(type, steps)} <= {str, int}:
        raise badly_written(f"A path of the index is {path!r}.")
    return [str(step) for step in steps]


def _read_safetensors(data: DataFiles, number: int, _rank: int) -> RankLeaves:
    file = data.open(number)
    nbytes = header_nbytes(first_bytes(file), file.size)
    header = parse_header(file.read(PREAMBLE_NBYTES, nbytes))
    data.judge(number, header.stop, "its header says")
    rows = {name: row for row, name in enumerate(header.keys)}

    def value(name: str) -> Share:
        row = rows[name]
        dtype, shape, size = header.dtypes[row], tuple(header.shapes[row]), int(header.nbytes[row])
        if len(shape) > MAX_RANK:
            raise UnsupportedError(f"It has {len(shape)} axes.", "Reshape it.")
        tensor = StoredTensor.whole(dtype, shape, name, size)
        record: Record | LostRecord = Record(int(header.start[row]), size, NO_CHECKSUM)
        if record.start + size > file.size:
            record = LostRecord(size, incomplete("The file is cut off."))
        return Share(dtype, shape, (TensorView(tensor, record, False),))

    return RankLeaves(rows, value, nbytes, False)


def _of_mesh(share: Share, shape: tuple[int, ...], about: Sharding, rank: int) -> Share:
    mesh = _dict(about.get("mesh_spec"))
    extents = sizes(mesh.get("mesh_shape"))
    ranks, placements = _list(mesh.get("mesh_data")), _list(about.get("placements"))
    if len(ranks) != prod(extents) or rank not in ranks or len(placements) != len(extents):
        raise invalid(
            f"Its mesh of {extents} has {len(ranks)} ranks and {len(placements)} placements."
        )
    described = [_dict(placement) for placement in placements]
    chosen = tuple(read_placement(each.get("type"), each, len(shape)) for each in described)
    if share.is_plain and all(placement.dim is None for placement in chosen):
        return share
    at, coordinate = ranks.index(rank), list[int]()
    for extent in reversed(extents):
        at, place = divmod(at, extent)
        coordinate.insert(0, place)
    spread = Spread(shape, extents, tuple(coordinate), chosen)
    if share.is_plain:
        return Share(share.dtype, shape, share.views, spread=spread)
    if share.spread != spread:
        raise InconsistentTensor("The index and the file place it differently.", WRITE_AGAIN)
    return share
