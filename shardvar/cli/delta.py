"""``shardvar delta``: store what changed between two checkpoints, or join deltas to one."""

from argparse import Namespace
from collections.abc import Callable
from functools import partial

from shardvar.cli.maps import map_of
from shardvar.cli.output import answer, note, payload_nbytes, print_json, progress, say, short_path
from shardvar.errors import ArgumentError
from shardvar.verbs.delta.contents import DeltaReport, lines_of_delta
from shardvar.verbs.delta.join import compact_deltas
from shardvar.verbs.delta.make import delta

_MOST_LINES = 20
"""The tensors that are listed; with ``--all``, all that changed are."""


def execute(arguments: Namespace) -> int:
    *sources, out = arguments.paths
    make: Callable[..., DeltaReport]
    given = map_of(arguments)
    if arguments.compact:
        changes = given, arguments.map_base, arguments.cast
        if arguments.dialect or arguments.versions or any(changes):
            raise ArgumentError(
                "--compact joins deltas of shardvar, and a dialect, a map or a cast is given.",
                "Leave --dialect, --versions, --cast and the map out.",
            )
        if len(sources) < 2:
            raise ArgumentError(
                f"--compact joins several deltas, and {len(arguments.paths)} paths are given.",
                "Give two deltas or more, in order, and then the new one.",
            )
        doing, make = "joining", partial(compact_deltas, sources, out)
    else:
        if len(sources) != 2:
            raise ArgumentError(
                f"A delta is of two checkpoints, and {len(arguments.paths)} paths are given.",
                "Give the checkpoint before, the one after, and the delta: shardvar delta A B OUT.",
            )
        options = {"dialect": arguments.dialect, "versions": arguments.versions, "map": given}
        options |= {"map_base": arguments.map_base, "cast": arguments.cast}
        doing, make = "comparing", partial(delta, sources[0], sources[1], out, **options)
    with progress(doing, lambda: sum(map(payload_nbytes, sources))) as advance:
        report = make(progress=advance, force=arguments.force, dry_run=arguments.dry_run)
    if arguments.json:
        print_json(report.to_json())
        return 0
    text, *lines = lines_of_delta(report, short_path)
    if report.dry_run:
        say(text)
    else:
        answer("good", text, "wrote")
    shown = lines if arguments.all or len(lines) <= _MOST_LINES else lines[: _MOST_LINES - 1]
    for line in shown:
        say(line)
    if len(shown) < len(lines):
        say(f"{len(lines) - len(shown):,} more (--all)")
    say(f"base:   sha256:{report.base}")
    say(f"result: sha256:{report.result}")
    if report.dialect:
        note(f"note: the delta has neither digest: the dialect {report.dialect} has none")
    return 0
