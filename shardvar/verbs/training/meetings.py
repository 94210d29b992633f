"""Meetings: the processes of a job tell each other a few integers, without messages.

Each process writes its integers as its share of a small checkpoint, and reads the integers of all once
it is committed. The fence of shares does the rest (``verbs.together.fence``): the processes are in one
attempt, and one that dies is an error for all.

Each meeting has its own place, ``.NAME-restore/NUMBER``. So process 0 can remove one while the
others are in the next. It does so after a save: all processes took part in that, after they
had left the meetings.
"""

import os
from contextlib import suppress

import numpy as np

from shardvar.errors import ShardvarError
from shardvar.verbs.load import load
from shardvar.verbs.remove import remove
from shardvar.verbs.together.shares import save_shards
from shardvar.verbs.training.framework import Framework
from shardvar.verbs.training.step_records import steps_storage


class Meetings:
    """The meetings of the processes of a job, which all of them hold in the same order."""

    def __init__(self, directory: str, name: str, using: Framework, timeout: float) -> None:
        self._directory, self._folder = directory, f".{name}-restore"
        self._using, self._timeout = using, timeout
        self._held, self._removed = 0, 0

    def hold(self, mine: list[int]) -> list[list[int]]:
        """Return the integers that each process gives."""
        process, count = self._using.processes()
        if count == 1:
            return [mine]
        path = self._path(self._held)
        self._held += 1
        save_shards(
            path,
            {str(process): np.array(mine, np.int64)},
            process=process,
            num_processes=count,
            run="meeting",
            format="shardvar",
            timeout=self._timeout,
        )
        found = load(path)
        return [found[str(each)].tolist() for each in range(count)]

    def remove(self) -> None:
        """Remove what the meetings have left, as process 0."""
        for number in range(self._removed, self._held):
            with suppress(ShardvarError):
                remove(self._path(number))
                # The folder, if it is empty now.
                steps_storage(self._directory).remove(f"{self._folder}/{number}")
        self._removed = self._held

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, self._folder, str(number))
