"""The command line in the process of a test: its exit code and its output, and a checkpoint to try
it on."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import shardvar as sv
from shardvar.cli import main

FORMATS = {
    "shardvar": "model",
    "tensorflow": "model",
    "safetensors": "model.safetensors",
    "npz": "model.npz",
}


@dataclass(frozen=True)
class Outcome:
    """The exit code of a command and its output."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The output of a command with `--json`."""
        told: dict[str, Any] = json.loads(self.out)
        assert told["schema"] == 1
        return told


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command, given word by word; no command may print a
    traceback."""

    def run_one(*words: object) -> Outcome:
        code = main([str(word) if not isinstance(word, str) else word for word in words])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return Outcome(code, captured.out, captured.err)

    return run_one


@contextmanager
def terminal(
    columns: int, kind: str = "dumb", lines: int = 50, no_color: str = "1"
) -> Iterator[None]:
    """Let the standard output be a terminal of a size, whatever the tests themselves write to."""
    environment = {
        "COLUMNS": str(columns),
        "LINES": str(lines),
        "NO_COLOR": no_color,
        "TERM": kind,
    }
    with patch("sys.stdout.isatty", return_value=True), patch.dict(os.environ, environment):
        yield


def tensors() -> dict[str, Any]:
    """Return a matrix, a vector with a NaN, a scalar, and a tensor without elements."""
    return {
        "dense/kernel": np.arange(40, dtype=np.float32).reshape(8, 5),
        "dense/bias": np.array([0.0, 1.0, np.nan], np.float32),
        "step": np.array(1200, np.int64),
        "empty": np.zeros((0, 3), np.float32),
    }


def saved(directory: Path, form: str = "shardvar", name: str = "", **options: Any) -> Path:
    """Save `tensors()` and return the path."""
    path = directory / (name or FORMATS[form])
    sv.save(path, tensors(), format=form, **options)
    return path
