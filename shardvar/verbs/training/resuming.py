"""Resuming: all processes of a job load the same step, the newest that is whole for all of them.

    find   each process has looked at the directory, and tells which steps are whole
    load   each loads the newest step that all have found, and tells whether it could
    again  if one has met damage, all of them load the step before; if steps were removed since, and
           none is left, they look again

Nothing but the processes themselves can decide: an old job may commit while they look, and damage
shows only to the process that reads the bytes.

In meetings, the processes tell each other a few integers, all of them in the same order.

a group   where a framework connects the processes, it carries the integers in rounds that process 0
          opens, and nothing is written
a room    otherwise process 0 opens one: files in the directory, under a name that no other room
          has. Each other process takes its seat in a room, which only one can. Process 0 lets the
          room begin once all seats are taken; a process that sees another room then ends the
          one of a process that is dead, and changes its seat. At the end process 0 removes it
silent    where nothing can be written, processes hear nothing from each other
"""

import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from itertools import chain, islice
from typing import Any, cast

from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    CheckpointNotFound,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    MissingFile,
    ShardvarError,
    StorageError,
    log_warning,
)
from shardvar.planning.plan import name_processes
from shardvar.records import frozen
from shardvar.storage.protocol import Storage
from shardvar.verbs.together.run import Peers, WaitPace, pace_at
from shardvar.verbs.training.step_records import (
    Framework,
    GatheringFramework,
    StepKey,
    StepRecord,
    steps_storage,
)
from shardvar.verbs.verify import verify
from shardvar.wire.strict_json import parse_json

_PATIENCE = 1.0
"""The seconds that a process gives to a room while another one is open."""
_OLD_SECONDS = 86400
"""The age of a room that no process is in any more."""

_BOARD = "restore"
"""The key of the text of process 0; the answers of the others have its number after it."""
Outcome = list[list[int]] | str
"""The integers of all processes, or the cause of an error."""

_RESTORE_AGAIN = "Find out why, and restore again in all processes."
_rounds: dict[tuple[int, int], tuple[str, int, Outcome | None]] = {}
"""The session, the number of its next round, and, in process 0, the outcome of the previous round, by
process and number of processes."""


def gather(
    peers: Peers | None, processes: tuple[int, int], integers: Sequence[int], timeout: float
) -> list[list[int]]:
    """Return the integers that each process of a group gives.

    Process 0 opens a round on a board, each other process answers it, and process 0 puts the outcome on
    the board. A group may be made again with other processes, and keep its texts: so an answer names its
    round and the session of process 0, and a process that never took part in a session answers only
    an open round.
    """
    process, count = processes
    if count == 1:
        return [[*integers]]
    if peers is None:
        raise ArgumentError(
            f"No group connects the {count} processes.", "Initialize the framework's group first."
        )
    pace = pace_at(timeout, count, peers, is_local=True)
    outcome = (_answer if process else _ask)(peers, processes, [*integers], pace)
    if isinstance(outcome, str):
        raise IncompleteCheckpoint(outcome, _RESTORE_AGAIN)
    return outcome


def _ask(peers: Peers, processes: tuple[int, int], integers: list[int], pace: WaitPace) -> Outcome:
    count = processes[1]
    session, number, before = _rounds.get(processes) or (secrets.token_hex(8), 0, None)
    found: dict[int, Any] = {0: integers}
    outcome: Outcome = "Process 0 was interrupted."
    peers.tell(_BOARD, json.dumps([session, number, before, None]))
    try:
        while True:
            missing = _missing(peers, count, (session, number), found)
            refused = [each for each in found.values() if isinstance(each, str)]
            if refused or not missing:
                outcome = refused[0] if refused else [found[each] for each in range(count)]
                return outcome
            if late := _late(missing, count, pace):
                outcome = late
                return outcome
            pace.pause()
    finally:
        _rounds[processes] = session, number + 1, outcome
        peers.tell(_BOARD, json.dumps([session, number, before, outcome]))


def _answer(
    peers: Peers, processes: tuple[int, int], integers: list[int], pace: WaitPace
) -> Outcome:
    process, count = processes
    session, number, _ = _rounds.get(processes) or ("", 0, None)
    given: tuple[str, int] | None = None
    while True:
        if text := peers.told(_BOARD):
            there, now, before, outcome = parse_json(text.encode(), 3)
            if there != session:
                session, number = there, now + (outcome is not None)
            if now > number:
                outcome = before or "Process 0 did not wait for this process."
            if now >= number and outcome is not None:
                _rounds[processes] = session, max(number + 1, now), None
                return cast("Outcome", outcome)
            if now == number and given != (session, number):
                given = session, number
                peers.tell(f"{_BOARD}/{process}", json.dumps([*given, integers]))
        awaited = [0]
        if given and pace.is_over:
            awaited = _missing(peers, count, given, {process: integers}) or awaited
        if late := _late(awaited, count, pace):
            if given == (session, number):
                _rounds[processes] = session, number + 1, None
                peers.tell(f"{_BOARD}/{process}", json.dumps([*given, late]))
            return late
        pace.pause()


def _missing(peers: Peers, count: int, which: tuple[str, int], found: dict[int, Any]) -> list[int]:
    """The processes that have not answered a round; other answers go into ``found``."""
    for each in range(1, count):
        if each not in found and (text := peers.told(f"{_BOARD}/{each}")):
            session, number, answer = parse_json(text.encode(), 2)
            if (session, number) == which:
                found[each] = answer
    return [each for each in range(1, count) if each not in found]


def _late(missing: list[int], count: int, pace: WaitPace) -> str:
    """Return the cause of an error if processes have ended, or the time is over; empty if not."""
    ended = pace.ended(missing)
    if not ended and not pace.is_over:
        return ""
    who = name_processes(ended or missing)
    what = "ended" if ended else f"did not come within {pace.timeout:g} s"
    return f"{who[:1].upper()}{who[1:]} of {count} {what}, so the processes do not agree on a step."


_IN_A_ROOM = re.compile(r"[0-9a-f]{10}-[0-9a-f]{16}-\d{5}\..+")
"""The name of a file of a room, below the prefix. Others are not of a meeting, and stay."""


class Meetings:
    def __init__(self, directory: str, name: str, using: Framework, timeout: float) -> None:
        self.directory, self._prefix = directory, f".{name}-restore-"
        self._using, self._timeout = using, timeout
        self._room, self._round, self._is_late = "", 0, False
        self.is_silent = False

    def hold(self, integers: list[int]) -> list[list[int]]:
        """Return the integers that each process gives; only this one's where none can write."""
        process, count = self._using.processes()
        if count == 1:
            return [integers]
        if isinstance(self._using, GatheringFramework):
            return self._using.gather(integers, self._timeout)
        if self.is_silent or not (self._room or self._can_write()):
            self.is_silent = True
            return [integers]
        while not self._room:
            self._room = self._seat(process, count, integers) if process else self._open(count)
            if found := self._begin(process, count, integers):
                return found
            room, self._room = self._room, ""  # it was ended, and another one takes its place
            self._discard(sorted(each for each in self._there() if each.startswith(room)))
        self._round += 1
        names = [f"{self._room}.{each}.{self._round}" for each in range(count)]
        self._put(names[process], integers)
        self._wait(count, lambda there: _absent(names, there))
        return [self._get(name) for name in names]

    def close(self) -> None:
        """Leave the room; process 0 removes it once all have read it and left."""
        room, self._room, self._round, self.is_silent = self._room, "", 0, False
        process, count = self._using.processes()
        if not room:
            return
        if process and f"{room}.begin" in self._there():
            self._discard([f"{room}.{process}"])
            return
        if not process and not self._is_late:
            seats = [f"{room}.{each}" for each in range(count)]
            with suppress(ShardvarError):
                self._wait(count, lambda there: [n for n in range(1, count) if seats[n] in there])
        self._is_late = False
        self._discard(sorted(each for each in self._there() if each.startswith(room)))

    def _can_write(self) -> bool:
        """Return True if this process can write in the directory, which all are taken to share."""
        name = self._prefix + secrets.token_hex(8)
        try:
            self._put(name, None)
        except ShardvarError:
            return False
        self._discard([name])
        return True

    # --- The room

    def _open(self, count: int) -> str:
        """Open a room as process 0; remove the rooms of processes that are dead for long."""
        now = int(time.time())
        ages = {each: each.removeprefix(self._prefix)[:10] for each in self._there()}
        self._discard([each for each, age in ages.items() if int(age, 16) < now - _OLD_SECONDS])
        room = f"{self._prefix}{now:010x}-{secrets.token_hex(8)}-{count:05d}"
        self._put(f"{room}.0", None)
        return room

    def _seat(self, process: int, count: int, integers: list[int]) -> str:
        taken: list[str] = []

        def look(there: set[str]) -> list[int]:
            free = self._free(process, count, there)
            taken.extend(islice((r for r in free if self._put(f"{r}.{process}", integers)), 1))
            return [] if taken else [0]

        self._wait(count, look)
        return taken[0]

    def _free(self, process: int, count: int, there: set[str]) -> list[str]:
        ending = f"-{count:05d}.0"
        rooms = sorted(each.removesuffix(".0") for each in there if each.endswith(ending))
        return [each for each in rooms if {f"{each}.{process}", f"{each}.begin"}.isdisjoint(there)]

    def _begin(self, process: int, count: int, integers: list[int]) -> list[list[int]] | None:
        """Return the integers of all processes in this room; None if it does not begin."""
        seats, begin = [f"{self._room}.{each}" for each in range(count)], f"{self._room}.begin"
        patience = time.monotonic() + _PATIENCE

        def look(there: set[str]) -> list[int]:
            absent = _absent(seats, there)
            if begin in there or seats[0] not in there:
                return []
            if not process and not absent:
                self._put(begin, [integers, *map(self._get, seats[1:])])
            elif process and time.monotonic() > patience and self._free(process, count, there):
                self._put(begin, None)
            return absent or [0]

        self._wait(count, look)
        with suppress(MissingFile):
            return cast("list[list[int]] | None", self._get(begin))
        return None

    # --- Files

    def _storage(self) -> Storage:
        return steps_storage(self.directory)

    def _there(self) -> set[str]:
        start, names = len(self._prefix), self._storage().names()
        names = [name for name in names if name.startswith(self._prefix)]
        return {name for name in names if _IN_A_ROOM.fullmatch(name, start)}

    def _wait(self, count: int, look: Callable[[set[str]], list[int]]) -> None:
        """Wait until no process is awaited, as ``look`` finds in the names that are there."""
        is_local = self._storage().local_path is not None
        pace = pace_at(self._timeout, count, None, is_local=is_local)
        while missing := look(self._there()):
            if late := _late(missing, count, pace):
                self._is_late = True
                raise IncompleteCheckpoint(late, _RESTORE_AGAIN)
            pace.pause()

    def _put(self, name: str, content: list[Any] | None) -> bool:
        return self._storage().create_once(name, json.dumps(content).encode())

    def _get(self, name: str) -> Any:
        with closing(self._storage().open(name)) as file:
            return parse_json(file.read(0, file.size), 2)

    def _discard(self, names: Iterable[str]) -> None:
        storage = self._storage()
        for name in names:
            with suppress(ShardvarError), storage.lock(name):
                storage.remove(name)


def _absent(names: Sequence[str], there: set[str]) -> list[int]:
    return [number for number, name in enumerate(names) if name not in there]


_FAILED, _LOADED, _DAMAGED, _GONE = range(-1, 3)
"""The outcomes of a load, as processes tell them each other; the first one also in place of steps."""
_RESTART = "Its error says why. Restart all processes."
_MOST_LOOKS = 8
"""Looks at a directory from which another job removes steps, and saves newer ones at the same time."""


@frozen
class Resumed:
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
    find: Callable[[], Mapping[StepKey, StepRecord]],
    damaged: set[int],
    meetings: Meetings,
    load: Callable[[StepRecord], Any],
    *,
    shared: bool = True,
) -> Resumed:
    """Raises errors of ``load`` other than damage, and of newer steps that cannot be read.

    If the directory is not ``shared``, each process may find other steps."""
    gone, met = True, set[int]()
    for look in range(_MOST_LOOKS):
        if not gone:
            break
        with _telling(meetings):
            found = find()
        is_last = look == _MOST_LOOKS - 1
        left = _agree(directory, found, damaged | met, meetings, is_last=is_last, shared=shared)
        # Steps of other processes that none has in common were removed since.
        gone = left is None
        left = left or []
        reasons = {
            number: each.fault.cause
            if each.fault is not None
            else "It was found damaged."
            if number in damaged
            else "Other processes do not find it whole."
            for (number, _), each in found.items()
        }
        for each in found.values():
            is_newer = not left or each.key > left[-1]
            if is_newer and each.fault and not isinstance(each.fault, CheckpointError):
                # Without a step, and none gone, the others end here too.
                with _telling(meetings) if left or gone else nullcontext():
                    raise each.fault
        while left:
            record = found[left.pop()]
            loaded, damage = _load(record, meetings, load)
            if damage is None:
                if meetings.is_silent:
                    # Other processes may have loaded a step that was saved since.
                    now = find()
                    newest = max(n for n, each in now.items() if each.is_whole or each == record)
                    if newest > record.key and now[newest].is_whole:
                        raise StorageError(
                            f"A step was saved in {directory} while this process loaded "
                            f"{record.name}, and the processes can write nothing there to agree on "
                            "one.",
                            "Give step=, or functions with gather as shardvar.torch has it.",
                        )
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
    """Tell the other processes that this one raises an error, instead of the integers they expect."""
    try:
        yield
    except Exception:
        with suppress(ShardvarError):
            meetings.hold([_FAILED])
        raise


def _agree(
    directory: str,
    found: Mapping[StepKey, StepRecord],
    damaged: set[int],
    meetings: Meetings,
    *,
    is_last: bool,
    shared: bool,
) -> list[StepKey] | None:
    """Return the steps that are whole in all processes, in order; None if they are to look again."""
    whole = [each.key for each in found.values() if each.is_whole and each.number not in damaged]
    told = meetings.hold([*chain.from_iterable(whole)])
    if [_FAILED] in told:
        cause = f"Process {told.index([_FAILED])} could not look at the steps in {directory}."
        raise StorageError(cause, _RESTART)
    answers = [[*zip(each[::2], each[1::2], strict=True)] for each in told]
    both = sorted({*answers[0]}.intersection(*answers))
    if not both and all(answers) and not is_last and shared:
        return None
    if not both and any(answers) and shared:
        having = next(process for process, each in enumerate(answers) if each)
        lacking = next(process for process, each in enumerate(answers) if each != answers[having])
        cause = (
            f"Process {having} finds step {answers[having][-1][0]} in {directory}, and process "
            f"{lacking} does not."
        )
        raise StorageError(cause, "Give all processes a common directory, and start again.")
    return both


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
        cause = f"{record.name} was removed while processes loaded it."
        damage = CheckpointNotFound(cause, "Use another step.")
    elif damage is not None and not is_gone and len(outcomes) > 1:
        log_warning(f"{record.name} is damaged: {damage}")
    return loaded, damage
