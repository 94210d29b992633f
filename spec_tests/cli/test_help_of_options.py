"""What help says of every option, and small laws of the lines that commands print."""

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from shardvar.cli.options import make_parser, sections_of
from shardvar.cli.view import names_of_plan
from shardvar.verbs.locate import find_checkpoint
from spec_tests.helpers.command_line import run
from spec_tests.helpers.programs import ENVIRONMENT

__all__ = ["run"]

COMMANDS: dict[str, argparse.ArgumentParser] = next(
    action.choices
    for action in make_parser()._actions
    if isinstance(action, argparse._SubParsersAction)
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_help_and_shows_its_value_if_it_takes_one(command: str) -> None:
    rows = {name: text for _, some in sections_of(COMMANDS[command]) for name, text in some}
    assert [name for name, text in rows.items() if len(text) < 5] == []
    for action in COMMANDS[command]._actions:
        if action.option_strings and action.help != argparse.SUPPRESS:
            names = ", ".join(sorted(action.option_strings, key=len))
            (row,) = (row for row in rows if row == names or row.startswith(f"{names} "))
            assert (row == names) == (action.nargs == 0)
            assert row == row.strip()


def test_a_command_that_is_done_ends_though_an_interrupt_is_watched_for() -> None:
    program = (
        "from shardvar.cli.main import end_after_interrupt\n"
        "end_after_interrupt(lambda: None)\nprint('done')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_a_plan_names_its_sources_and_its_target_apart(tmp_path: Path) -> None:
    for folder in "ab":
        sv.save(tmp_path / folder / "m.npz", {"w": np.ones(2)})
    sources = [(find_checkpoint(str(tmp_path / each / "m.npz")), each) for each in "ab"]
    names = names_of_plan(sources, str(tmp_path / "c" / "m.npz"))
    assert names == ["a/m.npz", "b/m.npz", "c/m.npz"]
