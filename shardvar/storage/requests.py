"""The requests to a server that holds files: clients, their attempts, answers and errors.

``objects`` and ``urls`` have the clients, ``remote`` and ``uploads`` use them. A key is a path from
the server's root, with "/" between its steps and none at its ends. Clients raise only shardvar's
errors.

Answers are compared with the content of the bucket: a service may confirm that it has taken a file,
and have an old one. A version by itself proves little: S3 gives the same bytes the same one, and a
copy another one than its source has.

Attempts. A request that fails in passing is made again, and all requests of the process slow down
together when a server asks for it.

    refused    the server refuses too many requests (503, 429): nothing is sent for a
               pause that grows, and half as many requests are under way after it
    stalled    no answer in time: again, with half as many under way
    broken     the connection is refused or breaks, or the server fails (500, 502, 504): again
    odd        an answer that cannot be decoded, such as half a listing: once more

Pauses and the number of requests recover as the server answers. A request is made again for
``patience_seconds`` (``storage.settings``), a broken one for less. Once all requests have failed for so long, each is
made only once, so that cleaning up after an error comes to an end.

Only what may be done twice is given to ``Pace.ask``: reads, whole files, and writes with a
condition.

Errors. obstore's errors have one line and then pages of the server's answer; only the line is kept,
without what may be secret in it (``requests.first_line``).
"""

import logging
import math
import os
import random
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Condition
from typing import Any, Literal, Protocol

from shardvar.errors import (
    COPY_AGAIN,
    AccessDenied,
    ArgumentError,
    LockHeld,
    MissingFile,
    ServerError,
    ShardvarError,
    StorageError,
    UnsupportedError,
)
from shardvar.forks import new_lock
from shardvar.pictures.words import message, named
from shardvar.records import field, frozen, mutable
from shardvar.storage import settings
from shardvar.storage.concurrency import Result, check_wanted, retries
from shardvar.storage.protocol import FileStatus

MOST_COPIED_NBYTES = 5 << 30
"""S3 copies no larger file in one request; such a one comes here in parts, and goes up again."""


@frozen
class Head:
    nbytes: int  # its size
    version: str
    """A text that differs for other content: an entity tag, a generation, or size and time; empty
    if not known."""
    changed: float | None  # the time of its last change, in seconds since the Epoch
    condition: Mapping[str, str] | None = field(default=None, compare=False, repr=False)
    """The version for a conditional request; None if unknown, as from a listing."""

    @property
    def stamp(self) -> str:
        """The text that differs for other content."""
        return f"{self.nbytes}-{self.version}"

    @property
    def status(self) -> FileStatus:
        return FileStatus(self.nbytes, self.changed, self.stamp)


@frozen
class FolderListing:
    files: Mapping[str, Head]  # the files, by bare name
    folders: Sequence[str]  # the bare names of the folders, sorted


def join_key(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder and name else folder or name


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error, without secrets in URLs and the server's page."""
    line = (str(error).splitlines() or [""])[0].partition(": <")[0] or type(error).__name__
    line = re.sub(r"(?<=://)[^/\s]*@", "", line)
    return re.sub(r"[?;][\w%]\S*", "", line).strip().rstrip(".:")


def read_whole(client: "Client", key: str, head: Head, start: int, nbytes: int) -> memoryview:
    """Return a range of a file; ``ServerError`` if the server sends another number of bytes twice."""
    for _ in range(2):  # what was cut on its way once comes whole then
        octets = client.read(key, head, start, nbytes)
        if len(octets) == nbytes:
            return octets
    cause = (
        f"{client.place(key)}: the server sent {len(octets)} of {nbytes} bytes at offset {start}."
    )
    raise ServerError(cause, "Try again. If it persists, a proxy may be truncating responses.")


class Client(Protocol):
    """The requests to one server. A key is a path from its root, without "/" at its ends."""

    def place(self, key: str) -> str:
        """Return the URL of a key, for messages and for users."""

    def head(self, key: str) -> Head:
        """Return the facts of a file; ``MissingFile`` if it does not exist."""

    def read(self, key: str, head: Head, start: int, nbytes: int) -> memoryview:
        """Return the bytes that the server sends for a range; ``CorruptCheckpoint`` if the file has
        another version."""

    def listing(self, key: str) -> FolderListing:
        """Return the content of a folder; empty if it does not exist."""

    def walk(self, key: str) -> dict[str, Head]:
        """Return the facts of all files below a folder, by their paths from it."""

    @property
    def can_write(self) -> bool:
        """Return True if it is a ``storage.uploads.BucketClient``."""


@frozen
class RootClient:
    # It is pickled as its root only: its open clients may have keys in them.
    root: str  # the URL of the server, or of the bucket, without "/" at its end
    _opened: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (type(self), self.root, settings.current())

    @property
    def can_write(self) -> bool:
        return False

    def place(self, key: str) -> str:
        return join_key(self.root, key)


def _reopened(kind: type[RootClient], root: str, options: settings.StorageOptions) -> RootClient:
    """Return a client in a worker, which takes over the settings of the process that sent it."""
    settings.use_storage_options(options)
    return kind(root)


class BucketClient(Client, Protocol):
    def put(self, key: str, path: str) -> Head:
        """Upload a local file, in parts if large, and return its facts; whole or not at all."""

    def copy(self, old: str, new: str, *, is_new: bool) -> None:
        """Copy a file; ``MissingFile``. ``is_new`` keeps one of the new name, except in S3."""

    def put_if(self, key: str, content: bytes, old: Head | None) -> Head:
        """Write a file in one step if ``old``, or no file, is there."""

    def delete(self, key: str) -> None:
        """Delete a file; does nothing if it does not exist."""

    def delete_all(self, keys: Sequence[str]) -> None:
        """Delete files, as many in one request as the service takes."""


def overtaken_error(place: str) -> LockHeld:
    cause = f"{place} was written by another writer meanwhile; nothing of this write is in place."
    return LockHeld(cause, "Look at what is there now, and run it again if it is to be replaced.")


def removed_error(place: str) -> LockHeld:
    """Return the error for a file, to be replaced, that was removed since this write began."""
    cause = (
        f"{place} was removed meanwhile, by another writer or with its bucket; nothing of this "
        "write is in place."
    )
    return LockHeld(cause, "Look at what is there now, and run it again if it is to be written.")


def commit_error(
    place: str, old: Head | None, after: Head | None, error: StorageError
) -> StorageError:
    """Return the error of a commit that failed; ``old`` was there before, and ``after`` is now."""
    if after is not None and (old is None or after.version != old.version):
        return overtaken_error(place)
    if not isinstance(error, LockHeld):
        return error
    if after is None and old is not None:
        return removed_error(place)
    cause = (
        f"{place}: the service refuses the commit as if another writer had been there, and nothing "
        "has changed."
    )
    return StorageError(
        cause, "End the lease or the hold that is on the file, or write under another name."
    )


def gone_error(place: str) -> StorageError:
    cause = (
        f"{place} is gone, which was uploaded for this checkpoint: another writer, or a rule of "
        "the bucket, has"
    )
    return StorageError(f"{cause} removed it.", "Write it again.")


def unknown_error(place: str) -> StorageError:
    cause = (
        f"{place}: the answer to the commit was lost, and whether the new checkpoint is in place "
        "is not known."
    )
    return StorageError(cause, "Verify what is there before you write again.")


def untrue_error(cause: str) -> StorageError:
    remedy = (
        "Save again. If it stays so, another writer or a rule of the bucket is at work, or the "
        "service answers"
    )
    return StorageError(cause, f"{remedy} untruly.")


def left_warning(folder: str, names: Collection[str]) -> str:
    return (
        f"{folder}: could not remove {named(sorted(names))}. Remove what is still there: no "
        "checkpoint needs it."
    )


def is_sent(sent: Head, before: Head | None, after: Head | None) -> bool:
    """Return True if a file that is found can be the one sent, and not ``before`` of its name."""
    if after is None or after.nbytes != sent.nbytes:
        return False
    return before is None or after.version in (sent.version, "") or after.version != before.version


def is_copy(
    client: Client, source: tuple[str, Head], copy: tuple[str, Head | None], before: Head | None
) -> bool:
    """Return True if a file is the copy of another; the bytes are read if versions do not tell."""
    (old, head), (new, copied) = source, copy
    if copied is None or copied.nbytes != head.nbytes:
        return False
    if before is None or copied.version in (head.version, "") or copied.version != before.version:
        return True
    part_nbytes = settings.current().part_nbytes
    for start in range(0, head.nbytes, part_nbytes):
        nbytes = min(part_nbytes, head.nbytes - start)
        if bytes(client.read(old, head, start, nbytes)) != bytes(
            client.read(new, copied, start, nbytes)
        ):
            return False
    return True


def find_head(client: Client, key: str) -> Head | None:
    """Return the facts of a file; None if it does not exist."""
    try:
        return client.head(key)
    except MissingFile:
        return None


def has_content(client: Client, key: str, content: bytes) -> bool:
    try:
        head = client.head(key)
        return (
            head.nbytes == len(content)
            and bytes(client.read(key, head, 0, len(content))) == content
        )
    except ShardvarError:
        return False


def put_once(client: BucketClient, key: str, content: bytes) -> Head | None:
    """Write a small file unless the name is taken, and return its facts; None if it is taken."""
    try:
        return client.put_if(key, content, None)
    except StorageError as error:
        # The answer may be lost, or it may answer a second attempt after the first took effect.
        if has_content(client, key, content):
            return client.head(key)
        if isinstance(error, LockHeld):
            return None
        raise


def current_head(client: Client, key: str, old: Head | None) -> Head | None:
    """Return the file that a commit replaces as it is now; ``LockHeld`` if it is not ``old``."""
    if old is None:
        return None
    head = find_head(client, key)
    if head is None:
        raise removed_error(client.place(key))
    if head.version != old.version:
        raise overtaken_error(client.place(key))
    return head


def read_back(client: Client, key: str, most_nbytes: int) -> tuple[Head, bytes] | None:
    """Return facts and content (empty if too large) of a file after a commit; None if missing."""
    try:
        head = client.head(key)
        if not 0 < head.nbytes <= most_nbytes:
            return head, b""
        return head, bytes(client.read(key, head, 0, head.nbytes))
    except MissingFile:
        return None
    except ShardvarError:
        raise unknown_error(client.place(key)) from None


FaultKind = Literal["refused", "stalled", "broken", "odd"]

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.2, 8.0
"""Pauses double from one to the other. After a minute of refusals, a pause ends within 8 s."""

_LEAST_REFUSALS = 5
"""A request is refused so often before it fails, since the others before it take their time."""

_MOST = 1024
"""Requests under way at a time if no server has refused any: as many as there are threads."""

_LOOK_SECONDS = 0.1  # Between two looks at whether a request that waits is still wanted


@frozen
class Fault:
    """A failure of a request that may pass."""

    kind: FaultKind  # the failure, by the words at the top of this module
    retry_after: float = 0.0  # the pause that the server asks for, in seconds; 0 if it names none


def pause_of_header(text: str | None) -> float:
    """Return the pause of a header ``Retry-After``, in seconds; 0 if there is none. It is shorter than
    the time in which a request is made again."""
    from email.utils import parsedate_to_datetime  # of no use where no server is asked

    try:
        seconds = float(text or 0)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(str(text)).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    longest = settings.current().patience_seconds * 11 / 12
    return min(max(seconds, 0.0), longest) if math.isfinite(seconds) else 0.0


@mutable
class Pace:
    """The pace of all requests of a process, which the servers' answers set."""

    patience: float | None = None
    """Seconds from the first attempt of a request to its last; None to use the settings."""
    patience_broken: float | None = None
    """The same for broken connections, which pass soon or never."""
    patience_unknown: float = 5.0
    """The same if no server has ever answered: the address may be wrong."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    spread: Callable[[], float] = random.random
    """Numbers from 0 to 1, which keep processes from coming back at the same moment."""
    most: int = _MOST  # the requests that may be under way
    pause: float = 0.0
    """The seconds of the last pause, less what the answers since then have taken off."""
    _ready: float = -math.inf  # No request begins before this time
    _slowed: float = -math.inf
    """The time of the last change to a slower pace. Requests from before it do not count again."""
    _failing: float = math.inf  # the time since which all requests have failed
    _failed: float = -math.inf  # the time of the last failure
    _has_answered: bool = False  # True once a server has answered
    _busy: set[int] = field(default_factory=set)  # the threads that have a request under way
    _changed: Condition = field(default_factory=lambda: Condition(new_lock()))

    def ask(
        self,
        request: Callable[[int], Result],
        fault_of: Callable[[Exception], Fault | None],
        asked_pause: Callable[[], float] = lambda: 0.0,
        what: str = "a request",
    ) -> Result:
        """Return the result of a request, called with the number of attempts before; ``what`` is for
        the log."""
        number, began = 0, self.clock()
        while True:
            self._enter()
            start, fault = self.clock(), None
            try:
                result = request(number)
            except Exception as error:
                fault = fault_of(error)
                if self._slow_down(fault, start) and (pause := asked_pause()):
                    self._ready = max(self._ready, start + pause)
                if fault is None or not self._may_repeat(fault, number, began):
                    raise
                reason = first_line(error)
            else:
                self._speed_up(start)
                return result
            finally:
                with self._changed:
                    self._busy.discard(threading.get_ident())
                    self._changed.notify()
            # A refused request waits with all others, and any other one for itself.
            until, now = self._ready, self.clock()
            if fault.kind != "refused":
                longest = min(math.ldexp(_SHORTEST_PAUSE, number), _LONGEST_PAUSE)
                until = now + longest * (0.5 + 0.5 * self.spread())
            number += 1
            self._note(what, f"{fault.kind} ({reason})", max(until - now, 0.0), number)
            if fault.kind != "refused":
                self._wait(until)

    def _note(self, what: str, why: str, pause: float, number: int) -> None:
        """Count a request that is made again, and log it."""
        with self._changed:
            retries[0] += 1
            retries[1] += pause
        line = f"{what}: {why}; attempt {number + 1} after a pause of {pause:.2g} s"
        logging.getLogger("shardvar.storage").info("%s", message(line))

    def wait(self) -> None:
        self._wait(self._ready)

    def _wait(self, until: float) -> None:
        while (pause := until - self.clock()) > 0:
            check_wanted()
            self.sleep(min(pause, _LOOK_SECONDS))

    def _enter(self) -> None:
        me = threading.get_ident()
        while True:
            self.wait()
            with self._changed:
                if self.clock() >= self._ready:
                    # By thread: a place that an interrupt has kept from being left is found again.
                    if len(self._busy - {me}) < self.most:
                        self._busy.add(me)
                        return
                    self._changed.wait(_LOOK_SECONDS)
            check_wanted()

    def _slow_down(self, fault: Fault | None, start: float) -> bool:
        """Note a failed attempt; return True for the first refusal since the pace was set."""
        with self._changed:
            now = self.clock()
            if fault is None or fault.kind in ("refused", "odd"):
                self._has_answered = True
            if fault is None:
                return False
            # A failure of an hour ago tells nothing about now.
            if start - self._failed > self._longest("") / 2:
                self._failing = math.inf
            self._failing, self._failed = min(self._failing, start), now
            if fault.kind not in ("refused", "stalled"):
                return False
            if is_first := start >= self._slowed:
                self._slowed = now
                self.most = max(min(self.most, len(self._busy)) // 2, 1)
                if fault.kind == "refused":
                    self.pause = min(max(2 * self.pause, _SHORTEST_PAUSE), _LONGEST_PAUSE)
            if fault.kind == "refused":
                pause = max(self.pause * (0.75 + 0.25 * self.spread()), fault.retry_after)
                self._ready = max(self._ready, self._slowed + pause, now + fault.retry_after)
            return is_first and fault.kind == "refused" and not fault.retry_after

    def _speed_up(self, start: float) -> None:
        """Take note of an answered attempt that was begun at a time."""
        with self._changed:
            self._has_answered, self._failing = True, math.inf
            if start >= self._slowed and self.most < _MOST:
                self.most += 1
                self.pause = self.pause / 2 if self.pause > _SHORTEST_PAUSE else 0.0
                self._changed.notify_all()

    def _longest(self, kind: str) -> float:
        options = settings.current()
        if kind != "broken":
            return options.patience_seconds if self.patience is None else self.patience
        if not self._has_answered:
            return self.patience_unknown
        given = self.patience_broken
        return options.broken_seconds if given is None else given

    def _may_repeat(self, fault: Fault, number: int, began: float) -> bool:
        if fault.kind == "odd":
            return number == 0
        now, longest = self.clock(), self._longest(fault.kind)
        if now - self._failing >= longest:
            return False
        is_early = fault.kind == "refused" and number < _LEAST_REFUSALS
        return is_early or now - began < longest


PACE = Pace()  # the pace of this process


ALLOW_HTTP = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP")
"""The variables by which obstore allows an unencrypted service."""

_CODE = re.compile(r"<Code>(\w{1,80})</Code>")
"""The word by which a service names an error, in its answer."""


_STATUS = re.compile(r"\bstatus: (\d{3})\b")
_KIND = re.compile(r"\bkind: (Timeout|Connect|Request|Interrupted|Decode|Body)\b")
"""The words of obstore for the status of an answer, and for what happened to a connection."""

FAULTS: dict[object, FaultKind] = {
    **dict.fromkeys((429, 503), "refused"),
    **dict.fromkeys((408, 500, 502, 504), "broken"),
}
"""The statuses of answers that may pass."""

_CODES: dict[str, FaultKind] = {
    **dict.fromkeys(
        ("SlowDown", "ServerBusy", "TooManyRequests", "RequestLimitExceeded", "Throttling"),
        "refused",
    ),
    "RequestTimeout": "broken",
}
"""Words of services for failures that may pass, with any status."""


def passing_fault(kinds: Any, error: Exception, *, conflicts_pass: bool) -> Fault | None:
    """Return the fault of a request that failed with ``error``, if it may pass; None otherwise."""
    text = str(error)
    status = int(match[1]) if (match := _STATUS.search(text)) else 0
    if isinstance(error, kinds.AlreadyExistsError):
        return Fault("broken") if conflicts_pass and status == 409 else None
    if not isinstance(error, kinds.GenericError):
        return None
    if status:
        code = match[1] if (match := _CODE.search(text)) else ""
        kind = _CODES.get(code) or FAULTS.get(status)
        return Fault(kind) if kind else None
    if "invalid list response" in text or "invalid DeleteObjects response" in text:
        return Fault("odd")
    if (match := _KIND.search(text)) is None:
        return None
    # A connection that cannot be made in time is not a request that has no answer.
    is_stalled = match[1] == "Timeout" and "ConnectError" not in text
    return Fault("stalled" if is_stalled else "broken")


Operation = Literal["list", "get", "put", "delete"]
"""A kind of request for which a service has a right; facts of a file are got."""
_RIGHTS: dict[str, dict[Operation, str]] = {
    scheme: dict(zip(("list", "get", "put", "delete"), rights.split(), strict=True))
    for scheme, rights in (
        ("s3", "s3:ListBucket s3:GetObject s3:PutObject s3:DeleteObject"),
        (
            "gs",
            "storage.objects.list storage.objects.get storage.objects.create storage.objects.delete",
        ),
        ("az", "List Read Write Delete"),
    )
}
"""The name of the right by the scheme of a URL."""


def denied_error(place: str, operation: Operation, code: str = "") -> AccessDenied:
    """Return the error for a denied operation; ``code`` is the service's word for the reason."""
    scheme = place.partition("://")[0]
    scheme = "az" if scheme in ("abfs", "abfss") else scheme
    right = (
        f"the right {_RIGHTS[scheme][operation]}"
        if scheme in _RIGHTS
        else f"the right to {operation}"
    )
    cause = f"{place}: permission is denied to {operation}{code and f' ({code})'}."
    remedy = f"Check the credentials in the environment, that they have {right}, and the clock of this machine."
    return AccessDenied(cause, remedy)


def whole_files_error(place: str) -> ServerError:
    cause = f"{place}: the server sends only whole files, and not the requested ranges."
    return ServerError(cause, "Download the file, or use a server that answers range requests.")


def odd_error(place: str, what: str, remedy: str = "") -> ServerError:
    remedy = remedy or "Check address, credentials and connection, and try again."
    return ServerError(f"{place} does not answer as it should: {what}.", remedy)


def check_process(first: int, use: str) -> None:
    """Raise ``UnsupportedError`` in a child of the process that has used a library first."""
    if first != os.getpid():
        cause = f"This process was forked from one that has used {use}, whose threads it lacks."
        remedy = "Start it with multiprocessing's method 'spawn', or fork before."
        raise UnsupportedError(cause, remedy)


def refused_error(kinds: Any, place: str, error: Exception, operation: Operation) -> ShardvarError:
    """Return the error for a failed request; ``kinds`` are obstore's classes of errors."""
    line = first_line(error)  # errors of listings have the status only in it
    if isinstance(error, FileNotFoundError) or "404 Not Found" in line:
        return MissingFile(f"{place} is missing.", COPY_AGAIN)
    # The service's word for the reason, such as ExpiredToken or RequestTimeTooSkewed; HEAD
    # answers have none.
    code = f" ({match[1]})" if (match := _CODE.search(str(error))) else ""
    if isinstance(error, kinds.PreconditionError):
        cause = (
            f"{place}: the service refuses the request, since a condition of the service does "
            f"not hold{code}."
        )
        return StorageError(
            cause, "End the lease or the hold that is on the file, or write under another name."
        )
    is_denied = isinstance(error, kinds.PermissionDeniedError | kinds.UnauthenticatedError)
    if is_denied or "403 Forbidden" in line or "401 Unauthorized" in line:
        return denied_error(place, operation, code.strip(" ()"))
    if "Range request not supported" in line:
        return whole_files_error(place)
    remedy = ""
    if "builder error" in line:
        allow = f"If it is not encrypted, set {' or '.join(ALLOW_HTTP)} to true."
        remedy = f"Check the address of the service in the environment. {allow}"
    elif (fault := passing_fault(kinds, error, conflicts_pass=False)) and fault.kind == "refused":
        remedy = (
            "It has refused all attempts of some minutes. Wait, or send fewer requests at a time."
        )
    return odd_error(place, line, remedy)


def broken_error(root: str, place: str, variables: str, error: BaseException) -> ShardvarError:
    """Return the error for values of the environment or answers with which obstore fails."""
    failed = f"obstore failed ({first_line(error)})."
    named = sorted(
        name for name, value in os.environ.items() if name.startswith(variables) and "\n" in value
    )
    if named:
        remedy = (
            f"Look at {' and '.join(named)} in the environment. Keys and tokens have no line ends."
        )
        return ArgumentError(f"{root} cannot be used: {failed}", remedy)
    remedy = (
        f"Look at what the service answers, and at the variables {variables}* in the environment."
    )
    return ServerError(f"{place}: {failed}", remedy)
