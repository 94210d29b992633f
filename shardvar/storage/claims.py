"""Claims: the objects by which one writer at a time has the names of a checkpoint in a bucket.

    .NAME.claim    a line of JSON: who has made it (machine, process, release), and the time by that
                   machine's clock

Only one writer can create it, and it is removed at the end of the write. A writer that was killed
leaves it. Nothing but the object's being there is believed: neither its age nor a clock decides,
since a writer that is slow, or whose clock jumps, is still a writer. So it goes when a person says
that the writer is dead (``break_claim``).

The claim of a removal says so. It keeps writers out, and another removal takes it over: two that
remove the same files do no harm, and one that was killed is finished.

    .NAME.TOKEN.uploads    the same line: a writer that uploads files in parts, or has others do it

It keeps no writer out. A service does not list unfinished uploads among the files, and they cost
money. So the next writer of the checkpoint finds the mark, names them, and removes it.
"""

import json
import logging
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import RLock

from shardvar._version import __version__
from shardvar.errors import CheckpointError, LockHeld, MissingFile, ShardvarError, StorageError
from shardvar.forks import new_lock
from shardvar.pictures.words import message
from shardvar.storage.answers import has_content
from shardvar.storage.outcomes import untrue_error
from shardvar.storage.requests import BucketClient, Client, Head
from shardvar.wire.strict_json import parse_json

_LOG = logging.getLogger("shardvar.storage")

_MOST_NBYTES = 4096
"""No claim has more."""
_WORD = re.compile(r"[^\w.:+-]")
"""Characters that a claim of ours does not have, which are not repeated in messages."""


def claim_name(stem: str) -> str:
    """Return the name of the claim of a checkpoint, by its name without an ending.

    >>> claim_name("model")
    '.model.claim'
    """
    return f".{stem}.claim"


def uploads_marks(stem: str, names: Iterable[str]) -> list[str]:
    """Return the marks of earlier writers of a checkpoint.

    >>> uploads_marks("m", [".m.00112233aabbccdd.uploads", ".m.claim", ".n.00112233aabbccdd.uploads"])
    ['.m.00112233aabbccdd.uploads']
    """
    mark = re.compile(rf"\.{re.escape(stem)}\.[0-9a-f]{{16}}\.uploads", re.DOTALL)
    return [name for name in names if mark.fullmatch(name)]


def _owner_text(token: str, *, removes: bool = False) -> bytes:
    """Return what a claim says of this process; ``token`` differs for each write, so that an answer
    lost is found."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    about = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "shardvar": __version__,
        "time": now,
    }
    return json.dumps({**about, "write": token, **({"removes": True} if removes else {})}).encode()


def _removal_head(client: Client, key: str) -> Head | None:
    """Return the facts of a claim that a removal has made; None of any other."""
    try:
        head = client.head(key)
        content = parse_json(bytes(client.read(key, head, 0, min(head.nbytes, _MOST_NBYTES))), 1)
    except CheckpointError:  # it is gone, or of another program
        return None
    return head if isinstance(content, dict) and content.get("removes") is True else None


def describe_claim(client: Client, key: str) -> str:
    """Return who holds a claim, since when, as far as it says; empty if it is gone."""
    try:
        head = client.head(key)
        content = (
            bytes(client.read(key, head, 0, min(head.nbytes, _MOST_NBYTES))) if head.nbytes else b""
        )
        about = parse_json(content, 1)
        who = [
            _WORD.sub("?", str(about[name]))[:80]
            for name in ("shardvar", "process", "host", "time")
        ]
        return "made by shardvar {}, process {} on {}, at {}".format(*who)
    except MissingFile:
        return ""
    except (ShardvarError, ValueError, KeyError, TypeError):
        return "which does not say whose it is"


def _claimed_error(client: BucketClient, claim: str, key: str) -> LockHeld:
    """Return the error for a checkpoint that another writer has claimed."""
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


@dataclass(slots=True)
class BucketClaim:
    """The claim of one write, which is made when it is first needed."""

    client: BucketClient
    """The requests."""
    folder: str
    """The key of the checkpoint's folder."""
    stem: str
    """The name of the checkpoint, without its ending."""
    token: str
    """A text that differs for each write."""
    is_made: bool = False
    """True once the bucket has the claim."""
    removes: bool = False
    """True if it is a removal's."""
    _files: Mapping[str, Head] | None = None
    _refusal: ShardvarError | None = None
    """The error of a claim that failed."""
    _lock: RLock = field(default_factory=new_lock)
    """Held while the claim is made; there is one for all threads."""

    def hold(self, check: Callable[[Mapping[str, Head]], None]) -> Mapping[str, Head]:
        """Claim the names, and return the files that were there when the claim was made; ``check``
        raises if one of them is not as it should be.

        A claim that failed is not tried again: other threads move files, too, and get the same
        error.
        """
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
        key, stem_key = (
            f"{self.folder}/{each}" if self.folder else each for each in (name, self.stem)
        )
        try:
            self.client.put_if(key, text, None)
        except StorageError as error:
            # The answer may be lost, or it may answer a second attempt after the first took effect.
            if not has_content(self.client, key, text):
                is_other = isinstance(error, LockHeld)
                if not (is_other and self.removes and self._take_over(key, text)):
                    raise (
                        _claimed_error(self.client, key, stem_key) if is_other else error
                    ) from None
        self.is_made = True
        files = self.client.listing(self.folder).files
        if name not in files:
            try:
                self.client.head(key)
            except MissingFile:
                place = self.client.place(key)
                cause = f"{place} is not there, which the service has taken."
                raise untrue_error(cause) from None
        return files

    def _take_over(self, key: str, text: bytes) -> bool:
        """Replace the claim of another removal; return False if it is a writer's, or was another
        one's by then."""
        found = _removal_head(self.client, key)
        with suppress(LockHeld):
            return found is not None and bool(self.client.put_if(key, text, found))
        return False


@dataclass(slots=True)
class UploadsMark:
    """The mark of one write that uploads files in parts, which is made when it is first needed."""

    client: BucketClient
    """The requests."""
    folder: str
    """The key of the checkpoint's folder."""
    stem: str
    """The name of the checkpoint, without its ending."""
    found: list[str] = field(default_factory=list)
    """The marks of earlier writers."""
    made: list[str] = field(default_factory=list)
    """The mark of this write, once the bucket may have it."""
    _lock: RLock = field(default_factory=new_lock)

    def find(self, there: dict[str, Head]) -> None:
        """Take the marks of earlier writers out of a listing, and log what these may have left."""
        self.found = uploads_marks(self.stem, there)
        for name in self.found:
            del there[name]
        if self.found:
            _LOG.warning("%s", message(self._warning()))

    def make(self) -> None:
        """Make the mark before the first upload in parts."""
        with self._lock:
            if not self.made:
                token = secrets.token_hex(8)
                self.made.append(f".{self.stem}.{token}.uploads")
                with suppress(LockHeld):  # by its own first attempt, of which the answer was lost
                    self.client.put_if(self._key(self.made[0]), _owner_text(token), None)

    def _warning(self) -> str:
        whose = describe_claim(self.client, self._key(self.found[0]))
        place, names = self.client.place(self.folder), self._key(self.stem)
        return (
            f"{place}: an earlier writer of {self.stem!r}{whose and f', {whose},'} has not ended. "
            "If it was killed, it may have left unfinished uploads, which cost money, under keys "
            f"that begin with {names!r}. List and end them with the tools of the service, or by a "
            "lifecycle rule."
        )

    def _key(self, name: str) -> str:
        return f"{self.folder}/{name}" if self.folder else name
