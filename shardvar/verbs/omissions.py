"""Checkpoints in a folder that the path of the folder does not mean.

The path of a folder means the checkpoints in it. It does not mean files of torch.save, Keras, GGUF
and NumPy next to them, nor checkpoints in folders below (``locate``), and links out of the folder
are not followed. People must know about what they do not see.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from shardvar.errors import ShardvarError
from shardvar.formats.parts import PartsFormat
from shardvar.formats.safetensors.names import all_checkpoints
from shardvar.formats.table import formats_of, side_of
from shardvar.storage.links import outer_links
from shardvar.storage.protocol import Storage
from shardvar.verbs.locate import Location, Path, below, find_below, look_at

_MAX_FOLDERS = 100
"""The folders that are searched; the note must not take longer than the command."""


@dataclass(frozen=True, slots=True)
class Omissions:
    """The checkpoints of a folder that its path does not mean."""

    files: Sequence[str] = ()
    """The names of files next to the checkpoints."""
    folders: Sequence[str] = ()
    """The paths of checkpoints in folders."""
    links: Sequence[str] = ()
    """The names of links that lead out of the folder."""

    def __bool__(self) -> bool:
        return bool(self.files or self.folders or self.links)


def find_omissions(path: Path) -> Omissions:
    """Return what a path of a local folder passes over; nothing for any other path, and for one
    without a checkpoint."""
    place = look_at(path)
    storage, folder = place.storage, place.storage.local_path
    found = find_below(place) if folder is not None and not place.name else []
    if folder is None or not found or any(isinstance(each.format, PartsFormat) for each in found):
        return Omissions()
    here = [each for each in found if each.storage == storage]
    others = {each.name for each in _side_files(storage)}.union(all_checkpoints(storage))
    files = sorted(others - {each.name for each in here})
    folders: list[Location] = []
    # The folders in a checkpoint that is a folder itself are its own.
    if here and not any(each.is_folder for each in here):
        with suppress(ShardvarError):  # too many to search, or one that may not be read
            folders = below(storage, _MAX_FOLDERS)
    return Omissions(files, [each.path for each in folders], outer_links(folder))


def _side_files(storage: Storage) -> list[Location]:
    """Return the checkpoints of formats that a folder means only if it means no others."""
    sides = [form for form in formats_of(storage.names(), "") if side_of(form.name)]
    return [Location(form, storage, name) for form in sides for name in form.locate(storage, "")]
