"""The arguments and options of commands that write checkpoints, in groups: what each of them
changes."""

import argparse

from shardvar.cli.arguments import (
    PATH,
    Commands,
    Group,
    Parser,
    add_command,
    add_dequantize,
    add_exclude,
    add_filter,
    add_latest,
    add_map,
    add_output,
    add_workers,
)


def add_reshard(commands: "Commands[Parser]") -> None:
    parser = add_command(
        commands,
        "reshard",
        "Write a checkpoint again with other shards, files, names or dtypes, or in another format.",
        [
            "model model.safetensors --rename 'dense/*=head/*'",
            "model ranks --mesh tp=4 --shards '*.w=tp,-' --dry-run",
            "model model-tf --format tensorflow --files 4 --dry-run",
        ],
    )
    parser.add_argument("source", metavar="SRC", nargs="+", help="a checkpoint, or several to join")
    parser.add_argument(
        "target", metavar="DST", help="the new checkpoint; its ending may select the format"
    )
    _add_names(parser.add_argument_group("names"))
    _add_cuts(parser.add_argument_group("cuts"))
    _add_files(parser.add_argument_group("files"))
    _add_numbers(parser.add_argument_group("numbers"))
    _add_safety(parser.add_argument_group("safety"))
    group = parser.add_argument_group("running")
    add_latest(group, "SRC")
    add_workers(group)
    group.add_argument(
        "-v", "--verbose", action="store_true", help="also print the policy that chose the files"
    )
    add_output(group)


def add_delta(commands: "Commands[Parser]") -> None:
    parser = add_command(
        commands,
        "delta",
        "Store what changed from checkpoint A to checkpoint B, exactly. Their formats and shards "
        "may differ.",
        ["step-1 step-2 delta-2", "--compact delta-2 delta-3 delta-4 delta-2-to-4"],
    )
    parser.usage = "shardvar delta A B OUT [options]"
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="A, B and OUT, the new delta; with --compact, deltas in order and OUT",
    )
    group = parser.add_argument_group("options")
    group.add_argument(
        "--compact",
        action="store_true",
        help="join deltas that follow each other; their base is not read",
    )
    group.add_argument(
        "--dialect",
        metavar="NAME",
        help="write what another program reads: slime (also miles, SGLang, vime), modelexpress, trl, "
        "trl-gaps",
    )
    group.add_argument(
        "--versions",
        metavar=("A", "B"),
        nargs=2,
        help="with --dialect: the names of both versions (default: as OUT says, weight_v000007 or "
        "step_000007.safetensors)",
    )
    _add_dry_run(group)
    group.add_argument("--force", action="store_true", help="replace an existing OUT")
    group.add_argument("--all", action="store_true", help="list every tensor that changed")
    add_output(group)


def add_apply(commands: "Commands[Parser]") -> None:
    parser = add_command(
        commands,
        "apply",
        "Write the checkpoint that deltas make of their base, in any format and shards. Its digests "
        "are compared first.",
        ["step-1 delta-2 step-2", "step-1.safetensors delta-2 delta-3 step-3.safetensors"],
    )
    parser.add_argument("base", metavar="BASE", help=PATH)
    parser.add_argument("delta", metavar="DELTA", nargs="+", help="deltas, in order")
    parser.add_argument(
        "target", metavar="OUT", help="the new checkpoint; with --force, it may be BASE"
    )
    group = parser.add_argument_group("files")
    group.add_argument(
        "--shards",
        metavar="[GLOB=]N",
        action="append",
        help="cut into N slices along axis 0; GLOB selects keys (repeatable)",
    )
    group.add_argument(
        "--format", metavar="NAME", help="see `shardvar formats` (default: by OUT, or as BASE)"
    )
    _add_file_limits(group)
    group = parser.add_argument_group("safety")
    _add_dry_run(group)
    group.add_argument("--force", action="store_true", help="replace an existing OUT")
    add_output(parser.add_argument_group("output"))


def _add_names(group: Group) -> None:
    """Add the options that select keys and rename them."""
    add_filter(group)
    add_exclude(group)
    group.add_argument(
        "--strip-prefix", metavar="PREFIX", help="remove PREFIX from the keys that begin with it"
    )
    group.add_argument(
        "--rename",
        metavar="OLD=NEW",
        action="append",
        help="rename a key; * is a wildcard, and OLD may be re:REGEX (repeatable)",
    )
    group.add_argument(
        "--rename-file", metavar="FILE", help="read renames from a TOML file: 'old' = 'new'"
    )
    group.add_argument(
        "--add-prefix", metavar="PREFIX", help="put PREFIX before every key, after other renames"
    )
    add_map(group, "map to another model's keys and shapes first")


def _add_cuts(group: Group) -> None:
    """Add the options that cut tensors and join parts of them."""
    group.add_argument(
        "--shards",
        metavar="[GLOB=]N",
        action="append",
        help="cut into N slices along axis 0; GLOB selects new keys. With --mesh, give an axis of "
        "the mesh or - for each axis: '*.w=tp,-' (repeatable)",
    )
    group.add_argument(
        "--mesh", metavar="AXIS=SIZE,..", help="name the axes of a device mesh: dp=2,tp=4"
    )
    group.add_argument(
        "--concat",
        metavar="GLOB=AXIS",
        action="append",
        help="join the parts in several SRC along AXIS (repeatable)",
    )


def _add_files(group: Group) -> None:
    """Add the options that choose the format and the files."""
    group.add_argument(
        "--format", metavar="NAME", help="see `shardvar formats` (default: by DST, or as SRC)"
    )
    _add_file_limits(group).add_argument(
        "--files-by",
        choices=("device",),
        help="a file for each device of --mesh, or for each of the N --shards",
    )


def _add_file_limits(group: Group) -> argparse._MutuallyExclusiveGroup:
    """Add the options that limit files, and return their group: only one can be given."""
    files = group.add_mutually_exclusive_group()
    files.add_argument(
        "--max-file-size", metavar="SIZE", help="fill files up to SIZE: 64MB, 64MiB, 4096"
    )
    files.add_argument("--files", metavar="N", help="balance the bytes over N files")
    return files


def _add_numbers(group: Group) -> None:
    """Add the options that change dtypes and values."""
    group.add_argument(
        "--cast",
        metavar="[GLOB=]DTYPE",
        action="append",
        help="cast new keys that match GLOB, or all float tensors, to DTYPE (repeatable)",
    )
    group.add_argument(
        "--transpose",
        metavar="GLOB",
        action="append",
        help="exchange the axes of matrices that match GLOB (repeatable)",
    )
    add_dequantize(group)


def _add_safety(group: Group) -> None:
    """Add the options that look before and after a write, and say what may be lost."""
    _add_dry_run(group)
    group.add_argument("--html", metavar="FILE", help="with --dry-run: write an HTML preview")
    group.add_argument(
        "--verify", action="store_true", help="read the new checkpoint back and verify it"
    )
    group.add_argument(
        "--digest", action="store_true", help="keep the digests of tensors in DST, for `verify`"
    )
    group.add_argument("--force", action="store_true", help="replace an existing DST")
    group.add_argument(
        "--keep-going",
        action="store_true",
        help="leave out tensors that cannot be read; exit with 1",
    )


def _add_dry_run(group: Group) -> None:
    group.add_argument(
        "--dry-run", action="store_true", help="print what would be written, and write nothing"
    )
