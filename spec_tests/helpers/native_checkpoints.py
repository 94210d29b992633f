"""Native checkpoints for tests: written through the protocol, read by the book, made by hand, and the
golden ones with what they say."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardvar.formats.native import FORMAT
from shardvar.formats.native.index import Overview
from shardvar.layout.dtypes import STRING, numpy_dtype
from shardvar.layout.region import Region
from shardvar.planning.index import Metadata
from shardvar.planning.slices import Assignment, SliceTable, TensorTable, pad
from shardvar.storage.local import LocalStorage
from shardvar.wire import strings
from shardvar.wire.block_file import encode_block_file, encode_index_block, pack_strings
from shardvar.wire.crc import CRC32C
from spec_tests.helpers import paths
from spec_tests.helpers.format_protocol import write_aside

GOLDEN = paths.GOLDEN / "native"
FORMAT_MD = paths.DOCS / "format.md"
CASES = {
    path.parent.name: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted(GOLDEN.glob("*/expected.json"))
}
"""What each golden checkpoint is there for, its files, and the result of reading each key."""


@dataclass(frozen=True)
class Piece:
    """A slice and its payload, to be written or as it was read."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    region: Region
    payload: bytes
    file: int = 0


def whole(key: str, value: Any, dtype: str = "", file: int = 0) -> Piece:
    """A tensor in one slice; lists of bytes become strings."""
    array = np.asarray(value)
    if dtype == STRING or array.dtype.kind in "SO":
        array = np.asarray(value, object)
        return Piece(
            key, STRING, array.shape, Region.whole(array.shape), strings.encode(array), file
        )
    name = dtype or str(array.dtype)
    array = array.astype(numpy_dtype(name))
    return Piece(key, name, array.shape, Region.whole(array.shape), array.tobytes(), file)


def cut(key: str, array: Any, *regions: Region, files: int = 1) -> list[Piece]:
    """A tensor in several slices, dealt to files in turn."""
    return [
        Piece(
            key,
            str(array.dtype),
            array.shape,
            region,
            array[region.slices].tobytes(),
            number % files,
        )
        for number, region in enumerate(regions)
    ]


def assignment_of(pieces: Sequence[Piece], files: int | None = None) -> Assignment:
    tensors: dict[str, Piece] = {}
    for piece in pieces:
        tensors.setdefault(piece.key, piece)
    table = TensorTable.of((key, piece.dtype, piece.shape) for key, piece in tensors.items())
    row = {key: row for row, key in enumerate(tensors)}
    slices = SliceTable.of(
        table,
        np.array([row[piece.key] for piece in pieces], np.int64),
        _matrix([piece.region.offset for piece in pieces], 0, table),
        _matrix([piece.region.shape for piece in pieces], 1, table),
        np.array([len(piece.payload) for piece in pieces], np.int64),
    )
    file = np.array([piece.file for piece in pieces], np.int64)
    return Assignment(
        slices, file, int(file.max(initial=-1)) + 1 if files is None else files, "by hand"
    )


def _matrix(rows: list[tuple[int, ...]], fill: int, table: TensorTable) -> Any:
    matrix = pad(rows, fill)[1]
    missing = table.shapes.shape[1] - matrix.shape[1]
    return (
        np.column_stack([matrix, np.full((len(rows), missing), fill, np.int64)])
        if missing > 0
        else matrix
    )


def write(
    directory: Path | str,
    prefix: str,
    pieces: Sequence[Piece],
    *,
    files: int | None = None,
    metadata: Metadata | None = None,
    generation: str = "g1",
) -> None:
    """Write a checkpoint through the protocol, as an engine would."""
    storage = LocalStorage(str(directory))
    metadata = metadata or Metadata(writer="natives")
    payloads, assignment = [piece.payload for piece in pieces], assignment_of(pieces, files)
    sink, sums = write_aside(FORMAT, storage, prefix, assignment, payloads, metadata, generation)
    sink.commit(sums)


def book() -> dict[str, Any]:
    """The reader that docs/format.md prints, executed."""
    code = re.search(r"```python\n(.*?)```", FORMAT_MD.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code[1] if code else "", names)
    return names


def hand_made(
    columns: Mapping[str, Any] | None = None,
    overview: Overview | None = None,
    metadata: bytes | None = None,
    blocks: Sequence[tuple[bytes, bytes]] | None = None,
) -> bytes:
    """An index with right checksums: that of one int8 tensor ``t`` of shape [4], but for what is
    given."""
    values: dict[str, Any] = {
        **pack_strings("key", [b"t"]),
        **pack_strings("dtype_name", [b"int8"]),
        "dtype": np.array([0], "u1"),
        "rank": np.array([1], "u1"),
        "shape": np.array([4], "<u8"),
        "count": np.array([1], "<u4"),
        "offset": np.array([0], "<u8"),
        "extent": np.array([4], "<u8"),
        "file": np.array([0], "<u4"),
        "start": np.array([0], "<u8"),
        "nbytes": np.array([4], "<u8"),
        "crc": np.array([CRC32C.compute(bytes(4))], "<u4"),
        "run_crc": b"",
    } | dict(columns or {})
    overview = overview or Overview(Metadata(), "g1", np.array([4]))
    block = encode_index_block({name: value for name, value in values.items() if value is not None})
    keys, nbytes = values["key"], values["key_nbytes"]
    first = (
        keys[: int(nbytes[0])]
        if isinstance(keys, bytes) and isinstance(nbytes, np.ndarray) and len(nbytes)
        else b""
    )
    return b"".join(
        encode_block_file(
            [(first, block)] if blocks is None else blocks,
            metadata or overview.encode(),
            overview.version,
        )
    )


def place(directory: Path, index: bytes, data: bytes = bytes(4)) -> None:
    """Put a hand-made index and its one data file where ``open`` finds them, as ``ck``."""
    (directory / "ck.svindex").write_bytes(index)
    (directory / "ck.svdata-g1-00000-of-00001").write_bytes(data)


QUANTIZED = {"qint8": 1, "quint8": 1, "qint16": 2, "quint16": 2, "qint32": 4}
