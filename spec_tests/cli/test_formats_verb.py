"""``shardvar formats``: the table says what saving and reading do, in each format that shardvar
has."""

import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest

import shardvar as sv
from shardvar.cli.main import main
from shardvar.errors import ArgumentError, UnsupportedError
from shardvar.formats.table import format_named, format_names
from shardvar.verbs import locate

PROMISED = ("format", "about", "read", "written", "slices", "atomic", "in_buckets", "extra")


@pytest.fixture
def rows(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    """The table by the names of formats."""
    assert main(["formats", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["formats"]
    assert all(tuple(row) == PROMISED for row in listed)
    return {row["format"]: row for row in listed}


@pytest.mark.parametrize("name", format_names())
def test_what_is_written_can_be_saved_and_what_holds_slices_keeps_them(
    name: str, rows: dict[str, dict[str, object]], tmp_path: Path
) -> None:
    tensors = {"table": np.zeros((8, 2))}
    if not rows[name]["written"]:
        with pytest.raises(UnsupportedError, match="but not write it"):
            sv.save(tmp_path / "model", tensors, format=name)
        assert not rows[name]["slices"]
    elif rows[name]["slices"]:
        assert sv.save(tmp_path / "model", tensors, format=name, partition=2).num_slices == 2
    else:
        assert sv.save(tmp_path / "model", tensors, format=name).num_slices == 1
        with pytest.raises(ArgumentError, match="cannot store slices"):
            sv.save(tmp_path / "cut", tensors, format=name, partition=2)


@pytest.mark.parametrize(
    "name",
    [each for each in format_names() if format_named(each).capabilities.dtypes],
)
def test_what_is_written_to_buckets_is_not_refused_there(
    name: str, rows: dict[str, dict[str, object]]
) -> None:
    bucket = SimpleNamespace(local_path=None, path="s3://bucket", names=list)
    with patch.object(locate, "split_place", lambda path: (bucket, "model")):
        try:
            locate.find_target(Path("model"), name, name)
        except UnsupportedError:
            assert not rows[name]["in_buckets"]
        else:
            assert rows[name]["in_buckets"]


@pytest.mark.smoke
def test_the_table_lists_each_format_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["format", *format_names()]
