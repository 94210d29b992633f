"""Clean: list what killed writers have left in a folder or a bucket prefix, and remove it when told.

    find    by names (``formats.unfinished``), one listing of a bucket
    know    by content: a claim must say whose it is, a lock must be empty and free, and a data file
            must be in no index; an index that cannot be read may name any of them
    spare   a prefix whose writer is at work, or that has one file younger than the limit
    remove  on a disk under the writer's own lock, after another look; what explains the other
            files goes last, so that a second run finds the rest of one that was killed

Other programs also use the names of sets, and of arrays of Zarr. Their files count only if a
writer's temporary index, claim or lock is next to them, and no index in place has them.
"""

import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Any

from shardvar.errors import ArgumentError, CheckpointError, LockHeld, ShardvarError
from shardvar.formats.native.source import find_needs, freed_of
from shardvar.formats.table import format_named, format_of_name
from shardvar.formats.unfinished import ASIDE, final_name, kind_of_leftover
from shardvar.pictures.words import count, human_size
from shardvar.records import asdict, entity, frozen, replace
from shardvar.storage.concurrency import uninterrupted
from shardvar.storage.exchange import BESIDE, remove_beside
from shardvar.storage.local import check_unlocked
from shardvar.storage.protocol import FileStatus, Storage
from shardvar.storage.requests import join_key
from shardvar.storage.uploads import AT_WORK, claim_name, is_at_work, whose
from shardvar.verbs.locate import Path, found_at, look_at
from shardvar.verbs.problems import SCHEMA
from shardvar.wire.strict_json import parse_json

__all__ = ["CleanReport", "Leftover"]

DAY = 86_400.0

_ORDER = (
    "data file", "temporary file", "share", "folder", "mark of uploads", "mark", "lock", "claim",
)  # fmt: skip
"""The kinds of leftovers, as they are removed."""
_FOLDERS = {"zarr": "zarr.json", "orbax": "_METADATA", "torch": ".metadata", "universal": "zero"}
"""The indexes of formats whose checkpoint is a folder."""
_OWN = re.compile(
    r".+\.data-\d{5,}|__\d+_\d+\.distcp|(chunk|universal|model_index\.json)-\d+|latest_universal"
    r"|.+\.svdata-.+|.+-\d{5,}\.[a-z]+",
    re.DOTALL,
)
"""Final names of temporary files, in addition to names with a format's ending, and of indexes."""
_STAGED = re.compile(r"shardvar-[a-z0-9_]{8}")
"""A folder in which a writer finishes files before they go up into a bucket."""
_MOST_NBYTES = 1 << 12


@frozen
class Leftover:
    """A file, or a folder with all that is in it, that a killed writer has left."""

    path: str
    """Its path or URL."""
    kind: str
    """``"temporary file"``, ``"data file"``, ``"share"``, ``"folder"``, ``"mark"``, ``"mark of
    uploads"``, ``"lock"`` or ``"claim"``."""
    nbytes: int
    """Its bytes."""
    age: float | None
    """The seconds since its last change; None if that is not known."""
    writer: str
    """The maker of a claim, and the time; empty for other kinds."""
    is_old: bool
    """True if it, and everything of its checkpoint that is listed, is older than the limit."""


@frozen
class CleanReport:
    """Report of ``clean``."""

    path: str
    """The folder."""
    leftovers: tuple[Leftover, ...]
    """The leftovers that were found, by path."""
    num_removed: int
    """The leftovers that were removed."""
    num_at_work: int
    """The files that belong to a writer that is at work; they are not listed."""

    @property
    def nbytes(self) -> int:
        """The bytes of all leftovers."""
        return sum(each.nbytes for each in self.leftovers)

    def __str__(self) -> str:
        found = count(len(self.leftovers), "leftover")
        text = f"{found} in {self.path}, {human_size(self.nbytes)}"
        return text + (f"; removed {self.num_removed:,}" if self.num_removed else "")

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object with stable keys."""
        return {"schema": SCHEMA} | asdict(self) | {"nbytes": self.nbytes}


def clean(path: Path, *, remove: bool = False, older_than: float = DAY) -> CleanReport:
    """List what killed writers have left in a folder and in the folders below it.

    Parameters
    ----------
    path : path_like
        A folder, or the URL of a prefix of a bucket.
    remove : bool, default False
        True to remove the leftovers that are old.
    older_than : float, default 86400.0
        Seconds. Leftovers stay if a file of the same checkpoint is younger.

    Returns
    -------
    CleanReport
        The leftovers, with sizes and ages.

    Raises
    ------
    ArgumentError
        If ``path`` is not a folder, or ``older_than`` is not a number of seconds.
    StorageError
        If a file system or a service refuses.

    Notes
    -----
    Files of writers at work stay: on a disk they hold a lock, and the claim of a process that is
    alive on this machine counts as one. So do files that a checkpoint names, files of other
    programs, and all data files next to an index that cannot be read. A killed ``reshard`` cannot
    continue after its files were removed, nor can shares be committed.

    Parts of unfinished uploads are not listed, since obstore cannot list them. A lifecycle rule of the
    bucket with ``AbortIncompleteMultipartUpload`` removes them; Azure does so after a week.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import shardvar as sv
    >>> folder = tempfile.mkdtemp()
    >>> report = sv.save(os.path.join(folder, "model"), {"step": np.array(5)})
    >>> data = report.path + ".svdata-0123456789abcdef-00000-of-00001"
    >>> with open(data, "wb") as file:
    ...     _ = file.write(bytes(8))
    >>> [each.kind for each in sv.clean(folder).leftovers]
    ['data file']
    >>> sv.clean(folder, remove=True, older_than=0).num_removed, os.path.exists(data)
    (1, False)
    >>> sv.verify(report.path).ok
    True
    """
    if not isinstance(older_than, int | float) or not 0 <= older_than < math.inf:  # type: ignore[redundant-expr]
        cause = f"older_than={older_than!r} is not a number of seconds."
        raise ArgumentError(cause, "Give seconds, such as 86400.")
    place = look_at(path)
    # A prefix of a bucket need not be a folder yet, or any more.
    root = place.storage.folder(place.name) if place.name else place.storage
    if root.local_path is not None and not os.path.isdir(root.local_path):
        raise ArgumentError(f"{place.path} is not a folder.", "Give the folder of the checkpoints.")
    if remove:
        root.check_writable(".clean")
    limit, found, num_at_work, num_removed = time.time() - older_than, list[Leftover](), 0, 0
    for folder in _folders(root, limit):
        groups, busy = folder.look()
        num_at_work, before = num_at_work + busy, num_removed
        for prefix, names in groups.items():
            times = [folder.changed(name, each) for name, each in names.items()]
            is_old = not older_than or all(at is not None and at <= limit for at in times)
            found += [
                Leftover(
                    os.path.join(folder.storage.path, name),
                    each.kind,
                    each.status.nbytes,
                    None if at is None else max(limit + older_than - at, 0.0),
                    each.writer,
                    is_old,
                )
                for (name, each), at in zip(names.items(), times, strict=True)
            ]
            num_removed += folder.remove(prefix, names) if remove and is_old else 0
        with suppress(OSError):  # of a folder with other files, and of the root
            if num_removed > before and folder.path and folder.storage.local_path:
                os.rmdir(folder.storage.local_path)
    found.sort(key=lambda each: each.path)
    return CleanReport(place.path, tuple(found), num_removed, num_at_work)


@frozen
class _LeftFile:
    kind: str
    status: FileStatus
    writer: str = ""


_Groups = dict[str, dict[str, _LeftFile]]
"""Leftovers by the prefix of their checkpoint, and by name."""


@entity
class _Folder:
    path: str  # from the root, with "/" at its end
    storage: Storage
    files: Mapping[str, FileStatus]  # the files in the folder
    folders: Mapping[str, FileStatus]  # Folders of writers in it, with size and age of all of it
    limit: float  # the time before which a file is old

    def changed(self, name: str, found: _LeftFile) -> float | None:
        """Return the time of the last change; of a data file that was copied, of the copy."""
        if found.kind == "data file" and self.storage.local_path:
            with suppress(OSError):
                return os.lstat(os.path.join(self.storage.local_path, name)).st_ctime
        return found.status.changed

    def look(self, *, is_locked: bool = False) -> tuple[_Groups, int]:
        """Return the leftovers of the folder, and the number of files of writers at work."""
        groups: _Groups = {}
        busy = set[str]()
        for name, status in self.files.items():
            kind, prefix = kind_of_leftover(name)
            writer, final = "", final_name(name)
            if not {prefix, final}.isdisjoint(_FOLDERS.values()):
                prefix = ""
            if kind == "lock":
                if status.nbytes:
                    continue
                if not is_locked and _is_locked(self.storage, name):
                    busy.add(prefix)
            elif kind in ("claim", "mark of uploads"):
                about = _parsed(self.storage, name)
                if not (writer := whose(about)):
                    continue
                if is_at_work(about):
                    busy.add(prefix)
            elif kind == "temporary file" and not (
                name.endswith(ASIDE)
                or final in _FOLDERS.values()
                or format_of_name(final)
                or _OWN.fullmatch(final)
            ):
                continue
            if kind:
                groups.setdefault(prefix, {})[name] = _LeftFile(kind, status, writer)
        for name, status in self.folders.items():
            groups.setdefault(f"{name}/", {})[name] = _LeftFile("folder", status)
        self._add_finals(groups)
        self._drop_needed(groups)
        at_work = [
            prefix
            for prefix in groups
            if any(not each or prefix == each or prefix.startswith(f"{each}.") for each in busy)
        ]
        num_busy = sum(len(groups.pop(prefix)) for prefix in at_work)
        return {prefix: names for prefix, names in groups.items() if names}, num_busy

    def _add_finals(self, groups: _Groups) -> None:
        """Add files under final names that a commit or a removal had begun to put in place."""
        for form, index in _FOLDERS.items():
            is_begun = any(final_name(name) == index for name in groups.get("", ()))
            if form in ("zarr", "orbax") and is_begun and index not in self.files:
                below = self.storage.tree()
                for name in format_named(form).owned(self.storage) & below.keys():
                    groups[""].setdefault(name, _LeftFile("data file", below[name]))
        for prefix, names in groups.items():
            claim = names.get(claim_name(prefix))
            for form, mark, ending in (
                ("tensorflow", r"\.data", ".index"),
                ("safetensors", "", ".safetensors.index.json"),
            ):
                part = re.compile(
                    rf"{re.escape(prefix)}{mark}-\d{{5,}}-of-\d{{5,}}(\.safetensors)?"
                )
                facts = self.files.get(prefix + ending)
                is_begun = any(final_name(name) == prefix + ending for name in names)
                # A set may be whole without its index.
                is_set = not facts and any(each.members for each in found_at(self.storage, prefix))
                if not prefix or is_set or not (facts or claim or is_begun):
                    continue
                kept = self._named(form, prefix if mark else prefix + ending) if facts else ()
                # In a bucket the claim tells which writer's they are: its holder's, or, once that has
                # put its index in place, of the one before.
                since = claim.status.changed or 0.0 if claim and not is_begun else 0.0
                if facts and (facts.changed or 0.0) >= since:
                    since = 0.0
                if kept is not None and (claim or is_begun or self.storage.local_path):
                    names |= {
                        name: _LeftFile("data file", status)
                        for name, status in self.files.items()
                        if part.fullmatch(name)
                        and name not in kept
                        and (status.changed or 0.0) >= since
                    }

    def _drop_needed(self, groups: _Groups) -> None:
        """Drop data files that an index names, or a save that may be at work."""
        every = {name: each for names in groups.values() for name, each in names.items()}
        kept = set[str]()
        if any(".svdata-" in name for name, each in every.items() if each.kind == "data file"):
            needs = find_needs(self.storage, "", of_saves=False)
            kept.update(*needs.files.values())
            for name, each in every.items():
                if needs.unread and (".svdata-" in name or ".svgone-" in name):
                    kept.add(name)
                elif ".svneeds-" in name and (each.status.changed or 0.0) > self.limit:
                    kept.update(freed_of(self.storage, name))
        if _FOLDERS["torch"] in self.files and any(name.endswith(".distcp") for name in every):
            named = self._named("torch", _FOLDERS["torch"])
            kept |= {each for each in every if each.endswith(".distcp")} if named is None else named
        for group in groups.values():
            for name in kept.intersection(group):
                del group[name]

    def _named(self, form: str, name: str) -> set[str] | None:
        """Return the data files that an index names; None if it cannot be read."""
        try:
            with closing(format_named(form).open(self.storage, name)) as source:
                return {*source.index.files}
        except ShardvarError:
            return None

    def remove(self, prefix: str, names: Mapping[str, _LeftFile]) -> int:
        """Remove the leftovers of a prefix, unless a writer has begun since; return their number."""
        ordered = sorted(
            names,
            key=lambda name: (_ORDER.index(names[name].kind), name.endswith(("json", ".zarray"))),
        )
        storage = self.storage
        if storage.local_path is None:
            claims = [name for name in names if names[name].kind == "claim"]
            if any(storage.stamp(name) != names[name].status.stamp for name in claims):
                return 0
            client: Any = storage.client  # type: ignore[attr-defined]
            for is_last in (False, True):
                keys = [
                    join_key(storage.key, name)  # type: ignore[attr-defined]
                    for name in ordered
                    if (names[name].kind in _ORDER[4:]) == is_last
                ]
                if keys:
                    uninterrupted(partial(client.delete_all, keys))
            return len(ordered)
        if prefix.endswith("/"):
            remove_beside(os.path.join(storage.local_path, ordered[0]), _owned)
            return 1
        locks = {name[1:-5] for name in names if names[name].kind == "lock"}
        locks |= {prefix} if prefix else {*_FOLDERS.values()}
        with ExitStack() as held:
            try:
                for lock in sorted(locks):
                    held.enter_context(storage.lock(lock))
            except LockHeld:
                return 0
            each = {name: status for name in storage.names() if (status := storage.status(name))}
            now = replace(self, files=each).look(is_locked=True)[0].get(prefix, {})
            ordered = [name for name in ordered if name in now or names[name].kind == "lock"]
            for name in ordered:
                if names[name].kind != "lock":  # it goes with this lock
                    storage.remove(name)
        return len(ordered)


def _folders(root: Storage, limit: float) -> Iterator[_Folder]:
    """Yield the folders below a root, itself first."""
    tree = root.tree()
    of_writers: dict[str, dict[str, FileStatus]] = {}
    if root.local_path is not None:
        for above, name, folder in _writers_folders(root, ""):
            inside = folder.tree()
            files = [*inside.values()] or [_status(folder)]
            times = [each.changed for each in files if each.changed is not None]
            facts = FileStatus(sum(each.nbytes for each in inside.values()), max(times), "")
            of_writers.setdefault(above, {})[name] = facts
    hidden = tuple(f"{above}{name}/" for above, names in of_writers.items() for name in names)
    files_of: dict[str, dict[str, FileStatus]] = {"": {}}
    for path, status in tree.items():
        above, slash, name = path.rpartition("/")
        if not path.startswith(hidden):
            files_of.setdefault(above + slash, {})[name] = status
    for path in {**files_of, **of_writers}:
        storage = root
        for name in filter(None, path.split("/")):
            storage = storage.folder(name)
        yield _Folder(path, storage, files_of.get(path, {}), of_writers.get(path, {}), limit)


def _writers_folders(storage: Storage, path: str) -> Iterator[tuple[str, str, Storage]]:
    """Yield the folders that killed writers have left on a disk: where, name and storage."""
    folders = storage.folders()
    for name in folders:
        folder, match = storage.folder(name), BESIDE.fullmatch(name)
        if match:
            is_new = match["kind"] == "new"
            place = storage.folder(match["name"])
            is_busy = any(_is_locked(place, f".{index}.lock") for index in _FOLDERS.values())
            # Its only copy may be an old one, and files of the user's may be only in it.
            is_left = is_new or (match["name"] in folders and _owned(folder.path))
            if is_left and not is_busy:
                yield path, name, folder
        elif _STAGED.fullmatch(name):
            is_ours = all(re.fullmatch(r"[0-9a-f]{16}", each) for each in folder.tree())
            if is_ours and folder.path not in AT_WORK:
                yield path, name, folder
        else:
            yield from _writers_folders(folder, f"{path}{name}/")


def _owned(folder: str) -> set[str]:
    """Return the files in a folder that belong to its checkpoint, as any format has it."""
    storage = look_at(os.path.join(folder, "")).storage
    return {name for form in _FOLDERS for name in format_named(form).owned(storage)}


def _status(folder: Storage) -> FileStatus:
    return FileStatus(0, os.lstat(folder.path).st_mtime, "")


def _is_locked(storage: Storage, name: str) -> bool:
    path = os.path.join(storage.path, name)
    try:
        if storage.local_path is not None:
            check_unlocked(path, path)
    except LockHeld:
        return True
    return False


def _parsed(storage: Storage, name: str) -> Any:
    """Return the JSON of a small file; None if it has none."""
    try:
        with closing(storage.open(name)) as file:
            return parse_json(file.read(0, min(file.size, _MOST_NBYTES)), 1)
    except (CheckpointError, ValueError):
        return None
