"""The words that the command line knows. Each verb's help fits a screen and ends in examples."""

import argparse
import re
from argparse import Namespace
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any, NoReturn

from shardvar import __version__
from shardvar.errors import ArgumentError

VERBS = ("inspect", "show", "view", "verify", "diff", "reshard", "vectors", "completion")

_PATH = "a checkpoint: prefix, index file, directory, or one of its data files"
_UNKNOWN_OPTION = re.compile(r"unrecognized arguments: (--[^ =]+).*", re.DOTALL)
_NEGATIVE_INDEX = re.compile(r"-[0-9:][0-9:,. +-]*")


class Usage(Exception):
    """Parsing ended: with help that was printed, or with an error in what was typed."""

    def __init__(self, code: int, error: ArgumentError | None = None) -> None:
        super().__init__(code)
        self.code, self.error = code, error


class HelpText(argparse.HelpFormatter):
    """Paragraphs are filled to the width of the terminal; those that list examples stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        paragraphs = text.split("\n\n")
        return "\n\n".join(each if each.startswith("examples:") else fill(each, width, indent) for each in paragraphs)


class Parser(argparse.ArgumentParser):
    """A parser that neither prints errors nor exits."""

    def error(self, message: str) -> NoReturn:
        """An error in what was typed."""
        verb = self.prog.removeprefix("shardvar").strip()
        cause = message[:1].upper() + message[1:]
        remedy = self._nearest(message) or f"`{f'shardvar {verb}'.strip()} --help` shows how."
        raise Usage(2, ArgumentError(f"{cause.rstrip('.')}.", remedy))

    def _nearest(self, message: str) -> str | None:
        """What a misspelt option may have meant."""
        typed = _UNKNOWN_OPTION.fullmatch(message)
        near = get_close_matches(typed[1], self._option_string_actions, n=1) if typed else []
        return f"Did you mean {near[0]!r}?" if near else None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """What is left over is this parser's to tell: the one above it knows no options of its own."""
        parsed, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return parsed, rest

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Help or the version was printed."""
        raise Usage(status)


def parse(words: Sequence[str]) -> Namespace:
    """The arguments; ``Usage`` where they are wrong or ask for help."""
    if not words:
        make_parser().print_help()
        raise Usage(2)
    verb = next((word for word in words if not word.startswith("-")), None)
    if verb is not None and verb not in VERBS and words[0] == verb:
        near = get_close_matches(verb, VERBS, n=1, cutoff=0.5)
        remedy = (
            f"Did you mean {near[0]!r}?"
            if near
            else f"The verbs are {', '.join(VERBS)}; `shardvar --help` tells what they do."
        )
        raise Usage(2, ArgumentError(f"There is no verb {verb!r}.", remedy))
    return make_parser().parse_args(_options_first(list(words)) if words[0] == "show" else words)


def make_parser() -> Parser:
    """The parser of all verbs."""
    parser = Parser(
        prog="shardvar",
        description="Inspect, verify, compare and reshard checkpoints of sharded tensors (shardvar, TensorFlow, "
        "safetensors, npz) without the framework that wrote them.",
        epilog="examples:\n"
        "  shardvar inspect runs/ckpt-1200\n"
        "  shardvar verify model.safetensors\n"
        "  shardvar reshard ckpt-1200 model.safetensors --filter 'dense/*'\n\n"
        "exit codes: 0 done; 1 the answer is no (damage, differences); 2 wrong usage; 3 cannot be read or "
        "written. `shardvar VERB --help` shows each verb's options and examples.",
        formatter_class=HelpText,
    )
    parser.add_argument("--version", action="version", version=f"shardvar {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)
    for add in (
        _add_inspect, _add_show, _add_view, _add_verify, _add_diff, _add_reshard, _add_vectors, _add_completion,
    ):  # fmt: skip
        add(verbs)
    return parser


Verbs = argparse._SubParsersAction


def _add_verb(verbs: "Verbs[Parser]", name: str, text: str, examples: Sequence[str]) -> Parser:
    parser = verbs.add_parser(
        name,
        help=text,
        description=text[:1].upper() + text[1:] + ".",
        epilog="examples:\n" + "\n".join(f"  shardvar {name} {example}" for example in examples),
        formatter_class=HelpText,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, described in docs/cli.md")
    return parser


def _add_inspect(verbs: "Verbs[Parser]") -> None:
    parser = _add_verb(
        verbs,
        "inspect",
        "show what is in a checkpoint: keys, dtypes, shapes, sizes, slices, files",
        ["model", "model.index --filter 'dense*' --slices", "model.safetensors --stats --json"],
    )
    parser.add_argument("path", metavar="PATH", help=_PATH)
    parser.add_argument("--filter", metavar="GLOB", action="append", help="only keys that match; may be repeated")
    parser.add_argument("--slices", action="store_true", help="show each slice: its region, file, place and size")
    parser.add_argument("--stats", action="store_true", help="read the values: min, max, mean, std, NaNs, zeros")


def _add_show(verbs: "Verbs[Parser]") -> None:
    parser = _add_verb(
        verbs,
        "show",
        "print the values of a tensor",
        ["model dense/bias", "model embedding '3:7, 0'", "model embedding '-1' --verify full"],
    )
    parser.add_argument("path", metavar="PATH", help=_PATH)
    parser.add_argument("key", metavar="KEY", help="the tensor's name")
    parser.add_argument(
        "index", metavar="INDEX", nargs="?", default="", help="a NumPy basic index, in quotes: '3:7, 0'"
    )
    parser.add_argument(
        "--verify",
        choices=("auto", "full"),
        default="auto",
        help="full: compare the checksum of the whole tensor, where the format has none of parts",
    )


def _add_view(verbs: "Verbs[Parser]") -> None:
    parser = _add_verb(
        verbs,
        "view",
        "draw a checkpoint as a page for a browser: tensors by bytes, regions in files, files byte by byte",
        ["model --open", "model -o report.html --stats", "big.index --filter 'layer_0/*'"],
    )
    parser.add_argument("path", metavar="PATH", help=_PATH)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the page; replaced if it is one (default: beside PATH, PATH.html)"
    )
    parser.add_argument("--open", action="store_true", help="show the page in a browser")
    parser.add_argument("--filter", metavar="GLOB", action="append", help="only keys that match; may be repeated")
    parser.add_argument("--stats", action="store_true", help="read the values, twice: statistics and histograms")


def _add_verify(verbs: "Verbs[Parser]") -> None:
    parser = _add_verb(
        verbs,
        "verify",
        "prove that a checkpoint is whole: every checksum, every region, every file",
        ["model", "runs/7/ckpt-1200.index", "model.safetensors --json"],
    )
    parser.add_argument("path", metavar="PATH", help=_PATH)


def _add_diff(verbs: "Verbs[Parser]") -> None:
    parser = _add_verb(
        verbs,
        "diff",
        "compare two checkpoints, whatever their formats and slices",
        ["model model-tf", "before.safetensors after.npz --json", "monday tuesday --html difference.html"],
    )
    parser.add_argument("a", metavar="A", help=_PATH)
    parser.add_argument("b", metavar="B", help="another one")
    parser.add_argument("--html", metavar="FILE", help="also write a page that shows both beside each other")


def _add_reshard(verbs: "Verbs[Parser]") -> None:
    parser = _add_verb(
        verbs,
        "reshard",
        "write a checkpoint anew: other slices, other files, another format",
        [
            "model model5 --shards 5 --files 2",
            "model model.safetensors --filter 'dense/*' --rename 'dense/*=head/*'",
            "model model-tf --format tensorflow --shards 'embedding=4' --max-file-size 64MiB --dry-run",
        ],
    )
    parser.add_argument("source", metavar="SRC", help=_PATH)
    parser.add_argument("target", metavar="DST", help="the name of the new checkpoint; its ending may tell the format")
    parser.add_argument(
        "--format", metavar="NAME", help="shardvar, tensorflow, safetensors, npz (default: as DST or SRC)"
    )
    files = parser.add_mutually_exclusive_group()
    files.add_argument("--max-file-size", metavar="SIZE", help="fill files up to SIZE payload bytes: 64MB, 64MiB, 4096")
    files.add_argument("--files", metavar="N", help="balance the bytes over N files")
    parser.add_argument(
        "--shards", metavar="[GLOB=]N", action="append", help="cut along axis 0 into N slices; globs mean the new keys"
    )
    parser.add_argument("--filter", metavar="GLOB", action="append", help="only keys that match; may be repeated")
    parser.add_argument(
        "--rename", metavar="OLD=NEW", action="append", help="a key, or globs with one * each; repeatable"
    )
    parser.add_argument(
        "--cast", metavar="GLOB=DTYPE", action="append", help="change dtypes, which nothing else does; of the new keys"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")
    parser.add_argument(
        "--force",
        action="store_true",
        help="replace DST; a crash leaves the old or the new one, but a mixture for a safetensors set of several files",
    )
    parser.add_argument("--verify", action="store_true", help="read the new checkpoint back and verify it")


def _add_vectors(verbs: "Verbs[Parser]") -> None:
    parser = _add_verb(
        verbs,
        "vectors",
        "write the vectors for other implementations: inputs and expected outputs as JSON, checkpoints, a README",
        ["--out vectors", "--out vectors --force --json"],
    )
    parser.add_argument("--out", metavar="DIR", required=True, help="an empty directory, or one that is not there yet")
    parser.add_argument(
        "--force", action="store_true", help="write into a directory that is not empty; nothing is removed"
    )


def _add_completion(verbs: "Verbs[Parser]") -> None:
    parser = verbs.add_parser(
        "completion",
        help="print what makes a shell complete verbs, options and keys",
        description="Print a script that makes a shell complete verbs, options and the keys of checkpoints.",
        epilog="examples:\n"
        "  source <(shardvar completion bash)          # this shell; in ~/.bashrc, every one\n"
        "  shardvar completion zsh > ~/.zfunc/_shardvar    # a directory of your $fpath\n"
        "  shardvar completion fish > ~/.config/fish/completions/shardvar.fish",
        formatter_class=HelpText,
        allow_abbrev=False,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")


def _options_first(words: list[str]) -> list[str]:
    """``show``'s arguments with the options in front: an index may begin with a minus sign, and argparse, which fills
    an optional argument as soon as it can, would not see one after an option."""
    options: list[str] = []
    others: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        if word == "--":
            others.extend(rest)
        elif word.startswith("-") and not _NEGATIVE_INDEX.fullmatch(word):
            options.append(word)
            if word == "--verify":
                options.extend(islice(rest, 1))
        else:
            others.append(word)
    return [words[0], *options, "--", *others]
