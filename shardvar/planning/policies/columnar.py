"""What makes a policy of columns a callback too: its answer in the words of RFC 001's protocol.

A shardable tensor is anything with the attributes ``checkpoint_key``, ``dtype``, ``shape``, ``slice_spec``, ``device``
and ``tensor``, and a tensor anything that a NumPy basic index cuts: nothing is read here.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardvar.errors import InconsistentTensor
from shardvar.layout.dtypes import MAX_RANK, NAMES, Ints, dtype_name, is_whole
from shardvar.layout.region import Region
from shardvar.layout.slice_text import format_slice_text, parse_slice_text
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.plan import Assignment, plan_copies
from shardvar.planning.slices import LOCAL_DEVICE, SliceTable, TensorTable, pad

HOLDS_ALL = Capabilities(
    dtypes=frozenset(NAMES),
    slice_dtypes=frozenset(name for name in NAMES if not is_whole(name)),
    max_slice_rank=MAX_RANK,
    empty_slices=True,
)
"""What a policy may assume that is called without a format: everything but strings can be cut."""


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
        """Whether whole tensors get a text in an answer too."""
        return False

    def __call__(self, shardable_tensors: Sequence[Any]) -> list[dict[str, dict[str, Any]]]:
        """The answer of ``assign`` as RFC 001 has it: for every file, from keys to the texts of slices to tensors.

        Law: equal to what ``assign`` says of the same slices, for a format that can hold all of them.
        """
        slices = tabulate(shardable_tensors)
        answer = self.assign(slices, HOLDS_ALL)
        pieces, source = answer.slices, _source_rows(slices, answer.slices)
        kept = (pieces.shape == slices.shape[source]).all(axis=1).tolist()
        files: list[dict[str, dict[str, Any]]] = [{} for _ in range(answer.num_files)]
        for row, (file, given) in enumerate(zip(answer.file.tolist(), source.tolist(), strict=True)):
            each = shardable_tensors[given]
            part, spec = each.tensor, each.slice_spec
            if not kept[row]:
                part = part[pieces.region(row).relative_to(slices.region(given)).slices]
            if not kept[row] or self.has_full_specs:
                spec = _spec(pieces, row, self.has_full_specs)
            files[file].setdefault(each.checkpoint_key, {})[spec] = part
        return [file for file in files if file]


def _spec(pieces: SliceTable, row: int, is_full: bool) -> str:
    full_shape, region = pieces.tensors.shape(int(pieces.tensor[row])), pieces.region(row)
    return (
        format_slice_text(full_shape, region, empty=True) if is_full and full_shape else slice_spec(full_shape, region)
    )


def slice_spec(full_shape: tuple[int, ...], region: Region) -> str:
    """TensorFlow's text for a slice in callbacks: nothing for the whole.

    >>> slice_spec((4, 3), Region((0, 0), (2, 3))), slice_spec((4, 3), Region((0, 0), (4, 3)))
    ('4 3 0,2:0,3', '')
    """
    return "" if region == Region.whole(full_shape) else format_slice_text(full_shape, region, empty=True)


def parse_slice_spec(spec: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], Region]:
    """The full shape and the region of a slice of this shape; ``LayoutError`` for a text that is none.

    >>> parse_slice_spec("4 3 0,2:-", (2, 3))
    ((4, 3), Region(offset=(0, 0), shape=(2, 3)))
    """
    spec = spec.strip()
    return parse_slice_text(spec, empty=True) if spec else (shape, Region.whole(shape))


def tabulate(shardable_tensors: Sequence[Any]) -> SliceTable:
    """The columns of shardable tensors, row by row; ``InconsistentTensor`` where two of one key disagree."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    position: dict[str, int] = {}
    names: dict[Any, str] = {}
    rows, offsets, shapes, nbytes = [], [], [], []
    for each in shardable_tensors:
        key, shape = each.checkpoint_key, tuple(each.shape)
        full_shape, offset = shape, (0,) * len(shape)
        if each.slice_spec:
            full_shape, region = parse_slice_spec(each.slice_spec, shape)
            offset = region.offset
        name = names.get(each.dtype) or names.setdefault(each.dtype, dtype_name(np.dtype(each.dtype)))
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
    return replace(SliceTable.of(table, np.array(rows, dtype=np.int64), *columns), device=device, devices=tuple(number))


def _payload_nbytes(tensor: Any) -> int:
    """The bytes of the payload, those of lengths and their checksum included where an array holds strings."""
    if not isinstance(tensor, np.ndarray) or tensor.dtype.kind != "O":
        return int(tensor.nbytes)
    lengths = [len(element) for element in tensor.ravel().tolist()]
    return sum(lengths) + sum(max(1, -(-length.bit_length() // 7)) for length in lengths) + 4


def _source_rows(slices: SliceTable, pieces: SliceTable) -> Ints:
    """[n] the row of the slice that each piece is a part of."""
    counts = np.bincount(slices.tensor, minlength=len(slices.tensors))
    row_of = np.zeros(len(slices.tensors), dtype=np.int64)
    row_of[slices.tensor] = np.arange(len(slices))
    source: Ints = row_of[pieces.tensor]
    several = np.flatnonzero(counts[pieces.tensor] > 1)
    if len(several):  # what has elements is found by them, what has none by its place
        places = {place: row for row, place in enumerate(_places(slices, np.arange(len(slices))))}
        source[several] = [places.get(place, -1) for place in _places(pieces, several)]
        cut = several[source[several] < 0]
        copies = plan_copies(slices, pieces.take(cut)).copies
        source[cut[copies.target]] = copies.source
    return source


def _places(slices: SliceTable, rows: Ints) -> list[tuple[int, bytes, bytes]]:
    columns = (slices.tensor[rows].tolist(), slices.offset[rows], slices.shape[rows])
    return [(tensor, offset.tobytes(), shape.tobytes()) for tensor, offset, shape in zip(*columns, strict=True)]
