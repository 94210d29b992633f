"""The state file of a directory of numbered checkpoints: its content, and reading and replacing it.

It is TensorFlow's file ``checkpoint``, a ``CheckpointState`` message in protobuf's text form, so
that either library finds the checkpoints of the other, in any format:

    model_checkpoint_path: "ckpt-12"                     the newest; relative to the directory
    all_model_checkpoint_paths: "ckpt-11"                the kept ones, oldest first
    all_model_checkpoint_paths: "ckpt-12"
    all_model_checkpoint_timestamps: 1700000000.5        when each was saved, in seconds since the
                                                         Epoch; optional
    all_model_checkpoint_timestamps: 1700000060.5
    last_preserved_timestamp: 1699999000.0               when the last one was saved that is kept
                                                         for good

The file may come from an untrusted program. It is read with bounds, and no name in it leads out of
its directory.

Training must not start from the beginning over checkpoints that exist. So a state file that names
no newest checkpoint (it is empty, cut short, or holds something else) is an error, and never the
beginning of a series.
"""

import math
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from shardvar.errors import (
    InvalidCheckpoint,
    LockHeld,
    MalformedCheckpoint,
    prefix_errors,
)
from shardvar.formats.files import put_in_place
from shardvar.limits import MAX_STATE_NBYTES
from shardvar.storage.protocol import Storage
from shardvar.verbs.locate import found_at

STATE_FILE = "checkpoint"
"""The name of the state file."""
NUMBER = re.compile("0|[1-9][0-9]*")
"""A number as it is written behind the name of a series."""

_NAME_NBYTES = 255
"""The longest file name that common file systems allow."""
_LOCK_SECONDS = 5.0
"""Time to wait for another writer of the state file, which has only a few lines to write."""
_ATTEMPT_SECONDS = 0.01
"""Time between two attempts to lock the state file."""
_LISTED = 20
"""The checkpoints that an error lists, the newest ones; a directory may have thousands."""
# White space and comments, then one field or the end. Possessive quantifiers (*+) never give back
# what they matched, so a hostile file costs linear time.
_FIELD = re.compile(
    r"""(?: \s | \#[^\n]*\n )*+
    (?: (?P<name>\w+) \s*+ : \s*+
        (?: (?P<number>[-+.\w]+) | (?P<quote>["']) (?P<text>(?:\\.|(?!(?P=quote))[^\\\n])*+) (?P=quote) )
      | \Z )""",
    re.VERBOSE | re.ASCII,
)
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"} | {
    each: each for each in "\\'\"?"
}
_PATHS = ("model_checkpoint_path", "all_model_checkpoint_paths")
_TIMES = ("all_model_checkpoint_timestamps", "last_preserved_timestamp")


@dataclass(frozen=True, slots=True)
class SeriesState:
    """The content of a state file.

    >>> SeriesState.decode(SeriesState("ckpt-2", ("ckpt-1", "ckpt-2")).encode())
    SeriesState(newest='ckpt-2', kept=('ckpt-1', 'ckpt-2'), times=(), preserved=0.0)
    """

    newest: str
    """The newest checkpoint; a path relative to the directory, or an absolute one."""
    kept: tuple[str, ...] = ()
    """The checkpoints that are kept, oldest first."""
    times: tuple[float, ...] = ()
    """The time when each was saved, in seconds since the Epoch; empty if the file has none."""
    preserved: float = 0.0
    """The time when the last checkpoint was saved that is kept for good."""

    def encode(self) -> bytes:
        """Return the content of the file."""
        paths = [(_PATHS[0], self.newest), *((_PATHS[1], path) for path in self.kept)]
        times = [
            *((_TIMES[0], time) for time in self.times),
            *[(_TIMES[1], self.preserved)][: bool(self.preserved)],
        ]
        lines = [f'{name}: "{_escape(path)}"\n' for name, path in paths] + [
            f"{name}: {time!r}\n" for name, time in times
        ]
        return "".join(lines).encode("utf-8")

    @classmethod
    def decode(cls, content: bytes) -> "SeriesState":
        """Parse the content of a file; ``MalformedCheckpoint`` for any other text."""
        found: dict[str, list[str]] = {name: [] for name in (*_PATHS, *_TIMES)}
        for name, value in _fields(content.decode("utf-8", "surrogateescape")):
            found[name].append(value)
        newest, kept, times, preserved = (found[name] for name in (*_PATHS, *_TIMES))
        # TensorFlow's ``Checkpoint.save`` writes no times, its manager one for each checkpoint.
        # With any other number it would be unclear which time belongs to which checkpoint.
        if len(times) not in (0, len(kept)):
            raise _malformed(f"it has {len(kept)} checkpoints and {len(times)} times")
        if len(newest) > 1 or len(preserved) > 1:
            raise _malformed("it has a field twice that may come once")
        last = _seconds(preserved[0]) if preserved else 0.0
        return cls("".join(newest), tuple(kept), tuple(map(_seconds, times)), last)


def read_state(storage: Storage, name: str = STATE_FILE) -> SeriesState | None:
    """Return the state of a directory, None without a state file.

    ``MalformedCheckpoint``, which names the checkpoints of the directory, if the file cannot be
    decoded or names no newest checkpoint. Then it is unknown whether there is one, and a new start
    might abandon it.
    """
    try:
        state = read_state_file(storage, name)
        if state is not None and not state.newest:
            with prefix_errors(os.path.join(storage.path, name)):
                raise _malformed("it names no newest checkpoint")
    except MalformedCheckpoint as error:
        there = checkpoints_in(storage)
        cause = error.cause.removesuffix(".")
        raise MalformedCheckpoint(f"{cause}; {listed(there)}.", remedy_of(there)) from error
    return state


def read_state_file(storage: Storage, name: str) -> SeriesState | None:
    """Return the content of a state file, None without one; ``MalformedCheckpoint``."""
    if name not in storage.names():
        return None
    file = storage.open(name)
    try:
        with prefix_errors(file.name):
            if file.size > MAX_STATE_NBYTES:
                raise _malformed(f"it has {file.size} bytes")
            return SeriesState.decode(file.read(0, file.size))
    finally:
        file.close()


def checkpoints_in(storage: Storage) -> list[str]:
    """Return the names of a directory's checkpoints, in any format, by their numbers."""
    found = found_at(storage, "")
    # A SavedModel's own checkpoint is in a directory below, and is not one of the series.
    return sorted(
        {each.stem for each in found if each.storage.path == storage.path}, key=_by_number
    )


def _by_number(name: str) -> tuple[str, int, str]:
    """Sort "ckpt-9" before "ckpt-10"."""
    head, _, number = name.rpartition("-")
    return (head, int(number), name) if NUMBER.fullmatch(number) else (name, -1, name)


def listed(names: Sequence[str]) -> str:
    """Return a clause that names the checkpoints of a directory, the newest ones of many."""
    if not names:
        return "no checkpoint lies next to it"
    more = f"{len(names) - _LISTED} more and " if len(names) > _LISTED else ""
    return f"next to it lie {more}{', '.join(map(_escape, names[-_LISTED:]))}"


def remedy_of(names: Sequence[str]) -> str:
    """Return the remedy for a state file that does not lead to a checkpoint."""
    if not names:
        return "Remove it to start a new series."
    return (
        f'Write the line model_checkpoint_path: "{_escape(names[-1])}" into it, with the name of '
        "the one to continue from; to start a new series, choose another directory."
    )


def write_state(storage: Storage, state: SeriesState, name: str = STATE_FILE) -> None:
    """Replace the state of a directory in one step."""
    with _locked(storage, name):
        put_in_place(storage, [], (f"{name}.tmp", name), state.encode(), is_checkpoint=False)


def resolve(directory: str, stated: str) -> str:
    """Return the path of a checkpoint that a state file names; ``InvalidCheckpoint`` outside of the
    directory."""
    path = os.path.join(directory, stated)
    if not _is_within(directory, path):
        raise InvalidCheckpoint(
            f"{os.path.join(directory, STATE_FILE)} names {stated!r}, which is not in that "
            "directory.",
            "Give the path of the checkpoint itself, if you trust it; after a move, write its "
            "bare name in that file.",
        )
    return path


def _is_within(directory: str, path: str) -> bool:
    """Return True if a path leads, links included, to a checkpoint in or below the directory."""
    # The last component is the checkpoint's name, a prefix of file names, and so no link itself.
    head, name = os.path.split(path)
    if "\0" in path or name in ("", os.curdir, os.pardir) or len(os.fsencode(name)) > _NAME_NBYTES:
        return False
    home = os.path.realpath(directory)
    return os.path.commonpath([home, os.path.realpath(head)]) == home


@contextmanager
def _locked(storage: Storage, name: str) -> Iterator[None]:
    """Hold the lock of the state file; wait for another writer, which holds it briefly."""
    # The lock is entered by hand, since only the attempt to lock is repeated, and not the work
    # inside. The clock is monotonic, because the wall clock may be set back while this waits.
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            lock = storage.lock(name)
            lock.__enter__()
            break
        except LockHeld:
            if time.monotonic() > deadline:
                raise
        time.sleep(_ATTEMPT_SECONDS)
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def _fields(text: str) -> Iterator[tuple[str, str]]:
    """Yield the fields of the file, (name, value), with texts unescaped."""
    text, position = text + "\n", 0  # a comment may end with the file
    while True:
        match = _FIELD.match(text, position)
        if match is None:
            raise _malformed(f"no field begins at character {position}")
        if match["name"] is None:
            return
        position = match.end()
        is_text = match["text"] is not None
        if match["name"] not in (_PATHS if is_text else _TIMES):
            raise _malformed(f"it has a field {match['name']!r} of another kind")
        yield match["name"], _unescape(match["text"]) if is_text else match["number"]


def _escape(path: str) -> str:
    """Return a path as it is quoted: unprintable characters and invalid UTF-8 in octal."""
    return "".join(
        f"\\{each}" if each in '\\"' else each if each.isprintable() else _octal(each)
        for each in path
    )


def _octal(character: str) -> str:
    return "".join(f"\\{octet:03o}" for octet in character.encode("utf-8", "surrogateescape"))


def _unescape(text: str) -> str:
    # An escape stands for one byte, and several bytes may make one character: "\303\251" is "é". So
    # escapes become surrogates first, and then the whole text is decoded as UTF-8; bytes that are
    # not UTF-8 stay surrogates.
    def octets(match: re.Match[str]) -> str:
        octal, hexadecimal, other = match.groups()
        code = (
            int(octal, 8)
            if octal
            else int(hexadecimal, 16)
            if hexadecimal
            else ord(_ESCAPED.get(other, "\u0100"))
        )
        if code > 255:
            raise _malformed(f"it has an escape {match[0]}")
        return chr(code) if code < 128 else bytes([code]).decode("utf-8", "surrogateescape")

    return (
        _ESCAPE.sub(octets, text)
        .encode("utf-8", "surrogateescape")
        .decode("utf-8", "surrogateescape")
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise _malformed(f"it has {text!r} for a number")
    return seconds


def _malformed(cause: str) -> MalformedCheckpoint:
    return MalformedCheckpoint(
        f"Invalid state file of a directory of checkpoints: {cause}.",
        "Give the path of a checkpoint itself.",
    )
