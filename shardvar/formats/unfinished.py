"""The files of checkpoints that are not there yet: of writes that were not finished, and of shares.

Both are known only by their names. Of every format that shardvar writes:

    NAME.GENERATION.tmp                         a file under its temporary name, which the commit
                                                replaces by NAME
    NAME.removed.tmp                            an index that a removal has taken away, or its mark
    NAME.GENERATION.tmp.done                    its journal; also ``.done`` after a data file of the
                                                native format
    NAME.GENERATION.tmp.TOKEN.tmp               a worker's attempt at it; also after a data file of
                                                the native format
    PREFIX.svdata-GENERATION-00000-of-00003     a data file of the native format, as long as no
                                                PREFIX.svindex is there
    .PREFIX.claim                               a claim, in a bucket (``storage.uploads``)
    .PREFIX.TOKEN.uploads                       the mark of uploads in parts, in a bucket
    .PREFIX.lock                                a lock, on a disk: an empty file (``storage.local``)
    PREFIX.svshare-TOKEN-00003-of-00008...      the files of a share, and the marks of a joint save
    .NAME-restore-...                           a meeting of processes that restore a step
    PREFIX.svneeds-TOKEN, .svgone-TOKEN         marks of references (``native.references``)
    NAME.shardvar.tmp                           a single small file, such as a manifest

Each format removes what dead writers of its kind have left. These names serve what no format can
know: that a path without a checkpoint has an unfinished one, and that a write of another format has
left files next to a new checkpoint.
"""

import os
import re
from collections.abc import Iterable, Sequence
from functools import partial

from shardvar.pictures.words import count

SHARE_MARK = ".svshare-"
"""A part of the name of every file of a share."""

_SHARE = r"\.svshare-[A-Za-z0-9]{1,64}-\d{5}-of-\d{5}"
_SHARE_FILE = re.compile(_SHARE + r"\..+", re.DOTALL)
_ANY_SHARE_FILE = r"(?s).+" + _SHARE + r"\..+"
_SHARE_INDEX = (
    r"(?s)(?P<run>.+\.svshare-[A-Za-z0-9]{1,64})-(?P<process>\d{5})-of-(?P<count>\d{5})\.svindex"
)
_TAIL = re.compile(
    r"\.svshare-(?P<token>[A-Za-z0-9]{1,64})-(?P<process>\d{5})-of-(?P<count>\d{5})\Z"
)

JOURNAL_ENDING = r"(?:\.done|\.[0-9a-f]{16}\.tmp)?"
"""The ending of a journal or of an attempt (``LocalStorage.borrowed``) after the name under which a
file is written."""

ASIDE = ".shardvar.tmp"
"""Added to the name of a single small file, such as a manifest, until it is whole."""

# Some writers add an "o" or an "x" to their tokens.
_TOKEN = r"\.(?:[0-9a-f]{16}[ox]*|removed)\.tmp"

# What may follow the prefix: ".data-00002", ".svindex", "-00001.safetensors",
# ".safetensors.index.json", ".npz".
_ASIDE = (
    r"(?s)(?P<prefix>.+?)(\.data-\d{5,}|(-\d{5,})?\.[a-z]+(\.index\.json)?)"
    + _TOKEN
    + JOURNAL_ENDING
)
_ASIDE_IN_FOLDER = rf"(?s)(?P<name>.+){_TOKEN}{JOURNAL_ENDING}"
_NATIVE = rf"(?s)(?P<prefix>.+)\.svdata-[A-Za-z0-9]{{1,64}}-\d{{5}}-of-\d{{5}}(?P<ending>{JOURNAL_ENDING})"
_CLAIM = r"(?s)\.(?P<prefix>.+)\.claim"

_UPLOADS = r"(?s)\.(?P<prefix>.+)\.[0-9a-f]{16}\.uploads"
_MARK = r"(?s)(?P<prefix>.+)\.sv(?:needs|gone)-[A-Za-z0-9]{1,64}"
_PART_OF_FOLDER = r"__\d+_\d+-[0-9a-f]{16,}x*\.distcp"
"""A file of a distributed checkpoint of PyTorch that shardvar has written."""

_KINDS = (
    ("lock", r"(?s)\.(?P<prefix>.+)\.lock"),
    ("claim", _CLAIM),
    ("mark of uploads", _UPLOADS),
    ("share", r"(?s)\.?(?P<prefix>.+)" + _SHARE + r"\..+"),
    ("share", r"(?s)\.(?P<prefix>.+)-restore-[0-9a-f]{10}-[0-9a-f]{16}-\d{5}\..+"),
    ("mark", _MARK),
    ("data file", _PART_OF_FOLDER),
    ("data file", r"(?s)(?P<prefix>.+)\.svdata-[A-Za-z0-9]{1,64}-\d{5}-of-\d{5}"),
    ("temporary file", _NATIVE),
    ("temporary file", r"(?s)(?P<prefix>.+)" + re.escape(ASIDE)),
    ("temporary file", _ASIDE),
    ("temporary file", _ASIDE_IN_FOLDER),
)


def kind_of_leftover(name: str) -> tuple[str, str]:
    """Return what a file may be that a writer leaves, by its name, and the prefix that it is of.

    Both are empty for other files. The prefix is empty for files of a folder, such as its data files.

    >>> kind_of_leftover(".model.lock"), kind_of_leftover("part-00001.0123456789abcdef.tmp")
    (('lock', 'model'), ('temporary file', ''))
    """
    for kind, pattern in _KINDS:
        if match := re.fullmatch(pattern, name):
            return kind, match.groupdict().get("prefix") or ""
    return "", ""


def unfinished_files(names: Iterable[str], prefix: str) -> list[str]:
    """Return the files of unfinished writes of a prefix, or of all prefixes; claims first."""
    names = [name for name in names if not is_share_file(name)]
    there = set(names)
    left = []
    for name in names:
        if native := re.fullmatch(_NATIVE, name):
            is_named = not native["ending"] and f"{native['prefix']}.svindex" in there
            is_left = not is_named and prefix in ("", native["prefix"])
        else:
            match = (
                re.fullmatch(_CLAIM, name)
                or re.fullmatch(_ASIDE, name)
                or re.fullmatch(_UPLOADS, name)
            )
            is_left = match is not None and prefix in ("", match["prefix"])
            is_left |= not prefix and re.fullmatch(_ASIDE_IN_FOLDER, name) is not None
        if is_left:
            left.append(name)
    return sorted(left, key=lambda name: re.fullmatch(_CLAIM, name) is None)


def final_name(name: str) -> str:
    """Return the name of a file without its temporary parts."""
    match = re.fullmatch(_ASIDE_IN_FOLDER, name)
    claim = re.fullmatch(_CLAIM, name)
    return match["name"] if match else claim["prefix"] if claim else name


def files_left(names: Iterable[str], prefix: str) -> list[str]:
    """Return all files that killed writers and removals of a prefix, or of all, have left."""
    names, first = list(names), f"{prefix}." if prefix else ""
    parts = [each for each in names if each.removeprefix(".").startswith(first)]
    parts = [each for each in parts if is_share_file(each) or re.fullmatch(_MARK, each)]
    parts += [] if prefix else filter(partial(re.fullmatch, _PART_OF_FOLDER), names)
    return list(dict.fromkeys([*unfinished_files(names, prefix), *parts]))


def are_of_removal(left: Iterable[str]) -> bool:
    """Return True if a removal has left some of these files, or a writer that has claimed its names."""
    return any(name.endswith((".removed.tmp", ".claim")) or ".svgone-" in name for name in left)


def name_unfinished(left: Sequence[str]) -> str:
    return left[0] + (f" and {count(len(left) - 1, 'more file')}" if len(left) > 1 else "")


def cause_of_unfinished(left: Sequence[str]) -> str:
    if prefix := _prefix_without_index(left):
        return f"{prefix}.svindex is missing, but its data files exist"
    return f"a write of it is not finished, which has left {name_unfinished(left)}"


def _prefix_without_index(left: Sequence[str]) -> str | None:
    """Return the prefix of native data files whose index may be lost; None if a write left files."""
    matches = [re.fullmatch(_NATIVE, name) for name in left]
    are_data = all(match and not match["ending"] for match in matches)
    return matches[0]["prefix"] if matches[0] and are_data else None


def remedy_of_leftovers(folder: str, left: Sequence[str]) -> str:
    if not re.fullmatch(_CLAIM, left[0]):
        return "Unless it is still at work, remove them."
    others = " and remove the other files" if len(left) > 1 else ""
    return f"Unless it is still at work, call {_breaking(folder, left)}{others}."


def remedy_of_unfinished(folder: str, left: Sequence[str], more: str = "") -> str:
    """Return the remedy for unfinished files without a checkpoint; ``more`` is added to it."""
    if re.fullmatch(_CLAIM, left[0]):
        wait = f"Wait if it is at work. If it was killed, call {_breaking(folder, left)}"
        return f"{wait} and run the same command again{more}."
    again = f"run the same command again{more}, which uses or removes these files."
    if _prefix_without_index(left):
        return (
            "Copy the index from where it was written. If no write is at work that makes it, "
            f"{again}"
        )
    return f"Wait if it is at work; otherwise {again}"


def _breaking(folder: str, left: Sequence[str]) -> str:
    return f"sv.break_claim({os.path.join(folder, left[0])!r})"


# Shares: the files of each of several processes that write one checkpoint, until the commit.
#
#     PREFIX.svshare-TOKEN-00003-of-00008     the prefix of what process 3 of 8 writes: a data file, and an index of it
#
# No path means a share, so that what a run left which died is not taken for a checkpoint. All shares of
# one run have one token. What a run left behind is removed by the next commit of the same checkpoint,
# whichever way that is written.


def share_prefix(stem: str, format_name: str) -> str:
    """Return the prefix of all shares of a checkpoint, another one in each format."""
    return stem if format_name == "shardvar" else f"{stem}.{format_name}"


def share_name(prefix: str, token: str, process: int, count: int) -> str:
    return f"{prefix}.svshare-{token}-{process:05}-of-{count:05}"


def parse_share_name(name: str, prefix: str) -> tuple[str, int, int] | None:
    """Return the token, the process and the count of a share; None for any other name."""
    match = _TAIL.match(name, len(prefix)) if name.startswith(prefix) else None
    return (match["token"], int(match["process"]), int(match["count"])) if match else None


def is_share_file(name: str) -> bool:
    return re.fullmatch(_ANY_SHARE_FILE, name) is not None


def finished_shares(names: Iterable[str]) -> tuple[set[int], int] | None:
    """Return the ranks with whole shares and the number of ranks, of the fullest run, or None."""
    runs: dict[tuple[str, int], set[int]] = {}
    for name in names:
        if match := re.fullmatch(_SHARE_INDEX, name):
            runs.setdefault((match["run"], int(match["count"])), set()).add(int(match["process"]))
    if not runs:
        return None
    (_, count), processes = max(runs.items(), key=lambda run: len(run[1]))
    return processes, count


def share_files(names: Iterable[str], prefix: str) -> list[str]:
    return [name for name in names if _is_of(name, prefix) or _is_of(name, f".{prefix}")]


def _is_of(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and _SHARE_FILE.fullmatch(name, len(prefix)) is not None
