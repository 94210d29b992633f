"""A policy decides which slices share a file. It has a ``description`` and answers in one of two
ways:

    columns    ``assign(slices, capabilities)``: all slices at once, only from metadata
    callback   ``__call__(shardable_tensors)``: tensor by tensor, RFC 001's ``ShardingCallback``

The policies of shardvar answer in columns, which is fast. ``ColumnarPolicy`` also makes each of
them a callback, with the law that both ways give the same answer. A shardable tensor is anything
with the attributes ``checkpoint_key``, ``dtype``, ``shape``, ``slice_spec``, ``device`` and
``tensor``; a tensor is anything that a basic index of NumPy cuts. Nothing is read here.

To add a policy, derive from ``ColumnarPolicy`` and write ``description`` and ``assign``; a policy
with a limit adds ``exceeding(assignment)``, which lists the files that are larger.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from shardvar.errors import InconsistentTensor, LayoutError
from shardvar.layout.dtypes import NAMES, Ints, is_whole, parse_dtype
from shardvar.layout.region import Region, format_slice_text, parse_slice_text
from shardvar.limits import MAX_RANK
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.plan import Assignment, plan_copies
from shardvar.planning.slices import LOCAL_DEVICE, SliceTable, TensorTable, pad

TensorSliceDict = Mapping[str, Mapping[str, Any]]
"""One file of a callback's answer: from keys to the texts of slices to values."""


class TablePolicy(Protocol):
    """Decides which slices share a file."""

    @property
    def description(self) -> str:
        """One sentence, kept in the index and repeated in errors."""

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """The slices, possibly cut further, each with its file."""


class CallbackPolicy(Protocol):
    """Decides which slices share a file, tensor by tensor (RFC 001's ``ShardingCallback``)."""

    @property
    def description(self) -> str:
        """One sentence, kept in the index and repeated in errors."""

    def __call__(self, shardable_tensors: Sequence[Any], /) -> Sequence[TensorSliceDict]:
        """For every file the tensors in it: from keys to the texts of slices to values."""


Policy = TablePolicy | CallbackPolicy

HOLDS_ALL = Capabilities(
    dtypes=frozenset(NAMES),
    slice_dtypes=frozenset(name for name in NAMES if not is_whole(name)),
    max_slice_rank=MAX_RANK,
    empty_slices=True,
)
"""The capabilities that a policy assumes without a format: all dtypes but strings are cut."""


@dataclass(frozen=True, slots=True)
class Exceeding:
    """A file that is larger than its policy's limit.

    R-POLICY-15 (RFC 001): "If the partition is larger than the max shard size, then we log a
    warning."
    """

    file: int
    """The number of the file."""
    nbytes: int
    """The bytes of its payloads."""
    reason: str
    """One sentence that names the keys that could not be cut."""

    def __str__(self) -> str:
        return f"File {self.file} has {self.nbytes} bytes: {self.reason}"


class ColumnarPolicy:
    """The base of policies that decide in columns; gives them RFC 001's ``__call__``."""

    __slots__ = ()

    @property
    def description(self) -> str:
        """One sentence about the policy."""
        raise NotImplementedError

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """The slices, possibly cut further, each with its file."""
        raise NotImplementedError

    @property
    def has_full_specs(self) -> bool:
        """True if whole tensors also get a text in an answer."""
        return False

    def __call__(self, shardable_tensors: Sequence[Any]) -> list[dict[str, dict[str, Any]]]:
        """Answer as RFC 001 asks: for every file, from keys to the texts of slices to tensors.

        Law: equal to what ``assign`` answers for the same slices and a format that can hold all of
        them.
        """
        slices = tabulate(shardable_tensors)
        answer = self.assign(slices, HOLDS_ALL)
        parts, source = answer.slices, _source_rows(slices, answer.slices)
        kept = (parts.shape == slices.shape[source]).all(axis=1).tolist()
        files: list[dict[str, dict[str, Any]]] = [{} for _ in range(answer.num_files)]
        for row, (file, given) in enumerate(
            zip(answer.file.tolist(), source.tolist(), strict=True)
        ):
            each = shardable_tensors[given]
            part, spec = each.tensor, each.slice_spec
            if not kept[row]:
                # Parts are in coordinates of the whole tensor; the value begins at the offset of
                # the given slice.
                part = part[parts.region(row).relative_to(slices.region(given)).slices]
            if not kept[row] or self.has_full_specs:
                spec = _spec(parts, row, self.has_full_specs)
            files[file].setdefault(each.checkpoint_key, {})[spec] = part
        return [file for file in files if file]


def take_parts(slices: SliceTable, rows: Ints, regions: dict[int, Region]) -> SliceTable:
    """The table of some of the rows, in the given order; those in ``regions`` in part."""
    table = slices.take(rows)
    if not regions:
        return table
    offset, shape = table.offset.copy(), table.shape.copy()
    for position, region in regions.items():
        offset[position, : region.rank] = region.offset
        shape[position, : region.rank] = region.shape
    sized = SliceTable.of(table.tensors, table.tensor, offset, shape, table.nbytes)
    return replace(sized, device=table.device, devices=table.devices)


def slice_spec(full_shape: tuple[int, ...], region: Region) -> str:
    """TensorFlow's text for a slice in callbacks; empty for the whole tensor.

    >>> slice_spec((4, 3), Region((0, 0), (2, 3))), slice_spec((4, 3), Region((0, 0), (4, 3)))
    ('4 3 0,2:0,3', '')
    """
    return (
        ""
        if region == Region.whole(full_shape)
        else format_slice_text(full_shape, region, empty=True)
    )


def parse_slice_spec(spec: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], Region]:
    """The full shape and the region that a slice_spec means; ``shape`` belongs to a whole tensor,
    whose spec is empty.

    >>> parse_slice_spec("4 3 0,2:-", (2, 3))
    ((4, 3), Region(offset=(0, 0), shape=(2, 3)))
    """
    spec = spec.strip()
    return parse_slice_text(spec, empty=True) if spec else (shape, Region.whole(shape))


def tabulate(shardable_tensors: Sequence[Any]) -> SliceTable:
    """The columns of shardable tensors, row by row.

    ``InconsistentTensor`` if two of one key disagree, ``LayoutError`` if one has another shape than
    its slice_spec.
    """
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    position: dict[str, int] = {}
    names: dict[Any, str] = {}
    rows, offsets, shapes, nbytes = [], [], [], []
    for each in shardable_tensors:
        key, shape = each.checkpoint_key, tuple(each.shape)
        full_shape, offset = shape, (0,) * len(shape)
        if each.slice_spec:
            full_shape, region = parse_slice_spec(each.slice_spec, shape)
            if region.shape != shape:
                raise LayoutError(
                    f"The slice of {key!r} has shape {shape}, and the slice_spec "
                    f"{each.slice_spec!r}.",
                    "Give the slice_spec of a slice of that shape.",
                )
            offset = region.offset
        # Remembered, since 100,000 tensors have a handful of dtypes.
        name = names.get(each.dtype) or names.setdefault(each.dtype, parse_dtype(each.dtype))
        if tensors.setdefault(key, (name, full_shape)) != (name, full_shape):
            raise InconsistentTensor(f"Slices of {key!r} disagree on its dtype or its full shape.")
        rows.append(position.setdefault(key, len(position)))
        offsets.append(offset)
        shapes.append(shape)
        nbytes.append(_payload_nbytes(each.tensor) if is_whole(name) else 0)
    table = TensorTable.of((key, *tensor) for key, tensor in tensors.items())
    columns = (pad(offsets, fill=0)[1], pad(shapes, fill=1)[1], np.array(nbytes, dtype=np.int64))
    devices = [str(each.device or LOCAL_DEVICE) for each in shardable_tensors]
    number = {name: number for number, name in enumerate(dict.fromkeys(devices))}
    device = np.array([number[name] for name in devices], dtype=np.int64)
    return replace(
        SliceTable.of(table, np.array(rows, dtype=np.int64), *columns),
        device=device,
        devices=tuple(number),
    )


def _spec(parts: SliceTable, row: int, is_full: bool) -> str:
    """The text of a part; with ``is_full`` also for a whole tensor, unless it is a scalar."""
    full_shape, region = parts.tensors.shape(int(parts.tensor[row])), parts.region(row)
    return (
        format_slice_text(full_shape, region, empty=True)
        if is_full and full_shape
        else slice_spec(full_shape, region)
    )


def _payload_nbytes(tensor: Any) -> int:
    """The bytes of a payload; for strings including their lengths and the checksum of these."""
    if not isinstance(tensor, np.ndarray) or tensor.dtype.kind != "O":
        return int(tensor.nbytes)
    lengths = [len(element) for element in tensor.ravel().tolist()]
    # A length is a varint of 7 bits a byte, at least one: 127 takes 1 byte, 128 takes 2.
    return sum(lengths) + sum(max(1, -(-length.bit_length() // 7)) for length in lengths) + 4


def _source_rows(slices: SliceTable, parts: SliceTable) -> Ints:
    """[n] the row of the slice that each part belongs to."""
    counts = np.bincount(slices.tensor, minlength=len(slices.tensors))
    # Right at once for tensors with one slice, as most are. The parts of the others are looked up
    # below.
    row_of = np.zeros(len(slices.tensors), dtype=np.int64)
    row_of[slices.tensor] = np.arange(len(slices))
    source: Ints = row_of[parts.tensor]
    several = np.flatnonzero(counts[parts.tensor] > 1)
    if len(several):
        # A part that is a whole slice is found by its place, also one without elements, which
        # overlaps with nothing. Every other part is found by its elements.
        places = {place: row for row, place in enumerate(_places(slices, np.arange(len(slices))))}
        source[several] = [places.get(place, -1) for place in _places(parts, several)]
        cut = several[source[several] < 0]
        copies = plan_copies(slices, parts.take(cut)).copies
        source[cut[copies.target]] = copies.source
    return source


def _places(slices: SliceTable, rows: Ints) -> list[tuple[int, bytes, bytes]]:
    columns = (slices.tensor[rows].tolist(), slices.offset[rows], slices.shape[rows])
    return [
        (tensor, offset.tobytes(), shape.tobytes())
        for tensor, offset, shape in zip(*columns, strict=True)
    ]
