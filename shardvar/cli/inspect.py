"""``shardvar inspect``: list the tensors of a checkpoint.

The index has almost everything, so the steps are: open the checkpoint, gather its entries into one
``Tensor`` a key, read the values only for ``--stats``, and print an overview for people or one
object for programs.

The overview has two lines of totals, a tree, and the faults. At a terminal the tree is folded until
all of it is on the screen: layers of equal tensors share a line, wherever their bytes are.
TensorFlow's suffix of keys and the slots of optimizers are left out, and if lines are short, the
settings of a program get a line below the tree for each place that has some. The last lines list
the folded parts, and how to see them. ``--all`` folds nothing. A pipe gets every whole key, a line
each.
"""

import os
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shardvar.cli.output import (
    all_tensors,
    at_terminal,
    count,
    folded,
    human_count,
    human_size,
    human_tensors,
    note_numbers,
    num_lines,
    path_on_a_line,
    print_csv,
    print_json,
    printable,
    progress,
    put,
    say,
    terminal_size,
    warn,
)
from shardvar.cli.tensors import (
    SUFFIX,
    Shown,
    Table,
    TableRow,
    Tensor,
    bits_each,
    file_numbers,
    fit,
    fold_state,
    layout_of,
    line_weights,
    list_slices,
    list_tensors,
    print_rows,
    slice_json,
    slot_names,
)
from shardvar.cli.tree import Line, print_problems, problem_lines, tree_lines
from shardvar.cli.usage import parse_count
from shardvar.errors import ArgumentError, CheckpointError, ReadError
from shardvar.limits import MAX_NAMED
from shardvar.planning.index import DELTA, find_ties, take_tensors
from shardvar.records import replace
from shardvar.storage.concurrency import without_collection
from shardvar.verbs.locate import find_below, look_at, only_one
from shardvar.verbs.parameters import ParameterCount, empty_note, is_optimizer_state
from shardvar.verbs.reader import Reader, open_found
from shardvar.wire.strict_json import parse_json

if TYPE_CHECKING:
    from shardvar.verbs import problems
    from shardvar.verbs.compare.blocks import ScalarValue, Statistics
    from shardvar.wire.damage import FileKind

_MOST_PLACES = 3
"""The places of a tree that have a line."""
_FIRST = (
    "epoch",
    "step",
    "global_step",
    "iteration",
    "lr",
    "initial_lr",
    "betas",
    "momentum",
    "eps",
    "weight_decay",
)
_OFF = ("None", "False", "0", "[]", "{}", "''")
_LONGEST = 24
"""The characters of the longest value in a line."""


def settings_lines(keys: Sequence[str], scalars: "Mapping[str, ScalarValue]") -> list[str]:
    """Return the settings of these keys in a heading and at most three more lines."""
    groups: dict[str, list[str]] = {}
    for key in keys:
        groups.setdefault(key[: _place(key)], []).append(key)
    lines = [f"{count(len(keys), 'setting')} (--all lists each):"]
    for number, (place, some) in enumerate(groups.items(), 1):
        if number == _MOST_PLACES and len(groups) > _MOST_PLACES:
            more = sum(len(others) for others in list(groups.values())[number - 1 :])
            return [
                *lines,
                f"  {count(more, 'setting')} in {len(groups) - number + 1} other places",
            ]
        lines.append(_line(f"  {printable(place)}{': ' * bool(place)}", some, scalars))
    return lines


def _place(key: str) -> int:
    separator = "/" if "/" in key else "."
    return max(key.rfind(separator), 0)


def _line(text: str, keys: Sequence[str], scalars: "Mapping[str, ScalarValue]") -> str:
    """Return as many settings of one place as fit a line, and the number of the others."""
    width = terminal_size().columns
    settings = [(key[_place(key) :].lstrip("./"), scalars.get(key)) for key in keys]

    def rank(setting: "tuple[str, ScalarValue | None]") -> tuple[bool, int]:
        name, value = setting
        is_off = (value is None or value.text in _OFF) and name not in _FIRST
        return is_off, _FIRST.index(name) if name in _FIRST else len(_FIRST)

    shown: list[str] = []
    for number, (name, value) in enumerate(sorted(settings, key=rank)):
        words = "not read" if value is None else printable(value.text)
        words = words if len(words) <= _LONGEST else words[: _LONGEST - 1] + "…"
        rest = len(keys) - number - 1
        end = f", {rest} more" if rest else ""
        setting = f"{printable(name)} {words}"
        if len(", ".join([text, *shown, setting])) + len(end) > width and shown:
            break
        shown.append(setting)
    more = [f"{len(keys) - len(shown)} more"] * (len(shown) < len(keys))
    return text + ", ".join([*shown, *more])


_FEWEST_LINES, _MOST_LINES = 4, 60
"""The height of a folded tree is what the terminal has left, between these."""
_MOST_CAUSES = 4
"""The causes of damage that a terminal lists below a tree."""
_PROMPTS = 2
"""Lines of the screen for the command itself and for the next prompt."""
_NOT_COUNTED = 0.01
"""The part of the bytes from which tensors that may be packed weights are named where parameters
are counted."""
_DESCRIPTIONS = {
    "config.json": ("architectures", "model_type"),
    "adapter_config.json": ("peft_type", "base_model_name_or_path", "r", "lora_alpha"),
}
"""The files next to a model that describe it, and their entries that are shown."""
_DESCRIBED_NBYTES, _DESCRIBED_DEPTH, _DESCRIBED_LENGTH = 1 << 24, 32, 200


def print_overview(
    reader: Reader,
    tensors: Sequence[Tensor],
    measured: "Mapping[str, Statistics | ReadError]",
    arguments: Namespace,
) -> None:
    heading = [*_heading(reader, tensors, arguments.verbose)]
    path = path_on_a_line(reader.path)
    for line in heading:
        first = line.split(",", maxsplit=1)[0]
        say(line, [path] if line.startswith(path) else [first] if " parameter" in first else [])
    faults: list[problems.Damage] = []
    if any(each.fault for each in tensors):
        from shardvar.verbs.problems import Damage  # most checkpoints have no fault

        faults.extend(Damage.of(each.fault, each.key) for each in tensors if each.fault)
    taken = 0  # the lines around the tree, at a terminal
    if at_terminal():
        taken = sum(len(folded(line)) for line in heading) + num_lines(arguments.notes)
        taken += len(problem_lines(faults, most=_MOST_CAUSES)) + 3 if faults else 0
    if arguments.brief:
        # They are the reason for the exit code of ``--fail-on``.
        if measured:
            from shardvar.cli.statistics import (
                findings,  # not above: without --stats nothing needs it
            )

            for line in findings(measured):
                warn(line)
    else:
        if arguments.slices:
            cut = [layout_of(reader, each) for each in tensors if each.num_slices > 1]
            layouts = [each and f"{each.rule}, mesh {each.mesh}" for each in cut]
            for layout, number in Counter(each or "no known layout" for each in layouts).items():
                say(f"{count(number, 'tensor')} cut as: {layout}")
        # At a terminal the table of values replaces the table of shapes, unless all or some tensors
        # are asked for.
        is_folded = bool(measured) and at_terminal() and _in_brief(arguments)
        if tensors and not is_folded:
            print()
            _print_tensors(reader, tensors, arguments, taken)
        if measured:
            from shardvar.cli.statistics import print_statistics

            print()
            print_statistics(tensors, measured, lines_left(taken) if is_folded else None)
    if wrong := reader.source.file_faults():
        from shardvar.verbs.problems import untold

        if files := untold(wrong, faults):
            put("", f"{count(len(files), 'file')} damaged:")
            print_problems(files, arguments.all, pipe="  ")
    if faults:
        put("", f"{count(len(faults), 'tensor')} cannot be read:")
        if not print_problems(faults, arguments.all, pipe="  ", most=_MOST_CAUSES):
            say("--all names each of them.")


def lines_left(taken: int) -> int:
    """Return the lines of the terminal for a tree, with the blank line and the headers above it."""
    return min(max(terminal_size().lines - _PROMPTS - 2 - taken, _FEWEST_LINES), _MOST_LINES)


def _heading(reader: Reader, tensors: Sequence[Tensor], verbose: bool) -> Iterator[str]:
    own = [each for each in tensors if not each.is_setting]
    settings = len(tensors) - len(own)
    number = human_tensors(len(tensors), sum(each.num_slices for each in own), settings)
    files = count(len({name for each in tensors for name in each.files}), "file")
    size = human_size(sum(each.nbytes for each in own))
    name = f"{path_on_a_line(reader.path)} ({reader.format})"
    broken = sum(each.fault is not None for each in tensors)
    total = all_tensors(len(tensors), settings)
    wrong = f"; {broken:,} of {total} unreadable" if broken else ""
    if not broken and (damaged := len(reader.source.file_faults())):
        wrong = f"; {count(damaged, 'file')} damaged"
    yield f"{name}: {number}, {files}, {size}{wrong}"
    parameters = ParameterCount(
        {each.key: (each.counted_as, each.num_parameters) for each in own if each.counted_as}
    )
    # Only parameters of the model are counted.
    slots = sum(each.nbytes for each in own if not each.counted_as and is_optimizer_state(each.key))
    parts = []
    if parameters.total:
        kinds = list(parameters.by_dtype)
        dtypes = (
            f"all {kinds[0]}" if len(kinds) == 1 else f"{', '.join(kinds[:-1])} and {kinds[-1]}"
        )
        number = f"{human_count(parameters.total)} parameter{'' if parameters.total == 1 else 's'}"
        bits = bits_each(own, parameters.total)
        has_codes = any(each.encoding for each in own)
        parts.append(f"{number}, {dtypes}" + (f", {bits:.3g} bits each" if has_codes else ""))
    if slots and parameters.total:
        parts.append(f"optimizer {human_size(slots)}")
    packed = [each for each in own if each.may_be_packed]
    nbytes = sum(each.nbytes for each in packed)
    if packed and (verbose or nbytes >= _NOT_COUNTED * sum(each.nbytes for each in own)):
        kinds = sorted({each.dtype or "" for each in packed})
        parts.append(
            f"not counted: {count(len(packed), 'tensor')} of {', '.join(kinds)}, {human_size(nbytes)}"
        )
    if parts:
        text = "; ".join(parts)
        yield text[:1].upper() + text[1:]
    facts = {each.key: (each.dtype, each.shape) for each in own if each.dtype and each.shape}
    if empty := empty_note(facts):
        yield printable(empty)
    if others := referred(reader):
        named = [f"{count(number, 'file')} of {printable(owner)}" for owner, number in others]
        more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
        yield f"Refers to {', '.join(named[:MAX_NAMED])}{more}"
    tied = ties_among(reader, tensors).items()
    ties = [f"{printable(key)} = {printable(first)}" for key, first in tied]
    if ties:
        more = f" and {len(ties) - MAX_NAMED} more" if len(ties) > MAX_NAMED else ""
        yield f"Tied: {', '.join(ties[:MAX_NAMED])}{more}"
    if parameters.total and reader.format in ("safetensors", "pt"):
        yield from _described(reader.path)
    if verbose:
        yield from _details(reader, parameters.by_dtype)


def _described(path: str) -> Iterator[str]:
    """Yield a line for each file next to a model that describes it."""
    for name, entries in _DESCRIPTIONS.items():
        file = os.path.join(path if os.path.isdir(path) else os.path.dirname(path), name)
        if not os.path.isfile(file) or os.path.getsize(file) > _DESCRIBED_NBYTES:
            continue
        with open(file, "rb") as content, suppress(CheckpointError):
            found = parse_json(content.read(_DESCRIBED_NBYTES), _DESCRIBED_DEPTH, allow_nan=True)
            values = {each: found.get(each) for each in entries} if isinstance(found, dict) else {}
            texts = {
                entry: " ".join(str(each) for each in listed if isinstance(each, str | int))
                for entry, value in values.items()
                for listed in [value if isinstance(value, list) else [value]]
            }
            facts = [
                f"{entry} {text}"
                for entry, text in texts.items()
                if 0 < len(text) <= _DESCRIBED_LENGTH
            ]
            if facts:
                yield printable(f"{name}: {', '.join(facts)}")


def ties_among(reader: Reader, tensors: Sequence[Tensor]) -> dict[str, str]:
    """Return the keys of some tensors that have the bytes of an earlier one of them, with its key."""
    return find_ties(take_tensors(reader.listed(), {each.key for each in tensors}))


def referred(reader: Reader) -> list[tuple[str, int]]:
    """Return the checkpoints to whose data files this one refers, with the number of files."""
    if reader.format != "shardvar":
        return []
    from shardvar.formats.native.index import files_of_others  # of one format

    prefix = os.path.basename(reader.path)
    return [*files_of_others(reader.index.files, prefix).items()]


def _details(reader: Reader, parameters: Mapping[str, int]) -> Iterator[str]:
    metadata = reader.metadata
    for kind, number in parameters.items():
        yield f"parameters in {kind}: {number:,}"
    if metadata.writer:
        yield f"written by {printable(metadata.writer)}"
    if metadata.description:
        yield f"policy: {printable(metadata.description)}"
    for name, value in metadata.user.items():
        yield f"metadata: {printable(name)} = {printable(value)}"


def _print_tensors(
    reader: Reader, tensors: Sequence[Tensor], arguments: Namespace, taken: int
) -> None:
    if arguments.sort == "size":
        largest = sorted(tensors, key=lambda each: -each.nbytes)
        table = _table(reader, largest, arguments)
        print_rows(
            (row for each in largest for row in table.of_tensors(printable(each.key), [each])),
            bool(table.numbers),
        )
    elif not at_terminal():
        with without_collection():
            print_rows(_piped_rows(_table(reader, tensors, arguments), tensors, arguments))
    elif _in_brief(arguments) and not arguments.stats:
        _print_folded(reader, tensors, arguments, taken)
    else:
        # Like tensors share a line only in an overview; these options ask about each tensor.
        lines = [Shown(line) for line in tree_lines([each.key for each in tensors])]
        table = _table(reader, tensors, arguments)
        kept = [
            each for each in lines if arguments.depth is None or each.line.level <= arguments.depth
        ]
        print_rows([*table.of_lines(kept)], bool(table.numbers))


def _scalars(reader: Reader, tensors: Sequence[Tensor]) -> "dict[str, ScalarValue]":
    keys = [each.key for each in tensors if each.shape == ()]
    if not keys:
        return {}
    from shardvar.verbs.compare.blocks import read_scalars  # it reads, and a listing does not

    return read_scalars(reader, keys, is_listing=True)


def _table(
    reader: Reader, tensors: Sequence[Tensor], arguments: Namespace, nbytes: int = 0
) -> Table:
    scalars = _scalars(reader, tensors)
    if not at_terminal():
        return Table(reader, tensors, scalars, arguments.slices, nbytes=0, numbers={})
    numbers = file_numbers(reader.index.files)
    nbytes = nbytes or sum(each.nbytes for each in tensors if not each.is_setting)
    return Table(reader, tensors, scalars, arguments.slices, nbytes, numbers)


def _piped_rows(
    table: Table, tensors: Sequence[Tensor], arguments: Namespace
) -> Iterator[TableRow]:
    for line in tree_lines([tensor.key for tensor in tensors]):
        indent = "  " * (line.level - 1)
        if arguments.depth is not None and line.level > arguments.depth:
            continue
        if line.leaf is None:
            yield table.of_branch(indent + printable(line.label), line)
        else:
            tensor = tensors[line.leaf]
            yield from table.of_tensors(indent + printable(tensor.key), [tensor])


def _in_brief(arguments: Namespace) -> bool:
    return not (arguments.slices or arguments.filter or arguments.all or arguments.sort == "size")


def _print_folded(
    reader: Reader, tensors: Sequence[Tensor], arguments: Namespace, taken: int
) -> None:
    """Print the tree in as many lines as the terminal has left, and below it what was folded."""
    shown, slots, left_out = fold_state(tensors)
    table = _table(
        reader, shown, arguments, sum(each.nbytes for each in tensors if not each.is_setting)
    )
    lines = _lines(shown)
    below = [f"folded: {', '.join(left_out)} (--all shows them)"] * bool(left_out)
    room = lines_left(
        taken + bool(slots) + sum(len(folded(text)) for text in [*below, *_gaps(lines)])
    )
    if arguments.depth is None and len(lines) > room:
        settings = [each.key for each in shown if each.is_setting]
        if settings and len(settings) < len(shown):
            texts = settings_lines(settings, table.scalars)
            table = replace(table, tensors=[each for each in shown if not each.is_setting])
            lines, below, room = _lines(table.tensors), [*texts, *below], room - len(texts)
    kept, hint = _kept(lines, table.tensors, arguments.depth, room)
    rows = [*table.of_lines(kept)]
    if slots:
        rows.append(table.of_slots(slots, slot_names(slots)))
    print_rows(rows, bool(table.numbers))
    if hint:
        print()
    for text in [*hint, *below]:
        say(text)
    for text in _gaps(lines):
        warn(text)


def _kept(
    lines: Sequence[Line], tensors: Sequence[Tensor], depth: int | None, room: int
) -> tuple[list[Shown], list[str]]:
    number = sum(not each.is_setting for each in tensors)
    if depth is not None:
        kept = [
            Shown(line, line.leaf is None and line.level == depth)
            for line in lines
            if line.level <= depth
        ]
    else:
        weights = line_weights(lines, tensors)
        kept = fit(lines, weights, room)
        if len(lines) > room:  # the blank line and the hint take some
            kept = fit(lines, weights, max(room - 1 - len(folded(_hint(kept, number))), 1))
    return kept, [_hint(kept, number)] * (len(kept) < len(lines))


def _hint(kept: Sequence[Shown], number: int) -> str:
    # The lines that one stands for have the same level.
    levels = [each.line.level - bool(each.others) for each in kept if each.is_folded]
    deeper = 1 + min(levels, default=0)
    opens = f"--depth {deeper} opens the next level, --all lists them all"
    return f"{count(number, 'tensor')} in {count(len(kept), 'line')}; {opens}"


def _lines(tensors: Sequence[Tensor]) -> list[Line]:
    keys = [each.key.removesuffix(SUFFIX) for each in tensors]
    return list(tree_lines(keys, [(each.kind, each.shape) for each in tensors]))


def _gaps(lines: Sequence[Line]) -> Iterator[str]:
    for line in lines:
        if line.gaps:
            missing = ", ".join(map(str, line.gaps))
            verb = "is" if len(line.gaps) == 1 else "are"
            yield f"! {printable(line.label)}: {missing} {verb} missing"


_StatisticsByKey = dict[str, "Statistics | ReadError"]


def execute(arguments: Namespace) -> int:
    arguments.depth = None if arguments.depth is None else parse_count(arguments.depth, "--depth")
    unwanted = _unwanted(arguments)
    place = look_at(arguments.path)
    if arguments.csv and arguments.json:
        raise ArgumentError("--csv and --json are both given.", "Leave one of them out.")
    found = find_below(place)
    folder = place.storage
    if len(found) > 1 or not (place.name or (folder.local_path and not folder.folders())):
        from shardvar.cli.listing import print_choices  # a path of one checkpoint needs no list

        code = print_choices(place, found, arguments)
        if code is not None:
            return code
    one = only_one(place, found)
    with open_found(one, dequantize=arguments.dequantize) as reader:
        note_numbers(reader, arguments.dequantize)
        tensors = list_tensors(
            reader, arguments.filter, arguments.exclude, with_places=arguments.slices
        )
        is_damaged = bool(reader.source.file_faults())
        measured: _StatisticsByKey = {}
        if arguments.stats:
            from shardvar.verbs.compare.blocks import measure

            total = sum(tensor.nbytes for tensor in tensors)
            with progress("reading", lambda: total) as advance:
                measured = dict(measure(reader, [tensor.key for tensor in tensors], advance))
        user, delta = reader.metadata.user, None
        if DELTA in user or reader.format == "safetensors":
            from shardvar.formats.published import delta_of

            delta = delta_of(one.storage, reader.format, user, reader.listed().slices.tensors)
        if arguments.json:
            _print_json(reader, tensors, measured, arguments, delta)
        elif arguments.csv:
            print_csv(_json_rows(reader, tensors, measured, arguments))
        else:
            if delta:
                warn(f"! This is {delta.what}. {delta.remedy}")
            print_overview(reader, tensors, measured, arguments)
    values = [each for each in measured.values() if not isinstance(each, ReadError)]
    is_wrong = is_damaged or any(each.fault is not None for each in tensors)
    return int(
        (arguments.check and is_wrong)
        or any(is_odd(each) for each in values for is_odd in unwanted)
    )


def _unwanted(arguments: Namespace) -> "list[Callable[[Statistics], bool]]":
    """Return the tests of the odd values that ``--fail-on`` lists."""
    if arguments.fail_on is None:
        return []
    from shardvar.cli.statistics import ODD  # not above: it needs more modules than all else here

    names = arguments.fail_on.lower().split(",")
    unknown = [name for name in names if name not in ODD]
    if unknown:
        raise ArgumentError(
            f"--fail-on {arguments.fail_on!r} has {unknown[0]!r}.", f"Choose from {', '.join(ODD)}."
        )
    return [ODD[name][1] for name in names]


def _json_rows(
    reader: Reader, tensors: Sequence[Tensor], measured: _StatisticsByKey, arguments: Namespace
) -> Iterator[dict[str, Any]]:
    scalars = _scalars(reader, tensors)
    for tensor in tensors:
        scalar = scalars.get(tensor.key)
        row = tensor.to_json() | {"setting": tensor.is_setting, "value": scalar and scalar.value}
        if arguments.slices:
            layout = layout_of(reader, tensor)
            row["layout"] = layout and {"rule": layout.rule, "mesh": list(layout.mesh.shape)}
            row["slices"] = [slice_json(each) for each in list_slices(reader, tensor)]
        if arguments.stats:
            found = measured.get(tensor.key)
            if isinstance(found, ReadError):
                error = {"kind": type(found).__name__, "message": str(found)}
                row |= {"stats": None, "stats_error": error}
            else:
                row["stats"] = found and found.to_json()
        yield row


def _print_json(
    reader: Reader,
    tensors: Sequence[Tensor],
    measured: _StatisticsByKey,
    arguments: Namespace,
    delta: "FileKind | None",
) -> None:
    from shardvar.verbs.problems import SCHEMA, untold  # lines need no report

    metadata = reader.metadata
    counted = {
        each.key: (each.counted_as, each.num_parameters) for each in tensors if each.counted_as
    }
    parameters = ParameterCount(counted)
    print_json(
        {
            "schema": SCHEMA,
            "path": reader.path,
            "format": reader.format,
            "writer": metadata.writer,
            "description": metadata.description,
            "delta": delta and delta.what,
            "metadata": dict(metadata.user),
            "ties": ties_among(reader, tensors),
            "num_tensors": len(tensors),
            "num_parameters": parameters.total,
            "parameters_by_dtype": parameters.by_dtype,
            "bits_per_parameter": bits_each(tensors, parameters.total),
            "num_slices": sum(tensor.num_slices for tensor in tensors),
            "nbytes": sum(tensor.nbytes for tensor in tensors),
            "files": list(reader.index.files),
            "damaged_files": [each.to_json() for each in untold(reader.source.file_faults(), ())],
            "refers_to": dict(referred(reader)),
            "num_settings": sum(each.is_setting for each in tensors),
            "tensors": [*_json_rows(reader, tensors, measured, arguments)],
        }
    )
