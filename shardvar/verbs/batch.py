"""A batch of reads: the regions of tensors that are read for it, and what is returned of them.

    requests --plan_gather--> regions --plan_copies--> one plan --read_arrays--> arrays, picked

One request or a thousand have one plan. Each tensor is looked up once, neighbours in a file are
read together, and all requests to a bucket are under way at once.

    request                          what is read                       where it is read to
    a tensor, or a region of it      that region                        its array
    integers, slices                 the smallest region around them    an array, and picked from it
    slices of long steps             some indices at a time             likewise, one part after the other
    lists of rows, masks             a region for each run of rows      one array of all these rows
    strings, packed elements         the whole tensor                   a fresh array, likewise

A checksum of a whole payload says nothing about a part of it. Where only parts of such a payload are
wanted, they are read bare, and the requests that need them are noted, unless all is to be verified.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from shardvar.engine.evidence import Evidence
from shardvar.engine.pool import BLOCK_NBYTES
from shardvar.engine.read import Places, costs_of_parts, read_arrays
from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import Array, Bools, Ints, is_whole, numpy_dtype
from shardvar.layout.gathers import Gather, plan_gather
from shardvar.layout.indexing import Pick, cut_steps
from shardvar.layout.region import Region
from shardvar.planning.index import EntryTable, take_tensors
from shardvar.planning.plan import Plan, plan_copies
from shardvar.planning.slices import SliceTable, widen

Request = tuple[str, Any]
"""A key, and what is wanted of it: a region, an index, or None for all."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The result of a batch of reads."""

    arrays: list[Array]
    """The array of each request, in order."""
    unverified: list[tuple[str, Region]]
    """The requests with bytes that were not compared, as the region around each."""


@dataclass(frozen=True, slots=True, eq=False)
class _Item:
    """A request, as the regions to read and what is picked of them."""

    key: str
    """The name of its tensor."""
    tensor: int
    """The number of its tensor in the batch."""
    dtype: np.dtype[Any]
    """The dtype of its array."""
    asked: Gather
    """The regions that the caller asks for."""
    gather: Gather
    """The regions that are read: the same, or the whole tensor, from which they are cut then."""
    parts: list[tuple[Region, Pick]]
    """The parts to read one after the other; empty if all is read at once."""
    axis: int
    """The axis along which the parts follow each other in the result."""
    into: Array | None
    """The caller's array, or None."""

    def place(self) -> Array | None:
        """Return the array that its regions are read into; None for a fresh one of one region."""
        if self.asked is not self.gather:
            return None
        if self.into is not None and self.gather.is_direct and self.into.flags.c_contiguous:
            return self.into
        return np.empty(self.gather.full, self.dtype) if len(self.gather.offset) != 1 else None

    def arrange(self, array: Array) -> Array:
        """Return the array for the caller, from what was read."""
        if array is self.into:
            return array
        if self.asked is not self.gather:
            array = _cut(array, self.asked)
        return self.give(self.asked.take(array.reshape(self.asked.full)))

    def give(self, array: Array) -> Array:
        """Return an array, or the caller's with its values."""
        if self.into is None:
            return array
        self.into[...] = array
        return self.into


def read_batch(
    source: Source,
    requests: Sequence[Request],
    entries: EntryTable,
    *,
    is_full: bool,
    out: Sequence[Array | None] | None = None,
) -> Batch:
    """Read all requests with one plan; ``entries`` are of all their keys.

    Arguments are checked before the first byte is read, and everything that was read is verified
    before an array is returned. With ``is_full``, everything that has checksums is compared.
    """
    given = _read_out(out, len(requests))
    tensors = entries.slices.tensors
    number = tensors.rows()
    items = [
        _item(source, entries, number[key], wanted, is_full, into)
        for (key, wanted), into in zip(requests, given, strict=True)
    ]
    parts = {key for key in tensors.keys if source.is_part(key)}
    for error in source.storage_errors(parts).values() if is_full and parts else ():
        raise error
    found: list[Array | None] = [None] * len(items)
    is_bare = [item.key in parts and not is_full for item in items]
    # What is read at once.
    rows = [row for row, item in enumerate(items) if not item.parts]
    if rows:
        arrays, bare = _read_at_once(source, entries, [items[row] for row in rows], is_full)
        for row, array, is_part_bare in zip(rows, arrays, bare, strict=True):
            found[row] = array
            is_bare[row] |= is_part_bare
    # What is read part by part, so that what lies between its steps is not held.
    for row, item in enumerate(items):
        if not item.parts:
            continue
        alone = take_tensors(entries, {item.key})
        picked = []
        for part, pick in item.parts:
            batch = read_batch(source, [(item.key, part)], alone, is_full=is_full)
            picked.append(np.asarray(batch.arrays[0][(*pick, ...)]).copy())
            is_bare[row] |= bool(batch.unverified)
        found[row] = item.give(np.concatenate(picked, item.axis))
    noted = [
        (item.key, item.asked.around) for item, bare in zip(items, is_bare, strict=True) if bare
    ]
    return Batch([each for each in found if each is not None], noted)


def _read_out(out: Sequence[Any] | None, count: int) -> list[Any]:
    if out is None:
        return [None] * count
    given = list(out)
    if len(given) != count:
        raise ArgumentError(
            f"out has {len(given)} arrays for {count} requests.",
            "Give one for each; None where an array is to be made.",
        )
    return given


def _item(
    source: Source,
    entries: EntryTable,
    tensor: int,
    wanted: Any,
    is_full: bool,
    into: Any,
) -> _Item:
    """Return a request with its regions; raise what is wrong with it."""
    tensors = entries.slices.tensors
    key, shape, name = tensors.keys[tensor], tensors.shape(tensor), tensors.dtype(tensor)
    dtype = numpy_dtype(name)
    asked = gather = plan_gather(wanted, shape)
    if into is not None:
        _check_out(into, key, dtype, asked.picked_shape)
    parts: list[tuple[Region, Pick]] = []
    axis = 0
    # The place of a string follows from the lengths of all before it, and packed elements share
    # bytes: these are read whole, and cut then.
    if is_whole(name):
        gather = plan_gather(None, shape)
    elif len(asked.offset) == 1 and not any(isinstance(each, np.ndarray) for each in asked.pick):
        # What lies between long steps is left out.
        region = asked.around
        most = BLOCK_NBYTES // dtype.itemsize
        parts, axis = cut_steps(region, asked.pick, most * region.size // _spanned(region, shape))
        if len(parts) > 1:
            mine = take_tensors(entries, {key})
            parts = [] if _is_read_at_once(source, mine, region, is_full) else parts
        else:
            parts = []
    return _Item(key, tensor, dtype, asked, gather, parts, axis, into)


def _check_out(into: Any, key: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    if not isinstance(into, np.ndarray):
        raise ArgumentTypeError(
            f"out has a {type(into).__name__} for {key!r}.", "Give NumPy arrays, or None."
        )
    if into.shape != shape or into.dtype != dtype:
        raise ArgumentError(
            f"{key!r} gives {dtype}{list(shape)}, and its array in out is "
            f"{into.dtype}{list(into.shape)}.",
            "Shapes and dtypes are never changed unasked; give an array of the same.",
        )
    if not into.flags.writeable:
        raise ArgumentError(
            f"The array in out for {key!r} is read-only.", "Give one that may be written."
        )


def _read_at_once(
    source: Source, entries: EntryTable, items: Sequence[_Item], is_full: bool
) -> tuple[list[Array], list[bool]]:
    """Return the array of each item, and True for the ones with bytes that were not compared."""
    # Plan.
    counts = np.array([len(item.gather.offset) for item in items], np.int64)
    item_of = np.repeat(np.arange(len(items)), counts)
    first = np.cumsum(counts) - counts
    targets = _targets(entries, items, counts)
    places = [item.place() for item in items]
    plan = plan_copies(entries.slices, targets)
    bare = np.zeros(len(entries), np.bool) if is_full else _bare_rows(source, entries, plan)
    # Move.
    arrays = read_arrays(
        plan, source, entries, bare=bare, into=_places(targets, places, item_of, first)
    )
    # Arrange.
    found = [
        item.arrange(arrays[row] if place is None else place)
        for item, row, place in zip(items, first.tolist(), places, strict=True)
    ]
    is_bare = np.zeros(len(items), np.bool)
    is_bare[item_of[plan.copies.target[bare[plan.copies.source]]]] = True
    return found, is_bare.tolist()


def _targets(entries: EntryTable, items: Sequence[_Item], counts: Ints) -> SliceTable:
    """The regions of all items, one after the other."""
    tensors = entries.slices.tensors
    rank = tensors.shapes.shape[1]
    tensor = np.repeat(np.array([item.tensor for item in items], np.int64), counts)
    offset, shape = (
        np.concatenate([widen(getattr(item.gather, name), rank, fill) for item in items])
        for name, fill in (("offset", 0), ("shape", 1))
    )
    return SliceTable.of(tensors, tensor, offset, shape)


def _places(
    targets: SliceTable, places: Sequence[Array | None], item_of: Ints, first: Ints
) -> Places:
    """The bytes of the arrays that each target is read into."""
    given = [(item, each) for item, each in enumerate(places) if each is not None]
    array = np.full(len(places), -1)
    array[[item for item, _ in given]] = np.arange(len(given))
    # The regions of an item follow each other in its array.
    before = np.cumsum(targets.nbytes) - targets.nbytes
    start = before - before[first[item_of]] if len(targets) else before
    return Places([each for _, each in given], array[item_of], start)


def _bare_rows(source: Source, entries: EntryTable, plan: Plan) -> Bools:
    """[entries] True for payloads that are wanted in part, where a checksum covers only the whole.

    Of checksums of runs, these are payloads in a bucket, if the runs have more than twice the bytes
    that are read without them, and more than are wasted otherwise.
    """
    none = np.zeros(len(entries), np.bool)
    if entries.runs is not None and source.traits is None:
        return none
    copies = plan.copies
    size = np.prod(entries.slices.shape, axis=1, dtype=np.int64)
    is_part = np.prod(copies.shape, axis=1, dtype=np.int64) != size[copies.source]
    bare, whole = none.copy(), none.copy()
    bare[copies.source[is_part]] = True
    whole[copies.source[~is_part]] = True
    bare &= ~whole & Evidence(source, entries).is_guarded(np.arange(len(entries)))
    if entries.runs is None or source.traits is None or not bare.any():
        return bare
    least, most = costs_of_parts(source, entries, plan, bare)
    return bare if most > max(2 * least, least + source.traits.waste_nbytes) else none


def _cut(array: Array, gather: Gather) -> Array:
    """The elements of regions of an array, one region after the other."""
    parts = [array.reshape(-1)[:0]]
    for offset, shape in zip(gather.offset.tolist(), gather.shape.tolist(), strict=True):
        # The ellipsis keeps an array of objects without axes an array.
        index: tuple[Any, ...] = (*Region(offset, shape).slices, ...)
        parts.append(array[index].reshape(-1))
    return np.concatenate(parts)


def _is_read_at_once(source: Source, entries: EntryTable, region: Region, is_full: bool) -> bool:
    """Return True for payloads that are compared whole, or decompressed from their beginning."""
    if entries.runs is not None:
        return False
    guarded = Evidence(source, entries).is_guarded(np.arange(len(entries)))
    is_compared = guarded.any() and (is_full or not _is_part_of_guarded(entries, guarded, region))
    return bool(is_compared or not entries.plain.all())


def _is_part_of_guarded(entries: EntryTable, guarded: Bools, wanted: Region) -> bool:
    """Return True if a checksum covers more than the region, and so cannot be compared."""
    slices, rank = entries.slices, wanted.rank
    offset, shape = slices.offset[:, :rank], slices.shape[:, :rank]
    low, high = np.array(wanted.offset, dtype=np.int64), np.array(wanted.stop, dtype=np.int64)
    # If the rows 3:7 are wanted, the slice 0:5 meets them and is not covered; 4:6 is covered.
    meets = (np.minimum(offset + shape, high) > np.maximum(offset, low)).all(axis=1)
    is_covered = ((offset >= low) & (offset + shape <= high)).all(axis=1)
    return bool((guarded & meets & ~is_covered).any())


def _spanned(region: Region, shape: tuple[int, ...]) -> int:
    """Return the number of elements from the first to the last one of a region, at least 1.

    Column 1 of the rows 2 to 7 of shape (10, 1000) spans these rows.
    """
    axis = next((axis for axis, extent in enumerate(region.shape) if extent > 1), region.rank)
    return max(prod((*region.shape[: axis + 1], *shape[axis + 1 :])), 1)
