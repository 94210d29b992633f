"""The newest of the checkpoints that a folder holds: the one that a file there names, else the one
of the last step.

    checkpoint                           TensorFlow's state file, which ``sv.Checkpoint`` keeps too
    latest_checkpointed_iteration.txt    Megatron's: the number of a step
    latest, latest_universal             DeepSpeed's: the name of a step's folder
    last_checkpoint                      Detectron2's and MMEngine's: the name or path of a file
    a link latest or last                to a step's folder
    step-1000, checkpoint-500, 20, ...   names that differ only in their numbers, if something says
                                         that these count steps (``steps``)

The file is believed. A checkpoint that was not finished is passed over, and said to be: one without
its index or a data file, and the folder of a step that has no checkpoint at all. A step may have
several checkpoints, its items, such as the folders ``state`` and ``extra`` of Orbax: then the item
is the question.
"""

import logging
import os
import re
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from shardvar.errors import AmbiguousPath, ArgumentError, IncompleteCheckpoint, ShardvarError
from shardvar.formats.parts import INTERRUPTED, PartsFormat
from shardvar.formats.table import format_of_name, names_of_target
from shardvar.pictures.words import count, message, named
from shardvar.storage.protocol import Storage
from shardvar.verbs.foreign import kind_of_folder
from shardvar.verbs.locate import (
    Location,
    Path,
    SplitPath,
    below,
    find_below,
    look_at,
    only_one,
    parts,
    several,
)
from shardvar.verbs.state_file import STATE_FILE, read_state_file
from shardvar.verbs.steps import (
    differing,
    first_difference,
    in_series,
    is_step,
    may_be_parts,
    natural_key,
    pattern_of,
)
from shardvar.wire.kinds import FileKind

_MEGATRON = "latest_checkpointed_iteration.txt"
_POINTERS = ("latest", "latest_universal", "last_checkpoint")
_LINKS = ("latest", "last")
_POINTER_NBYTES = 256
_EMPTY = FileKind("a step without a checkpoint", INTERRUPTED, True)
_LOG = logging.getLogger("shardvar.checkpoint")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of the checkpoints that a folder holds."""

    location: Location
    """The checkpoint."""
    step: str
    """The name that tells it from the others, or that its step has."""
    item: str
    """The path of the checkpoint in its step; empty if the step is the checkpoint."""
    saved: float | None
    """The time of its last change, in seconds since the Epoch: its index's, or its only file's."""
    is_finished: bool
    """False after an interrupted save: its index is missing, or its folder has a temporary name."""


@dataclass(frozen=True, slots=True)
class Newest:
    """The answer to the question which checkpoint is the newest."""

    newest: Sequence[Candidate] = ()
    """The newest; several if they are items of one step, none if it is unknown."""
    reason: str = ""
    """The file or link that says so, and its step: ``latest names step-9``."""
    doubt: str = ""
    """A wrong answer of a file or a link: ``latest names step-12, which is not there``."""
    passed: Sequence[Candidate] = ()
    """The checkpoints that were not finished."""

    @property
    def notes(self) -> list[str]:
        """Sentences about what is not as it should be."""
        steps = [*dict.fromkeys(each.step for each in self.passed)]
        unfinished = f"passed over {count(len(steps), 'unfinished checkpoint')}"
        return [f"{unfinished}: {', '.join(steps[-3:])}"] * bool(steps) + [self.doubt] * bool(
            self.doubt
        )


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
        _LOG.warning("%s", message(f"{os.fspath(path)}: {each}"))
    return found.path


def find_newest(path: Path, item: str | None = None) -> tuple[Location, Newest]:
    """Return the newest checkpoint as ``newest_checkpoint`` does, and why it was chosen."""
    place = look_at(path)
    found = _steps_of(place)
    choice = newest_among(place.storage, found)
    if item is not None:
        choice = replace(choice, newest=_of_item(path, choice, item))
    elif len(found) < 2:
        only = only_one(place, [each.location for each in found])
        if choice.passed or isinstance(only.format, PartsFormat):
            only.open().close()  # the error says what is wrong with it
        return only, choice
    if len(choice.newest) == 1:
        return choice.newest[0].location, choice
    if choice.newest:
        raise _items_error(path, choice.newest)
    cause = several(place, [each.location for each in found]).cause
    reason = choice.doubt or "Nothing tells which one is the newest"
    if len(choice.passed) == len(found):
        reason = "None of them is finished"
    elif not choice.doubt and may_be_parts([each.step for each in found]):
        reason += ", and they may be the files of the ranks of one save"
    raise AmbiguousPath(cause, f"{reason[:1].upper()}{reason[1:]}: give the path of one of them.")


def _of_item(path: Path, choice: Newest, item: str) -> list[Candidate]:
    """The candidates of an item of the newest step."""
    wanted = [each for each in choice.newest if item in (*each.item.split("/"), each.location.stem)]
    if choice.newest and not wanted:
        there = named([each.item for each in choice.newest]) or "none"
        cause = (
            f"The newest step of {os.fspath(path)}, {choice.newest[0].step}, has no item {item!r}."
        )
        raise ArgumentError(cause, f"Its items: {there}.")
    return wanted


def _items_error(path: Path, newest: Sequence[Candidate]) -> AmbiguousPath:
    """Return the error of a newest step that has several checkpoints."""
    listed = ", ".join(f"{each.location.path} ({each.location.format.name})" for each in newest)
    cause = (
        f"The newest step of {os.fspath(path)} is {newest[0].step}, and it has several items: "
        f"{listed}."
    )
    item = newest[0].item
    return AmbiguousPath(
        cause, f"Choose one, such as `--latest --item {item}` or item={item!r}, or give its path."
    )


def candidates_of(place: SplitPath) -> list[Candidate]:
    """Return the checkpoints that a path may mean, in natural order, and the folders of steps that
    have none."""
    found = find_below(place)
    return _candidates(place.storage, found) if not place.name else _of_one_name(found)


def _steps_of(place: SplitPath) -> list[Candidate]:
    """Return the checkpoints among which the newest is: the ones that a path may mean, or the steps
    next to a single one."""
    found, storage = candidates_of(place), place.storage
    # The folders in a checkpoint that is a folder itself are its arrays.
    own = found[0].location if len(found) == 1 else None
    if place.name or own is None or own.storage != storage or own.is_folder:
        return found
    nearby = _candidates(storage, below(storage))
    steps = [each for each in nearby if each.step != os.path.basename(storage.path)]
    return nearby if _series_of(steps) else found


def _of_one_name(found: Sequence[Location]) -> list[Candidate]:
    """The candidates of a path that is not a folder's."""
    return [Candidate(each, each.name, "", _saved(each), _is_finished(each, "")) for each in found]


def _candidates(storage: Storage, found: Sequence[Location]) -> list[Candidate]:
    """The checkpoints below a folder, with their steps and items."""
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
        candidates.append(Candidate(each, step, item, _saved(each), _is_finished(each, step)))
    own = os.path.basename(storage.path)
    if len(found) > 1 and not series and is_step(own):
        # The folder is a step, and the checkpoints in it are its items.
        candidates = [
            replace(each, step=own, item="/".join(path))
            for each, path in zip(candidates, paths, strict=True)
        ]
    elif series:
        known = {each.step for each in candidates}
        candidates += _empty_steps(storage, paths[0][:depth], series[0], known)
    return sorted(candidates, key=lambda each: natural_key(each.location.path))


def _empty_steps(
    storage: Storage, folders: Sequence[str], step: str, known: Collection[str]
) -> list[Candidate]:
    """Return the folders next to the known steps that are named like one, and have no checkpoint."""
    for name in folders:
        storage = storage.folder(name)
    pattern, form = pattern_of(step), PartsFormat(_EMPTY)
    return [
        Candidate(Location(form, storage.folder(name), form.name), name, "", None, False)
        for name in storage.folders()
        if name not in known and (pattern_of(name) == pattern or _is_temporary(name))
    ]


def newest_among(storage: Storage, found: Sequence[Candidate]) -> Newest:
    """Return which of the checkpoints of a directory is the newest, as far as it is known."""
    gone = {each.step for each in found if not each.is_finished}
    while True:
        finished = [each for each in found if each.step not in gone]
        stated, says = _stated(storage, finished)
        newest = stated or _last_of_series(finished)
        broken = {each.step for each in newest if _lacks_files(each.location)}
        if not broken:
            break
        gone |= broken
    reason, doubt = (
        (says, "") if stated or not says else ("", f"{says}, which is not there or not whole")
    )
    if newest and may_be_parts(differing([each.item.split("/") for each in newest])):
        newest = []  # an item can be chosen, and not a part of a save
    return Newest(newest, reason, doubt, [each for each in found if each.step in gone])


def _last_of_series(found: Sequence[Candidate]) -> list[Candidate]:
    steps = [each.step for each in found]
    if len(found) > 1 and len(set(steps)) == 1 and is_step(steps[0]):
        return [*found]
    series = _series_of(found)
    return [each for each in found if each.step == series[-1]] if series else []


def _series_of(found: Sequence[Candidate]) -> list[str]:
    return in_series([each.step for each in found], [each.location for each in found])


def _stated(storage: Storage, found: Sequence[Candidate]) -> tuple[list[Candidate], str]:
    """The checkpoints of the step that a file or a link in the folder names, and what it says."""
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
    """The text of a small file."""
    file = storage.open(name)
    try:
        return file.read(0, min(file.size, _POINTER_NBYTES)).decode("utf-8", "replace").strip()
    finally:
        file.close()


def _last_number(text: str) -> int | None:
    numbers = re.findall("[0-9]{1,18}", text)
    return int(numbers[-1]) if numbers else None


def _saved(found: Location) -> float | None:
    """The time of the last change of the first existing file that names a checkpoint."""
    for name in names_of_target(found.name, found.format.name):
        status = found.storage.status(name)
        if status is not None:
            return status.changed
    return None


def _is_finished(found: Location, step: str) -> bool:
    """Return False if the checkpoint is named by its index, and that is missing, or its step has a
    temporary name."""
    form = found.format
    if _is_temporary(step) or (isinstance(form, PartsFormat) and form.kind.is_lost):
        return False
    return format_of_name(found.name) != form.name or found.name in found.storage.names()


def _is_temporary(step: str) -> bool:
    kind = kind_of_folder([step])
    return kind is not None and kind.is_lost


def _lacks_files(found: Location) -> bool:
    """Return True if a checkpoint on a disk lacks its index, or a file that its index names."""
    if found.storage.local_path is None:
        return False
    try:
        with closing(found.open()) as source:
            there = {*found.storage.names()}
            return not source.places and any(
                "/" not in name and name not in there for name in source.index.files
            )
    except IncompleteCheckpoint:
        return True
    except ShardvarError:  # the command itself says what is wrong
        return False
