"""A mutant: a bug as a change of the package's text, and the copy of the package that has it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from spec_tests.helpers.paths import ROOT, SPEC_TESTS


@dataclass(frozen=True)
class Edit:
    """One piece of text in place of another."""

    path: str
    """The file, in ``shardvar/``."""
    old: str
    """The text to replace, which must be there once."""
    new: str
    """The text in its place."""

    def apply(self, package: Path) -> None:
        """Change the file; ``DoesNotApply`` unless the old text is in it once."""
        path = package / self.path
        text = path.read_text(encoding="utf-8")
        count = text.count(self.old)
        if count != 1:
            raise DoesNotApply(f"{self.path} has {count} times, not once: {self.old!r}")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


class DoesNotApply(Exception):
    """The code has changed, and the mutant must follow it."""


@dataclass(frozen=True)
class Mutant:
    """One wrong implementation."""

    name: str
    """Its name, in which words are joined by hyphens."""
    bug: str
    """The bug, and the library that has or had it."""
    edits: tuple[Edit, ...]
    """The changes that make it."""
    tests: str
    """The test files that must see it: names without ``test_`` and ``.py``, or pytest's ids after
    them."""
    levels: str = ""
    """The levels of the conformance kit to which it belongs, as ``--level`` takes them; nothing for
    none."""

    def make(self, place: Path) -> None:
        """Put a copy of the package in ``place`` that is this mutant."""
        copy_package(place)
        for edit in self.edits:
            edit.apply(place / "shardvar")

    def arguments(self) -> list[str]:
        """Its tests as pytest takes them."""
        return [argument_of(word) for word in self.tests.split()]


def copy_package(place: Path) -> None:
    """Put a copy of the package in ``place``."""
    shutil.copytree(
        ROOT / "shardvar", place / "shardvar", ignore=shutil.ignore_patterns("__pycache__")
    )


def argument_of(word: str) -> str:
    """Return what pytest takes for `sharded::test_x`: test_x of test_sharded.py, in whichever
    folder that file is."""
    name, colons, test = word.partition("::")
    found = sorted(SPEC_TESTS.glob(f"*/test_{name}.py"))
    if len(found) != 1:
        raise DoesNotApply(f"There are {len(found)} files spec_tests/*/test_{name}.py, not one.")
    return f"{found[0]}{colons}{test}"


def mutant(
    name: str, bug: str, path: str, old: str, new: str, tests: str, levels: str = ""
) -> Mutant:
    """A mutant of one edit."""
    return Mutant(name, bug, (Edit(path, old, new),), tests, levels)
