"""Objects that several processes save with their tensors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import ArgumentError, CheckpointError, ShardvarError, UnsupportedError
from shardvar.planning.index import OBJECTS, Metadata
from shardvar.verbs.together import share_files
from shardvar.verbs.together.run import SaveOptions, find_run
from shardvar.verbs.together.shares import save_with_objects
from shardvar.wire.plain import decode_value, encode_value
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket

TABLE = np.arange(12.0).reshape(4, 3)
FORMATS = ["shardvar", "torch", "tensorflow"]


def encoded(objects: dict[str, Any]) -> dict[str, bytes]:
    return {key: encode_value(value).encode() for key, value in objects.items()}


def save(
    path: Any,
    objects: list[dict[str, bytes]],
    form: str,
    run: str = "1",
    replicas: str = "equal",
    **more: Any,
) -> None:
    """Save rows of a table and the objects of each process; the last process commits."""
    count = len(objects)
    for process, held in enumerate(objects):
        start, stop = sv.div(4, count)[process]
        tensors = {"w": sv.LocalShard(TABLE[start:stop], (start, 0), (4, 3)), **more}
        about, is_last = Metadata(user={"by": "a test"}, objects=held), process == count - 1
        options = SaveOptions(replicas, commit=is_last, timeout=5)
        saved = find_run(path, run, count, form, options=options)
        save_with_objects(saved, process, tensors, about)


def objects_of(path: Any, keys: list[str]) -> dict[str, Any]:
    with sv.open_checkpoint(path) as reader:
        found = reader.source.objects(keys, "")
    return {key: decode_value(each.decode()) for key, each in (found or {}).items()}


@pytest.mark.parametrize("place", ["disk", "bucket"])
@pytest.mark.parametrize("form", FORMATS)
def test_objects_of_all_processes_are_in_the_checkpoint(
    form: str, place: str, tmp_path: Path
) -> None:
    """Equal ones are in it once; a second save replaces them."""
    path = f"{'s3://bucket/run' if place == 'bucket' else tmp_path}/ck"
    with in_bucket(MemoryBucket()):
        for lr in (0.1, 0.2):
            every = {"lr": lr, "names": ("a", b"b", None)}
            save(path, [encoded({**every, f"rank{p}": {"a": p}}) for p in range(2)], form, f"{lr}")
            expected = {**every, "rank0": {"a": 0}, "rank1": {"a": 1}}
            assert objects_of(path, [*expected]) == expected
            assert np.array_equal(sv.load(path, "w")["w"], TABLE)
            assert sv.verify(path).ok
            with sv.open_checkpoint(path) as reader:
                expected_texts = {} if form == "tensorflow" else {"by": "a test"}
                assert reader.metadata.user == expected_texts


@pytest.mark.parametrize("form", FORMATS)
def test_processes_that_disagree_on_an_object_commit_nothing(form: str, tmp_path: Path) -> None:
    path, first, second = tmp_path / "ck", encoded({"lr": 0.1}), encoded({"lr": 0.2})
    with pytest.raises(ArgumentError, match="'lr' differs between process 0 and 1"):
        save(path, [first, second], form)
    with pytest.raises(ShardvarError):
        sv.open_checkpoint(path)
    save(path, [first, second], form, "2", "first")
    assert objects_of(path, ["lr"]) == {"lr": 0.1}


def test_a_key_is_either_a_tensor_or_an_object(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="'w' is a tensor in one process and an object in an"):
        save(tmp_path / "ck", [{}, encoded({"w": 1})], "shardvar")


def test_a_format_that_cannot_hold_an_object_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    with pytest.raises(UnsupportedError, match=r"write an object, 'lr', in the format safetensors"):
        save(tmp_path / "m.safetensors", [encoded({"lr": 1})], "safetensors")
    for form in ("shardvar", "tensorflow"):
        with pytest.raises(UnsupportedError, match=f"format {form} cannot hold the object 'lr'"):
            save(tmp_path / "ck", [{"lr": b"PK\3\4"}], form)
    assert [*tmp_path.iterdir()] == []


def test_a_run_that_saves_other_objects_under_the_same_name_is_refused(tmp_path: Path) -> None:
    """As one that saves other tensors."""
    about = [Metadata(objects=encoded({"lr": lr})) for lr in (0.1, 0.1, 0.2)]
    for number, each in enumerate(about):
        options = SaveOptions(commit=False)
        saved = find_run(tmp_path / "ck", "1", 2, "shardvar", options=options)
        if number < 2:
            save_with_objects(saved, 0, {"w": TABLE}, each)
        else:
            with pytest.raises(ArgumentError, match="has saved already, and other values"):
                save_with_objects(saved, 0, {"w": TABLE}, each)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"objects": {}}',
        '{"objects": {}, "paths": {}}',
        '{"objects": [], "paths": {}, "leaves": null, "others": null}',
        '{"objects": {"a": 1}, "paths": {}, "leaves": null, "others": null}',
        '{"objects": {"a": "?"}, "paths": {}, "leaves": null, "others": null}',
        '{"objects": {}, "paths": {"a": 1}, "leaves": null, "others": null}',
        '{"objects": {}, "paths": {}, "leaves": null, "others": 1}',
        '{"objects": {}, "paths": {}, "leaves": null, "others": [1]}',
        '{"objects": {}, "paths": {"a": [1.5]}, "leaves": null, "others": null}',
        '{"objects": {}, "paths": {}, "leaves": 1}',
        '{"objects": {}, "paths": {}, "leaves": [["w", [0]]]}',
        '{"objects": {}, "paths": {}, "leaves": [["w", [0], [[0, 2]], "AA=="]]}',
        '{"objects": {}, "paths": {}, "leaves": [["w", [0], [[0, 0.5]], ""]]}',
        "[" * 100,
    ],
)
def test_a_text_that_is_wrong_is_an_error_with_the_file(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Metadata(user={OBJECTS: text})
    monkeypatch.setattr(share_files, "_stored", lambda *_: stored)
    with pytest.raises(CheckpointError, match=r"ck\.svshare.*svindex"):
        save(tmp_path / "ck", [{}], "shardvar")
