"""Tied weights: two keys whose tensors are the same bytes."""

import json
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from shardvar.cli.main import main
from shardvar.planning.index import find_ties
from spec_tests.helpers.format_protocol import GOLDEN

TIED = GOLDEN / "torch_pt" / "tied_weights" / "x.pt"
HOLDING = ["shardvar", "pt"]
ENDINGS = {"safetensors": ".safetensors", "pt": ".pt", "npz": ".npz"}


def ties(path: Path) -> dict[str, str]:
    with sv.open_checkpoint(path) as reader:
        return find_ties(reader.entries())


@pytest.mark.parametrize("first", HOLDING)
@pytest.mark.parametrize("second", HOLDING)
def test_ties_survive_where_the_format_holds_them(first: str, second: str, tmp_path: Path) -> None:
    """Under new names as well; the bytes are there once, and each key reads and verifies."""
    one, two = tmp_path / f"a{ENDINGS.get(first, '')}", tmp_path / f"b{ENDINGS.get(second, '')}"
    report = sv.reshard(TIED, one, format=first)
    assert sv.reshard(one, two, format=second, add_prefix="m.").untied == report.untied == ()
    assert report.num_tensors == sv.reshard(one, two, format=second, force=True).num_tensors
    for path in (one, two):
        assert ties(path) == ties(TIED) and sv.verify(path).ok
        assert sv.diff(TIED, path).equal
        assert sv.digest(path).tensors == sv.digest(TIED).tensors
    with sv.open_checkpoint(TIED) as reader:
        slices = reader.entries().slices
        whole = int(slices.nbytes.sum())
        twice = sum(int(reader.find(key).slices.nbytes.sum()) for key in ties(TIED))
    assert report.nbytes == whole - twice


@pytest.mark.parametrize("form", HOLDING)
def test_a_cast_or_a_cut_of_one_of_them_parts_them(form: str, tmp_path: Path) -> None:
    key, first = next(iter(ties(TIED).items()))
    path = tmp_path / f"a{ENDINGS.get(form, '')}"
    report = sv.reshard(TIED, path, format=form, cast={key: "float64"})
    assert (key, first) in report.untied and key not in ties(path)
    assert sv.load(path)[key].dtype == np.float64
    if form == "shardvar":
        report = sv.reshard(TIED, path, format=form, partition={key: 2}, force=True)
        assert (key, first) in report.untied and key not in ties(path)
        assert sv.diff(TIED, path).equal
        report = sv.reshard(TIED, path, format=form, partition=2, force=True)
        assert not report.untied and ties(path) == ties(TIED) and sv.diff(TIED, path).equal
    sv.reshard(TIED, path, format=form, exclude=first, force=True)
    assert sv.diff(TIED, path).only_in_a == (first,) or first not in sv.load(path)


@pytest.mark.parametrize("form", ["safetensors", "npz", "torch", "tensorflow", "zarr"])
def test_a_format_without_ties_has_both_and_says_so(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"a{ENDINGS.get(form, '')}"
    report = sv.reshard(TIED, path, format=form)
    assert dict(report.untied) == ties(TIED) and not ties(path)
    assert sv.diff(TIED, path).equal
    assert main(["reshard", str(TIED), str(path), "--format", form, "--force"]) == 0
    printed = capsys.readouterr().out
    assert all(repr(key) in printed for pair in report.untied for key in pair)


def test_inspect_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, first = next(iter(ties(TIED).items()))
    assert main(["inspect", str(TIED)]) == 0
    assert f"Tied: {key} = {first}" in capsys.readouterr().out
    assert main(["inspect", str(TIED), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ties"] == ties(TIED)
