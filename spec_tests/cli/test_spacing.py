"""The paragraphs and columns of what commands print: one blank line between paragraphs, and a pipe
gets the lines that it asks for."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from spec_tests.helpers.command_line import Run, run, terminal
from spec_tests.helpers.damage import flip

__all__ = ["run"]

VALUES = {"a.w": np.zeros((4, 3)), "a.b": np.full(3, 5.0), "c": np.ones(3)}


@pytest.mark.parametrize("is_terminal", [False, True], ids=["pipe", "terminal"])
@pytest.mark.parametrize(
    ("words", "counts"),
    [
        (["inspect"], (2, 2)),
        (["inspect", "--brief"], (1, 1)),
        (["inspect", "--slices"], (2, 2)),
        (["inspect", "--stats"], (4, 3)),
        (["inspect", "--stats", "--all"], (4, 4)),
        (["inspect", "--stats", "--filter", "a.w"], (4, 4)),
        (["inspect", "--stats", "--brief"], (1, 1)),
        (["verify"], (1, 4)),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_paragraphs_are_one_blank_line_apart(
    words: list[str], counts: tuple[int, int], is_terminal: bool, tmp_path: Path, run: Run
) -> None:
    sv.save(tmp_path / "m.npz", VALUES)
    flip(tmp_path / "m.npz", (tmp_path / "m.npz").read_bytes().find(VALUES["a.b"].tobytes()))
    with terminal(200) if is_terminal else nullcontext():
        out = run(*words, tmp_path / "m.npz").out
    assert len(out.removesuffix("\n").split("\n\n")) == counts[is_terminal], out
    assert "\n\n\n" not in out and not out.startswith("\n")


def test_a_pipe_gets_the_levels_that_it_asks_for(tmp_path: Path, run: Run) -> None:
    keys = ["a.b.v", "a.b.w", "a.c", "d"]
    sv.save(tmp_path / "m", {key: np.zeros(2) for key in keys})
    levels = {1: ["a.", "d"], 2: ["a.", "a.b.", "a.c", "d"], 3: ["a.", "a.b.", *keys]}
    for depth, names in levels.items():
        out = run("inspect", "--depth", str(depth), tmp_path / "m").out
        lines = out.partition("\n\n")[2].splitlines()[1:]
        assert [line.split()[0].rpartition(".")[2] for line in lines] == [
            name.rpartition(".")[2] for name in names
        ]
