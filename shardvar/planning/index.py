"""Index: a checkpoint's table of contents. It lists the stored slices, the places of their
payloads, and checksums.

An ``Index`` finds the slices of one key (``find``), without touching the
rest, or lists all (``scan``), a table at a time. ``Entry`` is one stored slice, for
people; ``EntryTable`` is columns of them.

``find_faults`` holds the laws of a well-formed index, key by key: each slice lies within its tensor
(``OutOfBounds``), no two slices hold the same element (``OverlappingSlices``), and every element is
held by one (``IncompleteCheckpoint``, naming the missing regions). A key that breaks a law is listed
with its error; the other keys can still be read.

Slices of almost every tensor are cut along only one axis; their laws are checked for all tensors at
once, by sorting. Tensors that are cut along several axes are looked at one by one: a few slices are
searched, and the search ends at the first overlap; many are proven to tile the tensor
(``layout.region``), which takes about n log n for any arrangement.
"""

import re
from collections.abc import (
    Callable,
    Collection,
    ItemsView,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    ValuesView,
)
from itertools import chain
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from shardvar.errors import (
    CheckpointError,
    IncompleteCheckpoint,
    OutOfBounds,
    OverlappingSlices,
    UnknownKey,
)
from shardvar.layout.dtypes import Bools, Ints
from shardvar.layout.region import Region, find_flaw, find_overlap
from shardvar.limits import MAX_PAYLOAD_EXPANSION
from shardvar.pictures.words import similar
from shardvar.planning.slices import SliceTable, TensorSlice, concatenate
from shardvar.records import entity, field, frozen, replace

# A checksum has 32 bits and is not negative, so -1 cannot be one.
NO_CHECKSUM = -1

DIGEST_NBYTES = 32  # the bytes of the digest of a payload: of SHA-256

_MOST_NAMED = 8  # Missing regions that an error names; the others it counts

_SEARCHED = 64  # Slices of a tensor up to which overlaps are searched: it is faster for a handful

_SUBTRACTED = 1024  # Slices up to which missing regions are computed: of one tensor, and of all

_MOST_REGIONS = 64  # Regions that a tensor may fall into while its slices are taken away

_NUMBERS = "[0-9]+"

_FREE_NBYTES = 1 << 20
"""Bytes that the payloads of a file may have, however small it is: 1 MiB costs nothing."""


OBJECTS = "shardvar.objects"
"""The name of the text in ``Metadata.user`` that has the objects of a checkpoint, where a format
has no other place for them (``formats.objects``)."""
KEY_IMPL = "jax.random.key_impl:"
"""The beginning of the names of texts in a user's metadata with the implementation of random keys
of JAX; the key of the tensor is the rest."""

SOME_PROCESSES = "shardvar.keys_of_some_processes"
"""The name of the text in ``Metadata.user`` that lists the keys that not all processes of a training
job had when they saved their states (``verbs.together.run``)."""

PART = "shardvar.part"
"""The name of the text in ``Metadata.user`` that marks a checkpoint as what one process of a job holds: its
number and the number of processes. Its tensors may have holes, and what is there is read."""

DELTA = "shardvar.delta"
"""The name of the text in ``Metadata.user`` that marks a checkpoint as a delta
(``verbs.delta.contents``)."""


@frozen
class Metadata:
    description: str = ""
    """The description of the policy that decided which slices share a file (RFC 001)."""
    writer: str = ""  # the program and version that wrote it
    user: Mapping[str, str] = field(default_factory=dict)  # Text that the user stored with it
    paths: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    """The steps to a key's value in a nested value of dicts and lists, if known."""
    empty: Mapping[str, str] = field(default_factory=dict)
    """The keys of None and of empty containers in that value, which have no tensor, each with its type
    as Orbax names it. To which keys they belong is not known: a copy that leaves keys out or renames
    them has none."""
    objects: Mapping[str, bytes] = field(default_factory=dict)
    """Objects to write, each as its encoding (``wire.plain``), or as the item of a distributed
    checkpoint that becomes one. Of a checkpoint that is read, the source has them."""
    ties: Mapping[str, str] = field(default_factory=dict)
    """Keys to write that have the bytes of another tensor, each with the key of that one. Of a
    checkpoint that is read, the entries have them (``find_ties``); of a delta's result, its table."""
    references: "References | None" = None
    """Tensors to write whose bytes lie in the files of another checkpoint, which is read no more."""
    generation: str = ""
    """A text that another checkpoint of the same path does not have, where the index holds one: the
    run of the processes that wrote it. A copy of a checkpoint does not inherit it."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """The digest of each tensor by key, as 64 hexadecimal digits (docs/digest.md), if the checkpoint
    carries them. Of a checkpoint that is read they are a claim, which ``verify`` compares; asking for
    them raises ``MalformedCheckpoint`` if their text is not one of digests."""

    native: tuple[bytes, ...] = ()
    """Metadata as GGUF has them, for a copy in GGUF."""

    @property
    def is_part(self) -> bool:
        return PART in self.user

    @property
    def has_digests(self) -> bool:
        return not isinstance(self.digests, dict) or bool(self.digests)


class Entry(NamedTuple):
    """A slice that is stored: a row of an index."""

    slice: TensorSlice
    file: str  # the name of the data file that holds the payload
    start: int  # the first byte of the payload, in bytes of the file
    checksum: int | None  # the checksum of the payload; None if the format has none


@entity
class RunChecksums:
    """Checksums of runs: fixed-size parts of payloads, which are verified by themselves."""

    run_nbytes: int  # the bytes of a run; the last run of a payload may be shorter
    values: npt.NDArray[np.uint32]
    """The CRC32C of every run of every payload, one payload after the other."""
    first: Ints
    """[m] the position in ``values`` of each payload's first run."""

    def around(self, start: int, stop: int, nbytes: int) -> tuple[int, int]:
        """Return the bytes of the runs that hold a range of a payload."""
        run = self.run_nbytes
        return start // run * run, min(-(-stop // run) * run, nbytes)

    def of(self, row: int, nbytes: int) -> npt.NDArray[np.uint32]:
        """The checksums of one payload's runs."""
        # ceil(nbytes / run_nbytes) runs: 9 bytes in runs of 4 are -(-9 // 4) = 3, whose last one
        # has 1 byte.
        first = int(self.first[row])
        return self.values[first : first - (-nbytes // self.run_nbytes)]


_COLUMNS: dict[str, type[np.int64 | np.bool]] = {
    "file": np.int64,
    "start": np.int64,
    "checksum": np.int64,
    "plain": np.bool,
}


@entity
class EntryTable:
    slices: SliceTable
    """The slices that are stored."""
    file: Ints
    """[m] positions in the index's ``files``."""
    start: Ints
    """[m] the first byte of the payload in the file, if it is ``plain``; else a number that the
    format understands."""
    checksum: Ints
    """[m] the payload's checksum; ``NO_CHECKSUM`` without one, or if the source checks."""
    plain: Bools
    """[m] True if the payload lies in the file byte for byte; else the source decodes it."""
    runs: RunChecksums | None = None  # Checksums of runs, if the format has them
    digests: npt.NDArray[np.uint8] | None = None
    """[m, 32] the digest of the payload, zeros where it is not known; None if no digest is known."""

    @classmethod
    def without_checksums(
        cls, slices: SliceTable, start: Ints, file: Ints | int = 0, plain: Bools | bool = True
    ) -> Self:
        count = len(slices)
        columns = np.full(count, file), start, np.full(count, NO_CHECKSUM), np.full(count, plain)
        return cls(slices, *columns)

    def __len__(self) -> int:
        return len(self.file)

    def entry(self, row: int, files: Sequence[str]) -> Entry:
        number = int(self.checksum[row])
        checksum = None if number == NO_CHECKSUM else number
        return Entry(self.slices[row], files[self.file[row]], int(self.start[row]), checksum)

    def place(self, row: int) -> tuple[int, int]:
        # The number of the file, and where the payload begins in it.
        return int(self.file[row]), int(self.start[row])

    def take(self, rows: Ints) -> Self:
        runs = self.runs and replace(self.runs, first=self.runs.first[rows])
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        digests = None if self.digests is None else self.digests[rows]
        slices = self.slices.take(rows)
        return replace(self, slices=slices, runs=runs, digests=digests, **columns)


@entity
class References:
    """Tensors of an older checkpoint that a new one of the same directory has unchanged."""

    entries: EntryTable
    files: Sequence[str]  # [files] the names of the data files that hold their bytes
    nbytes: Ints  # [files] the size of each
    index: str  # the name of the older checkpoint's index
    stamp: str  # the stamp of that index when it was read


@entity
class ScannedFaults(Mapping[str, CheckpointError]):
    """The keys that cannot be read. A look-up asks for one key, and iteration scans once: use
    ``dict(faults.items())``, since ``dict(faults)`` looks each key up."""

    one: Callable[[str], Any]
    """Returns the error of a key, or None."""
    all: Callable[[], Mapping[str, Any]]
    """Returns all keys with their errors, by one scan of the index."""

    def __getitem__(self, key: str) -> CheckpointError:
        fault: CheckpointError | None = self.one(key)
        if fault is None:
            raise KeyError(key)
        return fault

    def __iter__(self) -> Iterator[str]:
        return iter(self.all())

    def __len__(self) -> int:
        return len(self.all())

    def items(self) -> ItemsView[str, CheckpointError]:
        return self.all().items()

    def values(self) -> ValuesView[CheckpointError]:
        return self.all().values()


class Index(Protocol):
    """A checkpoint's table of contents."""

    @property
    def files(self) -> Sequence[str]:
        """The names of the data files, by their number in ``EntryTable.file``."""

    @property
    def metadata(self) -> Metadata:
        """Metadata that the writer stored about the checkpoint."""

    @property
    def faults(self) -> Mapping[str, CheckpointError]:
        """Keys of the index that cannot be read, with the reason; every other key can."""

    def find(self, key: str) -> EntryTable:
        """The entries of one key; ``UnknownKey`` if the index does not have it."""

    def scan(self) -> Iterator[EntryTable]:
        """All entries, a bounded table at a time, in the order of the keys."""


@entity
class TableIndex:
    """An index that is one table in memory, for formats whose contents are read whole."""

    entries: EntryTable
    files: Sequence[str]  # the names of the data files
    metadata: Metadata = field(default_factory=Metadata)
    """Metadata that the writer stored about the checkpoint."""
    faults: Mapping[str, CheckpointError] = field(default_factory=dict)
    """Keys that cannot be read, with the reason."""
    _rows: dict[str, int] = field(init=False, default_factory=dict)
    _grouped: list[tuple[Ints, Ints]] = field(init=False, default_factory=list)
    """The rows of entries grouped by tensor, as the only item, once a key was looked up."""

    def find(self, key: str) -> EntryTable:
        # Made by the first lookup: a program that only scans does not pay for it.
        if not self._rows:
            self._grouped.append(self.entries.slices.by_tensor())
            self._rows.update(self.entries.slices.tensors.rows())
        if key not in self._rows:
            raise unknown_key(key, self._rows)
        row = self._rows[key]
        order, bounds = self._grouped[0]
        taken = self.entries.take(order[bounds[row] : bounds[row + 1]])
        # Only the one tensor, so that the cost of an answer does not grow with the names and shapes
        # of all others.
        slices, tensors = taken.slices, taken.slices.tensors.take(np.array([row]))
        slices = replace(slices, tensors=tensors, tensor=np.zeros_like(slices.tensor))
        return replace(taken, slices=slices)

    def scan(self) -> Iterator[EntryTable]:
        yield self.entries


def find_shared(entries: EntryTable, file_nbytes: Ints) -> Bools:
    """[m] True for payloads that share bytes where too many do: payloads of a file have at most
    ``MAX_PAYLOAD_EXPANSION`` times its bytes, and in all files ``_FREE_NBYTES`` beyond that."""
    # Floats, which do not overflow.
    total = np.bincount(entries.file, entries.slices.nbytes, len(file_nbytes))
    beyond = np.maximum(total - MAX_PAYLOAD_EXPANSION * file_nbytes.astype(np.float64), 0)
    if beyond.sum() <= _FREE_NBYTES:
        return np.zeros(len(entries), np.bool)
    is_suspect = (beyond > 0)[entries.file] & (entries.slices.nbytes > 0)
    # Sorted by file and start, a payload that shares bytes with any later one shares some with the
    # next one. The remaining ones are apart from each other, and so together not larger than their
    # file.
    rows = np.flatnonzero(is_suspect)
    file, start, nbytes = entries.file[rows], entries.start[rows], entries.slices.nbytes[rows]
    order = np.lexsort((start, file))
    file, start, nbytes = file[order], start[order], nbytes[order]
    meet = (file[1:] == file[:-1]) & (start[1:] - start[:-1] < nbytes[:-1])
    shared = np.zeros(len(entries), np.bool)
    shared[rows[order[1:][meet]]] = True
    shared[rows[order[:-1][meet]]] = True
    return shared


MOST_TIED = MAX_PAYLOAD_EXPANSION // 2
"""Keys that share their bytes at most, so that no reader takes a small file for a hostile one."""


def find_ties(entries: EntryTable) -> dict[str, str]:
    """Return the keys that have the bytes of an earlier key, each with that key: tied weights."""
    slices, tensors = entries.slices, entries.slices.tensors
    rows = np.flatnonzero(entries.plain & (slices.nbytes > 0))
    file, start = entries.file[rows], entries.start[rows]
    order = np.lexsort((start, file))
    file, start = file[order], start[order]
    meet = np.flatnonzero((file[1:] == file[:-1]) & (start[1:] == start[:-1]))
    if not len(meet):
        return {}
    suspects = np.unique(slices.tensor[rows[order[np.concatenate([meet, meet + 1])]]]).tolist()
    order, bounds = slices.by_tensor(by_offset=True)
    firsts: dict[tuple[object, ...], list[str]] = {}
    for tensor in suspects:
        own = order[bounds[tensor] : bounds[tensor + 1]]
        columns = (entries.file, entries.start, slices.offset, slices.shape)
        places = [column[own].tobytes() for column in columns]
        if entries.plain[own].all():
            kind = (tensors.dtype(tensor), tensors.shape(tensor), *places)
            firsts.setdefault(kind, []).append(tensors.keys[tensor])
    return {key: first for first, *others in firsts.values() for key in others[: MOST_TIED - 1]}


def take_tensors(entries: EntryTable, keys: Collection[str]) -> EntryTable:
    tensors = entries.slices.tensors
    rows = np.array([row for row, key in enumerate(tensors.keys) if key in keys], np.int64)
    return entries if len(rows) == len(tensors) else of_tensors(entries, rows)


def of_tensors(entries: EntryTable, rows: Ints) -> EntryTable:
    # The new row of each tensor, -1 for those left out: if rows 0 and 2 of three are kept, it is 0,
    # -1, 1.
    tensors = entries.slices.tensors
    if np.array_equal(rows, np.arange(len(tensors))):
        return entries
    position = np.full(len(tensors), -1, np.int64)
    position[rows] = np.arange(len(rows))
    order = np.argsort(position[entries.slices.tensor], kind="stable")
    chosen = entries.take(order[position[entries.slices.tensor[order]] >= 0])
    tensor = position[chosen.slices.tensor]
    slices = replace(chosen.slices, tensors=tensors.take(rows), tensor=tensor)
    return replace(chosen, slices=slices)


def rename_tensors(entries: EntryTable, name: Callable[[str], str]) -> EntryTable:
    slices = entries.slices
    tensors = replace(slices.tensors, keys=[name(key) for key in slices.tensors.keys])
    return replace(entries, slices=replace(slices, tensors=tensors))


def of_rows(entries: EntryTable, tensors: Sequence[int], rows: Sequence[Ints]) -> EntryTable:
    """The rows of each of some tensors, over a table of only these tensors, in the given order."""
    number = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
    taken = entries.take(np.concatenate([np.zeros(0, np.int64), *rows]))
    table = entries.slices.tensors.take(np.array(tensors, np.int64))
    return replace(taken, slices=replace(taken.slices, tensors=table, tensor=number))


def concatenate_entries(tables: Sequence[EntryTable]) -> EntryTable:
    """One table of all rows; ``InconsistentTensor`` if two tables disagree about a tensor."""
    if len(tables) == 1:
        return tables[0]
    # Kept only if every table has them, because a row cannot be without runs.
    runs = [table.runs for table in tables if table.runs is not None]
    merged = None
    # The checksums of all tables follow each other, so each table's positions move behind those
    # before it.
    if runs and len(runs) == len(tables):
        starts = np.cumsum([0, *(len(r.values) for r in runs)])
        first = np.concatenate([r.first + start for r, start in zip(runs, starts, strict=False)])
        merged = RunChecksums(runs[0].run_nbytes, np.concatenate([r.values for r in runs]), first)
    columns = {
        name: np.concatenate([np.zeros(0, kind), *(getattr(table, name) for table in tables)])
        for name, kind in _COLUMNS.items()
    }
    digests = None
    if any(table.digests is not None for table in tables):
        digests = np.concatenate(
            [
                np.zeros((len(t), DIGEST_NBYTES), np.uint8) if t.digests is None else t.digests
                for t in tables
            ]
        )
    slices = concatenate([table.slices for table in tables])
    return EntryTable(slices, runs=merged, digests=digests, **columns)


def unknown_key(key: str, keys: Iterable[str]) -> UnknownKey:
    alike = similar(key, keys, 3)
    # The number of a layer is seldom misspelt: `layer.3.w` means `layers.3.w`, and not
    # `layers.4.w`.
    alike = [
        name for name in alike if re.findall(_NUMBERS, name) == re.findall(_NUMBERS, key)
    ] or alike
    *others, last = [repr(name) for name in alike] or [""]
    near = f"{', '.join(others)} or {last}" if others else last
    remedy = f"Did you mean {near}?" if near else "`shardvar inspect` lists the keys."
    return UnknownKey(f"There is no tensor {key!r}.", remedy)


# Faults.


def find_faults(slices: SliceTable, *, is_part: bool = False) -> dict[str, CheckpointError]:
    """The keys that break a law, each with its error; a part may have holes."""
    # Most tensors are one slice, the whole of it. An index of such tensors breaks no law.
    full = slices.tensors.shapes
    if (
        len(slices) == len(full)
        and np.array_equal(slices.tensor, np.arange(len(full)))
        and np.array_equal(slices.shape, full)
        and not slices.offset.any()
        and (full >= 0).all()
    ):
        return {}
    faults = _out_of_bounds(slices)
    if faults:
        # The other laws add offsets and extents, which cannot overflow for slices within their
        # tensors.
        slices = slices.take(np.flatnonzero(~np.isin(slices.tensor, list(faults))))
    # Overlaps first: where slices overlap, the sum of their sizes does not tell if there is a hole.
    holes = np.zeros(len(slices.tensors), np.bool)
    lacking = () if is_part else _holes(slices, holes)
    for tensor, error in chain(_overlaps(slices, holes), lacking):
        faults.setdefault(tensor, error)
    return {slices.tensors.keys[tensor]: error for tensor, error in sorted(faults.items())}


def _out_of_bounds(slices: SliceTable) -> dict[int, CheckpointError]:
    full = slices.tensors.shapes[slices.tensor]
    # Not offset + shape > full, which may overflow: both come from a file.
    bad = (slices.offset < 0) | (slices.shape < 0) | (slices.shape > full - slices.offset)
    faults: dict[int, CheckpointError] = {}
    for row in np.flatnonzero(bad.any(axis=1)).tolist():
        tensor = int(slices.tensor[row])
        if tensor not in faults:
            full_shape = slices.tensors.shape(tensor)
            # Not a Region: a slice out of bounds may have negative or overflowing numbers.
            axes = zip(slices.offset[row].tolist(), slices.shape[row].tolist(), strict=True)
            texts = [f"{offset}:{offset + count}" for offset, count in axes]
            extents = ", ".join(texts[: len(full_shape)])
            faults[tensor] = OutOfBounds(
                f"The slice [{extents}] of {slices.key(row)!r} reaches out of the shape "
                f"{full_shape}.",
                "The index is damaged, or its writer was wrong; the other tensors can be read.",
            )
    return faults


def _overlaps(slices: SliceTable, holes: Bools) -> Iterator[tuple[int, CheckpointError]]:
    """The tensors with overlaps; holes that are found on the way are marked in ``holes``."""
    # axes[t, d] is True if some slice of tensor t is cut along axis d.
    cut = slices.shape != slices.tensors.shapes[slices.tensor]
    axes = np.zeros((len(slices.tensors), cut.shape[1]), np.bool)
    np.logical_or.at(axes, slices.tensor, cut)
    # A slice without elements overlaps with nothing, wherever it lies.
    filled = (slices.shape > 0).all(axis=1)
    one_axis = axes.sum(axis=1) <= 1
    yield from _overlaps_on_one_axis(slices, np.flatnonzero(filled & one_axis[slices.tensor]), axes)
    order = np.flatnonzero(filled & ~one_axis[slices.tensor])
    order = order[np.argsort(slices.tensor[order], kind="stable")]
    ends = np.flatnonzero(np.diff(slices.tensor[order])) + 1
    for rows in np.split(order, ends):
        regions = slices.offset[rows], slices.shape[rows]
        if len(rows) <= _SEARCHED:
            pair = find_overlap(*regions)
        else:
            flaw = find_flaw(*regions, slices.tensors.shapes[slices.tensor[rows[0]]].tolist())
            pair = (flaw.rows[0], flaw.rows[1]) if flaw and flaw.rows else None
            holes[slices.tensor[rows[0]]] = flaw is not None and not flaw.rows
        if pair is not None:
            yield _overlap(slices, int(rows[pair[0]]), int(rows[pair[1]]))


def _overlaps_on_one_axis(
    slices: SliceTable, rows: Ints, axes: Bools
) -> Iterator[tuple[int, CheckpointError]]:
    """Overlaps of slices that are cut along one axis at most: sorted, neighbours meet."""
    if not axes.shape[1]:  # scalars: each slice is their element
        start = np.zeros(len(rows), np.int64)
        stop = start + 1
    else:
        axis = axes.argmax(axis=1)[slices.tensor[rows]]
        start = slices.offset[rows, axis]
        stop = start + slices.shape[rows, axis]
    order = np.lexsort((start, slices.tensor[rows]))
    rows, start, stop = rows[order], start[order], stop[order]
    # If any two intervals overlap, then so do two neighbours: if one reaches beyond the start of a
    # later one, it also reaches beyond the start of the next one. [0, 5), [1, 2), [3, 4) meet at
    # the first two.
    meet = (slices.tensor[rows[1:]] == slices.tensor[rows[:-1]]) & (start[1:] < stop[:-1])
    seen: set[int] = set()
    for position in np.flatnonzero(meet).tolist():
        if int(slices.tensor[rows[position]]) not in seen:
            tensor, error = _overlap(slices, int(rows[position]), int(rows[position + 1]))
            seen.add(tensor)
            yield tensor, error


def _overlap(slices: SliceTable, first: int, second: int) -> tuple[int, CheckpointError]:
    a, b = slices.region(first), slices.region(second)
    cause = f"The slices {a} and {b} of {slices.key(first)!r} overlap in {a.intersect(b)}."
    return int(slices.tensor[first]), OverlappingSlices(
        cause, "Which of them is right cannot be known; write it again."
    )


def _holes(slices: SliceTable, holes: Bools) -> Iterator[tuple[int, CheckpointError]]:
    """The tensors with holes: the marked ones, and any with too few elements in slices."""
    # Sizes as floats, which do not overflow, decide only which tensors are looked at; the exact
    # sizes decide.
    held = np.zeros(len(slices.tensors))
    with np.errstate(over="ignore", invalid="ignore"):
        np.add.at(held, slices.tensor, np.prod(slices.shape, axis=1, dtype=np.float64))
        full = np.prod(slices.tensors.shapes, axis=1, dtype=np.float64)
    order, bounds = slices.by_tensor()
    subtracted = 0
    for tensor in np.flatnonzero(holes | (np.diff(bounds) > 0) & (held != full)).tolist():
        regions = list(map(slices.region, order[bounds[tensor] : bounds[tensor + 1]].tolist()))
        whole = Region.whole(slices.tensors.shape(tensor))
        # Python's integers are exact. A sum that is larger than the tensor would be an overlap,
        # which is reported.
        if holes[tensor] or sum(region.size for region in regions) < whole.size:
            # One budget for all tensors, so that an index with a hole in every tensor is reported
            # in bounded time.
            subtracted += len(regions)
            named = regions if subtracted <= _SUBTRACTED else None
            yield tensor, incomplete_key(slices.tensors.keys[tensor], whole, named)


def incomplete_key(key: str, wanted: Region, stored: list[Region] | None) -> IncompleteCheckpoint:
    """The error that names the missing regions of ``wanted``, if found quickly."""
    remedy = (
        "These elements are stored nowhere: find the missing file, or the other files of its "
        "writer."
    )
    lacking = f"some of the {wanted.size} elements of {wanted}"
    if stored is not None and len(stored) <= _SUBTRACTED:
        rest = [wanted]
        for region in sorted(stored):
            if len(rest) <= _MOST_REGIONS:
                rest = [part for old in rest for part in old.subtract(region)]
        if len(rest) <= _MOST_REGIONS:
            more = f" and {len(rest) - _MOST_NAMED} more regions" if len(rest) > _MOST_NAMED else ""
            lacking = f"{', '.join(map(str, rest[:_MOST_NAMED]))}{more}"
    return IncompleteCheckpoint(f"{key!r} lacks {lacking}.", remedy)
