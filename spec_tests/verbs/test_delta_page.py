"""docs/delta.md is enough to apply a delta: docs/apply_delta.py and the golden deltas agree, and shardvar
gives the same."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.layout.dtypes import ITEMSIZES, NAMES, PACKED_BITS, TORCH_ONLY
from shardvar.layout.region import Region
from shardvar.planning.index import DELTA
from spec_tests.helpers.delta_page import PAGE, tensors_of
from spec_tests.helpers.native_checkpoints import QUANTIZED, Piece, book, write
from spec_tests.helpers.paths import DOCS, GOLDEN
from spec_tests.hostile.case import DELTA_CASES, HERE
from spec_tests.vector_generators.checkpoints import joined, split_strings
from spec_tests.vector_generators.digests import digest

DELTAS = GOLDEN / "native_deltas"
"""Deltas that were made by hand from docs/delta.md, with bases and results."""
CASES = {
    path.parent.name: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted(DELTAS.glob("*/expected.json"))
}


def read(path: Path) -> dict[str, Any]:
    """The tensors of a native checkpoint or an .npz, by the reader that docs/format.md prints."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return tensors_of(arrays)
    found = {}
    for key, (dtype, shape, slices) in book()["read"](path).items():
        data = slices[0][2] if len(slices) == 1 else joined(shape, slices)
        if dtype == "string":
            data = framed(bytes.fromhex(each) for each in split_strings(data, int(np.prod(shape))))
        found[key] = dtype, shape, data
    return found


def framed(texts: Iterable[bytes]) -> bytes:
    """The data of strings."""
    return b"".join(len(each).to_bytes(8, "little") + each for each in texts)


def mark_of(path: Path) -> str:
    with sv.open_checkpoint(path) as reader:
        return reader.metadata.user[DELTA]


def told_of(tensors: Any) -> dict[str, Any]:
    """By key: the dtype, the shape, and the data or their hash of tensors as an expectation has them."""
    found = {}
    for each in tensors:
        octets = each["key"].encode() if "key" in each else bytes.fromhex(each["key_hex"])
        texts = [bytes.fromhex(text) for text in each.get("strings", ())]
        data = framed(texts).hex() if "strings" in each else each["sha256"]
        found[octets.decode("utf-8", "surrogateescape")] = each["dtype"], (*each["shape"],), data
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_page_makes_the_result_of_each_golden_delta(name: str) -> None:
    expected = CASES[name]
    found = read(DELTAS / name / expected["base"])
    for each in expected["deltas"]:
        path = DELTAS / name / each
        found = PAGE.apply_delta(found, read(path), mark_of(path))
    digests = [
        PAGE.tensor_digest(key.encode("utf-8", "surrogateescape"), each)
        for key, each in found.items()
    ]
    assert PAGE.digest_of_all(digests) == expected["digest"]
    assert told_of(expected["tensors"]) == {
        key: (dtype, shape, data.hex() if dtype == "string" else PAGE.sha256(data).hexdigest())
        for key, (dtype, shape, data) in found.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_golden_deltas_are_applied_joined_and_made(name: str, tmp_path: Path) -> None:
    """By shardvar: to the base, as one delta, and as the deltas that it makes itself."""
    digest = CASES[name]["digest"]
    base, *deltas = (DELTAS / name / each for each in (CASES[name]["base"], *CASES[name]["deltas"]))
    for each in deltas:
        assert sv.verify(each).ok
    sv.apply(base, deltas, tmp_path / "c", format="shardvar")
    assert sv.digest(tmp_path / "c").checkpoint == digest
    assert sv.compact_deltas(deltas, tmp_path / "j").result == digest
    sv.apply(base, tmp_path / "j", tmp_path / "e", format="shardvar")
    assert sv.diff(tmp_path / "c", tmp_path / "e").equal
    sv.delta(base, tmp_path / "c", tmp_path / "d")
    found = tables_of(tmp_path / "d")
    if len(deltas) == 1:
        wanted = tables_of(deltas[0])
        assert found.keys() == wanted.keys()
        for key, row in wanted.items():
            # A tensor that is smaller than its frame is whole.
            kinds = {row["kind"]} | ({"whole"} if row["kind"] == "changed" else set())
            assert found[key]["kind"] in kinds
            assert found[key] | {"kind": row["kind"]} == row


def tables_of(path: Path) -> dict[str, Any]:
    """The rows of a delta by their keys."""
    with sv.open_checkpoint(path) as reader:
        rows = json.loads(reader.read("table").tobytes())["tensors"]
    return {row.get("key", row.get("key_bytes")): row for row in rows}


@pytest.mark.parametrize("case", DELTA_CASES, ids=lambda case: case.name)
def test_the_page_refuses_hostile_deltas(case: Any) -> None:
    folder = HERE / case.name
    with pytest.raises(PAGE.Refused):
        PAGE.apply_delta(read(folder / "base"), read(folder / "d"), mark_of(folder / "d"))


def test_the_page_refuses_what_is_changed_anywhere() -> None:
    """No change of a byte of the table or the frames gives another result."""
    folder = DELTAS / "chain"
    base, delta, mark = (
        read(folder / "base"),
        read(folder / "d1"),
        mark_of(folder / "d1"),
    )
    right = PAGE.apply_delta(base, delta, mark)
    refused = 0
    for key, (dtype, shape, data) in delta.items():
        for place in range(len(data)):
            octets = bytearray(data)
            octets[place] ^= 1 << place % 8
            try:
                found = PAGE.apply_delta(base, {**delta, key: (dtype, shape, bytes(octets))}, mark)
            except PAGE.Refused:
                refused += 1
            else:
                # Metadata, or what has no meaning: the name of a field that is not read.
                assert found == right
    assert refused > 1000


CARRIED = (*QUANTIZED, *TORCH_ONLY, *PACKED_BITS)
"""The dtypes that NumPy lacks: their bytes are carried."""


def test_tensors_that_numpy_lacks_are_changed_by_their_bytes(tmp_path: Path) -> None:
    """Also of dtypes whose elements share bytes; their digests are of the bytes, as docs/digest.md
    says."""
    rng, expected = np.random.default_rng(0), {}
    for name in "ab":
        pieces = []
        for dtype in CARRIED:
            bits = PACKED_BITS.get(dtype, 8 * int(ITEMSIZES[NAMES.index(dtype)]))
            old = rng.integers(0, 256, 400 * bits // 8, np.uint8) if name == "a" else None
            octets = bytearray(old.tobytes() if old is not None else expected[dtype])
            octets[7] ^= 16 * (name == "b")
            expected[dtype] = bytes(octets)
            pieces.append(Piece(dtype, dtype, (400,), Region((0,), (400,)), bytes(octets)))
        write(tmp_path, name, pieces)
    report = sv.delta(tmp_path / "a", tmp_path / "b", tmp_path / "d")
    assert {each.kind for each in report.tensors} == {"changed"}
    found = PAGE.apply_delta(read(tmp_path / "a"), read(tmp_path / "d"), mark_of(tmp_path / "d"))
    assert found == {dtype: (dtype, (400,), data) for dtype, data in expected.items()}
    sv.apply(tmp_path / "a", tmp_path / "d", tmp_path / "c")
    digests = {
        dtype: digest(dtype.encode(), dtype, [400], data).hex() for dtype, data in expected.items()
    }
    assert sv.digest(tmp_path / "c").tensors == digests


def test_the_page_of_digests_lists_each_dtype() -> None:
    text = (DOCS / "digest.md").read_text(encoding="utf-8")
    rows = "".join(line for line in text.splitlines() if line.startswith("| `"))
    assert {name for name in NAMES if f"`{name}`" not in rows} == {"variant"}
