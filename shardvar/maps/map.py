"""Maps between checkpoints: rules and sizes, their file, their inverse, and their ranks.

The keys of rules may begin with the number of a checkpoint, the rank:

    {rank}/layers.{l}.w2.weight[o i] -> layers.{l}.w2.weight[o (rank i)]      several sources
    layers.{l}.w2.weight[o (rank i)] -> {rank}/layers.{l}.w2.weight[o i]      several targets

Sources are numbered in the order of the call. Two or more indices may make the number,
as in ``{(pipe tensor)}/``.

A map file is TOML:

    about = "What it converts."
    rules = ['model.norm.weight -> decoder.final_layernorm.weight', ...]
    models = ["llama", "mistral"]           # the models that it is for, as config.json names them
    exact = true                            # arithmetic is an error
    [sizes]
    h = "config:head_dim"                   # a number, an expression, or a name of config.json
    alpha = "1/adapter_config.json:lora_alpha"  # or of another JSON file, next to source 1
    w = [0.5, 0.3, 0.2]                     # a list: w(n) is an element
    [requires]                              # entries of config.json, and their possible values
    "rope_scaling.rope_type" = ["none"]     # lacks = ["..."] names what others need
    [lift]                                  # other tensors with the same keys (``lifting``)
    "optimizer.{key}.exp_avg" = "moment"

``shardvar/maps/*.toml`` are maps that are shipped, and found by their names.

The shipped maps, by name: FAMILY-SOURCE-to-TARGET, where several families may have one file;
or ``to-TARGET``, for the model that ``config.json`` names, and ``from-TARGET``, its inverse.
"""

import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from math import prod
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, Protocol, Self

from shardvar.errors import ArgumentTypeError, MapError, ShardvarError
from shardvar.maps.expressions import SizeOf, parse_expression
from shardvar.maps.fitting import Fit, fit_rules
from shardvar.maps.language import NAME, MapRule, parse_rule
from shardvar.maps.lifting import Lift, fit_lifted, put_in
from shardvar.maps.matching import (
    FILE_SIZE,
    Family,
    SizeValue,
    config_size,
    did_you_mean,
    filled_ranges,
    indices_of_numbers,
    is_switched_on,
    read_beside,
    read_limited,
    sizes_at,
)
from shardvar.maps.proof import TensorFacts
from shardvar.maps.report import MapReport, map_report
from shardvar.records import field, frozen, replace
from shardvar.storage.local import split_place

_MAP_ENDING = ".toml"
_MODELS = re.compile(rb"^models = \[.*\]$", re.MULTILINE)
"""The line of each shipped map that lists its models: to parse them all takes seven times as long."""
_DIRECTION = re.compile("(to|from)-(.+)")
_BY_NAME = "Name the map: `shardvar maps` lists all."


@cache
def shipped_maps() -> list[str]:
    folder = resources.files("shardvar.maps")
    return sorted(
        each.name.removesuffix(_MAP_ENDING)
        for each in folder.iterdir()
        if each.name.endswith(_MAP_ENDING)
    )


@cache
def shipped_models() -> dict[str, list[str]]:
    lines = {name: _MODELS.search(shipped_file(name)) for name in shipped_maps()}
    return {name: parse_toml(line[0], name)["models"] for name, line in lines.items() if line}


def parse_toml(content: bytes, name: str, layout: str = "") -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise MapError(f"{name} is not TOML: {error}.", f"Mend it: {layout}") from None


def shipped_file(name: str) -> bytes:
    return resources.files("shardvar.maps").joinpath(name + _MAP_ENDING).read_bytes()


def find_shipped(name: str) -> str | None:
    """Return the name of the file that has a map; None if none has, or several have."""
    if name in shipped_maps():
        return name
    family, direction = split_name(name)
    found = [
        other
        for other, models in shipped_models().items()
        if split_name(other)[1] == direction and family in map(family_name, models)
    ]
    return found[0] if len(found) == 1 else None


def split_name(name: str) -> tuple[str, str]:
    """Return the family, and the direction: what follows from the source's program on."""
    programs = {each.partition("-to-")[2] for each in shipped_maps()}
    words = name.partition("-to-")[0].split("-")
    starts = [start for start in range(1, len(words)) if "-".join(words[start:]) in programs]
    family = "-".join(words[: min(starts, default=len(words) - 1)])
    return family, name[len(family) + 1 :]


def family_name(model: str) -> str:
    return re.sub("[_.]", "-", model.lower())


def shipped_inverse(name: str) -> str | None:
    family, direction = split_name(name)
    source, _, target = direction.partition("-to-")
    back = f"{family}-{target}-to-{source}"
    return back if back in shipped_maps() else None


def is_direction(name: str) -> bool:
    found = _DIRECTION.fullmatch(name)
    return found is not None and bool(_of_target(found[2]))


def choose_map(name: str, path: str) -> str:
    """Return the shipped map of a direction for the model of the checkpoint at ``path``."""
    names = _of_target(name.partition("-")[2])
    try:
        where, config = read_beside(path)
    except MapError as error:
        raise MapError(error.cause, f"{name} reads the model from it. {_BY_NAME}") from None
    config = config if isinstance(config, dict) else {}
    classes = config.get("architectures")
    for given in (classes if isinstance(classes, list) else [], [config.get("model_type")]):
        found = [each for each in names if not {*shipped_models()[each]}.isdisjoint(given)]
        if len(found) == 1:
            return found[0]
        if found:
            cause = f"{where} says {given[0]}, and {name} is any of {', '.join(found)}."
            raise MapError(cause, "Name one of them.")
    listed = f"There are {', '.join(names[:12])}{' ...' * (len(names) > 12)}."
    model = config.get("model_type") or "no model_type"
    cause = f"{where} says {model}, and no shipped map {name} is for it."
    raise MapError(cause, f"{listed} {_BY_NAME}")


def _of_target(target: str) -> Sequence[str]:
    return [each for each in shipped_maps() if each.partition("-to-")[2] == target]


_RANK_KEY = re.compile(r"(0|[1-9][0-9]{0,8})/(.+)", re.DOTALL)


def reads_ranks(rules: Sequence[MapRule]) -> bool:
    """Return True if a map takes the keys of numbered sources."""
    return any(side.key.rank() for rule in rules for side in rule.taken())


def numbers_sources(rules: Sequence[MapRule], count: int) -> bool:
    """Return True if numbered sources are taken: by an index, or each by its number (``0/w[i] -> w[i]``)."""
    if count == 1 or reads_ranks(rules):
        return reads_ranks(rules)
    sides = [side for rule in rules for side in rule.taken() if not rule.is_hidden]
    ranks = [split_rank(side.key.text) for side in sides]
    return None not in ranks and {each[0] for each in ranks if each} == {*range(count)}


def makes_ranks(rules: Sequence[MapRule]) -> bool:
    """Return True if a map makes the keys of numbered targets."""
    return any(rule.target is not None and rule.target.key.rank() for rule in rules)


def split_rank(key: str) -> tuple[int, str] | None:
    """Return the rank and the key in its checkpoint; None for a key without a rank, and for "01/w"."""
    found = _RANK_KEY.fullmatch(key)
    return None if found is None else (int(found[1]), found[2])


def numbered(rank: int, key: str) -> str:
    return f"{rank}/{key}"


def missing_rank(rules: Sequence[MapRule], keys: Collection[str]) -> str:
    """Return the prefix that the keys of one checkpoint lack for a map of ranks, of rank 0; else empty."""
    return "0/" if reads_ranks(rules) and not all(map(split_rank, keys)) else ""


def sizes_of_ranks(
    rules: Sequence[MapRule], known: Collection[str], size_of: SizeOf, count: int
) -> dict[str, int]:
    """Return the sizes that a number of sources gives, by which a source that lacks a tensor is found."""
    sizes: dict[str, int] = {}
    for axis in dict.fromkeys(side.key.rank() for rule in rules for side in rule.taken()):
        full = {name: size_of(name) for name in axis if name in known}
        unknown, product = [name for name in axis if name not in full], prod(full.values())
        if len(unknown) == 1 and product and count % product == 0:
            sizes[unknown[0]] = count // product
        elif axis and len(unknown) < 2 and product != count:
            given_sizes = " and ".join(f"{name} = {size}" for name, size in full.items())
            raise MapError(
                f"The map has {given_sizes}, and there {'is' if count == 1 else 'are'} {count} "
                f"source{'' if count == 1 else 's'}.",
                "Give the sources of all ranks, in order, or correct the size.",
            )
    return sizes


def copies_left_out(
    rules: Sequence[MapRule], left_out: Mapping[str, int], keys: Collection[str], size_of: SizeOf
) -> dict[str, str]:
    """By key, the kept tensor, with which each copy must be compared so that nothing is lost."""
    found: dict[str, str] = {}
    kept: dict[str, list[int]] = {}
    for key in keys:
        rank, name = split_rank(key) or (0, "")
        if name and key not in left_out:
            kept.setdefault(name, []).append(rank)
    for key, number in left_out.items():
        rule = rules[number]
        axis, (rank, name) = rule.source.key.rank(), split_rank(key) or (0, "")
        if key not in keys or not rule.source.ranges.keys() & set(axis):
            continue
        full = {each: size_of(each) for each in axis}
        # The pipeline's stage 1 has other layers: a copy differs only in the indices of the range.
        same = [each for each in axis if each not in rule.source.ranges]
        for other in sorted(kept.get(name, ())):
            indices = indices_of_numbers([rank, other], axis, full)
            # A copy follows its original: 3/steps -> steps chooses the last of several that differ.
            if other < rank and all(len({*indices[each]}) == 1 for each in same):
                found[key] = f"{other}/{name}"
                break
    return found


_ENDING = ".toml"
_KEYS: dict[str, tuple[str, Any]] = {
    "about": ("a text", ""),
    "rules": ("a list of texts", []),
    "sizes": ("a table", {}),
    "exact": ("true or false", False),
    "models": ("a list of texts", []),
    "lacks": ("a list of texts", []),
    "requires": ("a table of lists of texts", {}),
    "lift": ("a table of texts", {}),
}
"""The keys of a map file, each with its kind and its default."""
_LAYOUT = "A map has rules = ['KEY -> KEY', ...], and maybe about, exact, models, lacks, [requires], [lift], [sizes]."


class MappedCheckpoint(Protocol):
    """An open checkpoint that a map is fitted to, such as a ``Reader``."""

    @property
    def path(self) -> str:
        """..."""

    @property
    def metadata(self) -> Any:
        """..."""

    @property
    def encodings(self) -> Mapping[str, str]:
        """..."""

    @property
    def faults(self) -> Mapping[str, Any]:
        """..."""

    def entries(self) -> Any:
        """..."""


@frozen(init=False)
class Map:
    """Rules that make one model's checkpoint from another's.

    Parameters
    ----------
    rules : str or iterable of str
        The rules, ``"KEY[axes] -> KEY[axes]"`` each.
    sizes : mapping of str to int, float, str or list, optional
        The extents of indices, and other names in rules. A text is an expression of other sizes;
        ``"config:NAME"`` is a number of ``config.json`` next to the source,
        ``"1/FILE.json:NAME"`` one of a file next to source 1. ``w(n)`` is an element of a list.
    about : str, optional
        One sentence on the conversion.
    exact : bool, default False
        True to refuse rules with arithmetic.
    lift : mapping of str to str, optional
        Further tensors that the map is for: by their keys, with ``{key}`` for a key of the rules,
        ``"value"``, or ``"moment"`` for a moment of an optimizer, which follows rules that move.

    Raises
    ------
    MapError
        If a rule or a size cannot be read.

    Examples
    --------
    >>> import shardvar as sv
    >>> fuse = sv.Map(["{s:gate|up}.w[o i] -> gate_up.w[(s o) i]"])
    >>> fuse.inverse().rules
    ('gate_up.w[(s o) i] -> {s:gate|up}.w[o i]',)
    """

    rules: tuple[str, ...]
    """The rules."""
    sizes: Mapping[str, SizeValue]
    """The sizes."""
    about: str
    """The sentence on the conversion."""
    exact: bool
    """True if rules with arithmetic are refused."""
    lift: Mapping[str, str]
    """The keys of further tensors that the map is for, each with its kind."""
    parsed: tuple[MapRule, ...] = field(repr=False, compare=False)
    """The rules, parsed."""
    name: str = field(default="", repr=False, compare=False)
    """The name of the shipped map that it is, or extends; else empty."""
    family: Family = field(default=Family(), repr=False, compare=False)
    """The models that it is for."""

    def __init__(
        self,
        rules: str | Iterable[str],
        *,
        sizes: Mapping[str, SizeValue] | None = None,
        about: str = "",
        exact: bool = False,
        lift: Mapping[str, str] | None = None,
    ) -> None:
        listed = (rules,) if isinstance(rules, str) else tuple(rules)
        for number, rule in enumerate(listed):
            if not isinstance(rule, str):
                raise ArgumentTypeError(
                    f"Rule {number + 1} is {rule!r}, not a text.", "Write 'KEY -> KEY'."
                )
        sizes = {name: _size(name, size) for name, size in (sizes or {}).items()}
        parsed = tuple(put_in([parse_rule(rule, number) for number, rule in enumerate(listed)]))
        for number, each in enumerate(parsed):
            if exact and each.has_arithmetic:
                raise MapError(
                    f"Rule {number + 1}, {each.text!r}, computes, and the map is exact.",
                    "Remove the rule, or 'exact = true', so that values may be rounded.",
                )
        for pattern, kind in (lift or {}).items():
            Lift(pattern, kind)
        for name, value in (
            ("rules", tuple(rule.text for rule in parsed)),
            ("sizes", sizes),
            ("about", about),
            ("exact", exact),
            ("lift", {**(lift or {})}),
            ("parsed", parsed),
            ("name", ""),
            ("family", Family()),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Return the map of a file, or the shipped map of a name.

        Parameters
        ----------
        path : path_like
            The path of a TOML file, or a name that ``shardvar maps`` lists. ``"to-gguf"`` is the
            map to GGUF for the model that ``config.json`` next to the source names.

        Returns
        -------
        Map
            The map.

        Raises
        ------
        MapError
            If there is no such map, or it cannot be read.
        """
        text = os.fspath(path)
        is_name = os.path.basename(text) == text and not text.endswith(_ENDING)
        if is_name and is_direction(text):
            return cls(())._with(name=text, family=Family(text))
        shipped = find_shipped(text) if is_name else None
        content = shipped_file(shipped) if shipped else _read_file(text, is_name)
        text = shipped or text
        found = cls._of_table(parse_toml(content, text, _LAYOUT), text)
        return found._with(name=shipped or "")

    @classmethod
    def _of_table(cls, table: Mapping[str, Any], path: str) -> Self:
        unknown = sorted(table.keys() - _KEYS.keys())
        if unknown:
            near = did_you_mean(unknown[0], _KEYS)
            raise MapError(
                f"{path} has the key {unknown[0]!r}, which maps do not have.", f"{near}{_LAYOUT}"
            )
        values = {name: table.get(name, default) for name, (_, default) in _KEYS.items()}
        for name, value in values.items():
            kind, default = _KEYS[name]
            lists = [value] if name in ("models", "lacks") else []
            lists = [*value.values()] if name == "requires" and type(value) is dict else lists
            texts = [text for each in lists for text in (each if type(each) is list else [0])]
            if not isinstance(value, type(default)) or any(type(each) is not str for each in texts):
                raise MapError(f"{path} has {value!r} as {name!r}, not {kind}.", _LAYOUT)
        if "rules" not in table:
            raise MapError(f"{path} has no 'rules'.", _LAYOUT)
        requires = {key: tuple(each) for key, each in values.pop("requires").items()}
        family = Family(path, tuple(values.pop("models")), requires, tuple(values.pop("lacks")))
        try:
            return cls(**values)._with(family=family)
        except (MapError, ArgumentTypeError) as error:
            raise error.at(path) from None

    def extended(
        self,
        rules: Iterable[str] = (),
        sizes: Mapping[str, SizeValue] | None = None,
        *,
        lift: Mapping[str, str] | None = None,
        any_model: bool = False,
    ) -> "Map":
        """Return the map with more rules and sizes.

        Parameters
        ----------
        rules : iterable of str, optional
            Rules that it gets in addition.
        sizes : mapping of str to int, float, str or list, optional
            Sizes that it gets; one that it has already is replaced.
        lift : mapping of str to str, optional
            Further tensors that it is for.
        any_model : bool, default False
            True to use the map also for models that it is not for, or does not make all of.

        Returns
        -------
        Map
            The longer map.
        """
        longer = Map(
            (*self.rules, *rules),
            sizes={**self.sizes, **(sizes or {})},
            about=self.about,
            exact=self.exact,
            lift={**self.lift, **(lift or {})},
        )
        ends = [rule.ends for rule in self.parsed] + [{}] * (len(longer.parsed) - len(self.parsed))
        pairs = zip(longer.parsed, ends, strict=True)
        parsed = tuple(replace(rule, ends=each) for rule, each in pairs)
        family = Family() if any_model else self.family
        return longer._with(parsed=parsed, name=self.name, family=family)

    def inverse(self) -> "Map":
        """Return the map that goes the other way.

        Returns
        -------
        Map
            The map with the sides of each rule exchanged. A map and then its inverse give the same
            keys, shapes and bytes, unless ``rest`` passes a key that another rule could make. It
            knows the extents that the ranges of all rules have together: of ``s=0:2`` and ``s=2``,
            3. It may need sizes that the map itself reads from keys, such as the number of experts.

        Raises
        ------
        MapError
            If a rule has no inverse: one that computes, or with ``else``, ``also`` or ``nothing``.
        """
        if is_direction(self.name):  # of the rules in addition, too
            way, _, target = self.name.partition("-")
            other = f"{'from' if way == 'to' else 'to'}-{target}"
            return self.extended()._with(name=other)
        problems = []
        for number, rule in enumerate(self.parsed):
            obstacle = rule.exception or ("arithmetic" if rule.has_arithmetic else "")
            if obstacle and not rule.is_made:
                problems.append(
                    f"Rule {number + 1}, {rule.text!r}, has no inverse, because of {obstacle!r}."
                )
        if problems:
            more, back = len(problems) - 1, shipped_inverse(self.name)
            others = f" {more:,} more {'rule has' if more == 1 else 'rules have'} none."
            shipped = f"The shipped map {back!r} goes the other way."
            remedy = shipped if back else "Write the way back by hand."
            error = MapError(problems[0] + others * (more > 0), remedy)
            error.problems = tuple(problems)
            raise error
        kept = _names_of([rule for rule in self.parsed if not rule.is_made], self.sizes)
        inverse = Map(
            [
                f"{'rest ' * rule.is_rest}{rule.target.text} -> {rule.source.text or 'nothing'}"
                for rule in self.parsed
                if rule.target and not rule.is_hidden
            ],
            sizes={name: size for name, size in self.sizes.items() if name in kept},
            about=f"The inverse of: {self.about}" if self.about else "",
            exact=self.exact,
            lift=self.lift,
        )
        parsed = (
            replace(rule, ends=filled_ranges(self.parsed, rule.source)) for rule in inverse.parsed
        )
        family = Family(self.family.label, self.family.models)
        return inverse._with(parsed=tuple(parsed), family=family)

    def _with(self, **values: Any) -> Self:
        for name, value in values.items():
            object.__setattr__(self, name, value)
        return self

    def check(self, reader: MappedCheckpoint) -> MapReport:
        """Return what the map does with an open checkpoint; reads no values.

        Parameters
        ----------
        reader : Reader
            The checkpoint, as ``sv.open_checkpoint`` returns it.

        Returns
        -------
        MapReport
            The table of rules, the plan, and the problems.
        """
        given = chosen(self, reader.path)
        tensors, objects = facts_of(reader)
        encodings = reader.encodings
        if prefix := missing_rank(given.parsed, [*tensors, *objects]):
            tensors = {prefix + key: facts for key, facts in tensors.items()}
            objects = [prefix + key for key in objects]
            encodings = {prefix + key: each for key, each in encodings.items()}
        found = fit_map(given, tensors, objects, encodings, reader.path, reader.metadata.user)
        return map_report(given.parsed, found, tensors, len(objects))


def fit_map(
    given: Map,
    tensors: Mapping[str, TensorFacts],
    objects: Collection[str],
    encodings: Mapping[str, str],
    path: str,
    metadata: Mapping[str, str] = MappingProxyType({}),
) -> Fit:
    """Fit the rules of a map to the tensors and the objects of the checkpoint at ``path``."""
    given = with_files(given, [path])
    architecture = metadata.get("general.architecture", "")
    model = given.family.check(path, architecture, shipped_models)
    size_of = sizes_at(given.sizes, path)
    indices = {name for rule in given.parsed for side in rule.sides() for name in side.indices()}
    idle = {n for n, rule in enumerate(given.parsed) if rule.is_hidden}
    idle |= {n for n, r in enumerate(given.parsed) if not is_switched_on(r.condition, path)}
    wanted = _names_of([r for n, r in enumerate(given.parsed) if n not in idle], given.sizes)
    for name, size in given.sizes.items():
        if name not in wanted:
            continue
        try:
            value = size_of(name)
            if name in indices and (isinstance(size, str) or not isinstance(value, int)):
                parse_expression(size if isinstance(size, str) else name).integer(size_of)
        except MapError as error:
            raise error.at(f"sizes.{name}") from None
    # A size that no rule uses is misspelt.
    used = _names_of(given.parsed, given.sizes)
    for name in given.sizes:
        if name not in used:
            near = did_you_mean(name, used - given.sizes.keys())
            cause = f"The size {name} is used by no rule."
            raise MapError(cause, f"{near}Correct it, or leave it out.")

    def fit(
        rules: Sequence[MapRule], keys: Mapping[str, str], some: Mapping[str, TensorFacts]
    ) -> Fit:
        others = [inner for inner in keys if inner not in some]
        coded = {inner: encodings[key] for inner, key in keys.items() if key in encodings}
        return fit_rules(rules, some, others, size_of, given.sizes, coded, idle)

    if given.lift:
        return replace(fit_lifted(given.parsed, given.lift, tensors, objects, fit), model=model)
    return replace(
        fit(given.parsed, {key: key for key in (*tensors, *objects)}, tensors), model=model
    )


def _names_of(rules: Iterable[MapRule], sizes: Mapping[str, SizeValue]) -> set[str]:
    found = [name for rule in rules for name in rule.names()]
    for name in found:
        size = sizes.get(name)
        names = parse_expression(size).names() if isinstance(size, str) else ()
        found += [each for each in names if each not in found]
    return {*found}


def chosen(given: Map, path: str) -> Map:
    if not is_direction(given.name):
        return given
    found = Map.read(choose_map(given.name, path))
    any_model = given.family == Family()
    found = found.extended(given.rules, given.sizes, lift=given.lift, any_model=any_model)
    return found.inverse() if given.name.startswith("from-") else found


def with_files(given: Map, paths: Sequence[str]) -> Map:
    given = chosen(given, paths[0])
    sizes: dict[str, SizeValue] = {}
    for name, size in given.sizes.items():
        found = FILE_SIZE.fullmatch(size) if isinstance(size, str) else None
        if found is None:
            continue
        number = int(found[1])
        if number >= len(paths):
            cause = f"sizes.{name} is of source {number}, and there are {len(paths)}."
            raise MapError(cause, "Sources are numbered from 0, in the order of the call.")
        value = config_size(paths[number], found[3], found[2])
        sizes[name] = value if isinstance(value, int | list) else float(value)
    return given.extended((), sizes) if sizes else given


def facts_of(reader: MappedCheckpoint) -> tuple[dict[str, TensorFacts], list[str]]:
    found: dict[str, TensorFacts] = reader.entries().slices.tensors.facts()
    for key in reader.faults:
        found.pop(key, None)
    return found, [*reader.faults]


def _read_file(path: str, is_name: bool) -> bytes:
    try:
        storage, name = split_place(path)
        file = storage.open(name)
    except ShardvarError as error:
        if is_name:
            near = did_you_mean(path, shipped_maps(), 3)
            remedy = (
                f"{near}`shardvar maps` lists the shipped maps; a file's name ends in {_ENDING}."
            )
            raise MapError(f"There is no map {path!r}.", remedy) from None
        raise MapError(f"The map {path} cannot be read: {error.cause}", "Give its path.") from None
    return read_limited(file, f"The map {path}", "A map is a small TOML file.")


def _size(name: Any, size: Any) -> SizeValue:
    """A size: a number, of Python or NumPy, a list of numbers, or an expression."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise MapError(f"{name!r} is not the name of a size.", "Write letters, digits and _.")
    if isinstance(size, str):
        try:
            if FILE_SIZE.fullmatch(size) is None:
                parse_expression(size)
        except MapError as error:
            raise error.at(f"The size {name}") from None
        return size
    numbers = list(size) if isinstance(size, list | tuple) and size else [size]
    if any(isinstance(n, bool) or not isinstance(n, Real) or n - n for n in numbers):
        raise MapError(
            f"The size {name} is {size!r}, not a number.",
            "Give a number, a list of numbers, an expression, or 'config:NAME'.",
        )
    exact = [int(n) if isinstance(n, Integral) else float(n) for n in numbers]
    return exact if isinstance(size, list | tuple) else exact[0]
