"""From a path that a person has at hand to the one checkpoint that it means."""

import os
from dataclasses import dataclass

from shardvar.errors import AmbiguousPath, ArgumentError, CheckpointNotFound
from shardvar.formats.protocol import Format, Source
from shardvar.formats.table import (
    all_formats,
    format_named,
    format_names,
    format_of_name,
    name_of_target,
    names_of_target,
    stem_of_name,
)
from shardvar.storage.local import LocalStorage, split_path

Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that a path means; also one that is yet to be written."""

    format: Format
    """Its format."""
    storage: LocalStorage
    """The directory that holds it."""
    name: str
    """Its name there, as the format calls it."""

    @property
    def path(self) -> str:
        """The path, for messages."""
        return os.path.join(self.storage.path, self.name)

    @property
    def stem(self) -> str:
        """The name without its ending: the same for every name that a person may have for this checkpoint."""
        return stem_of_name(self.name, self.format.name)

    def open(self) -> Source:
        """Open it for reading."""
        return self.format.open(self.storage, self.name)


def find_checkpoints(path: Path) -> list[Found]:
    """Every checkpoint that a path may mean: a prefix, an index file, a directory, one of the data files."""
    storage, name = split_path(path)
    found = [Found(form, storage, each) for form in all_formats() for each in form.locate(storage, name)]
    if not found and not name:
        # A SavedModel keeps its checkpoint in a directory of this name.
        inner = LocalStorage(os.path.join(storage.path, "variables"))
        found = [Found(form, inner, each) for form in all_formats() for each in form.locate(inner, "")]
    return found


def find_checkpoint(path: Path) -> Found:
    """The checkpoint that a path means; ``CheckpointNotFound`` or ``AmbiguousPath``, which lists them, otherwise."""
    found = find_checkpoints(path)
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(f"{_unmistakable(each)} ({each.format.name})" for each in found[:20])
        more = f" and {len(found) - 20} more" if len(found) > 20 else ""
        raise AmbiguousPath(f"{os.fspath(path)} may mean {listed}{more}.", "Give the path of one of them.")
    near = _nearest(path)
    if os.path.isfile(path):
        raise CheckpointNotFound(
            f"The file {os.fspath(path)} is of no format that shardvar reads.",
            near or f"The formats are {', '.join(format_names())}.",
        )
    raise CheckpointNotFound(
        f"There is no checkpoint at {os.fspath(path)}.",
        near or "Give its prefix, its index file, one of its data files or its directory.",
    )


def _nearest(path: Path) -> str | None:
    """What a misspelt path may have meant."""
    from difflib import get_close_matches  # only a mistake pays for it

    storage, name = split_path(path)
    there = {
        os.path.join(os.path.dirname(os.fspath(path)), each.name) for each in find_checkpoints(storage.path + os.sep)
    }
    near = get_close_matches(os.fspath(path), sorted(there), n=1) if name else []
    return f"Did you mean {near[0]}?" if near else None


def find_target(path: Path, format_name: str | None, otherwise: str) -> Found:
    """Where a checkpoint is to be written: the format is the one named, else what the path's ending says."""
    storage, name = split_path(path)
    if not name:
        raise ArgumentError(f"{os.fspath(path)} is a directory.", "Give the name of the checkpoint in it, too.")
    form = format_named(format_name or format_of_name(name) or otherwise)
    return Found(form, storage, name_of_target(name, form.name))


def is_same(a: Found, b: Found) -> bool:
    """Whether two names are of the same checkpoint or of the same file, also if one of them leads through a link."""
    if os.path.realpath(a.path) == os.path.realpath(b.path):
        return a.format.name == b.format.name or os.path.isfile(a.path)
    stems = {os.path.join(os.path.realpath(each.storage.path), each.stem) for each in (a, b)}
    return len(stems) == 1 and a.format.name == b.format.name


def standing_in_another_format(target: Found) -> Found | None:
    """The checkpoint of another format that stands under the target's very name, such as a prefix that both use."""
    others = (form for form in all_formats() if form.name != target.format.name)
    there = (Found(form, target.storage, target.name) for form in others)
    return next((each for each in there if each.name in each.format.locate(each.storage, each.name)), None)


def _unmistakable(found: Found) -> str:
    """A path that means this checkpoint and no other, where there is one: its index, if its prefix is another's too."""
    for name in names_of_target(found.name, found.format.name):
        path = os.path.join(found.storage.path, name)
        if find_checkpoints(path) == [found]:
            return path
    return found.path
