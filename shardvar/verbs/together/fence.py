"""The fence of a save by many processes: a commit never mixes two attempts, and all processes get
one outcome.

Processes exchange no messages, and a share of an attempt that died looks like a new one. So each
process proves that it is alive by quoting what another has made in this attempt:

    process 0       --call-->   a new token, and the slices that process 0 holds
    each process    --share-->  an index under that token, once its data are written
    process 0       --end-->    "commit", when all shares of the token are there and fit together
    any process     --end-->    the error, if it gives up: after a time, or because it has failed

Every mark is a file that only one process can create (``Storage.create_once``), so an attempt has
one end, and each process obeys it: after an error mark all raise that error. After "commit" no
process gives up, and one whose time is over finishes the commit. A call that comes later has a higher
number, and all follow the highest: a process that has answered the call of a dead attempt answers
again, by a new index for the same data. The error of an attempt stays until a commit. Where a group connects
the processes of a job, they follow no call that has ended and that process 0 did not tell this group.

Laws, which ``spec_tests/helpers/share_model.py`` proves for all interleavings of two and three
processes:

    1. Shares that are committed together were written by calls of one attempt.
    2. If a process returns, all processes that are alive return.

With an ``attempt`` that the caller gives to all processes, that text is the token. Without one, a
process that does not wait (``commit=False``) can prove nothing: such shares are committed by
``commit_shards``, when the caller knows that all processes have saved, and one of an earlier
attempt that has other values poisons the run.

    save_open      write a share that is committed later, and return
    save_known     the same, and wait for the end: the processes know the attempt
    save_called    process 0 calls, the others answer, and all wait for the end
    telling        end the attempt with an error that this process has before it has a share
    commit_left    commit the shares that all processes have left by ``save_open``

An error of a process that waits ends the attempt for all.
"""

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import cast

from shardvar import errors
from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    IncompleteCheckpoint,
    LockHeld,
    MissingFile,
    ServerError,
    ShardvarError,
    StorageError,
    TargetExists,
)
from shardvar.planning.index import Metadata
from shardvar.planning.plan import name_processes
from shardvar.planning.policies.policy import EACH_PROCESS
from shardvar.planning.slices import TensorTable
from shardvar.records import mutable
from shardvar.verbs.save import WRITER
from shardvar.verbs.together.run import END, LEFT, SAVE_AGAIN, OwnShare, Run, WaitPace, pace_of
from shardvar.verbs.together.share_files import (
    Holding,
    ShareCall,
    discard_data,
    encode_call,
    is_same_share,
    merge_shares,
    read_call,
    read_share,
    write_share,
)
from shardvar.verbs.writing import SliceName, slice_names
from shardvar.wire.strict_json import parse_json

DESCRIPTION = EACH_PROCESS

_MOST_FINISHES, _FINISH_SECONDS = 60, 1.0
"""Attempts at a commit that another process has decided, and the pause between two."""


class Superseded(Exception):
    """Process 0 has begun another attempt."""


class Vanished(Exception):
    """The files of an attempt are gone, so no mark of it can be made; the cause is the error."""


# --- The end of an attempt


def read_end(run: Run, token: str, *, known: set[str] | None = None) -> str | ShardvarError | None:
    """The end is None, "commit" or an error for all. ``known`` has marks of commits, read once."""
    name = run.mark(token, END)
    if name not in run.target.storage.names():
        return None
    if known is not None and name in known:
        return "commit"
    try:
        with closing(run.target.storage.open(name)) as file:
            content = file.read(0, file.size)
    except MissingFile:  # removed since, by a commit
        return None
    try:
        about = parse_json(content, 1)
        kind, cause, remedy = (str(about[each]) for each in ("class", "cause", "remedy"))
        if kind != "commit" and not issubclass(getattr(errors, kind), ShardvarError):
            raise ValueError(kind)
    except (ValueError, LookupError, TypeError, AttributeError):
        return StorageError(f"{name} in {run.target.storage.path} is damaged.", SAVE_AGAIN)
    if kind == "commit":
        if known is not None:
            known.add(name)
        return "commit"
    found: type[ShardvarError] = getattr(errors, kind)
    return found(cause, remedy)


def is_ended(run: Run, token: str, *, known: set[str] | None = None) -> bool:
    """Return True if an attempt has ended with "commit"; raise the error with which it has ended."""
    end = read_end(run, token, known=known)
    if isinstance(end, ShardvarError):
        raise end
    return end is not None


def give_up(run: Run, token: str, error: BaseException) -> str | ShardvarError:
    """The end is also "commit" if the marks are gone, since the attempt is committed."""
    if not isinstance(error, ShardvarError):
        cause = f"A process of the run {run.name!r} was ended by {type(error).__name__}."
        error = StorageError(cause, SAVE_AGAIN)
    storage, name = run.target.storage, run.mark(token, END)
    is_new = storage.create_once(name, _end(type(error).__name__, error))
    now = run.refreshed()
    found = error if is_new else read_end(now, token) or "commit"
    # A commit removes the marks once the checkpoint is in place: an error that is found now, or was
    # put there now, may come too late.
    if isinstance(found, ShardvarError) and (now.was_committed(token) or now.is_committed(token)):
        if is_new:
            with suppress(StorageError), storage.lock(name):
                storage.remove(name)
        return "commit"
    return found


def _end(kind: str, error: ShardvarError | None = None) -> bytes:
    # The nonce: an answer that was lost is found by it.
    about = {"class": kind, "nonce": secrets.token_hex(8), "cause": "", "remedy": ""}
    if error is not None:
        about |= {"cause": error.cause, "remedy": error.remedy}
    return json.dumps(about).encode()


def leave(run: Run, token: str) -> None:
    """Mark that process 0 has left its attempt, so that the others stop waiting for another call."""
    with suppress(StorageError):
        run = run.refreshed()
        if run.current_version() != run.version or run.call(token) not in run.names():
            return  # the others see that, and the mark would stay
        run.target.storage.create_once(run.mark(token, LEFT), secrets.token_hex(8).encode())


# --- Errors of this process

failed: dict[tuple[int, str, str, int], str] = {}
"""The attempt of which this process has raised the error, by run and process: a process that is
alive and saves again waits for another call, and does not answer that one."""
MOST_OPEN = 64
"""The shares that a thread remembers, and the errors: it may save several paths in turn."""
thread = threading.local()
"""``failed``: the attempt at a fixed token of which this thread has raised the error. ``left``: the process and
the run of the last shares that this thread has left for a later commit."""


def remember(key: tuple[int, str, str, int], token: str) -> None:
    failed.pop(key, None)
    failed[key] = token
    for old in list(failed)[:-MOST_OPEN]:
        failed.pop(old, None)


Failed = list[tuple[tuple[str, str, int], str]]
"""``failed`` of one process, without its number."""


def failed_here() -> Failed:
    return [(key[1:], token) for key, token in failed.items() if key[0] == os.getpid()]


def fail_here(tokens: Failed) -> None:
    """Remember errors that were raised for this process in another one."""
    for key, token in tokens:
        remember((os.getpid(), *key), token)


def identity(run: Run) -> tuple[int, str, str]:
    return os.getpid(), run.path, run.fixed_token


@contextmanager
def ending(run: Run, token: str) -> Iterator[None]:
    """End an attempt for all with the error of this process; a commit that was made stands."""
    try:
        yield
    except Superseded:
        raise
    except Vanished as gone:
        raise cast("StorageError", gone.__cause__) from None
    except BaseException as error:
        check_not_replaced(run, token, error)
        is_committed = False
        with suppress(StorageError):
            end = give_up(run, token, error)
            is_committed = end == "commit" and run.refreshed().is_committed(token)
        if not is_committed or not isinstance(error, ShardvarError):
            thread.failed = identity(run), token
            raise


def check_not_replaced(run: Run, token: str, error: BaseException) -> None:
    """Raise ``StorageError`` if the commit of another checkpoint has removed the files of this attempt."""
    if isinstance(error, ShardvarError):
        try:
            run.refreshed().is_committed(token)
        except ServerError:
            return
        except StorageError as replaced:
            raise replaced from error


# --- The commit


def commit_token(run: Run, token: str) -> None:
    """Merge the shares of an attempt, end it with "commit", and put the checkpoint in place, unless it is there."""
    storage, mark = run.target.storage, run.mark(token, END)
    with storage.lock(run.target.stem):
        if run.is_committed(token):
            return
        is_decided = is_ended(run, token)
        about = Metadata(DESCRIPTION, WRITER, generation=run.generation(token))
        sink, checksums = merge_shares(run, token, about)
        with sink.holding():
            if not is_decided and not storage.create_once(mark, _end("commit")):
                is_ended(run.refreshed(), token)
            try:
                sink.commit([checksums])
            except BaseException as error:
                # Only on a disk, where the lock keeps others away; in a bucket they may finish it.
                now = run.refreshed()
                with suppress(ShardvarError):
                    if storage.local_path is not None and not now.is_committed(token):
                        now.target.storage.remove(mark)
                        give_up(now, token, error)
                raise
        if run.peers is not None:
            run.peers.tell(run.generation(token), "committed")


def wait_for_end(
    run: Run,
    token: str,
    pace: WaitPace,
    *,
    own: OwnShare | None,
    commits: bool,
    check: Callable[[Run], None] = lambda _run: None,
) -> None:
    """``check`` may raise. With an ``own`` share, finish a commit that another has decided."""
    known: set[str] = set()
    held: LockHeld | None = None
    pace.begin(commits=own is not None and not own.process)
    while True:
        # In a bucket a look costs a request, and the others have hardly answered yet.
        if run.count > 1 and run.target.storage.local_path is None:
            pace.pause()
        run = run.refreshed()
        if _is_over(run, token, own, is_decided=bool(known)):
            return
        if not is_ended(run, token, known=known):
            check(run)
        missing = run.missing(token)
        if commits and not missing:
            try:
                commit_token(run, token)
                return
            except LockHeld as error:
                held = error
        awaited = [each for each in missing if not own or each != own.process]
        ended = pace.ended(awaited if commits else [0])
        if ended or pace.is_over:
            late = late_error(run, missing, pace.timeout, held, ended)
            end = give_up(run, token, late)
            if isinstance(end, ShardvarError):
                raise end from None
            if own is None and not run.refreshed().is_committed(token):
                raise late
            # Another process has decided the commit, and perhaps does not finish it.
            for attempt in range(_MOST_FINISHES):
                try:
                    commit_token(run.refreshed(), token)
                    return
                except LockHeld:
                    if attempt == _MOST_FINISHES - 1:
                        raise
                    time.sleep(_FINISH_SECONDS)
        if run.count == 1 or run.target.storage.local_path is not None:
            pace.pause()


def _is_over(run: Run, token: str, own: OwnShare | None, *, is_decided: bool) -> bool:
    """Return True if an attempt is committed, be it moved or replaced since; ``Vanished`` if its files are gone."""
    try:
        if run.is_committed(token):
            return True
    except StorageError:
        if is_decided or (own is not None and own.is_moved(run, token)) or run.was_committed(token):
            return True
        raise
    files = [run.call(token), *([] if own is None else [run.share(token, own.process)])]
    if not run.names().isdisjoint(files):
        return False
    # The names were looked for after the index, which may have come since.
    if run.refreshed().is_committed(token) or is_decided or run.was_committed(token):
        return True
    if own is None or own.is_moved(run, token):
        return own is not None
    cause = (
        f"The files of the run {run.name!r} of {run.path} are gone: it was committed and removed "
        "since, or another program has removed them."
    )
    raise Vanished from StorageError(cause, f"Find out which. {SAVE_AGAIN}")


def late_error(
    run: Run,
    missing: list[int],
    timeout: float,
    held: LockHeld | None = None,
    ended: Sequence[int] = (),
) -> ShardvarError:
    if ended or missing:
        who = name_processes(ended or missing)
        what = f"did not save within {timeout:g} s"
        if ended:
            what = f"{'have' if len(ended) > 1 else 'has'} ended before the commit"
        cause = f"{who[:1].upper()}{who[1:]} of {run.count} {what}."
        cause = f"{cause} {run.path} is as it was before the run {run.name!r}."
        return IncompleteCheckpoint(cause, f"Find out why. {SAVE_AGAIN}")
    # By a claim, which the error names.
    if held is not None and run.target.storage.local_path is None:
        return held
    if held is not None:
        cause = f"{run.path} is held by another writer, so the run {run.name!r} cannot commit."
        return LockHeld(cause, f"Let it finish. {SAVE_AGAIN}")
    cause = f"Process 0 of the run {run.name!r} of {run.path} did not commit within {timeout:g} s."
    return IncompleteCheckpoint(cause, f"Find out why. {SAVE_AGAIN}")


def twice_error(run: Run, process: int) -> ArgumentError:
    cause = (
        f"Process {process} of the run {run.name!r} of {run.path} has saved already, and other "
        "values."
    )
    return ArgumentError(
        cause,
        "Give each process its own number, and each save a new run; give each restart an attempt.",
    )


# --- A save by one process


@mutable
class _Data:
    held: Holding
    nonce: str = ""
    """The nonce of the data; empty before they are written."""
    name: str = ""
    content: bytes = b""
    dropped: frozenset[SliceName] = frozenset()
    """The slices that process 0 also holds, and that are not written."""

    def write(self, run: Run, call: ShareCall | None) -> None:
        others = frozenset[SliceName]()
        if call is not None and self.held.process:
            others = call.held
        if not self.nonce or not self.dropped <= others:
            self.nonce = secrets.token_hex(8)
            names = slice_names(self.held.slices) if others else ()
            self.dropped = others.intersection(names)
            self.name, self.content = write_share(run, self.held, self.nonce, self.dropped)

    def answer(self, run: Run, token: str) -> bool:
        return run.target.storage.create_once(run.share(token, self.held.process), self.content)


# --- Shares that are committed later, and attempts that all processes know

_NEW_ATTEMPT = f"{SAVE_AGAIN[:-1]}, in a new attempt."
"""The remedy where an attempt that the caller has named has ended."""


def has_begun(run: Run) -> bool:
    """Return True if this thread has just left another share of the run: both are of one attempt."""
    return identity(run) in getattr(thread, "left", ())


def save_open(run: Run, held: Holding) -> None:
    """Other values, or a process that disagrees on the run, poison the run before an error."""
    token = run.fixed_token
    # Check.
    _pass_old_end(run, token)
    names = run.names()
    if odd := run.odd_share():
        raise _poisoned(run, token, odd)
    if run.share(token, held.process) not in names or not _check_same(run, held, token):
        # Move.
        data, call = _Data(held), None
        if not held.process:
            _call_known(run, held, token)
        elif run.call(token) in names:
            call = read_call(run, token)
        try:
            data.write(run, call)
            is_mine = data.answer(run, token)
        except StorageError as error:
            check_not_replaced(run, token, error)
            raise
        if not is_mine:
            discard_data(run, data.name)
            _check_same(run.refreshed(), held, token)
    thread.left = [identity(run), *getattr(thread, "left", [])][:MOST_OPEN]


def _pass_old_end(run: Run, token: str) -> None:
    """Remove the error of an earlier try at a fixed token that this call follows; raise others."""
    is_own = getattr(thread, "failed", None) == (identity(run), token)
    thread.failed = None
    end = read_end(run, token)
    if not isinstance(end, ShardvarError):
        return
    is_new = is_own or (run.attempt is None and not has_begun(run))
    if isinstance(end, ArgumentError) or not is_new:
        raise end if run.attempt is None else type(end)(end.cause, _NEW_ATTEMPT)
    _remove_mark(run, run.mark(token, END))


def _call_known(run: Run, held: Holding, token: str, *, waits: bool = False) -> None:
    nonce = secrets.token_hex(8)
    is_new = run.target.storage.create_once(
        run.call(token), encode_call(held.slices, nonce, waits=waits)
    )
    if not is_new and read_call(run.refreshed(), token).held != frozenset(slice_names(held.slices)):
        raise _poisoned(run, token, twice_error(run, 0))


def _check_same(run: Run, held: Holding, token: str) -> bool:
    """Return False if a failed commit has renamed the share's data; then remove the share."""
    share = read_share(run, token, held.process)
    if not is_same_share(run, share, held):
        raise _poisoned(run, token, twice_error(run, held.process))
    is_there = not share.nbytes or run.data(share.nonce, held.process) in run.names()
    if not is_there:
        _remove_mark(run, run.share(token, held.process))
    return is_there


def _remove_mark(run: Run, name: str) -> None:
    with run.target.storage.lock(name):
        run.target.storage.remove(name)


def _poisoned(run: Run, token: str, error: ShardvarError) -> ShardvarError:
    give_up(run, token, error)
    return error


def save_known(run: Run, held: Holding) -> None:
    token, pace = run.fixed_token, pace_of(run)
    _pass_old_end(run, token)
    with ending(run, token):
        if not held.process:
            _check_goes_on(run, token)
            _call_known(run, held, token, waits=True)
        else:
            while run.call(token) not in run.names():
                _check_goes_on(run, token)
                if pace.is_over:
                    raise late_error(run, [0], pace.timeout)
                pace.pause()
                run = run.refreshed()
        save_open(run, held)
        run = run.refreshed()
        commits = not held.process or not read_call(run, token).waits
        own = OwnShare.of(run, held.process)
        wait_for_end(run, token, pace, own=own, commits=commits)


def _check_goes_on(run: Run, token: str) -> None:
    """Raise if an attempt has an end, another checkpoint is in place, or processes disagree."""
    is_ended(run, token)
    run.is_committed(token)
    if odd := run.odd_share():
        raise odd


# --- Attempts that process 0 begins


def _call(run: Run, token: str, call: bytes) -> None:
    if run.peers is not None:
        run.peers.tell(f"{token}.call", "called")
    run.target.storage.create_once(run.call(token), call)


def _is_of_earlier_job(run: Run, token: str) -> bool:
    """Return True if the group does not know a call: a job that has failed may have left it, and its error."""
    return run.peers is not None and run.peers.told(f"{token}.call") is None


def save_called(run: Run, held: Holding) -> None:
    pace = pace_of(run)
    if held.process:
        _answer_calls(run, held, pace)
        return
    token, nonce = run.new_token(), secrets.token_hex(8)

    def check(now: Run) -> None:
        newest, _ = now.calls()[-1] if now.calls() else (token, 0)
        if newest > token:
            error = twice_error(run, 0)
            give_up(now, newest, error)
            raise error

    try:
        with ending(run, token):
            _call(run, token, encode_call(held.slices, nonce, waits=True))
            data = _Data(held)
            data.write(run, None)
            own = OwnShare.of(run, 0)
            data.answer(run, token)
            wait_for_end(run, token, pace, own=own, commits=True, check=check)
    except BaseException:
        leave(run, token)
        raise


def _answer_calls(run: Run, held: Holding, pace: WaitPace) -> None:
    key, after = _last_failed(run, held.process)
    data, reason = _Data(held), None
    try:
        while True:
            run, after = _wait_for_call(run, pace, after, reason)
            reason = None
            try:
                with ending(run, after):
                    data.write(run, read_call(run, after))
                    own = OwnShare.of(run, held.process)
                    is_mine = data.answer(run, after)
                    if not is_mine:
                        run = run.refreshed()
                        is_there = run.share(after, held.process) in run.names()
                        share = read_share(run, after, held.process) if is_there else None
                        if share is None or not is_same_share(run, share, held):
                            reason = twice_error(run, held.process)
                    if reason is None:
                        _follow(run, after, pace, own if is_mine else None)
                        return
            except Superseded:
                continue
            # Another call has this number. If it is of an attempt that died, process 0 calls again.
            give_up(run, after, reason)
    except BaseException:
        remember(key, after)
        raise


def _last_failed(run: Run, process: int) -> tuple[tuple[int, str, str, int], str]:
    """Return the key of ``failed``, and the attempt that this process does not answer again."""
    key = (*identity(run), process)
    after = failed.get(key, "")
    # The directory may have been removed since.
    return key, after if run.mark(after, END) in run.names() else ""


def _follow(run: Run, token: str, pace: WaitPace, own: OwnShare | None) -> None:
    """Wait for the end of an attempt; ``Superseded`` if process 0 calls again."""

    cause = f"Process 0 of the run {run.name!r} of {run.path} has begun another attempt."

    def check(now: Run) -> None:
        calls, late = now.calls(), StorageError(cause, SAVE_AGAIN)
        # The old attempt is ended before the new call is answered, so that only one of them can be
        # committed.
        if calls and calls[-1][0] > token and give_up(now, token, late) != "commit":
            raise Superseded

    try:
        wait_for_end(run, token, pace, own=own, commits=False, check=check)
    except StorageError as error:
        if error.cause == cause:  # another process has seen the new call first
            raise Superseded from None
        raise


def _wait_for_call(
    run: Run, pace: WaitPace, after: str, reason: ShardvarError | None
) -> tuple[Run, str]:
    """Return the last call, once one comes after a token that is done with, for ``reason``."""
    while True:
        run = run.at_call()
        calls = run.calls()
        token, count = calls[-1] if calls else ("", 0)
        is_ours = count == run.count
        is_over = not is_ours or isinstance(read_end(run, token), ShardvarError)
        if token > after and is_over and _is_of_earlier_job(run, token):
            after, reason = token, None
        elif token > after and is_ours:
            return run, token
        elif token > after:
            after, reason = token, run.count_error(0, count)
            give_up(run, token, reason)
        elif after and (reason is not None) and run.mark(after, LEFT) in run.names():
            raise reason
        if run.is_committed(after or run.fixed_token) and reason is not None:
            raise reason
        ended = pace.ended([0])
        if ended or pace.is_over:
            raise reason or late_error(run, [0], pace.timeout, ended=ended)
        pace.pause()
        run = run.refreshed()


# --- Errors before a share

_TELL_SECONDS = 30.0
"""The most time to wait for process 0, which is perhaps gone, before an error is raised."""


@contextmanager
def telling(find: Callable[[], Run], process: int) -> Iterator[None]:
    """The error waits until process 0 begins the attempt, or the others wait in vain."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, TargetExists):  # which all find
            with suppress(ShardvarError):
                _end_early(find(), process, error)
        raise


def _end_early(run: Run, process: int, error: Exception) -> None:
    if run.count == 1:
        return
    told = error.at(f"process {process}") if isinstance(error, ShardvarError) else error
    if run.attempt is not None or has_begun(run):
        give_up(run, run.fixed_token, told)
        thread.failed = identity(run), run.fixed_token
    elif process:
        key, after = _last_failed(run, process)
        run, token = _wait_for_call(run, pace_of(run, _TELL_SECONDS), after, None)
        give_up(run, token, told)
        remember(key, token)
    else:
        token, nothing = run.new_token(), TensorTable.of(()).whole()
        _call(run, token, encode_call(nothing, secrets.token_hex(8), waits=True))
        give_up(run.refreshed(), token, told)
        leave(run, token)


# --- The commit of shares that were left for it


def commit_left(saved: Run) -> None:
    """Shares that do not fit together poison the run; missing ones may still come."""
    token, pace, held = saved.fixed_token, pace_of(saved), None
    while True:
        if saved.is_committed(token):
            return
        is_ended(saved, token)
        missing = saved.missing(token)
        if len(missing) == saved.count and saved.is_in_place():
            return
        if odd := saved.odd_share():
            raise odd
        if not missing:
            try:
                commit_token(saved, token)
                return
            except LockHeld as error:
                held = error
            except (CheckpointError, ArgumentError) as error:
                # Another process may have committed, and removed the shares.
                if give_up(saved, token, error) == "commit" and (
                    saved.refreshed().is_committed(token)
                ):
                    return
                raise
        if pace.is_over:
            if held is not None and saved.refreshed().is_committed(token):
                return
            raise late_error(saved, missing, pace.timeout, held)
        pace.pause()
        saved = saved.refreshed()
