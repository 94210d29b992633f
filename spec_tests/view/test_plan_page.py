"""The page of a dry run: its columns are the checkpoint that the same command then writes."""

import shlex
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import ArgumentError
from shardvar.view.collect import describe_plan
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.view_pages import columns_of, keys_of, slices_of

__all__ = ["run"]  # the fixture

ARRAYS = {
    "a/w": np.arange(60.0).reshape(12, 5),
    "b": np.arange(7),
    "text": np.array([b"x", b"yy"], object),
}


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("new", ["--shards", "a/*=4", "--files", "2"]),
        ("new.npz", ["--filter", "a/*", "--filter", "b"]),
        ("new", ["--format", "tensorflow", "--max-file-size", "300", "--rename", "b=c"]),
        ("new.safetensors", ["--filter", "a/*", "--cast", "float32"]),
    ],
)
def test_the_page_of_a_dry_run_shows_what_its_command_writes(
    target: str, options: list[str], tmp_path: Path, run: Run
) -> None:
    """Regions, files and first bytes are those of the checkpoint that the command on the page
    makes."""
    sv.save(tmp_path / "old", ARRAYS, partition={"a/w": 3})
    page = tmp_path / "plan.html"
    outcome = run(
        "reshard", tmp_path / "old", tmp_path / target, *options, "--dry-run", "--html", page
    )
    assert outcome.code == 0 and not list(tmp_path.glob("new*")) and "wrote " in outcome.err
    columns = columns_of(page.read_text(encoding="utf-8"))
    old, new = columns["checkpoints"]
    assert sorted(keys_of(old)) == sorted(ARRAYS)
    words = shlex.split(columns["plan"]["command"])
    assert words[0] == "shardvar" and "--dry-run" not in words and "--html" not in words
    assert run(*words[1:]).code == 0
    with sv.open_checkpoint(tmp_path / target) as reader:
        files, entries = reader.index.files, reader.entries()
        written = [
            (entries.entry(row, files), bool(entries.plain[row])) for row in range(len(entries))
        ]
    planned = sorted(
        (key, offset, shape, int(file.split()[1]), start, nbytes)
        for key, offset, shape, file, start, nbytes, _ in slices_of(new)
    )
    assert [each[:5] for each in planned] == sorted(
        (e.slice.key, e.slice.region.offset, e.slice.region.shape, files.index(e.file), e.start)
        for e, _ in written
    )


def test_a_page_of_a_plan_is_asked_for_with_a_dry_run(tmp_path: Path, run: Run) -> None:
    sv.save(tmp_path / "old", ARRAYS)
    outcome = run("reshard", tmp_path / "old", tmp_path / "new", "--html", tmp_path / "x.html")
    assert (
        outcome.code == 2 and "--dry-run" in outcome.err and not (tmp_path / "new.svindex").exists()
    )
    (tmp_path / "mine.html").write_text("mine")
    assert (
        run(
            "reshard",
            tmp_path / "old",
            tmp_path / "new",
            "--dry-run",
            "--html",
            tmp_path / "mine.html",
        ).code
        == 3
    )
    assert (tmp_path / "mine.html").read_text() == "mine"
    with pytest.raises(ArgumentError, match="dry run"):
        describe_plan(sv.reshard(tmp_path / "old", tmp_path / "new"))


def test_the_json_of_a_report_has_no_plan_in_it(tmp_path: Path) -> None:
    sv.save(tmp_path / "old", ARRAYS)
    dry, done = (
        sv.reshard(tmp_path / "old", tmp_path / "new", dry_run=each) for each in (True, False)
    )
    assert dry.planned is not None and done.planned is None
    differing = {"dry_run": False, "free_nbytes": 0, "callback_seconds": 0.0}
    assert dry.to_json() | differing == done.to_json() | differing
