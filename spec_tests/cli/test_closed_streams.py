"""Standard streams that the caller has closed, as cron jobs and daemons do, and full ones: a code,
and no traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

from spec_tests.helpers.command_line import saved
from spec_tests.helpers.programs import ENVIRONMENT
from spec_tests.helpers.thoroughness import phase, stride

VERBS = {
    "inspect model": 3,
    "show model step": 3,
    "view model -o page.html": 3,
    "verify model": 3,
    "diff model model": 3,
    "reshard model other --dry-run": 3,
    "reshard model other": 3,
    "completion bash": 3,
    "verify nothing": 3,
    "verify nothing --json": 3,
    "verify": 2,
    "verify --json": 2,
    "verify --help": 3,
    "--version": 3,
}
"""Each command with its code if its result cannot be printed."""


def execute(directory: Path, words: str, redirected: str) -> "subprocess.CompletedProcess[str]":
    shell = [
        "sh",
        "-c",
        f'exec "$@" {redirected}',
        "sh",
        sys.executable,
        "-m",
        "shardvar",
        *words.split(),
    ]
    return subprocess.run(
        shell, capture_output=True, text=True, env=ENVIRONMENT, cwd=directory, check=False
    )


@pytest.mark.sample(7)
@pytest.mark.parametrize("redirected", [">&-", ">/dev/full"])
@pytest.mark.parametrize("words", VERBS)
def test_a_result_that_cannot_be_printed_is_an_error(
    words: str, redirected: str, tmp_path: Path
) -> None:
    saved(tmp_path)
    done = execute(tmp_path, words, redirected)
    assert (done.returncode, done.stdout) == (VERBS[words], "")
    assert not any(
        text in done.stderr for text in ("Traceback", "bug in shardvar", "Exception ignored")
    )
    assert not done.stderr or (done.stderr.startswith("error: ") and "\nhint: " in done.stderr)


def test_notes_may_be_lost(tmp_path: Path) -> None:
    """Where standard error is closed or full, the code and the result are those of any other
    day."""
    saved(tmp_path)
    for redirected in ("2>&-", "2>/dev/full", "2>&- <&-")[phase(3) :: stride(3)]:
        assert execute(tmp_path, "verify model", redirected).stdout.startswith("ok: ")
        assert execute(tmp_path, "verify nothing", redirected).returncode == 3
    assert execute(tmp_path, "verify model", ">&- 2>&- <&-").returncode == 3


def test_notes_that_are_lost_do_not_change_the_code_when_the_program_ends(tmp_path: Path) -> None:
    """Python writes what a stream has kept once more at its end: from 3.14 on, standard error keeps
    what failed."""
    program = (
        "import sys; from shardvar.cli import main; sys.stderr = open('/dev/full', 'w'); "
        "code = main(['verify', 'none']); sys.stderr.flush(); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=ENVIRONMENT, cwd=tmp_path, check=False
    )
    assert done.returncode == 3


def test_what_is_written_does_not_land_in_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    """A file that is opened gets the lowest free number, which was that of standard output."""
    saved(tmp_path)
    assert execute(tmp_path, "reshard model other", ">&- 2>&- <&-").returncode == 3
    assert execute(tmp_path, "diff model other", "").returncode == 0
