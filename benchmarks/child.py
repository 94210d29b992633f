"""A function in a fresh process, whose memory and bytes read are its own.

Memory is what the kernel says: the pages of the process that are in memory, and the most that there
ever were. Systems without ``/proc`` tell only the latter, and do not count the bytes that are read.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
PROC = Path("/proc/self")
_SCRIPT = "from benchmarks.child import main; main()"


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a module's function in a fresh process; arguments and result are
    JSON."""
    request = [function.__module__, function.__name__, list(arguments)]
    found = subprocess.run(
        [sys.executable, "-c", _SCRIPT, json.dumps(request, default=str)],
        env=environment(),
        check=True,
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("BENCH_DEBUG") else subprocess.DEVNULL,
    )
    return json.loads(found.stdout.splitlines()[-1])


def environment() -> dict[str, str]:
    """The environment of a child that finds this tree."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def main() -> None:
    """The child's side of ``call``."""
    module, name, arguments = json.loads(sys.argv[1])
    print(json.dumps(getattr(import_module(module), name)(*arguments)))


class Growth:
    """The most memory that the process had since this was made, beyond what it had then."""

    def __init__(self) -> None:
        if PROC.is_dir():
            (PROC / "clear_refs").write_text("5")  # forget the peak so far
        self.before = _status("VmRSS") or peak_nbytes()

    def nbytes(self) -> int:
        """The growth."""
        return max(0, peak_nbytes() - self.before)


class AnonymousPeak:
    """The most memory of the process that is not of a file, looked at every few milliseconds while
    this is entered.

    Pages of files that are mapped are left out: the kernel takes them back whenever it needs
    memory. A system without ``/proc`` does not tell them apart, and its peak has them too.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._ended = Event()
        self._thread = Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()
        self.nbytes = self.nbytes or peak_nbytes()

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            self.nbytes = max(self.nbytes, _status("RssAnon"))


def peak_nbytes() -> int:
    """The most memory that the process ever had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def read_nbytes() -> int | None:
    """The bytes that the process asked the kernel to read so far; None where the system does not
    count."""
    if not (PROC / "io").is_file():
        return None
    return int((PROC / "io").read_text().split("rchar: ")[1].split()[0])


def _status(name: str) -> int:
    if not (PROC / "status").is_file():
        return 0
    return int((PROC / "status").read_text().split(f"{name}:")[1].split()[0]) * 1024
