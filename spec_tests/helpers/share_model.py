"""A model of the fence of ``save_shards``, small enough for a search of all its interleavings.

The state is what is in the directory, and how far each process is. A step is one look at the
directory, or one file that is created; between two steps of a process, others take theirs. At any
moment the job may be killed and start again, with other values or the same, one process may die for
good, and a process that waits may run out of time.

``search`` tries all orders. It asks two things of every state in which nobody can move:

    no mixture    a checkpoint that a process returned with consists of the last attempt's shares
    one outcome   all processes that are alive have returned, or all have an error

A defect is a rule of the protocol that is left out: the search must find what it breaks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

DONE, ERROR, DEAD = "done", "error", "dead"
DEFECTS = ("no quote", "no end", "no second look", "no own share")

Mark = tuple[str, int, int, int, int]
"""A kind, the version of the checkpoint that the attempt found, its number, a process, and the job
that has written it (or, of an end, 1 for "commit")."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process: where it is, and what it knows."""

    at: str = "begin"
    base: int = 0
    """The version of the checkpoint that it has found."""
    call: int = -1
    """The number of the call that it follows."""
    is_own: bool = True
    """True if it has a share of its own in that attempt."""
    hurry: bool = False
    """True once it has run out of time."""


@dataclass(frozen=True, slots=True)
class State:
    """A directory, and the processes."""

    processes: tuple[Process, ...]
    marks: frozenset[Mark] = frozenset()
    version: int = 0
    """The attempt whose checkpoint is in place (``_result``); 0 for the old one."""
    content: tuple[int, ...] = ()
    """The job that has written each share of the checkpoint in place."""
    job: int = 1
    """The job that runs."""
    deaths: int = 0
    """Processes that may still die alone."""


def search(
    count: int, *, jobs: int = 2, deaths: int = 0, same: bool = False, defect: str = ""
) -> tuple[int, str]:
    """Return the number of states that were seen, and the first violation, or an empty text."""
    first = State(tuple(Process() for _ in range(count)), deaths=deaths)
    seen, todo = {first}, [first]
    while todo:
        state = todo.pop()
        following = list(_steps(state, jobs, same, defect))
        if all(each.at in (DONE, ERROR, DEAD) for each in state.processes):
            violation = _violation(state, same)
            if violation:
                return len(seen), f"{violation}: {state}"
        for each in following:
            if each not in seen:
                seen.add(each)
                todo.append(each)
    return len(seen), ""


def _violation(state: State, same: bool) -> str:
    outcomes = {each.at for each in state.processes} - {DEAD}
    if outcomes == {DONE, ERROR}:
        return "some return and some do not"
    if DONE in outcomes and not same and set(state.content) != {state.job}:
        return "a mixture, or an old checkpoint"
    return ""


def _steps(state: State, jobs: int, same: bool, defect: str) -> Iterator[State]:
    for number, process in enumerate(state.processes):
        if process.at in (DONE, ERROR, DEAD):
            continue
        for directory, after in _moves(state, number, process, same, defect):
            yield replace(directory, processes=_put(state.processes, number, after))
        if not process.hurry and process.at in ("wait", "await call"):
            yield replace(
                state, processes=_put(state.processes, number, replace(process, hurry=True))
            )
        if state.deaths and state.job == jobs:
            dead = _put(state.processes, number, replace(process, at=DEAD))
            yield replace(state, processes=dead, deaths=state.deaths - 1)
    if state.job < jobs and any(each.at not in (DONE, ERROR) for each in state.processes):
        fresh = tuple(Process() for _ in state.processes)
        yield replace(state, processes=fresh, job=state.job + 1)


def _put(processes: tuple[Process, ...], number: int, process: Process) -> tuple[Process, ...]:
    return (*processes[:number], process, *processes[number + 1 :])


def _result(process: Process) -> int:
    """The version of the checkpoint that the attempt of a process makes."""
    return 10 * process.base + process.call + 1


def _end(state: State, process: Process, call: int) -> int | None:
    """The end of a call: 1 for "commit", 0 for an error, None without one."""
    ends = [m[4] for m in state.marks if m[:3] == ("end", process.base, call)]
    return ends[0] if ends else None


def _shares(state: State, process: Process, defect: str) -> dict[int, int]:
    """The job that has written the share of each process that quotes the call."""
    return {
        m[3]: m[4]
        for m in sorted(state.marks)
        if m[:2] == ("share", process.base) and (m[2] == process.call or defect == "no quote")
    }


def _newest(state: State, process: Process) -> int:
    return max([m[2] for m in state.marks if m[:2] == ("call", process.base)], default=-1)


def _create(state: State, mark: Mark) -> State:
    return replace(state, marks=state.marks | {mark})


def _moves(
    state: State, number: int, process: Process, same: bool, defect: str
) -> Iterator[tuple[State, Process]]:
    """The next step of one process: what it makes of the directory, and where it is then."""
    here = process.call
    match process.at:
        case "begin":
            found = replace(process, base=state.version)
            mine = _newest(state, found) + 1
            yield (
                state,
                replace(found, at="call", call=mine)
                if number == 0
                else replace(found, at="await call"),
            )
        case "call":
            yield _create(state, ("call", process.base, here, 0, 0)), replace(process, at="share")
        case "await call":
            newest = _newest(state, process)
            if state.version != process.base:
                yield state, replace(process, at=ERROR)
            elif newest > here:
                yield state, replace(process, at="share", call=newest)
            elif process.hurry:
                yield state, replace(process, at=ERROR)
        case "share":
            shares = _shares(state, process, "")
            if number not in shares:
                mark = "share", process.base, here, number, state.job
                yield _create(state, mark), replace(process, at="wait", is_own=True)
            elif same or defect == "no own share":
                yield state, replace(process, at="wait", is_own=defect == "no own share")
            else:
                ended = _end(state, process, here) is not None
                directory = state if ended else _create(state, ("end", process.base, here, 0, 0))
                yield directory, replace(process, at="await call")
        case "wait":
            yield from _looks(state, number, process, defect)
        case "supersede":
            end = _end(state, process, here)
            if end == 1:
                yield state, replace(process, at="wait")
            elif end == 0:
                yield state, replace(process, at="await call")
            else:
                ended = _create(state, ("end", process.base, here, 0, 0))
                yield ended, replace(process, at="await call")
        case "give up":
            end = _end(state, process, here)
            if defect == "no end":
                yield state, replace(process, at=ERROR)
            elif end == 0:
                yield state, replace(process, at="look again")
            elif end == 1:
                yield state, replace(process, at="decide" if process.is_own else ERROR)
            else:
                ended = _create(state, ("end", process.base, here, 0, 0))
                yield ended, replace(process, at="look again")
        case "look again":
            is_in = state.version == _result(process) and defect != "no second look"
            yield state, replace(process, at=DONE if is_in else ERROR)
        case "decide":
            end = _end(state, process, here)
            if state.version == _result(process):
                yield state, replace(process, at=DONE)
            elif state.version != process.base or (end == 0 and defect != "no end"):
                yield state, replace(process, at=ERROR)
            else:
                decided = state
                if end is None and defect != "no end":
                    decided = _create(state, ("end", process.base, here, 0, 1))
                yield decided, replace(process, at="commit")
        case "commit":
            if state.version not in (process.base, _result(process)):
                yield state, replace(process, at=ERROR)
            else:
                shares = _shares(state, process, defect)
                content = tuple(shares.get(each, 0) for each in range(len(state.processes)))
                content = state.content if state.version == _result(process) else content
                yield (
                    replace(state, version=_result(process), content=content),
                    replace(process, at="tidy"),
                )
        case "tidy":
            yield replace(state, marks=frozenset()), replace(process, at=DONE)


def _looks(
    state: State, number: int, process: Process, defect: str
) -> Iterator[tuple[State, Process]]:
    """The look of a process that waits for the end."""
    end, newest = _end(state, process, process.call), _newest(state, process)
    is_whole = len(_shares(state, process, defect)) == len(state.processes)
    if state.version == _result(process):
        yield state, replace(process, at=DONE)
    elif state.version != process.base or (end == 0 and defect != "no end"):
        yield state, replace(process, at=ERROR)
    elif newest > process.call and end is None:
        yield state, replace(process, at="give up" if number == 0 else "supersede")
    elif number == 0 and is_whole:
        yield state, replace(process, at="decide")
    elif process.hurry:
        yield state, replace(process, at="give up")
