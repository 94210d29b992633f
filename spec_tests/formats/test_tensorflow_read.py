"""Every checkpoint that TensorFlow wrote reads as TensorFlow reads it; damaged ones are refused,
key by key.

Values, dtypes and shapes come from TensorFlow itself (``expected.json``), as does what is damaged.
String tensors may be in slices, as TensorFlow writes the shards of a string variable."""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import (
    CheckpointError,
    CheckpointNotFound,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InconsistentTensor,
    InvalidCheckpoint,
    MalformedCheckpoint,
    MissingFile,
    OutOfBounds,
    OverlappingSlices,
    ShardvarError,
    UnsupportedError,
)
from shardvar.formats import tensorflow
from shardvar.formats.tensorflow import FORMAT, join_payloads, join_strings
from shardvar.layout.dtypes import is_opaque
from shardvar.layout.region import Region, parse_slice_text
from shardvar.storage.local import LocalStorage
from shardvar.wire import strings
from spec_tests.helpers.damage import flip
from spec_tests.helpers.tensor_bundles import (
    GOLDEN,
    digest,
    golden,
    open_golden,
    read_tensor,
    string_values,
)
from spec_tests.wire.test_sstable import DAMAGED

NAMES = sorted(path.name for path in GOLDEN.iterdir())
V1 = "v1_format_legacy"
READABLE = [name for name in NAMES if not name.startswith("bad") and name != V1]

# What opening says of a checkpoint whose index cannot be trusted at all.
REFUSED: dict[str, type[ShardvarError]] = {
    **DAMAGED,
    "badhand_bad_consumer": InvalidCheckpoint,
    "badhand_header_missing": InvalidCheckpoint,
    "badhand_min_consumer": InvalidCheckpoint,
    V1: UnsupportedError,
}

GRAPH, VALUE = "_CHECKPOINTABLE_OBJECT_GRAPH", ".ATTRIBUTES/VARIABLE_VALUE"

# The keys that are listed as faults, when the index can be read and the key cannot.
FAULTS: dict[str, dict[str, type[CheckpointError]]] = {
    "bad_data_missing": dict.fromkeys("astz", MissingFile),
    "bad_shard_missing": dict.fromkeys((GRAPH, f"b/{VALUE}"), MissingFile),
    "bad_shard_name_count": dict.fromkeys((GRAPH, f"a/{VALUE}", f"b/{VALUE}"), MissingFile),
    "bad_shards_swapped": {GRAPH: IncompleteCheckpoint},
    **{
        f"badhand_entry_{what}": {"a": InvalidCheckpoint}
        for what in "dtype_0 dtype_99 huge_shape negative_dim overflow_shape size".split()
    },
    "badhand_entry_unknown_rank": {"a": InvalidCheckpoint},
    "badhand_entry_offset_negative": {"a": OutOfBounds},
    "badhand_slice_listed_twice": {"a": OverlappingSlices},
    "badhand_slice_orphan": {"q": InvalidCheckpoint},
    "badhand_slice_rank": {"a": InconsistentTensor},
    "slices_overlap": {"t": OverlappingSlices},
    "slices_with_hole": {"t": IncompleteCheckpoint},
}

# The keys of which the bytes are wrong, which nobody knows before they are read.
CORRUPT = {
    "bad_data_byte": "a",
    "bad_shards_swapped": f"a/{VALUE}",
    "bad_string_byte": "s",
    "bad_string_length": "s",
    "badhand_entry_crc": "a",
    "badhand_entry_crc_unmasked": "a",
}


def tensors_of(expected: dict[str, Any]) -> dict[str, Any]:
    return expected.get("tensors") or expected.get("tensors_before_damage") or {}


@pytest.mark.parametrize("name", READABLE)
def test_every_checkpoint_of_tensorflow_reads_as_tensorflow_says(name: str) -> None:
    """Keys in order, dtypes, shapes, slices, values of every tensor that TensorFlow or its slices
    can give."""
    expected, source = open_golden(name)
    assert source.index.faults.keys() == FAULTS.get(name, {}).keys()
    slices = source.index.entries.slices
    wanted = tensors_of(expected)
    assert list(slices.tensors.keys) == sorted(wanted, key=str.encode)
    for row, key in enumerate(slices.tensors.keys):
        assert slices.tensors.dtype(row) == wanted[key]["dtype"]
        assert slices.tensors.shape(row) == tuple(wanted[key]["shape"])
        if "slices" in wanted[key]:
            regions = [slices.region(i) for i in np.flatnonzero(slices.tensor == row).tolist()]
            assert regions == [parse_slice_text(text)[1] for text in wanted[key]["slices"]]
        if key not in source.index.faults and wanted[key]["dtype"] != "variant":
            check_values(wanted[key], read_tensor(source, key))


def check_values(wanted: dict[str, Any], value: Any) -> None:
    digests = {wanted[name] for name in ("sha256", "sha256_len32_prefixed") if name in wanted}
    assert digests in ({digest(value)}, set()) and (digests or "values" in wanted)
    if wanted["dtype"] == "string" and "values" in wanted:
        assert value.ravel().tolist() == string_values(wanted)
    elif "values" in wanted and not is_opaque(wanted["dtype"]) and value.dtype.kind in "biuf":
        np.testing.assert_array_equal(value.ravel(), np.array(wanted["values"], value.dtype))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_checkpoint_whose_index_is_damaged_does_not_open(name: str) -> None:
    _, storage, prefix = golden(name)
    with pytest.raises(ShardvarError) as caught:
        FORMAT.open(storage, prefix)
    assert type(caught.value) is REFUSED[name]
    assert f"{storage.path}/{prefix}" in caught.value.cause and caught.value.remedy


@pytest.mark.parametrize("name", sorted(FAULTS.keys() | CORRUPT.keys()))
def test_damage_is_that_of_its_keys_and_the_others_read_as_before(name: str) -> None:
    """A fault has the class of the damage and names key and file. Bytes that disagree with their
    checksum are never returned: strings are checked by the source; of plain entries, it gives the
    checksum to compare."""
    expected, source = open_golden(name)
    faults = source.index.faults
    assert {key: type(error) for key, error in faults.items()} == FAULTS.get(name, {})
    for key, error in faults.items():
        assert repr(key) in error.cause and ".index" in error.cause and error.remedy
    if name in CORRUPT:
        with pytest.raises(CorruptCheckpoint) as caught:
            read_tensor(source, CORRUPT[name])
        if name.startswith("bad_string"):
            said = r"'s': .*ck\.data-00000-of-00001.* offset 48"
            assert re.search(said, caught.value.cause)
    damaged = {*faults, CORRUPT.get(name)}
    if name == "bad_shards_swapped":
        damaged.add(f"b/{VALUE}")  # it lies in the other file, too
    for key in {*source.index.entries.slices.tensors.keys} - damaged:
        value, wanted = read_tensor(source, key), tensors_of(expected).get(key)
        if wanted:
            check_values(wanted, value)


@pytest.mark.parametrize("name", ["strings", "iterator_variant", "hand_big_endian"])
def test_a_payload_may_be_read_in_any_pieces(name: str) -> None:
    """Pieces of what is decoded are the pieces of the whole, and the last one is checked."""
    _, source = open_golden(name)
    for key in source.index.entries.slices.tensors.keys:
        entries = source.index.find(key)
        nbytes = int(entries.slices.nbytes[0])
        whole, pieces = bytearray(nbytes), bytearray(nbytes)
        source.read_into(entries, 0, 0, memoryview(whole))
        for step in (1, 3, 7, 1000) if nbytes < 1000 else (997,):
            for start in range(0, nbytes, step):
                source.read_into(entries, 0, start, memoryview(pieces)[start : start + step])
            assert pieces == whole
            pieces = bytearray(nbytes)


def test_the_last_piece_of_a_damaged_string_is_refused() -> None:
    _, source = open_golden("bad_string_byte")
    entries = source.index.find("s")
    nbytes = int(entries.slices.nbytes[0])
    source.read_into(entries, 0, 0, memoryview(bytearray(nbytes - 1)))
    with pytest.raises(CorruptCheckpoint):
        source.read_into(entries, 0, nbytes - 1, memoryview(bytearray(1)))


def test_trailing_bytes_and_files_without_a_tensor_are_told_and_harm_nobody() -> None:
    for name, place in [
        ("ok_data_trailing", "ck.data-00000-of-00001"),
        ("bad_shard_name_count", "ck.data-00001-of-00003"),
    ]:
        _, source = open_golden(name)
        findings = source.findings()
        assert place in [finding.place for finding in findings] and not any(
            finding.is_damage for finding in findings
        )
    assert open_golden("dense_single")[1].findings() == []


# --- files


@pytest.fixture
def copied(tmp_path: Path) -> LocalStorage:
    for file in (GOLDEN / "sharded_var_2_tasks_max40").iterdir():
        shutil.copy(file, tmp_path)
    return LocalStorage(str(tmp_path))


def test_a_file_that_was_cut_short_is_incomplete_and_an_index_that_points_beyond_it_out_of_bounds(
    tmp_path: Path,
) -> None:
    """Cut anywhere, also where a payload ends, a file lacks what was behind: bytes follow those
    that are there."""
    for size in (0, 47, 48, 50, 101):
        for file in (GOLDEN / "bad_string_byte").glob("ck.*"):
            shutil.copy(file, tmp_path)
        data = tmp_path / "ck.data-00000-of-00001"
        data.write_bytes(data.read_bytes()[:size])
        faults = FORMAT.open(LocalStorage(str(tmp_path)), "ck").index.faults
        assert faults and {type(error) for error in faults.values()} == {IncompleteCheckpoint}
        # One sentence for all tensors of the file, so that it is one problem.
        (cause,) = {error.cause.partition(data.name)[2] for error in faults.values()}
        assert cause.startswith(f" has {size} bytes, but the index says at least ")
        assert {error.file for error in faults.values()} == {data.name}


def test_a_missing_index_is_told_apart_from_no_checkpoint(copied: LocalStorage) -> None:
    with pytest.raises(CheckpointNotFound, match="nothing"):
        FORMAT.open(copied, "nothing")
    copied.remove("ps.index")
    assert FORMAT.locate(copied, "") == FORMAT.locate(copied, "ps") == ["ps"]
    with pytest.raises(MissingFile, match=r"ps\.index is missing, but its data files"):
        FORMAT.open(copied, "ps")


def test_a_v1_checkpoint_is_found_by_what_is_in_its_files(tmp_path: Path) -> None:
    _, storage, prefix = golden(V1)
    assert FORMAT.locate(storage, "") == FORMAT.locate(storage, prefix) == [prefix]
    for number in range(2):
        shutil.copy(GOLDEN / V1 / prefix, tmp_path / f"old-{number:05}-of-00002")
    parts = LocalStorage(str(tmp_path))
    assert all(FORMAT.locate(parts, name) == ["old"] for name in ("", "old", "old-00001-of-00002"))
    with pytest.raises(UnsupportedError, match="V1"):
        FORMAT.open(parts, "old")


@pytest.fixture
def sliced(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN / "slices_of_strings", tmp_path / "sliced")
    return tmp_path / "sliced" / "ss"


def test_strings_in_slices_are_read_and_written_as_whole_ones_are(
    sliced: Path, tmp_path: Path
) -> None:
    expected, _, _ = golden("slices_of_strings")
    wanted = {key: string_values(expected["tensors"][key]) for key in "sv"}
    loaded = sv.load(sliced)
    assert {key: loaded[key].ravel().tolist() for key in "sv"} == wanted
    with sv.open_checkpoint(sliced) as reader:
        assert reader.read("s", np.s_[1:, 1]).tolist() == loaded["s"][1:, 1].tolist()
    for form in ("tensorflow", "shardvar"):
        sv.reshard(sliced, tmp_path / form, format=form, rename={"v": "a"})
        written = sv.load(tmp_path / form)
        assert {key: written[key].ravel().tolist() for key in "sa"} == {
            "s": wanted["s"],
            "a": wanted["v"],
        }
        assert sv.verify(tmp_path / form).ok
        assert sv.diff(sliced, tmp_path / form, rename={"v": "a"}).equal


def test_a_damaged_slice_of_strings_is_damage_of_its_tensor(sliced: Path) -> None:
    """Every thirteenth byte of a file in turn, with one bit changed; and the file lost."""
    whole = sv.verify(sliced)
    assert whole.ok and set(whole.outcomes.values()) == {"ok"}
    file = sliced.with_name("ss.data-00000-of-00002")
    for position in range(0, file.stat().st_size, 13):
        flip(file, position)
        assert sv.verify(sliced).outcomes == {"n": "ok", "s": "damaged", "v": "ok"}, position
        with pytest.raises((CorruptCheckpoint, MalformedCheckpoint)):
            sv.load(sliced, ["s"])
        flip(file, position)
    file.unlink()
    assert sv.verify(sliced).outcomes == {"n": "ok", "s": "damaged", "v": "ok"}


def test_a_payload_is_joined_once_for_all_its_blocks(
    sliced: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each, which would take time by the square of its size; and it is dropped with
    its last byte."""
    joins: list[int] = []

    def join(parts: Iterable[tuple[Region, bytes]], shape: tuple[int, ...], nbytes: int) -> bytes:
        joins.append(nbytes)
        return join_payloads(parts, shape, nbytes)

    monkeypatch.setattr(tensorflow, "join_payloads", join)
    source = FORMAT.open(LocalStorage(str(sliced.parent)), "ss")
    entries = source.index.find("s")
    nbytes = int(entries.slices.nbytes[0])
    buffer = bytearray(nbytes)
    for start in range(0, nbytes, 5):
        source.read_into(entries, 0, start, memoryview(buffer)[start : start + 5])
    assert joins == [nbytes] and not source.made.kept
    whole = bytearray(nbytes)
    source.read_into(entries, 0, 0, memoryview(whole))
    assert whole == buffer and not source.made.kept
    source.close()


def test_no_two_tensors_have_one_entry(sliced: Path) -> None:
    """Where another payload has the place of the joined one, its key is refused: values would be
    mixed up."""
    source = FORMAT.open(LocalStorage(str(sliced.parent)), "ss")
    entries, stored = source.index.find("s"), source.stored
    place = int(entries.file[0]), int(entries.start[0]), int(entries.slices.nbytes[0])
    source.close()
    faults: dict[str, CheckpointError] = {}
    assert (len(join_strings(stored, faults, (), "")[0]), faults) == (3, {})
    assert len(join_strings(stored, faults, [place], "")[0]) == 5
    assert list(faults) == ["s"] and isinstance(faults["s"], InvalidCheckpoint)


def test_slices_without_elements_and_lengths_in_too_many_bytes() -> None:
    payload = strings.encode(np.array([b"a", b"b"], object))
    parts = [(Region((0,), (2,)), payload), (Region((2,), (0,)), b"")]
    assert join_payloads(parts, (2,), len(payload)) == payload
    # 81 00 is another spelling of the length 1.
    longer = b"\x81\x00" + payload[1:]
    with pytest.raises(MalformedCheckpoint, match="8 bytes when joined, and not 9"):
        join_payloads([(Region((0,), (2,)), longer)], (2,), len(longer))
    with pytest.raises(InvalidCheckpoint, match="No array can have"):
        join_payloads([], (2**62, 0), 4)
