"""The commands with their arguments and options, written as their help shows them.

    inspect: List the tensors ...      a command and its description
    usage: shardvar delta A B ...      its usage, if it differs from its arguments
    $ model --stats                    an example of the command; after %, of anything else
    <path>                             lines that several commands share, from ``_SHARED``
    KEY?  the name of the tensor       an argument, which ``name=KEY`` stores under another name
    [tensors]                          the title of a group of options
    --json  print one JSON object      a flag
    --depth N  show N levels           an option with a value
    | --write  store the digests       an option of which only one can be given

Two spaces separate a name from its help, and four at the beginning continue a line. After a value:

    PATH+, KEY?, INDEX?=               several; one or none; one or an empty text
    {name*,size}                       choices; the star marks the default
    RTOL:float, DIR!                   a number; a value that must be given
    A B                                two values
    =True, DTYPE->dequantize           the stored value; the name under which it is stored

An option whose help ends in ``(repeatable)`` can be given several times; one whose help begins with
``with --other:`` only with the other one.

Of this text argparse makes the arguments, and this module their help, since the layout of argparse
changes from one version of Python to the next. An error of the parser is raised as ``Usage``.
"""

import argparse
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from textwrap import wrap
from typing import Any, NoReturn

from shardvar import __version__
from shardvar.cli.output import is_styled, terminal_size
from shardvar.errors import ArgumentError
from shardvar.pictures.words import similar

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
        "clean": "list what killed writers have left, and remove it",
    },
    "more": {
        "formats": "list the formats, and what each can hold",
        "vectors": "write test vectors for other implementations",
        "completion": "print a script that completes words in a shell",
    },
}
"""The commands in groups, each with a line of the program's help."""

ABOUT = {name: about for group in _GROUPS.values() for name, about in group.items()}

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
    "clean": "gc prune purge tidy".split(),
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
"""The place of the second line about a command: after the longest name."""

Row = tuple[str, str]
"""An argument or option as it is typed, and its help."""


def help_of(parser: argparse.ArgumentParser, columns: int, is_styled: bool) -> str:
    """Return the help of a command, with ``is_styled`` in bold titles and cyan names."""
    width = min(columns, _WIDEST)
    parts = [f"usage: {usage_of(parser)}", *_filled(parser.description or "", width)]
    parts += ["\n".join(options_of(parser, width))] if sections_of(parser) else []
    text = "\n\n".join([*parts, *_filled(parser.epilog or "", width)]) + "\n"
    return re.sub(_NAME, _CYAN, re.sub(_TITLE, _BOLD, text)) if is_styled else text


_TITLE = rf"(?m)^(usage(?=:)|exit codes(?=:)|[a-z]+(?=:$)|{'|'.join(_GROUPS)})"
_NAME = rf"(?m)^  ((?:{'|'.join(ABOUT)})(?=  )|-[^ ,\n]*(?:, --[^ \n]+)?|[A-Z]+(?=  ))"
"""A command, an option or an argument at the beginning of its row."""
_BOLD, _CYAN = "\x1b[1m\\1\x1b[0m", "  \x1b[36m\\1\x1b[0m"


def usage_of(parser: argparse.ArgumentParser) -> str:
    if parser.usage:
        return parser.usage
    arguments = []
    for each in parser._get_positional_actions():
        name = _typed(each)
        arguments.append({"?": f"[{name}]", "+": f"{name}..."}.get(str(each.nargs), name))
    required = [_invocation(each) for each in parser._get_optional_actions() if each.required]
    return " ".join([parser.prog, *required, *arguments, "[options]"])


def _typed(action: argparse.Action) -> str:
    name = action.metavar or ""
    return (
        "|".join(action.choices)
        if action.choices
        else " ".join([name] if isinstance(name, str) else name)
    )


def _invocation(action: argparse.Action) -> str:
    """Return an option as it is typed: ``-o, --output FILE``."""
    names = ", ".join(sorted(action.option_strings, key=len))
    return names if action.nargs == 0 else f"{names} {_typed(action)}"


def sections_of(parser: argparse.ArgumentParser) -> list[tuple[str, list[Row]]]:
    """Return the arguments, under an empty title, and each group of options under its own."""
    sections = []
    for group in parser._action_groups:
        shown = [each for each in group._group_actions if each.help != argparse.SUPPRESS]
        rows = [
            (_invocation(each) if each.option_strings else _typed(each), each.help or "")
            for each in shown
        ]
        if rows:
            sections.append((group.title or "" if shown[0].option_strings else "", rows))
    return sections


def options_of(parser: argparse.ArgumentParser, width: int) -> Iterator[str]:
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
    lines = []
    for group, commands in _GROUPS.items():
        lines += [group, *(f"  {name:<10}  {about}" for name, about in commands.items())]
    return "\n".join(lines)


_UNKNOWN_OPTION = r"(?s)unrecognized arguments: (--[^ =]+).*"


_FORMATTER = partial(argparse.HelpFormatter, width=_WIDEST)
"""Looks at no terminal: argparse makes a formatter for each argument."""


class Usage(Exception):
    """The end of parsing: help was printed, or the arguments are wrong."""

    def __init__(self, code: int, error: ArgumentError | None = None) -> None:
        super().__init__(code)
        self.code, self.error = code, error


class Parser(argparse.ArgumentParser):
    """A parser that neither prints errors nor exits."""

    def format_help(self) -> str:
        return help_of(self, terminal_size().columns, is_styled())

    def error(self, message: str) -> NoReturn:
        command = self.prog.removeprefix("shardvar").strip()
        cause = message[:1].upper() + message[1:]
        remedy = f"`{f'shardvar {command}'.strip()} --help` shows the usage."
        typed = re.fullmatch(_UNKNOWN_OPTION, message)
        if typed and (near := similar(typed[1], self._option_string_actions)):
            remedy = f"Did you mean {near[0]!r}?"
        if message.startswith("too many"):
            remedy = f"Type `{usage_of(self)}`."
        raise Usage(2, ArgumentError(f"{cause.rstrip('.')}.", remedy))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; report unknown arguments here, where the names of the options are known."""
        parsed, rest = super().parse_known_args(args, namespace)
        if rest:
            kind = "unrecognized" if rest[0].startswith("-") else "too many"
            self.error(f"{kind} arguments: {' '.join(rest)}")
        return parsed, rest

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help or the version. argparse would hide that the output cannot be written."""
        print(message, end="", file=file or sys.stdout)

    def exit(self, status: int = 0, _message: str | None = None) -> NoReturn:
        raise Usage(status)


Commands = argparse._SubParsersAction
"""The collection of the commands' parsers, for which argparse has no public name."""


def commands_of(parser: argparse.ArgumentParser) -> "Commands[Parser]":
    return next(action for action in parser._actions if isinstance(action, Commands))


# Such as -1 or -3:, which argparse would take for options.
_NEGATIVE_INDEX = r"-[0-9:][0-9:,. +-]*"


def with_cuts(words: Sequence[str]) -> list[str]:
    """Return the words with ``--shards -,tp`` as one, since argparse would take ``-,tp`` for an option."""
    joined: list[str] = []
    for word in words:
        if word.startswith("-,") and joined[-1:] == ["--shards"]:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def options_first(words: list[str], known: Mapping[str, argparse.Action]) -> list[str]:
    """argparse takes an INDEX such as ``-1`` for an option, and misses one behind options."""
    options: list[str] = []
    others: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        if word == "--":
            others.extend(rest)
        elif word.startswith("-") and not re.fullmatch(_NEGATIVE_INDEX, word):
            options.append(word)
            if word in known and known[word].nargs != 0:  # the value must stay behind it
                options.extend(islice(rest, 1))
        else:
            others.append(word)
    # After ``--`` argparse takes every word for an argument, -1 too.
    return [words[0], *options, "--", *others]


_PATH = "a checkpoint: its prefix, index file, folder, or one of its data files"

_SHARED = {
    "path": f"PATH  {_PATH}",
    "latest": """
--latest  take the newest checkpoint in the folder PATH
--item NAME  with --latest: the item NAME of a step that has several""",
    "keys": """
--filter GLOB  only keys that match GLOB (repeatable)
--exclude GLOB  skip keys that match GLOB (repeatable)""",
    "dequantize": """
--dequantize =True  take the numbers of quantised tensors, not their bytes
--dequantize-to DTYPE->dequantize  as float32, bfloat16 or float16 (default: GGUF float32,
    others config.json)""",
    "workers": """
| --workers N  work in N processes (default: a few threads)
| --dask ADDRESS  work on the Dask cluster whose scheduler is at ADDRESS""",
    "map": """
--rule RULE  a rule, added to the map: 'h.{l}.w[i o] -> layers.{l}.w[o i]' (repeatable)
--size NAME=N  the size of an index of the rules (repeatable)
--inverse  use the map the other way
--lift KEY=KIND  also map 'optimizer.{key}.exp_avg=moment', or =value (repeatable)
--any-model  use the map even if config.json names another model""",
    "limits": """
| --max-file-size SIZE  fill files up to SIZE: 64MB, 64MiB, 4096
| --files N  balance the bytes over N files""",
    "dry-run": "--dry-run  print what would be written, and write nothing",
    "output": """
--json  print one JSON object; see `shardvar help json`
--color {auto*,always,never}  auto: as NO_COLOR and FORCE_COLOR say
<help>""",
    "help": "-h, --help  print this help",
}
_MAP = "a TOML file, a name of `shardvar maps`, or to-gguf and the like"

_COMMANDS = f"""
inspect: List the tensors of a checkpoint: keys, dtypes, shapes, sizes, shards and files.
$ model
$ model.index --filter 'dense*' --slices
$ model.safetensors --sort size --stats
<path>
[tensors]
<latest>
<keys>
[values]
--stats  min, max, mean, std and NaNs of all values
--fail-on LIST  with --stats: exit with 1 if any of these occurs: nan,inf,zero,constant,empty
<dequantize>
[output]
--check  exit with 1 if a tensor cannot be read, or a file is damaged
--slices  list each shard: its region, size, file and offset
--depth N  show N levels of the tree
--sort {{name*,size}}  size: largest tensors first
--brief  print only the totals
--all  fold nothing, and list every unreadable tensor
-v, --verbose  also print writer, policy, metadata, dtypes
--tree  print the tree of a terminal also in a pipe
--csv  print a table for other programs: a line a tensor, under the names of `--json`
<output>

show: Print the values of a tensor, or of a part of it.
$ model dense/bias
$ model embedding '3:7, 0'
$ model embedding '-1' --verify full
<path>
KEY?  the name of the tensor; without it, list the keys
INDEX?=  a NumPy basic index: '3:7, 0'
[options]
<latest>
--verify {{auto*,full}}  full: read and verify the whole tensor if its parts have no checksums
--raw  show the stored values of a quantised tensor, not its numbers
<dequantize>
--map MAP  show a tensor that a map makes: {_MAP}
<map>
<output>

view: Write an HTML page that shows a checkpoint: sizes, layers, shards and files.
$ model --open
$ model -o report.html --stats
$ big.index --filter 'layer_0/*'
<path>
[tensors]
<latest>
<keys>
--stats  add statistics and histograms of all values
<dequantize>
--map MAP  show what a map makes of the checkpoint: {_MAP}
<map>
[output]
| -o, --output FILE  the page (default: PATH.html); replaces only a page
| --serve  serve the page on localhost and read values on demand
--open  open the page in a browser
<output>

verify: Check every checksum, region and file of a checkpoint.
$ model
$ runs/7/ckpt-1200.index --filter 'model/*'
$ model.safetensors --json
PATH+  {_PATH}; or several of them. Of a folder, all in it
[tensors]
<latest>
<keys>
[checks]
--strict  exit with 1 unless checksums cover everything
--against FILE  compare with this manifest, not with PATH.sha256
--derived-from SRC  make PATH again of SRC, and compare (repeatable)
--statement FILE  with --derived-from: the statement of `reshard --certify` (repeatable)
--quick  check only indexes and the sizes of files
--nan  also look for NaNs and infinities: exit with 1
[running]
<workers>
[output]
--quiet  print only problems
--all  list every damaged tensor and every problem
<output>

diff: Compare two checkpoints. Their formats and shards may differ.
$ model model-tf
$ before.safetensors after.npz --json
$ monday tuesday --html difference.html
A  {_PATH}
B  the checkpoint to compare it with
[tensors]
<keys>
--rename OLD=NEW  rename keys of A before comparing; * is a wildcard (repeatable)
<dequantize>
--map MAP  compare what a map makes of A: {_MAP}
<map>
[tolerance]
--close  use the tolerances of torch.testing.assert_close
--rtol FRACTION:float  allow a difference of FRACTION * |b|
--atol DISTANCE:float  allow a difference of DISTANCE
--ignore-dtype  compare only values
[running]
<workers>
[output]
--sort {{index,change}}  index: in the order of A; change: largest change first
--all  fold nothing: a line for each tensor, with all figures
--summary  print only the first line
--html FILE  also write a page that shows both side by side
--stats  with --html: add histograms of changed tensors (reads them again)
<output>

digest: Print a SHA-256 digest of each tensor, independent of format and files.
$ model
$ model --write
$ model.safetensors --against model.sha256
<path>
[manifest]
| --write  store the digests in PATH.sha256 for `verify`
| --in-toto  print an in-toto statement of them, to be signed
| --against FILE  compare with a manifest or a statement; exit with 1 if they differ
--force  with --write: replace an existing manifest
[running]
<latest>
<workers>
[output]
--all  print all digests in full, as in a pipe
<output>

reshard: Write a checkpoint again with other shards, files, names or dtypes, or in another format.
$ model model.safetensors --rename 'dense/*=head/*'
$ model ranks --mesh tp=4 --shards '*.w=tp,-' --dry-run
$ model model-tf --format tensorflow --files 4 --dry-run
source=SRC+  a checkpoint, or several to join
target=DST  the new checkpoint; its ending may select the format
[names]
<keys>
--strip-prefix PREFIX  remove PREFIX from the keys that begin with it
--rename OLD=NEW  rename a key; * is a wildcard, and OLD may be re:REGEX (repeatable)
--rename-file FILE  read renames from a TOML file: 'old' = 'new'
--add-prefix PREFIX  put PREFIX before every key, after other renames
--map MAP  map first: {_MAP}
<map>
--lora ADAPTER  merge a LoRA adapter in PEFT's layout into SRC (repeatable)
[cuts]
--shards [GLOB=]N  cut into N slices along axis 0; GLOB selects new keys. With --mesh, give an axis of
    the mesh or - for each axis: '*.w=tp,-' (repeatable)
--mesh AXIS=SIZE,..  name the axes of a device mesh: dp=2,tp=4
--concat GLOB=AXIS  join the parts in several SRC along AXIS (repeatable)
[files]
--format NAME  see `shardvar formats` (default: by DST, or as SRC)
<limits>
| --files-by {{device}}  a file for each device of --mesh, or for each of the N --shards
[numbers]
--cast [GLOB=]DTYPE  cast new keys that match GLOB, or all float tensors, to DTYPE (repeatable)
--transpose GLOB  exchange the axes of matrices that match GLOB (repeatable)
<dequantize>
--quantize SCHEME  quantise matrices, last of all: fp8-block, nvfp4, int4:128, ...
--keep GLOB  with --quantize: modules that stay as they are (repeatable)
[safety]
<dry-run>
--html FILE  with --dry-run: write an HTML preview
--verify  read the new checkpoint back and verify it
--digest  keep the digests of tensors in DST, for `verify`
--certify FILE  write a statement of what DST was made of, for `verify --derived-from`
--force  replace an existing DST
--keep-going  leave out tensors that cannot be read; exit with 1
[running]
--latest  take the newest checkpoint in the folder SRC
--item NAME  with --latest: the item NAME of a step that has several
<workers>
-v, --verbose  also print the policy that chose the files
<output>

delta: Store what changed from checkpoint A to checkpoint B, exactly. Their formats and shards may
    differ.
usage: shardvar delta A B OUT [options]
$ step-1 step-2 delta-2
$ --compact delta-2 delta-3 delta-4 delta-2-to-4
paths=PATH+  A, B and OUT, the new delta; with --compact, deltas in order and OUT
[options]
--compact  join deltas that follow each other; their base is not read
--dialect NAME  write what another program reads: slime (also miles, SGLang, vime), modelexpress, trl,
    trl-gaps
--versions A B  with --dialect: the names of both versions (default: from OUT, weight_v000007 or
    step_000007.safetensors)
--map MAP  compare what a map makes of B with A: {_MAP}
--map-base  with a map: A has the names of B, and is mapped as well
--cast DTYPE  round the float tensors of B, or what the map makes of them, to DTYPE
<map>
<dry-run>
--force  replace an existing OUT
--all  list every tensor that changed
<output>

apply: Write the checkpoint that deltas make of their base, in any format and shards. Its digests
    are compared first.
$ step-1 delta-2 step-2
$ step-1.safetensors delta-2 delta-3 step-3.safetensors
BASE  {_PATH}
DELTA+  deltas, in order
target=OUT  the new checkpoint; with --force, it may be BASE
[files]
--shards [GLOB=]N  cut into N slices along axis 0; GLOB selects keys (repeatable)
--format NAME  see `shardvar formats` (default: by OUT, or as BASE)
<limits>
[safety]
<dry-run>
--certify FILE  write a statement of what OUT was made of, for `verify --derived-from`
--force  replace an existing OUT
[output]
<output>

maps: List the maps between model families, or print the rules of one.
$
$ llama
$ llama-hf-to-gguf
NAME?  a shipped map, a word of the names or models of some, or a TOML file
[options]
--all  list each map, with what it is about
<output>

clean: List what killed writers have left in a folder, in the folders below it, or below a bucket
    prefix.
$ runs
$ s3://bucket/runs --remove --older-than 2d
folder=DIR  a folder, or the URL of a bucket prefix
[options]
--remove  remove what is listed, unless it is younger than the age limit
--older-than AGE  the age limit: 30m, 12h, 2d (default: 1d)
--all  list every leftover
<output>

formats: List the formats: which are written, which hold shards, what a bucket guarantees, and which
    extra they need.
$
$ --json
[options]
<output>

vectors: Write test vectors for other implementations: JSON, sample checkpoints, a README.
$ --out vectors
$ --out vectors --force --json
[options]
--out DIR!  a folder that is empty or does not exist yet
--force  write into a folder with files; removes nothing
<output>

completion: Print a script that makes a shell complete commands, options and keys of checkpoints.
% source <(shardvar completion bash)       # this shell; in ~/.bashrc, every one
% shardvar completion zsh > ~/.zfunc/_shardvar    # a directory of your $fpath
% shardvar completion fish > ~/.config/fish/completions/shardvar.fish
shell={{bash,zsh,fish}}  the shell
[options]
<help>
"""


def _lines(block: str) -> Iterator[str]:
    """Yield the lines of a block: shared ones in place, continued ones joined."""
    for line in block.strip().replace("\n    ", " ").split("\n"):
        yield from _lines(_SHARED[line[1:-1]]) if line.startswith("<") else [line]


def add_commands(commands: "Commands[Parser]", only: Sequence[str]) -> None:
    for block in _COMMANDS.strip().split("\n\n"):
        name = block.partition(": ")[0]
        if name not in only:
            continue
        head, *lines = _lines(block)
        text = head.removeprefix(f"{name}: ")
        command = commands.add_parser(
            name,
            help=ABOUT[name],
            description=text,
            # An abbreviation in a script would become ambiguous when another option is added.
            allow_abbrev=False,
            add_help=False,
            formatter_class=_FORMATTER,
        )
        examples = ["examples:"]
        group: argparse._ActionsContainer = command
        either: argparse._ActionsContainer | None = None
        for line in lines:
            mark, rest = line[0], line[2:]
            if mark == "$":
                examples.append(f"  shardvar {name} {rest}".rstrip())
            elif mark == "%":
                examples.append(f"  {rest}")
            elif mark == "[":
                group, either = command.add_argument_group(line[1:-1]), None
            elif mark == "|":
                either = either or group.add_mutually_exclusive_group()
                _add_argument(either, rest)
            elif line.startswith("usage: "):
                command.usage = line.removeprefix("usage: ")
            else:
                either = None
                _add_argument(group, line)
        command.epilog = "\n".join(examples)


_ARGUMENT = r"(?:(?P<dest>\w+)=)?(?P<value>\{.*\}|\w+)(?P<nargs>[?+]?)(?P<empty>=?)"
_OPTION = r"(?P<short>-\w)?(?:, )?(?P<long>--[\w-]+)(?: (?P<value>.+))?"


def _add_argument(group: argparse._ActionsContainer, line: str) -> None:
    head, _, text = line.partition("  ")
    known: dict[str, Any] = {"help": text}
    if argument := re.fullmatch(_ARGUMENT, head):
        known |= {"nargs": argument["nargs"]} if argument["nargs"] else {}
        known |= {"default": ""} if argument["empty"] else {}
        dest = argument["dest"] or argument["value"].lower()
        group.add_argument(dest, **known, **_value(argument["value"]))
    elif option := re.fullmatch(_OPTION, head):
        if option["value"]:
            known |= _value(option["value"])
            known |= {"action": "append"} if text.endswith("(repeatable)") else {}
        else:
            known |= {"action": "help" if option["long"] == "--help" else "store_true"}
        group.add_argument(*filter(None, option.group("short", "long")), **known)
    else:
        raise ValueError(f"{line!r} is neither an argument nor an option")


def _value(text: str) -> dict[str, Any]:
    """Return the keywords of argparse for a value as it is written above."""
    if text.startswith("{"):
        choices = text[1:-1].split(",")
        default = [each[:-1] for each in choices if each.endswith("*")]
        known: dict[str, Any] = {"choices": tuple(each.removesuffix("*") for each in choices)}
        return known | ({"default": default[0]} if default else {})
    if text == "=True":
        return {"action": "store_const", "const": True, "default": False}
    if " " in text:
        return {"nargs": len(text.split()), "metavar": tuple(text.split())}
    if text.endswith(":float"):
        return {"metavar": text.removesuffix(":float"), "type": float}
    if text.endswith("!"):
        return {"metavar": text.removesuffix("!"), "required": True}
    metavar, _, dest = text.partition("->")
    return {"metavar": metavar} | ({"dest": dest, "default": False} if dest else {})


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
    parser = make_parser([words[0]] if words[0] in COMMANDS else COMMANDS)
    if words[0] == "show":
        known = commands_of(parser).choices["show"]._option_string_actions
        words = options_first(words, known)
    arguments = parser.parse_args(with_cuts(words))
    _check_needed(commands_of(parser).choices[arguments.command], arguments)
    return arguments


def _check_needed(command: Parser, arguments: Namespace) -> None:
    """Raise ``Usage`` if an option whose help begins with another option is given without it."""
    options = command._option_string_actions
    for name, action in options.items():
        needed = re.match(r"with (--[\w-]+):", action.help or "")
        is_given = getattr(arguments, action.dest, None) != action.default
        if needed and is_given and not getattr(arguments, options[needed[1]].dest):
            remedy = f"Add {needed[1]}, or leave {name} out."
            raise Usage(2, ArgumentError(f"{name} is given without {needed[1]}.", remedy))


def make_parser(only: Sequence[str] = COMMANDS) -> Parser:
    """Return the parser of all commands, or of the only one that was given."""
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
        formatter_class=_FORMATTER,
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
    add_commands(commands, only)
    return parser
