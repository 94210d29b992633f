"""Attempts: what one process does to save, from its first look at the directory to the end.

    save_open      write a share that is committed later, and return
    save_known     the same, and wait for the end: the processes know the attempt
    save_called    process 0 calls, the others answer, and all wait for the end (``fence``)
    telling        end the attempt with an error that this process has before it has a share
    commit_left    commit what all processes have left by ``save_open``

An error of a process that waits ends the attempt for all.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    LockHeld,
    ShardvarError,
    StorageError,
    TargetExists,
)
from shardvar.verbs.together.fence import (
    MOST_OPEN,
    Superseded,
    WaitPace,
    check_not_replaced,
    commit_token,
    ending,
    failed,
    give_up,
    identity,
    late_error,
    leave,
    pace_of,
    read_end,
    remember,
    thread,
    twice_error,
    wait_for_end,
)
from shardvar.verbs.together.local_shards import source_of_shards
from shardvar.verbs.together.run import END, LEFT, SAVE_AGAIN, OwnShare, Run
from shardvar.verbs.together.share_format import (
    Holding,
    ShareCall,
    SliceName,
    discard_data,
    encode_call,
    is_same_share,
    read_call,
    read_share,
    slice_names,
    write_share,
)


@dataclass(slots=True)
class _Data:
    """The data of one process, and their index, which answers any number of calls."""

    held: Holding
    """The slices that the process holds."""
    nonce: str = ""
    """The nonce of the data; empty before they are written."""
    name: str = ""
    """The name of the data file."""
    content: bytes = b""
    """The content of the index."""
    dropped: frozenset[SliceName] = frozenset()
    """The slices that process 0 also holds, and that are not written."""

    def write(self, run: Run, call: ShareCall | None) -> None:
        """Write the data, unless they are written and fit a call."""
        others = frozenset[SliceName]()
        if call is not None and self.held.process:
            others = call.held
        if not self.nonce or not self.dropped <= others:
            self.nonce = secrets.token_hex(8)
            self.dropped = others.intersection(slice_names(self.held.slices))
            self.name, self.content = write_share(run, self.held, self.nonce, self.dropped)

    def answer(self, run: Run, token: str) -> bool:
        """Put the index in place under a token; return False if another one is there."""
        return run.target.storage.create_once(run.share(token, self.held.process), self.content)


# --- Shares that are committed later, and attempts that all processes know

_NEW_ATTEMPT = f"{SAVE_AGAIN[:-1]}, in a new attempt."
"""The remedy where an attempt that the caller has named has ended."""


def has_begun(run: Run) -> bool:
    """Return True if this thread has just left another share of the run for a later commit.

    A thread that saves for one process after the other, and waits in the last call, needs no proof
    that these shares are of one attempt.
    """
    return identity(run) in getattr(thread, "left", ())


def save_open(run: Run, held: Holding) -> None:
    """Write a share under the fixed token of a run, or find that it is written.

    A share with other values, or of a process that disagrees on the run, poisons the run before it
    is an error.
    """
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
    """Remove the error of an earlier try at a fixed token, which this one follows; raise any other.

    A process that has raised it and saves again is alive; without an attempt, the first call of a
    thread begins a new try. What does not fit together is found again, but for a number that two
    processes have.
    """
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
    """Put the call of process 0 in place, unless the same one is there."""
    nonce = secrets.token_hex(8)
    is_new = run.target.storage.create_once(
        run.call(token), encode_call(held.slices, nonce, waits=waits)
    )
    if not is_new and read_call(run.refreshed(), token).held != frozenset(slice_names(held.slices)):
        raise _poisoned(run, token, twice_error(run, 0))


def _check_same(run: Run, held: Holding, token: str) -> bool:
    """Raise, and poison the run, unless the share that is there holds the same.

    Return False if a commit that failed has renamed its data: then it is removed, to be written
    again.
    """
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
    """End an attempt with an error that is raised next."""
    give_up(run, token, error)
    return error


def save_known(run: Run, held: Holding, replicas: str, timeout: float) -> None:
    """Write a share under the fixed token of a run, and wait until it is committed."""
    token, pace = run.fixed_token, pace_of(run, timeout)
    _pass_old_end(run, token)
    with ending(run, token):
        if not held.process:
            _check_goes_on(run, token)
            _call_known(run, held, token, waits=True)
        else:
            while run.call(token) not in run.names():
                _check_goes_on(run, token)
                if pace.is_over:
                    raise late_error(run, [0], timeout)
                pace.pause()
                run = run.refreshed()
        save_open(run, held)
        run = run.refreshed()
        commits = not held.process or not read_call(run, token).waits
        own = OwnShare.of(run, held.process)
        wait_for_end(run, token, pace, replicas, own=own, commits=commits)


def _check_goes_on(run: Run, token: str) -> None:
    """Raise if an attempt has an end, another checkpoint is in place, or processes disagree."""
    end = read_end(run, token)
    if isinstance(end, ShardvarError):
        raise end
    run.is_committed(token)
    if odd := run.odd_share():
        raise odd


# --- Attempts that process 0 begins


def save_called(run: Run, held: Holding, replicas: str, timeout: float) -> None:
    """Save in an attempt that process 0 begins, and wait until it is committed."""
    pace = pace_of(run, timeout)
    if held.process:
        _answer_calls(run, held, replicas, pace)
    else:
        _call_others(run, held, replicas, pace)


def _call_others(run: Run, held: Holding, replicas: str, pace: WaitPace) -> None:
    """Begin an attempt as process 0, and commit it."""
    token, nonce = run.new_token(), secrets.token_hex(8)

    def check(now: Run) -> None:
        newest, _ = now.calls()[-1] if now.calls() else (token, 0)
        if newest > token:
            error = twice_error(run, 0)
            give_up(now, newest, error)
            raise error

    try:
        with ending(run, token):
            run.target.storage.create_once(
                run.call(token), encode_call(held.slices, nonce, waits=True)
            )
            data = _Data(held)
            data.write(run, None)
            own = OwnShare.of(run, 0)
            data.answer(run, token)
            wait_for_end(run, token, pace, replicas, own=own, commits=True, check=check)
    except BaseException:
        leave(run, token)
        raise


def _answer_calls(run: Run, held: Holding, replicas: str, pace: WaitPace) -> None:
    """Answer the last call of process 0, and each one that comes after it."""
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
                        if not _is_same(run, held, after):
                            reason = twice_error(run, held.process)
                    if reason is None:
                        _follow(run, after, pace, replicas, own if is_mine else None)
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


def _is_same(run: Run, held: Holding, token: str) -> bool:
    """Return True if the share that another call has written under a token holds the same."""
    return run.share(token, held.process) in run.names() and is_same_share(
        run, read_share(run, token, held.process), held
    )


def _follow(run: Run, token: str, pace: WaitPace, replicas: str, own: OwnShare | None) -> None:
    """Wait for the end of an attempt; ``Superseded`` if process 0 calls again."""

    cause = f"Process 0 of the run {run.name!r} of {run.path} has begun another attempt."

    def check(now: Run) -> None:
        calls, late = now.calls(), StorageError(cause, SAVE_AGAIN)
        # The old attempt is ended before the new call is answered, so that only one of them can be
        # committed.
        if calls and calls[-1][0] > token and give_up(now, token, late) != "commit":
            raise Superseded

    try:
        wait_for_end(run, token, pace, replicas, own=own, commits=False, check=check)
    except StorageError as error:
        if error.cause == cause:  # another process has seen the new call first
            raise Superseded from None
        raise


def _wait_for_call(
    run: Run, pace: WaitPace, after: str, reason: ShardvarError | None
) -> tuple[Run, str]:
    """Return the token of the last call, once one comes after a token that is done with.

    Raises ``reason``, for which that token is done with, if no other one comes.
    """
    while True:
        calls = run.calls()
        token, count = calls[-1] if calls else ("", 0)
        if token > after and count == run.count:
            return run, token
        if token > after:
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
def telling(find: Callable[[], Run], process: int, timeout: float) -> Iterator[None]:
    """End the attempt for all with an error inside, which this process has before it has a share.

    The error is raised here once process 0 has begun the attempt. If it does not soon, the others
    wait until their time is over.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, TargetExists):  # which all find
            with suppress(ShardvarError):
                _end_early(find(), process, error, timeout)
        raise


def _end_early(run: Run, process: int, error: Exception, timeout: float) -> None:
    """End the attempt that the other processes make with an error of this one."""
    if run.count == 1:
        return
    told = error.at(f"process {process}") if isinstance(error, ShardvarError) else error
    if run.attempt is not None or has_begun(run):
        give_up(run, run.fixed_token, told)
        thread.failed = identity(run), run.fixed_token
    elif process:
        key, after = _last_failed(run, process)
        run, token = _wait_for_call(run, pace_of(run, min(timeout, _TELL_SECONDS)), after, None)
        give_up(run, token, told)
        remember(key, token)
    else:
        token, nothing = run.new_token(), source_of_shards({}).index.entries.slices
        call = encode_call(nothing, secrets.token_hex(8), waits=True)
        run.target.storage.create_once(run.call(token), call)
        give_up(run.refreshed(), token, told)
        leave(run, token)


# --- The commit of shares that were left for it


def commit_left(saved: Run, replicas: str, timeout: float) -> None:
    """Wait for the shares of the fixed token, and commit them, unless that is done.

    Shares that do not fit together poison the run; missing ones may still come.
    """
    token, pace, held = saved.fixed_token, pace_of(saved, timeout), None
    while True:
        if saved.is_committed(token):
            return
        end = read_end(saved, token)
        if isinstance(end, ShardvarError):
            raise end
        missing = saved.missing(token)
        if len(missing) == saved.count and saved.is_in_place():
            return
        if odd := saved.odd_share():
            raise odd
        if not missing:
            try:
                commit_token(saved, token, replicas)
                return
            except LockHeld as error:
                held = error
            except (CheckpointError, ArgumentError) as error:
                # Another process may have committed, and removed the shares, meanwhile.
                if give_up(saved, token, error) == "commit" and (
                    saved.refreshed().is_committed(token)
                ):
                    return
                raise
        if pace.is_over:
            if held is not None and saved.refreshed().is_committed(token):
                return
            raise late_error(saved, missing, timeout, held)
        pace.pause()
        saved = saved.refreshed()
