"""The arguments and options of each command, in the groups in which its help lists them.

A metavar says what to type. An option that may be given several times ends in ``(repeatable)``.
"""

from shardvar.cli.arguments import (
    PATH,
    Commands,
    Parser,
    add_command,
    add_dequantize,
    add_exclude,
    add_filter,
    add_help,
    add_latest,
    add_map,
    add_output,
    add_path,
    add_workers,
)
from shardvar.cli.writing_options import add_apply, add_delta, add_reshard


def add_commands(commands: "Commands[Parser]") -> None:
    """Add a parser for each command."""
    for add in (
        _add_inspect, _add_show, _add_view, _add_verify, _add_diff, _add_digest, add_reshard,
        add_delta, add_apply, _add_maps, _add_formats, _add_vectors, _add_completion,
    ):  # fmt: skip
        add(commands)


def _add_inspect(commands: "Commands[Parser]") -> None:
    parser = add_command(
        commands,
        "inspect",
        "List the tensors of a checkpoint: keys, dtypes, shapes, sizes, shards and files.",
        [
            "model",
            "model.index --filter 'dense*' --slices",
            "model.safetensors --sort size --stats",
        ],
    )
    add_path(parser)
    group = parser.add_argument_group("tensors")
    add_latest(group)
    add_filter(group)
    add_exclude(group)
    group = parser.add_argument_group("values")
    group.add_argument(
        "--stats", action="store_true", help="min, max, mean, std and NaNs of all values"
    )
    group.add_argument(
        "--fail-on",
        metavar="LIST",
        help="with --stats: exit with 1 if any of these occurs: nan,inf,zero,constant",
    )
    add_dequantize(group)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--slices", action="store_true", help="list each shard: its region, size, file and offset"
    )
    group.add_argument("--depth", metavar="N", help="show N levels of the tree")
    group.add_argument(
        "--sort", choices=("name", "size"), default="name", help="size: largest tensors first"
    )
    group.add_argument("--brief", action="store_true", help="print only the totals")
    group.add_argument(
        "--all", action="store_true", help="fold nothing, and list every unreadable tensor"
    )
    group.add_argument(
        "-v", "--verbose", action="store_true", help="also print writer, policy, metadata, dtypes"
    )
    add_output(group)


def _add_show(commands: "Commands[Parser]") -> None:
    parser = add_command(
        commands,
        "show",
        "Print the values of a tensor, or of a part of it.",
        ["model dense/bias", "model embedding '3:7, 0'", "model embedding '-1' --verify full"],
    )
    add_path(parser)
    parser.add_argument(
        "key", metavar="KEY", nargs="?", help="the name of the tensor; without it, list the keys"
    )
    parser.add_argument(
        "index", metavar="INDEX", nargs="?", default="", help="a NumPy basic index: '3:7, 0'"
    )
    group = parser.add_argument_group("options")
    add_latest(group)
    group.add_argument(
        "--verify",
        choices=("auto", "full"),
        default="auto",
        help="full: read and verify the whole tensor if its parts have no checksums",
    )
    add_dequantize(group)
    add_map(group, "show a tensor that a map makes")
    add_output(group)


def _add_view(commands: "Commands[Parser]") -> None:
    parser = add_command(
        commands,
        "view",
        "Write an HTML page that shows a checkpoint: sizes, layers, shards and files.",
        ["model --open", "model -o report.html --stats", "big.index --filter 'layer_0/*'"],
    )
    add_path(parser)
    group = parser.add_argument_group("tensors")
    add_latest(group)
    add_filter(group)
    add_exclude(group)
    group.add_argument(
        "--stats", action="store_true", help="add statistics and histograms of all values"
    )
    add_dequantize(group)
    add_map(group, "show what a map makes of the checkpoint")
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o", "--output", metavar="FILE", help="the page (default: PATH.html); replaces only a page"
    )
    group.add_argument("--open", action="store_true", help="open the page in a browser")
    group.add_argument(
        "--serve",
        action="store_true",
        help="serve the page on localhost and read values on demand",
    )
    add_output(group)


def _add_verify(commands: "Commands[Parser]") -> None:
    parser = add_command(
        commands,
        "verify",
        "Check every checksum, region and file of a checkpoint.",
        ["model", "runs/7/ckpt-1200.index --filter 'model/*'", "model.safetensors --json"],
    )
    parser.add_argument("path", metavar="PATH", nargs="+", help=f"{PATH}; or several of them")
    group = parser.add_argument_group("tensors")
    add_latest(group)
    add_filter(group)
    add_exclude(group)
    group = parser.add_argument_group("checks")
    group.add_argument(
        "--strict", action="store_true", help="exit with 1 unless checksums cover everything"
    )
    group.add_argument(
        "--against", metavar="FILE", help="compare with this manifest, not with PATH.sha256"
    )
    group = parser.add_argument_group("running")
    add_workers(group)
    group = parser.add_argument_group("output")
    group.add_argument("--quiet", action="store_true", help="print only problems")
    group.add_argument(
        "--all", action="store_true", help="list every damaged tensor and every problem"
    )
    add_output(group)


def _add_diff(commands: "Commands[Parser]") -> None:
    parser = add_command(
        commands,
        "diff",
        "Compare two checkpoints. Their formats and shards may differ.",
        [
            "model model-tf",
            "before.safetensors after.npz --json",
            "monday tuesday --html difference.html",
        ],
    )
    parser.add_argument("a", metavar="A", help=PATH)
    parser.add_argument("b", metavar="B", help="the checkpoint to compare it with")
    group = parser.add_argument_group("tensors")
    add_filter(group)
    add_exclude(group)
    group.add_argument(
        "--rename",
        metavar="OLD=NEW",
        action="append",
        help="rename keys of A before comparing; * is a wildcard (repeatable)",
    )
    add_dequantize(group)
    add_map(group, "compare what a map makes of A")
    group = parser.add_argument_group("tolerance")
    group.add_argument(
        "--close", action="store_true", help="use the tolerances of torch.testing.assert_close"
    )
    group.add_argument(
        "--rtol", metavar="FRACTION", type=float, help="allow a difference of FRACTION * |b|"
    )
    group.add_argument(
        "--atol", metavar="DISTANCE", type=float, help="allow a difference of DISTANCE"
    )
    group.add_argument("--ignore-dtype", action="store_true", help="compare only values")
    group = parser.add_argument_group("running")
    add_workers(group)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--sort",
        choices=("index", "change"),
        help="index: in the order of A; change: largest change first",
    )
    group.add_argument(
        "--all", action="store_true", help="fold nothing: a line for each tensor, with all figures"
    )
    group.add_argument("--summary", action="store_true", help="print only the first line")
    group.add_argument(
        "--html", metavar="FILE", help="also write a page that shows both side by side"
    )
    group.add_argument(
        "--stats",
        action="store_true",
        help="with --html: add histograms of changed tensors (reads them again)",
    )
    add_output(group)


def _add_digest(commands: "Commands[Parser]") -> None:
    parser = add_command(
        commands,
        "digest",
        "Print a SHA-256 digest of each tensor, independent of format and files.",
        ["model", "model --write", "model.safetensors --against model.sha256"],
    )
    add_path(parser)
    group = parser.add_argument_group("manifest")
    either = group.add_mutually_exclusive_group()
    either.add_argument(
        "--write", action="store_true", help="store the digests in PATH.sha256 for `verify`"
    )
    either.add_argument(
        "--in-toto", action="store_true", help="print an in-toto statement of them, to be signed"
    )
    either.add_argument(
        "--against",
        metavar="FILE",
        help="compare with a manifest or a statement; exit with 1 if they differ",
    )
    group.add_argument(
        "--force", action="store_true", help="with --write: replace an existing manifest"
    )
    group = parser.add_argument_group("running")
    add_latest(group)
    add_workers(group)
    group = parser.add_argument_group("output")
    group.add_argument("--all", action="store_true", help="print all digests in full, as in a pipe")
    add_output(group)


def _add_maps(commands: "Commands[Parser]") -> None:
    parser = add_command(
        commands,
        "maps",
        "List the maps between model families, or print the rules of one.",
        ["", "llama-hf-to-gguf"],
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="a shipped map, or a TOML file")
    add_output(parser.add_argument_group("options"))


def _add_formats(commands: "Commands[Parser]") -> None:
    parser = add_command(
        commands,
        "formats",
        "List the formats: which are written, which hold shards, what a bucket guarantees, and "
        "which extra they need.",
        ["", "--json"],
    )
    add_output(parser.add_argument_group("options"))


def _add_vectors(commands: "Commands[Parser]") -> None:
    parser = add_command(
        commands,
        "vectors",
        "Write test vectors for other implementations: JSON, sample checkpoints, a README.",
        ["--out vectors", "--out vectors --force --json"],
    )
    group = parser.add_argument_group("options")
    group.add_argument(
        "--out", metavar="DIR", required=True, help="a folder that is empty or does not exist yet"
    )
    group.add_argument(
        "--force", action="store_true", help="write into a folder with files; removes nothing"
    )
    add_output(group)


def _add_completion(commands: "Commands[Parser]") -> None:
    parser = add_command(
        commands,
        "completion",
        "Print a script that makes a shell complete commands, options and keys of checkpoints.",
        [],
    )
    parser.epilog = (
        "examples:\n"
        "  source <(shardvar completion bash)       # this shell; in ~/.bashrc, every one\n"
        "  shardvar completion zsh > ~/.zfunc/_shardvar    # a directory of your $fpath\n"
        "  shardvar completion fish > ~/.config/fish/completions/shardvar.fish"
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    add_help(parser.add_argument_group("options"))
