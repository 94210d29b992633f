"""String tensors that a bundle has in slices, as TensorFlow writes the shards of a string
variable."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import (
    CheckpointError,
    CorruptCheckpoint,
    InvalidCheckpoint,
    MalformedCheckpoint,
)
from shardvar.formats import tensorflow
from shardvar.formats.tensorflow import FORMAT, join_payloads, join_strings
from shardvar.layout.region import Region
from shardvar.storage.local import LocalStorage
from shardvar.wire import strings
from spec_tests.helpers.damage import flip
from spec_tests.helpers.tensor_bundles import GOLDEN, golden, string_values


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
