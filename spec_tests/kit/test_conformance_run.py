"""A run of the kit under pytest: options, reports, declared failures, and silence until it is asked
for."""

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np
import pytest

import shardvar
from shardvar.conformance import calls as isolated_calls
from shardvar.conformance.adapter import load_adapter
from shardvar.conformance.calls import ProcessDied
from shardvar.conformance.session import levels_of, read_expected
from shardvar.errors import ArgumentError
from spec_tests.helpers import paths, wrong_adapters
from spec_tests.helpers.killed_writers import in_child
from spec_tests.helpers.programs import ENVIRONMENT

WRONG = wrong_adapters.__name__
PLUGIN = ["-p", "shardvar.conformance.plugin", "-p", "no:cacheprovider"]
NUMPY = "shardvar.conformance.adapters.numpy:Adapter"
KIT = ("--pyargs", "shardvar.conformance")
SETTINGS = {"PYTEST_ADDOPTS": "", "COLUMNS": "200"}


def run_anew(
    directory: Path, *arguments: str, python: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run pytest somewhere in a new interpreter, with the wrong adapters and the same shardvar in reach."""
    return subprocess.run(
        [sys.executable, *python, "-m", "pytest", *PLUGIN, *arguments],
        cwd=directory,
        env=ENVIRONMENT | SETTINGS,
        capture_output=True,
        text=True,
        check=False,
    )


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest somewhere in a copy of this process, which has imported all that takes a second to import."""
    program = [*PLUGIN, *arguments]

    def main() -> int:
        os.chdir(directory)
        os.environ.update(ENVIRONMENT | SETTINGS)
        return int(pytest.main(program))

    with (
        TemporaryFile("w+", encoding="utf-8") as out,
        TemporaryFile("w+", encoding="utf-8") as errors,
    ):
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # a worker of xdist has a second thread
            code = in_child(lambda: redirected(main, out, errors))
        for file in (out, errors):
            file.seek(0)
        return subprocess.CompletedProcess(program, code, out.read(), errors.read())


def redirected(main: Callable[[], int], out: IO[str], errors: IO[str]) -> int:
    """Call a function whose output goes into files, also that of processes that it starts."""
    for number, file in ((1, out), (2, errors)):
        os.dup2(file.fileno(), number)
    with (
        open(1, "w", encoding="utf-8", closefd=False) as sys.stdout,
        open(2, "w", encoding="utf-8", closefd=False) as sys.stderr,
    ):
        return main()


def judge(directory: Path, adapter: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(directory, *KIT, "--adapter", adapter, *arguments)


@pytest.mark.smoke
def test_an_adapter_is_judged_level_by_level(tmp_path: Path) -> None:
    reports = ("--conformance-json", "a.json", "--conformance-html", "a.html")
    done = run_anew(tmp_path, *KIT, "--adapter", NUMPY, "-q", "--level", "1", *reports)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 kept, 0 broken, 16 not claimed" in done.stdout
    assert "(no regions) `regions` gives the parts of a grid" in done.stdout
    report = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert report["adapter"] == NUMPY and report["levels"] == {"1": "partitioning"}
    assert report["counts"]["kept"] == 9 and {rule["level"] for rule in report["rules"]} == {1}
    first = report["rules"][0]
    assert (first["id"], first["sentence_id"], first["outcome"], first["rfc"]) == (
        "R-DIV-1",
        "R-DIV-1",
        "kept",
        "000",
    )
    html = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "R-DIV-1" in html and "one more id" in html
    assert {path.name for path in tmp_path.iterdir()} - {".hypothesis"} == {"a.html", "a.json"}


def test_a_breach_is_shown_with_its_program_and_fails_the_run(tmp_path: Path) -> None:
    done = judge(tmp_path, f"{WRONG}:Unstitched", "-k", "R-READ-1", "--conformance-json", "a.json")
    assert done.returncode == 1
    assert "FAILED shardvar.conformance::R-READ-1" in done.stdout and "Traceback" not in done.stdout
    assert "adapter.sparse_read(h1, np.array([1, 0], 'int64'))" in done.stdout
    assert "# It must give np.array([2.0, 1.0], 'float32')." in done.stdout
    rules = {
        rule["id"]: rule
        for rule in json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["rules"]
    }
    assert (
        rules["R-READ-1"]["outcome"] == "broken" and "import numpy" in rules["R-READ-1"]["program"]
    )
    assert rules["R-DIV-1"]["outcome"] == "not run"


def test_declared_failures_are_expected_and_unexpected_passes_fail(tmp_path: Path) -> None:
    """What is declared to be broken in some runs fails none."""
    (tmp_path / "known.txt").write_text(
        "# upstream\nR-READ-1: rows come by shards  # to be mended\n"
        "R-DIV-1 sometimes: files have random names\n"
    )
    rules = "R-READ-1 and not R-READ-1- or R-DIV-1 and not R-DIV-1-"
    known = ("-q", "-k", rules, "--expected-failures", "known.txt")
    for adapter, code, told in (
        (f"{WRONG}:Unstitched", 0, ("1 expected failure", "rows come by shards")),
        (NUMPY, 1, ("1 unexpected pass", "take it off the list")),
    ):
        done = judge(tmp_path, adapter, *known)
        assert done.returncode == code, done.stdout
        for words in (*told, "1 broken in some runs", "random names"):
            assert words in done.stdout


def test_the_adapter_of_the_page_is_judged_as_the_page_says(tmp_path: Path) -> None:
    text = (paths.ROOT / "docs/conformance-kit.md").read_text(encoding="utf-8")
    adapter = next(
        part for part in text.split("```python\n") if "class Adapter:" in part
    ).partition("```")[0]
    (tmp_path / "adapter.py").write_text(
        adapter[adapter.rindex("import numpy") :], encoding="utf-8"
    )
    assert "python -m pytest --pyargs shardvar.conformance --adapter adapter:Adapter" in text
    done = judge(tmp_path, "adapter:Adapter", "-q")
    assert done.returncode == 1 and " 4 broken" in done.stdout, done.stdout
    for excerpt in text.split("```\n"):
        if excerpt.startswith("R-"):
            assert excerpt in done.stdout


def test_a_process_that_damage_ends_has_broken_the_rule(tmp_path: Path) -> None:
    done = judge(tmp_path, f"{WRONG}:Ends", "-q", "-k", "R-DAMAGE-1-truncate")
    assert done.returncode == 1
    assert "restore ended the process that it ran in, with exit code 9" in done.stdout


def test_a_process_that_hangs_is_ended_and_is_no_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolated = isolated_calls.Isolated(wrong_adapters.Hangs(), f"{WRONG}:Hangs")
    tensors, path = {"w": np.ones(3)}, str(tmp_path / "model")
    isolated.save(path, tensors, 1)
    monkeypatch.setattr(isolated_calls, "PATIENCE", 0.5)
    assert np.array_equal(isolated.restore(path, tensors, 1)["w"], tensors["w"])
    (tmp_path / "model.npz").write_bytes(b"")
    with pytest.raises(ProcessDied, match=r"restore did not return within"):
        isolated.restore(path, tensors, 1)
    isolated.close()


def test_rules_are_judged_in_several_processes_too(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    done = judge(tmp_path, NUMPY, "-q", "-n", "2", "--level", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 kept, 0 broken, 16 not claimed" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "none was given. Add --adapter package.module:Name"),
        (("--adapter", NUMPY, "--conformance-json", "no/a.json"), "does not exist"),
        (("--adapter", NUMPY, "--expected-failures", "no.txt"), "no.txt"),
    ],
    ids=["adapter", "report", "declarations"],
)
def test_wrong_usage_is_told_in_a_sentence(
    tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    done = run(tmp_path, *KIT, *arguments)
    assert done.returncode == 4 and told in done.stderr and "Traceback" not in done.stderr


def test_an_adapter_in_the_working_directory_is_found_without_being_installed(
    tmp_path: Path,
) -> None:
    """The command ``pytest`` does not look there by itself; ``-P`` makes ``python -m pytest`` like
    it."""
    (tmp_path / "mine.py").write_text(
        "class A:\n    def div(self, length, num_shards): return []\n", encoding="utf-8"
    )
    asked = ("--pyargs", "shardvar.conformance", "--adapter", "mine:A", "--level", "1")
    done = run_anew(tmp_path, *asked, python=["-P"])
    assert done.returncode == 1 and "R-DIV-1" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("nonesuch.adapter:A", "Cannot import 'nonesuch'"),
        (f"{WRONG}:Nobody", "has no 'Nobody'"),
        (WRONG, "Invalid adapter"),
        (":A", "Invalid adapter"),
    ],
)
def test_an_adapter_that_is_none_is_told_in_a_sentence(spec: str, told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        load_adapter(spec)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            "raise RuntimeError('no GPU')",
            r"adapter 'mine:A': RuntimeError: no GPU \(line 3 of .*mine",
        ),
        ("self.take()", "AttributeError: 'A' object has no attribute 'take'"),
    ],
)
def test_an_adapter_that_cannot_be_constructed_is_told_in_a_sentence(
    body: str, told: str, tmp_path: Path
) -> None:
    """The traceback of pytest, which has fifty lines, does not name the adapter."""
    (tmp_path / "mine.py").write_text(f"class A:\n    def __init__(self):\n        {body}\n")
    done = run(tmp_path, "--pyargs", "shardvar.conformance", "--adapter", "mine:A")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR and re.search(told, done.stderr), (
        done.stdout + done.stderr
    )
    assert "INTERNALERROR" not in done.stdout + done.stderr


SILENT = """
import sys
def test_nothing_is_loaded(pytestconfig):
    assert not any(name.split(".")[0] in ("numpy", "hypothesis") for name in sys.modules)
    loaded = {name for name in sys.modules if name.split(".")[0] == "shardvar"}
    assert loaded == {"shardvar", "shardvar.conformance", "shardvar.conformance.plugin"}
    assert pytestconfig.getoption("--level") == "theirs"
"""
THEIRS = """
def pytest_addoption(parser):
    parser.addoption("--level", default="theirs")
    parser.addoption("--adapter", default="theirs")
"""


@pytest.mark.smoke
def test_the_plugin_is_inert_until_it_is_asked_for(tmp_path: Path) -> None:
    """Nothing is imported, nothing collected, and options of the same names are somebody else's."""
    (tmp_path / "test_theirs.py").write_text(SILENT)
    (tmp_path / "conftest.py").write_text(THEIRS)
    done = run_anew(tmp_path, "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout and "conformance" not in done.stdout


def test_collecting_the_package_finds_no_tests_in_it(tmp_path: Path) -> None:
    """``make test`` runs its doctests, and somebody's pattern may match every file."""
    done = run(
        tmp_path,
        "-q",
        "-o",
        "python_files=*.py",
        "--collect-only",
        str(Path(shardvar.__file__).parent / "wire"),
    )
    assert "no tests" in done.stdout


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("R-DIV-1", "Line 1 gives no reason"),
        ("\nR-DIV-1:", "Line 2 gives no reason"),
        ("R-NONE-1: because", "unknown rule"),
        ("R-DIV-1 often: because", "has 'often' after the rule"),
        ("R-DIV-1 sometimes:", "gives no reason"),
        ("R-DIV-1: because\nR-DIV-1: again", "a second time"),
    ],
)
def test_a_declaration_that_says_nothing_is_refused(text: str, told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        read_expected(text, {"R-DIV-1"})


@pytest.mark.parametrize("text", ["0", "11", "x", "3-2", "-", "1-11"])
def test_a_level_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="Invalid --level"):
        levels_of(text)
