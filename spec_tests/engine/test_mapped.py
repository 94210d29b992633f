"""Targets of maps: whatever the rules, the cuts and the formats are, they are what NumPy's
transposes and reshapes make of the sources."""

import os
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.engine import lattices, mapped, pieces
from shardvar.engine.lattices import indices_within
from shardvar.engine.mapped import MappedSource
from shardvar.errors import CorruptCheckpoint, UnsupportedError
from shardvar.layout.dtypes import numpy_dtype
from shardvar.layout.region import Region
from shardvar.maps.map import fit_map
from shardvar.maps.plan import MapPlan, Piece, Target, View
from shardvar.planning.index import EntryTable, Metadata
from shardvar.storage.local import LocalReadableFile
from shardvar.storage.scratch import map_scratch
from shardvar.verbs.locate import find_target
from shardvar.verbs.reader import Reader
from shardvar.verbs.writing import carry_out, plan_checkpoint
from spec_tests.helpers.executors import Inline
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket
from spec_tests.helpers.nearest import nearest
from spec_tests.helpers.paths import GOLDEN
from spec_tests.helpers.random_maps import Case, cases, meaning

EXAMPLES = 1000 if os.environ.get("EXHAUSTIVE") else 24
FORMATS = ["shardvar", "safetensors", "npz", "zarr", "torch", "deflated"]
cuts = st.lists(st.integers(1, 3), min_size=4, max_size=4).map(
    lambda counts: lambda shape, _dtype: counts[: len(shape)]
)


def saved(folder: Path, form: str, tensors: dict[str, Any], cut: Any) -> str:
    if form == "deflated":
        np.savez_compressed(folder / "a.npz", **tensors)
        return str(folder / "a.npz")
    if form not in ("shardvar", "torch"):
        cut = None
    return sv.save(folder / "a", tensors, format=form, partition=cut).path


def opened(reader: Reader, plan: MapPlan) -> tuple[Reader, EntryTable, MappedSource]:
    entries, source = mapped.mapped(reader.source, reader.entries(), plan, map_scratch)
    return Reader(reader.path, reader.format, source), entries, source


def write(reader: Reader, plan: MapPlan, target: Path, cut: Any) -> None:
    _, entries, source = opened(reader, plan)
    goal = find_target(target, "shardvar", otherwise="shardvar")
    options = {"policy": None, "partition": cut, "metadata": Metadata(), "force": False}
    work = plan_checkpoint(goal, entries, source=source, **options)
    carry_out(work)


def planned(case: Case) -> MapPlan:
    about = {key: (array.dtype.name, array.shape) for key, array in case.sources.items()}
    given_map = sv.Map(case.rules(), sizes=case.sizes())
    return fit_map(given_map, about, (), {}, "nowhere").plan


@settings(max_examples=EXAMPLES)
@given(st.data(), st.sampled_from(["uint8", "bfloat16", "float32", "complex128"]))
def test_targets_are_what_numpy_makes_of_the_sources(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, dtype: str
) -> None:
    """Read whole, in parts, by ranges of bytes, and written in other cuts."""
    case = data.draw(cases(dtype, plain=True))
    plan, targets = planned(case), meaning(case.lines, case.sources)
    form = data.draw(st.sampled_from(FORMATS if dtype in ("uint8", "float32") else ["shardvar"]))
    folder = tmp_path_factory.mktemp("mapped")
    path = saved(folder, form, {**case.sources, "unused": np.arange(3)}, data.draw(cuts))
    with (
        patch.multiple(lattices, _LEAST_TILE=4, _TILE_ROWS=2, _TILE_COLUMNS=3),
        patch.multiple(lattices, BLOCK_NBYTES=data.draw(st.sampled_from([4, 64, 4 << 20]))),
        patch.multiple(lattices, _PANEL_NBYTES=data.draw(st.sampled_from([16, 256, 4 << 20]))),
        patch.multiple(pieces, _MOST_DECODED=data.draw(st.integers(1, 16))),
        sv.open_checkpoint(path) as reader,
    ):
        found, entries, source = opened(reader, plan)
        assert {*found} == {*targets} and not found.faults
        for key, array in targets.items():
            assert found.read(key).tobytes() == array.tobytes() and found[key].shape == array.shape
            low = [data.draw(st.integers(0, extent)) for extent in array.shape]
            region = Region(low, [e - n for e, n in zip(array.shape, low, strict=True)])
            assert found.read(key, region).tobytes() == array[region.slices].tobytes()
        for row in range(len(entries)):
            payload = targets[entries.slices.key(row)][entries.slices.region(row).slices]
            octets, size = payload.tobytes(), payload.itemsize
            first = data.draw(st.integers(0, payload.size)) * size
            buffer = bytearray(data.draw(st.integers(0, payload.size - first // size)) * size)
            source.read_into(entries, row, first, memoryview(buffer))
            assert buffer == octets[first : first + len(buffer)]
        write(reader, plan, folder / "b", data.draw(cuts))
    written = sv.load(folder / "b")
    assert {key: array.tobytes() for key, array in written.items()} == {
        key: array.tobytes() for key, array in targets.items()
    }


@given(st.data())
def test_indices_within_a_region_are_found_once(data: st.DataObject) -> None:
    """Also where steps leave gaps."""
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    steps, reach = [], 1
    for extent in reversed(shape):
        steps.insert(0, (0, reach + data.draw(st.integers(0, 2))))
        reach = steps[0][1] * extent
    view = View("w", (data.draw(st.integers(0, 5)),), tuple(steps))
    low, count = data.draw(st.integers(0, reach + 5)), data.draw(st.integers(0, reach + 5))
    found = [
        tuple(a + b for a, b in zip(first, index, strict=True))
        for first, extents in indices_within(view, view.start, shape, Region((low,), (count,)))
        for index in np.ndindex(*extents)
    ]
    places = {
        index: view.start[0] + sum(n * step for n, (_, step) in zip(index, steps, strict=True))
        for index in np.ndindex(*shape)
    }
    expected = [index for index, place in places.items() if low <= place < low + count]
    assert sorted(found) == sorted(expected)


def rectangle(key: str, shape: tuple[int, ...], start: tuple[int, ...] = ()) -> View:
    """The view of a tensor whose axes are the indices."""
    return View(key, start or (0,) * len(shape), tuple((axis, 1) for axis in range(len(shape))))


@given(
    st.sampled_from(["float64", "float32", "bfloat16", "float8_e4m3fn"]),
    st.sampled_from(["float64", "float32", "bfloat16", "float16"]),
    st.tuples(*[st.integers(1, 3)] * 4),
    st.integers(1, 40),
    st.sampled_from([(1.0, ""), (1.0, " + 1"), (0.3, " + -1/3")]),
)
@settings(max_examples=25)
def test_arithmetic_is_that_of_float64_rounded_once(
    tmp_path_factory: pytest.TempPathFactory,
    stored: str,
    made: str,
    extents: tuple[int, int, int, int],
    portion: int,
    constants: tuple[float, str],
) -> None:
    """Scales of blocks, whatever the portions and the cuts are; NaN stays NaN."""
    a, p, b, q = extents
    numbers = np.random.default_rng(0)
    weight = numbers.standard_normal((a * p, b * q)).astype(numpy_dtype(stored))
    scale, per_row = numbers.random((a, b), np.float32), numbers.random(a * p, np.float32)
    scale[0, 0] = np.nan
    times, plus = constants
    exact = weight.astype(np.float64) * np.kron(scale.astype(np.float64), np.ones((p, q)))
    exact = exact * per_row.astype(np.float64)[:, None] * times
    added = {"": exact, " + 1": exact + 1, " + -1/3": exact - 1 / 3}[plus]
    expected = nearest(added, numpy_dtype(made))
    path = tmp_path_factory.mktemp("computed") / "a"
    tensors = {"weight": weight, "scale": scale, "row": per_row}
    sv.save(path, tensors, partition={"weight": 2, "scale": [1, 2], "row": 2})
    product = f"weight[(a p) (b q)] scale[a b] row[(a p)] * {times}"
    rule = sv.Map(f"{product}{plus} -> made[(a p) (b q)] as {made}", sizes={"p": p, "q": q})
    with patch.object(mapped, "PORTION", portion):
        assert sv.load(path, map=rule)["made"].tobytes() == expected.tobytes()


def test_the_arithmetic_says_which_number_has_no_place(tmp_path: Path) -> None:
    sv.save(tmp_path / "a", {"w": np.full(3, 300, np.float32)})
    with pytest.raises(UnsupportedError, match=r"300000.*'m'.*float16"):
        sv.load(tmp_path / "a", map=["w[i] * 1000 -> m[i] as float16"])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_arithmetic_never_makes_an_infinite_number_of_finite_ones(
    tmp_path: Path, dtype: str
) -> None:
    """What was infinite, or has an infinite factor, stays so."""
    largest = float(np.finfo(dtype).max)
    w, s = np.array([1, 2, largest, np.inf], dtype), np.array([1, np.inf, 2, 2], dtype)
    sv.save(tmp_path / "a", {"w": w, "s": s})
    with pytest.raises(UnsupportedError, match=r"(of|for) 'w'"):
        sv.load(tmp_path / "a", map=["w[a] times s[a] -> w[a]"])
    sv.save(tmp_path / "b", {"w": w[[0, 1, 3]], "s": s[[0, 1, 3]]})
    found = sv.load(tmp_path / "b", map=["w[a] times s[a] -> w[a]"])["w"]
    assert found.tolist() == [1, np.inf, np.inf]


def whole(key: str, name: str, shape: tuple[int, ...]) -> Target:
    """The target that is a tensor under another name."""
    return Target(
        name, "float32", shape, (Piece(0, shape, rectangle(key, shape), rectangle(name, shape)),)
    )


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("turned", ["", "b", "cb"])
def test_names_are_short_for_targets_of_one_piece(tmp_path: Path, form: str, turned: str) -> None:
    """Also next to targets that are copied; all come in the order of their sources."""
    tensors = {
        key: np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        for key, shape in {"a": (3, 4), "b": (2, 5), "c": (6, 3), "d": (4,)}.items()
    }
    swap = ((1, 1), (0, 1))
    targets = {key: whole(key, f"n{key}", array.shape) for key, array in tensors.items()}
    for key in turned:
        shape = tensors[key].shape
        piece = Piece(0, shape, rectangle(key, shape), View(f"n{key}", (0, 0), swap))
        targets[key] = Target(f"n{key}", "float32", shape[::-1], (piece,))
    copied = [target for key, target in targets.items() if key in turned]
    names = {key: f"n{key}" for key in targets if key not in turned}
    with sv.open_checkpoint(saved(tmp_path, form, tensors, None)) as reader:
        short = opened(reader, MapPlan(copied, {}, names))[0]
        plain = opened(reader, MapPlan([*targets.values()], {}))[0]
        assert list(short) == list(plain) == ["na", "nb", "nc", "nd"]
        for key, array in tensors.items():
            expected = array.T if key in turned else array
            assert np.array_equal(short.read(f"n{key}"), expected)
            assert np.array_equal(plain.read(f"n{key}"), expected)
            assert short.source.is_guarded(f"n{key}") == plain.source.is_guarded(f"n{key}")
            assert short.source.is_part(f"n{key}") == plain.source.is_part(f"n{key}")
        assert not short.source.storage_errors(short.keys()) and not short.source.encodings()


def test_objects_get_the_names_that_a_map_gives_them() -> None:
    path = GOLDEN / "torch_dcp" / "nested_and_objects" / "ckpt"
    new = sv.Map(["{x:**} -> new.{x}", "'' -> nothing"])
    with sv.open_checkpoint(path) as plain, sv.open_checkpoint(path, map=new) as renamed:
        objects = plain.source.objects([*plain], "torch")
        assert objects
        assert renamed.source.objects([*renamed], "torch") == {
            f"new.{key}": octets for key, octets in objects.items()
        }


def interleaved(rows: int, columns: int) -> MapPlan:
    """The plan of a tensor with the rows of two in turns."""
    shape, steps = (rows, columns), ((0, 2), (1, 1))
    pairs = tuple(
        Piece(rule, shape, rectangle(key, shape), View("t", (rule, 0), steps))
        for rule, key in enumerate("ab")
    )
    return MapPlan([Target("t", "float32", (2 * rows, columns), pairs)], {})


@pytest.mark.parametrize("key", ["a", "b"])
def test_damage_in_any_payload_that_is_used_is_found(tmp_path: Path, key: str) -> None:
    tensors = {each: np.full((200, 90), ord(each), np.float32) for each in "abc"}
    sv.save(tmp_path / "x", tensors)
    file = next(path for path in tmp_path.iterdir() if "data-" in path.name)
    content = bytearray(file.read_bytes())
    content[content.index(tensors[key].tobytes()) + 777] ^= 1
    file.write_bytes(content)
    with (
        sv.open_checkpoint(tmp_path / "x") as reader,
        pytest.raises(CorruptCheckpoint, match=f"'{key}'"),
    ):
        write(reader, interleaved(200, 90), tmp_path / "y", None)
    assert not (tmp_path / "y.index").exists()


@pytest.mark.parametrize("form", ["safetensors", "npz"])
def test_a_bucket_sends_each_payload_that_is_needed_once(tmp_path: Path, form: str) -> None:
    tensors = {each: np.full((900, 700), ord(each), np.float32) for each in "cadbef"}
    sv.save(tmp_path / f"x.{form}", tensors)
    bucket = MemoryBucket({f"run/x.{form}": (tmp_path / f"x.{form}").read_bytes()})
    with in_bucket(bucket), sv.open_checkpoint(f"s3://bucket/run/x.{form}") as reader:
        write(reader, interleaved(900, 700), tmp_path / "y", 3)
    needed = 2 * tensors["a"].nbytes
    # What is read of the file's beginning and end, to find the index, may be read again.
    assert needed <= sum(nbytes for _, nbytes in bucket.ranges) < needed + (2 << 20)
    made = sv.load(tmp_path / "y")["t"]
    assert (made[0::2] == ord("a")).all() and (made[1::2] == ord("b")).all()


@given(case=cases(np.dtype(np.float32), plain=False), data=st.data())
def test_a_part_is_read_through_a_map_as_a_part_of_the_whole(
    case: Case, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        given_map = sv.Map(case.rules(), sizes=case.sizes())
        sv.save(f"{folder}/a", case.sources, partition=data.draw(st.integers(1, 3)))
        whole, requests = sv.load(f"{folder}/a", map=given_map), []
        for key, array in whole.items():
            ranges = [sorted(data.draw(st.tuples(*2 * [st.integers(0, n)]))) for n in array.shape]
            requests.append((key, tuple(slice(*each) for each in ranges)))
        with sv.open_checkpoint(f"{folder}/a", map=given_map) as reader:
            verify = data.draw(st.sampled_from(["auto", "full"]))
            found = reader.read_many(requests, verify)
    for (key, index), array in zip(requests, found, strict=True):
        assert array.tobytes() == whole[key][index].tobytes()


def test_a_part_of_a_table_of_indices_is_that_of_the_whole(tmp_path: Path) -> None:
    sv.save(tmp_path / "a", {"w": np.ones((5, 24), np.float32)})
    given_map = sv.Map(["w[j i] * 2 ** (-index(i) / 4) -> v[j i]"])
    must = np.broadcast_to((2 ** -(np.arange(24) / 4)).astype(np.float32), (5, 24))
    with sv.open_checkpoint(tmp_path / "a", map=given_map) as reader:
        assert np.array_equal(reader.read("v"), must)
        (part,) = reader.read_many([("v", (slice(1, 4), slice(7, 13)))])
        assert np.array_equal(part, must[1:4, 7:13])


@pytest.mark.parametrize("form", ["shardvar", "deflated"])
@given(case=cases(np.dtype(np.float32), plain=False), files=st.integers(1, 3))
def test_an_executor_reads_through_a_map_what_this_process_reads(
    form: str, case: Case, files: int
) -> None:
    """Some tensors are only renamed. Of these, deflated payloads cannot be copied as they are."""
    given_map = sv.Map([*case.rules(), "also.{n} -> renamed.{n}"], sizes=case.sizes())
    more = {f"also.{number}": np.full(3, number, np.float32) for number in range(3)}
    with tempfile.TemporaryDirectory() as folder:
        path = saved(Path(folder), form, more | case.sources, None)
        for name, executor in (("here", None), ("there", Inline())):
            policy = sv.BalancedPolicy(files)
            options: dict[str, Any] = {"policy": policy, "executor": executor}
            sv.reshard(path, f"{folder}/{name}", map=given_map, format="shardvar", **options)
        here, there = sv.load(f"{folder}/here"), sv.load(f"{folder}/there")
    assert here.keys() == there.keys()
    assert all(array.tobytes() == there[key].tobytes() for key, array in here.items())


QKV = sv.Map(
    [
        "h.{l}.{s:q|k|v}[(n d) i] -> layers.{l}.qkv[(n s d) i]",
        "qkv[(n s d) i] -> {s:q|k|v}.w[(n d) i]",
        "stack[e i o] -> e.{e}[o i] as float16",
        "x -> y",
    ],
    sizes={"n": 8, "s": 3},
)
PARTS = {"layers.0.qkv": 0, "q.w": 0, "e.1": 1, "y": 0, "layers.1.qkv": 1}
"""The axis along which each target is cut."""


@pytest.mark.parametrize("form", ["torch", "orbax", "safetensors"])
@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_reads_through_a_map_only_its_own_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, rank: int
) -> None:
    rng, read = np.random.default_rng(0), [0]
    shapes = {f"h.{n}.{key}": (64, 16384) for n in range(2) for key in "qkv"}
    shapes |= {"qkv": (192, 16384), "stack": (2, 64, 4096), "x": (64, 4096)}
    state = {key: rng.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}
    sv.save(tmp_path / "a", state, format=form, partition=None if form == "safetensors" else 4)
    whole = sv.load(tmp_path / "a", map=QKV)
    real = LocalReadableFile.read_into

    def read_into(file: LocalReadableFile, start: int, buffer: memoryview) -> None:
        read[0] += buffer.nbytes
        real(file, start, buffer)

    with sv.open_checkpoint(tmp_path / "a", map=QKV) as reader:
        monkeypatch.setattr(LocalReadableFile, "read_into", read_into)
        monkeypatch.setattr(LocalReadableFile, "map", None)
        for key, axis in PARTS.items():
            count = whole[key].shape[axis] // 4
            index = (slice(None),) * axis + (slice(rank * count, (rank + 1) * count),)
            read[0] = 0
            (array,) = reader.read_many([(key, index)])
            assert np.array_equal(array, whole[key][index])
            share = array.size * state["x"].itemsize
            assert share <= read[0] <= 1.1 * share, key
