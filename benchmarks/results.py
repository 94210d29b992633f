"""The stored results, docs/performance.json: of each subject the figures, and of what machine and
moment they are.

A subject that is measured again replaces only its group, so groups may be of different days; each
says of which.
"""

import json
import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from benchmarks.figures import SCHEMA, Figure
from shardvar.storage.concurrency import usable_cores

LIBRARIES = (
    "numpy",
    "safetensors",
    "torch",
    "tensorflow-cpu",
    "orbax-checkpoint",
    "tensorstore",
    "zarr",
)


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and the moment of a measurement."""

    date: str
    """The day, in UTC."""
    python: str
    """The version of Python."""
    system: str
    """The operating system."""
    cores: int
    """The cores that the process may use."""
    load: float
    """The mean number of busy processes in the minute before."""
    libraries: dict[str, str]
    """The versions of what is compared, by package."""

    @classmethod
    def now(cls) -> Self:
        """This machine at this moment."""
        found = {}
        for name in LIBRARIES:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                continue
        day = datetime.now(UTC).date().isoformat()
        return cls(
            day, platform.python_version(), platform.system(), usable_cores(), current_load(), found
        )


@dataclass(frozen=True, slots=True)
class Group:
    """The results of one subject."""

    machine: Machine
    """The machine at the start."""
    load_after: float
    """The load at the end, the measurement itself included."""
    seconds: float
    """The time that it took."""
    quick: bool
    """True if the sizes were small, so that the figures mean nothing."""
    figures: list[Figure]
    """The figures, in the order in which they were measured."""

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Return the group of which ``groups_to_json`` made this."""
        figures = [Figure.from_json(each) for each in values["figures"]]
        return cls(**{**values, "machine": Machine(**values["machine"]), "figures": figures})

    def caption(self) -> str:
        """The day, the cores and the load; the JSON has all versions."""
        machine = self.machine
        small = ", at sizes that are too small to mean anything" if self.quick else ""
        load = f"load {machine.load:.1f} to {self.load_after:.1f}"
        return f"{machine.date}, {machine.cores} cores, {load}{small}."


Groups = dict[str, Group]


def current_load() -> float:
    """The mean number of busy processes in the last minute."""
    return round(os.getloadavg()[0], 2)


def read_groups(path: Path) -> Groups:
    """Return the groups by subject; none if there is no file yet."""
    if not path.is_file():
        return {}
    return {
        name: Group.from_json(each)
        for name, each in json.loads(path.read_text("utf-8"))["groups"].items()
    }


def groups_to_json(groups: Groups) -> str:
    """The groups as JSON, a figure a line, so that a change shows which."""
    stored = {}
    for name, group in groups.items():
        lines = ",\n   ".join(json.dumps(figure.to_json()) for figure in group.figures)
        facts = asdict(group) | {"figures": []}
        stored[name] = json.dumps(facts).removesuffix("[]}") + f"[\n   {lines}\n  ]}}"
    body = ",\n  ".join(f"{json.dumps(name)}: {text}" for name, text in sorted(stored.items()))
    listed = f"{{\n  {body}\n }}" if body else "{}"
    return f'{{\n "schema": {SCHEMA},\n "groups": {listed}\n}}\n'
