"""Digests that checkpoints carry: whatever a command writes carries the digests of its own bytes, and
``verify`` compares them."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.cli import main
from shardvar.errors import ArgumentError, CorruptCheckpoint, MalformedCheckpoint, UnsupportedError
from shardvar.planning.policies import MaxShardSizePolicy
from shardvar.testing.arrays import arrays
from shardvar.wire.digests import DIGESTS, encode_digests
from shardvar.wire.safetensors_header import build_header
from spec_tests.helpers.damage import flip
from spec_tests.helpers.sharding_callbacks import Negating

MODEL: dict[str, Any] = {
    "a": np.arange(2**19, dtype=np.float32).reshape(-1, 4),
    "b": np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3),
    "step": np.array(7),
}


def right(path: Path) -> bool:
    """Return True if a checkpoint carries digests, and these are of its bytes."""
    with sv.open_checkpoint(path) as reader:
        carried = dict(reader.digests)
    return bool(carried) and carried == sv.digest(path).tensors


def stale(path: Path) -> bool:
    """Return True if a checkpoint carries digests that are not of its bytes."""
    with sv.open_checkpoint(path) as reader:
        carried = dict(reader.digests)
    return bool(carried) and carried != sv.digest(path).tensors


@pytest.mark.parametrize("partition", [None, 3, {"a": [2, 2]}])
def test_a_save_carries_the_digests_of_what_it_writes(partition: Any, tmp_path: Path) -> None:
    sv.save(tmp_path / "m", MODEL, partition=partition, digest=True)
    assert right(tmp_path / "m")
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


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_saved_arrays_of_any_kind_carry_right_digests(data: st.DataObject, tmp_path: Path) -> None:
    keys = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
    model = data.draw(st.dictionaries(keys, arrays(max_rank=3), max_size=3))
    sv.save(tmp_path / "m", model, digest=True, partition=data.draw(st.sampled_from([None, 2])))
    assert not stale(tmp_path / "m")
    with sv.open_checkpoint(tmp_path / "m") as reader:
        assert {*reader.digests} == {*model}


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


def test_sources_that_are_joined_carry_new_digests(tmp_path: Path) -> None:
    for part in ("one", "two"):
        sv.save(tmp_path / part, {"a": MODEL["a"], "step": MODEL["step"]}, digest=True)
    sources = [tmp_path / "one", tmp_path / "two"]
    sv.reshard(sources, tmp_path / "out", concat={"a": 0})
    assert right(tmp_path / "out")


def test_tied_weights_and_objects_are_among_them(tmp_path: Path) -> None:
    torch_like = {"a": MODEL["b"], "b": MODEL["b"]}
    sv.save(tmp_path / "m", torch_like, digest=True)
    sv.reshard(tmp_path / "m", tmp_path / "out.safetensors")
    assert right(tmp_path / "out.safetensors")


def test_a_format_without_a_place_leaves_them_out_and_says_so(tmp_path: Path) -> None:
    sv.save(tmp_path / "m", {"a": MODEL["a"]}, digest=True)
    report = sv.reshard(tmp_path / "m", tmp_path / "out.npz")
    assert "left out: npz cannot carry them" in report.digests
    with sv.open_checkpoint(tmp_path / "out.npz") as reader:
        assert not reader.digests
    with pytest.raises(UnsupportedError, match="cannot carry digests"):
        sv.reshard(tmp_path / "m", tmp_path / "other.npz", digest=True)
    with pytest.raises(UnsupportedError, match="cannot carry digests"):
        sv.save(tmp_path / "third.npz", {"a": MODEL["a"]}, digest=True)
    assert sorted(path.suffix for path in tmp_path.iterdir()) != []
    assert not (tmp_path / "third.npz").exists() and not (tmp_path / "other.npz").exists()


def test_the_result_of_a_delta_carries_digests_if_its_base_does(tmp_path: Path) -> None:
    changed = {**MODEL, "a": MODEL["a"] + 1, "new": np.arange(3)}
    sv.save(tmp_path / "base", MODEL, digest=True)
    sv.save(tmp_path / "plain", MODEL)
    sv.save(tmp_path / "after", changed)
    sv.delta(tmp_path / "base", tmp_path / "after", tmp_path / "delta")
    sv.apply(tmp_path / "base", tmp_path / "delta", tmp_path / "out.safetensors")
    sv.apply(tmp_path / "plain", tmp_path / "delta", tmp_path / "other")
    assert right(tmp_path / "out.safetensors")
    with sv.open_checkpoint(tmp_path / "other") as reader:
        assert not reader.digests


@pytest.mark.parametrize("dialect", ["trl", "slime"])
def test_the_result_of_a_delta_of_another_program_carries_new_digests(
    dialect: str, tmp_path: Path
) -> None:
    a = {"w": np.arange(2000).astype(ml_dtypes.bfloat16), "v": np.ones(3, ml_dtypes.bfloat16)}
    b = {**a, "w": a["w"] + a["w"].dtype.type(1)}
    sv.save(tmp_path / "a", a, digest=True)
    sv.save(tmp_path / "b.safetensors", b)
    delta = tmp_path / ("delta.safetensors" if dialect == "trl" else "delta")
    sv.delta(
        tmp_path / "a", tmp_path / "b.safetensors", delta, dialect=dialect, versions=("6", "7")
    )
    sv.apply(tmp_path / "a", delta, tmp_path / "out.safetensors")
    assert right(tmp_path / "out.safetensors")
    assert sv.diff(tmp_path / "out.safetensors", tmp_path / "b.safetensors").equal


# Damage.


def test_verify_compares_what_a_file_without_checksums_carries(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    sv.save(path, MODEL, digest=True)
    assert sv.verify(path).verdict == "ok" and {*sv.verify(path).outcomes.values()} == {"ok"}
    flip(path, -1)
    report = sv.verify(path)
    assert [each.key for each in report.damages] == ["b"]
    assert "its own metadata" in report.damages[0].message and report.outcomes["a"] == "ok"
    assert sv.verify(path, filter="a").ok and not sv.verify(path, filter="b").ok


def test_a_reshard_of_a_damaged_file_is_refused_or_loses_its_digests(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    sv.save(path, MODEL, digest=True)
    flip(path, -1)
    for options in ({}, {"rename": {"a": "c"}}, {"digest": True}):
        with pytest.raises(CorruptCheckpoint, match="'b' does not have the digest"):
            sv.reshard(path, tmp_path / "out", **options)  # type: ignore[arg-type]
        assert not list(tmp_path.glob("out*"))
    report = sv.reshard(path, tmp_path / "out", keep_going=True)
    assert "left out" in report.digests and not sv.open_checkpoint(tmp_path / "out").digests


def with_text(path: Path, text: str, keys: tuple[str, ...] = ("a",)) -> None:
    """Write a safetensors file that carries a text."""
    rows = [(key, "uint8", (2,)) for key in keys]
    path.write_bytes(build_header(rows, {DIGESTS: text}) + b"\1\2" * len(keys))


def digests(*keys: str) -> dict[str, str]:
    """The digests of tensors as ``with_text`` writes them."""
    from shardvar.verbs.compare.digest import digest_array

    return {key: digest_array(key, np.array([1, 2], np.uint8)) for key in keys}


def test_keys_that_are_missing_or_more_are_named(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with_text(path, encode_digests(digests("a", "gone")), ("a", "more"))
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
    path = tmp_path / "m.safetensors"
    with_text(path, text)
    report = sv.verify(path)
    assert [message in each.message for each in report.damages] == [True]
    assert DIGESTS in report.damages[0].message
    assert sv.load(path)["a"].tolist() == [1, 2]
    assert sv.digest(path).tensors == digests("a")
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


def test_the_metadata_of_a_user_cannot_pose_as_digests(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=DIGESTS):
        sv.save(tmp_path / "m", MODEL, metadata={DIGESTS: "mine"})


def test_lazy_arrays_are_not_hashed_before_they_are_written(tmp_path: Path) -> None:
    lazy = sv.lazy((3,), "float64", lambda: np.zeros(3))
    with pytest.raises(UnsupportedError, match="lazy"):
        sv.save(tmp_path / "m", {"a": lazy}, digest=True)


def test_a_policy_that_changes_values_gets_no_stale_digests(tmp_path: Path) -> None:
    sv.save(tmp_path / "m", {"a": np.arange(4.0)}, digest=True)
    with pytest.raises(UnsupportedError, match="policy changes values"):
        sv.save(tmp_path / "x", {"a": np.arange(4.0)}, digest=True, policy=Negating())
    report = sv.reshard(tmp_path / "m", tmp_path / "out", policy=Negating())
    assert "left out" in report.digests and not sv.open_checkpoint(tmp_path / "out").digests


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
