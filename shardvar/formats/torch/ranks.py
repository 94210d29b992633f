"""The files of single ranks as one checkpoint: model_world_size_4_rank_0.pt to
model_world_size_4_rank_3.pt.

Trainers with FSDP let every rank save its own state dict. A tensor of it is a DTensor, a
ShardedTensor or a plain tensor (``shares``). Here the parts of all ranks become slices of the whole
tensor.

    check     all ranks are there, and each file says itself that it is of the rank in its name
    join      dtypes, shapes and kinds agree; the parts that several ranks hold are read from the
              first one
    compare   copies agree: at once where their checksums tell, else when the checkpoint is verified

Plain tensors and objects that differ from rank to rank, such as the states of random generators,
have no common value: their keys are refused, and the others are read. The readers of tensors check
that slices fill them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from shardvar.errors import (
    READ_ERRORS,
    IncompleteCheckpoint,
    InconsistentTensor,
    InvalidCheckpoint,
    OutOfBounds,
    UnsupportedError,
)
from shardvar.formats.files import DataFiles
from shardvar.formats.protocol import Finding
from shardvar.formats.torch.items import StoredObject, TensorView
from shardvar.formats.torch.names import files_of_ranks, find_ranks, rank_file, world_size_of
from shardvar.formats.torch.places import Stored
from shardvar.formats.torch.shares import Runs, Share, held_regions, local_shape, share_of
from shardvar.formats.torch.source import SavedContents, TorchSource, torch_source
from shardvar.formats.torch.state_dict import unpickle
from shardvar.pictures.words import named
from shardvar.planning.index import NO_CHECKSUM
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import DISTRUST, WRITE_AGAIN

_ALONE = "To read what one rank holds, copy its file to another name, such as x.pt."
_AGAIN = "The ranks had diverged when they saved: save the checkpoint again."
_MIN_SLICES = 1 << 12
"""Slices that the files of any checkpoint may describe, however small they are."""

Part = tuple[int, Share | StoredObject]
"""A rank, and the part of a tensor or the payload of an object that it holds under a key."""
KeyedParts = Iterable[tuple[str, Sequence[Part]]]
"""Keys, each with what the ranks hold under it."""
Shares = Sequence[tuple[int, Share]]
"""The parts of a tensor, each with the rank that holds it."""
Area = tuple[int, TensorView, tuple[int, ...]]
"""A rank, a region that it holds, and the first indices of the region in the whole tensor."""


def open_ranks(storage: Storage, name: str) -> TorchSource:
    """Open the files of all ranks; ``MissingFile`` names the missing ones."""
    world = max(world_size_of(name) or 0, 1)
    data = DataFiles(
        storage,
        files_of_ranks(storage, partial(rank_file, name), world, "the names of the files tell"),
    )
    contents = SavedContents()
    parts, nbytes = read_ranks(data, contents)
    join_parts(data, parts.items(), nbytes, contents)
    others = [each for each in find_ranks(storage.names(), "") if each != name]
    if others:
        remark = (
            f"The ranks also saved {named(others)}, which are checkpoints to be opened by these "
            "names."
        )
        contents.findings.append(Finding(name, remark, False))
    return torch_source(data, contents)


def read_ranks(data: DataFiles, contents: SavedContents) -> tuple[dict[str, list[Part]], int]:
    """Return what the files of all ranks hold by key, and the size of their pickles; keys that
    cannot be read become faults."""
    parts = dict[str, list[Part]]()
    nbytes = sum(_read_rank(data, rank, contents, parts) for rank in range(len(data.names)))
    data.check_in_place()
    return parts, nbytes


def join_parts(
    data: DataFiles,
    parts: KeyedParts,
    nbytes: int,
    contents: SavedContents,
    numbers: Mapping[int, int] | None = None,
) -> None:
    """Add the slices and the copies of each key; keys without a common value become faults.

    The keys are taken one by one, and their slices counted. ``numbers`` has the number of the file
    of each rank, if that is not the rank.
    """
    left = max(nbytes, _MIN_SLICES)
    for key, held in parts:
        try:
            stored, copies = _join(held)
        except READ_ERRORS as error:
            contents.faults.setdefault(key, error.at(repr(key)))
            continue
        if numbers is not None:
            stored = [replace(each, file=numbers[each.file]) for each in stored]
            copies = [
                (replace(a, file=numbers[a.file]), replace(b, file=numbers[b.file]))
                for a, b in copies
            ]
        contents.stored[key], contents.replicas[key] = stored, copies
        # A part takes a hundred bytes of a pickle or more. Keys that share one could make a small
        # file very large.
        left -= len(stored) + len(copies)
        if left < 0:
            raise InvalidCheckpoint(
                f"{data.names[0]}: The files describe too many slices for their size.", DISTRUST
            )


def _read_rank(
    data: DataFiles, rank: int, contents: SavedContents, parts: dict[str, list[Part]]
) -> int:
    """Add what the file of a rank holds; return the size of its pickle."""
    file = data.open(rank)
    unpickled = unpickle(file)
    if not unpickled.archive.has_checksums:
        contents.unguarded |= unpickled.leaves.keys()
    for key in unpickled.leaves:
        try:
            part = (
                share_of(unpickled.value(key), rank, unpickled.view)
                if unpickled.has_tensor(key)
                else unpickled.object(key)
            )
            parts.setdefault(key, []).append((rank, part))
        except READ_ERRORS as error:
            contents.faults.setdefault(key, error.at(file.name, repr(key)))
    return unpickled.nbytes


def _join(held: Sequence[Part]) -> tuple[list[Stored], list[tuple[Stored, Stored]]]:
    """Return the slices of a tensor, or the object of all ranks; and the copies."""
    objects = [(rank, part) for rank, part in held if isinstance(part, StoredObject)]
    if objects:
        if len(objects) < len(held) or len({part for _, part in objects}) > 1:
            raise UnsupportedError("The ranks hold different objects under this key.", _ALONE)
        return [Stored(*objects[0])], []
    shares = [(rank, part) for rank, part in held if isinstance(part, Share)]
    _check_alike(shares)
    return _without_copies([*_areas(shares)], shares[0][1])


def _check_alike(shares: Shares) -> None:
    """Raise if ranks disagree on the kind, the dtype or the shape of a tensor."""
    first, share = shares[0]
    for rank, other in shares:
        if (share.kind, share.dtype, share.shape) != (other.kind, other.dtype, other.shape):
            cause = f"Rank {first} holds {share.words}, and rank {rank} {other.words}."
            raise (UnsupportedError if share.is_plain and other.is_plain else InconsistentTensor)(
                cause, _ALONE
            )


def _areas(shares: Shares) -> Iterator[Area]:
    """Yield the regions that ranks hold, copies and empty ones included."""
    runs = _choose_runs(shares) if shares[0][1].spread else None
    for number, (rank, share) in enumerate(shares):
        if runs is not None:
            (view,) = share.views
            for held in held_regions(runs[number]):
                yield rank, part_of(view, held.inner, held.shape), held.offset
        else:
            offsets = [(0,) * len(share.shape)] if share.offsets is None else share.offsets
            for view, offset in zip(share.views, offsets, strict=True):
                _check_within(view.tensor.shape, offset, share.shape, rank)
                yield rank, view, offset


def _choose_runs(shares: Shares) -> list[list[Runs]]:
    """Return the indices that each rank holds of a DTensor, by the rule that the shapes of what
    they keep obey."""
    parts = [
        (rank, share.views[0].tensor.shape, share.spread) for rank, share in shares if share.spread
    ]
    # Where the two rules differ, so do their shapes: for all sizes up to 100 on all meshes up to 8
    # x 8.
    for strided_last in (False, True):
        runs = [spread.runs(strided_last) for _, _, spread in parts]
        both = zip(parts, map(local_shape, runs), strict=True)
        wrong = [(rank, kept, held) for (rank, kept, _), held in both if not _is_alike(kept, held)]
        if not wrong:
            return runs
        if not all(spread.may_be_fsdp for _, _, spread in parts):
            break
    rank, kept, held = wrong[0]
    cause = f"Rank {rank} keeps the shape {kept}, but its placements say {held}."
    raise InvalidCheckpoint(cause, WRITE_AGAIN)


def _is_alike(shape: tuple[int, ...], held: tuple[int, ...]) -> bool:
    """Return True if two shapes are equal; FSDP2 gives empty parts special shapes."""
    return shape == held or (len(shape) == len(held) and 0 in shape and 0 in held)


def part_of(view: TensorView, inner: tuple[int, ...], shape: tuple[int, ...]) -> TensorView:
    """Return a part of a tensor that a rank keeps."""
    tensor = view.tensor
    start = tensor.offset + sum(
        at * stride for at, stride in zip(inner, tensor.strides, strict=True)
    )
    return replace(view, tensor=replace(tensor, offset=start, shape=shape))


def _check_within(
    shape: tuple[int, ...], offset: tuple[int, ...], full: tuple[int, ...], rank: int
) -> None:
    """Raise ``OutOfBounds`` if a shard reaches out of its tensor."""
    if len(shape) != len(full) or any(
        at + size > most for at, size, most in zip(offset, shape, full, strict=True)
    ):
        cause = (
            f"Rank {rank} holds a shard of shape {shape} at {offset}, outside of a tensor of shape "
            f"{full}."
        )
        raise OutOfBounds(cause, WRITE_AGAIN)


def _without_copies(
    areas: Sequence[Area], share: Share
) -> tuple[list[Stored], list[tuple[Stored, Stored]]]:
    """Return one of each slice, and the copies; raise if checksums show that a copy differs."""
    if 0 in share.shape and areas:
        # A tensor without elements is one slice, the whole of it.
        rank, view, _ = areas[0]
        whole = replace(
            view, tensor=replace(view.tensor, offset=0, shape=share.shape, strides=share.shape)
        )
        return [Stored.whole(rank, whole)], []
    kept: dict[tuple[tuple[int, ...], tuple[int, ...]], Stored] = {}
    copies: list[tuple[Stored, Stored]] = []
    for rank, view, offset in areas:
        if 0 not in view.tensor.shape:
            each = Stored(rank, view, offset, share.shape)
            first = kept.setdefault((offset, view.tensor.shape), each)
            if first is not each:
                _check_copy(first, each, share)
                copies.append((first, each))
    if not kept:
        raise IncompleteCheckpoint("No rank holds an element of it.", _AGAIN)
    return [*kept.values()], copies


def _check_copy(first: Stored, copy: Stored, share: Share) -> None:
    """Raise if the checksums of two copies differ; copies without are compared by ``verify``."""
    sums = [each.value.checksum for each in (first, copy) if isinstance(each.value, TensorView)]
    if NO_CHECKSUM not in sums and len(set(sums)) > 1:
        cause = (
            f"The ranks {first.file} and {copy.file} hold different values of the slice at "
            f"{first.offset}."
        )
        if share.is_plain:
            raise UnsupportedError(cause, _ALONE)
        raise InvalidCheckpoint(cause, _AGAIN)
