"""One write into a bucket: finished files, and a commit that is one conditional request.

A bucket has neither random writes nor renames nor locks, so a write is another than on a disk:

    create, write    in a folder of temporary files on this machine
    finish           uploads a closed file that was announced, in parts: no index names it before
                     the commit
    move             uploads a file under its final name
    rename           the commit: it uploads the last file (the index, or the only file) in one
                     request, if the bucket is unchanged since the write began
    lend             the files that other processes write, who upload them under their temporary
                     names: ``move`` copies them within the bucket, and ``rename`` reads the one
                     that is the commit back

A writer that loses the race against another gets ``LockHeld``, and nothing of its checkpoint is in
place. A request whose answer is lost may have taken effect, so after any error the file is read
back and compared. Answers are verified: one listing before the commit must have what was uploaded,
and the index is looked at before the old data files are removed.

Where names of data files do not differ between writers, they are claimed first, by an object that
only one can create. A killed writer leaves it, as the next one's error reports. Announced names
differ, and need none. A claim that is held is the moment to compare: if a numbered file of this
checkpoint, such as the part of a set, is another than at the beginning, another writer has come
before, and nothing is changed.

Claims: the objects by which one writer at a time has the names of a checkpoint in a bucket.

    .NAME.claim    a line of JSON: who has made it (machine, process, release), and the time by that
                   machine's clock

Only one writer can create it, and it is removed at the end of the write. A writer that was killed
leaves it. Nothing but the object's being there is believed: neither its age nor a clock decides,
since a writer that is slow, or whose clock jumps, is still a writer. So it goes when a person knows
that the writer is dead (``break_claim``).

The claim of a removal is marked. It keeps writers out, and another removal takes it over: two that
remove the same files do no harm, and one that was killed is finished.

    .NAME.TOKEN.uploads    the same line: a writer that uploads files in parts, or has others do it

It keeps no writer out. A service does not list unfinished uploads among the files, and they cost
money. So the next writer of the checkpoint finds the mark, names them, and removes it.
"""

import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from threading import RLock
from typing import Any

from shardvar._version import __version__
from shardvar.errors import (
    CheckpointError,
    LockHeld,
    MissingFile,
    ShardvarError,
    StorageError,
    log_warning,
)
from shardvar.forks import new_lock
from shardvar.records import field, mutable
from shardvar.storage import settings
from shardvar.storage.concurrency import Room
from shardvar.storage.posix import LocalReadableFile, LocalWritableFile, create_local, open_local
from shardvar.storage.requests import (
    MOST_COPIED_NBYTES,
    BucketClient,
    Client,
    Head,
    commit_error,
    current_head,
    find_head,
    gone_error,
    is_copy,
    is_sent,
    join_key,
    left_warning,
    overtaken_error,
    put_once,
    read_back,
    read_whole,
    unknown_error,
    untrue_error,
)
from shardvar.storage.settings import ONE_PUT_NBYTES
from shardvar.wire.strict_json import parse_json

_MOST_NBYTES = 4096  # No claim has more
_WORD = re.compile(r"[^\w.:+-]")
"""Characters that a claim of ours does not have, which are not repeated in messages."""


def claim_name(stem: str) -> str:
    """Return the name of the claim of a checkpoint, by its name without an ending."""
    return f".{stem}.claim"


def uploads_marks(stem: str, names: Iterable[str]) -> list[str]:
    mark = re.compile(rf"\.{re.escape(stem)}\.[0-9a-f]{{16}}\.uploads", re.DOTALL)
    return [name for name in names if mark.fullmatch(name)]


def _owner_text(token: str, *, removes: bool = False) -> bytes:
    """Return the content of a claim; ``token`` differs for each write."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    about = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "shardvar": __version__,
        "time": now,
        "write": token,
    }
    return json.dumps(about | ({"removes": True} if removes else {})).encode()


def _read_claim(client: Client, key: str) -> tuple[Head, Any]:
    head = client.head(key)
    nbytes = min(head.nbytes, _MOST_NBYTES)
    return head, parse_json(bytes(client.read(key, head, 0, nbytes)) if nbytes else b"", 1)


def _removal_head(client: Client, key: str) -> Head | None:
    """Return the facts of a claim that a removal has made; None of any other."""
    try:
        head, content = _read_claim(client, key)
    except CheckpointError:  # it is gone, or of another program
        return None
    return head if isinstance(content, dict) and content.get("removes") is True else None


def whose(about: Any) -> str:
    """Return who has made a claim, and when; empty if it is not a claim."""
    try:
        who = [
            _WORD.sub("?", str(about[name]))[:80]
            for name in ("shardvar", "process", "host", "time")
        ]
    except (KeyError, TypeError):
        return ""
    return "made by shardvar {}, process {} on {}, at {}".format(*who)


def describe_claim(client: Client, key: str) -> str:
    """Return who holds a claim, and since when; empty if it is gone."""
    try:
        about = _read_claim(client, key)[1]
    except MissingFile:
        return ""
    except (ShardvarError, ValueError):
        about = None
    return whose(about) or "which does not say whose it is"


AT_WORK: set[str] = set()
"""The tokens of the writes of this process that have not ended."""


def is_at_work(about: Mapping[str, Any]) -> bool:
    """Return True if the process that has made a claim is alive on this machine."""
    process = about["process"]
    if about["host"] != socket.gethostname() or type(process) is not int or process < 1:
        return False
    if process == os.getpid():
        return about.get("write") in AT_WORK
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # of another user
        pass
    return True


def _claimed_error(client: BucketClient, claim: str, key: str) -> LockHeld:
    about = describe_claim(client, claim)
    held = client.place(claim)
    cause = (
        f"{client.place(key)} is being written by another writer, which holds "
        f"{held}{about and f', {about}'}."
    )
    command = f"python -c 'import shardvar; print(shardvar.break_claim({json.dumps(held)}))'"
    if _removal_head(client, claim) is not None:
        cause = f"{client.place(key)} is being removed by another job, which holds {held}."
        return LockHeld(cause, "Wait until it is done. If it was killed, remove it again.")
    return LockHeld(
        cause, f"Wait until it is done. If it was killed, remove what it holds: {command}"
    )


@mutable
class BucketClaim:
    """The claim of one write, which is made when it is first needed."""

    client: BucketClient  # the requests
    folder: str  # the key of the checkpoint's folder
    stem: str  # the name of the checkpoint, without its ending
    token: str  # a text that differs for each write
    is_made: bool = False  # True once the bucket has the claim
    removes: bool = False  # True if it is a removal's
    _files: Mapping[str, Head] | None = None
    _refusal: ShardvarError | None = None  # the error of a claim that failed
    _lock: RLock = field(default_factory=new_lock)
    """Held while the claim is made; there is one for all threads."""

    def hold(self, check: Callable[[Mapping[str, Head]], None]) -> Mapping[str, Head]:
        """Claim the names once, and return the files that were there, which ``check`` accepts."""
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            if self._files is None:
                try:
                    files = self._make()
                    check(files)
                except ShardvarError as error:
                    self._refusal = error
                    raise
                self._files = files
            return self._files

    def _make(self) -> Mapping[str, Head]:
        name, text = claim_name(self.stem), _owner_text(self.token, removes=self.removes)
        key, stem_key = join_key(self.folder, name), join_key(self.folder, self.stem)
        is_free = put_once(self.client, key, text) is not None
        if not (is_free or (self.removes and self._take_over(key, text))):
            raise _claimed_error(self.client, key, stem_key)
        self.is_made = True
        files = self.client.listing(self.folder).files
        if name not in files and find_head(self.client, key) is None:
            place = self.client.place(key)
            raise untrue_error(f"{place} is not there, which the service has taken.")
        return files

    def _take_over(self, key: str, text: bytes) -> bool:
        """Replace the claim of another removal; False if it is a writer's, or has changed."""
        head = _removal_head(self.client, key)
        with suppress(LockHeld):
            return head is not None and bool(self.client.put_if(key, text, head))
        return False


@mutable
class UploadsMark:
    """The mark of one write that uploads files in parts, which is made when it is first needed."""

    client: BucketClient  # the requests
    folder: str  # the key of the checkpoint's folder
    stem: str  # the name of the checkpoint, without its ending
    earlier: list[str] = field(default_factory=list)  # the marks of earlier writers
    made: list[str] = field(default_factory=list)
    """The mark of this write, once the bucket may have it."""
    _lock: RLock = field(default_factory=new_lock)

    def find(self, there: dict[str, Head]) -> None:
        """Take the marks of earlier writers out of a listing, and log what these may have left."""
        self.earlier = uploads_marks(self.stem, there)
        for name in self.earlier:
            del there[name]
        if self.earlier:
            whose = describe_claim(self.client, join_key(self.folder, self.earlier[0]))
            warning = (
                f"{self.client.place(self.folder)}: an earlier writer of {self.stem!r}"
                f"{whose and f', {whose},'} has not ended. If it was killed, it may have left "
                "unfinished uploads, which cost money, under keys that begin with "
                f"{join_key(self.folder, self.stem)!r}. End them with the tools of the service, or by a "
                "lifecycle rule (AbortIncompleteMultipartUpload)."
            )
            log_warning(warning, "storage")

    def make(self) -> None:
        """Make the mark before the first upload in parts."""
        with self._lock:
            if not self.made:
                token = os.urandom(8).hex()
                AT_WORK.add(token)
                self.made.append(f".{self.stem}.{token}.uploads")
                with suppress(LockHeld):  # by its own first attempt, of which the answer was lost
                    key = join_key(self.folder, self.made[0])
                    self.client.put_if(key, _owner_text(token), None)


ONE_REQUEST_NBYTES = 64 << 20
"""A commit of at most this size is one conditional request, held in memory twice. A larger file
goes up in parts, without a condition: its version is compared just before, under a claim."""

_NUMBERED = re.compile(r"(\.data)?-\d+-of-\d+(\D|\Z)|\Z")
"""The text after the name of a checkpoint in its numbered files; none in the index of a folder."""


@mutable
class Upload:
    """The state of one write, from its beginning."""

    client: BucketClient  # the requests
    key: str  # the folder's key
    stem: str  # the name of the checkpoint, without its ending
    there: dict[str, Head]
    """The files of the folder at the beginning, with the changes of this write."""
    folder: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="shardvar-"))
    staged: dict[str, str] = field(default_factory=dict)
    """The files that are only on this machine, by name, each with its path."""
    announced: set[str] = field(default_factory=set)  # Names that are final from the beginning
    claim: BucketClaim = field(init=False)
    """The claim of the checkpoint's names, for the case that it is needed."""
    mark: UploadsMark = field(init=False)  # the mark of uploads in parts
    lent: set[str] = field(default_factory=set)
    """Files that other processes write, and upload under these names."""
    own: dict[str, Head | None] = field(default_factory=dict)
    """The files that this write has uploaded, each with its predecessor."""
    left: set[str] = field(default_factory=set)  # Files that could not be removed
    is_borrowed: bool = False
    """True in the process that writes a file for another, which has made the mark."""
    is_committed: bool = False  # True once the commit was made
    is_open: bool = False  # True while the outcome of the commit is not known
    room: Room = field(default_factory=lambda: Room(settings.current().in_flight_nbytes))
    """The memory of the uploads that are under way."""
    upload_nbytes: int = field(default_factory=lambda: settings.current().upload_nbytes)
    """The most memory of one of them."""

    def __post_init__(self) -> None:
        self.claim = BucketClaim(self.client, self.key, self.stem, self.folder)
        self.mark = UploadsMark(self.client, self.key, self.stem)
        AT_WORK.add(self.folder)
        self.mark.find(self.there)

    def create(self, name: str) -> LocalWritableFile:
        path = os.path.join(self.folder, os.urandom(8).hex())
        file = create_local(path, is_forced=False)
        self.staged[name] = path
        return file

    def open(self, name: str) -> LocalReadableFile | None:
        """Open a file that is only on this machine, or None. An announced file goes up first."""
        self.send(name)
        return open_local(self.staged[name]) if name in self.staged else None

    def names(self) -> list[str]:
        """Return the names of all files; ``StorageError`` while the commit's outcome is unknown."""
        if self.is_open:
            raise unknown_error(self.client.place(self.key))
        return sorted(name for name in {*self.there, *self.staged, *self.lent} if "/" not in name)

    def head(self, name: str) -> Head | None:
        """Return the facts of a file as this write leaves it, uploaded if announced."""
        self.send(name)
        if name in self.staged:
            return Head(os.path.getsize(self.staged[name]), "", None)
        return self.there.get(name)

    def ask(self, name: str) -> Head:
        """Return the facts of a file in the bucket; ``StorageError`` if a lent one is missing."""
        try:
            return self.client.head(self._join(name))
        except MissingFile:
            if name not in self.lent:
                raise
            raise gone_error(self._place(name)) from None

    def lend(self, names: Iterable[str], nbytes: int) -> None:
        """Leave files to other processes, and claim the names that are not announced."""
        names = set(names)
        if names - self.announced:
            self.hold()
        if nbytes > ONE_PUT_NBYTES // 2:  # with its frame, a file is somewhat larger
            self.mark.make()
        self.lent |= names
        self.announced |= names  # so that the journals of these files go up as they do
        for name in names:
            self.there.pop(name, None)  # of an earlier run, which another one takes the place of

    def hold(self) -> Mapping[str, Head]:
        """Keep out other writers of this checkpoint, and return the files that were there then."""
        return self.claim.hold(self._check_numbered)

    def move(self, old: str, new: str) -> None:
        """Upload a file under its final name, or copy it there; names that may belong to others are
        claimed.

        A copy under an announced name may be there already: of another process that commits the
        same.
        """
        is_uploaded = old not in self.staged
        if not (is_uploaded and new in self.announced):
            self._check_unchanged(new, self.hold())
        if is_uploaded:
            self._copy(old, new, may_exist=new in self.announced)
        else:
            self._put(old, new)

    def rename(self, old: str, new: str) -> None:
        """Commit: put the last file, staged or uploaded, in place if the old one is unchanged."""
        is_uploaded, key = old not in self.staged, self._join(new)
        self._check_stored()
        replaced = self.there.get(new)
        if (
            self._uploaded(old).nbytes if is_uploaded else os.path.getsize(self.staged[old])
        ) > ONE_REQUEST_NBYTES:
            self.hold()
            self._check_unchanged(new, self.client.listing(self.key).files)
            self.is_open = True
            if is_uploaded:
                self._copy(old, new, may_exist=False)
            else:
                self._put(old, new)
            self.is_open = False
        else:
            content = self._content(old)
            self.there.pop(new, None)  # from now on the bucket is asked
            self.there[new] = self._commit(key, content, replaced)
        self._check_in_place(new, replaced)
        self.is_committed = True
        self.drop(old)
        if is_uploaded:
            del self.there[old]
            self.lent.discard(old)
            with suppress(StorageError):  # the commit is made, and ``end`` names the file
                self._delete(old)

    def remove(self, name: str) -> None:
        """Delete a file, whether it went up already or not."""
        self.drop(name)
        if name in self.lent:
            # Whether its writer had finished it is not known here.
            self.lent.remove(name)
            self.there.pop(name, None)
            self._delete(name)
        elif name in self.there or "/" in name:  # files of folders below are not listed
            is_needed = not self.is_committed and name not in self.own
            if is_needed and name not in self.announced:
                # The old index of a set goes before the new files come: it must still be as
                # it was seen.
                self._check_unchanged(name, self.hold())
            try:
                self._delete(name)
            except StorageError:
                if is_needed:
                    self.left.discard(name)  # it stays with the old checkpoint
                # The answer may be lost. An index that is still there must not be taken for one
                # that is gone.
                if self._find(name) is not None:
                    raise
                self.left.discard(name)
            self.there.pop(name, None)

    def learn(self, before: Mapping[str, Head], after: Mapping[str, Head]) -> None:
        """Take over the changes of a write within this one, not of others."""
        for name in {*before, *after}:
            if before.get(name) == after.get(name):
                continue
            if name in after:
                self.there[name] = after[name]
            else:
                self.there.pop(name, None)

    def unsent(self) -> list[str]:
        return [name for name in list(self.staged) if self._is_announced(name)]

    def send(self, name: str) -> None:
        """Upload a file that is closed, if it was announced and is only on this machine."""
        if name in self.staged and self._is_announced(name):
            try:
                self._put(name, name)
            finally:
                # After an error too: what follows removes files, and must not upload this one
                # again.
                self.drop(name)

    def end(self) -> None:
        """Remove the temporary files and the claim, and log what could not be removed."""
        AT_WORK.difference_update([self.folder, *(name.split(".")[-2] for name in self.mark.made)])
        shutil.rmtree(self.folder, ignore_errors=True)
        claims = [claim_name(self.stem)] if self.claim.is_made else []
        for name in claims + self.mark.made + self.mark.earlier * self.is_committed:
            with suppress(StorageError):
                self._delete(name)
        if self.left:
            # Errors of a removal are suppressed, since its cause tells more. Nothing else
            # names these files.
            log_warning(left_warning(self.client.place(self.key), self.left), "storage")

    def _commit(self, key: str, content: bytes, old: Head | None) -> Head:
        """Make the conditional request, and find out what became of it if its answer was lost."""
        current = current_head(self.client, key, old)
        for attempt in range(2):
            self.is_open = True
            try:
                head = self.client.put_if(key, content, current)
            except StorageError as error:
                after = read_back(self.client, key, ONE_REQUEST_NBYTES)
                self.is_open = False
                if after is not None and after[1] == content:
                    return after[0]
                if after is None and old is None and attempt == 0:
                    continue  # refused because of a file that was being removed
                raise commit_error(self.client.place(key), old, after and after[0], error) from None
            self.is_open = False
            return head
        raise overtaken_error(self.client.place(key))

    def _put(self, old: str, new: str) -> None:
        nbytes = os.path.getsize(self.staged[old])
        if nbytes > ONE_PUT_NBYTES and not self.is_borrowed:
            self.mark.make()
        with self.room.hold(min(nbytes, self.upload_nbytes)):
            # Before the request: a file whose answer is lost must be removed as well.
            self.own.setdefault(new, self.there.get(new))
            self.there[new] = Head(nbytes, "", None)
            self.there[new] = self.client.put(self._join(new), self.staged[old])
        self.drop(old)

    def _uploaded(self, name: str) -> Head:
        """Return the facts of a file that another process has uploaded, or an earlier run."""
        if name not in self.there:
            head = self._find(name)
            if head is None:
                raise gone_error(self._place(name))
            self.there[name] = head
        return self.there[name]

    def _content(self, name: str) -> bytes:
        if name in self.staged:
            with open(self.staged[name], "rb") as file:
                return file.read()
        head = self._uploaded(name)
        if not head.nbytes:
            return b""
        try:
            return bytes(read_whole(self.client, self._join(name), head, 0, head.nbytes))
        except MissingFile:
            raise gone_error(self._place(name)) from None

    def _copy(self, old: str, new: str, *, may_exist: bool) -> None:
        """Copy a file within the bucket. With ``may_exist``, another process that commits the same
        may have done so; a file of that size is left, since a copy might change its version."""
        source, before = self._uploaded(old), self.there.get(new)
        nbytes = source.nbytes
        if not may_exist:
            self.own.setdefault(new, before)
            self.there[new] = Head(nbytes, "", None)  # before the request: its answer may be lost
        head = self._find(new) if may_exist else None
        if head is None or head.nbytes != nbytes:
            try:
                with self.room.hold(self.upload_nbytes if nbytes > MOST_COPIED_NBYTES else 0):
                    self.client.copy(
                        self._join(old), self._join(new), is_new=may_exist and head is None
                    )
            except MissingFile:
                raise gone_error(self._place(old)) from None
            head = self._find(new)
            with self.room.hold(self.upload_nbytes):
                is_copied = is_copy(
                    self.client, (self._join(old), source), (self._join(new), head), before
                )
            if head is None or not is_copied:
                has = "is not there" if head is None else f"has {head.nbytes} bytes"
                has = "has its old bytes" if head and head.nbytes == nbytes else has
                raise untrue_error(f"{self._place(new)} {has} after a copy of {nbytes}.")
        self.there[new] = head

    def _check_stored(self) -> None:
        """Raise unless the bucket has each uploaded file, journals aside, as it was sent."""
        names = sorted(self.own.keys() & self.there.keys())
        names = [name for name in names if name.rpartition(".")[0] not in self.announced]
        if not names:
            return
        is_deep = any("/" in name for name in names)
        now = self.client.walk(self.key) if is_deep else self.client.listing(self.key).files
        for name in names:
            sent, before = self.there[name], self.own[name]
            if not (
                is_sent(sent, before, now.get(name)) or is_sent(sent, before, self._find(name))
            ):
                cause = f"{self._place(name)} is not the file that was uploaded, or is gone"
                raise untrue_error(f"{cause}; nothing of this write is in place.")

    def _check_in_place(self, name: str, old: Head | None) -> None:
        """Raise ``StorageError`` if the commit is answered, but the old file or none is there."""
        for _ in range(2):  # a gateway may lag
            try:
                head = self._find(name)
            except ShardvarError:
                return  # the answer stands
            is_old = head and old and head.version == old.version != self.there[name].version
            if head is not None and not is_old:
                return
        self.is_open = True
        seems = f"{self._place(name)} seems to be {'as it was' if head else 'not there'}"
        raise untrue_error(f"{seems} after the commit, which the service has taken.")

    def _delete(self, name: str) -> None:
        """Delete a file from the bucket, and remember it if that fails."""
        self.left.add(name)
        self.client.delete(self._join(name))
        self.left.discard(name)

    def _find(self, name: str) -> Head | None:
        return find_head(self.client, self._join(name))

    def drop(self, name: str) -> None:
        path = self.staged.pop(name, None)
        if path is not None:
            with suppress(OSError):
                os.unlink(path)

    def _check_numbered(self, now: Mapping[str, Head]) -> None:
        """Raise ``LockHeld`` if a numbered file of others is not as it was at the beginning."""
        for name in sorted({*self.there, *now} - self.own.keys()):
            if name.startswith(self.stem) and _NUMBERED.match(name, len(self.stem)):
                self._check_unchanged(name, now)
                times = {head.changed for head in (self.there.get(name), now.get(name)) if head}
                if len(times - {None}) > 1:  # it was written again with the same bytes
                    raise overtaken_error(self._place(name))

    def _check_unchanged(self, name: str, now: Mapping[str, Head]) -> None:
        """Raise ``LockHeld`` if a file is another than at the beginning."""
        before, after = self.there.get(name), now.get(name)
        if (before and before.version) != (after and after.version):
            raise overtaken_error(self._place(name))

    def _is_announced(self, name: str) -> bool:
        # The journal of a file has the file's name and an ending.
        return name in self.announced or name.rpartition(".")[0] in self.announced

    def _join(self, name: str) -> str:
        return join_key(self.key, name)

    def _place(self, name: str) -> str:
        return self.client.place(self._join(name))
