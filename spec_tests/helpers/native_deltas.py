"""Deltas made by hand from docs/delta.md, golden and hostile.

`python -m spec_tests.helpers.native_deltas` writes spec_tests/golden/native_deltas; a test holds that
it would write the same again. The tensors of a result come from NumPy, and no code of shardvar's
deltas is used. Streams of zlib have stored blocks, since what a compressor makes changes from release
to release.
"""

import hashlib
import json
import shutil
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from shardvar.layout.dtypes import NAMES, STRING, has_values, numpy_dtype
from shardvar.layout.region import Region
from shardvar.planning.index import Metadata
from spec_tests.helpers import paths
from spec_tests.helpers.native_checkpoints import Piece, cut, whole, write
from spec_tests.vector_generators.digests import BITS, LEAF, digest
from spec_tests.vector_generators.encoding import of_payload, tensor

GOLDEN = paths.GOLDEN / "native_deltas"
MARK = "shardvar.delta"
POSITIONS, PLANES, STORED = 1, 2, 3
"""The encodings of a frame."""

Arrays = Mapping[str, Any]


def stored_stream(data: bytes) -> bytes:
    """A zlib stream of one stored block."""
    head = b"\x78\x01\x01" + struct.pack("<HH", len(data), len(data) ^ 0xFFFF)
    return head + data + struct.pack(">I", zlib.adler32(data))


def planes(words: Any) -> bytes:
    """The lowest byte of each integer, then the next one of each, and so on."""
    octets = words.tobytes()
    return b"".join(octets[byte :: words.itemsize] for byte in range(words.itemsize))


def data_of(array: Any) -> bytes:
    """The data of a tensor, as the digest has them."""
    if array.dtype != object:
        return bytes(array.astype(array.dtype.newbyteorder("<")).tobytes())
    return b"".join(len(each).to_bytes(8, "little") + each for each in array.ravel().tolist())


def name_of(array: Any) -> str:
    return STRING if array.dtype == object else str(array.dtype.name)


def digest_of(key: str, array: Any) -> bytes:
    octets = key.encode("utf-8", "surrogateescape")
    return digest(octets, name_of(array), [*array.shape], data_of(array))


def digest_of_all(arrays: Arrays) -> str:
    found = sorted(digest_of(key, array) for key, array in arrays.items())
    return hashlib.sha256(b"".join(found)).hexdigest()


def frame(leaf: int, old: bytes, new: bytes, width: int, encoding: int) -> tuple[bytes, bytes]:
    """The row and the body of one leaf."""
    mask = np.frombuffer(old, f"<u{width}") ^ np.frombuffer(new, f"<u{width}")
    places = [place for place, word in enumerate(mask.tolist()) if word]
    if encoding == POSITIONS:
        gaps = np.array(
            [at - before - 1 for before, at in zip([-1, *places], places, strict=False)], "<u4"
        )
        body = stored_stream(planes(gaps) + planes(mask[places]))
    else:
        body = stored_stream(planes(mask)) if encoding == PLANES else mask.tobytes()
    row = struct.pack("<IIII", leaf, encoding, len(body), len(places))
    return row + hashlib.sha256(new).digest(), body


def frames(old: Any, new: Any, encoding: int) -> bytes:
    """The payload of a changed tensor."""
    a, b, width = old.tobytes(), new.tobytes(), min(old.itemsize, 8)
    made = [
        frame(start // LEAF, a[start : start + LEAF], b[start : start + LEAF], width, encoding)
        for start in range(0, len(a), LEAF)
        if a[start : start + LEAF] != b[start : start + LEAF]
    ]
    return joined(made)


def joined(made: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The payload of some frames."""
    rows, bodies = [row for row, _ in made], [body for _, body in made]
    return struct.pack("<I", len(rows)) + b"".join(rows) + b"".join(bodies)


@dataclass
class Draft:
    """A delta that is written as it is, whether it is right or not."""

    tensors: dict[str, Any]
    """Its tensors, but the table."""
    rows: list[dict[str, Any]]
    """The rows of the table."""
    mark: dict[str, Any]
    """The text in its metadata."""
    user: dict[str, Any] = field(default_factory=dict)
    """The user's metadata of the result."""

    def write(self, directory: Path, prefix: str, table: bytes | None = None) -> None:
        """Write it as a native checkpoint."""
        if table is None:
            document = {"tensors": self.rows, "metadata": self.user}
            table = json.dumps(document, separators=(",", ":")).encode()
        arrays = {"table": np.frombuffer(table, np.uint8), **self.tensors}
        metadata = Metadata(writer="deltas", user={MARK: json.dumps(self.mark)})
        write(directory, prefix, pieces_of(arrays), metadata=metadata)


def pieces_of(arrays: Arrays) -> list[Piece]:
    return [whole(key, array, name_of(array)) for key, array in arrays.items()]


def draft(a: Arrays, b: Arrays, encodings: Mapping[str, int], **user: str) -> Draft:
    """The delta from a to b. Tensors with an encoding are changed; others that differ are whole."""
    tensors, rows = {}, []
    for key, new in {**b, **a}.items():
        new = b.get(key, new)
        before = digest_of(key, a[key]).hex() if key in a else None
        after = digest_of(key, b[key]).hex() if key in b else None
        if key in b and before == after:
            kind = "equal"
        elif key in encodings:
            kind = "changed"
            octets = frames(a[key], new, encodings[key])
            tensors["changed/" + key] = np.frombuffer(octets, np.uint8)
        else:
            kind = "whole" if key in b else "removed"
            tensors |= {"whole/" + key: new} if key in b else {}
        name = {"key": key}
        if not key.isascii() and any("\udc80" <= each <= "\udcff" for each in key):
            name = {"key_bytes": key.encode("utf-8", "surrogateescape").hex()}
        row = {**name, "kind": kind, "dtype": name_of(new), "shape": [*new.shape]}
        rows.append({**row, "base": before, "result": after})
    mark = {"version": 1, "base": digest_of_all(a), "result": digest_of_all(b)}
    return Draft(tensors, rows, mark, dict(user))


def tie(made: Draft, ties: Mapping[str, str]) -> None:
    """Name ties in a delta, which then has the frames of tied tensors once."""
    for row in made.rows:
        if row.get("key") in ties:
            row["tie"] = ties[row["key"]]
            made.tensors.pop(f"{row['kind']}/{row['key']}", None)


# The golden ones.


def _changed(array: Any, *places: int) -> Any:
    """The array with some elements whose lowest bit is another one."""
    octets = np.frombuffer(bytearray(array.tobytes()), np.uint8)
    octets[[place * array.itemsize for place in places]] ^= 1
    return octets.view(array.dtype).reshape(array.shape)


TABLE = np.arange(40, dtype=np.float32).reshape(8, 5)
TEXTS = np.array([[b"a", b""], [b"\0\xff", b"long " * 9]], object)


@dataclass(frozen=True)
class Golden:
    """A base, the deltas from each version to the next one, and the last version."""

    how: str
    """The mistake that it is there to catch."""
    versions: tuple[Arrays, ...]
    """The base, and the result of each delta."""
    encodings: tuple[Mapping[str, int], ...]
    """The encoding of each changed tensor, of each delta."""
    is_cut: bool = False
    """True if the base has its tensors in slices, in two files."""
    is_npz: bool = False
    """True if the base is an .npz, since it would be large."""
    ties: Mapping[str, str] = field(default_factory=dict)
    """The keys that have the bytes of another key in the last version."""

    @property
    def base(self) -> str:
        """The path of the base in the directory."""
        return "base.npz" if self.is_npz else "base"

    @property
    def deltas(self) -> list[str]:
        """The paths of the deltas, in order."""
        return [f"d{number}" for number in range(1, len(self.versions))]

    def build(self, directory: Path) -> None:
        """Write the files."""
        first = self.versions[0]
        if self.is_npz:
            np.savez_compressed(directory / self.base, **first)
        elif self.is_cut:
            regions = [Region((0, 0), (3, 5)), Region((3, 0), (5, 2)), Region((3, 2), (5, 3))]
            pieces = [each for key in first for each in cut(key, first[key], *regions, files=2)]
            write(directory, self.base, pieces)
        else:
            write(directory, self.base, pieces_of(first))
        for number, each in enumerate(self.encodings):
            a, b = self.versions[number : number + 2]
            made = draft(a, b, each, step=str(number + 1))
            tie(made, self.ties)
            made.write(directory, f"d{number + 1}")

    def describe(self, directory: Path) -> dict[str, Any]:
        """The expectation: what the deltas make of the base."""
        return {
            "how": self.how,
            "base": self.base,
            "deltas": self.deltas,
            "digest": digest_of_all(self.versions[-1]),
            "tensors": [_told(key, array) for key, array in self.versions[-1].items()],
        }


def _told(key: str, array: Any) -> dict[str, Any]:
    """A tensor, as the published vectors describe it."""
    if array.dtype == object:
        return tensor(key, STRING, array.shape, strings=[each.hex() for each in array.ravel()])
    return of_payload(key, name_of(array), array.shape, array.tobytes())


def _of_all_dtypes() -> tuple[Arrays, Arrays, Mapping[str, int]]:
    names = [
        name
        for name in NAMES
        if has_values(name) and name not in (STRING, "variant", "float4_e2m1fn_packed")
    ]
    a, b, encodings = {}, {}, {}
    for number, name in enumerate(names):
        kind = numpy_dtype(name)
        octets = np.arange(4 * kind.itemsize, dtype=np.uint8) & ((1 << BITS.get(name, 8)) - 1)
        a[name] = octets.view(kind).reshape(2, 2)
        b[name] = _changed(a[name], 1, 2)
        encodings[name] = 1 + number % 3
    return a, b, encodings


def _chain() -> tuple[Arrays, ...]:
    v0 = {"w": TABLE, "back": TABLE[0], "old": TABLE[1], "same": TABLE[2]}
    v1 = {**v0, "w": _changed(TABLE, 3), "back": _changed(TABLE[0], 1), "new": TABLE[3]}
    v2 = {**v1, "w": _changed(v1["w"], 3, 9), "new": _changed(v1["new"], 0)}
    del v2["old"]
    v3 = {**v2, "w": _changed(v2["w"], 39), "back": TABLE[0], "old": TABLE[4]}
    return v0, v1, v2, v3


_V = _chain()
_A, _B, _E = _of_all_dtypes()
_WIDE = np.zeros(2 * LEAF + 24, np.uint8).view(np.complex64)
_ODD = ["", "/", "../up", "a\udcff", "é", "\U0001f600", "x" * 300]

CASES: dict[str, Golden] = {
    "equal": Golden(
        "Nothing changed but the metadata: a delta without changed tensors is not an error.",
        ({"a": TABLE, "s": TEXTS},) * 2,
        ({},),
    ),
    "positions": Golden(
        "Gaps are counted between changed elements: the first and the last element change.",
        ({"w": TABLE}, {"w": _changed(TABLE, 0, 7, 8, 39)}),
        ({"w": POSITIONS},),
    ),
    "planes": Golden(
        "The planes of all elements, and not the elements one after the other.",
        ({"w": TABLE}, {"w": TABLE * np.float32(1.5)}),
        ({"w": PLANES},),
    ),
    "stored": Golden(
        "A mask as it is: XOR, and not the new elements.",
        ({"w": TABLE}, {"w": -TABLE}),
        ({"w": STORED},),
    ),
    "whole": Golden(
        "Another dtype, another shape, another text: the old values are not needed.",
        (
            {"dtype": TABLE, "shape": TABLE, "text": TEXTS},
            {"dtype": TABLE.astype(np.float16), "shape": TABLE.T, "text": TEXTS[::-1]},
        ),
        ({},),
    ),
    "new_and_removed": Golden(
        "A tensor is only in the result, another one only in the base.",
        ({"a": TABLE, "old": TEXTS}, {"a": TABLE, "new": TABLE[:2], "text": TEXTS}),
        ({},),
    ),
    "dtypes": Golden("The width of an element of each dtype, in each encoding.", (_A, _B), (_E,)),
    "edges": Golden(
        "Scalars, tensors without elements, and keys that are empty, long, or not UTF-8.",
        (
            {"scalar": np.int64(5), "none": np.zeros((0, 3)), "grows": np.zeros(0, np.int8)}
            | {key: np.int16(row) for row, key in enumerate(_ODD)},
            {"scalar": np.int64(6), "none": np.zeros((0, 3)), "grows": np.zeros((), np.int8)}
            | {key: np.int16(row + row % 2) for row, key in enumerate(_ODD)},
        ),
        ({"scalar": POSITIONS} | dict.fromkeys(_ODD[1::2], STORED),),
    ),
    "cut_base": Golden(
        "The base has its tensor in slices: elements are counted in the whole tensor.",
        ({"w": TABLE}, {"w": _changed(TABLE, 4, 15, 17, 39)}),
        ({"w": POSITIONS},),
        is_cut=True,
    ),
    "leaves": Golden(
        "Elements are counted from the beginning of their MiB; one MiB of three is equal.",
        ({"w": _WIDE}, {"w": _changed(_WIDE, 0, LEAF // 8 - 1, LEAF // 4, LEAF // 4 + 2)}),
        ({"w": POSITIONS},),
        is_npz=True,
    ),
    "ties": Golden(
        "Tied tensors: their frames are there once, and each is compared with its own digest.",
        (
            {"embed": TABLE, "head": TABLE, "same": TABLE, "x": TABLE[0]},
            {"embed": -TABLE, "head": -TABLE, "same": TABLE, "x": TABLE[1], "y": TABLE[1]},
        ),
        ({"embed": STORED, "head": STORED},),
        ties={"head": "embed", "y": "x"},
    ),
    "chain": Golden(
        "Deltas that follow each other: a tensor that is new is then changed, one that changed "
        "changes back, and one that was removed is new again.",
        _V,
        (
            {"w": POSITIONS, "back": STORED},
            {"w": PLANES, "new": POSITIONS},
            {"w": POSITIONS, "back": POSITIONS},
        ),
    ),
    "chain_joined": Golden(
        "The same chain as one delta: the masks of one leaf are one, and equal tensors are equal.",
        (_V[0], _V[3]),
        ({"w": POSITIONS},),
    ),
}


def files_of(build: Callable[[Path], None]) -> dict[str, bytes]:
    """The files that are built in an empty directory."""
    with TemporaryDirectory() as folder:
        build(Path(folder))
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def main() -> None:
    shutil.rmtree(GOLDEN, ignore_errors=True)
    for name, case in CASES.items():
        (GOLDEN / name).mkdir(parents=True)
        case.build(GOLDEN / name)
        text = json.dumps(case.describe(GOLDEN / name), indent=1) + "\n"
        (GOLDEN / name / "expected.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
