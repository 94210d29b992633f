"""The tensors of an open checkpoint as rows for people and programs."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from shardvar.errors import ReadError
from shardvar.layout.dtypes import STRING
from shardvar.planning.index import NO_CHECKSUM, EntryTable
from shardvar.verbs.parameters import count_parameters
from shardvar.verbs.reader import Reader
from shardvar.verbs.renaming import select_keys
from shardvar.verbs.reports import Damage
from shardvar.verbs.scalars import has_settings
from shardvar.wire.collection import without_collection

if TYPE_CHECKING:
    from shardvar.layout.meshes.layout import Layout

_MARKS = {
    "OverlappingSlices": "overlapping",
    "IncompleteCheckpoint": "incomplete",
    "MissingFile": "file missing",
    "OutOfBounds": "out of bounds",
    "InconsistentTensor": "inconsistent",
    "CorruptCheckpoint": "corrupt",
}


@dataclass(frozen=True, slots=True)
class Slice:
    """A stored slice."""

    offset: tuple[int, ...]
    """Its first index along each axis of the whole tensor."""
    shape: tuple[int, ...]
    """Its extents."""
    file: str
    """The data file that holds it."""
    start: int
    """The position of its first byte in the file, in formats that store payloads as they are."""
    nbytes: int
    """The bytes of the payload."""
    checksum: str | None
    """The payload's checksum as eight hexadecimal digits; None where the index has none."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that a checkpoint names."""

    key: str
    """The name under which it was saved."""
    dtype: str | None
    """Its dtype; None where the index lacks it."""
    shape: tuple[int, ...] | None
    """Its full shape; None where the index lacks it."""
    nbytes: int
    """The bytes of its payloads."""
    num_slices: int
    """The number of slices that it is stored as."""
    files: tuple[str, ...]
    """The data files that hold them."""
    fault: ReadError | None
    """The reason why it cannot be read; None for a sound tensor."""
    rows: tuple[int, ...]
    """Its rows in the reader's table of entries."""
    encoding: str | None = None
    """The encoding of its bytes, such as Q8_0; None for a tensor whose elements are its values."""
    num_parameters: int = 0
    """The parameters of a model that it holds."""
    counted_as: str = ""
    """The dtype, the encoding or the scheme of packed weights by which they are counted; empty
    without any."""
    may_be_packed: bool = False
    """True for a matrix of small integers, which may be weights that are packed by an unknown
    scheme."""
    is_setting: bool = False
    """True for a plain object of a program, such as a learning rate."""

    @property
    def kind(self) -> str:
        """The dtype, and the encoding of quantised bytes; empty where the index lacks them."""
        return f"{self.dtype or ''} {self.encoding or ''}".strip()

    @property
    def mark(self) -> str:
        """A word for the fault; empty for a tensor without one."""
        return "" if self.fault is None else _MARKS.get(type(self.fault).__name__, "unreadable")

    def to_json(self) -> dict[str, Any]:
        """Return the tensor as a JSON object with stable keys."""
        fault = self.fault and Damage.of(self.fault, self.key).to_json()
        return {
            "key": self.key,
            "dtype": self.dtype,
            "encoding": self.encoding,
            "shape": None if self.shape is None else list(self.shape),
            "num_parameters": self.num_parameters,
            "nbytes": self.nbytes,
            "num_slices": self.num_slices,
            "files": list(self.files),
            "fault": fault,
        }


def list_tensors(
    reader: Reader,
    filter: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    *,
    with_places: bool = False,
) -> list[Tensor]:
    """Return the tensors that ``select_keys`` chooses, in the order of the index.

    ``with_places`` also reads what only files of payloads tell, for ``list_slices``.
    """
    with without_collection():
        return _list(reader, select_keys(list(reader), filter, exclude), with_places)


def _list(reader: Reader, chosen: Collection[str], with_places: bool) -> list[Tensor]:
    entries = reader.entries() if with_places else reader.listed()
    faults = reader.faults if with_places else reader.listed_faults()
    tensors, files = entries.slices.tensors, reader.index.files
    # Lists, since taking single elements from NumPy arrays is slow, and a checkpoint may have 10^5
    # tensors.
    order_list, bounds = (column.tolist() for column in entries.slices.by_tensor())
    nbytes, file = entries.slices.nbytes.tolist(), entries.file.tolist()
    row_of, facts, encodings = tensors.rows(), tensors.facts(), reader.encodings
    # Of all tensors, since packed weights are known by their neighbors.
    parameters = count_parameters((key, *facts[key], encodings.get(key)) for key in tensors.keys)
    left_out = set(parameters.left_out)
    has_any = has_settings(reader)
    listed, named = [], dict[frozenset[int], tuple[str, ...]]()
    for key in reader:
        if key not in chosen:
            continue
        row = row_of.get(key)
        # A key whose entries could not be decoded is listed all the same, with its fault.
        if row is None:
            listed.append(Tensor(key, None, None, 0, 0, (), faults.get(key), ()))
            continue
        rows = tuple(order_list[bounds[row] : bounds[row + 1]])
        numbers = frozenset(map(file.__getitem__, rows))
        if numbers not in named:  # most tensors are in the same few files
            named[numbers] = tuple(files[number] for number in sorted(numbers))
        total = sum(map(nbytes.__getitem__, rows))
        dtype, shape = facts[key]
        fault, encoding = faults.get(key), encodings.get(key)
        counted_as, number = parameters.counted.get(key, ("", 0))
        listed.append(
            Tensor(
                key,
                dtype,
                shape,
                total,
                len(rows),
                named[numbers],
                fault,
                rows,
                encoding,
                number,
                counted_as,
                key in left_out,
                has_any and dtype == STRING and shape == (),
            )
        )
    return listed


def list_slices(reader: Reader, tensor: Tensor) -> list[Slice]:
    """Return the slices of one tensor, in the order of their offsets."""
    entries, files = reader.entries(), reader.index.files
    return sorted(
        (_slice(entries, files, row) for row in tensor.rows), key=lambda each: each.offset
    )


def layout_of(reader: Reader, tensor: Tensor) -> "Layout | None":
    """Return the layout that the slices of a tensor are; None for a tensor that is whole, has a
    fault, or has none."""
    return reader.layout(tensor.key) if tensor.num_slices > 1 and tensor.fault is None else None


def slice_json(each: Slice) -> dict[str, Any]:
    """Return the slice as a JSON object with stable keys."""
    return asdict(each) | {"offset": list(each.offset), "shape": list(each.shape)}


def _slice(entries: EntryTable, files: Sequence[str], row: int) -> Slice:
    slices = entries.slices
    # Offsets and shapes are padded to the highest rank of the checkpoint.
    rank = int(slices.tensors.ranks[slices.tensor[row]])
    checksum = int(entries.checksum[row])
    return Slice(
        tuple(slices.offset[row, :rank].tolist()),
        tuple(slices.shape[row, :rank].tolist()),
        files[int(entries.file[row])],
        int(entries.start[row]),
        int(slices.nbytes[row]),
        None if checksum == NO_CHECKSUM else f"{checksum:08x}",
    )
