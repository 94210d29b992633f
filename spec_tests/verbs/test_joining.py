"""Several sources as one checkpoint: parts follow each other, copies are compared, and half a set
is refused."""

import pickle
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.cli import main
from shardvar.errors import ArgumentError, InconsistentTensor, UnsupportedError
from shardvar.formats.torch.archive import build_frame, records_of
from spec_tests.helpers.damage import flip
from spec_tests.helpers.hypothesis_strategies import arrays
from spec_tests.helpers.paths import GOLDEN

FORMATS = {
    "shardvar": "",
    "tensorflow": "",
    "safetensors": ".safetensors",
    "npz": ".npz",
    "torch": "",
    "pt": ".pt",
}


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


@given(st.lists(st.integers(0, 3), min_size=1, max_size=3), st.integers(1, 3), st.data())
def test_an_axis_to_join_along_is_a_rule_of_ranks(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], count: int, data: st.DataObject
) -> None:
    """``concat`` and the rule that it is short for make the same slices of the same numbers."""
    directory, axis = tmp_path_factory.mktemp("joined"), data.draw(st.integers(0, len(shape) - 1))
    count += 1
    for number in range(count):
        part = np.arange(np.prod(shape), dtype=np.int16).reshape(shape) + 100 * number
        sv.save(directory / str(number), {"w": part}, partition={"w": 2} if part.size else None)
    paths = [directory / str(number) for number in range(count)]
    axes = [f"a{each}" for each in range(len(shape))]
    joined = [f"(rank {each})" if each == f"a{axis}" else each for each in axes]
    rule = f"{{rank}}/w[{' '.join(axes)}] -> w[{' '.join(joined)}]"
    sv.reshard(paths, directory / "short", concat={"w": axis})
    sv.reshard(paths, directory / "rule", map=[rule])
    assert sv.diff(directory / "short", directory / "rule").equal
    names = ("short", "rule")
    files = [[each.read_bytes() for each in directory.glob(f"{name}.data*")] for name in names]
    assert files[0] == files[1]


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


@pytest.mark.parametrize("first", FORMATS)
@pytest.mark.parametrize("second", FORMATS)
def test_sources_of_any_formats_are_joined(tmp_path: Path, first: str, second: str) -> None:
    """Each checksum is compared, whichever the format has."""
    paths = []
    for number, form in enumerate((first, second)):
        path = tmp_path / f"s{number}{FORMATS[form]}"
        sv.save(path, {"w": W[:, 3 * number : 3 * number + 3], "norm": np.arange(3.0)}, format=form)
        paths.append(path)
    sv.reshard(paths, tmp_path / "joined.npz", concat={"w": 1})
    assert np.array_equal(sv.load(tmp_path / "joined.npz")["w"], W)
    sv.reshard(paths, tmp_path / "t", format="shardvar", concat={"w": 1}, transpose="w", cast="f16")
    assert np.array_equal(sv.load(tmp_path / "t")["w"], W.T.astype(np.float16))


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("form", ["shardvar", "tensorflow", "npz"])
def test_a_damaged_part_is_never_written(tmp_path: Path, form: str, number: int) -> None:
    paths = []
    for at, each in enumerate(("shardvar", form) if number else (form, "shardvar")):
        path = tmp_path / str(at) / f"m{FORMATS[each]}"
        path.parent.mkdir()
        sv.save(path, {"w": np.full((40_000, 3), 77.0)}, format=each)
        paths.append(path)
    file = max(paths[number].parent.iterdir(), key=lambda path: path.stat().st_size)
    flip(file, 500_000)
    with pytest.raises(sv.errors.CheckpointError):
        sv.reshard(paths, tmp_path / "joined", format="shardvar", concat={"w": 1})
    assert not (tmp_path / "joined.index").exists()


@pytest.mark.smoke
def test_the_command_joins_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = ranks(tmp_path / "in", ["rank0.safetensors", "rank1.safetensors"])
    assert (
        main(["reshard", *paths, str(tmp_path / "out.safetensors"), "--concat", "w=1", "--verify"])
        == 0
    )
    assert "2 tensors, " in capsys.readouterr().out
    found = sv.load(tmp_path / "out.safetensors")
    assert np.array_equal(found["w"], W) and np.array_equal(found["norm"], np.arange(3.0))
    assert main(["reshard", *paths, str(tmp_path / "x.safetensors"), "--concat", "w=one"]) == 2
    assert main(["reshard", *paths, str(tmp_path / "x.safetensors")]) == 3
    assert main(["reshard", *paths, paths[0]]) == 2


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({}, {}, "hold different values of 'w'"),
        ({"norm": np.ones(3)}, {"concat": {"w": 1}}, "hold different values of 'norm'.*two runs"),
        (
            {"norm": np.array([-0.0, 1, 2])},
            {"concat": {"w": 1}},
            "'norm', only in the sign of zero[.]",
        ),
        ({"more": np.ones(3)}, {"concat": {"w": 1}}, "lacks 'more'"),
        (
            {"w": np.ones((5, 3), np.float32)},
            {"concat": {"w": 1}},
            "differ in the dtype or the shape of 'w'.*other axes",
        ),
        (
            {"w": np.ones((5, 3), np.float32)},
            {},
            "differ in the dtype or the shape of 'w'.*concat={'GLOB':AXIS}",
        ),
        (
            {"w": np.ones((4, 3))},
            {"concat": {"w": 1}},
            "rank1.npz: float64 \\[4, 3\\].*--cast DTYPE",
        ),
        ({}, {"concat": {"w": 2}}, "no axis 2"),
        ({}, {"concat": {"w": -3}}, "no axis -3"),
        ({}, {"concat": {"w": True}}, "no axis True"),
        ({}, {"concat": {"x*": 1}}, "No tensor matches 'x\\*'"),
        ({}, {"concat": 1}, "not a mapping"),
        ({}, {"concat": {"w": 1}, "exclude": "x"}, "No tensor matches 'x'"),
        ({}, {"concat": {"w": 1}, "keep_going": True}, "joined only if all are whole"),
    ],
)
def test_sources_that_do_not_agree_are_refused_before_anything_is_written(
    tmp_path: Path, changes: Any, options: Any, words: str
) -> None:
    paths = ranks(tmp_path, ["rank0.npz", "rank1.npz"], **changes)
    before = sorted(tmp_path.iterdir())
    with pytest.raises((ArgumentError, InconsistentTensor, TypeError), match=words):
        sv.reshard(paths, tmp_path / "out", format="shardvar", **options)
    assert sorted(tmp_path.iterdir()) == before


def test_keys_that_are_left_out_need_not_agree(tmp_path: Path) -> None:
    paths = ranks(tmp_path, ["rank0.npz", "rank1.npz"], norm=np.ones(3), more=np.ones(1))
    sv.reshard(paths, tmp_path / "a", format="shardvar", concat={"*": 1}, filter="w")
    sv.reshard(paths, tmp_path / "b", format="shardvar", concat={"w": 1}, exclude=["norm", "more"])
    for name in "ab":
        assert list(sv.load(tmp_path / name)) == ["w"] and np.array_equal(
            sv.load(tmp_path / name)["w"], W
        )


@pytest.mark.parametrize(
    ("names", "given", "words"),
    [
        (
            ["x-00001-of-00003.npz", "x-00002-of-00003.npz", "x-00003-of-00003.npz"],
            [0, 2],
            "2 of 3 sources",
        ),
        (["rank_0_of_2.npz", "rank_1_of_2.npz"], [1, 0], "not in order: 1, 0"),
        (["mp_rank_00.npz", "mp_rank_01.npz", "mp_rank_02.npz"], [0, 2], "2 of 3 sources"),
        ([f"rank{number}.npz" for number in range(3)], [0, 2, 1], "not in order: 0, 2, 1"),
        (["a.npz", "b.npz"], [0, 0], "one checkpoint"),
        (
            ["mp_rank_00.npz", "mp_rank_01.npz", "mp_rank_02.npz"],
            [0, 1],
            "other ranks, which were not given: 2",
        ),
        (
            [f"mp_rank_{number}/m.npz" for number in range(3)],
            [0, 1],
            "other ranks, which were not given: 2",
        ),
    ],
)
def test_half_a_set_of_ranks_is_refused(
    tmp_path: Path, names: list[str], given: list[int], words: str
) -> None:
    paths = ranks(tmp_path, names)
    with pytest.raises(ArgumentError, match=words):
        sv.reshard(
            [paths[at] for at in given], tmp_path / "out", format="shardvar", concat={"w": 1}
        )


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


def save_with_object(path: Path, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save a distributed checkpoint of PyTorch that has an object beside its tensors."""
    item = b"".join(octets for _, octets in build_frame(records_of(pickle.dumps(value, 2), []), []))
    sv.save(path.with_suffix(".npz"), {"w": W})
    with monkeypatch.context() as patch:
        patch.setattr(
            import_module("shardvar.verbs.reshard"), "find_objects", lambda *_: {"args": item}
        )
        sv.reshard(path.with_suffix(".npz"), path, format="torch")


@pytest.mark.parametrize("value", [7, Fraction(1, 2)], ids=["plain", "of a class"])
def test_an_object_that_all_sources_have_is_carried(
    value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the bytes that they are, also one that is not plain; other formats refuse that one by
    name."""
    paths = [tmp_path / "r0", tmp_path / "r1"]
    for path in paths:
        save_with_object(path, value, monkeypatch)
    sv.reshard(paths, tmp_path / "out", format="torch", concat={"w": 0}, rename={"args": "a"})
    with sv.open_checkpoint(paths[0]) as before, sv.open_checkpoint(tmp_path / "out") as after:
        items = [each.source.objects({"args", "a"}, "torch").values() for each in (before, after)]  # type: ignore[attr-defined]
        assert [*items[0]] == [*items[1]] and len(items[0]) == 1
        assert np.array_equal(after.read("w"), np.concatenate([W, W]))
    if value == 7:
        sv.reshard(paths, tmp_path / "out.safetensors", concat={"w": 0})
        assert sv.load(tmp_path / "out.safetensors")["args"][()] == b"7"
    else:
        with pytest.raises(UnsupportedError, match="args.*exclude"):
            sv.reshard(paths, tmp_path / "out.safetensors", concat={"w": 0})


@pytest.mark.parametrize(
    "values",
    [(7, 8), (Fraction(1, 2), Fraction(1, 3))],
    ids=["plain", "of a class"],
)
def test_objects_that_differ_are_refused(
    values: tuple[object, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / "r0", tmp_path / "r1"]
    for path, value in zip(paths, values, strict=True):
        save_with_object(path, value, monkeypatch)
    with pytest.raises(InconsistentTensor, match="different.*'args'"):
        sv.reshard(paths, tmp_path / "out", format="torch", concat={"w": 0})
    assert not (tmp_path / "out").exists()
    sv.reshard(paths, tmp_path / "out", format="torch", concat={"w": 0}, exclude="args")


@pytest.mark.parametrize("value", [8, Fraction(1, 3)], ids=["plain", "of a class"])
def test_objects_of_ranks_are_renamed_or_left_out(
    value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may differ, since each has a key of its own."""
    paths = [tmp_path / "r0", tmp_path / "r1"]
    for path, each in zip(paths, (7, value), strict=True):
        save_with_object(path, each, monkeypatch)
    rows = "{rank}/w[v h] -> w[(rank v) h]"
    sv.reshard(paths, tmp_path / "all", format="torch", map=[rows, "{rank}/args -> args.{rank}"])
    first = ["{rank}/args @ rank=0 -> args", "1/args -> nothing"]
    sv.reshard(paths, tmp_path / "one", format="torch", map=[rows, *first])
    objects = []
    for path, key in (
        (paths[0], "args"),
        (paths[1], "args"),
        (tmp_path / "all", "args.0"),
        (tmp_path / "all", "args.1"),
        (tmp_path / "one", "args"),
    ):
        with sv.open_checkpoint(path) as reader:
            (octets,) = (reader.source.objects({key}, "torch") or {}).values()
            objects.append(octets)
            assert len(reader) == (3 if path.name == "all" else 2)
    assert objects[2:] == [*objects[:2], objects[0]] and objects[0] != objects[1]


def test_blocks_of_other_encodings_are_not_joined(tmp_path: Path) -> None:
    """Two encodings may have blocks of one size, whose bytes then mean other numbers."""
    octets = (GOLDEN / "gguf" / "every_type" / "m.gguf").read_bytes()
    # The kind of blocks follows the number of axes and three extents; Q4_0 is 2, and IQ4_NL is 20.
    place = octets.index(b"blocks.Q4_0") + len(b"blocks.Q4_0") + 4 + 3 * 8
    assert octets[place] == 2
    for name, kind in (("a", 2), ("b", 2), ("c", 20)):
        (tmp_path / f"{name}.gguf").write_bytes(
            octets[:place] + bytes([kind]) + octets[place + 1 :]
        )
    a, b, c = (tmp_path / f"{name}.gguf" for name in "abc")
    sv.reshard([a, b], tmp_path / "same", format="shardvar", concat={"*": 0}, filter="blocks.Q4_0")
    assert len(sv.load(tmp_path / "same")["blocks.Q4_0"]) == 2 * len(sv.load(a)["blocks.Q4_0"])
    with pytest.raises(InconsistentTensor, match="'IQ4_NL', 'Q4_0'.*dequantize"):
        sv.reshard(
            [a, c], tmp_path / "out", format="shardvar", concat={"*": 0}, filter="blocks.Q4_0"
        )
    assert not list(tmp_path.glob("out*"))


MESH = sv.Mesh((2, 1, 2), ("dp", "pp", "tp"))
SPECS: list[Any] = [
    (),
    ("dp",),
    (None, "tp"),
    ("tp", "dp"),
    ("dp", "tp"),
    (("dp", "tp"),),
    (("tp", "dp"), "pp"),
]


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
    report = sv.reshard(
        on_devices(tmp_path, spec), tmp_path / "out", format="shardvar", concat={"w": (MESH, spec)}
    )
    assert np.array_equal(sv.load(tmp_path / "out")["w"], W) and report.nbytes == W.nbytes


@pytest.mark.parametrize(
    ("spec", "last", "rule", "words"),
    [
        (
            ("dp",),
            {"w": W[2:] + 1},
            ("dp",),
            "rank2.npz and .*rank3.npz hold different values of 'w'",
        ),
        (("dp",), {}, ("tp",), "rank0.npz and .*rank2.npz hold different values of 'w'"),
        (("dp", "tp"), {"w": W[:1, :3]}, ("dp", "tp"), "differ in the dtype or the shape of 'w'"),
        ((), {}, (None, None, "tp"), "more axes than the shape"),
        ((), {}, ("x",), "no axis 'x'"),
        ((), {}, ("tp", "tp"), "names the mesh axis 'tp' 2 times"),
    ],
)
def test_parts_that_do_not_fit_a_mesh_are_refused(
    tmp_path: Path, spec: Any, last: Any, rule: Any, words: str
) -> None:
    paths = on_devices(tmp_path, spec, **last)
    with pytest.raises((ArgumentError, InconsistentTensor), match=words):
        sv.reshard(paths, tmp_path / "out", format="shardvar", concat={"w": (MESH, rule)})
    assert not (tmp_path / "out").exists()


def test_a_mesh_has_a_source_for_each_device(tmp_path: Path) -> None:
    paths = on_devices(tmp_path, ("dp", "tp"))
    with pytest.raises(ArgumentError, match="has 2 devices, and there are 4 sources"):
        sv.reshard(
            paths,
            tmp_path / "out",
            format="shardvar",
            concat={"w": (sv.Mesh((2,), ("tp",)), ("tp",))},
        )
    with pytest.raises(ArgumentError, match="has 8 devices, and there are 4 sources"):
        sv.reshard(
            paths,
            tmp_path / "out",
            format="shardvar",
            concat={"w": (sv.Mesh((2, 4), ("dp", "tp")), ("tp",))},
        )


def test_the_command_joins_what_a_mesh_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also into slices by the same mesh; without ``--mesh`` names of axes mean nothing."""
    paths = [str(path) for path in on_devices(tmp_path, ("tp", "dp"))]
    command = [
        "reshard",
        *paths,
        str(tmp_path / "out"),
        "--format",
        "shardvar",
        "--concat",
        "w=tp,dp",
    ]
    assert main(command) == 2
    assert "or also give --mesh" in capsys.readouterr().err
    assert main([*command, "--mesh", "dp=2,pp=1,tp=2", "--shards", "w=dp,-"]) == 0
    assert "1 tensor in 2 slices" in capsys.readouterr().out
    assert np.array_equal(sv.load(tmp_path / "out")["w"], W)
