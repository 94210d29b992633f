"""``shardvar apply``: write the checkpoint that deltas make of their base."""

from argparse import Namespace

from shardvar.cli.cuts import parse_shards
from shardvar.cli.output import answer, note, print_json, progress, seen_from_here
from shardvar.cli.reshard import note_large_files, parse_policy, print_write, warnings_below
from shardvar.cli.verify import payload_nbytes
from shardvar.verbs.delta.apply import apply

_OF_RESHARD = ("lost", "dequantized", "ranks", "map")
"""Fields that only a reshard has."""


def execute(arguments: Namespace) -> int:
    """Write the checkpoint. Return 0."""
    base = arguments.base
    partition = parse_shards(arguments.shards or (), None, on_devices=False, joins={})
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
            partition=dict(partition) or None,
            force=arguments.force,
            dry_run=arguments.dry_run,
            progress=advance,
        )
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
    return 0
