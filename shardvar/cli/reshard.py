"""``shardvar reshard``: write a checkpoint with other slices, other files, or in another format;
``shardvar apply`` writes one that deltas make of their base."""

import logging
import os
import re
import shlex
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from shardvar.cli.maps import map_of, print_rules
from shardvar.cli.output import (
    answer,
    at_terminal,
    count,
    executor_of,
    human_size,
    human_time,
    note,
    note_dequantized,
    one_line,
    payload_nbytes,
    print_json,
    print_table,
    printable,
    progress,
    put,
    say,
    seen_from_here,
    short_path,
)
from shardvar.cli.tree import print_problems
from shardvar.cli.usage import (
    parse_casts,
    parse_count,
    parse_pairs,
    parse_renames,
    parse_size,
)
from shardvar.cli.verify import (
    code_of_report,
    print_report,
    verify_with_progress,
)
from shardvar.cli.view import check_target, show_link, write_plan_page
from shardvar.errors import ArgumentError, CheckpointError, TargetExists
from shardvar.formats.table import name_of_target, names_of_target, stem_of_name
from shardvar.layout.dtypes import NAMES
from shardvar.layout.meshes import Layout, named_sharding, parameter_servers
from shardvar.layout.meshes.layout import Mesh
from shardvar.layout.partition import Cut
from shardvar.pictures.words import message
from shardvar.planning.index import EntryTable
from shardvar.planning.policies import (
    BalancedPolicy,
    MaxShardSizePolicy,
    ShardByDevicePolicy,
    TablePolicy,
)
from shardvar.records import replace
from shardvar.storage.local import is_url
from shardvar.verbs.joining import Join, Spec
from shardvar.verbs.load import open_checkpoint
from shardvar.verbs.locate import exact_path, find_checkpoint, find_target
from shardvar.verbs.model_folder import paths_of_components
from shardvar.verbs.problems import VerifyReport, lines_of_problems
from shardvar.verbs.reports import WriteReport, facts_of_write, sizes_of_write
from shardvar.verbs.reshard import Conversions, reshard
from shardvar.verbs.verify import VerifyOptions

if TYPE_CHECKING:
    from shardvar.maps.map import Map

_MESH = "Give the axes of the mesh, the slowest first: --mesh 'dp=2,tp=4'."


def parse_mesh(text: str) -> Mesh:
    """The axis that varies slowest comes first."""
    names, sizes = [], []
    for word in text.split(","):
        name, equals, size = (part.strip() for part in word.partition("="))
        if not (equals and re.fullmatch(r"[^\W\d]\w*", name)):
            raise ArgumentError(
                f"Invalid --mesh {text!r}: {word.strip()!r} is not NAME=SIZE.", _MESH
            )
        if not re.fullmatch(r"0*[1-9][0-9]{0,8}", size):
            raise ArgumentError(
                f"Invalid --mesh {text!r}: the size {size!r} is not an integer >= 1.", _MESH
            )
        names.append(name)
        sizes.append(int(size))
    return Mesh(sizes, names)


def parse_joins(texts: Sequence[str], mesh: Mesh | None) -> dict[str, Join]:
    """By glob, the axis along which parts follow each other, or the mesh and an entry per axis."""
    joins: dict[str, Join] = {}
    for glob, text in parse_pairs(texts, "--concat", "GLOB=AXIS").items():
        if re.fullmatch(r"-?[0-9]{1,3}", text):
            joins[glob] = int(text)
        elif mesh is None:
            raise ArgumentError(
                f"Invalid axis {text!r} of --concat.",
                f"For example: --concat '{glob}=0', or also give --mesh.",
            )
        else:
            joins[glob] = mesh, _read_entries(text, mesh, "--concat")
    return joins


def parse_shards(
    texts: Sequence[str],
    mesh: Mesh | None = None,
    *,
    on_devices: bool = False,
    joins: Mapping[str, Join] = MappingProxyType({}),
) -> dict[str, Cut]:
    """Return the cuts by glob: ``CUT`` is for every tensor, ``GLOB=CUT`` for the tensors that
    match.

    A cut is a number of shards, or with a mesh its axes: an entry for each axis of the tensor,
    ``-`` for one that stays whole, names joined by ``+``. Of several globs that match a tensor the
    last one counts, so a cut without a glob is put first. ``on_devices`` also makes a number a
    layout, with shard ``i`` on device ``i``. A mesh is refused that neither a cut names, nor one of
    ``joins``.

    >>> parse_shards(["emb*=8", "2"])
    {'*': 2, 'emb*': 8}
    >>> layout = parse_shards(["*.weight=-,tp"], parse_mesh("tp=2"))["*.weight"]((3, 4), "float32")
    >>> [str(layout.regions(device)[0]) for device in range(2)]
    ['[0:3, 0:2]', '[0:3, 2:4]']
    """
    general: dict[str, Cut] = {}
    special: dict[str, Cut] = {}
    named = []
    for text in texts:
        glob, equals, given = text.rpartition("=")
        cut: Cut
        if re.fullmatch(r"[0-9]*", given):
            number = parse_count(given, "--shards")
            servers = Mesh((number,)) if on_devices else None
            cut = number if servers is None else _cut_by(partial(parameter_servers, mesh=servers))
        elif mesh is None:
            raise ArgumentError(
                f"Invalid --shards {given!r}: expected an integer >= 1.",
                "To cut along the axes of a mesh, also give --mesh.",
            )
        else:
            named.append(given)
            spec = _read_entries(given, mesh, "--shards")
            cut = _cut_by(partial(named_sharding, mesh=mesh, spec=spec))
        (special if equals else general)[glob or "*"] = cut
    by_mesh = named or any(isinstance(rule, tuple) for rule in joins.values())
    if mesh is not None and not by_mesh:
        raise ArgumentError(
            f"Neither --shards nor --concat uses an axis of the mesh {mesh}.",
            "Use one: --shards '*.weight=tp,-'.",
        )
    if on_devices and not texts:
        raise ArgumentError(
            "--files-by device is given without --shards.",
            "Cut tensors: --shards 4, or --mesh 'tp=4' --shards '*.weight=tp,-'.",
        )
    return general | special


def _cut_by(layout_of: Callable[[tuple[int, ...]], Layout]) -> Cut:
    return lambda shape, _dtype: layout_of(shape)


def _read_entries(text: str, mesh: Mesh, option: str) -> Spec:
    """The mesh axes by the entry of each tensor axis; None for an axis that stays whole."""
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise ArgumentError(
            f"Invalid {option} {text!r}: an entry is empty.",
            "Write - for an axis that stays whole.",
        )
    spec = tuple(
        None if word == "-" else tuple(name.strip() for name in word.split("+")) for word in words
    )
    for name in (name for names in spec if names for name in names):
        mesh.axis(name)
    return spec


_ROWS = ("tensors", "slices", "files", "bytes", "dtypes")


def print_plan(report: WriteReport, sources: Sequence[str]) -> None:
    """Print the numbers of a dry run: a table of source and target, ranges, memory and disk."""
    with ExitStack() as stack:
        tables = [stack.enter_context(open_checkpoint(path)).entries() for path in sources]
        sizes: list[int] = []  # the payload bytes of each file that holds some
        for table in tables:
            nbytes = np.zeros(int(table.file.max(initial=-1)) + 1, np.int64)
            np.add.at(nbytes, table.file, table.slices.nbytes)
            sizes += nbytes.tolist()
        now = list(_column(tables, sizes))
    planned = [each.planned for each in report.ranks or (report,) if each.planned is not None]
    then = _column(planned, report.file_nbytes)
    print()
    print_table(("", "source", "target"), list(zip(_ROWS, now, then, strict=True)))
    print()
    say(f"reads {human_size(report.read_nbytes)} in {count(report.num_copies, 'range')}")
    # A bucket has no free bytes. Its files wait on this disk until they are whole.
    use = " for temporary files" if is_url(report.path) else ""
    free = f"{human_size(report.free_nbytes)} free{use}"
    say(f"memory: at most {human_size(report.peak_nbytes)} of buffers; disk: {free}")
    if report.map is not None:
        print_rules(report.map)
    say("Nothing was written.")


def _column(tables: Sequence[EntryTable], file_nbytes: Sequence[int]) -> Iterator[str]:
    """Yield the cells of one side, in the order of ``_ROWS``."""
    yield f"{sum(len(table.slices.tensors) for table in tables):,}"
    yield f"{sum(map(len, tables)):,}"
    largest = f", largest {human_size(max(file_nbytes))}" if len(file_nbytes) > 1 else ""
    yield f"{len(file_nbytes):,}{largest}"
    yield human_size(sum(file_nbytes))
    codes = sorted(
        {code for table in tables for code in np.unique(table.slices.tensors.codes).tolist()}
    )
    yield ", ".join(NAMES[code] for code in codes)


_LOST = 1


def execute(arguments: Namespace) -> int:
    """Return 0, or the code of ``--verify``, or 1 if tensors were lost."""
    if arguments.command == "apply":
        return _apply(arguments)
    sources = paths_of_components(arguments.source)
    check_certify(arguments)
    if arguments.html:
        check_target(arguments.html)
    try:
        with warnings_below():
            report = _reshard(arguments)
    except CheckpointError as error:
        if error.file is None or arguments.keep_going:
            raise
        raise type(error)(
            error.cause, f"{error.remedy} Or save all other tensors: --keep-going."
        ) from error
    verified = [
        verify_with_progress(find_checkpoint(_written(each)), VerifyOptions())
        for each in (report.ranks or (report,) if arguments.verify and not report.dry_run else ())
    ]
    if arguments.json:
        is_right = all(each.ok for each in verified) if verified else None
        print_json(report.to_json() | {"verified": is_right})
    else:
        cast = Conversions(parse_casts(arguments.cast or ()), None)
        note_dequantized(sources, cast.dtype_of_numbers(arguments.dequantize))
        note_large_files(report, arguments.max_file_size)
        print_write(report, sources, verified, arguments.verbose)
        if arguments.certify is not None:
            note(f"wrote {short_path(arguments.certify)}")
    if arguments.html:
        drawn = replace(report, map=None) if _changes_map(arguments) else report
        # The command without ``--dry-run`` and ``--html FILE``.
        words = list(arguments.words)
        if "--html" in words:
            at = words.index("--html")
            del words[at : at + 2]
        gone = ("--dry-run", "--json")
        words = [word for word in words if word not in gone and not word.startswith("--html=")]
        command = shlex.join(["shardvar", *words])
        write_plan_page(arguments.html, drawn, sources, arguments.target, command)
        note(f"wrote {short_path(arguments.html)}")
        show_link(arguments.html)
    code = next(filter(None, map(code_of_report, verified)), 0)
    return code or (_LOST if report.lost else 0)


def _reshard(arguments: Namespace) -> WriteReport:
    policy = parse_policy(arguments)
    mesh = None if arguments.mesh is None else parse_mesh(arguments.mesh)
    concat = parse_joins(arguments.concat or (), mesh)
    partition = parse_shards(
        arguments.shards or (), mesh, on_devices=bool(arguments.files_by), joins=concat
    )
    rename = parse_renames(arguments.rename or (), arguments.rename_file)
    cast = parse_casts(arguments.cast or ())
    given = map_of(arguments)
    if arguments.lora:
        given = _map_of_lora(arguments, given)
    with (
        executor_of(arguments) as executor,
        progress(
            "resharding", lambda: sum(map(payload_nbytes, paths_of_components(arguments.source)))
        ) as advance,
    ):
        sources = [*arguments.source, *(arguments.lora or ())]
        changes: dict[str, Any] = {
            "filter": arguments.filter,
            "exclude": arguments.exclude,
            "strip_prefix": arguments.strip_prefix,
            "rename": rename,
            "add_prefix": arguments.add_prefix,
            "map": given,
            "concat": concat,
            "transpose": arguments.transpose,
            "cast": cast,
            "dequantize": arguments.dequantize,
            "quantize": arguments.quantize,
            "keep": arguments.keep,
        }
        report = reshard(
            sources,
            arguments.target,
            format=arguments.format,
            policy=policy,
            partition=partition or None,
            **changes,
            digest=arguments.digest,
            keep_going=arguments.keep_going,
            force=arguments.force,
            dry_run=arguments.dry_run,
            executor=executor,
            progress=advance,
        )
    _certify(arguments, report, sources, changes)
    return report


def _certify(
    arguments: Namespace, report: WriteReport, sources: Sequence[str], changes: Mapping[str, Any]
) -> None:
    """Write the statement that ``--certify`` asks for, of what was just written."""
    if arguments.certify is None:
        return
    from shardvar.verbs.derivation import certify  # few writes are certified

    target = _written(report)
    with progress("certifying", lambda: report.nbytes) as advance:
        certify(
            target, sources, arguments.certify, force=arguments.force, progress=advance, **changes
        )


def _written(report: WriteReport) -> str:
    """The path of only the new checkpoint, even if another shares its prefix."""
    if report.format == "gguf":  # one file, which only --quantize writes
        return report.path
    return exact_path(find_target(report.path, report.format, report.format))


def check_certify(arguments: Namespace) -> None:
    """Refuse what has no statement, before anything is written."""
    file = arguments.certify
    if file is None:
        return
    for name in ("dry_run", "keep_going"):
        if getattr(arguments, name, False):
            cause = f"--certify is given with --{name.replace('_', '-')}."
            raise ArgumentError(cause, "Leave one of them out.")
    if "{rank" in arguments.target:
        cause = "--certify is given, and the map makes one checkpoint a rank."
        raise ArgumentError(cause, "Leave --certify out: a statement is about one checkpoint.")
    if os.path.exists(file) and not arguments.force:
        raise TargetExists(f"{file} exists.", "Pass --force, which also replaces the target.")


def _map_of_lora(arguments: Namespace, given: "Map | None") -> "Map":
    """Return the map that merges adapters, and print its rules."""
    from shardvar.verbs.lora import lora_rules  # most commands merge nothing

    if given is not None or len(arguments.source) > 1:
        other = "several SRC" if given is None else "a map"
        cause = f"--lora is given with {other}."
        raise ArgumentError(cause, "Merge first, and convert the result.")
    found = lora_rules(arguments.source[0], arguments.lora)
    if not (arguments.json or arguments.dry_run):
        for rule in found.rules:
            say(rule)
    return found


@contextmanager
def warnings_below() -> Iterator[None]:
    """Print the warnings of a write below its progress bar, without its report's."""
    warnings: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        if not hasattr(record, "is_in_report"):
            warnings.append(record.getMessage())
        return False  # the handler itself prints nothing

    log, handler = logging.getLogger("shardvar"), logging.Handler(logging.WARNING)
    handler.addFilter(keep)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        for warning in warnings:
            note(f"warning: {warning}")


def note_large_files(report: WriteReport, limit: str) -> None:
    if report.exceeding:
        largest = max(report.exceeding, key=lambda each: each.nbytes)
        number = f"{len(report.exceeding):,} of {count(report.num_files, 'file')}"
        what = (
            f"{number} larger than --max-file-size {limit}, up to {human_size(largest.nbytes)}: "
            f"{largest.reason}"
        )
        note(f"note: {message(what)}")


def _changes_map(arguments: Namespace) -> bool:
    """Return True, with a note, if other options change the result of a map, whose regions no page can show."""
    names = ("rename", "rename_file", "strip_prefix", "add_prefix", "transpose")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name)]
    has_map = arguments.map is not None or bool(arguments.rule)
    if has_map and given:
        note(
            f"note: the page does not draw the map, because {given[0]} changes what it makes; "
            "write it as a rule"
        )
    return has_map and bool(given)


def _file(report: WriteReport) -> str:
    """Return the file that means a new checkpoint, with its ending; else the checkpoint's path."""
    path, form = report.path, report.format
    names = [*names_of_target(path, form), *names_of_target(stem_of_name(path, form), form)]
    files = (each for each in names if os.path.isfile(each) and name_of_target(each, form) == each)
    return report.path if report.dry_run else next(files, report.path)


def parse_policy(arguments: Namespace) -> TablePolicy | None:
    if arguments.files is not None:
        return BalancedPolicy(parse_count(arguments.files, "--files"))
    if getattr(arguments, "files_by", None) is not None:
        return ShardByDevicePolicy()
    return (
        None
        if arguments.max_file_size is None
        else MaxShardSizePolicy(parse_size(arguments.max_file_size))
    )


def print_write(
    report: WriteReport, sources: Sequence[str], verified: Sequence[VerifyReport], verbose: bool
) -> None:
    line, *ranks = sizes_of_write(report, lambda one: short_path(_file(one)))
    if report.dry_run:
        say(line)
    else:
        answer("bad" if report.lost else "good", line, "wrote")
    for each in ranks:
        say(each)
    if verbose:
        say(f"policy: {one_line(report.description)}")
    if at_terminal() and report.lost:
        put("", f"{count(len(report.lost), 'tensor')} could not be read:")
        print_problems(report.lost, pipe="")
    else:
        for problem in lines_of_problems("lost: ", report.lost, everything=True):
            say(problem)
    put(*facts_of_write(report))
    if report.left_out:
        keys = ", ".join(map(printable, report.left_out))
        note(
            f"note: left out {keys}: {report.format} holds no strings, and only TensorFlow reads it"
        )
    if report.digests:
        note(f"note: {message(report.digests)}")
    if report.num_retries:
        pauses = human_time(report.retry_seconds)
        note(f"note: repeated {count(report.num_retries, 'request')}, after {pauses} of pauses")
    if report.dry_run:
        print_plan(report, sources)
    for found in verified:
        print_report(found)


_OF_RESHARD = ("lost", "dequantized", "ranks", "map", "num_united")
"""Fields that only a reshard has."""


def _apply(arguments: Namespace) -> int:
    from shardvar.verbs.delta.apply import apply  # a reshard does not need it

    base = arguments.base
    check_certify(arguments)
    partition = parse_shards(arguments.shards or ())
    with (
        warnings_below(),
        progress("applying", lambda: payload_nbytes(base)) as advance,
    ):
        report = apply(
            base,
            arguments.delta,
            arguments.target,
            format=arguments.format,
            policy=parse_policy(arguments),
            partition=partition or None,
            force=arguments.force,
            dry_run=arguments.dry_run,
            progress=advance,
        )
    if not report.already:
        _certify(arguments, report, [base, *arguments.delta], {"apply": True})
    if arguments.json:
        fields = report.to_json()
        print_json({name: fields[name] for name in fields if name not in _OF_RESHARD})
        return 0
    if report.already:
        answer("good", f"{report.notes[0]}: nothing was written", "already")
    else:
        note_large_files(report, arguments.max_file_size)
        print_write(report, [base], [], verbose=False)
    for each in report.notes[report.already :]:
        note(f"note: {seen_from_here(each)}")
    if arguments.certify is not None:
        note(f"wrote {short_path(arguments.certify)}")
    return 0
