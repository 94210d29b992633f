"""Saves in parts: files of single ranks, interrupted saves, and the saves that only their writers
read.

None is a checkpoint, a step or a model, whichever path leads to it and whatever verb is asked.
"""

import pickle
import re
import string
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import AmbiguousPath, IncompleteCheckpoint, ShardvarError, UnsupportedError
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket

__all__ = ["run"]

WORDS = st.text(string.ascii_lowercase, min_size=1, max_size=8)
PROCESSES = ("rank", "mp_rank_", "shard-", "tp", "pp_", "host.", "worker_", "local_rank_", "node-")
ENDINGS = st.sampled_from([".safetensors", ".npz", ".pt"])


def put(path: Path, value: float = 1.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    sv.save(path, {"w": np.full((2, 3), value, np.float32)})


def refused(path: Path, target: Path) -> ShardvarError:
    """The error of a path, which is the same in every verb; nothing is written."""
    errors = []
    verbs: list[Callable[[Path], object]] = [sv.load, sv.open_checkpoint, sv.newest_checkpoint]
    verbs += [lambda path: sv.reshard(path, target), lambda path: sv.diff(path, path)]
    for verb in verbs:
        with pytest.raises((UnsupportedError, IncompleteCheckpoint)) as caught:
            verb(path)
        errors.append(caught.value)
    assert len({error.cause for error in errors}) == 1 and not target.exists()
    assert errors[0].remedy
    return errors[0]


@settings(max_examples=6)
@given(st.sampled_from(PROCESSES), WORDS, WORDS, ENDINGS, st.integers(2, 3), st.booleans())
def test_files_of_single_ranks_are_one_save_and_no_steps(
    word: str, before: str, after: str, ending: str, count: int, in_folders: bool
) -> None:
    folder, gap = Path(tempfile.mkdtemp()), "/" if in_folders else "_"
    files = [
        folder / "save" / f"{before}-{word}{rank}{gap}{after}{ending}" for rank in range(count)
    ]
    for file in files:
        put(file)
    target = folder / "whole.npz"
    assert "rank" in refused(folder / "save", target).cause
    assert sorted(sv.load(files[-1])) == ["w"]  # one may look into a part
    sv.reshard(files, target, concat={"w": 0})
    assert sv.load(target)["w"].shape == (2 * count, 3)


@settings(max_examples=6)
@given(WORDS, ENDINGS, st.integers(2, 4), st.booleans())
def test_the_index_of_torch_checkpointing_makes_numbered_files_ranks(
    item: str, ending: str, count: int, is_read: bool
) -> None:
    folder = Path(tempfile.mkdtemp())
    files = [folder / "save" / f"{item}_{rank}{ending}" for rank in range(count)]
    for file in files:
        put(file)
    index: object = {"world_size": count, "items": {item: [1, 2]}} if is_read else [item]
    (folder / "save" / "metadata.pkl").write_bytes(pickle.dumps(index))
    assert "torch_checkpointing" in refused(folder / "save", folder / "whole.npz").cause
    with pytest.raises(UnsupportedError, match="one part of a larger save"):
        sv.reshard(files[0], folder / "half.npz")
    for file in files[1:]:
        file.unlink()
    if is_read:  # the others are lost
        refused(folder / "save", folder / "whole.npz")
    (folder / "save" / "metadata.pkl").write_bytes(pickle.dumps({"world_size": 1}))
    assert sorted(sv.load(folder / "save")) == ["w"]


@pytest.mark.parametrize("step", ["iter_0000005", "x"])
def test_a_lone_common_file_of_megatron_is_an_interrupted_save(
    step: str, tmp_path: Path, run: Run
) -> None:
    folder = tmp_path / "run"
    sv.save(folder / "iter_0000004", {"w": np.ones(3)}, format="torch")
    put(folder / step / "common.pt")
    for path in (folder / step, folder / step / "common.pt"):
        assert "without its tensors" in refused(path, tmp_path / "out.npz").cause
        assert (run("verify", path).code, run("inspect", path).code) == (1, 3)
    if step != "x":
        assert sv.newest_checkpoint(folder).endswith("iter_0000004")
        outcome = run("verify", folder, "--latest")
        assert outcome.code == 0
        assert "passed over 1 unfinished checkpoint: iter_0000005" in outcome.err
        listed = run("inspect", folder).out
        assert "iter_0000005  parts" in listed and "not finished" in listed
    sv.save(folder / step, {"w": np.ones(3)}, format="torch", force=True)
    assert sorted(sv.load(folder / step)) == ["w"]


def test_numbers_from_zero_may_be_ranks_and_have_no_newest(tmp_path: Path) -> None:
    for number in range(2):
        put(tmp_path / f"model_{number}.safetensors")
    with pytest.raises(AmbiguousPath, match="may be the files of the ranks of one save"):
        sv.newest_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mp_rank_0{}/model_optim_rng.pt", "Megatron"),
        ("zero_pp_rank_{}_mp_rank_00_model_states.pt", "DeepSpeed"),
    ],
)
def test_the_saves_of_trainers_are_named_at_each_path_and_as_steps(
    name: str, words: str, tmp_path: Path, run: Run
) -> None:
    for step in (5, 10):
        for rank in range(2):
            put(tmp_path / "run" / f"global_step{step}" / name.format(rank))
    last = tmp_path / "run" / "global_step10"
    assert words in refused(last, tmp_path / "out").cause
    assert sv.newest_checkpoint(tmp_path / "run") == str(last)
    (tmp_path / "run" / "latest").write_text("global_step5")
    outcome = run("verify", tmp_path / "run", "--latest")
    assert outcome.code == 3 and words in outcome.err and "latest names global_step5" in outcome.err
    assert "Nothing tells" not in outcome.err


TEXTS = st.text(string.ascii_lowercase + string.digits + "_-. ", max_size=12)
GAPS = st.sampled_from(["", "-", "_", ".", "=", "--", " "])
NUMBERS = st.sampled_from([(4,), (1, 4), (3, 7), (0, 9), (0, 1), (1, 2, 3), (0, 1, 3)])


@contextmanager
def somewhere(is_bucket: bool) -> Iterator[tuple[str, Callable[[str, bytes], object]]]:
    """A folder on a disk or in a bucket, and a function that puts a file there."""
    if is_bucket:
        bucket = MemoryBucket()
        with in_bucket(bucket):
            yield "s3://bucket/x", lambda name, data: bucket.write(f"x/{name}", data)
        return
    with tempfile.TemporaryDirectory() as folder:

        def write(name: str, data: bytes) -> None:
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).write_bytes(data)

        yield folder, write


@cache
def content(ending: str) -> bytes:
    path = Path(tempfile.mkdtemp()) / f"m{ending}"
    put(path)
    return path.read_bytes()


@settings(max_examples=40)
@given(
    st.sampled_from(["rank", "Rank", "mp_rank", "shard", "part", "tp", "PP", "host", "worker", "gpu", "node"]),
    GAPS, NUMBERS, st.sampled_from(["llama-{}", "{}-a", "x9_{}_3", "run.{}", "{}"]), ENDINGS,
    st.sampled_from(["{}{}", "{}/m{}", "{}/step-3/m{}"]), st.booleans(),
)  # fmt: skip
def test_a_part_is_a_part_by_its_siblings(
    word: str,
    gap: str,
    numbers: tuple[int, ...],
    name: str,
    ending: str,
    place: str,
    is_bucket: bool,
) -> None:
    """It can be read by every verb, and is not written as if it were the whole; its copy is."""
    with somewhere(is_bucket) as (folder, write):
        names = [place.format(name.format(f"{word}{gap}{each}"), ending) for each in numbers]
        for each in names:
            write(each, content(ending))
        path, target = f"{folder}/{names[-1]}", Path(tempfile.mkdtemp()) / "out.npz"
        assert sv.load(path)["w"].shape == (2, 3) and sv.diff(path, path).equal
        assert sv.verify(path).ok and sv.digest(path).tensors
        writes: list[Callable[[str], object]] = [
            lambda path: sv.reshard(path, target, force=True),
            lambda path: sv.delta(path, path, target.with_suffix(""), force=True),
        ]
        for verb in writes:
            if numbers in {(4,), (1, 4), (3, 7), (0, 9)}:
                verb(path)
                continue
            with pytest.raises(UnsupportedError, match="one part of a larger save") as caught:
                verb(path)
            for remedy in ("copy it to a path without such a number", "--concat"):
                assert remedy in caught.value.remedy
        write(f"copy/m{ending}", content(ending))
        sv.reshard(f"{folder}/copy/m{ending}", target, force=True)


@settings(max_examples=40)
@given(TEXTS, TEXTS, ENDINGS, st.booleans(), st.booleans())
def test_a_name_alone_refuses_nothing(
    folder: str, name: str, ending: str, is_bucket: bool, by_folder: bool
) -> None:
    assume(folder.strip(". ") and not re.search("[0-9]of[0-9]|[0-9][^0-9a-z]+of", name))
    assume(not re.fullmatch("data|optimizer|sampler|scaler", name))
    with somewhere(is_bucket) as (root, write):
        write(f"{folder}/a{name}{ending}", content(ending))
        path = f"{root}/{folder}" + ("" if by_folder else f"/a{name}{ending}")
        with tempfile.TemporaryDirectory() as target:
            sv.reshard(path, f"{target}/out.npz")
            assert sorted(sv.load(f"{target}/out.npz")) == ["w"]


@pytest.mark.parametrize("form", ["shardvar", "tensorflow", "torch", "zarr", "orbax-plain"])
@pytest.mark.parametrize("numbers", [(0, 1), (1, 4), (3,)])
def test_the_folders_and_prefixes_of_ranks_are_parts_in_every_format(
    form: str, numbers: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a relative path."""
    monkeypatch.chdir(tmp_path)
    for number in numbers:
        sv.save(tmp_path / f"run-gpu{number}", {"w": np.ones(3)}, format=form)
    assert sorted(sv.load(f"run-gpu{numbers[-1]}")) == ["w"]
    if numbers == (0, 1):
        with pytest.raises(UnsupportedError, match="one part of a larger save"):
            sv.reshard("run-gpu1", "out.npz")
    else:
        sv.reshard(f"run-gpu{numbers[-1]}", "out.npz")
    assert Path("out.npz").exists() == (numbers != (0, 1))
