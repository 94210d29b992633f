"""``verify`` of chosen tensors: the same outcomes as of all, and nothing of the others but that
they were left out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.cli import main
from shardvar.errors import ArgumentError
from shardvar.verbs.compare.manifest import write_manifest
from spec_tests.helpers.damage import flip

TENSORS: dict[str, Any] = {
    "a.w": np.full((4000, 3), 7.0),
    "a.b": np.full(4000, 8.0),
    "c.w": np.full((4000, 3), 9.0),
    "words": np.array([b"x", b"yz"], object),
}


def save_damaged(path: Path) -> None:
    """Save the tensors, and change a byte of a.w and one of words."""
    sv.save(path, TENSORS, partition={"*.w": 2})
    (file,) = path.parent.glob(f"{path.name}.svdata*")
    for values in (TENSORS["a.w"].tobytes()[:64], b"yz"):
        flip(file, file.read_bytes().index(values))


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"filter": "a.*"}, {"a.w", "a.b"}),
        ({"filter": ["c.*", "words"]}, {"c.w", "words"}),
        ({"exclude": "*.w"}, {"a.b", "words"}),
        ({"filter": "*.w", "exclude": ["a.*"]}, {"c.w"}),
    ],
)
def test_the_chosen_tensors_have_the_outcomes_that_all_have(
    options: dict[str, Any], keys: set[str], tmp_path: Path
) -> None:
    save_damaged(tmp_path / "m")
    whole, part = sv.verify(tmp_path / "m"), sv.verify(tmp_path / "m", **options)
    assert part.outcomes == {key: outcome for key, outcome in whole.outcomes.items() if key in keys}
    assert part.damages == tuple(each for each in whole.damages if each.key in keys)
    assert part.num_tensors == len(keys) and part.num_slices == sum(
        2 if key.endswith(".w") else 1 for key in keys
    )
    assert part.read_nbytes < whole.read_nbytes
    assert part.notes == (f"Not chosen, and not verified: {4 - len(keys)} of 4 tensors.",)


@pytest.mark.smoke
def test_the_command_reads_what_matches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_damaged(tmp_path / "m")
    assert main(["verify", str(tmp_path / "m"), "--filter", "c.*"]) == 0
    printed = capsys.readouterr().out
    assert (
        "note: Not chosen, and not verified: 3 of 4 tensors." in printed
        and ": 1 tensor, " in printed
    )
    assert main(["verify", str(tmp_path / "m"), "--exclude", "c.*"]) == 1
    assert main(["verify", str(tmp_path / "m"), "--filter", "d.*"]) == 2


@pytest.mark.parametrize("options", [{"filter": "x"}, {"exclude": "x"}, {"exclude": "*"}], ids=str)
def test_a_choice_of_nothing_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    sv.save(tmp_path / "m", TENSORS)
    with pytest.raises(ArgumentError):
        sv.verify(tmp_path / "m", **options)


def test_a_lost_file_is_damage_only_of_the_tensors_in_it(tmp_path: Path) -> None:
    from shardvar.planning.policies import MaxShardSizePolicy

    sv.save(tmp_path / "m", TENSORS, policy=MaxShardSizePolicy(100_000))
    with sv.open_checkpoint(tmp_path / "m") as reader:
        entries = reader.index.find("a.w")
        lost, others = reader.index.files[int(entries.file[0])], reader.index.find("words").file[0]
        assert reader.index.files[int(others)] != lost
    (tmp_path / lost).unlink()
    assert sv.verify(tmp_path / "m", filter="words").ok
    assert not sv.verify(tmp_path / "m", filter="a.w").ok


def test_a_manifest_is_compared_for_the_chosen_tensors(tmp_path: Path) -> None:
    """Also where the tensor is lost, which only the manifest tells."""
    tensors = {key: TENSORS[key] for key in ("a.w", "a.b", "c.w")}
    sv.save(tmp_path / "m.safetensors", tensors)
    manifest = write_manifest(sv.digest(tmp_path / "m.safetensors"))
    changed = {"a.w": tensors["a.w"] + 1, "a.b": tensors["a.b"]}
    sv.save(tmp_path / "m.safetensors", changed, force=True)

    def outcomes(glob: str) -> dict[str, str]:
        return dict(sv.verify(tmp_path / "m.safetensors", filter=glob, against=manifest).outcomes)

    assert outcomes("a.b") == {"a.b": "ok"}
    assert outcomes("a.*") == {"a.b": "ok", "a.w": "damaged"}
    assert outcomes("*.[bw]") == {"a.b": "ok", "a.w": "damaged", "c.w": "damaged"}


def test_damage_of_the_index_comes_before_a_choice_of_nothing(tmp_path: Path) -> None:
    sv.save(tmp_path / "m", TENSORS)
    (index,) = tmp_path.glob("*.svindex")
    flip(index, 10)
    assert sv.verify(tmp_path / "m", filter="words").damages
