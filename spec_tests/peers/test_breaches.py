"""The scripts that show a framework's breach on the framework alone still show it: a peer that was
fixed is noticed."""

import ast
import json
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
OWN = {"os", "signal", "torch.distributed", "torch.multiprocessing"}
PATIENCE = 240.0
"""Seconds for the scripts of a process, most of which are the import of its framework."""

PROGRAM = """import io, json, runpy, sys, traceback
from contextlib import redirect_stderr, redirect_stdout
for script in sys.argv[1:]:
    out, errors, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(errors):
        try:
            runpy.run_path(script, run_name='__main__')
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
    print(json.dumps([script, code, out.getvalue(), errors.getvalue()]), flush=True)"""
"""Runs scripts in turn, and prints of each its name, its exit code and its two outputs."""

Runs = dict[str, "Future[dict[str, tuple[int, str, str]]]"]


def framework(script: Path) -> str:
    return script.stem.partition("_")[0]


def missing(script: Path) -> list[str]:
    """The modules of a script's framework that are not installed."""
    return FRAMEWORKS[framework(script)].missing()


def imports(script: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(script.read_text(encoding="utf-8"))))
    modules = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return modules | {
        alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
    }


def run(scripts: list[Path]) -> dict[str, tuple[int, str, str]]:
    """Run scripts in one process; return of each its exit code and its outputs."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    program = [str(scripts[0])] if len(scripts) == 1 else ["-c", PROGRAM, *map(str, scripts)]
    done = subprocess.run(
        [sys.executable, *program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    if len(scripts) == 1:
        return {scripts[0].stem: (done.returncode, done.stdout, done.stderr)}
    assert not done.returncode, done.stderr
    answers = map(json.loads, done.stdout.splitlines())
    return {Path(name).stem: (code, out, errors) for name, code, out, errors in answers}


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    """The runs of all scripts, two processes at a time: scripts of a framework share one, unless they
    set up devices, processes or signals."""
    groups: dict[str, list[Path]] = {}
    for script in SCRIPTS:
        if not missing(script):
            name = script.stem if imports(script) & OWN else framework(script)
            groups.setdefault(name, []).append(script)
    with ThreadPoolExecutor(2) as pool:
        futures = {name: pool.submit(run, scripts) for name, scripts in groups.items()}
        yield {script.stem: futures[name] for name, group in groups.items() for script in group}


@pytest.mark.parametrize("script", SCRIPTS, ids=NAMES)
def test_a_script_shows_its_breach_and_the_version(script: Path, runs: Runs) -> None:
    """It ends with 1 by itself, not by an exception, and prints what is wrong with which
    version."""
    if missing(script):
        pytest.skip(f"{', '.join(missing(script))} is not installed")
    code, out, errors = runs[script.stem].result()[script.stem]
    assert "Traceback" not in errors, errors
    assert code != 0, f"It is fixed: take the script away, and run make peers.\n{out}"
    assert code == 1, (code, out, errors)
    version = next(iter(FRAMEWORKS[framework(script)].versions().values()))
    assert version.partition("+")[0] in out, f"It does not print the version {version}: {out}"


@pytest.mark.parametrize("script", SCRIPTS, ids=NAMES)
def test_a_script_is_about_the_framework_alone(script: Path) -> None:
    """It imports no shardvar, and below its docstring, which names the rules, it is as short as
    half a screen."""
    text = script.read_text(encoding="utf-8")
    assert not [each for each in imports(script) if each.partition(".")[0] == "shardvar"]
    assert len(text.splitlines()) - (ast.parse(text).body[0].end_lineno or 0) <= 36
