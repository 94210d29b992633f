"""What makes a policy of columns a callback too: its answer in the words of RFC 001's protocol.

A shardable tensor is anything with the attributes ``checkpoint_key``, ``dtype``, ``shape``, ``slice_spec``, ``device``
and ``tensor``, and a tensor anything that a NumPy basic index cuts: nothing is read here.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardvar.errors import InconsistentTensor
from shardvar.layout.dtypes import MAX_RANK, NAMES, dtype_name, is_whole
from shardvar.layout.region import Ints, Region
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

    def spec(self, full_shape: tuple[int, ...], region: Region) -> str:
        """The text of a slice in an answer."""
        return slice_spec(full_shape, region)

    def __call__(self, shardable_tensors: Sequence[Any]) -> list[dict[str, dict[str, Any]]]:
        """The answer of ``assign`` as RFC 001 has it: for every file, from keys to the texts of slices to tensors.

        Law: equal to what ``assign`` says of the same slices, for a format that can hold all of them.
        """
        slices = tabulate(shardable_tensors)
        answer = self.assign(slices, HOLDS_ALL)
        files: list[dict[str, dict[str, Any]]] = [{} for _ in range(answer.num_files)]
        numbers = answer.file.tolist()
        for row, source in enumerate(_source_rows(slices, answer.slices).tolist()):
            region, held = answer.slices.region(row), slices.region(source)
            tensor = shardable_tensors[source].tensor
            part = tensor if region == held else tensor[region.relative_to(held).slices]
            spec = self.spec(slices.tensors.shape(int(slices.tensor[source])), region)
            files[numbers[row]].setdefault(slices.key(source), {})[spec] = part
        return [file for file in files if file]


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
    rows, regions, nbytes, devices = [], [], [], []
    for each in shardable_tensors:
        full_shape, region = parse_slice_spec(each.slice_spec, tuple(each.shape))
        key, tensor = each.checkpoint_key, (dtype_name(np.dtype(each.dtype)), full_shape)
        if tensors.setdefault(key, tensor) != tensor:
            raise InconsistentTensor(f"Slices of {key!r} disagree on its dtype or its full shape.")
        rows.append(position.setdefault(key, len(position)))
        regions.append(region)
        nbytes.append(_payload_nbytes(each.tensor))
        devices.append(str(each.device or LOCAL_DEVICE))
    _, offset = pad([region.offset for region in regions], fill=0)
    _, shape = pad([region.shape for region in regions], fill=1)
    table = TensorTable.of((key, *tensor) for key, tensor in tensors.items())
    rank = table.shapes.shape[1]  # that of the regions, which have the ranks of their tensors
    sized = SliceTable.of(
        table,
        np.array(rows, dtype=np.int64),
        offset.reshape(-1, rank),
        shape.reshape(-1, rank),
        np.array(nbytes, dtype=np.int64),
    )
    names = {name: number for number, name in enumerate(dict.fromkeys(devices))}
    device = np.array([names[name] for name in devices], dtype=np.int64)
    return SliceTable(sized.tensors, sized.tensor, sized.offset, sized.shape, sized.nbytes, device, tuple(names))


def _payload_nbytes(tensor: Any) -> int:
    """The bytes of the payload, those of lengths and their checksum included where an array holds strings."""
    if not isinstance(tensor, np.ndarray) or tensor.dtype.kind != "O":
        return int(tensor.nbytes)
    lengths = [len(element) for element in tensor.ravel().tolist()]
    return sum(lengths) + sum(max(1, -(-length.bit_length() // 7)) for length in lengths) + 4


def _source_rows(slices: SliceTable, pieces: SliceTable) -> Ints:
    """[n] the row of the slice that each piece is a part of."""
    rows: dict[tuple[int, bytes, bytes], int] = {}
    for row, (tensor, offset, shape) in enumerate(
        zip(slices.tensor.tolist(), slices.offset, slices.shape, strict=True)
    ):
        rows.setdefault((tensor, offset.tobytes(), shape.tobytes()), row)
    found = [
        rows.get((tensor, offset.tobytes(), shape.tobytes()), -1)
        for tensor, offset, shape in zip(pieces.tensor.tolist(), pieces.offset, pieces.shape, strict=True)
    ]
    source = np.array(found, dtype=np.int64)
    cut = np.flatnonzero(source < 0)
    copies = plan_copies(slices, pieces.take(cut)).copies
    source[cut[copies.target]] = copies.source
    return source
