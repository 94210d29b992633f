"""Parsers of the pages (blocks, commands, headings, links), and a runner that executes a page from
top to bottom.

A page is a program. In an empty directory, in the order of the page:

- a ``python`` block is executed in the namespace of the blocks above it. If it begins with ``#
  NAME.py``, it is written to that file instead, for a later command to run;
- a ``console`` block has commands after ``$ `` and their output, both streams; ``...`` matches
  anything. A command must exit with 0 unless ``$ echo $?`` follows it.

Blocks without a language show commands that a test cannot run (``make``, ``pip``); a test checks
that the targets, extras and files in them exist.
"""

import doctest
import io
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from shardvar.cli import main
from spec_tests.helpers import paths

ROOT = paths.ROOT
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = [*PAGES, *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"))]

_FENCED = re.compile(r"^(`{3,})(.*?)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+\.py)\n")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    line: int
    """The number of its first line in the page."""
    language: str
    """The word after the opening fence, possibly empty."""
    body: str
    """The lines between the fences."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(text: str, *languages: str) -> list[Block]:
    """The fenced blocks of some languages, or of all."""
    found = [
        Block(text.count("\n", 0, hit.start()) + 2, hit[2].strip(), hit[3])
        for hit in _FENCED.finditer(text)
    ]
    return [block for block in found if not languages or block.language in languages]


def commands(block: str) -> list[tuple[str, str]]:
    """Split a console block into pairs (command, output).

    >>> commands("$ echo a\\na\\n$ true\\n")
    [('echo a', 'a\\n'), ('true', '')]
    """
    return re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, flags=re.MULTILINE)


def command_lines(text: str) -> Iterator[list[str]]:
    """The words of each command line in the blocks without a language, without comments."""
    for block in blocks(text, ""):
        for line in block.body.splitlines():
            words = line.split("  #")[0].split()
            if words:
                yield words


def anchors(text: str) -> set[str]:
    """The names that ``#...`` may refer to in a page: its headings, spelt as in addresses, and its
    anchors.

    >>> sorted(anchors('# The `big` one\\n<a id="r-1"></a>'))
    ['r-1', 'the-big-one']
    """
    headings = re.findall(r"^#+ (.*)$", _FENCED.sub("", text), flags=re.MULTILINE)
    slugs = {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }
    return slugs | set(re.findall(r'<a id="([^"]+)"', text))


def links(text: str) -> list[str]:
    """The targets of a page's links and pictures, without those in code.

    >>> links("[a](b.md#c), ![d](e.png) and `[f](g)`")
    ['b.md#c', 'e.png']
    """
    return re.findall(
        r"\]\(([^()\s]+(?:\([^()]*\))?)\)", re.sub(r"`+[^`\n]+`+", "", _FENCED.sub("", text))
    )


def run_page(text: str) -> int:
    """Run a page in the current directory and return the number of blocks; raise if output differs
    from the page."""
    names: dict[str, Any] = {"__name__": "page"}
    found = blocks(text, "python", "console")
    for block in found:
        file = _FILE.match(block.body)
        if block.language == "console":
            _run_console(block)
        elif file:
            Path(file[1]).write_text(block.body, encoding="utf-8")
        else:
            exec(compile("\n" * (block.line - 1) + block.body, "page", "exec"), names)
    return len(found)


def _run_console(block: Block) -> None:
    told = commands(block.body)
    code = 0
    for number, (command, expected) in enumerate(told):
        if command == "echo $?":
            assert expected == f"{code}\n", (
                f"line {block.line}: {told[number - 1][0]} leaves with {code}"
            )
            continue
        code, printed = run_command(shlex.split(command))
        assert _is_as_told(expected, printed), (
            f"line {block.line}: {command} prints\n{printed}\nand not\n{expected}"
        )
        asked = told[number + 1 : number + 2]
        assert code == 0 or (asked and asked[0][0] == "echo $?"), (
            f"line {block.line}: {command} leaves with {code}"
        )


def _is_as_told(expected: str, printed: str) -> bool:
    return doctest.OutputChecker().check_output(expected, printed, doctest.ELLIPSIS)


def run_command(words: list[str]) -> tuple[int, str]:
    """Run ``shardvar``, a script in ``examples`` or a Python module, and return (exit code,
    output)."""
    if words[:2] == ["python", "-m"]:
        done = subprocess.run(
            [sys.executable, *words[1:]], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        if words[0] == "shardvar":
            return main(words[1:]), printed.getvalue()
        assert words[0] == "python", f"{words[0]} is no program that a page may call"
        with patch("sys.argv", words[1:]):
            script = (
                Path(words[1])
                if Path(words[1]).exists()
                else ROOT / "examples" / Path(words[1]).name
            )
            runpy.run_path(str(script), run_name="__main__")
    return 0, printed.getvalue()
