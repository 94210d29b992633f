"""A TensorFlow checkpoint of objects converts at once: its graph is left out where it means
nothing."""

from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from spec_tests.helpers.command_line import Run, run

__all__ = ["run"]

GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def save(folder: Path) -> Path:
    path = sv.Checkpoint(w=sv.Variable(np.arange(6.0).reshape(2, 3))).write(folder / "tf")
    sv.reshard(path, folder / "object", format="tensorflow")
    return folder / "object"


@pytest.mark.parametrize("form", ["safetensors", "npz", "pt", "torch", "zarr", "orbax"])
def test_the_graph_is_left_out_of_formats_without_strings(
    form: str, tmp_path: Path, run: Run
) -> None:
    source = save(tmp_path)
    ending = {"safetensors": ".safetensors", "npz": ".npz", "pt": ".pt"}.get(form, "")
    target = tmp_path / f"out{ending}"
    outcome = run(
        "reshard", source, target, "--format", form, "--rename", "*/.ATTRIBUTES/VARIABLE_VALUE=*"
    )
    assert outcome.code == 0 and f"left out {GRAPH}" in outcome.err
    report = sv.reshard(source, target, format=form, force=True)
    assert report.left_out == (GRAPH,) and report.to_json()["left_out"] == [GRAPH]
    (key,) = (key for key in sv.load(target) if key.startswith("w"))
    assert sv.load(target)[key].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert GRAPH not in sv.load(target)


@pytest.mark.parametrize("form", ["shardvar", "tensorflow"])
def test_the_graph_stays_where_strings_are_held(form: str, tmp_path: Path, run: Run) -> None:
    source = save(tmp_path)
    report = sv.reshard(source, tmp_path / "out", format=form)
    assert report.left_out == () and GRAPH in sv.load(tmp_path / "out")
