"""Run: one save by several processes, which know each other only by files in the directory.

The name of the run and the version of the checkpoint that the save found are the beginning of the
token that its shares carry; the attempt is the rest:

    a and a digest     the caller has given a text of the attempt to all processes
    n, number, nonce   process 0 has begun an attempt, and the others follow it (``fence``)
    o                  neither: the processes save at any time, and are committed later

The version that is there later tells a waiting process whether its attempt is committed, or another
writer was faster.

A process that waits looks at the directory again and again, at a bucket seldom: each look is a
request.

Stages of a pipeline have their own layers, and each process its own random generators. So a process
that loads may lack keys that not all processes have, which is an error for all others. No process
knows the states of the others when it loads. The shares know them, so a text in the metadata of the
checkpoint has these keys.
"""

import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate
from math import inf, isnan
from numbers import Real
from typing import Protocol, Self, cast

from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointError,
    StorageError,
    TargetExists,
    UnsupportedError,
)
from shardvar.formats.protocol import SharedFormat
from shardvar.formats.table import name_of_target, names_of_target
from shardvar.formats.unfinished import parse_share_name, share_name, share_prefix
from shardvar.layout.region import read_integer
from shardvar.limits import MAX_FILES
from shardvar.planning.index import SOME_PROCESSES
from shardvar.planning.plan import check_replicas
from shardvar.records import field, frozen, mutable, replace
from shardvar.storage.local import LocalStorage
from shardvar.storage.posix import HeldDirectory
from shardvar.verbs.arguments import check_string
from shardvar.verbs.locate import IN_FOLDER, Location, Path, find_target
from shardvar.wire.damage import decoding, invalid
from shardvar.wire.strict_json import parse_json

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
    """The processes of a job. A save goes on if one is late, and fails if one has ended."""

    def tell(self, key: str, text: str) -> None:
        """Keep a text for all processes under a key, in place of the last text."""

    def told(self, key: str) -> str | None:
        """Return the text of a key; None if no process has told it yet, or it is unknown."""

    def ended(self, processes: Sequence[int]) -> list[int]:
        """Return the processes that are known to have ended."""


_IN_PARTS = ContextVar("in_parts", default=False)
in_parts = _IN_PARTS.get


@contextmanager
def saving_parts() -> Iterator[None]:
    """A save inside has what this process holds, also replicas, and no other process takes part in it."""
    token = _IN_PARTS.set(True)
    try:
        yield
    finally:
        _IN_PARTS.reset(token)


@frozen
class SaveOptions:
    """The choices of a caller for a save by several processes, the same in all of them."""

    replicas: str = "equal"
    """Slices that several processes hold alike must be equal, or with ``"first"`` may differ."""
    force: bool = False
    """Replace an existing checkpoint also where the format cannot do that in one step."""
    overwrite: bool = True
    """Replace a checkpoint that is there."""
    commit: bool = True
    """Wait until all processes have saved and one has committed."""
    timeout: float = 600.0
    """The seconds to wait for other processes."""
    digest: bool = False
    """Keep the digest of each tensor in the checkpoint."""
    base: Path | None = None
    """The checkpoint whose files may be referred to."""
    is_state: bool = False
    """The tensors and objects are all values of a training state: the checkpoint lists the keys that not
    all processes have."""
    is_part: bool = field(default_factory=in_parts)
    """The checkpoint has what this process holds, and no other one writes to it."""

    def check(self) -> None:
        """Raise ``ArgumentError`` for choices that a caller of ``save_shards`` cannot make."""
        check_replicas(self.replicas)
        timeout: object = self.timeout
        if not isinstance(timeout, Real) or isnan(timeout):
            raise ArgumentTypeError(f"timeout is {timeout!r}.", "Give a number of seconds.")


@frozen
class Run:
    """One save by several processes, as the files in the directory show it."""

    target: Location
    name: str
    """The name that the caller gave the run."""
    count: int
    attempt: str | None = None
    """The text that the caller gave to all processes of this attempt; None without one."""
    version: str = ""
    """The version of the checkpoint that is replaced; empty for none."""
    known: dict[str, str] = field(default_factory=dict)
    """The generations of indexes that were opened, by their stamps: an index is opened once, and
    looked at often."""
    peers: Peers | None = None
    """The processes, if a group connects them."""
    options: SaveOptions = SaveOptions()
    """The choices of the caller."""

    @property
    def path(self) -> str:
        return self.target.path

    @property
    def form(self) -> SharedFormat:
        return cast("SharedFormat", self.target.format)

    @property
    def prefix(self) -> str:
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
        numbers = [int(token[25:33], 16) for token, _ in self.calls()]
        return f"{self.base}n{max(numbers, default=-1) + 1:08x}{secrets.token_hex(8)}"

    @property
    def family(self) -> str:
        """The beginning of the generations of this run, or of this attempt of it."""
        return _digest(f"{self.name}\0{self.attempt or ''}")[:8]

    def generation(self, token: str) -> str:
        return self.family + _digest(token)[:8]

    def share(self, token: str, process: int) -> str:
        return share_name(self.prefix, token, process, self.count) + INDEX

    def mark(self, token: str, ending: str) -> str:
        """Return the name of a mark of an attempt, the same for any number of processes."""
        return share_name(self.prefix, token, 0, 0) + ending

    def call(self, token: str) -> str:
        return share_name(self.prefix, token, 0, self.count) + CALL

    def data(self, nonce: str, process: int) -> str:
        """A bucket cannot rename, so there the name is final if the format allows."""
        if self.target.storage.local_path is None:
            name = self.form.process_file(self.target.name, nonce, process, self.count)
            if name:
                return name
        return share_name(self.prefix, nonce, process, self.count) + ".data"

    def read_process(self, process: int) -> int:
        number = read_integer(process, "process number")
        if not 0 <= number < self.count:
            cause = f"process={number} is not one of {self.count} processes."
            raise ArgumentError(cause, f"Give 0 to {self.count - 1}.")
        return number

    def at_call(self) -> Self:
        """Return the run in the folder of its path, or next to it, if process 0 has begun it there.

        Process 0 may have made the folder since this one looked, or this one since process 0 did.
        """
        place, stem = self.target.storage, self.target.stem
        if place.local_path is None or self.calls():
            return self
        other = replace(self.target, storage=place.folder(stem), name=IN_FOLDER)
        if stem == IN_FOLDER:
            above, name = os.path.split(place.local_path)
            other = replace(self.target, storage=LocalStorage(above), name=name)
        found = replace(self, target=other, version="", known={})
        found = replace(found, version=found.current_version())
        return found if found.calls() else self

    def refreshed(self) -> Self:
        """Return the run with a storage that sees the files that other processes have written since."""
        return replace(self, target=replace(self.target, storage=self.target.storage.refreshed()))

    def names(self) -> set[str]:
        return set(self.target.storage.names())

    def calls(self) -> list[tuple[str, int]]:
        """Return the tokens that process 0 has begun, in order, and the number of processes of each."""
        found = [
            (token, count)
            for token, _, count in self._parsed(CALL)
            if token.startswith(self.base) and _NUMBERED.fullmatch(token[len(self.base) :])
        ]
        return sorted(found)

    def missing(self, token: str) -> list[int]:
        names = self.names()
        return [each for each in range(self.count) if self.share(token, each) not in names]

    def is_committed(self, token: str) -> bool:
        """Return True if an attempt is committed; raise if another checkpoint is."""
        version = self.current_version()
        if version == self.version or not (version or self.form.capabilities.atomic_overwrite):
            return False
        if self.generation(token) in self.current_generations():
            return True
        # In a bucket a commit of this run may have been seen half: only an index that is seen twice is
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
        """Return True if the group, which may be slow, knows that an attempt was committed once."""
        return self.peers is not None and self.peers.told(self.generation(token)) is not None

    def is_in_place(self) -> bool:
        """Return True if the checkpoint in place is of this run, and of its attempt."""
        return any(each.startswith(self.family) for each in self.current_generations())

    def count_error(self, process: int, count: int) -> ArgumentError:
        who = f"Process {process} of the run {self.name!r} of {self.path}"
        remedy = "Give all processes one num_processes, and each save its own run."
        return ArgumentError(f"{who} is one of {count}, not {self.count}.", remedy)

    def odd_share(self) -> ArgumentError | StorageError | None:
        """Return the error of a share of the fixed token by a process that disagrees with this one."""
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
        """The generation or stamp of the index; of a file and a set, both. Empty without any."""
        if self.target.storage.local_path is not None:
            return " ".join(self.current_generations())
        indexes = indexes_of(self.target)
        return " ".join(_stamp(name, each) for name, each in indexes.items())

    def current_generations(self) -> list[str]:
        """Return the generation of each index in place; its stamp if it has none."""
        return [self._generation(name, found) for name, found in indexes_of(self.target).items()]

    def _generation(self, name: str, index: Location) -> str:
        """The generation of an index; the stamp of its file if it has none, or is damaged."""
        stamp = _stamp(name, index)
        while stamp not in self.known:
            try:
                generation = self.form.generation_of(index.storage, index.name) or stamp
            except (CheckpointError, StorageError, UnsupportedError):
                generation = stamp
            # Another process may have put its index in place: then it is unknown which of the two has
            # the generation. A bucket is asked for the listed version only.
            before = stamp
            if index.storage.local_path is not None:
                stamp = _stamp(name, index)
            if stamp == before:
                self.known[stamp] = generation
        return self.known[stamp]


@frozen
class OwnShare:
    """A share that this process has in an attempt."""

    process: int
    directory: HeldDirectory | None
    """The directory; None in a bucket."""

    @classmethod
    def of(cls, run: Run, process: int) -> Self:
        path = run.target.storage.local_path
        return cls(process, None if path is None else HeldDirectory(path))

    def is_moved(self, run: Run, token: str) -> bool:
        """Only a commit removes a share: one that is still in the directory was moved before."""
        held = self.directory
        return (
            held is not None
            and held.is_moved(run.target.storage.path)
            and run.share(token, self.process) not in held.names()
        )


_PLAIN = SaveOptions()


def find_run(
    path: Path,
    run: str,
    count: int,
    format: str | None,
    attempt: str | None = None,
    peers: Peers | None = None,
    options: SaveOptions = _PLAIN,
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
    if options.is_part:
        count, peers = 1, None
    found = Run(target, run, count, attempt, peers=peers, options=options)
    version = found.current_version()
    if version and not options.overwrite:
        cause = f"Checkpoint already exists: {found.path}, and overwrite is False."
        raise TargetExists(cause, "Choose another path.")
    return replace(found, version=version)


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


# --- The pauses of a process that waits


_DISK_SECONDS = 0.001, 0.02, 1.0, 1.2
"""The first pause between two looks at a disk: the first of these for each process, at most the second.
Then the longest pause, and the factor from one pause to the next."""

_LOOKS_A_SECOND = 25
"""Looks at a bucket by all processes together, at the first pause of a wait for all of them: a look is
a request, and the slowest one writes for a while."""
_CALLS_A_SECOND = 1000
"""The same where only process 0 is awaited, which calls at once."""

_BUCKET_SECONDS = 0.5, 4.0, 30.0, 2.0
"""The first pause is from the first to the second of these; then the longest one, and the factor."""

_GROUP_SECONDS = 1.0, 8.0
"""The first and the longest pause between two questions to the group: each leaves a few bytes in it."""


@mutable
class WaitPace:
    """The pauses of one process that waits."""

    timeout: float
    deadline: float
    seconds: float
    longest: float
    factor: float
    peers: Peers | None = None
    """The processes, if a group connects them."""
    first: float = 0.0
    """The first pause of a wait for all."""
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
        return time.monotonic() >= self.deadline

    def begin(self, *, commits: bool) -> None:
        """Begin a wait for all; the looks of the only process that commits are few in any case."""
        self.seconds = min(self.first, _BUCKET_SECONDS[0]) if commits else self.first

    def pause(self) -> None:
        time.sleep(min(self.seconds, max(self.deadline - time.monotonic(), 0)))
        self.seconds = min(self.seconds * self.factor, self.longest)


def pace_of(run: Run, most: float = inf) -> WaitPace:
    """Return the pauses of a process of a run, which waits at most so many seconds."""
    is_local = run.target.storage.local_path is not None
    return pace_at(min(run.options.timeout, most), run.count, run.peers, is_local=is_local)


def pace_at(timeout: float, count: int, peers: Peers | None, *, is_local: bool) -> WaitPace:
    deadline = time.monotonic() + timeout
    if is_local:
        each, most, longest, factor = _DISK_SECONDS
        first = min(each * count, most)
        return WaitPace(timeout, deadline, first, longest, factor, peers, first)
    least, most, longest, factor = _BUCKET_SECONDS
    call, first = (
        min(max(least, count / looks), most) for looks in (_CALLS_A_SECOND, _LOOKS_A_SECOND)
    )
    return WaitPace(timeout, deadline, call, longest, factor, peers, first)


# --- The keys of a training state that not all processes have


_JSON_DEPTH = 4
"""Levels of the text."""
_WRONG = TypeError, KeyError


def keys_of_some(keys: Sequence[Set[str]]) -> dict[str, str]:
    """Of keys that begin alike only the beginning, unless all processes have one of them."""
    every, common = frozenset().union(*keys), frozenset(keys[0]).intersection(*keys)
    if every == common:
        return {}
    of_all = {beginning for key in common for beginning in _beginnings(key)}
    single, beginnings = set[str](), set[str]()
    for key in every - common:
        first = next((each for each in _beginnings(key) if each not in of_all), None)
        if first is None:
            single.add(key)
        else:
            beginnings.add(first)
    found = {"keys": sorted(single), "beginnings": sorted(beginnings)}
    return {SOME_PROCESSES: json.dumps(found)}


def without_keys_of_some(keys: Iterable[str], texts: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys that all processes had; ``texts`` are the metadata of the checkpoint."""
    text = texts.get(SOME_PROCESSES)
    if text is None:
        return tuple(keys)
    found = parse_json(text.encode("utf-8", "surrogatepass"), _JSON_DEPTH)
    with decoding(lambda _: invalid(f"Its metadata {SOME_PROCESSES!r} are not keys."), *_WRONG):
        single, beginnings = (frozenset(found[name]) for name in ("keys", "beginnings"))
    return tuple(
        key for key in keys if key not in single and beginnings.isdisjoint(_beginnings(key))
    )


def _beginnings(key: str) -> Iterator[str]:
    """Yield the first step on the way to a key, the first two, and so on, each with a dot."""
    return accumulate(f"{step}." for step in key.split(".")[:-1])
