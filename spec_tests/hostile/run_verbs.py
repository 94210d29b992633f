"""Every verb on every path that is given, in a process with bounded memory and time; one JSON line
a path.

``python -m spec_tests.hostile.run_verbs SCRATCH PATH...``: SCRATCH is an empty directory that may
be written.
"""

import io
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import shardvar as sv
from shardvar.cli import main
from shardvar.errors import ShardvarError

MEMORY = 3 << 29
"""Bytes of address space: of the interpreter, NumPy and their threads, and a fraction of what the
files claim."""

SECONDS = 60
"""A generous time for what should take milliseconds."""


def outcome(verb: Callable[[], Any]) -> Any:
    """Return the result of a verb, or the class and the message of its error."""
    try:
        return verb()
    except ShardvarError as error:
        return {"raised": type(error).__name__, "cause": error.cause, "remedy": error.remedy}
    except BaseException as error:  # noqa: BLE001  # whatever it is, it is what the test wants to know
        return {
            "raised": f"not ours: {type(error).__name__}",
            "cause": traceback.format_exc(),
            "remedy": "",
        }


def run_cli(*words: str) -> dict[str, Any]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = outcome(lambda: main(list(words)))
    return {"code": code, "out": out.getvalue()[:10000], "err": err.getvalue()[:10000]}


def read_all(path: str) -> None:
    """Open, and read every key by itself; raise the first error."""
    with sv.open_checkpoint(path) as reader:
        for key in reader:
            reader.read(key)
            reader[key][..., :1] if reader[key].shape else reader[key][()]


def run(path: str, scratch: Path) -> dict[str, Any]:
    """All verbs on one path."""
    target = str(scratch / "target")
    found = {
        "path": path,
        "open": outcome(lambda: sv.open_checkpoint(path).close()),
        "load": outcome(lambda: sorted(sv.load(path))),
        "map": outcome(lambda: sorted(sv.load(path, mmap=True))),
        "read": outcome(lambda: read_all(path)),
        "verify": outcome(lambda: sv.verify(path).to_json()),
        "reshard": outcome(lambda: sv.reshard(path, target, format="shardvar").num_tensors),
        "diff": outcome(lambda: sv.diff(path, path).to_json()["equal"]),
    }
    for verb in ("inspect", "verify"):
        found[f"shardvar {verb}"] = run_cli(verb, path)
    found["shardvar inspect --stats"] = run_cli("inspect", path, "--stats", "--json")
    found["shardvar reshard"] = run_cli("reshard", path, target)
    found["left"] = sorted(os.listdir(scratch))
    return found


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for name in sys.argv[2:]:
        signal.alarm(SECONDS)
        print(json.dumps(run(name, Path(sys.argv[1]))), flush=True)
