"""The parts of the documentation that are made from the parser and the table of formats: ``make
manual`` writes them.

    docs/cli/index.md     how each command is called, between two comments
    docs/cli/COMMAND.md   the options of a command, between two comments
    docs/cli/json.md      the keys of its JSON
    docs/cli/formats.md   the table of formats
    docs/shardvar.1       the manual page, which the wheel installs
    .pre-commit-hooks.yaml    the endings of the files to verify

A test compares each with what the parser gives now.
"""

import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from shardvar.cli import main
from shardvar.cli.json_keys import INTRODUCTION, KEYS
from shardvar.cli.options import (
    COMMANDS,
    Commands,
    Parser,
    make_parser,
    options_of,
    sections_of,
    usage_of,
)
from shardvar.formats.table import about_format, format_names, names_of_target
from spec_tests.helpers.paths import ROOT

WIDTH = 76
"""The columns of a block in a page: a wider one would be cut off on the site."""

FOLDER = ROOT / "docs" / "cli"
MANUAL = ROOT / "docs" / "shardvar.1"


def parsers() -> dict[str, Parser]:
    found = next(each for each in make_parser()._actions if isinstance(each, Commands))
    return {name: found.choices[name] for name in COMMANDS}


def written() -> Iterator[tuple[Path, str]]:
    """Yield each file that has a generated part, with the text that it should have."""
    for name, parser in parsers().items():
        path = FOLDER / f"{name}.md"
        body = "\n".join(options_of(parser, WIDTH))
        block = f"```text\nusage: {usage_of(parser)}\n\n{body}\n```"
        page = replaced(path.read_text(encoding="utf-8"), "options", block)
        yield path, replaced(page, "table", format_table()) if name == "formats" else page
    path = FOLDER / "index.md"
    usages = "\n".join(map(usage_of, parsers().values()))
    block = f"```text\n{usages}\nshardvar help COMMAND\nshardvar --version\n```"
    yield path, replaced(path.read_text(encoding="utf-8"), "synopsis", block)
    path = FOLDER / "json.md"
    yield path, replaced(path.read_text(encoding="utf-8"), "keys", "\n".join(tables()).strip())
    yield MANUAL, manual()
    path = ROOT / ".pre-commit-hooks.yaml"
    yield path, re.sub("(?m)^  files: .*$", lambda _: f"  files: {hooked()}", path.read_text())


def hooked() -> str:
    """Return a pattern of the files that a commit verifies: with values, or the index of a set.

    A format that needs an extra is left out, and so are endings that other programs use too.
    """
    endings = {".distcp"}.union(
        *(names_of_target("", name)[1:] for name in format_names() if not about_format(name)[1])
    )
    named = "|".join(map(re.escape, sorted(endings - {".index", ".metadata"})))
    return rf"({named})$|\.svdata-\w+-\d{{5}}-of-\d{{5}}$|\.data-\d{{5}}-of-\d{{5}}$"


def format_table() -> str:
    """Return the session that prints the table of formats."""
    out = StringIO()
    with redirect_stdout(out):
        assert main(["formats"]) == 0
    return f"```console\n$ shardvar formats\n{out.getvalue()}```"


def replaced(page: str, name: str, block: str) -> str:
    """Return a page with another text between ``<!-- name -->`` and ``<!-- end of name -->``.

    >>> replaced("# A\\n<!-- x -->\\nold\\n<!-- end of x -->\\n", "x", "new")
    '# A\\n<!-- x -->\\n\\nnew\\n\\n<!-- end of x -->\\n'
    """
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    assert page.count(begin) == page.count(end) == 1, f"the page has no {begin}"
    return page[: page.index(begin)] + f"{begin}\n\n{block}\n\n" + page[page.index(end) :]


def tables() -> Iterator[str]:
    """Yield the lines of the keys of JSON in Markdown: a table for each command."""
    for title, keys in KEYS.items():
        yield from (f"## {title[0].upper()}{title[1:]}" if " " in title else f"## {title}", "")
        yield from ("| key | value |", "|---|---|")
        for key, text in keys.items():
            yield f"| `{key}` | {text.replace('|', chr(92) + '|')} |"
        yield ""


# The manual page, in the macros of man(7).


def manual() -> str:
    """Return the source of the manual page."""
    lines = [
        '.TH SHARDVAR 1 "" shardvar "User Commands"',
        ".SH NAME",
        r"shardvar \- inspect, verify, compare, convert and reshard checkpoints",
        ".SH SYNOPSIS",
        ".B shardvar",
        ".I COMMAND PATH",
        r"[\fIoptions\fR]",
        ".SH DESCRIPTION",
        roff(
            "shardvar reads and writes checkpoints of any framework without the framework. "
            "PATH may also be a URL, such as s3://bucket/run/model."
        ),
        ".SH COMMANDS",
    ]
    for parser in parsers().values():
        lines += list(_of_command(parser))
    lines += list(_of_json())
    lines += list(_ENDING)
    return "\n".join(lines) + "\n"


_ENDING = (
    ".SH EXIT STATUS",
    *(".TP", "0", "Success."),
    *(".TP", "1", "Damage or differences were found, or tensors were left out."),
    *(".TP", "2", "Wrong usage."),
    *(".TP", "3", "The checkpoint cannot be read, or the target cannot be written."),
    *(".TP", "130", "Interrupted."),
    ".SH ENVIRONMENT",
    *(".TP", "NO_COLOR", "If it is set and not empty, nothing is coloured."),
    *(".TP", "SHARDVAR_TRACEBACK", "If it is set, a bug prints its traceback."),
)


def _of_command(parser: Parser) -> Iterator[str]:
    yield from (f'.SS "{roff(usage_of(parser))}"', roff(parser.description or ""))
    for title, rows in sections_of(parser):
        if title:
            yield from (".PP", rf"\fI{roff(title.capitalize())}\fR")
        for name, text in rows:
            yield from (".TP", rf"\fB{roff(name)}\fR", roff(text))
    yield ".PP"
    yield "Examples:"
    for example in (parser.epilog or "").split("\n")[1:]:
        yield from (".PP", ".nf", ".RS", roff(example.strip()), ".RE", ".fi")


def _of_json() -> Iterator[str]:
    yield ".SH JSON"
    for number, paragraph in enumerate(INTRODUCTION):
        if number:
            yield ".PP"
        yield roff(paragraph)
    yield from (".PP", r"\fBshardvar help json\fR prints the keys of each command.")


def roff(text: str) -> str:
    r"""Return a text without anything that roff would take for a request or an escape.

    >>> roff("--a 'b\\1' .c"), roff(".x")
    ('\\-\\-a \\(aqb\\e1\\(aq .c', '\\&.x')
    """
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("`", r"\(ga")
    text = text.replace('"', r"\(dq")
    return re.sub(r"^([.])", r"\\&\1", text)


if __name__ == "__main__":
    for path, text in written():
        path.write_text(text, encoding="utf-8")
