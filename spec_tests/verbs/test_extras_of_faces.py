"""The faces for training loops without their frameworks."""

import subprocess
import sys

import pytest

from spec_tests.helpers.programs import ENVIRONMENT

FRAMEWORKS = {"torch": "PyTorch", "jax": "JAX"}


def run(program: str) -> str:
    """Return what a program prints; it fails if it warns."""
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(
        command, env=ENVIRONMENT, check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_its_error_has_the_command_that_installs_the_framework(name: str) -> None:
    printed = run(
        f"import sys; sys.modules[{name!r}] = None\n"
        "from shardvar.errors import MissingExtra\n"
        f"try:\n    import shardvar.{name}\n"
        "except MissingExtra as error:\n    print(isinstance(error, ImportError), error)"
    )
    needed = FRAMEWORKS[name]
    assert printed.startswith(
        f"True shardvar.{name} needs {needed}, which is not installed. Install"
    )
    assert f"[{name}]" in printed


def test_shardvar_itself_imports_no_framework() -> None:
    program = (
        "import sys, shardvar as sv; sv.save, sv.load; print({'torch', 'jax'} & {*sys.modules})"
    )
    assert run(program) == "set()\n"
