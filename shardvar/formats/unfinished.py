"""The files of writes that were not finished, of every format that shardvar writes, known only by
their names.

    NAME.GENERATION.tmp                         a file under its temporary name, which the commit replaces by NAME
    NAME.GENERATION.tmp.done                    its journal; also ``.done`` after a data file of the native format
    NAME.GENERATION.tmp.TOKEN.tmp               a worker's attempt at it; also after a data file of the native format
    PREFIX.svdata-GENERATION-00000-of-00003     a data file of the native format, as long as no PREFIX.svindex is there
    .PREFIX.claim                               a claim, in a bucket (``storage.claims``)

Each format removes what dead writers of its kind have left. These names serve what no format can
know: that a path without a checkpoint has an unfinished one, and that a write of another format has
left files next to a new checkpoint.
"""

import os
import re
from collections.abc import Iterable, Sequence

from shardvar.formats.shares import is_share_file
from shardvar.pictures.words import count

JOURNAL_ENDING = r"(?:\.done|\.[0-9a-f]{16}\.tmp)?"
"""The ending of a journal or of an attempt (``LocalStorage.borrowed``) after the name under which a
file is written."""

_ASIDE = re.compile(
    # What may follow the prefix: ".data-00002", ".svindex", "-00001.safetensors",
    # ".safetensors.index.json", ".npz".
    r"(?P<prefix>.+?)(\.data-\d{5,}|(-\d{5,})?\.[a-z]+(\.index\.json)?)\.[0-9a-f]{16}\.tmp"
    + JOURNAL_ENDING,
    re.DOTALL,
)
_ASIDE_IN_FOLDER = re.compile(r".+\.[0-9a-f]{16}\.tmp(\.done)?", re.DOTALL)
_NATIVE = re.compile(
    rf"(?P<prefix>.+)\.svdata-[A-Za-z0-9]{{1,64}}-\d{{5}}-of-\d{{5}}(?P<ending>{JOURNAL_ENDING})",
    re.DOTALL,
)
_CLAIM = re.compile(r"\.(?P<prefix>.+)\.claim", re.DOTALL)


def unfinished_files(names: Iterable[str], prefix: str) -> list[str]:
    """Return the files of unfinished writes of a prefix, claims first; with an empty prefix, of all
    in the folder.

    >>> unfinished_files(["ck.npz", "ck.data-00000.00112233aabbccdd.tmp", ".ck.claim"], "ck")
    ['.ck.claim', 'ck.data-00000.00112233aabbccdd.tmp']
    """
    names = [name for name in names if not is_share_file(name)]
    there = set(names)
    return sorted(
        (name for name in names if _is_unfinished(name, prefix, there)),
        key=lambda name: name[0] != ".",
    )


def _is_unfinished(name: str, prefix: str, there: set[str]) -> bool:
    if native := _NATIVE.fullmatch(name):
        is_named = not native["ending"] and f"{native['prefix']}.svindex" in there
        return not is_named and prefix in ("", native["prefix"])
    match = _CLAIM.fullmatch(name) or _ASIDE.fullmatch(name)
    if prefix:
        return match is not None and match["prefix"] == prefix
    return match is not None or _ASIDE_IN_FOLDER.fullmatch(name) is not None


def name_unfinished(left: Sequence[str]) -> str:
    """Return unfinished files in a few words.

    >>> name_unfinished(["ck.svdata-0", "ck.svdata-1", "ck.svdata-2"])
    'ck.svdata-0 and 2 more files'
    """
    return left[0] + (f" and {count(len(left) - 1, 'more file')}" if len(left) > 1 else "")


def cause_of_unfinished(left: Sequence[str]) -> str:
    """Return why a path with these unfinished files has no checkpoint.

    >>> cause_of_unfinished(["ck.svdata-00112233aabbccdd-00000-of-00001"])
    'ck.svindex is missing, but its data files exist'
    """
    if prefix := _prefix_without_index(left):
        return f"{prefix}.svindex is missing, but its data files exist"
    return f"a write of it is not finished, which has left {name_unfinished(left)}"


def _prefix_without_index(left: Sequence[str]) -> str | None:
    """The prefix of native data files whose index may be lost; None if a write left files."""
    found = [_NATIVE.fullmatch(name) for name in left]
    return (
        found[0]["prefix"]
        if found[0] and all(match and not match["ending"] for match in found)
        else None
    )


def remedy_of_leftovers(folder: str, left: Sequence[str]) -> str:
    """Return what to do with unfinished files next to a complete checkpoint."""
    if not _CLAIM.fullmatch(left[0]):
        return "Unless it is still at work, remove them."
    others = " and remove the other files" if len(left) > 1 else ""
    return f"Unless it is still at work, call {_breaking(folder, left)}{others}."


def remedy_of_unfinished(folder: str, left: Sequence[str], more: str = "") -> str:
    """Return what to do where a path has unfinished files in a folder and no checkpoint.

    ``more`` is added to the advice to run the command again.
    """
    if _CLAIM.fullmatch(left[0]):
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
    """The call that removes the claim, the first of the files."""
    return f"sv.break_claim({os.path.join(folder, left[0])!r})"
