"""The growth of time with the work: tensors, bytes, files, slices, workers, each over several
powers of ten.

A point is the median of up to five runs of one program, of a second in all; the first run counts
only if it takes longer by itself. A curve of a peer ends where one run of each verb would take more
than ``PATIENCE`` at the next size. ``benchmarks.curves`` has the exponents.
"""

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np

import shardvar as sv
from benchmarks import simulate
from benchmarks.arrays import our_save, raw_read, raw_write, saving
from benchmarks.figures import Figure
from benchmarks.holes import one_tensor, write_holes
from benchmarks.peers import Arrays, Peer
from benchmarks.places import Place, emptied, sync_tree
from benchmarks.reshard import COPY
from benchmarks.setting import Setting, failed
from benchmarks.sizes import MIB
from benchmarks.timing import Run
from shardvar.planning.policies import BalancedPolicy

ENOUGH = 1.0
"""Seconds of runs for one point."""
PATIENCE = 15.0
"""Seconds that a peer may take for one run of each verb."""
OURS = "shardvar"

Verbs = Iterator[tuple[str, Run]]
"""What is done, and the run of it, made when it is its turn: a load after the save that it
loads."""
Programs = dict[str, Callable[[int], Verbs]]
"""The programs, each with the verbs at a size."""


def measure(setting: Setting) -> Iterator[Figure]:
    """The points of all curves."""
    sizes, place = setting.sizes, setting.quiet
    yield from _curves(
        "tensors", place, _powers(10, 10, sizes.growth_tensors), _many_tensors(setting)
    )
    yield from _curves(
        "bytes", place, _powers(MIB, 4, sizes.growth_nbytes // 4), _large_tables(setting)
    )
    yield from _curves(
        "bytes", setting.disk, _powers(MIB, 4, sizes.growth_nbytes), _holes(setting.disk)
    )
    yield from _curves(
        "files", place, _powers(1, 4, sizes.growth_files), _many_files(place, sizes.growth_files)
    )
    yield from _curves("slices", place, _powers(1, 10, sizes.growth_slices), _many_slices(setting))
    yield from _curves("workers", place, _powers(1, 2, sizes.growth_workers), _workers(place))


def _powers(first: int, factor: int, last: int) -> list[int]:
    sizes = [first]
    while sizes[-1] * factor <= last:
        sizes.append(sizes[-1] * factor)
    return sizes


def _curves(family: str, place: Place, sizes: list[int], programs: Programs) -> Iterator[Figure]:
    """The points of one family: a size of all programs before the next size."""
    ended: set[str] = set()
    for number, size in enumerate(sizes):
        for program in [each for each in programs if each not in ended]:
            took: dict[str, float] = {}
            try:
                for verb, run in programs[program](size):
                    took[verb] = _seconds(run)
                    yield _figure(family, verb, program, place, size, took[verb])
            except NoRoom as error:
                ended.add(program)
                yield _end(family, "all verbs", program, place, size, str(error))
            except Exception as error:  # noqa: BLE001 - whatever a library raises, the others are measured
                ended.add(program)
                yield failed(f"{family}: {size:,}", program, error)
            growth = sizes[number + 1] / size if number + 1 < len(sizes) else 0
            if program not in (OURS, *ended) and sum(took.values()) * growth > PATIENCE:
                ended.add(program)
                why = f"as the next size would take it more than {PATIENCE:g} s"
                yield _end(family, ", ".join(took), program, place, sizes[number + 1], why)
    place.room("theirs"), place.room("ours")


class NoRoom(Exception):
    """Memory or disk do not suffice; the text says for what."""


def _figure(
    family: str, verb: str, program: str, place: Place, size: int, seconds: float
) -> Figure:
    return Figure(f"{family}: {verb}", program, place.name, seconds, "s", None, size=size)


def _end(family: str, verb: str, program: str, place: Place, size: int, why: str) -> Figure:
    return Figure(f"{family}: {verb}", program, place.name, None, "s", None, why, size=size)


def _seconds(run: Run) -> float:
    first = run.seconds()
    if first > ENOUGH:
        return first
    times = [run.seconds()]
    while len(times) < 5 and sum(times) < ENOUGH:
        times.append(run.seconds())
    return median(times)


def _beside(
    setting: Setting, arrays_of: Callable[[int], Arrays], ours: Callable[[Arrays], Verbs]
) -> Programs:
    """shardvar and all peers on the same arrays, which are made once for each size."""
    made: dict[int, Arrays] = {}

    def arrays(size: int) -> Arrays:
        if size not in made:
            made.clear()
            made[size] = arrays_of(size)
        return made[size]

    programs: Programs = {OURS: lambda size: ours(arrays(size))}
    for name, peer in setting.peers():
        if peer is not None:
            programs[name] = partial(_of_peer, setting.quiet, peer, arrays)
    return programs


def _of_peer(place: Place, peer: Peer, arrays_of: Callable[[int], Arrays], size: int) -> Verbs:
    room, state = place.room("theirs"), peer.prepare(arrays_of(size))
    yield "save", saving(room, peer, state)
    yield "open", Run(lambda: peer.names(room))
    yield "load", Run(lambda: peer.load(room, state))


def _many_tensors(setting: Setting) -> Programs:
    def arrays(count: int) -> Arrays:
        values = np.random.default_rng(0).standard_normal((count, 16), np.float32)
        return {f"layer_{row:07d}.bias": values[row].copy() for row in range(count)}

    return _beside(setting, arrays, partial(_our_verbs, setting.quiet))


def _our_verbs(place: Place, arrays: Arrays) -> Verbs:
    yield "save", our_save(place, arrays)
    path = place.path / "ours" / "model"
    yield "open", Run(lambda: _names(path))
    yield "load", Run(lambda: sv.load(path))


def _names(path: Path) -> list[str]:
    with sv.open_checkpoint(path) as reader:
        return list(reader.keys())


def _large_tables(setting: Setting) -> Programs:
    """Save and load one table of so many bytes, beside raw input and output."""
    place = setting.quiet

    def table(nbytes: int) -> Arrays:
        if not place.has_room_for(2 * nbytes) or _free_memory() < 5 * nbytes:
            raise NoRoom("as memory has no room for the table, its copies and its files")
        some = np.random.default_rng(0).standard_normal(min(nbytes, 64 * MIB) // 4, np.float32)
        return {"table": np.resize(some, (nbytes // 256, 64))}

    def raw(arrays: Arrays) -> Verbs:
        yield "save", raw_write(place, arrays)
        yield "load", raw_read(place, arrays)

    def without_open(verbs: Verbs) -> Verbs:
        return ((verb, run) for verb, run in verbs if verb != "open")

    programs = _beside(setting, table, partial(_our_verbs, place))
    found: Programs = {
        name: lambda size, of=of: without_open(of(size)) for name, of in programs.items()
    }
    return {**found, "raw input and output": lambda size: raw(table(size))}


def _free_memory() -> float:
    """The bytes that new processes could have; without bound where the system does not say."""
    path = Path("/proc/meminfo")
    if not path.is_file():
        return float("inf")
    return int(path.read_text().split("MemAvailable:")[1].split()[0]) * 1024


def _holes(place: Place) -> Programs:
    """Verify and reshard a table in four files of zeros, which take no room on the disk, beside
    ``cp``."""

    def source(nbytes: int) -> Path:
        if not place.has_room_for(nbytes):
            raise NoRoom("as the disk has no room for what is written")
        room = place.room("source")
        write_holes(room / "source", one_tensor(nbytes // 256, 4), num_files=4)
        return room

    def ours(nbytes: int) -> Verbs:
        room, target = source(nbytes), place.room("target")
        yield "verify", Run(lambda: sv.verify(room / "source"))
        policy = BalancedPolicy(3)
        reshard = partial(
            sv.reshard, room / "source", target / "target", partition=3, policy=policy
        )
        yield "reshard", Run(reshard, emptied(target))
        place.room("target")

    def copy(nbytes: int) -> Verbs:
        files, target = sorted(map(str, source(nbytes).iterdir())), place.room("target")

        def call() -> None:
            subprocess.run([*COPY, "--sparse=never", *files, str(target)], check=True)
            sync_tree(target)

        yield "reshard", Run(call, emptied(target))
        place.room("target")

    return {OURS: ours, "cp and fsync": copy}


def _many_files(place: Place, most: int) -> Programs:
    """As many tensors of 4 KiB as there are files at the end, in fewer files before."""
    values = np.random.default_rng(0).standard_normal((most, 1024), np.float32)
    arrays = {f"layer_{row:05d}": values[row] for row in range(most)}

    def ours(count: int) -> Verbs:
        room = place.room("ours")
        yield (
            "save",
            Run(
                lambda: sv.save(room / "model", arrays, policy=BalancedPolicy(count)), emptied(room)
            ),
        )
        yield "load", Run(lambda: sv.load(room / "model"))

    def raw(count: int) -> Verbs:
        room, parts = place.room("theirs"), np.array_split(values, count)

        def write() -> None:
            for number, part in enumerate(parts):
                part.tofile(room / f"{number}")
            sync_tree(room)

        yield "save", Run(write, emptied(room))
        yield (
            "load",
            Run(lambda: [np.fromfile(room / f"{number}", np.float32) for number in range(count)]),
        )

    return {OURS: ours, "raw input and output": raw}


def _many_slices(setting: Setting) -> Programs:
    """A table of as many rows as there are slices at the end."""
    place, most = setting.quiet, setting.sizes.growth_slices
    table = np.random.default_rng(0).standard_normal((most, 64), np.float32)
    programs: Programs = {OURS: lambda count: _our_slices(place, table, count)}
    for name, verbs in (
        ("TensorFlow kernels", _tensorflow_slices),
        ("TensorStore", _tensorstore_slices),
    ):
        peer = dict(setting.peers())[name]
        if peer is not None:
            programs[name] = partial(verbs, place, peer, table)
    return programs


def _our_slices(place: Place, table: np.ndarray, count: int) -> Verbs:
    room, target = place.room("ours"), place.room("target")
    yield (
        "save",
        Run(lambda: sv.save(room / "model", {"table": table}, partition=count), emptied(room)),
    )
    yield "load", Run(lambda: sv.load(room / "model"))
    reshard = partial(sv.reshard, room / "model", target / "model", partition=count // 2 + 1)
    yield "reshard into half as many", Run(reshard, emptied(target))


def _tensorflow_slices(place: Place, peer: Peer, table: np.ndarray, count: int) -> Verbs:
    room, library = place.room("theirs"), peer.library  # type: ignore[attr-defined]
    rows, columns = table.shape
    first = [number * rows // count for number in range(count + 1)]
    bounds = list(pairwise(first))
    specs = [f"{rows} {columns} {start},{stop - start}:-" for start, stop in bounds]
    tensors, names = (
        [library.constant(table[start:stop]) for start, stop in bounds],
        ["table"] * count,
    )

    def save() -> None:
        library.raw_ops.SaveV2(
            prefix=f"{room}/m", tensor_names=names, shape_and_slices=specs, tensors=tensors
        )
        sync_tree(room)

    whole = {"tensor_names": ["table"], "shape_and_slices": [""], "dtypes": [library.float32]}
    yield "save", Run(save, emptied(room))
    yield "load", Run(lambda: library.raw_ops.RestoreV2(prefix=f"{room}/m", **whole))


def _tensorstore_slices(place: Place, peer: Peer, table: np.ndarray, count: int) -> Verbs:
    room, library = place.room("theirs"), peer.library  # type: ignore[attr-defined]
    shape = [-(-len(table) // count), table.shape[1]]
    grid = {"name": "regular", "configuration": {"chunk_shape": shape}}
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{room}/table/"}}

    def save() -> None:
        made = spec | {"metadata": {"chunk_grid": grid}}
        array = library.open(made, create=True, dtype=library.float32, shape=table.shape).result()
        array.write(table).result()
        sync_tree(room)

    yield "save", Run(save, emptied(room))
    yield "load", Run(lambda: library.open(spec, open=True).result().read().result())


def _workers(place: Place) -> Programs:
    """Reshards of 64 files: in processes, and in threads with a store that answers in 50 ms."""

    def ours(count: int) -> Verbs:
        for verb, start, nbytes, store in (
            (
                "reshard in processes",
                lambda: ProcessPoolExecutor(count, mp_context=get_context("spawn")),
                MIB,
                None,
            ),
            (
                "reshard in threads, store of 50 ms",
                lambda: ThreadPoolExecutor(count),
                MIB // 4,
                0.05,
            ),
        ):
            room = place.room("ours")
            simulate.write_source(room, nbytes, 64)
            executor: Executor
            with (
                start() as executor,
                nullcontext() if store is None else simulate.slow_store(store),
            ):
                if store is None:
                    simulate.reshard(room, 64, executor)  # until all have started
                yield verb, Run(partial(simulate.reshard, room, 64, executor))

    return {OURS: ours}
