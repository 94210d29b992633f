"""Tab completes what the parser takes and what the checkpoint holds, in each shell, and never
complains."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from shardvar.cli.completion import _PAIRS, MANY, SCRIPTS, candidates
from shardvar.cli.main import main
from shardvar.cli.options import Commands, make_parser

KEYS = ["dense/bias", "dense/kernel", "odd name $HOME'\"", "step"]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A checkpoint in the working directory."""
    monkeypatch.chdir(tmp_path)
    sv.save("model", {key: np.zeros(3, np.float32) for key in KEYS})
    return "model"


def words(*typed: str) -> list[str]:
    return [line.partition("\t")[0] for line in candidates(typed)]


@pytest.mark.parametrize("option", ["--rename", "--concat", "--cast", "--shards"])
def test_a_key_of_a_pair_is_completed_up_to_its_sign(option: str, model: str) -> None:
    """A key alone is a valid value of none of these options, and what follows it is not a key."""
    assert words("reshard", model, "new", option, "de") == [f"{key}=" for key in KEYS[:2]]
    assert (
        words("reshard", model, "new", option, "dense/bias=")
        == words("reshard", model, "new", option, "2")
        == []
    )
    assert words("reshard", model, "new", option, "dense/bias", "=", "2") == []
    parser = next(
        action for action in make_parser()._actions if isinstance(action, Commands)
    ).choices["reshard"]
    assert next(each for each in parser._actions if option in each.option_strings).metavar in _PAIRS


def test_words_that_bash_breaks_at_a_sign_are_whole(model: str) -> None:
    assert words("reshard", "a", "b", "--format", "=", "sa") == ["safetensors"]
    assert words("show", "--verify", "=", "full", model, "st") == ["step"]
    assert words("show", model, "step", "--verify", "=") == ["auto", "full"]
    assert words("=") == []


def test_of_many_keys_with_dots_the_modules_are_offered(tmp_path: Path) -> None:
    """Keys of PyTorch and Hugging Face have dots where others have slashes."""
    layers = {f"model.layers.{n % 3}.w{n}": np.float32(n) for n in range(3 * MANY)}
    sv.save(tmp_path / "m", layers | {"lm_head": np.float32(1)})
    path = str(tmp_path / "m")
    assert words("inspect", path, "--filter", "") == ["lm_head", "model."]
    assert words("inspect", path, "--filter", "model.") == ["model.layers."]
    assert words("inspect", path, "--filter", "model.layers.") == [
        f"model.layers.{n}." for n in range(3)
    ]
    assert len(words("inspect", path, "--filter", "model.layers.1.")) == MANY
    assert words("reshard", path, "out", "--rename", "") == ["lm_head=", "model."]


@pytest.mark.parametrize(
    "typed", [["show", "absent", ""], ["inspect", ""], ["nonsense", ""], ["show", "", "x"], []]
)
def test_where_nothing_can_be_said_nothing_is(
    typed: list[str], model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (Path.cwd() / "broken.svindex").write_bytes(b"no index")
    for line in (typed, ["show", "broken", ""], ["show", "\0", ""]):
        assert main(["__complete", *line]) == 0
        out, err = capsys.readouterr()
        assert err == "" and (out == "" or not line)


def test_a_key_that_could_move_the_cursor_is_not_offered(tmp_path: Path) -> None:
    path = str(tmp_path / "odd")
    sv.save(path, {"plain": np.zeros(1), "a\x1b[31m": np.zeros(1), "two\nlines": np.zeros(1)})
    assert words("show", path, "") == ["plain"]


@pytest.mark.parametrize("shell", SCRIPTS)
def test_each_shell_finds_its_script_without_fault(
    shell: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert script == SCRIPTS[shell]
    done = run_shell(shell, ["-n"], script)
    assert (done.returncode, done.stderr) == (0, "")


BASH = """
source <(shardvar completion bash)
press() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); compopt() { :; }; _shardvar; printf '%s\\n' "${COMPREPLY[@]}"; }
press shardvar insp
press shardvar show model dense/
press shardvar show model odd
press shardvar reshard model new --cast st
"""

FISH = """
shardvar completion fish | source
complete -C 'shardvar insp' | string split -f1 \\t
complete -C 'shardvar show model dense/'
complete -C 'shardvar show model odd'
"""


def test_bash_completes_and_quotes(model: str) -> None:
    lines = run_shell("bash", [], BASH).stdout.split("\n")
    assert lines[:3] == ["inspect", "dense/bias", "dense/kernel"]
    quoted = subprocess.run(
        ["bash", "-c", f"printf %s {lines[3]}"], capture_output=True, text=True, check=True
    )
    assert quoted.stdout == KEYS[2]
    assert lines[4] == "step="


def test_fish_completes(model: str) -> None:
    assert run_shell("fish", [], FISH).stdout.splitlines() == [
        "inspect",
        "dense/bias",
        "dense/kernel",
        KEYS[2],
    ]


def run_shell(shell: str, options: list[str], script: str) -> "subprocess.CompletedProcess[str]":
    """A script in a shell that finds the command ``shardvar`` of this tree."""
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed, so its completion was not tried")
    bin_directory = Path.cwd() / "bin"
    bin_directory.mkdir(exist_ok=True)
    command = bin_directory / "shardvar"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m shardvar "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{bin_directory}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(sv.__file__).parents[1]),
        "HOME": str(Path.cwd()),
    }
    (Path.cwd() / "script").write_text(script, encoding="utf-8")
    return subprocess.run(
        [found, *options, "script"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
