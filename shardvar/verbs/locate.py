"""Locate: find the checkpoint that a path means.

    path --look_at--> directory, name --formats_of--> formats to ask --locate--> locations

A folder of a training run holds files of several kinds. Its path means only some of them:

    checkpoints     a folder means them, all of them
    side files      of torch.save, Keras, GGUF and NumPy: only where there are no checkpoints
    exports         of Flax and ONNX: only where there are no side files either
    companions      the state of a run, such as optimizer.pt: only where there is nothing else, in
                    folders below either

``find_checkpoint`` serves verbs that read: one location, or an error that lists several, names the
nearest one, or tells the kind of the files there (``explain``). ``find_below`` also looks into the folders
of a folder without a checkpoint. ``find_target`` serves verbs that write: the location is new or is
replaced. ``remove`` takes only a checkpoint that lies at the path itself. Only formats whose files
may be in the directory are asked.

A verb looks at a path once (``look_at``), and hands on the place, or the location. A second look
may mean another directory: a folder that was removed since is a name in its parent.

Where no checkpoint was found, ``explain`` tells what lies there, and the way to one.

    nothing             CheckpointNotFound, the only error which tells that there is no
                        checkpoint
    a file              the kind shown by its first bytes (``wire.damage``), else by its name
    a folder            the kind shown by the names in it, else the kinds of the files that look
                        like models

That costs listing one folder and reading the heads of a few files.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing, suppress
from functools import reduce
from typing import Any

from shardvar.errors import (
    AmbiguousPath,
    ArgumentError,
    CheckpointError,
    CheckpointNotFound,
    IncompleteCheckpoint,
    MalformedCheckpoint,
    MissingExtra,
    MissingFile,
    ReadError,
    ShardvarError,
    StorageError,
    TargetExists,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.deferred import LateIndex
from shardvar.formats.files import read_first_bytes
from shardvar.formats.protocol import Format, Source
from shardvar.formats.sets import whole_sets
from shardvar.formats.table import (
    COMMON,
    ending_of_other_files,
    format_named,
    format_names,
    format_of_name,
    formats_marked,
    formats_named,
    formats_of,
    is_companion,
    name_of_target,
    names_of_target,
    side_of,
    stem_of_name,
    usual_name,
)
from shardvar.formats.unfinished import (
    cause_of_unfinished,
    finished_shares,
    name_unfinished,
    remedy_of_unfinished,
    unfinished_files,
)
from shardvar.pictures.words import count, message, named, natural_key, similar
from shardvar.planning.index import DELTA, OBJECTS
from shardvar.records import field, frozen, replace
from shardvar.storage.local import ListedDirectory, LocalStorage, split_path, split_place
from shardvar.storage.posix import inner_links, is_empty_folder, outer_links
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import INTERRUPTED, UNPACK, FileKind, kind_of

_LOOKED_AT = 4
"""The files of a folder whose heads are read."""
_MODELS = (
    ".bin",
    ".ckpt",
    ".pt",
    ".pth",
    ".pkl",
    ".h5",
    ".onnx",
    ".msgpack",
    ".pb",
    ".tar",
    ".gz",
    ".zip",
    ".npz",
)
"""The endings of files that are more telling than others, however large these are."""

UNFINISHED_DOWNLOAD = re.compile(
    r"(.*)\.(?:incomplete|part|partial|filepart|crdownload|opdownload|aria2|download)", re.DOTALL
)
"""The name of a file that a program keeps until a download is finished; the group is the file's."""
DOWNLOADS = ".cache/huggingface/download"
"""The folder in which a download of Hugging Face keeps notes about the files of a folder."""
UNFINISHED = FileKind("an unfinished download", "Finish the download, or start it again.", True)
_SPLIT = FileKind(
    "one part of a file that was split",
    "Join all parts under the name without the last ending: `cat NAME.* > NAME`.",
    True,
)
_NAMES = (
    (r".*\.[A-Za-z][A-Za-z0-9]*\.(part[-_.]?([a-z]{2,3}|\d+)|a[a-z]|\d{2,4})", _SPLIT),
    (UNFINISHED_DOWNLOAD.pattern, UNFINISHED),
    (r"events\.out\.tfevents\..*", FileKind("a log of TensorBoard", "The checkpoints of that run are elsewhere.")),
    (r".*\.meta", FileKind(
        "the graph of a TensorFlow checkpoint", "Name the checkpoint: the same name without .meta.")),
    (r".*\.flax", FileKind("a msgpack file, such as Flax writes", "Give it the ending .msgpack.")),
    (r".*\.(mlmodel|mlpackage)", FileKind("a Core ML model", "Use the checkpoint that it was converted from.")),
    (r".*\.(engine|plan|trt)", FileKind("an engine of TensorRT", "Use the checkpoint that it was built from.")),
    (r".*\.pte?", FileKind("a program of ExecuTorch", "Use the checkpoint that it was exported from.")),
)  # fmt: skip
"""Kinds of files that their first bytes do not tell."""

_FOLDERS = (
    (r".*\.orbax-checkpoint-tmp(-\d+)?", FileKind("an Orbax checkpoint that was not finished", INTERRUPTED, True)),
    (r"tmp-checkpoint-\d+|[A-Za-z_-]*\d+[._-]tmp", FileKind("a checkpoint that was not finished", INTERRUPTED, True)),
    (r"saved_model\.pb(txt)?", FileKind("a SavedModel without its folder variables", "Copy the whole folder.", True)),
    (r"model_index\.json", FileKind("a pipeline of diffusers without its weights", "Also copy its subfolders.", True)),
    (r"events\.out\.tfevents\..*", FileKind(
        "a folder of TensorBoard's logs", "The checkpoints of that run are in another folder.")),
)  # fmt: skip
"""Kinds of folders, by the name of something in them."""
ARRAYS_ALONE = FileKind(
    "a folder of Zarr arrays without a group",
    "If they are one checkpoint, copy the file of its group again: zarr.json, .zgroup, or "
    "_METADATA of Orbax. Else give the path of one of them.",
)
"""The arrays of a checkpoint that lost that file; arrays saved one by one look the same."""
_JSON_ITEM = FileKind(
    "an item of an Orbax step that is JSON", "Read its file `metadata`, or name the item of arrays."
)
"""Orbax writes one file for it, ``metadata``, and may mark it as complete."""


def explain(shown: str, storage: Storage, name: str, *, is_misspelt: bool) -> ShardvarError:
    """Only a path that ``is_misspelt`` is compared with its neighbours, not a removed folder."""
    near = _nearest(shown, storage, name) if is_misspelt else None
    if storage.local_path is None:  # a folder of a bucket exists if something is in it
        exists = name in storage.names() if name else bool(storage.names() or storage.folders())
    else:
        path = os.path.join(storage.local_path, name)
        # Where a folder has come since, there was nothing of that name.
        exists = os.path.lexists(path) and not (name and os.path.isdir(path))
    if not exists:
        with suppress(OSError, ShardvarError):
            names = storage.names()
            shares = [each for each in names if each.startswith(f"{name}.")]
            if uncommitted := _shares_error(shown, shares) or _unfinished_error(
                shown, storage, name, names
            ):
                return uncommitted
        if name and (was := renamed_away(storage, name)):
            cause = f"There is no checkpoint at {shown}: its folder is {was}."
            return CheckpointNotFound(
                f"{cause} A writer was ended while it replaced it.",
                "Rename it back, or write there again, which does so first.",
            )
        remedy = near or "Give its prefix, its index file, one of its data files or its directory."
        if is_misspelt and not near and (hub := _hub_name(storage, name)):
            remedy = f"{remedy} A model of the Hugging Face Hub is hf://{hub}."
        return CheckpointNotFound(f"There is no checkpoint at {shown}.", remedy)
    return _file_error(shown, storage, name, near) if name else _folder_error(shown, storage)


def _hub_name(storage: Storage, name: str) -> str:
    """A path that may be OWNER/NAME: two names, if the first names nothing here; or empty."""
    owner = os.path.relpath(storage.local_path or os.curdir)
    is_one = not (os.sep in owner or owner.startswith(os.curdir) or os.path.lexists(owner))
    return f"{owner}/{name}" if name and is_one else ""


def _nearest(path: str, storage: Storage, name: str) -> str | None:
    """The path whose names are spelled most like a misspelt one, as a remedy: nothing is opened."""
    folder = mended = os.path.dirname(path)
    if storage.local_path is not None and not os.path.isdir(storage.local_path):
        found = _nearest_folder(folder)
        if found is None:
            return None
        mended, storage = found, split_path(os.path.join(found or os.curdir, ""))[0]
    there = {*storage.folders()}
    for each in storage.names():
        if form := format_of_name(each):
            there |= {each, stem_of_name(each, form)}
    near = [name] if name in there or not name else similar(name, sorted(there))
    if near and (mended, near[0]) != (folder, name):
        return f"Did you mean {os.path.join(mended, near[0])}?"
    return None if mended == folder else f"Did you mean {mended}?"


def _nearest_folder(path: str) -> str | None:
    """The local folder whose path is spelled most like the missing one; None if there is none."""
    if not path or os.path.isdir(path):
        return path
    above, last = os.path.split(path)
    found = _nearest_folder(above) if above != path else None
    if found is None or not last:
        return found
    if os.path.isdir(os.path.join(found, last)):
        return os.path.join(found, last)
    near = similar(last, sorted(split_path(os.path.join(found or os.curdir, ""))[0].folders()))
    return os.path.join(found, near[0]) if near else None


def renamed_away(storage: Storage, name: str) -> str | None:
    """The path of a folder that a writer had renamed and not replaced yet."""
    if storage.local_path is None:
        return None
    from shardvar.storage.exchange import left_beside  # only to explain

    left = left_beside(os.path.join(storage.local_path, name))
    return next((path for path in left if path.endswith(".was.tmp")), None)


def kind_of_folder(names: Iterable[str]) -> FileKind | None:
    """Return what a folder is, by its own name and the names in it; None if they tell nothing."""
    names = list(names)
    kinds = (
        kind for pattern, kind in _FOLDERS if any(re.fullmatch(pattern, name) for name in names)
    )
    return next(kinds, None)


def _file_error(shown: str, storage: Storage, name: str, near: str | None) -> ShardvarError:
    if unfinished := _unfinished_error(shown, storage, name, storage.names()):
        return unfinished
    formats = f"The formats are {', '.join(format_names())}."
    first = read_first_bytes(storage, name)
    if not first:
        return MalformedCheckpoint(
            f"The file {shown} is empty.", "Fetch it again from where it was written."
        )
    # An archive of torch.save or of NumPy would have been found.
    kind = _kind(name, first)
    if first.startswith(b"PK") and not (kind and kind.is_lost):
        from shardvar.wire.zip import read_directory  # only to explain

        with closing(storage.open(name)) as file, prefix_errors(name):
            names = [each.name for each in read_directory(file.read, file.size).members]
        inside = [each for each in names if format_of_name(os.path.basename(each))]
        kind = FileKind(message(f"a zip archive around {named(inside or names)}"), UNPACK)
    if kind is None:
        return CheckpointNotFound(
            f"The file {shown} is not in a supported format.", near or formats
        )
    if kind.is_lost:
        return MalformedCheckpoint(f"The file {shown} is {kind.what}.", kind.remedy)
    return UnsupportedError(
        f"The file {shown} is {kind.what}, which is not a supported format.", kind.remedy
    )


def _kind(name: str, first: bytes) -> FileKind | None:
    """Return the kind of a file; its name counts if its first bytes do not decide."""
    by_name = next(
        (kind for pattern, kind in _NAMES if re.fullmatch(pattern, name, re.DOTALL)), None
    )
    return by_name if by_name and by_name.is_lost else kind_of(first) or by_name


def _shares_error(shown: str, names: Iterable[str]) -> ShardvarError | None:
    """Return the error of a save by several processes without a commit; None without shares."""
    found = finished_shares(names)
    if found is None:
        return None
    processes, number = found
    missing = [process for process in range(number) if process not in processes]
    cause = f"There is no checkpoint at {shown}: a save by {number:,} processes was not committed"
    if not missing:
        remedy = "Commit it: sv.commit_shards, with the `run` of its processes."
        return CheckpointNotFound(
            f"{cause}.", f"{remedy} If they do not fit together, save again, under a new run."
        )
    lacking = f"process{'es' * (len(missing) > 1)} {named([*map(str, missing)])}".replace("'", "")
    remedy = "Save there again with the same `run`, or in all processes with another one."
    return CheckpointNotFound(f"{cause}, and lacks the shares of {lacking}.", remedy)


def _unfinished_error(
    shown: str, storage: Storage, name: str, names: Iterable[str]
) -> ShardvarError | None:
    """Return the error of a write that was not finished; None if nothing of one is there."""
    left = unfinished_files(names, stem_of_name(name, format_of_name(name) or ""))
    left = left or [each for each in unfinished_files(names, "") if each == name]
    if left:
        from shardvar.formats.native.source import without_needed  # only to explain

        left = without_needed(storage, left)
    if not left:
        return None
    cause = f"There is no checkpoint at {shown}: {cause_of_unfinished(left)}."
    return CheckpointNotFound(cause, remedy_of_unfinished(storage.path, left))


def _folder_error(shown: str, storage: Storage) -> ShardvarError:
    files, folders = storage.names(), storage.folders()
    kind = kind_of_folder([os.path.basename(storage.path), *folders, *files])
    is_item = not folders and {*files} - {"commit_success.txt"} == {"metadata"}
    if is_item and read_first_bytes(storage, "metadata")[:1] in (b"{", b"["):
        kind = _JSON_ITEM
    if kind:
        error = IncompleteCheckpoint if kind.is_lost else UnsupportedError
        return error(f"The folder {shown} is {kind.what}.", kind.remedy)
    if uncommitted := _shares_error(shown, files) or _unfinished_error(shown, storage, "", files):
        return uncommitted
    # The kinds of a few files, named as models are or the largest; lost ones first.
    sizes = {name: status.nbytes for name in files if (status := storage.status(name))}
    kinds = list[tuple[str, FileKind]]()
    order = sorted(sizes, key=lambda name: (name.endswith(_MODELS), sizes[name]), reverse=True)
    for name in order[:_LOOKED_AT]:
        with suppress(ShardvarError):
            found = _kind(name, read_first_bytes(storage, name))
            kinds += [(name, found)] if found else []
    kinds.sort(key=lambda each: not each[1].is_lost)
    if ".cache" in folders:
        downloads = reduce(lambda folder, step: folder.folder(step), DOWNLOADS.split("/"), storage)
        begun = [each for each in downloads.names() if each.endswith(".incomplete")]
        kinds = [*((f"{DOWNLOADS}/{each}", UNFINISHED) for each in begun), *kinds]
    links = [] if storage.local_path is None else outer_links(storage.local_path)
    if links and not kinds:
        out = f"{'links that lead' if len(links) > 1 else 'a link that leads'} out of it"
        cause = f"The folder {shown} has no checkpoint, but {out}, {named(links)}. Such links are"
        remedy = f"Give the path of the link: `shardvar inspect {os.path.join(shown, links[0])}`."
        return CheckpointNotFound(f"{cause} not followed.", remedy)
    if not files and not folders:
        return CheckpointNotFound(
            f"The folder {shown} is empty.", "Give the folder of a checkpoint."
        )
    details = "; ".join(f"{name} is {kind.what}" for name, kind in kinds) or named(
        [*files, *folders]
    )
    holds = " and ".join(
        count(len(names), noun) for names, noun in ((files, "file"), (folders, "folder")) if names
    )
    cause = f"The folder {shown} holds {holds}, and no checkpoint that shardvar reads: {details}."
    remedy = kinds[0][1].remedy if kinds else f"The formats are {', '.join(format_names())}."
    lost = any(kind.is_lost for _, kind in kinds)
    return MalformedCheckpoint(cause, remedy) if lost else CheckpointNotFound(cause, remedy)


Path = str | os.PathLike[str]

NOT_OPENED = (CheckpointError, MissingExtra, StorageError, UnsupportedError)
"""Errors of one checkpoint in a folder, which hide no other one."""

_KINDS_OF_MODELS = ("adapter_model", "diffusion_pytorch_model")
_DEPTH = 3
"""The levels that are searched below a folder: RUN/checkpoints/STEP/default."""
_MAX_FOLDERS = 10_000
"""The folders that are searched at the most."""
_VARIABLES = "variables"
"""The directory in which a SavedModel keeps its checkpoint."""
IN_FOLDER = "state"
"""The name of a checkpoint whose path is an empty folder: in it, so that they are renamed and removed together."""
_MOST_LISTED = 8
"""The checkpoints that an error lists; of more, it has the number, the first and the last."""


@frozen
class SplitPath:
    """A directory and a name, as a verb found them when it first looked at a path."""

    path: str
    """The path, as it was given."""
    storage: Storage
    """The directory that it means, or that holds its name."""
    name: str
    """The name in the directory; empty for all of it."""
    was_folder: bool
    """True if the directory was there, and not only spelled as one."""


def look_at(path: Path) -> SplitPath:
    storage, name = split_place(path)
    text = os.fsdecode(path)
    is_spelled = text.endswith(os.sep) and storage.local_path is not None
    was_folder = not name and (not is_spelled or os.path.isdir(storage.path))
    return SplitPath(text, storage, name, was_folder)


@frozen
class Location:
    """A directory, a format, and the name of one checkpoint, maybe yet to be written."""

    format: Format
    storage: Storage
    name: str
    """Its name there, as the format calls it."""
    is_folder: bool = field(init=False, compare=False)
    """True if the checkpoint is the directory itself, not files of a prefix in it."""
    path: str = field(init=False, compare=False)
    """The path, for messages."""
    stem: str = field(init=False, compare=False)
    """The name without its ending: the same for every name of this checkpoint."""
    owns_folder: bool = field(default=False, compare=False)
    """True if the path of a target means the folder that holds it."""
    members: tuple[str, ...] = ()
    """The files of a set without its index, which are all there; empty for other checkpoints."""

    def __post_init__(self) -> None:
        can, folder = self.format.capabilities, self.storage.path
        is_folder = self.name in can.folders or (bool(self.name) and self.name == can.folder_index)
        object.__setattr__(self, "is_folder", is_folder)
        object.__setattr__(self, "path", folder if is_folder else os.path.join(folder, self.name))
        object.__setattr__(self, "stem", stem_of_name(self.name, self.format.name))

    @property
    def about_members(self) -> str:
        """The sentence on a set without its index; empty for other checkpoints."""
        index = f" without its index, {self.name}" if self.name.endswith(".json") else ""
        what = f"{self.storage.path} has a set{index}: all {len(self.members)} files are there"
        return f"{what} by their numbers, and are read as one" if self.members else ""

    def files_of(self, source: Source) -> list[str]:
        """Return the names of the data files of an open checkpoint, and of its index."""
        indexes = {self.name, *names_of_target(self.stem, self.format.name)}
        return sorted({*source.index.files, *indexes.intersection(self.storage.names())})

    def lost_files(self, source: Source) -> list[str]:
        """Return the data files next to the index that it names, and that are not there."""
        there = {*self.storage.names()}
        names = [] if source.places else source.index.files
        return [name for name in names if "/" not in name and name not in there]

    def paths_of(self, source: Source) -> list[str]:
        return [os.path.join(self.storage.path, name) for name in self.files_of(source)]

    def open(self, *, dequantize: bool | str = False) -> Source:
        """Open the checkpoint for reading; ``dequantize``: with the numbers of quantised tensors."""
        if self.members:
            from shardvar.verbs.joined_source import unite  # few need it

            files = [replace(self, name=name, members=()) for name in self.members]
            sources, unopened = list[Source](), dict[str, ReadError]()
            for each in files:
                try:
                    sources.append(each.open(dequantize=dequantize))
                except CheckpointError as error:
                    unopened[each.name] = error.in_file(each.name)
            # One file does not tell if others have parts of its tensors.
            if unopened and len(sources) < 2:
                raise next(iter(unopened.values()))
            joined = unite([self.storage] * len(sources), sources)
            names = [*(name for each in sources for name in each.index.files), *unopened]
            table = replace(joined.index, files=names)
            return replace(joined, index=table, unopened=unopened)
        try:
            source, can = self.format.open(self.storage, self.name), self.format.capabilities
        except MissingFile as error:
            raise self._unfinished(error) from None
        index = source.index
        # The frames of a delta tell which bytes of it are read.
        is_delta = self.format.name == "shardvar" and DELTA in index.metadata.user
        if (traits := source.traits) and traits.rehearsal and not is_delta:
            from shardvar.engine.files import RehearsedSource  # only of a dry run

            source = RehearsedSource(source)
        held: Collection[str]
        if not can.objects_in_tensor:
            held = index.metadata.user
        elif isinstance(index, LateIndex):
            held = index.names  # known without reading it
        else:
            held = [key for entries in index.scan() for key in entries.slices.tensors.keys]
        if OBJECTS in held:
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
    return found_at(*split_place(path))


def found_at(storage: Storage, name: str) -> list[Location]:
    """The checkpoints that a name may mean in a directory; without a name, all of it."""
    found = _with_sets(storage, _locate(storage, name))
    # Megatron's file of common values means its folder, also by its own path.
    if any(each.members for each in found):
        return found
    if name in ("", COMMON):
        from shardvar.formats.parts import PartsFormat, kind_of_parts  # of a folder

        if kind := kind_of_parts(storage, [each.name for each in found]):
            return [_location(PartsFormat(kind), storage, "parts")]
    if not found and not name and _VARIABLES in storage.folders():
        found = _locate(storage.folder(_VARIABLES), "")
    return found


def _with_sets(storage: Storage, found: list[Location]) -> list[Location]:
    """Files of a set without its index are one checkpoint if all of them are there."""
    names = storage.names()
    here = {each.name: each for each in found if each.storage == storage}
    # A format locates the index that is missing, or each file.
    is_lost = any(name.endswith(".index.json") and name not in names for name in here)
    for name, files in whole_sets(names if is_lost else here).items():
        first = here.get(name) or (here.get(files[0]) if {*files} <= {*here} else None)
        if first and name not in names:
            found = [each for each in found if each.name not in (*files, name)]
            found.append(Location(first.format, storage, name, members=tuple(files)))
    return found


def _locate(storage: Storage, name: str, formats: Iterable[Format] | None = None) -> list[Location]:
    """As ``found_at``, in this directory only; of all formats unless some are given."""
    ranks: dict[int, list[Format]] = {}
    found: list[Location] = []
    # The ending is believed: another format may know the same file by its bytes, and yields, unless
    # it has an index.
    believed = format_of_name(name)
    if formats is None:
        formats = formats_of(storage.names(), name)
        if believed and name in format_named(believed).locate(storage, name):
            formats = formats_named(storage.names(), name)
    for form in formats:
        ranks.setdefault(0 if name else side_of(form.name), []).append(form)
    for _, forms in sorted(ranks.items()):
        if not all(is_companion(each.name) for each in found):
            break
        for form in forms:
            found += [_location(form, storage, each) for each in form.locate(storage, name)]
    if not name:
        found = [each for each in found if not is_companion(each.name)] or found
    if (name, believed) in [(each.name, each.format.name) for each in found]:
        return [
            each
            for each in found
            if each.name != name
            or each.format.name == believed
            or (
                not set(names_of_target(each.name, each.format.name)[1:]).isdisjoint(
                    each.storage.names()
                )
            )
        ]
    return found


def _location(form: Format, storage: Storage, name: str) -> Location:
    """The location by the innermost folder: a checkpoint has one, whichever path leads to it."""
    *folders, last = name.split("/")
    for folder in folders:
        storage = storage.folder(folder)
    return Location(form, storage, last)


def find_below(place: SplitPath) -> list[Location]:
    """Checkpoints that a path means, or else those below its folder, in natural order."""
    found = found_at(place.storage, place.name)
    folder = place.storage.local_path
    if not found and place.was_folder and folder and _is_empty(place.storage, if_missing=False):
        # The folder may have come after the checkpoint next to it.
        above, name = os.path.split(folder)
        return found_at(LocalStorage(above), name)
    if not place.name and all(is_companion(each.name) for each in found):
        found = found + below(place.storage)
        found = [each for each in found if not is_companion(each.name)] or found
    return sorted(found, key=lambda each: natural_key(each.path)) if len(found) > 1 else found


def below(root: Storage) -> list[Location]:
    """Follows inner links too; ``AmbiguousPath`` for too many folders."""
    found = search(
        root,
        _MAX_FOLDERS,
        lambda folder: found_at(folder, ""),
        lambda _, here: all(is_companion(each.name) for each in here),
    )[1]
    found = [each for each in found if not is_companion(each.name)] or found
    return sorted(found, key=lambda each: natural_key(each.path))


def all_in(folder: Storage) -> list[Location]:
    """All checkpoints in a directory: what its path means, and the files next to it."""
    from shardvar.formats.parts import PartsFormat  # of a folder

    found, names = found_at(folder, ""), folder.names()
    if any(isinstance(each.format, PartsFormat) for each in found):
        return found
    others: dict[str, Format] = {}
    for form in formats_of(names, ""):
        if side_of(form.name):
            others |= {name: form for name in form.locate(folder, "") if name not in others}
    if any(".safetensors" in name for name in names):
        from shardvar.formats.safetensors.source import all_checkpoints  # of one format

        others |= dict.fromkeys(all_checkpoints(folder), format_named("safetensors"))
    here = [each for each in found if each.storage == folder]
    own = {name for each in here for name in (each.name, *each.members)}
    others = {name: form for name, form in others.items() if name not in own}
    # The index of a set speaks for the files next to it, and not for the state of a trainer.
    rest = [name for name in names if is_companion(name) and name not in {*others, *own}]
    found += [_location(form, folder, name) for name, form in sorted(others.items())]
    return found + [each for name in rest for each in _locate(folder, name)[:1]]


def search(
    root: Storage,
    most: int,
    look: Callable[[Storage], list[Location]],
    goes_on: Callable[[Storage, Sequence[Location]], bool],
) -> tuple[list[Storage], list[Location]]:
    """The folders below one, and what ``look`` finds in them; inner links are followed too."""
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
        here = [(folder, look(folder)) for folder in level]
        found += [location for _, locations in here for location in locations]
        level = [folder for folder, locations in here if goes_on(folder, locations)]
    folders = [*searched, *(location.storage for location in found)] if root.local_path else []
    links = [(each, *link) for each in folders for link in inner_links(each.path, root.path)]
    known = {os.path.realpath(folder.path) for folder in folders} if links else set()
    for folder, name, target in links:
        if target not in known:
            known.add(target)
            searched.append(folder.folder(name))
            found += look(searched[-1])
    return searched, found


def find_checkpoint(path: Path, listings: dict[str, list[str]] | None = None) -> Location:
    """``listings`` has the names in the local folders of earlier paths of the call, listed once."""
    place = look_at(path)
    folder = place.storage.local_path
    if listings is None or folder is None or not place.name:
        return only_one(place, find_below(place))
    if folder not in listings:
        listings[folder] = place.storage.names()
    once = ListedDirectory(folder, listings[folder])
    found = find_below(replace(place, storage=once))
    return only_one(
        place,
        [replace(each, storage=place.storage) if each.storage == once else each for each in found],
    )


def paths_of(paths: Path | Iterable[Path]) -> list[Path]:
    given: Any = paths
    is_one = isinstance(given, str | bytes | os.PathLike) or not isinstance(given, Iterable)
    return [given] if is_one else list(given)


def only_one(place: SplitPath, found: Sequence[Location]) -> Location:
    if len(found) == 1 and (found[0].storage == place.storage or not arrays_alone(found)):
        return found[0]
    if found:
        raise several(place, found)
    raise explain(place.path, place.storage, place.name, is_misspelt=not place.was_folder)


def several(place: SplitPath, found: Sequence[Location]) -> AmbiguousPath:
    from shardvar.formats.parts import PartsFormat  # only to explain
    from shardvar.verbs.steps import differing, in_series

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
    newest = ", or take the newest: sv.newest_checkpoint(PATH) (--latest)" if is_one else ""
    return AmbiguousPath(
        cause, f"Give the path of one of them, as `shardvar inspect` lists them{newest}."
    )


def arrays_alone(found: Sequence[Location]) -> FileKind | None:
    """Zarr arrays side by side without a group; a folder that is being removed looks the same."""
    for each in found[:_MOST_LISTED] if {each.format.name for each in found} == {"zarr"} else ():
        with suppress(ShardvarError), closing(each.open()) as source:
            if len(source.index.find("")):
                return ARRAYS_ALONE
    return None


def parts(folder: str, found: Location) -> list[str]:
    """Return the names that lead from a folder, or from its URL, to a checkpoint below it."""
    return os.path.relpath(found.path, folder).split(os.sep)


def find_target(
    path: Path,
    format_name: str | None,
    otherwise: str,
    *,
    source: Location | None = None,
    is_prefix: bool = False,
) -> Location:
    """The name and the ending must agree on a format; ``otherwise`` is the format without both."""
    # Of a format with a usual name, a path without an ending is a folder, whether it exists or not.
    # The file in it gets that name, or the kind of name of the source, for which loaders look.
    storage, name = split_place(path)
    given = os.fsdecode(path)
    ending = format_of_name(name or os.path.basename(storage.path))
    other = ending_of_other_files(name) if format_name is None and not ending else None
    if other:
        cause = f"{given} ends like another kind of file, {other}, and no format is named."
        raise UnsupportedError(
            cause, "Name the format (--format), or end the name in .safetensors, .npz or .pt."
        )
    if ending == "gguf" and source and format_name in (None, ending):
        format_name = "gguf-blocks"
    elif ending and not format_named(ending).capabilities.dtypes:
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
    is_file = name and (ending or is_prefix or ending_of_other_files(name))
    usual = "" if is_file else usual_name(form.name)
    index = form.capabilities.folder_index or usual
    if index:
        is_inside = name in ("", index)
        if not is_inside and name in storage.names():
            cause = f"{given} is a file, and a checkpoint of the format {form.name} is a folder."
            raise TargetExists(cause, "Choose another name.")
        folder = storage if is_inside else split_place(os.path.join(given, ""))[0]
        kind = source.name.partition(".")[0] if source else ""
        index = index.replace("model", kind) if usual and kind in _KINDS_OF_MODELS else index
        return Location(form, folder, index, owns_folder=bool(usual))
    if not name:
        # A folder is free if it is empty, or its checkpoint is there or begun; hidden files do not count.
        begun = any(each.lstrip(".").startswith(f"{IN_FOLDER}.") for each in storage.names())
        if is_prefix or not (begun or _is_empty(storage, if_missing=True)):
            cause = f"{given} is a directory{'' if is_prefix else ' that is not empty'}."
            raise ArgumentError(cause, "Add the name of the checkpoint in it.")
        name = names_of_target(IN_FOLDER, form.name)[:2][-1]
    return Location(form, storage, name_of_target(name, form.name))


def _is_empty(folder: Storage, *, if_missing: bool) -> bool:
    if folder.local_path is not None:
        return is_empty_folder(folder.local_path, if_missing=if_missing)
    return all(each.startswith(".") for each in (*folder.names(), *folder.folders()))


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


def check_apart(
    goal: Location, sources: Iterable[Location], both: str, new: str = "target"
) -> None:
    for source in sources:
        if is_same(source, goal):
            raise ArgumentError(f"{source.path} is both {both}.", f"Choose another {new}.")


def check_not_inside(goal: Location, source: Location, role: str) -> None:
    """A target that is a folder in the folder of a source might replace its files."""
    if not (source.is_folder and goal.is_folder):
        return
    if None in (goal.storage.local_path, source.storage.local_path):
        # Of a path and a URL, neither begins with the other.
        is_inside = goal.path.startswith(f"{source.path}/")
    else:
        folder = os.path.join(os.path.realpath(source.storage.path), "")
        is_inside = os.path.realpath(goal.storage.path).startswith(folder)
    if is_inside:
        raise ArgumentError(
            f"{goal.path} is a folder of the {role} {source.path}.", "Choose another target."
        )


def find_in_other_formats(target: Location) -> Location | None:
    """Another checkpoint in the target's folder, or of another format under its name."""
    storage, name = target.storage, target.name
    if target.is_folder or target.owns_folder:
        formats: Iterable[Format] = formats_marked(storage.names())
        if target.is_folder:  # Then its path means this checkpoint, whatever files rank after it.
            formats = [
                each for each in formats if side_of(each.name) <= side_of(target.format.name)
            ]
        found = _locate(storage, "", formats)
        own = target.format.name, target.stem
        return next(
            (
                each
                for each in found
                if not is_companion(each.name)
                and (each.format.name, each.stem if target.owns_folder else own[1]) != own
            ),
            None,
        )
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
