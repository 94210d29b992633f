"""docs/design.md draws the modules on the way of a tensor; this test follows a tensor and compares.

A save, a load and a reshard run with a profiler that notes each module of shardvar when it is first
entered. The drawing must list these modules, all of them and no others, in this order.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.engine import pool

PAGE = Path(__file__).resolve().parents[2] / "docs" / "design.md"

CALLS: dict[str, Callable[[Path], object]] = {
    "save": lambda folder: sv.save(
        folder / "new", {"t": np.arange(52, dtype="f4").reshape(13, 4)}, partition=5
    ),
    "load": lambda folder: sv.load(folder / "five"),
    "reshard": lambda folder: sv.reshard(folder / "five", folder / "three", partition=3),
}


class OneThread:
    """An executor that runs each task at once, in the caller's thread, so that the order of modules
    is certain."""

    def __init__(self, max_workers: int) -> None:
        pass

    def __enter__(self) -> "OneThread":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*arguments))
        return future


def modules_entered(call: Callable[[], object]) -> list[str]:
    """Modules of shardvar whose functions ``call`` runs, in the order in which they are first
    entered."""
    entered: dict[str, None] = {}
    package = f"{Path(sv.__file__).parent}{os.sep}"

    def note(frame: Any, event: str, argument: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(package):
            entered[path.removeprefix(package).replace(os.sep, "/")] = None

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(entered)


def modules_drawn(verb: str) -> Iterable[str]:
    """Modules in the drawing below the heading of a verb: the first word of a line that ends in
    ``.py``."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n### {verb}\n")[1]
    drawing = section.split("```text\n")[1].split("```")[0]
    return [match[1] for match in re.finditer(r"^(?:\w+)? *([\w/]+\.py)  ", drawing, re.MULTILINE)]


@pytest.mark.parametrize("verb", CALLS)
def test_the_drawing_is_the_way_of_a_tensor(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "Threads", OneThread)
    for folder in (
        tmp_path / "warm",
        tmp_path / "cold",
    ):  # the first round imports modules and fills caches
        folder.mkdir()
        sv.save(folder / "five", {"t": np.arange(52, dtype="f4").reshape(13, 4)}, partition=5)
        entered = modules_entered(lambda folder=folder: CALLS[verb](folder))
    assert modules_drawn(verb) == entered
