"""The scripts that show a framework's breach on the framework alone still show it: a peer that was
fixed is noticed."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from spec_tests.conformance.implementations import BREACHES, IMPLEMENTATIONS

FRAMEWORKS = {one.name: one for one in IMPLEMENTATIONS}
SCRIPTS = sorted(BREACHES.glob("*.py"))
NAMES = [path.stem for path in SCRIPTS]
PATIENCE = 240.0
"""Seconds for a script, most of which are the import of its framework."""

Runs = dict[str, "Future[subprocess.CompletedProcess[str]]"]


def missing(script: Path) -> list[str]:
    """The modules of a script's framework that are not installed."""
    return FRAMEWORKS[script.stem.partition("_")[0]].missing()


def run(script: Path) -> "subprocess.CompletedProcess[str]":
    """Run a script in a process of its own."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(script)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    """The runs of all scripts, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        yield {script.stem: pool.submit(run, script) for script in SCRIPTS if not missing(script)}


@pytest.mark.parametrize("script", SCRIPTS, ids=NAMES)
def test_a_script_shows_its_breach_and_the_version(script: Path, runs: Runs) -> None:
    """It ends with 1 by itself, not by an exception, and prints what is wrong with which
    version."""
    if missing(script):
        pytest.skip(f"{', '.join(missing(script))} is not installed")
    done = runs[script.stem].result()
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode != 0, (
        f"It is fixed: take the script away, and run make peers.\n{done.stdout}"
    )
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    version = next(iter(FRAMEWORKS[script.stem.partition("_")[0]].versions().values()))
    assert version.partition("+")[0] in done.stdout, (
        f"It does not print the version {version}: {done.stdout}"
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=NAMES)
def test_a_script_is_about_the_framework_alone(script: Path) -> None:
    """It imports no shardvar, and below its docstring, which names the rules, it is as short as
    half a screen."""
    text = script.read_text(encoding="utf-8")
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    modules = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    modules |= {
        alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
    }
    assert not [module for module in modules if module.partition(".")[0] == "shardvar"]
    assert len(text.splitlines()) - (tree.body[0].end_lineno or 0) <= 36
