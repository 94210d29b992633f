"""Making, applying and joining deltas, over SHA-256 of the same bytes, other programs and a copy; their
sizes over the least that any program could need. Incremental saves over whole ones."""

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import log2
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import shardvar as sv
from benchmarks.child import call
from benchmarks.figures import Figure
from benchmarks.setting import Setting, skipped
from benchmarks.sizes import MIB
from benchmarks.timing import Run
from shardvar.verbs.reports import WriteReport

FRACTIONS = (0.001, 0.01, 0.1, 1.0)
"""The elements that change from one step to the next."""
NUM_TENSORS, STEPS = 8, ("a", "b", "c")
PROGRAMS = ("zstd --patch-from", "xdelta3")


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of deltas."""
    place, nbytes = setting.quiet, setting.sizes.reshard_nbytes // 16
    for program in PROGRAMS:
        if not shutil.which(program.split()[0]):
            yield skipped("deltas", program, f"{program.split()[0]} is not installed")
    for fraction in FRACTIONS:
        room = place.room("deltas")
        call(write_steps, str(room), nbytes, fraction)
        yield from _figures(
            setting, room, f"{nbytes // MIB} MiB, {100 * fraction:g} % changed", fraction
        )
    yield from _increments(setting, place.room("deltas"), nbytes)
    place.room("deltas")


def _increments(setting: Setting, room: Path, nbytes: int) -> Iterator[Figure]:
    """An incremental save of a process of a job, in which one of 100 tensors has changed."""
    rng = np.random.default_rng(0)
    tensors = {f"w{number}": rng.bytes(nbytes // 100) for number in range(100)}
    arrays = {key: np.frombuffer(octets, np.uint8) for key, octets in tensors.items()}
    count = iter(range(10**6))

    def save(name: str, **options: Any) -> WriteReport:
        names: dict[str, Any] = {"process": 0, "num_processes": 1, "run": f"{next(count)}"}
        return sv.save_shards(room / name, arrays, **names, **options)

    save("first")
    save("base", base=room / "first")  # which has digests, so that no save reads it
    arrays["w7"] = arrays["w7"][::-1].copy()
    what = f"{nbytes // MIB} MiB, 1 % of the tensors changed"
    incremental = Run(lambda: save("next", base=room / "base"))
    whole, digested = Run(lambda: save("whole")), Run(lambda: save("digested", digest=True))
    yield setting.ratio(f"save {what}", "a whole save", setting.quiet, incremental, whole, None)
    yield setting.ratio(
        f"save {what}", "a whole save with digests", setting.quiet, incremental, digested, None
    )
    found = save("next", base=room / "base").nbytes / MIB
    yield Figure(f"bytes of a save of {what}", "", "", found, "MiB", None, "")


def _figures(setting: Setting, room: Path, what: str, fraction: float) -> Iterator[Figure]:
    place = setting.quiet
    files = [room / f"{name}.safetensors" for name in STEPS]
    make = Run(lambda: sv.delta(files[0], files[1], room / "d1", force=True))
    sv.delta(files[0], files[1], room / "d1")
    sv.delta(files[1], files[2], room / "d2")
    apply = Run(lambda: sv.apply(files[0], room / "d1", room / "out.safetensors", force=True))
    join = Run(lambda: sv.compact_deltas([room / "d1", room / "d2"], room / "d12", force=True))
    both, one = Run(partial(hash_files, files[:2])), Run(partial(hash_files, files[:1]))
    copy = Run(lambda: shutil.copyfile(files[1], room / "copy"))
    yield setting.ratio(f"make a delta of {what}", "SHA-256 of both", place, make, both, None)
    yield setting.ratio(f"apply one to {what}", "SHA-256", place, apply, one, None)
    yield setting.ratio(f"apply one to {what}", "copy", place, apply, copy, None)
    yield setting.ratio(f"join two of {what}", "SHA-256", place, join, one, None)
    sizes = ""
    if shutil.which("zstd"):
        patch = Run(partial(zstd, files[0], files[1], room / "patch"))
        restore = Run(partial(zstd, files[0], room / "patch", room / "patched", "-d"))
        yield setting.ratio(f"make a delta of {what}", PROGRAMS[0], place, make, patch, None)
        yield setting.ratio(f"apply one to {what}", PROGRAMS[0], place, apply, restore, None)
        sizes = f", {PROGRAMS[0]} {(room / 'patch').stat().st_size / MIB:.3g} MiB"
    found = sum(path.stat().st_size for path in room.glob("d1.sv*"))
    least = least_nbytes(files[1].stat().st_size // 2, fraction)
    note = f"at least {least / MIB:.3g} MiB{sizes}"
    yield Figure(f"size of a delta of {what}", "", "", found / MIB, "MiB", None, note)


def least_nbytes(count: int, fraction: float) -> float:
    """Return the bytes that say which of ``count`` elements changed, and for each whether by +1 or by
    -1: the entropy.

    >>> round(least_nbytes(8_000, 1.0)), round(least_nbytes(8_000, 0.5))
    (1000, 1500)
    """
    rest = 1 - fraction
    places = -fraction * log2(fraction) - (rest * log2(rest) if rest else 0)
    return count * (places + fraction) / 8


def write_steps(room: str, nbytes: int, fraction: float) -> None:
    """Write three steps of a model of bfloat16, each with so many elements changed by a bit."""
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 0.02, nbytes // 2).astype(ml_dtypes.bfloat16).reshape(NUM_TENSORS, -1)
    bits = weights.view(np.uint16)
    for name in STEPS:
        tensors = {
            f"layers.{row}.weight": weights[row].reshape(1024, -1) for row in range(NUM_TENSORS)
        }
        sv.save(Path(room) / f"{name}.safetensors", tensors)
        signs = rng.integers(0, 2, bits.shape, dtype=np.uint16) * 2 - 1
        bits[:] = np.where(rng.random(bits.shape, np.float32) < fraction, bits + signs, bits)


def hash_files(files: list[Path]) -> list[bytes]:
    """Return the SHA-256 of files, in a thread each."""

    def digest(path: Path) -> bytes:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()

    with ThreadPoolExecutor(len(files)) as pool:
        return list(pool.map(digest, files))


def zstd(old: Path, source: Path, target: Path, *options: str) -> None:
    """Make or apply a patch of zstd, by all threads."""
    words = ["zstd", "-q", "-f", "-T0", "--long=31", f"--patch-from={old}", *options, str(source)]
    subprocess.run([*words, "-o", str(target)], check=True, stdin=subprocess.DEVNULL)
