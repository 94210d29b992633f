"""`python -m shardvar.vectors`: others run the published vectors on their own implementation."""

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar import vectors
from shardvar.errors import ArgumentError
from shardvar.vectors.__main__ import run_program
from shardvar.vectors.run import Judgement, judge_answer, judged_file, ops, run
from spec_tests.vector_answers import geometry, memory, meshes

CASES = [case for name in vectors.groups() for case in vectors.group(name)["cases"]]
BY_ID = {case["id"]: case for case in CASES}


def line(case: dict[str, Any]) -> str:
    """The line of a right answer."""
    told = {"error": "refused"} if "error" in case else {"answer": case["expected"]}
    return json.dumps({"id": case["id"], **told})


def read(inputs: Any, *, collects: bool = False) -> dict[Any, Any]:
    """The arrays of a checkpoint by key; what cannot be read raises, or is the value of its key."""
    found: dict[Any, Any] = {}
    with sv.open_checkpoint(inputs["path"]) as reader:
        for key in reader:
            name = key.encode("utf-8", "surrogateescape")
            try:
                found[name] = reader.read(key)
            except sv.errors.UnsupportedError:
                found[name] = None  # a dtype that only TensorFlow has
            except sv.errors.ShardvarError as error:
                if not collects:
                    raise
                found[key] = error
        for fault in () if collects else reader.source.file_faults().values():
            raise fault
    return found


def test_an_answer_that_holds_no_arrays_fails_with_what_it_is() -> None:
    case = next(case for case in CASES if case["op"] == "read_checkpoint" and "expected" in case)
    right = {each["key"]: each for each in case["expected"]["tensors"]}
    raised = dict.fromkeys(right, ValueError("no"))
    nameless: dict[str, Any] = {"tensors": [{"shape": []}]}
    for answer, why in (
        (3, "is not a mapping of keys"),
        (raised, "raised ValueError('no')"),
        (dict.fromkeys(right, np.array(["text"])), "cannot be compared: UnsupportedError"),
        (dict.fromkeys(right, np.array([3], object)), "cannot be compared: AttributeError"),
        (nameless, "cannot be compared: KeyError"),
    ):
        judgement = judge_answer(case, answer)
        assert judgement.outcome == "failed" and why in judgement.why
    assert judge_answer(case, case["expected"]).outcome == "passed"


def test_a_file_of_right_answers_passes_and_each_other_line_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answers of any language: the expected values as the vectors write them."""
    file = tmp_path / "answers.jsonl"
    lines = [line(case) for case in CASES]
    file.write_text("\n".join(lines))
    assert run_program([str(file)]) == 0
    assert (
        capsys.readouterr().out == f"passed {len(CASES)}, acceptable 0, not claimed 0, failed 0\n"
    )
    lines = [line(case) for case in sorted(CASES, key=lambda case: case["op"] != "div")]
    first, second = (json.loads(each)["id"] for each in lines[:2])
    # A line ends at a line feed, and at no other character that may be in a text of JSON.
    other = [f'{{"id": "{first}", "error": "no\u2028\u0085é"}}', *lines[2:]]
    file.write_text("\n".join(other), encoding="utf-8")
    assert run_program([str(file)]) == 1
    said = capsys.readouterr().out
    assert f"failed {first}: raised" in said
    assert f"failed {second}: the file has no answer" in said and "failed 2\n" in said
    assert Judgement(second, "failed", "the file has no answer") in judged_file(file, ["div"])
    # Python's json writes NaN and Infinity.
    lines = [re.sub('"(-?)inf"', r"\1Infinity", each.replace('"nan"', "NaN")) for each in lines]
    file.write_text("\n".join([f'{{"id": "{first}", "not_claimed": "no"}}', *lines[1:]]))
    assert run_program([str(file), "-v"]) == 0 and "not claimed 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["{", "\xff", '{"id": "x"}', '{"id": "nonesuch", "answer": 1}', '{"id": 3, "answer": 1}', "[]",
             '{"id": "div-div-13-5", "answer": 1, "error": "no"}',
             '{"id": "div-div-13-5", "answer": 1}\n{"id": "div-div-13-5", "answer": 1}'],
)  # fmt: skip
def test_a_line_that_is_no_answer_is_an_error(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "answers.jsonl").write_text(text, encoding="latin-1")
    assert run_program([str(tmp_path / "answers.jsonl")]) == 2 and capsys.readouterr().err


def test_an_op_without_an_answer_is_an_error_and_no_skip(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only `without` leaves it out, and then it is counted as not claimed."""
    answers = {name: geometry.OPS[name] for name in ("div", "chunk")}
    with pytest.raises(ArgumentError, match="No answer is given for the ops div_owner"):
        run(answers, ["div"])
    for wrong in ({**answers, "dvi": len}, answers):
        with pytest.raises(ArgumentError, match="No vector has the op"):
            run(wrong, ["div"], ["div_owner", "nonesuch"] if wrong is answers else ["div_owner"])
    found = run(answers, ["div"], ["div_owner"])
    outcomes = {each.outcome for each in found if BY_ID[each.id]["op"] == "div_owner"}
    assert outcomes == {"not claimed"}
    assert {each.outcome for each in found if BY_ID[each.id]["op"] != "div_owner"} == {"passed"}
    assert run_program(["spec_tests.vector_answers.geometry:OPS", "div"]) == 0
    assert run_program(["spec_tests.vector_answers.geometry:OPS", "lookups"]) == 2
    assert run_program(["nonesuch.module"]) == 2
    assert "Cannot import the answers 'nonesuch.module'" in capsys.readouterr().err


def test_checkpoints_are_answered_with_arrays_by_key() -> None:
    """In absolute paths; dtypes that only TensorFlow has are None. Zeros for values fail, and so
    does a damaged key that is not refused."""
    damaged = partial(read, collects=True)
    found = run({"read_checkpoint": read, "read_damaged": damaged}, ["checkpoints"])
    failed = [each for each in found if each.outcome == "failed"]
    assert [each for each in failed if BY_ID[each.id].get("error") != "UnsupportedError"] == []
    refused = [BY_ID[each.id]["op"] for each in found if each.outcome == "acceptable"]
    assert refused == ["read_damaged"] * len(refused), "where the list of keys is damaged"

    def zeros(inputs: Any, *, collects: bool = False) -> Any:
        return {
            key: None if value is None else np.zeros_like(value)
            for key, value in read(inputs, collects=collects).items()
        }

    damaged = partial(zeros, collects=True)
    spoiled = run({"read_checkpoint": zeros, "read_damaged": damaged}, ["checkpoints"])
    wrong = {each.id for each in spoiled if each.outcome == "failed"}
    assert not [
        each
        for each in spoiled
        if each.outcome == "passed" and BY_ID[each.id]["op"] == "read_damaged"
    ]
    told = [case for case in CASES if '"sha256"' in json.dumps(case.get("expected"))]
    assert sum(case["id"] in wrong for case in told) > len(told) / 2


def test_deltas_are_answered_with_arrays_by_key(tmp_path: Path) -> None:
    """The paths of the base and of each delta are absolute. A base as it is fails where something
    changes."""

    def apply(inputs: Any) -> dict[Any, Any]:
        sv.apply(inputs["path"], inputs["deltas"], tmp_path / "c", format="shardvar", force=True)
        return read({"path": tmp_path / "c"})

    found = run({"apply_delta": apply}, ["deltas"])
    assert {each.outcome for each in found} == {"passed"}
    lazy = {each.id: each.outcome for each in run({"apply_delta": read}, ["deltas"])}
    assert [name for name, outcome in lazy.items() if outcome == "passed"] == ["deltas-equal"]


def test_a_program_in_another_directory_is_judged(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Answers:\n    def div(self, inputs):\n        raise NotImplementedError('later')\n"
        "    def chunk(self, inputs):\n        return [[0, 1]]\n"
    )
    program = [sys.executable, "-m", "shardvar.vectors", "mine:Answers", "div"]
    done = subprocess.run(
        [*program, "--without", "div_owner"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1 and "failed div-chunk" in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1].startswith("passed ")
    refused = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 2 and "the ops div_owner" in refused.stderr


def test_another_acceptable_answer_is_reported_with_its_reason() -> None:
    case = next(case for case in CASES if any("expected" in each for each in case["acceptable"]))
    other = next(each for each in case["acceptable"] if "expected" in each)
    assert judge_answer(case, other["expected"]).outcome == "acceptable"
    assert judge_answer(case, other["expected"]).why == other["why"]


def test_every_op_of_the_vectors_is_answered_by_the_engine() -> None:
    known = geometry.OPS.keys() | memory.OPS.keys() | meshes.OPS.keys()
    assert ops() == known | {"read_checkpoint", "read_damaged", "apply_delta"}


@pytest.mark.parametrize(
    ("found", "expected", "ulps", "is_right"),
    [
        (np.float32("nan"), {"dtype": "float32", "shape": [], "data": ["nan"]}, 0, True),
        (np.float32(-0.0), {"dtype": "float32", "shape": [], "data": [0.0]}, 0, False),
        (np.float32("inf"), {"dtype": "float32", "shape": [], "data": ["inf"]}, 2, True),
        (np.nextafter(np.float32(1), np.float32(2)), {"dtype": "float32", "shape": [], "data": [1.0]}, 1, True),
        (np.nextafter(np.float32(1), np.float32(2)), {"dtype": "float32", "shape": [], "data": [1.0]}, 0, False),
        (np.float64(1), {"dtype": "float32", "shape": [], "data": [1.0]}, 0, False),
        (np.array([2**53]), ["9007199254740992"], 0, True),
        (np.array([1]), [True], 0, False),
        ([[1], [1, 2]], {"dtype": "float32", "shape": [2], "data": [1.0, 2.0]}, 0, False),
        ("abc", {"dtype": "float32", "shape": [], "data": [1.0]}, 0, False),
        ({"dtype": "f", "shape": [2], "data": 3}, {"dtype": "float32", "shape": [], "data": [1.0]}, 0, False),
        ({"dtype": "int64", "shape": [1], "data": ["7"]}, {"dtype": "int64", "shape": [1], "data": ["7"]}, 0, True),
        ({"dtype": "float16", "shape": [], "data": ["-0.0"]}, {"dtype": "float16", "shape": [], "data": [0]}, 0, False),
        (complex("nan+1j"), {"dtype": "complex128", "shape": [], "data": [["nan", 1.0]]}, 0, True),
        (complex(1, np.nan), {"dtype": "complex128", "shape": [], "data": [["nan", 1.0]]}, 0, False),
        (complex(1, -0.0), {"dtype": "complex128", "shape": [], "data": [[1.0, 0.0]]}, 0, False),
        (complex(1, -0.0), {"dtype": "complex128", "shape": [], "data": [[1.0, 0.0]]}, 1, True),
        (complex(1, 1 + 2**-52), {"dtype": "complex128", "shape": [], "data": [[1.0, 1.0]]}, 1, True),
        (complex(1, 1 + 2**-51), {"dtype": "complex128", "shape": [], "data": [[1.0, 1.0]]}, 1, False),
        (complex(np.inf, 0), {"dtype": "complex128", "shape": [], "data": [["inf", 0.0]]}, 4, True),
        (np.float64("nan"), "nan", 0, True),
        ("nan", "nan", 0, True),
        (1.0, "nan", 4, False),
        ("abc", 1.0, 4, False),
        (1, "abc", 4, False),
        (-np.inf, "-inf", 0, True),
        (np.inf, "-inf", 4, False),
        (-0.0, 0.0, 0, False),
        ("-0.0", -0.0, 0, True),
        (-0.0, 0.0, 1, True),
        (0, 0.0, 0, True),
        (1 + 2**-52, 1.0, 1, True),
        (1 + 2**-52, 1.0, 0, False),
        (1 + 2**-51, 1.0, 1, False),
        (10**400, 1.0, 1, False),
        (True, 1.0, 1, False),
        (3, 3.0, 0, True),
        (4, 3, 9, False),
        ([0.1, None, "tiled"], [0.1, None, "tiled"], 0, True),
        ([0.1, None, "tiled"], [0.1, 0, "tiled"], 0, False),
        ([0.1, None, "tiled"], [0.1, None, "whole"], 0, False),
        ({"a": [1], "b": 2}, {"a": [1], "b": 2}, 0, True),
        ({"a": [1], "b": 2}, {"a": [2], "b": 2}, 0, False),
        ({"a": [1], "b": 2}, {"a": [1, 2], "b": 2}, 0, False),
    ],
)  # fmt: skip
def test_values_are_compared_as_the_readme_says(
    found: Any, expected: Any, ulps: int, is_right: bool
) -> None:
    case = {"id": "x", "expected": expected, "acceptable": [], "ulps": ulps}
    assert (judge_answer(case, found).outcome == "passed") is is_right
