"""Meta's files of Llama, one a rank of tensor parallelism, as one checkpoint.

    params.json                                 the sizes of the model
    consolidated.00.pth, consolidated.01.pth, … the state dict of each rank, under the same keys

Nothing in a file says which part of a tensor it has. The names of the layers do, as ``reshard_mp``
of Meta's llama-models joins them, and as its layers are defined where the two differ:

    columns      queries, keys, values, w1, w3, output   the parts follow each other on axis 0
    rows         wo, w2                                  the parts follow each other on the last axis
    embedding    tok_embeddings                          axis 0; of Llama 1 and 2 axis 1
    several      wqkv, fc1, moe_w_out of Llama 4         a rank has a part of each of several tensors
                                                         that are stacked on axis 0
    copies       norms, gates, routers, rope.freqs       every rank has all of it

Where more ranks than heads of keys and values wrote, neighbours have the same head: ``params.json``
tells their number, and without it keys and values are refused. The width of ``wo`` tells the number
of ranks. Copies are compared, as of other files of ranks (``ranks``). A tensor that one rank lacks
is incomplete.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from shardvar.errors import (
    READ_ERRORS,
    IncompleteCheckpoint,
    InconsistentTensor,
    InvalidCheckpoint,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles
from shardvar.formats.protocol import Finding
from shardvar.formats.torch.names import (
    LLAMA,
    LLAMA_PARAMS,
    files_of_ranks,
    llama_file,
    llama_ranks,
)
from shardvar.formats.torch.ranks import KeyedParts, Part, join_parts, part_of, read_ranks
from shardvar.formats.torch.shares import Share
from shardvar.formats.torch.source import SavedContents, TorchSource, torch_source
from shardvar.limits import MAX_NBYTES
from shardvar.pictures.words import named
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import DISTRUST, WRITE_AGAIN
from shardvar.wire.strict_json import parse_json

_LEAF = r"(?:weight|bias)"
_COLUMNS = re.compile(
    rf"(?:.*\.)?(?:output|attention\.w[qkv]|attn\.w[qkv]|feed_forward\.(?:shared_expert\.)?w[13]"
    rf"|w_in_shared_FD|w_swiglu_FD|mlp\.c_fc|mlp\.fc[13]|conv1\._linear|vision_projection"
    rf"|vision_adapter\.fc)\.{_LEAF}"
)
_ROWS = re.compile(
    r"(?:.*\.)?(?:(?:attention|attn)\.wo\.weight|feed_forward\.(?:shared_expert\.)?w2\.weight"
    r"|w_out_shared_DF\.weight|mlp\.c_proj\.weight|mlp\.fc2[._]weight"
    r"|experts\.moe_w_(?:in|swiglu)_eD_F)"
)
_EMBEDDING = re.compile(r"(.*\.)?(?:tok_embeddings|learnable_embedding)\.weight")
_EXPERTS_OUT = re.compile(r"(.*\.)?experts\.moe_w_out_eF_D")
_GATE_AND_UP = re.compile(r"(?:.*\.)?mlp\.fc1_weight")
_QKV = re.compile(r"((?:.*\.)?attention\.)wqkv\.weight")
_KEYS_AND_VALUES = re.compile(r"(?:text_model\.)?layers\.\d+\.attention\.w[kv]\.weight")
_OUT = re.compile(r"(?:text_model\.)?layers\.\d+\.attention\.wo\.weight")
_PARAMS_NBYTES, _PARAMS_DEPTH = 1 << 20, 16
_MOST_STACKED = 1 << 12
"""Experts of a layer; published models have at most a few hundred."""
_JOIN_BY_HAND = (
    "Copy params.json of the model next to the files, or join them with --concat, which takes the "
    "axis of each tensor."
)


@dataclass(frozen=True, slots=True)
class _Params:
    """The sizes in ``params.json``; None for one that it does not say."""

    dim: int | None = None
    """The width of the model."""
    head: int | None = None
    """The size of a head."""
    heads: int | None = None
    """The number of heads."""
    kv_heads: int | None = None
    """The number of heads of keys and values."""
    experts: int | None = None
    """The number of experts."""


@dataclass(frozen=True, slots=True)
class _Stacked:
    """One of the tensors that are stacked on an axis of a rank's tensor."""

    length: int
    """The number of its indices that the rank has."""
    copies: int = 1
    """The number of neighbouring ranks that have the same part."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """A tensor in parts, one a rank."""

    axis: int
    """The axis along which the parts follow each other."""
    stacked: tuple[_Stacked, ...]
    """The tensors that are stacked on that axis."""


def open_llama(storage: Storage) -> TorchSource:
    """Open the files of all ranks; ``MissingFile`` names the missing ones."""
    params = _read_params(storage)
    world = llama_ranks(storage.names())[-1] + 1
    told_by = f"the name {llama_file(world - 1)} tells"
    data = DataFiles(storage, files_of_ranks(storage, llama_file, world, told_by))
    contents = SavedContents()
    parts, nbytes = read_ranks(data, contents)
    _check_count(storage, parts, params, world)
    join_parts(data, _placed_parts(parts, params, world, contents), nbytes, contents)
    return torch_source(data, contents)


def _placed_parts(
    parts: Mapping[str, Sequence[Part]], params: _Params, world: int, contents: SavedContents
) -> KeyedParts:
    """Yield the keys with what the ranks hold, in its place; other keys become faults."""
    for key, held in parts.items():
        try:
            yield key, [*_shares(key, held, parts, params, world, contents)]
        except READ_ERRORS as error:
            contents.faults.setdefault(key, error.at(llama_file(0), repr(key)))


def _read_params(storage: Storage) -> _Params:
    """Return the sizes that the model's file says; without a file, none."""
    if LLAMA_PARAMS not in storage.names():
        return _Params()
    file = storage.open(LLAMA_PARAMS)
    try:
        with prefix_errors(file.name):
            if file.size > _PARAMS_NBYTES:
                cause = f"It has {file.size} bytes, and no file of sizes has more than {_PARAMS_NBYTES}."
                raise InvalidCheckpoint(cause, DISTRUST)
            found = parse_json(file.read(0, file.size), _PARAMS_DEPTH, allow_nan=True)
            return _params_of(found)
    finally:
        file.close()


def _params_of(found: Any) -> _Params:
    table = found if isinstance(found, dict) else {}
    inner = table.get("moe_args")
    dim, heads = _size(table, "dim"), _size(table, "n_heads")
    head = _size(table, "head_dim") or (dim // heads if dim and heads else None)
    kv_heads = _size(table, "n_kv_heads") or heads
    experts = _size(inner, "num_experts") if isinstance(inner, dict) else None
    return _Params(dim, head, heads, kv_heads, experts)


def _size(table: Mapping[str, Any], name: str) -> int | None:
    """Return a size; None if it is absent, or the -1 that stands for a default."""
    size = table.get(name)
    if size is None or size == -1:
        return None
    if type(size) is not int or not 0 < size <= MAX_NBYTES:
        raise InvalidCheckpoint(f"Its {name!r} is {size!r}, and not a size.", "Mend it.")
    return size


def _shape(parts: Mapping[str, Sequence[Part]], key: str) -> tuple[int, ...]:
    """Return the shape of what the first rank has under a key; empty for anything else."""
    share = parts[key][0][1] if parts.get(key) else None
    return share.shape if isinstance(share, Share) else ()


def _check_count(
    storage: Storage, parts: Mapping[str, Sequence[Part]], params: _Params, world: int
) -> None:
    """Raise unless there are as many files as the width of the attention tells."""
    key = next(filter(_OUT.fullmatch, parts), "")
    shape = _shape(parts, key)
    if len(shape) != 2 or not shape[1]:
        return
    full = params.head * params.heads if params.head and params.heads else shape[0]
    ranks, rest = divmod(full, shape[1])
    if rest or ranks == world:
        return
    told_by = f"the shape {shape} of {key!r} in {llama_file(0)} tells"
    if ranks > world:
        files_of_ranks(storage, llama_file, ranks, told_by)
    cause = (
        f"{storage.path}: {llama_file(world - 1)} is left over, because {told_by} that "
        f"{ranks or 'no'} rank{'s' * (ranks != 1)} wrote the model."
    )
    raise InvalidCheckpoint(cause, "Move files of other checkpoints away.")


def _shares(
    key: str,
    held: Sequence[Part],
    parts: Mapping[str, Sequence[Part]],
    params: _Params,
    world: int,
    contents: SavedContents,
) -> Iterator[Part]:
    """Yield what the ranks hold of a tensor, each with its place in the whole."""
    lost = sorted({*range(world)} - {rank for rank, _ in held})
    cut = _cut_of(key, parts, params, world) if world > 1 else None
    if cut is None:
        if lost:
            remark = (
                f"{key!r}: {named([*map(llama_file, lost)])} lacks it; all ranks should have it."
            )
            contents.findings.append(Finding(LLAMA, remark, True))
        yield from held
        return
    if lost:
        cause = f"{named([*map(llama_file, lost)])} has no part of it."
        raise IncompleteCheckpoint(cause, "Copy that file again.")
    first = held[0][1]
    for rank, part in held:
        if not isinstance(part, Share) or not isinstance(first, Share) or not part.is_plain:
            raise UnsupportedError(
                "It is not a plain tensor in the file of each rank.", _JOIN_BY_HAND
            )
        if (part.dtype, part.shape) != (first.dtype, first.shape):
            cause = f"Rank 0 has {first.dtype} {first.shape}, and rank {rank} {part.dtype} {part.shape}."
            raise InconsistentTensor(cause, "Give the files of one model.")
        yield rank, _placed(part, cut, rank, world)


def _placed(part: Share, cut: _Cut, rank: int, world: int) -> Share:
    """Return what a rank holds, with its places in the whole tensor."""
    axis, (view,) = cut.axis, part.views
    views, offsets, inner, outer = [], [], 0, 0
    for each in cut.stacked:
        at = [0] * len(part.shape)
        at[axis] = inner
        shape = (*part.shape[:axis], each.length, *part.shape[axis + 1 :])
        views.append(part_of(view, tuple(at), shape))
        at[axis] = outer + rank // each.copies * each.length
        offsets.append(tuple(at))
        inner, outer = inner + each.length, outer + world // each.copies * each.length
    full = (*part.shape[:axis], outer, *part.shape[axis + 1 :])
    if prod(filter(None, full)) > MAX_NBYTES // 16:
        raise InvalidCheckpoint(f"Its shape {full} is too large to exist.", WRITE_AGAIN)
    return replace(part, shape=full, views=tuple(views), offsets=tuple(offsets))


def _cut_of(
    key: str, parts: Mapping[str, Sequence[Part]], params: _Params, world: int
) -> _Cut | None:
    """Return how the ranks share a tensor; None if each of them has all of it."""
    shape = _shape(parts, key)
    if not shape:
        return None
    rows = shape[0]
    if _KEYS_AND_VALUES.fullmatch(key):
        return _Cut(0, (_Stacked(rows, _copies(rows, params, world)),))
    if _COLUMNS.fullmatch(key):
        return _Cut(0, (_Stacked(rows),))
    if _ROWS.fullmatch(key):
        return _Cut(len(shape) - 1, (_Stacked(shape[-1]),))
    embedding = _EMBEDDING.fullmatch(key)
    if embedding:
        return _cut_of_embedding(shape, _width(embedding[1] or "", parts, params), world)
    if _GATE_AND_UP.fullmatch(key):
        return _Cut(0, _even(rows, 2))
    experts = _EXPERTS_OUT.fullmatch(key)
    if experts:
        router = _shape(parts, f"{experts[1] or ''}router_DE")
        return _Cut(0, _even(rows, params.experts or (router[-1] if router else 0)))
    qkv = _QKV.fullmatch(key)
    return (
        None
        if qkv is None
        else _Cut(0, _stacked_qkv(rows, _shape(parts, qkv[1] + "wo.weight"), params, world))
    )


def _copies(rows: int, params: _Params, world: int) -> int:
    """Return how many neighbouring ranks have the same keys and values."""
    if not params.kv_heads or not params.head:
        cause = (
            f"Without the number of heads in {LLAMA_PARAMS}, nothing tells whether neighbours of "
            f"{world} ranks have the same keys and values."
        )
        raise UnsupportedError(cause, _JOIN_BY_HAND)
    if params.kv_heads >= world:
        return 1
    copies, rest = divmod(rows * world, params.kv_heads * params.head)
    if rest or not copies or world % copies:
        cause = f"Each of {world} ranks has {rows} rows of {params.kv_heads} heads of {params.head} rows."
        raise UnsupportedError(cause, _JOIN_BY_HAND)
    return copies


def _width(prefix: str, parts: Mapping[str, Sequence[Part]], params: _Params) -> int | None:
    """Return the width of the model: of the norm that every rank has, or as its file says."""
    norm = _shape(parts, f"{prefix}norm.weight")
    return norm[0] if len(norm) == 1 else params.dim


def _cut_of_embedding(shape: tuple[int, ...], width: int | None, world: int) -> _Cut:
    """Return the cut of an embedding: Llama 3 cuts the words, Llama 1 and 2 cut the width."""
    if len(shape) == 2 and width is not None and width in (shape[1], shape[1] * world):
        axis = 0 if shape[1] == width else 1
        return _Cut(axis, (_Stacked(shape[axis]),))
    cause = f"Its shape is {shape} in each of {world} files, and the width of the model {width}."
    raise UnsupportedError(cause, _JOIN_BY_HAND)


def _even(rows: int, count: int) -> tuple[_Stacked, ...]:
    """Return tensors of one length that are stacked."""
    if not 0 < count <= min(rows, _MOST_STACKED) or rows % count:
        cause = f"Its {rows} rows are not a number of {count or 'unknown'} tensors."
        raise UnsupportedError(cause, _JOIN_BY_HAND)
    return (_Stacked(rows // count),) * count


def _stacked_qkv(
    rows: int, out: tuple[int, ...], params: _Params, world: int
) -> tuple[_Stacked, ...]:
    """Return queries, keys and values that are stacked; the rank has as many queries as columns of
    its ``wo``."""
    queries = out[1] if len(out) == 2 else 0
    keys, rest = divmod(rows - queries, 2)
    if not queries or keys <= 0 or rest:
        cause = (
            f"Its {rows} rows are not queries, keys and values of {queries or 'unknown'} queries."
        )
        raise UnsupportedError(cause, _JOIN_BY_HAND)
    both = _Stacked(keys, _copies(keys, params, world))
    return _Stacked(queries), both, both
