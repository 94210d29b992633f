"""Deltas of other programs, read and written: every dialect, against plain writers and readers of its
layout, and against files of the real programs (``golden/deltas``)."""

import json
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    MissingExtra,
    ShardvarError,
    TargetExists,
    UnsupportedError,
)
from shardvar.verbs.delta.contents import ApplyReport
from spec_tests.helpers.paths import GOLDEN
from spec_tests.helpers.plain_dialects import apply_slime, apply_trl, slime_delta, trl_delta
from spec_tests.helpers.thoroughness import stride

pytest.importorskip("zstandard")
pytest.importorskip("xxhash")
pytest.importorskip("blake3")

BF16 = ml_dtypes.bfloat16
DELTAS = GOLDEN / "deltas"
WRITTEN = {"slime": "weight_v000007", "modelexpress": "v7", "trl": "step_000007.safetensors"}
WRITTEN["trl-gaps"] = "step_000008.safetensors"
FOLDERS = ("slime", "modelexpress")


def weights(num: int, dtype: Any = BF16, seed: int = 0) -> Any:
    """Return random numbers."""
    return np.random.default_rng(seed).normal(0, 0.02, num).astype(dtype)


def moved(array: Any, share: float, seed: int = 1) -> Any:
    """Return a copy of which some elements have another bit."""
    new = array.copy()
    bits = new.view(f"<u{new.dtype.itemsize}").reshape(-1)
    bits[np.random.default_rng(seed).random(bits.size) < share] ^= 1
    return new


def octets(tensors: dict[str, Any]) -> dict[str, bytes]:
    """Return the bytes of each tensor."""
    return {key: np.ascontiguousarray(array).tobytes() for key, array in tensors.items()}


def two(folder: Path, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Save two versions of a model, a and b: two leaves and an equal part, an equal tensor, one element."""
    a = {
        "w": weights(1_100_000).reshape(1100, 1000),
        "same": weights(33),
        "one": weights(1, seed=3),
    }
    b = {"w": moved(a["w"], 0.01), "same": a["same"], "one": moved(a["one"], 1.0)}
    b["w"][1048:] = a["w"][1048:]  # the third leaf begins in this row
    a |= more
    b |= more
    sv.save(folder / "a", a, partition=3)
    sv.save(folder / "b.safetensors", b)
    return a, b


def publish(
    folder: Path, dialect: str, a: str = "a", b: str = "b.safetensors", **options: Any
) -> Path:
    """Write a delta of a dialect."""
    if dialect == "modelexpress":
        options.setdefault("versions", ("v6", "v7"))
    sv.delta(folder / a, folder / b, folder / WRITTEN[dialect], dialect=dialect, **options)
    return folder / WRITTEN[dialect]


# Files of the real programs.


GOLDENS = [
    *sorted(each for each in DELTAS.glob("*-*") if each.stem not in ("trl-base", "trl-result")),
    DELTAS / "modelexpress",
]


@pytest.mark.parametrize("path", GOLDENS, ids=[each.name for each in GOLDENS])
def test_files_of_the_real_programs_make_the_result(path: Path, tmp_path: Path) -> None:
    """And no other base does: all but two of them have a checksum."""
    prefix = "trl-" if path.name.startswith("trl-") else ""
    base, result = (DELTAS / f"{prefix}{name}.safetensors" for name in ("base", "result"))
    sv.apply(base, path, tmp_path / "new")
    assert sv.diff(result, tmp_path / "new").equal and not sv.verify(path).damages
    if "idx" not in path.name and "indices" not in path.name:
        sv.save(tmp_path / "other", {key: value + 1 for key, value in sv.load(base).items()})
        with pytest.raises(CheckpointError, match="the base is another one"):
            sv.apply(tmp_path / "other", path, tmp_path / "wrong")
        assert not [*tmp_path.glob("wrong*")]


# Reading what a plain writer wrote.

_KINDS = st.sampled_from([np.float32, np.float16, BF16, np.uint8, np.int64])


@given(
    st.lists(st.tuples(_KINDS, st.integers(0, 400)), min_size=1, max_size=4),
    st.sampled_from(["xor", "overwrite"]),
    st.sampled_from(["adler32", "xxh3-128", "blake3"]),
    st.sampled_from([0.0, 0.02, 0.5, 1.0]),
    st.integers(1, 3),
)
@settings(deadline=None)
def test_any_delta_of_slime_makes_the_result(
    tmp_path_factory: pytest.TempPathFactory,
    tensors: list[tuple[Any, int]],
    encoding: str,
    algorithm: str,
    share: float,
    ranks: int,
) -> None:
    folder = tmp_path_factory.mktemp("t")
    a = {f"t{n}": weights(num, dtype, n) for n, (dtype, num) in enumerate(tensors)}
    b = {key: moved(array, share) for key, array in a.items()}
    sv.save(folder / "a", a, partition=2)
    delta = slime_delta(folder / "d", a, b, encoding=encoding, algorithm=algorithm, ranks=ranks)
    report = sv.apply(folder / "a", delta, folder / "c.safetensors")
    assert octets(sv.load(folder / "c.safetensors")) == octets(b)
    assert isinstance(report, ApplyReport) and algorithm in report.notes[1]
    assert report.notes[0].startswith("the base was not compared")


@given(st.integers(1, 300_000), st.sampled_from([0.0001, 0.01, 1.0]), st.integers(0, 3))
@settings(deadline=None, max_examples=20)
def test_any_delta_of_trl_makes_the_result(
    tmp_path_factory: pytest.TempPathFactory, num: int, share: float, form: int
) -> None:
    folder = tmp_path_factory.mktemp("t")
    name, encoding = (("first", ""), ("indices", ""), ("idx", "raw"), ("idx", "gap_delta"))[form]
    a = {"w": weights(num), "v": weights(7, seed=2)}
    b = {"w": moved(a["w"], share), "v": moved(a["v"], 1.0)}
    sv.save(folder / "a", a, partition=2)
    delta = trl_delta(folder / "d.safetensors", a, b, form=name, encoding=encoding)
    report = sv.apply(folder / "a", delta, folder / "c")
    assert octets(sv.load(folder / "c")) == octets(b)
    compared = "the checksum that the delta gives" if name == "first" else "was not compared"
    assert compared in report.notes[1]


def test_wide_gaps_have_32_bits(tmp_path: Path) -> None:
    a = {"w": np.zeros(1_100_001, BF16)}
    b = {"w": a["w"].copy()}
    b["w"][[0, 70_000, 1_100_000]] = 1  # none of the second leaf
    for name, each in (("a", a), ("b.safetensors", b)):
        sv.save(tmp_path / name, each)
    plain = trl_delta(tmp_path / "d.safetensors", a, b, form="idx")
    sv.apply(tmp_path / "a", plain, tmp_path / "c")
    assert octets(sv.load(tmp_path / "c")) == octets(b)
    assert sv.load(publish(tmp_path, "trl-gaps"))["w.idx"].tolist() == [0, 69_999, 1_029_999]
    assert apply_trl(a, tmp_path / WRITTEN["trl-gaps"]) == octets(b)


def test_a_checksum_of_frames_is_of_the_frames(tmp_path: Path) -> None:
    """``checksum_scope`` of a fork of vime."""
    a, b = two(tmp_path)
    delta = slime_delta(tmp_path / "d", a, b, checksum_scope="compressed_delta")
    report = sv.apply(tmp_path / "a", delta, tmp_path / "c")
    assert octets(sv.load(tmp_path / "c")) == octets(b)
    assert "the result was not compared" in report.notes[1]
    assert "No checksum" in sv.verify(delta).notes[-1]
    index = delta / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("compressed_delta", "all"))
    with pytest.raises(UnsupportedError, match="checksum_scope is 'all'"):
        sv.apply(tmp_path / "a", delta, tmp_path / "e")


# Writing, for a plain reader.


SLIME = {"delta_encoding": "xor", "compression_format": "zstd"}
INDEXES = {
    "slime": SLIME | {"version": "000007", "base_version": "000006", "checksum_format": "xxh3-128"},
    "modelexpress": SLIME | {"version": "v7", "base_version": "v6", "checksum_format": "adler32"},
}


@pytest.mark.parametrize("dialect", WRITTEN)
def test_a_plain_reader_and_apply_make_the_result(dialect: str, tmp_path: Path) -> None:
    """The index says what the programs need."""
    a, b = two(tmp_path)
    path = publish(tmp_path, dialect)
    plain = apply_slime if dialect in FOLDERS else apply_trl
    assert plain(a, path) == octets(b)
    if dialect in FOLDERS:
        index = json.loads((path / "model.safetensors.index.json").read_text())
        assert index["metadata"] == INDEXES[dialect]
        assert set(index["weight_map"].values()) == {"model-00000-of-00001.safetensors"}
    sv.apply(tmp_path / "a", path, tmp_path / "c.safetensors")
    assert sv.diff(tmp_path / "b.safetensors", tmp_path / "c.safetensors").equal
    # Also in the place of an older one.
    publish(tmp_path, dialect, force=True)
    assert plain(a, path) == octets(b)
    with pytest.raises(TargetExists):
        publish(tmp_path, dialect)


@pytest.mark.parametrize("dialect", FOLDERS)
def test_a_step_that_changed_nothing_is_a_delta(dialect: str, tmp_path: Path) -> None:
    _, b = two(tmp_path)
    path = publish(tmp_path, dialect, "b.safetensors")
    assert [each.name for each in path.iterdir()] == ["model.safetensors.index.json"]
    assert "published weight delta" in sv.verify(path).notes[0]
    sv.apply(tmp_path / "b.safetensors", path, tmp_path / "c")
    assert octets(sv.load(tmp_path / "c")) == octets(b)
    with pytest.raises(UnsupportedError, match="published weight delta"):
        sv.reshard(path, tmp_path / "x.npz")


# What a dialect cannot say.


F4 = np.ones(4, np.float32)
UNSAID: list[tuple[Any, Any, str]] = [
    (None, F4, "'k' is new, and the dialect"),
    (F4, None, "'k' is removed, and the dialect"),
    (F4, F4.astype(np.float16), "'k' was float32 and is float16"),
    (F4, F4.reshape(2, 2), "'k' had the shape [4] and has [2, 2]"),
    (np.array([b"a"], object), np.array([b"b"], object), "'k' is of string and changed"),
]


@pytest.mark.parametrize("dialect", WRITTEN)
@pytest.mark.parametrize(("before", "after", "words"), UNSAID)
def test_what_a_dialect_cannot_say_is_refused(
    dialect: str, before: Any, after: Any, words: str, tmp_path: Path
) -> None:
    for name, array in (("a", before), ("b", after)):
        sv.save(tmp_path / name, {"w": np.ones(3)} | ({} if array is None else {"k": array}))
    with pytest.raises(UnsupportedError) as caught:
        publish(tmp_path, dialect, b="b")
    assert words in caught.value.cause and "Leave the dialect out" in caught.value.remedy
    assert not (tmp_path / WRITTEN[dialect]).exists()


@pytest.mark.parametrize("dialect", ["trl", "trl-gaps"])
def test_trl_has_only_bfloat16(dialect: str, tmp_path: Path) -> None:
    sv.save(tmp_path / "a", {"w": np.ones(3, np.float32), "v": weights(9)})
    sv.save(tmp_path / "b", {"w": np.ones(3, np.float32), "v": moved(weights(9), 1.0)})
    assert sv.load(publish(tmp_path, dialect, b="b"))  # an equal tensor may be of any dtype
    sv.save(tmp_path / "c", {"w": np.zeros(3, np.float32), "v": weights(9)})
    with pytest.raises(UnsupportedError, match="'w' is float32 and changed"):
        publish(tmp_path, dialect, b="c", force=True)


RESERVED = (
    "version base_version delta_encoding compression_format checksum_format checksum_scope format "
    "total_size sparse model_version prev_model_version changed_params checksum_sha256 encoding "
    "__metadata__ __positions__ __values__ metadata weight_map table DCP_VERSION DCP_SHARDING_INFO "
    "shardvar.digests shardvar.description shardvar.writer shardvar.generation shardvar.objects "
    "shardvar.delta shardvar.ties .indices .values .idx .val .positions .pos"
).split()
"""Names with a meaning in files of some dialect, and in files of shardvar."""


@st.composite
def any_names(draw: st.DrawFn) -> str:
    """A name, maybe a reserved one, with endings or as an ending. One that is not UTF-8 has escapes,
    as it is read."""
    parts = st.lists(
        st.sampled_from(RESERVED) | st.text(st.characters(), max_size=4), min_size=1, max_size=3
    )
    name = draw(st.sampled_from(RESERVED)) if draw(st.booleans()) else "".join(draw(parts))
    return name.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")


@settings(deadline=None, max_examples=200 // stride(8))
@given(
    st.sampled_from([None, *WRITTEN]),
    st.dictionaries(any_names(), st.booleans(), min_size=1, max_size=4),
)
@example("slime", {"shardvar.digests": True, "w": True})
@example("modelexpress", {"shardvar.objects": True, "w": True})
@example("trl", {"w.values": True, "w": True})
@example(
    "modelexpress",
    dict.fromkeys(["format", "total_size", "sparse"], False) | {"shardvar.delta": True},
)
def test_a_tensor_has_any_name_or_is_refused_before_the_write(
    tmp_path_factory: pytest.TempPathFactory, dialect: str | None, names: dict[str, bool]
) -> None:
    path = tmp_path_factory.mktemp("n")
    a = {name: weights(40, seed=number) for number, name in enumerate(names)}
    b = {name: moved(a[name], 0.5) if is_changed else a[name] for name, is_changed in names.items()}
    try:
        sv.save(path / "a", a)
        sv.save(path / "b", b)
    except ShardvarError:
        return
    before = {each.name for each in path.iterdir()}
    target = path / WRITTEN[dialect] if dialect else path / "d"
    options: Any = {"dialect": dialect, "versions": dialect and ("6", "7")}
    try:
        report = sv.delta(path / "a", path / "b", target, **options)
    except UnsupportedError:
        assert {each.name for each in path.iterdir()} == before
        return
    sizes = {each.key: each.stored_nbytes for each in report.tensors}
    assert all((sizes[key] > 0) == (octets(a)[key] != octets(b)[key]) for key in names)
    assert sv.verify(target).ok
    sv.apply(path / "a", target, path / "c")
    assert octets(sv.load(path / "c")) == octets(b)


@pytest.mark.parametrize(
    ("dialect", "name", "versions", "words"),
    [
        ("slime", "delta", None, "needs the versions"),
        ("modelexpress", "weight_v000007", None, "needs the versions"),
        ("slime", "delta", ("6", "8"), "makes a version of its predecessor"),
        ("slime", "delta", ("a", "b"), "makes a version of its predecessor"),
        ("slime", "delta", ("6",), "The versions are two"),
        ("slime", "delta", "67", "The versions are two"),
        ("modelexpress", "delta", ("a", "a"), "Both versions"),
        ("modelexpress", "delta", ("../a", "b"), "is not a name"),
        ("slime", "delta.safetensors", None, "is a folder"),
        ("trl", "delta", ("1", "2"), "does not end in .safetensors"),
        ("trl", "x.safetensors", None, "needs the versions"),
        ("slime-v2", "delta", None, "is not known"),
        ("sglang", "delta", None, "sglang reads the dialect slime"),
        ("TRL", "delta", None, "TRL reads the dialect trl or trl-gaps"),
        (None, "delta", ("1", "2"), "has no versions"),
    ],
)
def test_versions_and_names_are_checked(
    dialect: str | None, name: str, versions: Any, words: str, tmp_path: Path
) -> None:
    for number, each in enumerate("ab"):
        sv.save(tmp_path / each, {"w": weights(9, seed=number)})
    options: Any = {"dialect": dialect, "versions": versions}
    with pytest.raises(ArgumentError, match=words):
        sv.delta(tmp_path / "a", tmp_path / "b", tmp_path / name, **options)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("policy", [None, sv.MaxShardSizePolicy(24)], ids=["a file", "a set"])
def test_a_folder_with_a_model_gets_no_delta(policy: Any, tmp_path: Path) -> None:
    for name in ("a", "b.safetensors", "weight_v000007/model.safetensors"):
        sv.save(
            tmp_path / name,
            {"w": np.ones(3), "v": np.ones(3)},
            policy=policy if "/" in name else None,
        )
    with pytest.raises(TargetExists, match="has model.*, and no delta"):
        publish(tmp_path, "slime", force=True)
    assert sv.load(tmp_path / "weight_v000007")


# Several deltas.


def chain(folder: Path, dialect: str) -> list[dict[str, Any]]:
    """Save four versions, v0 to v3, and the deltas d1 to d3."""
    versions = [{"w": weights(3000), "v": weights(40, seed=2)}]
    for number, key in enumerate("wvw"):
        versions.append(versions[-1] | {key: moved(versions[-1][key], 0.1, number)})
    for number, each in enumerate(versions):
        sv.save(folder / f"v{number}", each)
        if number:
            step(
                folder, number, f"d{number}{'' if dialect in FOLDERS else '.safetensors'}", dialect
            )
    return versions


def step(folder: Path, number: int, name: str, dialect: str | None = None) -> None:
    """Write the delta between a version and the one before."""
    versions = dialect and (str(number - 1), str(number))
    options: Any = {"dialect": dialect, "versions": versions}
    sv.delta(folder / f"v{number - 1}", folder / f"v{number}", folder / name, **options)


@pytest.mark.parametrize("dialect", WRITTEN)
def test_several_deltas_are_applied_in_order(dialect: str, tmp_path: Path) -> None:
    versions = chain(tmp_path, dialect)
    d1, d2, d3 = sorted(tmp_path.glob("d?*"))
    sv.apply(tmp_path / "v0", [d1, d2, d3], tmp_path / "c")
    assert octets(sv.load(tmp_path / "c")) == octets(versions[3])
    for wrong in ([d1, d3], [d2, d1], [d1, d1]):
        with pytest.raises(ArgumentError, match="does not follow"):
            sv.apply(tmp_path / "v0", wrong, tmp_path / "x")


def test_deltas_of_two_kinds_do_not_follow_each_other(tmp_path: Path) -> None:
    chain(tmp_path, "slime")
    step(tmp_path, 2, "own")
    step(tmp_path, 2, "d2.safetensors", "trl")
    for other, words in (
        ("own", "of shardvar, and .* of another program"),
        ("d2.safetensors", "nothing says that one follows the other"),
    ):
        with pytest.raises(ArgumentError, match=words):
            sv.apply(tmp_path / "v0", [tmp_path / "d1", tmp_path / other], tmp_path / "x")
    with pytest.raises(UnsupportedError, match="of another program, of the dialect slime"):
        sv.compact_deltas([tmp_path / "d1", tmp_path / "d2"], tmp_path / "x")


# Another base, and other packages.


def test_another_base_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """Values are not cast to the dtype of the base."""
    a, b = two(tmp_path)
    slime, trl = slime_delta(tmp_path / "d", a, b), trl_delta(tmp_path / "d.safetensors", a, b)
    wide = {key: array.astype(np.float32) for key, array in a.items()}
    moved_a, texts = moved(a["w"], 0.00001, 5), np.array([b"a"], object)
    for delta, tensors, error, words in (
        (slime, a | {"w": moved_a}, CheckpointError, "'w' with the delta applied"),
        (slime, {"same": a["same"]}, ArgumentError, "it lacks 'w'"),
        (slime, a | {"w": a["w"][:500]}, CheckpointError, "mask has 2200000 bytes"),
        (slime, a | {"w": texts}, UnsupportedError, "cannot change"),
        (trl, wide, UnsupportedError, "The base has it as float32.*--cast bfloat16"),
    ):
        sv.save(tmp_path / "other", tensors, force=True)
        with pytest.raises(error, match=words):
            sv.apply(tmp_path / "other", delta, tmp_path / "x")
    assert not [*tmp_path.glob("x*")]


def test_a_base_that_changes_meanwhile_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two(tmp_path)
    sv.save(tmp_path / "a.safetensors", a)
    delta = slime_delta(tmp_path / "d", a, b)
    from shardvar.verbs.delta import apply as module

    before = module.apply_published

    def then_changed(*arguments: Any) -> Any:
        made = before(*arguments)
        with (tmp_path / "a.safetensors").open("r+b") as file:
            file.seek(-100, 2)
            file.write(b"\xff\xfe")
        return made

    monkeypatch.setattr(module, "apply_published", then_changed)
    with pytest.raises((ArgumentError, CheckpointError), match="has other values|was replaced"):
        sv.apply(tmp_path / "a.safetensors", delta, tmp_path / "x")
    assert not [*tmp_path.glob("x*")]


@pytest.mark.parametrize("name", ["zstandard", "xxhash"])
def test_a_package_that_is_missing_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delta = slime_delta(tmp_path / "d", *two(tmp_path), algorithm="xxh3-128")
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=name):
        sv.apply(tmp_path / "a", delta, tmp_path / "x")
    with pytest.raises(MissingExtra, match=name):
        publish(tmp_path, "slime")
    assert name == "xxhash" or "It was not unpacked" in sv.verify(delta).notes[-1]
    assert not [*tmp_path.glob("x*")]
    # TRL needs no package.
    sv.apply(tmp_path / "a", publish(tmp_path, "trl"), tmp_path / "x")
