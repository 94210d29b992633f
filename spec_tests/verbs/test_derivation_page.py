"""docs/derivation.py agrees with shardvar on maps that move, knows what it does not know, and finds a changed
element."""

import json
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from spec_tests.helpers.paths import module_of_page
from spec_tests.helpers.random_maps import Case, cases

T = np.arange(96.0, dtype=np.float32)
MAPS: list[tuple[dict[str, Any], list[str], dict[str, int]]] = [
    ({"gate.w": T[:6].reshape(2, 3), "up.w": T[6:12].reshape(2, 3)}, ["{s:gate|up}.w[o i] -> gate_up.w[(o s) i]"], {}),
    ({"gu": T[:12].reshape(4, 3)}, ["gu[(s o) i] -> {s:gate|up}.w[i o]"], {}),
    ({f"e.{e}": T[e : e + 2] for e in range(4)}, ["e.{e}[o] -> w[e o]"], {}),
    ({"k": T[:60].reshape(3, 4, 5)}, ["k[i l o] -> layers.{l+2}.w[o i]"], {}),
    ({"q": T[:48].reshape(24, 2)}, ["q[(n d two) i] -> k[(n two d) i]"], {"n": 4, "two": 2}),
    (
        {"q": T[:72].reshape(24, 3), "k": T[:36].reshape(12, 3), "v": T[9:45].reshape(12, 3)},
        ["q[(g s d) i] -> w[(g s d) i] @ s=0:r",
         "k[(g d) i] -> w[(g s d) i] @ s=r", "v[(g d) i] -> w[(g s d) i] @ s=r+1"],
        {"g": 3, "r": 2},
    ),
    ({"t": T[:20].reshape(10, 2)}, ["t[v i] @ v=0:n -> e[v i]", "t[v i] @ v=n: -> nothing"], {"n": 8}),
    ({"e": T[:6].reshape(3, 2), "x.f": T[:4], "y": T[:3]},
     ["e -> a", "also e -> b", "{x:**}.f -> nothing", "rest {x:*} -> z.{x}"], {}),
    ({f"l.{n}": T[n : n + 2] for n in range(4)}, ["l.{l} @ l=0:2 -> d.{l}", "l.{l} @ l=2:4 -> m.{l}"], {}),
]  # fmt: skip


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    return module_of_page("derivation")


def verdict(checker: ModuleType, folder: Path, tensors: dict[str, Any], given_map: sv.Map) -> int:
    """The exit code on a certified result; on one with another element it must not be 0."""
    source, result, file = folder / "a.npz", folder / "b.npz", folder / "b.json"
    sv.save(source, tensors)
    sv.reshard(source, result, map=given_map)
    sv.certify(result, source, file, map=given_map)
    words = [str(result), str(file), str(source)]
    code: int = checker.main(words)
    values = {key: np.array(value) for key, value in sv.load(result).items()}
    largest = max(values, key=lambda key: values[key].size)
    if values[largest].size:
        values[largest].reshape(-1).view(np.uint8)[-1] ^= 1
        sv.save(result, values, force=True)
        statement = json.loads(file.read_text(encoding="utf-8"))
        statement["subject"][0]["digest"]["shardvarDigest1"] = sv.digest(result).checkpoint
        file.write_text(json.dumps(statement), encoding="utf-8")
        assert checker.main(words) in ((1,) if code == 0 else (1, 3))
    return code


@pytest.mark.parametrize("number", range(len(MAPS)))
def test_maps_that_move_are_decided(checker: ModuleType, tmp_path: Path, number: int) -> None:
    tensors, rules, sizes = MAPS[number]
    assert verdict(checker, tmp_path, tensors, sv.Map(rules, sizes=sizes)) == 0


@given(cases(np.dtype(np.float32), plain=True))
def test_no_right_map_is_called_wrong(checker: ModuleType, case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        given_map = sv.Map(case.rules(), sizes=case.sizes())
        assert verdict(checker, Path(folder), case.sources, given_map) in (0, 3)


@given(st.sampled_from(["cast", "transpose", "times"]))
def test_what_it_does_not_know_is_not_decided(checker: ModuleType, what: str) -> None:
    options: dict[str, dict[str, Any]] = {
        "cast": {"cast": "float16"},
        "transpose": {"transpose": "w"},
        "times": {"map": ["2 * w[i j] -> w[i j]"]},
    }
    with tempfile.TemporaryDirectory() as folder:
        source, result, file = (f"{folder}/{name}" for name in ("a.npz", "b.npz", "b.json"))
        sv.save(source, {"w": T[:6].reshape(2, 3)})
        sv.reshard(source, result, **options[what])
        sv.certify(result, source, file, **options[what])
        assert checker.main([result, file, source]) == 3
