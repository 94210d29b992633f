"""The things that are at a path where no checkpoint was found, and the way to one.

    nothing             CheckpointNotFound, the only case in which it says that there is no
                        checkpoint
    a file              the kind shown by its first bytes (``wire.kinds``), else by its name
    a folder            the kind shown by the names in it, else the kinds of the files that look
                        like models

It costs listing one folder and reading the heads of a few files.
"""

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import reduce

from shardvar.errors import (
    CheckpointNotFound,
    IncompleteCheckpoint,
    MalformedCheckpoint,
    ShardvarError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.parts import INTERRUPTED
from shardvar.formats.table import format_names, format_of_name, stem_of_name
from shardvar.formats.unfinished import (
    cause_of_unfinished,
    finished_shares,
    remedy_of_unfinished,
    unfinished_files,
)
from shardvar.pictures.words import count, message, named, similar
from shardvar.storage.links import outer_links
from shardvar.storage.local import split_path
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import UNPACK
from shardvar.wire.kinds import SNIFF_NBYTES, FileKind, kind_of
from shardvar.wire.zip import names_in

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
    """Return the error for a path without a checkpoint, split into a directory and a name.

    Only a path that may be misspelt is compared with its neighbours. A folder that was there when
    it was first looked at has been removed since, and the one above it is not listed.
    """
    near = _nearest(shown, storage, name) if is_misspelt else None
    if not _exists(storage, name):
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
        return CheckpointNotFound(f"There is no checkpoint at {shown}.", remedy)
    return _file_error(shown, storage, name, near) if name else _folder_error(shown, storage)


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
    """Return the path of a folder that a writer had renamed and not replaced yet; None without
    one."""
    if storage.local_path is None:
        return None
    from shardvar.storage.exchange import left_beside  # only to explain

    left = left_beside(os.path.join(storage.local_path, name))
    return next((path for path in left if path.endswith(".was.tmp")), None)


def _exists(storage: Storage, name: str) -> bool:
    """Return True if a file has that name, or there is such a directory; folders of a bucket exist if
    something is in them."""
    if storage.local_path is not None:
        path = os.path.join(storage.local_path, name)
        # Where a folder has come since, there was nothing of that name.
        return os.path.lexists(path) and not (name and os.path.isdir(path))
    return name in storage.names() if name else bool(storage.names() or storage.folders())


def kind_of_folder(names: Iterable[str]) -> FileKind | None:
    """Return what a folder is, by its own name and the names in it; None if they tell nothing."""
    names = list(names)
    return next(
        (kind for pattern, kind in _FOLDERS if any(re.fullmatch(pattern, each) for each in names)),
        None,
    )


def _is_json_item(files: Iterable[str], folders: Sequence[str]) -> bool:
    return not folders and {*files} - {"commit_success.txt"} == {"metadata"}


def _file_error(shown: str, storage: Storage, name: str, near: str | None) -> ShardvarError:
    """Return the error of a file of no format."""
    if unfinished := _unfinished_error(shown, storage, name, storage.names()):
        return unfinished
    formats = f"The formats are {', '.join(format_names())}."
    first = _head(storage, name)
    if not first:
        return MalformedCheckpoint(
            f"The file {shown} is empty.", "Fetch it again from where it was written."
        )
    # An archive of torch.save or of NumPy would have been found.
    kind = _kind(name, first)
    if first.startswith(b"PK") and not (kind and kind.is_lost):
        kind = _archive_kind(storage, name)
    if kind is None:
        return CheckpointNotFound(
            f"The file {shown} is not in a supported format.", near or formats
        )
    if kind.is_lost:
        return MalformedCheckpoint(f"The file {shown} is {kind.what}.", kind.remedy)
    return UnsupportedError(
        f"The file {shown} is {kind.what}, which is not a supported format.", kind.remedy
    )


def _archive_kind(storage: Storage, name: str) -> FileKind:
    """Return the kind of a zip archive, by the checkpoints in it."""
    file = storage.open(name)
    try:
        with prefix_errors(name):
            names = names_in(file.read, file.size)
    finally:
        file.close()
    inside = [each for each in names if format_of_name(os.path.basename(each))]
    return FileKind(message(f"a zip archive around {named(inside or names)}"), UNPACK)


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
        from shardvar.formats.native.references import without_needed  # only to explain

        left = without_needed(storage, left)
    if not left:
        return None
    cause = f"There is no checkpoint at {shown}: {cause_of_unfinished(left)}."
    return CheckpointNotFound(cause, remedy_of_unfinished(storage.path, left))


def _folder_error(shown: str, storage: Storage) -> ShardvarError:
    """Return the error of a folder without a checkpoint."""
    files, folders = storage.names(), storage.folders()
    kind = kind_of_folder([os.path.basename(storage.path), *folders, *files])
    if _is_json_item(files, folders) and _head(storage, "metadata")[:1] in (b"{", b"["):
        kind = _JSON_ITEM
    if kind:
        error = IncompleteCheckpoint if kind.is_lost else UnsupportedError
        return error(f"The folder {shown} is {kind.what}.", kind.remedy)
    links = [] if storage.local_path is None else outer_links(storage.local_path)
    if links and not files and not folders:
        return _links_error(shown, links)
    if not files and not folders:
        return CheckpointNotFound(
            f"The folder {shown} is empty.", "Give the folder of a checkpoint."
        )
    if uncommitted := _shares_error(shown, files) or _unfinished_error(shown, storage, "", files):
        return uncommitted
    kinds = _kinds_in(storage, files)
    if ".cache" in folders:
        downloads = reduce(lambda folder, step: folder.folder(step), DOWNLOADS.split("/"), storage)
        begun = [each for each in downloads.names() if each.endswith(".incomplete")]
        kinds = [*((f"{DOWNLOADS}/{each}", UNFINISHED) for each in begun), *kinds]
    if links and not kinds:
        return _links_error(shown, links)
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


def _links_error(shown: str, links: Sequence[str]) -> ShardvarError:
    """Return the error of a folder without a checkpoint, but with links out of it."""
    which = f"a link that leads out of it, {named(links)}"
    if len(links) > 1:
        which = f"links that lead out of it, {named(links)}"
    cause = f"The folder {shown} has no checkpoint, but {which}. Such links are not followed."
    remedy = f"Give the path of the link: `shardvar inspect {os.path.join(shown, links[0])}`."
    return CheckpointNotFound(cause, remedy)


def _kinds_in(storage: Storage, names: Sequence[str]) -> list[tuple[str, FileKind]]:
    """Return the kinds of a few files of a folder: those named as models are, and the largest; lost
    ones first."""
    sizes = dict[str, int]()
    for name in names:
        status = storage.status(name)
        if status is not None:
            sizes[name] = status.nbytes
    order = sorted(sizes, key=lambda name: (name.endswith(_MODELS), sizes[name]), reverse=True)
    kinds = []
    for name in order[:_LOOKED_AT]:
        with suppress(ShardvarError):
            kind = _kind(name, _head(storage, name))
            kinds += [(name, kind)] if kind else []
    return sorted(kinds, key=lambda each: not each[1].is_lost)


def _head(storage: Storage, name: str) -> bytes:
    file = storage.open(name)
    try:
        return file.read(0, min(SNIFF_NBYTES, file.size))
    finally:
        file.close()
