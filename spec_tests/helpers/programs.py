"""Programs that a test starts: `python -m` with the shardvar under test and the modules of
`spec_tests` in reach."""

import os
import sys
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
