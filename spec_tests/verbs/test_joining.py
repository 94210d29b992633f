"""Several sources as one checkpoint: parts follow each other, copies are compared, and half a set
is refused."""

import pickle
from collections.abc import Callable, Sequence
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import ArgumentError, InconsistentTensor, UnsupportedError
from shardvar.formats.torch.archive import build_frame, records_of
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.damage import flip
from spec_tests.helpers.hypothesis_strategies import arrays
from spec_tests.helpers.paths import GOLDEN

__all__ = ["run"]


@given(arrays(max_rank=3), st.data())
def test_joined_parts_are_those_of_numpy(
    tmp_path_factory: pytest.TempPathFactory, array: Any, data: st.DataObject
) -> None:
    """Bits, for parts of any sizes, in any slices of sources and target; equal tensors without a
    rule are kept once."""
    if array.ndim == 0:
        return
    array = array.astype(array.dtype.newbyteorder("="))
    directory = tmp_path_factory.mktemp("joined")
    axis = data.draw(st.integers(-array.ndim, array.ndim - 1))
    at = data.draw(st.lists(st.integers(0, array.shape[axis]), min_size=1, max_size=3).map(sorted))
    parts = [np.ascontiguousarray(part) for part in np.split(array, at, axis)]
    paths = [directory / str(number) for number in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        cut = {"w": data.draw(st.integers(1, 3))} if part.size else None
        sv.save(path, {"w": part, "once": array}, partition=cut)
    cut = {"w": data.draw(st.integers(1, 3))} if array.size else None
    sv.reshard(paths, directory / "joined", concat={"w": axis}, partition=cut)
    found = sv.load(directory / "joined")
    assert found["w"].dtype == array.dtype and found["w"].shape == array.shape
    assert found["w"].tobytes() == found["once"].tobytes() == np.ascontiguousarray(array).tobytes()
    assert sv.verify(directory / "joined").ok


W = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


def ranks(directory: Path, names: list[str], **changes: Any) -> list[str]:
    """Save the parts of a matrix, one in each file, beside a vector that all have; ``changes`` go
    to the last one."""
    directory.mkdir(exist_ok=True)
    parts = np.split(W, len(names), axis=1)
    for number, (name, part) in enumerate(zip(names, parts, strict=True)):
        more = changes if number == len(names) - 1 else {}
        (directory / name).parent.mkdir(exist_ok=True)
        sv.save(directory / name, {"w": part, "norm": np.arange(3.0)} | more)
    return [str(directory / name) for name in names]


FORMATS = ["shardvar", "tensorflow", "safetensors", "npz", "torch", "pt"]


def saved(folder: Path, form: str, tensors: dict[str, Any]) -> Path:
    folder.mkdir()
    path = folder / (f"m.{form}" if form in ("safetensors", "npz", "pt") else "m")
    sv.save(path, tensors, format=form)
    return path


@pytest.mark.parametrize("first", FORMATS)
@pytest.mark.parametrize("second", FORMATS)
def test_sources_of_any_formats_are_joined(tmp_path: Path, first: str, second: str) -> None:
    """Each checksum is compared, whichever the format has. What all sources share is kept once."""
    paths = [
        saved(tmp_path / str(at), form, {"w": W[:, 3 * at : 3 * at + 3], "norm": np.arange(3.0)})
        for at, form in enumerate((first, second))
    ]
    sv.reshard(paths, tmp_path / "joined.npz", concat={"w": 1})
    assert np.array_equal(sv.load(tmp_path / "joined.npz")["w"], W)
    sv.reshard(paths, tmp_path / "t", format="shardvar", concat={"w": 1}, transpose="w", cast="f16")
    assert np.array_equal(sv.load(tmp_path / "t")["w"], W.T.astype(np.float16))


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("form", ["shardvar", "tensorflow", "npz"])
def test_a_damaged_part_is_never_written(tmp_path: Path, form: str, number: int) -> None:
    forms = ("shardvar", form) if number else (form, "shardvar")
    tensors = {"w": np.full((40_000, 3), 77.0)}
    paths = [saved(tmp_path / str(at), each, tensors) for at, each in enumerate(forms)]
    file = max(paths[number].parent.iterdir(), key=lambda path: path.stat().st_size)
    flip(file, 500_000)
    with pytest.raises(sv.errors.CheckpointError):
        sv.reshard(paths, tmp_path / "joined", format="shardvar", concat={"w": 1})
    assert not list(tmp_path.glob("joined*"))


@pytest.mark.smoke
def test_the_command_joins_ranks_and_what_a_mesh_holds(tmp_path: Path, run: Run) -> None:
    """Also into slices by the same mesh; without ``--mesh`` names of axes mean nothing."""
    paths = ranks(tmp_path / "in", ["rank0.safetensors", "rank1.safetensors"])
    done = run("reshard", *paths, tmp_path / "out.safetensors", "--concat", "w=1", "--verify")
    assert done.code == 0 and "2 tensors, " in done.out
    found = sv.load(tmp_path / "out.safetensors")
    assert np.array_equal(found["w"], W) and np.array_equal(found["norm"], np.arange(3.0))
    assert run("reshard", *paths, tmp_path / "x.safetensors", "--concat", "w=one").code == 2
    assert run("reshard", *paths, tmp_path / "x.safetensors").code == 3
    assert run("reshard", *paths, paths[0]).code == 2
    words = ["reshard", *on_devices(tmp_path / "mesh", ("tp", "dp")), tmp_path / "cut"]
    words += ["--format", "shardvar", "--concat", "w=tp,dp"]
    done = run(*words)
    assert done.code == 2 and "or also give --mesh" in done.err
    done = run(*words, "--mesh", "dp=2,pp=1,tp=2", "--shards", "w=dp,-")
    assert done.code == 0 and "1 tensor in 2 slices" in done.out
    assert np.array_equal(sv.load(tmp_path / "cut")["w"], W)


def join(paths: Sequence[object], target: Path, concat: Any, **options: Any) -> None:
    """Join into the native format."""
    sv.reshard(paths, target, format="shardvar", concat=concat, **options)


ALONG_1: dict[str, Any] = {"w": 1}
UNEQUAL: list[tuple[dict[str, Any], Any, dict[str, Any], str]] = [
    ({}, None, {}, "hold different values of 'w'"),
    ({"norm": np.ones(3)}, ALONG_1, {}, "hold different values of 'norm'.*two runs"),
    ({"norm": np.array([-0.0, 1, 2])}, ALONG_1, {}, "'norm', only in the sign of zero[.]"),
    ({"more": np.ones(3)}, ALONG_1, {}, "lacks 'more'"),
    ({"w": np.ones((5, 3), "f4")}, ALONG_1, {}, "differ in the dtype or the shape of 'w'.*other axes"),
    ({"w": np.ones((5, 3), "f4")}, None, {}, "differ in the dtype or the shape of 'w'.*concat={'GLOB':AXIS}"),
    ({"w": np.ones((4, 3))}, ALONG_1, {}, "rank1.npz: float64 \\[4, 3\\].*--cast DTYPE"),
    *(({}, {"w": axis}, {}, f"no axis {axis}") for axis in (2, -3, True)),
    ({}, {"x*": 1}, {}, "No tensor matches 'x\\*'"),
    ({}, 1, {}, "not a mapping"),
    ({}, ALONG_1, {"exclude": "x"}, "No tensor matches 'x'"),
    ({}, ALONG_1, {"keep_going": True}, "joined only if all are whole"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "concat", "options", "words"), UNEQUAL)
def test_sources_that_do_not_agree_are_refused_before_anything_is_written(
    tmp_path: Path, changes: Any, concat: Any, options: Any, words: str
) -> None:
    paths = ranks(tmp_path, ["rank0.npz", "rank1.npz"], **changes)
    before = sorted(tmp_path.iterdir())
    with pytest.raises((ArgumentError, InconsistentTensor, TypeError), match=words):
        join(paths, tmp_path / "out", concat, **options)
    assert sorted(tmp_path.iterdir()) == before
    if {*changes} & {"norm", "more"}:  # keys that are left out need not agree
        join(paths, tmp_path / "a", {"*": 1}, filter="w")
        join(paths, tmp_path / "b", ALONG_1, exclude=["norm", *({"more"} & {*changes})])
        for name in "ab":
            assert list(sv.load(tmp_path / name)) == ["w"]
            assert np.array_equal(sv.load(tmp_path / name)["w"], W)


RANKS: list[tuple[str, int, list[int], str]] = [
    ("x-0000{1}-of-00003.npz", 3, [0, 2], "2 of 3 sources"),
    ("rank_{0}_of_2.npz", 2, [1, 0], "not in order: 1, 0"),
    ("mp_rank_0{0}.npz", 3, [0, 2], "2 of 3 sources"),
    ("rank{0}.npz", 3, [0, 2, 1], "not in order: 0, 2, 1"),
    ("{0}.npz", 2, [0, 0], "one checkpoint"),
    ("mp_rank_0{0}.npz", 3, [0, 1], "other ranks, which were not given: 2"),
    ("mp_rank_{0}/m.npz", 3, [0, 1], "other ranks, which were not given: 2"),
]


@pytest.mark.parametrize(("name", "count", "given", "words"), RANKS)
def test_half_a_set_of_ranks_is_refused(
    tmp_path: Path, name: str, count: int, given: list[int], words: str
) -> None:
    paths = ranks(tmp_path, [name.format(rank, rank + 1) for rank in range(count)])
    with pytest.raises(ArgumentError, match=words):
        join([paths[at] for at in given], tmp_path / "out", ALONG_1)


def test_one_source_is_not_concatenated(tmp_path: Path) -> None:
    paths = ranks(tmp_path, ["a.npz"])
    with pytest.raises(ArgumentError, match="one source"):
        sv.reshard(paths, tmp_path / "out.npz", concat={"w": 1})
    with pytest.raises(ArgumentError, match="no source"):
        sv.reshard([], tmp_path / "out.npz")
    sv.reshard(paths, tmp_path / "out.npz")
    assert sv.diff(paths[0], tmp_path / "out.npz").equal


def test_a_map_of_joined_parts_finds_the_configuration_next_to_the_first(tmp_path: Path) -> None:
    paths = ranks(tmp_path, ["rank0.npz", "rank1.npz"])
    (tmp_path / "config.json").write_text('{"heads": 2}')
    rules = sv.Map(["w[(n a) b] -> w[n b a]", "norm -> norm"], sizes={"n": "config:heads"})
    sv.reshard(paths, tmp_path / "out.npz", concat={"w": 1}, map=rules)
    assert np.array_equal(sv.load(tmp_path / "out.npz")["w"], W.reshape(2, 2, 6).transpose(0, 2, 1))


def test_metadata_that_sources_share_is_kept(tmp_path: Path) -> None:
    for number in range(2):
        sv.save(tmp_path / f"r{number}", {"w": W}, metadata={"run": "7", "rank": str(number)})
    sv.reshard([tmp_path / "r0", tmp_path / "r1"], tmp_path / "out", concat={"w": 0})
    with sv.open_checkpoint(tmp_path / "out") as reader:
        assert reader.metadata.user == {"run": "7"}


@pytest.fixture
def two_with_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Path]]:
    """Distributed checkpoints of PyTorch, each with an object beside its tensors."""

    def save(*values: object) -> list[Path]:
        paths = [tmp_path / "r0", tmp_path / "r1"]
        sv.save(tmp_path / "r.npz", {"w": W})
        for path, value in zip(paths, values, strict=True):
            frame = build_frame(records_of(pickle.dumps(value, 2), []), [])
            objects = {"args": b"".join(octets for _, octets in frame)}
            with monkeypatch.context() as patch:
                module = import_module("shardvar.verbs.reshard")
                patch.setattr(module, "find_objects", lambda *_, found=objects: found)
                sv.reshard(tmp_path / "r.npz", path, format="torch")
        return paths

    return save


def objects_of(path: Path, *keys: str) -> list[bytes]:
    with sv.open_checkpoint(path) as reader:
        return [*reader.source.objects({*keys}, "torch").values()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [7, Fraction(1, 2)], ids=["plain", "of a class"])
def test_an_object_that_all_sources_have_is_carried(
    value: object, tmp_path: Path, two_with_objects: Callable[..., list[Path]]
) -> None:
    """As the bytes that they are, also one that is not plain; other formats refuse that one by
    name."""
    paths, out, rows = two_with_objects(value, value), tmp_path / "out", {"w": 0}
    sv.reshard(paths, out, format="torch", concat=rows, rename={"args": "a"})
    (found,) = objects_of(out, "a")
    assert [found] == objects_of(paths[0], "args")
    assert np.array_equal(sv.load(out, "w")["w"], np.concatenate([W, W]))
    if value == 7:
        sv.reshard(paths, tmp_path / "out.safetensors", concat=rows)
        assert sv.load(tmp_path / "out.safetensors")["args"][()] == b"7"
    else:
        with pytest.raises(UnsupportedError, match="args.*exclude"):
            sv.reshard(paths, tmp_path / "out.safetensors", concat=rows)


@pytest.mark.parametrize(
    "values", [(7, 8), (Fraction(1, 2), Fraction(1, 3)), (7, Fraction(1, 3))], ids=str
)
def test_objects_that_differ_are_refused_renamed_or_left_out(
    values: tuple[object, object], tmp_path: Path, two_with_objects: Callable[..., list[Path]]
) -> None:
    """By rules each has a key of its own."""
    paths = two_with_objects(*values)
    words = "different.*'args'" if len({*map(type, values)}) == 1 else "'args'.*of the class"
    with pytest.raises((InconsistentTensor, UnsupportedError), match=words):
        sv.reshard(paths, tmp_path / "out", format="torch", concat={"w": 0})
    assert not (tmp_path / "out").exists()
    sv.reshard(paths, tmp_path / "out", format="torch", concat={"w": 0}, exclude="args")
    rows = "{rank}/w[v h] -> w[(rank v) h]"
    sv.reshard(paths, tmp_path / "all", format="torch", map=[rows, "{rank}/args -> args.{rank}"])
    first = ["{rank}/args @ rank=0 -> args", "1/args -> nothing"]
    sv.reshard(paths, tmp_path / "one", format="torch", map=[rows, *first])
    one, other = (each for path in paths for each in objects_of(path, "args"))
    assert one != other
    found = [objects_of(tmp_path / "all", f"args.{rank}") for rank in range(2)]
    assert found == [[one], [other]] and objects_of(tmp_path / "one", "args") == [one]
    for name, count in (("out", 1), ("all", 3), ("one", 2)):
        with sv.open_checkpoint(tmp_path / name) as reader:
            assert len(reader) == count


def test_blocks_of_other_encodings_are_not_joined(tmp_path: Path) -> None:
    """Two encodings may have blocks of one size, whose bytes then mean other numbers."""
    octets = (GOLDEN / "gguf" / "every_type" / "m.gguf").read_bytes()
    # The kind of blocks follows the number of axes and three extents; Q4_0 is 2, and IQ4_NL is 20.
    place, key = octets.index(b"blocks.Q4_0") + len(b"blocks.Q4_0") + 4 + 3 * 8, "blocks.Q4_0"
    assert octets[place] == 2
    a, b, c = (tmp_path / f"{name}.gguf" for name in "abc")
    for path, kind in ((a, 2), (b, 2), (c, 20)):
        path.write_bytes(octets[:place] + bytes([kind]) + octets[place + 1 :])
    join([a, b], tmp_path / "same", {"*": 0}, filter=key)
    assert len(sv.load(tmp_path / "same")[key]) == 2 * len(sv.load(a)[key])
    with pytest.raises(InconsistentTensor, match="'IQ4_NL', 'Q4_0'.*dequantize"):
        join([a, c], tmp_path / "out", {"*": 0}, filter=key)
    assert not list(tmp_path.glob("out*"))


MESH = sv.Mesh((2, 1, 2), ("dp", "pp", "tp"))

SPECS: list[Any] = [(), ("dp",), (None, "tp"), ("tp", "dp"), ("dp", "tp"), (("dp", "tp"),)]
SPECS += [(("tp", "dp"), "pp")]


def on_devices(directory: Path, spec: Any, **last: Any) -> list[Path]:
    """Save, for each device of a mesh, the part of a matrix that it holds; ``last`` goes to the
    last one."""
    directory.mkdir(exist_ok=True)
    layout = sv.layouts.named_sharding(W.shape, MESH, spec)
    paths = [directory / f"rank{device}.npz" for device in MESH.devices]
    for device, path in enumerate(paths):
        (region,) = layout.regions(device)
        sv.save(path, {"w": np.ascontiguousarray(W[region.slices])} | (last if device == 3 else {}))
    return paths


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_parts_on_a_mesh_are_joined_where_its_devices_hold_them(tmp_path: Path, spec: Any) -> None:
    """By any axes in any order, copies among them; what is written has each element once."""
    join(on_devices(tmp_path, spec), tmp_path / "out", {"w": (MESH, spec)})
    assert np.array_equal(sv.load(tmp_path / "out")["w"], W)
    with sv.open_checkpoint(tmp_path / "out") as reader:
        assert reader.entries().slices.nbytes.sum() == W.nbytes


UNFIT: list[tuple[Any, dict[str, Any], sv.Mesh, Any, str]] = [
    (("dp",), {"w": W[2:] + 1}, MESH, ("dp",), "rank2.npz and .*rank3.npz hold different values of 'w'"),
    (("dp",), {}, MESH, ("tp",), "rank0.npz and .*rank2.npz hold different values of 'w'"),
    (("dp", "tp"), {"w": W[:1, :3]}, MESH, ("dp", "tp"), "differ in the dtype or the shape of 'w'"),
    ((), {}, MESH, (None, None, "tp"), "more axes than the shape"),
    ((), {}, MESH, ("x",), "no axis 'x'"),
    ((), {}, MESH, ("tp", "tp"), "names the mesh axis 'tp' 2 times"),
    (("dp", "tp"), {}, sv.Mesh((2,), ("tp",)), ("tp",), "has 2 devices, and there are 4 sources"),
    (("dp", "tp"), {}, sv.Mesh((2, 4), ("dp", "tp")), ("tp",), "has 8 devices, and there are 4 sources"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "last", "mesh", "rule", "words"), UNFIT)
def test_parts_that_do_not_fit_a_mesh_are_refused(
    tmp_path: Path, spec: Any, last: Any, mesh: sv.Mesh, rule: Any, words: str
) -> None:
    paths = on_devices(tmp_path, spec, **last)
    with pytest.raises((ArgumentError, InconsistentTensor), match=words):
        join(paths, tmp_path / "out", {"w": (mesh, rule)})
    assert not (tmp_path / "out").exists()
