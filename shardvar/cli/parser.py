"""The grammar of the command line: commands, options, and their help, which fits a screen and ends
in examples.

argparse prints errors and leaves the process; this parser raises ``Usage`` instead, so that
``main`` prints every error in the same form, for people and as JSON.
"""

import argparse
import re
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any, NoReturn

from shardvar import __version__
from shardvar.cli.helptext import ABOUT, COMMANDS, OTHER_WORDS, HelpText, listed_commands
from shardvar.cli.rewording import options_first, with_cuts
from shardvar.errors import ArgumentError
from shardvar.pictures.words import similar

_PATH = "a checkpoint: prefix, index file, directory, or one of its data files"
_DEQUANTIZE = "quantised blocks (GGUF) as the numbers that they stand for, in float32"
_UNKNOWN_OPTION = re.compile(r"unrecognized arguments: (--[^ =]+).*", re.DOTALL)


class Usage(Exception):
    """The end of parsing: help was printed, or the arguments are wrong."""

    def __init__(self, code: int, error: ArgumentError | None = None) -> None:
        super().__init__(code)
        self.code, self.error = code, error


class Parser(argparse.ArgumentParser):
    """A parser that neither prints errors nor exits."""

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
        """Parse; report unknown arguments here, since the parser of a command knows the names of
        its options."""
        parsed, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return parsed, rest

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help or the version. argparse's method ignores an output that cannot be written."""
        print(message, end="", file=file or sys.stdout)

    def exit(self, status: int = 0, _message: str | None = None) -> NoReturn:
        """Raise ``Usage`` after help or the version was printed."""
        raise Usage(status)


def parse_arguments(words: Sequence[str]) -> Namespace:
    """Return the parsed arguments; ``Usage`` where they are wrong or ask for help."""
    if not words:
        make_parser().print_help()
        # Help was printed, but nothing was done: scripts must not take that for success.
        raise Usage(2)
    if words[0] == "help":
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
    return make_parser().parse_args(
        options_first(list(words)) if words[0] == "show" else with_cuts(words)
    )


def make_parser() -> Parser:
    """Return the parser of all commands."""
    parser = Parser(
        prog="shardvar",
        usage="shardvar COMMAND PATH [options]   (`shardvar COMMAND --help` lists them)",
        description="Inspect, verify, compare, convert and reshard checkpoints of any framework.\n\n"
        f"{listed_commands()}",
        epilog="examples:\n"
        "  shardvar inspect runs/ckpt-1200\n"
        "  shardvar reshard ckpt-1200 model.safetensors --filter 'dense/*'\n\n"
        "exit codes: 0 done; 1 damage or differences; 2 usage; 3 cannot read or write",
        formatter_class=HelpText,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
    parser.add_argument(
        "--version", action="version", version=f"shardvar {__version__}", help=argparse.SUPPRESS
    )
    commands = parser.add_subparsers(
        dest="command",
        required=True,
        metavar="COMMAND",
        parser_class=Parser,
        help=argparse.SUPPRESS,
        prog="shardvar",
    )
    for add in (
        _add_inspect, _add_show, _add_view, _add_verify, _add_diff, _add_digest, _add_reshard, _add_formats,
        _add_vectors, _add_completion,
    ):  # fmt: skip
        add(commands)
    return parser


Commands = argparse._SubParsersAction
"""The collection of the commands' parsers, for which argparse has no public name."""


def _add_command(
    commands: "Commands[Parser]", name: str, text: str, examples: Sequence[str]
) -> Parser:
    parser = commands.add_parser(
        name,
        help=ABOUT[name],
        description=text[:1].upper() + text[1:] + ".",
        epilog="examples:\n"
        + "\n".join(f"  shardvar {name} {example}".rstrip() for example in examples),
        formatter_class=HelpText,
        # An abbreviation in a script would become ambiguous when another option is added.
        allow_abbrev=False,
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, described in docs/cli.md"
    )
    return parser


def _add_path(parser: Parser, name: str = "path", metavar: str = "PATH") -> None:
    parser.add_argument(name, metavar=metavar, help=_PATH)
    parser.add_argument(
        "--latest", action="store_true", help=f"the newest checkpoint in the folder {metavar}"
    )


def _add_inspect(commands: "Commands[Parser]") -> None:
    parser = _add_command(
        commands,
        "inspect",
        "list the tensors of a checkpoint: keys, dtypes, shapes, sizes, slices, files",
        [
            "model",
            "model.index --filter 'dense*' --slices",
            "model.safetensors --sort size --stats",
        ],
    )
    _add_path(parser)
    parser.add_argument(
        "--filter",
        metavar="GLOB",
        action="append",
        help="only keys that match GLOB; may be repeated",
    )
    parser.add_argument(
        "--slices", action="store_true", help="list each slice: its region, size, file and offset"
    )
    parser.add_argument(
        "--stats", action="store_true", help="compute min, max, mean, std, NaNs (reads all values)"
    )
    parser.add_argument(
        "--fail-on",
        metavar="LIST",
        help="with --stats: exit with 1 for any of nan, inf, zero, constant (nan,inf)",
    )
    parser.add_argument("--depth", metavar="N", help="no more than N levels of the tree")
    parser.add_argument(
        "--sort", choices=("name", "size"), default="name", help="size: the largest tensors first"
    )
    parser.add_argument("--brief", action="store_true", help="print the totals alone")
    parser.add_argument(
        "--all", action="store_true", help="fold nothing, and name every tensor that cannot be read"
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="also print writer, policy, metadata, dtypes"
    )


def _add_show(commands: "Commands[Parser]") -> None:
    parser = _add_command(
        commands,
        "show",
        "print the values of a tensor",
        ["model dense/bias", "model embedding '3:7, 0'", "model embedding '-1' --verify full"],
    )
    _add_path(parser)
    parser.add_argument("key", metavar="KEY", help="the name of the tensor")
    parser.add_argument(
        "index",
        metavar="INDEX",
        nargs="?",
        default="",
        help="a NumPy basic index, in quotes: '3:7, 0'",
    )
    parser.add_argument(
        "--verify",
        choices=("auto", "full"),
        default="auto",
        help="full: read and verify the whole tensor where the format has no checksums of parts",
    )
    parser.add_argument("--dequantize", action="store_true", help=_DEQUANTIZE)


def _add_view(commands: "Commands[Parser]") -> None:
    parser = _add_command(
        commands,
        "view",
        "write a page for a browser that shows a checkpoint: sizes of tensors, their regions, "
        "layout of files",
        ["model --open", "model -o report.html --stats", "big.index --filter 'layer_0/*'"],
    )
    _add_path(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the page; replaces only such a page (default: PATH.html)",
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument(
        "--serve", action="store_true", help="serve the page here alone; it reads values when asked"
    )
    parser.add_argument(
        "--filter",
        metavar="GLOB",
        action="append",
        help="only keys that match GLOB; may be repeated",
    )
    parser.add_argument(
        "--stats", action="store_true", help="compute statistics and histograms (reads all values)"
    )


def _add_workers(parser: Parser) -> None:
    parser.add_argument(
        "--workers", metavar="N", help="work in N processes (default: a few threads)"
    )
    parser.add_argument(
        "--dask", metavar="ADDRESS", help="work on the Dask cluster of the scheduler at ADDRESS"
    )


def _add_verify(commands: "Commands[Parser]") -> None:
    parser = _add_command(
        commands,
        "verify",
        "check every checksum, region and file of a checkpoint",
        ["model", "runs/7/ckpt-1200.index --filter 'model/*'", "model.safetensors --json"],
    )
    parser.add_argument(
        "path", metavar="PATH", nargs="+", help=_PATH + "; several are verified one by one"
    )
    parser.add_argument(
        "--latest", action="store_true", help="the newest checkpoint in the folder PATH"
    )
    parser.add_argument(
        "--filter",
        metavar="GLOB",
        action="append",
        help="only keys that match GLOB; may be repeated",
    )
    parser.add_argument(
        "--exclude",
        metavar="GLOB",
        action="append",
        help="not the keys that match GLOB; repeatable",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="print nothing of checkpoints that are right"
    )
    parser.add_argument(
        "--all", action="store_true", help="name every tensor that is damaged, and every problem"
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit with 1 if a tensor has no checksum in its format",
    )
    parser.add_argument(
        "--against", metavar="FILE", help="compare with this manifest, not with the one beside PATH"
    )
    _add_workers(parser)


def _add_diff(commands: "Commands[Parser]") -> None:
    parser = _add_command(
        commands,
        "diff",
        "compare two checkpoints; their formats and slices may differ",
        [
            "model model-tf",
            "before.safetensors after.npz --json",
            "monday tuesday --html difference.html",
        ],
    )
    parser.add_argument("a", metavar="A", help=_PATH)
    parser.add_argument("b", metavar="B", help="the checkpoint to compare with")
    parser.add_argument(
        "--filter",
        metavar="GLOB",
        action="append",
        help="only keys that match GLOB; may be repeated",
    )
    parser.add_argument(
        "--exclude",
        metavar="GLOB",
        action="append",
        help="not the keys that match GLOB; repeatable",
    )
    parser.add_argument(
        "--rename", metavar="OLD=NEW", action="append", help="the name in B of a key of A, or by *"
    )
    parser.add_argument(
        "--rtol",
        metavar="R",
        type=float,
        help="elements may differ by R times the magnitude of B's",
    )
    parser.add_argument("--atol", metavar="A", type=float, help="elements may differ by A")
    parser.add_argument(
        "--close", action="store_true", help="with the tolerances of torch.testing.assert_close"
    )
    parser.add_argument(
        "--ignore-dtype", action="store_true", help="compare values, and not dtypes"
    )
    parser.add_argument(
        "--sort",
        choices=("index", "change"),
        help="in the order of A (default of lists), or the largest change first",
    )
    parser.add_argument(
        "--all", action="store_true", help="fold nothing: a line for each tensor, with all figures"
    )
    parser.add_argument("--summary", action="store_true", help="print the first line alone")
    parser.add_argument(
        "--html", metavar="FILE", help="also write a page that shows both side by side"
    )
    parser.add_argument(
        "--stats",
        action="store_true",
        help="with --html: histograms of what differs (reads it anew)",
    )
    _add_workers(parser)


def _add_digest(commands: "Commands[Parser]") -> None:
    parser = _add_command(
        commands,
        "digest",
        "print 32 bytes for each tensor that depend on key, dtype, shape and values alone, not "
        "on format or files",
        ["model", "model --write", "model.safetensors --against model.sha256"],
    )
    _add_path(parser)
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--write",
        action="store_true",
        help="keep the digests beside PATH, where verify compares them",
    )
    action.add_argument(
        "--against", metavar="FILE", help="compare with such a manifest; exit with 1 if they differ"
    )
    parser.add_argument(
        "--force", action="store_true", help="replace the manifest that --write finds"
    )
    _add_workers(parser)


def _add_reshard(commands: "Commands[Parser]") -> None:
    parser = _add_command(
        commands,
        "reshard",
        "rewrite a checkpoint with other slices, other files, or in another format",
        [
            "model model.safetensors --rename 'dense/*=head/*'",
            "model ranks --mesh tp=4 --shards '*.w=tp,-' --dry-run",
            "model model-tf --format tensorflow --files 4 --dry-run",
        ],
    )
    parser.usage = "shardvar reshard SRC... DST [options]"  # the list of the options is long enough
    parser.add_argument("source", metavar="SRC", nargs="+", help="a checkpoint, or several to join")
    parser.add_argument(
        "--latest", action="store_true", help="the newest checkpoint in the folder SRC"
    )
    parser.add_argument(
        "target", metavar="DST", help="the new checkpoint; its ending may select the format"
    )
    parser.add_argument(
        "--format",
        metavar="NAME",
        help="shardvar, torch, safetensors, npz, ... (default: by DST, or as SRC)",
    )
    _add_cuts(parser)
    _add_names(parser)
    _add_conversions(parser)
    _add_writing(parser)


def _add_conversions(parser: Parser) -> None:
    parser.add_argument(
        "--concat",
        metavar="GLOB=AXIS",
        action="append",
        help="join the parts that several SRC hold, along AXIS",
    )
    parser.add_argument(
        "--transpose", metavar="GLOB", action="append", help="exchange the axes of matrices"
    )
    parser.add_argument(
        "--cast",
        metavar="[GLOB=]DTYPE",
        action="append",
        help="convert the dtype of new keys that match GLOB, or of all float tensors",
    )
    parser.add_argument("--dequantize", action="store_true", help=_DEQUANTIZE)


def _add_writing(parser: Parser) -> None:
    _add_workers(parser)
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="leave out tensors that cannot be read; exit with 1",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be written, and write nothing"
    )
    parser.add_argument(
        "--html", metavar="FILE", help="with --dry-run: write a page of old and new"
    )
    parser.add_argument(
        "--force", action="store_true", help="replace DST, in one step unless a safetensors set"
    )
    parser.add_argument(
        "--verify", action="store_true", help="read the new checkpoint back and verify it"
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="also print the policy that chose the files"
    )


def _add_cuts(parser: Parser) -> None:
    """Add the options that cut tensors and choose their files."""
    files = parser.add_mutually_exclusive_group()
    files.add_argument(
        "--max-file-size",
        metavar="SIZE",
        help="fill files up to SIZE payload bytes: 64MB, 64MiB, 4096",
    )
    files.add_argument("--files", metavar="N", help="balance the bytes over N files")
    files.add_argument(
        "--files-by",
        choices=("device",),
        help="a file for each device of --mesh, or for each of the N --shards",
    )
    parser.add_argument(
        "--mesh", metavar="AXIS=N,..", help="axes of a mesh of devices, for --shards: dp=2,tp=4"
    )
    parser.add_argument(
        "--shards",
        metavar="[GLOB=]CUT",
        action="append",
        help="N slices along axis 0, or by axes of --mesh: tp,-; GLOB is of new keys",
    )


def _add_names(parser: Parser) -> None:
    """Add the options that select keys and give them other names."""
    parser.add_argument(
        "--filter",
        metavar="GLOB",
        action="append",
        help="only keys that match GLOB; may be repeated",
    )
    parser.add_argument(
        "--exclude",
        metavar="GLOB",
        action="append",
        help="not the keys that match GLOB; repeatable",
    )
    parser.add_argument(
        "--strip-prefix", metavar="P", help="drop P from the beginning of keys that have it"
    )
    parser.add_argument(
        "--rename",
        metavar="OLD=NEW",
        action="append",
        help="rename a key, or keys by * or 're:REGEX'; repeatable",
    )
    parser.add_argument(
        "--rename-file", metavar="FILE", help="a TOML file of such names: 'old' = 'new'"
    )
    parser.add_argument(
        "--add-prefix", metavar="P", help="put P before every key, after the other names"
    )


def _add_formats(commands: "Commands[Parser]") -> None:
    text = (
        "list the formats: which are written, which hold slices, what a bucket promises, which "
        "extra they need"
    )
    _add_command(commands, "formats", text, ["", "--json"])


def _add_vectors(commands: "Commands[Parser]") -> None:
    parser = _add_command(
        commands,
        "vectors",
        "write test vectors for other implementations: JSON, sample checkpoints, a README",
        ["--out vectors", "--out vectors --force --json"],
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        required=True,
        help="a directory that is empty or does not exist yet",
    )
    parser.add_argument(
        "--force", action="store_true", help="write into one that is not empty; removes nothing"
    )


def _add_completion(commands: "Commands[Parser]") -> None:
    parser = commands.add_parser(
        "completion",
        help=ABOUT["completion"],
        description="Print a script that makes a shell complete commands, options and the keys of "
        "checkpoints.",
        epilog="examples:\n"
        "  source <(shardvar completion bash)       # this shell; in ~/.bashrc, every one\n"
        "  shardvar completion zsh > ~/.zfunc/_shardvar    # a directory of your $fpath\n"
        "  shardvar completion fish > ~/.config/fish/completions/shardvar.fish",
        formatter_class=HelpText,
        allow_abbrev=False,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
