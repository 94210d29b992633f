"""Run: one save by several processes, which know of each other only what is in the directory.

The name of the run, and the version of the checkpoint that the save found, give its shares their
token. The version that is there later tells a waiting process whether its run is committed, or
another writer was faster.
"""

import hashlib
import time
from dataclasses import dataclass, field, replace
from typing import Self, cast

from shardvar.errors import ArgumentError, CheckpointError, StorageError, UnsupportedError
from shardvar.formats.protocol import SharedFormat
from shardvar.formats.table import name_of_target, names_of_target, stem_of_name
from shardvar.formats.unfinished import parse_share_name, share_name, share_prefix
from shardvar.layout.region import read_integer
from shardvar.limits import MAX_FILES
from shardvar.verbs.arguments import check_string
from shardvar.verbs.locate import Location, Path, find_target
from shardvar.verbs.together.share_format import ShareFormat

SAVE_AGAIN = "Save again, under a new run."
"""The remedy where a run has lost."""

_LOOK_AGAIN_SECONDS = 0.02
"""The pause before a second look at a commit that may have been seen half."""


@dataclass(frozen=True, slots=True)
class Run:
    """One save by several processes, as what is in the directory shows it."""

    target: Location
    """The checkpoint to write."""
    name: str
    """The name that the caller gave the run."""
    count: int
    """The number of processes."""
    version: str = ""
    """The version of the checkpoint that is replaced; empty for none."""
    known: dict[str, str] = field(default_factory=dict)
    """The generations of indexes that were opened, by their stamps: an index is opened once, and
    looked at often."""

    @property
    def path(self) -> str:
        """The path of the checkpoint, for messages."""
        return self.target.path

    @property
    def prefix(self) -> str:
        """The prefix of the shares."""
        return share_prefix(self.target.stem, self.target.format.name)

    @property
    def generation(self) -> str:
        """The generation of the checkpoint once it is committed."""
        # 64 bits: two runs do not get the same one by chance.
        return hashlib.sha256(self.name.encode("utf-8", "surrogateescape")).hexdigest()[:16]

    @property
    def token(self) -> str:
        """The token of the shares: it differs if another checkpoint was in place."""
        return self.generation + hashlib.sha256(self.version.encode()).hexdigest()[:8]

    def share(self, process: int) -> Location:
        """Return the location of one process's share."""
        form = ShareFormat(cast("SharedFormat", self.target.format), self.target.name)
        return Location(
            form, self.target.storage, share_name(self.prefix, self.token, process, self.count)
        )

    def refreshed(self) -> Self:
        """Return the run with a storage that sees what other processes have written since."""
        return replace(self, target=replace(self.target, storage=self.target.storage.refreshed()))

    def missing(self) -> list[int]:
        """Return the processes that have not committed their shares."""
        names = set(self.target.storage.names())
        return [
            process for process in range(self.count) if not has_index(self.share(process), names)
        ]

    def is_committed(self) -> bool:
        """Return True if the run is committed; raise if it cannot be, or processes disagree."""
        version = self.current_version()
        if self._is_other(version):
            # In a bucket a commit of this run may have been seen half: only what is seen twice is
            # another's.
            time.sleep(_LOOK_AGAIN_SECONDS)
            self.known.clear()
            version = self.refreshed().current_version()
            if self._is_other(version):
                raise StorageError(
                    f"{self.path} was replaced while the run {self.name!r} saved it.", SAVE_AGAIN
                )
        if self.generation in version.split():
            return True
        ending = self.share(0).format.name
        for name in self.target.storage.names():
            found = parse_share_name(stem_of_name(name, ending), self.prefix)
            if found is None or not found[0].startswith(self.generation):
                continue
            token, process, count = found
            if count != self.count:
                cause = (
                    f"Process {process} of the run {self.name!r} of {self.path} is one of "
                    f"{count}, not {self.count}."
                )
                raise ArgumentError(
                    cause, "Give all processes one num_processes, and each save its own run."
                )
            if token != self.token:
                cause = (
                    f"Process {process} of the run {self.name!r} began when another checkpoint "
                    f"was at {self.path}."
                )
                raise StorageError(cause, SAVE_AGAIN)
        return False

    def _is_other(self, version: str) -> bool:
        """Return True if a version is neither this run's nor the one that it found."""
        if version == self.version or self.generation in version.split():
            return False
        # Else the one before is retired.
        return bool(version) or self.target.format.capabilities.atomic_overwrite

    def current_version(self) -> str:
        """Return a text that another checkpoint of this path does not have: the generation of its
        index, or its stamp.

        Empty if there is none. Of a file and a set that stand side by side, both.
        """
        return " ".join(
            self._generation(name, found) for name, found in indexes_of(self.target).items()
        )

    def _generation(self, name: str, index: Location) -> str:
        """The generation that an index has; the stamp of its file if it has none, or is damaged."""
        stamp = index.storage.stamp(name) or ""
        while stamp not in self.known:
            try:
                opened = index.open()
                generation = opened.index.metadata.generation or stamp
                opened.close()
            except (CheckpointError, StorageError, UnsupportedError):
                generation = stamp
            # Another process may have put its index in place meanwhile: then it is unknown which
            # one has the generation.
            before, stamp = stamp, index.storage.stamp(name) or ""
            if stamp == before:
                self.known[stamp] = generation
        return self.known[stamp]


def find_run(path: Path, run: str, count: int, format: str | None) -> Run:
    """Return the run of these arguments; ``UnsupportedError`` if the format has no shares."""
    check_string(run, "names of runs")
    if not run:
        raise ArgumentError(
            "The name of the run is empty.", "Give a text that no other save of this path has."
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
    found = Run(target, run, count)
    return replace(found, version=found.current_version())


def indexes_of(target: Location) -> dict[str, Location]:
    """Return the indexes of a target that are there, each with the location of its checkpoint."""
    form = target.format.name
    named = [target.name] if target.is_folder else names_of_target(target.stem, form)[1:]
    there = set(target.storage.names())
    return {
        name: replace(target, name=name_of_target(name, form)) for name in named if name in there
    }


def has_index(share: Location, names: set[str]) -> bool:
    """Return True if a share is committed, by the names in the directory."""
    return not names.isdisjoint(names_of_target(share.name, share.format.name)[1:])
