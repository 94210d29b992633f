"""Resuming: all processes of a job load the same step, the newest that is whole for all of them.

    find   each process has looked at the directory, and says which steps are whole
    load   each loads the newest step that all have found, and says whether it could
    again  if one has met damage, all of them load the step before; if steps were removed meanwhile, and
           none is left, they look again

Nothing but the processes themselves can decide: an old job may commit while they look, and damage
shows only to the process that reads the bytes.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from shardvar.errors import (
    CheckpointError,
    CheckpointNotFound,
    CorruptCheckpoint,
    ShardvarError,
    StorageError,
)
from shardvar.pictures.words import message
from shardvar.verbs.training.meetings import Meetings
from shardvar.verbs.training.step_records import StepRecord
from shardvar.verbs.verify import verify

_LOG = logging.getLogger("shardvar.checkpoint")
_FAILED, _LOADED, _DAMAGED, _GONE = range(-1, 3)
"""The outcomes of a load, as processes tell them each other; the first one also in place of steps."""
_RESTART = "Its error says why. Restart all processes."
_MOST_LOOKS = 8
"""Looks at a directory from which another job removes steps, and saves newer ones, meanwhile."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The step that was loaded, and what was passed over."""

    record: StepRecord | None
    """The step; None if no step could be loaded."""
    loaded: Any
    """The result of the load."""
    passed: dict[int, str]
    """The newer steps, each with the reason why it was passed over."""
    damaged: frozenset[int]
    """The steps that a process has met as damaged."""


def resume(
    directory: str,
    find: Callable[[], Mapping[int, StepRecord]],
    damaged: set[int],
    meetings: Meetings,
    load: Callable[[StepRecord], Any],
) -> Resumed:
    """Load the newest step that all processes find whole, leaving out ``damaged`` ones.

    Raises what ``load`` raises, unless it is damage; and the fault of a newer step that may be
    whole, but that this release cannot read.
    """
    gone, met = True, set[int]()
    for look in range(_MOST_LOOKS):
        if not gone:
            break
        with _telling(meetings):
            found = find()
        left = _agree(directory, found, damaged | met, meetings, is_last=look == _MOST_LOOKS - 1)
        # Steps of other processes that none has in common were removed meanwhile.
        gone = left is None
        left = left or []
        reasons = {number: _reason(each, number in damaged) for number, each in found.items()}
        for each in found.values():
            is_newer = not left or each.number > left[-1]
            if is_newer and each.fault and not isinstance(each.fault, CheckpointError):
                # Without a step, and none gone, the others end here too.
                with _telling(meetings) if left or gone else nullcontext():
                    raise each.fault
        while left:
            record = found[left.pop()]
            loaded, damage = _load(record, meetings, load)
            if damage is None:
                if meetings.is_silent:
                    _check_still_newest(directory, record, find())
                passed = {number: reasons[number] for number in reasons if number > record.number}
                return Resumed(record, loaded, passed, frozenset(met))
            if isinstance(damage, CheckpointNotFound):
                gone = True
            else:
                met.add(record.number)
            reasons[record.number] = damage.cause
    return Resumed(None, None, reasons, frozenset(met))


@contextmanager
def _telling(meetings: Meetings) -> Iterator[None]:
    """Tell the other processes that this one raises an error, in place of what they wait for."""
    try:
        yield
    except Exception:
        with suppress(ShardvarError):
            meetings.hold([_FAILED])
        raise


def _agree(
    directory: str,
    found: Mapping[int, StepRecord],
    damaged: set[int],
    meetings: Meetings,
    *,
    is_last: bool,
) -> list[int] | None:
    """Return the steps that are whole in all processes, in order; None if they are to look again."""
    mine = [each.number for each in found.values() if each.is_whole and each.number not in damaged]
    known = meetings.hold(mine)
    if [_FAILED] in known:
        cause = f"Process {known.index([_FAILED])} could not look at the steps in {directory}."
        raise StorageError(cause, _RESTART)
    both = sorted({*known[0]}.intersection(*known))
    if not both and all(known) and not is_last:
        return None
    if not both and any(known):
        having = next(process for process, each in enumerate(known) if each)
        lacking = next(process for process, each in enumerate(known) if each != known[having])
        cause = (
            f"Process {having} finds step {known[having][-1]} in {directory}, and process "
            f"{lacking} does not."
        )
        raise StorageError(cause, "Give all processes a common directory, and start again.")
    return both


def _check_still_newest(
    directory: str, record: StepRecord, found: Mapping[int, StepRecord]
) -> None:
    """Raise ``StorageError`` if a step was saved meanwhile, which other processes may have loaded."""
    newest = max(each.number for each in found.values() if each.is_whole or each == record)
    if newest > record.number and found[newest].is_whole:
        cause = f"A step was saved in {directory} while this process loaded {record.name}, and the"
        cause = f"{cause} processes can write nothing there to agree on one."
        raise StorageError(cause, "Give step=, or functions with gather as shardvar.torch has it.")


def _reason(record: StepRecord, is_known: bool) -> str:
    """Return why a step is passed over, if it is."""
    if record.fault is not None:
        return record.fault.cause
    return "It was found damaged." if is_known else "Other processes do not find it whole."


def _load(
    record: StepRecord, meetings: Meetings, load: Callable[[StepRecord], Any]
) -> tuple[Any, CheckpointError | None]:
    """Load a step; return the result, and the damage that any process has met."""
    loaded, damage = None, None
    with _telling(meetings):
        try:
            if meetings.is_silent and record.location is not None:
                # No process hears of damage that another one has met: so each reads all of the step.
                for problem in verify(record.location.path).damages[:1]:
                    raise CorruptCheckpoint(problem.cause, "Use another step.")
            loaded = load(record)
        except CheckpointError as error:
            damage = error
    is_gone = isinstance(damage, CheckpointNotFound)
    outcome = _LOADED if damage is None else _GONE if is_gone else _DAMAGED
    outcomes = [each[0] for each in meetings.hold([outcome])]
    if _FAILED in outcomes:
        cause = f"Process {outcomes.index(_FAILED)} could not load {record.name}."
        raise StorageError(cause, _RESTART)
    if _DAMAGED in outcomes and (damage is None or is_gone):
        cause = f"Process {outcomes.index(_DAMAGED)} found it damaged, and logs the reason."
        damage = CorruptCheckpoint(cause, "Use another step.")
    elif _GONE in outcomes and damage is None:
        cause = f"{record.name} was removed meanwhile."
        damage = CheckpointNotFound(cause, "Use another step.")
    elif damage is not None and not is_gone and len(outcomes) > 1:
        _LOG.warning("%s", message(f"{record.name} is damaged: {damage}"))
    return loaded, damage
