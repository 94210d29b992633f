"""The deltas of other programs that are written: the dialects, and the location and the versions of a
new delta.

A name that follows the rule of a dialect says the version: ``weight_v000007``. Otherwise the caller
gives both.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from shardvar.errors import ArgumentError, TargetExists
from shardvar.formats.compressed import check_installed, new_checksum
from shardvar.formats.published import SLIME
from shardvar.formats.safetensors.names import set_index_name
from shardvar.formats.safetensors.published import PublishedFormat
from shardvar.pictures.words import similar
from shardvar.storage.local import split_place
from shardvar.verbs.delta.dialects.table import marks_of
from shardvar.verbs.delta.dialects.trl import IDX, INDICES
from shardvar.verbs.locate import Location, Path, is_same
from shardvar.verbs.reader import open_found

_INDEX = set_index_name("model")
_OF_A_DELTA = re.compile(r"model-0{5,}-of-0{4,}1\.safetensors")
_VERSION = re.compile(r"[A-Za-z0-9][\w.-]{0,127}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Dialect:
    """A dialect that is written."""

    name: str
    """The name for ``dialect=``."""
    readers: str
    """The programs that read it."""
    named: re.Pattern[str]
    """The name of a delta that says its version."""
    example: str
    """Such a name."""
    has_numbers: bool = True
    """True if versions are numbers, and each is made of the one before."""
    algorithm: str = ""
    """The checksum of each tensor; empty if the dialect has none."""
    endings: tuple[str, str] | None = None
    """The endings of keys with positions and values; None if changes are masks."""

    @property
    def is_folder(self) -> bool:
        """True if a delta is a folder with an index, False if it is one file."""
        return self.endings is None


_FOLDER = re.compile(r"weight_v(\d{6,18})", re.ASCII)
_FILE = re.compile(r"step_(\d{6,18})\.safetensors", re.ASCII)
DIALECTS = {
    each.name: each
    for each in (
        Dialect(
            "slime",
            "slime, miles, SGLang, vime",
            _FOLDER,
            "weight_v000007",
            algorithm="xxh3-128",
        ),
        Dialect("modelexpress", "ModelExpress", re.compile(r"(?!)"), "", False, "adler32"),
        Dialect("trl", "TRL, the first form", _FILE, "step_000007.safetensors", endings=INDICES),
        Dialect("trl-gaps", "TRL, later forms", _FILE, "step_000007.safetensors", endings=IDX),
    )
}
"""The dialects that are written, by name."""


def dialect_named(name: str) -> Dialect:
    """Return a dialect; ``ArgumentError`` if there is none of that name."""
    found = DIALECTS.get(name)
    if found is None:
        reads = [each.name for each in DIALECTS.values() if name.lower() in each.readers.lower()]
        if reads and len(name) > 2:
            raise ArgumentError(
                f"The dialect {name!r} is not known.",
                f"{name} reads the dialect {' or '.join(reads)}.",
            )
        alike = similar(name, DIALECTS, 1)
        meant = f"Did you mean {alike[0]}? " if alike else ""
        raise ArgumentError(
            f"The dialect {name!r} is not known.", f"{meant}Choose from {', '.join(DIALECTS)}."
        )
    return found


@dataclass(frozen=True, slots=True)
class Publication:
    """The location of a delta that is to be written, and what it names."""

    dialect: Dialect
    """The dialect."""
    goal: Location
    """The location."""
    base: str
    """The version of the base."""
    version: str
    """The version that the delta makes."""


def find_publication(
    path: Path, name: str, versions: Sequence[str] | None, sources: Sequence[Location]
) -> Publication:
    """Return the location of a new delta, which is none of its sources, and its versions."""
    dialect = dialect_named(name)
    check_needs(dialect)
    goal = _find_goal(path, dialect)
    for each in sources:
        if is_same(each, goal):
            raise ArgumentError(
                f"{each.path} is both a source and the delta.", "Choose another name."
            )
    return Publication(dialect, goal, *_versions(goal, dialect, versions))


def check_needs(dialect: Dialect) -> None:
    """Raise ``MissingExtra`` if the dialect needs a package that is not installed."""
    if dialect.is_folder:
        check_installed()
    if dialect.algorithm:
        new_checksum(dialect.algorithm)


def _find_goal(path: Path, dialect: Dialect) -> Location:
    given = os.fsdecode(path)
    is_file = given.endswith(".safetensors")
    if not dialect.is_folder:
        storage, name = split_place(path)
        if not name or not is_file:
            raise ArgumentError(
                f"{given} does not end in .safetensors, and a delta of {dialect.name} is one such file.",
                f"Name it as {dialect.example}.",
            )
        return Location(PublishedFormat(), storage, name)
    storage, name = split_place(path)
    if is_file or (name and name in storage.names()):
        raise ArgumentError(
            f"{given} is a file, and a delta of {dialect.name} is a folder.",
            f"Name a folder, such as {dialect.example or 'v7'}.",
        )
    folder = split_place(os.path.join(given, ""))[0]
    goal = Location(PublishedFormat(), folder, _INDEX)
    _check_folder(goal)
    return goal


def _check_folder(goal: Location) -> None:
    """Raise ``TargetExists`` if the folder has a model: its files would be the delta's."""
    names = [each for each in goal.storage.names() if each.endswith(".safetensors")]
    # What a killed write has left: no model has a file 0 of 1.
    there = [each for each in names if not _OF_A_DELTA.fullmatch(each)]
    if _INDEX in goal.storage.names():
        with open_found(goal, dequantize=False) as reader:
            marks = marks_of(reader, goal.storage)
        if marks is not None and marks.dialect == SLIME:
            return
        there = there or [_INDEX]
    if there:
        raise TargetExists(
            f"{goal.storage.path} has {there[0]}, and no delta.", "Choose another folder."
        )


def _versions(goal: Location, dialect: Dialect, versions: Sequence[str] | None) -> tuple[str, str]:
    """Return the version of the base, and of the result: as given, or as the name says."""
    name = os.path.basename(goal.storage.path.rstrip("/")) if dialect.is_folder else goal.name
    if versions is None:
        match = dialect.named.fullmatch(name)
        if match is None:
            why = (
                f"the name {name} is not as {dialect.example}"
                if dialect.example
                else "it names both"
            )
            raise ArgumentError(
                f"The dialect {dialect.name} needs the versions of the base and of the result: {why}.",
                "Give both: versions=('6', '7') (--versions 6 7).",
            )
        versions = str(int(match[1]) - 1), match[1]
    if isinstance(versions, str) or len(versions) != 2:
        raise ArgumentError(
            f"The versions are two, and {versions!r} was given.",
            "Give the one of the base and the one of the result: versions=('6', '7').",
        )
    base, version = (str(each) for each in versions)
    if not dialect.has_numbers:
        for each in (base, version):
            if not _VERSION.fullmatch(each):
                raise ArgumentError(
                    f"The version {each!r} is not a name of letters, digits, '.', '_' and '-'.",
                    "Choose another one.",
                )
        if base == version:
            raise ArgumentError(f"Both versions are {base!r}.", "Give two.")
        return base, version
    is_number = all(
        each.isascii() and each.isdigit() and len(each) < 19 for each in (base, version)
    )
    if not is_number or int(version) != int(base) + 1:
        raise ArgumentError(
            f"A delta of {dialect.name} makes a version of the one before it, and the versions are "
            f"{base!r} and {version!r}.",
            "Give two numbers that follow each other, such as 6 and 7.",
        )
    return str(int(base)), str(int(version))
