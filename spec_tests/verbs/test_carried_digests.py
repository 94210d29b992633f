"""Digests that checkpoints carry: whatever a command writes carries the digests of its own bytes, and
``verify`` compares them."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.cli import main
from shardvar.errors import ArgumentError, CorruptCheckpoint, MalformedCheckpoint, UnsupportedError
from shardvar.planning.policies import MaxShardSizePolicy
from shardvar.testing.arrays import arrays
from shardvar.verbs.compare.digest import digest_array
from shardvar.wire.digests import DIGESTS, encode_digests
from shardvar.wire.safetensors_header import build_header
from spec_tests.helpers.damage import flip
from spec_tests.helpers.metadata_saves import save_with
from spec_tests.helpers.sharding_callbacks import Negating

MODEL: dict[str, Any] = {
    "a": np.arange(2**19, dtype=np.float32).reshape(-1, 4),
    "b": np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3),
    "step": np.array(7),
}


def carried_by(path: Path) -> dict[str, str]:
    with sv.open_checkpoint(path) as reader:
        return dict(reader.digests)


def right(path: Path) -> bool:
    """Return True if a checkpoint carries digests, and these are of its bytes."""
    carried = carried_by(path)
    return bool(carried) and carried == sv.digest(path).tensors


KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(model=st.dictionaries(KEYS, arrays(max_rank=3), max_size=3), cuts=st.sampled_from([None, 2]))
@example(model=MODEL, cuts=None)
@example(model=MODEL, cuts=3)
@example(model=MODEL, cuts={"a": [2, 2]})
def test_saved_arrays_of_any_kind_carry_right_digests(
    model: dict[str, Any], cuts: Any, tmp_path: Path
) -> None:
    sv.save(tmp_path / "m", model, partition=cuts, digest=True)
    assert {*carried_by(tmp_path / "m")} == {*model} and (right(tmp_path / "m") or not model)
    with sv.open_checkpoint(tmp_path / "m") as reader:
        assert not reader.metadata.user


def test_a_file_and_a_set_of_safetensors_carry_them_where_the_real_library_ignores_them(
    tmp_path: Path,
) -> None:
    sv.save(tmp_path / "m.safetensors", MODEL, digest=True)
    sv.save(tmp_path / "set.safetensors", MODEL, digest=True, policy=MaxShardSizePolicy(1 << 21))
    index = json.loads((tmp_path / "set.safetensors.index.json").read_text())
    assert right(tmp_path / "m.safetensors")
    assert right(tmp_path / "set.safetensors.index.json")
    # One place: a file of the set carries none.
    for name in index["weight_map"].values():
        assert DIGESTS.encode() not in (tmp_path / name).read_bytes()


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "layout": ({"partition": 5}, "as in the source"),
    "filter": ({"filter": "a"}, "as in the source"),
    "rename": ({"rename": {"a": "c"}}, "computed again"),
    "cast": ({"cast": "float64"}, "computed again"),
    "transpose": ({"transpose": "a"}, "computed again"),
    "map": ({"map": ["a[i j] -> x[j i]", "b -> b", "step -> step"]}, "computed again"),
}


@pytest.mark.parametrize("format", ["shardvar", "safetensors"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_reshard_carries_the_digests_of_what_it_writes(
    name: str, format: str, tmp_path: Path
) -> None:
    options, words = CHANGES[name]
    if name == "layout" and format == "safetensors":
        options = {"policy": MaxShardSizePolicy(1 << 21)}
    sv.save(tmp_path / "m", MODEL, digest=True, partition=2)
    report = sv.reshard(tmp_path / "m", tmp_path / "out", format=format, **options)
    path = tmp_path / "out.safetensors.index.json"
    assert right(path if path.exists() else tmp_path / "out")
    assert words in report.digests


def test_joined_sources_and_tied_weights_carry_digests(tmp_path: Path) -> None:
    for part in ("one", "two"):
        sv.save(tmp_path / part, {"a": MODEL["a"], "step": MODEL["step"]}, digest=True)
    sv.reshard([tmp_path / "one", tmp_path / "two"], tmp_path / "out", concat={"a": 0})
    save_with(tmp_path / "m", {"a": MODEL["b"], "b": MODEL["b"]}, {"b": "a"})
    sv.reshard(tmp_path / "m", tmp_path / "tied.safetensors", digest=True)
    assert right(tmp_path / "out") and right(tmp_path / "tied.safetensors")


def test_a_format_without_a_place_leaves_them_out_and_says_so(tmp_path: Path) -> None:
    sv.save(tmp_path / "m", {"a": MODEL["a"]}, digest=True)
    report = sv.reshard(tmp_path / "m", tmp_path / "out.npz")
    assert "left out: npz cannot carry them" in report.digests
    assert not carried_by(tmp_path / "out.npz")
    saved: Any = lambda path, **more: sv.save(path, {"a": MODEL["a"]}, **more)  # noqa: E731
    for write in (partial(sv.reshard, tmp_path / "m"), saved):
        with pytest.raises(UnsupportedError, match="cannot carry digests"):
            write(tmp_path / "other.npz", digest=True)
        assert not (tmp_path / "other.npz").exists()


@pytest.mark.parametrize("dialect", [None, "trl", "slime"])
def test_the_result_of_a_delta_carries_new_digests_if_its_base_does(
    dialect: str | None, tmp_path: Path
) -> None:
    a = {"w": np.arange(2000).astype(ml_dtypes.bfloat16), "v": np.ones(3, ml_dtypes.bfloat16)}
    b = {**a, "w": a["w"] + a["w"].dtype.type(1)} | ({} if dialect else {"new": np.arange(3)})
    sv.save(tmp_path / "a", a, digest=True)
    sv.save(tmp_path / "plain", a)
    sv.save(tmp_path / "b.safetensors", b)
    delta = tmp_path / ("delta.safetensors" if dialect == "trl" else "delta")
    options: Any = {"dialect": dialect, "versions": ("6", "7")} if dialect else {}
    sv.delta(tmp_path / "a", tmp_path / "b.safetensors", delta, **options)
    sv.apply(tmp_path / "a", delta, tmp_path / "out.safetensors")
    sv.apply(tmp_path / "plain", delta, tmp_path / "other")
    assert right(tmp_path / "out.safetensors") and not carried_by(tmp_path / "other")
    assert sv.diff(tmp_path / "out.safetensors", tmp_path / "b.safetensors").equal


# Damage.


def test_verify_compares_what_a_file_without_checksums_carries(tmp_path: Path) -> None:
    """And a reshard of it is refused, or loses its digests."""
    path = tmp_path / "m.safetensors"
    sv.save(path, MODEL, digest=True)
    assert sv.verify(path).verdict == "ok" and {*sv.verify(path).outcomes.values()} == {"ok"}
    flip(path, -1)
    report = sv.verify(path)
    assert [each.key for each in report.damages] == ["b"]
    assert "its own metadata" in report.damages[0].message and report.outcomes["a"] == "ok"
    assert sv.verify(path, filter="a").ok and not sv.verify(path, filter="b").ok
    for options in ({}, {"rename": {"a": "c"}}, {"digest": True}):
        with pytest.raises(CorruptCheckpoint, match="'b' does not have the digest"):
            sv.reshard(path, tmp_path / "out", **options)  # type: ignore[arg-type]
        assert not list(tmp_path.glob("out*"))
    said = sv.reshard(path, tmp_path / "out", keep_going=True).digests
    assert "left out" in said and not carried_by(tmp_path / "out")


ONE_TWO = digest_array("a", np.array([1, 2], np.uint8))


def with_text(path: Path, text: str, *keys: str) -> Path:
    """Write a safetensors file that carries a text."""
    rows = [(key, "uint8", (2,)) for key in keys]
    path.write_bytes(build_header(rows, {DIGESTS: text}) + b"\1\2" * len(keys))
    return path


def test_keys_that_are_missing_or_more_are_named(tmp_path: Path) -> None:
    text = encode_digests({"a": ONE_TWO, "gone": ONE_TWO})
    path = with_text(tmp_path / "m.safetensors", text, "a", "more")
    found = {each.key: each.message for each in sv.verify(path).damages}
    assert {*found} == {"gone", "more"}
    assert "does not have it" in found["gone"] and "does not list it" in found["more"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a manifest"),
        ("model of a user", "is not a manifest"),
        ("# shardvar digest 2\n", "of version 2"),
        ("# shardvar digest 1\n# checkpoint " + "0" * 64 + "\n", "does not match"),
    ],
)
def test_a_malformed_text_is_one_error_of_verify_and_stops_no_reading(
    text: str, message: str, tmp_path: Path
) -> None:
    path = with_text(tmp_path / "m.safetensors", text, "a")
    report = sv.verify(path)
    assert [message in each.message for each in report.damages] == [True]
    assert DIGESTS in report.damages[0].message
    assert sv.load(path)["a"].tolist() == [1, 2]
    assert sv.digest(path).tensors == {"a": ONE_TWO}
    with sv.open_checkpoint(path) as reader:
        assert len(reader) == 1 and not reader.metadata.user
        with pytest.raises(MalformedCheckpoint, match=message):
            dict(reader.digests)
    # A copy does not carry it on.
    said = sv.reshard(path, tmp_path / "out").digests
    assert "left out" in said and DIGESTS in said
    assert not sv.open_checkpoint(tmp_path / "out").digests
    sv.reshard(path, tmp_path / "again", digest=True)
    assert right(tmp_path / "again")


def test_what_would_be_stale_or_is_not_there_yet_is_refused(tmp_path: Path) -> None:
    """The metadata of a user cannot pose as digests."""
    array, lazy = np.arange(4.0), sv.lazy((3,), "float64", lambda: np.zeros(3))
    with pytest.raises(ArgumentError, match=DIGESTS):
        sv.save(tmp_path / "x", MODEL, metadata={DIGESTS: "mine"})
    with pytest.raises(UnsupportedError, match="lazy"):
        sv.save(tmp_path / "x", {"a": lazy}, digest=True)
    with pytest.raises(UnsupportedError, match="policy changes values"):
        sv.save(tmp_path / "x", {"a": array}, digest=True, policy=Negating())
    sv.save(tmp_path / "m", {"a": array}, digest=True)
    report = sv.reshard(tmp_path / "m", tmp_path / "out", policy=Negating())
    assert "left out" in report.digests and not carried_by(tmp_path / "out")


def test_the_command_says_what_it_carries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = str(tmp_path / "m.npz"), str(tmp_path / "out")
    sv.save(source, {"a": np.arange(4.0)})
    assert main(["reshard", source, out, "--format", "shardvar", "--digest"]) == 0
    assert "note: It carries the digests of 1 tensor." in capsys.readouterr().err
    assert main(["reshard", out, f"{out}.safetensors", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["digests"].endswith("as in the source.")
    assert right(tmp_path / "out.safetensors")
    # A dry run reads nothing, and knows the size of the files.
    assert main(["reshard", source, f"{out}2.safetensors", "--digest", "--dry-run"]) == 0
