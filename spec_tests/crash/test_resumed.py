"""A reshard that goes on where another was killed: what the journals say is compared with what the
source says now.

In each test a first run is killed when one of its two files is finished. Then something changes,
and the second run writes the files anew or refuses. What it commits is what an undisturbed run
would have written.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import CorruptCheckpoint, ShardvarError, TargetExists
from shardvar.planning.policies import BalancedPolicy
from spec_tests.helpers.faulty_storage import Fault, Killed, failing, is_same

STEPS = {"shardvar": 6, "safetensors": 7}
"""Steps until one file is finished: create it, write it (payloads, then a header if it has one),
close it; and the same of its journal, which is written at once."""

TABLE = np.arange(4000, dtype=np.float32).reshape(1000, 4)


def kill_after_one_file(source: Path, target: Path, form: str = "shardvar", **options: Any) -> None:
    """Reshard into two files, one after the other, until the journal of the first one is on the
    disk."""
    target.parent.mkdir()
    with pytest.raises(Killed), failing(target.parent, Fault(STEPS[form])):
        sv.reshard(source, target, format=form, **{"policy": BalancedPolicy(2)} | options)
    assert len(list(target.parent.glob("*.done"))) == 1


def go_on(source: Path, target: Path, form: str = "shardvar", **options: Any) -> Any:
    """Reshard into two files, and return the report."""
    return sv.reshard(source, target, format=form, **{"policy": BalancedPolicy(2)} | options)


@dataclass(frozen=True)
class Shared:
    """A source with one payload, of which two files need a half each: neither file has the whole,
    or its checksum."""

    path: Path
    file: Path
    start: int
    """The payload's first byte in the file."""

    def flip(self, at: int) -> None:
        """Change one bit of the payload as a bad disk does: the time of change stays."""
        before = self.file.stat()
        with self.file.open("r+b") as file:
            file.seek(self.start + at)
            octet = file.read(1)[0]
            file.seek(self.start + at)
            file.write(bytes([octet ^ 1]))
        os.utime(self.file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture(params=["shardvar", "tensorflow", "npz"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Shared:
    path = tmp_path / "source" / ("ck.npz" if request.param == "npz" else "ck")
    sv.save(path, {"table": TABLE}, format=request.param)
    with sv.open_checkpoint(path) as reader:
        entry = next(reader.index.scan()).entry(0, reader.index.files)
    return Shared(path, path.parent / entry.file, entry.start)


def test_what_the_first_run_read_is_compared_with_the_checksum_of_the_payload(
    shared: Shared, tmp_path: Path
) -> None:
    """The first run read a wrong byte, and could not know it; when the second one comes, the source
    is right again.

    The journal has the checksum of what was read. Combined with that of the other half it shows the
    damage.
    """
    target = tmp_path / "target" / "ck"
    shared.flip(0)
    kill_after_one_file(shared.path, target)
    shared.flip(0)
    with pytest.raises(CorruptCheckpoint, match="table"):
        go_on(shared.path, target)
    assert os.listdir(target.parent) == []
    assert go_on(shared.path, target).reused_files == 0
    assert np.array_equal(sv.load(target)["table"], TABLE)


@pytest.mark.parametrize("half", [0, 1])
def test_a_source_that_became_corrupt_is_refused_or_was_read_before(
    shared: Shared, half: int, tmp_path: Path
) -> None:
    """A half that was read before the damage came is right in its file, and is not read again."""
    target = tmp_path / "target" / "ck"
    kill_after_one_file(shared.path, target)
    shared.flip(half * (TABLE.nbytes - 1))
    if half == 0:
        assert go_on(shared.path, target).reused_files == 1
        assert np.array_equal(sv.load(target)["table"], TABLE) and sv.verify(target).ok
        return
    with pytest.raises(CorruptCheckpoint, match="table"):
        go_on(shared.path, target)
    assert os.listdir(target.parent) == []


@pytest.fixture
def same_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two saves name their data files alike, so that the index of one fits the files of the
    other."""
    monkeypatch.setattr("shardvar.verbs.writing.secrets.token_hex", lambda nbytes: "alike")


PAIR = {"a": TABLE, "b": TABLE + 1}


def exchange_index(source: Path, tensors: dict[str, Any], **options: Any) -> None:
    """Give a native source the index of another save, whose data files have the same bytes; its own
    stay in place."""
    other = source.parent / "other" / source.name
    sv.save(other, tensors, **options)
    for theirs in other.parent.glob("*.svdata-*"):
        assert theirs.read_bytes() == (source.parent / theirs.name).read_bytes()
    shutil.move(f"{other}.svindex", f"{source}.svindex")
    shutil.rmtree(other.parent)


@pytest.mark.usefixtures("same_names")
def test_files_of_other_metadata_are_written_anew(tmp_path: Path) -> None:
    """Files of safetensors hold the metadata themselves: a reused one would say what is no longer
    so."""
    source, target = tmp_path / "source" / "ck", tmp_path / "target" / "ck.safetensors.index.json"
    sv.save(source, PAIR, metadata={"step": "1"})
    kill_after_one_file(source, target, "safetensors")
    exchange_index(source, PAIR, metadata={"step": "2"})
    assert go_on(source, target, "safetensors").reused_files == 0
    for file in target.parent.glob("*.safetensors"):
        with sv.open_checkpoint(file) as reader:
            assert reader.metadata.user["step"] == "2"


class Described(BalancedPolicy):
    """The same answer under another description."""

    description = "Two files, said otherwise."


def test_files_of_another_description_are_written_anew(tmp_path: Path) -> None:
    """R-POLICY-6 (RFC 001): "The `description` is saved alongside the tensor data in the
    checkpoint"."""
    source, target = tmp_path / "source" / "ck", tmp_path / "target" / "ck.safetensors.index.json"
    sv.save(source, PAIR)
    kill_after_one_file(source, target, "safetensors")
    assert go_on(source, target, "safetensors", policy=Described(2)).reused_files == 0
    for file in target.parent.glob("*.safetensors"):
        with sv.open_checkpoint(file) as reader:
            assert reader.metadata.description == Described.description


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"cast": {"*": "float64"}}, {"cast": {"*": "int64"}}),
        ({"cast": {"a": "float64"}}, {"cast": {"b": "float64"}}),
        ({}, {"cast": {"*": "int32"}}),
        ({"rename": {"a": "c"}}, {"rename": {"b": "c"}}),
        ({"rename": {"a": "b", "b": "a"}}, {}),
        ({"rename": {"a": "ab"}}, {"rename": {"b": "ba"}}),
        ({"filter": "a"}, {"filter": "b"}),
        ({"partition": 2}, {"partition": 4}),
        ({"partition": (1, 2)}, {"partition": 2}),
    ],
)
def test_other_options_are_another_reshard(
    first: dict[str, Any], second: dict[str, Any], tmp_path: Path
) -> None:
    """No file of the first is in the second, and none is left."""
    source, target, undisturbed = (
        tmp_path / name / "ck" for name in ("source", "target", "undisturbed")
    )
    sv.save(source, PAIR)
    kill_after_one_file(source, target, **first)
    assert go_on(source, target, **second).reused_files == 0
    go_on(source, undisturbed, **second)
    found, expected = sv.load(target), sv.load(undisturbed)
    assert is_same(found, expected) and all(
        found[key].dtype == expected[key].dtype for key in expected
    )
    assert len(os.listdir(target.parent)) == len(os.listdir(undisturbed.parent)) == 3


@pytest.mark.usefixtures("same_names")
def test_a_source_whose_bytes_mean_other_numbers_now_is_another_source(tmp_path: Path) -> None:
    """Its index says int32 where it said float32; the bytes, their places and their checksums are
    what they were."""
    source, target = tmp_path / "source" / "ck", tmp_path / "target" / "ck"
    sv.save(source, PAIR)
    kill_after_one_file(source, target, cast={"*": "float64"})
    numbers = {key: value.view(np.int32) for key, value in PAIR.items()}
    exchange_index(source, numbers)
    assert go_on(source, target, cast={"*": "float64"}).reused_files == 0
    assert is_same(sv.load(target), numbers)


@pytest.mark.parametrize(
    ("form", "index"),
    [("shardvar", "ck.svindex"), ("tensorflow", "ck.index"), ("safetensors", "ck.safetensors")],
)
def test_a_damaged_checkpoint_beside_a_journal_is_not_taken_for_unfinished(
    form: str, index: str, tmp_path: Path
) -> None:
    """Its data may be all that a user has left, so a reshard asks before it replaces them."""
    name = index if form == "safetensors" else "ck"
    source, target = tmp_path / "source" / "ck", tmp_path / "target" / name
    sv.save(source, PAIR)
    sv.save(target, PAIR, format=form)
    octets = (target.parent / index).read_bytes()
    (target.parent / index).write_bytes(b"\xff" * 8 + octets[8:])
    (target.parent / "ck.killed.tmp.done").touch()
    before = sorted(os.listdir(target.parent))
    with pytest.raises(TargetExists, match="force"):
        sv.reshard(source, target, format=form)
    assert sorted(os.listdir(target.parent)) == before


def save_quantised(folder: Path, scale: float) -> None:
    """Save two tensors of FP8 whose scales are in a file of their own, as a set of safetensors."""
    from ml_dtypes import float8_e4m3fn

    folder.mkdir(exist_ok=True)
    weights = (np.arange(64).reshape(8, 8) % 16).astype(float8_e4m3fn)
    files = {
        "weights.safetensors": {f"{key}.weight": weights for key in "ab"},
        "scales.safetensors": {
            f"{key}.weight_scale_inv": np.full((2, 2), scale, np.float32) for key in "ab"
        },
    }
    for name, tensors in files.items():
        sv.save(folder / name, tensors, force=True)
    where = {key: name for name, tensors in files.items() for key in tensors}
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def describe(folder: Path, rows: int) -> None:
    block = {"quant_method": "fp8", "weight_block_size": [rows, 4]}
    (folder / "config.json").write_text(json.dumps({"quantization_config": block}))


@pytest.mark.parametrize("changed", ["", "scales", "mapped scales", "blocks"])
def test_a_file_of_scales_or_a_description_that_changed_is_noticed(
    tmp_path: Path, changed: str
) -> None:
    """Numbers that a first run wrote were computed with them."""
    source, target = tmp_path / "source", tmp_path / "target" / "ck"
    save_quantised(source, 2.0)
    describe(source, 4)
    source /= "model.safetensors.index.json"
    rules = ["{x:a|b}.weight[i o] -> {x:a|b}[o i]"] if "mapped" in changed else None
    options = {"dequantize": "float32", "map": rules}
    kill_after_one_file(source, target, **options)
    if "scales" in changed:
        save_quantised(source.parent, 4.0)
    if changed == "blocks":
        # Blocks of 8 rows have one row of scales, and the second one is left over.
        describe(source.parent, 8)
        with pytest.raises(ShardvarError, match="scale"):
            go_on(source, target, **options)
        return
    report = go_on(source, target, **options)
    assert report.reused_files == (not changed)
    assert set(report.dequantized) == {"a.weight", "b.weight"}
    assert report.to_json()["dequantized"] == list(report.dequantized)
    expected = np.arange(64).reshape(8, 8) % 16 * (4.0 if changed else 2.0)
    for found in sv.load(target).values():
        assert np.array_equal(found, expected.T if rules else expected)


MIXED = (
    "also a[v h] -> again[h v]",
    "a[(v two) h] -> pairs[two v h]",
    "b[(g s) h] @ s=0 -> first[g h]",
    "b[(g s) h] @ s=1: -> rest[(g s) h]",
    "c.{n}[h] -> rows[n h] @ n=0: else 0",
    "d[h] plus 1 -> d[h]",
    "left -> nothing",
)
MIXED_SIZES: dict[str, int | str] = {"two": 2, "s": 3, "n": 5}


def save_mixed(path: Path, **options: Any) -> dict[str, Any]:
    """Save what ``MIXED`` takes, and return what it makes."""
    numbers = np.random.default_rng(5)
    a, b = numbers.random((6, 4), np.float32), numbers.random((9, 4), np.float32)
    c, d = numbers.random((3, 4), np.float32), numbers.random(4, np.float32)
    tensors = {"a": a, "b": b, "d": d, "left": np.arange(3)} | {f"c.{n}": c[n] for n in range(3)}
    sv.save(path, tensors, **options)
    rows = np.zeros((5, 4), np.float32)
    rows[:3] = c
    return {
        "again": a.T,
        "pairs": a.reshape(3, 2, 4).swapaxes(0, 1),
        "first": b[::3],
        "rest": np.delete(b, np.s_[::3], axis=0),
        "rows": rows,
        "d": d + np.float32(1),
    }


def test_a_map_goes_on_wherever_it_was_killed(tmp_path: Path) -> None:
    """At each call of the disk, with rules of all kinds: what is committed is right and whole."""
    source, mapped = tmp_path / "source", sv.Map(MIXED, sizes=MIXED_SIZES)
    expected = save_mixed(source, partition=2)
    reused, step = set[int](), 0
    while True:
        folder = tmp_path / f"target-{step}"
        folder.mkdir()
        try:
            with failing(folder, Fault(step)):
                go_on(source, folder / "ck", map=mapped, partition=2)
        except Killed:
            there = (folder / "ck.svindex").exists()
            report = go_on(source, folder / "ck", map=mapped, partition=2, force=there)
            reused.add(report.reused_files)
        else:
            break
        found = sv.load(folder / "ck")
        assert found.keys() == expected.keys() and sv.verify(folder / "ck").ok
        assert all(np.array_equal(found[key], array) for key, array in expected.items())
        step += 1
    assert reused == {0, 1, 2} and step > 12
