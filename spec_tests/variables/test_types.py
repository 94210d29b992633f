"""What type checkers see of a variable: mypy on a program of a user, with right and wrong calls."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from spec_tests.helpers.paths import ROOT

PROGRAM = """
from typing import Any
import numpy as np
import shardvar as sv

w = sv.Variable([1.0, 2.0], True, "w", "float32", shape=(None,), aggregation="SUM", device=None)
reveal_type(w)  # Variable
reveal_type(sv.Variable(lambda: np.zeros(3)))  # Variable
reveal_type(sv.Variable(initial_value=w, synchronization=None, dtype=np.int8))  # Variable
reveal_type(w.read_value().shape)  # tuple[Any, ...]
reveal_type(w.name)  # str
reveal_type(sv.ShardedVariable([w, w]).variables)  # list[Variable]

class Mine(sv.Variable):
    def __init__(self, rows: int) -> None:
        self.rows = rows

reveal_type(Mine(3))  # Mine
sv.Variable(object())  # wrong: arg-type
sv.Variable(1, "yes")  # wrong: arg-type
sv.Variable(1, name=3)  # wrong: arg-type
sv.Variable(1, dtype=3.5)  # wrong: arg-type
sv.Variable(1, shape=3)  # wrong: arg-type
sv.Variable(1, constraint=2)  # wrong: arg-type
sv.Variable(1, aggregation=2)  # wrong: arg-type
sv.Variable(1, None, None, None, (1,))  # wrong: call-arg
sv.Variable(1).no_such_method()  # wrong: attr-defined
sv.ShardedVariable(3)  # wrong: arg-type
Mine("three")  # wrong: arg-type
Mine(3, name="w")  # wrong: call-arg
"""


def test_mypy_takes_right_calls_and_refuses_wrong_ones(tmp_path: Path) -> None:
    """The comment of each line says what it reveals, or the code of its error. The cache of `make
    check` is used, since the options are the same."""
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-pretty", "--hide-error-context", str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    # Types without their modules: `Variable` for `shardvar.reference.variables.variable.Variable`.
    seen = {
        int(number): re.sub(r"[\w-]+\.(?=[\w-])", "", revealed) or code
        for number, revealed, code in re.findall(
            r'^[^\n]*program\.py:(\d+): (?:note: Revealed type is "([^"]*)"|error: .*\[([\w-]+)\])$',
            run.stdout,
            flags=re.MULTILINE,
        )
    }
    expected = {}
    for number, line in enumerate(PROGRAM.splitlines(), 1):
        _, is_told, comment = line.partition("  # ")
        if is_told:
            expected[number] = comment.removeprefix("wrong: ")
    assert seen == expected, run.stdout + run.stderr
