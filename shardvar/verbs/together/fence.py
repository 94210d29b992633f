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
again, by a new index for the same data.

Laws, which ``spec_tests/helpers/share_model.py`` proves for all interleavings of two and three
processes:

    1. Shares that are committed together were written by calls of one attempt.
    2. If a process returns, all processes that are alive return.

With an ``attempt`` that the caller gives to all processes, that text is the token. Without one, a
process that does not wait (``commit=False``) can prove nothing: such shares are committed by
``commit_shards``, when the caller knows that all processes have saved, and one of an earlier
attempt that has other values poisons the run.
"""

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import cast

from shardvar import errors
from shardvar.errors import (
    ArgumentError,
    IncompleteCheckpoint,
    LockHeld,
    MissingFile,
    ServerError,
    ShardvarError,
    StorageError,
)
from shardvar.formats.protocol import FileChecksums, Sink
from shardvar.planning.index import Metadata
from shardvar.planning.merging import name_processes
from shardvar.verbs.save import WRITER
from shardvar.verbs.together.run import END, LEFT, SAVE_AGAIN, OwnShare, Peers, Run
from shardvar.verbs.together.share_merge import merge_shares
from shardvar.wire.strict_json import parse_json

DESCRIPTION = "One file for each process."

_DISK_SECONDS = 0.02, 1.0, 1.5
"""The first and the longest pause between two looks at a disk, and the factor from one pause to the
next."""

_LOOKS_A_SECOND = 25
"""Looks at a bucket by all processes together, at the first pause: a look is a request."""

_BUCKET_SECONDS = 0.5, 4.0, 30.0, 2.0
"""The first pause is from the first to the second of these; then the longest one, and the factor."""

_GROUP_SECONDS = 1.0, 8.0
"""The first and the longest pause between two questions to the group: each leaves a few bytes in it."""

_MOST_FINISHES, _FINISH_SECONDS = 60, 1.0
"""Attempts at a commit that another process has decided and may be at, and the pause between two."""


@dataclass(slots=True)
class WaitPace:
    """The pauses of one process that waits."""

    timeout: float
    """The seconds after which it gives up."""
    deadline: float
    """The time at which it gives up."""
    seconds: float
    """The next pause."""
    longest: float
    """The longest pause."""
    factor: float
    """The growth from one pause to the next."""
    peers: Peers | None = None
    """The processes, if a group connects them."""
    asked: list[float] = field(default_factory=lambda: [time.monotonic(), _GROUP_SECONDS[0]])
    """The time at which the group was asked, and the pause after it."""

    def ended(self, awaited: Sequence[int]) -> list[int]:
        """Return awaited processes that have ended; none if the group was just asked."""
        last, pause = self.asked
        if self.peers is None or time.monotonic() < last + pause:
            return []
        self.asked = [time.monotonic(), min(2 * pause, _GROUP_SECONDS[1])]
        return self.peers.ended(awaited)

    @property
    def is_over(self) -> bool:
        """True once the time is over."""
        return time.monotonic() >= self.deadline

    def pause(self) -> None:
        """Pause, and no longer than to the deadline."""
        time.sleep(min(self.seconds, max(self.deadline - time.monotonic(), 0)))
        self.seconds = min(self.seconds * self.factor, self.longest)


def pace_of(run: Run, timeout: float) -> WaitPace:
    """Return the pauses of a process of a run."""
    is_local = run.target.storage.local_path is not None
    return pace_at(timeout, run.count, run.peers, is_local=is_local)


def pace_at(timeout: float, count: int, peers: Peers | None, *, is_local: bool) -> WaitPace:
    """Return the pauses of one of several processes, which look at a bucket seldom."""
    deadline = time.monotonic() + timeout
    if is_local:
        first, longest, factor = _DISK_SECONDS
    else:
        least, most, longest, factor = _BUCKET_SECONDS
        first = min(max(least, count / _LOOKS_A_SECOND), most)
    return WaitPace(timeout, deadline, first, longest, factor, peers)


class Superseded(Exception):
    """Process 0 has begun another attempt."""


class Vanished(Exception):
    """The files of an attempt are gone, so no mark of it can be made; the cause is the error."""


# --- The end of an attempt


def read_end(run: Run, token: str, *, known: set[str] | None = None) -> str | ShardvarError | None:
    """Return the end of an attempt: None, "commit", or the error that all processes raise.

    ``known`` has the marks that are known to say "commit", which are read once.
    """
    name = run.mark(token, END)
    if name not in run.target.storage.names():
        return None
    if known is not None and name in known:
        return "commit"
    try:
        file = run.target.storage.open(name)
        content = file.read(0, file.size)
        file.close()
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


def give_up(run: Run, token: str, error: BaseException) -> str | ShardvarError:
    """End an attempt with an error, and return it; the other end, if the attempt has one.

    "commit" is also the end of an attempt whose marks are gone, since it is committed.
    """
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
    """Say that process 0 has left its attempt, so that the others stop waiting for another call."""
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
    """Remember an attempt that has failed, and forget the oldest."""
    failed.pop(key, None)
    failed[key] = token
    for old in list(failed)[:-MOST_OPEN]:
        failed.pop(old, None)


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
    """Raise ``StorageError`` if another checkpoint is in place after an error.

    Its commit has removed the files of this attempt: that says more than that they are gone.
    """
    if isinstance(error, ShardvarError):
        try:
            run.refreshed().is_committed(token)
        except ServerError:
            return
        except StorageError as replaced:
            raise replaced from error


# --- The commit


def commit_token(run: Run, token: str, replicas: str) -> None:
    """Merge the shares of an attempt, end it with "commit", and put the checkpoint in place.

    Raises the error of the end, what the merge finds, and ``LockHeld`` if a writer is at work.
    Nothing is done if the attempt is committed.
    """
    with run.target.storage.lock(run.target.stem):
        if run.is_committed(token):
            return
        end = read_end(run, token)
        if isinstance(end, ShardvarError):
            raise end
        about = Metadata(DESCRIPTION, WRITER, generation=run.generation(token))
        sink, checksums = merge_shares(run, token, about, replicas)
        with sink.holding():
            _commit(run, token, sink, checksums, is_decided=end is not None)
        if run.peers is not None:
            run.peers.tell(run.generation(token), "committed")


def _commit(
    run: Run, token: str, sink: Sink, checksums: FileChecksums, *, is_decided: bool
) -> None:
    """End an attempt with "commit", unless it has an end, and put the checkpoint in place."""
    if not is_decided and not run.target.storage.create_once(run.mark(token, END), _end("commit")):
        end = read_end(run.refreshed(), token)
        if isinstance(end, ShardvarError):
            raise end
    try:
        sink.commit([checksums])
    except BaseException as error:
        _revoke(run.refreshed(), token, error)
        raise


def _revoke(run: Run, token: str, error: BaseException) -> None:
    """Turn "commit" into an error that the commit has raised, before another process tries again.

    Only on a disk, where the lock keeps others from it; in a bucket they may finish the commit.
    """
    storage = run.target.storage
    with suppress(ShardvarError):
        if storage.local_path is not None and not run.is_committed(token):
            storage.remove(run.mark(token, END))
            give_up(run, token, error)


def wait_for_end(
    run: Run,
    token: str,
    pace: WaitPace,
    replicas: str,
    *,
    own: OwnShare | None,
    commits: bool,
    check: Callable[[Run], None] = lambda _run: None,
) -> None:
    """Wait until an attempt is committed, and commit it if this process does that.

    ``check`` looks at each state of the directory, and raises if the attempt cannot go on. With
    an ``own`` share, a process finishes what another has decided.
    """
    known: set[str] = set()
    held: LockHeld | None = None
    while True:
        # In a bucket a look costs a request, and the others have hardly answered yet.
        if run.count > 1 and run.target.storage.local_path is None:
            pace.pause()
        run = run.refreshed()
        if _is_over(run, token, own, is_decided=bool(known)):
            return
        end = read_end(run, token, known=known)
        if isinstance(end, ShardvarError):
            raise end
        if end is None:
            check(run)
        missing = run.missing(token)
        if commits and not missing:
            try:
                commit_token(run, token, replicas)
                return
            except LockHeld as error:
                held = error
        ended = pace.ended(
            [each for each in missing if not own or each != own.process] if commits else [0]
        )
        if ended or pace.is_over:
            late = late_error(run, missing, pace.timeout, held, ended)
            end = give_up(run, token, late)
            if isinstance(end, ShardvarError):
                raise end from None
            if own is None and not run.refreshed().is_committed(token):
                raise late
            _finish(run, token, replicas)
            return
        if run.count == 1 or run.target.storage.local_path is not None:
            pace.pause()


def _is_over(run: Run, token: str, own: OwnShare | None, *, is_decided: bool) -> bool:
    """Return True if an attempt is committed, be it moved or replaced since.

    Raises ``Vanished`` if its files are gone for an unknown reason.
    """
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


def _finish(run: Run, token: str, replicas: str) -> None:
    """Make a commit that another process has decided, and perhaps does not go on with."""
    for attempt in range(_MOST_FINISHES):
        run = run.refreshed()
        try:
            commit_token(run, token, replicas)
            return
        except LockHeld:
            if attempt == _MOST_FINISHES - 1:
                raise
            time.sleep(_FINISH_SECONDS)


def late_error(
    run: Run,
    missing: list[int],
    timeout: float,
    held: LockHeld | None = None,
    ended: Sequence[int] = (),
) -> ShardvarError:
    """Return the error for processes that ended, for missing shares, or for a missing commit."""
    if ended:
        who, have = name_processes(ended), "have" if len(ended) > 1 else "has"
        cause = f"{who[:1].upper()}{who[1:]} of {run.count} {have} ended before the commit."
        cause = f"{cause} {run.path} is as it was before the run {run.name!r}."
        return IncompleteCheckpoint(cause, f"Find out why. {SAVE_AGAIN}")
    if missing:
        who = name_processes(missing)
        cause = f"{who[:1].upper()}{who[1:]} of {run.count} did not save within {timeout:g} s."
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
    """Return the error for a process number that another call has used."""
    cause = (
        f"Process {process} of the run {run.name!r} of {run.path} has saved already, and other "
        "values."
    )
    return ArgumentError(
        cause,
        "Give each process its own number, and each save a new run; give each restart an attempt.",
    )
