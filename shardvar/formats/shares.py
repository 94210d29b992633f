"""The names of shares: what each of several processes writes of one checkpoint, until the commit
merges them.

    PREFIX.svshare-TOKEN-00003-of-00008     the prefix of what process 3 of 8 writes: a data file, and an index of it

No path means a share, so that what a run left which died is not taken for a checkpoint. All shares
of one run have one token. What a run left behind is removed by the next commit of the same
checkpoint, whichever way that is written.
"""

import re
from collections.abc import Iterable

_SHARE = r"\.svshare-[A-Za-z0-9]{1,64}-\d{5}-of-\d{5}"
_SHARE_FILE = re.compile(_SHARE + r"\..+", re.DOTALL)
_ANY_SHARE_FILE = re.compile(r".+" + _SHARE + r"\..+", re.DOTALL)
_SHARE_INDEX = re.compile(
    r"(?P<run>.+\.svshare-[A-Za-z0-9]{1,64})-(?P<process>\d{5})-of-(?P<count>\d{5})\.svindex",
    re.DOTALL,
)
_TAIL = re.compile(
    r"\.svshare-(?P<token>[A-Za-z0-9]{1,64})-(?P<process>\d{5})-of-(?P<count>\d{5})\Z"
)


def share_prefix(stem: str, format_name: str) -> str:
    """Return the prefix of all shares of a checkpoint, by its name without an ending; each format
    has another one.

    >>> share_prefix("ck", "shardvar"), share_prefix("ck", "tensorflow")
    ('ck', 'ck.tensorflow')
    """
    return stem if format_name == "shardvar" else f"{stem}.{format_name}"


def share_name(prefix: str, token: str, process: int, count: int) -> str:
    """Return the prefix of the share that one process of ``count`` writes.

    >>> share_name("ck", "1f", 3, 8)
    'ck.svshare-1f-00003-of-00008'
    """
    return f"{prefix}.svshare-{token}-{process:05}-of-{count:05}"


def parse_share_name(name: str, prefix: str) -> tuple[str, int, int] | None:
    """Return the token, the process and the count of a share of ``prefix``; None for any other
    name.

    >>> parse_share_name("ck.svshare-1f-00003-of-00008", "ck"), parse_share_name("ck", "ck")
    (('1f', 3, 8), None)
    """
    match = _TAIL.match(name, len(prefix)) if name.startswith(prefix) else None
    return (match["token"], int(match["process"]), int(match["count"])) if match else None


def is_share_file(name: str) -> bool:
    """Return True if a file belongs to a share."""
    return _ANY_SHARE_FILE.fullmatch(name) is not None


def finished_shares(names: Iterable[str]) -> tuple[set[int], int] | None:
    """Return the processes whose shares are whole and the number of processes, of the run with
    most; None without any.

    >>> finished_shares(["ck.svshare-1f-00003-of-00008.svindex", "ck.svshare-1f-00004-of-00008.svdata-0"])
    ({3}, 8)
    """
    runs: dict[tuple[str, int], set[int]] = {}
    for name in names:
        if match := _SHARE_INDEX.fullmatch(name):
            runs.setdefault((match["run"], int(match["count"])), set()).add(int(match["process"]))
    if not runs:
        return None
    (_, count), processes = max(runs.items(), key=lambda run: len(run[1]))
    return processes, count


def share_files(names: Iterable[str], prefix: str) -> list[str]:
    """Return the files of all shares of a prefix, with their lock files."""
    return [name for name in names if _is_of(name, prefix) or _is_of(name, f".{prefix}")]


def _is_of(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and _SHARE_FILE.fullmatch(name, len(prefix)) is not None
