"""The parser of a command.

argparse prints errors and leaves the process. This parser raises ``Usage`` instead, so that
``main`` prints every error in the same form, for people and as JSON.
"""

import argparse
import re
import sys
from shutil import get_terminal_size
from typing import Any, NoReturn

from shardvar.cli.helptext import help_of
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
