"""The parser of a command, and the options that several commands have.

argparse prints errors and leaves the process. This parser raises ``Usage`` instead, so that
``main`` prints every error in the same form, for people and as JSON.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from shutil import get_terminal_size
from typing import Any, NoReturn

from shardvar.cli.helptext import ABOUT, help_of
from shardvar.cli.output import is_styled
from shardvar.errors import ArgumentError
from shardvar.pictures.words import similar

_UNKNOWN_OPTION = re.compile(r"unrecognized arguments: (--[^ =]+).*", re.DOTALL)


class Usage(Exception):
    """The end of parsing: help was printed, or the arguments are wrong."""

    def __init__(self, code: int, error: ArgumentError | None = None) -> None:
        super().__init__(code)
        self.code, self.error = code, error


class Parser(argparse.ArgumentParser):
    """A parser that neither prints errors nor exits."""

    def format_help(self) -> str:
        """Return the help, as wide as the terminal and in its colors."""
        return help_of(self, get_terminal_size().columns, is_styled())

    def error(self, message: str) -> NoReturn:
        """Raise ``Usage`` with an error of argparse and a remedy."""
        command = self.prog.removeprefix("shardvar").strip()
        cause = message[:1].upper() + message[1:]
        remedy = (
            self._nearest(message) or f"`{f'shardvar {command}'.strip()} --help` shows the usage."
        )
        raise Usage(2, ArgumentError(f"{cause.rstrip('.')}.", remedy))

    def _nearest(self, message: str) -> str | None:
        """Return a remedy for a misspelt option that is near to a known one."""
        typed = _UNKNOWN_OPTION.fullmatch(message)
        near = similar(typed[1], self._option_string_actions) if typed else []
        return f"Did you mean {near[0]!r}?" if near else None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; report unknown arguments here, where the names of the options are known."""
        parsed, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return parsed, rest

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help or the version. argparse would hide that the output cannot be written."""
        print(message, end="", file=file or sys.stdout)

    def exit(self, status: int = 0, _message: str | None = None) -> NoReturn:
        """Raise ``Usage`` after help or the version was printed."""
        raise Usage(status)


Commands = argparse._SubParsersAction
"""The collection of the commands' parsers, for which argparse has no public name."""

Group = argparse._ArgumentGroup
"""A group of options, for which argparse has no public name either."""

PATH = "a checkpoint: its prefix, index file, folder, or one of its data files"
"""The help of a path."""

# Options that several commands have.


def add_command(
    commands: "Commands[Parser]", name: str, text: str, examples: Sequence[str]
) -> Parser:
    return commands.add_parser(
        name,
        help=ABOUT[name],
        description=text,
        epilog="examples:\n"
        + "\n".join(f"  shardvar {name} {example}".rstrip() for example in examples),
        # An abbreviation in a script would become ambiguous when another option is added.
        allow_abbrev=False,
        add_help=False,
    )


def add_path(parser: Parser, name: str = "path", metavar: str = "PATH") -> None:
    parser.add_argument(name, metavar=metavar, help=PATH)


def add_latest(group: Group, metavar: str = "PATH") -> None:
    group.add_argument(
        "--latest", action="store_true", help=f"take the newest checkpoint in the folder {metavar}"
    )
    group.add_argument(
        "--item", metavar="NAME", help="with --latest: the item NAME of a step that has several"
    )


def add_filter(group: Group) -> None:
    group.add_argument(
        "--filter", metavar="GLOB", action="append", help="only keys that match GLOB (repeatable)"
    )


def add_exclude(group: Group) -> None:
    group.add_argument(
        "--exclude", metavar="GLOB", action="append", help="skip keys that match GLOB (repeatable)"
    )


def add_dequantize(group: Group) -> None:
    group.add_argument(
        "--dequantize",
        action="store_const",
        const=True,
        default=False,
        help="take the numbers of quantised tensors (GGUF, FP8, MXFP4), not their bytes",
    )
    group.add_argument(
        "--dequantize-to",
        metavar="DTYPE",
        dest="dequantize",
        default=False,
        help="the same, as float32, bfloat16 or float16 (default: GGUF float32, others as "
        "config.json says)",
    )


def add_workers(group: Group) -> None:
    group.add_argument(
        "--workers", metavar="N", help="work in N processes (default: a few threads)"
    )
    group.add_argument(
        "--dask", metavar="ADDRESS", help="work on the Dask cluster whose scheduler is at ADDRESS"
    )


def add_output(group: Group) -> None:
    group.add_argument(
        "--json", action="store_true", help="print one JSON object; see `shardvar help json`"
    )
    add_help(group)


def add_help(group: Group) -> None:
    group.add_argument("-h", "--help", action="help", help="print this help")


def add_map(group: Group, what: str) -> None:
    """Add the options of a map."""
    group.add_argument(
        "--map", metavar="MAP", help=f"{what}: a TOML file, or a name that `shardvar maps` lists"
    )
    group.add_argument(
        "--rule",
        metavar="RULE",
        action="append",
        help="a rule, added to the map: 'h.{l}.w[i o] -> layers.{l}.w[o i]' (repeatable)",
    )
    group.add_argument(
        "--size",
        metavar="NAME=N",
        action="append",
        help="the size of an index of the rules (repeatable)",
    )
    group.add_argument("--inverse", action="store_true", help="use the map the other way")
