"""A reshard that keeps going writes every tensor that is whole, says what is lost, and loses
nothing else."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.cli import main
from shardvar.errors import ArgumentError, CorruptCheckpoint, MissingFile
from shardvar.planning.policies import BalancedPolicy
from shardvar.verbs.reshard import LOST
from spec_tests.helpers import paths

MODEL = {name: np.full(20_000, number, np.float32) for number, name in enumerate("abcd")}


@pytest.fixture(params=["shardvar", "tensorflow"])
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the path of a checkpoint in four files, of which one has a wrong byte and another is
    gone."""
    sv.save(tmp_path / "m", MODEL, format=request.param, policy=BalancedPolicy(4))
    files = sorted(path for path in tmp_path.iterdir() if "-of-" in path.name)
    octets = bytearray(files[1].read_bytes())
    octets[len(octets) // 2] ^= 1
    files[1].write_bytes(octets)
    os.remove(files[2])
    return tmp_path / "m"


def test_every_whole_tensor_is_written_and_every_other_is_named(broken: Path) -> None:
    with pytest.raises(MissingFile):
        sv.reshard(broken, broken.with_name("all"))
    report = sv.reshard(broken, broken.with_name("saved"), format="safetensors", keep_going=True)
    saved = sv.load(broken.with_name("saved"))
    lost = {each.key: each.kind for each in report.lost}
    assert sorted(lost.values()) == ["CorruptCheckpoint", "MissingFile"]
    assert lost.keys() | saved.keys() == MODEL.keys() and not lost.keys() & saved.keys()
    assert all(np.array_equal(saved[key], MODEL[key]) for key in saved)
    with sv.open_checkpoint(broken.with_name("saved")) as reader:
        assert {each["key"] for each in json.loads(reader.metadata.user[LOST])} == lost.keys()


def test_a_dry_run_says_what_would_be_lost_and_writes_nothing(broken: Path) -> None:
    report = sv.reshard(broken, broken.with_name("saved"), keep_going=True, dry_run=True)
    assert len(report.lost) == 2 and not list(broken.parent.glob("saved*"))
    exists = {
        each.kind: (broken.parent / (each.file or "unknown")).exists() for each in report.lost
    }
    assert exists == {"CorruptCheckpoint": True, "MissingFile": False}


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


def test_two_tensors_may_not_get_one_name_even_if_one_of_them_is_lost(broken: Path) -> None:
    lost = (
        sv.reshard(broken, broken.with_name("x"), keep_going=True, dry_run=True).lost[0].key or ""
    )
    whole = next(key for key in MODEL if key != lost)
    with pytest.raises(ArgumentError, match="2 tensors would be named"):
        sv.reshard(broken, broken.with_name("saved"), keep_going=True, rename={lost: whole})


def test_a_checkpoint_without_damage_loses_nothing_and_is_not_marked(tmp_path: Path) -> None:
    sv.save(tmp_path / "m", MODEL)
    assert sv.reshard(tmp_path / "m", tmp_path / "n", keep_going=True).lost == ()
    with sv.open_checkpoint(tmp_path / "n") as reader:
        assert LOST not in reader.metadata.user
    assert sv.diff(tmp_path / "m", tmp_path / "n").equal


def test_where_nothing_is_whole_nothing_is_written(broken: Path) -> None:
    whole = {
        each.key
        for each in sv.reshard(broken, broken.with_name("x"), keep_going=True, dry_run=True).lost
    }
    with pytest.raises(CorruptCheckpoint, match="No tensor of .* is whole"):
        sv.reshard(
            broken, broken.with_name("saved"), filter=sorted(filter(None, whole)), keep_going=True
        )
    assert not list(broken.parent.glob("saved*"))


def test_a_tensor_with_a_hole_is_lost_and_not_read_as_zeros(tmp_path: Path) -> None:
    with pytest.raises(CorruptCheckpoint, match="No tensor of .* is whole"):
        sv.reshard(
            paths.GOLDEN / "tensorflow" / "slices_with_hole" / "g",
            tmp_path / "saved",
            keep_going=True,
        )


@pytest.mark.smoke
def test_the_command_prints_what_is_lost_and_ends_with_1(
    broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reshard", str(broken), str(broken.with_name("saved")), "--keep-going"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("lost: ")]) == 2
    assert main(["verify", str(broken.with_name("saved"))]) == 0
    assert (
        main(
            [
                "reshard",
                str(broken.with_name("saved")),
                str(broken.with_name("again")),
                "--keep-going",
            ]
        )
        == 0
    )


def test_a_lost_file_is_one_line_that_names_its_tensors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.safetensors"
    sv.save(path, {key: np.ones(4) for key in "abc"}, policy=sv.MaxShardSizePolicy(64))
    os.remove(tmp_path / "m-00001-of-00002.safetensors")
    assert main(["reshard", str(path), str(tmp_path / "n"), "--keep-going"]) == 1
    (lost,) = capsys.readouterr().out.splitlines()[1:]
    assert lost.startswith("lost: 2 tensors (a, b): MissingFile: ") and "'a'" not in lost
