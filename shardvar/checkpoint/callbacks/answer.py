"""What a callback answered, read: from mappings of texts to slices in files, every restriction checked.

kind      a sequence of mappings from text to mappings from text; anything else is one clear error
claims    each value is what its spec says: the tensor is known, its shape and dtype are kept
table     the slices and their files; what is held where it was, and what is an array now

R-POLICY-12 (RFC 001): "a list of dictionaries. Each dictionary maps a tensor (slice)'s unique `checkpoint_key` to the
`tensor` itself."
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.checkpoint.arguments import as_array
from shardvar.checkpoint.callbacks.held import Held
from shardvar.checkpoint.callbacks.lazy_slice import LazySlice, is_held_by, row_of
from shardvar.checkpoint.callbacks.shardable_tensor import ShardableTensor
from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Ints, dtype_name
from shardvar.layout.region import Region
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
    tensors = held.slices.tensors
    rows: list[int] = []
    files: list[int] = []
    others: list[tuple[int, Placed]] = []
    for each in placed_values(shards, description):
        row = row_of(each[3], held)
        if row < 0 or given[row].checkpoint_key != each[1] or given[row].slice_spec != each[2]:
            others.append((len(rows), Placed(*each)))
        # The fast path: what is given back as it was needs no looking at.
        rows.append(row)
        files.append(each[0])
    claims = _claims([placed for _, placed in others], held, description)
    check_claims(description, tensors, claims)
    first = {held.slices.key(row): row for row in range(len(held.slices) - 1, -1, -1)} if claims else {}
    regions: dict[int, Region] = {}
    arrays: dict[int, npt.NDArray[Any]] = {}
    for (number, placed), claim in zip(others, claims, strict=True):
        rows[number] = first[claim.key]
        regions[number] = claim.region
        if not _is_in_place(placed.value, claim, held):
            arrays[number] = _array(claim.key, placed.value, description)
    numbers, num_files = _numbered(files)
    table = take_parts(held.slices, np.array(rows, dtype=np.int64), regions)
    return Answer(Assignment(table, numbers, num_files, description), arrays, len(shards) - len(set(files)))


def _is_in_place(value: Any, claim: Claim, held: Held) -> bool:
    """Whether the value is what is held of the very region that it stands for, so that nothing changes."""
    return is_held_by(value, held) and value.region == claim.region and held.slices.key(value.row) == claim.key


def placed_values(shards: Any, description: str) -> Iterator[tuple[int, str, str, Any]]:
    """What ``Placed`` has of every value of an answer, in order; ``PolicyError`` for anything of another kind."""
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
                yield number, key, spec, value


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


def _numbered(files: list[int]) -> tuple[Ints, int]:
    """The files without gaps, and how many there are: at least one, as every checkpoint has."""
    if not files:
        return np.zeros(0, dtype=np.int64), 1
    used, numbers = np.unique(np.array(files, dtype=np.int64), return_inverse=True)
    return numbers.astype(np.int64), len(used)


def _kind(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
