"""The text of help, and of the pages and the manual that are made from the parser.

The layout of argparse changes from one version of Python to the next. Here the
arguments and the groups of options are rows of two columns, which fill the width that is given.
"""

import argparse
import re
from collections.abc import Iterator
from textwrap import wrap

_GROUPS = {
    "look and check": {
        "inspect": "list what is inside: tensors, shapes, sizes, shards, files",
        "show": "print the values of a tensor, or of a part of it",
        "view": "write or serve a page for a browser",
        "verify": "compare every checksum, and list what is damaged",
        "diff": "compare two checkpoints of any formats",
        "digest": "print, store or compare a fingerprint of each tensor",
    },
    "change": {
        "reshard": "write it in other shards, files, formats, names or dtypes",
        "delta": "store what changed between two checkpoints",
        "apply": "make the second checkpoint of the first and a delta",
        "maps": "list the maps between model families, or print one",
    },
    "more": {
        "formats": "list the formats, and what each can hold",
        "vectors": "write test vectors for other implementations",
        "completion": "print a script that completes words in a shell",
    },
}
"""The commands in groups, each with a line of the program's help."""

ABOUT = {name: about for group in _GROUPS.values() for name, about in group.items()}
"""The line of each command."""

COMMANDS = tuple(ABOUT)

ALIASES = {"convert": "reshard", "ls": "inspect"}
"""Other names of commands, which do the same."""

TOPICS = {"json": "describe the keys of --json"}
"""Topics that ``shardvar help`` describes in addition to the commands."""

OTHER_WORDS = {
    "inspect": "cat dump info list stat summary tree".split(),
    "show": "get print values".split(),
    "view": "browse plot serve".split(),
    "verify": "check fsck test validate".split(),
    "diff": "cmp compare".split(),
    "digest": "checksum fingerprint hash sha256".split(),
    "delta": "changes compact incremental".split(),
    "apply": "patch update".split(),
    "reshard": "cast consolidate cp export join merge rename split unshard".split(),
}
"""Words that people type for a command, which the error then suggests."""

_WIDEST = 100
"""The most columns that help fills."""
_FIRST = 26
"""The most columns of names of options; a longer one is alone on its line."""
_NARROW = 60
"""The columns of a terminal below which names of options are alone on their line."""
_INDENT = 6
"""The place of the texts of options in a narrow terminal."""
_BETWEEN = 2
_UNDER = " " * 14
"""The place of the second line of what is said of a command: after the longest name."""

Row = tuple[str, str]
"""An argument or option as it is typed, and its help."""


def help_of(parser: argparse.ArgumentParser, columns: int, is_styled: bool = False) -> str:
    """Return the help of a command: usage, description, arguments, options, examples.

    With ``is_styled``, it has the codes of a terminal for bold titles and cyan names.
    """
    width = min(columns, _WIDEST)
    parts = [f"usage: {usage_of(parser)}", *_filled(parser.description or "", width)]
    parts += ["\n".join(options_of(parser, width))] if sections_of(parser) else []
    text = "\n\n".join([*parts, *_filled(parser.epilog or "", width)]) + "\n"
    return _NAME.sub(_CYAN, _TITLE.sub(_BOLD, text)) if is_styled else text


_TITLE = re.compile(
    rf"^(usage(?=:)|exit codes(?=:)|[a-z]+(?=:$)|{'|'.join(_GROUPS)})", re.MULTILINE
)
"""The title of a part of help."""
_NAME = re.compile(
    rf"^  ((?:{'|'.join(ABOUT)})(?=  )|-[^ ,\n]*(?:, --[^ \n]+)?|[A-Z]+(?=  ))", re.MULTILINE
)
"""A command, an option or an argument at the beginning of its row."""
_BOLD, _CYAN = "\x1b[1m\\1\x1b[0m", "  \x1b[36m\\1\x1b[0m"


def usage_of(parser: argparse.ArgumentParser) -> str:
    """Return the command with its arguments, and ``[options]`` for all that may be left out.

    It is the ``usage`` of the parser if it has one.
    """
    if parser.usage:
        return parser.usage
    arguments = [_argument(each) for each in parser._get_positional_actions()]
    required = [_invocation(each) for each in parser._get_optional_actions() if each.required]
    return " ".join([parser.prog, *required, *arguments, "[options]"])


def _argument(action: argparse.Action) -> str:
    name = _value(action)
    return {"?": f"[{name}]", "+": f"{name}..."}.get(str(action.nargs), name)


def _value(action: argparse.Action) -> str:
    """Return what is typed for an argument, or after an option."""
    return "|".join(action.choices) if action.choices else str(action.metavar or "")


def _invocation(action: argparse.Action) -> str:
    """Return an option as it is typed: ``-o, --output FILE``."""
    names = ", ".join(sorted(action.option_strings, key=len))
    return names if action.nargs == 0 else f"{names} {_value(action)}"


def sections_of(parser: argparse.ArgumentParser) -> list[tuple[str, list[Row]]]:
    """Return the arguments, under an empty title, and each group of options under its own."""
    sections = []
    for group in parser._action_groups:
        shown = [each for each in group._group_actions if each.help != argparse.SUPPRESS]
        rows = [
            (_invocation(each) if each.option_strings else _value(each), each.help or "")
            for each in shown
        ]
        if rows:
            sections.append((group.title or "" if shown[0].option_strings else "", rows))
    return sections


def options_of(parser: argparse.ArgumentParser, width: int) -> Iterator[str]:
    """Yield the lines of arguments and options, in two columns, below the titles of groups."""
    sections = sections_of(parser)
    names = [len(name) + 2 + _BETWEEN for _, rows in sections for name, _ in rows]
    column = max(each for each in names if each <= _FIRST) if width >= _NARROW else _INDENT
    for number, (title, rows) in enumerate(sections):
        if number:
            yield ""
        if title:
            yield f"{title}:"
        for row in rows:
            yield from row_lines(row, column, width)


def row_lines(row: Row, column: int, width: int) -> Iterator[str]:
    """Yield the lines of one row, whose text begins at a column; a long name has its own line."""
    head, text = f"  {row[0]}", row[1]
    if len(head) + _BETWEEN > column:
        yield head
        head = ""
    for line in wrap(text, width - column, break_long_words=False, break_on_hyphens=False):
        yield f"{head:<{column}}{line}"
        head = ""


def _filled(text: str, width: int) -> Iterator[str]:
    """Yield paragraphs filled to a width; lines of lists one by one, and examples as they are."""
    for paragraph in filter(None, text.split("\n\n")):
        lines = (
            [line]
            if paragraph.startswith("examples:") and line.startswith(" ")
            else wrap(line, width, subsequent_indent=_UNDER * line.startswith(" "))
            for line in paragraph.split("\n")
        )
        yield "\n".join(line for each in lines for line in each)


def listed_commands() -> str:
    """Return the commands in their groups, a line for each."""
    lines = []
    for group, commands in _GROUPS.items():
        lines += [group, *(f"  {name:<10}  {about}" for name, about in commands.items())]
    return "\n".join(lines)
