"""What a remedy advises is done, and the trouble is gone: a scenario for each class of remedies
(``architecture/test_remedy_texts.py``) that is one command."""

import gzip
import json
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import shardvar as sv
import shardvar.errors
from spec_tests.helpers.command_line import Outcome, Run, run
from spec_tests.helpers.paths import GOLDEN

__all__ = ["run"]

# An index of another set.
TENSORS = {f"layer{number}.w": np.full((4, 4), number, np.float32) for number in range(3)}
SETS: dict[str, tuple[str, str]] = {
    "safetensors": ("", "m*.safetensors"),
    "shardvar": ("", "m.svdata*"),
    "tensorflow": ("", "m.data*"),
    "torch": ("", "*.distcp"),
    "bin": ("torch_pt/huggingface_bin_set", "*.bin"),
    "flax": ("flax/set", "*.msgpack"),
    "keras": ("keras/sharded_weights", "*.weights.h5"),
    "onnx": ("onnx/one_file", "*.data"),
}
"""By format: the folder of a golden checkpoint, if shardvar writes no set of it, and a glob of its
data files."""
BY_ITSELF = ("safetensors", "bin", "flax", "keras")


def renamed_files(kind: str, folder: Path) -> tuple[Path, dict[Path, Path]]:
    """Make a checkpoint whose data files have other names than the index has; return its path, and
    the names that the files have, with those of the index."""
    golden, glob = SETS[kind]
    if golden:
        shutil.copytree(GOLDEN / golden, folder)
        (folder / "expected.json").unlink()
        ends = ("onnx", "weights.json", "msgpack.index.json")
        path = next((each for end in ends for each in folder.glob(f"*.{end}")), folder)
    else:
        path = folder / ("m.safetensors" if kind == "safetensors" else "m")
        folder.mkdir()
        sv.save(path, TENSORS, format=kind, policy=sv.MaxShardSizePolicy(64))
    pattern, new = {
        "shardvar": ("-of-", "-of-0"),
        "tensorflow": ("-of-", "-of-0"),
        "onnx": ("^", "w"),
    }.get(kind, (r"(\d)", r"0\1"))
    names = {
        each.with_name(re.sub(pattern, new, each.name, count=1)): each
        for each in (path if kind == "torch" else folder).glob(glob)
    }
    for other, name in names.items():
        name.rename(other)
    return path, names


@pytest.mark.parametrize("kind", SETS)
def test_an_index_that_names_none_of_the_files_is_of_another_set(kind: str, tmp_path: Path) -> None:
    """One remedy for all tensors; of files with tables of contents, each opens without it. It is not
    said if one of its files is there."""
    path, names = renamed_files(kind, tmp_path / "set")
    report = sv.verify(path)
    assert report.verdict == ("damaged" if kind == "onnx" else "not verified")
    missing = [each for each in report.damages + report.doubts if each.kind == "MissingFile"]
    (told,) = {each.remedy for each in missing}
    assert all("another set" in each.cause for each in missing) and "again" not in told
    index = re.search(r"move (\S+) away", told)
    assert (index is not None) == (kind in BY_ITSELF)
    if index:
        (tmp_path / "set" / index[1]).rename(tmp_path / "away")
        for other in names:
            assert sv.load(other)
        (tmp_path / "away").rename(tmp_path / "set" / index[1])
    for number, (other, name) in enumerate(names.items()):
        report = sv.verify(path)
        assert "another set" not in str(report.damages + report.doubts) or number == 0
        other.rename(name)
    assert sv.verify(path).ok


# What is done, by class. Each says how the trouble is made, and what the words make of it.
W = np.arange(8, dtype=np.float32).reshape(2, 4)


def write(**arrays: np.ndarray[Any, Any]) -> None:
    """Write a safetensors file by its name, with the tensor ``w``."""
    for name, array in arrays.items():
        sv.save(f"{name}.safetensors", {"w": array})


def refused(told: Outcome, pattern: str) -> re.Match[str]:
    """Return the words of a remedy, in what a command printed; it was refused."""
    match = re.search(pattern, " ".join((told.out + told.err).split()))
    assert told.code and match, told
    return match


def index_of_a_false_key(run: Run) -> str:
    """A key that the index names, and no file has."""
    sv.save("m.safetensors", TENSORS, policy=sv.MaxShardSizePolicy(64))
    index = Path("m.safetensors.index.json")
    named = json.loads(index.read_text())
    named["weight_map"]["mtp.fc.weight"] = next(iter(named["weight_map"].values()))
    index.write_text(json.dumps(named))
    return refused(run("reshard", "m", "o.npz"), r"leave the key out with (--\w+)")[1]


def exclude(run: Run) -> Outcome:
    return run("reshard", "m", "o.npz", index_of_a_false_key(run), "mtp.fc.weight")


def fetch(run: Run) -> Outcome:
    write(m=W)
    right = Path("m.safetensors").read_bytes()
    Path("m.safetensors").write_bytes(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n"
    )
    refused(run("verify", "m.safetensors"), "Fetch the content: `git lfs pull`")
    Path("m.safetensors").write_bytes(right)
    return run("verify", "m.safetensors")


def copy_again(run: Run) -> Outcome:
    sv.save("m", TENSORS, policy=sv.MaxShardSizePolicy(64))
    lost = sorted(Path().glob("m.svdata*"))[0]
    lost.rename("aside")
    option = refused(
        run("reshard", "m", "o.npz"),
        r"Copy the file again .* Or save all other tensors: (--[a-z-]+)",
    )[1]
    kept = run("reshard", "m", "kept.npz", option)
    assert kept.code == 1 and len(sv.load("kept.npz")) == 2
    Path("aside").rename(lost)
    return run("reshard", "m", "o.npz")


def force(run: Run) -> Outcome:
    write(m=W, o=W)
    option = refused(run("reshard", "m.safetensors", "o.safetensors"), r"pass (--force)")[1]
    assert run("reshard", "m.safetensors", "another.safetensors").code == 0
    return run("reshard", "m.safetensors", "o.safetensors", option)


def rename(run: Run) -> Outcome:
    sv.save("m.safetensors", {"a": W, "a/b": W})
    option = refused(run("reshard", "m.safetensors", "o.zarr"), r"Rename one of them \((--\w+)\)")[
        1
    ]
    return run("reshard", "m.safetensors", "o.zarr", option, "a/b=c")


def cast(run: Run) -> Outcome:
    write(a=W, b=W.astype(np.float64))
    words = ["reshard", "a.safetensors", "b.safetensors", "o.npz", "--concat", "w=0"]
    command = refused(run(*words), "`shardvar (reshard SRC DST --cast DTYPE)`")[1]
    for name in "ab":
        filled = command.replace("SRC", f"{name}.safetensors").replace("DST", f"{name}2.npz")
        assert run(*filled.replace("DTYPE", "float32").split()).code == 0
    return run("reshard", "a2.npz", "b2.npz", *words[3:])


def format_(run: Run) -> Outcome:
    sv.save("m.safetensors", {"w": W.astype(ml_dtypes.bfloat16)})
    told = refused(run("reshard", "m.safetensors", "o.npz"), r"cast them, or choose another format")
    assert told and run("reshard", "m.safetensors", "c.npz", "--cast", "*=float32").code == 0
    return run("reshard", "m.safetensors", "o")


def concat(run: Run) -> Outcome:
    write(r0=W, r1=W + 1)
    words = ["reshard", "r0.safetensors", "r1.safetensors", "o.npz"]
    option, value = refused(run(*words), "say along which axis: (--concat) '(GLOB=AXIS)'").groups()
    return run(*words, option, value.replace("GLOB", "w").replace("AXIS", "1"))


def path(run: Run) -> Outcome:
    write(**{"ckpt-1": W, "ckpt-2": W + 1})
    told = refused(
        run("reshard", ".", "o.npz"),
        r"Give the path of one of them, as `shardvar (inspect)` lists .* the newest: (--latest)",
    )
    with pytest.raises(sv.errors.AmbiguousPath) as caught:
        sv.load(".")
    found = re.search(r"the newest: sv\.(\w+)\(PATH\)", str(caught.value))
    assert found and Path(getattr(sv, found[1])("."))
    assert run(told[1], ".").out.count("ckpt-") >= 2
    assert run("reshard", "ckpt-1.safetensors", "a.npz").code == 0
    return run("reshard", ".", "o.npz", told[2])


def delta(run: Run) -> Outcome:
    write(a=W, b=W + 1)
    sv.delta("a.safetensors", "b.safetensors", "d")
    command = refused(run("reshard", "d", "o.npz"), "`shardvar (apply BASE DELTA OUT)`")[1]
    words = {"BASE": "a.safetensors", "DELTA": "d", "OUT": "c.npz"}
    assert run(*(words.get(word, word) for word in command.split())).code == 0
    return run("diff", "b.safetensors", "c.npz")


def manifest(run: Run) -> Outcome:
    write(m=W)
    words = ["verify", "m.safetensors", "--against", "m.safetensors.sha256"]
    command = refused(run(*words), "`shardvar (digest PATH --write)` writes one")[1]
    assert run(*command.replace("PATH", "m.safetensors").split()).code == 0
    return run(*words)


def own_name(run: Run) -> Outcome:
    sv.save("m.pt", {"w": W})
    shutil.copy("m.pt", "m.npz")
    ending = refused(run("verify", "m.npz"), r"Give it its own name \((\.\w+)\)")[1]
    Path("m.npz").rename("o" + ending)
    return run("verify", "o" + ending)


def unpack(run: Run) -> Outcome:
    write(m=W)
    octets = Path("m.safetensors").read_bytes()
    Path("z.safetensors.gz").write_bytes(gzip.compress(octets))
    with zipfile.ZipFile("z.zip", "w") as archive:
        archive.write("m.safetensors")
    command = refused(run("verify", "z.safetensors.gz"), "Unpack it: `([^`]*)`")[1]
    command = command.replace("FILE", "z.safetensors.gz").replace("NAME", "z.safetensors")
    subprocess.run(command, shell=True, check=True)
    assert run("verify", "z.safetensors").code == 0
    command = refused(run("verify", "z.zip"), r"unpack it \(`(\w+)`\)")[1]
    assert command == "unzip"
    zipfile.ZipFile("z.zip").extractall("unpacked")
    return run("verify", "unpacked/m.safetensors")


def commit(run: Run) -> Outcome:
    sv.save_shards("m", {"w": W}, process=0, num_processes=2, run="one", commit=False)
    told = refused(run("verify", "m"), "Save there again with the same `run`")
    sv.save_shards("m", {"w": W}, process=1, num_processes=2, run="one", commit=False)
    told = refused(run("verify", "m"), r"Commit it: sv\.(\w+), with the `(run)`")
    getattr(sv, told[1])("m", **{told[2]: "one"}, num_processes=2)
    return run("verify", "m")


def look(run: Run) -> Outcome:
    write(m=W)
    told = refused(
        run("reshard", "m.safetensors", "o.npz", "--filter", "none"),
        "`shardvar (inspect)` lists the keys",
    )
    (key,) = {row["key"] for row in run(told[1], "m.safetensors", "--json").json["tensors"]}
    return run("reshard", "m.safetensors", "o.npz", "--filter", key)


SCENARIOS: dict[str, Callable[[Run], Outcome]] = {
    "exclude": exclude, "fetch": fetch, "copy again": copy_again, "force": force, "rename": rename,
    "cast": cast, "format": format_, "concat": concat, "path": path, "delta": delta,
    "manifest": manifest, "own name": own_name, "unpack": unpack, "commit": commit, "look": look,
}  # fmt: skip
"""By class: make the trouble, and do what the remedy says; the outcome of the verb then."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_a_remedy_says_helps(
    name: str,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    told = SCENARIOS[name](run)
    assert told.code == 0, told
