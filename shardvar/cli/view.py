"""``shardvar view``: write a page for a browser that shows a checkpoint.

The steps: check that the target may be written, describe the checkpoint in columns, write the page beside the target
under a random name, and rename it into place.
"""

import os
import secrets
from argparse import Namespace
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from shardvar.checkpoint.comparison import DiffReport
from shardvar.checkpoint.locate import Location, find_checkpoint
from shardvar.checkpoint.reader import Reader
from shardvar.checkpoint.renaming import new_names
from shardvar.checkpoint.reports import SCHEMA, WriteReport
from shardvar.checkpoint.stats import histograms, measure
from shardvar.cli.output import count, human_size, note, print_json, progress, short_path
from shardvar.errors import ArgumentError, CheckpointError, MissingFile, ShardvarError, TargetExists
from shardvar.storage.local import split_path
from shardvar.view.collect import Columns, choose_keys, describe, describe_diff, describe_plan, file_sizes, front_coded
from shardvar.view.page import MARK, make_page

_ENDINGS = (".html", ".htm")


def execute(arguments: Namespace) -> int:
    """Write the page of one checkpoint, and with ``--open`` show it."""
    found = find_checkpoint(arguments.path)
    beside = found.path if found.is_folder else os.path.join(found.storage.path, found.stem)
    if found.storage.local_path is None:  # the page is written here
        beside = os.path.basename(beside)
    target = arguments.output or f"{beside}.html"
    if arguments.serve:
        return _serve(found, arguments)
    check_target(target)
    with Reader(found.path, found.format.name, found.open()) as reader:
        columns = _columns(found, reader, choose_keys(reader, arguments.filter), arguments.stats)
    write_page(target, make_page([columns]))
    slices = len(columns["slices"]["start"])
    nbytes = sum(columns["nbytes"])
    if arguments.json:
        report = {"path": target, "num_tensors": len(columns["nbytes"]), "num_slices": slices, "nbytes": nbytes}
        print_json({"schema": SCHEMA, **report, "num_files": len(columns["files"])})
    else:
        files = count(len(columns["files"]), "file")
        tensors = f"{count(len(columns['nbytes']), 'tensor')} in {count(slices, 'slice')}"
        print(f"wrote {short_path(target)}: {tensors}, {files}, {human_size(nbytes)}")
    if arguments.open:
        open_in_browser(target)
    return 0


def write_diff_page(
    target: str,
    report: DiffReport,
    globs: Sequence[str] | None = None,
    excluded: Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
) -> None:
    """Write the page of two checkpoints that were compared, side by side: of the tensors that the globs chose.

    Tensors of the first one are shown by the names that ``rename`` gives them, by which they were compared.
    """
    columns, names = [], []
    for path, renamed in ((report.path_a, rename or {}), (report.path_b, {})):
        found = find_checkpoint(path)
        with Reader(found.path, found.format.name, found.open()) as reader:
            name_of = dict(zip(reader.keys(), new_names(reader.keys(), renamed), strict=True))
            keys = [key for key, name in name_of.items() if _is_chosen(name, globs, excluded)]
            names.append([name_of[key] for key in keys])
            about = describe(reader, keys, file_sizes(found.storage, reader.index.files))
            columns.append(about | {"keys": front_coded(names[-1])})
    write_page(target, make_page(columns, describe_diff(report, names[0])))


def write_plan_page(target: str, report: WriteReport, sources: Sequence[str], command: str) -> None:
    """Write the page of a reshard that is planned: the source, where it is one, beside what would be written."""
    plan, columns = describe_plan(report)
    if len(sources) == 1:
        found = find_checkpoint(sources[0])
        with Reader(found.path, found.format.name, found.open()) as reader:
            columns = [describe(reader, choose_keys(reader), file_sizes(found.storage, reader.index.files)), *columns]
    write_page(target, make_page(columns, plan=plan | {"command": command}))


def _is_chosen(name: str, globs: Sequence[str] | None, excluded: Sequence[str] | None) -> bool:
    if any(fnmatchcase(name, glob) for glob in excluded or ()):
        return False
    return not globs or any(fnmatchcase(name, glob) for glob in globs)


def check_target(target: str) -> None:
    """Raise unless a page may be written: the name ends in ``.html``, and a file of that name is a page of shardvar."""
    storage, name = split_path(target)
    if not name.lower().endswith(_ENDINGS):
        raise ArgumentError(f"Invalid output file {target!r}.", "Output file must end in .html.")
    try:
        file = storage.open(name)
    except MissingFile:
        return
    except CheckpointError as error:
        raise TargetExists(f"{target} is not a regular file.", "Choose another name.") from error
    try:
        is_ours = file.size >= len(MARK) and file.read(0, len(MARK)) == MARK.encode()
    finally:
        file.close()
    if not is_ours:
        raise TargetExists(f"{target} exists and was not written by shardvar.", "Choose another name.")


def write_page(target: str, text: str) -> None:
    """Write the page under another name and rename it into place, so that no half-written page is ever seen."""
    check_target(target)
    storage, name = split_path(target)
    storage.make()
    aside = f".shardvar-{secrets.token_hex(8)}.html"
    try:
        file = storage.create(aside)
        try:
            file.write(0, text.encode())
        finally:
            file.close()
        storage.rename(aside, name)
    except (ShardvarError, KeyboardInterrupt):
        storage.remove(aside)
        raise


def open_in_browser(target: str) -> None:
    """Show the page in a browser, or print a note where there is none."""
    import webbrowser

    if not webbrowser.open(Path(os.path.abspath(target)).as_uri()):
        note(f"note: no browser was found; open {short_path(target)} yourself.")


def _serve(found: Location, arguments: Namespace) -> int:
    """Serve the page, and the values that it asks for, until an interrupt."""
    from shardvar.cli.serving import serve_page

    if arguments.output:
        raise ArgumentError("--serve and --output are both given.", "Give one: --serve writes no file.")
    with Reader(found.path, found.format.name, found.open()) as reader:
        keys = choose_keys(reader, arguments.filter)
        page = make_page([_columns(found, reader, keys, arguments.stats)], served=True)
        serve_page(page, reader, keys, arguments.json, arguments.open)
    return 0


def _columns(found: Location, reader: Reader, keys: Sequence[str], stats: bool) -> Columns:
    sizes = file_sizes(found.storage, reader.index.files)
    if not stats:
        return describe(reader, keys, sizes)
    total = 2 * int(reader.entries().slices.nbytes.sum())
    with progress("reading", lambda: total) as advance:
        measured = dict(measure(reader, keys, advance))
        counts = dict(histograms(reader, measured, advance))
    return describe(reader, keys, sizes, measured, counts)
