"""Locate: find the one checkpoint that a path means.

    path --look_at--> directory, name --formats_of--> formats to ask --locate--> locations

A folder of a training run holds files of several kinds. Its path means only some of them:

    checkpoints     a folder means them, all of them
    side files      of torch.save, Keras, GGUF and NumPy: only where there are no checkpoints
    exports         of Flax and ONNX: only where there are no side files either
    companions      the state of a run, such as optimizer.pt: only where there is nothing else, in
                    folders below either

``find_checkpoint`` serves verbs that read: one location, or an error that lists several, names the
nearest one, or says what is there instead (``foreign``). ``find_below`` also looks into the folders
of a folder without a checkpoint. ``find_target`` serves verbs that write: the location is new or is
replaced. ``remove`` takes only a checkpoint that lies at the path itself. Only formats whose files
may be in the directory are asked.

A verb looks at a path once (``look_at``), and hands on the place, or the location. A second look may
mean another directory: a folder that was removed since is a name in the one above.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from shardvar.errors import (
    AmbiguousPath,
    ArgumentError,
    MissingFile,
    ShardvarError,
    TargetExists,
    UnsupportedError,
)
from shardvar.formats.parts import COMMON, PartsFormat, kind_of_parts
from shardvar.formats.protocol import Format, Source
from shardvar.formats.table import (
    ending_of_other_files,
    format_named,
    format_of_name,
    formats_marked,
    formats_of,
    is_companion,
    name_of_target,
    names_of_target,
    side_of,
    stem_of_name,
    usual_name,
)
from shardvar.formats.unfinished import name_unfinished, remedy_of_unfinished, unfinished_files
from shardvar.planning.index import OBJECTS
from shardvar.storage.links import inner_links
from shardvar.storage.local import split_place
from shardvar.storage.protocol import Storage
from shardvar.verbs.foreign import ARRAYS_ALONE, explain, kind_of_folder
from shardvar.verbs.steps import differing, in_series, natural_key
from shardvar.wire.kinds import FileKind

Path = str | os.PathLike[str]

_DEPTH = 3
"""The levels that are searched below a folder: RUN/checkpoints/STEP/default."""
_MAX_FOLDERS = 10_000
"""The folders that are searched at the most."""
_VARIABLES = "variables"
"""The directory in which a SavedModel keeps its checkpoint."""
_MOST_LISTED = 8
"""The checkpoints that an error lists; of more, it has the number, the first and the last."""


@dataclass(frozen=True, slots=True)
class SplitPath:
    """A directory and a name, as a verb found them when it first looked at a path."""

    path: str
    """The path, as it was given."""
    storage: Storage
    """The directory that it means, or the one that holds its name."""
    name: str
    """The name in the directory; empty for all of it."""
    was_folder: bool
    """True if the directory was there, and not only spelled as one."""


def look_at(path: Path) -> SplitPath:
    """Return the directory and the name that a path means at this moment."""
    storage, name = split_place(path)
    text = os.fsdecode(path)
    is_spelled = text.endswith(os.sep) and storage.local_path is not None
    was_folder = not name and (not is_spelled or os.path.isdir(storage.path))
    return SplitPath(text, storage, name, was_folder)


@dataclass(frozen=True, slots=True)
class Location:
    """A directory, a format, and the name of one checkpoint, maybe yet to be written."""

    format: Format
    """The format of the checkpoint."""
    storage: Storage
    """The directory that holds it."""
    name: str
    """Its name there, as the format calls it."""

    @property
    def path(self) -> str:
        """The path, for messages."""
        return self.storage.path if self.is_folder else os.path.join(self.storage.path, self.name)

    @property
    def is_folder(self) -> bool:
        """Return True if the checkpoint is the directory itself, not files of a prefix in it."""
        can = self.format.capabilities
        return self.name in can.folders or (bool(self.name) and self.name == can.folder_index)

    @property
    def stem(self) -> str:
        """The name without its ending: the same for every name of this checkpoint."""
        return stem_of_name(self.name, self.format.name)

    def open(self, *, dequantize: bool | str = False) -> Source:
        """Open the checkpoint for reading; ``dequantize``: with the numbers of quantised tensors."""
        try:
            source, can = self.format.open(self.storage, self.name), self.format.capabilities
        except MissingFile as error:
            raise self._unfinished(error) from None
        if can.objects_in_tensor or OBJECTS in source.index.metadata.user:
            from shardvar.formats.objects import with_objects  # few have any

            source = with_objects(source, can)
        if dequantize is not False:
            from shardvar.verbs.dequantization import dequantized

            source = dequantized(source, self.storage, dequantize)
        return source

    def _unfinished(self, error: MissingFile) -> MissingFile:
        """Return the error of a missing index, with the remedy if a write is not finished."""
        names = self.storage.names()
        indexes = (
            [self.name] if self.is_folder else names_of_target(self.stem, self.format.name)[1:]
        )
        left = (
            unfinished_files(names, "" if self.is_folder else self.stem)
            if set(indexes).isdisjoint(names)
            else []
        )
        if not left:
            return error
        cause = (
            f"{error.cause} A write of it is not finished, which has left {name_unfinished(left)}."
        )
        remedy = remedy_of_unfinished(
            self.storage.path, left, ", with force=True (--force) if it asks for that"
        )
        return MissingFile(cause, remedy).in_file(error.file)


def find_checkpoints(path: Path) -> list[Location]:
    """Return every checkpoint that a path may mean: prefix, index, directory, or data file."""
    return found_at(*split_place(path))


def found_at(storage: Storage, name: str) -> list[Location]:
    """The checkpoints that a name may mean in a directory; without a name, all of it."""
    found = _locate(storage, name)
    # Megatron's file of common values means its folder, also by its own path.
    if name in ("", COMMON) and (kind := kind_of_parts(storage, [each.name for each in found])):
        return [_location(PartsFormat(kind), storage, "parts")]
    if not found and not name and _VARIABLES in storage.folders():
        found = _locate(storage.folder(_VARIABLES), "")
    return found


def _locate(storage: Storage, name: str, formats: Iterable[Format] | None = None) -> list[Location]:
    """As ``found_at``, in this directory only; of all formats unless some are given."""
    ranks: dict[int, list[Format]] = {}
    found: list[Location] = []
    for form in formats_of(storage.names(), name) if formats is None else formats:
        ranks.setdefault(0 if name else side_of(form.name), []).append(form)
    for _, forms in sorted(ranks.items()):
        if not all(is_companion(each.name) for each in found):
            break
        for form in forms:
            found += [_location(form, storage, each) for each in form.locate(storage, name)]
    if not name:
        found = [each for each in found if not is_companion(each.name)] or found
    # The ending is believed: another format may know the same file by its bytes, and yields, unless
    # it has an index.
    believed = format_of_name(name)
    if (name, believed) in [(each.name, each.format.name) for each in found]:
        return [
            each
            for each in found
            if each.name != name or each.format.name == believed or _has_index(each)
        ]
    return found


def _location(form: Format, storage: Storage, name: str) -> Location:
    """The location of a checkpoint in folders of the directory, as an item of a step of Orbax is.

    The location is the folder's, so that a checkpoint has one location whichever path leads to it.
    """
    *folders, last = name.split("/")
    for folder in folders:
        storage = storage.folder(folder)
    return Location(form, storage, last)


def _has_index(found: Location) -> bool:
    """Return True if a checkpoint's name is a prefix, by the file of its index."""
    return not set(names_of_target(found.name, found.format.name)[1:]).isdisjoint(
        found.storage.names()
    )


def find_below(place: SplitPath) -> list[Location]:
    """Return the checkpoints that a path may mean; those below a folder that has none itself, in
    natural order.

    A folder of steps has its checkpoints one or two folders down, a pipeline in a folder for each
    component. Folders within a folder that has a checkpoint are not searched. ``AmbiguousPath`` if
    there are too many folders.
    """
    found = found_at(place.storage, place.name)
    if not place.name and all(is_companion(each.name) for each in found):
        found = found + below(place.storage)
        found = [each for each in found if not is_companion(each.name)] or found
    return sorted(found, key=lambda each: natural_key(each.path)) if len(found) > 1 else found


def below(root: Storage, most: int | None = None) -> list[Location]:
    """Return the checkpoints in the folders below a folder, also if it has one itself, in natural
    order.

    Links to folders below are followed, if the search does not come to these by itself; links to
    others are not. ``AmbiguousPath`` if there are more than ``most`` folders; None stands for
    10,000.
    """
    most = _MAX_FOLDERS if most is None else most
    level, searched, found = [root], [root], list[Location]()
    for _ in range(_DEPTH):
        level = [
            each.folder(name)
            for each in level
            for name in each.folders()
            if not name.startswith(".")
        ]
        searched += level
        if len(searched) > most:
            cause = (
                f"{root.path} has no checkpoint itself, and more than {most:,} folders below it."
            )
            raise AmbiguousPath(cause, "Give the path of a folder nearer to the checkpoint.")
        here = [(folder, found_at(folder, "")) for folder in level]
        found += [location for _, locations in here for location in locations]
        level = [
            folder
            for folder, locations in here
            if all(is_companion(each.name) for each in locations)
        ]
    known = [*searched, *(location.storage for location in found)]
    found += [location for folder in _linked(root, known) for location in found_at(folder, "")]
    found = [each for each in found if not is_companion(each.name)] or found
    return sorted(found, key=lambda each: natural_key(each.path))


def _linked(root: Storage, searched: Sequence[Storage]) -> list[Storage]:
    """Return the other folders inside the root that links in the searched folders lead to."""
    if root.local_path is None:
        return []
    links = [(folder, *link) for folder in searched for link in inner_links(folder.path, root.path)]
    known = {os.path.realpath(folder.path) for folder in searched} if links else set()
    linked = []
    for folder, name, target in links:
        if target not in known:
            known.add(target)
            linked.append(folder.folder(name))
    return linked


def find_checkpoint(path: Path) -> Location:
    """Return the checkpoint that a path means; else ``AmbiguousPath`` with all of them, or what is
    there instead."""
    place = look_at(path)
    return only_one(place, find_below(place))


def only_one(place: SplitPath, found: Sequence[Location]) -> Location:
    """Return the only one of the checkpoints that were found, or raise the error of a path that does
    not mean one."""
    if len(found) == 1 and (found[0].storage == place.storage or not arrays_alone(found)):
        return found[0]
    if found:
        raise several(place, found)
    raise explain(place.path, place.storage, place.name, is_misspelt=not place.was_folder)


def several(place: SplitPath, found: Sequence[Location]) -> AmbiguousPath:
    """Return the error of a path that may mean any of several checkpoints."""
    if len(found) > _MOST_LISTED:
        first, last = exact_path(found[0]), exact_path(found[-1])
        listed = f"{len(found):,} checkpoints, from {first} to {last}"
    else:
        listed = ", ".join(f"{exact_path(each)} ({each.format.name})" for each in found)
    folder = place.storage.path
    inside = [parts(folder, each) for each in found]
    kind = kind_of_folder(
        [os.path.basename(folder), *(name for names in inside for name in names)]
    ) or arrays_alone(found)
    cause = f"{place.path} may mean {listed}."
    if kind and not kind.is_lost:
        return AmbiguousPath(f"{cause} It is {kind.what}.", kind.remedy)
    last = next(reversed(in_series(steps := differing(inside), found)), "")
    lost = [isinstance(each.format, PartsFormat) and each.format.kind.is_lost for each in found]
    is_one = steps.count(last) == 1 and not all(lost)
    newest = ", or take the newest: --latest, sv.newest_checkpoint" if is_one else ""
    return AmbiguousPath(
        cause, f"Give the path of one of them, as `shardvar inspect` lists them{newest}."
    )


def arrays_alone(found: Sequence[Location]) -> FileKind | None:
    """Return what several Zarr arrays that lie side by side without a group are; None for other
    checkpoints. An array by itself has no name. The last array of a folder that is being removed looks
    the same.
    """
    if {each.format.name for each in found} == {"zarr"} and any(
        map(_is_nameless, found[:_MOST_LISTED])
    ):
        return ARRAYS_ALONE
    return None


def _is_nameless(found: Location) -> bool:
    """Return True for an array that is a checkpoint by itself."""
    with suppress(ShardvarError), closing(found.open()) as source:
        return len(source.index.find("")) > 0
    return False


def parts(folder: str, found: Location) -> list[str]:
    """Return the names that lead from a folder, or from its URL, to a checkpoint below it."""
    return os.path.relpath(found.path, folder).split(os.sep)


def find_target(path: Path, format_name: str | None, otherwise: str) -> Location:
    """Return the location to write a checkpoint at: of the named format, else of the one that the
    path's ending says.

    A path whose ending says another format than the named one is an ``ArgumentError``.
    ``otherwise`` is the format of a path whose ending says nothing. If the checkpoints of a format
    are folders, its path is the folder, which need not exist, or the index in it.
    """
    storage, name = split_place(path)
    given = os.fsdecode(path)
    ending = format_of_name(name or os.path.basename(storage.path))
    other = ending_of_other_files(name) if format_name is None and not ending else None
    if other:
        cause = f"{given} ends like another kind of file, {other}, and no format is named."
        raise UnsupportedError(
            cause, "Name the format (--format), or end the name in .safetensors, .npz or .pt."
        )
    if ending and not format_named(ending).capabilities.dtypes:
        cause = (
            f"{given} has the ending of the format {ending}, which shardvar can read but not write."
        )
        raise UnsupportedError(
            cause, "Give the name another ending, such as .safetensors, .npz or .pt."
        )
    form = format_named(ending or otherwise if format_name is None else format_name)
    if ending not in (None, form.name):
        # Its files would have other names, or the name of a file that they are not.
        cause = f"{given} has the ending of the format {ending}, and {form.name} is asked for."
        raise ArgumentError(
            cause, "Give the name another ending, or leave the format (--format) to the ending."
        )
    index = form.capabilities.folder_index
    if index:
        is_inside = name in ("", index)
        if not is_inside and name in storage.names():
            cause = f"{given} is a file, and a checkpoint of the format {form.name} is a folder."
            raise TargetExists(cause, "Choose another name.")
        folder = storage if is_inside else split_place(os.path.join(given, ""))[0]
        return Location(form.written_to(folder), folder, index)
    name = name or usual_name(form.name)
    if not name:
        raise ArgumentError(f"{given} is a directory.", "Add the name of the checkpoint in it.")
    return Location(form, storage, name_of_target(name, form.name))


def is_same(a: Location, b: Location) -> bool:
    """Return True if two names mean the same checkpoint or file, also through a link."""
    if a.storage.local_path is None or b.storage.local_path is None:
        # Buckets have no links. A path of a file means that file in any format.
        return a.path == b.path or (
            a.format.name == b.format.name and a.storage == b.storage and a.stem == b.stem
        )
    if os.path.realpath(a.path) == os.path.realpath(b.path):
        # Several formats may share a prefix. A path of a file means that file in any format.
        return a.format.name == b.format.name or os.path.isfile(a.path)
    # A prefix and its index file are two paths of one checkpoint. Directories are resolved, since
    # one may be a link.
    stems = {os.path.join(os.path.realpath(each.storage.path), each.stem) for each in (a, b)}
    return len(stems) == 1 and a.format.name == b.format.name


def is_inside(target: Location, source: Location) -> bool:
    """Return True if a target is a folder in the folder that a source is, and might replace files
    of the source."""
    if not (source.is_folder and target.is_folder):
        return False
    if None in (target.storage.local_path, source.storage.local_path):
        # Of a path and a URL, neither begins with the other.
        return target.path.startswith(f"{source.path}/")
    folder = os.path.join(os.path.realpath(source.storage.path), "")
    return os.path.realpath(target.storage.path).startswith(folder)


def find_in_other_formats(target: Location) -> Location | None:
    """Return a checkpoint of another format under the target's very name, such as a prefix of both.

    A folder has the names of all checkpoints in it whose files are named as their format does.
    """
    storage, name = target.storage, target.name
    if target.is_folder:
        found = _locate(storage, "", formats_marked(storage.names()))
        return next((each for each in found if each.format.name != target.format.name), None)
    for form in formats_of(storage.names(), name):
        if form.name != target.format.name and name in form.locate(storage, name):
            return Location(form, storage, name)
    return None


def exact_path(found: Location) -> str:
    """A path that means only this checkpoint: its index, if its prefix is shared."""
    names, folders = names_of_target(found.name, found.format.name), found.storage.folders()
    for name in ["", *names] if found.is_folder else names:
        if name not in folders and found_at(found.storage, name) == [found]:
            return os.path.join(found.storage.path, name) if name else found.path
    return found.path
