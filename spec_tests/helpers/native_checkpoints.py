"""Native checkpoints for tests: written through the protocol, read by the book, and the golden ones
built anew.

`python -m spec_tests.helpers.native_checkpoints` writes spec_tests/golden/native; a test holds that
it would write the same again.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from shardvar.errors import CorruptCheckpoint
from shardvar.formats.native import FORMAT
from shardvar.formats.native.index import RUN_NBYTES, Overview
from shardvar.formats.native.source import NativeSource
from shardvar.formats.protocol import FileChecksums
from shardvar.layout.dtypes import NAMES, STRING, VARIANT, numpy_dtype
from shardvar.layout.region import Region
from shardvar.planning.index import EntryTable, Metadata, References, concatenate_entries
from shardvar.planning.plan import Assignment
from shardvar.planning.slices import SliceTable, TensorTable, pad
from shardvar.storage.local import LocalStorage
from shardvar.wire import strings
from shardvar.wire.block_file import encode_block_file, encode_index_block, pack_strings
from shardvar.wire.crc import CRC32C
from spec_tests.helpers import paths

GOLDEN = paths.GOLDEN / "native"
FORMAT_MD = paths.DOCS / "format.md"


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


def checksums_of(payloads: Sequence[bytes]) -> FileChecksums:
    runs = [
        p[start : start + RUN_NBYTES] for p in payloads for start in range(0, len(p), RUN_NBYTES)
    ]
    return FileChecksums(
        np.array(list(map(CRC32C.compute, payloads)), np.int64),
        np.array(list(map(CRC32C.compute, runs)), np.uint32),
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
    assignment = assignment_of(pieces, files)
    metadata = metadata or Metadata(writer="natives")
    sink = FORMAT.create(storage, prefix, assignment, metadata, generation)
    checksums = []
    for number, name in enumerate(sink.asides):
        file, mine = storage.create(name), np.flatnonzero(assignment.file == number).tolist()
        for row in mine:
            file.write(int(sink.start[row]), pieces[row].payload)
        file.close()
        checksums.append(checksums_of([pieces[row].payload for row in mine]))
    sink.commit(checksums)


def read_payload(source: NativeSource, entries: EntryTable, row: int) -> bytes:
    """One payload, with its checksum and those of its runs compared."""
    payload = bytearray(int(entries.slices.nbytes[row]))
    source.read_into(entries, row, 0, memoryview(payload))
    runs = [payload[start : start + RUN_NBYTES] for start in range(0, len(payload), RUN_NBYTES)]
    stored = entries.runs.of(row, len(payload)).tolist() if entries.runs else []
    if (
        source.crc.compute(payload) != entries.checksum[row]
        or list(map(CRC32C.compute, runs)) != stored
    ):
        raise CorruptCheckpoint(f"The payload of {entries.slices.key(row)!r} is corrupt.")
    return bytes(payload)


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


TABLE = np.arange(6, dtype=np.float32).reshape(3, 2)
TINY = [
    whole("n", np.int64(5), file=1),
    *cut("t", TABLE, Region((0, 0), (2, 2)), Region((2, 0), (1, 2))),
]


def write_tiny(directory: Path) -> None:
    """The checkpoint that docs/format.md prints."""
    metadata = Metadata("two files", "shardvar", {"epoch": "3"})
    write(directory, "ck", TINY, metadata=metadata, generation="a1")


def _dtypes(directory: Path) -> None:
    pieces = [whole(name, np.arange(4) % 2, name) for name in NAMES[: NAMES.index(STRING)]]
    pieces += [whole("strings", [[b"a", b""], [b"\x00\xff", b"long " * 40]])]
    pieces += [Piece(VARIANT, VARIANT, (), Region((), ()), b"\x02hi\x00\x00\x00\x00")]
    pieces += [
        Piece(name, name, (2,), Region((0,), (2,)), bytes(8)[: 2 * size])
        for name, size in QUANTIZED.items()
    ]
    write(directory, "ck", pieces)


QUANTIZED = {"qint8": 1, "quint8": 1, "qint16": 2, "quint16": 2, "qint32": 4}


def _empties(directory: Path) -> None:
    array = np.arange(3, dtype=np.int16)
    pieces = [
        whole("zero", np.zeros((0, 3))),
        whole("scalar", np.float64(2.5)),
        whole("none", np.empty((2, 0), object)),
    ]
    pieces += cut("beside", array, Region((0,), (0,)), Region((0,), (3,)), Region((3,), (0,)))
    write(directory, "ck", [*pieces, whole("last", np.zeros((0,), np.uint8), file=1)], files=3)


def _odd_names(directory: Path) -> None:
    keys = ["", "/", "../../up", "a", "a/b", "a\udcff", "é", "\U0001f600", "nul\0", "x" * 300]
    write(
        directory, "odd prefix.svindex", [whole(key, np.uint8(row)) for row, key in enumerate(keys)]
    )


def _grid(directory: Path) -> None:
    array = np.arange(30, dtype=np.int32).reshape(5, 6)
    regions = [Region((i, j), (min(2, 5 - i), 3)) for j in (3, 0) for i in (4, 0, 2)]
    write(directory, "ck", cut("grid", array, *regions, files=3))


def _runs(directory: Path) -> None:
    write(
        directory,
        "ck",
        [
            whole("long", np.arange(2 * RUN_NBYTES + 100) // 1000 % 251, "uint8"),
            whole("short", [1]),
        ],
    )


def _references(directory: Path) -> None:
    """Two tensors of an older checkpoint, whose index is gone, and one that is new."""
    table = np.arange(10, dtype=np.int16).reshape(5, 2)
    regions = [Region((0, 0), (2, 2)), Region((2, 0), (3, 2))]
    long = whole("long", np.arange(RUN_NBYTES + 100) // 1000 % 251, "uint8", file=1)
    write(directory, "old", [*cut("cut", table, *regions), long], generation="a1")
    with closing(FORMAT.open(LocalStorage(str(directory)), "old")) as older:
        entries = concatenate_entries(list(older.index.scan()))
        references = References(
            entries, older.index.files, older.index.overview.file_nbytes, "old.svindex", ""
        )
    metadata = Metadata(writer="natives", references=references)
    write(directory, "ck", [whole("new", [1, 2, 3], "int8")], metadata=metadata, generation="b2")
    (directory / "old.svindex").unlink()


def _with(index: bytes, data: bytes = bytes(4)) -> Callable[[Path], None]:
    return lambda directory: place(directory, index, data)


def _damaged(
    build: Callable[[Path], None], name: str, change: Callable[[bytearray], object]
) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        build(directory)
        octets = bytearray((directory / name).read_bytes())
        change(octets)
        (directory / name).write_bytes(octets)

    return damage


def _flip(offset: int) -> Callable[[bytearray], object]:
    return lambda octets: octets.__setitem__(offset, octets[offset] ^ 1)


def _truncate(nbytes: int) -> Callable[[bytearray], object]:
    return lambda octets: octets.__delitem__(slice(-nbytes, None))


def _without_file(directory: Path) -> None:
    write_tiny(directory)
    (directory / "ck.svdata-a1-00001-of-00002").unlink()


def _swapped(directory: Path) -> None:
    write_tiny(directory)
    a, b = (directory / f"ck.svdata-a1-0000{number}-of-00002" for number in (0, 1))
    a_bytes, b_bytes = a.read_bytes(), b.read_bytes()
    a.write_bytes(b_bytes)
    b.write_bytes(a_bytes)


def _slices(*regions: tuple[int, int]) -> bytes:
    """The hand-made index with its tensor in these slices, each with its own payload of zeros."""
    count = len(regions)
    offset, extent = (np.array(column, "<u8") for column in zip(*regions, strict=True))
    columns = {
        "offset": offset,
        "extent": extent,
        "nbytes": extent,
        "count": np.array([count], "<u4"),
    }
    columns |= {"file": np.zeros(count, "<u4"), "start": np.zeros(count, "<u8")}
    crc = np.array([CRC32C.compute(bytes(length)) for length in extent.tolist()], "<u4")
    return hand_made(columns | {"crc": crc})


def _of_version(version: int) -> bytes:
    """The hand-made index as another version would write it."""
    index = hand_made()
    footer = index[-40:-16] + version.to_bytes(4, "little")
    return index[:-40] + footer + CRC32C.compute(footer).to_bytes(4, "little") + index[-8:]


NESTED = b"\x81\xa0" * 20_000 + b"\xc0"
HUGE = np.array([1 << 60], "<u8")

Expected = dict[str, str] | str
"""Keys and the class of the error that reading them raises; or the class that opening raises."""

CASES: dict[str, tuple[str, Callable[[Path], None], Expected]] = {
    "tiny": ("The one that docs/format.md prints.", write_tiny, {}),
    "dtypes": ("Every dtype that there is.", _dtypes, {}),
    "empties": (
        "No elements, no axes, slices without elements, a file without payloads.",
        _empties,
        {},
    ),
    "odd_names": (
        "Keys that are no file names, not UTF-8, empty, long; a prefix like an index.",
        _odd_names,
        {},
    ),
    "grid": ("A tensor cut along both axes, over three files, written out of order.", _grid, {}),
    "runs": ("A payload of two runs and a bit, with a checksum each.", _runs, {}),
    "references": (
        "Tensors in files of an older checkpoint, in two slices and in two runs.",
        _references,
        {},
    ),
    "nothing": ("No tensors and no files.", lambda directory: write(directory, "ck", []), {}),
    "bad_index_byte": (
        "One bit of a block is flipped: a reader that skips checksums reads another shape.",
        _damaged(write_tiny, "ck.svindex", _flip(100)),
        {"n": "CorruptCheckpoint", "t": "CorruptCheckpoint"},
    ),
    "bad_index_footer": (
        "One bit of the footer's table size is flipped.",
        _damaged(write_tiny, "ck.svindex", _flip(-32)),
        "CorruptCheckpoint",
    ),
    "bad_index_cut": (
        "The last byte is gone, and the footer is not where the size says.",
        _damaged(write_tiny, "ck.svindex", _truncate(1)),
        "MalformedCheckpoint",
    ),
    "bad_index_newlines": (
        "A transfer as text made CR LF into LF.",
        _damaged(write_tiny, "ck.svindex", lambda octets: octets.__delitem__(4)),
        "MalformedCheckpoint",
    ),
    "bad_data_byte": (
        "One bit of a payload is flipped.",
        _damaged(write_tiny, "ck.svdata-a1-00001-of-00002", _flip(0)),
        {"n": "CorruptCheckpoint"},
    ),
    "bad_data_cut": (
        "A data file lost its last byte; another still reads.",
        _damaged(write_tiny, "ck.svdata-a1-00000-of-00002", _truncate(1)),
        {"t": "IncompleteCheckpoint"},
    ),
    "bad_data_missing": (
        "A data file is gone; another still reads.",
        _without_file,
        {"n": "MissingFile"},
    ),
    "bad_data_swapped": (
        "Two data files have each other's names.",
        _swapped,
        {"n": "InvalidCheckpoint", "t": "IncompleteCheckpoint"},
    ),
    "bad_overlap": (
        "Two slices hold the same element.",
        _with(_slices((0, 3), (2, 2))),
        {"t": "OverlappingSlices"},
    ),
    "bad_hole": (
        "An element is in no slice.",
        _with(_slices((0, 1), (2, 2))),
        {"t": "IncompleteCheckpoint"},
    ),
    "bad_slice_outside": (
        "A slice reaches out of its tensor.",
        _with(_slices((0, 2), (2, 3))),
        {"t": "OutOfBounds"},
    ),
    "bad_payload_outside": (
        "A payload reaches out of its file: a reader that believes it allocates first.",
        _with(hand_made({"start": np.array([1], "<u8")})),
        {"t": "OutOfBounds"},
    ),
    "bad_file_number": (
        "A payload lies in a file that there is not.",
        _with(hand_made({"file": np.array([7], "<u4")})),
        {"t": "OutOfBounds"},
    ),
    "bad_huge": (
        "A tensor of 2^60 elements in a slice of as many, in a file of 4 bytes.",
        _with(
            hand_made(
                {
                    "dtype_name": b"int64",
                    "dtype_name_nbytes": np.array([5], "<u4"),
                    "shape": HUGE,
                    "extent": HUGE,
                }
            )
        ),
        {"t": "InvalidCheckpoint"},
    ),
    "bad_size": (
        "A payload has more bytes than its dtype and shape need.",
        _with(hand_made({"extent": np.array([3], "<u8"), "shape": np.array([3], "<u8")})),
        {"t": "InvalidCheckpoint"},
    ),
    "bad_dtype": (
        "A dtype of the future; other tensors must still read.",
        _with(hand_made({"dtype_name": b"int3", "crc": np.array([0], "<u4")})),
        {"t": "InvalidCheckpoint"},
    ),
    "bad_nested": (
        "Twenty thousand nested msgpack maps, which exhaust the stack of a decoder that recurses.",
        _with(hand_made(metadata=NESTED)),
        "MalformedCheckpoint",
    ),
    "bad_generation": (
        "A generation with a separator in it, which leads to another directory where it is put "
        "into a name.",
        _with(hand_made(overview=Overview(Metadata(), "../x", np.array([4])))),
        "InvalidCheckpoint",
    ),
    "bad_version": ("A version of the future, whole.", _with(_of_version(2)), "UnsupportedError"),
}


def build(case: str, directory: Path) -> None:
    """Write one golden checkpoint."""
    CASES[case][1](directory)


def describe(case: str, directory: Path) -> dict[str, Any]:
    """Return the contents of its expected.json: its purpose, its files, and the result of reading
    each key."""
    how, _, errors = CASES[case]
    files = {
        path.name: {
            "size": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(directory.iterdir())
        if path.name != "expected.json"
    }
    expected: dict[str, Any] = {"name": case, "how": how, "files": files}
    expected["prefix"] = next(name for name in files if name.endswith(".svindex")).removesuffix(
        ".svindex"
    )
    if isinstance(errors, str):
        return expected | {"error": errors}
    if "bad" not in case:
        expected["tensors"] = {
            key: {"dtype": dtype, "shape": list(shape), "slices": _slices_of(slices)}
            for key, (dtype, shape, slices) in book()["read"](
                directory / expected["prefix"]
            ).items()
        }
    return expected | {"errors": errors}


def _slices_of(slices: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "offset": list(offset),
            "shape": list(shape),
            "nbytes": len(p),
            "sha256": hashlib.sha256(p).hexdigest(),
        }
        for offset, shape, p in slices
    ]


def main() -> None:
    for case in CASES:
        target = GOLDEN / case
        target.mkdir(parents=True, exist_ok=True)
        for path in target.iterdir():
            path.unlink()
        with TemporaryDirectory() as scratch:
            build(case, Path(scratch))
            for path in Path(scratch).iterdir():
                (target / path.name).write_bytes(path.read_bytes())
        text = json.dumps(describe(case, target), indent=1)
        (target / "expected.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
