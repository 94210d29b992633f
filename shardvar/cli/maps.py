"""``shardvar maps``: list the shipped maps, or print one; and the map that options give."""

import json
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardvar.cli.output import at_terminal, print_json, print_table, say
from shardvar.errors import ArgumentError, ShardvarError

if TYPE_CHECKING:
    from shardvar.maps.map import Map
    from shardvar.maps.report import MapReport
    from shardvar.verbs.reader import Reader


def execute(arguments: Namespace) -> int:
    from shardvar.maps.map import Map, shipped_maps
    from shardvar.verbs.problems import SCHEMA

    name = arguments.name
    names = shipped_maps()
    if name is not None and name not in names:
        names = [each for each in names if any(name.lower() in text for text in _texts_of(each))]
    if name not in names and names:
        _print_list(names, arguments)
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


def _texts_of(name: str) -> list[str]:
    """Return the name of a map, and the models that it is for; other programs' have a colon."""
    from shardvar.maps.map import shipped_models

    models = shipped_models().get(name, ())
    return [name, *(model for model in models if ":" not in model)]


def _print_list(names: Sequence[str], arguments: Namespace) -> None:
    if at_terminal() and arguments.name is None and not (arguments.json or arguments.all):
        _print_groups(names)
        return
    from shardvar.maps.map import Map
    from shardvar.verbs.problems import SCHEMA

    maps = [(name, Map.read(name)) for name in names]
    if arguments.json:
        listed = [{"name": name, "about": each.about} for name, each in maps]
        print_json({"schema": SCHEMA, "maps": listed})
    else:
        rows = [(name, f"{len(each.rules)}", each.about) for name, each in maps]
        print_table(("map", "rules", "about"), rows)


def _print_groups(names: Sequence[str]) -> None:
    from shardvar.maps.map import family_name, shipped_models, split_name

    groups: dict[str, list[str]] = {}
    for name in names:
        models = [each for each in shipped_models()[name] if each[0].islower() and ":" not in each]
        groups.setdefault(split_name(name)[1], []).extend(models)
    for direction, some in sorted(groups.items(), key=lambda group: -len(group[1])):
        families = sorted({*map(family_name, some)})
        more = len(families) - _MOST_FAMILIES
        rest = f" and {more} more" if more > 0 else ""
        say(f"{direction}: {', '.join(families[:_MOST_FAMILIES])}{rest}")
    print()
    say(
        "A map is FAMILY-DIRECTION. `shardvar maps WORD` lists the maps with a word, --all lists all."
    )


_MOST_FAMILIES = 24


def map_of(arguments: Namespace) -> "Map | None":
    """Return the map of ``--map``, ``--rule``, ``--size`` and the like; None without them."""
    sizes: dict[str, int | str] = {}
    for text in arguments.size or ():
        name, equals, given = (part.strip() for part in text.partition("="))
        if not (equals and name and given):
            raise ArgumentError(
                f"Invalid --size {text!r}: expected NAME=N.", "Such as --size heads=32."
            )
        size = int(given) if given.isdecimal() else given
        if sizes.setdefault(name, size) != size:
            raise ArgumentError(
                f"--size gives {name} as {sizes[name]} and as {size}.", "Give it once."
            )
    lift: dict[str, str] = {}
    for text in arguments.lift or ():
        pattern, _, lift[pattern] = text.rpartition("=")
    if arguments.map is None and not arguments.rule:
        for option, is_given in (
            ("--size", sizes),
            ("--lift", lift),
            ("--inverse", arguments.inverse),
            ("--any-model", arguments.any_model),
        ):
            if is_given:
                cause = f"{option} is given, and no map."
                raise ArgumentError(cause, "Add --map FILE, or --rule 'KEY -> KEY'.")
        return None
    from shardvar.maps.map import Map  # most commands are given no map

    found = Map(()) if arguments.map is None else Map.read(arguments.map)
    found = found.extended(arguments.rule or (), sizes, lift=lift, any_model=arguments.any_model)
    return found.inverse() if arguments.inverse else found


def print_rules(report: "MapReport") -> None:
    """Print the table of a map's rules, and what was proven of the map."""
    print()
    print_table(report.headers(), report.rows(), right=(0, 2, 5))
    for line in report.summary():
        say(line)


def through_map(reader: "Reader", arguments: Namespace) -> "Reader":
    """Return a reader of the options' map of an open checkpoint; an error closes the checkpoint."""
    try:
        given = map_of(arguments)
        if given is None:
            return reader
        from shardvar.verbs.mapping import map_reader

        return map_reader(reader, given)
    except ShardvarError:
        reader.close()
        raise
