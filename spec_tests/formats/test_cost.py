"""The cost of reading is bounded by the size of the files: `n` and `2n` of each construct, by every
verb that reads.

The oracle is CPU time and peak memory. A cost that is in proportion to the files doubles; the
square of them is four times as large. Other programs of the machine disturb the time, so the least
of several runs counts, times that are too short to be compared pass, and a ratio that is too large
is measured again at twice the size, and at four times: a cost in proportion to the square is found
at each, a disturbance is not.
"""

import gc
import logging
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

import shardvar as sv
from shardvar.cli import main
from shardvar.engine.pool import in_this_thread
from shardvar.errors import ShardvarError
from shardvar.limits import LIMITS, MAX_MESSAGE_LENGTH
from spec_tests.helpers import paths
from spec_tests.helpers.thoroughness import turn
from spec_tests.hostile.growing import CONSTRUCTS, Construct

MOST_RATIO = 6.0
"""Of memory, which nothing disturbs, of four times the size: between 4, of a use in proportion, and
16, of its square."""
MOST_TIME_RATIO = 3.0
"""Between 2, of a cost in proportion, and 4, of its square."""
SECONDS = 0.05
"""Less than this may be noise: the sizes are such that the square of them takes far longer."""
ATTEMPTS = 6
DOUBLINGS = 3
MOST_BYTES_PER_BYTE = 300
"""The peak of memory for a byte of the files, above ``FREE_NBYTES``; SECURITY.md states it."""
FREE_NBYTES = 8 << 20


def restore(path: str) -> None:
    sv.Checkpoint(v=sv.Variable([1.0, 2.0, 3.0, 4.0])).read(path)


VERBS: dict[str, Callable[[str], object]] = {
    "load": sv.load,
    "verify": sv.verify,
    "inspect": lambda path: main(["inspect", path, "--slices"]),
    "restore": restore,
    "load_exported": sv.load_exported,
    "mistake": lambda path: sv.load(path, ["key0000000x"]),
}


def verbs_for(construct: Construct) -> dict[str, Callable[[str], object]]:
    """Return ``load`` and, of the others, the one whose turn it is; all in ``make crash``."""
    load, *others = VERBS
    return {name: VERBS[name] for name in (load, *turn(others, CONSTRUCTS.index(construct)))}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Where one tensor is read after the other, to start threads takes longer than to read."""
    with in_this_thread():
        yield


@pytest.fixture(autouse=True, scope="module")
def old_objects_stay() -> Iterator[None]:
    """Keep the collector from what earlier tests left: each collection would look at all of it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(params=CONSTRUCTS, ids=[construct.name for construct in CONSTRUCTS])
def construct(request: pytest.FixtureRequest) -> Construct:
    return request.param


def write(construct: Construct, count: int, directory: Path) -> tuple[str, int]:
    """Return the path of a checkpoint with ``count`` of the construct, and the size of its
    files."""
    directory.mkdir()
    files = construct.files(count)
    for name, octets in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(octets)
    return str(directory / construct.path), sum(map(len, files.values()))


def seconds(verb: Callable[[str], object], path: str) -> float:
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        with suppress(ShardvarError):
            verb(path)
        return time.process_time() - start
    finally:
        gc.enable()


def is_doubled(verb: Callable[[str], object], small: str, large: str) -> bool:
    """Return True if the larger file takes less than ``MOST_TIME_RATIO`` times as long."""
    times: tuple[list[float], list[float]] = [], []
    for _ in range(ATTEMPTS):
        for path, found in zip((small, large), times, strict=True):
            found.append(seconds(verb, path))
        if min(times[1]) < max(MOST_TIME_RATIO * min(times[0]), SECONDS):
            return True
    return False


def is_in_proportion(verb: Callable[[str], object], sized: Callable[[int], str]) -> bool:
    """Return True if a doubling of ``sized(1)`` or, where that was disturbed, of a larger size
    doubles the cost."""
    return any(is_doubled(verb, sized(2**k), sized(2 ** (k + 1))) for k in range(DOUBLINGS))


@pytest.mark.sample(5)
def test_twice_as_much_takes_about_twice_as_long(
    construct: Construct,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "shardvar")

    @cache
    def sized(factor: int) -> str:
        return write(construct, factor * construct.count, tmp_path / str(factor))[0]

    verbs = verbs_for(construct)
    slow = [name for name, verb in verbs.items() if not is_in_proportion(verb, sized)]
    assert slow == []


@pytest.mark.sample(7)
def test_memory_is_a_documented_multiple_of_the_files(
    construct: Construct, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For each verb by itself, and about four times as much for four times the size."""
    # The modules that a first call imports are no cost of the files.
    other, _ = write(construct, construct.count // 10, tmp_path / "other")
    verbs = verbs_for(construct)
    for verb in verbs.values():
        with suppress(ShardvarError):
            verb(other)
    peaks = []
    for count in (construct.count // 4, construct.count):
        path, nbytes = write(construct, count, tmp_path / str(count))
        for verb in verbs.values():
            gc.collect()
            tracemalloc.start()
            with suppress(ShardvarError):
                verb(path)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            assert peaks[-1] < FREE_NBYTES + MOST_BYTES_PER_BYTE * nbytes
    for small, large in zip(peaks[: len(verbs)], peaks[len(verbs) :], strict=True):
        assert large < max(MOST_RATIO * small, FREE_NBYTES)


def test_every_error_of_a_construct_is_ours_and_short(construct: Construct, tmp_path: Path) -> None:
    path, _ = write(construct, construct.count // 10, tmp_path / "one")
    for name in ("load", "restore", "load_exported", "mistake"):
        try:
            VERBS[name](path)
        except ShardvarError as error:
            assert (
                max(len(error.cause), len(error.remedy)) <= MAX_MESSAGE_LENGTH
                and str(error).isprintable()
            )


def test_the_table_of_limits_is_that_of_the_security_page() -> None:
    rows = [
        line.split("|")[1:3]
        for line in (paths.ROOT / "SECURITY.md").read_text().splitlines()
        if "| `MAX_" in line
    ]
    assert {name.strip(" `"): int(value.replace(",", "")) for name, value in rows} == dict(LIMITS)


def test_the_page_states_the_multiple_of_memory() -> None:
    text = (paths.ROOT / "SECURITY.md").read_text()
    assert f"{MOST_BYTES_PER_BYTE} bytes of memory" in text and f"{FREE_NBYTES >> 20} MiB" in text
