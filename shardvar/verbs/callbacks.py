"""Sharding callbacks (RFC 001): the user decides, tensor by tensor, what goes to which file.

A callback gets a ``ShardableTensor`` for each slice: its metadata, and as its values a
``LazySlice``. R-POLICY-19 (RFC 001): "the callback really only works with the tensor metadata (it
doesn't actually move around GBs of data when sharding)". So a lazy slice can be cut by any basic
index without being read; values are read by ``np.asarray``, by arithmetic, and when they are saved.

A callback is asked once:

1. Call it with the slices, and read its answer (``read_answer``).
2. Check the answer like any other policy's (``planning.decision``).
3. Lay the values that it changed over the source's: they are arrays, "files" and entries after the
   source's, so that rows and files of the source keep their numbers. Which value fills which slice
   is a plan like any other.

Policies that answer in columns never come here.

An answer is read from mappings of texts to slices in files, with every restriction checked:

1. Kind: the answer is a sequence of mappings from text to mappings from text; anything else is one
   clear error.
2. Items: each value agrees with its spec: the tensor was given, its shape and dtype are kept.
3. Table: the slices and their files. Values that a callback gave back unchanged stay where they are
   stored; all others are arrays now.

R-POLICY-12 (RFC 001): "a list of dictionaries. Each dictionary maps a tensor (slice)'s unique
`checkpoint_key` to the `tensor` itself."

``compose`` applies one policy inside the files of another. A composition of two policies that
answer in columns also answers in columns; any other is a callback. Both apply the inner policy to
each file of the outer policy's answer, one file after the other.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from shardvar.engine.arrays import ArraySource, array_source
from shardvar.engine.read import read_region
from shardvar.errors import ArgumentError, ArgumentTypeError, PolicyError
from shardvar.formats.protocol import Source, WrappedSource
from shardvar.layout.dtypes import (
    NAMES,
    Array,
    Bools,
    Ints,
    Shape,
    dtype_name,
    is_opaque,
    is_whole,
    numpy_dtype,
)
from shardvar.layout.indexing import select_basic, slice_of, span_of
from shardvar.layout.region import Region
from shardvar.planning.decision import (
    Decision,
    check_answer,
    find_exceeding,
    in_file_order,
    raise_losses,
)
from shardvar.planning.index import EntryTable, Index, TableIndex, concatenate_entries
from shardvar.planning.plan import CopyTable, Plan, plan_copies
from shardvar.planning.policies import (
    CallbackPolicy,
    ColumnarPolicy,
    Policy,
    TablePolicy,
    TensorSliceDict,
)
from shardvar.planning.policies.policy import Exceeding, parse_slice_spec, slice_spec, take_parts
from shardvar.planning.slices import (
    LOCAL_DEVICE,
    Assignment,
    Capabilities,
    SliceTable,
    TensorTable,
    stack,
    task_of,
)
from shardvar.records import entity, field, frozen, mutable, replace
from shardvar.storage.concurrency import without_collection
from shardvar.verbs.arguments import as_array, check_policy
from shardvar.verbs.reader import LazyArray

__all__ = ["LazySlice", "ShardableTensor", "ShardingCallback", "compose"]


class ShardableTensor(NamedTuple):
    """R-POLICY-11 (RFC 001): "all the information about a tensor that a user will need to perform
    custom sharding".

    It is a named tuple rather than a dataclass because 100,000 of them are made in a tenth of a
    second; both are frozen. Two are equal only if they are the same object: their tensors are
    neither compared nor read.
    """

    tensor: Any
    """The values: a ``LazySlice``, which reads them only when they are needed; a callback may put
    any array instead."""
    dtype: np.dtype[Any]
    """The dtype of the elements; ``object`` for strings."""
    device: str
    """The full name of the device that holds it in memory."""
    name: str
    """The name of its variable, or the key if there is none."""
    shape: Shape
    """The shape of the slice, not of the whole tensor."""
    slice_spec: str
    """The part of the tensor as TensorFlow writes it: ``"13 4 3,3:0,4"``; empty for all."""
    checkpoint_key: str
    """The key in the checkpoint; slices of one tensor share it."""
    trackable: Any = None
    """The object that it is saved for; None for arrays and for the graph of objects."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(self)

    @property
    def task(self) -> str:
        """The task of the device; tensors of different tasks may not share a file."""
        return task_of(self.device or LOCAL_DEVICE)


Axis = tuple[range | int, bool]
"""Positions in the held slice (one, if an integer chose it), and True if ``None`` made the axis."""


class LazySlice(LazyArray, NDArrayOperatorsMixin):
    """A tensor whose values are read when they are needed: by ``np.asarray``, by arithmetic, by
    being saved.

    NumPy's basic indices give another such tensor and read nothing. Operators and functions of
    NumPy read it and give an array.
    """

    __slots__ = ("_axes", "_holder", "_row")

    def __init__(
        self, holder: "SliceSource", row: int, axes: tuple[Axis, ...] | None = None
    ) -> None:
        self._holder = holder
        self._row = row
        self._axes = axes

    @property
    def row(self) -> int:
        """The row of the held slice that it is a part of."""
        return self._row

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements; ``object`` for strings."""
        return _dtype_of(self._holder.slices.dtype(self._row))

    @property
    def shape(self) -> Shape:
        """The shape."""
        if self._axes is None:
            return self._holder.slices.region(self._row).shape
        return tuple(len(indices) for indices, _ in self._axes if isinstance(indices, range))

    @property
    def nbytes(self) -> int:
        """The bytes of its payload; a part of strings is read to know them."""
        if self._axes is None:
            return int(self._holder.slices.nbytes[self._row])
        if self.dtype == np.object_:
            return sum(map(len, np.asarray(self).flat))
        return self.size * self.dtype.itemsize

    @property
    def name(self) -> str:
        """The name of its variable, or the key if there is none."""
        return self._holder.name_of(self._holder.slices.key(self._row))

    @property
    def device(self) -> str:
        """The full name of the device that holds it in memory."""
        return self._holder.slices.device_of(self._row)

    @property
    def region(self) -> Region | None:
        """The part of the tensor; None if it has steps or other axes, so is not a region."""
        held = self._holder.slices.region(self._row)
        if self._axes is None:
            return held
        starts = [
            axis.start
            for axis, new in self._axes
            if isinstance(axis, range) and axis.step == 1 and not new
        ]
        if len(starts) < len(self._axes):
            return None
        return Region((a + b for a, b in zip(held.offset, starts, strict=True)), self.shape)

    def __getitem__(self, index: Any) -> "LazySlice":
        before = (
            self._axes
            if self._axes is not None
            else [(range(extent), False) for extent in self.shape]
        )
        # Each axis that is left takes the next selection; axes that an integer dropped stay
        # dropped. Example: of the axes (range(2, 9), False), (3, False), the index [4::-2, None]
        # makes (range(6, 1, -2), False), (3, False) and then the new axis (range(1), True).
        rest = iter(select_basic(index, self.shape))
        axes: list[Axis] = []
        for indices, new in before:
            if isinstance(indices, int):
                axes.append((indices, new))
                continue
            while (along := next(rest)) is None:
                axes.append((range(1), True))
            picked = indices[along] if isinstance(along, int) else indices[slice_of(along)]
            if isinstance(picked, range) or not new:  # an integer drops a new axis without a trace
                axes.append((picked, new))
        axes.extend((range(1), True) for _ in rest)
        return LazySlice(self._holder, self._row, tuple(axes))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if any(isinstance(each, LazySlice) for each in options.get("out", ())):
            # The result would have to be written into a lazy slice, which has no memory.
            return NotImplemented
        arrays = [np.asarray(each) if isinstance(each, LazySlice) else each for each in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def numpy(self) -> Array:
        """The values, as a fresh array."""
        held = self._holder.slices.region(self._row)
        if self._axes is None:
            return self._holder.read(self._row, held)
        spans = [span_of(indices) for indices, new in self._axes if not new]
        offset = [start + low for start, (low, _, _) in zip(held.offset, spans, strict=True)]
        array = self._holder.read(self._row, Region(offset, [count for _, count, _ in spans]))
        picked = array[(*(pick for _, _, pick in spans), ...)]
        # The reshape adds the axes that None made; they have the length 1.
        return picked.reshape(self.shape) if self.size else np.empty(self.shape, self.dtype)

    def __repr__(self) -> str:
        return f"<LazySlice of {self.name!r}: {self.dtype}{list(self.shape)}>"


def row_of(value: Any, holder: "SliceSource") -> int:
    """The row of the held slice that the value is, all of it; -1 for anything else."""
    if type(value) is LazySlice and value._axes is None and value._holder is holder:
        return value._row
    return -1


def is_held_by(value: Any, holder: "SliceSource") -> bool:
    return isinstance(value, LazySlice) and value._holder is holder


class ShardingCallback(ABC):
    """R-POLICY-18 (RFC 001): "Checkpoint sharding callback function, along with a text
    description."

    A base to derive from; any callable with a text ``description`` also works. Arguments of the
    callback are given to its constructor (RFC 001, kwargs). Callbacks of one class whose fields are
    equal are equal.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import shardvar as sv
    >>> class OneFileEach(sv.ShardingCallback):
    ...     description = "A file for each tensor."
    ...
    ...     def __call__(self, shardable_tensors):
    ...         return [{each.checkpoint_key: {each.slice_spec: each.tensor}} for each in shardable_tensors]
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> sv.save(path, {"a": np.zeros(2), "b": np.ones(3)}, policy=OneFileEach()).file_nbytes
    (16, 24)
    """

    @property
    @abstractmethod
    def description(self) -> str:
        """One sentence about the callback, stored in the checkpoint and repeated in errors."""

    @abstractmethod
    def __call__(
        self, shardable_tensors: Sequence[ShardableTensor], /
    ) -> Sequence[TensorSliceDict]:
        """Return for each file a mapping from checkpoint keys to mappings from slice specs to
        tensors.

        Every element of every tensor must be in one of them, with its dtype and in its shape;
        tensors may be sliced differently, and values may change. A mapping without tensors makes no
        file. The callback is called once for each save, before anything is written.
        """

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        fields, others = _fields(self), _fields(other)
        return fields.keys() == others.keys() and all(
            np.array_equal(fields[name], others[name]) for name in fields
        )

    def __hash__(self) -> int:
        # Fields that cannot be hashed, such as lists and arrays, still tell unequal callbacks apart
        # in ``__eq__``.
        hashes = set[tuple[str, int]]()
        for name, value in _fields(self).items():
            with suppress(TypeError):
                hashes.add((name, hash(value)))
        return hash((type(self), frozenset(hashes)))


def _fields(callback: object) -> dict[str, Any]:
    slots = [name for kind in type(callback).__mro__ for name in vars(kind).get("__slots__", ())]
    return {
        **getattr(callback, "__dict__", {}),
        **{name: getattr(callback, name, None) for name in slots},
    }


ShardingCallback.register(ColumnarPolicy)


@mutable
class SliceSource:
    slices: SliceTable
    entries: EntryTable
    """The entries of the source for the same tensors, perhaps in other slices."""
    source: Source
    trackables: Mapping[str, Any]
    """The object that each key is saved for, if there is one."""
    _groups: tuple[Ints, Ints] | None = field(default=None, init=False)

    def read(self, row: int, region: Region) -> Array:
        """The verified values of a part of the tensor; strings are read whole, and cut then."""
        if self._groups is None:
            self._groups = self.entries.slices.by_tensor()
        order, bounds = self._groups
        tensor = int(self.slices.tensor[row])
        rows = order[bounds[tensor] : bounds[tensor + 1]]  # the entries of one key
        if not is_whole(self.slices.dtype(row)):
            return read_region(self.source, self.entries, rows, region)
        whole = Region.whole(self.slices.tensors.shape(tensor))
        strings = read_region(self.source, self.entries, rows, whole)
        return strings[region.slices] if region.rank else strings

    def shardable_tensors(self) -> list[ShardableTensor]:
        slices, tensors = self.slices, self.slices.tensors
        rows = slices.tensor.tolist()
        keys = [tensors.keys[tensor] for tensor in rows]
        dtypes = [_dtype_of(NAMES[number]) for number in range(len(NAMES))]
        known: dict[Shape, Shape] = {}  # most shapes come again and again
        shapes = [known.setdefault(shape, shape) for shape in map(tuple, slices.shape.tolist())]
        for row in np.flatnonzero(tensors.ranks[slices.tensor] < slices.shape.shape[1]).tolist():
            shapes[row] = shapes[row][: tensors.ranks[rows[row]]]  # without the padding
        specs = [""] * len(rows)
        for row in np.flatnonzero(~slices.is_whole()).tolist():
            specs[row] = slice_spec(tensors.shape(rows[row]), slices.region(row))
        count = len(rows)
        places = np.zeros(count, dtype=np.int64) if slices.device is None else slices.device
        devices = slices.devices or (LOCAL_DEVICE,)
        # Columns are zipped by map, without a loop in Python: there may be 100,000 slices.
        return list(
            map(
                ShardableTensor,
                [LazySlice(self, row) for row in range(count)],
                map(dtypes.__getitem__, slices.codes().tolist()),
                map(devices.__getitem__, places.tolist()),
                map(self.name_of, keys) if self.trackables else keys,
                shapes,
                specs,
                keys,
                map(self.trackables.get, keys) if self.trackables else [None] * count,
            )
        )

    def name_of(self, key: str) -> str:
        name = getattr(self.trackables.get(key), "name", None)
        return name if isinstance(name, str) else key


def _dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name; void if NumPy has no such type, whose values cannot be read."""
    return np.dtype("V") if is_opaque(name) else numpy_dtype(name)


REMEDY = (
    "A callback returns, for each file, a dict of checkpoint keys to dicts of slice specs to "
    "tensors."
)


@entity
class Answer:
    """A callback's answer as slices."""

    assignment: Assignment
    """The slices and their files."""
    arrays: dict[int, Array]
    """The values, by row, of the slices that the callback did not give back unchanged."""
    num_empty: int
    """Mappings without tensors, which are not written."""


AnswerItem = tuple[int, str, str, Any]
"""The number of its mapping, its key, its slice spec and its value."""


@frozen
class ItemDescription:
    """The metadata that the key, the spec and the value of an item claim."""

    key: str
    full_shape: Shape
    """The shape of the whole tensor, by the slice spec."""
    region: Region
    """The part of the whole tensor, by the slice spec."""
    dtype: str
    shape: Shape


def read_answer(
    shards: Any, held: SliceSource, given: Sequence[ShardableTensor], description: str
) -> Answer:
    """The answer as slices; ``PolicyError`` unless its kind and every item are right."""
    # Kind.
    rows: list[int] = []
    files: list[int] = []
    others: list[tuple[int, AnswerItem]] = []
    for item in answer_items(shards, description):
        file, key, spec, value = item
        row = row_of(value, held)
        # The fast path: a slice that is given back unchanged needs no further look.
        if row < 0 or given[row].checkpoint_key != key or given[row].slice_spec != spec:
            others.append((len(rows), item))
        rows.append(row)
        files.append(file)
    # Items.
    described = _describe([item for _, item in others], held, description)
    check_items(description, held.slices.tensors, described)
    # Table.
    # Backwards, so that the first slice of each key is written last and stays.
    first = (
        {held.slices.key(row): row for row in range(len(held.slices) - 1, -1, -1)}
        if described
        else {}
    )
    regions: dict[int, Region] = {}
    arrays: dict[int, Array] = {}
    for (number, (_, _, _, value)), each in zip(others, described, strict=True):
        rows[number] = first[each.key]
        regions[number] = each.region
        if not (
            is_held_by(value, held)
            and value.region == each.region
            and held.slices.key(value.row) == each.key
        ):
            arrays[number] = _array(each.key, value, description)
    # The files are numbered without gaps: 0, 2, 2, 5 get the numbers 0, 1, 1, 2.
    used, numbers = np.unique(np.array(files, dtype=np.int64), return_inverse=True)
    table = take_parts(held.slices, np.array(rows, dtype=np.int64), regions)
    # Every checkpoint has a file.
    assignment = Assignment(table, numbers.astype(np.int64), max(len(used), 1), description)
    return Answer(assignment, arrays, len(shards) - len(used))


def answer_items(shards: Any, description: str) -> Iterator[AnswerItem]:
    if not isinstance(shards, Sequence) or isinstance(shards, (str, bytes)):
        raise_losses(
            description, [f"answered with {_kind(shards)} instead of a sequence of files"], REMEDY
        )
    for number, shard in enumerate(shards):
        if not isinstance(shard, Mapping):
            raise_losses(
                description,
                [f"answered for file {number} with {_kind(shard)} instead of a mapping"],
                REMEDY,
            )
        for key, parts in shard.items():
            if not isinstance(key, str):
                raise_losses(
                    description,
                    [f"named a tensor in file {number} {key!r} instead of by text"],
                    REMEDY,
                )
            if not isinstance(parts, Mapping):
                loss = (
                    f"answered for {key!r} in file {number} with {_kind(parts)} instead of a "
                    "mapping of slice specs"
                )
                raise_losses(description, [loss], REMEDY)
            for spec, value in parts.items():
                if not isinstance(spec, str):
                    raise_losses(
                        description,
                        [f"named a slice of {key!r} {spec!r} instead of by text"],
                        REMEDY,
                    )
                yield number, key, spec, value


def check_items(description: str, tensors: TensorTable, items: Sequence[ItemDescription]) -> None:
    """Raise ``PolicyError``, listing every loss, unless every item agrees with its tensor.

    R-POLICY-2 (RFC 001): "Tensors must not be reshaped." Neither the whole nor the value of a
    slice. R-POLICY-3 (RFC 001): "Tensor dtypes must not change."
    """
    if not items:
        return
    rows = tensors.rows()
    added = dict.fromkeys(item.key for item in items if item.key not in rows)
    losses = [f"added {key!r}, which it was not given" for key in added]
    cast = []
    for item in items:
        if item.key in added:
            continue
        shape, dtype = tensors.shape(rows[item.key]), tensors.dtype(rows[item.key])
        if item.full_shape != shape:
            losses.append(f"reshaped {item.key!r} from {shape} to {item.full_shape}")
        elif item.shape != item.region.shape:
            losses.append(
                f"reshaped {item.key!r}: gave a value of shape {item.shape} for the slice "
                f"{item.region}"
            )
        if item.dtype != dtype:
            change = f"from {dtype} to {item.dtype}"
            cast.append(f"changed the dtype of {item.key!r} in {item.region} {change}")
    raise_losses(description, losses + cast)


def _describe(
    items: Sequence[AnswerItem], held: SliceSource, description: str
) -> list[ItemDescription]:
    described, losses = [], []
    for file, key, spec, value in items:
        try:
            if is_held_by(value, held):
                shape, dtype = value.shape, held.slices.dtype(value.row)
            else:
                array = value if isinstance(value, LazySlice) else as_array(key, value)
                shape, dtype = array.shape, dtype_name(array.dtype)
            full_shape, region = parse_slice_spec(spec, shape)
            described.append(ItemDescription(key, full_shape, region, dtype, shape))
        except ArgumentError as error:
            losses.append(
                f"gave an invalid slice of {key!r} in file {file}: {error.cause.rstrip('.')}"
            )
    raise_losses(description, losses, REMEDY)
    return described


def _array(key: str, value: Any, description: str) -> Array:
    array = np.asarray(value) if isinstance(value, LazySlice) else as_array(key, value)
    if array.dtype.kind == "O":
        wrong = next((each for each in array.flat if not isinstance(each, bytes)), None)
        if wrong is not None:
            raise_losses(
                description,
                [f"answered for {key!r} with an array that holds {_kind(wrong)}"],
                REMEDY,
            )
    return array


def _kind(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def ask_callback(
    policy: CallbackPolicy, capabilities: Capabilities, given: SliceSource
) -> tuple[Decision, ArraySource | None]:
    """Ask for an answer once, check it, and plan; return changed values, if there are any.

    R-POLICY-5 (RFC 001): "The callback will only be called once for a given `checkpoint.save()`
    call". ``PolicyError`` if the answer breaks a restriction or is of another kind, or if the
    callback raises; its own error is the cause then.
    """
    # Ask the policy, and check its answer.
    description = policy.description
    with without_collection():
        tensors = given.shardable_tensors()
        start = perf_counter()
        try:
            shards = policy(list(tensors))  # a copy: the callback may change its list
        except PolicyError:
            raise
        except Exception as error:
            raise PolicyError(
                f"The policy {description!r} raised {type(error).__name__}: {error}.",
                "That error is the cause of this one; nothing was written.",
            ) from error
        seconds = perf_counter() - start
        answer = read_answer(shards, given, tensors, description)
        del tensors, shards  # before garbage is looked for among them
    check_answer(given.slices, answer.assignment, capabilities)
    assignment, entries = answer.assignment, given.entries
    # Plan.
    if answer.arrays:
        # The assignment with the sizes of changed values, and these values as a source, like
        # arrays that are saved. R-POLICY-13 (RFC 001): "Note that not only can the sharding
        # callback rearrange tensors, but also modify tensors."
        changed, slices = np.array(sorted(answer.arrays), dtype=np.int64), assignment.slices
        source = array_source(
            slices.take(changed), [answer.arrays[row] for row in changed.tolist()]
        )
        nbytes = slices.nbytes.copy()
        nbytes[changed] = source.index.entries.slices.nbytes  # strings may have grown
        assignment, arrays = replace(assignment, slices=replace(slices, nbytes=nbytes)), source
        plan = _plan_substituted(entries, assignment.slices, arrays, changed)
    else:
        assignment = in_file_order(assignment, capabilities)
        arrays, plan = None, plan_copies(entries.slices, assignment.slices)
    return Decision(
        assignment, plan, seconds, find_exceeding(policy, assignment), answer.num_empty
    ), arrays


def _plan_substituted(
    entries: EntryTable, targets: SliceTable, arrays: ArraySource, changed: Ints
) -> Plan:
    is_changed = np.zeros(len(targets), dtype=np.bool)
    is_changed[changed] = True
    stored = (entries.slices, 0, np.flatnonzero(~is_changed))
    parts = []
    for slices, first, rows in (stored, (arrays.index.entries.slices, len(entries), changed)):
        part = plan_copies(slices, targets.take(rows)).copies
        parts.append(replace(part, source=part.source + first, target=rows[part.target]))
    columns = (
        [getattr(part, name) for part in parts] for name in ("source", "target", "offset", "shape")
    )
    copies = CopyTable(*map(np.concatenate, columns))
    # Both parts are ordered by target, and no target is in both, so a stable sort by target
    # restores the order.
    return Plan(
        overlay_entries(entries, arrays).slices,
        targets,
        copies.take(np.argsort(copies.target, kind="stable")),
    )


def overlay_entries(entries: EntryTable, arrays: ArraySource) -> EntryTable:
    changed = arrays.index.entries
    num_files = int(entries.file.max(initial=-1)) + 1
    return concatenate_entries([entries, replace(changed, file=changed.file + num_files)])


def overlay(source: Source, entries: EntryTable, arrays: ArraySource) -> Source:
    count = len(arrays.arrays)
    # The arrays come last, each as a file: behind 3 files, the last of 2 arrays is file 4, and 4 +
    # 1 - 2 is 3.
    num_files = int(entries.file[-1]) + 1 - count
    if isinstance(source, ArraySource):
        values = [*source.arrays[:num_files], *arrays.arrays]
        return ArraySource(values, TableIndex(entries, ["memory"] * len(values)))
    return OverlaidSource(source, source.index, arrays, num_files)


@entity
class OverlaidSource(WrappedSource):
    """A source, and another one whose entries lie behind its files."""

    inner: Source = field()
    index: Index = field()
    """The table of contents of both, or of the first."""
    behind: Source
    num_files: int
    """The number of the other source's first file; lower ones are files of the first."""

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        if file < self.num_files:
            self.inner.read_span(file, start, buffer)
        else:
            self.behind.read_span(file - self.num_files, start, buffer)

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        if entries.file[row] < self.num_files:
            self.inner.read_into(entries, row, start, buffer)
        elif entries.plain[row]:
            file, begin = entries.place(row)
            self.read_span(file, begin + start, buffer)
        else:
            self.behind.read_into(entries, row, start, buffer)

    def map(self, file: int) -> memoryview:
        is_file = file < self.num_files
        return self.inner.map(file) if is_file else self.behind.map(file - self.num_files)

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        is_ordered = np.zeros(len(rows), np.bool)
        is_stored = entries.file[rows] < self.num_files
        is_ordered[is_stored] = self.inner.in_order(entries, rows[is_stored])
        is_made = ~is_stored & ~entries.plain[rows]
        is_ordered[is_made] = self.behind.in_order(entries, rows[is_made])
        return is_ordered

    def expect(self, entries: EntryTable, rows: Ints) -> None:
        self.inner.expect(entries, rows[entries.file[rows] < self.num_files])

    def decode(self, entries: EntryTable, row: int) -> memoryview | None:
        is_stored = entries.file[row] < self.num_files
        return self.inner.decode(entries, row) if is_stored else None

    def files_read(self, entries: EntryTable) -> Ints:
        """Any file may hold values of which those behind are made."""
        if (entries.file >= self.num_files).any():
            return np.arange(self.num_files)
        return self.inner.files_read(entries)


def compose(outer: Policy, inner: Policy) -> Policy:
    """Return the policy that applies one policy inside the files of another, in order.

    Parameters
    ----------
    outer : policy
        The policy that is asked first.
    inner : policy
        The policy that is asked about the tensors of each file of the first answer.

    Returns
    -------
    policy
        The composition. Its description joins both descriptions. Two policies of shardvar compose
        to one that decides in columns.

    Raises
    ------
    ArgumentTypeError
        If one of them is not a policy.
    ArgumentError
        If one decides only in columns, and the other only in a callback.

    Notes
    -----
    R-POLICY-17 (RFC 001): "we can even get some callback composition going". Law: each file of the
    answer holds tensors of one file of ``outer``'s.

    Examples
    --------
    >>> import shardvar as sv
    >>> policy = sv.compose(sv.ShardByTaskPolicy(), sv.MaxShardSizePolicy(8))
    >>> policy.inner.max_shard_size
    8
    >>> policy.description.partition(" Then, in each of these: ")[2]
    'Fills files up to 8 bytes, cutting slices that do not fit.'
    """
    for policy in (outer, inner):
        if policy is None:
            raise ArgumentTypeError("A policy to compose is None.", "Give two policies.")
        check_policy(policy)
    if hasattr(outer, "assign") and hasattr(inner, "assign"):
        return ColumnarComposition(cast("TablePolicy", outer), cast("TablePolicy", inner))
    return CallbackComposition(_callable(outer), _callable(inner))


def _callable(policy: Policy) -> CallbackPolicy:
    if callable(policy):
        return policy
    raise ArgumentError(
        f"{policy!r} decides only in columns and cannot be called.",
        "Derive it from ColumnarPolicy.",
    )


class _Composition:
    __slots__ = ()

    outer: Policy
    inner: Policy

    @property
    def description(self) -> str:
        return f"{self.outer.description} Then, in each of these: {self.inner.description}"

    def exceeding(self, assignment: Assignment) -> list[Exceeding]:
        return list(find_exceeding(self.inner, assignment))


@frozen
class ColumnarComposition(_Composition, ColumnarPolicy):
    outer: TablePolicy
    inner: TablePolicy

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        first = self.outer.assign(slices, capabilities)
        order, bounds = first.by_file()
        answers = [
            self.inner.assign(
                first.slices.take(order[bounds[file] : bounds[file + 1]]), capabilities
            )
            for file in range(first.num_files)
        ]
        # The files of each answer are numbered after the files of the answers before it.
        starts = np.cumsum([0, *(answer.num_files for answer in answers)]).tolist()
        file = np.concatenate(
            [answer.file + start for answer, start in zip(answers, starts, strict=False)]
        )
        return Assignment(
            stack([answer.slices for answer in answers]), file, starts[-1], self.description
        )


@frozen
class CallbackComposition(_Composition, ShardingCallback):
    outer: CallbackPolicy
    inner: CallbackPolicy

    def __call__(self, shardable_tensors: Sequence[ShardableTensor], /) -> list[TensorSliceDict]:
        # Reversed, so that the first of several slices with one key is kept.
        known = {each.checkpoint_key: each for each in reversed(shardable_tensors)}
        files: dict[int, list[ShardableTensor]] = {}
        for file, key, spec, value in answer_items(
            self.outer(shardable_tensors), self.outer.description
        ):
            files.setdefault(file, []).append(_shardable(key, spec, value, known))
        return [shard for tensors in files.values() for shard in self.inner(tensors)]


def _shardable(
    key: str, spec: str, value: Any, known: dict[str, ShardableTensor]
) -> ShardableTensor:
    """A value of an answer, to be answered about again; its key leads to its device and object."""
    origin = known.get(key)
    if origin is not None and value is origin.tensor and spec == origin.slice_spec:
        return origin
    shape, spec = tuple(value.shape), spec.strip()
    if origin is None:
        return ShardableTensor(value, value.dtype, "", key, shape, spec, key)
    device = value.device if isinstance(value, LazySlice) else origin.device
    return origin._replace(
        tensor=value, dtype=value.dtype, device=device, shape=shape, slice_spec=spec
    )
