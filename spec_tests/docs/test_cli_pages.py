"""Tests of what is made from the parser: options in pages, keys of JSON, the manual page."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from shardvar.cli.options import COMMANDS, sections_of
from spec_tests.helpers.cli_pages import MANUAL, WIDTH, parsers, roff, written
from spec_tests.helpers.documents import blocks
from spec_tests.helpers.paths import ROOT

PARTS = dict(written())


@pytest.mark.parametrize("path", PARTS, ids=lambda path: path.name)
def test_a_generated_part_is_current(path: Path) -> None:
    """After a change of the parser, ``make manual`` writes them again."""
    assert path.read_text(encoding="utf-8") == PARTS[path]


def test_each_command_has_a_page_with_its_options() -> None:
    pages = {path.stem: text for path, text in PARTS.items() if path.suffix == ".md"}
    assert pages.keys() == {*COMMANDS, "index", "json"}
    for name, parser in parsers().items():
        block, *_ = blocks(pages[name], "text")
        assert block.body.startswith(f"usage: shardvar {name} ")
        assert max(map(len, block.body.splitlines())) <= WIDTH
        for option in parser._option_string_actions:
            assert f" {option}" in block.body


def test_the_manual_has_every_option_of_every_command() -> None:
    manual = PARTS[MANUAL]
    for parser in parsers().values():
        for _, rows in sections_of(parser):
            for name, text in rows:
                assert f".TP\n\\fB{roff(name)}\\fR\n{roff(text)}\n" in manual


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_the_manual_is_formatted_without_a_warning() -> None:
    command = ["groff", "-man", "-Tascii", "-ww", str(MANUAL)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "" and "print one JSON object" in done.stdout


def test_the_wheel_installs_the_manual() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    shared = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    assert shared == {str(MANUAL.relative_to(ROOT)): "share/man/man1/shardvar.1"}
