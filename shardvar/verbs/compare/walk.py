"""The walk of two open checkpoints side by side, block by block in the same order
(``compare.blocks``), so that neither is ever held whole, and every checksum on the way is
compared. A tensor that cannot be read is named with its error, and hides no other.

Of a large tensor, whichever thread wants a portion reads it. Only a tensor that its source decodes in
order is read from its beginning to its end, one portion ahead.

Most tensors are equal: several threads find large tensors with the same bytes on both sides before
any value is looked at. Tensors that differ or are damaged are left to the comparison of values, which
reads them again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, suppress
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, Self

import numpy as np

from shardvar._version import __version__
from shardvar.engine.pool import BLOCK_NBYTES, Progress, bytes_of, map_ahead
from shardvar.engine.read import FlatTensor
from shardvar.errors import READ_ERRORS, ReadError
from shardvar.layout.dtypes import Array, is_number
from shardvar.records import entity, field
from shardvar.verbs.compare.blocks import Blocks, ReadBytes, batches, element_dtype, reads_of
from shardvar.verbs.compare.comparison import (
    DiffReport,
    TensorDifference,
    Unreadable,
    ValueDifference,
)
from shardvar.verbs.compare.digest import digest_array
from shardvar.verbs.compare.distances import (
    Difference,
    Highest,
    Products,
    Tolerance,
    are_comparable,
    compare_arrays,
    only_bytes,
    products_of_same,
)
from shardvar.verbs.problems import Damage
from shardvar.verbs.reader import Reader, settings_in, warn_of_files
from shardvar.verbs.together.executors import Opening, Payloads, portions, run_tasks
from shardvar.wire.digests import LeafHashes


class SideError(Exception):
    def __init__(self, side: str, error: ReadError) -> None:
        super().__init__(side, error)
        self.side, self.error = side, error


class Stretch(NamedTuple):
    a: Array
    b: Array
    start: int
    """The flat index of the first element."""

    @property
    def shared(self) -> int:
        """Elements that both have: two variants may differ in length."""
        return min(len(self.a), len(self.b))

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + self.b.nbytes


ReadStretch = Callable[[], Stretch]
"""A function that returns a portion, for any thread. The portion may be gone when the thread
calls another one."""


@entity
class Sides:
    """Two tensors that are read side by side. A side's error is a ``SideError``."""

    flats: tuple[FlatTensor, FlatTensor]
    dtypes: tuple[str, str]

    @classmethod
    def of(cls, a: Blocks, row: int, b: Blocks, other: int) -> Self:
        dtypes = a.tensors.dtype(row), b.tensors.dtype(other)
        return cls((a.flat(row), b.flat(other)), dtypes)

    def portions(self) -> Iterator[ReadStretch]:
        """Functions that read a portion each, in order; a side that ends first goes on empty."""
        sizes = [element_dtype(dtype).itemsize for dtype in self.dtypes]
        nums = [flat.nbytes // size for flat, size in zip(self.flats, sizes, strict=True)]
        step = BLOCK_NBYTES // max(sizes)
        reads = reads_of(self.flats, [step * size for size in sizes])
        with closing(reads):
            for start, both in zip(range(0, max(nums), step), reads, strict=False):
                yield partial(self._read, both, start)

    def check(self) -> None:
        for side, flat in zip("ab", self.flats, strict=True):
            _of_side(side, flat.check)

    def _read(self, reads: Sequence[ReadBytes], start: int) -> Stretch:
        a, b = (
            np.frombuffer(_of_side(side, read), element_dtype(dtype))
            for side, read, dtype in zip("ab", reads, self.dtypes, strict=True)
        )
        return Stretch(a, b, start)


def _of_side(side: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except READ_ERRORS as error:
        raise SideError(side, error) from error


def rows_of_same_bytes(
    sides: Mapping[int, Sides],
    progress: Progress,
    leaves: Mapping[int, LeafHashes],
) -> set[int]:
    """The tensors, of one dtype on both sides, whose verified bytes are equal; ``leaves`` gets the
    hashes of these bytes."""
    nbytes = dict.fromkeys(sides, 0)
    same, unlike = set[int](), set[int]()

    def portions() -> Iterator[tuple[int, ReadStretch | None]]:
        for row, each in sides.items():
            for read in each.portions():
                # Another thread has found a difference: the rest need not be read.
                if row in unlike:
                    break
                yield row, read
            yield row, None

    def compare(
        portion: tuple[int, ReadStretch | None],
    ) -> tuple[int, int | None, Mapping[int, bytes]]:
        row, read = portion
        if read is None or row in unlike:
            return row, None, {}
        try:
            stretch = read()
        except SideError:
            stretch = None
        if stretch is None or not np.array_equal(_words(stretch.a), _words(stretch.b)):
            unlike.add(row)
            return row, None, {}
        if row not in leaves:
            return row, stretch.nbytes, {}
        dtype, at = sides[row].dtypes[1], stretch.start * stretch.b.itemsize
        return row, stretch.nbytes, leaves[row].hashes_of(dtype, at, bytes_of(stretch.b))

    with closing(map_ahead(compare, portions())) as compared:
        for row, count, hashes in compared:
            if count is not None:
                nbytes[row] += count
                for leaf, value in hashes.items():
                    leaves[row].put(leaf, value)
            elif row not in unlike:
                with suppress(SideError):  # of a checksum, which is reported with the values
                    sides[row].check()
                    same.add(row)
                    progress(nbytes[row])
    return same


def _words(array: Array) -> Array:
    """Bytes eight at a time if possible: comparing takes a bool for each element."""
    return array.view(np.uint64 if array.nbytes % 8 == 0 else np.uint8)


def compare_readers(a: Reader, b: Reader, keys: list[str]) -> DiffReport:
    walk = PairWalk(Blocks.of(a), Blocks.of(b), None, False, lambda _nbytes: None)
    return compare_keys(a, b, walk, keys, keys, walk.compare)


def compare_keys(
    a: Reader,
    b: Reader,
    walk: "PairWalk",
    keys_a: list[str],
    keys_b: list[str],
    compare: Callable[[list[str]], object],
) -> DiffReport:
    """``compare`` walks through the values."""
    for reader in (a, b):
        warn_of_files(reader, {fault.file for fault in reader.faults.values()})
    in_a, in_b = set(keys_a), set(keys_b)
    common = {key: row for row, key in enumerate(keys_a) if key in in_b}
    # Check: a key that either index has a fault for is not read.
    for key in common:
        for side, reader in (("a", a), ("b", b)):
            if key in reader.faults:
                walk.fail(key, side, reader.faults[key])
    failed = {key for key, _ in walk.unreadable}
    # Move: the values of the others, which may also turn out to be damaged.
    compare([key for key in common if key not in failed])
    failed = {key for key, _ in walk.unreadable}
    of_a, of_b = (
        settings_in(blocks.source, blocks.tensors.facts()) & keys
        for blocks, keys in ((walk.a, in_a), (walk.b, in_b))
    )
    return DiffReport(
        path_a=a.path,
        path_b=b.path,
        only_in_a=tuple(key for key in keys_a if key not in in_b),
        only_in_b=tuple(key for key in keys_b if key not in in_a),
        differences=tuple(
            walk.differences[key] for key in common if key in walk.differences and key not in failed
        ),
        unreadable=tuple(
            sorted(walk.unreadable.values(), key=lambda each: (common[each.key], each.side))
        ),
        num_equal=len(common.keys() - walk.differences.keys() - failed),
        num_settings=len((of_a | of_b) - (in_a - of_a) - (in_b - of_b)),
        tolerance=None if walk.tolerance is None else str(walk.tolerance),
    )


@entity
class PairWalk:
    a: Blocks
    b: Blocks
    tolerance: Tolerance | None
    """The distance at which numbers count as the same; None for bits."""
    ignore_dtype: bool
    progress: Progress
    digests: dict[str, str] | None = None
    """The digests of tensors of ``b`` that are the same in ``a``, as far as their bytes came in whole
    leaves; None to hash nothing."""
    differences: dict[str, TensorDifference] = field(default_factory=dict)
    """By key."""
    unreadable: dict[tuple[str, str], Unreadable] = field(default_factory=dict)
    """By key and side."""

    def fail(self, key: str, side: str, error: ReadError) -> None:
        self.unreadable.setdefault((key, side), Unreadable(side, Damage.of(error, key)))

    def compare(self, keys: list[str]) -> None:
        """Compare the tensors of these keys, which both have and which have no fault."""
        rows_a, rows_b = self.a.tensors.rows(), self.b.tensors.rows()
        pairs = {rows_a[key]: rows_b[key] for key in keys}
        for row, other in pairs.items():
            self._note(row, other, Difference())
        a, b = self.a.tensors, self.b.tensors
        walked = [
            row
            for row, other in pairs.items()
            if a.shape(row) == b.shape(other) and are_comparable(a.dtype(row), b.dtype(other))
        ]
        small = [row for row in walked if self.a.is_small(row) and self.b.is_small(pairs[row])]
        nbytes = self.a.nbytes.copy()
        # Dtypes may differ, so a batch is bounded by the larger side.
        nbytes[small] = np.maximum(nbytes[small], self.b.nbytes[[pairs[row] for row in small]])
        for batch in batches(nbytes, small):
            arrays = zip(
                self.a.read(batch), self.b.read([pairs[row] for row in batch]), strict=True
            )
            for row, (x, y) in zip(batch, arrays, strict=True):
                for side, value in (("a", x), ("b", y)):
                    if isinstance(value, ReadError):
                        self.fail(a.keys[row], side, value)
                if not isinstance(x, ReadError) and not isinstance(y, ReadError):
                    self._note(row, pairs[row], compare_arrays(x, y, tolerance=self.tolerance))
                    if self.digests is not None:
                        self.digests[a.keys[row]] = digest_array(a.keys[row], y)
                self.progress(int(self.a.nbytes[row] + self.b.nbytes[pairs[row]]))
        large = sorted(set(walked).difference(small))
        alike = {
            row: Sides.of(self.a, row, self.b, pairs[row])
            for row in large
            if a.dtype(row) == b.dtype(pairs[row])
        }
        hashed = () if self.digests is None else alike
        leaves = {row: LeafHashes(int(self.b.nbytes[pairs[row]])) for row in hashed}
        same = rows_of_same_bytes(alike, self.progress, leaves)
        for row, found in leaves.items():
            if row in same and not found.num_missing and self.digests is not None:
                key = a.keys[row]
                self.digests[key] = found.digest(key, *a.fact(row))
        for row in large:
            if row not in same:
                self._compare_large(row, pairs[row])

    def _compare_large(self, row: int, other: int) -> None:
        """Both to their ends, since the last checksums are compared there."""
        dtype = self.a.tensors.dtype(row)
        are_numbers, total, highest, turn = is_number(dtype), Difference(), Highest(), Lock()
        # Opaque elements, which come as integers, are never near.
        tolerance = self.tolerance if are_numbers else None

        def compare(read: ReadStretch) -> tuple[int, Difference]:
            stretch = read()
            a, b = stretch.a[: stretch.shared], stretch.b[: stretch.shared]
            # By one thread at a time, while others read: values in the cache take NumPy so short
            # that two threads would mostly hand Python's lock to each other.
            with turn:
                found = compare_arrays(a, b, stretch.start, tolerance, highest)
                if are_numbers and not found.count:
                    found = Difference(products=products_of_same(a))
            longer = max(len(stretch.a), len(stretch.b)) - stretch.shared
            unpaired = (
                Difference(longer, stretch.start + stretch.shared) if longer else Difference()
            )
            return stretch.nbytes, found.merge(unpaired)

        sides = Sides.of(self.a, row, self.b, other)
        try:
            with closing(map_ahead(compare, sides.portions())) as compared:
                for nbytes, found in compared:
                    total = total.merge(found)
                    self.progress(nbytes)
            sides.check()
        except SideError as error:
            self.fail(self.a.tensors.keys[row], error.side, error.error)
        else:
            self._note(row, other, total if are_numbers else only_bytes(total, dtype))

    def _note(self, row: int, other: int, found: Difference) -> None:
        a, b = self.a.tensors, self.b.tensors
        key, shape = a.keys[row], a.shape(row)
        is_other_dtype = a.codes[row] != b.codes[other] and not self.ignore_dtype

        def index(flat: int | None) -> tuple[int, ...] | None:
            places = () if flat is None else np.unravel_index(flat, shape or (1,))[: len(shape)]
            return None if flat is None else tuple(map(int, places))

        products = found.products or Products()
        absolute, absolute_at = found.absolute or (None, None)
        relative, relative_at = found.relative or (None, None)
        values = None
        if found.count:
            values = ValueDifference(
                count=found.count,
                first=index(found.first),
                max_absolute=absolute,
                max_absolute_at=index(absolute_at),
                max_relative=relative,
                max_relative_at=index(relative_at),
                num_without_distance=found.num_without_distance,
                num_zeros=found.num_zeros,
                num_nans=found.num_nans,
                cosine=products.cosine,
                relative_norm=products.relative_norm,
                num_rounded=found.num_rounded,
            )
        is_unlike = not are_comparable(a.dtype(row), b.dtype(other))
        if values is not None or is_other_dtype or is_unlike or shape != b.shape(other):
            kinds = a.dtype(row), b.dtype(other), shape, b.shape(other)
            self.differences[key] = TensorDifference(key, *kinds, values)


def comparer_of(
    walk: PairWalk, executor: Executor | None, openings: Sequence[Opening]
) -> Callable[[list[str]], object]:
    """Return the function that compares the tensors of some keys, here or by an executor."""
    if executor is None:
        return walk.compare
    rows_a, rows_b = walk.a.tensors.rows(), walk.b.tensors.rows()

    def compare(keys: list[str]) -> None:
        pairs = np.array([(rows_a[key], rows_b[key]) for key in keys], np.int64).reshape(-1, 2)

        def calls() -> Iterator[tuple[Callable[..., Any], tuple[object, ...]]]:
            for rows in portions(walk.a.nbytes[pairs[:, 0]] + walk.b.nbytes[pairs[:, 1]]):
                sides = [
                    Payloads.of(opening, blocks.source, blocks.entries_of(column.tolist()))
                    for opening, blocks, column in zip(
                        openings, (walk.a, walk.b), pairs[rows].T, strict=True
                    )
                ]
                some = [keys[row] for row in rows.tolist()]
                task = (__version__, *sides, some, walk.tolerance, walk.ignore_dtype)
                yield compare_portion, task

        for differences, unreadable, nbytes in run_tasks(executor, calls()):
            walk.differences.update(differences)
            walk.unreadable.update(unreadable)
            walk.progress(nbytes)

    return compare


def compare_portion(
    version: str,
    a: Payloads,
    b: Payloads,
    keys: list[str],
    tolerance: Tolerance | None,
    ignore_dtype: bool,
) -> tuple[dict[str, TensorDifference], dict[tuple[str, str], Unreadable], int]:
    with a.opened(version) as source_a, b.opened(version) as source_b:
        blocks = Blocks.of_entries(source_a, a.entries), Blocks.of_entries(source_b, b.entries)
        walk = PairWalk(*blocks, tolerance, ignore_dtype, lambda _: None)
        walk.compare(keys)
        return walk.differences, walk.unreadable, sum(int(each.nbytes.sum()) for each in blocks)
