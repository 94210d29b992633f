"""What a callback answered, read: from mappings of texts to slices in files, every restriction checked.

kind      a sequence of mappings from text to mappings from text; anything else is one clear error
claims    each value is what its spec says: the tensor is known, its shape and dtype are kept
table     the slices and their files; what is held where it was, and what is an array now
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.checkpoint.arguments import as_array
from shardvar.checkpoint.callbacks.held import Held
from shardvar.checkpoint.callbacks.lazy_slice import LazySlice, are_untouched, is_held_by
from shardvar.checkpoint.callbacks.shardable_tensor import ShardableTensor
from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import dtype_name
from shardvar.layout.region import Ints, Region
from shardvar.planning.plan import Assignment
from shardvar.planning.policies.columnar import parse_slice_spec
from shardvar.planning.policies.pieces import take_parts
from shardvar.planning.restrictions import Claim, check_claims, raise_losses

REMEDY = "A callback returns, for each file, a dict of checkpoint keys to dicts of slice specs to tensors."


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A callback's answer as slices."""

    assignment: Assignment
    """The slices and their files."""
    arrays: dict[int, npt.NDArray[Any]]
    """The values of those slices, by row, that are no longer what the callback was given."""
    num_empty: int
    """Mappings without tensors, which are not written."""


@dataclass(frozen=True, slots=True)
class Placed:
    """One value of an answer."""

    file: int
    """The number of its mapping."""
    key: str
    """Its checkpoint key."""
    spec: str
    """Its slice spec."""
    value: Any
    """The value."""


def read_answer(shards: Any, held: Held, given: Sequence[ShardableTensor], description: str) -> Answer:
    """The answer as slices; ``PolicyError`` unless its kind is right and every claim is borne out."""
    placed = list(placed_values(shards, description))
    tensors = held.slices.tensors
    position = tensors.rows()
    # The fast path: what is given back as it was needs no looking at.
    rows = [
        row if row >= 0 and each.key == given[row].checkpoint_key and each.spec == given[row].slice_spec else -1
        for row, each in zip(are_untouched([each.value for each in placed], held), placed, strict=True)
    ]
    others = [number for number, row in enumerate(rows) if row < 0]
    claims = _claims([placed[number] for number in others], held, description)
    check_claims(description, tensors, claims, (placed[number].key for number in others))
    first = _first_rows(held)
    regions: dict[int, Region] = {}
    arrays: dict[int, npt.NDArray[Any]] = {}
    for number, claim in zip(others, claims, strict=True):
        rows[number] = first[position[claim.key]]
        regions[number] = claim.region
        value = placed[number].value
        if not (is_held_by(value, held) and value.region == claim.region and _key_of(value, held) == claim.key):
            arrays[number] = _array(claim.key, value, description)
    files, num_files = _numbered([each.file for each in placed])
    table = take_parts(held.slices, np.array(rows, dtype=np.int64), regions)
    return Answer(Assignment(table, files, num_files, description), arrays, len(shards) - len(set(files.tolist())))


def placed_values(shards: Any, description: str) -> Iterator[Placed]:
    """Every value of an answer, in order; ``PolicyError`` for anything of another kind."""
    if not isinstance(shards, Sequence) or isinstance(shards, (str, bytes)):
        raise_losses(description, [f"answered with {_kind(shards)}, which is no sequence of files"], REMEDY)
    for number, shard in enumerate(shards):
        if not isinstance(shard, Mapping):
            raise_losses(description, [f"answered for file {number} with {_kind(shard)}, which is no mapping"], REMEDY)
        for key, parts in shard.items():
            if not isinstance(key, str):
                raise_losses(description, [f"named a tensor in file {number} {key!r}, which is no text"], REMEDY)
            if not isinstance(parts, Mapping):
                said = f"answered for {key!r} in file {number} with {_kind(parts)}, which is no mapping of slice specs"
                raise_losses(description, [said], REMEDY)
            for spec, value in parts.items():
                if not isinstance(spec, str):
                    raise_losses(description, [f"named a slice of {key!r} {spec!r}, which is no text"], REMEDY)
                yield Placed(number, key, spec, value)


def _claims(placed: Sequence[Placed], held: Held, description: str) -> list[Claim]:
    """What the values are said to be; ``PolicyError`` for specs that do not parse and values that are no tensors."""
    claims, losses = [], []
    for each in placed:
        try:
            shape, dtype = _shape_and_dtype(each, held)
            full_shape, region = parse_slice_spec(each.spec, shape)
            claims.append(Claim(each.key, full_shape, region, dtype, shape))
        except ArgumentError as error:
            losses.append(f"answered for {each.key!r} in file {each.file} what is no slice: {error.cause.rstrip('.')}")
    raise_losses(description, losses, REMEDY)
    return claims


def _shape_and_dtype(each: Placed, held: Held) -> tuple[tuple[int, ...], str]:
    if is_held_by(each.value, held):
        return each.value.shape, held.slices.dtype(each.value.row)
    if isinstance(each.value, LazySlice):
        return each.value.shape, dtype_name(each.value.dtype)
    array = as_array(each.key, each.value)
    return array.shape, dtype_name(array.dtype)


def _array(key: str, value: Any, description: str) -> npt.NDArray[Any]:
    array = np.asarray(value) if isinstance(value, LazySlice) else as_array(key, value)
    if array.dtype.kind == "O":
        wrong = next((each for each in array.flat if not isinstance(each, bytes)), None)
        if wrong is not None:
            raise_losses(description, [f"answered for {key!r} with an array that holds {_kind(wrong)}"], REMEDY)
    return array


def _key_of(value: LazySlice, held: Held) -> str:
    return held.slices.key(value.row)


def _first_rows(held: Held) -> dict[int, int]:
    """Of each tensor the first row."""
    tensors, rows = np.unique(held.slices.tensor, return_index=True)
    return dict(zip(tensors.tolist(), rows.tolist(), strict=True))


def _numbered(files: list[int]) -> tuple[Ints, int]:
    """The files without gaps, and how many there are: at least one, as every checkpoint has."""
    if not files:
        return np.zeros(0, dtype=np.int64), 1
    used, numbers = np.unique(np.array(files, dtype=np.int64), return_inverse=True)
    return numbers.astype(np.int64), len(used)


def _kind(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
