"""Sharding callbacks (RFC 001): what they are given, what they may answer, and what each wrong
answer is told."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    PolicyError,
)
from shardvar.formats.protocol import WrappedSource
from shardvar.reference.devices import Device, device_scope
from shardvar.verbs.callbacks import LazySlice, SliceSource
from shardvar.verbs.locate import find_checkpoint
from shardvar.verbs.reader import Reader
from shardvar.verbs.save import source_of
from spec_tests.helpers import paths
from spec_tests.helpers.system_calls import snapshot
from spec_tests.verbs.test_restrictions import Callback, one_file

RECORDED = json.loads((paths.GOLDEN / "policies" / "policies.json").read_text())
A, B = "a/.ATTRIBUTES/VARIABLE_VALUE", "b/.ATTRIBUTES/VARIABLE_VALUE"


def changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[Any], Any]:
    """All in one file, changed."""

    def answer(tensors: Any) -> Any:
        shard = one_file(tensors)
        more = change(shard)
        return [shard, *more] if isinstance(more, list) else [shard]

    return answer


def recut(**parts: slice) -> Callable[[dict[str, Any]], Any]:
    """The tensor a in slices, by the extents that are written with an underscore for the comma."""

    def change(shard: dict[str, Any]) -> list[Any]:
        tensor = shard.pop(A)[""]
        return [
            {A: {f"4 3 {name[1:].replace('_', ',')}:0,3": tensor[rows]}}
            for name, rows in parts.items()
        ]

    return change


CALLBACKS: dict[str, tuple[Callable[[Any], Any], str | None]] = {
    "identity_all_in_one": (changed(lambda shard: None), None),
    "drop_tensor_a": (changed(lambda shard: shard.pop(A) and None), f"lost '{A}'"),
    "drop_object_graph": (changed(lambda shard: shard.pop("_CHECKPOINTABLE_OBJECT_GRAPH") and None), "lost '_CHECK"),
    "change_dtype": (
        changed(lambda shard: shard.update({A: {"": np.asarray(shard[A][""]).astype(np.float64)}})),
        f"changed the dtype of '{A}' in .* from float32 to float64",
    ),
    "transpose": (
        changed(lambda shard: shard.update({A: {"": np.asarray(shard[A][""]).T}})),
        rf"reshaped '{A}' from \(4, 3\) to \(3, 4\)",
    ),
    "duplicate_in_two_shards": (changed(lambda shard: [{A: shard[A]}]), f"'{A}' overlap"),
    "renamed_tensor": (changed(lambda shard: shard.update({"x" + A: shard.pop(A)})), f"added 'x{A}'"),
    "leading_empty_shard": (lambda tensors: [{}, one_file(tensors)], None),
    "valid_split_rows": (changed(recut(_0_2=slice(0, 2), _2_2=slice(2, 4))), None),
    "overlapping_slices": (changed(recut(_0_3=slice(0, 3), _2_2=slice(2, 4))), f"'{A}' overlap in"),
    "slice_wrong_full_shape_b": (
        changed(lambda shard: shard.update({A: {"5 3 0,4:0,3": shard[A][""]}})), r"from \(4, 3\) to \(5, 3\)"
    ),
    "slice_spec_garbage": (changed(lambda shard: shard.update({A: {"hello": shard[A][""]}})), "invalid .*'hello'"),
    "slice_out_of_bounds": (changed(recut(_0_3=slice(0, 3), _3_2=slice(2, 4))), "does not fit 4 indices"),
    "returns_none": (lambda tensors: None, "answered with None"),
    "returns_dict": (one_file, "instead of a sequence of files"),
    "flat_tensors_no_spec": (
        lambda tensors: [{each.checkpoint_key: each.tensor for each in tensors}], "instead of a mapping of slice specs"
    ),
}  # fmt: skip


def clears_its_list(tensors: Any) -> Any:
    shard = one_file(tensors)
    tensors.clear()
    return [shard]


MORE: dict[str, tuple[Callable[[Any], Any], str | None]] = {
    "clears its list": (clears_its_list, None),
    "raises": (lambda tensors: 1 // 0, "'does as it is told' raised ZeroDivisionError"),
    "generator": (lambda tensors: (each for each in [one_file(tensors)]), "instead of a sequence"),
    "lists": (lambda tensors: [[]], "file 0 with a value of type list"),
    "none": (lambda tensors: [None], "file 0 with None"),
    "number for a key": (changed(lambda shard: shard.update({3: {"": 1}})), "3 instead of by text"),
    "none for a slice": (changed(lambda shard: shard.update({A: {None: shard[A][""]}})), "None instead of by text"),
    "no slices": (changed(lambda shard: shard.update({A: {}})), "lost 'a"),
    "none for a tensor": (changed(lambda shard: shard.update({A: {"": None}})), "invalid slice of .*NoneType"),
    "text for numbers": (
        changed(lambda shard: shard.update({A: {"": np.full((4, 3), b"x", object)}})), "from float32 to string"
    ),
    "scalar with an axis": (
        changed(lambda shard: shard.update({B: {"": shard[B][""][None]}})), r"reshaped 'b/.*from \(\) to \(1,\)"
    ),
    "hole": (changed(recut(_0_2=slice(0, 2), _3_1=slice(3, 4))), r"lacks \[2:3, 0:3\]"),
    "nothing": (lambda tensors: [], "lost 'a.*lost 'b.*lost '_CHECK"),
    "several": (
        changed(lambda shard: shard.update({A: {"": shard[A][""][:2]}, B: {"": np.float32(1)}, "c": {"": 1}})),
        "added 'c'.*reshaped 'a.*changed the dtype of 'b",
    ),
}  # fmt: skip
"""What TensorFlow was not asked. Every loss is listed with its key and region."""


def model(factor: float = 1.0) -> sv.Checkpoint:
    a = sv.Variable(factor * np.arange(12, dtype=np.float32).reshape(4, 3))
    return sv.Checkpoint(a=a, b=sv.Variable(np.int64(7)))


def test_every_recorded_callback_is_tried() -> None:
    assert [case["callback"] for case in RECORDED["bad_callbacks"]] == list(CALLBACKS)


@pytest.mark.parametrize("name", [*CALLBACKS, *MORE])
def test_a_bad_callback_is_one_clear_error_and_the_checkpoint_that_stood_there_stands(
    name: str, tmp_path: Path
) -> None:
    """TensorFlow saves most of them, and fails, or worse, when it restores."""
    answer, complaint = (CALLBACKS | MORE)[name]
    model(2.0).write(tmp_path / "m")
    before = snapshot(tmp_path)
    callback = Callback(answer)
    if complaint is None:
        model().write(tmp_path / "m", policy=callback)
        restored = model(0.0)
        restored.read(tmp_path / "m").assert_consumed()
        np.testing.assert_array_equal(restored.a.numpy(), model().a.numpy())
    else:
        with pytest.raises(PolicyError, match=complaint) as caught:
            model().write(tmp_path / "m", policy=callback)
        assert "'does as it is told'" in caught.value.cause and caught.value.remedy
        assert isinstance(caught.value.__cause__, ZeroDivisionError) == (name == "raises")
        assert snapshot(tmp_path) == before
    assert len(callback.given) == 1


def test_strings_are_never_cut_and_keep_being_bytes(tmp_path: Path) -> None:
    tensors = {"s": np.array([b"x", b"yy"], object)}
    cut = Callback(
        lambda given: [{"s": {f"2 {n},1": given[0].tensor[n : n + 1]}} for n in range(2)]
    )
    with pytest.raises(PolicyError, match="cut 's', which is of dtype string"):
        sv.save(tmp_path / "m", tensors, policy=cut)
    wrong = Callback(lambda given: [{"s": {"": np.array([b"x", 3], object)}}])
    with pytest.raises(PolicyError, match="holds a value of type int"):
        sv.save(tmp_path / "m", tensors, policy=wrong)
    longer = Callback(lambda given: [{"s": {"": np.array([b"x" * 500, b""], object)}}])
    assert sv.save(tmp_path / "m", tensors, policy=longer).nbytes > 500
    assert sv.load(tmp_path / "m")["s"].tolist() == [b"x" * 500, b""]


def test_anything_that_can_be_called_and_says_what_it_does_is_a_policy(tmp_path: Path) -> None:
    def by_tensor(tensors: Any) -> Any:
        return [{each.checkpoint_key: {each.slice_spec: each.tensor}} for each in tensors]

    with pytest.raises(ArgumentError, match="is not a policy"):
        sv.save(tmp_path / "m", {"a": [1]}, policy=by_tensor)  # type: ignore[arg-type]
    by_tensor.description = "A file a tensor."  # type: ignore[attr-defined]
    report = sv.save(tmp_path / "m", {"a": [1], "b": [2]}, policy=by_tensor)  # type: ignore[arg-type]
    assert (report.num_files, report.description) == (2, "A file a tensor.")
    assert (
        report.callback_seconds > 0
        and report.to_json()["callback_seconds"] == report.callback_seconds
    )


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_reshard_calls_once_and_reads_only_what_it_is_asked_for(
    dry_run: bool, tmp_path: Path
) -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    sv.save(tmp_path / "a", {"x": x, "y": x}, partition=2)
    swapped = Callback(lambda given: [{"x": {"4 3 0,2:-": given[1].tensor, "4 3 2,2:-": given[0].tensor}},
                                       {"y": {each.slice_spec: -each.tensor for each in given[2:]}}])  # fmt: skip
    report = sv.reshard(tmp_path / "a", tmp_path / "b", policy=swapped, dry_run=dry_run)
    assert (len(swapped.given), report.num_files) == (1, 2)
    if not dry_run:
        found = sv.load(tmp_path / "b")
        np.testing.assert_array_equal(found["x"], x[[2, 3, 0, 1]])
        np.testing.assert_array_equal(found["y"], -x)
        assert sv.verify(tmp_path / "b").ok


def test_equal_input_gives_equal_bytes_whatever_time_the_callback_takes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        policy = Callback(lambda given: [one_file(given)])
        sv.save(tmp_path / name / "m.npz", {"x": np.arange(3)}, policy=policy)
    assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")


# Lazy tensors


@given(st.data())
def test_cutting_lazily_is_cutting(data: st.DataObject) -> None:
    """Any basic index of any basic index, over a tensor that is held in slices."""
    shape = tuple(data.draw(st.lists(st.integers(1, 5), max_size=3)))
    x = np.asarray(np.arange(int(np.prod(shape)), dtype=np.int32)).reshape(shape)
    source = source_of({"x": x})
    held = SliceSource(source.index.entries.slices, source.index.entries, source, {})
    lazy, expected = LazySlice(held, 0), x
    for _ in range(2):
        index = data.draw(basic_indices(expected.shape, allow_newaxis=True, max_dims=6))
        lazy, expected = lazy[index], np.asarray(expected[index])
        assert (lazy.shape, lazy.nbytes, lazy.dtype) == (
            expected.shape,
            expected.nbytes,
            expected.dtype,
        )
        np.testing.assert_array_equal(np.asarray(lazy), expected)
        if lazy.region is not None:
            np.testing.assert_array_equal(np.asarray(lazy), x[(*lazy.region.slices, ...)])
    np.testing.assert_array_equal((lazy - 1) * lazy, (expected - 1) * expected)


def test_nothing_is_read_before_a_value_is_needed() -> None:
    source = source_of({"x": np.arange(6), "scalar": np.float32(1)})
    entries = source.index.entries
    nothing: Any = None
    held = SliceSource(entries.slices, entries, nothing, {})
    given, scalar = sorted(held.shardable_tensors(), key=lambda each: -each.tensor.ndim)
    with pytest.raises(ArgumentTypeError, match="has no axes and therefore no length"):
        len(scalar.tensor)
    part = given.tensor[1:5:2]
    assert (part.shape, len(part), part.ndim, part.size, part.nbytes) == ((2,), 2, 1, 2, 16)
    assert repr(part) == "<LazySlice of 'x': int64[2]>"
    with pytest.raises(AttributeError):
        np.asarray(part)
    for wrong in (7, "x", [1], (0, 0)):
        with pytest.raises((ArgumentError, IndexError)):
            given.tensor[wrong]


# Tasks


def on_two_workers() -> sv.Checkpoint:
    variables = {}
    for number in range(2):
        with device_scope(Device(f"worker:{number}")):
            variables[f"v{number}"] = sv.Variable(np.full(4, number, np.float32))
    return sv.Checkpoint(**variables)


@pytest.mark.parametrize(
    ("policy", "count"),
    [
        (None, 3),
        (sv.ShardByDevicePolicy(), 3),
        (sv.MaxShardSizePolicy(8), 5),
        (sv.MaxShardSizePolicy(10**6), 3),
    ],
)
def test_each_policy_keeps_tasks_apart_and_the_graph_is_the_coordinators(
    policy: Any, count: int, tmp_path: Path
) -> None:
    """By default as recorded of TensorFlow: two workers' variables and the graph are three files."""
    [recorded] = [
        case for case in RECORDED["multi_task"] if case["callback"] == "save_ShardByTask_2_workers"
    ]
    report = on_two_workers().write(tmp_path / "m", policy=policy)
    assert report.num_files == count and len(recorded["files"]) - 1 == 3
    assert on_two_workers().write(tmp_path / "one.npz").num_files == 1
    restored = on_two_workers()
    restored.v1.assign(np.zeros(4, np.float32))
    restored.read(tmp_path / "m").assert_consumed()
    np.testing.assert_array_equal(restored.v1.numpy(), np.ones(4))


# Columns and callbacks


def test_a_composition_is_the_inner_policy_in_each_file_of_the_outer(tmp_path: Path) -> None:
    """R-POLICY-17: "first separates tensors by the model they belong to, then shards those with a
    max shard size"."""
    tensors = {name: np.arange(4.0) for name in "abc"}
    outer = Callback(lambda given: [{e.checkpoint_key: {e.slice_spec: e.tensor}} for e in given])
    report = sv.save(tmp_path / "m", tensors, policy=sv.compose(outer, sv.MaxShardSizePolicy(24)))
    assert report.file_nbytes == (24, 8) * 3
    assert report.description == (
        "does as it is told Then, in each of these: Fills files up to 24 bytes, cutting slices that do "
        "not fit."
    )
    inner = sv.compose(sv.MaxShardSizePolicy(48), Callback(lambda given: [one_file(given)]))
    assert sv.save(tmp_path / "m", tensors, policy=inner).file_nbytes == (48, 48)
    with pytest.raises(ArgumentError, match="policy"):
        sv.compose(outer, None)  # type: ignore[arg-type]


def test_a_composition_asks_its_inner_callback_about_a_key_that_the_outer_added(
    tmp_path: Path,
) -> None:
    """With what the value says of itself: it was given by nobody. What both make of it is refused
    like any answer."""
    seen: list[Any] = []
    outer = Callback(changed(lambda shard: shard.update(new={" 2 0,2 ": np.zeros(2, np.int16)})))
    inner = Callback(lambda given: seen.extend(given) or [one_file(given)])
    with pytest.raises(PolicyError, match="added 'new', which it was not given"):
        sv.save(tmp_path / "m", {"a": np.arange(4.0)}, policy=sv.compose(outer, inner))
    (added,) = [each for each in seen if each.checkpoint_key == "new"]
    assert (added.dtype, added.shape, added.slice_spec, added.device) == (
        np.int16,
        (2,),
        "2 0,2",
        "",
    )


# --- The usage scenarios of RFC 001, as docs/policies.md has them

PAGE = paths.DOCS / "policies.md"


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The names that the page's code defines, and where it wrote its checkpoints."""
    if not PAGE.exists():
        pytest.skip("the page stands in the tree, not in the wheel")
    directory = tmp_path_factory.mktemp("scenarios")
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 6
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        for block in blocks:
            exec(block, names)
    return directory, names


def files_of(path: Path) -> list[set[str]]:
    """The keys in each file."""
    with sv.open_checkpoint(path) as reader:
        entries = reader.entries()
        files: list[set[str]] = [set() for _ in reader.index.files]
        for row, file in enumerate(entries.file.tolist()):
            files[file].add(entries.slices.key(row).partition("/.")[0])
        return files


def test_each_model_gets_its_own_file(scenarios: tuple[Path, dict[str, Any]]) -> None:
    """RFC 001, Model Separation: "Each model gets its own shard"."""
    assert files_of(scenarios[0] / "separated")[:2] == [{"one/x"}, {"two/x"}]


def test_restoring_what_is_important_reads_its_file_and_no_other(
    scenarios: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RFC 001, Importance: "sharding important tensors separately so that they are loaded more
    quickly"."""
    found = find_checkpoint(scenarios[0] / "important")
    source = found.open()
    read: dict[int, int] = {}

    class Counting(WrappedSource):
        """The source, and how many bytes of each of its files were read."""

        inner = source

        def read_span(self, file: int, start: int, buffer: memoryview) -> None:
            read[file] = read.get(file, 0) + len(buffer)
            source.read_span(file, start, buffer)

    with Reader(found.path, found.format.name, Counting()) as reader:
        x = reader.read("x/.ATTRIBUTES/VARIABLE_VALUE")
        [file] = reader.find("x/.ATTRIBUTES/VARIABLE_VALUE").file.tolist()
    np.testing.assert_array_equal(x, np.ones(1000, np.float32))
    assert read == {file: 4000}
    assert files_of(scenarios[0] / "important")[file] == {"x"}


def test_values_that_a_callback_changes_are_those_that_are_stored(
    scenarios: tuple[Path, dict[str, Any]],
) -> None:
    """RFC 001, Normalize: "Note that not only can the sharding callback rearrange tensors, but also
    modify tensors."

    The same in a reshard, where tensors are read from the source as the callback asks for them.
    """
    directory, names = scenarios
    report = sv.reshard(
        directory / "normalized", directory / "again", policy=names["NormalizePolicy"](-1.0, 1.0)
    )
    assert sv.load(directory / "again")["x"].tolist() == [0.5, 0.75, 1.0]
    assert sv.load(directory / "again")["step"] == 7
    assert sv.verify(directory / "again").ok and report.num_empty_files == 1


def test_all_in_one_is_one_file(scenarios: tuple[Path, dict[str, Any]]) -> None:
    """RFC 001, All In One: "What if I actually want every tensor in a single shard?" """
    assert files_of(scenarios[0] / "together")[0] >= {"one/x", "two/x"}


@pytest.mark.parametrize("name", ["by_hand", "composed"])
def test_composition_cuts_within_the_files_of_the_outer_policy(
    name: str, scenarios: tuple[Path, dict[str, Any]]
) -> None:
    """RFC 001, Composition: "first separates tensors by the model they belong to, then shards
    those"."""
    models = [{key.partition("/")[0] for key in keys} for keys in files_of(scenarios[0] / name)]
    assert all(len(model) == 1 for model in models)
    restored = sv.Checkpoint(first=scenarios[1]["MyModel"](), second=scenarios[1]["MyModel"]())
    restored.read(scenarios[0] / name).assert_consumed()
