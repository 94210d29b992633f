"""``shardvar inspect``: list the tensors of a checkpoint.

The index has almost everything, so the steps are: open the checkpoint, gather its entries into one
``Tensor`` a key, read the values only for ``--stats``, and print an overview for people or one
object for programs.
"""

from argparse import Namespace
from collections.abc import Callable, Sequence

from shardvar.cli.folder_notes import num_lines
from shardvar.cli.listing import print_choices
from shardvar.cli.numbers import note_numbers
from shardvar.cli.output import print_json, progress, warn
from shardvar.cli.overview import print_overview, referred, ties_among
from shardvar.cli.tensors import Tensor, layout_of, list_slices, list_tensors, slice_json
from shardvar.cli.usage import parse_count
from shardvar.errors import ArgumentError, ReadError
from shardvar.formats.published import delta_of
from shardvar.verbs.compare.blocks import Statistics, measure
from shardvar.verbs.locate import look_at, only_one
from shardvar.verbs.newest import candidates_of
from shardvar.verbs.parameters import ParameterCount
from shardvar.verbs.reader import Reader, open_found
from shardvar.verbs.reports import SCHEMA
from shardvar.verbs.scalars import read_scalars
from shardvar.wire.kinds import FileKind

_FOUND = 1
"""The exit code where values are found that ``--fail-on`` lists."""

_StatisticsByKey = dict[str, Statistics | ReadError]


def execute(arguments: Namespace) -> int:
    """Show one checkpoint, or list the checkpoints that the path may mean."""
    arguments.depth = None if arguments.depth is None else parse_count(arguments.depth, "--depth")
    unwanted = _unwanted(arguments)
    place = look_at(arguments.path)
    found = candidates_of(place)
    if len(found) > 1:
        taken = num_lines(arguments.notes)
        print_choices(place, found, arguments.json, arguments.all, taken)
        return 0
    one = only_one(place, [each.location for each in found])
    with open_found(one, dequantize=arguments.dequantize) as reader:
        note_numbers(reader, arguments.dequantize)
        tensors = list_tensors(
            reader, arguments.filter, arguments.exclude, with_places=arguments.slices
        )
        measured = _measure(reader, tensors) if arguments.stats else {}
        table = reader.listed().slices.tensors
        delta = delta_of(one.storage, reader.format, reader.metadata.user, table)
        if arguments.json:
            _print_json(reader, tensors, measured, arguments, delta)
        else:
            if delta:
                warn(f"! This is {delta.what}. {delta.remedy}")
            print_overview(reader, tensors, measured, arguments)
    values = [each for each in measured.values() if not isinstance(each, ReadError)]
    return _FOUND if any(is_odd(each) for each in values for is_odd in unwanted) else 0


def _unwanted(arguments: Namespace) -> list[Callable[[Statistics], bool]]:
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
    if not arguments.stats:
        raise ArgumentError(
            "--fail-on needs the values, and --stats is not given.",
            "Add --stats, which reads them.",
        )
    return [ODD[name][1] for name in names]


def _measure(reader: Reader, tensors: Sequence[Tensor]) -> _StatisticsByKey:
    total = sum(tensor.nbytes for tensor in tensors)
    with progress("reading", lambda: total) as advance:
        return dict(measure(reader, [tensor.key for tensor in tensors], advance))


def _print_json(
    reader: Reader,
    tensors: Sequence[Tensor],
    measured: _StatisticsByKey,
    arguments: Namespace,
    delta: FileKind | None,
) -> None:
    listed = []
    keys = [each.key for each in tensors if each.shape == ()]
    scalars = read_scalars(reader, keys, is_listing=True)
    for tensor in tensors:
        scalar = scalars.get(tensor.key)
        row = tensor.to_json() | {"setting": tensor.is_setting, "value": scalar and scalar.value}
        if arguments.slices:
            layout = layout_of(reader, tensor)
            row["layout"] = layout and {"rule": layout.rule, "mesh": list(layout.mesh.shape)}
            row["slices"] = [slice_json(each) for each in list_slices(reader, tensor)]
        if arguments.stats:
            row |= _statistics_json(measured.get(tensor.key))
        listed.append(row)
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
            "num_slices": sum(tensor.num_slices for tensor in tensors),
            "nbytes": sum(tensor.nbytes for tensor in tensors),
            "files": list(reader.index.files),
            "refers_to": dict(referred(reader)),
            "num_settings": sum(each.is_setting for each in tensors),
            "tensors": listed,
        }
    )


def _statistics_json(found: Statistics | ReadError | None) -> dict[str, object]:
    if isinstance(found, ReadError):
        return {"stats": None, "stats_error": {"kind": type(found).__name__, "message": str(found)}}
    return {"stats": found and found.to_json()}
