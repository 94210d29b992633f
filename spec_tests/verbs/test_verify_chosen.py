"""``verify`` of chosen tensors: the same outcomes as of all, and nothing of the others but that
they were left out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import ArgumentError
from shardvar.verbs.compare.manifest import write_manifest
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.damage import flip

__all__ = ["run"]

TENSORS: dict[str, Any] = {
    "a.w": np.full((4000, 3), 7.0),
    "a.b": np.full(4000, 8.0),
    "c.w": np.full((4000, 3), 9.0),
    "words": np.array([b"x", b"yz"], object),
}


def save_damaged(folder: Path) -> Path:
    """Save the tensors, and change a byte of a.w and one of words."""
    sv.save(folder / "m", TENSORS, partition={"*.w": 2})
    (file,) = folder.glob("m.svdata*")
    for values in (TENSORS["a.w"].tobytes()[:64], b"yz"):
        flip(file, file.read_bytes().index(values))
    return folder / "m"


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"filter": "a.*"}, {"a.w", "a.b"}),
        ({"filter": ["c.*", "words"]}, {"c.w", "words"}),
        ({"exclude": "*.w"}, {"a.b", "words"}),
        ({"filter": "*.w", "exclude": ["a.*"]}, {"c.w"}),
        *(
            ({name: glob}, set[str]())
            for name, glob in (("filter", "x"), ("exclude", "x"), ("exclude", "*"))
        ),
    ],
)
def test_the_chosen_tensors_have_the_outcomes_that_all_have(
    options: dict[str, Any], keys: set[str], tmp_path: Path
) -> None:
    """A choice of nothing is refused, after damage of the index."""
    path = save_damaged(tmp_path)
    if not keys:
        with pytest.raises(ArgumentError):
            sv.verify(path, **options)
        flip(*tmp_path.glob("*.svindex"), 10)
        assert sv.verify(path, **options).damages
        return
    whole, part = sv.verify(path), sv.verify(path, **options)
    assert part.outcomes == {key: outcome for key, outcome in whole.outcomes.items() if key in keys}
    assert part.damages == tuple(each for each in whole.damages if each.key in keys)
    assert part.num_tensors == len(keys)
    assert part.num_slices == sum(2 if key.endswith(".w") else 1 for key in keys)
    assert part.read_nbytes < whole.read_nbytes
    assert part.notes == (f"Not chosen, and not verified: {4 - len(keys)} of 4 tensors.",)


@pytest.mark.smoke
def test_the_command_reads_what_matches(tmp_path: Path, run: Run) -> None:
    path = save_damaged(tmp_path)
    done = run("verify", path, "--filter", "c.*")
    assert done.code == 0 and ": 1 tensor, " in done.out
    assert "note: Not chosen, and not verified: 3 of 4 tensors." in done.out
    assert run("verify", path, "--exclude", "c.*").code == 1
    assert run("verify", path, "--filter", "d.*").code == 2


def test_a_lost_file_is_damage_only_of_the_tensors_in_it(tmp_path: Path) -> None:
    sv.save(tmp_path / "m", TENSORS, policy=sv.MaxShardSizePolicy(100_000))
    with sv.open_checkpoint(tmp_path / "m") as reader:
        of = {key: reader.index.files[int(reader.find(key).file[0])] for key in TENSORS}
    (tmp_path / of["a.w"]).unlink()
    assert of["words"] != of["a.w"] and sv.verify(tmp_path / "m", filter="words").ok
    assert not sv.verify(tmp_path / "m", filter="a.w").ok


def test_a_manifest_is_compared_for_the_chosen_tensors(tmp_path: Path) -> None:
    """Also where the tensor is lost, which only the manifest tells."""
    path = tmp_path / "m.safetensors"
    sv.save(path, {key: array for key, array in TENSORS.items() if key != "words"})
    manifest = write_manifest(sv.digest(path))
    sv.save(path, {"a.w": TENSORS["a.w"] + 1, "a.b": TENSORS["a.b"]}, force=True)
    expected = {"a.b": "ok", "a.w": "damaged", "c.w": "damaged"}
    for glob, count in (("a.b", 1), ("a.*", 2), ("*.[bw]", 3)):
        found = sv.verify(path, filter=glob, against=manifest).outcomes
        assert dict(found) == dict([*expected.items()][:count])
