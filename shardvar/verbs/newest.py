"""The newest of the checkpoints that a folder holds: a file there names it, or it has the last
step.

    checkpoint                           TensorFlow's state file, which ``sv.Checkpoint`` keeps too
    latest_checkpointed_iteration.txt    Megatron's: the number of a step
    latest, latest_universal             DeepSpeed's: the name of a step's folder
    last_checkpoint                      Detectron2's and MMEngine's: the name or path of a file
    a link latest or last                to a step's folder
    step-1000, checkpoint-500, 20, ...   names that differ only in their numbers, if something shows
                                         that these count steps (``steps``)

The file is believed. A checkpoint that was not finished is passed over, with a note: one without
its index or a data file, and the folder of a step that has no checkpoint at all. A step may have
several checkpoints, its items, such as the folders ``state`` and ``extra`` of Orbax: then the item
is the question.

The state file of a directory of numbered checkpoints: its content, and reading and replacing it.

It is TensorFlow's file ``checkpoint``, a ``CheckpointState`` message in protobuf's text form, so
that either library finds the checkpoints of the other, in any format:

    model_checkpoint_path: "ckpt-12"                     the newest; relative to the directory
    all_model_checkpoint_paths: "ckpt-11"                the kept ones, oldest first
    all_model_checkpoint_paths: "ckpt-12"
    all_model_checkpoint_timestamps: 1700000000.5        when each was saved, in seconds since the
                                                         Epoch; optional
    all_model_checkpoint_timestamps: 1700000060.5
    last_preserved_timestamp: 1699999000.0               when the last one was saved that is kept
                                                         for good

The file may come from an untrusted program. It is read with bounds, and no name in it leads out of
its directory.

Training must not start from the beginning over checkpoints that exist. So a state file that names
no newest checkpoint (it is empty, cut short, or holds something else) is an error, and never the
beginning of a series.

The path of a folder means the checkpoints in it. It does not mean files of torch.save, Keras, GGUF
and NumPy next to them, nor checkpoints in folders below (``locate``), and links out of the folder
are not followed. People must know of checkpoints that they do not see.
"""

import math
import os
import re
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import ExitStack, closing
from functools import reduce

from shardvar.errors import (
    AmbiguousPath,
    ArgumentError,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    LockHeld,
    MalformedCheckpoint,
    MissingFile,
    ShardvarError,
    log_warning,
    prefix_errors,
)
from shardvar.formats.files import put_in_place, read_first_bytes
from shardvar.formats.parts import PartsFormat
from shardvar.formats.table import format_of_name, is_companion, names_of_target
from shardvar.formats.unfinished import ASIDE
from shardvar.limits import MAX_STATE_NBYTES
from shardvar.pictures.words import count, named, natural_key
from shardvar.records import frozen, replace
from shardvar.storage.posix import outer_links
from shardvar.storage.protocol import Storage
from shardvar.verbs.arguments import named_arguments
from shardvar.verbs.locate import (
    Location,
    Path,
    SplitPath,
    all_in,
    below,
    find_below,
    found_at,
    kind_of_folder,
    look_at,
    only_one,
    parts,
    search,
    several,
)
from shardvar.verbs.steps import (
    differing,
    first_difference,
    in_series,
    is_step,
    may_be_parts,
    pattern_of,
)
from shardvar.wire.damage import INTERRUPTED, FileKind

STATE_FILE = "checkpoint"
"""The name of the state file."""
NUMBER = re.compile("0|[1-9][0-9]*")
"""A number as it is written behind the name of a series."""

_NAME_NBYTES = 255
"""The longest file name that common file systems allow."""
_LOCK_SECONDS = 5.0
"""Time to wait for another writer of the state file, which has only a few lines to write."""
_ATTEMPT_SECONDS = 0.01
"""Time between two attempts to lock the state file."""
_LISTED = 20
"""The checkpoints that an error lists, the newest ones; a directory may have thousands."""
# One field or the end. Each part can end in one place only, so a hostile file costs linear time. No
# group is possessive: Python 3.11.2 misreads that. A text has at most 65,536 escapes, which bounds
# what a match remembers.
_COMMENT = re.compile(r"\s*#[^\n]*\n", re.ASCII)
_FIELD = re.compile(
    r"""\s* (?: (?P<name>\w+) \s* : \s*
        (?: (?P<number>[-+.\w]+)
          | "(?P<double>[^"\\\n]* (?: \\.[^"\\\n]* ){0,65536})"
          | '(?P<single>[^'\\\n]* (?: \\.[^'\\\n]* ){0,65536})' )
      | \Z )""",
    re.VERBOSE | re.ASCII,
)
_ESCAPE = r"(?s)\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|(.))"
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"} | {
    each: each for each in "\\'\"?"
}
_PATHS = ("model_checkpoint_path", "all_model_checkpoint_paths")
_TIMES = ("all_model_checkpoint_timestamps", "last_preserved_timestamp")


@frozen
class SeriesState:
    """The content of a state file."""

    newest: str
    """The newest checkpoint; a path relative to the directory, or an absolute one."""
    kept: tuple[str, ...] = ()
    """The checkpoints that are kept, oldest first."""
    times: tuple[float, ...] = ()
    """The time when each was saved, in seconds since the Epoch; empty if the file has none."""
    preserved: float = 0.0
    """The time when the last checkpoint was saved that is kept for good."""

    def encode(self) -> bytes:
        paths = [(_PATHS[0], self.newest), *((_PATHS[1], path) for path in self.kept)]
        times = [
            *((_TIMES[0], time) for time in self.times),
            *[(_TIMES[1], self.preserved)][: bool(self.preserved)],
        ]
        lines = [f'{name}: "{_escape(path)}"\n' for name, path in paths] + [
            f"{name}: {time!r}\n" for name, time in times
        ]
        return "".join(lines).encode("utf-8")

    @classmethod
    def decode(cls, content: bytes) -> "SeriesState":
        """``MalformedCheckpoint`` for any other text."""
        found: dict[str, list[str]] = {name: [] for name in (*_PATHS, *_TIMES)}
        text, position = content.decode("utf-8", "surrogateescape") + "\n", 0  # may end a comment
        while (match := _next_field(text, position)) and match["name"] is not None:
            name, number, position = match["name"], match["number"], match.end()
            if name not in (_PATHS if number is None else _TIMES):
                raise _malformed(f"it has a field {name!r} of another kind")
            found[name].append(number or _unescape(match["double"] or match["single"] or ""))
        if match is None:
            raise _malformed(f"no field begins at character {position}")
        newest, kept, times, preserved = (found[name] for name in (*_PATHS, *_TIMES))
        # TensorFlow's ``Checkpoint.save`` writes no times, its manager one for each checkpoint.
        # With any other number it would be unclear which time belongs to which checkpoint.
        if len(times) not in (0, len(kept)):
            raise _malformed(f"it has {len(kept)} checkpoints and {len(times)} times")
        if len(newest) > 1 or len(preserved) > 1:
            raise _malformed("it has a field twice that may come once")
        last = _seconds(preserved[0]) if preserved else 0.0
        return cls("".join(newest), tuple(kept), tuple(map(_seconds, times)), last)


def read_state(storage: Storage, name: str = STATE_FILE) -> SeriesState | None:
    """The error of an undecodable file names the checkpoints: a new start might abandon them."""
    try:
        state = read_state_file(storage, name)
        if state is not None and not state.newest:
            with prefix_errors(os.path.join(storage.path, name)):
                raise _malformed("it names no newest checkpoint")
    except MalformedCheckpoint as error:
        there = checkpoints_in(storage)
        cause = error.cause.removesuffix(".")
        raise MalformedCheckpoint(f"{cause}; {listed(there)}.", remedy_of(there)) from error
    return state


def read_state_file(storage: Storage, name: str) -> SeriesState | None:
    if name not in storage.names():
        return None
    try:
        file = storage.open(name)
    except MissingFile:  # another process has removed it since
        return None
    with closing(file), prefix_errors(file.name):
        if file.size > MAX_STATE_NBYTES:
            raise _malformed(f"it has {file.size} bytes")
        return SeriesState.decode(file.read(0, file.size))


def checkpoints_in(storage: Storage) -> list[str]:
    found = found_at(storage, "")
    # A SavedModel's own checkpoint is in a directory below, and is not one of the series.
    return sorted(
        {each.stem for each in found if each.storage.path == storage.path}, key=natural_key
    )


def listed(names: Sequence[str]) -> str:
    if not names:
        return "no checkpoint lies next to it"
    more = f"{len(names) - _LISTED} more and " if len(names) > _LISTED else ""
    return f"next to it lie {more}{', '.join(map(_escape, names[-_LISTED:]))}"


def remedy_of(names: Sequence[str]) -> str:
    if not names:
        return "Remove it to start a new series."
    return (
        f'Write the line model_checkpoint_path: "{_escape(names[-1])}" into it, with the name of '
        "the checkpoint to continue from; to start a new series, choose another directory."
    )


def write_state(storage: Storage, state: SeriesState, name: str = STATE_FILE) -> None:
    # The clock is monotonic, because the wall clock may be set back while this waits.
    deadline = time.monotonic() + _LOCK_SECONDS
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(storage.lock(name))
                break
            except LockHeld:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_ATTEMPT_SECONDS)
        put_in_place(storage, [], (f"{name}{ASIDE}", name), state.encode(), is_checkpoint=False)


def resolve(directory: str, stated: str) -> str:
    """``InvalidCheckpoint`` unless the path leads, links included, into the directory."""
    path = os.path.join(directory, stated)
    # The last component is the checkpoint's name, a prefix of file names, and so no link itself.
    head, name = os.path.split(path)
    is_name = "\0" not in path and name not in ("", os.curdir, os.pardir)
    home = os.path.realpath(directory)
    if (
        not is_name
        or len(os.fsencode(name)) > _NAME_NBYTES
        or os.path.commonpath([home, os.path.realpath(head)]) != home
    ):
        raise InvalidCheckpoint(
            f"{os.path.join(directory, STATE_FILE)} names {stated!r}, which is not in that "
            "directory.",
            "Give the path of the checkpoint itself, if you trust it; after a move, write its "
            "bare name in that file.",
        )
    return path


def _escape(path: str) -> str:
    """Return a path as it is quoted: unprintable characters and invalid UTF-8 in octal."""
    return "".join(
        f"\\{each}"
        if each in '\\"'
        else each
        if each.isprintable()
        else "".join(f"\\{octet:03o}" for octet in each.encode("utf-8", "surrogateescape"))
        for each in path
    )


def _next_field(text: str, position: int) -> re.Match[str] | None:
    while comment := _COMMENT.match(text, position):
        position = comment.end()
    return _FIELD.match(text, position)


def _unescape(text: str) -> str:
    # An escape stands for one byte, and several bytes may make one character: "\303\251" is "é". So
    # escapes become surrogates first, and then the whole text is decoded as UTF-8; bytes that are
    # not UTF-8 stay surrogates.
    def octets(match: re.Match[str]) -> str:
        octal, hexadecimal, other = match.groups()
        code = (
            int(octal, 8)
            if octal
            else int(hexadecimal, 16)
            if hexadecimal
            else ord(_ESCAPED.get(other, "\u0100"))
        )
        if code > 255:
            raise _malformed(f"it has an escape {match[0]}")
        return chr(code) if code < 128 else bytes([code]).decode("utf-8", "surrogateescape")

    return (
        re.sub(_ESCAPE, octets, text)
        .encode("utf-8", "surrogateescape")
        .decode("utf-8", "surrogateescape")
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise _malformed(f"it has {text!r} for a number")
    return seconds


def _malformed(cause: str) -> MalformedCheckpoint:
    return MalformedCheckpoint(
        f"Invalid state file of a directory of checkpoints: {cause}.",
        "Give the path of a checkpoint itself.",
    )


_MEGATRON = "latest_checkpointed_iteration.txt"
_POINTERS = ("latest", "latest_universal", "last_checkpoint")
_LINKS = ("latest", "last")
_POINTER_NBYTES = 256
_EMPTY = FileKind("a step without a checkpoint", INTERRUPTED, True)


@frozen
class Candidate:
    location: Location
    step: str
    """The name that tells it from the others, or that its step has."""
    item: str
    """The path of the checkpoint in its step; empty if the step is the checkpoint."""
    saved: float | None
    """The time of its last change, in seconds since the Epoch: its index's, or its only file's."""
    is_finished: bool
    """False after an interrupted save: its index is missing, or its folder has a temporary name."""


@frozen
class Newest:
    newest: Sequence[Candidate] = ()
    """The newest; several if they are items of one step, none if it is unknown."""
    reason: str = ""
    """The file or link that names it, and its step: ``latest names step-9``."""
    doubt: str = ""
    """A wrong answer of a file or a link: ``latest names step-12, which is not there``."""
    passed: Sequence[Candidate] = ()

    @property
    def notes(self) -> list[str]:
        steps = [*dict.fromkeys(each.step for each in self.passed)]
        unfinished = f"passed over {count(len(steps), 'unfinished checkpoint')}"
        return [f"{unfinished}: {', '.join(steps[-3:])}"] * bool(steps) + [self.doubt] * bool(
            self.doubt
        )


@named_arguments
def newest_checkpoint(path: Path, *, item: str | None = None) -> str:
    """Return the path of the newest checkpoint in a folder.

    The state file ``checkpoint`` decides, or Megatron's or DeepSpeed's; without one, the numbers of
    steps in the names do, such as ``step-1000``. Names that have only numbers count if the
    checkpoints hold the same tensors. Checkpoints that were not finished are passed over, with a
    warning in the log. A checkpoint of the folder itself, such as the model that a trainer saves at
    the end, hides no folders of steps next to it.

    Parameters
    ----------
    path : path_like
        The folder, or any path that means one checkpoint.
    item : str, optional
        The checkpoint to take of a step that has several, such as ``"state"``.

    Raises
    ------
    AmbiguousPath
        If nothing tells which checkpoint is the newest, or its step has several.
    ArgumentError
        If the newest step has no such item.
    CheckpointNotFound
        If there is no checkpoint.

    See Also
    --------
    latest_checkpoint : Asks only the state file.

    Examples
    --------
    >>> import shardvar as sv, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> for step in (9, 10):
    ...     _ = sv.save(f"{folder}/step-{step}", {"w": [1.0]})
    >>> os.path.basename(sv.newest_checkpoint(folder))
    'step-10'
    """
    found, choice = find_newest(path, item)
    for each in choice.notes:
        log_warning(f"{os.fspath(path)}: {each}")
    return found.path


def find_newest(path: Path, item: str | None) -> tuple[Location, Newest]:
    """Return the newest checkpoint as ``newest_checkpoint`` does, and why it was chosen."""
    place = look_at(path)
    found = _steps_of(place)
    choice = newest_among(place.storage, found)
    if item is not None:
        newest = choice.newest
        wanted = [each for each in newest if item in (*each.item.split("/"), each.location.stem)]
        if newest and not wanted:
            there = named([each.item for each in newest]) or "none"
            cause = f"The newest step of {os.fspath(path)}, {newest[0].step}, has no item {item!r}."
            raise ArgumentError(cause, f"Its items: {there}.")
        choice = replace(choice, newest=wanted)
    elif len(found) < 2:
        only = only_one(place, [each.location for each in found])
        if only.members:
            cause = f"{only.about_members}. None of them is a step."
            raise AmbiguousPath(cause, "Open the folder itself.")
        if choice.passed or isinstance(only.format, PartsFormat):
            only.open().close()  # raises its error
        return only, choice
    if len(choice.newest) == 1:
        return choice.newest[0].location, choice
    if choice.newest:
        listed = ", ".join(
            f"{each.location.path} ({each.location.format.name})" for each in choice.newest
        )
        first = choice.newest[0]
        cause = f"The newest step of {os.fspath(path)} is {first.step}, and it has several items: "
        how = f"item={first.item!r} (--latest --item {first.item}), or give its path."
        raise AmbiguousPath(f"{cause}{listed}.", f"Choose one, such as {how}")
    cause = several(place, [each.location for each in found]).cause
    reason = choice.doubt or "Nothing tells which one is the newest"
    if len(choice.passed) == len(found):
        reason = "None of them is finished"
    elif not choice.doubt and may_be_parts([each.step for each in found]):
        reason += ", and they may be the files of the ranks of one save"
    raise AmbiguousPath(cause, f"{reason[:1].upper()}{reason[1:]}: give the path of one of them.")


def candidates_of(place: SplitPath, found: Sequence[Location]) -> list[Candidate]:
    """Return the checkpoints of a path, and folders of steps without one, in natural order."""
    if not place.name:
        return _candidates(place.storage, found)
    return [_candidate(each, "") for each in found]


def _steps_of(place: SplitPath) -> list[Candidate]:
    """The checkpoints that a path means, or the steps next to a single one."""
    found, storage = candidates_of(place, find_below(place)), place.storage
    # The folders in a checkpoint that is a folder itself are its arrays.
    own = found[0].location if len(found) == 1 else None
    if place.name or own is None or own.storage != storage or own.is_folder:
        return found
    nearby = _candidates(storage, below(storage))
    steps = [each for each in nearby if each.step != os.path.basename(storage.path)]
    return nearby if _series_of(steps) else found


def _candidates(storage: Storage, found: Sequence[Location]) -> list[Candidate]:
    paths = [parts(storage.path, each) for each in found]
    # The paths first differ in the names of steps, or it is one before that that names a step, if
    # several items of one step are there.
    depth, candidates = first_difference(paths) if paths else 0, list[Candidate]()
    series = in_series([path[depth] for path in paths], found)
    if not series:
        depth = next((at for at in reversed(range(depth)) if is_step(paths[0][at])), depth)
        steps = {path[depth] for path in paths}
        series = [*steps] if len(steps) == 1 and all(map(is_step, steps)) else []
    for each, path in zip([*found], paths, strict=True):
        step, item = path[depth], "/".join(path[depth + 1 :])
        candidates.append(_candidate(each, step, item))
    own = os.path.basename(storage.path)
    if len(found) > 1 and not series and is_step(own):
        # The folder is a step, and the checkpoints in it are its items.
        candidates = [
            replace(each, step=own, item="/".join(path))
            for each, path in zip(candidates, paths, strict=True)
        ]
    elif series:
        # The folders next to the steps that are named like one, and have no checkpoint.
        steps, pattern = {each.step for each in candidates}, pattern_of(series[0])
        folder = reduce(lambda place, step: place.folder(step), paths[0][:depth], storage)
        form = PartsFormat(_EMPTY)
        candidates += [
            Candidate(Location(form, folder.folder(name), form.name), name, "", None, False)
            for name in folder.folders()
            if name not in steps and (pattern_of(name) == pattern or _is_temporary(name))
        ]
    return sorted(candidates, key=lambda each: natural_key(each.location.path))


def newest_among(storage: Storage, found: Sequence[Candidate]) -> Newest:
    """Return which of the checkpoints of a directory is the newest, as far as it is known."""
    gone = {each.step for each in found if not each.is_finished}
    while True:
        finished = [each for each in found if each.step not in gone]
        stated, statement = _stated(storage, finished)
        steps = {each.step for each in finished}
        if not stated and len(finished) > len(steps) == 1 and all(map(is_step, steps)):
            newest = finished
        else:
            last = [] if stated else _series_of(finished)[-1:]
            newest = stated or [each for each in finished if each.step in last]
        broken = {each.step for each in newest if _lacks_files(each.location)}
        if not broken:
            break
        gone |= broken
    reason, doubt = (
        (statement, "")
        if stated or not statement
        else ("", f"{statement}, which is not there or not whole")
    )
    if newest and may_be_parts(differing([each.item.split("/") for each in newest])):
        newest = []  # an item can be chosen, and not a part of a save
    return Newest(newest, reason, doubt, [each for each in found if each.step in gone])


def _series_of(found: Sequence[Candidate]) -> list[str]:
    return in_series([each.step for each in found], [each.location for each in found])


def _stated(storage: Storage, found: Sequence[Candidate]) -> tuple[list[Candidate], str]:
    names = storage.names()
    state = read_state_file(storage, STATE_FILE) if STATE_FILE in names else None
    if state is not None:
        newest = os.path.basename(state.newest)
        chosen = [each for each in found if newest in (each.step, each.location.stem)]
        return chosen, f"{STATE_FILE} names {newest}"
    if _MEGATRON in names:
        text = _pointer(storage, _MEGATRON)
        chosen = [
            each
            for each in found
            if each.step == text or _last_number(each.step) == _last_number(text) is not None
        ]
        return chosen, f"{_MEGATRON} names {text}"
    pointers = {name: _pointer(storage, name) for name in _POINTERS if name in names}
    if storage.local_path is not None:
        links = {name: os.path.join(storage.local_path, name) for name in _LINKS}
        pointers |= {
            name: os.readlink(link) for name, link in links.items() if os.path.islink(link)
        }
    for name, text in pointers.items():
        newest = os.path.basename(text.rstrip("/"))
        return [each for each in found if each.step == newest], f"{name} names {newest}"
    return [], ""


def _pointer(storage: Storage, name: str) -> str:
    return read_first_bytes(storage, name, _POINTER_NBYTES).decode("utf-8", "replace").strip()


def _last_number(text: str) -> int | None:
    numbers = re.findall("[0-9]{1,18}", text)
    return int(numbers[-1]) if numbers else None


def _candidate(found: Location, step: str, item: str = "") -> Candidate:
    form = found.format
    names = names_of_target(found.name, form.name)
    changed = (at.changed for name in names if (at := found.storage.status(name)) is not None)
    is_lost = _is_temporary(step) or (isinstance(form, PartsFormat) and form.kind.is_lost)
    has_index = format_of_name(found.name) != form.name or found.name in found.storage.names()
    return Candidate(
        found, step or found.name, item, next(changed, None), has_index and not is_lost
    )


def _is_temporary(step: str) -> bool:
    kind = kind_of_folder([step])
    return kind is not None and kind.is_lost


def _lacks_files(found: Location) -> bool:
    """Return True if a checkpoint on a disk lacks its index, or a file that its index names."""
    if found.storage.local_path is None:
        return False
    try:
        with closing(found.open()) as source:
            return bool(found.lost_files(source))
    except IncompleteCheckpoint:
        return True
    except ShardvarError:  # the command itself reports it
        return False


_MAX_FOLDERS = 10_000
"""The folders of a folder that are searched."""
_SUMS = (".sha256", ".md5", "checksums.txt", "SHA256SUMS", "checklist.chk")
"""The endings of files whose lines are compared (``compare.manifest``)."""


@frozen
class FolderContents:
    place: SplitPath
    meant: Sequence[Location]
    """The checkpoints that its path means."""
    others: Sequence[Location] = ()
    """The other checkpoints in it, such as the state of a trainer."""
    folders: Sequence[Storage] = ()
    """The folders that were searched."""
    unsearched: Sequence[str] = ()
    """The names of folders that were not, since there are too many, or too deep ones."""
    links: Sequence[str] = ()
    """The names of links that lead out of the folder."""

    @property
    def all(self) -> list[Location]:
        return [*self.meant, *self.others]

    def unread(self, files: Collection[str]) -> list[str]:
        """The paths of files that belong to no checkpoint; ``files`` belong to one."""
        root, whole = self.place.storage.path, {each.storage for each in self.all if each.is_folder}
        paths = [
            os.path.join(each.path, name)
            for each in self.folders
            if each not in whole
            for name in each.names()
            if not name.startswith((".", "_")) and not name.endswith(_SUMS)
            if name not in (STATE_FILE, _MEGATRON, *_POINTERS, "commit_success.txt")
        ]
        return [os.path.relpath(path, root) for path in paths if path not in files] + [
            f"{name}/" for name in self.unsearched
        ]


def contents_of(
    place: SplitPath, meant: Sequence[Location], most: int = _MAX_FOLDERS
) -> FolderContents:
    """All checkpoints and files of a folder, whichever it means; a path of anything else means only itself."""
    storage = place.storage
    if place.name or not meant:
        return FolderContents(place, meant)
    searched, found, unsearched = [storage], all_in(storage), list[str]()
    if _goes_on(storage, meant):
        try:
            searched, below = search(storage, most, all_in, _goes_on)
            found += sorted(below, key=lambda each: natural_key(each.path))
        except AmbiguousPath:
            unsearched = [*storage.folders()]
    links = [] if storage.local_path is None else outer_links(storage.local_path)
    known = {(each.path, each.name) for each in meant}
    others = {(each.path, each.name): each for each in found}
    rest = [each for at, each in others.items() if at not in known]
    return FolderContents(place, meant, rest, searched, unsearched, links)


def _goes_on(folder: Storage, found: Sequence[Location]) -> bool:
    """The folders in a checkpoint that is a folder itself are its own."""
    return not any(each.is_folder and each.storage == folder for each in found)


def candidates_next_to(contents: FolderContents) -> list[Candidate]:
    """Return the other checkpoints of a folder, without the state of a run next to a single model."""
    folders = Counter(each.storage.path for each in contents.all if not is_companion(each.name))
    return [
        _candidate(each, "")
        for each in contents.others
        if not (is_companion(each.name) and folders[each.storage.path] == 1)
    ]
