"""Programs that a test starts: `python -m` with the shardvar under test and the modules of
`spec_tests` in reach."""

import os
import subprocess
import sys
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

import shardvar
from spec_tests.helpers.paths import ROOT

ENVIRONMENT = os.environ | {
    # The shardvar under test comes first: it may be an installed one, and the root of the working
    # copy holds another.
    "PYTHONPATH": os.pathsep.join([str(Path(shardvar.__file__).parents[1]), str(ROOT)]),
    # `python -m` would put the working directory before both.
    "PYTHONSAFEPATH": "1",
}
"""The environment of such a program."""


def command_of(module: str, *arguments: object) -> list[str]:
    """The command line that runs a module of `spec_tests`.

    >>> command_of("helpers.killed_writers", "/tmp")[1:]
    ['-m', 'spec_tests.helpers.killed_writers', '/tmp']
    """
    return [sys.executable, "-m", f"spec_tests.{module}", *map(str, arguments)]


def run_together(
    commands: Sequence[Sequence[object]],
    codes: Container[int] | Mapping[int, int] = (0,),
    *,
    more: dict[str, str] | None = None,
) -> list[str]:
    """Run the processes of a job at once; return what each has printed.

    ``codes`` are those with which processes may end, or the code of each place if it is not 0.
    """
    started = [
        subprocess.Popen(
            [*map(str, command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT | (more or {}),
        )
        for command in commands
    ]
    ended = [process.communicate(timeout=300) for process in started]
    for place, process in enumerate(started):
        wanted = [codes.get(place, 0)] if isinstance(codes, Mapping) else codes
        assert process.returncode in wanted, [errors[-3000:] for _, errors in ended]
    return [printed for printed, _ in ended]
