"""The files of single ranks as one checkpoint: a table of dialects over one joiner.

    FSDP                model_world_size_4_rank_0.pt, …: trainers let every rank save its state dict
    torch_checkpointing metadata.pkl, and model_0.pt, model_1.pt, …: a file for each item and rank
    Meta's Llama        params.json, and consolidated.00.pth, …: the state dict of each rank

A tensor of a rank is a DTensor, a ShardedTensor or a plain tensor (``shares``). The parts of all
ranks become slices of the whole tensor.

    read      all files are there; a dialect tells where a part lies in the whole (``RankFile.place``)
    join      dtypes, shapes and kinds agree; the parts that several ranks hold are read from the
              first one
    compare   copies agree: at once if their checksums tell, else when the checkpoint is verified

Plain tensors and objects that differ from rank to rank, such as the states of random generators,
have no common value: their keys are refused, and the others are read. The readers of tensors check
that slices fill them.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count, islice
from math import prod
from operator import mul
from typing import Any, NamedTuple

from shardvar.errors import (
    READ_ERRORS,
    CheckpointError,
    IncompleteCheckpoint,
    InconsistentTensor,
    InvalidCheckpoint,
    MissingFile,
    OutOfBounds,
    ShardvarError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles
from shardvar.formats.protocol import Finding
from shardvar.formats.torch.archive import LostRecord
from shardvar.formats.torch.shares import (
    Runs,
    Share,
    held_regions,
    local_shape,
    share_of,
)
from shardvar.formats.torch.source import (
    SavedContents,
    Stored,
    StoredObject,
    TensorView,
    TorchSource,
    torch_source,
)
from shardvar.formats.torch.state_dict import unpickle
from shardvar.limits import MAX_NAMED, MAX_NBYTES
from shardvar.pictures.words import named
from shardvar.planning.index import NO_CHECKSUM
from shardvar.records import frozen, replace
from shardvar.storage.concurrency import do_all
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import WRITE_AGAIN, distrusted, invalid
from shardvar.wire.strict_json import parse_json

_ALONE = "To read what one rank holds, copy its file to another name, such as x.pt."
_AGAIN = "The ranks had diverged when they saved: save the checkpoint again."
COPY = "Copy the files of all ranks to one folder."
_MIN_SLICES = 1 << 12
"""Slices that the files of any checkpoint may describe, however small they are."""


# --- The joiner


class Part(NamedTuple):
    """The part of a tensor or the object that a rank holds under a key."""

    rank: int
    file: int
    value: Share | StoredObject


_Parts = dict[str, list[Part]]
Area = tuple[Part, TensorView, tuple[int, ...]]
"""A region that a rank holds, and its first indices in the whole tensor."""


class RankLeaves(NamedTuple):
    names: Iterable[str]
    value: Callable[[str], Share | StoredObject]
    nbytes: int  # The size of the pickle or the header
    is_guarded: bool


@frozen
class RankFile:
    rank: int
    read: Callable[[DataFiles, int, int], RankLeaves]
    item: str = ""  # The beginning of its keys
    place: Callable[[str, int, Share], Share] = lambda _name, _rank, share: share
    """Returns a share in its place in the whole."""

    def key(self, name: str) -> str:
        return f"{self.item}.{name}" if self.item and name else self.item or name


def files_of_ranks(
    storage: Storage, file_of: Callable[[int], str], world: int, told_by: str
) -> list[str]:
    """Return the files of all ranks; ``told_by`` is the source of their number, for the message."""
    there = set(storage.names())
    # The folder has a bounded number of files, so the search ends, for any number that a file
    # claims.
    missing = (rank for rank in count() if file_of(rank) not in there)
    lost = [file_of(rank) for rank in islice(missing, MAX_NAMED + 1) if rank < world]
    if lost:
        cause = f"{storage.path}: {named(lost)} is missing, of the {world} ranks that {told_by}."
        raise MissingFile(cause, COPY)
    return [file_of(rank) for rank in range(world)]


def read_torch(
    data: DataFiles, number: int, rank: int, *, may_be_value: bool = False
) -> RankLeaves:
    unpickled = unpickle(data, number, may_be_value=may_be_value)

    def value(name: str) -> Share | StoredObject:
        if unpickled.has_tensor(name):
            return share_of(unpickled.value(name), rank, unpickled.view)
        return unpickled.object(name)

    return RankLeaves(unpickled.leaves, value, unpickled.nbytes, unpickled.archive.has_checksums)


def read_parts(
    data: DataFiles, files: Sequence[RankFile], contents: SavedContents
) -> tuple[_Parts, int]:
    """Return the contents of files by key, and the size of their pickles; collect faults."""
    read: dict[int, tuple[list[tuple[str, Part | ShardvarError]], int]] = {}
    lost: dict[str, CheckpointError] = {}  # by item

    def read_file(number: int) -> None:
        about, file = files[number], data.open(number)
        try:
            with prefix_errors(file.name):
                leaves = about.read(data, number, about.rank)
        except CheckpointError as error:
            data.note(number, error)
            lost[about.item], read[number] = error, ([], 0)
            return
        values = list[tuple[str, Part | ShardvarError]]()
        for name in leaves.names:
            key = about.key(name)
            if not leaves.is_guarded:
                contents.unguarded.add(key)
            try:
                value = leaves.value(name)
                if isinstance(value, Share):
                    value = about.place(name, about.rank, value)
                values.append((key, Part(about.rank, number, value)))
            except READ_ERRORS as error:
                values.append((key, error.at(file.name, repr(key))))
        read[number] = values, leaves.nbytes

    do_all(read_file, range(len(files)), data.traits)
    data.check_in_place()
    parts: _Parts = {}
    for number in range(len(files)):
        for key, part in read[number][0]:
            if isinstance(part, Part):
                parts.setdefault(key, []).append(part)
            else:
                contents.faults.setdefault(key, part)
    for key, held in parts.items() if lost else ():
        # Nothing tells if that file has another value of it.
        error, value = lost.get(files[held[0].file].item), held[0].value
        if error and (isinstance(value, StoredObject) or value.is_plain):
            contents.faults.setdefault(key, error)
    if lost and parts.keys() <= contents.faults.keys():
        raise next(iter(lost.values()))
    return parts, sum(nbytes for _, nbytes in read.values())


def _read_ranks(
    storage: Storage, names: Sequence[str]
) -> tuple[DataFiles, SavedContents, _Parts, int]:
    data, contents = DataFiles(storage, names), SavedContents()
    files = [RankFile(rank, read_torch) for rank in range(len(names))]
    parts, nbytes = read_parts(data, files, contents)
    whole = {key: held for key, held in parts.items() if key not in contents.faults}
    return data, contents, whole, nbytes


def join_parts(
    data: DataFiles,
    parts: Iterable[tuple[str, Sequence[Part]]],
    nbytes: int,
    contents: SavedContents,
) -> TorchSource:
    """Return the source of the slices of each key; keys without a common value become faults."""
    count = 0
    for key, held in parts:
        try:
            stored, copies = _join(held)
        except READ_ERRORS as error:
            contents.faults.setdefault(key, error.at(repr(key)))
            continue
        contents.stored[key], contents.replicas[key] = stored, copies
        count += len(stored) + len(copies)
        check_budget_of_slices(count, nbytes, data)
    return torch_source(data, contents)


def check_budget_of_slices(count: int, nbytes: int, data: DataFiles) -> None:
    # A part takes a hundred bytes of a pickle or more. Keys that share one could make a small file
    # very large.
    if count > max(nbytes, _MIN_SLICES):
        raise distrusted(f"{data.names[0]}: The files describe too many slices for their size.")


def _join(held: Sequence[Part]) -> tuple[list[Stored], list[tuple[Stored, Stored]]]:
    """Return the slices of a tensor, or the object of all ranks; and the copies."""
    objects = [(part, part.value) for part in held if isinstance(part.value, StoredObject)]
    if objects:
        if len(objects) < len(held) or len({value for _, value in objects}) > 1:
            raise UnsupportedError("The ranks hold different objects under this key.", _ALONE)
        return [Stored(objects[0][0].file, objects[0][1])], []
    shares = [(part, part.value) for part in held if isinstance(part.value, Share)]
    first, share = shares[0]
    for part, other in shares:
        if (share.kind, share.dtype, share.shape) != (other.kind, other.dtype, other.shape):
            cause = f"Rank {first.rank} holds {share.words}, and rank {part.rank} {other.words}."
            is_plain = share.is_plain and other.is_plain
            raise (UnsupportedError if is_plain else InconsistentTensor)(cause, _ALONE)
    return _without_copies([*_areas(shares)], share)


def _areas(shares: Sequence[tuple[Part, Share]]) -> Iterator[Area]:
    """Yield the regions that ranks hold, copies and empty ones included."""
    runs = _choose_runs(shares) if shares[0][1].spread else None
    for number, (part, share) in enumerate(shares):
        if runs is not None:
            (view,) = share.views
            for held in held_regions(runs[number]):
                yield part, part_of(view, held.inner, held.shape), held.offset
            continue
        full = share.shape
        offsets = [(0,) * len(full)] if share.offsets is None else share.offsets
        for view, offset in zip(share.views, offsets, strict=True):
            shape = view.tensor.shape
            if len(shape) != len(full) or any(
                at + size > most for at, size, most in zip(offset, shape, full, strict=True)
            ):
                cause = f"Rank {part.rank} holds a shard of shape {shape} at {offset}, outside of a"
                raise OutOfBounds(f"{cause} tensor of shape {full}.", WRITE_AGAIN)
            yield part, view, offset


def _choose_runs(shares: Sequence[tuple[Part, Share]]) -> list[list[Runs]]:
    """Return the indices of each rank, by the rule that the shapes of their parts obey."""
    parts = [
        (part.rank, share.views[0].tensor.shape, share.spread)
        for part, share in shares
        if share.spread
    ]

    def is_alike(shape: tuple[int, ...], held: tuple[int, ...]) -> bool:
        # FSDP2 gives empty parts special shapes.
        return shape == held or (len(shape) == len(held) and 0 in shape and 0 in held)

    # Where the two rules differ, so do their shapes: for all sizes up to 100 on all meshes up to 8
    # x 8.
    for strided_last in (False, True):
        runs = [spread.runs(strided_last) for _, _, spread in parts]
        both = zip(parts, map(local_shape, runs), strict=True)
        wrong = [(rank, kept, held) for (rank, kept, _), held in both if not is_alike(kept, held)]
        if not wrong:
            return runs
        if not all(spread.may_be_fsdp for _, _, spread in parts):
            break
    rank, kept, held = wrong[0]
    raise invalid(f"Rank {rank} keeps the shape {kept}, but its placements say {held}.")


def part_of(view: TensorView, inner: tuple[int, ...], shape: tuple[int, ...]) -> TensorView:
    tensor = view.tensor
    start = tensor.offset + sum(map(mul, inner, tensor.strides))
    return replace(view, tensor=replace(tensor, offset=start, shape=shape))


def _without_copies(
    areas: Sequence[Area], share: Share
) -> tuple[list[Stored], list[tuple[Stored, Stored]]]:
    """Return one of each slice, and the copies; raise if checksums show a difference."""
    if 0 in share.shape and areas:
        # A tensor without elements is one slice, the whole of it.
        part, view, _ = areas[0]
        return [Stored.whole(part.file, view.without_elements(share.shape))], []
    kept: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, Stored]] = {}
    copies: list[tuple[Stored, Stored]] = []
    # A copy that is cut off is not read. Nothing tells that plain tensors are copies but their values.
    areas = sorted(areas, key=lambda area: isinstance(area[1].record, LostRecord))
    for part, view, offset in areas:
        if share.is_plain and isinstance(view.record, LostRecord):
            raise view.record.fault.at()
        if 0 in view.tensor.shape:
            continue
        stored = Stored(part.file, view, offset, share.shape)
        rank, first = kept.setdefault((offset, view.tensor.shape), (part.rank, stored))
        if first is stored or isinstance(view.record, LostRecord):
            continue
        # Copies without checksums are compared by ``verify``.
        sums = {
            held.value.checksum for held in (first, stored) if isinstance(held.value, TensorView)
        }
        if NO_CHECKSUM not in sums and len(sums) > 1:
            cause = (
                f"The ranks {rank} and {part.rank} hold different values of the slice at {offset}."
            )
            if share.is_plain:
                raise UnsupportedError(cause, _ALONE)
            raise InvalidCheckpoint(cause, _AGAIN)
        copies.append((first, stored))
    if not kept:
        raise IncompleteCheckpoint("No rank holds an element of it.", _AGAIN)
    return [stored for _, stored in kept.values()], copies


# --- FSDP

_RANKS = re.compile(r".*world_size_(\d{1,6})", re.DOTALL)
RANK = re.compile(r"(.*world_size_\d{1,6})_rank_\d{1,6}\.pt", re.DOTALL)
"""The file of a rank, with the checkpoint that it belongs to."""


def find_ranks(_storage: Storage, name: str, names: Sequence[str]) -> list[str]:
    matches = (
        RANK.fullmatch(file)
        for file in names
        if name in ("", file) or file.startswith(f"{name}_rank_")
    )
    return list(dict.fromkeys(match[1] for match in matches if match))


def open_ranks(storage: Storage, name: str) -> TorchSource:
    match = _RANKS.fullmatch(name)
    world = max(int(match[1]) if match else 0, 1)
    names = files_of_ranks(
        storage, lambda rank: f"{name}_rank_{rank}.pt", world, "the names of the files tell"
    )
    data, contents, parts, nbytes = _read_ranks(storage, names)
    siblings = [other for other in find_ranks(storage, "", storage.names()) if other != name]
    if siblings:
        remark = (
            f"The ranks also saved {named(siblings)}, which are checkpoints to be opened by these "
            "names."
        )
        contents.findings.append(Finding(name, remark, False))
    return join_parts(data, parts.items(), nbytes, contents)


# --- Meta's Llama
#
# Nothing in a file tells which part of a tensor it has. The names of the layers do, as ``reshard_mp``
# of Meta's llama-models joins them, and as its layers are defined where the two differ:
#
#     columns      queries, keys, values, w1, w3, output   the parts follow each other on axis 0
#     rows         wo, w2                                  the parts follow each other on the last axis
#     embedding    tok_embeddings                          axis 0; of Llama 1 and 2 axis 1
#     several      wqkv, fc1, moe_w_out of Llama 4         a rank has a part of each of several tensors
#                                                          that are stacked on axis 0
#     copies       norms, gates, routers, rope.freqs       every rank has all of it
#
# Where more ranks than heads of keys and values wrote, neighbours have the same head: ``params.json``
# tells their number, and without it keys and values are refused. The width of ``wo`` tells the number
# of ranks. A tensor that one rank lacks is incomplete.

LLAMA = "consolidated"
_PARAMS_FILE = "params.json"
_OF_LLAMA = re.compile(r"consolidated\.(\d{2,4})\.pth")
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
_MOST_STACKED = 1 << 12  # Experts of a layer; published models have at most a few hundred
_JOIN_BY_HAND = (
    "Copy params.json of the model next to the files, or join them with --concat, which takes the "
    "axis of each tensor."
)


def _llama_file(rank: int) -> str:
    return f"{LLAMA}.{rank:02}.pth"


def _llama_ranks(names: Iterable[str]) -> list[int]:
    matches = (_OF_LLAMA.fullmatch(name) for name in names)
    ranks = ((int(match[1]), match[0]) for match in matches if match)
    return sorted(rank for rank, name in ranks if _llama_file(rank) == name)


def find_llama(_storage: Storage, name: str, names: Sequence[str]) -> list[str]:
    """Return the checkpoint that a name may mean; one file without sizes may be of any model."""
    ranks = _llama_ranks(names) if name in ("", LLAMA) else []
    return [LLAMA] if any(ranks) or (ranks and _PARAMS_FILE in names) else []


def open_llama(storage: Storage, _name: str) -> TorchSource:
    params = _read_params(storage)
    world = _llama_ranks(storage.names())[-1] + 1
    told_by = f"the name {_llama_file(world - 1)} tells"
    names = files_of_ranks(storage, _llama_file, world, told_by)
    data, contents, parts, nbytes = _read_ranks(storage, names)
    model = _Llama(parts, params, world, contents)
    model.check_world(storage)
    return join_parts(data, model.placed(), nbytes, contents)


class _Params(NamedTuple):
    """The sizes in ``params.json``; None for one that it lacks."""

    dim: int | None = None
    head: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    experts: int | None = None


def _read_params(storage: Storage) -> _Params:
    if _PARAMS_FILE not in storage.names():
        return _Params()
    with closing(storage.open(_PARAMS_FILE)) as file, prefix_errors(file.name):
        if file.size > _PARAMS_NBYTES:
            raise distrusted(
                f"It has {file.size} bytes, and no file of sizes has more than {_PARAMS_NBYTES}."
            )
        value = parse_json(file.read(0, file.size), _PARAMS_DEPTH, allow_nan=True)
        table = value if isinstance(value, dict) else {}
        of_experts = table.get("moe_args")
        dim, heads = _size(table, "dim"), _size(table, "n_heads")
        head = _size(table, "head_dim") or (dim // heads if dim and heads else None)
        kv_heads = _size(table, "n_kv_heads") or heads
        experts = _size(of_experts, "num_experts") if isinstance(of_experts, dict) else None
        return _Params(dim, head, heads, kv_heads, experts)


def _size(table: Mapping[str, Any], name: str) -> int | None:
    """Return a size; None if it is absent, or the -1 that stands for a default."""
    size = table.get(name)
    if size is None or size == -1:
        return None
    if type(size) is not int or not 0 < size <= MAX_NBYTES:
        raise InvalidCheckpoint(f"Its {name!r} is {size!r}, and not a size.", "Mend it.")
    return size


class _Stacked(NamedTuple):
    """One of the tensors that are stacked on an axis of a rank's tensor."""

    length: int  # The number of its indices that the rank has
    copies: int = 1  # The number of neighbouring ranks that have the same part


class _Cut(NamedTuple):
    """The axis on which the parts of ranks follow each other, and the tensors stacked on it."""

    axis: int
    stacked: tuple[_Stacked, ...]


@frozen
class _Llama:
    """A model in parts, one a rank."""

    parts: _Parts
    params: _Params
    world: int
    contents: SavedContents

    def placed(self) -> Iterator[tuple[str, Sequence[Part]]]:
        """Yield the keys with the parts of ranks in their places; other keys become faults."""
        for key, held in self.parts.items():
            try:
                yield key, self._placed(key, held)
            except READ_ERRORS as error:
                self.contents.faults.setdefault(key, error.at(_llama_file(0), repr(key)))

    def check_world(self, storage: Storage) -> None:
        """Raise unless there are as many files as the width of the attention tells."""
        params, world = self.params, self.world
        key = next(filter(_OUT.fullmatch, self.parts), "")
        shape = self._shape(key)
        if len(shape) != 2 or not shape[1]:
            return
        full = params.head * params.heads if params.head and params.heads else shape[0]
        ranks, rest = divmod(full, shape[1])
        if rest or ranks == world:
            return
        told_by = f"the shape {shape} of {key!r} in {_llama_file(0)} tells"
        if ranks > world:
            files_of_ranks(storage, _llama_file, ranks, told_by)
        cause = (
            f"{storage.path}: {_llama_file(world - 1)} is left over, because {told_by} that "
            f"{ranks or 'no'} rank{'s' * (ranks != 1)} wrote the model."
        )
        raise InvalidCheckpoint(cause, "Move files of other checkpoints away.")

    def _shape(self, key: str) -> tuple[int, ...]:
        value = self.parts[key][0].value if self.parts.get(key) else None
        return value.shape if isinstance(value, Share) else ()

    def _placed(self, key: str, held: Sequence[Part]) -> Sequence[Part]:
        lost = sorted({*range(self.world)} - {part.rank for part in held})
        names = named([*map(_llama_file, lost)]) if lost else ""
        cut = self._cut(key) if self.world > 1 else None
        if cut is None:
            if lost:
                remark = f"{key!r}: {names} lacks it; all ranks should have it."
                self.contents.findings.append(Finding(LLAMA, remark, True))
            return held
        if lost:
            raise IncompleteCheckpoint(f"{names} has no part of it.", "Copy that file again.")
        first, placed = held[0].value, list[Part]()
        for part in held:
            share = part.value
            if not isinstance(share, Share) or not isinstance(first, Share) or not share.is_plain:
                cause = "It is not a plain tensor in the file of each rank."
                raise UnsupportedError(cause, _JOIN_BY_HAND)
            if (share.dtype, share.shape) != (first.dtype, first.shape):
                cause = f"Rank 0 has {first.dtype} {first.shape}, and rank {part.rank} {share.dtype} {share.shape}."
                raise InconsistentTensor(cause, "Give the files of one model.")
            placed.append(part._replace(value=self._in_place(share, cut, part.rank)))
        return placed

    def _in_place(self, share: Share, cut: _Cut, rank: int) -> Share:
        axis, (view,) = cut.axis, share.views
        views, offsets, inner, outer = [], [], 0, 0
        for length, copies in cut.stacked:
            zeros = (0,) * len(share.shape)
            views.append(part_of(view, _with(zeros, axis, inner), _with(share.shape, axis, length)))
            offsets.append(_with(zeros, axis, outer + rank // copies * length))
            inner, outer = inner + length, outer + self.world // copies * length
        full = _with(share.shape, axis, outer)
        if prod(filter(None, full)) > MAX_NBYTES // 16:
            raise invalid(f"Its shape {full} is too large to exist.")
        return replace(share, shape=full, views=tuple(views), offsets=tuple(offsets))

    def _cut(self, key: str) -> _Cut | None:
        """Return how the ranks share a tensor; None if each of them has all of it."""
        shape = self._shape(key)
        if not shape:
            return None
        rows = shape[0]
        if _KEYS_AND_VALUES.fullmatch(key):
            return _Cut(0, (_Stacked(rows, self._copies(rows)),))
        if _COLUMNS.fullmatch(key):
            return _Cut(0, (_Stacked(rows),))
        if _ROWS.fullmatch(key):
            return _Cut(len(shape) - 1, (_Stacked(shape[-1]),))
        if match := _EMBEDDING.fullmatch(key):
            return self._cut_of_embedding(match[1] or "", shape)
        if _GATE_AND_UP.fullmatch(key):
            return _Cut(0, _even(rows, 2))
        if match := _EXPERTS_OUT.fullmatch(key):
            router = self._shape(f"{match[1] or ''}router_DE")
            return _Cut(0, _even(rows, self.params.experts or (router[-1] if router else 0)))
        if match := _QKV.fullmatch(key):
            # The rank has as many queries as columns of its ``wo``.
            out = self._shape(match[1] + "wo.weight")
            queries = out[1] if len(out) == 2 else 0
            keys, rest = divmod(rows - queries, 2)
            if not queries or keys <= 0 or rest:
                cause = f"Its {rows} rows are not queries, keys and values of {queries or 'unknown'} queries."
                raise UnsupportedError(cause, _JOIN_BY_HAND)
            both = _Stacked(keys, self._copies(keys))
            return _Cut(0, (_Stacked(queries), both, both))
        return None

    def _copies(self, rows: int) -> int:
        """Return how many neighbouring ranks have the same keys and values."""
        heads, head, world = self.params.kv_heads, self.params.head, self.world
        if not heads or not head:
            cause = (
                f"Without the number of heads in {_PARAMS_FILE}, nothing tells whether neighbours of "
                f"{world} ranks have the same keys and values."
            )
            raise UnsupportedError(cause, _JOIN_BY_HAND)
        if heads >= world:
            return 1
        copies, rest = divmod(rows * world, heads * head)
        if rest or not copies or world % copies:
            cause = f"Each of {world} ranks has {rows} rows of {heads} heads of {head} rows."
            raise UnsupportedError(cause, _JOIN_BY_HAND)
        return copies

    def _cut_of_embedding(self, prefix: str, shape: tuple[int, ...]) -> _Cut:
        """Return the cut of an embedding: Llama 3 cuts the words, Llama 1 and 2 cut the width."""
        # The width of the model: of the norm that every rank has, or of the file of sizes.
        norm, world = self._shape(f"{prefix}norm.weight"), self.world
        width = norm[0] if len(norm) == 1 else self.params.dim
        if len(shape) == 2 and width is not None and width in (shape[1], shape[1] * world):
            axis = 0 if shape[1] == width else 1
            return _Cut(axis, (_Stacked(shape[axis]),))
        cause = (
            f"Its shape is {shape} in each of {world} files, and the width of the model {width}."
        )
        raise UnsupportedError(cause, _JOIN_BY_HAND)


def _with(numbers: tuple[int, ...], axis: int, number: int) -> tuple[int, ...]:
    return (*numbers[:axis], number, *numbers[axis + 1 :])


def _even(rows: int, count: int) -> tuple[_Stacked, ...]:
    if not 0 < count <= min(rows, _MOST_STACKED) or rows % count:
        cause = f"Its {rows} rows are not a number of {count or 'unknown'} tensors."
        raise UnsupportedError(cause, _JOIN_BY_HAND)
    return (_Stacked(rows // count),) * count
