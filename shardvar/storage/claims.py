"""Claims: the objects by which one writer at a time has the names of a checkpoint in a bucket.

    .NAME.claim    a line of JSON: who has made it (machine, process, release), and the time by that
                   machine's clock

Only one writer can create it, and it is removed at the end of the write. A writer that was killed
leaves it. Nothing but the object's being there is believed: neither its age nor a clock decides,
since a writer that is slow, or whose clock jumps, is still a writer. So it goes when a person says
that the writer is dead (``break_claim``).
"""

import json
import os
import re
import socket
from datetime import UTC, datetime

from shardvar._version import __version__
from shardvar.errors import LockHeld, MissingFile, ShardvarError
from shardvar.storage.requests import BucketClient, Client

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


def owner_text(token: str) -> bytes:
    """Return what a claim says of this process; ``token`` differs for each write, so that an answer
    lost is found."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    about = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "shardvar": __version__,
        "time": now,
    }
    return json.dumps({**about, "write": token}).encode()


def describe_claim(client: Client, key: str) -> str:
    """Return who holds a claim, since when, as far as it says; empty if it is gone."""
    try:
        head = client.head(key)
        content = (
            bytes(client.read(key, head, 0, min(head.nbytes, _MOST_NBYTES))) if head.nbytes else b""
        )
        about = json.loads(content)
        who = [
            _WORD.sub("?", str(about[name]))[:80]
            for name in ("shardvar", "process", "host", "time")
        ]
        return "made by shardvar {}, process {} on {}, at {}".format(*who)
    except MissingFile:
        return ""
    except (ShardvarError, ValueError, KeyError, TypeError, RecursionError):
        return "which does not say whose it is"


def claimed_error(client: BucketClient, claim: str, key: str) -> LockHeld:
    """Return the error for a checkpoint that another writer has claimed."""
    about = describe_claim(client, claim)
    held = client.place(claim)
    cause = (
        f"{client.place(key)} is being written by another writer, which holds "
        f"{held}{about and f', {about}'}."
    )
    command = f"python -c 'import shardvar; print(shardvar.break_claim({json.dumps(held)}))'"
    return LockHeld(
        cause, f"Wait until it is done. If it was killed, remove what it holds: {command}"
    )
