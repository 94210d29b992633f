"""``shardvar maps``: list the shipped maps, or print one; and the map that options give."""

import json
from argparse import Namespace
from collections.abc import Sequence

from shardvar.cli.output import print_json, say
from shardvar.cli.tables import print_table
from shardvar.errors import ArgumentError, ShardvarError
from shardvar.maps.map import Map, shipped_maps
from shardvar.verbs.mapping import map_reader
from shardvar.verbs.reader import Reader
from shardvar.verbs.reports import SCHEMA


def execute(arguments: Namespace) -> int:
    """Print the names of the shipped maps, or the rules and sizes of one."""
    if arguments.name is None:
        _list(shipped_maps(), arguments.json)
        return 0
    found = Map.read(arguments.name)
    if arguments.json:
        sizes = [{"name": name, "size": size} for name, size in found.sizes.items()]
        fields = {"about": found.about, "models": found.family.models, "rules": found.rules}
        print_json({"schema": SCHEMA, **fields, "sizes": sizes})
        return 0
    say(f"about = {json.dumps(found.about)}")
    say("rules = [")
    for rule in found.rules:
        say(f"    {json.dumps(rule)},")
    say("]")
    for name, texts in (("models", found.family.models), ("lacks", found.family.lacks)):
        if texts:
            say(f"{name} = {json.dumps(texts)}")
    if found.family.requires:
        say("[requires]")
        for name, texts in found.family.requires.items():
            say(f"{json.dumps(name)} = {json.dumps(texts)}")
    if found.sizes:
        say("[sizes]")
        for name, size in found.sizes.items():
            say(f"{name} = {json.dumps(size)}")
    return 0


def _list(names: Sequence[str], as_json: bool) -> None:
    maps = [(name, Map.read(name)) for name in names]
    if as_json:
        listed = [{"name": name, "about": each.about} for name, each in maps]
        print_json({"schema": SCHEMA, "maps": listed})
        return
    print_table(("map", "rules", "about"), [(n, f"{len(m.rules)}", m.about) for n, m in maps])


def map_of(arguments: Namespace) -> Map | None:
    """Return the map of ``--map``, ``--rule``, ``--size`` and the like; None without them."""
    sizes: dict[str, int | str] = {}
    for name, size in map(_size, arguments.size or ()):
        if sizes.setdefault(name, size) != size:
            raise ArgumentError(
                f"--size gives {name} as {sizes[name]} and as {size}.", "Give it once."
            )
    if arguments.map is None and not arguments.rule:
        for option, given in (
            ("--size", sizes),
            ("--inverse", arguments.inverse),
            ("--any-model", arguments.any_model),
        ):
            if given:
                cause = f"{option} is given, and no map."
                raise ArgumentError(cause, "Add --map FILE, or --rule 'KEY -> KEY'.")
        return None
    found = Map(()) if arguments.map is None else Map.read(arguments.map)
    found = found.extended(arguments.rule or (), sizes, any_model=arguments.any_model)
    return found.inverse() if arguments.inverse else found


def through_map(reader: Reader, arguments: Namespace) -> Reader:
    """Return a reader of what the options' map makes of an open checkpoint; the same without one.

    Closing it closes the checkpoint, and so does an error.
    """
    try:
        given = map_of(arguments)
        return reader if given is None else map_reader(reader, given)
    except ShardvarError:
        reader.close()
        raise


def _size(text: str) -> tuple[str, int | str]:
    name, equals, size = text.partition("=")
    if not (equals and name.strip() and size.strip()):
        raise ArgumentError(
            f"Invalid --size {text!r}: expected NAME=N.", "Such as --size heads=32."
        )
    size = size.strip()
    return name.strip(), int(size) if size.isdecimal() else size
