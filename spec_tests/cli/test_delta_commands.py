"""``shardvar delta`` and ``apply``: what they print, their JSON, and their exit codes."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import shardvar as sv
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.damage import flip
from spec_tests.helpers.metadata_saves import save_with

__all__ = ["run"]


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """Three checkpoints, a, b and c, and the deltas ab and bc."""
    table: Any = np.arange(3000, dtype=np.float32)
    for name in "abc":
        sv.save(tmp_path / name, {"w": table, **{f"n{i}": table[:9] for i in range(25)}})
        table = table.copy()
        table[7:9] += 1
    sv.delta(tmp_path / "a", tmp_path / "b", tmp_path / "ab")
    sv.delta(tmp_path / "b", tmp_path / "c", tmp_path / "bc")
    return tmp_path


def test_verify_of_a_chain_finds_a_wrong_order_and_a_gap(steps: Path, run: Run) -> None:
    found = run("verify", steps / "ab", steps / "bc")
    assert found.code == 0
    ends = [f"sha256:{sv.digest(steps / name).checkpoint[:12]}" for name in "ac"]  # type: ignore[index]
    assert found.out.splitlines()[-1] == "The deltas follow each other: " + " to ".join(ends)
    wrong = run("verify", steps / "bc", steps / "ab")
    assert wrong.code == 1 and "does not follow" in wrong.err
    assert f"in the order {steps / 'ab'}, {steps / 'bc'}" in wrong.err
    sv.save(steps / "e", {"w": np.ones(3)})
    sv.delta(steps / "c", steps / "e", steps / "ce")
    gap = run("verify", steps / "ab", steps / "ce", "--quiet")
    assert gap.code == 1 and "the delta between them" in gap.err
    assert run("verify", steps / "ab", steps / "c").code == 0


def test_a_damaged_delta_is_made_again_and_not_rescued(steps: Path, run: Run) -> None:
    """A reshard refuses it."""
    [data] = steps.glob("ab.svdata*")
    flip(data, 0)
    found = run("verify", steps / "ab")
    assert (
        found.code == 1 and "hint: Copy the delta again, or make it again" in found.out + found.err
    )
    assert "reshard" not in found.out + found.err


def test_a_tied_tensor_is_named_with_the_other_one(tmp_path: Path, run: Run) -> None:
    array = np.zeros(999, np.float32)
    for name, tensors in (("a", {"old": array}), ("b", {"embed": array + 1, "head": array + 1})):
        sv.save(tmp_path / name, tensors)
    save_with(tmp_path / "t", {"embed": array + 1, "head": array + 1}, {"head": "embed"})
    found = run("delta", tmp_path / "a", tmp_path / "t", tmp_path / "d")
    assert "new: head: tied to embed" in found.out.splitlines()
    told = json.loads(run("delta", tmp_path / "a", tmp_path / "t", tmp_path / "e", "--json").out)
    assert {each["key"]: each["tie"] for each in told["tensors"] if each["tie"]} == {
        "head": "embed"
    }
    told = json.loads(
        run("apply", tmp_path / "a", tmp_path / "d", tmp_path / "c.npz", "--json").out
    )
    assert told["untied"] == [["head", "embed"]]
    found = run("apply", tmp_path / "a", tmp_path / "d", tmp_path / "x.npz")
    assert "'head' and 'embed'" in found.out


def test_a_delta_of_another_program(tmp_path: Path, run: Run) -> None:
    a: Any = np.arange(3000).astype(ml_dtypes.bfloat16)
    b = a.copy()
    b[7] = -1
    sv.save(tmp_path / "a", {"w": a, "same": a})
    sv.save(tmp_path / "b", {"w": b, "same": a})
    delta = tmp_path / "d.safetensors"
    words = ("delta", tmp_path / "a", tmp_path / "b", delta, "--dialect", "trl-gaps")
    assert "needs the versions" in run(*words).err
    found = run(*words, "--versions", "6", "7")
    assert found.code == 0 and "changed: w: 1 element, 4 B for 6.00 kB\n" in found.out
    assert "note: the delta has neither digest: the dialect trl-gaps has none" in found.err
    fields = json.loads(run(*words, "--versions", "6", "7", "--force", "--json").out)
    assert fields["dialect"] == "trl-gaps" and fields["stored_nbytes"] == 4
    assert "! This is a published weight delta" in run("inspect", delta).out
    assert "weight delta" in run("view", delta, "-o", tmp_path / "p.html").err
    verified = run("verify", delta)
    assert verified.code == 0 and "No checksum of it is of the result" in verified.out
    found = run("apply", tmp_path / "a", delta, tmp_path / "c")
    assert found.code == 0 and sv.diff(tmp_path / "b", tmp_path / "c").equal
    assert "note: the base was not compared" in found.err
    assert "every tensor has the digest" not in found.err
    again = json.loads(run("apply", tmp_path / "a", delta, tmp_path / "e", "--json").out)
    assert len(again["notes"]) == 2
    for option in (("--dialect", "trl"), ("--dialect", "trl", "--versions", "1", "2")):
        refused = run("delta", "--compact", tmp_path / "a", tmp_path / "b", tmp_path / "x", *option)
        assert (
            refused.code == 2
            and "Leave --dialect, --versions, --cast and the map out" in refused.err
        )
    unknown = run(*words[:-1], "slimes", "--versions", "1", "2")
    assert unknown.code == 2 and "Did you mean slime?" in unknown.err
    sv.delta(
        tmp_path / "b",
        tmp_path / "a",
        tmp_path / "e.safetensors",
        dialect="trl",
        versions=("7", "8"),
    )
    chain = run("verify", delta, tmp_path / "e.safetensors")
    assert chain.out.splitlines()[-1] == "The deltas follow each other: version 6 to version 8"
    assert run("verify", tmp_path / "e.safetensors", delta).code == 1
