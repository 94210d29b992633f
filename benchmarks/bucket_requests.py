"""The requests of a reshard from a bucket into a bucket through an executor: how many there are of
each kind, and how many wait for one another.

    caller, before    lists source and target, reads the index; marks uploads in parts
    worker, once      opens the source: its index, and up to 64 of its files
    worker, a file    HEAD, a GET for each block of 4 MiB, and PUT; or begin, parts, complete
    caller, a file    HEAD of the file, and PUT of its journal: of as many files at a time as have
                      64 MiB together, and at most 64
    caller, after     PUT and HEAD of the index, removal of the journals

If the names of files are not final, such as those of a set of safetensors, the caller also claims
the names before, and afterwards looks at each file twice, copies it within the bucket, and looks at
the copy: 64 files at a time.

Each file of the source is one file of the target. ``spec_tests/cloud`` counts the requests at a
server and compares them with this module.
"""

from collections import Counter
from dataclasses import dataclass

from shardvar.engine.pool import BLOCK_NBYTES
from shardvar.formats.files import OPEN_FILES
from shardvar.storage.remote import TRAITS
from shardvar.storage.settings import ONE_PUT_NBYTES, StorageOptions

OPTIONS = StorageOptions()

PAGE = 1000
"""Objects of an answer to a listing, and of a request that removes objects."""
WRITES = ("PUT", "copy", "begin", "part", "complete", "delete")
"""The kinds of requests that a bucket counts as writes; listings count as reads."""


@dataclass(frozen=True, slots=True)
class Job:
    """A reshard of files of one size."""

    count: int
    """The number of files."""
    nbytes: int
    """The bytes of each."""
    is_renamed: bool = False
    """True if files are uploaded under temporary names."""

    @property
    def _is_in_parts(self) -> bool:
        return self.nbytes > ONE_PUT_NBYTES

    @property
    def _parts(self) -> int:
        return -(-self.nbytes // OPTIONS.part_nbytes)

    @property
    def _blocks(self) -> int:
        return -(-self.nbytes // BLOCK_NBYTES)

    def requests(self, workers: int) -> Counter[str]:
        """Return the number of requests of each kind; ``workers`` are the ones that got a file."""
        count, pages = self.count, -(-self.count // PAGE)
        found = Counter(list=3 * pages, GET=1 + workers + count * self._blocks)
        found["HEAD"] = workers * (1 + min(count, OPEN_FILES)) + 2 * count + 1
        found["PUT"] = count + 1  # journals, and the index
        found["delete"] = pages
        if self._is_in_parts:
            found += Counter(begin=count, part=count * self._parts, complete=count)
            found += Counter(PUT=1, delete=1)  # the mark
        else:
            found["PUT"] += count
        if self.is_renamed:
            # The claim; and the second listing is of two files each.
            found += Counter(PUT=1, copy=count, HEAD=3 * count, list=2 * pages, delete=1)
        return found

    def rounds_of_file(self) -> int:
        """Return how many requests of a worker for a file wait for one another."""
        upload = 2 + -(-self._parts // OPTIONS.parts_ahead) if self._is_in_parts else 1
        return 1 + self._blocks + upload

    def rounds_of_opening(self) -> int:
        """Return how many requests of a worker wait for one another before its first file."""
        return 2 + min(self.count, OPEN_FILES)

    def rounds_before(self) -> int:
        """Return how many requests of the caller wait for one another before any task."""
        return 3 * -(-self.count // PAGE) + 1 + self._is_in_parts + 2 * self.is_renamed

    rounds_of_report = 2
    """Requests of the caller for each file, one after the other."""

    def reports_at_a_time(self) -> int:
        """Return for how many files the caller makes them at a time."""
        return max(1, min(TRAITS.requests, TRAITS.in_flight_nbytes // self.nbytes))

    def rounds_after(self) -> int:
        """Return how many requests of the caller wait for one another after all tasks, without
        copies."""
        pages = -(-self.count // PAGE)
        rounds = 2 + pages + self._is_in_parts
        if self.is_renamed:
            rounds += pages + 1 + 3 * self.rounds_of_copies()
        return rounds

    def rounds_of_copies(self) -> int:
        """Return how many copies within the bucket wait for one another."""
        return -(-self.count // TRAITS.requests) if self.is_renamed else 0
