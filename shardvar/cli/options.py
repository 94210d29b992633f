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

An option whose help ends in ``(repeatable)`` can be given several times.
"""

import argparse
import re
from collections.abc import Iterator
from typing import Any

from shardvar.cli.arguments import Commands, Parser
from shardvar.cli.helptext import ABOUT

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
--dequantize =True  take the numbers of quantised tensors (GGUF, FP8, MXFP4), not their bytes
--dequantize-to DTYPE->dequantize  the same, as float32, bfloat16 or float16 (default: GGUF float32,
    others as config.json says)""",
    "workers": """
--workers N  work in N processes (default: a few threads)
--dask ADDRESS  work on the Dask cluster whose scheduler is at ADDRESS""",
    "map": """
--rule RULE  a rule, added to the map: 'h.{l}.w[i o] -> layers.{l}.w[o i]' (repeatable)
--size NAME=N  the size of an index of the rules (repeatable)
--inverse  use the map the other way
--any-model  use the map although config.json says that it is not for the model""",
    "limits": """
| --max-file-size SIZE  fill files up to SIZE: 64MB, 64MiB, 4096
| --files N  balance the bytes over N files""",
    "dry-run": "--dry-run  print what would be written, and write nothing",
    "output": "--json  print one JSON object; see `shardvar help json`\n<help>",
    "help": "-h, --help  print this help",
}
_MAP = "a TOML file, or a name that `shardvar maps` lists"

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
--slices  list each shard: its region, size, file and offset
--depth N  show N levels of the tree
--sort {{name*,size}}  size: largest tensors first
--brief  print only the totals
--all  fold nothing, and list every unreadable tensor
-v, --verbose  also print writer, policy, metadata, dtypes
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
-o, --output FILE  the page (default: PATH.html); replaces only a page
--open  open the page in a browser
--serve  serve the page on localhost and read values on demand
<output>

verify: Check every checksum, region and file of a checkpoint.
$ model
$ runs/7/ckpt-1200.index --filter 'model/*'
$ model.safetensors --json
PATH+  {_PATH}; or several of them
[tensors]
<latest>
<keys>
[checks]
--strict  exit with 1 unless checksums cover everything
--against FILE  compare with this manifest, not with PATH.sha256
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
--map MAP  map to other keys first: {_MAP}
<map>
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
[safety]
<dry-run>
--html FILE  with --dry-run: write an HTML preview
--verify  read the new checkpoint back and verify it
--digest  keep the digests of tensors in DST, for `verify`
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
--versions A B  with --dialect: the names of both versions (default: as OUT says, weight_v000007 or
    step_000007.safetensors)
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
--force  replace an existing OUT
[output]
<output>

maps: List the maps between model families, or print the rules of one.
$
$ llama-hf-to-gguf
NAME?  a shipped map, or a TOML file
[options]
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


def add_commands(commands: "Commands[Parser]") -> None:
    """Add a parser for each command."""
    for block in _COMMANDS.strip().split("\n\n"):
        _add_command(commands, *_lines(block))


def _lines(block: str) -> Iterator[str]:
    """Yield the lines of a block: shared ones in place, continued ones joined."""
    for line in block.strip().replace("\n    ", " ").split("\n"):
        yield from _lines(_SHARED[line[1:-1]]) if line.startswith("<") else [line]


def _add_command(commands: "Commands[Parser]", head: str, *lines: str) -> None:
    name, _, text = head.partition(": ")
    command = commands.add_parser(
        name,
        help=ABOUT[name],
        description=text,
        # An abbreviation in a script would become ambiguous when another option is added.
        allow_abbrev=False,
        add_help=False,
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


_ARGUMENT = re.compile(r"(?:(?P<dest>\w+)=)?(?P<value>\{.*\}|\w+)(?P<nargs>[?+]?)(?P<empty>=?)")
_OPTION = re.compile(r"(?P<short>-\w)?(?:, )?(?P<long>--[\w-]+)(?: (?P<value>.+))?")


def _add_argument(group: argparse._ActionsContainer, line: str) -> None:
    head, _, text = line.partition("  ")
    known: dict[str, Any] = {"help": text}
    if argument := _ARGUMENT.fullmatch(head):
        known |= {"nargs": argument["nargs"]} if argument["nargs"] else {}
        known |= {"default": ""} if argument["empty"] else {}
        dest = argument["dest"] or argument["value"].lower()
        group.add_argument(dest, **known, **_value(argument["value"]))
    elif option := _OPTION.fullmatch(head):
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
