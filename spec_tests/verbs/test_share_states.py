"""States that several processes save: objects, tied tensors, which are stored once, and keys that
only some processes have."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.engine.read import FlatTensor
from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    CheckpointNotFound,
    InvalidCheckpoint,
    UnsupportedError,
)
from shardvar.planning.index import OBJECTS, SOME_PROCESSES, Metadata, find_ties
from shardvar.verbs.compare import digest as digest_module
from shardvar.verbs.together import share_files
from shardvar.verbs.together.run import keys_of_some, without_keys_of_some
from shardvar.verbs.training.states import unmatched_keys
from shardvar.wire import digests as definition
from shardvar.wire.plain import decode_value, encode_value
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket
from spec_tests.helpers.shared_saves import (
    divided,
    given_as,
    save_all,
    save_one,
    save_states,
    shard_of,
)
from spec_tests.helpers.thoroughness import EXHAUSTIVE

TABLE = np.arange(12.0).reshape(4, 3)
TIES = {"head": "w", "other": "w", "tail": "columns"}
FORMATS = ["shardvar", "torch", "tensorflow"]


def about(objects: Mapping[str, Any] | None = None, **ties: str) -> Metadata:
    """The objects and the ties of a process."""
    encoded = {key: encode_value(value).encode() for key, value in (objects or {}).items()}
    return Metadata(user={"by": "a test"}, objects=encoded, ties=ties)


def part(process: int, count: int, **more: Any) -> dict[str, Any]:
    """Rows of a table, and arrays that all processes hold."""
    start, stop = sv.div(4, count)[process]
    shard = sv.LocalShard(TABLE[start:stop], (start, 0), (4, 3))
    return {"w": shard, "columns": TABLE, "bias": np.ones(5), **more}


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
            held = [(part(p, 2), about({**every, f"rank{p}": {"a": p}})) for p in range(2)]
            save_states(path, held, f"{lr}", form)
            expected = {**every, "rank0": {"a": 0}, "rank1": {"a": 1}}
            assert objects_of(path, [*expected]) == expected
            assert np.array_equal(sv.load(path, "w")["w"], TABLE)
            assert sv.verify(path).ok
            with sv.open_checkpoint(path) as reader:
                texts = {} if form == "tensorflow" else {"by": "a test"}
                assert reader.metadata.user == texts


@pytest.mark.parametrize("place", ["disk", "bucket"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_tied_tensors_are_stored_once(count: int, place: str, tmp_path: Path) -> None:
    """With digests for each key; a second save replaces them."""
    path = f"{'s3://bucket/run' if place == 'bucket' else tmp_path}/ck"
    with in_bucket(MemoryBucket()):
        for run in ("1", "2"):
            held = [(part(process, count), about(**TIES)) for process in range(count)]
            save_states(path, held, run, digest=True, is_state=True)
            read = sv.load(path)
            assert read.keys() == {"w", "bias", "columns", *TIES}
            assert all(np.array_equal(read[key], read[first]) for key, first in TIES.items())
            assert np.array_equal(read["w"], TABLE)
            assert sv.verify(path).ok
            with sv.open_checkpoint(path) as reader:
                found = find_ties(reader.entries())
                groups = {frozenset(pair) for pair in found.items()}
                pairs = [("w", "head"), ("w", "other"), ("head", "other"), ("columns", "tail")]
                assert len(found) == len(TIES) and groups <= {*map(frozenset, pairs)}
                assert dict(reader.digests) == sv.digest(path).tensors


def test_a_process_without_elements_of_a_tied_tensor_need_not_know_that(tmp_path: Path) -> None:
    nothing = sv.LocalShard(np.ones((0, 3)), (4, 0), (4, 3))
    held = [({"w": TABLE}, about(head="w")), ({"w": nothing, "head": nothing}, about())]
    save_states(tmp_path / "ck", held, is_state=True)
    read = sv.load(tmp_path / "ck")
    assert np.array_equal(read["head"], TABLE) and read.keys() == {"w", "head"}


DIFFERENT = [(part(process, 2), about({"lr": process + 0.5})) for process in range(2)]
TIED = part(0, 2), about(head="w")
AN_OBJECT = "is a tensor in one process and an object in an"
ONE_TENSOR = r"'head' and '(w|bias)' are one tensor in process [01], and"
NO_TENSOR = "'head' is tied to '(lost|other)', which no proc"


@pytest.mark.parametrize(
    ("held", "form", "error", "words"),
    [
        *((DIFFERENT, form, ArgumentError, "'lr' differs between process 0 and 1") for form in FORMATS),
        ([(part(0, 2), about()), (part(1, 2), about({"w": 1}))], "shardvar", ArgumentError, f"'w' {AN_OBJECT}"),
        ([({"w": TABLE}, about({"head": 1}, head="w"))], "shardvar", ArgumentError, f"'head' {AN_OBJECT}"),
        ([TIED, (part(1, 2, head=part(1, 2)["w"]), about())], "shardvar", ArgumentError, ONE_TENSOR),
        ([TIED, (part(1, 2), about())], "shardvar", ArgumentError, ONE_TENSOR),
        ([TIED, (part(1, 2), about(head="bias"))], "shardvar", ArgumentError, ONE_TENSOR),
        ([({"w": TABLE}, about(head="lost"))], "shardvar", InvalidCheckpoint, NO_TENSOR),
        ([({"w": TABLE}, about(head="other", other="w"))], "shardvar", InvalidCheckpoint, NO_TENSOR),
    ],
)  # fmt: skip
def test_processes_that_disagree_commit_nothing(
    held: Any, form: str, error: type[Exception], words: str, tmp_path: Path
) -> None:
    """Unless the first process decides about objects."""
    with pytest.raises(error, match=words):
        save_states(tmp_path / "ck", held, form=form, is_state=True)
    with pytest.raises(CheckpointNotFound):
        sv.load(tmp_path / "ck")
    if held is DIFFERENT:
        save_states(tmp_path / "ck", held, "2", form, replicas="first")
        assert objects_of(tmp_path / "ck", ["lr"]) == {"lr": 0.5}


def test_a_format_that_cannot_hold_an_object_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    pickled = Metadata(objects={"lr": b"PK\3\4"})
    for form, held, words in (
        ("safetensors", about({"lr": 1}), "write an object, 'lr', in the format safetensors"),
        ("shardvar", pickled, "format shardvar cannot hold the object 'lr'"),
        ("tensorflow", pickled, "format tensorflow cannot hold the object 'lr'"),
    ):
        with pytest.raises(UnsupportedError, match=words):
            save_states(tmp_path / "ck", [({"w": TABLE}, held)], form=form)
    assert [*tmp_path.iterdir()] == []


def test_a_run_that_saves_other_objects_under_the_same_name_is_refused(tmp_path: Path) -> None:
    """As one that saves other tensors."""
    for _ in range(2):
        save_states(tmp_path / "ck", [({"w": TABLE}, about({"lr": 0.1}))], commit=False)
    with pytest.raises(ArgumentError, match="has saved already, and other values"):
        save_states(tmp_path / "ck", [({"w": TABLE}, about({"lr": 0.2}))], commit=False)


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
        save_states(tmp_path / "ck", [(part(0, 1), about())])


# --- Keys that only some processes have: a process may lack them when it loads

KEYS = st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=3).map(".".join)
"""Keys of up to three steps; one may be a beginning of another."""


@given(keys=st.lists(st.sets(KEYS), min_size=1, max_size=4))
def test_exactly_the_keys_that_a_process_lacked_may_be_lacking(keys: list[set[str]]) -> None:
    every, common = set.union(*keys), set.intersection(*keys)
    assert {*without_keys_of_some(every, keys_of_some(keys))} == common


@settings(max_examples=200 if EXHAUSTIVE else 20)
@given(keys=st.lists(st.sets(KEYS, min_size=1), min_size=1, max_size=3), data=st.data())
@pytest.mark.parametrize("form", ["shardvar", "torch"])
def test_a_process_that_loads_may_lack_what_only_some_had(
    form: str, keys: list[set[str]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of the keys that several processes have, the first process writes the values."""
    path, shard = tmp_path_factory.mktemp("job") / "ck", [sv.LocalShard(np.ones(2), (0,), (2,))]
    held: list[tuple[dict[str, Any], Metadata]] = []
    for process, mine in enumerate(keys):
        before = set[str]().union(*keys[:process])
        held.append(({f"w.{key}": [] if key in before else shard for key in mine}, Metadata()))
    save_states(path, held, form=form, is_state=True)
    every, common = ({f"w.{key}" for key in each(*keys)} for each in (set.union, set.intersection))
    mine = data.draw(st.sets(st.sampled_from(sorted(every))))
    with sv.open_checkpoint(path) as reader:
        assert (SOME_PROCESSES in reader.metadata.user) is (every != common)
        for count in (1, 2):
            if mine >= (every if count == 1 else common):
                report = unmatched_keys(reader, mine, True, count=count)
                assert {*report.unexpected} == every - mine and report.missing == ()
            else:
                with pytest.raises(ArgumentError, match="he state lacks"):
                    unmatched_keys(reader, mine, True, count=count)
            loose = unmatched_keys(reader, mine, False, count=count)
            assert {*loose.unexpected} == every - mine
        with pytest.raises(ArgumentError, match="ck lacks 'other'"):
            unmatched_keys(reader, {*every, "other"}, True, count=2)


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"keys": []}', '{"keys": [[]], "beginnings": []}', "[" * 9]
)
def test_a_text_that_names_no_keys_is_refused(text: str, tmp_path: Path) -> None:
    sv.save(tmp_path / "ck", {"w": np.ones(2)}, metadata={SOME_PROCESSES: text})
    with (
        sv.open_checkpoint(tmp_path / "ck") as reader,
        pytest.raises(CheckpointError, match="ck"),
    ):
        unmatched_keys(reader, (), True, count=2)


# --- Digests that processes take together: those of the whole tensors, and few bytes read

LEAF = 48


def small_leaves(patch: pytest.MonkeyPatch) -> None:
    """Make leaves small, so that small tensors have many."""
    for module in (definition, digest_module):
        patch.setattr(module, "LEAF_NBYTES", LEAF)


def digest_of(key: str, array: Any) -> str:
    """Return the digest as docs/digest.md defines it, with small leaves."""
    if array.dtype.kind == "O":
        dtype, data = (
            "string",
            b"".join(len(each).to_bytes(8, "little") + each for each in array.ravel()),
        )
    else:
        dtype, data = array.dtype.name, array.astype(array.dtype.newbyteorder("<")).tobytes()
        bits = re.fullmatch(r"u?int([24])|float([46])_.*", dtype)
        if bits:
            mask = (1 << int(bits[1] or bits[2])) - 1
            data = bytes(octet & mask for octet in data)
    leaves = [hashlib.sha256(data[at : at + LEAF]).digest() for at in range(0, len(data), LEAF)]
    head = f"shardvar digest 1\n{dtype}\n{','.join(map(str, array.shape))}\n{len(key.encode())}\n"
    return hashlib.sha256(head.encode() + key.encode() + b"".join(leaves)).hexdigest()


@given(drawn=divided(4), made=st.sampled_from(["array", "columns", "lazy", "rows"]))
def test_the_digests_are_the_ones_of_the_whole_tensors(
    drawn: Any, made: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tensors, shares = drawn
    path = tmp_path_factory.mktemp("saved") / "ck"
    given_shares = [
        {key: [given_as(each, made) for each in parts] for key, parts in share.items()}
        for share in shares
    ]
    with pytest.MonkeyPatch.context() as patch:
        small_leaves(patch)
        save_all(path, given_shares, "1", digest=True)
        with sv.open_checkpoint(path) as reader:
            assert dict(reader.digests) == {
                key: digest_of(key, array) for key, array in tensors.items()
            }
        assert sv.verify(path).ok


@given(
    shape=st.sampled_from([(40, 3), (7, 30), (3, 4, 20), (500,), (2, 1, 90), (1, 300)]),
    parts=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    first=st.booleans(),
)
def test_tensors_of_many_leaves_are_cut_along_any_axes(
    shape: tuple[int, ...],
    parts: tuple[int, int],
    first: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("saved") / "ck"
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    bias = np.arange(70.0)
    cuts = [1] * len(shape)
    cuts[-1] = parts[1]
    cuts[0] = max(cuts[0], parts[0])
    counts = [min(cut, extent) for cut, extent in zip(cuts, shape, strict=True)]
    regions = [*sv.Partition.from_counts(shape, counts)]
    shares = [
        {"w": [shard_of(array, each)], "bias": bias + first * number}
        for number, each in enumerate(regions)
    ]
    with pytest.MonkeyPatch.context() as patch:
        small_leaves(patch)
        save_all(path, shares, "1", digest=True, replicas="first")
        with sv.open_checkpoint(path) as reader:
            assert dict(reader.digests) == {
                "bias": digest_of("bias", bias),
                "w": digest_of("w", array),
            }


LONG = np.arange(5 << 18, dtype=np.uint32).reshape(5, -1)[:, :-3]


@pytest.mark.parametrize(
    ("shares", "read"),
    [
        ([{"w": shard_of(LONG, sv.Region((k, 0), (1, LONG.shape[1])))} for k in range(5)], 4),
        ([{"w": LONG}, {"w": LONG, "b": LONG[0, :5]}], 0),
    ],
    ids=["a leaf between two shards", "a process has it whole"],
)
def test_the_commit_reads_the_leaves_that_no_process_holds(
    shares: Any, read: int, tmp_path: Path
) -> None:
    real = FlatTensor.read
    with mock.patch.object(FlatTensor, "read", autospec=True, side_effect=real) as reads:
        save_all(tmp_path / "ck", shares, "1", digest=True)
    assert [len(each.args[2]) for each in reads.call_args_list] == [1 << 20] * read
    with sv.open_checkpoint(tmp_path / "ck") as reader:
        assert dict(reader.digests) == sv.digest(tmp_path / "ck").tensors


def test_a_format_that_cannot_carry_digests_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    for form in ("torch", "tensorflow", "safetensors"):
        with pytest.raises(UnsupportedError, match=f"cannot write the digests .* format {form}"):
            save_all(tmp_path / "ck", [{"w": np.ones(3)}], "1", format=form, digest=True)
    assert [*tmp_path.iterdir()] == []


def test_one_process_that_asks_is_enough(tmp_path: Path) -> None:
    """Unless one asks, no digest is kept."""
    array, path = np.arange(8.0).reshape(4, 2), tmp_path / "ck"
    shares = [{"w": shard_of(array, sv.Region((row, 0), (2, 2)))} for row in (0, 2)]
    for run in ("1", "2"):
        save_one(path, shares, 0, run=run)
        save_one(path, shares, 1, run=run, commit=True, digest=run == "1")
        with sv.open_checkpoint(path) as reader:
            assert dict(reader.digests) == (sv.digest(path).tensors if run == "1" else {})


def test_objects_have_the_digests_of_the_texts_that_they_are_listed_as(tmp_path: Path) -> None:
    values = {"step": 7, "words": ["näive", None], "nested": {"a": (1.5, b"x")}}
    objects = {key: encode_value(value).encode() for key, value in values.items()}
    for name, tensors in (("some", {"w": np.ones(3)}), ("none", {})):
        save_states(tmp_path / name, [(tensors, Metadata(objects=objects))], digest=True)
        with sv.open_checkpoint(tmp_path / name) as reader:
            assert dict(reader.digests) == sv.digest(tmp_path / name).tensors
            assert len(reader.digests) == 3 + len(tensors)
