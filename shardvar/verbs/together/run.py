"""Run: one save by several processes, which know of each other only what is in the directory.

The name of the run and the version of the checkpoint that the save found are the beginning of the
token that its shares carry; the attempt is the rest:

    a and a digest     the caller has given a text of the attempt to all processes
    n, number, nonce   process 0 has begun an attempt, and the others follow it (``fence``)
    o                  neither: the processes save at any time, and are committed later

The version that is there later tells a waiting process whether its attempt is committed, or another
writer was faster.
"""

import hashlib
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self, cast

from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    StorageError,
    UnsupportedError,
)
from shardvar.formats.protocol import SharedFormat
from shardvar.formats.table import name_of_target, names_of_target
from shardvar.formats.unfinished import parse_share_name, share_name, share_prefix
from shardvar.layout.region import read_integer
from shardvar.limits import MAX_FILES
from shardvar.storage.posix import HeldDirectory
from shardvar.verbs.arguments import check_string
from shardvar.verbs.locate import Location, Path, find_target

SAVE_AGAIN = "Save again in all processes."
"""The remedy where a run has lost."""

_LOOK_AGAIN_SECONDS = 0.02
"""The pause before a second look at a commit that may have been seen half."""

INDEX, CALL, END, LEFT = ".svindex", ".call", ".end", ".left"
"""The endings of a share's index, and of the marks of an attempt: its call, its end, and that
process 0 has left it."""

_OPEN = "o"
_NUMBERED = re.compile(r"n[0-9a-f]{24}")
"""The attempt of a token that process 0 has begun: eight digits of its number, 16 of its nonce."""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


class Peers(Protocol):
    """The processes of a job, as the group knows them that their framework has made.

    Nothing waits for an answer here: a save goes on if a process is late, and says so if it has ended.
    """

    def tell(self, key: str, text: str) -> None:
        """Keep a text for all processes under a key, in place of the one before."""

    def told(self, key: str) -> str | None:
        """Return the text of a key; None if no process has told it yet, or it is unknown."""

    def ended(self, processes: Sequence[int]) -> list[int]:
        """Return the processes that are known to have ended."""


@dataclass(frozen=True, slots=True)
class Run:
    """One save by several processes, as what is in the directory shows it."""

    target: Location
    """The checkpoint to write."""
    name: str
    """The name that the caller gave the run."""
    count: int
    """The number of processes."""
    attempt: str | None = None
    """The text that the caller gave to all processes of this attempt; None without one."""
    version: str = ""
    """The version of the checkpoint that is replaced; empty for none."""
    known: dict[str, str] = field(default_factory=dict)
    """The generations of indexes that were opened, by their stamps: an index is opened once, and
    looked at often."""
    peers: Peers | None = None
    """The processes, if a group connects them."""

    @property
    def path(self) -> str:
        """The path of the checkpoint, for messages."""
        return self.target.path

    @property
    def form(self) -> SharedFormat:
        """The format of the checkpoint."""
        return cast("SharedFormat", self.target.format)

    @property
    def prefix(self) -> str:
        """The prefix of the shares."""
        return share_prefix(self.target.stem, self.target.format.name)

    @property
    def base(self) -> str:
        """The beginning of the tokens: it differs if another checkpoint was in place."""
        return _digest(self.name)[:16] + _digest(self.version)[:8]

    @property
    def fixed_token(self) -> str:
        """The token of shares that are written without waiting for process 0."""
        known = self.attempt is not None
        return self.base + (f"a{_digest(self.attempt or '')[:16]}" if known else _OPEN)

    def new_token(self) -> str:
        """Return the token of a new attempt, which comes after all that are there."""
        numbers = [int(token[25:33], 16) for token, _ in self.calls()]
        return f"{self.base}n{max(numbers, default=-1) + 1:08x}{secrets.token_hex(8)}"

    @property
    def family(self) -> str:
        """The beginning of the generations of this run, or of this attempt of it if the caller
        gives attempts."""
        return _digest(f"{self.name}\0{self.attempt or ''}")[:8]

    def generation(self, token: str) -> str:
        """Return the generation of the checkpoint once an attempt is committed."""
        return self.family + _digest(token)[:8]

    def share(self, token: str, process: int) -> str:
        """Return the name of the index of one process's share."""
        return share_name(self.prefix, token, process, self.count) + INDEX

    def mark(self, token: str, ending: str) -> str:
        """Return the name of a mark of an attempt; it does not depend on the number of
        processes."""
        return share_name(self.prefix, token, 0, 0) + ending

    def call(self, token: str) -> str:
        """Return the name of the call of process 0."""
        return share_name(self.prefix, token, 0, self.count) + CALL

    def data(self, nonce: str, process: int) -> str:
        """Return the name of the data file of one call: no other call writes a file of that name.

        A bucket cannot rename, so there the name is final if the format allows.
        """
        if self.target.storage.local_path is None:
            name = self.form.process_file(self.target.name, nonce, process, self.count)
            if name:
                return name
        return share_name(self.prefix, nonce, process, self.count) + ".data"

    def read_process(self, process: int) -> int:
        """Return the number of a process; ``ArgumentError`` unless the run has it."""
        number = read_integer(process, "process number")
        if not 0 <= number < self.count:
            cause = f"process={number} is not one of {self.count} processes."
            raise ArgumentError(cause, f"Give 0 to {self.count - 1}.")
        return number

    def refreshed(self) -> Self:
        """Return the run with a storage that sees what other processes have written since."""
        return replace(self, target=replace(self.target, storage=self.target.storage.refreshed()))

    def names(self) -> set[str]:
        """Return the names of the files in the directory."""
        return set(self.target.storage.names())

    def calls(self) -> list[tuple[str, int]]:
        """Return the tokens that process 0 has begun, the last one at the end, and the number of
        processes of each."""
        found = [
            (token, count)
            for token, _, count in self._parsed(CALL)
            if token.startswith(self.base) and _NUMBERED.fullmatch(token[len(self.base) :])
        ]
        return sorted(found)

    def missing(self, token: str) -> list[int]:
        """Return the processes whose shares of an attempt are not there."""
        names = self.names()
        return [each for each in range(self.count) if self.share(token, each) not in names]

    def is_committed(self, token: str) -> bool:
        """Return True if an attempt is committed; raise if another checkpoint was, instead."""
        version = self.current_version()
        if version == self.version or not (version or self.form.capabilities.atomic_overwrite):
            return False
        if self.generation(token) in self.current_generations():
            return True
        # In a bucket a commit of this run may have been seen half: only what is seen twice is
        # another's.
        time.sleep(_LOOK_AGAIN_SECONDS)
        self.known.clear()
        again = self.refreshed()
        if self.generation(token) in again.current_generations():
            return True
        if again.current_version() == self.version:
            return False
        raise StorageError(
            f"{self.path} was replaced while the run {self.name!r} saved it.", SAVE_AGAIN
        )

    def was_committed(self, token: str) -> bool:
        """Return True if the group knows that an attempt was committed, be it moved or replaced since.

        It is asked only where the directory does not say it: its store may be slow, or stopped.
        """
        return self.peers is not None and self.peers.told(self.generation(token)) is not None

    def is_in_place(self) -> bool:
        """Return True if the checkpoint in place is of this run, and of this attempt if it has
        one."""
        return any(each.startswith(self.family) for each in self.current_generations())

    def count_error(self, process: int, count: int) -> ArgumentError:
        """Return the error for a process that has another number of processes."""
        who = f"Process {process} of the run {self.name!r} of {self.path}"
        remedy = "Give all processes one num_processes, and each save its own run."
        return ArgumentError(f"{who} is one of {count}, not {self.count}.", remedy)

    def odd_share(self) -> ArgumentError | StorageError | None:
        """Return the error for a share of the fixed token by a process that disagrees with this
        one; None without any."""
        token = self.fixed_token
        for found, process, count in self._parsed(INDEX):
            if found == token and count != self.count:
                return self.count_error(process, count)
            # With the version of another checkpoint in it.
            is_ours = (found[:16], found[24:]) == (token[:16], token[24:])
            if is_ours and found != token and not self.is_in_place():
                cause = (
                    f"Process {process} of the run {self.name!r} began when another checkpoint "
                    f"was at {self.path}."
                )
                return StorageError(cause, SAVE_AGAIN)
        return None

    def _parsed(self, ending: str) -> Iterator[tuple[str, int, int]]:
        """Token, process and count of each file of the run's shares with an ending."""
        ours = f"{self.prefix}.svshare-{_digest(self.name)[:16]}"
        for name in self.target.storage.names():
            if name.startswith(ours) and name.endswith(ending):
                found = parse_share_name(name.removesuffix(ending), self.prefix)
                if found:
                    yield found

    def current_version(self) -> str:
        """Return a text that another checkpoint of this path does not have: the generation of its
        index, or its stamp.

        Empty if there is none. Of a file and a set that stand side by side, both. In a bucket the
        listing has the stamps, so nothing is asked for.
        """
        if self.target.storage.local_path is not None:
            return " ".join(self.current_generations())
        indexes = indexes_of(self.target)
        return " ".join(_stamp(name, each) for name, each in indexes.items())

    def current_generations(self) -> list[str]:
        """Return the generation of each index in place; its stamp if it has none."""
        return [self._generation(name, found) for name, found in indexes_of(self.target).items()]

    def _generation(self, name: str, index: Location) -> str:
        """The generation that an index has; the stamp of its file if it has none, or is damaged."""
        stamp = _stamp(name, index)
        while stamp not in self.known:
            try:
                generation = self.form.generation_of(index.storage, index.name) or stamp
            except (CheckpointError, StorageError, UnsupportedError):
                generation = stamp
            # Another process may have put its index in place meanwhile: then it is unknown which
            # one has the generation. A bucket is asked for the listed version only.
            before = stamp
            if index.storage.local_path is not None:
                stamp = _stamp(name, index)
            if stamp == before:
                self.known[stamp] = generation
        return self.known[stamp]


@dataclass(frozen=True, slots=True)
class OwnShare:
    """A share that this process has in an attempt."""

    process: int
    """The number of the process."""
    directory: HeldDirectory | None
    """The directory; None in a bucket."""

    @classmethod
    def of(cls, run: Run, process: int) -> Self:
        """Return the share of a process, which it is about to make."""
        path = run.target.storage.local_path
        return cls(process, None if path is None else HeldDirectory(path))

    def is_moved(self, run: Run, token: str) -> bool:
        """Return True if an attempt is committed, and its directory has another name since.

        Only a commit removes a share: one that is still in the directory was moved before.
        """
        held = self.directory
        return (
            held is not None
            and held.is_moved(run.target.storage.path)
            and run.share(token, self.process) not in held.names()
        )


def find_run(
    path: Path,
    run: str,
    count: int,
    format: str | None,
    attempt: str | None = None,
    peers: Peers | None = None,
) -> Run:
    """Return the run of these arguments; ``UnsupportedError`` if the format has no shares."""
    check_string(run, "names of runs")
    if not run:
        raise ArgumentError(
            "The name of the run is empty.", "Give a text that no other save of this path has."
        )
    if attempt is not None:
        check_string(attempt, "attempts")
    if attempt == "":
        raise ArgumentError(
            "The attempt is empty.", "Give a new text for each attempt, or leave it out."
        )
    count = read_integer(count, "number of processes")
    if not 1 <= count <= MAX_FILES:
        raise ArgumentError(
            f"num_processes={count} is not a number of processes.", f"Give 1 to {MAX_FILES}."
        )
    target = find_target(path, format, otherwise="shardvar")
    if not isinstance(target.format, SharedFormat):
        cause = f"The format {target.format.name} cannot be written by several processes."
        raise UnsupportedError(
            cause, "Save in the format shardvar, and convert the checkpoint with sv.reshard."
        )
    found = Run(target, run, count, attempt, peers=peers)
    return replace(found, version=found.current_version())


def indexes_of(target: Location) -> dict[str, Location]:
    """Return the indexes of a target that are there, each with the location of its checkpoint."""
    form = target.format.name
    named = [target.name] if target.is_folder else names_of_target(target.stem, form)[1:]
    there = set(target.storage.names())
    return {
        name: replace(target, name=name_of_target(name, form)) for name in named if name in there
    }


def _stamp(name: str, index: Location) -> str:
    """The stamp of an index, which in a bucket the listing has; empty if it is gone."""
    status = index.storage.status(name)
    return "" if status is None else status.stamp
