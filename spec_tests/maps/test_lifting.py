"""A map over a training state: the map of a state is the state of the mapped tensors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import InconsistentTensor, MapError
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.map_arrays import map_arrays
from spec_tests.helpers.random_maps import cases, meaning

__all__ = ["run"]

PARTS = ["{key}", "ema.{key}", "opt.{key}.exp_avg", "opt.{key}.exp_avg_sq", "{key}.master"]
ADAM = {"opt.{key}.m": "moment", "opt.{key}.v": "moment", "opt.{key}.step": "value"}
RULES = [
    "l.{l}.e.{e}.w[o i] -> L.{l}.E[e i o]",
    "l.{l}.gu[(s o) i] -> L.{l}.{s:g|u}[o i]",
    "l.{l}.q -> L.{l}.q",
    "rest {x:**} -> {x}",
]


def state_of(steps: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {f"l.{n}.e.{e}.w": (4, 3) for n in range(2) for e in range(3)}
    shapes |= {f"l.{n}.{key}": (6, 3) for n in range(2) for key in ("gu", "q")}
    state = {key: rng.normal(size=shape) for key, shape in shapes.items()}
    moments = {f"opt.{k}.{m}": rng.normal(size=s) for k, s in shapes.items() for m in "mv"}
    return (
        state | moments | {f"opt.{k}.step": np.float32(steps) for k in shapes} | {"lr": np.ones(())}
    )


@given(st.data(), st.permutations(PARTS[1:]))
@settings(max_examples=60)
def test_the_map_of_a_state_is_the_state_of_the_map(data: st.DataObject, order: list[str]) -> None:
    """For any map and any parts, which may be in any order."""
    case = data.draw(cases(np.dtype(np.int16), plain=False))
    parts = [*order[: data.draw(st.integers(1, 4))], PARTS[0]]
    made = meaning(case.lines, case.sources)
    lift = dict.fromkeys(parts[:-1], "value")
    lifted = sv.Map(case.rules(), sizes=case.sizes(), lift=lift)
    states = [
        {part.replace("{key}", key): each for part in parts for key, each in arrays.items()}
        for arrays in (case.sources, made)
    ]
    found = map_arrays(lifted, states[0])
    assert found.keys() == states[1].keys()
    assert all(np.array_equal(found[key], each) for key, each in states[1].items())
    if case.has_inverse:
        assert map_arrays(lifted.inverse(), found).keys() == states[0].keys()


def test_moments_follow_their_tensors_and_scalars_are_kept(run: Run, tmp_path: Path) -> None:
    state, plain = state_of(), sv.Map(RULES)
    sv.save(tmp_path / "a.npz", state)
    options = [word for rule in RULES for word in ("--rule", rule)]
    options += [word for each in ADAM.items() for word in ("--lift", "=".join(each))]
    assert run("reshard", tmp_path / "a.npz", tmp_path / "b.npz", *options).code == 0
    assert run("diff", tmp_path / "a.npz", tmp_path / "b.npz", *options).code == 0
    assert run("show", tmp_path / "a.npz", "opt.L.0.q.m", *options).code == 0
    assert run("view", tmp_path / "a.npz", "-o", tmp_path / "page.html", *options).code == 0
    made = sv.load(tmp_path / "b.npz")
    keys = [key for key in state if key.startswith("l.")]
    for before, after in (("", ""), ("opt.", ".m"), ("opt.", ".v")):
        right = map_arrays(plain, {key: state[before + key + after] for key in keys})
        assert all(np.array_equal(made[before + k + after], each) for k, each in right.items())
    steps = {key: value for key, value in made.items() if key.endswith(".step")}
    assert len(steps) == len(right) and {*map(float, steps.values())} == {3} and made["lr"] == 1
    back = sv.load(tmp_path / "b.npz", map=plain.extended(lift=ADAM).inverse())
    assert back.keys() == state.keys()
    assert all(np.array_equal(back[key], value) for key, value in state.items())


def test_scalars_that_become_one_are_equal_or_refused(tmp_path: Path) -> None:
    sv.save(tmp_path / "a.npz", state_of() | {"opt.l.1.e.2.w.step": np.float32(4)})
    with pytest.raises(InconsistentTensor, match=r"'opt\.l\.1\.e\.2\.w\.step' as a copy of 'opt"):
        sv.load(tmp_path / "a.npz", map=sv.Map(RULES, lift=ADAM))


@pytest.mark.parametrize("left", ADAM)
def test_a_part_that_is_not_lifted_does_not_pass_by_rest(left: str, tmp_path: Path) -> None:
    sv.save(tmp_path / "a.npz", state_of())
    lift = {pattern: kind for pattern, kind in ADAM.items() if pattern != left}
    with pytest.raises(MapError, match="would keep its name") as caught:
        sv.load(tmp_path / "a.npz", map=sv.Map(RULES, lift=lift))
    assert f"--lift '{left}=moment'" in caught.value.remedy


def test_a_constant_changes_no_moment_and_a_factor_has_none() -> None:
    arrays = {"a.w": np.ones(3), "m.a.w": np.full(3, 2.0)}
    for rule, value in (("a.w + 1 -> b", 2.0), ("a.w - 1/2 -> b as float64", 0.5)):
        made = map_arrays(sv.Map(rule, lift={"m.{key}": "moment"}), arrays)
        assert (made["b"] == value).all() and (made["m.b"] == 2).all()
        ema = map_arrays(sv.Map(rule, lift={"m.{key}": "value"}), arrays)
        assert (ema["m.b"] == value + 1).all()
    filled = sv.Map("a.w[i] -> b[i] @ i=0:3 else 7", sizes={"i": 4}, lift={"m.{key}": "moment"})
    assert [map_arrays(filled, arrays)[key][3] for key in ("b", "m.b")] == [7, 0]
    for rule in ("2 * a.w -> b", "1 - a.w[i] -> b[i]", "exp(a.w) -> b", "a.w[i] + a.w[i] -> b[i]"):
        with pytest.raises(MapError, match="computes, and moments do not follow it"):
            map_arrays(sv.Map(rule, lift={"m.{key}": "moment"}), arrays)


@pytest.mark.parametrize("lift", [{"a": "value"}, {"{key}.{key}": "value"}, {"m.{key}": "mean"}])
def test_a_lift_has_one_key_and_a_kind(lift: dict[str, str]) -> None:
    with pytest.raises(MapError, match="is not a lift"):
        sv.Map("a -> b", lift=lift)
