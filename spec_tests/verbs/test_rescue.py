"""A reshard that keeps going writes every tensor that is whole, says what is lost, and loses
nothing else."""

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.cli import main
from shardvar.errors import (
    READ_ERRORS,
    ArgumentError,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    ShardvarError,
)
from shardvar.planning.policies import BalancedPolicy
from shardvar.view.collect import describe
from spec_tests.helpers import paths
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.damage import flip
from spec_tests.helpers.thoroughness import stride
from spec_tests.hostile.evidence import EVIDENCE

__all__ = ["run"]

MODEL = {name: np.full(20_000, number, np.float32) for number, name in enumerate("abcd")}


@pytest.fixture(params=["shardvar", "tensorflow"])
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the path of a checkpoint in four files, of which one has a wrong byte and another is
    gone."""
    sv.save(tmp_path / "m", MODEL, format=request.param, policy=BalancedPolicy(4))
    files = sorted(path for path in tmp_path.iterdir() if "-of-" in path.name)
    flip(files[1])
    os.remove(files[2])
    return tmp_path / "m"


def test_a_dry_run_says_what_would_be_lost_and_writes_nothing(broken: Path) -> None:
    """Two tensors may not get one name, even if one of them is lost."""
    rescue = partial(sv.reshard, broken, broken.with_name("saved"), keep_going=True)
    report = rescue(dry_run=True)
    assert len(report.lost) == 2 and not list(broken.parent.glob("saved*"))
    exists = {
        each.kind: (broken.parent / (each.file or "unknown")).exists() for each in report.lost
    }
    assert exists == {"CorruptCheckpoint": True, "MissingFile": False}
    whole = next(key for key in MODEL if key not in {each.key for each in report.lost})
    with pytest.raises(ArgumentError, match="2 tensors would be named"):
        rescue(rename={report.lost[0].key or "": whole})


OF_ONE: list[dict[str, Any]] = [
    {"rename": {"KEY": "new"}},
    {"cast": {"KEY": "f2"}},
    {"transpose": "KEY"},
    {"partition": {"KEY": 2}},
]


@pytest.mark.parametrize("options", OF_ONE, ids=lambda options: next(iter(options)))
def test_patterns_may_match_lost_tensors_alone_and_must_match_some(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """A pattern that matches in the whole checkpoint is right for the rest of it."""
    sv.save(tmp_path / "m", {key: np.ones((2, 3)) for key in "ab"}, policy=BalancedPolicy(2))
    file = min(path for path in tmp_path.iterdir() if "-of-" in path.name)
    file.write_bytes(bytes(file.stat().st_size))
    (lost,) = sv.reshard(tmp_path / "m", tmp_path / "x", keep_going=True, dry_run=True).lost

    def of_key(key: str) -> dict[str, Any]:
        ((name, value),) = options.items()
        return {name: {key: value["KEY"]} if isinstance(value, dict) else key}

    report = sv.reshard(tmp_path / "m", tmp_path / "n", keep_going=True, **of_key(lost.key or ""))
    assert report.lost == (lost,)
    assert sv.load(tmp_path / "n").keys() == {"a", "b"} - {lost.key}
    with pytest.raises(ArgumentError, match="'other'"):
        sv.reshard(tmp_path / "m", tmp_path / "o", keep_going=True, **of_key("other"))


def test_a_tensor_with_a_hole_is_lost_and_not_read_as_zeros(tmp_path: Path) -> None:
    golden = paths.GOLDEN / "tensorflow" / "slices_with_hole" / "g"
    with pytest.raises(CorruptCheckpoint, match="No tensor of .* is whole"):
        sv.reshard(golden, tmp_path / "saved", keep_going=True)


@pytest.mark.smoke
def test_the_command_prints_what_is_lost_and_ends_with_1(
    broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once, again = (str(broken.with_name(name)) for name in ("once", "again"))
    assert main(["reshard", str(broken), once, "--keep-going"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("lost: ")]) == 2
    assert main(["verify", once]) == main(["reshard", once, again, "--keep-going"]) == 0


# Damage of any file of any format's golden checkpoint: what is whole by its range and its checksum
# is saved with the same bits, and nothing else is.

Place = tuple[str, int, int]
"""A file, the first byte of a payload in it, and its end."""
BEHIND = {"pt": 24, "torch": 1 << 10}
"""Bytes behind elements that have their checksum: a data descriptor, or the rest of an item."""
STRUCTURED = ("keras", "onnx", "orbax", "zarr")
"""Formats whose structure is among the data, so that a cut may lose it."""


def read_each(path: Path) -> dict[str, bytes]:
    """The bits of every tensor that can be read by its key."""
    found: dict[str, bytes] = {}
    try:
        with sv.open_checkpoint(path) as reader:
            for key in reader:
                try:
                    array = reader.read(key, verify="full")
                except READ_ERRORS:
                    continue
                found[key] = f"{array.dtype} {array.shape} ".encode() + (
                    repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
                )
    except READ_ERRORS:
        pass
    return found


def places_of(path: Path) -> tuple[dict[str, list[Place]], list[str], set[str]]:
    """The places of tensors that lie in files as they are, the files, and keys with checksums."""
    with sv.open_checkpoint(path) as reader:
        entries, places = reader.entries(), dict[str, list[Place]]()
        for row in range(len(entries)):
            name, start = reader.index.files[entries.file[row]], int(entries.start[row])
            stop = start + int(entries.slices.nbytes[row])
            own = (name, start, stop) if entries.plain[row] else (name, 0, 1 << 60)
            places.setdefault(entries.slices.key(row), []).append(own)
        guarded = {
            key for key, outcome in sv.verify(path).outcomes.items() if outcome != "not verifiable"
        }
        return places, [*reader.index.files], guarded


@pytest.mark.sample(2)
@pytest.mark.parametrize("form", EVIDENCE)
@settings(max_examples=24 // stride(3))
@given(number=st.integers(0, 99), at=st.floats(0, 1, exclude_max=True), how=st.sampled_from("caf"))
@example(number=0, at=0.7, how="c")
@example(number=0, at=0.0, how="a")
def test_what_is_whole_is_saved_and_nothing_else(
    form: str, number: int, at: float, how: str
) -> None:
    golden = paths.GOLDEN / EVIDENCE[form].golden
    whole, (places, files, guarded) = read_each(golden), places_of(golden)
    with TemporaryDirectory() as directory:
        folder, target = Path(directory, "in"), Path(directory, "out")
        root = golden if golden.is_dir() else golden.parent
        shutil.copytree(root, folder)
        path, name = folder / golden.relative_to(root), files[number % len(files)]
        octets = bytearray((folder / name).read_bytes())
        start = int(at * len(octets))
        stop = len(octets) if how == "c" else min(start + 4, len(octets))
        if how == "a":
            octets += b"\0PK\x05\x06"
        elif how == "f":
            octets[start:stop] = bytes(octet ^ 0x55 for octet in octets[start:stop])
        else:
            del octets[start:]
        (folder / name).write_bytes(octets)
        found = read_each(path)
        # Nothing else: without a checksum, only the range is known, and a changed name is another.
        assert how == "f" or found.keys() <= whole.keys()
        for key in found.keys() & (guarded if how == "f" else whole.keys()):
            assert found[key] == whole[key], key
        # All that is whole.
        behind = BEHIND.get(form, 0)
        due = {
            key
            for key in whole.keys() & places.keys()
            if all(
                file != name
                or how == "a"
                or (how == "c" and 0 < last + behind <= start)
                or (how == "f" and (last <= start or stop <= first))
                for file, first, last in places[key]
            )
        }
        if found or (form not in STRUCTURED and how == "a"):
            assert form in STRUCTURED or how == "f" or due <= found.keys()
        # Every verb agrees.
        report = outcome_of(lambda: sv.verify(path))
        loaded = outcome_of(lambda: sv.load(path))
        assert isinstance(loaded, ShardvarError) or how == "f" or found.keys() == whole.keys()
        if not isinstance(report, ShardvarError) and (report.damages or report.doubts):
            assert isinstance(loaded, ShardvarError)
        saved = outcome_of(lambda: sv.reshard(path, target, format="shardvar", keep_going=True))
        if not isinstance(saved, ShardvarError):
            assert read_each(target).keys() == found.keys()


@pytest.mark.parametrize(
    ("path", "name", "least"),
    [
        ("flax/train_state/checkpoint_3", "", 0.5),
        ("onnx/every_type/m.onnx", "", 0.5),
        ("keras/weights_with_optimizer/m.weights.h5", "", 0.8),
        ("keras/sharded_weights/m.weights.json", "m_00001.weights.h5", 0.0),
        ("gguf/three_parts/m-00001-of-00003.gguf", "m-00001-of-00003.gguf", 0.0),
        ("torch_zero/z1fp32w3/zero_pp_rank", "zero_pp_rank_2_mp_rank_00_optim_states.pt", 0.5),
        ("torch_llama/llama3/consolidated", "consolidated.01.pth", 0.8),
        ("torch_rankwise/w2/metadata.pkl", "model_1.pt", 0.0),
        ("torch_universal/z1fp32w3/", "zero/lin.bias/fp32.pt", 0.0),
        ("torch_pt/ranks_hsdp/model_world_size_4", "model_world_size_4_rank_1.pt", 0.0),
    ],
)
def test_what_is_in_front_of_a_cut_is_saved(
    path: str, name: str, least: float, tmp_path: Path
) -> None:
    """``least`` is the part of the file that must be there for a whole tensor."""
    form, case, opened = path.split("/")
    source = paths.GOLDEN / form / case
    name = name or opened
    shutil.copytree(source, tmp_path / "in", ignore=shutil.ignore_patterns("expected.npz"))
    there, octets = tmp_path / "in" / opened, (source / name).read_bytes()
    whole = read_each(there)
    for part in (0.02, 0.5, 0.8, 0.97):
        (tmp_path / "in" / name).write_bytes(octets[: int(len(octets) * part)])
        found = read_each(there)
        assert found.items() <= whole.items() and bool(found) >= (part >= least), part
        with pytest.raises(ShardvarError):
            sv.load(there)
        report = sv.verify(there)
        assert report.verdict == "damaged"
        bad = {key for key, outcome in report.outcomes.items() if outcome == "damaged"}
        assert not bad & found.keys() and report.outcomes.keys() - bad <= found.keys()


def outcome_of(verb: Callable[[], Any]) -> Any:
    try:
        return verb()
    except ShardvarError as error:
        return error


@pytest.mark.parametrize("name", ["m", "m.safetensors", "m.pt", "m.npz"])
def test_tensors_in_a_file_of_a_wrong_size_are_read_by_key(
    name: str, tmp_path: Path, run: Run
) -> None:
    """docs/howto/find-damage.md: cut at 75 %, 7 of 10 tensors are saved; with a byte too many, all.

    The names of members of an npz that are behind the end are lost with the directory.
    """
    tensors = {f"t{number}": np.full(10_000, number, np.float32) for number in range(10)}
    form, is_alone = "shardvar" if name == "m" else None, name == "m.safetensors"
    sv.save(tmp_path / name, tensors, format=form)
    (file,) = tmp_path.glob("m.svdata*" if form else name)
    octets = file.read_bytes()
    for damaged, kept, error in (
        (octets[: len(octets) * 3 // 4], 7, IncompleteCheckpoint),
        (octets + b"\0", 10, InvalidCheckpoint if is_alone else ShardvarError),
    ):
        file.write_bytes(damaged)
        with pytest.raises(error, match="has .* bytes, but its header says" if is_alone else None):
            sv.load(tmp_path / name)
        with pytest.raises(error):
            sv.reshard(tmp_path / name, tmp_path / "x", dry_run=True)
        report = sv.verify(tmp_path / name)
        assert report.verdict == "damaged" and {each.file for each in report.damages} == {file.name}
        outcome = run("inspect", tmp_path / name, "--json", "--check")
        assert outcome.code == 1 and [each["file"] for each in outcome.json["damaged_files"]]
        with sv.open_checkpoint(tmp_path / name) as reader:
            about = describe(reader, [*reader], [1])
            assert about["damaged"] or about["causes"]
        whole = [f"t{number}" for number in range(kept)]
        found = sv.load(tmp_path / name, keys=whole)
        assert all(np.array_equal(found[key], tensors[key]) for key in whole)
        saved = sv.reshard(tmp_path / name, tmp_path / "saved", keep_going=True, force=True)
        assert len(saved.lost) == (min(10 - kept, 1) if name == "m.npz" else 10 - kept)
        assert sv.load(saved.path).keys() == {*whole}
