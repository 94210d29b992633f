"""Deltas: what is applied to the base is the other checkpoint, bit by bit, in any layout and format;
and nothing else is ever committed."""

import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.cli import main
from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    CorruptCheckpoint,
    ShardvarError,
    TargetExists,
    UnsupportedError,
)
from shardvar.layout.dtypes import NAMES, OWN_SIZE, has_values, numpy_dtype
from shardvar.planning.slices import TensorTable
from shardvar.testing.arrays import arrays, string_arrays
from shardvar.verbs.delta.chain import find_deltas, open_deltas
from shardvar.verbs.delta.contents import Contents, DeltaReport, DeltaRow, TensorChange
from shardvar.wire.digests import LEAF_NBYTES
from spec_tests.helpers.damage import flip
from spec_tests.helpers.delta_page import result_of, rewrite_delta, stored, tensors_of
from spec_tests.helpers.hypothesis_strategies import same
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket
from spec_tests.helpers.thoroughness import phase, stride

DTYPES = tuple(
    name
    for name in NAMES
    if has_values(name) and name not in ("string", "variant", "float4_e2m1fn_packed")
)
FORMATS = ("shardvar", "tensorflow", "safetensors", "npz", "pt", "zarr")
KEYS = ("a", "b/c", "layer.0.weight", "é", "x" * 90)

_BITS = dict.fromkeys(("int4", "uint4", "float4_e2m1fn"), 4) | {"bool": 1, "int2": 2, "uint2": 2}
_BITS |= {"float6_e2m3fn": 6, "float6_e3m2fn": 6}


def flipped(array: Any, places: list[tuple[int, int]]) -> Any:
    """The array with some bits of some elements flipped, of those that an element has."""
    if array.dtype == object or not array.size:
        return array
    octets = np.frombuffer(bytearray(array.tobytes()), np.uint8)
    for place, bit in places:
        octets[place % len(octets)] ^= 1 << (bit % min(_BITS.get(array.dtype.name, 8), 8))
    return octets.view(array.dtype).reshape(array.shape)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two checkpoints: some tensors are equal, some have other bits, shapes or dtypes, some are in
    only one of them."""
    each = st.one_of(arrays(DTYPES), string_arrays())
    a = draw(st.dictionaries(st.sampled_from(KEYS), each, max_size=4))
    b = dict(a)
    for key in a:
        what = draw(st.sampled_from(["equal", "flipped", "flipped", "other", "removed"]))
        if what == "flipped":
            places = st.tuples(st.integers(0, 10**6), st.integers(0, 7))
            b[key] = flipped(a[key], draw(st.lists(places, min_size=1, max_size=5)))
        elif what == "other":
            b[key] = draw(each)
        elif what == "removed":
            del b[key]
    new = draw(st.dictionaries(st.sampled_from(["n1", "n2"]), each, max_size=1))
    return a, b | new


def save(path: Path, tensors: dict[str, Any], form: str, partition: Any = None) -> Path:
    """Save in a format, or in the native one if it cannot hold the tensors."""
    try:
        sv.save(path / form, tensors, format=form, partition=partition)
    except ShardvarError:
        sv.save(path / "native", tensors)
        return path / "native"
    return path / form


def are_same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)


@settings(deadline=None)
@given(pairs(), *[st.sampled_from(FORMATS)] * 3, st.sampled_from([None, 2, 3]))
def test_a_delta_applied_to_its_base_is_the_other_checkpoint(
    tmp_path_factory: pytest.TempPathFactory,
    pair: tuple[dict[str, Any], dict[str, Any]],
    form_a: str,
    form_b: str,
    form_c: str,
    partition: int | None,
) -> None:
    path, (a, b) = tmp_path_factory.mktemp("d"), pair
    for name in "abc":
        (path / name).mkdir()
    from_a = save(path / "a", a, form_a, partition)
    from_b, out = save(path / "b", b, form_b), path / "c" / "c"
    report = sv.delta(from_a, from_b, path / "d")
    assert isinstance(report, DeltaReport)
    assert all(isinstance(each, TensorChange) for each in report.tensors)
    assert sv.verify(path / "d").ok
    # By the plain reader.
    assert result_of(sv.load(from_a), *stored(path / "d")) == tensors_of(b)
    # By this one, into any format.
    try:
        sv.apply(from_a, path / "d", out, format=form_c, partition=partition)
    except ArgumentError as error:
        words = ("cannot hold", "slices", "sources", "one shape")
        assert any(each in str(error) for each in words), error
        sv.apply(from_a, path / "d", out, format="shardvar")
    assert sv.diff(from_b, out).equal and are_same(sv.load(out), b)
    # The report says what is there.
    assert report.base == sv.digest(from_a).checkpoint
    assert report.result == sv.digest(from_b).checkpoint == sv.digest(out).checkpoint
    assert {each.key for each in report.tensors} == a.keys() | b.keys()
    texts = [array for array in b.values() if array.dtype == object]
    most = sum(array.nbytes for array in b.values()) + 64 * len(b) + 99 * len(texts)
    assert report.stored_nbytes <= most + sum(len(each) for t in texts for each in t.ravel())


SIZES = (LEAF_NBYTES, LEAF_NBYTES + 64, 6 * LEAF_NBYTES + 128)


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize(
    ("dtype", "partition"),
    [("bfloat16", None), ("complex128", 3), ("bfloat16", [1, 2]), ("complex128", [2, 2])],
)
def test_leaves_are_found_in_any_slices(
    nbytes: int, dtype: str, partition: Any, tmp_path: Path
) -> None:
    """Of the base, and those of the result, which may be other ones."""
    octets = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    other = octets.copy()
    other[[0, 5, nbytes // 2, nbytes - 1]] ^= 255
    shape = (2, -1) if partition == [2, 2] else (-1, 4)
    a, b = (each.view(numpy_dtype(dtype)).reshape(shape) for each in (octets, other))
    sv.save(tmp_path / "a", {"w": a}, partition=partition)
    sv.save(tmp_path / "b", {"w": b})
    report = sv.delta(tmp_path / "a", tmp_path / "b", tmp_path / "d")
    assert report.tensors[0].kind == "changed" and report.stored_nbytes < 500
    for cut in (partition, None, {"w": [1, 4] if partition != [1, 2] else 5}):
        sv.apply(tmp_path / "a", tmp_path / "d", tmp_path / "c", partition=cut, force=True)
        assert sv.diff(tmp_path / "b", tmp_path / "c").equal


def changed(array: Any, share: float, seed: int = 0) -> Any:
    """The array with some elements one unit of their bits larger."""
    words = array.view(f"u{array.itemsize}").reshape(-1).copy()
    words[np.random.default_rng(seed).random(len(words)) < share] += 1
    return words.view(array.dtype).reshape(array.shape)


def weights(rows: int = 1024, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return rng.normal(0, 0.02, (rows, 1024)).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    ("share", "most"), [(0.001, 0.0013), (0.01, 0.009), (0.1, 0.06), (1.0, 0.25)]
)
def test_a_delta_is_as_small_as_what_changed(share: float, most: float, tmp_path: Path) -> None:
    w = weights(2048)
    sv.save(tmp_path / "a", {"w": w})
    sv.save(tmp_path / "b", {"w": changed(w, share)})
    report = sv.delta(tmp_path / "a", tmp_path / "b", tmp_path / "d")
    assert report.stored_nbytes < most * w.nbytes


def test_what_a_delta_would_not_make_smaller_is_stored_whole(tmp_path: Path) -> None:
    """Next to frames of any size: large payloads are read on another way than small ones, and from
    another source than whole tensors."""
    rng = np.random.default_rng(0)
    w, other = (rng.integers(0, 256, 3 * LEAF_NBYTES + 1, np.uint8) for _ in range(2))
    a: dict[str, Any] = {"w": w, "s": np.int8(1), "v": w}
    b: dict[str, Any] = {"w": other, "s": np.int8(2), "v": w, "new": np.ones(99)}
    kinds = {"w": "whole", "s": "whole", "v": "equal", "new": "new"}
    for i in range(4, 18):
        a[f"f{i}"] = rng.normal(0, 1, (1 << i, 8)).astype(np.float32)
        b[f"f{i}"] = a[f"f{i}"] * np.float32(1.001)
    sv.save(tmp_path / "a", a)
    sv.save(tmp_path / "b", b)
    report = sv.delta(tmp_path / "a", tmp_path / "b", tmp_path / "d")
    found = {each.key: each for each in report.tensors}
    assert {key: found[key].kind for key in kinds} == kinds
    assert {found[f"f{i}"].kind for i in range(9, 18)} == {"changed"}
    assert sum(found[key].stored_nbytes for key in "wsv") == other.nbytes + 1
    assert sv.verify(tmp_path / "d").ok
    sv.apply(tmp_path / "a", tmp_path / "d", tmp_path / "c")
    assert sv.diff(tmp_path / "b", tmp_path / "c").equal


SAME = np.arange(5000, dtype=np.float32)


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A base, a result, and the delta between them, as a, b, d."""
    w = weights(1536)
    first, second = (np.array(each, object) for each in (b"first", b"second"))
    a = {"w": w, "step": np.int64(1), "name": first, "same": SAME}
    b = {"w": changed(w, 0.01), "step": np.int64(2), "name": second, "same": SAME}
    sv.save(tmp_path / "a", a, partition={"w": [1, 2]}, metadata={"step": "1"})
    sv.save(tmp_path / "b", b, metadata={"step": "2", "run": "x"})
    sv.delta(tmp_path / "a", tmp_path / "b", tmp_path / "d")
    return tmp_path


def names(path: Path) -> set[str]:
    return {each.name for each in path.iterdir()}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"w": weights(1536, 5)}, "its tensor 'w' has other values"),
        ({"w": weights(1536).astype(np.float32)}, "is float32, not bfloat16"),
        ({"w": weights(1535)}, r"has the shape \[1535, 1024\], not \[1536, 1024\]"),
        ({"w": None}, "its tensor 'w' is missing"),
        ({"x": np.zeros(3)}, "its tensor 'x' is not in it"),
        ({"same": SAME * (SAME < 4999)}, "its tensor 'same' has other values"),
        ({}, "do not have the checksum"),
        ({"name": np.array(b"third", object)}, ""),
    ],
)
def test_another_or_a_damaged_base_is_refused_by_the_name_of_a_tensor(
    three: Path, other: dict[str, Any], words: str
) -> None:
    """One that is stored whole may be any in the base."""
    base = sv.load(three / "a") | other
    sv.save(three / "o", {key: array for key, array in base.items() if array is not None})
    if not other:
        flip(*three.glob("o.svdata*"), 2_000_000)
    before = names(three)
    if words:
        with pytest.raises(ArgumentError if other else CorruptCheckpoint, match=words):
            sv.apply(three / "o", three / "d", three / "c")
        assert names(three) == before
    else:
        sv.apply(three / "o", three / "d", three / "c")
        assert sv.diff(three / "b", three / "c").equal


def test_a_base_is_its_own_target_in_one_commit(three: Path) -> None:
    """A dry run writes nothing."""
    before = names(three)
    assert sv.apply(three / "a", three / "d", three / "c", dry_run=True).num_tensors == 4
    assert sv.delta(three / "a", three / "b", three / "e", dry_run=True).stored_nbytes > 0
    with pytest.raises(TargetExists):
        sv.apply(three / "a", three / "d", three / "a")
    assert names(three) == before
    sv.apply(three / "a", three / "d", three / "a", force=True)
    assert sv.diff(three / "a", three / "b").equal and sv.verify(three / "a").ok
    with sv.open_checkpoint(three / "a") as reader:
        assert dict(reader.metadata.user) == {"step": "2", "run": "x"}


def test_a_delta_is_never_taken_for_a_model(three: Path) -> None:
    d = three / "d"
    for refused in (
        lambda: sv.load(d),
        lambda: sv.reshard(d, three / "x.safetensors"),
        lambda: sv.diff(d, three / "a"),
        lambda: sv.diff(three / "a", d),
        lambda: sv.delta(d, three / "a", three / "x"),
        lambda: sv.delta(three / "a", d, three / "x"),
        lambda: sv.apply(d, three / "d", three / "x"),
    ):
        with pytest.raises(UnsupportedError, match="is a delta") as caught:
            refused()
        assert "sv.apply(BASE, DELTA, OUT)" in str(caught.value)
    with pytest.raises(UnsupportedError, match="is a checkpoint and not a delta"):
        sv.apply(three / "a", three / "b", three / "x")
    assert any("is a delta" in note for note in sv.verify(d).notes)


# Chains.


@settings(deadline=None, max_examples=40 // stride(4))
@given(pairs(), pairs(), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 7)), max_size=4))
def test_a_chain_and_the_delta_that_joins_it_make_the_last_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, first: Any, second: Any, places: Any
) -> None:
    path = tmp_path_factory.mktemp("c")
    again = {key: flipped(array, places) for key, array in first[1].items()}
    versions = [*first, again, second[1], again]
    for number, tensors in enumerate(versions):
        sv.save(path / f"v{number}", tensors)
        if number:
            sv.delta(path / f"v{number - 1}", path / f"v{number}", path / f"d{number}")
    chain = [path / f"d{number}" for number in range(1, len(versions))]
    for number in range(1, len(versions)):
        sv.apply(path / "v0", chain[:number], path / f"w{number}")
        assert are_same(sv.load(path / f"w{number}"), versions[number])
        nbytes: list[int] = []
        report = sv.compact_deltas(chain[:number], path / f"j{number}", progress=nbytes.append)
        assert sum(nbytes) >= report.stored_nbytes
        assert sv.verify(path / f"j{number}").ok
        assert report.result == sv.digest(path / f"v{number}").checkpoint
        sv.apply(path / "v0", path / f"j{number}", path / f"x{number}")
        assert are_same(sv.load(path / f"x{number}"), versions[number])


def test_a_joined_delta_is_not_larger_than_one_of_the_ends(tmp_path: Path) -> None:
    w = weights(2048)
    between = changed(w, 0.01, 1)
    for number, each in enumerate((w, between, changed(between, 0.01, 2))):
        sv.save(tmp_path / f"v{number}", {"w": each})
    for a, b, name in ((0, 1, "d1"), (1, 2, "d2"), (0, 2, "whole")):
        sv.delta(tmp_path / f"v{a}", tmp_path / f"v{b}", tmp_path / name)
    report = sv.compact_deltas([tmp_path / "d1", tmp_path / "d2"], tmp_path / "j")
    assert report.num_joined == 2
    whole, joined = (stored(tmp_path / name)[0]["changed/w"] for name in ("whole", "j"))
    assert np.array_equal(whole, joined)


def test_deltas_that_do_not_follow_each_other_are_refused(tmp_path: Path) -> None:
    for number in range(4):
        sv.save(tmp_path / f"v{number}", {"w": np.full(50, number)})
    for number in range(3):
        sv.delta(tmp_path / f"v{number}", tmp_path / f"v{number + 1}", tmp_path / f"d{number}")
    d0, d1, d2 = (tmp_path / f"d{number}" for number in range(3))
    for given_, remedy in (([d1, d0], f"order {d0}, {d1}"), ([d0, d2], "the delta between")):
        for act in (
            lambda deltas: sv.apply(tmp_path / "v0", deltas, tmp_path / "x"),
            lambda deltas: sv.compact_deltas(deltas, tmp_path / "x"),
        ):
            with pytest.raises(ArgumentError, match="does not follow") as caught:
                act(given_)
            assert remedy in str(caught.value)
    with pytest.raises(ArgumentError, match="no delta"):
        sv.apply(tmp_path / "v0", [], tmp_path / "x")
    with pytest.raises(ArgumentError, match="not the base"):
        sv.apply(tmp_path / "v1", [d0, d1], tmp_path / "x")


_FEW_FILES = """
import resource, sys
import shardvar as sv
from shardvar.cli.main import main

resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
folder, number = sys.argv[1], int(sys.argv[2])
deltas = [f"{folder}/d{i}" for i in range(1, number + 1)]
sv.apply(f"{folder}/v0", deltas, f"{folder}/c")
sv.compact_deltas(deltas, f"{folder}/j")
sv.apply(f"{folder}/v0", f"{folder}/j", f"{folder}/e")
assert all(sv.diff(f"{folder}/last", f"{folder}/{name}").equal for name in "ce")
assert main(["verify", *deltas]) == 0
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits are of POSIX")
def test_a_long_chain_needs_few_open_files(tmp_path: Path) -> None:
    tensors, number = {"w": np.zeros(300, np.int16), "step": np.int64(0)}, 40
    for at in range(number + 1):
        tensors["w"][at] = at
        tensors["step"] = np.int64(at)
        sv.save(tmp_path / f"v{at % 2}x" if at else tmp_path / "v0", tensors, force=True)
        if at:
            before = tmp_path / ("v0" if at == 1 else f"v{(at - 1) % 2}x")
            sv.delta(before, tmp_path / f"v{at % 2}x", tmp_path / f"d{at}")
    sv.save(tmp_path / "last", tensors)
    program = [sys.executable, "-c", _FEW_FILES, str(tmp_path), str(number)]
    subprocess.run(program, check=True, capture_output=True, text=True)
    # What was replaced since it was opened is read to its end in a chain of at most 16.
    for length in (16, 17):
        with ExitStack() as stack:
            found = find_deltas([tmp_path / f"d{at}" for at in range(1, length + 1)])
            opened = open_deltas(found, stack)
            sv.delta(tmp_path / "v0", tmp_path / "last", tmp_path / "d1", force=True)
            if length > 16:
                stack.enter_context(pytest.raises(CheckpointError, match="replaced"))
            opened[0].reader.read("changed/w")


# Damage.


def test_a_flipped_bit_of_a_delta_is_found(tmp_path: Path) -> None:
    sv.save(tmp_path / "a", {"w": np.arange(99, dtype=np.int16), "s": np.array([b"xy"], object)})
    after = np.arange(99, dtype=np.int16)
    after[7] = -1
    sv.save(tmp_path / "b", {"w": after, "s": np.array([b"z"], object), "n": np.ones(3, np.int8)})
    sv.delta(tmp_path / "a", tmp_path / "b", tmp_path / "d")
    expected = sv.load(tmp_path / "b")
    for file in sorted(tmp_path.glob("d.*")):
        octets = file.read_bytes()
        for place in range(phase(4), len(octets), stride(4)):
            damaged = bytearray(octets)
            damaged[place] ^= 1 << place % 8
            file.write_bytes(damaged)
            try:
                is_found = not sv.verify(tmp_path / "d").ok
            except ShardvarError:
                is_found = True
            try:
                sv.apply(tmp_path / "a", tmp_path / "d", tmp_path / "c", force=True)
            except ShardvarError:
                pass
            else:
                # Padding between payloads, which no checksum covers and nothing reads.
                assert are_same(sv.load(tmp_path / "c"), expected)
                continue
            assert is_found, (file.name, place)
        file.write_bytes(octets)


def test_damage_in_the_last_leaf_that_a_thread_reads_is_found(tmp_path: Path) -> None:
    """The checksums are compared once every thread has read its leaf, and not before."""
    for name, value in (("a", 0), ("b", 1)):
        sv.save(tmp_path / name, {"w": np.full(12 * LEAF_NBYTES, value, np.int8)})
    (data,) = tmp_path.glob("b.svdata*")
    flip(data, 12 * LEAF_NBYTES - 1)
    for _ in range(8):
        with pytest.raises(CorruptCheckpoint):
            sv.delta(tmp_path / "a", tmp_path / "b", tmp_path / "d")


LIES: dict[str, Any] = {
    "a whole tensor of other values": lambda tensors: tensors.update({"whole/step": np.int64(9)}),
    "an unknown dtype": {"dtype": "float7"},
    "a negative extent": {"shape": [-1, 1024]},
    "an extent that is no number": {"shape": ["a"]},
    "a digest in capitals": {"base": "A" * 64},
    "an unknown field": {"other": 1},
    "a path that is a text": {"path": "ab"},
    "a path of fractions": {"path": ["a", 0.5]},
    "strings that changed in part": {"dtype": "string"},
}
"""By name: the fields of a row, or what is done to the tensors. `hostile/deltas` has more."""


@pytest.mark.parametrize("lie", LIES)
def test_a_delta_that_lies_is_refused_and_nothing_is_written(three: Path, lie: str) -> None:
    def change(tensors: Any, _mark: Any, rows: Any) -> None:
        rows["w"].update(LIES[lie]) if isinstance(LIES[lie], dict) else LIES[lie](tensors)

    rewrite_delta(three / "d", change)
    before = names(three)
    with pytest.raises((CheckpointError, UnsupportedError)):
        sv.apply(three / "a", three / "d", three / "c")
    assert names(three) == before
    assert not sv.verify(three / "d").ok
    with pytest.raises((CheckpointError, UnsupportedError)):
        sv.compact_deltas(three / "d", three / "j")
    assert names(three) == before


@given(st.lists(st.integers(0, 9), max_size=3))
def test_a_row_knows_the_bytes_of_its_tensor(shape: list[int]) -> None:
    for dtype in (name for number, name in enumerate(NAMES) if not OWN_SIZE[number]):
        row = DeltaRow("w", "equal", dtype, (*shape,), "0" * 64, "0" * 64)
        slices = TensorTable.of([("w", dtype, (*shape,))]).whole()
        assert row.nbytes == slices.nbytes.sum(), dtype


@st.composite
def rows(draw: st.DrawFn) -> DeltaRow:
    """A row that is not tied."""
    kind = draw(st.sampled_from(["equal", "changed", "whole", "removed"]))
    base, result = (draw(st.sampled_from("0af")) * 64 for _ in range(2))
    digests: dict[str, tuple[str | None, str | None]] = {
        "equal": (base, base),
        "changed": (base, result),
        "whole": (draw(st.sampled_from([None, base])), result),
        "removed": (base, None),
    }
    names = [name for name in NAMES if kind != "changed" or not OWN_SIZE[NAMES.index(name)]]
    path = draw(st.none() | st.lists(st.integers() | st.text(), max_size=3).map(tuple))
    shape = draw(st.lists(st.integers(0, 2**20), max_size=2).map(tuple))
    key, encoding = draw(st.text() | st.just("a\udcff")), draw(st.sampled_from(["", "Q8_0"]))
    dtype = draw(st.sampled_from(names))
    return DeltaRow(key, kind, dtype, shape, *digests[kind], encoding, path)


@given(
    st.lists(rows(), max_size=4, unique_by=lambda row: row.key),
    st.dictionaries(st.text(), st.text(), max_size=2),
)
def test_a_table_is_read_as_it_was_written(rows: list[DeltaRow], user: dict[str, str]) -> None:
    contents = Contents.of(rows, user)
    assert Contents.decode(contents.mark(), contents.table()) == contents


_PROGRAM = """
import re, sys
import shardvar as sv

def peak():
    with open("/proc/self/status") as status:
        return int(re.search("VmHWM:[^0-9]*([0-9]+) kB", status.read())[1])

folder = sys.argv[1]
sv.delta(folder + "/small", folder + "/small", folder + "/e")
sv.apply(folder + "/small", folder + "/e", folder + "/s")
before = peak()
sv.delta(folder + "/a", folder + "/b", folder + "/d")
sv.apply(folder + "/a", folder + "/d", folder + "/c")
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc has the peak")
def test_memory_does_not_grow_with_the_tensors(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    big = rng.integers(0, 2**32, (3 << 13, 1024), np.uint32).view(np.float32)
    sv.save(tmp_path / "small", {"w": big[:100]})
    sv.save(tmp_path / "a", {"w": big}, partition={"w": [1, 3]})
    sv.save(tmp_path / "b", {"w": rng.integers(0, 2**32, big.shape, np.uint32).view(np.float32)})
    assert big.nbytes == 96 << 20
    found = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert int(re.findall(r"\d+", found.stdout)[0]) < 64 << 10


def test_deltas_are_made_and_applied_in_a_bucket(three: Path) -> None:
    bucket, url = MemoryBucket(), "s3://bucket/run"
    with in_bucket(bucket):
        for path in three.iterdir():
            bucket.files[f"run/{path.name}"] = path.read_bytes()
        sv.delta(f"{url}/a", f"{url}/b", f"{url}/e")
        before = set(bucket.files)
        with pytest.raises(ArgumentError, match="is not the base"):
            sv.apply(f"{url}/b", f"{url}/d", f"{url}/z")
        assert set(bucket.files) == before
        sv.apply(f"{url}/a", f"{url}/e", f"{url}/a", force=True)
        assert sv.diff(f"{url}/a", f"{url}/b").equal


@pytest.mark.parametrize("change", ["nothing", "the base", "the delta"])
def test_an_interrupted_apply_continues_unless_something_has_changed(
    three: Path, change: str
) -> None:
    class Stop(BaseException):
        """The process is interrupted."""

    written: list[int] = []

    def stop(nbytes: int) -> None:
        written.append(nbytes)
        if sum(written) > 2_000_000:
            raise Stop

    options: Any = {"policy": sv.BalancedPolicy(3), "partition": {"w": 6}}
    with pytest.raises(Stop):
        sv.apply(three / "a", three / "d", three / "c", progress=stop, **options)
    assert any(name.endswith(".done") for name in names(three))
    if change == "the base":
        tensors = sv.load(three / "a")
        sv.save(three / "a", tensors)
    elif change == "the delta":
        sv.delta(three / "a", three / "b", three / "d", force=True)
    report = sv.apply(three / "a", three / "d", three / "c", **options)
    assert sv.diff(three / "b", three / "c").equal
    assert (report.reused_files > 0) == (change == "nothing")


@pytest.mark.parametrize("ending", ["", ".safetensors"])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_base_that_changes_meanwhile_is_never_half_of_the_result(
    ending: str, is_new: bool, tmp_path: Path
) -> None:
    """What was opened is read to its end if another checkpoint takes its name, and bytes that were
    written into its file are found."""
    w = weights(20_000)  # more than is read ahead
    base, delta, seen = tmp_path / f"a{ending}", tmp_path / "d", list[int]()
    sv.save(base, {"w": w})
    sv.save(tmp_path / "b", {"w": changed(w, 0.01)})
    sv.delta(base, tmp_path / "b", delta)

    def interfere(nbytes: int) -> None:
        seen.append(nbytes)
        if len(seen) == 1 and is_new:
            sv.save(base, {"w": -w}, force=True)
        elif len(seen) == 1:
            [data] = [path for path in tmp_path.glob("a*") if path.suffix != ".svindex"]
            with data.open("r+b") as file:
                file.seek(-100, 2)
                file.write(bytes(100))

    options: Any = {"format": "shardvar", "progress": interfere}
    if is_new:
        sv.apply(base, delta, tmp_path / "c", **options)
        assert sv.diff(tmp_path / "b", tmp_path / "c").equal
    else:
        with pytest.raises(CorruptCheckpoint, match="was replaced while it was being read"):
            sv.apply(base, delta, tmp_path / "c", **options)
        assert not [*tmp_path.glob("c.*")]
    assert seen


MAP = sv.Map(["h.{l}.w[i o] -> layers.{l}.w[o i] as bfloat16", "{x:**}.moment -> nothing"])


@pytest.mark.parametrize("dialect", [None, "slime", "trl"])
@pytest.mark.parametrize("map_base", [False, True])
def test_a_delta_through_a_map_makes_what_the_map_makes(
    tmp_path: Path, dialect: str | None, map_base: bool
) -> None:
    """A trainer's shards against an engine's names and dtypes, without an export."""
    rng = np.random.default_rng(0)
    state = {f"h.{n}.w": rng.normal(size=(40, 30)).astype(np.float32) for n in range(3)}
    state |= {f"{key}.moment": value + 1 for key, value in state.items()}
    sv.save(tmp_path / "t1", state, partition=3)
    state["h.1.w"] = state["h.1.w"] * (rng.random((40, 30)) > 0.05)
    state["h.2.w"] = state["h.2.w"] + np.float32(1e-9)  # nothing in bfloat16
    sv.save(tmp_path / "t2", state, partition=4)
    for name in "12":
        sv.reshard(tmp_path / f"t{name}", tmp_path / f"e{name}.safetensors", map=MAP)
    engine = tmp_path / "e1.safetensors"
    base = tmp_path / "t1" if map_base else engine
    path = tmp_path / (
        "weight_v000002" if dialect == "slime" else "step_000002.safetensors" if dialect else "d"
    )
    options: Any = {"dialect": dialect} if dialect else {}
    report = sv.delta(base, tmp_path / "t2", path, map=MAP, map_base=map_base, **options)
    assert [each.key for each in report.tensors if each.kind != "equal"] == ["layers.1.w"]
    sv.apply(engine, path, tmp_path / "result.safetensors")
    assert sv.diff(tmp_path / "e2.safetensors", tmp_path / "result.safetensors").equal


def test_a_cast_after_a_map_is_the_rounding_of_its_rules(tmp_path: Path) -> None:
    """Also without a map; other tensors than those of floats stay."""
    rng = np.random.default_rng(0)
    state = {"h.0.w": rng.normal(size=(40, 30)).astype(np.float32), "step": np.arange(3)}
    rules = ["h.{l}.w[i o] -> layers.{l}.w[o i]", "step -> step"]
    for name in "12":
        sv.save(tmp_path / f"t{name}", state, partition=3)
        sv.reshard(tmp_path / f"t{name}", tmp_path / f"e{name}", map=rules, cast="bfloat16")
        state = {"h.0.w": state["h.0.w"] * (rng.random((40, 30)) > 0.05), "step": state["step"] + 1}
    words = [each for rule in rules for each in ("--rule", rule)]
    paths = [tmp_path / each for each in ("e1", "t2", "d")]
    assert main(["delta", *map(str, paths), *words, "--cast", "bfloat16"]) == 0
    sv.apply(tmp_path / "e1", tmp_path / "d", tmp_path / "result")
    assert sv.diff(tmp_path / "e2", tmp_path / "result").equal
    report = sv.delta(
        tmp_path / "t1", tmp_path / "t2", tmp_path / "both", map=rules, map_base=True, cast="bf16"
    )
    assert report.result == sv.digest(tmp_path / "e2").checkpoint
    sv.reshard(tmp_path / "t1", tmp_path / "half", cast="float16")
    report = sv.delta(tmp_path / "half", tmp_path / "t1", tmp_path / "none", cast="float16")
    assert {each.kind for each in report.tensors} == {"equal"}
