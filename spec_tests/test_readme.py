"""The README does what it says: its commands are run in order, their output compared, its Python executed."""

import io
import os
import re
import runpy
import shlex
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from test_cli import Run, run

from shardvar.cli.parser import VERBS, parse

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CLI = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")

__all__ = ["run"]  # the fixture


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of one language; of none where it is empty."""
    fenced = re.findall(r"^```(.*?)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [body for name, body in fenced if name == language]


def commands(block: str) -> list[tuple[str, str]]:
    """(command, what it prints) of a console block."""
    return re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, flags=re.MULTILINE)


def run_script(words: list[str]) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", words)
        runpy.run_path(str(ROOT / words[0]), run_name="__main__")
    return printed.getvalue()


def test_the_commands_print_what_the_readme_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.chdir(tmp_path)
    done = []
    for block in blocks(README, "console"):
        for command, expected in commands(block):
            program, *words = shlex.split(command)
            if program == "python":
                assert run_script(words) == expected
                continue
            assert program == "shardvar"
            outcome = run(*words)
            assert (outcome.code, outcome.err) == (0, "")
            assert outcome.out == expected, command
            done.append(words[0])
    assert set(done) == set(VERBS) - {"completion", "vectors"}, "every verb that looks at a checkpoint is shown"


def test_the_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(blocks(README, "python")) >= 2
    for block in blocks(README, "python"):
        exec(compile(block, "README.md", "exec"), {})


def test_the_other_commands_exist() -> None:
    """``make`` and ``pip`` cannot be run from a test that they run; that they are there can be seen."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = [line.split("#")[0].split() for block in blocks(README, "") for line in block.splitlines()]
    assert sorted(line[0] for line in lines) == ["make", "make", "pip", "pip", "python"]
    for program, *words in lines:
        if program == "make":
            assert re.search(rf"^{words[0]}:", makefile, flags=re.MULTILINE)
        elif program == "pip":
            assert words in (["install", "."], ["install", '"shardvar[testing]"'])
        else:
            assert words[:2] == ["-m", "pytest"], "test_conformance_run.py runs it"


@pytest.mark.parametrize("page", ["README.md", "docs/cli.md"])
def test_every_link_leads_somewhere(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not os.path.exists(path.parent / link)] == []


def test_every_option_is_documented() -> None:
    import argparse

    from shardvar.cli.parser import make_parser

    actions = next(a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    for verb, parser in actions.choices.items():
        assert f"shardvar {verb} " in CLI
        for action in parser._actions:
            assert all(option in CLI for option in action.option_strings if option not in ("-h", "--help"))


def test_every_key_of_json_is_documented() -> None:
    """The keys that ``test_json_has_the_keys_that_docs_describe`` finds in what is printed, in the page."""
    from shardvar.checkpoint.diff_report import DiffReport, TensorDifference, Unreadable, ValueDifference
    from shardvar.checkpoint.reports import WriteReport
    from shardvar.checkpoint.stats import Statistics
    from shardvar.checkpoint.verify_report import Damage, VerifyReport
    from shardvar.cli.listing import Slice

    names = set(Statistics().to_json()) | {"error", "cause", "remedy", "stats", "stats_error", "fault", "checkpoints"}
    names |= {
        "full_shape",
        "verified",
        "values",
        "writer",
        "metadata",
        "tensors",
        "files",
        "dtype",
        "num_files",
        "equal",
    }
    for kind in (
        *(DiffReport, TensorDifference, Unreadable, ValueDifference, WriteReport, Damage, VerifyReport, Slice),
    ):
        names |= set(kind.__dataclass_fields__)
    assert sorted(name for name in names if f"`{name}`" not in CLI) == []


def test_the_examples_of_the_page_parse() -> None:
    (usage,) = [block for block in blocks(CLI, "") if block.startswith("shardvar inspect")]
    assert {line.split()[1] for line in usage.splitlines() if line.startswith("shardvar")} == {*VERBS, "--version"}
    assert parse(["show", "model", "key", "-1"]).index == "-1"
