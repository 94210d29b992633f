"""docs/derivation.py agrees with shardvar and its vectors on maps that move, knows what it does not know, and finds
a changed element."""

import json
import tempfile
from base64 import b64decode
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import shardvar as sv
from spec_tests.helpers.paths import module_of_page
from spec_tests.helpers.random_maps import Case, cases
from spec_tests.vector_generators import derivations

VECTORS = derivations.vectors()
VERDICTS = {0: "derived", 1: "not derived", 3: "cannot be decided"}


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    return module_of_page("derivation")


def verdict(checker: ModuleType, tensors: dict[str, Any], **options: Any) -> int:
    """The exit code on a certified result; on one with another element it must not be 0."""
    with tempfile.TemporaryDirectory() as folder:
        source, result, file = (Path(folder, name) for name in ("a.npz", "b.npz", "b.json"))
        sv.save(source, tensors)
        sv.reshard(source, result, **options)
        sv.certify(result, source, file, **options)
        words = [str(result), str(file), str(source)]
        code: int = checker.main(words)
        values = {key: np.array(value) for key, value in sv.load(result).items()}
        largest = max(values.values(), key=lambda value: value.size)
        if largest.size:
            largest.reshape(-1).view(np.uint8)[-1] ^= 1
            sv.save(result, values, force=True)
            statement = json.loads(file.read_text(encoding="utf-8"))
            statement["subject"][0]["digest"]["shardvarDigest1"] = sv.digest(result).checkpoint
            file.write_text(json.dumps(statement), encoding="utf-8")
            assert checker.main(words) in ((1,) if code == 0 else (1, 3))
        return code


@given(cases(np.dtype(np.float32), plain=True))
def test_no_right_map_is_called_wrong(checker: ModuleType, case: Case) -> None:
    given_map = sv.Map(case.rules(), sizes=case.sizes())
    assert verdict(checker, case.sources, map=given_map) in (0, 3)


@pytest.mark.parametrize(
    "options", [{"cast": "float16"}, {"transpose": "w"}, {"map": ["2 * w[i j] -> w[i j]"]}]
)
def test_what_it_does_not_know_is_not_decided(checker: ModuleType, options: dict[str, Any]) -> None:
    assert verdict(checker, {"w": np.arange(6.0).reshape(2, 3)}, **options) == 3


def test_the_vectors_are_those_of_the_generator() -> None:
    assert derivations.PATH.read_text(encoding="utf-8") == derivations.text()
    assert json.loads(derivations.text()) == json.loads(json.dumps(VECTORS))


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["why"])
def test_the_vectors_have_their_verdicts(
    case: dict[str, Any], checker: ModuleType, tmp_path: Path
) -> None:
    for name in (case["result"], *case["sources"]):
        (tmp_path / name).write_bytes(b64decode(VECTORS["files"][name]))
    file = tmp_path / "statement.json"
    file.write_text(json.dumps(case["statement"]), encoding="utf-8")
    result, sources = tmp_path / case["result"], [tmp_path / name for name in case["sources"]]
    assert sv.verify_derivation(result, sources, file).verdict == case["verdict"]
    verdict = VERDICTS[checker.main([str(result), str(file), *map(str, sources)])]
    assert verdict == ("cannot be decided" if case["needs"] else case["verdict"])
