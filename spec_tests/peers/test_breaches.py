"""The scripts that show a framework's breach on the framework alone still show it: a peer that was fixed is noticed."""

import ast
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from conformance.implementations import BREACHES, IMPLEMENTATIONS

FRAMEWORKS = {one.name: one for one in IMPLEMENTATIONS}
SCRIPTS = sorted(path.name for path in BREACHES.glob("*.py"))
PATIENCE = 240.0


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_shows_its_breach_and_the_version(script: str) -> None:
    """It ends with 1 by itself, not by an exception, and prints what is wrong with which version."""
    framework = FRAMEWORKS[script.partition("_")[0]]
    missing = [module for module in framework.modules if find_spec(module.partition(".")[0]) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(BREACHES / script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode != 0, f"It is fixed: take the script away, and run make peers.\n{done.stdout}"
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    version = next(iter(framework.versions().values()))
    assert version.partition("+")[0] in done.stdout, f"It does not print the version {version}: {done.stdout}"


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_about_the_framework_alone(script: str) -> None:
    """It imports no shardvar, and is as short as a screen."""
    text = (BREACHES / script).read_text(encoding="utf-8")
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = [getattr(node, "module", None) or node.names[0].name for node in nodes]
    assert not [module for module in modules if module.startswith("shardvar")]
    assert len(text.splitlines()) <= 30
