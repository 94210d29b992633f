"""Problems at a terminal: a line for each file, with what happened to it, whatever the number of
its tensors."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from spec_tests.helpers.command_line import Run, run, terminal
from spec_tests.helpers.damage import flip

__all__ = ["run"]

FORMS = {
    "shardvar": ("model", "model.svdata*"),
    "tensorflow": ("model", "model.data*"),
    "torch": ("model", "*.distcp"),
}


@pytest.fixture(params=FORMS)
def damaged(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Names of three files: of the first one a bit was changed, the second one was cut, the third
    one is lost."""
    monkeypatch.chdir(tmp_path)
    path, glob = FORMS[request.param]
    tensors = {
        f"layer{n}.{name}": np.full((40, 20), n, "f4")
        for n in range(20)
        for name in ("a", "b", "c", "d")
    }
    sv.save(path, tensors, format=request.param, policy=sv.MaxShardSizePolicy(70_000))
    first, second, third, *_ = sorted(tmp_path.rglob(glob))
    flip(first, first.read_bytes().index(20 * np.float32(1).tobytes()))
    second.write_bytes(second.read_bytes()[:30_000])
    third.unlink()
    return [first.name, second.name, third.name]


def words(names: list[str], out: str) -> list[str]:
    """Return the text from the name of each file up to the next one."""
    numbers = [f"file {n} " for n in range(3)] if names[0].startswith("model") else names
    places = [out.index(name) for name in numbers] + [out.index("Copy the file again")]
    return [out[start:stop] for start, stop in pairwise(places)]


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_file_that_is_changed_cut_or_lost_is_one_paragraph(
    damaged: list[str], columns: int, run: Run
) -> None:
    """In natural order, with its name, what happened to it, and the number of tensors; a remedy is
    said once."""
    with terminal(columns):
        verified, compared = run("verify", "model"), run("diff", "model", "model")
        listed = run("inspect", "model")
    for out in (verified.out, compared.out):
        changed, cut, lost = words(damaged, out)
        assert "bytes changed" in changed and "layer" in changed
        assert (
            "cut short" in cut
            and "bytes, but the index says" in " ".join(cut.split())
            and "tensors" in cut
        )
        assert "missing" in lost and "tensors" in lost
        assert all(name in out for name in damaged)
    assert verified.out.count("Copy the file again") == 1
    assert "cut short" in listed.out and "missing" in listed.out


def test_an_index_that_cannot_be_read_is_not_an_empty_checkpoint(tmp_path: Path, run: Run) -> None:
    """The verdict does not count the tensors and says nothing of checksums that match."""
    sv.save(tmp_path / "model.npz", {"w": np.ones(200)}, format="npz")
    (tmp_path / "model.npz").write_bytes((tmp_path / "model.npz").read_bytes()[:900])
    verdict, *_ = run("verify", tmp_path / "model.npz").out.splitlines()
    assert verdict.endswith("model.npz (npz): no tensor could be read")
