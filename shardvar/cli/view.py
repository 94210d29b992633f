"""``shardvar view``: write a page for a browser that shows a checkpoint.

The steps: check that the target may be written, describe the checkpoint in columns, write the page
next to the target under a random name, and rename it into place.

The files of a model have usual names, such as ``model.safetensors.index.json``, so a page is named
by their folder. It is sent to others: a name has as much of the path as it takes to tell two
checkpoints apart, and no more.
"""

import os
import re
import secrets
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, Self

from shardvar.cli.maps import through_map
from shardvar.cli.output import (
    at_terminal,
    count,
    human_size,
    human_tensors,
    note,
    note_numbers,
    print_json,
    progress,
    put,
    short_path,
)
from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    MissingFile,
    ReadError,
    ShardvarError,
    StorageError,
    TargetExists,
)
from shardvar.formats.published import delta_of
from shardvar.formats.table import stem_of_name, usual_name
from shardvar.layout.dtypes import Ints
from shardvar.records import frozen, replace
from shardvar.storage.local import is_url, split_path
from shardvar.verbs.compare.blocks import Statistics, histograms, measure, read_scalars
from shardvar.verbs.compare.comparison import DiffReport
from shardvar.verbs.locate import Location, find_checkpoint
from shardvar.verbs.mapping import renamed_reader
from shardvar.verbs.problems import SCHEMA
from shardvar.verbs.reader import Reader, open_found
from shardvar.verbs.renaming import matches_any
from shardvar.verbs.reports import WriteReport
from shardvar.view.collect import (
    MARK,
    JsonColumns,
    StatisticsByKey,
    choose_keys,
    describe,
    describe_diff,
    describe_plan,
    file_sizes,
    made_columns,
    make_page,
    room_left,
    scalar_columns,
    statistics_that_fit,
    unpacked,
)

_SET = ".index.json"
"""The ending of the index of a set of files, which is a model as long as it is in its folder."""

_SAYS_LITTLE = re.compile(
    r"\d+|default|ckpt|checkpoint|(model|pytorch_model|diffusion_pytorch_model|adapter_model)\.(safetensors|bin|pt|pth)"
)
"""Names of steps and of files that are in many folders; the folder is named with them."""


def names_of(*checkpoints: tuple[Location, str]) -> list[str]:
    """Return a name for each checkpoint and typed path; different places have different names."""
    return _distinct([_place(*each) for each in checkpoints])


def names_of_plan(sources: Sequence[tuple[Location, str]], target: str) -> list[str]:
    places = [_place(*each) for each in sources]
    return _distinct([*places, _place_of_file(target)])


def page_path(found: Location, typed: str) -> str:
    """Not in a model's folder, which people upload; for a bucket, in the current directory."""
    folder = _folder(found, typed)
    if found.storage.local_path is None:
        name = found.stem if folder is None else _parts(folder)[-1]
        return f"{name}.html"
    if folder is None:
        return f"{os.path.join(found.storage.path, found.stem)}.html"
    path = os.path.normpath(folder)
    if os.path.basename(path) in ("", os.curdir, os.pardir):
        path = os.path.abspath(path)
    parent, name = os.path.split(path)
    if not name or not os.access(parent or os.curdir, os.W_OK):
        raise ArgumentError(
            f"No page can be written next to the folder {folder!r}.",
            "Choose a file with `--output FILE.html`.",
        )
    return f"{path}.html"


def _folder(found: Location, typed: str) -> str | None:
    """Return the folder that is the checkpoint; None for files of one prefix."""
    if is_url(typed):
        last = typed.rstrip("/").rpartition("/")[2]
        is_typed = stem_of_name(last, found.format.name) != found.stem
    else:
        is_typed = os.path.isdir(typed)
    if is_typed:
        return typed
    return found.storage.path if found.is_folder or found.name.endswith(_SET) else None


def _place(found: Location, typed: str) -> list[str]:
    """Return the parts of the path that names a checkpoint, from the top to the name itself."""
    folder = _folder(found, typed)
    return _parts(folder) if folder is not None else _place_of_file(found.path)


def _place_of_file(path: str) -> list[str]:
    parts = _parts(path)
    return parts[:-1] if parts[-1].endswith(_SET) and len(parts) > 1 else parts


def _parts(path: str) -> list[str]:
    whole = path if is_url(path) else os.path.abspath(path)
    return [part for part in whole.replace(os.sep, "/").split("/") if part] or ["/"]


def _distinct(places: Sequence[Sequence[str]]) -> list[str]:
    """Return the ends of some paths, which are equal only if the paths are.

    >>> _distinct([["a", "llama", "10"], ["b", "tuned"]]), _distinct([["a", "llama"], ["b", "llama"]])
    (['llama/10', 'tuned'], ['a/llama', 'b/llama'])
    """
    # The parts at the end of a path that are a name which means something; in the cache of Hugging
    # Face: models--meta-llama--Llama-3.1-8B/snapshots/a hash.
    lengths = [
        3 if place[-2:-1] == ["snapshots"] else 2 if _SAYS_LITTLE.fullmatch(place[-1]) else 1
        for place in places
    ]
    different = {tuple(place) for place in places}
    most = max(map(len, places))

    def names() -> list[str]:
        return ["/".join(place[-length:]) for place, length in zip(places, lengths, strict=True)]

    while len(set(names())) < len(different) and min(lengths) < most:
        lengths = [length + 1 for length in lengths]
    return names()


_ENDINGS = (".html", ".htm")


def execute(arguments: Namespace) -> int:
    found = find_checkpoint(arguments.path)
    if arguments.serve:
        from shardvar.cli.serving import serve_page

        with _opened(found, arguments) as reader:
            page = make_page([_columns(found, reader, arguments)], served=True)
            keys = choose_keys(reader, arguments.filter, arguments.exclude)
            serve_page(page, reader, keys, arguments.json, arguments.open)
        return 0
    target = arguments.output or page_path(found, arguments.path)
    check_target(target)
    with _opened(found, arguments) as reader:
        columns = _columns(found, reader, arguments)
    write_page(target, make_page([columns]))
    num_slices, nbytes = unpacked(columns["num_slices"]), sum(unpacked(columns["nbytes"]))
    num_settings = sum(stop - start for start, stop in columns["settings"])
    if arguments.json:
        report = {
            "path": target,
            "num_tensors": len(num_slices),
            "num_slices": sum(num_slices),
            "nbytes": nbytes,
            "num_files": len(columns["files"]),
            "num_settings": num_settings,
        }
        print_json({"schema": SCHEMA, **report})
    else:
        num_files = count(len(columns["files"]), "file")
        tensors = human_tensors(len(num_slices), sum(num_slices) - num_settings, num_settings)
        put(f"wrote {short_path(target)}: {tensors}, {num_files}, {human_size(nbytes)}")
        if not arguments.open:
            show_link(target)
    if arguments.open:
        open_in_browser(target)
    return 0


def write_plan_page(
    page: str, report: WriteReport, sources: Sequence[str], target: str, command: str
) -> None:
    plan, columns = describe_plan(report)
    plan |= made_columns(report)
    found_sources = [(find_checkpoint(path), path) for path in sources]
    *names, name = names_of_plan(
        found_sources, report.path.removesuffix("/" + usual_name(report.format))
    )
    columns = [each | {"path": target, "name": name} for each in columns]
    if len(sources) == 1:
        ((found, path),) = found_sources
        with open_found(found, dequantize=False) as reader:
            keys = choose_keys(reader)
            source = describe(reader, keys, file_sizes(found.storage, reader.index.files))
        columns = [as_typed(source, found, path, names[0]), *columns]
    write_page(page, make_page(columns, plan=plan | {"command": command}))


def as_typed(columns: JsonColumns, found: Location, path: str, name: str) -> JsonColumns:
    """Return the columns with the path as it was typed: a page is sent to others, and its commands are copied."""
    return columns | {
        "path": path,
        "name": name,
        "causes": [[kind, message_as_typed(text, found, path)] for kind, text in columns["causes"]],
    }


def message_as_typed(message: str, found: Location, path: str) -> str:
    """Return a message with files as seen from the typed path, not by the folders of this machine."""
    if found.storage.local_path is None:  # of a bucket, a URL was typed
        return message
    folder = os.path.normpath(
        os.path.join(path, os.path.relpath(found.storage.path, os.path.abspath(path)))
    )
    return message.replace(
        os.path.join(found.storage.path, ""), "" if folder == "." else os.path.join(folder, "")
    )


def check_target(target: str) -> None:
    """Raise unless the name ends in ``.html``, and a file of that name is a page of shardvar."""
    storage, name = split_path(target)
    if not name.lower().endswith(_ENDINGS):
        raise ArgumentError(f"Invalid output file {target!r}.", "Output file must end in .html.")
    try:
        file = storage.open(name)
    except MissingFile:
        return
    except StorageError as error:
        reason = error.cause.rpartition(": ")[2]
        raise StorageError(
            f"{target} exists and cannot be replaced: {reason}", error.remedy
        ) from error
    except CheckpointError as error:
        raise TargetExists(f"{target} is not a regular file.", "Choose another name.") from error
    try:
        is_ours = file.size >= len(MARK) and file.read(0, len(MARK)) == MARK.encode()
    finally:
        file.close()
    if not is_ours:
        raise TargetExists(
            f"{target} exists and was not written by shardvar.", "Choose another name."
        )


def write_page(target: str, text: str) -> None:
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
    except StorageError as error:
        storage.remove(aside)
        raise StorageError(error.cause.replace(aside, name), error.remedy) from error
    except (ShardvarError, KeyboardInterrupt):
        storage.remove(aside)
        raise


def open_in_browser(target: str) -> None:
    import webbrowser

    if not webbrowser.open(Path(os.path.abspath(target)).as_uri()):
        note(f"note: no browser was found; open {short_path(target)} yourself.")


def show_link(target: str) -> None:
    """Print the address of a page at a terminal, where it can be clicked."""
    if at_terminal():
        note(Path(os.path.abspath(target)).as_uri())


def _opened(found: Location, arguments: Namespace) -> Reader:
    reader = open_found(found, dequantize=arguments.dequantize)
    note_numbers(reader, arguments.dequantize)
    tensors = reader.listed().slices.tensors
    delta = delta_of(found.storage, reader.format, reader.metadata.user, tensors)
    if delta:
        note(f"note: {short_path(found.path)} is {delta.what}")
    return through_map(reader, arguments)


@frozen
class _Side:
    """A checkpoint on a page: the only one, or one of two that are compared."""

    path: str
    """As it was typed."""
    found: Location
    name: str
    reader: Reader
    keys: Sequence[str]
    sizes: Sequence[int | None]
    """The bytes of its data files."""
    scalars: JsonColumns
    """Its settings, and the values of its scalars."""

    @classmethod
    def of(cls, path: str, found: Location, name: str, reader: Reader, keys: list[str]) -> Self:
        sizes = file_sizes(found.storage, reader.index.files)
        scalars = scalar_columns(reader, keys, read_scalars(reader, keys))
        return cls(path, found, name, reader, keys, sizes, scalars)

    def columns(
        self, measured: StatisticsByKey | None = None, counts: Mapping[str, Ints] | None = None
    ) -> JsonColumns:
        about = describe(self.reader, self.keys, self.sizes, measured, counts) | self.scalars
        return as_typed(about, self.found, self.path, self.name)


def _columns(found: Location, reader: Reader, arguments: Namespace) -> JsonColumns:
    """Return the columns of the page, with as many statistics as it has room for, unless it is served."""
    (name,) = names_of((found, arguments.path))
    keys = choose_keys(reader, arguments.filter, arguments.exclude)
    side = _Side.of(arguments.path, found, name, reader, keys)
    if not arguments.stats:
        return side.columns()
    if not arguments.serve:
        make_page([side.columns()])  # raises
    advice = (
        "statistics of {} tensors: first tensors with NaN, infinity or one value, then the largest. "
        "`--serve` shows statistics of any tensor."
    )
    return _with_statistics([side], [keys], None, advice, is_served=arguments.serve)[0]


# The page of a comparison.


def check_diff_page(arguments: Namespace, rename: Mapping[str, str]) -> None:
    """Raise ``ArgumentError`` if the page would be too large whatever differs; no value is read."""
    with ExitStack() as stack:
        make_page([side.columns() for side in _open_sides(stack, arguments, rename)], {})


def write_diff_page(arguments: Namespace, report: DiffReport, rename: Mapping[str, str]) -> None:
    """Write the page of the compared tensors, of A as the map and ``rename`` make them."""
    with ExitStack() as stack:
        sides = _open_sides(stack, arguments, rename)
        told = describe_diff(report, sides[0].keys)
        side_of = dict(zip("ab", sides, strict=True))
        told["unreadable"] = [
            [row, side, kind, message_as_typed(text, side_of[side].found, side_of[side].path)]
            for row, side, kind, text in told["unreadable"]
        ]
        columns = [side.columns() for side in sides]
        if arguments.stats:
            make_page(columns, told)  # raises
            differing = {each.key for each in report.differences}
            keys = [[key for key in side.keys if key in differing] for side in sides]
            advice = "histograms of {} tensors. Choose tensors with `--filter`."
            columns = _with_statistics(sides, keys, told, advice)
    write_page(arguments.html, make_page(columns, told))


def _open_sides(stack: ExitStack, arguments: Namespace, rename: Mapping[str, str]) -> list[_Side]:
    sides: list[_Side] = []
    checkpoints = [(find_checkpoint(path), path) for path in (arguments.a, arguments.b)]
    for (found, path), name in zip(checkpoints, names_of(*checkpoints), strict=True):
        reader = stack.enter_context(open_found(found, dequantize=arguments.dequantize))
        if not sides:
            reader = renamed_reader(through_map(reader, arguments), rename)
        globs = arguments.filter or ["*"]
        excluded = arguments.exclude or []
        keys = [key for key in reader if matches_any(key, globs) and not matches_any(key, excluded)]
        sides.append(_Side.of(path, found, name, reader, keys))
    return sides


def _with_statistics(
    sides: Sequence[_Side],
    keys: Sequence[Sequence[str]],
    told: JsonColumns | None,
    advice: str,
    *,
    is_served: bool = False,
) -> list[JsonColumns]:
    """Return the columns with as many statistics as there is room for, of the same tensors on both sides."""
    total = 0  # twice the bytes of these tensors, which are read twice
    for side, some in zip(sides, keys, strict=True):
        slices = side.reader.entries().slices
        rows, nbytes = slices.tensors.rows(), slices.nbytes_of_tensors()
        total += 2 * sum(int(nbytes[rows[key]]) for key in some if key in rows)
    with progress("reading", lambda: total) as advance:
        measured = [
            dict(measure(side.reader, some, advance))
            for side, some in zip(sides, keys, strict=True)
        ]
        kept = measured if is_served else _that_fit(sides, measured, told)
        # The bars of both sides have the same ends.
        ends: dict[str, tuple[Any, Any]] = {}
        for key, each in chain.from_iterable(of_side.items() for of_side in kept):
            if isinstance(each, Statistics) and None not in (each.minimum, each.maximum):
                low, high = ends.get(key, (each.minimum, each.maximum))
                ends[key] = min(low, each.minimum), max(high, each.maximum)
        columns = []
        for side, of_side in zip(sides, kept, strict=True):
            joint = {
                key: replace(each, minimum=ends[key][0], maximum=ends[key][1])
                for key, each in of_side.items()
                if isinstance(each, Statistics) and key in ends
            }
            columns.append(side.columns(of_side, dict(histograms(side.reader, joint, advance))))
    names, shown = ({key for of_side in some for key in of_side} for some in (measured, kept))
    for page in columns:
        page["stats"]["num_left_out"] = len(names) - len(shown)
    if len(shown) < len(names):
        number = f"{len(shown):,} of {len(names):,}"
        note(f"note: the page has room for the {advice.format(number)}")
    return columns


def _that_fit(
    sides: Sequence[_Side],
    measured: Sequence[dict[str, Statistics | ReadError]],
    told: JsonColumns | None,
) -> list[dict[str, Statistics | ReadError]]:
    errors = [
        {key: each for key, each in some.items() if isinstance(each, ReadError)}
        for some in measured
    ]
    plain = make_page([side.columns(some) for side, some in zip(sides, errors, strict=True)], told)
    room = room_left(plain) // len(sides)
    kept = [
        statistics_that_fit(side.keys, some, room)
        for side, some in zip(sides, measured, strict=True)
    ]
    left_out = {
        key for all_, some in zip(measured, kept, strict=True) for key in all_.keys() - some.keys()
    }
    return [
        {
            key: each
            for key, each in some.items()
            if isinstance(each, ReadError) or key not in left_out
        }
        for some in kept
    ]
