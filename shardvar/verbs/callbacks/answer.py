"""A callback's answer, read: from mappings of texts to slices in files, with every restriction
checked.

1. Kind: the answer is a sequence of mappings from text to mappings from text; anything else is one
   clear error.
2. Items: each value is what its spec says: the tensor was given, its shape and dtype are kept.
3. Table: the slices and their files. Values that a callback gave back unchanged stay where they are
   stored; all others are arrays now.

R-POLICY-12 (RFC 001): "a list of dictionaries. Each dictionary maps a tensor (slice)'s unique
`checkpoint_key` to the `tensor` itself."
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array, Ints, dtype_name
from shardvar.layout.region import Region
from shardvar.planning.decision import raise_losses
from shardvar.planning.plan import Assignment
from shardvar.planning.policies.policy import parse_slice_spec, take_parts
from shardvar.planning.slices import TensorTable
from shardvar.verbs.arguments import as_array
from shardvar.verbs.callbacks.shardable_tensor import LazySlice, ShardableTensor, is_held_by, row_of
from shardvar.verbs.callbacks.slice_source import SliceSource

REMEDY = (
    "A callback returns, for each file, a dict of checkpoint keys to dicts of slice specs to "
    "tensors."
)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A callback's answer as slices."""

    assignment: Assignment
    """The slices and their files."""
    arrays: dict[int, Array]
    """The values, by row, of the slices that the callback did not give back unchanged."""
    num_empty: int
    """Mappings without tensors, which are not written."""


@dataclass(frozen=True, slots=True)
class AnswerItem:
    """One value of an answer."""

    file: int
    """The number of its mapping."""
    key: str
    """Its checkpoint key."""
    spec: str
    """Its slice spec."""
    value: Any
    """The value: a tensor."""


@dataclass(frozen=True, slots=True)
class ItemDescription:
    """An item's own word on itself: the metadata that its key, its spec and its value claim."""

    key: str
    """Its checkpoint key."""
    full_shape: tuple[int, ...]
    """The shape of the whole tensor, by the slice spec."""
    region: Region
    """The part of the whole tensor, by the slice spec."""
    dtype: str
    """The dtype of the value."""
    shape: tuple[int, ...]
    """The shape of the value."""


def read_answer(
    shards: Any, held: SliceSource, given: Sequence[ShardableTensor], description: str
) -> Answer:
    """The answer as slices; ``PolicyError`` unless its kind and every item are right."""
    # Kind.
    rows: list[int] = []
    files: list[int] = []
    others: list[tuple[int, AnswerItem]] = []
    for file, key, spec, value in answer_items(shards, description):
        row = row_of(value, held)
        # The fast path: a slice that is given back unchanged needs no further look.
        if row < 0 or given[row].checkpoint_key != key or given[row].slice_spec != spec:
            others.append((len(rows), AnswerItem(file, key, spec, value)))
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
    for (number, item), each in zip(others, described, strict=True):
        rows[number] = first[each.key]
        regions[number] = each.region
        if not _is_in_place(item.value, each, held):
            arrays[number] = _array(each.key, item.value, description)
    numbers, num_files = _numbered(files)
    table = take_parts(held.slices, np.array(rows, dtype=np.int64), regions)
    return Answer(
        Assignment(table, numbers, num_files, description), arrays, len(shards) - len(set(files))
    )


def answer_items(shards: Any, description: str) -> Iterator[tuple[int, str, str, Any]]:
    """The fields of the ``AnswerItem`` of every value, in order; ``PolicyError`` for an answer of
    another kind.

    Tuples instead of the dataclass: most of 100,000 items are given back unchanged and never become
    one.
    """
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
    """Raise ``PolicyError``, listing every loss, unless every item agrees with its tensor."""
    if not items:
        return
    rows = tensors.rows()
    known = [item for item in items if item.key in rows]
    losses = (
        find_added(rows, items)
        + find_reshaped(tensors, rows, known)
        + find_cast(tensors, rows, known)
    )
    raise_losses(description, losses)


def find_added(rows: Mapping[str, int], items: Sequence[ItemDescription]) -> list[str]:
    """The keys that were not given: tensors must not be removed, nor invented."""
    added = dict.fromkeys(item.key for item in items if item.key not in rows)
    return [f"added {key!r}, which it was not given" for key in added]


def find_reshaped(
    tensors: TensorTable, rows: Mapping[str, int], items: Sequence[ItemDescription]
) -> list[str]:
    """R-POLICY-2 (RFC 001): "Tensors must not be reshaped." Neither the whole nor the value of a
    slice."""
    losses = []
    for item in items:
        shape = tensors.shape(rows[item.key])
        if item.full_shape != shape:
            losses.append(f"reshaped {item.key!r} from {shape} to {item.full_shape}")
        elif item.shape != item.region.shape:
            losses.append(
                f"reshaped {item.key!r}: gave a value of shape {item.shape} for the slice "
                f"{item.region}"
            )
    return losses


def find_cast(
    tensors: TensorTable, rows: Mapping[str, int], items: Sequence[ItemDescription]
) -> list[str]:
    """R-POLICY-3 (RFC 001): "Tensor dtypes must not change." """
    return [
        f"changed the dtype of {item.key!r} in {item.region} from {dtype} to {item.dtype}"
        for item in items
        if item.dtype != (dtype := tensors.dtype(rows[item.key]))
    ]


def _describe(
    items: Sequence[AnswerItem], held: SliceSource, description: str
) -> list[ItemDescription]:
    """The metadata of items; ``PolicyError`` for invalid specs and values that are not tensors."""
    described, losses = [], []
    for item in items:
        try:
            shape, dtype = _shape_and_dtype(item, held)
            full_shape, region = parse_slice_spec(item.spec, shape)
            described.append(ItemDescription(item.key, full_shape, region, dtype, shape))
        except ArgumentError as error:
            losses.append(
                f"gave an invalid slice of {item.key!r} in file {item.file}: "
                f"{error.cause.rstrip('.')}"
            )
    raise_losses(description, losses, REMEDY)
    return described


def _shape_and_dtype(item: AnswerItem, held: SliceSource) -> tuple[tuple[int, ...], str]:
    if is_held_by(item.value, held):
        return item.value.shape, held.slices.dtype(item.value.row)
    if isinstance(item.value, LazySlice):
        return item.value.shape, dtype_name(item.value.dtype)
    array = as_array(item.key, item.value)
    return array.shape, dtype_name(array.dtype)


def _is_in_place(value: Any, item: ItemDescription, held: SliceSource) -> bool:
    """Return True if the value is stored as the region that it stands for: nothing changes."""
    return (
        is_held_by(value, held)
        and value.region == item.region
        and held.slices.key(value.row) == item.key
    )


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


def _numbered(files: list[int]) -> tuple[Ints, int]:
    """The files numbered without gaps, and their count: at least one, as every checkpoint has."""
    if not files:
        return np.zeros(0, dtype=np.int64), 1
    # The files 0, 2, 2, 5 get the numbers 0, 1, 1, 2.
    used, numbers = np.unique(np.array(files, dtype=np.int64), return_inverse=True)
    return numbers.astype(np.int64), len(used)


def _kind(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
