"""Ask a sharding callback once: which tensor goes to which file, and with which values.

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

from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, cast

import numpy as np

from shardvar.engine.arrays import ArraySource, array_source
from shardvar.errors import ArgumentError, ArgumentTypeError, PolicyError
from shardvar.formats.protocol import Source, WrappedSource
from shardvar.layout.dtypes import Array, Bools, Ints, Shape, dtype_name
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
from shardvar.planning.policies.policy import Exceeding, parse_slice_spec, take_parts
from shardvar.planning.slices import Assignment, Capabilities, SliceTable, TensorTable, stack
from shardvar.records import entity, field, frozen, replace
from shardvar.storage.concurrency import without_collection
from shardvar.verbs.arguments import as_array, check_policy
from shardvar.verbs.callbacks.shardable_tensor import (
    LazySlice,
    ShardableTensor,
    ShardingCallback,
    SliceSource,
    is_held_by,
    row_of,
)

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
            self.read_span(int(entries.file[row]), int(entries.start[row]) + start, buffer)
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
