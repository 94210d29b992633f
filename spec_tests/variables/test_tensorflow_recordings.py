"""The recordings of TensorFlow: each passes, or deviates by a rule that the page of deviations
explains."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from spec_tests.helpers import paths
from spec_tests.tensorflow_recordings import GROUPS, group_module
from spec_tests.tensorflow_recordings.__main__ import main
from spec_tests.tensorflow_recordings.cases import (
    COMMON_RULES,
    AnyOf,
    Outcome,
    Rule,
    decode,
    difference,
    judge,
)

RECORDINGS = paths.GOLDEN / "variables"
REGRESSIONS = sorted(RECORDINGS.glob("*_regressions.json"))
"""Of the same kinds, from the same TensorFlow, with other inputs: each was a case that failed
once."""
DEVIATIONS = paths.DOCS / "deviations.md"
CASE = {
    "id": "x-0",
    "op": "div_split",
    "inputs": {"rows": 5, "parts": 2},
    "expected": {"sizes": [3, 2]},
}


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_every_vector_of_the_group_passes_or_deviates_by_a_rule(group: str) -> None:
    document = json.loads((RECORDINGS / f"{group}.json").read_text(encoding="utf-8"))
    module = group_module(group)
    failed = [
        f"{verdict.id}: {verdict.why}"
        for case in document["cases"]
        if case["op"] in module.OPS
        if (verdict := judge(case, module)).kind == "failed"
    ]
    assert failed == []


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.stem)
def test_vectors_of_the_same_ops_with_other_inputs_pass_too(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    module = group_module(document["header"]["group"])
    verdicts = [judge(case, module) for case in document["cases"]]
    assert [
        f"{verdict.id}: {verdict.why}" for verdict in verdicts if verdict.kind == "failed"
    ] == []


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_every_rule_stands_on_the_page_of_deviations(group: str) -> None:
    explained = set(
        re.findall(
            r"^\| (D-[A-Z0-9]+-\d+) \|", DEVIATIONS.read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    module = group_module(group)
    assert {rule.id for rule in [*module.RULES, *COMMON_RULES]} - explained == set()


def test_the_runner_says_how_many_passed_and_exits_with_0_only_where_none_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {**CASE, "id": "x-1", "expected": {"sizes": [2, 3]}}
    unknown = {**CASE, "id": "x-2", "op": "nonesuch"}
    path = tmp_path / "x.json"
    assert main([str(tmp_path)]) == 1, "a folder without vectors"
    capsys.readouterr()
    path.write_text(json.dumps({"header": {"group": "div_mod"}, "cases": [CASE]}))
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "passed 1, deviates 0, failed 0\n"
    path.write_text(json.dumps({"header": {"group": "div_mod"}, "cases": [CASE, wrong, unknown]}))
    assert main([str(tmp_path)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "passed 1, deviates 0, failed 2"
    assert (
        said[0].startswith("failed x-1: .sizes[0]")
        and "no layer offers the op 'nonesuch'" in said[1]
    )


def test_the_script_runs_from_any_directory(tmp_path: Path) -> None:
    """Others run their own recordings with it, by `python spec_tests/run_vectors.py DIR`."""
    (tmp_path / "x.json").write_text(json.dumps({"header": {"group": "div_mod"}, "cases": [CASE]}))
    program = [sys.executable, paths.SPEC_TESTS / "run_vectors.py", "."]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "passed 1, deviates 0, failed 0\n"), done.stderr


def test_values_are_compared_by_dtype_shape_and_bits() -> None:
    """The tests above are worth what ``difference`` sees."""
    import numpy as np

    one = {"dtype": "float32", "shape": [2], "data": [1.0, "nan"]}
    assert difference(np.array([1, np.nan], np.float32), one) is None
    assert difference(np.array([1, np.nan]), one) is not None
    assert difference(np.array([[1, np.nan]], np.float32), one) is not None
    assert difference(np.array([1.0000001, np.nan], np.float32), one) is not None
    assert difference({"a": 1, "more": 2}, {"a": 1}) is None
    assert difference({"a": True}, {"a": 1}) is not None
    assert difference([1], [1, 2]) is not None
    assert difference(AnyOf((1, [2])), [2]) is None
    assert difference(AnyOf((1, [2])), 2) is not None
    assert difference("text", one) is not None
    wide = {"dtype": "uint64", "shape": [2], "data": [2**64 - 1, 1]}
    assert decode(wide).tolist() == [2**64 - 1, 1]
    assert not Outcome(error=ValueError("x")).refused, "by an error of the tree alone"


def test_a_law_that_the_engine_breaks_fails_its_case_and_no_other() -> None:
    def breaks(inputs: object) -> None:
        raise AssertionError("a refused write changed a shard")

    module = ModuleType("of one op")
    module.OPS, module.RULES = {"x": breaks}, []
    verdict = judge(
        {"id": "x-0", "op": "x", "inputs": {}, "error": {"class": "ValueError"}}, module
    )
    assert (verdict.kind, verdict.why) == ("failed", "a refused write changed a shard")


def test_a_case_that_cannot_be_read_fails_alone() -> None:
    module = ModuleType("of one op")
    module.OPS, module.RULES = (
        {"x": lambda inputs: 3},
        [Rule("D-X-1", lambda case, outcome: 1 // 0)],
    )
    unknown = {"dtype": "nonesuch", "shape": [], "data": 3}
    assert judge(
        {"id": "x-0", "op": "x", "inputs": {}, "expected": unknown}, module
    ).why.startswith("cannot be judged")
    assert judge({"id": "x-1", "op": "x", "inputs": {}, "expected": 4}, module).kind == "failed"
    assert judge({"id": "x-2", "op": "x", "inputs": {}, "expected": 3}, module).kind == "passed"


@pytest.mark.parametrize("group", ["div_mod", "losses", "sparse_lookups"])
def test_an_unknown_strategy_is_an_argument_that_does_not_exist_and_not_one_that_is_ignored(
    group: str,
) -> None:
    document = json.loads((RECORDINGS / f"{group}.json").read_text(encoding="utf-8"))
    lookups = [
        each for each in document["cases"] if each["inputs"].get("partition_strategy") == "div"
    ]
    for case in lookups[:3]:
        wrong = {key: value for key, value in case.items() if key != "expected"}
        wrong |= {
            "inputs": case["inputs"] | {"partition_strategy": "foo"},
            "error": {"class": "ValueError"},
        }
        assert judge(wrong, group_module(group)).why == "D-LAYOUT-3"
