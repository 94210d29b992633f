"""Write the maps between the files of transformers 5 and what its models hold in memory.

`python -m spec_tests.map_generators.transformers_maps` needs the environment of `make peers`.
It builds each class of each family, with each setting that gives other names, on the meta device,
and makes rules from what transformers' own tables do to all of them; `rest` passes what does not
change. A map must give the keys and shapes of every case, there and back, and the values of small
models. Families with the same rules have one file. `families.json` lists them, and what cannot be
built or has no map, each with its reason.
"""

import json
import multiprocessing
import os
import re
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import shardvar
from shardvar.errors import MapError
from shardvar.maps.map import Map, fit_map
from spec_tests.helpers.map_arrays import map_arrays
from spec_tests.map_generators.cases import Case, build, classes, settings_of
from spec_tests.map_generators.moves import Unsupported
from spec_tests.map_generators.rules import Link, map_file, rules_of
from spec_tests.map_generators.tiny_models import conversions, num_elements
from spec_tests.map_generators.transformers_tables import links_of

MAPS = Path(shardvar.__file__).parent / "maps"
FAMILIES = Path(__file__).with_name("families.json")
ENDING = "-hf-to-transformers"
REST = "rest {x:**} -> {x}"
UNCHANGED = "unchanged"
"""The map of all families whose files have the names of memory."""
_MOST_ELEMENTS, _SECONDS = 1_000_000, 60
"""Parameters of a model whose values are compared, and the time for all models of a family."""
_QUANTISED = {'"quantization_config.quant_method"': ["none", "fp8"]}
"""Tensors of other methods have no rules: they would pass where numbers are stacked."""
_STACKED = re.compile(r"(.*)\.weight\[o i\] -> (.*)\[(e o i|e \(s o\) i)\]")

Shapes = dict[str, tuple[int, ...]]


def name_of(family: str) -> str:
    """Return the name of a family's map, which may be that of several families."""
    return family.lower().replace("_", "-").replace(".", "-") + ENDING


def random_state(model: Any) -> dict[str, Any]:
    """Return a model's state with random values everywhere, so that each change of order shows."""
    import torch

    random = torch.Generator().manual_seed(5)
    found = {}
    for key, value in model.state_dict().items():
        drawn = torch.randint(1, 1 << 20, value.shape, generator=random)
        found[key] = drawn.to(value.dtype) if value.dtype.is_floating_point else value
    return found


def with_numbers(given: Map, config: Any) -> Map:
    """Return a map with the numbers of a configuration instead of their names."""
    sizes: dict[str, int | str] = {}
    for name, size in given.sizes.items():
        value: Any = size
        if isinstance(size, str) and size.startswith("config:"):
            value = config
            for each in size.removeprefix("config:").split("."):
                value = getattr(value, each)
        sizes[name] = value
    return given.extended(sizes=sizes, any_model=True)


def check_map(given: Map, model: Any) -> None:
    """Raise ``Unsupported`` unless a map and its inverse do what transformers does."""
    from transformers.core_model_loading import revert_weight_conversion

    memory = random_state(model)
    files = {k: v.numpy() for k, v in revert_weight_conversion(model, dict(memory)).items()}
    memory = {key: value.numpy() for key, value in memory.items()}
    given = with_numbers(given, model.config)
    for name, each, source, right in (
        ("the map", given, files, memory),
        ("its inverse", given.inverse(), memory, files),
    ):
        try:
            made = map_arrays(each, source)
        except MapError as error:
            raise Unsupported(f"{name} does not fit: {str(error)[:160]}") from None
        if made.keys() != right.keys():
            raise Unsupported(f"{name} gives other keys")
        for key, value in right.items():
            if made[key].shape != value.shape or not np.array_equal(made[key], value):
                raise Unsupported(f"{name} gives other values of {key}")


def fitted(given: Map, source: Shapes) -> Shapes:
    """Return the shapes that a map makes; ``Unsupported`` if it does not fit."""
    try:
        about = {key: ("bfloat16", shape) for key, shape in source.items()}
        fit = fit_map(given, about, (), {}, "nowhere")
    except MapError as error:
        raise Unsupported(str(error)[:160]) from None
    if fit.problems:
        raise Unsupported(fit.problems[0].cause[:160])
    made = {target.key: target.shape for target in fit.plan.targets}
    return made | {name: source[key] for key, name in fit.plan.names.items()}


@dataclass
class Example:
    """What transformers does to a case."""

    case: Case
    links: list[Link]
    files: Shapes
    memory: Shapes
    config: Any

    def check(self, given: Map) -> None:
        """Raise ``Unsupported`` unless a map and its inverse give the keys and shapes."""
        given = with_numbers(given, self.config)
        if fitted(given, self.files) != self.memory:
            raise Unsupported("the map gives other keys or shapes")
        if fitted(given.inverse(), self.memory) != self.files:
            raise Unsupported("the inverse gives other keys or shapes")


def example_of(case: Case) -> Example:
    """Build a case, and convert it as `save_pretrained` does."""
    from transformers.core_model_loading import revert_weight_conversion

    model = build(case)
    memory = model.state_dict()
    links = [Link(key, key) for key in memory]
    files: Mapping[str, Any] = memory
    if conversions(model):
        links, files = links_of(model), revert_weight_conversion(model, dict(memory))
    shapes = ({key: tuple(each.shape) for key, each in state.items()} for state in (files, memory))
    return Example(case, links, *shapes, model.config)


@dataclass
class Group:
    """Classes of which each file key has one meaning."""

    examples: list[Example] = field(default_factory=list)
    of_file: dict[str, frozenset[Any]] = field(default_factory=dict)
    of_memory: dict[str, frozenset[Any]] = field(default_factory=dict)

    def takes(self, other: "Group") -> bool:
        """Return True if no key of another group has another meaning here."""
        pairs = ((self.of_file, other.of_file), (self.of_memory, other.of_memory))
        return all(mine.get(key, each) == each for mine, its in pairs for key, each in its.items())

    def add(self, other: "Group") -> None:
        """Take the examples of another group."""
        self.examples += other.examples
        self.of_file |= other.of_file
        self.of_memory |= other.of_memory

    def links(self) -> list[Link]:
        """Return the different links of all examples."""
        found = dict[tuple[Any, ...], Link]()
        for link in (link for each in self.examples for link in each.links):
            part = link.part and replace(link.part, extents={})
            found.setdefault((link.file, link.memory, repr(part)), link)
        return [*found.values()]


def group_of(example: Example) -> Group:
    """Return the meanings of the keys of one example."""
    files, memory = dict[str, set[Any]](), dict[str, set[Any]]()
    for link in example.links:
        part = link.part and repr(replace(link.part, extents={}, memory="", memory_fixed={}))
        files.setdefault(link.file, set()).add((link.memory, part))
        memory.setdefault(link.memory, set()).add((re.sub(r"\d+", "#", link.file), part))
    frozen = ({key: frozenset(each) for key, each in table.items()} for table in (files, memory))
    return Group([example], *frozen)


@dataclass
class Made:
    """One map of one family."""

    family: str
    models: list[str]
    rules: tuple[str, ...]
    sizes: dict[str, int | str]
    counts: tuple[int, int, int, int]
    """Classes, settings tried, cases that fit, and models whose values were compared."""


@dataclass
class Found:
    """All that is known of a family."""

    made: list[Made] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    elements: int = 0
    """Parameters of its smallest model."""


def first_line(error: Exception) -> str:
    """Return the reason of an error, in one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:160]


def examples_of(family: str, found: Found) -> tuple[list[Example], int]:
    """Return the cases of a family that can be built, and the number of settings tried."""
    examples, tried = list[Example](), 0
    for of_model in classes()[family]:
        reasons = []
        for is_tiny in (False, True):
            try:
                examples.append(example_of(Case(family, of_model, None, is_tiny)))
            except Exception as error:  # noqa: BLE001 - models raise anything.
                reasons.append(first_line(error))
        if reasons and (len(reasons) > 1 or examples[-1].case.is_tiny):
            found.reasons[f"{family} {of_model} of default size"] = reasons[0]
    if all(link.part is None and link.file == link.memory for e in examples for link in e.links):
        return examples, tried
    tiny = [each.case.of_model for each in examples if each.case.is_tiny]
    settings, tried = settings_of(family, tiny[0]) if tiny else ([], 0)
    for of_model in tiny:
        for setting in settings:
            with suppress(Exception):  # Models raise anything.
                examples.append(example_of(Case(family, of_model, setting)))
    return examples, tried


def rules_of_group(group: Group) -> Map:
    """Return the map of a group: what changes, and the rest."""
    rules, sizes = rules_of(group.links())
    kept = sorted(rule for rule in rules if len({*rule.split(" -> ")}) > 1)
    scales = [
        f"{each[1]}.weight_scale_inv[o i] -> {each[2]}_scale_inv[{each[3]}]"
        for rule in kept
        if (each := _STACKED.fullmatch(rule)) and "_proj" in each[2]
    ]
    return Map([*kept, *scales, REST], sizes=sizes)


def groups_of(examples: Iterable[Example], reasons: dict[str, str]) -> list[tuple[Group, Map]]:
    """Return the maps of the examples of a family: as few as there can be."""
    groups, done = list[Group](), list[tuple[Group, Map]]()
    of_class: dict[str, Group] = {}
    for example in examples:
        name, each = example.case.of_model, group_of(example)
        if not of_class.setdefault(name, Group()).takes(each):
            reasons[f"{example.case.family} {example.case}"] = "it gives a key another name"
        else:
            of_class[name].add(each)
    waiting = [*of_class.values()]
    while waiting:
        groups = []
        for each in waiting:
            near = next((group for group in groups if group.takes(each)), None)
            if near is None:
                groups.append(near := Group())
            near.add(each)
        waiting = []
        for group in groups:
            waiting += settled(group, reasons, done)
    return done


def settled(group: Group, reasons: dict[str, str], done: list[tuple[Group, Map]]) -> list[Group]:
    """Note the map of a group; return its classes that the map does not fit, to be tried alone."""
    names = [*dict.fromkeys(each.case.of_model for each in group.examples)]
    wrong: dict[str, str] = {}
    try:
        given = rules_of_group(group)
    except (Unsupported, MapError) as error:
        given, wrong = None, dict.fromkeys(names, first_line(error))
    for example in group.examples if given else ():
        try:
            example.check(given)
        except (Unsupported, AttributeError) as error:
            wrong.setdefault(example.case.of_model, f"{example.case}: {first_line(error)}")
    if given and not wrong:
        done.append((group, given))
        return []
    if len(names) == 1:
        (name,), (reason,) = names, wrong.values()
        simple = [each for each in group.examples if each.case.setting is None]
        if len(simple) < len(group.examples):  # At least as it is by default.
            reasons[f"{group.examples[0].case.family} {name} with other settings"] = reason
            alone = Group()
            for each in simple:
                alone.add(group_of(each))
            return settled(alone, reasons, done)
        reasons[f"{group.examples[0].case.family} {name}"] = reason
        return []
    split = []
    for name in names:
        alone = Group()
        for each in group.examples:
            if each.case.of_model == name:
                alone.add(group_of(each))
        split.append(alone)
    if given and len(wrong) < len(names):  # The others stay together.
        rest = Group()
        for each in [each for name, each in zip(names, split, strict=True) if name not in wrong]:
            rest.add(each)
        split = [each for name, each in zip(names, split, strict=True) if name in wrong]
        split = [*settled(rest, reasons, done), *split]
    left = []
    for each in split:
        left += settled(each, reasons, done)
    return left


def compared(given: Map, group: Group, found: Found, until: float) -> int:
    """Compare the values of the small models of a group, until a time; return how many."""
    count, seen = 0, set()
    for example in group.examples:
        names = frozenset(re.sub(r"\d+", "#", key) for key in example.memory)
        if not example.case.is_tiny or names in seen or time.monotonic() > until:
            continue
        seen.add(names)
        if sum(int(np.prod(shape)) for shape in example.memory.values()) > _MOST_ELEMENTS:
            continue
        try:
            model = build(example.case, "cpu")
        except Exception:  # noqa: BLE001 - models raise anything.
            continue
        check_map(given, model)
        found.elements = min(found.elements or _MOST_ELEMENTS, num_elements(model))
        count += 1
    return count


def family_of(family: str) -> Found:
    """Return the maps of a family, and what has none."""
    warnings.simplefilter("ignore")
    found, until = Found(), time.monotonic() + _SECONDS
    examples, tried = examples_of(family, found)
    pairs = groups_of(examples, found.reasons)
    pairs.sort(key=lambda pair: -len({each.case.of_model for each in pair[0].examples}))
    for number, (group, given) in enumerate(pairs):
        names = [*dict.fromkeys(each.case.of_model for each in group.examples)]
        try:
            values = compared(given, group, found, until) if given.rules[1:] else 0
        except Unsupported as error:
            found.reasons |= {f"{family} {name}": first_line(error) for name in names}
            continue
        counts = len(names), tried if not number else 0, len(group.examples), values
        models = names if number else [family]
        found.made.append(Made(family, models, given.rules, dict(given.sizes), counts))
    return found


def text_of(made: Sequence[Made], version: str) -> str:
    """Return the file of one map of several families."""
    counts = [sum(column) for column in zip(*(each.counts for each in made), strict=True)]
    families = [*dict.fromkeys(each.family for each in made)]
    more = f" and {len(families) - 3} more" if len(families) > 3 else ""
    is_blocked = any("[" in rule for rule in made[0].rules)
    return map_file(
        [
            f"Generated from the tables of transformers {version} (conversion_mapping.py); do not edit.",
            f"Tried: {counts[0]} classes of models, {counts[1]} settings of their configurations.",
            f"Proven: keys and shapes of {counts[2]} models, values of {counts[3]} small ones, both ways.",
            "From: the files that save_pretrained writes. Those on the Hub have the same names.",
            "To:   the state_dict() of the model, and the checkpoints of trainers that save it.",
            "Nothing makes an output layer that is tied to the embedding: the model ties it again.",
        ],
        f"{', '.join(families[:3])}{more}: from Hugging Face files to the names and shapes that "
        "transformers 5 holds in memory.",
        sorted(model for each in made for model in each.models),
        made[0].rules,
        requires=_QUANTISED if is_blocked else {},
        sizes=made[0].sizes,
    )


def table_names() -> list[str]:
    """Return the names of transformers' tables: families, and classes of models."""
    from transformers import conversion_mapping

    conversion_mapping.get_checkpoint_conversion_mapping("")  # It makes the tables.
    return sorted(conversion_mapping._checkpoint_conversion_mapping_cache)


def files_of(made: Iterable[Made]) -> dict[str, list[Made]]:
    """Return the maps by the names of their files: families with the same rules have one."""
    from transformers.conversion_mapping import _MODEL_TO_CONVERSION_PATTERN as PATTERNS

    same: dict[Any, list[Made]] = {}
    for each in made:
        of_classes = each.models[0] != each.family
        same.setdefault((each.rules, str(each.sizes), of_classes), []).append(each)
    found: dict[str, list[Made]] = {}
    for (rules, _, of_classes), group in same.items():
        families = [each.family for each in group]
        near = [PATTERNS.get(family) for family in families]
        first = next((each for each in near if each in families), min(families))
        name = UNCHANGED + ENDING if rules == (REST,) and not of_classes else name_of(first)
        ending = "-bare" if all(m.endswith("Model") for e in group for m in e.models) else "-heads"
        name = name.replace(ENDING, (ending if of_classes else "") + ENDING)
        while name in found:
            name = name.replace(ENDING, "-too" + ENDING)
        found[name] = group
    return found


def main() -> None:
    """Write the maps, and the list of families."""
    import transformers

    reasons, made, elements = dict[str, str](), list[Made](), dict[str, int]()
    with multiprocessing.get_context("spawn").Pool(2, maxtasksperchild=20) as pool:
        families = sorted(classes())
        for family, found in zip(families, pool.imap(family_of, families), strict=True):
            reasons |= found.reasons
            made += found.made
            if found.elements:
                elements[family] = found.elements
            if found.reasons or found.elements:
                print(family, [len(each.rules) for each in found.made], found.reasons, flush=True)
    files = files_of(made)
    for path in MAPS.glob(f"*{ENDING}.toml"):
        os.remove(path)
    for name, group in files.items():
        text = text_of(group, transformers.__version__)
        (MAPS / f"{name}.toml").write_text(text, encoding="utf-8")
    listed = {
        "transformers": transformers.__version__,
        "maps": elements,
        "not covered": reasons,
        "tables": table_names(),
    }
    FAMILIES.write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    print(f"{len(files)} maps of {len(made)} groups, {len(reasons)} not covered")


if __name__ == "__main__":
    main()
