"""Draws mutants of a layer: the same ones for the same seed and the same source.

A line is drawn before a change of it, so that a line with many changes weighs no more than another.
"""

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from spec_tests.helpers.source_code import MODULES, PACKAGE, layer_of, tree_of
from spec_tests.mutation.operators import Change, changes


def _peers(names: str) -> tuple[str, ...]:
    return tuple(f"peers/test_{name}_peer.py" for name in names.split())


def _kit(names: str) -> tuple[str, ...]:
    return tuple(f"kit/test_{name}.py" for name in names.split())


LAYERS = {
    "layout": ("geometry", "spec/test_spec_partitions.py", "spec/test_spec_checkpoints.py"),
    "layout.meshes": ("meshes", "spec/test_spec_meshes.py"),
    "planning": ("planning",),
    "maps": ("maps",),
    "wire": ("wire",),
    "storage": ("storage",),
    "formats": ("formats", "crash/test_crash.py", "verbs/test_every_bit.py"),
    "engine": (
        "engine",
        "verbs/test_bucket_requests.py",
        "verbs/test_dequantization.py",
        "verbs/test_dry_run.py",
        "verbs/test_executors.py",
        "verbs/test_quantization.py",
    ),
    "verbs": ("verbs",),
    "view": ("view",),
    "cli": ("cli",),
    "pictures": ("view",),
    "forks": ("crash/test_forks.py",),
    "extras": ("project/test_extras.py",),
    "spec": ("spec",),
    "testing": _kit("testing drawn_values"),
    "vectors": _kit("published_vectors run_vectors"),
    "reference.tracking": ("objects",),
    "reference.devices": ("devices",),
    "reference.random": ("random", "spec/test_spec_random.py"),
    "reference.variables": (
        "variables",
        "spec/test_spec_variables.py",
        "spec/test_spec_strategies.py",
        "spec/test_spec_random.py",
    ),
    "reference.nn": ("nn", "spec/test_spec_training.py"),
    "reference.training": (
        "training",
        "spec/test_spec_training.py",
        "spec/test_spec_strategies.py",
    ),
    "reference.objects": ("objects",),
    "conformance": _kit(
        "conformance_rules conformance_run dimensions mutant_adapters right_adapters"
    ),
    "torch": _peers(
        "background bad_states storage_reader storage_writer torch_groups torch_own_disks "
        "torch_states trainers"
    ),
    "jax": _peers("jax_states orbax_manager"),
}
"""Layer to its own tests, which alone are asked: folders of `spec_tests`, or files there."""

OF_PEERS = {"torch", "jax"}
"""Layers whose tests need the real frameworks, and mostly run other programs."""

LEFT_OUT = {
    "errors": "classes and their texts",
    "limits": "a table of numbers",
    "records": "a test compares it with the standard library",
    **{
        f"conformance/adapters/{name}.py": "the kit judges it in `make conformance`"
        for name in ("jax", "tensorflow", "torch")
    },
}
"""Layers and files that are not sampled, with the reason."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file of the package."""

    path: str
    """The file, in ``shardvar/``."""
    change: Change
    """What is changed in it."""

    def text(self) -> str:
        """Return the changed file."""
        return self.change.apply(_text_of(self.path))

    def difference(self) -> tuple[str, str]:
        """Return the changed statement before and after, on one line each."""
        old, new = _text_of(self.path).splitlines(), self.text().splitlines()
        first, last = self.change.start[0] - 1, self.change.stop[0]
        return _on_one_line(old[first:last]), _on_one_line(new[first : last + len(new) - len(old)])

    @property
    def place(self) -> str:
        """The file and the line, as messages name them."""
        return f"shardvar/{self.path}:{self.change.start[0]}"


def _on_one_line(lines: Iterable[str]) -> str:
    return " ".join(line.strip() for line in lines)


def _text_of(path: str) -> str:
    return (PACKAGE / path).read_text(encoding="utf-8")


def all_mutants(layer: str) -> list[Mutant]:
    """Return every mutant of a layer, in the order of its files and of their text."""
    return [
        Mutant(path.relative_to(PACKAGE).as_posix(), change)
        for path in MODULES
        if layer_of(path) == layer and path.relative_to(PACKAGE).as_posix() not in LEFT_OUT
        for change in changes(tree_of(path))
    ]


def lines_of(layer: str) -> dict[tuple[str, int], list[Mutant]]:
    """Return the lines of a layer that can be changed, each with its mutants."""
    by_line: dict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for mutant in all_mutants(layer):
        by_line[mutant.path, mutant.change.start[0]].append(mutant)
    return by_line


def draw(layer: str, seed: int, count: int) -> list[Mutant]:
    """Return `count` mutants of a layer, each of another line."""
    by_line = lines_of(layer)
    chooser = random.Random(f"{seed} {layer}")
    lines = chooser.sample(sorted(by_line), min(count, len(by_line)))
    return [chooser.choice(by_line[line]) for line in lines]
