"""GGUF: golden files of the gguf package, and files assembled field by field."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.cli import main
from shardvar.errors import ArgumentError, CheckpointNotFound, MissingFile
from shardvar.formats.gguf import FORMAT
from shardvar.formats.listing import DequantizedSource
from shardvar.storage.local import LocalStorage
from spec_tests.helpers.format_protocol import (
    GOLDEN,
    described,
    expectation,
    golden_cases,
    read_whole,
)
from spec_tests.hostile.gguf import Q4_0, Q8_0, Info, gguf, number, split

TYPES = GOLDEN / "gguf" / "every_type" / "m.gguf"


@pytest.mark.parametrize("case", sorted({*golden_cases("gguf")} - {"every_type"}))
def test_the_numbers_of_blocks_are_read_where_they_are_asked_for(case: str) -> None:
    """``wire/test_ggml.py`` has the case with every type."""
    expected, path = expectation("gguf", case), GOLDEN / "gguf" / case / "m"
    with sv.open_checkpoint(path, dequantize=True) as reader:
        assert list(reader) == sorted(expected["tensors"])
        for key, row in expected["tensors"].items():
            assert described(reader.read(key), {}).items() <= row.get("dequantized", row).items(), (
                key
            )


@given(data=st.data())
def test_a_part_of_a_payload_is_a_part_of_the_whole(data: st.DataObject) -> None:
    """Dequantized, and of big-endian numbers."""
    case = data.draw(st.sampled_from(["every_type", "big_endian"]))
    stored = FORMAT.open(LocalStorage(str(GOLDEN / "gguf" / case)), "m.gguf")
    source = data.draw(st.sampled_from([stored, stored.dequantized()]))
    arrays, _ = read_whole(source)
    (entries,) = source.index.scan()
    row = data.draw(
        st.sampled_from([row for row in range(len(entries)) if entries.slices.key(row) in arrays])
    )
    octets = arrays[entries.slices.key(row)].tobytes()
    start, stop = sorted(data.draw(st.integers(0, len(octets))) for _ in range(2))
    part = bytearray(stop - start)
    source.read_into(entries, row, start, memoryview(part))
    assert part == octets[start:stop]
    source.close()


def write(path: Path, *infos: Info, **how: Any) -> Path:
    path.write_bytes(gguf(*infos, **how))
    return path


def test_the_alignment_of_the_metadata_counts(tmp_path: Path) -> None:
    fields = [number("general.alignment", 128)]
    infos = Info("a"), Info("b", offset=128)
    data = struct.pack("<4f", *range(4)).ljust(128, b"\0") + struct.pack("<4f", *range(4, 8))
    path = write(tmp_path / "m.gguf", *infos, data=data, fields=fields, alignment=128)
    assert {key: array.tolist() for key, array in sv.load(path).items()} == {
        "a": [0, 1, 2, 3],
        "b": [4, 5, 6, 7],
    }
    report = sv.verify(path)
    assert report.ok and not report.notes


def test_bytes_of_no_tensor_are_noted(tmp_path: Path) -> None:
    report = sv.verify(write(tmp_path / "m.gguf", Info(offset=64), data=bytes(80)))
    assert report.ok and ["64 bytes" in note for note in report.notes] == [True]


def test_a_fault_of_one_tensor_leaves_the_others_readable(tmp_path: Path) -> None:
    infos = Info("far", offset=1 << 20), Info("old", kind=4), Info("odd", (33,), Q8_0, 32)
    with sv.open_checkpoint(write(tmp_path / "m.gguf", Info("good"), *infos)) as reader:
        assert reader.read("good").tolist() == [0, 0, 0, 0]
        assert {key: type(error).__name__ for key, error in reader.faults.items()} == {
            "far": "IncompleteCheckpoint",
            "old": "UnsupportedError",
            "odd": "InvalidCheckpoint",
        }


def test_the_parts_of_a_split_file_are_one_checkpoint(tmp_path: Path) -> None:
    """By any of its names."""
    for part, name in enumerate("ab"):
        (tmp_path / f"m-0000{part + 1}-of-00002.gguf").write_bytes(split(part, 2, Info(name)))
    for path in ("", "m", "m.gguf", "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"):
        assert list(sv.load(tmp_path / path)) == ["a", "b"]
    (tmp_path / "m-00001-of-00002.gguf").unlink()
    for path in ("", "m", "m-00002-of-00002.gguf"):
        with pytest.raises(MissingFile, match="m-00001-of-00002.gguf"):
            sv.load(tmp_path / path)
    with pytest.raises(CheckpointNotFound):
        sv.load(tmp_path / "n")


def test_blocks_are_resharded_with_their_encoding_or_as_numbers(tmp_path: Path) -> None:
    block = struct.pack("<e", 0.5) + bytes(range(32))
    path = write(tmp_path / "m.gguf", Info("q", (32, 1), Q8_0), data=block + bytes(30))
    sv.reshard(path, tmp_path / "blocks.safetensors", rename={"q": "w"})
    with sv.open_checkpoint(tmp_path / "blocks.safetensors") as reader:
        assert reader.read("w").tobytes() == block and json.loads(
            reader.metadata.user["encodings"]
        ) == {"w": "Q8_0"}
    sv.reshard(path, tmp_path / "numbers.safetensors", dequantize=True, cast={"q": "float16"})
    assert sv.load(tmp_path / "numbers.safetensors")["q"].tolist() == [[n / 2 for n in range(32)]]
    with pytest.raises(ArgumentError, match="blocks of Q8_0"):
        sv.reshard(path, tmp_path / "wrong.safetensors", cast={"q": "float16"})
    with pytest.raises(ArgumentError, match="blocks of Q8_0"):
        sv.reshard(path, tmp_path / "wrong.safetensors", transpose="q")
    assert not (tmp_path / "wrong.safetensors").exists()


def test_commands_name_the_type_of_blocks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "m.gguf", Info("q", (32, 2), Q4_0), data=bytes(64))
    assert main(["inspect", str(path)]) == 0
    assert "Q4_0   [2, 32]" in capsys.readouterr().out
    for words in (["--dequantize"], []):
        assert main(["show", str(path), "q", "0, :2", *words]) == 0
        assert "float32 [2], of [2, 32]" in capsys.readouterr().out
    assert main(["show", str(path), "q", "0, :2", "--raw"]) == 0
    assert "uint8 Q4_0 [2], of [2, 18]" in capsys.readouterr().out


def test_dequantizing_reads_only_the_blocks_that_it_needs(tmp_path: Path) -> None:
    """Of a sparse file of 64 MiB."""
    rows = 1 << 11
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(Info("q", (32 << 10, rows), Q8_0), data=b""))
    with open(path, "ab") as file:
        file.truncate(path.stat().st_size + rows * (34 << 10))
    with sv.open_checkpoint(path, dequantize=True) as reader:
        assert isinstance(reader.source, DequantizedSource)
        assert reader.read("q", np.s_[-1, -3:]).tolist() == [0, 0, 0]


def test_what_gguf_has_next_to_tensors_is_named_as_not_copied(tmp_path: Path) -> None:
    report = sv.reshard(TYPES, tmp_path / "m.safetensors")
    assert [*report.not_copied.values()] == ["texts of the metadata are kept, and tensors"]
    sv.save(tmp_path / "hf.safetensors", {"q": np.ones(2)})
    named = sv.reshard(tmp_path / "hf.safetensors", tmp_path / "out", rename={"q": "blk.0.q"})
    assert "the package gguf writes a whole file" in str(named)
