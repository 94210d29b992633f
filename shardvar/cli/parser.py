"""The grammar of the command line: from typed words to arguments, or to help."""

import argparse
from argparse import Namespace
from collections.abc import Sequence

from shardvar import __version__
from shardvar.cli.arguments import Parser, Usage
from shardvar.cli.helptext import ALIASES, COMMANDS, OTHER_WORDS, TOPICS, listed_commands
from shardvar.cli.options import add_commands
from shardvar.cli.rewording import options_first, with_cuts
from shardvar.errors import ArgumentError
from shardvar.pictures.words import similar


def without_alias(words: Sequence[str]) -> list[str]:
    """Return the words with the name of a command in the place of an alias, also after ``help``.

    >>> without_alias(["ls", "model"]), without_alias(["help", "convert"])
    (['inspect', 'model'], ['help', 'reshard'])
    """
    place = 1 if words[:1] == ["help"] else 0
    named = [ALIASES.get(word, word) for word in words[place : place + 1]]
    return [*words[:place], *named, *words[place + 1 :]]


def parse_arguments(words: Sequence[str]) -> Namespace:
    """Return the parsed arguments; raise ``Usage`` if they are wrong or ask for help."""
    words = without_alias(words)
    if not words:
        make_parser().print_help()
        # Help was printed, but nothing was done: scripts must not take that for success.
        raise Usage(2)
    if words[0] == "help":
        if words[1:] and words[1] in TOPICS:
            return Namespace(command="help", topic=words[1])
        words = [*words[1:2], "--help"]
    first = words[0]
    # Checked before argparse does it, which suggests no spelling.
    if first not in COMMANDS and not first.startswith("-"):
        near = [name for name, others in OTHER_WORDS.items() if first.lower() in others]
        near = near or similar(first, COMMANDS)
        listed = f"The commands are {', '.join(COMMANDS)}; `shardvar --help` describes them."
        remedy = f"Did you mean {near[0]!r}?" if near else listed
        raise Usage(2, ArgumentError(f"Unknown command {first!r}.", remedy))
    command = next((word for word in words if word in COMMANDS), "")
    if command and first != command and first not in ("-h", "--help", "--version"):
        remedy = f"Options follow the command, as in `shardvar {command} PATH {first}`."
        raise Usage(2, ArgumentError(f"{first} is before the command.", remedy))
    words = options_first(words) if words[0] == "show" else with_cuts(words)
    return make_parser().parse_args(words)


def make_parser() -> Parser:
    """Return the parser of all commands."""
    parser = Parser(
        prog="shardvar",
        usage="shardvar COMMAND PATH [options]   (`shardvar COMMAND --help` lists them)",
        description="Inspect, verify, compare, convert and reshard checkpoints of any framework."
        f"\n{listed_commands()}",
        epilog="examples:\n"
        "  shardvar inspect runs/ckpt-1200\n"
        "  shardvar reshard ckpt-1200 model.safetensors --filter 'dense/*'\n"
        "exit codes: 0 done; 1 damage or differences; 2 usage; 3 cannot read or write",
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
    parser.add_argument(
        "--version",
        action="version",
        version=f"shardvar {__version__}",
        help=argparse.SUPPRESS,
    )
    commands = parser.add_subparsers(
        dest="command",
        required=True,
        metavar="COMMAND",
        parser_class=Parser,
        help=argparse.SUPPRESS,
        prog="shardvar",
    )
    add_commands(commands)
    return parser
