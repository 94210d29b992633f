"""``verify`` of a folder judges everything in it once; several sources without a common key are a
union, and so are the files of a set without its index."""

import json
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zipfile import ZipFile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import CheckpointError, ShardvarError
from shardvar.layout.dtypes import NAMES, is_floating, numpy_dtype, odd_values
from shardvar.verbs.problems import VerifyReport
from spec_tests.helpers.command_line import Run, run, terminal

__all__ = ["run"]

TENSORS = {"w": np.arange(300.0), "b": np.ones(5, np.float32)}

THINGS: dict[str, str | None] = {
    **dict.fromkeys(["model.safetensors", "optimizer.pt", "scheduler.pt", "ema.npz"]),
    **dict.fromkeys(["vae/diffusion_pytorch_model.safetensors", "vae/optimizer.pt"]),
    **{"n.svindex": "shardvar", "t.index": "tensorflow", "step-3": "torch", "step-4/state": "zarr"},
}
"""The paths of checkpoints in a folder, and their formats if no ending tells."""


def prefix_of(thing: str) -> str:
    return thing.removesuffix(".svindex").removesuffix(".index")


def put(folder: Path, thing: str, **changes: Any) -> None:
    (folder / thing).parent.mkdir(parents=True, exist_ok=True)
    sv.save(folder / prefix_of(thing), {**TENSORS, **changes}, format=THINGS[thing])


def reports(folder: Path, **options: Any) -> tuple[VerifyReport, dict[str, VerifyReport]]:
    report = sv.verify(folder, **options)
    every = [*([] if report.format == "folder" else [report]), *report.others]
    return report, {os.path.relpath(each.path, folder): each for each in every}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A new folder; each example makes one inside."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def inside(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=folder))


PROPERTY = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@settings(PROPERTY, max_examples=40)
@given(
    st.sets(st.sampled_from([*THINGS]), min_size=1),
    st.sets(st.sampled_from(["config.json", "README.md", "vae/config.json"])),
    st.booleans(),
    st.data(),
)
def test_each_checkpoint_of_a_folder_has_one_verdict(
    folder: Path, things: set[str], others: set[str], quick: bool, data: st.DataObject
) -> None:
    path = inside(folder)
    for thing in things:
        put(path, thing)
    for name in others:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("{}")
    report, found = reports(path, quick=quick)
    names = {*map(prefix_of, things)}
    assert {*found} == names and report.ok and {*report.not_read} == others
    cut = data.draw(st.sampled_from(sorted(things)))
    prefix = str(path / cut.removesuffix("svindex").removesuffix("index"))
    files = [each for each in path.rglob("*") if each.is_file() and str(each).startswith(prefix)]
    largest = max(files, key=lambda each: each.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    report, found = reports(path, quick=quick)
    bad = {name for name, each in found.items() if each.damages}
    assert bad <= {os.path.relpath(prefix.rstrip("."), path)} and {*found} == names
    # The length of a chunk of Zarr is known only once it is read.
    assert bad or (quick and cut == "step-4/state")
    assert report.ok == (not bad) and (report.verdict == "damaged") == bool(bad)


def test_the_command_verifies_a_folder_and_leaves_with_the_worst_code(
    tmp_path: Path, run: Run
) -> None:
    for thing in ("model.safetensors", "optimizer.pt"):
        put(tmp_path, thing)
    (tmp_path / "config.json").write_text("{}")
    outcome = run("verify", tmp_path)
    assert outcome.code == 0 and "2 checkpoints: 1 complete, 1 ok" in outcome.out
    assert outcome.err == "note: not verified: config.json\n"
    # Options about tensors concern the checkpoint that the path means.
    chosen = run("verify", tmp_path, "--filter", "w", "--json").json
    assert chosen["not_read"] == ["optimizer.pt", "config.json"] and chosen["others"] == []
    os.truncate(tmp_path / "optimizer.pt", 900)
    outcome = run("verify", tmp_path)
    assert outcome.code == 1 and "1 complete, 1 damaged" in outcome.out
    assert run("verify", tmp_path, "--json").json["verdict"] == "damaged"
    # A file of a trainer whose classes are not read is named; any other is not verified.
    for name, code in (("training_args.bin", 0), ("whole.pt", 3)):
        (tmp_path / "optimizer.pt").unlink(missing_ok=True)
        with ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("x/data.pkl", b"\x80\x02cmodule\nClass\n)\x81}b.")
            archive.writestr("x/version", b"3")
        outcome = run("verify", tmp_path)
        assert outcome.code == code and name in outcome.out + outcome.err


def test_known_faults_come_before_the_bar_and_values_are_not_looked_at_without_reading_them(
    tmp_path: Path, run: Run
) -> None:
    sv.save(tmp_path / "m.safetensors", TENSORS, policy=sv.BalancedPolicy(2))
    with pytest.raises(sv.errors.ArgumentError, match="nan .* looks at values, and quick"):
        sv.verify(tmp_path, quick=True, nan=True)
    refused = run("verify", tmp_path, "--quick", "--nan")
    assert (refused.code, refused.out) == (2, "") and "Leave one of them out" in refused.err
    (tmp_path / "m-00001-of-00002.safetensors").unlink()
    with terminal(100, "xterm"), patch("sys.stderr.isatty", return_value=True):
        outcome = run("verify", tmp_path)
    assert outcome.code == 1 and "damaged: w: MissingFile" in outcome.err
    assert run("verify", tmp_path, "--quick").code == 1


FLOATS = [name for name in NAMES if is_floating(name) and "packed" not in name and "x2" not in name]


@pytest.mark.parametrize("dtype", [*FLOATS, "complex64", "complex128"])
def test_odd_values_are_those_of_numpy(dtype: str) -> None:
    """All values of small types, and the limits of the exponents of large ones."""
    kind = numpy_dtype(dtype)
    part = np.dtype("f4" if dtype == "complex64" else "f8") if kind.kind == "c" else kind
    if part.itemsize < 4:
        every = np.arange(256**part.itemsize, dtype=f"u{part.itemsize}").view(part)
    else:
        limits = np.finfo(part)
        every = np.array([0, -0.0, 1, limits.max, -limits.tiny, np.inf, -np.inf, np.nan], part)
        every = np.append(every, every.view(f"u{part.itemsize}")[5:7].__add__(1).view(part))
    assert odd_values(memoryview(np.zeros(70_000, kind).view(np.uint8)), dtype) == 0
    with np.errstate(invalid="ignore"):
        wide = every.astype(np.float64)
    for row in {
        *range(0, len(every), max(1, len(every) // 600)),
        *np.flatnonzero(~np.isfinite(wide))[:99],
    }:
        values = np.zeros(70_002, part)
        values[-2] = every[row]
        expected = bool(np.isnan(wide[row])) + 2 * bool(np.isinf(wide[row]))
        assert odd_values(memoryview(values.view(np.uint8)), dtype) == expected


@PROPERTY
@given(
    st.sampled_from(["m.safetensors", "m", "m.npz", "m.zarr", "m.pt"]),
    st.lists(st.sampled_from([0.0, 1.5, np.nan, np.inf, -np.inf]), min_size=1, max_size=6),
    st.sampled_from(["float32", "float16", "float64", "complex64"]),
    st.booleans(),
)
def test_tensors_that_are_not_finite_are_named(
    folder: Path, name: str, values: list[float], dtype: str, in_workers: bool
) -> None:
    array, path = np.concatenate([np.ones(40_000), values]).astype(dtype), inside(folder) / name
    sv.save(path, {"x": array, "y": np.ones(3), "ids": np.arange(4)})
    with ThreadPoolExecutor(2) as executor:
        report = sv.verify(path, nan=True, executor=executor if in_workers else None)
    kinds = ["NaN"] * bool(np.isnan(array).any()) + ["infinity"] * bool(np.isinf(array).any())
    assert dict(report.not_finite) == ({"x": " and ".join(kinds)} if kinds else {})
    assert report.ok == (not kinds) and (report.verdict == "not finite") == bool(kinds)
    assert sv.verify(path).ok


ENDINGS = [".safetensors", ".npz", ".pt", ".bin"]


def write(path: Path, tensors: dict[str, Any]) -> None:
    """Under any name; a save would take the name of a part for the prefix of its set."""
    made = path.with_name(f"made{path.suffix.replace('.bin', '.pt')}")
    sv.save(made if path.suffix else path, tensors)
    if path.suffix:
        made.rename(path)


@PROPERTY
@given(
    st.lists(st.sampled_from([*ENDINGS, ""]), min_size=2, max_size=4),
    st.permutations(range(9)),
    st.booleans(),
)
def test_sources_without_a_common_key_are_a_union(
    folder: Path, endings: list[str], order: list[int], is_shared: bool
) -> None:
    path, count = inside(folder), len(endings)
    parts = [
        {f"k{key}": np.full((2, 3), key, np.float32) for key in order[number::count]}
        for number in range(count)
    ]
    if is_shared:
        parts[0][f"k{order[1]}"] = np.ones((2, 3), np.float32)
    paths = [path / f"s{number}{ending}" for number, ending in enumerate(endings)]
    for each, tensors in zip(paths, parts, strict=True):
        write(each, tensors)
    if is_shared:
        with pytest.raises(ShardvarError, match="lacks"):
            sv.reshard(paths, path / "out.npz")
        return
    report = sv.reshard(paths, path / "out.npz")
    loaded = sv.load(path / "out.npz")
    assert report.num_united == count and sorted(loaded) == [f"k{key}" for key in range(9)]
    assert all((value == int(key[1:])).all() for key, value in loaded.items())


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("form", ["model-{:05}-of-00003", "m_{}of3"])
def test_a_set_without_its_index_opens_if_it_is_whole(
    form: str, ending: str, tmp_path: Path, run: Run
) -> None:
    names = [form.format(number) + ending for number in (1, 2, 3)]
    folder = tmp_path / "set"
    folder.mkdir()
    for number, name in enumerate(names):
        write(folder / name, {f"w{number}": np.full(3, number, np.float32)})
    assert {key: value[0] for key, value in sv.load(folder).items()} == {"w0": 0, "w1": 1, "w2": 2}
    outcome = run("verify", folder)
    assert (
        outcome.code == 0 and "all 3 files" in outcome.out and not outcome.err.count("verified: m")
    )
    write(folder / "optimizer.pt", {"m": np.ones(3)})
    assert [Path(each.path).name for each in sv.verify(folder).others] == ["optimizer.pt"]
    (folder / "optimizer.pt").unlink()
    assert "all 3 files" in run("inspect", folder).err
    assert run("verify", folder, "--workers", "2").code == 0
    outcome = run("reshard", folder, tmp_path / "one.npz")
    assert outcome.code == 0 and "3 tensors" in outcome.out
    outcome = run("reshard", *(folder / name for name in names[::-1]), tmp_path / "two.npz")
    assert outcome.code == 0 and "the union of 3 sources" in outcome.out.splitlines()[0]
    assert sv.diff(tmp_path / "one.npz", tmp_path / "two.npz").equal
    # One that is missing, or a key that two have, and it does not.
    (folder / names[1]).rename(tmp_path / "away")
    with pytest.raises(CheckpointError):
        sv.load(folder)
    write(folder / names[1], {"w0": np.zeros(3, np.float32)})
    with pytest.raises(ShardvarError, match="w0"):
        sv.load(folder)


@pytest.mark.parametrize("ending", [".safetensors", ".bin", ".msgpack"])
@pytest.mark.parametrize("is_whole", [True, False])
def test_an_index_of_another_set_is_called_foreign(
    ending: str, is_whole: bool, tmp_path: Path, run: Run
) -> None:
    names = [f"model-{number:05}-of-00003{ending}" for number in (1, 2, 3)]
    for number, name in enumerate(names if is_whole else names[:2]):
        made = tmp_path / ("made.safetensors" if ending == ".safetensors" else "made.pt")
        sv.save(made, {f"w{number}": np.ones(3)})
        made.rename(tmp_path / name)
    others = {f"w{number}": f"model-{number:05}-of-00010{ending}" for number in range(10)}
    index = tmp_path / f"model{ending}.index.json"
    index.write_text(json.dumps({"weight_map": others}))
    outcome = run("verify", tmp_path)
    assert outcome.code == 3 and "another set" in outcome.out and "damaged" not in outcome.out
    assert "Copy the file again" not in outcome.out
    assert f"move {index.name} away" in outcome.out
    if ending != ".msgpack" and is_whole:
        sources = [tmp_path / name for name in names]
        assert sv.reshard(sources, tmp_path / "out" / "one.npz").num_tensors == 3
        index.unlink()
        assert sorted(sv.load(tmp_path)) == ["w0", "w1", "w2"]
    elif ending != ".msgpack":
        assert sorted(sv.load(tmp_path / names[0])) == ["w0"]


@settings(PROPERTY, max_examples=20)
@given(st.sets(st.sampled_from([*THINGS]), min_size=2), st.data())
def test_a_diff_of_folders_compares_each_checkpoint(
    folder: Path, things: set[str], data: st.DataObject
) -> None:
    a, b = inside(folder), inside(folder)
    for side in (a, b):
        for thing in things:
            put(side, thing)
    (a / "config.json").write_text("{}")
    report = sv.diff(a, b)
    assert report.not_compared == ("config.json",)
    assert report.equal and len(report.parts()) == len(things) and len(str(report)) > 20
    changed = data.draw(st.sampled_from(sorted(things)))
    sv.remove(b / prefix_of(changed))
    if is_lost := data.draw(st.booleans()):
        (b / "vae").mkdir(exist_ok=True)
    else:
        put(b, changed, b=np.zeros(5, np.float32))
    report = sv.diff(a, b)
    unlike = [each for each in report.parts() if not each.equal]
    assert not report.equal and len(unlike) == (not is_lost)
    assert len(report.checkpoints_only_in_a) == is_lost and not report.checkpoints_only_in_b
