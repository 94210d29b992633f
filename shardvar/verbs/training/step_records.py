"""The steps that a directory holds, each a checkpoint ``NAME-NUMBER``, and whether each is whole.

    whole        the index opens, and all files that it names are there in their sizes
    broken       an index is there, and a file is missing, cut off or damaged
    unfinished   only files of a writer or a removal that was killed, or is still at work

No payload is read. A step that was whole is looked at again only if one of its files has changed.

A step stays if one of the rules keeps it:

    last    it is one of the newest
    every   its number is a multiple
    best    its value is one of the best

The rules do not take from each other: however bad the newest step is, it stays, since a job resumes
from it. A step without a value, or with NaN, is never one of the best.
"""

import hashlib
import inspect
import math
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, Protocol, Self, runtime_checkable

from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    IncompleteCheckpoint,
    ShardvarError,
    StorageError,
    UnsupportedError,
)
from shardvar.formats.table import format_named, names_of_target
from shardvar.formats.unfinished import are_of_removal, files_left, is_share_file
from shardvar.planning.index import PART
from shardvar.records import frozen, replace
from shardvar.storage.local import split_place
from shardvar.storage.protocol import Storage
from shardvar.verbs.arguments import as_array, check_mapping
from shardvar.verbs.background import Aftercare, Staging, Turn, save_next
from shardvar.verbs.load import load
from shardvar.verbs.locate import Location, SplitPath, found_at, several
from shardvar.verbs.reader import Reader, first_fault
from shardvar.verbs.remove import lock_files
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.save import save

__all__ = ["RestoredStep", "SavedStep"]

MODES = "min", "max"
"""Is a small value good, or a large one?"""


@frozen
class StepRules:
    last: int | None = None
    """The number of the newest steps that stay; None for all."""
    every: int | None = None
    """The steps whose numbers are multiples of it stay; None for no such rule."""
    best: int = 0
    """The number of the steps with the best values that stay."""
    mode: str = "min"
    """``'min'`` if a small value is good, ``'max'`` if a large one is."""

    def __post_init__(self) -> None:
        for name, least in (("last", 1), ("every", 1), ("best", 0)):
            value: Any = getattr(self, name)
            if value is None and name != "best":
                continue
            try:
                number = operator.index(value)
            except TypeError:
                number = -1
            if isinstance(value, bool) or number < least:
                none = "" if name == "best" else ", or None"
                cause = f"keep_{name}={value!r} is not a number of steps."
                raise ArgumentError(cause, f"Give an integer >= {least}{none}.")
            object.__setattr__(self, name, number)
        if self.mode not in MODES:
            raise ArgumentError(f"mode={self.mode!r} is unknown.", "Give 'min' or 'max'.")


def best_steps(values: Mapping[int, float | None], rules: StepRules, count: int) -> list[int]:
    """The best comes first; of equal values, the earlier step."""
    sign = -1.0 if rules.mode == "max" else 1.0
    known = [
        (sign * value, number)
        for number, value in values.items()
        if value is not None and not math.isnan(value)
    ]
    return [number for _, number in sorted(known)[:count]]


def plan_removal(values: Mapping[int, float | None], rules: StepRules) -> list[int]:
    """Return the numbers of the whole steps that no rule keeps, the oldest first."""
    numbers = sorted(values)
    if rules.last is None:
        return []
    kept = {*numbers[-rules.last :], *best_steps(values, rules, rules.best)}
    if rules.every is not None:
        kept.update(number for number in numbers if number % rules.every == 0)
    return [number for number in numbers if number not in kept]


def read_value(value: Any) -> float | None:
    if value is None:
        return None
    try:
        if isinstance(value, str | bytes | bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        cause = f"value={value!r} is not a number."
        raise ArgumentTypeError(cause, "Give one number, such as the loss, or None.") from None


class Framework(Protocol):
    """Functions that save and load steps.

    The modules ``shardvar.torch`` and ``shardvar.jax`` have them, and so may an object of your own. With
    ``gather``, the processes agree through the group that connects them, and write nothing to restore.
    """

    # The types of the arguments are open: functions may have any others.

    def save(self, *arguments: Any, **options: Any) -> Any:
        """Save the share of this process, as ``sv.save_shards`` does.

        The arguments are the path, the state, ``run=``, ``metadata=``, and what the caller adds.
        """

    def load(self, *arguments: Any, **options: Any) -> Any:
        """Load what this process needs; raise a ``CheckpointError`` if the checkpoint is damaged.

        The arguments are the path, and what the caller adds.
        """

    def processes(self) -> tuple[int, int]:
        """Return the number of this process, and the number of processes."""


@runtime_checkable
class GatheringFramework(Framework, Protocol):
    """Functions whose processes are connected."""

    def gather(self, mine: list[int], timeout: float) -> list[list[int]]:
        """Return the integers that each process gives."""


class Arrays:
    """Arrays of NumPy in one process."""

    def save(
        self,
        path: str,
        state: Any,
        *,
        run: str,
        background: bool | str = False,
        busy: str = "wait",
        on_error: str = "raise",
        on_saved: Callable[[WriteReport], object] | None = None,
        **options: Any,
    ) -> Any:
        del run

        def held() -> Any:
            if not background:
                return state
            check_mapping(state, "keys to arrays")
            arrays = {key: as_array(key, value) for key, value in state.items()}
            plain = {key: each for key, each in arrays.items() if not each.dtype.hasobject}
            copies = dict(zip(plain, self._memory(background).copy([*plain.values()]), strict=True))
            return {key: copies[key] if key in copies else arrays[key].copy() for key in arrays}

        def write(arrays: Any) -> WriteReport:
            call = partial(save, path, arrays, **options)
            if background != "process":
                return call()
            from shardvar.verbs.writer_process import WRITER_PROCESS

            return WRITER_PROCESS.run(path, call, self._memory(background))

        after = Aftercare(on_error, on_saved)
        return save_next(_TURN, path, held, write, busy=busy, background=background, after=after)

    def _memory(self, background: bool | str) -> Any:
        if background not in _MEMORIES:
            from shardvar.verbs.writer_process import SharedStaging

            _MEMORIES[background] = SharedStaging() if background == "process" else Staging()
        return _MEMORIES[background]

    def load(self, path: str, *arguments: Any, **options: Any) -> Any:
        return load(path, *arguments, **options)

    def processes(self) -> tuple[int, int]:
        return 0, 1


_TURN = Turn()
_MEMORIES: dict[bool | str, Staging] = {}
"""The memory for copies, for each way to save in the background."""


def takes(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def check_takes(function: Callable[..., Any], name: str, why: str, remedy: str) -> None:
    if not takes(function, name):
        raise UnsupportedError(f"{why}: the function that saves has no argument {name}.", remedy)


def check_value(form: object) -> None:
    if isinstance(form, str) and not format_named(form).capabilities.holds_texts:
        cause = f"The format {form} keeps no metadata, and so no value of a step."
        raise UnsupportedError(cause, "Save in the format shardvar, or without a value.")


VALUE, DAMAGED, SAVE = "shardvar.value", "shardvar.damaged", "shardvar.save"
"""The metadata of a step: its value; the numbers of other steps that a load found damaged; and the number
of the save, which no other save has. It grows with the time, and is odd if the job had no step before."""

StepKey = tuple[int, int]
"""The number of a step, and the number of its save; 0 if it is not known."""


@frozen
class SavedStep:
    """A whole step in a directory."""

    number: int
    """Its number."""
    path: str
    """The path of its checkpoint."""
    value: float | None
    """The value that was saved with it; None without one."""


@frozen
class RestoredStep(SavedStep):
    """The step that a job resumes from."""

    loaded: Any
    """The result of the function that loads: of ``sv.load`` the arrays."""


@frozen
class StepRecord:
    number: int
    name: str
    location: Location | None
    """Its checkpoint; None if it is unfinished."""
    fault: ShardvarError | None = None
    value: float | None = None
    damaged: tuple[int, ...] = ()
    """The numbers of steps that were known as damaged when it was saved."""
    stamps: tuple[tuple[str, str | None], ...] = ()
    """Its files, each with its stamp; empty if it must be opened again to know that it is whole."""
    save: int = 0
    """The number of the save."""
    part: str = ""
    """The process that has written it, and the number of processes, if it is a part."""

    @property
    def key(self) -> StepKey:
        return self.number, self.save

    @property
    def is_whole(self) -> bool:
        return self.fault is None

    def for_part(self, part: str) -> Self:
        """Return the step with a fault if another process has written it, or a job of another size."""
        if self.part == part or self.location is None or self.fault is not None:
            return self
        what = (
            "the part of process {} of {}".format(*self.part.split())
            if self.part
            else "a whole step"
        )
        cause = f"{self.location.path} is {what}."
        return replace(self, fault=IncompleteCheckpoint(cause, "Use a step of durable."))

    def is_in(self, place: Storage | None) -> bool:
        """Return True if it is whole and in this folder."""
        at = self.location
        return (
            self.is_whole and at is not None and place is not None and at.storage.path == place.path
        )


def steps_storage(directory: str) -> Storage:
    return split_place(os.path.join(directory, ".steps"))[0]


def find_steps(directory: str, name: str, known: Mapping[int, StepRecord]) -> dict[int, StepRecord]:
    """``known`` has the steps of an earlier look. Only files that a writer of a step made count."""
    storage = steps_storage(directory)
    names, folders = storage.names(), {*storage.folders()}
    numbers = _numbers_in([*names, *folders], re.escape(name))
    is_walked = storage.local_path is None and any(f"{name}-{each}" in folders for each in numbers)
    of_folders = _stamps_of_folders(storage) if is_walked else {}
    found = {}
    for number in numbers:
        stem = f"{name}-{number}"
        place = storage.folder(stem) if stem in folders else None
        record = known.get(number)
        is_unchanged = False
        if record is not None and record.location is not None and record.stamps:
            at = record.location.storage.path
            there = place if place is not None and at == place.path else storage
            is_unchanged = all(
                (of_folders.get(each) if each.endswith("/") else _stamp(there, each)) == stamp
                for each, stamp in record.stamps
            )
        if not is_unchanged:
            record = _look(number, stem, storage, place)
            inside = f"{stem}/"
            if record is not None and record.is_in(place) and inside in of_folders:
                record = replace(record, stamps=((inside, of_folders[inside]),))
        if record is not None:
            found[number] = record
    return found


def _stamps_of_folders(storage: Storage) -> dict[str, str]:
    """The stamps of all files in each folder of a bucket, as one, by the folder's name and "/"."""
    digests: dict[str, Any] = {}
    for path, status in sorted(storage.tree().items()):
        folder, slash, _ = path.partition("/")
        if slash:
            digest = digests.setdefault(folder + slash, hashlib.sha256())
            digest.update(repr((path, status.stamp)).encode())
    return {folder: digest.hexdigest() for folder, digest in digests.items()}


def _stamp(storage: Storage, name: str) -> str | None:
    """The stamp of a file in a listing: one request for all steps of a bucket."""
    status = storage.status(name)
    return None if status is None else status.stamp


def _numbers_in(names: Sequence[str], before: str) -> list[int]:
    """The numbers of steps in names that begin with ``before``, a pattern, and a number."""
    pattern = re.compile(rf"{before}-(0|[1-9][0-9]{{0,17}})(?![0-9])")
    return sorted({int(match[1]) for match in map(pattern.match, names) if match})


def find_leftovers(
    storage: Storage, name: str, known: Mapping[int, StepRecord], seen: set[str]
) -> list[str]:
    """Steps without an index before the newest whole one; unlocked names only if ``seen`` before."""
    before = seen.copy()
    seen.clear()
    names, folders = storage.names(), storage.folders()
    needed = {each for record in known.values() for each, _ in record.stamps}
    newest = max((number for number, each in known.items() if each.is_whole), default=0)
    found = []
    for number in _numbers_in([*names, *folders], rf"\.?{re.escape(name)}"):
        stem, record = f"{name}-{number}", known.get(number)
        if number >= newest or (record and record.location):
            continue
        left = [*files_left(names, stem), *lock_files(storage, [stem])]
        left += [each for each in folders if each.startswith(f".{stem}.")]
        inside = files_left(storage.folder(stem).names(), "") if stem in folders else []
        loose = {each for each in (*left, *inside) if is_share_file(each)}
        loose |= {f"{stem}/"} if stem in folders and not inside else set()
        seen |= loose
        is_left = stem in folders or not needed.issuperset(left)
        if storage.local_path is None:
            is_left = are_of_removal([*left, *inside])
        if is_left and loose <= before:
            found.append(stem)
    return found


def _look(number: int, stem: str, storage: Storage, place: Storage | None) -> StepRecord | None:
    """Return a step as its files show it; None if none of them is a writer's."""
    found = [] if place is None else found_at(place, "")
    found += [each for each in found_at(storage, stem) if each.stem == stem]
    left = files_left(storage.names(), stem)
    left += [] if place is None else files_left(place.names(), "")
    if left:  # data files may be found without an index, or something in its place
        found = [
            each
            for each in found
            if not {*each.storage.names(), *each.storage.folders()}.isdisjoint(
                [each.name, *names_of_target(each.stem, each.format.name)[1:]]
            )
        ]
    if len(found) == 1:
        return _opened(number, stem, found[0])
    if found:
        path = os.path.join(storage.path, stem)
        return StepRecord(
            number, stem, found[0], several(SplitPath(path, place or storage, stem, False), found)
        )
    if place is not None:
        left += [name for name in place.names() if not name.endswith(".lock")]
    if not left:
        return None
    cause = f"It was not finished: it has {left[0]} and no index."
    return StepRecord(number, stem, None, IncompleteCheckpoint(cause, "Save it again."))


def _opened(number: int, stem: str, found: Location) -> StepRecord:
    try:
        with closing(found.open()) as source:
            reader = Reader(found.path, found.format.name, source)
            files = [] if source.places else [*source.index.files]
            texts = reader.metadata.user
            fault = first_fault(reader)
            lost = found.lost_files(source)
            if lost and fault is None:  # also if no tensor is in it
                cause = f"{os.path.join(found.storage.path, lost[0])} is missing."
                fault = IncompleteCheckpoint(cause, "Copy it again, or use another step.")
            value, damaged = None, texts.get(DAMAGED, "").split()
            with suppress(ValueError):
                value = float(texts.get(VALUE, ""))
            text = texts.get(SAVE, "")
            save = int(text) if text.isdecimal() and len(text) < 20 else 0
    except StorageError:
        raise
    except ShardvarError as error:
        return StepRecord(number, stem, found, error)
    indexes = [*names_of_target(found.stem, found.format.name), found.name, *files]
    # Of a bucket, as they were listed before the step was opened: what changed since is read again.
    stamps = {
        name: _stamp(found.storage, name) for name in dict.fromkeys(indexes) if "/" not in name
    }
    known = tuple(int(each) for each in damaged if each.isdecimal() and len(each) < 19)
    kept = () if fault or len(stamps) != len({*indexes}) else tuple(stamps.items())
    part = texts.get(PART, "")
    return StepRecord(number, stem, found, fault, value, known, kept, save, part)
