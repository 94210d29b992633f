"""Count the files and functions of shardvar that a call enters.

A way is one warm call: the second of two, because the first imports modules and fills caches. The
example is a table of 13 x 4 float32, which five slices hold. A function is counted once for each
place of its definition; comprehensions, lambdas and generators count as the functions that they are
on Python 3.11.

``python -m spec_tests.helpers.way_counts save`` prints the functions of a way in the order in which
they are first entered, with the times that each is called.
"""

import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import shardvar as sv

PACKAGE = f"{Path(sv.__file__).parent}{os.sep}"


class Function(NamedTuple):
    """A function that was entered: the module's path below shardvar/, and the qualified name."""

    module: str
    name: str


def _table() -> dict[str, Any]:
    return {"t": np.arange(52, dtype="f4").reshape(13, 4)}


WAYS: dict[str, Callable[[Path], object]] = {
    "save": lambda folder: sv.save(folder / "new", _table(), partition=5),
    "load": lambda folder: sv.load(folder / "five"),
    "reshard": lambda folder: sv.reshard(folder / "five", folder / "new", partition=3),
    "save as torch": lambda folder: sv.save(folder / "new", _table(), format="torch", partition=5),
    "verify": lambda folder: sv.verify(folder / "five"),
    "diff": lambda folder: sv.diff(folder / "five", folder / "three"),
}
"""The calls that are counted, in a folder with the table in five slices and in three."""


def entered(call: Callable[[], object]) -> dict[Function, int]:
    """Functions of shardvar that a call enters on any thread, in order, and the times of each."""
    times: dict[Function, int] = {}

    def note(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            module = code.co_filename.removeprefix(PACKAGE).replace(os.sep, "/")
            function = Function(module, code.co_qualname)
            times[function] = times.get(function, 0) + 1

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None is how it is switched off
    return times


def warm_way(way: str) -> dict[Function, int]:
    """Functions that the second call of a way enters."""
    with tempfile.TemporaryDirectory() as cold, tempfile.TemporaryDirectory() as warm:
        for folder in (Path(cold), Path(warm)):
            for name, count in (("five", 5), ("three", 3)):
                sv.save(folder / name, _table(), partition=count)
        WAYS[way](Path(cold))
        return entered(lambda: WAYS[way](Path(warm)))


def listing(times: dict[Function, int]) -> str:
    """Text that lists the functions below their files, in the order of first entry."""
    files: dict[str, list[str]] = {}
    for (module, name), count in times.items():
        files.setdefault(module, []).append(f"    {count:4} {name}")
    return "\n".join(line for module, names in files.items() for line in (module, *names))


if __name__ == "__main__":
    for name in sys.argv[1:] or WAYS:
        found = warm_way(name)
        if sys.argv[1:]:
            print(listing(found))
        print(
            f"{name}: {len({function.module for function in found})} files, {len(found)} functions"
        )
