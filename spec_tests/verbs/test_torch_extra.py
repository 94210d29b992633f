"""The face for PyTorch without PyTorch."""

import subprocess
import sys

from spec_tests.helpers.programs import ENVIRONMENT

WITHOUT = "import sys; sys.modules['torch'] = None\n"


def run(program: str) -> str:
    """Return what a program prints; it fails if it warns."""
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(
        command, env=ENVIRONMENT, check=True, capture_output=True, text=True
    ).stdout


def test_its_error_has_the_command_that_installs_pytorch() -> None:
    printed = run(
        f"{WITHOUT}from shardvar.errors import MissingExtra\n"
        "try:\n    import shardvar.torch\n"
        "except MissingExtra as error:\n    print(isinstance(error, ImportError), error)"
    )
    assert printed.startswith("True shardvar.torch needs PyTorch, which is not installed. Install")
    assert "[torch]" in printed


def test_shardvar_itself_does_not_import_pytorch() -> None:
    assert run("import sys, shardvar as sv; sv.save, sv.load; print('torch' in sys.modules)") == (
        "False\n"
    )
